// Pages of two runs for tests: rank by rank, the tasks of A and of B, of which it is said which is which.

import type { Against, Data, Head, Pair } from "../src/data";
import { made, type Task } from "./made";

export const AGAINST: Against = {
  sides: [
    { label: "runs/a/traces", said: "1f1b" },
    { label: "runs/b/traces", said: "zb-h1" },
  ],
  headline: "Whether B is slower or faster than A is not certain.",
  step: null,
  ranked: [],
  tables: [],
  differs: [],
  notes: [],
  noise: null,
  scale: [10, 50, 100],
  pairs: [],
  rates: [],
  idle: [],
};

/** A page of a rank for each pair of lists; a task of A is that of B at the same place, unless it is null there. */
export function pages(
  ranks: { mine: Task[]; its: (Task | null)[] }[],
  pairs: Pair[] = [],
  head: Partial<Head> = {},
): { head: Head; data: Data } {
  const rows = ranks.flatMap(({ mine, its }, rank) => [
    { rank, tasks: mine },
    { rank, lane: "against" as const, tasks: its.flatMap((task) => task ?? []) },
  ]);
  const run = made({ rows, head: { against: { ...AGAINST, pairs }, ...head } });
  const counterpart = new Int32Array(run.data.tasks.kind.length);
  let at = 0;
  for (const { mine, its } of ranks) {
    let other = at + mine.length;
    its.forEach((task, index) => {
      if (task === null) return;
      if (index < mine.length) [counterpart[at + index], counterpart[other]] = [other - at - index, at + index - other];
      other++;
    });
    at = other;
  }
  run.data.tasks.counterpart = counterpart;
  return run;
}
