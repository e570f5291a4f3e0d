// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { pale, scheme, type Scheme } from "../src/colour";
import { LanePainter, type Look } from "../src/lanes";
import { legend } from "../src/legend";
import { packed, Raster } from "../src/raster";
import type { Unrecorded } from "../src/schema";
import { waitingFill } from "../src/waits";
import { CAUSES, made, THEME, type Run } from "./made";

/** The pixels of a lane of the first rank, 24 for every 10 ns each, from top to bottom. */
function painted(
  run: Run,
  height: number,
  change: Partial<Look> = {},
  band = 0,
  coloured: Partial<Scheme> = {},
): Uint32Array {
  (globalThis as { ImageData?: unknown }).ImageData ??= class {
    data;
    constructor(
      public width: number,
      public height: number,
    ) {
      this.data = new Uint8ClampedArray(4 * width * height);
    }
  };
  const { head, data } = made(run);
  const raster = new Raster();
  raster.begin(24, height, 1, 0);
  const shown = { causes: false, foundGaps: null, phases: false, pale: false, figure: false };
  const look = { scheme: { ...scheme("kind", head, data), ...coloured }, theme: THEME, ...shown, ...change };
  const grid = { first: 0, perPixel: 10, columns: 24, ratio: 1 };
  const paint = new LanePainter(head, data).painter(raster, data, look, grid, 0);
  paint({ row: head.rows[0]!, gaps: head.gaps[0], top: 0, height, band }, raster.whole);
  let pixels = new Uint32Array();
  const putImageData = (image: ImageData): void => void (pixels = new Uint32Array(image.data.buffer));
  raster.flush({ putImageData } as unknown as CanvasRenderingContext2D, 0);
  return pixels;
}

const worked = (unrecorded: Unrecorded[]): Run => ({
  rows: [{ rank: 0, tasks: [{ start: 0, end: 80 }] }],
  head: { unrecorded },
});

test("time that was not recorded is no idle time: its ground is another, with stripes", () => {
  const [idle, page, stripe] = [THEME.idle, THEME.page, THEME.line].map(packed);
  const pixels = painted(worked([{ rank: 0, start: 80, end: 160 }]), 16);
  const at = (x: number): number[] => Array.from({ length: 16 }, (_, y) => pixels[24 * y + x]!);
  for (const x of [16, 20, 23]) expect(new Set(at(x))).toEqual(new Set([idle]));
  for (let x = 8; x < 16; x++) expect(new Set(at(x))).toEqual(new Set([page, stripe]));
  for (const x of [1, 6]) expect(at(x)).not.toContain(page);
});

test("a block that waited is fainter until the last rank came, also by the mean of a pixel", () => {
  const [fill, ground] = ["#b07aa1", packed(THEME.idle)];
  const faint = packed(waitingFill(fill, THEME));
  const row = (waited?: number): number[] => {
    const task = { kind: "send", start: 0, end: 160, ...(waited === undefined ? {} : { waited }) };
    const pixels = painted({ rows: [{ rank: 0, lane: "comm", tasks: [task] }] }, 1);
    return [...pixels];
  };
  const [not, half] = [row(), row(85)];
  expect(new Set(not.slice(1, 15))).toEqual(new Set([packed(fill)]));
  expect(new Set(half.slice(1, 7))).toEqual(new Set([faint]));
  expect([faint, packed(fill)]).not.toContain(half[8]);
  expect(new Set(half.slice(10, 15))).toEqual(new Set([packed(fill)]));
  expect(new Set(half.slice(16))).toEqual(new Set([ground]));
});

test("of another rank it is not, and in a lane too low for stripes it has its ground", () => {
  const page = packed(THEME.page);
  expect(painted(worked([{ rank: 1, start: 80, end: 160 }]), 16)).not.toContain(page);
  expect([...painted(worked([{ rank: 0, start: 80, end: 160 }]), 1)].filter((pixel) => pixel === page)).toHaveLength(8);
});

test("a block that is no pair has no line through its middle where others are pairs, and pairs have one", () => {
  const [pale, edge] = ["#ffdf96", "#8a5a00"];
  const column = (below: number[]): number[] => {
    const fills = { fills: [pale, pale], edges: [edge, edge], inks: ["#000000", "#000000"] };
    const coloured = { ...fills, codes: new Uint8Array([0]), below: new Uint8Array(below) };
    const pixels = painted(worked([]), 16, {}, 0, coloured);
    return Array.from({ length: 16 }, (_, y) => pixels[24 * y + 4]!);
  };
  const lines = (below: number[]): number[] => column(below).flatMap((pixel, y) => (pixel === packed(edge) ? [y] : []));
  expect(lines([0])).toEqual([0, 15]);
  expect(lines([1])).toEqual([0, 7, 8, 15]);
});

test("the legend names it where there is any", () => {
  const said = (unrecorded: { rank: number; start: number; end: number }[]): string => {
    const { head, data } = made({ rows: [{ rank: 0, tasks: [] }], head: { unrecorded } });
    const told = { scheme: scheme("kind", head, data), theme: THEME, byKind: true };
    const parts = legend(head, told as unknown as Parameters<typeof legend>[1], () => {});
    return parts.map((part) => part.textContent).join(" ");
  };
  expect(said([])).not.toContain("not recorded");
  expect(said([{ rank: 0, start: 1, end: 2 }])).toContain("not recorded: between two captures");
});

test("of idle time that a search is about the other bands are pale", () => {
  const gaps = [
    { start: 0, end: 120, cause: 1 },
    { start: 120, end: 240, cause: 1 },
  ];
  const run: Run = { rows: [{ rank: 0, tasks: [] }], gaps: [{ rank: 0, gaps }] };
  const band = (foundGaps: Uint8Array | null): number[] => {
    const pixels = painted(run, 16, { causes: true, foundGaps }, 9);
    return [4, 16].map((x) => pixels[24 * 12 + x]!); // where the pattern has ink
  };
  const { fill } = CAUSES[1]!;
  expect(band(null)).toEqual([packed(fill), packed(fill)]);
  expect(band(Uint8Array.of(1, 0))).toEqual([packed(fill), packed(pale(fill, THEME.idle))]);
});
