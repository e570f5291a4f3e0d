import { expect, test } from "vitest";
import { History } from "../src/history";
import type { Sight } from "../src/state";

const at = (start: number): Sight => ({ start, end: start + 10, top: 0 });

test("back through all places, and forth again", () => {
  const history = new History(at(0));
  for (const start of [1, 2, 3]) history.visit(at(start));
  expect([history.undo(), history.undo(), history.undo(), history.undo()]).toEqual([at(2), at(1), at(0), null]);
  expect([history.redo(), history.redo(), history.redo(), history.redo()]).toEqual([at(1), at(2), at(3), null]);
});

test("a new place forgets those that lay ahead", () => {
  const history = new History(at(0));
  history.visit(at(1));
  history.undo();
  history.visit(at(5));
  expect(history.redo()).toBeNull();
  expect(history.undo()).toEqual(at(0));
});

test("to stay is no visit, and forgets nothing", () => {
  const history = new History(at(0));
  history.visit(at(1));
  history.undo();
  history.visit(at(0));
  expect(history.redo()).toEqual(at(1));
});

test.each([{ start: 1 }, { end: 1 }, { top: 1 }])("%o alone is another place", (change) => {
  const history = new History(at(0));
  history.visit({ ...at(0), ...change });
  expect(history.undo()).toEqual(at(0));
});

test("it remembers the last two hundred", () => {
  const history = new History(at(0));
  for (let start = 1; start <= 300; start++) history.visit(at(start));
  let last: Sight | null = null;
  let count = 0;
  for (let sight = history.undo(); sight; sight = history.undo()) [last, count] = [sight, count + 1];
  expect(count).toBe(200);
  expect(last).toEqual(at(100));
});
