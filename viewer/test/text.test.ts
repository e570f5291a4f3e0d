// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { scheme } from "../src/colour";
import { shortened } from "../src/dom";
import { inside, kernelDetails } from "../src/kernels";
import { legend } from "../src/legend";
import { details, notes, warnings } from "../src/panel";
import { verdict } from "../src/verdict";
import { gapDetails } from "../src/why";
import { made, THEME } from "./made";

const HOSTILE = `"'><img src=x onerror=alert(1)><script>alert(2)</script>&lt;b&gt;`;

const { head, data } = made({
  ranks: [{ host: HOSTILE }],
  rows: [
    {
      rank: 0,
      tasks: [
        { start: 0, end: 10, name: HOSTILE },
        { start: 10, end: 20 },
      ],
    },
  ],
  kernels: [{ rank: 0, stream: 7, kernels: [{ start: 1, end: 5, name: HOSTILE, module: HOSTILE, lead: 1 }] }],
  gaps: [{ rank: 0, gaps: [{ start: 20, end: 30, task: 1, root: 0 }] }],
  head: {
    title: HOSTILE,
    facts: [HOSTILE],
    schedule: HOSTILE,
    departures: [HOSTILE],
    notes: [HOSTILE],
    warnings: [HOSTILE, HOSTILE],
    definitions: { makespan: HOSTILE },
    verdict: {
      share: 0.5,
      error: null,
      share_of: HOSTILE,
      said: HOSTILE,
      remedies: [
        { cause: 0, saved: 5, spent: null, headline: HOSTILE, evidence: HOSTILE, advice: HOSTILE, task: null },
      ],
    },
    overlays: [{ lane: "whatif", name: HOSTILE, detail: HOSTILE, idle: null }],
  },
});

test.each<[string, () => HTMLElement[]]>([
  [
    "verdict",
    () => [
      verdict(
        head,
        () => {},
        () => {},
      ),
    ],
  ],
  ["warnings", () => warnings(head)],
  ["notes", () => [notes(head)]],
  [
    "legend",
    () =>
      legend(
        head,
        {
          scheme: scheme("kind", head, data, false),
          theme: THEME,
          byKind: true,
          causes: true,
          phases: true,
          kernels: true,
          query: "",
        },
        () => {},
      ),
  ],
  [
    "details of a task",
    () => [
      details(
        head,
        data,
        0,
        [[0, 1]],
        () => {},
        () => {},
        {
          inside: inside(head, data.kernels, 0, 0, 10),
          shown: false,
          toggle: () => {},
        },
      ),
    ],
  ],
  ["details of a kernel", () => [kernelDetails(head, data, 0, String)]],
  [
    "details of a task without kernels",
    () => [
      details(
        { ...head, kernels: null, kernel_rows: [], no_kernels: HOSTILE },
        data,
        1,
        [],
        () => {},
        () => {},
        {
          inside: null,
          shown: false,
          toggle: () => {},
        },
      ),
    ],
  ],
  ["details of a gap", () => [gapDetails(head, data, 0, () => {})]],
])("whatever a trace says, in the %s it stays text", (_, make) => {
  const page = document.createElement("div");
  page.append(...make());
  expect(page.querySelectorAll("img, script")).toHaveLength(0);
  expect(page.textContent).toContain(HOSTILE);
});

test("how certain a task is that was inferred stands in its details, with what would have it stated", () => {
  const said = (certainty: number): string =>
    details(
      { ...head, inferred: { how: "order of graphs", way: "put `bubblescope record` before the command" } },
      { ...data, tasks: { ...data.tasks, certainty: Int16Array.from(data.tasks.kind, () => certainty) } },
      0,
      [],
      () => {},
      () => {},
      { inside: null, shown: false, toggle: () => {} },
    ).textContent;
  expect(said(93)).toContain("inferred, 93 % certain: order of graphs");
  expect(said(93)).toContain("put bubblescope record before");
  expect(said(-1)).not.toContain("certain");
});

test("a text of any length is shown short, with how much more there is", () => {
  expect(shortened("x".repeat(2000))).toBe("x".repeat(2000));
  expect(shortened("x".repeat(3500))).toBe(`${"x".repeat(2000)}… (1,500 more letters)`);
});
