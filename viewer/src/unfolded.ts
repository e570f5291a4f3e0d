// Rows of kernels under a rank whose tasks are unfolded: pixels, labels, and what is at a point.

import { firstEndingAfter, running, type Head, type Kernels } from "./data";
import { clip } from "./fitted";
import { firstBelow, type KernelPlace } from "./layout";
import { packed, type Raster } from "./raster";
import { sample, type Scale } from "./sample";
import type { Theme } from "./theme";
import type { View } from "./view";

const SEPARATED = 4; // least width of a block whose edge is drawn
const LABEL_HEIGHT = 12; // least height of a row that carries names
const LEAST_LABEL = 30; // least width of a block that does
const REACH = 3; // pixels from a block that still hit it

/** Paint the kernels at the pixels' centres, as all blocks are. */
export function paintKernels(
  raster: Raster,
  { uses }: NonNullable<Head["kernels"]>,
  kernels: Kernels,
  places: KernelPlace[],
  scale: Scale,
  top: number,
  theme: Theme,
): void {
  const colours = Uint32Array.from(uses, ({ fill }) => packed(fill));
  const [base, blocks] = [new Uint32Array(raster.columns).fill(packed(theme.idle)), new Uint32Array(raster.columns)];
  for (const { row, top: y, height } of places) {
    blocks.fill(0);
    sample(kernels, row, scale, kernels.use, colours, blocks);
    raster.band(y - top, height, base, blocks);
  }
}

/** Draw edges and names onto the kernels of one row. @param left and @param y of the row */
export function drawKernels(
  context: CanvasRenderingContext2D,
  { uses, names }: NonNullable<Head["kernels"]>,
  kernels: Kernels,
  { row, height }: KernelPlace,
  view: View,
  left: number,
  y: number,
): void {
  const { start, end, use, name } = kernels;
  let index = firstEndingAfter(end, row.from, row.to, view.start);
  const last = firstEndingAfter(end, index, row.to, view.end);
  if ((last - index) * SEPARATED > view.width) return;
  for (; index < row.to && start[index]! < view.end; index++) {
    const [from, to] = [Math.max(-1, view.x(start[index]!)), Math.min(view.width + 1, view.x(end[index]!))];
    if (to - from < SEPARATED) continue;
    context.fillStyle = "rgba(0, 0, 0, 0.28)";
    context.fillRect(left + from, y, 0.6, height);
    if (height < LABEL_HEIGHT || to - from < LEAST_LABEL) continue;
    const text = clip(context, names[name[index]!]![0], to - from - 6);
    context.fillStyle = uses[use[index]!]!.ink;
    context.fillText(text, left + (from + to - context.measureText(text).width) / 2, y + height / 2 + 0.5);
  }
}

/** The kernel at a point, or -1. @param x pixels from the left of the plot @param y pixels from the top of the page */
export function kernelAt(kernels: Kernels, places: KernelPlace[], view: View, x: number, y: number): number {
  const place = places[firstBelow(places, y)];
  if (x < 0 || !place || place.top > y) return -1;
  for (let reach = 0; reach <= REACH; reach++) {
    for (const side of [reach, -reach]) {
      const found = running(kernels, place.row, view.time(x + side));
      if (found >= 0) return found;
    }
  }
  return -1;
}
