// Draws the lanes and their titles onto one canvas that covers the visible part of the page.

import { drawArrows, type Arrow } from "./arrows";
import { firstEndingAfter, type Data, type Head, type Rank, type Tasks } from "./data";
import { GapPainter } from "./gaps";
import { firstBelow, placeOf, type Band, type Item, type Layout, type Place } from "./layout";
import { long, short } from "./label";
import { packed, Strip, type Layer } from "./strip";
import { duration, percent } from "./units";
import type { View } from "./view";

export const GUTTER = 280; // CSS pixels left of the plot
export const MAKESPAN_RIGHT = 206; // right edges of the two columns of rates
export const SPAN_RIGHT = 268;
const SEPARATED = 4; // least width of a block whose edge is drawn
const LABEL_HEIGHT = 14; // least height of a row that carries text

export interface Theme {
  text: string;
  dim: string;
  idle: string;
  band: string;
  line: string;
  page: string;
  accent: string;
}

/** What is drawn beside the tasks. */
export interface Shown {
  causes: boolean;
  selected: Item | null;
  arrows: Arrow[];
}

export class Painter {
  private readonly strip = new Strip();
  private readonly gaps: GapPainter;
  private readonly tasks: Tasks;
  private readonly colours: Uint32Array;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly head: Head,
    private readonly data: Data,
    public layout: Layout,
  ) {
    this.tasks = data.tasks;
    this.gaps = new GapPainter(head, data.gaps);
    this.colours = Uint32Array.from(head.kinds, ({ fill }) => packed(fill));
  }

  draw(view: View, top: number, theme: Theme, { causes, selected, arrows }: Shown): void {
    const ratio = devicePixelRatio;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    resize(this.canvas, width, height, ratio);
    const context = this.canvas.getContext("2d")!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = theme.page;
    context.fillRect(0, 0, width, height);

    const visible: Place[] = [];
    for (let i = firstBelow(this.layout.places, top); i < this.layout.places.length; i++) {
      if (this.layout.places[i].top > top + height) break;
      visible.push(this.layout.places[i]);
    }
    context.fillStyle = theme.idle;
    for (const { top: y, height } of visible) context.fillRect(GUTTER, y - top, view.width, height);
    // Blocks over gaps: what a rank does beside its pipeline, it may do in a gap.
    if (causes) this.strip.paint(context, this.gaps.layers(visible, top), view, GUTTER, ratio);
    if (causes) for (const place of visible) this.gaps.names(context, place, view, GUTTER, top, theme.dim);
    this.strip.paint(context, this.blocks(visible, top), view, GUTTER, ratio);
    this.veil(context, visible, view, top, theme);
    this.stepLines(context, view, height, theme);
    for (const place of visible) this.details(context, place, view, top);
    if (selected) this.outline(context, view, top, selected, theme);
    drawArrows(context, arrows, this.tasks, this.layout.places, view, GUTTER, top, theme.accent);
    context.clearRect(0, 0, GUTTER, height);
    context.fillStyle = theme.page;
    context.fillRect(0, 0, GUTTER, height);
    for (let i = firstBelow(this.layout.bands, top); i < this.layout.bands.length; i++) {
      const band = this.layout.bands[i];
      if (band.top > top + height) break;
      if (band.rank < 0) this.heading(context, band, top, width, theme);
      else this.title(context, band, top, theme);
    }
  }

  private blocks(visible: Place[], top: number): Layer[] {
    const common = { spans: this.tasks, codes: this.tasks.kind, colours: this.colours };
    return visible.map(({ row, top: y, height }) => ({ ...common, extent: row, bands: [{ top: y - top, height }] }));
  }

  /** Pale the lanes of the ideal, which did not happen, and mark them at their left edge. */
  private veil(context: CanvasRenderingContext2D, visible: Place[], view: View, top: number, theme: Theme): void {
    for (const { row, top: y, height } of visible) {
      if (row.lane !== "ideal") continue;
      context.globalAlpha = 0.45;
      context.fillStyle = theme.page;
      context.fillRect(GUTTER, y - top, view.width, height);
      context.globalAlpha = 1;
    }
  }

  /** Draw edges and labels of the blocks of a row that are wide enough for them. */
  private details(context: CanvasRenderingContext2D, place: Place, view: View, top: number): void {
    const { start, end, kind } = this.tasks;
    const { row, height } = place;
    const y = place.top - top;
    let index = firstEndingAfter(end, row.from, row.to, view.start);
    const last = firstEndingAfter(end, index, row.to, view.end);
    // With fewer than SEPARATED pixels a task on average, hardly any is wide enough to look at.
    if ((last - index) * SEPARATED > view.width) return;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (; index < row.to && start[index] < view.end; index++) {
      const from = Math.max(-1, view.x(start[index]));
      const to = Math.min(view.width + 1, view.x(end[index]));
      if (to - from < SEPARATED) continue;
      context.fillStyle = "rgba(0, 0, 0, 0.28)";
      context.fillRect(GUTTER + from, y, 0.6, height);
      if (height < LABEL_HEIGHT || to - from < 14) continue;
      context.fillStyle = this.head.kinds[kind[index]].ink;
      for (const text of [long(this.head, this.tasks, index), short(this.head, this.tasks, index)]) {
        const width = context.measureText(text).width;
        if (width + 6 > to - from) continue;
        context.fillText(text, GUTTER + (from + to - width) / 2, y + height / 2 + 0.5);
        break;
      }
    }
  }

  private stepLines(context: CanvasRenderingContext2D, view: View, height: number, theme: Theme): void {
    context.fillStyle = theme.line;
    let drawn = -Infinity;
    for (const { start } of this.head.steps) {
      const x = view.x(start);
      if (x < 0 || x > view.width || x - drawn < 3) continue;
      drawn = x;
      context.fillRect(GUTTER + x, 0, 1, height);
    }
  }

  private outline(context: CanvasRenderingContext2D, view: View, top: number, selected: Item, theme: Theme): void {
    const place = placeOf(this.layout.places, selected);
    if (!place) return;
    const { start, end } = selected.what === "task" ? this.tasks : this.data.gaps;
    const from = view.x(start[selected.index]);
    const width = Math.max(2, view.x(end[selected.index]) - from);
    context.strokeStyle = theme.accent;
    context.lineWidth = 2;
    context.strokeRect(GUTTER + from, place.top - top, width, place.height);
  }

  private heading(context: CanvasRenderingContext2D, band: Band, top: number, width: number, theme: Theme): void {
    const y = band.top - top;
    context.fillStyle = theme.band;
    context.fillRect(0, y, width, band.height);
    context.font = "600 12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = theme.text;
    context.fillText(clip(context, band.host, 150), 10, y + band.height / 2);
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = theme.dim;
    context.fillText(`${band.count} ranks`, 168, y + band.height / 2);
    const clock = band.off > 0 ? `clock ±${duration(band.off)} against the first host` : "";
    context.fillText(clock, GUTTER + 8, y + band.height / 2);
  }

  private title(context: CanvasRenderingContext2D, band: Band, top: number, theme: Theme): void {
    const rank = this.head.ranks[band.rank];
    const y = band.top - top + Math.min(band.height, 22) / 2;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = theme.text;
    context.fillText(`rank ${rank.rank}`, 10, y);
    context.fillStyle = theme.dim;
    const stages = rank.stages?.length ? `stage ${rank.stages.join(", ")}` : "";
    const known = shortRate(rank.rates);
    context.fillText(clip(context, stages, known.length > 8 ? 56 : 84), 72, y);
    if (!rank.rates) return;
    const ideal = this.layout.places.find(({ row }) => row.lane === "ideal" && row.rank === band.rank);
    context.textAlign = "right";
    if (ideal && ideal.height >= LABEL_HEIGHT) {
      const below = ideal.top - top + ideal.height / 2;
      context.fillText("ideal", MAKESPAN_RIGHT - 60, below);
      context.fillText(percent(rank.rates.ideal), MAKESPAN_RIGHT, below);
    }
    context.fillText(percent(rank.rates.span), SPAN_RIGHT, y);
    context.fillStyle = theme.text;
    context.fillText(known, MAKESPAN_RIGHT, y);
    context.textAlign = "left";
  }
}

/** A rank's makespan rate in little room: with what the clocks leave open, if that is anything. */
function shortRate(rates: Rank["rates"]): string {
  if (!rates) return "";
  if (rates.makespan === null || !rates.error) return percent(rates.makespan);
  return `${(100 * rates.makespan).toFixed(2)} ±${Number((100 * rates.error).toPrecision(1))}`;
}

export function resize(canvas: HTMLCanvasElement, width: number, height: number, ratio: number): void {
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
}

function clip(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  while (text.length > 1 && context.measureText(`${text}…`).width > width) text = text.slice(0, -1);
  return `${text}…`;
}
