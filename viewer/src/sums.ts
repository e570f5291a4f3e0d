// What many ranks did together: how much of each pixel's time they ran tasks of each colour.
//
// Adding up a thousand ranks takes longer than a frame may. It goes on from frame to frame, and until it
// is done the last sum is shown, at the times to which it belongs.

import { inksOf, spend, type Grid, type Stretch } from "./area";
import type { Scheme } from "./colour";
import { rowsByRank, type Data, type Head, type Row } from "./data";
import type { Fold } from "./layout";
import { LIGHT, pixelOf } from "./light";
import { packed, type Raster } from "./raster";

const BATCH = 16; // ranks that are added before the clock is looked at
const NEXT_TO_NOTHING = 1e-6; // of a pixel

interface Added {
  grid: Grid;
  scheme: Scheme;
  ranks: number;
  of: Float32Array; // by column, then by colour: pixels' worth of time, of all ranks
}

/** A part of a picture of shapes. */
export interface Box {
  x: number;
  top: number;
  width: number;
  height: number;
  colour: string;
}

export class Sum {
  private done: Added | null = null;
  private under: Added | null = null;
  private at = 0;

  constructor(private readonly ranks: Row[][]) {}

  /** Add up until it is done or `deadline` has come; return whether it is done. */
  advance(data: Data, scheme: Scheme, grid: Grid, deadline: number): boolean {
    if (this.done && same(this.done, scheme, grid)) return true;
    if (!this.under || !same(this.under, scheme, grid)) {
      const of = new Float32Array(grid.columns * scheme.fills.length);
      this.under = { grid, scheme, ranks: this.ranks.length, of };
      this.at = 0;
    }
    while (this.at < this.ranks.length) {
      if (this.at % BATCH === 0 && performance.now() > deadline) return false;
      add(data, this.ranks[this.at]!, this.under);
      this.at++;
    }
    this.done = this.under;
    this.under = null;
    return true;
  }

  /** How much of a pixel the ranks ran tasks of each colour, on average; null if it is not known yet. */
  shares(grid: Grid, x: number): Float32Array | null {
    const column = this.done && columnOf(this.done, grid, x);
    if (this.done === null || column === null) return null;
    const { of, scheme, ranks } = this.done;
    const count = scheme.fills.length;
    return of.slice(column * count, (column + 1) * count).map((share) => share / ranks);
  }

  /** The shares of the colours as boxes upon each other, neighbours that look alike as one. */
  boxes({ fills }: Scheme, height: number): Box[] {
    const { done } = this;
    if (!done) return [];
    const found: Box[] = [];
    const highs = (x: number): number[] =>
      fills.map((_, code) => Math.round((100 * height * done.of[x * fills.length + code]!) / done.ranks) / 100);
    let these = highs(0);
    for (let from = 0, to = 1; from < done.grid.columns; from = to, to++) {
      let next = these;
      for (; to < done.grid.columns; to++) {
        next = highs(to);
        if (next.some((high, code) => high !== these[code])) break;
      }
      let bottom = height;
      these.forEach((high, code) => {
        if (!high) return;
        bottom -= high;
        found.push({ x: from, top: bottom, width: to - from, height: high, colour: fills[code]! });
      });
      these = next;
    }
    return found;
  }

  /** Draw the shares of the colours upon each other. @param tint what becomes of each colour */
  paint(raster: Raster, grid: Grid, rows: Stretch, ground: string, tint = (colour: string): string => colour): void {
    const { done } = this;
    if (!done) return;
    const { pixels, light } = inksOf(done.scheme.fills.map(tint), done.scheme.fills, null);
    const under = packed(tint(ground));
    const beneath = [LIGHT[under & 255]!, LIGHT[(under >> 8) & 255]!, LIGHT[(under >> 16) & 255]!] as const;
    const tall = rows.to - rows.from;
    const count = pixels.length;
    for (let x = 0; x < raster.columns; x++) {
      const column = columnOf(done, grid, x);
      if (column === null) continue;
      let [row, free, red, green, blue] = [rows.to - 1, 1, 0, 0, 0]; // of the pixel that is being filled
      for (let code = 0; code < count; code++) {
        let rest = (tall * done.of[column * count + code]!) / done.ranks;
        while (rest > NEXT_TO_NOTHING) {
          const part = Math.min(rest, free);
          rest -= part;
          free -= part;
          red += part * light[4 * code]!;
          green += part * light[4 * code + 1]!;
          blue += part * light[4 * code + 2]!;
          if (free > NEXT_TO_NOTHING) continue;
          raster.set(x, row, part === 1 ? pixels[code]! : pixelOf(red, green, blue));
          [row, free, red, green, blue] = [row - 1, 1, 0, 0, 0];
        }
      }
      if (free < 1)
        raster.set(x, row, pixelOf(red + free * beneath[0], green + free * beneath[1], blue + free * beneath[2]));
    }
  }
}

/** Add what a rank did. */
function add(data: Data, rows: Row[], { grid, scheme, of }: Added): void {
  const { columns } = grid;
  const count = scheme.fills.length;
  const whole = { from: 0, to: columns };
  const busy = new Float32Array(columns);
  // Rows of one rank may overlap; then each counts in part, for a rank is not more than busy.
  const own = rows.length > 1 ? new Float32Array(of.length) : of;
  for (const row of rows) spend(data.tasks, row, grid, whole, scheme.codes, count, own, busy);
  for (let x = 0; x < columns; x++) {
    if (own === of || busy[x] === 0) continue;
    const part = 1 / Math.max(1, busy[x]!);
    for (let at = x * count; at < (x + 1) * count; at++) of[at]! += own[at]! * part;
  }
}

/** The column of a sum that has the time of a pixel; null if none has. */
function columnOf({ grid: own }: Added, grid: Grid, x: number): number | null {
  const column = Math.floor(((grid.first + x + 0.5) * grid.perPixel) / own.perPixel) - own.first;
  return column >= 0 && column < own.columns ? column : null;
}

/** What some ranks did together, or could have done. */
export function sumOf(head: Head, { ranks, stack }: Fold): Sum {
  const rows = rowsByRank(head, stack);
  return new Sum(ranks.map((rank) => rows[rank]!));
}

function same(added: Added, scheme: Scheme, grid: Grid): boolean {
  return (
    added.scheme === scheme &&
    added.grid.columns === grid.columns &&
    added.grid.first === grid.first &&
    added.grid.perPixel === grid.perPixel
  );
}
