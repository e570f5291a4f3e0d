// Draws what is in sight of the lanes and their titles onto one canvas.

import { counterpartOf } from "./against";
import type { Grid } from "./area";
import { drawArrows, type Arrow } from "./arrows";
import { drawBlocks } from "./blocks";
import { drawCurve } from "./curves";
import { spansOf, type Data, type Head } from "./data";
import { nameCauses } from "./gaps";
import { gridOf } from "./grid";
import { heightOfBlocks, LanePainter, veiled, type Look } from "./lanes";
import { placeOf, within, type Fold, type Item, type Layout, type Place } from "./layout";
import { Progress, type Strip } from "./progress";
import { Rail } from "./rail";
import { packed, Raster } from "./raster";
import { sumOf, type Sum } from "./sums";
import type { Theme } from "./theme";
import {
  drawCaption,
  drawCounter,
  drawDevice,
  drawFold,
  drawHeading,
  drawNote,
  drawOverlayTitle,
  drawStream,
  drawTitle,
  SPARSE,
  TIGHT,
} from "./titles";
import { drawKernels, KernelPainter } from "./unfolded";
import type { View } from "./view";

const BUDGET = 6; // milliseconds of a frame that may go into pixels, and again into sums over ranks
const OUTLINED = 500; // tasks that were found, in sight, up to which each has an outline
const OUTLINED_WIDTH = 3; // least width of one that has: the others have a tick

/** What is drawn beside the lanes themselves. */
export interface Shown extends Look {
  launches: boolean;
  left: number; // of the plot: what stands beside it is as wide
  selected: Item | null;
  found: Uint8Array | null; // tasks that a search is about
  arrows: Arrow[];
}

export class Painter {
  private readonly raster = new Raster();
  private readonly progress = new Progress(this.raster);
  private readonly lanes: LanePainter;
  private readonly kernels: KernelPainter | null;
  private readonly sums = new WeakMap<Fold, Sum>();
  private rail: Rail;
  grid: Grid | null = null; // of what was drawn last

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly head: Head,
    private known: Data,
  ) {
    this.lanes = new LanePainter(head, known);
    this.kernels = head.kernels && new KernelPainter(head.kernels);
    this.rail = new Rail(head, known);
  }

  get data(): Data {
    return this.known;
  }

  set data(data: Data) {
    this.known = data;
    this.rail = new Rail(this.head, data);
  }

  /**
   * Draw; return whether there is more to draw in a further frame.
   *
   * @param budget milliseconds that may go into pixels
   */
  draw(shownView: View, top: number, plan: Layout, shown: Shown, budget = BUDGET): boolean {
    const { theme, figure, left } = shown;
    const { data } = this;
    const ratio = devicePixelRatio;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    resize(this.canvas, width, height, ratio);
    const context = this.canvas.getContext("2d")!;
    const places = within(plan.places, top, top + height);
    const unfolded = within(plan.kernels, top, top + height);

    const folds = within(plan.folds, top, top + height).filter(({ shows }) => shows === "sum");
    // What is drawn onto the pixels is drawn where they are: on whole pixels of the device.
    const grid = (this.grid = gridOf(shownView, ratio, this.grid));
    const view = shownView.onto(grid);
    const painted = this.pixels(places, unfolded, shown, plan, view.width, height, grid, top, budget);
    const added = this.addUp(folds, shown, grid, top, budget);
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
      for (const place of places)
        nameCauses(context, this.head, data, place, view, left, place.top - top, heightOfBlocks(place, shown));
    }
    if (!figure) this.stepLines(context, view, left, height, theme);
    context.font = figure ? "12px system-ui, sans-serif" : "11px system-ui, sans-serif";
    for (const place of places) {
      const tall = heightOfBlocks(place, shown);
      drawBlocks(context, this.head, data.tasks, place, view, left, place.top - top, tall, shown);
    }
    context.font = "10px system-ui, sans-serif";
    for (const place of unfolded) {
      const known = this.head.kernels!;
      drawKernels(context, known, data.kernels, place, view, left, place.top - top, theme.dark);
    }
    for (const curve of within(plan.curves, top, top + height)) {
      drawCurve(context, this.head, data.samples, curve, view, left, curve.top - top, theme);
    }
    if (shown.found) this.outlineFound(context, places, shown.found, view, left, top, theme);
    if (shown.selected) {
      this.outline(context, plan, shown.selected, view, left, top, theme);
      this.outlineCounterpart(context, plan, shown.selected, view, left, top, theme);
    }
    const selected = shown.selected?.what === "task" ? shown.selected.index : -1;
    if (!figure)
      for (const place of places)
        this.rail.draw(context, data, place, selected, shown.found, view, left, place.top - top, theme);
    drawArrows(context, shown.arrows, this.head, data.tasks, plan, view, left, top, theme.accent);
    context.restore();
    this.titles(context, plan, top, left, width, height, shown);
    return !painted || !added;
  }

  /** Paint rows of tasks and of kernels; return whether all are. */
  private pixels(
    places: Place[],
    unfolded: Layout["kernels"],
    shown: Shown,
    layout: Layout,
    width: number,
    height: number,
    grid: Grid,
    top: number,
    budget: number,
  ): boolean {
    const { raster, data } = this;
    const { scheme, theme, causes, foundGaps, phases, pale, figure } = shown;
    const lane = this.lanes.painter(raster, data, shown, grid, top);
    const strips: Strip[] = places.map((place) => ({
      top: place.top - top,
      paint: (stretch) => lane(place, stretch),
    }));
    if (this.kernels && unfolded.length) {
      const kernel = this.kernels.painter(raster, data.kernels, theme, grid, top);
      for (const place of unfolded) strips.push({ top: place.top - top, paint: (stretch) => kernel(place, stretch) });
      strips.sort((one, other) => one.top - other.top);
    }
    const depends = [data, scheme, theme, causes, foundGaps, phases, pale, figure];
    const frame = { width, height, ratio: grid.ratio, ground: packed(theme.page), top, layout, depends };
    return this.progress.paint(strips, frame, grid, performance.now() + budget);
  }

  /** What the ranks of folded groups did together; return whether all is counted. */
  private addUp(folds: Fold[], shown: Shown, grid: Grid, top: number, budget: number): boolean {
    const { raster, data } = this;
    const { scheme, theme, pale } = shown;
    const sums = folds.map((fold) => this.sumOf(fold));
    // All are counted before any is painted: painting takes time too, and would leave none for the last.
    const deadline = performance.now() + budget;
    const done = sums.map((sum) => sum.advance(data, scheme, grid, deadline));
    const ground = new Uint32Array(raster.columns);
    folds.forEach(({ stack, top: y, height }, at) => {
      const tint = (colour: string): string =>
        pale && stack !== "compute" && stack !== "against" ? veiled(colour, theme) : colour;
      const rows = raster.rows(y - top, height);
      raster.fill(rows, ground.fill(packed(tint(theme.idle))));
      sums[at]!.paint(raster, grid, rows, theme.idle, tint);
    });
    return done.every(Boolean);
  }

  private sumOf(fold: Fold): Sum {
    const sum = this.sums.get(fold) ?? sumOf(this.head, fold);
    this.sums.set(fold, sum);
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
        const width = (end[task]! - start[task]!) * view.scale;
        if (width < OUTLINED_WIDTH) continue;
        boxes.push([left + view.x(start[task]!), y - top, width, height]);
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
    for (const curve of within(plan.curves, top, top + height))
      drawCounter(context, this.head, curve, curve.top - top, left, theme);
    let labelled = -Infinity;
    for (const fold of within(plan.folds, top, top + height)) {
      if (fold.title === "" || fold.top - labelled < TIGHT) continue;
      labelled = fold.top;
      drawFold(context, this.head, fold, fold.top - top, left, width, theme);
    }
    for (const heading of within(plan.headings, top, top + height))
      drawHeading(context, heading, heading.top - top, left, width, theme);
    for (const note of within(plan.notes, top, top + height))
      drawNote(context, note, note.top - top, left, width, theme);
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
