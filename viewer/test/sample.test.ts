import { describe, expect, test } from "vitest";
import type { Extent, Numbers, Spans } from "../src/data";
import { sample, type Scale } from "../src/sample";
import { KINDS, made, random, row, whole } from "./made";

const COLOURS = Uint32Array.from(KINDS, (_, code) => code + 1);

/** The rule as it is said: what is there at the centre of each pixel. */
function oracle(
  { start, end }: Spans,
  { from, to }: Extent,
  scale: Scale,
  codes: Numbers,
  colours: Uint32Array,
  pixels: Uint32Array,
): void {
  for (let x = 0; x < pixels.length; x++) {
    const centre = scale.start + (x + 0.5) * scale.perPixel;
    for (let task = from; task < to; task++) {
      const colour = colours[codes[task]!];
      if (start[task]! <= centre && centre < end[task]! && colour) pixels[x] = colour;
    }
  }
}

function lane(seed: number, count: number, longest = 9) {
  const { head, data } = made({
    rows: [
      { rank: 0, tasks: [] },
      { rank: 0, tasks: row(random(seed), count, longest) },
      { rank: 0, tasks: row(random(seed + 1), 3) },
    ],
  });
  return { spans: data.tasks, codes: data.tasks.kind, extent: head.rows[1]! };
}

function both(
  spans: Spans,
  extent: Extent,
  scale: Scale,
  codes: Numbers,
  width: number,
  colours = COLOURS,
  before = 0,
) {
  const [drawn, wanted] = [0, 0].map(() => new Uint32Array(width).fill(before)) as [Uint32Array, Uint32Array];
  sample(spans, extent, scale, codes, colours, drawn);
  oracle(spans, extent, scale, codes, colours, wanted);
  return { drawn, wanted };
}

describe("a pixel shows what is there at its centre", () => {
  // Powers of two make centres exact, so that those on the edge of a block count as well.
  test.each([1 / 64, 1 / 8, 0.5, 1, 2, 4, 16, 64, 1024])("at %d ns a pixel", (perPixel) => {
    for (let seed = 0; seed < 40; seed++) {
      const { spans, codes, extent } = lane(seed, 150);
      const length = spans.end[extent.to - 1]!;
      for (const begin of [0, -37.5, length / 2 - ((length / 2) % 0.25), length - 3, length + 10]) {
        const { drawn, wanted } = both(spans, extent, { start: begin, perPixel }, codes, 64);
        expect(drawn).toEqual(wanted);
      }
    }
  });

  test("at any zoom, blocks fewer or more than pixels", () => {
    const next = random(7);
    const paths = new Set<boolean>();
    for (let turn = 0; turn < 400; turn++) {
      const { spans, codes, extent } = lane(1000 + turn, whole(next, 1, 200));
      const scale = { start: 300 * next(), perPixel: 0.01 + 40 * next() ** 3 };
      const width = whole(next, 1, 90);
      const inSight = [...spans.end.subarray(extent.from, extent.to)].filter(
        (end, at) => end > scale.start && spans.start[extent.from + at]! < scale.start + width * scale.perPixel,
      );
      paths.add(inSight.length > width);
      const { drawn, wanted } = both(spans, extent, scale, codes, width);
      expect(drawn).toEqual(wanted);
    }
    expect(paths.size).toBe(2); // it was tried with and without more blocks than pixels
  });

  test("an extent bounds what is seen", () => {
    const { spans, codes } = lane(3, 50);
    const { drawn, wanted } = both(spans, { rank: 0, from: 10, to: 20 }, { start: 0, perPixel: 4 }, codes, 200);
    expect(drawn).toEqual(wanted);
    expect(both(spans, { rank: 0, from: 5, to: 5 }, { start: 0, perPixel: 4 }, codes, 50).drawn).toEqual(
      new Uint32Array(50),
    );
  });

  test("a block shorter than a pixel is not widened, wherever it begins", () => {
    const { data } = made({ rows: [{ rank: 0, tasks: [{ start: 11, end: 14 }] }] });
    const extent = { rank: 0, from: 0, to: 1 };
    expect([...both(data.tasks, extent, { start: 0, perPixel: 10 }, data.tasks.kind, 3).drawn]).toEqual([0, 0, 0]);
    expect([...both(data.tasks, extent, { start: 7, perPixel: 10 }, data.tasks.kind, 3).drawn]).toEqual([1, 0, 0]);
  });
});

test.each([0.5, 100])("a colour that is 0 leaves what was there, at %d ns a pixel", (perPixel) => {
  const colours = COLOURS.map((colour, code) => (code % 2 ? 0 : colour));
  const { spans, codes, extent } = lane(11, 300);
  const { drawn, wanted } = both(spans, extent, { start: 0, perPixel }, codes, 40, colours, 77);
  expect(drawn).toEqual(wanted);
  expect(drawn).toContain(77);
});

test.each([
  ["blocks far finer than pixels", 200_000, 9],
  ["blocks about as wide as pixels", 2_000, 900],
  ["blocks wider than pixels", 60, 30_000],
])("shares of colours are shares of time: %s", (_, count, longest) => {
  const width = 4000;
  const { spans, codes, extent } = lane(23, count, longest);
  const length = spans.end[extent.to - 1]!;
  const pixels = new Uint32Array(width);
  sample(spans, extent, { start: 0, perPixel: length / width }, codes, COLOURS, pixels);

  const spent = new Float64Array(KINDS.length + 1);
  for (let task = extent.from; task < extent.to; task++)
    spent[COLOURS[codes[task]!]!]! += spans.end[task]! - spans.start[task]!;
  spent[0] = length - spent.reduce((sum, value) => sum + value, 0); // idle
  spent.forEach((time, colour) => {
    const share = time / length;
    const seen = pixels.filter((pixel) => pixel === colour).length / width;
    // Four standard deviations of as many independent looks as there are pixels.
    expect(Math.abs(seen - share)).toBeLessThan(4 * Math.sqrt((share * (1 - share)) / width));
  });
});
