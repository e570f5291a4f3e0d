// @vitest-environment happy-dom
import { afterEach, describe, expect, test, vi } from "vitest";
import type { Grid } from "../src/area";
import { scheme } from "../src/colour";
import type { Row } from "../src/data";
import { luminance } from "../src/light";
import { packed, Raster, unpacked } from "../src/raster";
import { Sum } from "../src/sums";
import { made, random, row, whole } from "./made";

const RANKS = 40;
const COLUMNS = 60;
const GROUND = "#fbfbf9";

function run(seed: number) {
  const next = random(seed);
  const made_ = made({
    rows: Array.from({ length: RANKS }, (_, rank) => ({ rank, tasks: row(next, whole(next, 0, 60)) })),
  });
  const ranks = made_.head.rows.map((one): Row[] => [one]);
  return { ...made_, ranks, scheme: scheme("kind", made_.head, made_.data, false) };
}

const gridAt = (first: number, perPixel: number, columns = COLUMNS): Grid => ({ first, perPixel, columns, ratio: 1 });

/** The pixels of a sum, as rows of colours. */
function painted(sum: Sum, grid: Grid, height = 26): string[][] {
  const raster = new Raster();
  raster.begin(grid.columns, height, 1, packed(GROUND));
  sum.paint(raster, grid, { from: 0, to: height }, GROUND);
  let rows: string[][] = [];
  const putImageData = ({ data }: ImageData): void => {
    const pixels = new Uint32Array(data.buffer);
    rows = Array.from({ length: height }, (_, y) =>
      [...pixels.subarray(y * grid.columns, (y + 1) * grid.columns)].map(unpacked),
    );
  };
  raster.flush({ putImageData } as unknown as CanvasRenderingContext2D, 0);
  return rows;
}

const FOREVER = Infinity;
const { head, data, ranks, scheme: colours } = run(1);
const ALL = gridAt(0, head.end / COLUMNS);

afterEach(() => void vi.restoreAllMocks());

describe("a sum", () => {
  test.each([0.25, 2, 8, 100])(
    "is how much of each pixel's time the ranks ran tasks of each colour, %d ns a pixel",
    (perPixel) => {
      for (let seed = 0; seed < 6; seed++) {
        const one = run(seed);
        const grid = gridAt(16 * seed - 20, perPixel);
        const sum = new Sum(one.ranks);
        expect(sum.advance(one.data, one.scheme, grid, FOREVER)).toBe(true);
        for (let x = 0; x < COLUMNS; x++) {
          const [begin, end] = [(grid.first + x) * perPixel, (grid.first + x + 1) * perPixel];
          const wanted = one.scheme.fills.map(() => 0);
          one.data.tasks.start.forEach((start, task) => {
            const spent = Math.min(end, one.data.tasks.end[task]!) - Math.max(begin, start);
            if (spent > 0) wanted[one.scheme.codes[task]!]! += spent / perPixel / RANKS;
          });
          const shares = sum.shares(grid, x)!;
          wanted.forEach((share, code) => expect(shares[code]).toBeCloseTo(share, 5));
        }
      }
    },
  );

  test("is drawn true in area, to a fraction of a pixel", () => {
    const sum = new Sum(ranks);
    sum.advance(data, colours, ALL, FOREVER);
    for (const height of [26, 7]) {
      const rows = painted(sum, ALL, height);
      for (let x = 0; x < COLUMNS; x++) {
        const shares = sum.shares(ALL, x)!;
        const idle = 1 - shares.reduce((all, share) => all + share, 0);
        const wanted = shares.reduce(
          (light, share, code) => light + share * luminance(colours.fills[code]!),
          idle * luminance(GROUND),
        );
        const seen = rows.reduce((light, line) => light + luminance(line[x]!), 0) / height;
        expect(seen).toBeCloseTo(wanted, 2);
      }
    }
  });

  test("stands on the ground: what is idle is at the top", () => {
    const one = made({
      rows: [
        { rank: 0, tasks: [{ start: 0, end: 10 }] },
        { rank: 1, tasks: [{ start: 20, end: 21 }] },
      ],
    });
    const sum = new Sum(one.head.rows.map((own): Row[] => [own]));
    const its = scheme("kind", one.head, one.data, false);
    const grid = gridAt(0, 10, 1);
    sum.advance(one.data, its, grid, FOREVER);
    expect(painted(sum, grid, 4).map(([pixel]) => pixel)).toEqual([GROUND, GROUND, its.fills[0], its.fills[0]]);
    const [box] = sum.boxes(its, 4);
    expect(box).toEqual({ x: 0, top: 2, width: 1, height: 2, colour: its.fills[0] });
  });

  test("a rank in several rows is not more than busy", () => {
    const two = made({
      rows: [
        { rank: 0, tasks: [{ start: 0, end: 9 }] },
        { rank: 0, tasks: [{ start: 0, end: 9, kind: "send" }] },
      ],
    });
    const sum = new Sum([two.head.rows]);
    const grid = gridAt(0, 1, 9);
    sum.advance(two.data, scheme("kind", two.head, two.data, false), grid, FOREVER);
    for (let x = 0; x < 9; x++) {
      const shares = [...sum.shares(grid, x)!].filter((share) => share > 0);
      expect(shares).toEqual([0.5, 0.5]);
    }
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
    while (!sum.advance(data, colours, ALL, time.now + 1.5)) frames++;
    expect(frames).toBe(3); // of forty ranks in batches of sixteen
    const whole = new Sum(ranks);
    whole.advance(data, colours, ALL, FOREVER);
    expect(painted(sum, ALL)).toEqual(painted(whole, ALL));
  });

  test("without any it adds up nothing and draws nothing", () => {
    clock();
    const sum = new Sum(ranks);
    expect(sum.advance(data, colours, ALL, 0)).toBe(false);
    expect(new Set(painted(sum, ALL).flat())).toEqual(new Set([GROUND]));
  });

  test("what is added up is not added up again", () => {
    const time = clock();
    const sum = new Sum(ranks);
    sum.advance(data, colours, ALL, FOREVER);
    const before = time.now;
    expect(sum.advance(data, colours, { ...ALL }, 0)).toBe(true);
    expect(time.now).toBe(before);
  });

  test("until another stretch is done, the last shows at the times to which it belongs", () => {
    clock();
    const sum = new Sum(ranks);
    sum.advance(data, colours, ALL, FOREVER);
    const before = painted(sum, ALL);
    const moved = { ...ALL, first: 7 };
    expect(sum.advance(data, colours, moved, 0)).toBe(false);
    painted(sum, moved).forEach((line, y) => {
      expect(line.slice(0, COLUMNS - 7)).toEqual(before[y]!.slice(7));
      expect(new Set(line.slice(COLUMNS - 7))).toEqual(new Set([GROUND]));
    });
  });

  test.each<[string, Grid, boolean]>([
    ["another time", { ...ALL, first: 5 }, false],
    ["another zoom", { ...ALL, perPixel: 5 }, false],
    ["another width", { ...ALL, columns: COLUMNS + 1 }, false],
    ["other colours", ALL, true],
  ])("%s is added up anew", (_, grid, recoloured) => {
    clock();
    const sum = new Sum(ranks);
    sum.advance(data, colours, ALL, FOREVER);
    const other = recoloured ? scheme("microbatch", head, data, false) : colours;
    expect(sum.advance(data, other, grid, 0)).toBe(false);
    expect(sum.advance(data, other, grid, FOREVER)).toBe(true);
  });
});
