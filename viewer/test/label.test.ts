import { expect, test } from "vitest";
import { long, short, whose } from "../src/label";
import { made } from "./made";

const tasks = [
  { start: 0, end: 1500, microbatch: 3, chunk: 1 },
  { start: 2000, end: 2010, kind: "forward_backward", microbatch: 4, chunk: 0, pair: 1, pairChunk: 2 },
  { start: 2010, end: 2010, kind: "optimizer" },
  { start: 3000, end: 3001, kind: "backward", microbatch: 0 },
];

test.each([
  [1, ["F3", "F4+B1", "O", "B0"]],
  [2, ["F3.1", "F4.0+B1.2", "O", "B0"]],
])("kind and micro-batch, and the chunk where ranks have several: %s", (chunks, texts) => {
  const { head, data } = made({ rows: [{ rank: 0, tasks }], head: { chunks } });
  expect(tasks.map((_, task) => short(head, data.tasks, task))).toEqual(texts);
});

test("a task of no known kind has its own name", () => {
  const own = [
    { start: 0, end: 1000, kind: "other", name: "decode step" },
    { start: 1000, end: 2000, kind: "other" },
    { start: 2000, end: 2001, kind: "other", name: "x".repeat(300) },
    { start: 2001, end: 2002, kind: "other", name: "nn.Module: Layer_7" },
  ];
  const { head, data } = made({ rows: [{ rank: 0, tasks: own }] });
  expect(long(head, data.tasks, 0)).toBe("decode step  1.000 µs");
  expect(whose(head, data.tasks, 0)).toBe("decode step on rank 0");
  expect(short(head, data.tasks, 1)).toBe("Other");
  expect(short(head, data.tasks, 2)).toBe(`${"x".repeat(80)}…`);
  expect(short(head, data.tasks, 3)).toBe("Layer_7");
});

test("how long it took, and where", () => {
  const { head, data } = made({
    head: { chunks: 1 },
    ranks: [{}, { rank: 17 }],
    rows: [
      { rank: 0, tasks: [] },
      { rank: 1, tasks },
    ],
  });
  expect(long(head, data.tasks, 0)).toBe("F3  1.500 µs");
  expect(whose(head, data.tasks, 3)).toBe("B0 on rank 17");
});
