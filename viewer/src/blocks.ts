// What is drawn on blocks that are large enough to look at: labels, the edges of papers, how far clocks
// leave them open, and when they were launched.

import type { Scheme } from "./colour";
import { firstEndingAfter, type Head, type Tasks } from "./data";
import { clip, measure } from "./fitted";
import { long, named, short } from "./label";
import type { Place } from "./layout";
import type { Theme } from "./theme";
import type { View } from "./view";
import { wide } from "./wide";

const LAUNCHED = 4; // least pixels a task on average at which launches are marked
const SEEN = 4; // least width of a block of whose edges more is to be said
const LABEL_HEIGHT = 12; // least height of a row that carries text
const MARGIN = 1.5; // least pixels beside it
const LEAST_LONG = 40; // the same of one that carries its task's duration
const LEAST_NAME = 60; // the same of one that carries the beginning of its task's name
const BLURRED = 1.5; // least pixels by which a clock may be off that are shown
const TICK = 3;
const HATCH = "#85898e";
const HATCHED = 6; // pixels between the strokes of a block of which something is not known

export interface Marks {
  scheme: Scheme;
  launches: boolean;
  figure: boolean;
  theme: Theme;
}

/** Draw onto the blocks of one row. @param left and @param y of the row @param height of its blocks */
export function drawBlocks(
  context: CanvasRenderingContext2D,
  head: Head,
  tasks: Tasks,
  { row }: Place,
  view: View,
  left: number,
  y: number,
  height: number,
  { scheme, launches, figure, theme }: Marks,
): void {
  const { start, end } = tasks;
  const widthOf = measure(context);
  if (launches && row.lane === "compute") launched();
  const off = (head.ranks[row.rank]!.off ?? 0) * view.scale;
  const blurred = off >= BLURRED && (row.lane === "compute" || row.lane === "comm");
  const least = blurred || figure ? SEEN : widthOf("1") + 2 * MARGIN;
  if (height < LABEL_HEIGHT && !blurred && !figure) return;
  for (const index of wide(tasks, row, view, least)) {
    const [x0, x1] = [view.x(start[index]!), view.x(end[index]!)];
    if (blurred) blur(index, x0, x1);
    if (figure) {
      context.strokeStyle = "#000000";
      context.lineWidth = 1;
      context.strokeRect(left + x0, y + 0.5, x1 - x0, height - 1);
    }
    if (scheme.codes[index] === scheme.hatched) hatch(Math.max(-1, x0), Math.min(view.width + 1, x1));
    if (height >= LABEL_HEIGHT) label(index, Math.max(-1, x0), Math.min(view.width + 1, x1));
  }

  /** Strike a block through: what its colour would say is not known. */
  function hatch(from: number, to: number): void {
    context.save();
    context.beginPath();
    context.rect(left + from, y, to - from, height);
    context.clip();
    context.strokeStyle = HATCH;
    context.lineWidth = 1;
    context.beginPath();
    for (let x = from - height; x < to; x += HATCHED) {
      context.moveTo(left + x, y + height);
      context.lineTo(left + x + height, y);
    }
    context.stroke();
    context.restore();
  }

  function label(task: number, from: number, to: number): void {
    const { codes, below, inks } = scheme;
    const many = tasks.merged?.[task] ?? 0;
    if (many > 1) return write([`${short(head, tasks, task)} ×${many}`], inks[codes[task]!]!, from, to, height / 2);
    if (tasks.pair[task]! >= 0 && codes !== below && height >= 2 * LABEL_HEIGHT - 2) {
      const both = figure ? `${tasks.microbatch[task]}+${tasks.pair[task]}` : short(head, tasks, task);
      const [upper, lower] = both.split("+") as [string, string];
      write([upper], inks[codes[task]!]!, from, to, height / 4);
      write([lower], inks[below[task]!]!, from, to, (3 * height) / 4);
      return;
    }
    const number = String(tasks.microbatch[task]! < 0 ? "" : tasks.microbatch[task]);
    const whole = to - from < LEAST_LONG ? "" : long(head, tasks, task);
    const texts = [whole, short(head, tasks, task), number];
    if (figure) texts.splice(0, 2);
    else if (named(head, tasks, task)) texts[2] = to - from < LEAST_NAME ? "" : clip(context, texts[1]!, to - from - 6);
    write(texts, inks[codes[task]!]!, from, to, height / 2);
  }

  /** Write the first of some texts that fits. */
  function write(texts: string[], ink: string, from: number, to: number, middle: number): void {
    context.fillStyle = ink;
    for (const text of texts) {
      if (text === "") continue;
      const width = widthOf(text);
      if (width + (figure ? 1 : 2 * MARGIN) > to - from) continue;
      context.fillText(text, left + (from + to - width) / 2, y + middle + 0.5);
      break;
    }
  }

  /** Make the edges of a block as soft as its machine's clock is uncertain. */
  function blur(task: number, x0: number, x1: number): void {
    const fill = scheme.fills[scheme.codes[task]!]!;
    for (const [edge, inward] of [
      [x0, 1],
      [x1, -1],
    ] as const) {
      if (edge < -off || edge > view.width + off) continue;
      const reach = Math.min(off, (x1 - x0) / 2);
      fade(edge, edge + inward * reach, theme.idle, 0.75);
      fade(edge, edge - inward * off, fill, 0.5);
    }
  }

  function fade(edge: number, far: number, colour: string, opacity: number): void {
    const gradient = context.createLinearGradient(left + edge, 0, left + far, 0);
    gradient.addColorStop(
      0,
      colour +
        Math.round(opacity * 255)
          .toString(16)
          .padStart(2, "0"),
    );
    gradient.addColorStop(1, `${colour}00`);
    context.fillStyle = gradient;
    context.fillRect(left + Math.min(edge, far), y, Math.abs(far - edge), height);
  }

  /** Mark the launches in sight, unless they are too many to tell apart. */
  function launched(): void {
    const first = firstEndingAfter(end, row.from, row.to, view.start);
    const last = firstEndingAfter(end, first, row.to, view.end);
    if ((last - first) * LAUNCHED > view.width) return;
    for (let index = first; index < row.to && start[index]! < view.end; index++) launch(index);
  }

  /** Mark when the host issued a task, and how long the device took to begin. */
  function launch(task: number): void {
    const { lead } = tasks;
    if (lead[task]! < 0) return;
    const [at, began] = [view.x(start[task]! - lead[task]!), view.x(start[task]!)];
    if (at < 0 || at > view.width) return;
    context.fillStyle = theme.text;
    context.fillRect(left + at - 0.5, y - TICK, 1, TICK + 2);
    context.globalAlpha = 0.35;
    context.fillRect(left + at, y - 1, Math.min(began, view.width) - at, 1);
    context.globalAlpha = 1;
  }
}
