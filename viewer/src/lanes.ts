// The lanes as pixels: from the ground up, the pipeline's phases, the causes of idle time, the blocks.

import type { Scheme } from "./colour";
import type { Data, Head } from "./data";
import type { Place } from "./layout";
import { blend, packed, Raster } from "./raster";
import { sample, type Scale } from "./sample";
import type { Theme } from "./theme";

export const FOOT = 0.36; // share of a lane's height that causes take at its foot
const PALE = 0.5; // opacity of causes that are inherent to the schedule
export const VEIL = 0.55; // opacity of lanes of what did not happen

/** A colour as it is in lanes of what did not happen. */
export function veiled(colour: string, theme: Theme): string {
  return blend(colour, theme.page, VEIL);
}

/** What of the lanes is shown. */
export interface Look {
  scheme: Scheme;
  causes: boolean;
  phases: boolean;
  pale: boolean; // what did not happen
  theme: Theme;
}

/** Height of the bar of a cause at the foot of a lane. */
export function bar(height: number): number {
  return Math.max(height < 3 ? height : 3, Math.round(height * FOOT));
}

export class LanePainter {
  private base = new Uint32Array(1);
  private blocks = new Uint32Array(1);
  private gap = new Uint32Array(1);
  private readonly phasesOf: [from: number, to: number][];
  private colours: ReturnType<typeof tables>;
  private look: Look | null = null;

  constructor(
    private readonly head: Head,
    public data: Data,
  ) {
    this.phasesOf = extents(data.phases.rank, head.ranks.length);
    this.colours = {
      blocks: new Uint32Array(),
      veiled: new Uint32Array(),
      edges: new Uint32Array(),
      middles: new Uint32Array(),
    };
  }

  paint(raster: Raster, places: Place[], look: Look, scale: Scale, top: number): void {
    if (this.base.length !== raster.columns) {
      this.base = new Uint32Array(raster.columns);
      this.blocks = new Uint32Array(raster.columns);
      this.gap = new Uint32Array(raster.columns);
    }
    if (this.look?.scheme !== look.scheme || this.look.theme !== look.theme) this.colours = tables(this.head, look);
    this.look = look;
    for (const place of places) this.lane(raster, place, look, scale, place.top - top);
  }

  private lane(raster: Raster, { row, height, gaps }: Place, look: Look, scale: Scale, y: number): void {
    const { scheme, causes, theme } = look;
    const { base, blocks, gap, colours } = this;
    const pale = look.pale && (row.lane === "ideal" || row.lane === "whatif");
    base.fill(packed(pale ? veiled(theme.idle, theme) : theme.idle));
    if (look.phases && row.lane === "compute") this.phases(row.rank, scale, theme);
    const fills = pale ? colours.veiled : colours.blocks;
    blocks.fill(0);
    sample(this.data.tasks, row, scale, scheme.codes, fills, blocks);
    raster.band(y, height, base, blocks);

    // A pair that overlaps has its second task in its lower half.
    let lower = blocks;
    if (scheme.below !== scheme.codes) {
      lower = gap.slice();
      lower.fill(0);
      sample(this.data.tasks, row, scale, scheme.below, fills, lower);
      raster.band(y + height / 2, height / 2, base, lower);
    }
    if (!causes || !gaps) return;
    // Blocks over gaps: what a rank does beside its pipeline, it may do in a gap.
    const tall = scheme.wholeGaps ? height : bar(height);
    const line = Math.max(1, Math.round(tall / 3));
    const foot = y + height;
    gap.fill(0);
    sample(this.data.gaps, gaps, scale, this.data.gaps.cause, colours.edges, gap);
    raster.band(foot - tall, tall, base, gap, lower);
    if (tall < 3) return;
    gap.fill(0);
    sample(this.data.gaps, gaps, scale, this.data.gaps.cause, colours.middles, gap);
    raster.band(foot - tall + line, tall - 2 * line, base, gap, lower);
  }

  /** Shade the ground of a rank's warm-up and cool-down. */
  private phases(rank: number, { start, perPixel }: Scale, theme: Theme): void {
    const { phases } = this.data;
    const [from, to] = this.phasesOf[rank]!;
    const [warm, cool] = [packed(theme.warm), packed(theme.cool)];
    const at = (time: number): number => Math.ceil((time - start) / perPixel - 0.5);
    const until = start + this.base.length * perPixel;
    for (let i = from; i < to; i++) {
      if (phases.end[i]! <= start) continue;
      if (phases.start[i]! >= until) break;
      this.base.fill(warm, Math.max(0, at(phases.start[i]!)), Math.max(0, at(phases.steady[i]!)));
      this.base.fill(cool, Math.max(0, at(phases.cool[i]!)), Math.max(0, at(phases.end[i]!)));
    }
  }
}

function tables(head: Head, { scheme, theme }: Look) {
  const fill = (colours: string[]): Uint32Array => Uint32Array.from(colours, packed);
  const causes = head.causes.map(({ fill: colour, inherent }) => blend(colour, theme.idle, inherent ? PALE : 1));
  return {
    blocks: fill(scheme.fills),
    veiled: fill(scheme.fills.map((colour) => veiled(colour, theme))),
    edges: fill(causes),
    // Where striped, the ground shows between two lines; a colour that is 0 leaves it.
    middles: fill(causes).map((colour, index) => (head.causes[index]!.striped ? packed(theme.idle) : colour)),
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
