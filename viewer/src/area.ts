// What a row of spans looks like at each pixel: the mean, in linear light, of what runs in it, by its
// share of the pixel's time, idle time included.
//
// This is the only rule by which blocks reach the screen, at every zoom. Nothing is widened, nothing
// hides what is beside it, and so every stretch of a lane shows each colour by its true share of time.
//
// Pixels are counted from time 0, whatever part of the run is shown, and a pixel depends on nothing but
// its number: where a view moves by whole pixels, what was painted stays right to the last bit.

import { firstEndingAfter, nextEndingAfter, type Extent, type Numbers, type Spans } from "./data";
import { contrast, LIGHT, pixelOf } from "./light";
import { packed } from "./raster";

/** A row of pixels of the device: pixel `x` covers the time from `(first + x) * perPixel` on. */
export interface Grid {
  first: number; // a whole number
  perPixel: number; // ns
  columns: number; // how many there are
  ratio: number; // pixels of the device per CSS pixel
}

/** A stretch of pixels of a row. */
export interface Stretch {
  from: number;
  to: number; // one past the last
}

/** How blocks look, by their code. */
export interface Inks {
  pixels: Uint32Array;
  light: Float64Array; // red, green, blue and 1, so that sums of it tell how much of a pixel is covered
  edges: Uint32Array; // of the line at the start of a block
  boxed: boolean[]; // whether the line goes all around: the ground hardly differs from the fill
}

const SEPARATED = 3; // CSS pixels from which a block has a line at its start
export const LEAST_CONTRAST = 3; // of a fill against the ground, below which the line goes all around
const STRIDE = 4; // spans between two sums
const FEW = 10; // spans of a pixel up to which they are added one by one

/** @param edges colours of the lines, as many as fills @param ground of the lanes; null if no block has a line all around */
export function inksOf(fills: string[], edges: string[], ground: string | null): Inks {
  const pixels = Uint32Array.from(fills, packed);
  const light = new Float64Array(4 * fills.length);
  pixels.forEach((pixel, code) => {
    light.set([LIGHT[pixel & 255]!, LIGHT[(pixel >> 8) & 255]!, LIGHT[(pixel >> 16) & 255]!, 1], 4 * code);
  });
  return {
    pixels,
    light,
    edges: Uint32Array.from(edges, packed),
    boxed: fills.map((fill) => ground !== null && contrast(fill, ground) < LEAST_CONTRAST),
  };
}

/** Rows of spans with a colour each, ready to be mixed into pixels. */
export class Layer {
  private readonly sums = new Map<number, Float64Array>(); // of rows, by their first span
  private readonly before = new Float64Array(4); // light up to the start of a pixel
  private readonly after = new Float64Array(4); // and up to its end

  constructor(
    private readonly spans: Spans,
    private readonly codes: Numbers,
    private readonly inks: Inks,
  ) {}

  /**
   * Mix a row into pixels.
   *
   * @param ground what is there where nothing is
   * @param line the pixels: the ground, or what of another layer was mixed into it and does not overlap
   * @param marks if given, gets the code plus 1 where a block that is wide enough for lines fills a pixel
   */
  mix(
    extent: Extent,
    { first, perPixel, ratio }: Grid,
    stretch: Stretch,
    ground: Uint32Array,
    line: Uint32Array,
    marks?: Uint8Array,
  ): void {
    const { codes, before, after } = this;
    const { start, end } = this.spans;
    const { light, pixels, edges, boxed } = this.inks;
    const { from, to } = extent;
    const [wide, edge] = [SEPARATED * ratio * perPixel, Math.round(ratio)];
    let summed = -1; // the pixel up to whose start `before` is
    let x = stretch.from;
    let index = firstEndingAfter(end, from, to, (first + x) * perPixel);
    while (x < stretch.to && index < to) {
      // No lists in these loops, which are gone through a million times a frame.
      const begin = (first + x) * perPixel;
      const stop = (first + x + 1) * perPixel;
      const began = drawnFrom(this.spans, from, index);
      if (began >= stop) {
        x = pixelAt(began, perPixel) - first;
        continue;
      }
      if (began <= begin && end[index]! >= stop) {
        // The block fills this pixel, and the following ones up to its end.
        const code = codes[index]!;
        const past = pixelAt(end[index]!, perPixel) - first;
        const until = Math.min(past, stretch.to);
        line.fill(pixels[code]!, x, until);
        if (end[index]! - began >= wide) {
          marks?.fill(code + 1, x, until);
          const whole = pixelFrom(began, perPixel) - first;
          line.fill(edges[code]!, Math.max(x, whole), Math.max(x, Math.min(until, whole + edge)));
          if (boxed[code]) line.fill(edges[code]!, Math.min(until, Math.max(x, past - edge)), until);
        }
        x = until;
        index = nextEndingAfter(end, index, to, (first + x) * perPixel);
        continue;
      }
      const next = nextEndingAfter(end, index, to, stop);
      let red = 0;
      let green = 0;
      let blue = 0;
      let covered = 0;
      if (next - index <= FEW) {
        let reached = Math.max(began, begin);
        for (let i = index; i <= next && i < to; i++) {
          const until = Math.min(end[i]!, stop);
          const spent = until - Math.max(start[i]!, reached);
          if (spent <= 0) continue;
          reached = until;
          const at = 4 * codes[i]!;
          red += spent * light[at]!;
          green += spent * light[at + 1]!;
          blue += spent * light[at + 2]!;
          covered += spent * light[at + 3]!;
        }
      } else {
        if (summed !== x) this.sumUpTo(begin, index, extent, before);
        this.sumUpTo(stop, next, extent, after);
        red = after[0]! - before[0]!;
        green = after[1]! - before[1]!;
        blue = after[2]! - before[2]!;
        covered = after[3]! - before[3]!;
        before.set(after);
        summed = x + 1;
      }
      if (covered > 0) {
        const under = ground[x]!;
        const pixel = line[x]!;
        line[x] = pixelOf(
          LIGHT[pixel & 255]! + (red - covered * LIGHT[under & 255]!) / perPixel,
          LIGHT[(pixel >> 8) & 255]! + (green - covered * LIGHT[(under >> 8) & 255]!) / perPixel,
          LIGHT[(pixel >> 16) & 255]! + (blue - covered * LIGHT[(under >> 16) & 255]!) / perPixel,
        );
      }
      index = next;
      x++;
    }
  }

  /** Write to `sum` the light of a row up to a time, of which `index` is the first span that ends after it. */
  private sumUpTo(time: number, index: number, extent: Extent, sum: Float64Array): void {
    const { codes, spans } = this;
    const { light } = this.inks;
    const { from, to } = extent;
    const sums = this.sumsOf(extent);
    const known = Math.floor((index - from) / STRIDE);
    let red = sums[4 * known]!;
    let green = sums[4 * known + 1]!;
    let blue = sums[4 * known + 2]!;
    let covered = sums[4 * known + 3]!;
    for (let i = from + known * STRIDE; i <= index && i < to; i++) {
      const spent = Math.min(spans.end[i]!, time) - drawnFrom(spans, from, i);
      if (spent <= 0) continue;
      const at = 4 * codes[i]!;
      red += spent * light[at]!;
      green += spent * light[at + 1]!;
      blue += spent * light[at + 2]!;
      covered += spent * light[at + 3]!;
    }
    sum[0] = red;
    sum[1] = green;
    sum[2] = blue;
    sum[3] = covered;
  }

  /** The light of a row up to the start of every `STRIDE`th span, added up when it is first needed. */
  private sumsOf({ from, to }: Extent): Float64Array {
    const known = this.sums.get(from);
    if (known) return known;
    const { codes, spans } = this;
    const { light } = this.inks;
    const made = new Float64Array(4 * (Math.floor((to - from) / STRIDE) + 1));
    let [red, green, blue, covered] = [0, 0, 0, 0];
    for (let i = from; i < to; i++) {
      const spent = Math.max(0, spans.end[i]! - drawnFrom(spans, from, i));
      const at = 4 * codes[i]!;
      red += spent * light[at]!;
      green += spent * light[at + 1]!;
      blue += spent * light[at + 2]!;
      covered += spent * light[at + 3]!;
      if ((i + 1 - from) % STRIDE === 0) {
        const place = (4 * (i + 1 - from)) / STRIDE;
        made[place] = red;
        made[place + 1] = green;
        made[place + 2] = blue;
        made[place + 3] = covered;
      }
    }
    this.sums.set(from, made);
    return made;
  }
}

/**
 * Add how much of each pixel spans of each code take: 1 where one fills it.
 *
 * @param shares by pixel, then by code, of which there are `count`
 * @param covered by pixel: how much of it any takes
 */
export function spend(
  spans: Spans,
  { from, to }: Extent,
  { first, perPixel }: Grid,
  stretch: Stretch,
  codes: Numbers,
  count: number,
  shares: Float32Array,
  covered: Float32Array,
): void {
  const { end } = spans;
  const [begin, stop] = [(first + stretch.from) * perPixel, (first + stretch.to) * perPixel];
  for (let index = firstEndingAfter(end, from, to, begin); index < to; index++) {
    const began = Math.max(drawnFrom(spans, from, index), begin);
    if (began >= stop) return;
    const ended = Math.min(end[index]!, stop);
    let x = pixelAt(began, perPixel) - first;
    for (let reached = began; reached < ended && x < stretch.to; x++) {
      const until = Math.min((first + x + 1) * perPixel, ended);
      const share = (until - reached) / perPixel;
      shares[x * count + codes[index]!]! += share;
      covered[x]! += share;
      reached = until;
    }
  }
}

/** When a span begins as it is drawn: of two that touch, the later one from the earlier one's end. */
export function drawnFrom({ start, end }: Spans, from: number, index: number): number {
  return index > from ? Math.max(start[index]!, end[index - 1]!) : start[index]!;
}

/** The number of the pixel in which a time is: the greatest that begins no later. */
export function pixelAt(time: number, perPixel: number): number {
  const near = Math.floor(time / perPixel);
  if (near * perPixel > time) return near - 1;
  return (near + 1) * perPixel <= time ? near + 1 : near;
}

/** The number of the first pixel that begins at a time or later. */
function pixelFrom(time: number, perPixel: number): number {
  const at = pixelAt(time, perPixel);
  return at * perPixel < time ? at + 1 : at;
}
