// The lanes as pixels: from the ground up the pipeline's phases and the blocks, and in a band of its own
// below them why there is none.

import { inksOf, Layer, type Grid, type Inks, type Stretch } from "./area";
import { coded, pale, type Scheme } from "./colour";
import type { Data, Head } from "./data";
import type { Place } from "./layout";
import { hatch, type Hatch } from "./pattern";
import { blend, packed, type Raster } from "./raster";
import type { Unrecorded } from "./schema";
import type { Theme } from "./theme";
import { halves, waitingFill } from "./waits";

const LINED = 5; // CSS pixels of height from which there are lines along blocks, and stripes in phases
const APART = 1; // CSS pixels between blocks and the band below them
const STRIPES: Hatch[] = ["warm-up", "cool-down", "unrecorded"];
const UNRECORDED = 1 + STRIPES.indexOf("unrecorded");
export const VEIL = 0.55; // opacity of lanes of what did not happen

/** A colour as it is in lanes of what did not happen. */
export function veiled(colour: string, theme: Theme): string {
  return blend(colour, theme.page, VEIL);
}

/** What of the lanes is shown. */
export interface Look {
  scheme: Scheme;
  causes: boolean;
  foundGaps: Uint8Array | null; // those of the gaps that a search is about: all others are pale
  phases: boolean;
  pale: boolean; // what did not happen
  figure: boolean; // the look of papers, whose blocks have lines of their own
  theme: Theme;
}

/** The height of a lane's blocks: that of the band below them too where it is not shown. */
export function heightOfBlocks({ height, band }: Place, { causes, scheme }: Pick<Look, "causes" | "scheme">): number {
  return causes && !scheme.wholeGaps ? height - band : height;
}

/** Paints some of the lanes, at a time that is the same for all. */
export class LanePainter {
  private readonly phasesOf: [from: number, to: number][];
  private readonly patterns: Hatch[];
  private readonly missing: Unrecorded[][] = []; // by rank
  private lines = linesOf(1);
  private layers: Layers | null = null;
  private made: readonly unknown[] = []; // what the layers are made of

  constructor(
    private readonly head: Head,
    data: Data,
  ) {
    this.phasesOf = extents(data.phases.rank, head.ranks.length);
    const patterns = head.causes.map(({ pattern }) => pattern);
    this.patterns = [...patterns, ...patterns]; // of those that were found, and of all others
    for (const one of head.unrecorded) (this.missing[one.rank] ??= []).push(one);
  }

  /** Return what paints a stretch of a lane. @param top of the page, to which it is scrolled */
  painter(raster: Raster, data: Data, look: Look, grid: Grid, top: number): (place: Place, stretch: Stretch) => void {
    const of = [data, look.scheme, look.theme, look.figure, look.foundGaps];
    if (!of.every((value, at) => value === this.made[at])) this.layers = layersOf(this.head, data, look);
    this.made = of;
    if (this.lines.line.length !== grid.columns) this.lines = linesOf(grid.columns);
    return (place, stretch) => this.paint({ raster, data, look, grid, stretch }, place, place.top - top);
  }

  private paint(at: At, place: Place, y: number): void {
    const { raster, look, grid, stretch, data } = at;
    const { scheme, theme } = look;
    const { line, other, ground, idle, marks } = this.lines;
    const layers = this.layers!;
    const pale = look.pale && (place.row.lane === "ideal" || place.row.lane === "whatif");
    const { upper, lower, waiting, inks } = pale ? layers.pale : layers.plain;
    const height = heightOfBlocks(place, look);
    const gaps = look.causes ? place.gaps : undefined;
    ground.fill(packed(pale ? veiled(theme.idle, theme) : theme.idle), stretch.from, stretch.to);
    idle.fill(0, stretch.from, stretch.to);
    for (const half of marks) half.fill(0, stretch.from, stretch.to);
    if (look.phases && place.row.lane === "compute") this.phases(at, data, place.row.rank);
    if (place.row.lane === "compute") this.unrecorded(at, place.row.rank);
    // A pair that overlaps has its second task in its lower half.
    const parts = upper === lower ? [upper] : [upper, lower];
    const rowsOf = (half: number): Stretch => raster.rows(y + (half * height) / parts.length, height / parts.length);
    parts.forEach((layer, half) => {
      const rows = rowsOf(half);
      line.set(ground);
      if (gaps && scheme.wholeGaps) {
        idle.fill(0, stretch.from, stretch.to);
        layers.gaps.mix(gaps, grid, stretch, ground, line, idle);
      }
      layer.mix(place.row, grid, stretch, ground, line, marks[half]);
      waiting?.mix(place.row, grid, stretch, ground, line, marks[half]);
      if (height < LINED) return raster.fill(rows, line, stretch);
      other.set(line);
      if (gaps && scheme.wholeGaps) this.showThrough(at, rows, layers.gapInks);
      else this.stripe(at, rows, packed(theme.line));
    });
    if (height >= LINED) parts.forEach((_, half) => this.box(at, rowsOf(half), inks, half));
    if (gaps && height < place.height) {
      ground.fill(packed(theme.idle), stretch.from, stretch.to);
      line.set(ground);
      idle.fill(0, stretch.from, stretch.to);
      layers.gaps.mix(gaps, grid, stretch, ground, line, idle);
      other.set(line);
      this.showThrough(at, raster.rows(y + height + APART, place.height - height - APART), layers.gapInks);
    }
  }

  /** Fill rows with the line; through gaps the ground shows where their patterns have no ink. */
  private showThrough({ raster, grid, stretch }: At, rows: Stretch, inks: Inks): void {
    const { line, other, ground, idle } = this.lines;
    for (let x = stretch.from; x < stretch.to; x++) {
      if (idle[x] !== 0 && line[x] === inks.pixels[idle[x]! - 1]) other[x] = ground[x]!;
      else idle[x] = 0; // a block lies over it
    }
    hatch(raster, rows, line, other, idle, this.patterns, grid, Math.round(grid.ratio), stretch);
  }

  /** Fill rows with the line; where it shows the ground of a phase, or of what is not known, with stripes. */
  private stripe({ raster, grid, stretch }: At, rows: Stretch, colour: number): void {
    const { line, other, ground, idle } = this.lines;
    let striped = false;
    for (let x = stretch.from; x < stretch.to; x++) {
      if (idle[x] === 0) continue;
      if (line[x] === ground[x]) {
        other[x] = colour;
        striped = true;
      } else idle[x] = 0;
    }
    if (!striped) raster.fill(rows, line, stretch);
    else hatch(raster, rows, other, line, idle, STRIPES, grid, Math.round(grid.ratio), stretch);
  }

  /** Draw the upper and lower lines of blocks that have them all around; none between halves that are one block. */
  private box({ raster, grid, stretch }: At, { from, to }: Stretch, { boxed, edges }: Inks, half: number): void {
    const [own, other] = [this.lines.marks[half]!, this.lines.marks[1 - half]!];
    const thick = Math.round(grid.ratio);
    for (let x = stretch.from; x < stretch.to; x++) {
      if (own[x] === 0 || !boxed[own[x]! - 1]) continue;
      const edge = edges[own[x]! - 1]!;
      const one = own[x] === other[x];
      if (!one || half === 0) for (let row = from; row < Math.min(from + thick, to); row++) raster.set(x, row, edge);
      if (!one || half === 1) for (let row = Math.max(from, to - thick); row < to; row++) raster.set(x, row, edge);
    }
  }

  /** Shade the ground of a rank's warm-up and cool-down, and mark it. */
  private phases({ grid, stretch, look }: At, { phases }: Data, rank: number): void {
    const { ground, idle } = this.lines;
    const [from, to] = this.phasesOf[rank]!;
    const { first, perPixel } = grid;
    const at = (time: number): number => pixelOf(time, grid, stretch);
    for (let i = from; i < to; i++) {
      if (phases.end[i]! <= (first + stretch.from) * perPixel) continue;
      if (phases.start[i]! >= (first + stretch.to) * perPixel) break;
      const parts = [
        [at(phases.start[i]!), at(phases.steady[i]!), look.theme.warm],
        [at(phases.cool[i]!), at(phases.end[i]!), look.theme.cool],
      ] as const;
      parts.forEach(([begin, end, colour], part) => {
        ground.fill(packed(colour), begin, end);
        idle.fill(part + 1, begin, end);
      });
    }
  }

  /** Mark when nothing was recorded of a rank: it may have worked all the while. */
  private unrecorded({ grid, stretch, look }: At, rank: number): void {
    for (const { start, end } of this.missing[rank] ?? []) {
      const [begin, until] = [pixelOf(start, grid, stretch), pixelOf(end, grid, stretch)];
      this.lines.ground.fill(packed(look.theme.page), begin, until);
      this.lines.idle.fill(UNRECORDED, begin, until);
    }
  }
}

/** The pixel of a time, as far as it is in a stretch. */
function pixelOf(time: number, { first, perPixel }: Grid, stretch: Stretch): number {
  return Math.min(stretch.to, Math.max(stretch.from, Math.round(time / perPixel) - first));
}

/** Where and how a lane is painted. */
interface At {
  raster: Raster;
  data: Data;
  look: Look;
  grid: Grid;
  stretch: Stretch;
}

type Layers = ReturnType<typeof layersOf>;

function layersOf({ causes }: Head, { tasks, gaps }: Data, { scheme, theme, figure, foundGaps }: Look) {
  const { fills, edges, codes, below } = scheme;
  const blocks = (tint: (colour: string) => string) => {
    const lines = (figure ? fills : edges).map(tint);
    const inksOn = (those: string[]) => inksOf(those.map(tint), lines, figure ? null : theme.idle);
    const inks = inksOn(fills);
    const parts = halves(tasks);
    const running = parts?.together ?? tasks;
    const upper = new Layer(running, codes, inks);
    return {
      inks,
      upper,
      lower: below === codes ? upper : new Layer(running, below, inks),
      waiting: parts && new Layer(parts.waiting, codes, inksOn(fills.map((fill) => waitingFill(fill, theme)))),
    };
  };
  const own = causes.map(({ fill, dark }) => (theme.dark ? dark : fill));
  const colours = [...own, ...own.map((fill) => pale(fill, theme.idle))];
  const gapInks = inksOf(colours, colours, null);
  const codeOf = (cause: number, gap: number): number => (foundGaps![gap] ? cause : cause + causes.length);
  const gapCodes = foundGaps ? coded(gaps.cause, codeOf) : gaps.cause;
  return {
    plain: blocks((colour) => colour),
    pale: blocks((colour) => veiled(colour, theme)),
    gaps: new Layer(gaps, gapCodes, gapInks),
    gapInks,
  };
}

function linesOf(columns: number) {
  return {
    line: new Uint32Array(columns),
    other: new Uint32Array(columns), // the same where a pattern has no ink
    ground: new Uint32Array(columns),
    marks: [new Uint8Array(columns), new Uint8Array(columns)], // of blocks, by their half
    idle: new Uint8Array(columns), // of gaps, or of phases
  };
}

/** From where to where the rows of each rank go, in a table by rank. */
function extents(ranks: ArrayLike<number>, count: number): [number, number][] {
  const found = Array.from({ length: count }, (): [number, number] => [0, 0]);
  for (let i = 0; i < ranks.length; i++) {
    const extent = found[ranks[i]!]!;
    if (extent[1] === 0) extent[0] = i;
    extent[1] = i + 1;
  }
  return found;
}
