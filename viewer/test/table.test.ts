// @vitest-environment happy-dom
import { expect, test } from "vitest";
import type { App } from "../src/app";
import { arrangement, layout } from "../src/layout";
import { inSight } from "../src/table";
import { View } from "../src/view";
import { made } from "./made";

const step = { phase: null, makespan: null, error: null, idle: null };
const { head, data } = made({
  rows: [
    {
      rank: 0,
      tasks: [
        { start: 0, end: 100 },
        { start: 1000, end: 1100 },
        { start: 1200, end: 1250 },
      ],
    },
  ],
  head: {
    steps: [
      { ...step, step: 0, start: 0, end: 1000 },
      { ...step, step: 1, start: 1000, end: 2000 },
    ],
    end: 2000,
  },
});

/** The columns of a table of what is in sight. */
function lines(start: number, end: number, sorted = ""): string[][] {
  const view = new View(2000);
  view.width = 100;
  view.set(start, end);
  const plan = layout(head, arrangement(head));
  const table = inSight({ head, data, view, plan, scroll: { scrollTop: 0, clientHeight: 400 } } as unknown as App);
  if (sorted !== "")
    [...table.querySelectorAll<HTMLElement>("th button")].find((one) => one.textContent === sorted)!.click();
  return [...table.querySelectorAll("tbody tr")].map((line) => [...line.children].map((one) => one.textContent));
}

test("within a step, tasks begin after its start, as the axis says", () => {
  expect(lines(1000, 2000).map((line) => line.slice(3, 5))).toEqual([
    ["0 ns", "100 ns"],
    ["200 ns", "50 ns"],
  ]);
  expect(lines(0, 2000).map((line) => line[3])).toEqual(["0 ns", "1.000 µs", "1.200 µs"]);
});

test("a click on a heading sorts by its column", () => {
  expect(lines(0, 2000, "takes").map((line) => line[4])).toEqual(["50 ns", "100 ns", "100 ns"]);
});
