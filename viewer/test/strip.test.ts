// @vitest-environment happy-dom
import { expect, test, vi } from "vitest";
import { likeOf, strip } from "../src/strip";
import { made } from "./made";

const task = (start: number, length: number, more: object) => ({ start, end: start + length, step: 1, ...more });
const { head, data } = made({
  ranks: [{ rank: 0 }, { rank: 1 }],
  rows: [
    {
      rank: 0,
      tasks: [
        task(0, 5, { microbatch: 0, stage: 0 }), // 0
        task(10, 9, { microbatch: 1, stage: 0 }), // 1
        task(20, 4, { microbatch: 0, stage: 0, kind: "backward" }), // 2
        task(30, 7, { microbatch: 0, stage: 0, step: 2 }), // 3
      ],
    },
    { rank: 0, lane: "ideal", tasks: [task(0, 5, { microbatch: 0, stage: 0 })] }, // 4, did not happen
    { rank: 1, tasks: [task(0, 6, { microbatch: 0, stage: 1 })] }, // 5
  ],
});

test("the like of a task are those of its kind on its stage, and in its micro-batch", () => {
  expect(likeOf(head, data, 0)).toEqual({ stage: [0, 1, 3], microbatch: [0, 5] });
});

test("a plot has a dot for each, says what it shows, and goes to what is clicked", () => {
  const go = vi.fn();
  const [, plot] = strip(head, data, 0, go);
  expect(plot!.getAttribute("aria-label")).toBe(
    "on its stage: longer than 0 of 2 others; of its micro-batch: longer than 0 of 1 others",
  );
  expect(plot!.querySelectorAll(".own").length).toBe(2);
  plot!.querySelectorAll(".other").forEach((dot) => dot.dispatchEvent(new Event("click")));
  expect(go.mock.calls.flat()).toEqual([1, 3, 5]);
});

test("a task without its like has no plot", () => {
  expect(strip(head, data, 2, () => {})).toEqual([]);
});

test("names end before the axes begin, of thousands too", () => {
  const many = Array.from({ length: 1234 }, (_, at) => task(10 * at, 5, { microbatch: 0, stage: 0 }));
  const run = made({ rows: [{ rank: 0, tasks: many }] });
  const [, plot] = strip(run.head, run.data, 0, () => {});
  const longest = Math.max(...[...plot!.querySelectorAll("g text")].map((one) => one.textContent.length));
  const axes = [...plot!.querySelectorAll("line")].map((one) => Number(one.getAttribute("x1")));
  expect(Math.min(...axes)).toBeGreaterThan(5.8 * longest);
});
