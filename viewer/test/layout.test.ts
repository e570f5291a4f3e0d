import { describe, expect, test } from "vitest";
import { arrangement, EXTRAS, firstBelow, GROUPINGS, groupOf, groups, layout, moved, placeOf, SIZES, within, type Arrangement, type Grouping } from "../src/layout";
import { made, random, row, whole, type Run } from "./made";

const task = [{ start: 0, end: 10 }];

/** Four ranks on two machines, two stages and two replicas, with all there can be of the first. */
const RUN: Run = {
  ranks: [
    { host: "a", stages: [0], dp: 0, off: 5 },
    { host: "a", stages: [1], dp: 0, off: 7 },
    { host: "b", stages: [0, 2], dp: 1 },
    { host: "b", stages: null, dp: null },
  ],
  rows: [
    { rank: 0, tasks: task },
    { rank: 0, tasks: task },
    { rank: 0, lane: "ideal", tasks: task },
    { rank: 0, lane: "whatif", tasks: task },
    { rank: 0, lane: "comm", tasks: task },
    { rank: 0, lane: "comm", tasks: task },
    { rank: 0, lane: "host", tasks: task },
    { rank: 1, tasks: task },
    { rank: 2, lane: "comm", tasks: task },
    { rank: 3, tasks: task },
  ],
  gaps: [{ rank: 0, gaps: [{ start: 10, end: 20 }, { start: 30, end: 40 }] }, { rank: 1, gaps: [{ start: 10, end: 15 }] }],
  samples: [{ rank: 0, counter: 0, points: [[0, 1]] }, { rank: 0, counter: 1, points: [[0, 1]] }],
  head: { counters: ["memory", "power"].map((name) => ({ name, unit: "", least: 0, most: 1 })) },
};
const { head } = made(RUN);
const arranged = (change: Partial<Arrangement> = {}): Arrangement => ({ ...arrangement(head), grouping: "none", ...change });
const plan = (change: Partial<Arrangement> = {}) => layout(head, arranged(change));
const shown = (change: Partial<Arrangement>): number[] => plan(change).bands.map(({ rank }) => rank);

describe("how a page opens", () => {
  const opened = (count: number, hosts = 1) => arrangement(made({ ranks: Array.from({ length: count }, (_, rank) => ({ host: `host${rank % hosts}` })) }).head);

  test.each([[1, "large"], [8, "large"], [9, "medium"], [64, "medium"], [65, "small"]])("%d ranks are %s", (count, size) => {
    expect(opened(count).size).toBe(size);
  });

  test("what could have been is shown where there is room", () => {
    expect(opened(64).extras).toEqual(new Set(EXTRAS));
    expect(opened(65).extras).toEqual(new Set(EXTRAS.filter((extra) => extra !== "ideal")));
  });

  test("ranks are grouped by machine if there are several", () => {
    expect(opened(4, 1).grouping).toBe("none");
    expect(opened(4, 2).grouping).toBe("host");
  });

  test("everything is shown, in the order of the run", () => {
    expect(opened(3)).toMatchObject({ order: [0, 1, 2], hidden: new Set(), folded: new Set(), replica: null, figure: false });
  });
});

describe("groups", () => {
  test.each<[Grouping, string[]]>([
    ["none", ["", "", "", ""]],
    ["host", ["a", "a", "b", "b"]],
    ["stage", ["stage 0", "stage 1", "stage 0, 2", "no stage"]],
    ["replica", ["replica 0", "replica 0", "replica 1", "no replica"]],
  ])("by %s", (grouping, titles) => {
    expect(head.ranks.map((rank) => groupOf(rank, grouping))).toEqual(titles);
    const found = groups(head, arranged({ grouping }));
    expect(found.map(({ title }) => title)).toEqual([...new Set(titles)]);
    expect(found.flatMap(({ ranks }) => ranks)).toEqual([0, 1, 2, 3]);
    for (const { title, ranks } of found) for (const rank of ranks) expect(titles[rank]).toBe(title);
  });

  test("stand where the first of their ranks stands", () => {
    const found = groups(head, arranged({ grouping: "host", order: [3, 0, 2, 1] }));
    expect(found.map(({ title, ranks }) => [title, ranks])).toEqual([["b", [3, 2]], ["a", [0, 1]]]);
  });

  test("none remains whose ranks are all hidden", () => {
    expect(groups(head, arranged({ grouping: "host", hidden: new Set([0, 1, 3]) })).map(({ title, ranks }) => [title, ranks])).toEqual([["b", [2]]]);
  });

  test("say how far the clock of any of their ranks may be off", () => {
    expect(groups(head, arranged({ grouping: "host" })).map(({ off }) => off)).toEqual([7, 0]);
  });

  test("are folded if they are named, but not where nothing is grouped", () => {
    expect(groups(head, arranged({ grouping: "host", folded: new Set(["b"]) })).map(({ folded }) => folded)).toEqual([false, true]);
    expect(groups(head, arranged({ folded: new Set([""]) }))[0].folded).toBe(false);
  });
});

describe("which ranks are shown, and where", () => {
  test("in the order that was chosen", () => {
    expect(shown({ order: [2, 0, 3, 1] })).toEqual([2, 0, 3, 1]);
  });

  test("without those hidden, of another replica, or in a folded group", () => {
    expect(shown({ hidden: new Set([1, 2]) })).toEqual([0, 3]);
    expect(shown({ replica: 0 })).toEqual([0, 1]);
    expect(shown({ replica: 1, hidden: new Set([0]) })).toEqual([2]);
    expect(shown({ grouping: "host", folded: new Set(["a"]) })).toEqual([2, 3]);
  });

  test("numbered from the top", () => {
    expect(plan({ order: [2, 0, 3, 1], hidden: new Set([0]) }).bands.map(({ number }) => number)).toEqual([1, 2, 3]);
  });

  test("a heading stands above each group; of a folded group it alone remains", () => {
    const { headings, bands, places } = plan({ grouping: "host", folded: new Set(["a"]) });
    expect(headings.map(({ group }) => [group.title, group.folded])).toEqual([["a", true], ["b", false]]);
    expect(headings[0].height).toBeGreaterThan(headings[1].height);
    expect(headings[1].top + headings[1].height).toBeLessThanOrEqual(bands[0].top);
    expect(places.every(({ row: { rank } }) => rank >= 2)).toBe(true);
  });

  test("without grouping there are no headings", () => {
    expect(plan().headings).toEqual([]);
  });

  test("a rank that computes nothing still has room for its title", () => {
    const band = plan().bands.find(({ rank }) => rank === 2)!;
    expect(band.height).toBeGreaterThanOrEqual(plan().places[0].height);
  });
});

describe("which lanes a rank has", () => {
  const lanes = (change: Partial<Arrangement>): string[] => plan(change).places.filter(({ row: { rank } }) => rank === 0).map(({ row: { lane } }) => lane);

  test("all that are wanted, and always its computing", () => {
    expect(lanes({})).toEqual(["compute", "compute", "ideal", "whatif", "comm", "comm", "host"]);
    expect(lanes({ extras: new Set(["comm"]) })).toEqual(["compute", "compute", "comm", "comm"]);
    expect(lanes({ extras: new Set() })).toEqual(["compute", "compute"]);
  });

  test("its computing only in the overview and in the look of papers", () => {
    expect(lanes({ size: "overview" })).toEqual(["compute", "compute"]);
    expect(lanes({ figure: true })).toEqual(["compute", "compute"]);
    expect(plan({ figure: true }).curves).toEqual([]);
  });

  test("counters below them, if they are wanted", () => {
    expect(plan().curves.map(({ samples: { counter } }) => counter)).toEqual([0, 1]);
    expect(plan({ extras: new Set(["comm"]) }).curves).toEqual([]);
  });

  test("its gaps are in its first row", () => {
    const withGaps = plan().places.filter(({ gaps }) => gaps);
    expect(withGaps.map(({ row }) => head.rows.indexOf(row))).toEqual([0, 7]);
    expect(withGaps.map(({ gaps }) => gaps)).toEqual(head.gaps);
  });

  test("however much communication overlaps, it takes little", () => {
    const crowded = made({ rows: [{ rank: 0, tasks: task }, ...Array.from({ length: 15 }, () => ({ rank: 0, lane: "comm" as const, tasks: task }))] }).head;
    const heights = layout(crowded, arrangement(crowded)).places.slice(1).map(({ height }) => height);
    expect(heights.reduce((sum, height) => sum + height)).toBeLessThanOrEqual(42);
    expect(Math.min(...heights)).toBeGreaterThanOrEqual(2);
  });
});

test("lanes grow with the size", () => {
  const heights = SIZES.map((size) => plan({ size }).places[0].height);
  expect(heights).toEqual([...heights].sort((one, other) => one - other));
  expect(new Set(heights).size).toBe(SIZES.length);
  const pages = SIZES.map((size) => plan({ size }).height);
  expect(pages).toEqual([...pages].sort((one, other) => one - other));
});

/** Runs and arrangements of all sorts. */
const VARIETY = Array.from({ length: 150 }, (_, seed) => {
  const next = random(seed);
  const count = whole(next, 1, 12);
  const ranks = Array.from({ length: count }, () => ({ host: `host${whole(next, 0, 2)}`, dp: next() < 0.2 ? null : whole(next, 0, 1), stages: [whole(next, 0, 3)] }));
  const lanes = (["compute", "compute", "ideal", "whatif", "comm", "comm", "host"] as const).filter(() => next() < 0.6);
  const run = made({
    ranks,
    rows: ranks.flatMap((_, rank) => lanes.map((lane) => ({ rank, lane, tasks: row(next, whole(next, 0, 4)) }))),
    gaps: ranks.flatMap((_, rank) => (next() < 0.7 ? [{ rank, gaps: [{ start: 0, end: 1 }] }] : [])),
    samples: ranks.flatMap((_, rank) => (next() < 0.5 ? [{ rank, counter: 0, points: [[0, 1] as [number, number]] }] : [])),
    head: { counters: [{ name: "memory", unit: "", least: 0, most: 1 }] },
  });
  const order = ranks.map((_, rank) => rank).sort(() => next() - 0.5);
  const grouping = (Object.keys(GROUPINGS) as Grouping[])[whole(next, 0, 3)];
  const arranged: Arrangement = {
    grouping,
    folded: new Set(next() < 0.5 ? ["host0", "stage 1", "replica 0"] : []),
    hidden: new Set(order.filter(() => next() < 0.2)),
    order,
    replica: next() < 0.2 ? 0 : null,
    extras: new Set(EXTRAS.filter(() => next() < 0.7)),
    size: SIZES[whole(next, 0, 3)],
    figure: next() < 0.2,
  };
  return { ...run, arranged, plan: layout(run.head, arranged) };
});

test("nothing lies upon anything else, and all is on the page", () => {
  for (const { plan: { places, curves, bands, headings, height } } of VARIETY) {
    for (const parts of [[...places, ...curves], [...bands, ...headings]]) {
      const sorted = [...parts].sort((one, other) => one.top - other.top);
      sorted.forEach((part, at) => {
        expect(part.height).toBeGreaterThan(0);
        expect(part.top + part.height).toBeLessThanOrEqual(sorted[at + 1]?.top ?? height);
      });
    }
    for (const parts of [places, curves, bands, headings]) {
      expect(parts.map(({ top }) => top)).toEqual(parts.map(({ top }) => top).sort((one, other) => one - other));
    }
    for (const place of places) {
      const band = bands.find(({ rank }) => rank === place.row.rank)!;
      expect(band.top <= place.top && place.top + place.height <= band.top + band.height).toBe(true);
    }
  }
});

test("each rank is in one group that is shown, folded or hidden", () => {
  for (const { head: { ranks }, arranged: { hidden, replica }, plan: { bands, headings } } of VARIETY) {
    const folded = headings.filter(({ group }) => group.folded).flatMap(({ group }) => group.ranks);
    const hiding = ranks.flatMap(({ dp }, rank) => (hidden.has(rank) || (replica !== null && dp !== replica) ? [rank] : []));
    expect([...bands.map(({ rank }) => rank), ...folded, ...hiding].sort((one, other) => one - other)).toEqual(ranks.map((_, rank) => rank));
  }
});

test("a task or a gap is in the place of its row, or in none that is shown", () => {
  for (const { head: own, data, plan: found } of VARIETY) {
    for (let index = 0; index < data.tasks.kind.length; index++) {
      const place = placeOf(own, found, { what: "task", index });
      expect(place).toBe(found.places.find(({ row: { from, to } }) => from <= index && index < to));
    }
    for (let index = 0; index < data.gaps.cause.length; index++) {
      const place = placeOf(own, found, { what: "gap", index });
      expect(place).toBe(found.places.find(({ gaps }) => gaps && gaps.from <= index && index < gaps.to));
    }
  }
});

test("what is in sight is found by its height", () => {
  for (const { plan: { places, height } } of VARIETY.slice(0, 40)) {
    for (let y = -5; y < height + 5; y += 3) {
      const below = places.findIndex((place) => place.top + place.height > y);
      expect(firstBelow(places, y)).toBe(below < 0 ? places.length : below);
      expect(within(places, y, y + 50)).toEqual(places.filter((place) => place.top < y + 50 && place.top + place.height > y));
    }
  }
});

describe("moved", () => {
  test.each<[string, number[], number, boolean, number[]]>([
    ["one before another", [4], 1, false, [0, 4, 1, 2, 3]],
    ["one behind another", [0], 3, true, [1, 2, 3, 0, 4]],
    ["a group before another", [3, 4], 0, false, [3, 4, 0, 1, 2]],
    ["a group that is scattered, behind another", [0, 2], 4, true, [1, 3, 4, 0, 2]],
    ["one behind the last", [1], 4, true, [0, 2, 3, 4, 1]],
    ["to where it is", [2], 2, true, [0, 1, 2, 3, 4]],
    ["a group to one of its own", [1, 2], 2, false, [0, 1, 2, 3, 4]],
  ])("%s", (_, what, target, behind, wanted) => {
    const order = [0, 1, 2, 3, 4];
    expect(moved(order, what, target, behind)).toEqual(wanted);
    expect(order).toEqual([0, 1, 2, 3, 4]);
  });
});
