// What a lane looks like at one pixel: what is there at the pixel's centre, a task, a gap or nothing.
//
// This is the only rule by which blocks reach the screen, at every zoom. A block too short to contain
// a pixel's centre is not widened to be seen, so the share of each colour in a lane is its true share
// of time, and a bubble never disappears under blocks that are not there.

import { firstEndingAfter, type Extent, type Numbers, type Spans } from "./data";
import type { View } from "./view";

/** Write one row's pixels: `colours[codes[index]]` where something is, 0 (transparent) elsewhere. */
export function sample(
  { start, end }: Spans,
  { from: begin, to: limit }: Extent,
  view: View,
  ratio: number, // device pixels per CSS pixel
  codes: Numbers,
  colours: Uint32Array,
  pixels: Uint32Array, // one row of device pixels
): void {
  pixels.fill(0);
  const perPixel = 1 / (view.scale * ratio);
  let index = firstEndingAfter(end, begin, limit, view.start);
  const last = firstEndingAfter(end, index, limit, view.end);
  const shown = Math.min(last + 1, limit);
  if (shown - index <= pixels.length) {
    for (; index < shown; index++) {
      const from = Math.max(0, Math.ceil((start[index] - view.start) / perPixel - 0.5));
      const to = Math.min(pixels.length, Math.ceil((end[index] - view.start) / perPixel - 0.5));
      if (from < to) pixels.fill(colours[codes[index]], from, to);
    }
    return;
  }
  for (let pixel = 0; pixel < pixels.length; pixel++) {
    const time = view.start + (pixel + 0.5) * perPixel;
    index = firstEndingAfter(end, index, shown, time);
    if (index === shown) return;
    if (start[index] <= time) pixels[pixel] = colours[codes[index]];
  }
}
