import { expect, test } from "vitest";
import { View } from "../src/view";
import { wide } from "../src/wide";
import { made, random, row, whole } from "./made";

test("those that are wide enough are found among any number, and no others", () => {
  const next = random(5);
  let found = 0;
  for (let turn = 0; turn < 300; turn++) {
    const { head, data } = made({ rows: [{ rank: 0, tasks: row(next, whole(next, 1, 400), 1 + 300 * next() ** 4) }] });
    const view = new View(head.end);
    view.width = 200;
    view.set(head.end * next() * 0.5, head.end * (0.5 + 0.5 * next()));
    const { start, end } = data.tasks;
    const least = whole(next, 1, 40);
    const width = (task: number): number =>
      (Math.min(end[task]!, view.end) - Math.max(start[task]!, view.start)) * view.scale;
    const given = wide(data.tasks, head.rows[0]!, view, least);
    // Of one that is as wide as that to the last bit, nothing is said.
    const wanted = [...start.keys()].filter((task) => width(task) > least * (1 + 1e-9));
    const certain = given.filter((task) => Math.abs(width(task) - least) > least * 1e-9);
    expect(certain).toEqual(wanted);
    found += wanted.length;
  }
  expect(found).toBeGreaterThan(500);
});
