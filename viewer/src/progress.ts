// Rows of pixels, painted from frame to frame with as little work as is needed: where the view moved, what
// is still in sight is moved along; where it is another, painting goes on in the next frame when this
// one's time is over, and below what is done stands the last picture, stretched.

import type { Grid, Stretch } from "./area";
import type { Raster } from "./raster";

/** Some rows of pixels; heights in CSS pixels. */
export interface Strip {
  top: number;
  paint: (stretch: Stretch) => void;
}

/** Of what a picture depends on beside the time it shows. */
export interface Frame {
  width: number; // CSS pixels
  height: number;
  ratio: number;
  ground: number; // colour around the strips
  top: number; // of the page, CSS pixels: how far it is scrolled
  depends: readonly unknown[]; // a picture is worth nothing when one of these is another
  layout: unknown; // without which what stands where says nothing
}

const BATCH = 8; // strips that are painted before the clock is looked at

export class Progress {
  private last: (Frame & { grid: Grid }) | null = null;
  private painted = 0;

  constructor(private readonly raster: Raster) {}

  /** Paint until all is there or `deadline` has come; return whether it is. */
  paint(strips: Strip[], frame: Frame, grid: Grid, deadline: number): boolean {
    const { raster, last } = this;
    const by = last && same(last, frame) && last.grid.perPixel === grid.perPixel ? grid.first - last.grid.first : NaN;
    this.last = { ...frame, grid };
    const fresh = !(Math.abs(by) < raster.columns);
    const stretchable = last !== null && last.layout === frame.layout && last.ratio === frame.ratio;
    if (!fresh) {
      if (by !== 0) {
        const free = raster.shift(by);
        for (const { paint } of strips.slice(0, this.painted)) paint(free);
      }
    } else {
      raster.begin(frame.width, frame.height, frame.ratio, frame.ground);
      this.painted = 0;
    }
    const { whole } = raster;
    for (let batch = 0; this.painted < strips.length; batch++) {
      const late = batch > 0 && batch % BATCH === 0 && performance.now() > deadline;
      if (late && (stretchable || !fresh)) break; // nothing at all is worse than a late picture
      strips[this.painted++]!.paint(whole);
    }
    if (this.painted === strips.length) return true;
    if (fresh) raster.stretch(strips[this.painted]!.top, grid, last!.grid, frame.top - last!.top);
    return false;
  }
}

function same(one: Frame, other: Frame): boolean {
  return (
    one.width === other.width &&
    one.height === other.height &&
    one.ratio === other.ratio &&
    one.ground === other.ground &&
    one.top === other.top &&
    one.layout === other.layout &&
    one.depends.every((value, at) => value === other.depends[at])
  );
}
