import { expect, test } from "vitest";
import { rowOf, type Columns, type Row } from "../src/data";
import { joined, overlaid } from "../src/ghosts";
import { made } from "./made";

const RUN = made({
  rows: [
    {
      rank: 0,
      tasks: [
        { start: 0, end: 4, stage: 0 },
        { start: 4, end: 9, stage: 0 },
      ],
    },
    { rank: 0, lane: "whatif", tasks: [{ start: 0, end: 1 }] },
    { rank: 1, tasks: [{ start: 2, end: 8, stage: 1 }] },
  ],
});
const NAMES = ["busy", "lead", "kind", "microbatch", "chunk", "stage", "step", "peer", "pair", "pair_chunk", "name"];
/** Two answers: the first has two tasks of rank 0, the second one of each rank. */
const GHOSTS = {
  ...Object.fromEntries(NAMES.map((name) => [name, Uint8Array.of(1, 2, 3, 4)])),
  gap: Uint8Array.of(1, 3, 5, 6),
  length: Uint8Array.of(2, 2, 1, 3),
} as unknown as Columns<"ghosts">;
const row = (rank: number, from: number, to: number): Row => ({ rank, lane: "whatif", row: 0, from, to });

test("an answer's tasks stand behind the measured ones, in place of the what-if of the page", () => {
  const { rows, data } = joined(RUN.head, RUN.data, GHOSTS, [row(0, 2, 3), row(1, 3, 4)]);
  expect(rows.map(({ rank, lane, from, to }) => [rank, lane, from, to])).toEqual([
    [0, "compute", 0, 2],
    [1, "compute", 3, 4],
    [0, "whatif", 4, 5],
    [1, "whatif", 5, 6],
  ]);
  expect([...data.tasks.start]).toEqual([0, 4, 0, 2, 5, 6]);
  expect([...data.tasks.end]).toEqual([4, 9, 1, 8, 6, 9]);
  expect([...data.tasks.microbatch].slice(-2)).toEqual([3, 4]);
  expect(rowOf({ ...RUN.head, rows }, 5)).toBe(rows[3]);
  expect(data.gaps).toBe(RUN.data.gaps);
});

test("gaps between starts restart in every row, and answers have no tasks in common", () => {
  const { data } = joined(RUN.head, RUN.data, GHOSTS, [row(0, 0, 2)]);
  expect([...data.tasks.start].slice(4)).toEqual([1, 4]);
});

test("what is known of the measured only is unknown of the others", () => {
  const known = { ...RUN.data, tasks: { ...RUN.data.tasks, computing: Int32Array.of(7, 7, 7, 7) } };
  const { data } = joined(RUN.head, known, GHOSTS, [row(0, 0, 2)]);
  expect([...data.tasks.computing!]).toEqual([7, 7, 7, 7, -1, -1]);
});

test("the overlay of the page comes back when nothing is asked", () => {
  const own = { lane: "whatif" as const, name: "zb-h1", detail: "", idle: null };
  const ideal = { lane: "ideal" as const, name: "ideal", detail: "", idle: null };
  expect(overlaid([ideal, own], { name: "rank 1 healthy", detail: "d", idle: [0.25, null] })).toEqual([
    ideal,
    { lane: "whatif", name: "rank 1 healthy", detail: "d", idle: [0.25, null] },
  ]);
  expect(overlaid([ideal, own], null)).toEqual([ideal, own]);
});
