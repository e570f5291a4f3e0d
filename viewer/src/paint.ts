// Draws what is in sight of the lanes and their titles onto one canvas.

import { counterpartOf } from "./against";
import { drawArrows, type Arrow } from "./arrows";
import { drawBlocks } from "./blocks";
import { drawCurve } from "./curves";
import { spansOf, type Data, type Head } from "./data";
import { nameCauses } from "./gaps";
import { LanePainter, veiled, type Look } from "./lanes";
import { placeOf, within, type Heading, type Item, type Layout, type Place } from "./layout";
import { packed, Raster } from "./raster";
import type { Scale } from "./sample";
import { sumOf, type Sum } from "./sums";
import type { Theme } from "./theme";
import { drawCaption, drawDevice, drawHeading, drawOverlayTitle, drawStream, drawTitle, SPARSE, TIGHT } from "./titles";
import { drawKernels, paintKernels } from "./unfolded";
import type { View } from "./view";

const BUDGET = 6; // milliseconds of a frame that may go into sums over ranks
const OUTLINED = 500; // tasks that were found, in sight, up to which each has an outline

/** What is drawn beside the lanes themselves. */
export interface Shown extends Look {
  launches: boolean;
  figure: boolean;
  left: number; // of the plot: what stands beside it is as wide
  selected: Item | null;
  found: Uint8Array | null; // tasks that a search is about
  arrows: Arrow[];
}

export class Painter {
  private readonly raster = new Raster();
  private readonly lanes: LanePainter;
  private readonly sums = new WeakMap<Heading, Sum>();

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly head: Head,
    public data: Data,
  ) {
    this.lanes = new LanePainter(head, data);
  }

  /** Draw; return whether there is more to draw in a further frame. */
  draw(view: View, top: number, plan: Layout, shown: Shown): boolean {
    const { theme, figure, left } = shown;
    const ratio = devicePixelRatio;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    resize(this.canvas, width, height, ratio);
    const context = this.canvas.getContext("2d")!;
    const places = within(plan.places, top, top + height);
    const headings = within(plan.headings, top, top + height);

    this.lanes.data = this.data;
    this.raster.begin(view.width, height, ratio, packed(theme.page));
    const scale = { start: view.start, perPixel: (view.end - view.start) / this.raster.columns };
    this.lanes.paint(this.raster, places, shown, scale, top);
    const unfolded = within(plan.kernels, top, top + height);
    const known = this.head.kernels;
    if (known) paintKernels(this.raster, known, this.data.kernels, unfolded, scale, top, theme);
    const done = this.groups(headings, shown, scale, top);
    this.raster.flush(context, left);

    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.textBaseline = "middle";
    context.save();
    context.beginPath();
    context.rect(left, 0, view.width, height);
    context.clip();
    if (shown.causes) {
      context.font = "10px system-ui, sans-serif";
      context.fillStyle = theme.dim;
      for (const place of places) nameCauses(context, this.head, this.data.gaps, place, view, left, place.top - top);
    }
    if (!figure) this.stepLines(context, view, left, height, theme);
    context.font = figure ? "12px system-ui, sans-serif" : "11px system-ui, sans-serif";
    for (const place of places) {
      drawBlocks(context, this.head, this.data.tasks, place, view, left, place.top - top, shown);
    }
    context.font = "10px system-ui, sans-serif";
    if (known)
      for (const place of unfolded) drawKernels(context, known, this.data.kernels, place, view, left, place.top - top);
    for (const curve of within(plan.curves, top, top + height)) {
      drawCurve(context, this.head, this.data.samples, curve, view, left, curve.top - top, theme);
    }
    if (shown.found) this.outlineFound(context, places, shown.found, view, left, top, theme);
    if (shown.selected) {
      this.outline(context, plan, shown.selected, view, left, top, theme);
      this.outlineCounterpart(context, plan, shown.selected, view, left, top, theme);
    }
    drawArrows(context, shown.arrows, this.head, this.data.tasks, plan, view, left, top, theme.accent);
    context.restore();
    this.titles(context, plan, headings, top, left, width, height, shown);
    return !done;
  }

  /** What the ranks of folded groups did together; return whether all is counted. */
  private groups(headings: Heading[], { scheme, theme, pale }: Shown, scale: Scale, top: number): boolean {
    const { columns } = this.raster;
    const folded = headings.filter(({ group }) => group.folded);
    const sums = folded.map((heading) => this.sumOf(heading));
    // All are counted before any is painted: painting takes time too, and would leave none for the last.
    const deadline = performance.now() + BUDGET;
    const done = sums.map((sum) => sum.advance(this.data, scheme, scale, columns, deadline));
    const ground = new Uint32Array(columns);
    folded.forEach(({ stack, top: y, height }, at) => {
      const tint = (colour: string): string =>
        pale && stack !== "compute" && stack !== "against" ? veiled(colour, theme) : colour;
      this.raster.band(y - top, height, ground.fill(packed(tint(theme.idle))));
      sums[at]!.paint(this.raster, scale, y - top, height, tint);
    });
    return done.every(Boolean);
  }

  private sumOf(heading: Heading): Sum {
    const sum = this.sums.get(heading) ?? sumOf(this.head, heading);
    this.sums.set(heading, sum);
    return sum;
  }

  private stepLines(context: CanvasRenderingContext2D, view: View, left: number, height: number, theme: Theme): void {
    context.fillStyle = theme.line;
    let drawn = -Infinity;
    for (const { start } of this.head.steps) {
      const x = view.x(start);
      if (x < 0 || x > view.width || x - drawn < 3) continue;
      drawn = x;
      context.fillRect(left + x, 0, 1, height);
    }
  }

  private outline(
    context: CanvasRenderingContext2D,
    plan: Layout,
    item: Item,
    view: View,
    left: number,
    top: number,
    theme: Theme,
  ): void {
    const place = placeOf(this.head, plan, item);
    if (!place) return;
    const { start, end } = spansOf(this.data, item);
    const from = view.x(start[item.index]!);
    const width = Math.max(2, view.x(end[item.index]!) - from);
    context.strokeStyle = theme.accent;
    context.lineWidth = 2;
    context.strokeRect(left + from, place.top - top, width, place.height);
  }

  /** Outline the same task of the other run, with dashes. */
  private outlineCounterpart(
    context: CanvasRenderingContext2D,
    plan: Layout,
    { what, index }: Item,
    view: View,
    left: number,
    top: number,
    theme: Theme,
  ): void {
    const counterpart = what === "task" && index >= 0 ? counterpartOf(this.data.tasks, index) : -1;
    if (counterpart < 0) return;
    context.setLineDash([4, 3]);
    this.outline(context, plan, { what: "task", index: counterpart }, view, left, top, theme);
    context.setLineDash([]);
  }

  /** Outline what a search found, unless that is too much to tell apart. */
  private outlineFound(
    context: CanvasRenderingContext2D,
    places: Place[],
    found: Uint8Array,
    view: View,
    left: number,
    top: number,
    theme: Theme,
  ): void {
    const { start, end } = this.data.tasks;
    const boxes: [number, number, number, number][] = [];
    for (const { row, top: y, height } of places) {
      for (let task = row.from; task < row.to; task++) {
        if (!found[task] || end[task]! < view.start || start[task]! > view.end) continue;
        boxes.push([
          left + view.x(start[task]!),
          y - top,
          Math.max(2, (end[task]! - start[task]!) * view.scale),
          height,
        ]);
        if (boxes.length > OUTLINED) return;
      }
    }
    context.strokeStyle = theme.text;
    context.lineWidth = 1.2;
    for (const box of boxes) context.strokeRect(...box);
  }

  private titles(
    context: CanvasRenderingContext2D,
    plan: Layout,
    headings: Heading[],
    top: number,
    left: number,
    width: number,
    height: number,
    { theme, figure }: Shown,
  ): void {
    context.fillStyle = theme.page;
    context.fillRect(0, 0, left, height);
    let titled = -TIGHT;
    for (const band of within(plan.bands, top, top + height)) {
      if (band.top - top - titled < (band.height < TIGHT ? SPARSE : TIGHT)) continue;
      titled = band.top - top;
      if (figure) drawDevice(context, band, top);
      else drawTitle(context, this.head, band, top, left, theme);
    }
    if (!figure) {
      for (const place of within(plan.places, top, top + height)) {
        if (place.row.lane !== plan.above) drawOverlayTitle(context, this.head, place, place.top - top, left, theme);
      }
    }
    for (const place of within(plan.kernels, top, top + height))
      drawStream(context, this.head, place, place.top - top, left, theme);
    for (const heading of headings) drawHeading(context, heading, heading.top - top, left, width, theme);
    for (const caption of within(plan.captions, top, top + height))
      drawCaption(context, caption, caption.top - top, left, width, figure, theme);
  }
}

export function resize(canvas: HTMLCanvasElement, width: number, height: number, ratio: number): void {
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
}
