// Ways through a run: of one micro-batch through all ranks, and of the step, which it cannot be shorter than.

import type { Arrow } from "./arrows";
import { rowsByRank, type Data, type Head, type Links } from "./data";

/** Sources by target and targets by source, each as a slice of a list. */
class Neighbours {
  private readonly from: Int32Array;
  private readonly list: Int32Array;

  constructor(of: Int32Array, others: Int32Array, count: number) {
    this.from = new Int32Array(count + 1);
    for (const one of of) this.from[one + 1]!++;
    for (let at = 0; at < count; at++) this.from[at + 1]! += this.from[at]!;
    const next = this.from.slice();
    this.list = new Int32Array(of.length);
    of.forEach((one, link) => (this.list[next[one]!++] = others[link]!));
  }

  of(task: number): Int32Array {
    return this.list.subarray(this.from[task], this.from[task + 1]);
  }
}

/** What feeds what, both ways. */
function both({ source, target }: Links, count: number): { sources: Neighbours; targets: Neighbours } {
  return { sources: new Neighbours(target, source, count), targets: new Neighbours(source, target, count) };
}

/** The arrows from task to task of a micro-batch, through all that fed one task of it and all that it fed. */
export function wayOf(task: number, { tasks, links }: Data): Arrow[] {
  const { sources, targets } = both(links, tasks.start.length);
  const same = (other: number): boolean =>
    (tasks.microbatch[other] === tasks.microbatch[task] || tasks.pair[other] === tasks.microbatch[task]) &&
    tasks.step[other] === tasks.step[task];
  const arrows: Arrow[] = [];
  for (const [neighbours, forward] of [
    [sources, false],
    [targets, true],
  ] as const) {
    const seen = new Set([task]);
    for (const one of seen) {
      for (const other of neighbours.of(one)) {
        if (!same(other)) continue;
        arrows.push(forward ? [one, other] : [other, one]);
        seen.add(other); // a set goes on to what was added to it
      }
    }
  }
  return arrows;
}

/**
 * The chain of tasks that kept a step from ending sooner: from its last task back, at each the one of those
 * that had to be done before it, on its rank or feeding it, that ended last.
 *
 * @returns tasks by time
 */
export function criticalPath(step: number, head: Head, { tasks, links }: Data): number[] {
  const { sources } = both(links, tasks.start.length);
  const before = new Map<number, number>(); // on the same rank
  let last = -1;
  for (const rows of rowsByRank(head, "compute")) {
    const own: number[] = [];
    for (const { from, to } of rows)
      for (let task = from; task < to; task++) if (tasks.step[task] === step) own.push(task);
    if (rows.length > 1) own.sort((one, other) => tasks.end[one]! - tasks.end[other]!);
    own.forEach((task, at) => {
      if (at > 0) before.set(task, own[at - 1]!);
      if (last < 0 || tasks.end[task]! > tasks.end[last]!) last = task;
    });
  }
  const path: number[] = [];
  const seen = new Set<number>(); // clocks that differ may make a result arrive before it was sent
  for (let task = last; task >= 0 && !seen.has(task);) {
    seen.add(task);
    path.push(task);
    let next = before.get(task) ?? -1;
    for (const source of sources.of(task))
      if (tasks.step[source] === step && (next < 0 || tasks.end[source]! > tasks.end[next]!)) next = source;
    task = next;
  }
  return path.reverse();
}

/** Each task of a chain with the next. */
export function arrowsAlong(chain: number[]): Arrow[] {
  return chain.slice(1).map((task, at) => [chain[at]!, task]);
}
