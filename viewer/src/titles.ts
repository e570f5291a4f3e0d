// What stands left of the lanes: ranks with their stages and bubble rates, and headings of groups.

import { idleOf, type Devices, type Head, type Lane, type Rank } from "./data";
import { sharesOf } from "./devices";
import { clip } from "./fitted";
import { streamOf } from "./kernels";
import type { Band, Caption, Curve, Fold, Heading, KernelPlace, Note, Place } from "./layout";
import type { Theme } from "./theme";
import { duration, percent, quantity, telling } from "./units";
import { nameOf, t } from "./words";

const FIGURE_GUTTER = 84; // CSS pixels left of the plot in the look of papers
const WIDTHS: [page: number, gutter: number][] = [
  [1366, 176],
  [900, 142],
  [520, 72],
]; // from so wide a page on; on narrower ones a rank's title stands above its lane
const STAGES = 68; // where they begin, of ranks with few digits
const BESIDE = 8; // least pixels between them and what is beside them
export const TWO_LINES = 36; // least height of a lane that has room for two lines beside it
const RATED = 130; // the same for rates beside the numbers
export const UNFOLD_RIGHT = 64; // right edge of what unfolds a rank: its mark and number
export const FOLD_RIGHT = 22; // right edge of the mark that folds a group
export const TIGHT = 12; // least distance of titles
export const SPARSE = 17; // the same where not every rank has one
const FOLD_TITLE = 22; // height of the title of a sum, at most

/** How wide what stands left of the plot is; 0 where titles stand above their lanes. */
export function gutterOf(page: number, figure: boolean): number {
  if (figure) return FIGURE_GUTTER;
  return WIDTHS.find(([least]) => page >= least)?.[1] ?? 0;
}

/** Right edge of the rates in a gutter of a width. */
export function rateRight(gutter: number): number {
  return gutter - 10;
}

const GAUGE = { wide: 48, tall: 3, below: 8 }; // pixels of the line under an idle share, and from the middle of its text
const GAUGED = 20; // least height of a lane that has room for it

export function drawHeading(
  context: CanvasRenderingContext2D,
  { group, height }: Heading,
  y: number,
  gutter: number,
  width: number,
  theme: Theme,
): void {
  const told = group.detail !== "";
  const count = told ? "" : group.ranks.length === 1 ? t("1 rank") : t("{count} ranks", { count: group.ranks.length });
  const room = group.folded && !told && gutter > 0 ? gutter : width;
  context.fillStyle = theme.band;
  context.fillRect(0, y, room, height);
  context.fillStyle = theme.dim;
  context.font = "10px system-ui, sans-serif";
  context.fillText(group.folded ? "▶" : "▼", 9, y + height / 2 + 0.5);
  context.font = "600 12px system-ui, sans-serif";
  context.fillStyle = theme.text;
  const title = clip(context, group.title, Math.min(220, room - FOLD_RIGHT - 60));
  context.fillText(title, FOLD_RIGHT + 2, y + height / 2);
  const after = FOLD_RIGHT + 10 + context.measureText(title).width;
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = theme.dim;
  const off =
    !group.folded && group.off > 0
      ? ` · ${t("clock ±{time} against the first host", { time: duration(group.off) })}`
      : "";
  const from = told ? Math.max(after, gutter + 8) : after;
  context.fillText(clip(context, told ? group.detail : count + off, room - from - 4), from, y + height / 2);
}

/** Of which stages a sum is, of how many ranks, and how much they were idle. */
export function drawFold(
  context: CanvasRenderingContext2D,
  head: Head,
  { title, ranks, height, shows, stack }: Fold,
  y: number,
  gutter: number,
  width: number,
  theme: Theme,
): void {
  const opened = shows === "ranks";
  const on = gutter === 0 && !opened; // there is no room beside the lane
  if (on && height < TIGHT) return;
  const idle = stack === "compute" && !opened ? meanIdle(head, ranks) : "";
  const narrow = gutter > 0 && !rated(gutter);
  const named = narrow ? title.replace(t("stage {stage}", { stage: "" }), "") : title;
  const counted = narrow || ranks.length === 1 ? named : `${named} × ${ranks.length}`;
  const said = on && idle !== "" ? t("{rank} · {share} idle", { rank: counted, share: idle }) : counted;
  context.font = "11px system-ui, sans-serif";
  const shown = clip(context, said, (gutter || width) - FOLD_RIGHT - 6);
  const long = FOLD_RIGHT + BESIDE + context.measureText(shown).width;
  context.fillStyle = theme.band;
  if (opened || on) context.fillRect(0, y, on ? long : width, on ? TIGHT : height);
  const middle = y + Math.min(Math.max(height, TIGHT), on ? TIGHT : FOLD_TITLE) / 2;
  context.font = "9px system-ui, sans-serif";
  context.fillStyle = theme.dim;
  context.fillText(opened ? "▼" : "▶", 9, middle + 0.5);
  context.font = "11px system-ui, sans-serif";
  context.fillText(shown, FOLD_RIGHT + 2, middle);
  if (!rated(gutter) || idle === "") return;
  const right = rateRight(gutter);
  const fits = long <= right - context.measureText(idle).width;
  if (!fits && height < TWO_LINES) return;
  context.textAlign = "right";
  context.fillStyle = theme.text;
  context.fillText(idle, right, fits ? middle : middle + 15);
  context.textAlign = "left";
}

/** How much some ranks were idle, the mean; empty where that is not known of each. */
export function meanIdle({ ranks }: Pick<Head, "ranks">, some: number[]): string {
  const shares = some.map((rank) => idleOf(ranks[rank]!));
  return shares.some((share) => share === null)
    ? ""
    : percent(shares.reduce<number>((sum, share) => sum + share!, 0) / some.length);
}

/** Of which ranks a sum is, and how to see them. */
export function foldTooltip({ title, ranks, shows }: Fold): string {
  if (shows === "ranks") return t("{title}: click to fold", { title });
  return ranks.length === 1
    ? t("{title}: click to see the rank", { title })
    : t("{title}: mean of {count} ranks; click to see each", { title, count: ranks.length });
}

/** What is to be said of the lane above. */
export function drawNote(
  context: CanvasRenderingContext2D,
  { text, height }: Note,
  y: number,
  left: number,
  width: number,
  theme: Theme,
): void {
  context.fillStyle = theme.page;
  context.fillRect(left, y, width - left, height); // no line of a step goes through the text
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = theme.text;
  context.fillText(clip(context, text, width - left - 8), left + 8, y + height / 2);
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
  const shown = clip(context, title, width - 20);
  context.fillText(shown, 10, middle);
  const after = Math.max(left + 8, 22 + context.measureText(shown).width);
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = theme.dim;
  context.fillText(clip(context, detail, width - after - 8), after, middle);
}

export function drawTitle(
  context: CanvasRenderingContext2D,
  head: Head,
  band: Band,
  top: number,
  gutter: number,
  theme: Theme,
): void {
  const rank = head.ranks[band.rank]!;
  const above = gutter === 0; // the title has a line of its own
  if (above && !band.titled) return;
  const measured = band.stack === "compute";
  const tall = head.against && measured ? band.height / 2 : band.height; // the other run has a title of its own
  const y = band.top - top + Math.min(above ? band.titled : tall, 22) / 2;
  const known = measured ? shortRate(rank) : overlayRate(head, band.rank, band.stack);
  const right = rateRight(gutter);
  const wide = rated(gutter);
  if (measured && wide && tall >= GAUGED) {
    const spent = rank.idle === null ? null : head.devices?.ranks[band.rank];
    if (spent) drawSpent(context, head.devices!, spent, right, y, theme);
    else drawGauge(context, idleOf(rank), right, y, theme);
  }
  if (measured && band.unfolded !== null) {
    context.font = "9px system-ui, sans-serif";
    context.fillStyle = theme.dim;
    context.fillText(band.unfolded ? "▼" : "▶", 1, y + 0.5);
  }
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = theme.text;
  const called = titleOf(head, rank, { compute: "A", against: "B" }[band.stack as string]);
  const name = above && known ? t("{rank} · {share} idle", { rank: called, share: known }) : called;
  const from = band.unfolded === null ? (above ? 4 : 10) : 13;
  context.fillText(name, from, y);
  context.fillStyle = theme.dim;
  const stages = rank.stages?.length ? t("stage {stage}", { stage: rank.stages.join(", ") }) : "";
  if (above) context.fillText(stages, 22 + context.measureText(name).width, y);
  if (wide) {
    const x = Math.max(STAGES, from + context.measureText(name).width + BESIDE);
    const room = right - context.measureText(known).width - BESIDE - x;
    if (context.measureText(stages).width <= room) context.fillText(stages, x, y);
    else if (tall >= TWO_LINES) context.fillText(clip(context, stages, right - 14), from, y + 15);
    else if (/\d/.test(clip(context, stages, room))) context.fillText(clip(context, stages, room), x, y); // not the word alone
  }
  if (above || known === "") return;
  context.textAlign = "right";
  context.fillStyle = theme.text;
  if (wide) context.fillText(known, right, y);
  else if (band.height >= 32) context.fillText(known, right, y + 14);
  context.textAlign = "left";
}

/** How much of the time was idle, as a line below the number. */
function drawGauge(
  context: CanvasRenderingContext2D,
  share: number | null,
  right: number,
  y: number,
  theme: Theme,
): void {
  if (share === null) return;
  context.fillStyle = theme.line;
  context.fillRect(right - GAUGE.wide, y + GAUGE.below, GAUGE.wide, GAUGE.tall);
  context.fillStyle = theme.dim;
  context.fillRect(right - GAUGE.wide, y + GAUGE.below, GAUGE.wide * Math.min(1, share), GAUGE.tall);
}

/** What a device was busy with, in the same place; what is left of the line is idle. */
function drawSpent(
  context: CanvasRenderingContext2D,
  devices: Devices,
  times: number[],
  right: number,
  y: number,
  theme: Theme,
): void {
  context.fillStyle = theme.line;
  context.fillRect(right - GAUGE.wide, y + GAUGE.below, GAUGE.wide, GAUGE.tall);
  const shares = sharesOf(devices, times);
  let from = right - GAUGE.wide;
  for (const [use, { fill, dark }] of devices.uses.entries()) {
    context.fillStyle = theme.dark ? dark.fill : fill;
    context.fillRect(from, y + GAUGE.below, GAUGE.wide * shares[use]!, GAUGE.tall);
    from += GAUGE.wide * shares[use]!;
  }
}

/** What a rank is called; where there are two runs, with the one that is meant. */
function titleOf(head: Head, { rank }: Rank, run = ""): string {
  return head.against && run ? t("rank {rank} {run}", { rank, run }) : t("rank {rank}", { rank });
}

/** What the lane of an overlay shows, and the bubble rate of what could have been. */
export function drawOverlayTitle(
  context: CanvasRenderingContext2D,
  head: Head,
  place: Place,
  y: number,
  gutter: number,
  theme: Theme,
): void {
  const { row, height } = place;
  const overlay = head.overlays.find(({ lane }) => lane === row.lane);
  if (!overlay || height < 12) return;
  if (row.lane === "against") return drawOtherRun(context, head, place, y + Math.min(height, 22) / 2, gutter, theme);
  if (gutter < RATED) return;
  const rate = overlayRate(head, row.rank, row.lane);
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = theme.dim;
  context.textAlign = "right";
  const right = rate === "" ? rateRight(gutter) : rateRight(gutter) - 56;
  context.fillText(clip(context, nameOf(overlay.name), right - 10), right, y + height / 2);
  context.fillText(rate, rateRight(gutter), y + height / 2);
  context.textAlign = "left";
}

/** The other run, and its bubble rates on this rank. */
function drawOtherRun(
  context: CanvasRenderingContext2D,
  head: Head,
  { row, height }: Place,
  y: number,
  gutter: number,
  theme: Theme,
): void {
  if (row.row > 0 || gutter === 0) return;
  const rates = head.against?.rates[row.rank] ?? null;
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = theme.dim;
  const before = context.measureText(`${titleOf(head, head.ranks[row.rank]!)} `).width;
  context.fillText("B", 10 + before, y);
  // Of devices A and B are told by the same measure, or not at all.
  const ofDevices = head.ranks[row.rank]!.idle !== null;
  const idle = ofDevices ? (head.against?.idle[row.rank] ?? null) : null;
  if (gutter < RATED || (ofDevices ? idle === null : rates === null)) return;
  if (rates && !ofDevices && height >= GAUGED) drawGauge(context, rates.makespan, rateRight(gutter), y, theme);
  context.textAlign = "right";
  context.fillStyle = theme.text;
  context.fillText(shortRate({ rates, idle }), rateRight(gutter), y);
  context.textAlign = "left";
}

/** Which stream a row of kernels is of. */
export function drawStream(
  context: CanvasRenderingContext2D,
  head: Head,
  { row, height }: KernelPlace,
  y: number,
  gutter: number,
  theme: Theme,
): void {
  if (row.row > 0 || height < 11 || gutter === 0) return;
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = theme.dim;
  context.textAlign = "right";
  context.fillText(clip(context, streamOf(head, row), gutter - 16), rateRight(gutter), y + height / 2);
  context.textAlign = "left";
}

/** What the curve of a counter shows, and how high it goes: beside it where there is room. */
export function drawCounter(
  context: CanvasRenderingContext2D,
  { counters }: Head,
  { samples, height }: Curve,
  y: number,
  gutter: number,
  theme: Theme,
): void {
  if (!rated(gutter)) return;
  const { name, unit, most } = counters[samples.counter]!;
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = theme.dim;
  context.textAlign = "right";
  const [right, room] = [rateRight(gutter), rateRight(gutter) - 10];
  const scale = t("0 to {most}", { most: quantity(most, unit) });
  if (height >= 2 * TIGHT) {
    context.fillText(clip(context, name, room), right, y + height / 2 - TIGHT / 2);
    context.fillText(clip(context, scale, room), right, y + height / 2 + TIGHT / 2);
  } else context.fillText(clip(context, `${name} · ${scale}`, room), right, y + height / 2);
  context.textAlign = "left";
}

/** Whether a gutter has room for rates and other numbers beside the names. */
export function rated(gutter: number): boolean {
  return gutter >= RATED;
}

/** The title of a lane in the look of papers. */
export function drawDevice(context: CanvasRenderingContext2D, band: Band, top: number): void {
  context.font = "13px system-ui, sans-serif";
  context.fillStyle = "#000000";
  context.fillText(t("Device {number}", { number: band.number }), 8, band.top - top + band.height / 2);
}

/** A rank's bubble rate of what could have been, where that is known. */
export function overlayRate({ ranks, overlays }: Pick<Head, "ranks" | "overlays">, rank: number, lane: Lane): string {
  const overlay = overlays.find((one) => one.lane === lane);
  const rate = lane === "ideal" ? ranks[rank]!.rates?.no_wait : overlay?.idle?.[rank];
  return rate == null ? "" : percent(rate);
}

/** How much a rank was idle in little room: with what the clocks leave open, if that is anything. */
function shortRate({ rates, idle }: Pick<Rank, "rates" | "idle">): string {
  if (idle !== null) return percent(idle);
  if (!rates) return "";
  if (rates.makespan === null || !telling(rates.error)) return percent(rates.makespan);
  return `${(100 * rates.makespan).toFixed(2)} ±${Number((100 * rates.error).toPrecision(1))}`;
}
