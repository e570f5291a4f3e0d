// @vitest-environment happy-dom
import { describe, expect, test } from "vitest";
import { blend, packed, Raster } from "../src/raster";

/** What a raster brings to the canvas, row by row, and where. */
function flushed(raster: Raster, left = 0): { rows: number[][]; x: number } {
  let [rows, at]: [number[][], number] = [[], NaN];
  const putImageData = ({ width, height, data }: ImageData, x: number): void => {
    const pixels = new Uint32Array(data.buffer);
    rows = Array.from({ length: height }, (_, y) => [...pixels.subarray(y * width, (y + 1) * width)]);
    at = x;
  };
  raster.flush({ putImageData } as unknown as CanvasRenderingContext2D, left);
  return { rows, x: at };
}

function begun(width: number, height: number, ratio = 1): Raster {
  const raster = new Raster();
  raster.begin(width, height, ratio, 9);
  return raster;
}

const line = (...pixels: number[]): Uint32Array => Uint32Array.from(pixels);

const band = (raster: Raster, top: number, height: number, ...pixels: number[]): void =>
  raster.fill(raster.rows(top, height), line(...pixels));

describe("a band", () => {
  test("fills its rows and no others", () => {
    const raster = begun(3, 4);
    band(raster, 1, 2, 1, 2, 3);
    expect(flushed(raster).rows).toEqual([
      [9, 9, 9],
      [1, 2, 3],
      [1, 2, 3],
      [9, 9, 9],
    ]);
  });

  test("fills a stretch of them and no more", () => {
    const raster = begun(4, 1);
    raster.fill(raster.rows(0, 1), line(1, 2, 3, 4), { from: 1, to: 3 });
    expect(flushed(raster).rows).toEqual([[9, 2, 3, 9]]);
  });

  test("is cut at the edges", () => {
    const raster = begun(1, 3);
    band(raster, -5, 6, 1);
    band(raster, 2, 100, 2);
    band(raster, 50, 10, 3);
    band(raster, -50, 10, 3);
    raster.set(0, -1, 4);
    raster.set(0, 3, 4);
    expect(flushed(raster).rows).toEqual([[1], [9], [2]]);
  });

  test("bands that touch leave nothing between them, at any ratio", () => {
    for (const ratio of [1, 1.25, 1.5, 2, 3]) {
      const raster = begun(1, 20, ratio);
      for (let top = 0; top < 20; top += 2.5)
        raster.fill(raster.rows(top, 2.5), new Uint32Array(raster.columns).fill(1));
      expect(new Set(flushed(raster).rows.flat())).toEqual(new Set([1]));
    }
  });
});

test.each([
  [1, [2, 3, 9], { from: 2, to: 3 }],
  [-2, [9, 9, 1], { from: 0, to: 2 }],
])("moved by %d, it says what is free, and that is bare in every row", (by, wanted, free) => {
  const raster = begun(3, 3);
  band(raster, 0, 3, 1, 2, 3);
  expect(raster.shift(by)).toEqual(free);
  expect(flushed(raster).rows).toEqual([wanted, wanted, wanted]);
});

test("what was there before is stretched to other times, and moved up and down", () => {
  const grid = { first: 10, perPixel: 2, columns: 4, ratio: 1 };
  const raster = begun(4, 3);
  band(raster, 0, 1, 1, 2, 3, 4);
  band(raster, 1, 1, 5, 6, 7, 8);
  raster.begin(4, 3, 1, 0);
  raster.stretch(0, { ...grid, first: 22, perPixel: 1 }, grid, 1); // twice as close, from the second pixel on
  expect(flushed(raster).rows).toEqual([
    [6, 6, 7, 7],
    [9, 9, 9, 9],
    [0, 0, 0, 0],
  ]);
});

test("to begin again wipes what was there", () => {
  const raster = begun(2, 2);
  band(raster, 0, 2, 1, 1);
  raster.begin(2, 2, 1, 4);
  expect(flushed(raster).rows).toEqual([
    [4, 4],
    [4, 4],
  ]);
  raster.begin(3, 1, 1, 5);
  expect(flushed(raster).rows).toEqual([[5, 5, 5]]);
});

test("packed is red, green, blue and no transparency, byte by byte", () => {
  expect([...new Uint8Array(Uint32Array.of(packed("#12abfe")).buffer)]).toEqual([0x12, 0xab, 0xfe, 255]);
  expect(packed("#000000")).not.toBe(0); // which would be no colour
});

test("blend is all of one, all of the other or between", () => {
  expect(blend("#ff8000", "#0000ff", 1)).toBe("#ff8000");
  expect(blend("#ff8000", "#0000ff", 0)).toBe("#0000ff");
  expect(blend("#ffffff", "#000000", 0.5)).toBe("#808080");
  expect(blend("#102030", "#000000", 0.5)).toBe("#081018");
});
