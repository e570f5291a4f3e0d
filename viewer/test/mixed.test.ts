// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { arrangement, layout } from "../src/layout";
import { mixedTooltip } from "../src/mixed";
import { View } from "../src/view";
import { made } from "./made";

const { head, data } = made({
  rows: [
    {
      rank: 0,
      tasks: [
        { start: 100, end: 133 },
        { start: 133, end: 198, kind: "backward" },
        { start: 198, end: 199, kind: "backward" },
        { start: 250, end: 260 },
        { start: 1000, end: 2000 },
      ],
    },
  ],
  gaps: [{ rank: 0, gaps: [{ start: 0, end: 100 }] }],
});
const { places } = layout(head, arrangement(head));
const view = new View(2000);
view.width = 20;
view.set(0, 2000); // a pixel is a hundred nanoseconds
const at = (x: number, y = places[0]!.top): string | null => mixedTooltip(head, data, places, view, x, y);

test("a pixel of several tasks is told by the shares of their kinds", () => {
  expect(at(1.5)).toBe("backward 66 %, forward 33 %, idle 1 %; 3 tasks in this pixel");
});

test("so is one that is much narrower than it seems", () => {
  expect(at(2.9)).toBe("forward 10 %, idle 90 %; 1 task in this pixel");
});

test("a task that can be seen by itself is told by itself, and nothing of nothing", () => {
  expect(at(15)).toBeNull();
  expect(at(5)).toBeNull();
  expect(at(1.5, places[0]!.top - 1)).toBeNull();
  expect(at(-1)).toBeNull();
});

test("the band below the blocks is of gaps", () => {
  const { top, height, band } = places[0]!;
  expect(band).toBeGreaterThan(0);
  expect(at(1.5, top + height - 1)).toBeNull();
});
