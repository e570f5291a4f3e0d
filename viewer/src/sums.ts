// What many ranks did together: at each pixel's centre, how many ran a task of each colour.
//
// Counting a thousand ranks takes longer than a frame may. It goes on from frame to frame, and until
// it is done the last count is shown, at the times to which it belongs.

import type { Scheme } from "./colour";
import { rowsByRank, type Data, type Head, type Row } from "./data";
import type { Fold } from "./layout";
import { packed, type Raster } from "./raster";
import { sample, type Scale } from "./sample";

/** How many rows are counted before the clock is looked at. */
const BATCH = 16;

interface Count {
  scale: Scale;
  columns: number;
  scheme: Scheme;
  ranks: number;
  of: Uint16Array; // columns by colours
}

export class Sum {
  private done: Count | null = null;
  private under: Count | null = null;
  private at = 0;
  private line = new Uint32Array(1);

  constructor(private readonly ranks: Row[][]) {}

  /** Count until it is done or `deadline` has come; return whether it is done. */
  advance(data: Data, scheme: Scheme, scale: Scale, columns: number, deadline: number): boolean {
    if (this.done && same(this.done, scheme, scale, columns)) return true;
    if (!this.under || !same(this.under, scheme, scale, columns)) {
      const of = new Uint16Array(columns * scheme.fills.length);
      this.under = { scale, columns, scheme, ranks: this.ranks.length, of };
      this.at = 0;
      this.line = new Uint32Array(columns);
    }
    const codes = Uint32Array.from(scheme.fills, (_, code) => code + 1);
    while (this.at < this.ranks.length) {
      if (this.at % BATCH === 0 && performance.now() > deadline) return false;
      this.line.fill(0);
      for (const row of this.ranks[this.at]!) sample(data.tasks, row, scale, scheme.codes, codes, this.line);
      for (let x = 0; x < columns; x++) {
        if (this.line[x]) this.under.of[x * codes.length + this.line[x]! - 1]!++;
      }
      this.at++;
    }
    this.done = this.under;
    this.under = null;
    return true;
  }

  /** The shares of the colours as boxes upon each other, neighbours that are alike as one. */
  boxes(
    { fills }: Scheme,
    height: number,
  ): { x: number; top: number; width: number; height: number; colour: string }[] {
    const { done } = this;
    if (!done) return [];
    const found: { x: number; top: number; width: number; height: number; colour: string }[] = [];
    const counts = (x: number): Uint16Array => done.of.subarray(x * fills.length, (x + 1) * fills.length);
    for (let from = 0; from < done.columns;) {
      const these = counts(from);
      let to = from + 1;
      while (to < done.columns && counts(to).every((count, code) => count === these[code])) to++;
      let bottom = height;
      these.forEach((count, code) => {
        if (!count) return;
        const high = (height * count) / done.ranks;
        bottom -= high;
        found.push({ x: from, top: bottom, width: to - from, height: high, colour: fills[code]! });
      });
      from = to;
    }
    return found;
  }

  /** Draw the shares of the colours upon each other. @param tint what becomes of each colour */
  paint(raster: Raster, scale: Scale, top: number, height: number, tint = (colour: string): string => colour): void {
    const { done } = this;
    if (!done) return;
    const fills = done.scheme.fills.map(tint).map(packed);
    for (let x = 0; x < raster.columns; x++) {
      const time = scale.start + (x + 0.5) * scale.perPixel;
      const from = Math.floor((time - done.scale.start) / done.scale.perPixel);
      if (from < 0 || from >= done.columns) continue;
      let count = 0;
      for (let code = 0; code < fills.length; code++) {
        const more = done.of[from * fills.length + code];
        if (!more) continue;
        const bottom = top + height * (1 - count / done.ranks);
        count += more;
        raster.column(x, top + height * (1 - count / done.ranks), bottom, fills[code]!);
      }
    }
  }
}

/** What some ranks did together, or could have done. */
export function sumOf(head: Head, { ranks, stack }: Fold): Sum {
  const rows = rowsByRank(head, stack);
  return new Sum(ranks.map((rank) => rows[rank]!));
}

function same(count: Count, scheme: Scheme, scale: Scale, columns: number): boolean {
  return (
    count.scheme === scheme &&
    count.columns === columns &&
    count.scale.start === scale.start &&
    count.scale.perPixel === scale.perPixel
  );
}
