import { expect, test } from "vitest";
import { scheme } from "../src/colour";
import { entriesOf } from "../src/picture_legend";
import { firstWaiting, halves, waitingFill, waitingSaid } from "../src/waits";
import { made, THEME, type Task } from "./made";

const WAITS: Partial<Task>[] = [{ waited: 40, awaited: 1, off: 2 }, { waited: 0, awaited: 1, off: 2 }, {}];

/** A collective on three ranks, the last of which is not known to be in it. */
const waiting = (waits = WAITS) =>
  made({
    rows: waits.map((known, rank) => ({
      rank,
      lane: "comm",
      tasks: [{ kind: "send", start: 10 * rank, end: 100, ...known }],
    })),
  });

test("a block is waiting until the last rank has come, and not where that is not known", () => {
  const { data } = waiting();
  const { waiting: first, together } = halves(data.tasks)!;
  expect([...first.start].map((start, task) => first.end[task]! - start)).toEqual([40, 0, 0]);
  expect([...together.start].map((start, task) => together.end[task]! - start)).toEqual([60, 90, 80]);
  expect(firstWaiting(data.tasks)).toBe(0);
});

test("a page that knows of none has nothing of it", () => {
  const { head, data } = waiting([{}, {}, {}]);
  expect(halves(data.tasks)).toBeNull();
  expect(waitingSaid(head, data, 0)).toBe("");
});

test("for whom a task waited is said, and nothing where that is not known", () => {
  const { head, data } = waiting();
  const said = [0, 1, 2].map((task) => waitingSaid(head, data, task));
  expect(said).toEqual([
    "waited 40 ns for rank 1, then 60 ns together (±2 ns)",
    "came last, then 90 ns together (±2 ns)",
    "",
  ]);
});

test("where no rank alone came last, none is named", () => {
  const { head, data } = waiting(WAITS.map((known) => ({ ...known, awaited: -1 })));
  expect(waitingSaid(head, data, 0)).toBe("waited 40 ns for the last ranks, then 60 ns together (±2 ns)");
  expect(waitingSaid(head, data, 1)).toBe("hardly waited: 90 ns together (±2 ns)");
});

test("of what several are merged to, nobody says for whom they waited, but part of it is waiting", () => {
  const { head, data } = waiting([{ waited: 40, awaited: -1, off: -1 }]);
  data.tasks.merged = Uint32Array.of(3);
  expect(waitingSaid(head, data, 0)).toBe("");
  expect(halves(data.tasks)!.waiting.end[0]).toBe(40);
});

test("the legend of a picture says what the fainter part is, where there is one", () => {
  const said = (waits: Partial<Task>[]): string[] => {
    const { head, data } = waiting(waits);
    const entries = entriesOf(head, data, scheme("kind", head, data), THEME, [], false);
    return entries.flatMap(({ fill, text }) => (/waiting/.test(text) ? [fill] : []));
  };
  expect(said(WAITS)).toEqual([waitingFill("#b07aa1", THEME)]);
  expect(said([{}])).toEqual([]);
});
