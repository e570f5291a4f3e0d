// Two runs in one page: which task is which, how much it gained or lost, and B laid on A step by step.

import {
  rowsByRank,
  type Against,
  type Data,
  type Extent,
  type Head,
  type Numbers,
  type Pair,
  type Step,
  type Tasks,
} from "./data";
import { duration } from "./units";

/** The same task in the other run, or -1 where it has none or that is not here. */
export function counterpartOf(tasks: Tasks, task: number): number {
  const reach = tasks.counterpart?.[task] ?? 0;
  if (!reach) return -1;
  return tasks.id ? (placesOf(tasks.id).get(tasks.id[task]! + reach) ?? -1) : task + reach;
}

/** The number of the same task among all of the run, where only a part of it is here; -1 where it has none. */
export function counterpartId(tasks: Tasks, task: number): number {
  const reach = tasks.counterpart?.[task] ?? 0;
  return reach ? tasks.id![task]! + reach : -1;
}

const known = new WeakMap<Numbers, Map<number, number>>();

/** Where each of some numbers stands. */
function placesOf(ids: Numbers): Map<number, number> {
  const places = known.get(ids) ?? new Map(Array.from(ids, (id, index) => [id, index]));
  known.set(ids, places);
  return places;
}

/** By how much longer a task is in B than in A, whichever of the two is given; null where it has no counterpart. */
export function changeOf(tasks: Tasks, task: number): number | null {
  const reach = tasks.counterpart?.[task] ?? 0;
  if (!reach) return null;
  if (tasks.change) return tasks.change[task]!;
  return (length(tasks, task + reach) - length(tasks, task)) * Math.sign(reach); // B's rows are below A's
}

function length({ start, end }: Tasks, task: number): number {
  return end[task]! - start[task]!;
}

/** A difference with its sign. */
export function signed(ns: number): string {
  return ns === 0 ? "±0" : `${ns < 0 ? "−" : "+"}${duration(Math.abs(ns))}`;
}

/**
 * Lays B on A: its lanes are moved as a whole, so that one of its steps begins where A's does.
 *
 * Of a run of which only a part is here, they come moved as they are asked for.
 */
export class Alignment {
  pair: Pair | null = null; // the steps that begin at once
  private readonly rows: Extent[];
  private readonly pairs: { pair: Pair; start: number; end: number }[]; // in time, where A's step is
  shift = 0; // by how much its lanes are moved

  constructor(
    head: Head,
    against: Against,
    private readonly data: Data | null, // null where only a part is here
  ) {
    this.rows = rowsByRank(head, "against").flat();
    const steps = new Map(head.steps.map((step) => [step.step, step]));
    this.pairs = against.pairs
      .map((pair) => {
        const { start, end } = (pair.step === null ? undefined : steps.get(pair.step)) ?? { start: 0, end: head.end };
        return { pair, start, end };
      })
      .sort((one, other) => one.start - other.start);
  }

  /** Lay B on A for a stretch that is in sight; return whether it is laid otherwise than before. */
  align(start: number, end: number): boolean {
    const pair = this.about(start, end);
    if (!pair || pair === this.pair) return false;
    this.pair = pair;
    const by = pair.shift - this.shift;
    this.shift = pair.shift;
    const tasks = this.data?.tasks;
    for (const { from, to } of tasks ? this.rows : []) {
      for (let task = from; task < to; task++) {
        tasks!.start[task]! += by;
        tasks!.end[task]! += by;
      }
    }
    return true;
  }

  /** How far a task of B is from where it would be if its own step began where A's does. */
  off(step: number): number {
    const own = this.pairs.find(({ pair }) => (pair.step ?? -1) === step);
    return own ? this.shift - own.pair.shift : 0;
  }

  /** The pair of whose step in A the greatest share is in sight, the first of several; else the nearest. */
  private about(from: number, to: number): Pair | null {
    let best: Pair | null = null;
    let most = -Infinity;
    for (const { pair, start, end } of this.pairs) {
      const within = Math.min(end, to) - Math.max(start, from);
      const share = within > 0 ? within / (end - start) : within; // below 0: how far away it is
      if (share > most) [best, most] = [pair, share];
    }
    return best;
  }
}

/** Where a step ends, of two runs the later of both. */
export function stepEnd({ against }: Head, { step, end }: Step): number {
  const pair = against?.pairs.find((one) => one.step === step);
  return Math.max(end, pair?.end ?? end);
}
