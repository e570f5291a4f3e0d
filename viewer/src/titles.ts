// What stands left of the lanes: ranks with their stages and bubble rates, and headings of groups.

import type { Head, Lane, Rank, Row } from "./data";
import { clip } from "./fitted";
import { streamOf } from "./kernels";
import type { Band, Caption, Heading, KernelPlace, Place } from "./layout";
import type { Theme } from "./theme";
import { duration, percent, telling } from "./units";

export const GUTTER = 280; // CSS pixels left of the plot
export const FIGURE_GUTTER = 84; // the same in the look of papers
export const MAKESPAN_RIGHT = 206; // right edges of the two columns of rates
export const SPAN_RIGHT = 268;
export const UNFOLD_RIGHT = 70; // right edge of what unfolds a rank: its mark and number
export const FOLD_RIGHT = 22; // right edge of the mark that folds a group
export const TIGHT = 12; // least distance of titles
export const SPARSE = 17; // the same where not every rank has one
const WIDEST_BAR = 70; // of an idle share of 1

export function drawHeading(
  context: CanvasRenderingContext2D,
  { group, height }: Heading,
  y: number,
  width: number,
  theme: Theme,
): void {
  const count = `${group.ranks.length} rank${group.ranks.length === 1 ? "" : "s"}`;
  context.fillStyle = theme.band;
  context.fillRect(0, y, group.folded ? GUTTER : width, height);
  context.fillStyle = theme.dim;
  context.font = "10px system-ui, sans-serif";
  context.fillText(group.folded ? "▶" : "▼", 9, y + height / 2 + 0.5);
  context.font = "600 12px system-ui, sans-serif";
  context.fillStyle = theme.text;
  context.fillText(clip(context, group.title, 150), FOLD_RIGHT + 2, y + height / 2);
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = theme.dim;
  context.fillText(count, 186, y + height / 2);
  if (!group.folded && group.off > 0) {
    context.fillText(`clock ±${duration(group.off)} against the first host`, GUTTER + 8, y + height / 2);
  }
}

/** What the lanes below are. */
export function drawCaption(
  context: CanvasRenderingContext2D,
  { title, detail, height }: Caption,
  y: number,
  left: number,
  width: number,
  figure: boolean,
  theme: Theme,
): void {
  const middle = y + height / 2;
  context.fillStyle = theme.page;
  context.fillRect(0, y, width, height); // no line of a step goes through the text
  context.font = "600 12px system-ui, sans-serif";
  context.fillStyle = theme.text;
  if (figure) return context.fillText(clip(context, title, width - left - 8), left, middle);
  context.fillText(clip(context, title, left - 16), 10, middle);
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = theme.dim;
  context.fillText(clip(context, detail, width - left - 16), left + 8, middle);
}

export function drawTitle(context: CanvasRenderingContext2D, head: Head, band: Band, top: number, theme: Theme): void {
  const rank = head.ranks[band.rank]!;
  const measured = band.stack === "compute";
  const tall = head.against && measured ? band.height / 2 : band.height; // the other run has a title of its own
  const y = band.top - top + Math.min(tall, 22) / 2;
  const known = measured ? shortRate(rank.rates) : overlayRate(rank, band.stack);
  if (measured && rank.rates?.makespan) {
    context.fillStyle = theme.line;
    const long = WIDEST_BAR * rank.rates.makespan;
    context.fillRect(MAKESPAN_RIGHT - long, y - 7, long, 14);
  }
  if (measured && band.unfolded !== null) {
    context.font = "9px system-ui, sans-serif";
    context.fillStyle = theme.dim;
    context.fillText(band.unfolded ? "▼" : "▶", 1, y + 0.5);
  }
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = theme.text;
  context.fillText(`rank ${rank.rank}`, band.unfolded === null ? 10 : 13, y);
  context.fillStyle = theme.dim;
  const run = head.against && measured ? ["A"] : [];
  const stages = [...run, ...(rank.stages?.length ? [`stage ${rank.stages.join(", ")}`] : [])].join(" · ");
  context.fillText(clip(context, stages, known.length > 8 ? 56 : 68), 72, y);
  if (!rank.rates) return;
  context.textAlign = "right";
  if (measured) context.fillText(percent(rank.rates.span), SPAN_RIGHT, y);
  context.fillStyle = theme.text;
  context.fillText(known, MAKESPAN_RIGHT, y);
  context.textAlign = "left";
}

/** What the lane of an overlay shows, and the bubble rate of the ideal: of the same tasks without waiting. */
export function drawOverlayTitle(
  context: CanvasRenderingContext2D,
  head: Head,
  { row, height }: Place,
  y: number,
  theme: Theme,
): void {
  const overlay = head.overlays.find(({ lane }) => lane === row.lane);
  if (!overlay || height < 12) return;
  if (row.lane === "against") return drawOtherRun(context, head, row, y + height / 2, theme);
  const rate = overlayRate(head.ranks[row.rank]!, row.lane);
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = theme.dim;
  context.textAlign = "right";
  const right = rate === "" ? MAKESPAN_RIGHT : MAKESPAN_RIGHT - 60;
  context.fillText(clip(context, overlay.name, right - 20), right, y + height / 2);
  context.fillText(rate, MAKESPAN_RIGHT, y + height / 2);
  context.textAlign = "left";
}

/** The other run, and its bubble rates on this rank. */
function drawOtherRun(context: CanvasRenderingContext2D, head: Head, row: Row, y: number, theme: Theme): void {
  if (row.row > 0) return;
  const rates = head.against?.rates[row.rank] ?? null;
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = theme.dim;
  context.fillText("B", 72, y);
  if (!rates) return;
  context.textAlign = "right";
  context.fillText(percent(rates.span), SPAN_RIGHT, y);
  context.fillStyle = theme.text;
  context.fillText(shortRate(rates), MAKESPAN_RIGHT, y);
  context.textAlign = "left";
}

/** Which stream a row of kernels is of. */
export function drawStream(
  context: CanvasRenderingContext2D,
  head: Head,
  { row, height }: KernelPlace,
  y: number,
  theme: Theme,
): void {
  if (row.row > 0 || height < 11) return;
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = theme.dim;
  context.textAlign = "right";
  context.fillText(clip(context, streamOf(head, row), MAKESPAN_RIGHT - 20), MAKESPAN_RIGHT, y + height / 2);
  context.textAlign = "left";
}

/** The title of a lane in the look of papers. */
export function drawDevice(context: CanvasRenderingContext2D, band: Band, top: number): void {
  context.font = "13px system-ui, sans-serif";
  context.fillStyle = "#000000";
  context.fillText(`Device ${band.number}`, 8, band.top - top + band.height / 2);
}

/** A rank's bubble rate of what could have been, where that is known: of the ideal. */
export function overlayRate({ rates }: Rank, lane: Lane): string {
  const rate = lane === "ideal" ? rates?.no_wait : null;
  return rate == null ? "" : percent(rate);
}

/** A rank's makespan rate in little room: with what the clocks leave open, if that is anything. */
function shortRate(rates: Rank["rates"]): string {
  if (!rates) return "";
  if (rates.makespan === null || !telling(rates.error)) return percent(rates.makespan);
  return `${(100 * rates.makespan).toFixed(2)} ±${Number((100 * rates.error).toPrecision(1))}`;
}
