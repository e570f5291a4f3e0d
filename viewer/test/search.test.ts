import { describe, expect, test } from "vitest";
import { completions, QueryError } from "../src/search";
import { made, type Task } from "./made";
import { sought } from "./sought";

const us = 1000;
const { head, data } = made({
  ranks: [
    { rank: 3, host: "alpha" },
    { rank: 12, host: "beta" },
  ],
  rows: [
    {
      rank: 0,
      tasks: [
        { start: 0, end: 5 * us, microbatch: 0, step: 1, stage: 0, chunk: 0, name: "forward of Layer 7" }, // 0
        { start: 5 * us, end: 15 * us, kind: "backward", microbatch: 0, step: 1, stage: 0, chunk: 1, name: "aten::mm" }, // 1
        {
          start: 20 * us,
          end: 21 * us,
          kind: "backward_weight",
          microbatch: 7,
          step: 2,
          stage: 0,
          name: "constructor:3",
        }, // 2
      ],
    },
    { rank: 0, lane: "ideal", tasks: [{ start: 0, end: 5 * us, microbatch: 0, step: 1 }] }, // 3, did not happen
    { rank: 0, lane: "comm", tasks: [{ start: 1, end: 1 + 2e6, kind: "send", peer: 12, name: "ncclSend" }] }, // 4
    {
      rank: 1,
      tasks: [{ start: 0, end: 3e9, microbatch: 4, step: 2, stage: 1, chunk: 0, name: "forward of layer 8" }],
    }, // 5
    { rank: 1, lane: "whatif", tasks: [{ start: 0, end: 5 }] }, // 6, did not happen
  ] satisfies { rank: number; lane?: "ideal" | "comm" | "whatif"; tasks: Task[] }[],
});
const found = (query: string): number[] => [...sought(query, head, data).items];

test.each<[query: string, tasks: number[]]>([
  ["rank:3", [0, 1, 2, 4]],
  ["rank:12", [5]],
  ["rank:0", []],
  ["RANK:12", [5]],
  ["kind:F", [0, 5]],
  ["kind:forward", [0, 5]],
  ["kind:W", [2]],
  ["kind:backward_weight", [2]],
  ['kind:"backward weight"', [2]],
  ["mb:0", [0, 1]],
  ["microbatch:7", [2]],
  ["mb:1,4-6", [5]],
  ["mb:0-4", [0, 1, 5]],
  ['mb:"0, 7"', [0, 1, 2]],
  ["mb:6-2", []],
  ["step:2", [2, 5]],
  ["stage:1", [5]],
  ["chunk:1", [1]],
  ["chunk:0-99", [0, 1, 5]], // what is unknown is in no range
  ["peer:12", [4]],
  ["lane:comm", [4]],
  ["lane:compute", [0, 1, 2, 5]],
  ["host:alpha", [0, 1, 2, 4]],
  ["host:eta", [5]],
  ["dur>5us", [1, 4, 5]],
  ["dur>=5us", [0, 1, 4, 5]],
  ["dur<5us", [2]],
  ["dur<=5us", [0, 2]],
  ["duration>2.5ms", [5]],
  ["dur>9.9\u00b5s dur<1ms", [1]],
  ["dur>9.9\u03bcs dur<1ms", [1]], // the Greek letter
  ["dur>9.9\u039cS dur<1MS", [1]],
  ["dur<1001", [2]],
  ["dur>=3s", [5]],
  ["layer", [0, 5]],
  ["LAYER", [0, 5]],
  ["name:Layer", [0, 5]],
  ['"of layer 8"', [5]],
  ['name:"of layer 8"', [5]],
  ["aten::mm", [1]], // a name with colons is no condition
  ["aten:", [1]],
  ["constructor:3", [2]],
])("%s", (query, tasks) => {
  expect(found(query)).toEqual(tasks);
});

test("all conditions must hold", () => {
  expect(found("rank:3 mb:0 kind:B")).toEqual([1]);
  expect(found("  layer   step:2 ")).toEqual([5]);
  expect(found("rank:3 rank:12")).toEqual([]);
});

test("without a condition nothing is found", () => {
  expect(found("")).toEqual([]);
  expect(found(" \t ")).toEqual([]);
});

test("what an overlay shows did not happen and is not found", () => {
  expect(found("lane:ideal")).toEqual([]);
  expect(found("lane:whatif")).toEqual([]);
  expect(found("dur>=0")).toEqual([0, 1, 2, 4, 5]);
});

test.each<[query: string, tasks: number[]]>([
  ["F0", [0]],
  ["B0", [1]],
  ["B0.1", [1]],
  ["B0.0", []],
  ["W7", [2]],
  ["F4@stage 1", [5]],
  ["F4@1", [5]],
  ["F4 @rank:12", [5]],
  ["F4@rank 3", []],
  ["-kind:F", [1, 2, 4]],
  ["-rank:12", [0, 1, 2, 4]],
  ["-lane:comm kind:F", [0, 5]],
  ["F0 or W7", [0, 2]],
  ["rank:12 or lane:comm", [4, 5]],
])("what blocks say: %s", (query, tasks) => {
  expect(found(query)).toEqual(tasks);
});

test("of a pair each half is found by its own label", () => {
  const { head, data } = made({
    rows: [{ rank: 0, tasks: [{ start: 0, end: 1, kind: "forward_backward", microbatch: 3, pair: 1 }] }],
  });
  for (const [query, count] of [
    ["F3", 1],
    ["B1", 1],
    ["F1", 0],
    ["B3", 0],
  ] as const)
    expect(sought(query, head, data).items.length).toBe(count);
});

describe("idle time", () => {
  const { head, data } = made({
    ranks: [{ rank: 0 }, { rank: 7 }],
    rows: [{ rank: 0, tasks: [{ start: 0, end: 1, step: 1 }] }],
    gaps: [
      { rank: 0, gaps: [{ start: 0, end: 2 * us, cause: 2, step: 1 }] },
      { rank: 1, gaps: [{ start: 0, end: 9 * us, cause: 1, step: 2 }] },
    ],
  });

  test.each<[query: string, gaps: number[]]>([
    ["cause:transfer", [0]],
    ["cause:TRANS", [0]],
    ["-cause:transfer", [1]],
    ["cause:wait rank:7", [1]],
    ["cause:wait rank:0", []],
    ["idle>5us", [1]],
    ["idle<=2us step:1", [0]],
    ["idle>1us step:2", [1]],
    ["cause:transfer or idle>5us", [0, 1]],
  ])("%s", (query, gaps) => {
    expect(sought(query, head, data)).toEqual({ what: "gap", items: Int32Array.from(gaps) });
  });

  test.each([
    ["cause:nonsense", "no cause is called nonsense: there are warm-up, waiting, transfer"],
    ["cause:transfer kind:F", "cause:transfer is about idle time, kind:F about tasks: ask for one"],
    ["cause:transfer or kind:F", "one side of `or` is about tasks, the other about idle time: ask for one"],
  ])("%s is an error that says why", (query, message) => {
    expect(() => sought(query, head, data)).toThrow(message);
  });
});

describe("ranks that are odd, and tasks that take longer than their like", () => {
  const { head, data } = made({
    ranks: [{ rank: 0 }, { rank: 4, standing: "odd" }],
    rows: [
      {
        rank: 0,
        tasks: [
          { start: 0, end: 10, stage: 0 }, // 0
          { start: 10, end: 23, stage: 0 }, // 1: 1.3 times the median
          { start: 23, end: 40, stage: 1 }, // 2: of a kind and stage of which no median is known
          { start: 40, end: 60, kind: "backward" }, // 3: twice the median, on no stage
        ],
      },
      { rank: 1, tasks: [{ start: 0, end: 14, stage: 0 }] }, // 4: 1.4 times
      { rank: 1, lane: "ideal", tasks: [{ start: 0, end: 99, stage: 0 }] }, // 5: did not happen
    ],
    head: {
      standings: [
        { name: "odd", said: "" },
        { name: "alike", said: "" },
      ],
      spread: [
        { kind: 0, stage: 0, count: 9, least: 1, low: 1, middle: 10, high: 1, most: 1, mean: 1 },
        { kind: 1, stage: null, count: 9, least: 1, low: 1, middle: 10, high: 1, most: 1, mean: 1 },
      ],
    },
  });

  test.each<[query: string, tasks: number[]]>([
    ["odd", [4]],
    ["ODD", [4]],
    ["-odd", [0, 1, 2, 3]],
    ["slow>1.3", [3, 4]],
    ["slow>=1.3", [1, 3, 4]],
    ["slow<1.3", [0]],
    ["slow<=1.3", [0, 1]],
    ["SLOW>1.3 odd", [4]],
    ["-slow>1.3", [0, 1, 2]],
    ["slow>1.35 or mb:0", [3, 4]],
  ])("%s", (query, tasks) => {
    expect([...sought(query, head, data).items]).toEqual(tasks);
  });

  test("both are offered as one writes", () => {
    expect(completions("sl", head)).toEqual(["slow>"]);
    expect(completions("kind:F o", head)).toEqual(["kind:F odd"]);
  });

  test.each([
    ["slow>x", "slow wants how many times as long"],
    ["slow>1.3ms", "such as slow>1.3"],
    ["slow>", "such as slow>1.3"],
    ["dur>x", "dur wants a length of time, such as dur>5ms"],
    ["idle<", "idle wants a length of time"],
    ["gained>1ms", "gained is a word of pages of two runs"],
    ["odd cause:wait slow>1", "is about idle time"],
  ])("%s is an error that says why", (query, message) => {
    const { head: other } = made({ gaps: [{ rank: 0, gaps: [{ start: 0, end: 1 }] }] });
    expect(() => sought(query, { ...head, causes: other.causes }, data)).toThrow(message);
  });

  test("where no rank is odd, or none can be told apart, it says so", () => {
    const alike = { ...head, standings: [{ name: "alike" as const, said: "" }] };
    expect(() => sought("odd", alike, data)).toThrow("no rank of this run is odd");
    expect(() => sought("odd", { ...head, standings: [] }, data)).toThrow("nothing tells the ranks of this run apart");
  });
});

test("the last word of a query is completed by what means something here", () => {
  expect(completions("rank:3 ho", head)).toEqual(["rank:3 host:", "rank:3 host:alpha", "rank:3 host:beta"]);
  expect(completions("dur>5ms kind:b", head)).toEqual(["dur>5ms kind:backward", "dur>5ms kind:backward_weight"]);
  expect(completions("rank:3 ", head)).toEqual([]);
});

describe("what cannot be answered is an error that says why", () => {
  test.each([
    ["no such name", "nothing is called no"],
    ["foo:3", "foo is not a search field; the fields are rank: kind:"],
    ["rank:", "rank: wants numbers, such as rank:3 or rank:1,4-6"],
    ["rank:x", "rank: wants numbers"],
    ["mb:1,", "mb: wants numbers"],
    ["mb:-1", "mb: wants numbers"],
    ["step:1-2-3", "step: wants numbers"],
    ["stage:1.5", "stage: wants numbers"],
    ["kind:zzz", "no kind is called zzz"],
    ["kind:", "no kind is called"],
  ])("%s", (query, message) => {
    expect(() => found(query)).toThrow(QueryError);
    expect(() => found(query)).toThrow(message);
  });
});

test("a kind of tasks finds the pairs of which it is a half, but not the other way round", () => {
  const one = made({
    rows: [
      {
        rank: 0,
        tasks: ["forward", "forward_backward", "backward", "backward_weight"].map((kind, at) => ({
          ...{ kind, start: at, end: at + 1 },
        })),
      },
    ],
  });
  const items = (query: string): number[] => [...sought(query, one.head, one.data).items];
  expect(["kind:forward", "kind:F", "kind:backward", "kind:W"].map(items)).toEqual([[0, 1], [0, 1], [1, 2], [3]]);
  expect(items("kind:forward_backward")).toEqual([1]);
});
