import { expect, test } from "vitest";
import { decided, saving } from "../src/whatif_tab";

test.each([
  [{ saved: 5e6, predicted: 20e6, best: null }, "−5.000 ms"],
  [{ saved: -5e6, predicted: 20e6, best: null }, "+5.000 ms"],
  // Of a range both ends: 20 or 8 ms instead of 15.
  [{ saved: -5e6, predicted: 20e6, best: 8e6 }, "−7.000 ms to +5.000 ms"],
])("%o", (answer, text) => {
  expect(saving(answer)).toBe(text);
});

test.each([
  [{ saved: -5e6, predicted: 20e6, best: 8e6 }, false],
  [{ saved: 5e6, predicted: 20e6, best: 8e6 }, true],
  [{ saved: -5e6, predicted: 20e6, best: 18e6 }, true],
  [{ saved: -5e6, predicted: 20e6, best: null }, true],
])("whether a step would be shorter is known: %o", (answer, known) => {
  expect(decided(answer)).toBe(known);
});
