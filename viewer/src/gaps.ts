// Why lanes are idle: at the foot of each gap a low bar in the colour of its cause, and its name.

import { firstEndingAfter, type Gaps, type Head } from "./data";
import type { Place } from "./layout";
import { packed, type Layer } from "./strip";
import { duration } from "./units";
import type { View } from "./view";

const SHARE = 0.36; // of a lane's height
const PALE = 0.5; // opacity of what is inherent to the schedule
const ROOM = 20; // least height of a lane in which causes are named
const SPARSE = 8; // least pixels a gap on average at which they are

function bar(height: number): number {
  return Math.max(3, Math.round(height * SHARE));
}

export class GapPainter {
  private readonly edges: Uint32Array;
  private readonly middles: Uint32Array; // nothing where striped

  constructor(
    private readonly head: Head,
    private readonly gaps: Gaps,
  ) {
    this.edges = Uint32Array.from(head.causes, ({ fill, inherent }) => packed(fill, inherent ? PALE : 1));
    this.middles = this.edges.map((colour, index) => (head.causes[index].striped ? 0 : colour));
  }

  layers(visible: Place[], top: number): Layer[] {
    return visible.flatMap(({ gaps: extent, top: y, height }) => {
      if (!extent) return [];
      const [low, line] = [bar(height), Math.max(1, Math.round(bar(height) / 3))];
      const foot = y - top + height;
      const common = { spans: this.gaps, extent, codes: this.gaps.cause };
      return [
        {
          ...common,
          colours: this.edges,
          bands: [
            { top: foot - low, height: line },
            { top: foot - line, height: line },
          ],
        },
        { ...common, colours: this.middles, bands: [{ top: foot - low + line, height: low - 2 * line }] },
      ];
    });
  }

  /** Name the causes of the gaps of a lane that are wide enough. */
  names(context: CanvasRenderingContext2D, place: Place, view: View, left: number, top: number, colour: string): void {
    const { gaps: extent, height } = place;
    if (!extent || height < ROOM) return;
    const { start, end, cause } = this.gaps;
    let index = firstEndingAfter(end, extent.from, extent.to, view.start);
    const last = firstEndingAfter(end, index, extent.to, view.end);
    if ((last - index) * SPARSE > view.width) return;
    context.font = "10px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = colour;
    const middle = place.top - top + (height - bar(height)) / 2 + 0.5;
    for (; index < extent.to && start[index] < view.end; index++) {
      const from = Math.max(0, view.x(start[index]));
      const to = Math.min(view.width, view.x(end[index]));
      if (to - from < ROOM) continue;
      const { name } = this.head.causes[cause[index]];
      for (const text of [`${name}  ${duration(end[index] - start[index])}`, name]) {
        const width = context.measureText(text).width;
        if (width + 6 > to - from) continue;
        context.fillText(text, left + (from + to - width) / 2, middle);
        break;
      }
    }
  }
}
