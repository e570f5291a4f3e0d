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

describe("a band", () => {
  test("fills its rows and no others", () => {
    const raster = begun(3, 4);
    raster.band(1, 2, line(1, 2, 3));
    expect(flushed(raster).rows).toEqual([
      [9, 9, 9],
      [1, 2, 3],
      [1, 2, 3],
      [9, 9, 9],
    ]);
  });

  test("shows the last layer that is not 0", () => {
    const raster = begun(4, 1);
    raster.band(0, 1, line(1, 1, 1, 1), line(0, 2, 2, 0), line(0, 0, 3, 0));
    expect(flushed(raster).rows).toEqual([[1, 2, 3, 1]]);
  });

  test("is cut at the edges", () => {
    const raster = begun(1, 3);
    raster.band(-5, 6, line(1));
    raster.band(2, 100, line(2));
    raster.band(50, 10, line(3));
    raster.band(-50, 10, line(3));
    expect(flushed(raster).rows).toEqual([[1], [9], [2]]);
  });

  test("bands that touch leave nothing between them, at any ratio", () => {
    for (const ratio of [1, 1.25, 1.5, 2, 3]) {
      const raster = begun(1, 20, ratio);
      for (let top = 0; top < 20; top += 2.5) raster.band(top, 2.5, new Uint32Array(raster.columns).fill(1));
      expect(new Set(flushed(raster).rows.flat())).toEqual(new Set([1]));
    }
  });
});

test("a column is filled from its top to its bottom, in pixels of the device", () => {
  const raster = begun(2, 2, 2);
  expect(raster.columns).toBe(4);
  raster.column(3, 0.5, 1.5, 7);
  raster.column(0, -9, 9, 5);
  expect(flushed(raster, 10)).toEqual({
    rows: [
      [5, 9, 9, 9],
      [5, 9, 9, 7],
      [5, 9, 9, 7],
      [5, 9, 9, 9],
    ],
    x: 20,
  });
});

test("to begin again wipes what was there", () => {
  const raster = begun(2, 2);
  raster.band(0, 2, line(1, 1));
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
