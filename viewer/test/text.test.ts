// @vitest-environment happy-dom
import { expect, test, vi } from "vitest";
import { scheme } from "../src/colour";
import { shortened, unbroken } from "../src/dom";
import { inside, kernelDetails } from "../src/kernels";
import { legend } from "../src/legend";
import { details, notes, warnings } from "../src/panel";
import { summary } from "../src/summary";
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

test("a number and its unit stay in a line, and so does a word with a hyphen", () => {
  const kept = (text: string): (string | null)[] =>
    unbroken(text).flatMap((part) => (part instanceof HTMLElement ? [part.textContent] : []));
  expect(kept("4 ranks · 509.7 ms · -22.40 ± 1.67 ms, 8 micro-batches (15.5 %), 12 sets, 3 smart a/b-c")).toEqual([
    "509.7 ms",
    "± 1.67 ms,",
    "micro-batches",
    "(15.5 %),",
    "a/b-c",
  ]);
  expect(kept("最长的为 19.06 ms；步数太少，无法判断")).toEqual(["19.06 ms"]); // Chinese breaks anywhere
  const long = `${"a".repeat(40)}-b`;
  expect(kept(long)).toEqual([]);
});

test("commands in warnings and notes are set as such, whole options in a line", () => {
  const said = "no marks: put `run --marks nvtx` before `it`";
  for (const part of [...warnings({ ...head, warnings: [said] }), notes({ ...head, notes: [said] })]) {
    expect(part.textContent).not.toContain("`");
    expect([...part.querySelectorAll("code")].map((one) => one.textContent)).toEqual(["run --marks nvtx", "it"]);
    expect(part.querySelector(".kept")!.textContent).toBe("--marks");
  }
});

test("the lengths of tasks have an axis, and their medians a column of their own", () => {
  const spread = { kind: 0, stage: 0, count: 9, least: 1e6, low: 2e6, middle: 3e6, high: 4e6, most: 1.6e9, mean: 5e6 };
  const made = summary({ ...head, spread: [spread] }, data, vi.fn(), vi.fn());
  const texts = [...made.querySelectorAll("svg text")].map((one) => [one.textContent, Number(one.getAttribute("x"))]);
  const right = Math.max(...texts.map(([, x]) => Number(x)));
  expect(texts).toContainEqual(["median", right]);
  expect(texts).toContainEqual(["3.000 ms", right]);
  expect(texts.map(([text]) => text)).toEqual(expect.arrayContaining(["0", "0.5 s", "1.0 s", "1.5 s"]));
  const ends = [...made.querySelectorAll("svg .whisker")].map((one) => Number(one.getAttribute("x2")));
  expect(Math.max(...ends)).toBeLessThan(right - 60);
});
