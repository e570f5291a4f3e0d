import { expect, test } from "vitest";
import { nameCauses } from "../src/gaps";
import type { Place } from "../src/layout";
import { View } from "../src/view";
import { made } from "./made";

/** Where a gap from 0 to 1,000 is named, one pixel a nanosecond and six a letter. */
function named(tasks: [start: number, end: number][]): [text: string, from: number, to: number][] {
  const { head, data } = made({
    rows: [{ rank: 0, tasks: tasks.map(([start, end]) => ({ start, end, kind: "optimizer" })) }],
    gaps: [{ rank: 0, gaps: [{ start: 0, end: 1000 }] }],
  });
  const view = new View(1000);
  view.width = 1000;
  view.set(0, 1000);
  const found: [string, number, number][] = [];
  const context = {
    font: "",
    measureText: (text: string) => ({ width: 6 * text.length }),
    fillText: (text: string, x: number) => void found.push([text, x, x + 6 * text.length]),
  } as unknown as CanvasRenderingContext2D;
  const place = { row: head.rows[0], gaps: head.gaps[0] } as Place;
  nameCauses(context, head, data, place, view, 0, 0, 30);
  return found;
}

test("a gap is named in its middle, with its length", () => {
  const [[text, from, to]] = named([]) as [[string, number, number]];
  expect(text).toMatch(/ {2}1\.000 µs$/);
  expect((from + to) / 2).toBe(500);
});

test.each<[string, [number, number][], number, number]>([
  ["at its start", [[0, 400]], 400, 1000],
  ["from before it", [[-50, 100]], 100, 1000],
  ["at its end", [[700, 1000]], 0, 700],
  [
    "within it",
    [
      [200, 210],
      [500, 600],
    ],
    600,
    1000,
  ],
])("and beside what runs in it, %s", (_, tasks, least, most) => {
  const [[, from, to]] = named(tasks) as [[string, number, number]];
  expect((from + to) / 2).toBe((least + most) / 2);
});

test("not where tasks leave it no room", () => {
  const tasks = Array.from({ length: 50 }, (_, at): [number, number] => [20 * at, 20 * at + 10]);
  expect(named(tasks)).toEqual([]);
});
