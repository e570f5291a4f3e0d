import { beforeEach, expect, test } from "vitest";
import { arrangement, layout, type Arrangement } from "../src/layout";
import { next, type Way } from "../src/tour";
import { View } from "../src/view";
import { made } from "./made";

const { head, data } = made({
  rows: [
    {
      rank: 0,
      tasks: [
        { start: 0, end: 10 },
        { start: 10, end: 30 },
        { start: 50, end: 60 },
      ],
    }, // 0 1 2
    { rank: 1, tasks: [] },
    {
      rank: 2,
      tasks: [
        { start: 0, end: 15 },
        { start: 18, end: 22 },
        { start: 40, end: 45 },
      ],
    }, // 3 4 5
    { rank: 3, tasks: [{ start: 100, end: 110 }] }, // 6
  ],
});
const all = layout(head, arrangement(head));
let view: View;
beforeEach(() => void (view = new View(110)));

const go = (selected: number, way: Way, plan = all, top = 0): number =>
  next(head, data, plan, view, top, selected, way);
const without = (change: Partial<Arrangement>) => layout(head, { ...arrangement(head), ...change });

test("left and right, to the ends of the row", () => {
  expect([go(1, "left"), go(1, "right"), go(0, "left"), go(2, "right"), go(3, "left"), go(5, "right")]).toEqual([
    0, 2, -1, -1, -1, -1,
  ]);
});

test("down and up to what runs at the same time, or next", () => {
  expect(go(0, "down")).toBe(3);
  expect(go(1, "down")).toBe(4);
  expect(go(4, "up")).toBe(1);
  expect(go(2, "down")).toBe(5); // there is none later: the last
  expect(go(5, "down")).toBe(6);
  expect(go(6, "up")).toBe(5);
});

test("past rows without tasks and no further than the last", () => {
  expect(go(3, "up")).toBe(0);
  expect(go(0, "up")).toBe(-1);
  expect(go(6, "down")).toBe(-1);
});

test("in the order in which ranks are shown, past those hidden", () => {
  expect(go(0, "down", without({ order: [3, 0, 1, 2] }))).toBe(3);
  expect(go(0, "up", without({ order: [3, 0, 1, 2] }))).toBe(6);
  expect(go(0, "down", without({ hidden: new Set([2]) }))).toBe(6);
});

test("the first in sight if none is selected, or it is not shown", () => {
  expect(go(-1, "right")).toBe(0);
  view.set(35, 48);
  expect(go(-1, "right")).toBe(5);
  expect(go(-1, "right", all, all.places[3]!.top)).toBe(-1);
  view.set(0, 110);
  expect(go(-1, "down", all, all.places[1]!.top)).toBe(3);
  expect(go(0, "down", without({ hidden: new Set([0]) }))).toBe(3);
});
