import { expect, test } from "vitest";
import { curveTooltip, valueAt } from "../src/curves";
import { arrangement, layout } from "../src/layout";
import { made } from "./made";

test("a value holds until the next; before the first there is none", () => {
  const { head, data } = made({
    rows: [{ rank: 0, tasks: [] }],
    samples: [
      { rank: 0, counter: 0, points: [[0, 99]] },
      {
        rank: 0,
        counter: 1,
        points: [
          [10, 5],
          [20, 7],
          [20, 0],
          [30, 9],
        ],
      },
      { rank: 0, counter: 0, points: [[0, 88]] },
    ],
    head: { counters: ["memory", "power"].map((name) => ({ name, unit: "", least: 0, most: 99 })) },
  });
  const curve = layout(head, arrangement(head)).curves[1]!;
  const values = [-5, 0, 9.9, 10, 19, 20, 29, 30, 1e9].map((at) => valueAt(data.samples, curve, at));
  expect(values).toEqual([null, null, null, 5, 5, 0, 0, 9, 9]);
});

test("pointed at, a curve tells its counter, the value there and the greatest", () => {
  const { head, data } = made({
    rows: [{ rank: 0, tasks: [] }],
    samples: [{ rank: 0, counter: 0, points: [[10, 512]] }],
    head: { counters: [{ name: "memory", unit: "bytes", least: 0, most: 1024 }] },
  });
  const { curves } = layout(head, arrangement(head));
  const said = (at: number, y: number): string | null => curveTooltip(head, data.samples, curves, at, y);
  expect(said(20, curves[0]!.top + 1)).toBe("memory: 512 B of at most 1 KiB");
  expect(said(5, curves[0]!.top + 1)).toBe(null); // before the first
  expect(said(20, curves[0]!.top - 1)).toBe(null);
});
