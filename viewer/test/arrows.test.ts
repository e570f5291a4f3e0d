import { describe, expect, test } from "vitest";
import { arrowsInSight, arrowsOf, MOST } from "../src/arrows";
import { arrangement, layout } from "../src/layout";
import { View } from "../src/view";
import { made, random, row, whole } from "./made";

describe("the arrows of", () => {
  const { data } = made({
    rows: [{ rank: 0, tasks: [0, 1, 2, 3].map((start) => ({ start, end: start + 1 })) }],
    gaps: [
      {
        rank: 0,
        gaps: [
          { start: 4, end: 5, task: 3, root: 1 },
          { start: 5, end: 6, task: 3, root: 3 },
          { start: 6, end: 7, task: 2 },
          { start: 7, end: 8, root: 2 },
        ],
      },
    ],
    links: [
      [0, 2],
      [0, 3],
      [1, 2],
      [2, 3],
    ],
  });
  const of = (what: "task" | "gap", index: number) => arrowsOf({ what, index }, data.links, data.gaps);

  test("a task: what feeds it and what it feeds", () => {
    expect(of("task", 2)).toEqual([
      [0, 2],
      [1, 2],
      [2, 3],
    ]);
    expect(of("task", 1)).toEqual([[1, 2]]);
  });

  test("a gap: from the task that it waited for in the end", () => {
    expect(of("gap", 0)).toEqual([[1, 3]]);
  });

  test("a gap that waited for no other task, or for none that is known: none", () => {
    expect([of("gap", 1), of("gap", 2), of("gap", 3)]).toEqual([[], [], []]);
  });
});

describe("all arrows in sight", () => {
  test("begin at a task that is at least in part in sight", () => {
    for (let seed = 0; seed < 50; seed++) {
      const next = random(seed);
      const rows = [0, 1, 2].map((rank) => ({ rank, tasks: row(next, 40).filter(({ start, end }) => start < end) }));
      const count = rows.reduce((sum, { tasks }) => sum + tasks.length, 0);
      const links = Array.from({ length: 60 }, (): [number, number] => [
        whole(next, 0, count - 1),
        whole(next, 0, count - 1),
      ]).sort(([one], [other]) => one - other);
      const { head, data } = made({ rows, links });
      const { places } = layout(head, { ...arrangement(head), hidden: new Set([1]) });
      const view = new View(head.end);
      view.set(50.5, 120.5);
      const { start, end } = data.tasks;
      const wanted = links.filter(([source]) => {
        const rank = head.rows.find(({ from, to }) => from <= source && source < to)!.rank;
        return rank !== 1 && end[source]! > view.start && start[source]! < view.end;
      });
      expect(arrowsInSight(data.links, data.tasks, places, view)).toEqual({ arrows: wanted, count: wanted.length });
    }
  });

  test("are none if they are too many, with how many there are", () => {
    const tasks = Array.from({ length: 100 }, (_, at) => ({ start: at, end: at + 1 }));
    const links = (count: number) =>
      Array.from({ length: count }, (_, at): [number, number] => [Math.floor((at * 100) / count), 0]);
    for (const count of [MOST, MOST + 1, 5 * MOST]) {
      const { head, data } = made({
        rows: [
          { rank: 0, tasks: tasks.slice(0, 50) },
          { rank: 1, tasks: tasks.slice(50) },
        ],
        links: links(count),
      });
      const { places } = layout(head, arrangement(head));
      const found = arrowsInSight(data.links, data.tasks, places, new View(head.end));
      expect(found.count).toBe(count);
      expect(found.arrows.length).toBe(count > MOST ? 0 : count);
    }
  });
});
