// @vitest-environment happy-dom
import { afterEach, describe, expect, test, vi } from "vitest";
import { inksOf, Layer, type Grid } from "../src/area";
import { Progress, type Frame } from "../src/progress";
import { packed, Raster } from "../src/raster";
import { made, random, row, whole } from "./made";

const FILLS = ["#0d2d60", "#c17527", "#ffdf96", "#111111", "#6db3e2", "#00735a", "#b0b0b0"];
const EDGES = FILLS.map(() => "#ff00ff");
const ROWS = 24;
const COLUMNS = 50;

const RUN = (() => {
  const next = random(4);
  return made({ rows: Array.from({ length: ROWS }, (_, rank) => ({ rank, tasks: row(next, whole(next, 1, 400)) })) });
})();
const LAYER = new Layer(RUN.data.tasks, RUN.data.tasks.kind, inksOf(FILLS, EDGES, "#fbfbf9"));
const FRAME: Frame = { width: COLUMNS, height: ROWS, ratio: 1, ground: 9, top: 0, depends: [], layout: RUN };

/** Paints the rows of the run, one for each line of pixels. */
class Painted {
  private readonly raster = new Raster();
  private readonly progress = new Progress(this.raster);
  work = 0; // pixels that were painted

  at(grid: Grid, deadline = Infinity, change: Partial<Frame> = {}): boolean {
    const strips = RUN.head.rows.map((extent, top) => ({
      top,
      paint: (stretch: { from: number; to: number }) => {
        const ground = new Uint32Array(COLUMNS).fill(packed("#fbfbf9"));
        const line = ground.slice();
        LAYER.mix(extent, grid, stretch, ground, line);
        this.raster.fill(this.raster.rows(top, 1), line, stretch);
        this.work += stretch.to - stretch.from;
      },
    }));
    return this.progress.paint(strips, { ...FRAME, ...change }, grid, deadline);
  }

  pixels(): Uint32Array {
    let found = new Uint32Array();
    const putImageData = ({ data }: ImageData): void => void (found = new Uint32Array(data.buffer.slice(0)));
    this.raster.flush({ putImageData } as unknown as CanvasRenderingContext2D, 0);
    return found;
  }
}

const fresh = (grid: Grid): Uint32Array => {
  const painted = new Painted();
  painted.at(grid);
  return painted.pixels();
};
const gridAt = (first: number, perPixel: number): Grid => ({ first, perPixel, columns: COLUMNS, ratio: 1 });

afterEach(() => void vi.restoreAllMocks());

test("moved by whole pixels, the picture is to the last bit as if it were painted anew, with the work of a strip", () => {
  const next = random(9);
  for (let turn = 0; turn < 12; turn++) {
    const perPixel = 0.05 * 900 ** next();
    const painted = new Painted();
    let first = whole(next, -10, 30);
    painted.at(gridAt(first, perPixel));
    for (let move = 0; move < 4; move++) {
      const by = whole(next, -60, 60);
      painted.work = 0;
      painted.at(gridAt((first += by), perPixel));
      expect(painted.pixels()).toEqual(fresh(gridAt(first, perPixel)));
      expect(painted.work).toBe(ROWS * Math.min(Math.abs(by), COLUMNS));
    }
  }
});

test.each<[string, Partial<Frame>]>([
  ["another theme", { depends: [1] }],
  ["scrolled", { top: 1 }],
  ["another layout", { layout: 1 }],
])("%s, it is painted anew", (_, change) => {
  const painted = new Painted();
  painted.at(gridAt(0, 3), Infinity, { depends: [0] });
  painted.work = 0;
  painted.at(gridAt(0, 3), Infinity, { depends: [0] });
  expect(painted.work).toBe(0);
  painted.at(gridAt(0, 3), Infinity, { depends: [0], ...change });
  expect(painted.work).toBe(ROWS * COLUMNS);
});

describe("within a frame's time", () => {
  const late = (): void => void vi.spyOn(performance, "now").mockReturnValue(1);

  test("it stops when that is over, shows the last picture below, and goes on", () => {
    const painted = new Painted();
    painted.at(gridAt(0, 4));
    const before = painted.pixels();
    late();
    const grid = gridAt(0, 8);
    expect(painted.at(grid, 0)).toBe(false);
    const [during, after] = [painted.pixels(), fresh(grid)];
    expect(during.slice(0, 8 * COLUMNS)).toEqual(after.slice(0, 8 * COLUMNS)); // the first batch
    for (let y = 8; y < ROWS; y++) {
      const line = before.slice(y * COLUMNS, (y + 1) * COLUMNS);
      // Half as close: every second pixel of before, and then what was not in sight.
      const wanted = [...line.filter((_, x) => x % 2), ...Array<number>(COLUMNS / 2).fill(9)];
      expect([...during.slice(y * COLUMNS, (y + 1) * COLUMNS)]).toEqual(wanted);
    }
    expect(painted.at(grid, 0)).toBe(false);
    expect(painted.at(grid, 0)).toBe(true);
    expect(painted.pixels()).toEqual(after);
  });

  test("moved before it is done, it is right in the end", () => {
    const painted = new Painted();
    painted.at(gridAt(0, 4));
    late();
    painted.at(gridAt(0, 8), 0);
    for (let first = 1, done = false; !done; first++) {
      done = painted.at(gridAt(first, 8), 0);
      if (done) expect(painted.pixels()).toEqual(fresh(gridAt(first, 8)));
    }
  });

  test("the first picture of all is whole", () => {
    late();
    expect(new Painted().at(gridAt(0, 4), 0)).toBe(true);
  });
});
