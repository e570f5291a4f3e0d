// Which stretch of time is shown. Times are ns since the origin.

import type { Grid } from "./area";

const SEEN = 12; // pixels
const LEAST = 10; // ns that are shown at least

export class View {
  start = 0;
  end = 1;
  width = 1; // of the plot, CSS pixels

  constructor(readonly limit: number) {
    this.fit();
  }

  /** Pixels per nanosecond. */
  get scale(): number {
    return this.width / (this.end - this.start);
  }

  x(time: number): number {
    return (time - this.start) * this.scale;
  }

  time(x: number): number {
    return this.start + x / this.scale;
  }

  /** The same view, moved by less than a pixel onto a grid of them. */
  onto({ first, perPixel, columns, ratio }: Grid): View {
    const moved = new View(this.limit);
    moved.width = columns / ratio;
    moved.start = first * perPixel;
    moved.end = (first + columns) * perPixel;
    return moved;
  }

  /** Show everything, or the given stretch, with a little room on both sides. */
  fit(start = 0, end = this.limit): void {
    const margin = Math.max(1, (end - start) * 0.01);
    this.set(start - margin, end + margin);
  }

  /** Show a stretch, but no less than LEAST and not much more than there is. */
  set(start: number, end: number): void {
    const room = Math.max(1, this.limit * 0.05);
    const length = Math.min(Math.max(end - start, LEAST), this.limit + 2 * room);
    const middle = (start + end) / 2;
    this.start = Math.min(Math.max(middle - length / 2, -room), this.limit + room - length);
    this.end = this.start + length;
  }

  /** Bring a stretch into sight, closer if it would be too small to be seen. */
  reveal(start: number, end: number): void {
    const seen = (end - start) * this.scale >= SEEN;
    if (seen && this.start <= start && end <= this.end) return;
    const length = this.end - this.start;
    const half = (seen ? Math.max(length, (end - start) * 1.2) : Math.min(length, (end - start) * 30)) / 2;
    this.set((start + end) / 2 - half, (start + end) / 2 + half);
  }

  pan(pixels: number): void {
    const time = pixels / this.scale;
    this.set(this.start + time, this.end + time);
  }

  /** Zoom by a factor about a point that stays where it is. */
  zoom(factor: number, x: number): void {
    const at = this.time(x);
    const length = Math.max((this.end - this.start) / factor, LEAST);
    const before = (x / this.width) * length;
    this.set(at - before, at - before + length);
  }
}
