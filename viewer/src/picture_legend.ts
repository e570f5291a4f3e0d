// The legend of a picture: what its colours and patterns mean, as shapes and as pixels.

import { LEAST_CONTRAST } from "./area";
import type { Scheme } from "./colour";
import type { Cause, Data, Head, Pattern } from "./data";
import { shape } from "./dom";
import { contrast } from "./light";
import { inked, PERIOD } from "./pattern";
import type { Theme } from "./theme";
import { firstWaiting, waitingFill } from "./waits";
import { nameOf, t } from "./words";

const SIDE = 11; // pixels of a swatch
const STROKE = [SIDE - 4, 2] as const; // of what is inherent: where it begins, and its height
const LINE = 20; // height of a line of entries
const LETTER = 6.6; // mean width of one
const BESIDE = 18; // pixels between an entry and the next
const FONT = "12px Helvetica, Arial, sans-serif";

/** What one colour means. */
export interface Entry {
  fill: string;
  text: string;
  edge?: string; // of the line around it, where it hardly differs from the ground
  pattern?: Pattern;
}

/** What a picture shows: blocks, causes and kernels. @param causes those that are in it */
export function entriesOf(
  head: Head,
  { tasks }: Data,
  scheme: Scheme,
  theme: Theme,
  causes: Cause[],
  kernels: boolean,
): Entry[] {
  const entry = (code: number, fill: string, text: string): Entry => {
    const edge = edgeOf(scheme, code, theme);
    return { fill, text, ...(edge === null ? {} : { edge }) };
  };
  const blocks = scheme.legend.map(([fill, text]) => entry(scheme.fills.indexOf(fill), fill, text));
  const waiting = scheme.codes[firstWaiting(tasks)];
  if (waiting !== undefined)
    blocks.push(entry(waiting, waitingFill(scheme.fills[waiting]!, theme), t("collective, waiting for the last rank")));
  const told = causes.map((cause): Entry => ({
    fill: fillOf(cause, theme),
    text: nameOf(cause.name),
    pattern: cause.pattern,
  }));
  const uses = kernels ? (head.kernels?.uses ?? []) : [];
  const ran = uses.map((use): Entry => ({
    fill: theme.dark ? use.dark.fill : use.fill,
    text: t("kernels: {use}", { use: nameOf(use.name) }),
  }));
  return [...blocks, ...told, ...ran].map((one) => ({ ...one, text: one.text[0]!.toUpperCase() + one.text.slice(1) }));
}

export function fillOf({ fill, dark }: Cause, theme: Theme): string {
  return theme.dark ? dark : fill;
}

/** The line around a fill that hardly differs from the ground; null where it needs none. */
export function edgeOf({ fills, edges }: Scheme, code: number, theme: Theme): string | null {
  const edge = edges[code];
  return edge && contrast(fills[code]!, theme.idle) < LEAST_CONTRAST ? edge : null;
}

interface Place extends Entry {
  x: number;
  y: number;
}

/** How wide a text is, in letters: those of Chinese are nearly as wide as two. */
function letters(text: string): number {
  return [...text].reduce((sum, one) => sum + (one > "\u2e7f" ? 1.8 : 1), 0);
}

/** Where each entry stands in so much width, and how high all are. */
function laid(entries: Entry[], width: number): { places: Place[]; height: number } {
  let [x, y] = [0, 0];
  const places = entries.map((entry) => {
    const long = SIDE + 5 + letters(entry.text) * LETTER + BESIDE;
    if (x > 0 && x + long > width) [x, y] = [0, y + LINE];
    const place = { ...entry, x: Math.round(x), y };
    x += long;
    return place;
  });
  return { places, height: entries.length ? y + LINE : 0 };
}

/** The legend as shapes, and how high it is. @param left, top where it begins */
export function shapes(
  entries: Entry[],
  left: number,
  top: number,
  width: number,
  theme: Theme,
): { made: SVGElement; height: number } {
  const { places, height } = laid(entries, width);
  const made = shape("g", { class: "legend" });
  for (const { x, y, fill, edge, pattern, text } of places) {
    const [first, tall] = pattern === "line" ? STROKE : [0, SIDE];
    const box = { x: left + x, y: top + y + first, width: SIDE, height: tall };
    made.append(
      shape("rect", {
        ...box,
        fill: pattern ? `url(#${idOf(pattern, fill)})` : fill,
        ...(edge ? { stroke: edge } : {}),
      }),
      shape("text", { x: left + x + SIDE + 5, y: top + y + SIDE - 1, fill: theme.text }, text),
    );
  }
  return { made, height };
}

/** Of causes, the patterns that their shapes are filled with. */
export function patternsOf(causes: Cause[], theme: Theme): SVGElement {
  return shape(
    "defs",
    {},
    ...causes.map((cause) => {
      const fill = fillOf(cause, theme);
      const tile = shape("pattern", {
        id: idOf(cause.pattern, fill),
        width: PERIOD,
        height: PERIOD,
        patternUnits: "userSpaceOnUse",
      });
      for (let y = 0; y < PERIOD; y++)
        for (let from = 0, to: number; from < PERIOD; from = to + 1) {
          for (to = from; to < PERIOD && inked(cause.pattern, to, y);) to++;
          if (to > from) tile.append(shape("rect", { x: from, y, width: to - from, height: 1, fill }));
        }
      return tile;
    }),
  );
}

/** What a shape of a cause is filled with. */
export function patternFill(cause: Cause, theme: Theme): string {
  return `url(#${idOf(cause.pattern, fillOf(cause, theme))})` as const;
}

function idOf(pattern: Pattern, fill: string): string {
  return `${pattern}-${fill.slice(1)}`;
}

/** The legend as pixels. @param width of the canvas in pixels of the device */
export function pixels(entries: Entry[], width: number, ratio: number, left: number, theme: Theme): HTMLCanvasElement {
  const made = document.createElement("canvas");
  const { places, height } = laid(entries, width / ratio - left - BESIDE);
  made.width = width;
  made.height = Math.ceil((height + LINE / 2) * ratio);
  const context = made.getContext("2d")!;
  context.scale(ratio, ratio);
  context.translate(left, LINE / 2);
  context.font = FONT;
  for (const { x, y, fill, edge, pattern, text } of places) {
    context.fillStyle = fill;
    const [first, tall] = pattern === "line" ? STROKE : [0, SIDE];
    if (!pattern || pattern === "line") context.fillRect(x, y + first, SIDE, tall);
    else
      for (let row = 0; row < SIDE; row++)
        for (let column = 0; column < SIDE; column++)
          if (inked(pattern, column, row)) context.fillRect(x + column, y + row, 1, 1);
    context.strokeStyle = edge ?? fill;
    if (edge) context.strokeRect(x + 0.5, y + 0.5, SIDE - 1, SIDE - 1);
    context.fillStyle = theme.text;
    context.fillText(text, x + SIDE + 5, y + SIDE - 1);
  }
  return made;
}
