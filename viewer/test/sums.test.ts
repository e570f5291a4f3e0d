import { afterEach, describe, expect, test, vi } from "vitest";
import { scheme } from "../src/colour";
import type { Row } from "../src/data";
import { packed, type Raster } from "../src/raster";
import type { Scale } from "../src/sample";
import { Sum } from "../src/sums";
import { made, random, row, whole } from "./made";

const RANKS = 40;
const COLUMNS = 60;

function run(seed: number) {
  const next = random(seed);
  const made_ = made({
    rows: Array.from({ length: RANKS }, (_, rank) => ({ rank, tasks: row(next, whole(next, 0, 60)) })),
  });
  const ranks = made_.head.rows.map((one): Row[] => [one]);
  return { ...made_, ranks, scheme: scheme("kind", made_.head, made_.data) };
}

/** How many ranks have each colour in each column, from the columns that are drawn. */
function painted(sum: Sum, scale: Scale, columns = COLUMNS, height = RANKS): Map<number, number>[] {
  const found = Array.from({ length: columns }, () => new Map<number, number>());
  const column = (x: number, top: number, bottom: number, colour: number): void => {
    found[x]!.set(colour, (found[x]!.get(colour) ?? 0) + Math.round(bottom - top));
  };
  sum.paint({ columns, column } as Raster, scale, 0, height);
  return found;
}

const FOREVER = Infinity;
const { head, data, ranks, scheme: colours } = run(1);
const ALL: Scale = { start: 0, perPixel: head.end / COLUMNS };

afterEach(() => void vi.restoreAllMocks());

describe("a sum", () => {
  test.each([0.25, 2, 8])(
    "counts the ranks that run a task of each colour at each pixel's centre, %d ns a pixel",
    (perPixel) => {
      for (let seed = 0; seed < 10; seed++) {
        const one = run(seed);
        const scale = { start: 16 * seed - 20, perPixel };
        const sum = new Sum(one.ranks);
        expect(sum.advance(one.data, one.scheme, scale, COLUMNS, FOREVER)).toBe(true);
        const wanted = Array.from({ length: COLUMNS }, (_, x) => {
          const time = scale.start + (x + 0.5) * perPixel;
          const counts = new Map<number, number>();
          one.data.tasks.start.forEach((start, task) => {
            if (start > time || one.data.tasks.end[task]! <= time) return;
            const colour = packed(one.scheme.fills[one.scheme.codes[task]!]!);
            counts.set(colour, (counts.get(colour) ?? 0) + 1);
          });
          return counts;
        });
        expect(painted(sum, scale)).toEqual(wanted);
      }
    },
  );

  test("stands on the ground, its colours upon each other and together as high as there are ranks at work", () => {
    const sum = new Sum(ranks);
    sum.advance(data, colours, ALL, COLUMNS, FOREVER);
    const bottoms = new Map<number, number>();
    const column = (x: number, top: number, bottom: number): void => {
      expect(bottom).toBeCloseTo(bottoms.get(x) ?? 110);
      expect(top).toBeGreaterThanOrEqual(10 - 1e-9);
      bottoms.set(x, top);
    };
    sum.paint({ columns: COLUMNS, column } as unknown as Raster, ALL, 10, 100);
    expect(bottoms.size).toBeGreaterThan(0);
  });

  test("a rank in several rows counts once", () => {
    const two = made({
      rows: [
        { rank: 0, tasks: [{ start: 0, end: 9 }] },
        { rank: 0, tasks: [{ start: 0, end: 9, kind: "send" }] },
      ],
    });
    const sum = new Sum([two.head.rows]);
    const scale = { start: 0, perPixel: 1 };
    sum.advance(two.data, scheme("kind", two.head, two.data), scale, 9, FOREVER);
    for (const counts of painted(sum, scale, 9, 1)) expect([...counts.values()]).toEqual([1]);
  });
});

describe("within a frame's time", () => {
  /** A clock that goes on by one whenever it is looked at. */
  function clock(): { now: number } {
    const made = { now: 0 };
    vi.spyOn(performance, "now").mockImplementation(() => ++made.now);
    return made;
  }

  test("it stops when that is over and goes on where it was", () => {
    const time = clock();
    const sum = new Sum(ranks);
    let frames = 1;
    while (!sum.advance(data, colours, ALL, COLUMNS, time.now + 1.5)) frames++;
    expect(frames).toBe(3); // of forty ranks in batches of sixteen
    const whole = new Sum(ranks);
    whole.advance(data, colours, ALL, COLUMNS, FOREVER);
    expect(painted(sum, ALL)).toEqual(painted(whole, ALL));
  });

  test("without any it counts nothing and draws nothing", () => {
    clock();
    const sum = new Sum(ranks);
    expect(sum.advance(data, colours, ALL, COLUMNS, 0)).toBe(false);
    expect(painted(sum, ALL).every(({ size }) => size === 0)).toBe(true);
  });

  test("what is counted is not counted again", () => {
    const time = clock();
    const sum = new Sum(ranks);
    sum.advance(data, colours, ALL, COLUMNS, FOREVER);
    const before = time.now;
    expect(sum.advance(data, colours, { ...ALL }, COLUMNS, 0)).toBe(true);
    expect(time.now).toBe(before);
  });

  test("until another stretch is counted, the last shows at the times to which it belongs", () => {
    clock();
    const sum = new Sum(ranks);
    sum.advance(data, colours, ALL, COLUMNS, FOREVER);
    const before = painted(sum, ALL);
    const moved = { ...ALL, start: 7 * ALL.perPixel };
    expect(sum.advance(data, colours, moved, COLUMNS, 0)).toBe(false);
    const during = painted(sum, moved);
    expect(during.slice(0, COLUMNS - 7)).toEqual(before.slice(7));
    expect(during.slice(COLUMNS - 7).every(({ size }) => size === 0)).toBe(true);
  });

  test.each<[string, Scale, number, boolean]>([
    ["another time", { ...ALL, start: 5 }, COLUMNS, false],
    ["another zoom", { ...ALL, perPixel: 5 }, COLUMNS, false],
    ["another width", ALL, COLUMNS + 1, false],
    ["other colours", ALL, COLUMNS, true],
  ])("%s is counted anew", (_, scale, columns, recoloured) => {
    clock();
    const sum = new Sum(ranks);
    sum.advance(data, colours, ALL, COLUMNS, FOREVER);
    const other = recoloured ? scheme("microbatch", head, data) : colours;
    expect(sum.advance(data, other, scale, columns, 0)).toBe(false);
    expect(sum.advance(data, other, scale, columns, FOREVER)).toBe(true);
  });
});
