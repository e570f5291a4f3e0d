// Rows of kernels under a rank whose tasks are unfolded: pixels, labels, and what is at a point.

import { inksOf, Layer, type Grid, type Stretch } from "./area";
import { running, type Head, type Kernels } from "./data";
import { clip } from "./fitted";
import { firstBelow, type KernelPlace } from "./layout";
import { packed, type Raster } from "./raster";
import type { Theme } from "./theme";
import type { View } from "./view";
import { wide } from "./wide";

const LABEL_HEIGHT = 12; // least height of a row that carries names
const LEAST_LABEL = 30; // least width of a block that does
const REACH = 3; // pixels from a block that still hit it

/** Paints the rows of kernels. */
export class KernelPainter {
  private layer: Layer | null = null;
  private made: readonly unknown[] = []; // what the layer is made of

  constructor(private readonly known: NonNullable<Head["kernels"]>) {}

  /** Return what paints a stretch of a row. @param top of the page, to which it is scrolled */
  painter(
    raster: Raster,
    kernels: Kernels,
    theme: Theme,
    grid: Grid,
    top: number,
  ): (place: KernelPlace, stretch: Stretch) => void {
    if (this.made[0] !== kernels || this.made[1] !== theme) this.layer = this.layerOf(kernels, theme);
    this.made = [kernels, theme];
    const ground = new Uint32Array(grid.columns).fill(packed(theme.idle));
    const line = new Uint32Array(grid.columns);
    return ({ row, top: y, height }, stretch) => {
      line.set(ground);
      this.layer!.mix(row, grid, stretch, ground, line);
      raster.fill(raster.rows(y - top, height), line, stretch);
    };
  }

  private layerOf(kernels: Kernels, theme: Theme): Layer {
    const shades = this.known.uses.map((use) => (theme.dark ? use.dark : use));
    const inks = inksOf(
      shades.map(({ fill }) => fill),
      shades.map(({ outline }) => outline),
      theme.idle,
    );
    return new Layer(kernels, kernels.use, inks);
  }
}

/** Write names onto the kernels of one row. @param left and @param y of the row */
export function drawKernels(
  context: CanvasRenderingContext2D,
  { uses, names }: NonNullable<Head["kernels"]>,
  kernels: Kernels,
  { row, height }: KernelPlace,
  view: View,
  left: number,
  y: number,
  dark: boolean,
): void {
  if (height < LABEL_HEIGHT) return;
  const { start, end, use, name } = kernels;
  for (const index of wide(kernels, row, view, LEAST_LABEL)) {
    const [from, to] = [Math.max(-1, view.x(start[index]!)), Math.min(view.width + 1, view.x(end[index]!))];
    const text = clip(context, names[name[index]!]![0], to - from - 6);
    const shades = uses[use[index]!]!;
    context.fillStyle = dark ? shades.dark.ink : shades.ink;
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
