import { describe, expect, test } from "vitest";
import { arrangement, type Arrangement } from "../src/layout";
import { fromHash, initial, toHash, type Sight, type State } from "../src/state";
import { made } from "./made";

const { head } = made({
  ranks: [0, 1, 2, 3].map((rank) => ({ host: `host${rank % 2}`, dp: rank % 2 })),
  rows: [0, 1, 2, 3].map((rank) => ({ rank, tasks: [{ start: 0, end: 100, chunk: 1 }] })),
  gaps: [{ rank: 0, gaps: [{ start: 0, end: 5 }] }],
  head: {
    chunks: 2,
    standings: [{ name: "alike", said: "" }],
    overlays: [
      { lane: "ideal", name: "ideal", detail: "", idle: null },
      { lane: "whatif", name: "what-if", detail: "", idle: null },
    ],
    spread: [{ kind: 0, stage: 0, count: 1, least: 1, low: 1, middle: 1, high: 1, most: 1, mean: 1 }],
  },
});
const usual = initial(head);
const SIGHT: Sight = { start: 10, end: 90, top: 0 };

function roundTrip(state: State, sight = SIGHT) {
  return fromHash(`#${toHash(state, sight, head)}`, head);
}

const arranged = (change: Partial<Arrangement>): Partial<State> => ({ arranged: { ...arrangement(head), ...change } });

const CHANGES: Record<string, Partial<State>> = {
  grouping: arranged({ grouping: "stage" }),
  "no grouping": arranged({ grouping: "none" }),
  folded: arranged({ folded: new Set(["host1"]) }),
  "by what is odd": arranged({ grouping: "standing", folded: new Set(["waits", "alike"]) }),
  "by what is odd, all of it shown": arranged({ grouping: "standing", folded: new Set() }),
  "sums that are opened": arranged({
    grouping: "standing",
    folded: new Set(["alike"]),
    opened: new Set(["alike stage 0, 4", "alike stage 1 – 3"]),
  }),
  "folded groups with odd names": arranged({
    folded: new Set(["stage 0, 1", "a~b", "50% & more", "#x=1+1", "%zz", "é 漢字", ""]),
  }),
  hidden: arranged({ hidden: new Set([0, 2]) }),
  order: arranged({ order: [3, 1, 0, 2] }),
  "replica 0": arranged({ replica: 0 }),
  "replica 1": arranged({ replica: 1 }),
  extras: arranged({ extras: new Set(["comm", "counters"]) }),
  "no extras": arranged({ extras: new Set() }),
  "what stands above": arranged({ above: "whatif" }),
  size: arranged({ size: "overview" }),
  figure: arranged({ figure: true }),
  mode: { mode: "cause" },
  "another mode": { mode: "whatif" },
  causes: { causes: false },
  phases: { phases: false },
  launches: { launches: true },
  arrows: { arrows: "all" },
  "no arrows": { arrows: "none" },
  theme: { theme: "dark" },
  language: { language: "zh" },
  legend: { legend: false },
  wheelZooms: { wheelZooms: true },
  "a what-if": { ask: "--without 'slow rank' --stage 2=0.9" },
  query: { query: 'rank:1,2 dur>5µs "a name & more" # % +' },
  "selected task": { selected: { what: "task", index: 3 } },
  "first task selected": { selected: { what: "task", index: 0 } },
  "selected gap": { selected: { what: "gap", index: 0 } },
  range: { range: { start: 5, end: 50, ranks: null } },
  "range on some ranks": { range: { start: -5, end: 50, ranks: [0, 2] } },
};

describe("a view in an address is the same view", () => {
  test("as the page opens, nothing is said but the time", () => {
    expect(toHash(usual, SIGHT, head)).toBe("t=10%7E90");
    expect(roundTrip(usual)).toEqual({ state: usual, sight: { start: 10, end: 90 } });
  });

  test.each(Object.entries(CHANGES))("%s", (_, change) => {
    const state = { ...usual, ...change };
    expect(roundTrip(state).state).toEqual(state);
  });

  test("all at once", () => {
    const state: State = {
      arranged: {
        grouping: "replica",
        folded: new Set(["replica 0"]),
        opened: new Set(["alike stage 1"]),
        hidden: new Set([3]),
        order: [1, 0, 3, 2],
        replica: 1,
        extras: new Set(["whatif"]),
        above: "whatif",
        unfolded: new Set([0, 2]),
        size: "large",
        figure: true,
      },
      mode: "microbatch",
      causes: false,
      phases: false,
      launches: true,
      arrows: "none",
      theme: "light",
      language: "zh",
      legend: false,
      wheelZooms: true,
      query: "kind:F",
      ask: "--stage 2=0.9",
      selected: { what: "task", index: 2 },
      range: { start: 1, end: 2, ranks: [1] },
    };
    expect(roundTrip(state, { start: -3, end: 1234, top: 56 })).toEqual({
      state,
      sight: { start: -3, end: 1234, top: 56 },
    });
  });

  test("times and heights to the nearest ns and pixel", () => {
    const { sight } = roundTrip(usual, { start: 0.4, end: 90.6, top: 7.5 });
    expect(sight).toEqual({ start: 0, end: 91, top: 8 });
  });

  test("a field of a state is tried above, whichever it is", () => {
    const tried = new Set(Object.values(CHANGES).flatMap((change) => Object.keys(change)));
    expect([...tried].sort()).toEqual(Object.keys(usual).sort());
  });
});

describe("what makes no sense is left out", () => {
  test.each([
    "",
    "#",
    "#anchor",
    "#t=&y=&group=&fold&hide=&order=&replica=&size=&look=&colour=&arrows=&theme=&find=&select=&range=",
    "#t=9~5&y=-3",
    "#t=x~y&y=z",
    "#t=5",
    "#t=-Infinity~Infinity&y=Infinity",
    "#group=colour&size=huge&look=odd&colour=taste&arrows=some&theme=pink",
    "#causes=&phases=maybe&launches=1",
    "#above=",
    "#above=comm",
    "#group=constructor&size=constructor&colour=__proto__",
    "#hide=99~-1~1.5~x&replica=7",
    "#hide=0~1~2~3",
    "#order=0~1&replica=x",
    "#order=0~0~1~2~3~4~x",
    "#select=row~3",
    "#select=task",
    "#select=task~-1",
    "#select=task~1.5",
    "#select=gap~x",
    "#range=50~5",
    "#range=5",
    "#range=-Infinity~Infinity",
    "#range=x~y~0",
    "#%zz=%&&&==",
  ])("%s", (hash) => {
    const { state, sight } = fromHash(hash, head);
    expect({ ...state, arranged: { ...state.arranged, folded: new Set() } }).toEqual(usual);
    expect(sight).toEqual({});
  });

  test("and what does make sense beside it is kept", () => {
    const { state, sight } = fromHash("#t=x&y=12&hide=99~1&range=5~50~99~2&lanes=comm~moon&theme=dark&group=odd", head);
    expect(sight).toEqual({ top: 12 });
    expect(state).toEqual({
      ...usual,
      arranged: { ...usual.arranged, hidden: new Set([1]), extras: new Set(["comm"]) },
      range: { start: 5, end: 50, ranks: [2] },
      theme: "dark",
    });
  });

  test("a range on ranks that this page does not have is on all", () => {
    expect(fromHash("#range=5~50~98~99", head).state.range).toEqual({ start: 5, end: 50, ranks: null });
  });

  test("ways of colouring and causes that say nothing of this run", () => {
    const plain = made({ rows: [{ rank: 0, tasks: [] }] }).head;
    const { state } = fromHash("#colour=chunk&causes=true&replica=0", plain);
    expect(state).toEqual(initial(plain));
  });

  test("what this run could have been, where nothing says so", () => {
    const { overlays, ...plain } = head;
    expect(fromHash("#above=ideal", { ...plain, overlays: overlays.slice(1) }).state.arranged.above).toBeNull();
  });
});

describe("a page that opens with what could have been above what was", () => {
  const opening = { ...head, above: "ideal" as const };

  test.each([null, "ideal", "whatif"] as const)("is the same view again with %s above", (above) => {
    const state = { ...initial(opening), arranged: { ...arrangement(opening), above } };
    const hash = toHash(state, SIGHT, opening);
    expect(fromHash(`#${hash}`, opening).state).toEqual(state);
    expect(hash.includes("above")).toBe(above !== "ideal");
  });
});
