import { expect, test } from "vitest";
import type { Data, Head } from "../src/data";
import { totals } from "../src/totals";
import { CAUSES, KINDS, made, random, row, whole, type Gap, type Random } from "./made";

const END = 160;

/** Count every nanosecond of its own. */
function counted(head: Head, { tasks, gaps }: Data, start: number, end: number, ranks: number[]) {
  const kinds = KINDS.map(() => 0);
  const kinds_beside = KINDS.map(() => 0);
  const causes = head.causes.map(() => 0);
  const [seen, beside] = [new Set<number>(), new Set<number>()];
  let busy = 0;
  for (const rank of ranks) {
    const rows = head.rows.filter((one) => one.rank === rank && one.lane !== "ideal" && one.lane !== "whatif");
    for (let time = start; time < end; time++) {
      let computing = false;
      for (const { from, to, lane } of rows) {
        for (let task = from; task < to; task++) {
          if (tasks.start[task]! >= time + 1 || tasks.end[task]! <= time) continue;
          (lane === "compute" ? kinds : kinds_beside)[tasks.kind[task]!]! += 1;
          (lane === "compute" ? seen : beside).add(task);
          computing ||= lane === "compute";
        }
      }
      if (computing) busy += 1;
      for (const { from, to } of head.gaps.filter((one) => one.rank === rank)) {
        for (let gap = from; gap < to; gap++)
          if (gaps.start[gap]! <= time && time < gaps.end[gap]!) causes[gaps.cause[gap]!]! += 1;
      }
    }
  }
  const spanned = ranks.length * (end - start);
  const idle = spanned - busy;
  const found = { ranks: ranks.length, spanned, busy, idle, kinds, kinds_beside, causes, unexplained: 0 };
  return { found, seen, beside };
}

function gaps(next: Random): Gap[] {
  return row(next, 8).map(({ start, end }) => ({ start, end, cause: whole(next, 0, CAUSES.length - 1) }));
}

test("it is what counting every nanosecond finds", () => {
  for (let seed = 0; seed < 60; seed++) {
    const next = random(seed);
    // No tasks without length: they take none, and no nanosecond holds them.
    const tasks = (count: number) => row(next, count).filter(({ start, end }) => start < end);
    const { head, data } = made({
      rows: [0, 1, 2].flatMap((rank) => [
        { rank, tasks: tasks(14) },
        { rank, tasks: tasks(rank * 9) }, // overlaps the first
        { rank, tasks: tasks(rank * 3) },
        { rank, lane: "ideal" as const, tasks: tasks(9) },
        { rank, lane: "comm" as const, tasks: tasks(9) },
        { rank, lane: "host" as const, tasks: tasks(5) },
      ]),
      gaps: [0, 1, 2].map((rank) => ({ rank, gaps: gaps(next) })),
    });
    const start = whole(next, -20, 60);
    const end = start + whole(next, 1, END);
    for (const ranks of [[0, 1, 2], [1], [2, 0], []]) {
      const { tasks: counts, tasks_beside, ...found } = totals(head, data, start, end, ranks);
      const wanted = counted(head, data, start, end, ranks);
      expect(found).toEqual(wanted.found);
      const byKind = (tasks: Set<number>): number[] =>
        KINDS.map((_, kind) => [...tasks].filter((task) => data.tasks.kind[task] === kind).length);
      expect(counts).toEqual(byKind(wanted.seen));
      expect(tasks_beside).toEqual(byKind(wanted.beside));
    }
  }
});

test("both ends are cut to the nanosecond and below", () => {
  const { head, data } = made({
    rows: [
      {
        rank: 0,
        tasks: [
          { start: 0, end: 10 },
          { start: 20, end: 30 },
          { start: 30, end: 40 },
        ],
      },
    ],
  });
  const found = totals(head, data, 7.5, 32.25, [0]);
  expect(found.busy).toBe(2.5 + 10 + 2.25);
  expect(found.idle).toBe(10);
  expect(found.tasks[0]).toBe(3);
  expect(totals(head, data, 10, 20, [0])).toMatchObject({ busy: 0, idle: 10 });
});

test("time in which rows overlap is busy once, and of each kind", () => {
  const { head, data } = made({
    rows: [
      { rank: 0, tasks: [{ start: 0, end: 50 }] },
      { rank: 0, tasks: [{ start: 10, end: 30, kind: "optimizer" }] },
      { rank: 0, tasks: [{ start: 20, end: 60, kind: "optimizer" }] },
    ],
  });
  const found = totals(head, data, 0, 100, [0]);
  expect(found.busy).toBe(60);
  expect(found.kinds[0]).toBe(50);
  expect(found.kinds[5]).toBe(60);
});

test("a rank named twice counts once", () => {
  const { head, data } = made({ rows: [{ rank: 0, tasks: [{ start: 0, end: 5 }] }] });
  expect(totals(head, data, 0, 10, [0, 0])).toMatchObject({ ranks: 1, spanned: 10, busy: 5 });
});
