// What a lane looks like at one pixel: what is there at the pixel's centre, a task, a gap or nothing.
//
// This is the only rule by which blocks reach the screen, at every zoom. A block too short to contain
// a pixel's centre is not widened to be seen, so the share of each colour in a lane is its true share
// of time, and a bubble never disappears under blocks that are not there.

import { firstEndingAfter, type Extent, type Numbers, type Spans } from "./data";

/** A row of pixels: when it begins, and how much time each covers. */
export interface Scale {
  start: number;
  perPixel: number;
}

/** Write `colours[codes[index]]` into the pixels of one row where something is; 0 leaves a pixel as it is. */
export function sample(
  { start, end }: Spans,
  { from, to }: Extent,
  scale: Scale,
  codes: Numbers,
  colours: Uint32Array,
  pixels: Uint32Array,
): void {
  const { start: begin, perPixel } = scale;
  const count = pixels.length;
  let index = firstEndingAfter(end, from, to, begin);
  const limit = Math.min(firstEndingAfter(end, index, to, begin + count * perPixel) + 1, to);
  if (limit - index <= count) {
    let drawn = 0; // tasks that touch: the later one begins where the earlier one ends
    for (; index < limit; index++) {
      let x = Math.max(drawn, Math.ceil((start[index]! - begin) / perPixel - 0.5));
      const until = Math.min(count, Math.ceil((end[index]! - begin) / perPixel - 0.5));
      drawn = Math.max(drawn, until);
      const colour = colours[codes[index]!]!;
      if (colour === 0) continue;
      for (; x < until; x++) pixels[x] = colour;
    }
    return;
  }
  for (let x = 0; x < count; x++) {
    const time = begin + (x + 0.5) * perPixel;
    index = nextEndingAfter(end, index, limit, time);
    if (index === limit) return;
    const colour = start[index]! <= time ? colours[codes[index]!]! : 0;
    if (colour !== 0) pixels[x] = colour;
  }
}

/** The same as `firstEndingAfter`, quicker where it is near `from`. */
function nextEndingAfter(end: Float64Array, from: number, to: number, time: number): number {
  let reach = 1;
  while (from + reach < to && end[from + reach]! <= time) {
    from += reach;
    reach *= 2;
  }
  return firstEndingAfter(end, from, Math.min(to, from + reach + 1), time);
}
