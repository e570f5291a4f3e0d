import { describe, expect, test } from "vitest";
import { coded, dimmed, MODES, modes, scheme, type Mode, type Scheme } from "../src/colour";
import type { Head } from "../src/data";
import { blend } from "../src/raster";
import { KINDS, made, type Run, type Task } from "./made";

const fillOf = (found: Scheme, task: number): string => found.fills[found.codes[task]!]!;
const lowerOf = (found: Scheme, task: number): string => found.fills[found.below[task]!]!;
const kind = (name: string): string => KINDS.find((one) => one.name === name)!.fill;
const meaning = (found: Scheme, task: number): string | undefined =>
  found.legend.find(([fill]) => fill === fillOf(found, task))?.[1];

function of(mode: Mode, tasks: Task[], head: Partial<Head> = {}, more: Run["rows"] = []): Scheme {
  const run = made({ rows: [{ rank: 0, tasks }, ...more], head });
  return scheme(mode, run.head, run.data, false);
}

const whens = (tasks: Omit<Task, "start" | "end">[]): Task[] =>
  tasks.map((task, index) => ({ start: 10 * index, end: 10 * index + 10, ...task }));

describe("which ways there are", () => {
  const spread = [{ kind: 0, stage: null, count: 1, least: 1, low: 1, middle: 1, high: 1, most: 1, mean: 1 }];
  const overlay = (lane: "ideal" | "whatif") => ({ lane, name: lane, detail: "", idle: null });

  test.each<[string, Run, Mode[]]>([
    ["always", {}, ["kind", "microbatch"]],
    ["with model chunks", { head: { chunks: 2 } }, ["kind", "microbatch", "chunk"]],
    ["with usual lengths", { head: { spread } }, ["kind", "microbatch", "length"]],
    ["with an ideal", { head: { overlays: [overlay("ideal")] } }, ["kind", "microbatch", "ideal"]],
    ["with a what-if", { head: { overlays: [overlay("whatif")] } }, ["kind", "microbatch", "whatif"]],
    ["with causes", { gaps: [{ rank: 0, gaps: [{ start: 0, end: 1 }] }] }, ["kind", "microbatch", "cause"]],
  ])("%s", (_, run, wanted) => {
    expect(modes(made(run).head)).toEqual(wanted);
  });
});

test.each(Object.keys(MODES) as Mode[])("by %s, every task has a colour and an ink", (mode) => {
  const tasks = whens([
    {},
    { kind: "backward", microbatch: 900, chunk: 70, stage: 3, step: 2 },
    { kind: "forward_backward", microbatch: 3, pair: 950, pairChunk: 80 },
  ]);
  const found = of(mode, tasks, {
    steps: [{ step: 2, start: 0, end: 30, phase: null, makespan: null, error: null, idle: null }],
  });
  for (const code of [...found.codes, ...found.below]) {
    expect(found.fills[code]).toMatch(/^#[0-9a-f]{6}$/);
    expect(found.inks[code]).toMatch(/^#[0-9a-f]{6}$/);
  }
  expect(found.wholeGaps).toBe(mode === "cause");
  for (const [fill] of found.legend) expect(found.fills).toContain(fill);
});

describe("by kind", () => {
  test("each has its own, and the legend those that there are", () => {
    const found = of("kind", whens([{ kind: "backward_weight" }, { kind: "forward" }]));
    expect([fillOf(found, 0), fillOf(found, 1)]).toEqual([kind("backward_weight"), kind("forward")]);
    expect(found.legend).toEqual([
      [kind("forward"), "forward"],
      [kind("backward_weight"), "backward weight"],
    ]);
    expect(found.below).toBe(found.codes);
  });

  test("an overlapped pair is forward above and backward below", () => {
    const found = of("kind", whens([{ kind: "forward_backward", pair: 1 }, { kind: "optimizer" }]));
    expect([fillOf(found, 0), lowerOf(found, 0)]).toEqual([kind("forward"), kind("backward")]);
    expect([fillOf(found, 1), lowerOf(found, 1)]).toEqual([kind("optimizer"), kind("optimizer")]);
    expect(found.legend.map(([, text]) => text)).toEqual(["forward", "backward", "optimizer"]);
  });
});

describe("by micro-batch", () => {
  test.each([1, 2, 5, 63, 64, 300])("the legend has colours that tasks have, up to %d", (most) => {
    const found = of("microbatch", whens(Array.from({ length: most + 1 }, (_, microbatch) => ({ microbatch }))));
    for (const [fill, text] of found.legend) expect(fillOf(found, Number(text))).toBe(fill);
    const told = found.legend.map(([, text]) => Number(text));
    expect(new Set(told).size).toBe(told.length);
    expect([told[0], told.at(-1)]).toEqual([0, most]);
  });

  test("a part of a run has the colours that the whole has", () => {
    const all = whens(Array.from({ length: 40 }, (_, microbatch) => ({ microbatch })));
    const whole = of("microbatch", all);
    const part = of("microbatch", all.slice(3, 9), { microbatches: 40 });
    for (const task of [0, 5]) expect(fillOf(part, task)).toBe(fillOf(whole, task + 3));
    expect(part.legend).toEqual(whole.legend);
  });

  test("those that a what-if has beyond have the colour of the last", () => {
    const found = of("microbatch", whens([{ microbatch: 7 }, { microbatch: 30 }]), { microbatches: 8 });
    expect(fillOf(found, 1)).toBe(fillOf(found, 0));
  });

  test("up to 64 all differ", () => {
    const found = of("microbatch", whens(Array.from({ length: 64 }, (_, microbatch) => ({ microbatch }))));
    expect(new Set(found.codes).size).toBe(64);
  });

  test("the other half of a pair has the colour of its own, even if it is nowhere else", () => {
    const found = of("microbatch", whens([{ microbatch: 0, pair: 9 }, { microbatch: 1 }, { microbatch: 9 }]));
    expect([fillOf(found, 0), lowerOf(found, 0)]).toEqual([found.legend[0]![0], fillOf(found, 2)]);
    expect(lowerOf(found, 1)).toBe(fillOf(found, 1));
    const alone = of("microbatch", whens([{ microbatch: 0, pair: 9 }]));
    expect(lowerOf(alone, 0)).toBe(alone.legend.find(([, text]) => text === "9")![0]);
  });

  test("what is unknown is grey and in no legend", () => {
    const found = of("microbatch", whens([{}, { microbatch: 3 }]));
    expect(meaning(found, 0)).toBeUndefined();
    expect(meaning(found, 1)).toBe("3");
  });
});

describe("by model chunk", () => {
  test("chunks and those of pairs, unknown ones grey", () => {
    const found = of("chunk", whens([{ chunk: 0, pairChunk: 2 }, { chunk: 1 }, {}]));
    expect([0, 1, 2].map((task) => meaning(found, task))).toEqual(["chunk 0", "chunk 1", undefined]);
    expect(found.legend).toHaveLength(3);
    expect(lowerOf(found, 0)).toBe(found.legend[2]![0]);
    expect(lowerOf(found, 1)).toBe(fillOf(found, 1));
  });
});

describe("by length against its like", () => {
  const like = (stage: number | null, middle: number) => ({
    kind: 0,
    stage,
    count: 9,
    least: 1,
    low: 1,
    middle,
    high: 1,
    most: 1,
    mean: 1,
  });

  test.each<[number, string]>([
    [0, "under 0.80"],
    [79, "under 0.80"],
    [80, "0.80 to 0.95"],
    [94, "0.80 to 0.95"],
    [95, "0.95 to 1.05"],
    [104, "0.95 to 1.05"],
    [105, "1.05 to 1.25"],
    [125, "1.25 to 2"],
    [199, "1.25 to 2"],
    [200, "over 2"],
    [5000, "over 2"],
  ])("%d where 100 is usual", (length, text) => {
    expect(meaning(of("length", [{ start: 7, end: 7 + length, stage: 4 }], { spread: [like(4, 100)] }), 0)).toContain(
      text,
    );
  });

  test("against its own stage, or those without one", () => {
    const spread = [like(null, 10), like(0, 100), like(1, 1000)];
    const found = of(
      "length",
      [
        { start: 0, end: 100, stage: 0 },
        { start: 100, end: 200, stage: 1 },
        { start: 200, end: 300 },
      ],
      { spread },
    );
    expect([0, 1, 2].map((task) => meaning(found, task)?.slice(0, 6))).toEqual(["0.95 t", "under ", "over 2"]);
  });

  test("grey where nothing is usual", () => {
    const found = of("length", whens([{ kind: "optimizer", stage: 0 }, { stage: 1 }]), {
      spread: [like(0, 10), like(1, 0)],
    });
    expect([meaning(found, 0), meaning(found, 1)]).toEqual([undefined, undefined]);
  });
});

describe.each(["ideal", "whatif"] as const)("by delay against the %s", (lane) => {
  const steps = [{ step: 3, start: 0, end: 1000, phase: null, makespan: null, error: null, idle: null }];
  const one = (end: number, more: Partial<Task> = {}): Task => ({
    start: end - 10,
    end,
    microbatch: 0,
    stage: 0,
    step: 3,
    ...more,
  });
  const against = (measured: Task[], planned: Task[]): Scheme =>
    of(lane, measured, { steps }, [{ rank: 0, lane, tasks: planned }]);

  test.each<[number, string]>([
    [90, "hardly later"],
    [104, "hardly later"],
    [105, "over 0.5 % of a step later (5 ns)"],
    [120, "over 2 %"],
    [150, "over 5 %"],
    [200, "over 10 %"],
    [350, "over 25 %"],
  ])("an end at %d that might have been at 100, in a step of 1000", (end, text) => {
    expect(meaning(against([one(end)], [one(100)]), 0)).toBe(text);
  });

  test("with the same task of the same step, not another", () => {
    const measured = [
      one(200),
      one(300, { microbatch: 1 }),
      one(500, { kind: "backward" }),
      one(700, { stage: 1 }),
      one(900, { step: 4 }),
    ];
    const found = against(measured, [one(100), one(290, { microbatch: 1 }), one(350, { kind: "backward" })]);
    expect(measured.map((_, task) => meaning(found, task))).toEqual([
      "over 10 %",
      "over 0.5 % of a step later (5 ns)",
      "over 10 %",
      undefined,
      undefined,
    ]);
  });

  test("with the same rank", () => {
    const found = of(lane, [one(500)], { steps }, [
      { rank: 0, lane, tasks: [one(500)] },
      { rank: 1, tasks: [one(500)] },
      { rank: 1, lane, tasks: [one(100)] },
    ]);
    expect([meaning(found, 0), meaning(found, 2)]).toEqual(["hardly later", "over 25 %"]);
  });
});

test("by cause, all tasks are alike and gaps are filled", () => {
  const found = of("cause", whens([{}, { kind: "send" }]));
  expect(new Set(found.codes).size).toBe(1);
  expect(found.wholeGaps).toBe(true);
});

describe("dimmed", () => {
  const tasks = whens([{ kind: "forward_backward", pair: 0 }, { kind: "forward_backward", pair: 0 }, { kind: "send" }]);

  test("what was found keeps its colours, all else fades into the ground", () => {
    const plain = of("kind", tasks);
    const found = dimmed(plain, Uint8Array.of(1, 0, 0), "#ffffff");
    expect([fillOf(found, 0), lowerOf(found, 0)]).toEqual([kind("forward"), kind("backward")]);
    expect(fillOf(found, 1)).toBe(blend(kind("forward"), "#ffffff", 0.18));
    expect(lowerOf(found, 1)).toBe(blend(kind("backward"), "#ffffff", 0.18));
    expect(fillOf(found, 2)).toBe(blend(kind("send"), "#ffffff", 0.18));
    expect(found.inks).toHaveLength(found.fills.length);
    expect(found.legend).toBe(plain.legend);
  });

  test("a scheme without pairs stays one", () => {
    const found = dimmed(of("cause", tasks), Uint8Array.of(0, 1, 0), "#ffffff");
    expect(found.below).toBe(found.codes);
  });
});

test("a code for each value is as long as the values, with each value and its place", () => {
  expect([...coded(Int32Array.of(5, -1, 7), (value, index) => (value < 0 ? 9 : value + index))]).toEqual([5, 9, 9]);
});

test("a few micro-batches are all in the legend, and of many some", () => {
  const legendOf = (count: number): string[] => {
    const found = of("microbatch", whens(Array.from({ length: count }, (_, microbatch) => ({ microbatch }))), {
      microbatches: count,
    });
    expect(found.title).toBe("Micro-batches");
    return found.legend.map(([, text]) => text);
  };
  expect(legendOf(8)).toEqual(["0", "1", "2", "3", "4", "5", "6", "7"]);
  expect(legendOf(64)).toEqual(["0", "16", "32", "47", "63"]);
});

test("by length, communication that waits does not stand out", () => {
  const spread = [{ kind: 0, stage: 4, count: 9, least: 1, low: 1, middle: 10, high: 1, most: 1, mean: 1 }];
  const slow = { start: 0, end: 100, stage: 4 };
  const found = of("length", [slow], { spread }, [{ rank: 0, lane: "comm", tasks: [slow] }]);
  expect([0, 1].map((task) => meaning(found, task))).toEqual(["over 2", "communication, which waits too"]);
});
