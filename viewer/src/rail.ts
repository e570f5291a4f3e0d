// A rail above each lane, on which nothing vanishes however short it is: what is selected, what was found,
// and the optimizer. In the lanes themselves nothing is widened.

import { firstEndingAfter, type Data, type Head, type Row } from "./data";
import type { Place } from "./layout";
import type { Theme } from "./theme";
import type { View } from "./view";

const LEAST = 2; // width of a tick
const HIGH = 2; // its height, and
const ROOM = 8; // the least height of a lane that has any
const RESOLVED = 3; // width of a block from which it needs no tick

/** Tasks that have ticks: in ascending order. */
export class Rail {
  private readonly optimizers: Uint32Array;
  private hits: Uint32Array = new Uint32Array();
  private of: Uint8Array | null = null;

  constructor(head: Head, { tasks }: Data) {
    const kind = head.kinds.findIndex(({ name }) => name === "optimizer");
    this.optimizers = chosen(tasks.kind.length, (task) => tasks.kind[task] === kind);
  }

  /** Draw the ticks of a lane. @param found tasks that a search is about @param left and @param y of the lane */
  draw(
    context: CanvasRenderingContext2D,
    data: Data,
    { row, height }: Place,
    selected: number,
    found: Uint8Array | null,
    view: View,
    left: number,
    y: number,
    theme: Theme,
  ): void {
    if (found !== this.of) this.hits = found ? chosen(found.length, (task) => found[task] !== 0) : new Uint32Array();
    this.of = found;
    if (height < ROOM) return;
    this.ticks(context, data, row, this.optimizers, view, left, y, theme.dim);
    this.ticks(context, data, row, this.hits, view, left, y, theme.text);
    if (row.from <= selected && selected < row.to)
      this.ticks(context, data, row, Uint32Array.of(selected), view, left, y, theme.accent);
  }

  private ticks(
    context: CanvasRenderingContext2D,
    { tasks: { start, end } }: Data,
    row: Row,
    tasks: Uint32Array,
    view: View,
    left: number,
    y: number,
    colour: string,
  ): void {
    context.fillStyle = colour;
    const first = firstEndingAfter(end, row.from, row.to, view.start);
    let drawn = -Infinity;
    for (let at = firstFrom(tasks, first); at < tasks.length && tasks[at]! < row.to; at++) {
      const task = tasks[at]!;
      const x = view.x(start[task]!);
      if (x > view.width) return;
      const width = view.x(end[task]!) - x;
      if (width >= RESOLVED || x + width < drawn + 1) continue;
      drawn = x;
      context.fillRect(left + x + (width - LEAST) / 2, y - HIGH, LEAST, HIGH);
    }
  }
}

function chosen(count: number, wanted: (task: number) => boolean): Uint32Array {
  const found: number[] = [];
  for (let task = 0; task < count; task++) if (wanted(task)) found.push(task);
  return Uint32Array.from(found);
}

/** Index of the first of some ascending numbers that is not below one. */
function firstFrom(numbers: Uint32Array, least: number): number {
  let [from, to] = [0, numbers.length];
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (numbers[middle]! < least) from = middle + 1;
    else to = middle;
  }
  return from;
}
