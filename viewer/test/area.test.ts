import { describe, expect, test } from "vitest";
import { inksOf, Layer, spend, type Grid, type Inks } from "../src/area";
import type { Extent, Numbers, Spans } from "../src/data";
import { packed, unpacked } from "../src/raster";
import { made, random, row, whole } from "./made";

const FILLS = ["#0d2d60", "#c17527", "#ffdf96", "#111111", "#6db3e2", "#00735a", "#b0b0b0"];
const PLAIN = inksOf(FILLS, FILLS, null); // without lines
const GROUND = "#fbfbf9";

/** sRGB as it is written down in IEC 61966-2-1. */
const light = (value: number): number =>
  value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4;
const value = (of: number): number => 255 * (of <= 0.0031308 ? 12.92 * of : 1.055 * of ** (1 / 2.4) - 0.055);
const channels = (colour: string): number[] => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

/** How much of a pixel each code takes, task by task; what overlaps begins where the one before it ends. */
function sharesOf({ start, end }: Spans, extent: Extent, codes: Numbers, begin: number, length: number): number[] {
  const shares = FILLS.map(() => 0);
  let reached = -Infinity;
  for (let task = extent.from; task < extent.to; task++) {
    const from = Math.max(start[task]!, reached, begin);
    const to = Math.min(end[task]!, begin + length);
    if (to > from) shares[codes[task]!]! += (to - from) / length;
    reached = Math.max(reached, end[task]!);
  }
  return shares;
}

/** The rule as it is said: the mean, in linear light, of all that is in a pixel, and of the ground. */
function oracle(spans: Spans, extent: Extent, codes: Numbers, { first, perPixel }: Grid, x: number): number[] {
  const shares = sharesOf(spans, extent, codes, (first + x) * perPixel, perPixel);
  const idle = 1 - shares.reduce((sum, share) => sum + share, 0);
  return [0, 1, 2].map((channel) => {
    const mixed = shares.reduce((sum, share, code) => sum + share * light(channels(FILLS[code]!)[channel]!), 0);
    return value(mixed + idle * light(channels(GROUND)[channel]!));
  });
}

function lane(seed: number, count: number, longest = 9) {
  const next = random(seed);
  const tasks = row(next, count, longest);
  // Some begin before the one before them ends.
  tasks.forEach((task, at) => {
    if (at && next() < 0.2) task.start = Math.max(tasks[at - 1]!.start, task.start - whole(next, 0, 5));
  });
  const { head, data } = made({
    rows: [
      { rank: 0, tasks: row(next, 3) },
      { rank: 0, tasks },
      { rank: 0, tasks: row(next, 3) },
    ],
  });
  return { spans: data.tasks, codes: data.tasks.kind, extent: head.rows[1]! as Extent };
}

function mixed(
  { spans, codes, extent }: ReturnType<typeof lane>,
  grid: Grid,
  inks: Inks = PLAIN,
  stretches = [{ from: 0, to: grid.columns }],
): Uint32Array {
  const ground = new Uint32Array(grid.columns).fill(packed(GROUND));
  const line = ground.slice();
  const layer = new Layer(spans, codes, inks);
  for (const stretch of stretches) layer.mix(extent, grid, stretch, ground, line);
  return line;
}

describe("a pixel is the mean of what is in it", () => {
  test("at random zooms, from a task over many pixels to hundreds of tasks in one", () => {
    const next = random(7);
    let [worst, many, few] = [0, 0, 0];
    for (let turn = 0; turn < 240; turn++) {
      const one = lane(1000 + turn, whole(next, 1, 1500));
      const end = one.spans.end[one.extent.to - 1]!;
      const columns = whole(next, 1, 60);
      const perPixel = 0.03 * (20_000 * next() ** 2 + 1) ** next();
      const grid = { first: Math.round((next() * 1.2 - 0.1) * (end / perPixel)), perPixel, columns, ratio: 1 };
      const line = mixed(one, grid);
      for (let x = 0; x < columns; x++) {
        const wanted = oracle(one.spans, one.extent, one.codes, grid, x);
        channels(unpacked(line[x]!)).forEach((seen, at) => (worst = Math.max(worst, Math.abs(seen - wanted[at]!))));
      }
      if (perPixel > 100) many++;
      if (perPixel < 1) few++;
    }
    expect(worst).toBeLessThan(0.9); // of 255; rounding alone is 0.5
    expect(Math.min(many, few)).toBeGreaterThan(10); // both ways of adding up were tried
  });

  test("whatever the ground", () => {
    const one = lane(3, 40);
    const grid = { first: 0, perPixel: 7.3, columns: 20, ratio: 1 };
    const ground = Uint32Array.from({ length: 20 }, (_, x) => packed(x % 2 ? "#fbfbf9" : "#121c2b"));
    const line = ground.slice();
    new Layer(one.spans, one.codes, PLAIN).mix(one.extent, grid, { from: 0, to: 20 }, ground, line);
    for (let x = 1; x < 20; x += 2)
      channels(unpacked(line[x]!)).forEach((seen, at) =>
        expect(Math.abs(seen - oracle(one.spans, one.extent, one.codes, grid, x)[at]!)).toBeLessThan(0.9),
      );
    expect(line[0]).not.toBe(line[1]);
  });

  test("of two layers that do not overlap, of both", () => {
    const both = lane(5, 600, 4);
    const half = (part: number) => {
      const from = both.extent.from + (part ? 300 : 0);
      return { ...both.extent, from, to: from + 300 };
    };
    // The second begins where the first ends, within a pixel.
    const grid = { first: 0, perPixel: 97.3, columns: 40, ratio: 1 };
    const ground = new Uint32Array(40).fill(packed(GROUND));
    const line = ground.slice();
    const layer = new Layer(both.spans, both.codes, PLAIN);
    for (const part of [0, 1]) layer.mix(half(part), grid, { from: 0, to: 40 }, ground, line);
    mixed(both, grid).forEach((pixel, x) =>
      channels(unpacked(pixel)).forEach((wanted, at) =>
        expect(Math.abs(channels(unpacked(line[x]!))[at]! - wanted)).toBeLessThanOrEqual(1),
      ),
    );
  });
});

test("a pixel is the same to the last bit wherever the view begins and whatever is painted with it", () => {
  let other = 0;
  const next = random(11);
  const lined = inksOf(
    FILLS,
    FILLS.map(() => "#ff00ff"),
    GROUND,
  );
  for (let turn = 0; turn < 200; turn++) {
    const one = lane(turn, whole(next, 1, 800));
    const end = one.spans.end[one.extent.to - 1]!;
    const perPixel = 0.02 * 5000 ** next();
    const grid = { first: Math.floor((next() * end) / perPixel) - 30, perPixel, columns: 80, ratio: whole(next, 1, 3) };
    const line = mixed(one, grid, lined);
    const by = whole(next, -79, 79);
    const moved = mixed(one, { ...grid, first: grid.first + by }, lined);
    for (let x = Math.max(0, by); x < Math.min(80, 80 + by); x++) if (moved[x - by] !== line[x]) other++;
    const cut = whole(next, 0, 80);
    const parts = [
      { from: cut, to: 80 },
      { from: 0, to: cut },
    ];
    other += mixed(one, grid, lined, parts).filter((pixel, x) => pixel !== line[x]).length;
  }
  expect(other).toBe(0);
});

describe("lines", () => {
  const { data } = made({
    rows: [
      {
        rank: 0,
        tasks: [
          { start: 14, end: 65 },
          { start: 65, end: 88, kind: "backward" },
          { start: 100, end: 129 },
        ],
      },
    ],
  });
  const extent = { rank: 0, from: 0, to: 3 };
  const EDGE = packed("#ff00ff");
  const painted = (ground: string | null, ratio = 1) => {
    const inks = inksOf(
      FILLS,
      FILLS.map(() => "#ff00ff"),
      ground,
    );
    const grid = { first: 0, perPixel: 10 / ratio, columns: 15 * ratio, ratio };
    const line = new Uint32Array(grid.columns).fill(packed(GROUND));
    const marks = new Uint8Array(grid.columns);
    new Layer(data.tasks, data.tasks.kind, inks).mix(
      extent,
      grid,
      { from: 0, to: grid.columns },
      line.slice(),
      line,
      marks,
    );
    return { edges: [...line.keys()].filter((x) => line[x] === EDGE), marks: [...marks] };
  };

  test("stand on the first pixel that a block fills, from three pixels of width on", () => {
    expect(painted(null).edges).toEqual([2]);
    expect(painted(null, 2).edges).toEqual([3, 4]); // as wide in CSS pixels
    expect(painted(null).marks).toEqual([0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
  });

  test("and on the last one where the ground hardly differs from the fill", () => {
    expect(painted("#0d2d60").edges).toEqual([2, 5]);
    expect(painted("#ffffff").edges).toEqual([2]);
  });
});

test("time is shared out among pixels and codes as it is spent", () => {
  const next = random(17);
  for (let turn = 0; turn < 60; turn++) {
    const one = lane(turn, whole(next, 1, 300));
    const perPixel = 0.1 * 3000 ** next();
    const grid = { first: whole(next, -5, 40), perPixel, columns: 30, ratio: 1 };
    const [shares, covered] = [new Float32Array(30 * FILLS.length), new Float32Array(30)];
    spend(one.spans, one.extent, grid, { from: 0, to: 30 }, one.codes, FILLS.length, shares, covered);
    for (let x = 0; x < 30; x++) {
      const wanted = sharesOf(one.spans, one.extent, one.codes, (grid.first + x) * perPixel, perPixel);
      wanted.forEach((share, code) => expect(shares[x * FILLS.length + code]).toBeCloseTo(share, 5));
      expect(covered[x]).toBeCloseTo(
        wanted.reduce((sum, share) => sum + share, 0),
        5,
      );
    }
  }
});
