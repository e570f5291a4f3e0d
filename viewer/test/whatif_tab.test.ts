// @vitest-environment happy-dom
import { expect, test } from "vitest";
import type { Answer, Row } from "../src/data";
import { NOTHING } from "../src/question";
import type { WhatIfs } from "../src/whatif";
import { whatIfTab } from "../src/whatif_tab";
import { made } from "./made";

const answer = (asked: string, rows: Row[]): Answer => ({
  ...{ asked, rows, change: asked, needs: "", best: null, best_if: "" },
  ...{ predicted: 8e6, saved: 2e6, share: 0.2, error: 0.01, idle: [] },
});

test("an answer without lanes cannot be shown", () => {
  const rows: Row[] = [{ rank: 0, from: 0, to: 1, lane: "whatif", row: 0 }];
  const answers = [answer("--without a", rows), answer("--without b", [])];
  const asking = { command: null, step: 10e6, span: "step", moves: false, causes: [], stages: [], layers: null };
  const { head } = made({ rows: [] });
  const whatifs = {
    ...{ head, whatif: { ...asking, answers }, question: NOTHING, text: "", told: { what: "nothing" }, seen: true },
    ...{ command: () => "", watch: () => {}, drawn: ({ rows }: Answer) => rows.length > 0 },
  };
  const body = document.createElement("div");
  whatIfTab(body, whatifs as unknown as WhatIfs);
  const lines = [...body.querySelectorAll("tbody tr")];
  expect(lines.map((line) => [...line.querySelectorAll("button")].map((one) => one.textContent))).toEqual([
    ["show", "copy"],
    ["copy"],
  ]);
});

test.each([
  [true, "asked about the step in sight"],
  [false, "nothing that was tried saves time"],
])("without an answer that is ready it says why; whoever can ask (%s) is told of what", (free, said) => {
  const asking = { command: null, step: 10e6, span: "step", moves: false, causes: [], stages: [], layers: null };
  const { head } = made({ rows: [] });
  const whatifs = {
    ...{ head, free, whatif: { ...asking, answers: [] }, question: NOTHING, text: "", told: { what: "nothing" } },
    ...{ command: () => "", watch: () => {} },
  };
  const body = document.createElement("div");
  whatIfTab(body, whatifs as unknown as WhatIfs);
  expect(body.querySelector(".ready")!.textContent).toContain(said);
});
