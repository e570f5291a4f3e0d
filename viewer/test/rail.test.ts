import { expect, test } from "vitest";
import { arrangement, layout } from "../src/layout";
import { Rail } from "../src/rail";
import { View } from "../src/view";
import { made, THEME } from "./made";

const { head, data } = made({
  rows: [
    {
      rank: 0,
      tasks: [
        { start: 1000, end: 1001, kind: "optimizer" },
        { start: 2000, end: 2001 },
        { start: 3000, end: 3001 },
        { start: 3002, end: 3003 },
        { start: 5000, end: 6000, kind: "optimizer" },
      ],
    },
  ],
});
const [place] = layout(head, arrangement(head)).places;

function ticks(selected: number, found: number[]): [colour: string, x: number, width: number, height: number][] {
  const view = new View(10_000);
  view.width = 100;
  view.set(0, 10_000); // a task is a hundredth of a pixel
  const drawn: [string, number, number, number][] = [];
  const context = {
    fillStyle: "",
    fillRect(x: number, y: number, width: number, height: number) {
      expect(y + height).toBeLessThanOrEqual(50); // above the lane
      drawn.push([context.fillStyle, x + width / 2, width, height]);
    },
  };
  const marked = found.length ? Uint8Array.from(data.tasks.start, (_, task) => (found.includes(task) ? 1 : 0)) : null;
  const drawing = context as unknown as CanvasRenderingContext2D;
  new Rail(head, data).draw(drawing, data, place!, selected, marked, view, 0, 50, THEME);
  return drawn.map(([colour, x, width, height]) => [colour, Math.round(x), width, height]);
}

test("the optimizer, what was found and what is selected have ticks of two pixels, however short they are", () => {
  expect(ticks(3, [1, 2])).toEqual([
    [THEME.dim, 10, 2, 2],
    [THEME.text, 20, 2, 2],
    [THEME.text, 30, 2, 2],
    [THEME.accent, 30, 2, 2],
  ]);
});

test("what can be seen by itself has none, nor has what is on the same pixel as another", () => {
  expect(ticks(4, [2, 3]).map(([colour]) => colour)).toEqual([THEME.dim, THEME.text]);
});
