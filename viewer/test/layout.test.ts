import { describe, expect, test } from "vitest";
import type { Head } from "../src/data";
import { told } from "../src/folding";
import {
  arrangement,
  bandOf,
  EXTRAS,
  firstBelow,
  foldAt,
  GROUPINGS,
  groupOf,
  groups,
  layout,
  moved,
  overlayAbove,
  placeOf,
  SIZES,
  within,
  type Arrangement,
  type Band,
  type Caption,
  type Grouping,
  type Layout,
  type Place,
} from "../src/layout";
import { made, random, row, whole, type Run } from "./made";

const heightOfBlocks = ({ height, band }: Place): number => height - band;

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
  gaps: [
    {
      rank: 0,
      gaps: [
        { start: 10, end: 20 },
        { start: 30, end: 40 },
      ],
    },
    { rank: 1, gaps: [{ start: 10, end: 15 }] },
  ],
  samples: [
    { rank: 0, counter: 0, points: [[0, 1]] },
    { rank: 0, counter: 1, points: [[0, 1]] },
  ],
  head: {
    counters: ["memory", "power"].map((name) => ({ name, unit: "", least: 0, most: 1 })),
    overlays: [
      { lane: "ideal", name: "the ideal", detail: "said of the ideal", idle: null },
      { lane: "whatif", name: "the what-if", detail: "said of the what-if", idle: null },
    ],
  },
};
const { head } = made(RUN);
const arranged = (change: Partial<Arrangement> = {}): Arrangement => ({
  ...arrangement(head),
  extras: new Set(EXTRAS),
  size: "medium",
  grouping: "none",
  ...change,
});
const plan = (change: Partial<Arrangement> = {}) => layout(head, arranged(change));
const shown = (change: Partial<Arrangement>): number[] => plan(change).bands.map(({ rank }) => rank);

describe("how a page opens", () => {
  const opened = (count: number, hosts = 1, more: Partial<Head> = {}) =>
    arrangement(
      made({ ranks: Array.from({ length: count }, (_, rank) => ({ host: `host${rank % hosts}` })), head: more }).head,
    );

  test("what could have been is shown when it is asked for", () => {
    expect(opened(4).extras).toEqual(new Set(EXTRAS.filter((extra) => extra !== "ideal" && extra !== "against")));
  });

  test("ranks are grouped by machine if there are several", () => {
    expect(opened(4, 1).grouping).toBe("none");
    expect(opened(4, 2).grouping).toBe("host");
  });

  test.each(["ideal", "whatif"] as const)(
    "the %s that the page was asked to show above is there whatever the room, and nothing else of its like",
    (above) => {
      for (const count of [4, 1000]) {
        const { extras, ...rest } = opened(count, 1, { overlays: head.overlays, above });
        expect(overlayAbove(head, { extras, ...rest })?.lane).toBe(above);
        expect(extras).toEqual(new Set([above, "comm", "host", "counters"]));
      }
    },
  );

  test.each<Partial<Head>>([{}, { above: null }, { above: "whatif" }])(
    "nothing is above where %o is asked for, of what there is",
    (more) => {
      expect(opened(4, 1, { overlays: head.overlays.slice(0, 1), ...more })).toMatchObject({
        above: null,
        size: "fit",
      });
    },
  );

  test("everything is shown, in the order of the run", () => {
    expect(opened(3)).toMatchObject({
      order: [0, 1, 2],
      hidden: new Set(),
      folded: new Set(),
      replica: null,
      figure: false,
    });
  });
});

describe("lanes that fit", () => {
  const fitted = (count: number, height: number, named = false) => {
    const rows = Array.from({ length: count }, (_, rank) => ({ rank, tasks: task }));
    const run = made({ ranks: Array.from({ length: count }, () => ({})), rows });
    return layout(run.head, arrangement(run.head), { height, named });
  };

  test.each([1, 4, 8, 16, 64])("fill the room there is with all of %d ranks", (count) => {
    const { bands, height } = fitted(count, 520);
    expect(bands.length).toBe(count);
    expect(height).toBeLessThanOrEqual(520);
    // One pixel more for each lane would be too much, unless lanes are as tall as they get.
    if (bands[0]!.height < 118) expect(height).toBeGreaterThan(520 - 3 * count - 8);
  });

  test("are tall enough to be told apart where not all are in sight", () => {
    const { places, height } = fitted(1024, 520);
    expect(places[0]!.height).toBe(5);
    expect(height).toBeGreaterThan(520);
  });

  test.each([8, 16, 32])("have what would have run beside them, however low, of %d ranks", (count) => {
    const rows = Array.from({ length: count }, (_, rank) => [
      { rank, tasks: task },
      { rank, lane: "whatif" as const, tasks: task },
    ]).flat();
    const run = made({ ranks: Array.from({ length: count }, () => ({})), rows });
    const { places, height } = layout(run.head, arrangement(run.head), { height: 520, named: false });
    expect(places.filter(({ row }) => row.lane === "whatif").length).toBe(count);
    expect(Math.min(...places.map((place) => place.height))).toBeGreaterThanOrEqual(3);
    expect(height).toBeLessThanOrEqual(520);
  });

  test("have room for a title above each where nothing stands beside them", () => {
    const { bands, places } = fitted(64, 520, true);
    expect(bands.every(({ titled }) => titled > 0)).toBe(true);
    expect(places.every(({ top }, at) => top === bands[at]!.top + bands[at]!.titled)).toBe(true);
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
    expect(found.map(({ title, ranks }) => [title, ranks])).toEqual([
      ["b", [3, 2]],
      ["a", [0, 1]],
    ]);
  });

  test("none remains whose ranks are all hidden", () => {
    expect(
      groups(head, arranged({ grouping: "host", hidden: new Set([0, 1, 3]) })).map(({ title, ranks }) => [
        title,
        ranks,
      ]),
    ).toEqual([["b", [2]]]);
  });

  test("say how far the clock of any of their ranks may be off", () => {
    expect(groups(head, arranged({ grouping: "host" })).map(({ off }) => off)).toEqual([7, 0]);
  });

  test("are folded if they are named, but not where nothing is grouped", () => {
    expect(groups(head, arranged({ grouping: "host", folded: new Set(["b"]) })).map(({ folded }) => folded)).toEqual([
      false,
      true,
    ]);
    expect(groups(head, arranged({ folded: new Set([""]) }))[0]!.folded).toBe(false);
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
    expect(headings.map(({ group }) => [group.title, group.folded])).toEqual([
      ["a", true],
      ["b", false],
    ]);
    expect(headings[0]!.height).toBeGreaterThan(headings[1]!.height);
    expect(headings[1]!.top + headings[1]!.height).toBeLessThanOrEqual(bands[0]!.top);
    expect(places.every(({ row: { rank } }) => rank >= 2)).toBe(true);
  });

  test("without grouping there are no headings", () => {
    expect(plan().headings).toEqual([]);
  });

  test("a rank that computes nothing still has room for its title", () => {
    const band = plan().bands.find(({ rank }) => rank === 2)!;
    expect(band.height).toBeGreaterThanOrEqual(heightOfBlocks(plan().places[0]!));
  });
});

/** Replicas of as many stages, of which one rank is odd and those of its replica wait. */
function standing(stages: number, replicas: number, odd: number): Head {
  const ranks = Array.from({ length: stages * replicas }, (_, rank) => {
    const dp = Math.floor(rank / stages);
    const waits = dp === Math.floor(odd / stages);
    return {
      stages: [rank % stages],
      dp,
      standing: rank === odd ? ("odd" as const) : waits ? ("waits" as const) : ("alike" as const),
      reason: rank === odd ? "forward +30 %" : null,
      like: rank === odd ? rank % stages : null,
    };
  });
  return made({ ranks, rows: ranks.map((_, rank) => ({ rank, tasks: task })), head: { standings: SAID } }).head;
}

describe("ranks that are alike", () => {
  const many = standing(64, 16, 337);
  const at = (change: Partial<Arrangement> = {}): Layout => layout(many, { ...arrangement(many), ...change });

  test("are folded when a page of many opens, and not in one of a few", () => {
    expect(arrangement(many).grouping).toBe("standing");
    expect(arrangement(standing(21, 3, 5)).grouping).toBe("none");
    expect(arrangement({ ...many, standings: [] }).grouping).toBe("none");
    const alike = SAID.filter(({ name }) => name === "alike");
    expect(arrangement({ ...standing(64, 1, -1), standings: alike }).grouping).toBe("none"); // no two do the same
    expect(arrangement({ ...standing(64, 2, -1), standings: alike }).grouping).toBe("standing");
    expect(arrangement(standing(64, 1, 7)).grouping).toBe("standing");
  });

  test("are below an odd one with its reason, one of its like, and those that wait", () => {
    const { headings, bands, notes, folds, height } = at();
    expect(headings.map(({ group }) => [group.title, group.detail, group.folded])).toEqual([
      ["1 odd", "odd as they are", false],
      ["63 wait", "waits as they are", true],
      ["960 alike", "alike as they are", true],
    ]);
    expect(bands.map(({ rank, like }) => [rank, like])).toEqual([
      [337, false],
      [17, true],
    ]);
    expect(notes.map(({ text }) => text)).toEqual(["forward +30 %; below: rank 17, which should be like it"]);
    expect(notes[0]!.top).toBeGreaterThanOrEqual(bands[0]!.top + bands[0]!.height);
    expect(folds.map(({ ranks }) => ranks.length)).toEqual(
      Array.from({ length: 127 }, (_, row) => (row < 63 ? 1 : 15)),
    );
    expect(height).toBeLessThan(600);
  });

  test("have a sum for each stage, or for some together where there are many", () => {
    for (const [stages, replicas, rows] of [
      [1, 80, 1],
      [10, 80, 10],
      [96, 2, 96],
      [97, 2, 49],
      [1000, 2, 91],
    ] as const) {
      const head = standing(stages, replicas, -1);
      const { folds } = layout(head, arrangement(head));
      expect(folds.length).toBe(rows);
      expect(folds.flatMap(({ ranks }) => ranks).length).toBe(replicas * stages);
      const firsts = folds.map(({ ranks }) => Math.min(...ranks.map((rank) => rank % stages)));
      expect(firsts).toEqual([...firsts].sort((one, other) => one - other));
    }
  });

  test.each([200, 480, 700, 1300, 4000])("fill %d pixels, with no sum taller than the odd", (height) => {
    for (const head of [standing(8, 16, 37), standing(2, 40, -1), many]) {
      const { folds, bands, height: taken } = layout(head, arrangement(head), { height, named: false });
      const tallest = Math.max(...folds.map((fold) => fold.height));
      expect(tallest).toBeLessThanOrEqual(118);
      if (bands.length && tallest > 22) expect(bands[0]!.height).toBeGreaterThanOrEqual(tallest);
      if (tallest > 2) expect(taken).toBeLessThanOrEqual(height);
      if (tallest > 22 && tallest < 118) expect(height - taken).toBeLessThan(2 * (folds.length + bands.length));
    }
  });

  test("are shown where their sum is opened, and folded again", () => {
    const fold = at().folds.find(({ title, key }) => title === "stage 3" && key.startsWith("alike"))!;
    const opened = at({ opened: new Set([fold.key]) });
    expect(opened.bands.slice(2).map(({ rank }) => rank)).toEqual(fold.ranks);
    const open = opened.folds.find(({ key }) => key === fold.key)!;
    expect(open.shows).toBe("ranks");
    expect(foldAt(opened, open.top + 1)).toBe(open);
    expect(foldAt(opened, opened.bands.at(-1)!.top + 1)).toBe(undefined);
  });

  test("are a lane to be pointed at where the sum would be of one", () => {
    const waiting = at().folds.filter(({ key }) => key.startsWith("waits"));
    expect(waiting.map(({ shows }) => shows)).toEqual(waiting.map(() => "lane"));
    for (const { ranks, top, height } of waiting)
      expect(at().places.find(({ row: { rank } }) => rank === ranks[0])).toMatchObject({ top, height });
  });

  test("that wait are rows of each replica, until there are too many", () => {
    const waiting = (stages: number, replicas: number): string[] => {
      const ranks = standing(stages, replicas, -1).ranks.map((rank) => ({ ...rank, standing: "waits" as const }));
      const head = { ...standing(stages, replicas, -1), ranks };
      return layout(head, arrangement(head)).folds.map(({ title }) => title);
    };
    expect(waiting(40, 2)).toEqual(
      [0, 1].flatMap((dp) => Array.from({ length: 40 }, (_, stage) => `stage ${stage} of replica ${dp}`)),
    );
    expect(waiting(64, 2)).toEqual(Array.from({ length: 64 }, (_, stage) => `stage ${stage}`));
  });

  test("share the height that is left, until each is as high as a heading", () => {
    for (const room of [0, 500, 720, 1000, 1e6]) {
      const { folds, height } = layout(many, arrangement(many), { height: room, named: false });
      const heights = new Set(folds.map(({ height: tall }) => tall));
      expect(heights.size).toBe(1);
      const [each] = heights as unknown as [number];
      if (each > 2) expect(height).toBeLessThanOrEqual(room);
      if (each < 26) expect(height + folds.length).toBeGreaterThan(room);
    }
  });

  test("are told from odd ones in words", () => {
    expect(told(many)).toBe("1 odd, 63 wait, 960 alike; rank 337: forward +30 %");
  });
});

describe("which lanes a rank has", () => {
  const lanes = (change: Partial<Arrangement>): string[] =>
    plan(change)
      .places.filter(({ row: { rank } }) => rank === 0)
      .map(({ row: { lane } }) => lane);

  test("all that are wanted, and always its computing", () => {
    expect(lanes({})).toEqual(["compute", "compute", "ideal", "whatif", "comm", "comm", "host"]);
    expect(lanes({ extras: new Set(["comm"]) })).toEqual(["compute", "compute", "comm", "comm"]);
    expect(lanes({ extras: new Set() })).toEqual(["compute", "compute"]);
  });

  test("its computing only where lanes are low and in the look of papers", () => {
    for (const size of ["overview", "tiny"] as const) expect(lanes({ size })).toEqual(["compute", "compute"]);
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
    const crowded = made({
      rows: [
        { rank: 0, tasks: task },
        ...Array.from({ length: 15 }, () => ({ rank: 0, lane: "comm" as const, tasks: task })),
      ],
    }).head;
    const heights = layout(crowded, arrangement(crowded))
      .places.slice(1)
      .map(({ height }) => height);
    expect(heights.reduce((sum, height) => sum + height)).toBeLessThanOrEqual(42);
    expect(Math.min(...heights)).toBeGreaterThanOrEqual(1);
  });
});

describe("what could have been stands above what was", () => {
  type Place = ReturnType<typeof plan>["places"][number];
  const lanes = (places: Place[]): string[] => places.map(({ row: { rank, lane } }) => `${lane} ${rank}`);
  const all = made({
    ...RUN,
    rows: [0, 1, 2, 3].flatMap((rank) =>
      (["compute", "ideal", "whatif", "comm"] as const).map((lane) => ({ rank, lane, tasks: task })),
    ),
  }).head;
  const planned = (change: Partial<Arrangement>) =>
    layout(all, {
      ...arrangement(all),
      extras: new Set(EXTRAS),
      size: "large",
      grouping: "none",
      above: "ideal",
      ...change,
    });

  test("all its lanes, then all that were measured, each in the order of the ranks", () => {
    const order = [2, 0, 3, 1];
    const { places, bands, above } = planned({ order, hidden: new Set([3]) });
    expect(above).toBe("ideal");
    const shown = order.filter((rank) => rank !== 3);
    expect(lanes(places)).toEqual([
      ...shown.map((rank) => `ideal ${rank}`),
      ...shown.flatMap((rank) => [`compute ${rank}`, `whatif ${rank}`, `comm ${rank}`]),
    ]);
    expect(bands.map(({ stack, rank, number }) => [stack, rank, number])).toEqual([
      ...shown.map((rank, at) => ["ideal", rank, at + 1]),
      ...shown.map((rank, at) => ["compute", rank, at + 1]),
    ]);
  });

  test("each under a caption", () => {
    const { captions, places } = planned({ above: "whatif" });
    expect(captions.map(({ title, detail }) => [title, detail])).toEqual([
      ["the what-if", "said of the what-if"],
      ["as it ran", ""],
    ]);
    const [first, second] = captions as [Caption, Caption];
    const below = ({ top, height }: Caption): Place => places[firstBelow(places, top + height)]!;
    expect(lanes([below(first), below(second)])).toEqual(["whatif 0", "compute 0"]);
  });

  test("as tall as what was measured, also in the overview and in the look of papers", () => {
    for (const change of [{}, { size: "overview" }, { figure: true }] as Partial<Arrangement>[]) {
      const { places } = planned(change);
      const heights = (lane: string): number[] =>
        places.filter(({ row }) => row.lane === lane).map(({ height, band }) => height - band);
      expect(heights("ideal")).toEqual(heights("compute"));
      expect(heights("ideal")).toHaveLength(4);
    }
  });

  test("and only that: what was measured keeps all it has", () => {
    const { above: none, ...usual } = plan({
      grouping: "host",
      extras: new Set(["comm", "host", "counters", "whatif", "ideal"]),
    });
    expect(none).toBeNull();
    expect(usual.captions).toEqual([]);
    const { bands, headings, curves, places } = plan({ grouping: "host", above: "ideal" });
    expect(headings.map(({ group, stack }) => [group.title, stack])).toEqual([
      ["a", "compute"],
      ["b", "compute"],
    ]);
    expect(curves.map(({ samples }) => samples)).toEqual(usual.curves.map(({ samples }) => samples));
    expect(places.slice(1).map(({ row, gaps }) => [row, gaps])).toEqual(
      usual.places.filter(({ row }) => row.lane !== "ideal").map(({ row, gaps }) => [row, gaps]),
    );
    expect(bands.map(({ stack }) => stack)).toEqual(
      Array.from({ length: 8 }, (_, at) => (at < 4 ? "ideal" : "compute")),
    );
  });

  test("with room for a rank of which nothing is known", () => {
    const [first, second] = plan({ above: "ideal" }).bands as [Band, Band];
    expect([first.height, second.height]).toEqual([
      heightOfBlocks(plan().places[0]!),
      heightOfBlocks(plan().places[0]!),
    ]);
  });

  test("a folded group is one sum above and one below", () => {
    const { headings, bands } = planned({ grouping: "host", folded: new Set(["a"]) });
    expect(headings.map(({ group, stack }) => [group.title, group.folded, stack])).toEqual([
      ["a", true, "ideal"],
      ["a", true, "compute"],
      ["b", false, "compute"],
    ]);
    expect(bands.map(({ rank }) => rank)).toEqual([2, 3, 2, 3]);
  });

  test("unless it is switched off", () => {
    const off = planned({ extras: new Set(["comm", "whatif"]) });
    expect(off.above).toBeNull();
    expect(off.captions).toEqual([]);
    expect(lanes(off.places).slice(0, 3)).toEqual(["compute 0", "whatif 0", "comm 0"]);
  });

  test("what was measured of a rank is found below it", () => {
    const found = planned({});
    for (const rank of [0, 1, 2, 3]) expect(bandOf(found, rank)).toMatchObject({ rank, stack: "compute" });
    expect(bandOf(planned({ hidden: new Set([1]) }), 1)).toBeUndefined();
  });
});

test("lanes grow with the size", () => {
  const sizes = SIZES.filter((size) => size !== "fit");
  const heights = sizes.map((size) => plan({ size }).places[0]!.height);
  expect(heights).toEqual([...heights].sort((one, other) => one - other));
  expect(new Set(heights).size).toBe(sizes.length);
  const pages = sizes.map((size) => plan({ size }).height);
  expect(pages).toEqual([...pages].sort((one, other) => one - other));
});

const STANDINGS = ["odd", "waits", "alike"] as const;
const SAID = STANDINGS.map((name) => ({ name, said: `${name} as they are` }));

/** Runs and arrangements of all sorts. */
const VARIETY = Array.from({ length: 150 }, (_, seed) => {
  const next = random(seed);
  const count = whole(next, 1, 12);
  const ranks = Array.from({ length: count }, () => ({
    host: `host${whole(next, 0, 2)}`,
    dp: next() < 0.2 ? null : whole(next, 0, 1),
    stages: [whole(next, 0, 3)],
    standing: STANDINGS[whole(next, 0, 2)]!,
    like: next() < 0.5 ? whole(next, 0, count - 1) : null,
  }));
  const lanes = (["compute", "compute", "ideal", "whatif", "comm", "comm", "host"] as const).filter(() => next() < 0.6);
  const run = made({
    ranks,
    rows: ranks.flatMap((_, rank) => lanes.map((lane) => ({ rank, lane, tasks: row(next, whole(next, 0, 4)) }))),
    gaps: ranks.flatMap((_, rank) => (next() < 0.7 ? [{ rank, gaps: [{ start: 0, end: 1 }] }] : [])),
    samples: ranks.flatMap((_, rank) =>
      next() < 0.5 ? [{ rank, counter: 0, points: [[0, 1] as [number, number]] }] : [],
    ),
    kernels: ranks.flatMap((_, rank) =>
      next() < 0.7
        ? Array.from({ length: whole(next, 1, 3) }, (__, stream) => ({ rank, stream, kernels: [{ start: 0, end: 1 }] }))
        : [],
    ),
    head: { counters: [{ name: "memory", unit: "", least: 0, most: 1 }], overlays: head.overlays, standings: SAID },
  });
  const order = ranks.map((_, rank) => rank).sort(() => next() - 0.5);
  const grouping = (Object.keys(GROUPINGS) as Grouping[])[whole(next, 0, 4)]!;
  const arranged: Arrangement = {
    grouping,
    folded: new Set(next() < 0.5 ? ["host0", "stage 1", "replica 0", "waits", "alike"] : []),
    opened: new Set(next() < 0.5 ? ["alike stage 1", "waits stage 0"] : []),
    hidden: new Set(order.filter(() => next() < 0.2)),
    order,
    replica: next() < 0.2 ? 0 : null,
    extras: new Set(EXTRAS.filter(() => next() < 0.7)),
    above: ([null, "ideal", "whatif"] as const)[whole(next, 0, 2)]!,
    unfolded: new Set(order.filter(() => next() < 0.4)),
    size: SIZES[whole(next, 0, SIZES.length - 1)]!,
    figure: next() < 0.2,
  };
  return { ...run, arranged, plan: layout(run.head, arranged) };
});

test("nothing lies upon anything else, and all is on the page", () => {
  for (const {
    plan: { places, kernels, curves, bands, headings, folds, notes, captions, height },
  } of VARIETY) {
    const apart = folds.filter(({ title }) => title); // the others lie in their headings
    const hollow = apart.filter(({ shows }) => shows !== "lane"); // in the others is a place
    for (const parts of [
      [...places, ...kernels, ...curves, ...hollow, ...notes, ...captions],
      [...bands, ...headings, ...apart, ...notes, ...captions],
    ]) {
      const sorted = [...parts].sort((one, other) => one.top - other.top);
      sorted.forEach((part, at) => {
        expect(part.height).toBeGreaterThan(0);
        expect(part.top + part.height).toBeLessThanOrEqual(sorted[at + 1]?.top ?? height);
      });
    }
    for (const parts of [places, kernels, curves, bands, headings, folds, notes, captions]) {
      expect(parts.map(({ top }) => top)).toEqual(parts.map(({ top }) => top).sort((one, other) => one - other));
    }
    for (const place of [...places, ...kernels]) {
      const lane = apart.find(({ top, shows }) => top === place.top && shows === "lane");
      const band = lane ? { ...lane, rank: lane.ranks[0]! } : bands[firstBelow(bands, place.top)]!;
      expect(band.rank).toBe(place.row.rank);
      expect(band.top <= place.top && place.top + place.height <= band.top + band.height).toBe(true);
    }
  }
});

test("each rank is in one group that is shown, folded or hidden, and the same in what stands above", () => {
  for (const {
    head: { ranks },
    arranged: { hidden, replica },
    plan: { above, bands, folds },
  } of VARIETY) {
    const hiding = ranks.flatMap(({ dp }, rank) =>
      hidden.has(rank) || (replica !== null && dp !== replica) ? [rank] : [],
    );
    for (const wanted of above ? [above, "compute"] : ["compute"]) {
      const folded = folds
        .filter(({ stack, shows }) => stack === wanted && shows !== "ranks")
        .flatMap(({ ranks: some }) => some);
      const shown = bands.filter(({ stack, like }) => stack === wanted && !like).map(({ rank }) => rank);
      expect([...shown, ...folded, ...hiding].sort((one, other) => one - other)).toEqual(ranks.map((_, rank) => rank));
    }
  }
});

test("a task or a gap is in the place of its row, or in none that is shown", () => {
  for (const { head: own, data, plan: found } of VARIETY) {
    for (let index = 0; index < data.tasks.kind.length; index++) {
      const place = placeOf(own, found, { what: "task", index });
      expect(place).toBe(found.places.findLast(({ row: { from, to } }) => from <= index && index < to));
    }
    for (let index = 0; index < data.gaps.cause.length; index++) {
      const place = placeOf(own, found, { what: "gap", index });
      expect(place).toBe(found.places.findLast(({ gaps }) => gaps && gaps.from <= index && index < gaps.to));
    }
  }
});

test("what is in sight is found by its height", () => {
  for (const {
    plan: { places, height },
  } of VARIETY.slice(0, 40)) {
    for (let y = -5; y < height + 5; y += 3) {
      const below = places.findIndex((place) => place.top + place.height > y);
      expect(firstBelow(places, y)).toBe(below < 0 ? places.length : below);
      expect(within(places, y, y + 50)).toEqual(
        places.filter((place) => place.top < y + 50 && place.top + place.height > y),
      );
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

test("kernels are directly under what computes of their rank, where it is unfolded", () => {
  for (const { head: own, arranged, plan: found } of VARIETY) {
    const wanted = found.bands.filter(
      ({ stack, rank, like }) => stack === "compute" && arranged.unfolded.has(rank) && !arranged.figure && !like,
    );
    const rows = wanted.flatMap(({ rank }) => own.kernel_rows.filter((row) => row.rank === rank));
    expect(found.kernels.map(({ row }) => row)).toEqual(rows);
    for (const { row, top } of found.kernels) {
      const band = found.bands[firstBelow(found.bands, top)]!;
      for (const place of within(found.places, band.top, band.top + band.height)) {
        const measured = place.row.rank === row.rank && place.row.lane !== found.above;
        if (measured) expect(place.top < top).toBe(place.row.lane === "compute");
      }
      const index = row.from;
      expect(placeOf(own, found, { what: "kernel", index })!.top).toBe(top);
    }
    for (const { stack, rank, unfolded, like } of found.bands) {
      if (stack !== "compute" || like) continue;
      const there = !arranged.figure && own.kernel_rows.some((row) => row.rank === rank);
      expect(unfolded).toBe(there ? arranged.unfolded.has(rank) : null);
    }
  }
});
