// The lanes as pixels: one image of the visible plot, written row by row and brought to the canvas at once.
// It is kept from frame to frame: what is still in sight may be moved within it.

import type { Grid, Stretch } from "./area";

export class Raster {
  private image = new ImageData(1, 1);
  private spare = new ImageData(1, 1); // of the same size, once there was an image before
  private pixels = new Uint32Array(this.image.data.buffer);
  columns = 1;
  private height = 1; // pixels of the device, as the columns
  private ratio = 1; // device pixels per CSS pixel
  private ground = 0;

  /** Start an image of that many CSS pixels, all of one colour. The last one is at hand for `stretch`. */
  begin(width: number, height: number, ratio: number, colour: number): void {
    const [columns, rows] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
    const { image } = this;
    this.image = this.spare.width === columns && this.spare.height === rows ? this.spare : new ImageData(columns, rows);
    this.spare = image;
    this.pixels = new Uint32Array(this.image.data.buffer);
    [this.columns, this.height, this.ratio] = [columns, rows, ratio];
    this.ground = colour;
    this.pixels.fill(colour);
  }

  /** All of a row. */
  get whole(): Stretch {
    return { from: 0, to: this.columns };
  }

  /** Which rows of pixels are between two heights in CSS pixels, in sight or not. */
  rows(top: number, height: number): Stretch {
    return { from: Math.round(top * this.ratio), to: Math.round((top + height) * this.ratio) };
  }

  /** Fill rows with a line of pixels, or a stretch of it. */
  fill(rows: Stretch, line: Uint32Array, stretch = this.whole): void {
    const last = Math.min(rows.to, this.height);
    for (let row = Math.max(0, rows.from); row < last; row++) this.put(row, line, stretch);
  }

  /** Write a stretch of a row, if that is in sight. */
  put(row: number, line: Uint32Array, { from, to }: Stretch): void {
    if (row < 0 || row >= this.height) return;
    this.pixels.set(line.subarray(from, to), row * this.columns + from);
  }

  /** Write a pixel, if its row is in sight. */
  set(x: number, row: number, colour: number): void {
    if (row >= 0 && row < this.height) this.pixels[row * this.columns + x] = colour;
  }

  /** Move all to the left by some pixels, or to the right if they are below 0; return which are free now. */
  shift(by: number): Stretch {
    const { pixels, columns } = this;
    if (by > 0) pixels.copyWithin(0, by);
    else pixels.copyWithin(-by, 0, pixels.length + by);
    const free = by > 0 ? { from: columns - by, to: columns } : { from: 0, to: -by };
    for (let at = 0; at < pixels.length; at += columns) pixels.fill(this.ground, at + free.from, at + free.to);
    return free;
  }

  /**
   * Fill the rows from a height on with what the last image had there, stretched to other times.
   *
   * @param before of the last image
   * @param down by how many CSS pixels things were further down in it
   */
  stretch(top: number, grid: Grid, before: Grid, down: number): void {
    const { pixels, columns, spare } = this;
    if (spare.width !== columns || spare.height !== this.height) return;
    const last = new Uint32Array(spare.data.buffer);
    const from = Int32Array.from({ length: columns }, (_, x) => {
      const column = Math.floor(((grid.first + x + 0.5) * grid.perPixel) / before.perPixel - before.first);
      return column >= 0 && column < columns ? column : -1;
    });
    const moved = Math.round(down * this.ratio);
    for (let row = Math.max(0, Math.round(top * this.ratio)); row < spare.height; row++) {
      if (row + moved < 0 || row + moved >= spare.height) continue;
      const [to, at] = [row * columns, (row + moved) * columns];
      for (let x = 0; x < columns; x++) if (from[x]! >= 0) pixels[to + x] = last[at + from[x]!]!;
    }
  }

  flush(context: CanvasRenderingContext2D, left: number): void {
    context.putImageData(this.image, Math.round(left * this.ratio), 0);
  }
}

/** "#rrggbb" as the 32 bits that an ImageData holds on a little-endian machine. */
export function packed(colour: string): number {
  const value = parseInt(colour.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** The same the other way round. */
export function unpacked(pixel: number): string {
  const value = ((pixel & 255) << 16) | (pixel & 0xff00) | ((pixel >> 16) & 255);
  return `#${value.toString(16).padStart(6, "0")}`;
}

/** A colour over another, "#rrggbb" both. */
export function blend(colour: string, ground: string, opacity: number): string {
  const [above, below] = [colour, ground].map((text) => parseInt(text.slice(1), 16)) as [number, number];
  const mixed = [16, 8, 0].map((shift) => {
    const [one, other] = [(above >> shift) & 255, (below >> shift) & 255];
    return Math.round(other + (one - other) * opacity);
  });
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}
