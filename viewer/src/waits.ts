// Collectives that waited: of each that is known on all its ranks, how long it did until the last rank came, and which
// one that was. The rest of it, all ranks were in together.

import { rowOf, type Data, type Head, type Spans, type Tasks } from "./data";
import { blend } from "./raster";
import type { Theme } from "./theme";
import { duration } from "./units";
import { t } from "./words";

const FAINT = 0.4; // how much of its colour a block has while it waits

/** The colour of a block while it waits: nearer to the ground, by which everyone tells it apart. */
export function waitingFill(fill: string, theme: Theme): string {
  return blend(fill, theme.idle, FAINT);
}

/** The two parts of each task. */
export interface Halves {
  waiting: Spans; // empty where it did not wait, or where that is not known
  together: Spans; // the rest
}

const known = new WeakMap<Tasks, Halves>();

/** The two parts of each task; null where none is known to have waited. */
export function halves(tasks: Tasks): Halves | null {
  const { start, end, waited } = tasks;
  if (!waited) return null;
  const found = known.get(tasks);
  if (found) return found;
  const came = start.map((began, task) => Math.min(end[task]!, began + Math.max(0, waited[task]!)));
  const made = { waiting: { start, end: came }, together: { start: came, end } };
  known.set(tasks, made);
  return made;
}

/** The first task that is known to have waited; -1 without any. */
export function firstWaiting({ waited }: Tasks): number {
  return waited ? waited.findIndex((time) => time > 0) : -1;
}

/** How long a task waited for whom, in a few words; nothing where that is not known. */
export function waitingSaid(head: Head, { tasks }: Data, task: number): string {
  const { start, end, waited, awaited, off, merged } = tasks;
  const time = waited?.[task] ?? -1;
  if (time < 0 || merged?.[task]) return "";
  const together = duration(end[task]! - start[task]! - time);
  const last = awaited![task]!;
  const said =
    last >= 0 && last === rowOf(head, task).rank
      ? t("came last, then {together} together", { together })
      : time === 0
        ? t("hardly waited: {together} together", { together })
        : last < 0
          ? t("waited {time} for the last ranks, then {together} together", { time: duration(time), together })
          : t("waited {time} for rank {rank}, then {together} together", {
              time: duration(time),
              rank: head.ranks[last]!.rank,
              together,
            });
  return `${said} (±${duration(off![task]!)})`;
}
