// What a lane looks like at one pixel: the task that runs at the pixel's centre, or idle.
//
// This is the only rule by which blocks reach the screen, at every zoom. A block too short to contain
// a pixel's centre is not widened to be seen, so the share of each colour in a lane is its true share
// of time, and a bubble never disappears under blocks that are not there.

import { firstEndingAfter, type Row, type Tasks } from "./data";
import type { View } from "./view";

/** Write one row's pixels: `colours[kind]` where a task runs, 0 (transparent) where none does. */
export function sample(
  tasks: Tasks,
  row: Row,
  view: View,
  ratio: number, // device pixels per CSS pixel
  colours: Uint32Array,
  pixels: Uint32Array, // one row of device pixels
): void {
  pixels.fill(0);
  const perPixel = 1 / (view.scale * ratio);
  const { start, end, kind } = tasks;
  let index = firstEndingAfter(end, row.from, row.to, view.start);
  const last = firstEndingAfter(end, index, row.to, view.end);
  const shown = Math.min(last + 1, row.to);
  if (shown - index <= pixels.length) {
    for (; index < shown; index++) {
      const from = Math.max(0, Math.ceil((start[index] - view.start) / perPixel - 0.5));
      const to = Math.min(pixels.length, Math.ceil((end[index] - view.start) / perPixel - 0.5));
      if (from < to) pixels.fill(colours[kind[index]], from, to);
    }
    return;
  }
  for (let pixel = 0; pixel < pixels.length; pixel++) {
    const time = view.start + (pixel + 0.5) * perPixel;
    index = firstEndingAfter(end, index, shown, time);
    if (index === shown) return;
    if (start[index] <= time) pixels[pixel] = colours[kind[index]];
  }
}
