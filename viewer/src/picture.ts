// The view as a picture: pixels as they are on the screen, or shapes that a paper can be made of.

import { inksOf, Layer, type Inks } from "./area";
import type { Scheme } from "./colour";
import { firstEndingAfter, idleOf, type Data, type Extent, type Head } from "./data";
import { shape, shortened } from "./dom";
import { AXIS, axis, causeBands } from "./frame";
import { gridOf } from "./grid";
import { short } from "./label";
import { VEIL } from "./lanes";
import { within, type Fold, type KernelPlace, type Layout } from "./layout";
import { edgeOf, entriesOf, patternsOf, pixels, shapes } from "./picture_legend";
import { packed, unpacked } from "./raster";
import { sumOf } from "./sums";
import type { Theme } from "./theme";
import { gutterOf, overlayRate, TWO_LINES } from "./titles";
import { fixed, percent } from "./units";
import type { View } from "./view";
import { halves, waitingFill } from "./waits";
import { t } from "./words";

const SVG_GUTTER = 150;
const TOP = 8;
const LONGEST = 24; // letters of a group's title
const LONGEST_CAPTION = 100;
const LEAST_EDGED = 3; // pixels of width from which a block has lines
const LEAST_BLOCK = 1.5; // pixels a block on average from which blocks are shapes of their own

export interface Pictured {
  view: View;
  plan: Layout;
  scheme: Scheme;
  theme: Theme;
  figure: boolean;
  causes: boolean; // bands that say why ranks were idle
  top: number;
  height: number;
}

/**
 * What the canvases show, one below the other, and what it means.
 *
 * @param head, data, pictured what the lanes show
 * @param left of the plot
 */
export function png(
  canvases: HTMLCanvasElement[],
  head: Head,
  data: Data,
  { view, plan, scheme, theme, causes, top, height }: Pictured,
  left: number,
): Promise<Blob> {
  const places = causes ? within(plan.places, top, top + height) : [];
  const told = causeBands(head, data, places, view, 0, 0, theme);
  const entries = entriesOf(head, data, scheme, theme, told.causes, plan.kernels.length > 0);
  const [{ width }] = canvases as [HTMLCanvasElement];
  const legend = pixels(entries, width, devicePixelRatio, left || TOP, theme);
  return joined([...canvases, legend], theme);
}

function joined(canvases: HTMLCanvasElement[], theme: Theme): Promise<Blob> {
  const made = document.createElement("canvas");
  made.width = Math.max(...canvases.map(({ width }) => width));
  made.height = canvases.reduce((sum, { height }) => sum + height, 0);
  const context = made.getContext("2d")!;
  context.fillStyle = theme.page;
  context.fillRect(0, 0, made.width, made.height);
  let y = 0;
  for (const canvas of canvases) {
    context.drawImage(canvas, 0, y);
    y += canvas.height;
  }
  return new Promise((resolve, reject) =>
    made.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the picture is too large"))), "image/png"),
  );
}

/** The lanes in sight as an SVG document. */
export function svg(
  head: Head,
  data: Data,
  { view, plan, scheme, theme, figure, causes, top, height }: Pictured,
): string {
  const { tasks } = data;
  const above = figure ? TOP : AXIS + TOP;
  const left = figure ? gutterOf(0, true) : SVG_GUTTER;
  const places = within(plan.places, top, top + height);
  const folds = within(plan.folds, top, top + height);
  const lowest = [...places, ...within(plan.headings, top, top + height), ...folds].reduce(
    (low, one) => Math.max(low, one.top + one.height),
    top,
  );
  const bottom = lowest - top;
  const width = left + view.width + 8;
  const told = causeBands(head, data, causes ? places : [], view, left, above - top, theme);
  const parts: SVGElement[] = [];
  const line = new Uint32Array(Math.round(view.width));
  const grid = gridOf(view, 1);
  const split = halves(tasks);
  const waiting = scheme.fills.map((fill) => waitingFill(fill, theme));
  const blocks = [new Layer(split?.together ?? tasks, scheme.codes, plain(scheme.fills))];
  if (split) blocks.push(new Layer(split.waiting, scheme.codes, plain(waiting)));

  for (const { row, top: at, height: whole, band } of places) {
    const tall = whole - (causes ? band : 0);
    const y = at - top + above;
    if (!figure) parts.push(rect(left, y, view.width, whole, theme.idle));
    const pale = !figure && (row.lane === "ideal" || row.lane === "whatif");
    const group = shape("g", pale ? { opacity: VEIL } : {});
    const first = firstEndingAfter(tasks.end, row.from, row.to, view.start);
    const last = firstEndingAfter(tasks.start, first, row.to, view.end);
    const paired = scheme.below !== scheme.codes;
    if ((last - first) * LEAST_BLOCK > view.width) mixed(group, blocks, row, y, tall);
    else for (let task = first; task < last; task++) block(group, task, y, tall, paired && tasks.pair[task]! >= 0);
    parts.push(group);
  }
  const uses = (head.kernels?.uses ?? []).map((use) => (theme.dark ? use.dark.fill : use.fill));
  const streams = new Layer(data.kernels, data.kernels.use, plain(uses));
  for (const place of within(plan.kernels, top, top + height)) streamed(place, place.top - top + above);
  for (const band of within(plan.bands, top, top + height)) {
    const rank = head.ranks[band.rank]!;
    const idle = idleOf(rank);
    const measured = idle === null ? "" : percent(idle);
    const rate = band.stack === "compute" ? measured : overlayRate(head, band.rank, band.stack);
    const title = figure
      ? t("Device {number}", { number: band.number })
      : `${t("rank {rank}", { rank: rank.rank })}${rate && `  ${t("{share} idle", { share: rate })}`}`;
    const y = band.top - top + above + Math.min(band.height, figure ? band.height : 22) / 2 + 4;
    if (band.height >= 11) parts.push(shape("text", { x: 6, y, fill: theme.text }, title));
    if (!figure && band.stack === "compute" && band.height >= TWO_LINES && rank.stages?.length)
      parts.push(
        shape(
          "text",
          { x: 6, y: y + 15, fill: theme.dim },
          t("stage {stages}", { stages: rank.stages.join(", ") }).slice(0, LONGEST),
        ),
      );
  }
  for (const fold of folds) if (fold.shows === "sum") sums(fold, fold.top - top + above);
  for (const { group, height: tall, top: at } of within(plan.headings, top, top + height)) {
    const y = at - top + above + tall / 2 + 4;
    const title =
      group.title.slice(0, LONGEST) + (group.detail ? "" : `  ${t("{count} ranks", { count: group.ranks.length })}`);
    parts.push(shape("text", { x: 6, y, fill: theme.text, "font-weight": 600 }, title));
    if (group.detail)
      parts.push(shape("text", { x: left, y, fill: theme.dim }, shortened(group.detail, LONGEST_CAPTION)));
  }
  for (const { text, height: tall, top: at } of within(plan.notes, top, top + height)) {
    const y = at - top + above + tall / 2 + 4;
    parts.push(shape("text", { x: left, y, fill: theme.text }, shortened(text, LONGEST_CAPTION)));
  }
  for (const caption of within(plan.captions, top, top + height)) {
    const y = caption.top - top + above + caption.height / 2 + 4;
    parts.push(
      shape(
        "text",
        { x: figure ? left : 6, y, fill: theme.text, "font-weight": 600 },
        shortened(caption.title, LONGEST_CAPTION),
      ),
    );
  }
  parts.push(told.bands);
  const entries = entriesOf(head, data, scheme, theme, told.causes, plan.kernels.length > 0);
  const legend = shapes(entries, left, bottom + above + 12, view.width, theme);
  parts.push(legend.made);
  const end = bottom + above + 12 + legend.height + 6;
  const made = shape(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width,
      height: end,
      viewBox: `0 0 ${width} ${end}`,
      "font-family": "Helvetica, Arial, sans-serif",
      "font-size": 12,
    },
    patternsOf(told.causes, theme),
    shape("rect", { width, height: end, fill: theme.page }),
    ...(figure ? [] : [axis(head, view, left, above + bottom, theme)]),
    ...parts,
  );
  return new XMLSerializer().serializeToString(made);

  function block(group: SVGElement, task: number, y: number, tall: number, pair: boolean): void {
    const from = Math.max(0, view.x(tasks.start[task]!));
    const to = Math.min(view.width, view.x(tasks.end[task]!));
    if (to <= from) return;
    const upper = pair ? tall / 2 : tall;
    const came = split ? Math.min(to, Math.max(from, view.x(split.together.start[task]!))) : from;
    if (came > from) filled(group, scheme.codes[task]!, left + from, y, came - from, upper, waiting);
    if (to > came) filled(group, scheme.codes[task]!, left + came, y, to - came, upper);
    if (pair) filled(group, scheme.below[task]!, left + from, y + upper, to - from, upper);
    const text = figure ? String(tasks.microbatch[task]! < 0 ? "" : tasks.microbatch[task]) : short(head, tasks, task);
    if (tall < 12 || text === "" || text.length * 6.8 + 3 > to - from) return;
    const middle = { x: fixed(left + (from + to) / 2), y: fixed(y + tall / 2 + 4), "text-anchor": "middle" };
    group.append(shape("text", { ...middle, fill: scheme.inks[scheme.codes[task]!]! }, text));
  }

  /** A block, told from the one before it by a line at its start, and from the ground by one all around. */
  function filled(
    group: SVGElement,
    code: number,
    x: number,
    y: number,
    wide: number,
    tall: number,
    fills = scheme.fills,
  ): void {
    const edge = wide < LEAST_EDGED ? null : edgeOf(scheme, code, theme);
    group.append(rect(x, y, wide, tall, fills[code]!, figure ? "#000000" : edge));
    if (!figure && edge === null && wide >= LEAST_EDGED)
      group.append(shape("path", { d: `M${fixed(x + 0.5)} ${fixed(y)}v${fixed(tall)}`, stroke: scheme.edges[code]! }));
  }

  /** How much of each pixel's time some ranks ran tasks of each colour. */
  function sums(fold: Fold, y: number): void {
    const tall = fold.height;
    const measured = fold.stack === "compute" || fold.stack === "against";
    const wide = shape("g", figure || measured ? {} : { opacity: VEIL });
    wide.append(rect(left, y, view.width, tall, theme.idle));
    const sum = sumOf(head, fold);
    sum.advance(data, scheme, grid, Infinity);
    for (const { x: from, top: above, width: length, height: high, colour } of sum.boxes(scheme, tall)) {
      wide.append(rect(left + from, y + above, length, high, colour));
    }
    parts.push(wide);
  }

  /** The kernels of a row, which have no names here: most are too short. */
  function streamed({ row, height: tall }: KernelPlace, y: number): void {
    const { kernels } = data;
    const group = shape("g", {});
    group.append(rect(left, y, view.width, tall, theme.idle));
    const first = firstEndingAfter(kernels.end, row.from, row.to, view.start);
    const last = firstEndingAfter(kernels.start, first, row.to, view.end);
    if ((last - first) * LEAST_BLOCK > view.width) mixed(group, [streams], row, y, tall);
    else {
      for (let kernel = first; kernel < last; kernel++) {
        const [from, to] = [
          Math.max(0, view.x(kernels.start[kernel]!)),
          Math.min(view.width, view.x(kernels.end[kernel]!)),
        ];
        if (to > from) group.append(rect(left + from, y, to - from, tall, uses[kernels.use[kernel]!]!));
      }
    }
    parts.push(group);
  }

  /** Blocks finer than pixels, as on the screen: each pixel the mean of what is in it. */
  function mixed(group: SVGElement, layers: Layer[], row: Extent, y: number, tall: number): void {
    const ground = new Uint32Array(line.length).fill(packed(theme.idle));
    line.set(ground);
    for (const layer of layers) layer.mix(row, grid, { from: 0, to: line.length }, ground, line);
    for (let from = 0; from < line.length;) {
      let to = from + 1;
      while (to < line.length && line[to] === line[from]) to++;
      if (line[from] !== ground[from]) group.append(rect(left + from, y, to - from, tall, unpacked(line[from]!)));
      from = to;
    }
  }
}

/** Colours of blocks without lines. */
function plain(fills: string[]): Inks {
  return inksOf(fills, fills, null);
}

function rect(
  x: number,
  y: number,
  width: number,
  height: number,
  fill: string,
  stroke: string | null = null,
): SVGElement {
  const edge = stroke === null ? {} : { stroke, "stroke-width": 0.8 };
  return shape("rect", { x: fixed(x), y: fixed(y), width: fixed(width), height: fixed(height), fill, ...edge });
}

/** Put something on the clipboard; where there is none, as in files opened from disk by some browsers, save it. */
export async function copy(what: Blob, name: string): Promise<"copied" | "saved"> {
  try {
    const plain = what.type.startsWith("image/svg")
      ? { "text/plain": new Blob([await what.text()], { type: "text/plain" }) }
      : {};
    const item = what.type === "image/png" ? { "image/png": what } : plain;
    await navigator.clipboard.write([new ClipboardItem(item)]);
    return "copied";
  } catch {
    save(what, name);
    return "saved";
  }
}

export function save(what: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(what);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
