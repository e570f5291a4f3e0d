// @vitest-environment happy-dom
import { expect, test } from "vitest";
import type { Pattern } from "../src/data";
import { hatch, PATTERNS, patternImage } from "../src/pattern";
import { Raster } from "../src/raster";

/** A band of a pattern as text. */
function drawn(pattern: Pattern, first: number, height = 6, unit = 1, columns = 24): string {
  const raster = new Raster();
  raster.begin(columns, height, 1, 0);
  const line = (colour: number): Uint32Array => new Uint32Array(columns).fill(colour);
  const grid = { first, perPixel: 1, columns, ratio: unit };
  hatch(
    raster,
    { from: 0, to: height },
    line(1),
    line(2),
    new Uint8Array(columns).fill(1),
    [pattern],
    grid,
    unit,
    raster.whole,
  );
  let found = "";
  const putImageData = ({ data }: ImageData): void => {
    const pixels = new Uint32Array(data.buffer);
    for (let at = 0; at < pixels.length; at++) found += (at % columns ? "" : "\n") + (pixels[at] === 1 ? "#" : ".");
  };
  raster.flush({ putImageData } as unknown as CanvasRenderingContext2D, 0);
  return found.trim();
}

test("all differ, and have ink in at least a quarter of their band", () => {
  const pictures = PATTERNS.map((pattern) => drawn(pattern, 0));
  expect(new Set(pictures).size).toBe(PATTERNS.length);
  for (const picture of pictures) {
    const inked = [...picture].filter((pixel) => pixel === "#").length / (6 * 24);
    expect(inked).toBeGreaterThan(0.25);
  }
  expect(new Set(PATTERNS.map((pattern) => patternImage(pattern, "red"))).size).toBe(PATTERNS.length);
});

test.each(PATTERNS)("%s stays where it is when the view moves", (pattern) => {
  const before = drawn(pattern, -3).split("\n");
  const after = drawn(pattern, 4).split("\n");
  before.forEach((line, row) => expect(after[row]!.slice(0, 17)).toBe(line.slice(7)));
});

test("rising stripes rise, falling ones fall, and an inherent cause is a line at the foot", () => {
  expect(
    drawn("rising", 0, 3)
      .split("\n")
      .map((line) => line.slice(0, 8)),
  ).toEqual(["##..##..", "#..##..#", "..##..##"]);
  expect(
    drawn("line", 0, 4)
      .split("\n")
      .map((line) => line[0]),
  ).toEqual([".", ".", "#", "#"]);
  expect(drawn("upright", 0, 2, 2).split("\n")[0]!.slice(0, 8)).toBe("####....");
});
