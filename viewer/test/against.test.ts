// @vitest-environment happy-dom
import { describe, expect, test } from "vitest";
import { Alignment, changeOf, counterpartOf, signed, stepEnd } from "../src/against";
import { scheme } from "../src/colour";
import type { Change } from "../src/data";
import { changeText, comparedVerdict, differences, counterpartFacts, names, pairText } from "../src/difference";
import { sought } from "./sought";
import { initial } from "../src/state";
import { totals } from "../src/totals";
import { made } from "./made";
import { AGAINST, pages } from "./made_against";

const task = (start: number, length: number, step = 0) => ({ start, end: start + length, step });

/** Two ranks; of the first the third task has no counterpart, of the second B's first is longer by 30. */
const TWO = pages([
  { mine: [task(0, 10), task(20, 10), task(40, 10)], its: [task(0, 12), task(20, 5), null] },
  { mine: [task(0, 100)], its: [task(5, 130), task(200, 7)] },
]);

const ALONE = made({ rows: [{ rank: 0, tasks: [task(0, 10)] }] });

describe("which task is which", () => {
  const { tasks } = TWO.data;
  test("both know each other, and agree on the change", () => {
    expect([0, 1, 2, 3, 4, 5, 6, 7].map((one) => counterpartOf(tasks, one))).toEqual([3, 4, -1, 0, 1, 6, 5, -1]);
    expect([0, 1, 2, 3, 4, 5, 6, 7].map((one) => changeOf(tasks, one))).toEqual([2, -5, null, 2, -5, 30, 30, null]);
  });

  test("a page of one run has none", () => {
    expect(counterpartOf(ALONE.data.tasks, 0)).toBe(-1);
    expect(changeText(ALONE.data.tasks, 0)).toBe("");
  });

  test("in words", () => {
    expect([0, 1_500_000, -20].map(signed)).toEqual(["±0", "+1.500 ms", "−20 ns"]);
    expect(changeText(tasks, 5)).toBe("\nfrom A to B: +30 ns");
    expect(changeText(tasks, 2)).toBe("\nno counterpart in the other run");
    const shown: number[] = [];
    const nowhere = (): void => undefined;
    const facts = counterpartFacts(tasks, 6, (one) => shown.push(one), nowhere);
    expect(facts.map(([name]) => name)).toEqual(["from A to B", "in A"]);
    expect(facts[0]![1]).toMatch(/^\+30 ns, \+30.00 %: one pair of tasks/);
    (facts[1]![1] as HTMLElement).click();
    expect(shown).toEqual([5]);
    const part = {
      ...tasks,
      id: Int32Array.from(tasks.kind, (_, index) => 100 + 2 * index),
      change: tasks.start.map(() => 9),
    };
    const far = counterpartFacts({ ...part, counterpart: tasks.counterpart!.map(() => 7) }, 6, nowhere, (id) =>
      shown.push(id),
    );
    (far[1]![1] as HTMLElement).click();
    expect(shown).toEqual([5, 119]);
    expect(counterpartFacts(tasks, 7, nowhere, nowhere)[0]![0]).toBe("in the other run");
  });
});

describe("B laid on A", () => {
  const steps = [0, 1, 2].map((step) => ({
    step,
    start: 100 * step,
    end: 100 * step + 80,
    phase: null,
    makespan: null,
    error: null,
    idle: null,
  }));
  const laid = () => {
    // Each step of B takes 20 longer, so the n-th begins 20 n later.
    const mine = [task(0, 80, 0), task(100, 80, 1), task(200, 80, 2)];
    const its = [task(0, 100, 0), task(120, 100, 1), task(240, 100, 2)];
    const pairs = [0, 1, 2].map((step) => ({ step, other: step + 7, shift: -20 * step, end: 100 * step + 100 }));
    const run = pages([{ mine, its }], pairs, { steps, end: 300 });
    return { ...run, alignment: new Alignment(run.head, run.head.against!, run.data) };
  };

  test.each([
    [-50, -40, 0, "before all"],
    [-1, 301, 0, "all"],
    [-1, 230, 0, "one and more after it"],
    [30, 50, 0, "a part of one"],
    [85, 90, 0, "nothing of any"],
    [92, 99, 1, "the same, nearer to the next"],
    [60, 150, 1, "more of the later"],
    [290, 1000, 2, "after all"],
  ])("from %d to %d, its step is that of A's step %d: %s", (from, to, step) => {
    const { alignment, data } = laid();
    alignment.align(from, to);
    expect(alignment.pair?.step).toBe(step);
    const { start, end } = data.tasks;
    expect(start[3 + step]).toBe(start[step]);
    expect([...start.subarray(0, 3)]).toEqual([0, 100, 200]); // A never moves
    expect([3, 4, 5].map((one) => end[one]! - start[one]!)).toEqual([100, 100, 100]);
  });

  test("there and back again, it is where it was; only another step moves it", () => {
    const { alignment, data } = laid();
    const before = [...data.tasks.start];
    expect([10, 20, 250, 260, 10].map((time) => alignment.align(time, time + 5))).toEqual([
      true,
      false,
      true,
      false,
      true,
    ]);
    expect([...data.tasks.start]).toEqual(before);
  });

  test("how far a task is from where its own step would begin with A's", () => {
    const { alignment, data } = laid();
    alignment.align(140, 150);
    const { start, step } = data.tasks;
    for (const one of [3, 4, 5]) expect(start[one]! - alignment.off(step[one]!)).toBe(100 * step[one]!);
  });

  test("a step lasts until it has ended in both", () => {
    const { head } = laid();
    expect(head.steps.map((step) => stepEnd(head, step))).toEqual([100, 200, 300]);
    expect(stepEnd({ ...head, against: null }, head.steps[1]!)).toBe(180);
  });

  test("a run without steps is laid as a whole", () => {
    const run = pages(
      [{ mine: [task(0, 5, -1)], its: [task(3, 5, -1)] }],
      [{ step: null, other: null, shift: -3, end: 5 }],
    );
    const alignment = new Alignment(run.head, run.head.against!, run.data);
    expect(alignment.align(0, 9)).toBe(true);
    expect(run.data.tasks.start[1]).toBe(0);
    expect(alignment.off(-1)).toBe(0);
  });

  test("in words", () => {
    expect(pairText({ step: 3, other: 3, shift: 0, end: 9 })).toBe("step 3 begins at the same moment in both");
    expect(pairText({ step: 3, other: 90, shift: 0, end: 9 })).toBe("B's step 90 begins with A's step 3");
    expect(pairText({ step: null, other: null, shift: 0, end: 9 })).toBe("B begins where A does");
  });
});

describe("colours", () => {
  /** Changes from -100 to 100, one of each. */
  const changes = Array.from({ length: 201 }, (_, index) => index - 100);
  const mine = changes.map((_, index) => task(1000 * index, 200));
  const its = changes.map((change, index) => task(1000 * index, 200 + change));
  const run = pages([{ mine: [...mine, task(300_000, 5)], its }]);

  test.each([false, true])("the longer B, the farther along the scale; dark: %s", (dark) => {
    const { codes, fills, legend } = scheme("change", run.head, run.data, dark);
    const own = [...codes.subarray(0, changes.length)];
    expect(own).toEqual([...own].sort((one, other) => one - other));
    expect(new Set(own).size).toBe(7);
    expect(own.map((code) => 6 - code)).toEqual([...own].reverse()); // as much lost as gained
    expect(codes[changes.length]).toBe(7); // without a counterpart
    expect([...codes.subarray(changes.length + 1)]).toEqual(own); // B's row says the same
    expect(legend.map(([fill]) => fill)).toEqual(fills);
    expect(new Set(fills).size).toBe(8);
    expect(legend[0]![1]).toBe("−100 ns and more: B is faster");
    expect(legend[3]![1]).toBe("less than 10 ns");
  });

  test("the scale's edges are where the legend says", () => {
    const { codes } = scheme("change", run.head, run.data);
    const code = (change: number): number => codes[changes.indexOf(change)]!;
    expect([-100, -99, -50, -49, -10, -9, 0].map(code)).toEqual([0, 1, 1, 2, 2, 3, 3]);
    expect([9, 10, 49, 50, 99, 100].map(code)).toEqual([3, 4, 4, 5, 5, 6]);
  });

  test("a page of two runs opens with them, and without what would stand between", () => {
    const { mode, arranged, causes, phases } = initial(run.head);
    expect([mode, causes, phases, [...arranged.extras]]).toEqual(["change", false, false, ["against"]]);
  });
});

test("a stretch is about A alone", () => {
  expect(totals(TWO.head, TWO.data, 0, 50, [0]).busy).toBe(30);
});

describe("searching", () => {
  const found = (query: string): number[] => [...sought(query, TWO.head, TWO.data).items];
  test("what was gained or lost, in both runs", () => {
    expect(found("lost>1ns")).toEqual([0, 3, 5, 6]);
    expect(found("lost>2ns")).toEqual([5, 6]);
    expect(found("lost>=2ns lane:compute")).toEqual([0, 5]);
    expect(found("lost<10ns")).toEqual([0, 3]);
    expect(found("gained>1ns lane:against")).toEqual([4]);
    expect(found("gained>1ms")).toEqual([]);
  });

  test("of one run it is an error", () => {
    expect(() => sought("lost>1ms", ALONE.head, ALONE.data)).toThrow("pages of two runs");
  });
});

describe("what is said", () => {
  const change = (certain: boolean | null, difference = 5): Change => ({
    group: "cause",
    name: "host code",
    before: "1 ms",
    after: "6 ms",
    rise: "+5 ± 1 ms",
    relative: "+500 %",
    difference,
    certain,
  });

  test.each([
    [true, "", ""],
    [false, "doubtful", "may be noise"],
    [null, "", "no noise known"],
  ])("certain: %s", (certain, style, words) => {
    const one = change(certain);
    const asked: string[] = [];
    const against = { ...AGAINST, step: one, ranked: [one, one, one, one] };
    const said = comparedVerdict(
      TWO.head,
      against,
      (query) => asked.push(query),
      () => asked.push("more"),
    );
    expect(said.querySelector("strong")!.classList.contains("doubtful")).toBe(style !== "");
    expect(said.querySelectorAll(".remedy")).toHaveLength(3);
    const part = said.querySelector<HTMLElement>(".remedy")!;
    expect(part.classList.contains("doubtful")).toBe(style !== "");
    expect(part.querySelector("em")?.textContent.trim() ?? "").toBe(words);
    part.click();
    said.querySelector<HTMLElement>(".what button")!.click();
    expect(asked).toEqual(['cause:"host code"', "more"]);
  });

  test("the tables have every measure, and mark what may be noise", () => {
    const tables = [{ title: "Idle by cause", of: "of a rank", changes: [change(true), change(false), change(null)] }];
    const said = differences({ ...AGAINST, tables, differs: ["ranks: A 1, B 2"], notes: ["a note"], noise: "±: half" });
    const rows = [...said.querySelectorAll("tr")].slice(1);
    expect(rows.map((row) => row.lastChild!.textContent)).toEqual(["", "noise", ""]);
    expect(rows.map((row) => row.className)).toEqual(["", "doubtful", ""]);
    expect(said.textContent).toContain("differs: ranks: A 1, B 2");
    expect(said.textContent).toContain("a note");
  });

  test("runs are called by what their paths do not share", () => {
    const side = (label: string) => ({ label, said: "" });
    expect(names({ ...AGAINST, sides: [side("runs/a/traces"), side("runs/b/traces")] })).toEqual([
      "a/traces",
      "b/traces",
    ]);
    expect(names({ ...AGAINST, sides: [side("a"), side("a")] })).toEqual(["a", "a"]);
  });
});
