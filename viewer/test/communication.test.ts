import { expect, test } from "vitest";
import { inGroups } from "../src/communication";
import { made } from "./made";

const { head } = made({
  rows: [{ rank: 0, tasks: [{ start: 0, end: 9 }] }],
  head: {
    communicating: [
      { role: "tp", said: "tensor parallel", operation: "allgather" },
      { role: "tp", said: "tensor parallel", operation: null },
      { role: null, said: "not told", operation: "alltoall" },
    ],
  },
});
const communication = {
  task: Int32Array.of(1, 1, 1, 4, 7, 7),
  of: Uint8Array.of(0, 1, 2, 2, 0, 2),
  exposed: Int32Array.of(1, 2, 5, 7, 0, 0),
  hidden: Int32Array.of(10, 20, 0, 3, 2, 9),
};
const rows = (task: number): unknown[] =>
  inGroups(head, communication, task).map(({ role, exposed, hidden, operations }) => [
    role,
    exposed,
    hidden,
    ...operations,
  ]);

test("groups of one role are one, those with the most exposed time first", () => {
  expect(rows(1)).toEqual([
    [null, 5, 0, "alltoall"],
    ["tp", 3, 30, "allgather"],
  ]);
  expect(rows(4)).toEqual([[null, 7, 3, "alltoall"]]);
  expect(rows(7)).toEqual([
    [null, 0, 9, "alltoall"],
    ["tp", 0, 2, "allgather"],
  ]);
});

test.each([0, 2, 5, 8])("of task %i, in which nothing communicated, nothing is said", (task) => {
  expect(rows(task)).toEqual([]);
});
