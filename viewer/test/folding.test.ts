import { expect, test } from "vitest";
import type { Rank, Standing } from "../src/data";
import { foldable } from "../src/folding";
import { made } from "./made";

const standing = (...names: Standing["name"][]): Standing[] => names.map((name) => ({ name, said: "" }));

test.each<[ranks: Partial<Rank>[], standings: Standing[], whether: boolean]>([
  [[{ stages: [0] }], standing("alike"), false],
  [[{ stages: [0] }, { stages: [1] }], standing("alike"), false],
  [[{ stages: [0] }, { stages: [0] }], standing("alike"), true],
  [[{ stages: [0] }, { stages: [1] }], standing("odd", "alike"), true],
  [[{ stages: [0] }, { stages: [0] }], [], false],
])("ranks can be folded where two do the same, or any stands apart: %o", (ranks, standings, whether) => {
  expect(foldable(made({ ranks, head: { standings } }).head)).toBe(whether);
});
