import { expect, test } from "vitest";
import { valueAt } from "../src/curves";
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
