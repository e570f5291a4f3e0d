// The whole run in one strip, with a window on what is in sight.

import { scheme as schemeOf, type Mode, type Scheme } from "./colour";
import { rowsByRank, type Data, type Head } from "./data";
import { resize } from "./paint";
import { packed, Raster } from "./raster";
import { Sum } from "./sums";
import type { Theme } from "./theme";
import { duration } from "./units";
import type { View } from "./view";
import { t } from "./words";

export const MINIMAP = 34; // pixels of height
const BUDGET = 8; // milliseconds of a frame
const NAMED = 120; // least room beside it that has words
const GRIP = 6; // pixels from an edge of the window that take hold of it

export type Grip = "start" | "end" | "inside" | "outside";

export class Minimap {
  private readonly raster = new Raster();
  private readonly sum: Sum;
  private painted: readonly unknown[] = []; // of what the pixels are
  private readonly head: Head;
  private known: { mode: Mode; dark: boolean; scheme: Scheme } | null = null; // of a run as it looks from afar

  /** @param far whether the lanes will have other data: this is the run as it looks from afar */
  constructor(
    private readonly canvas: HTMLCanvasElement,
    head: Head,
    private readonly data: Data,
    private readonly far: boolean,
  ) {
    // The head's own rows will say where those of the other data are.
    this.head = far ? { ...head, rows: head.rows.map((row) => ({ ...row })) } : head;
    this.sum = new Sum(rowsByRank(this.head, "compute"));
  }

  /**
   * Draw; return whether there is more to draw.
   *
   * @param left of the plot
   * @param plain how the lanes are coloured
   * @param mode by what
   * @param budget milliseconds for adding up
   */
  draw(view: View, left: number, plain: Scheme, mode: Mode, theme: Theme, budget = BUDGET): boolean {
    const width = this.canvas.clientWidth;
    resize(this.canvas, width, MINIMAP, devicePixelRatio);
    const context = this.canvas.getContext("2d")!;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const done = this.strip(view.width, this.schemed(plain, mode, theme.dark), theme, budget, view.limit);
    this.raster.flush(context, left);

    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    const [from, to] = this.window(view);
    context.fillStyle = theme.page;
    context.globalAlpha = 0.65;
    context.fillRect(left, 0, from, MINIMAP);
    context.fillRect(left + to, 0, view.width - to, MINIMAP);
    context.globalAlpha = 1;
    context.strokeStyle = theme.text;
    context.lineWidth = 1;
    context.strokeRect(left + from + 0.5, 0.5, Math.max(2, to - from) - 1, MINIMAP - 1);
    if (left < NAMED) return !done;
    context.fillStyle = theme.dim;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillText(t("all {time}", { time: duration(view.limit) }), 10, MINIMAP / 2 - 7);
    context.fillText(
      t("in sight {time}", { time: duration(Math.min(view.end, view.limit) - Math.max(view.start, 0)) }),
      10,
      MINIMAP / 2 + 7,
    );
    return !done;
  }

  /** The colours of the data that this shows. */
  private schemed(plain: Scheme, mode: Mode, dark: boolean): Scheme {
    if (!this.far) return plain;
    if (this.known?.mode !== mode || this.known.dark !== dark)
      this.known = { mode, dark, scheme: schemeOf(mode, this.head, this.data, dark) };
    return this.known.scheme;
  }

  /** Bring the pixels up to date; return whether they are. Most frames change nothing of them. */
  private strip(width: number, scheme: Scheme, theme: Theme, budget: number, limit: number): boolean {
    const shown = [width, devicePixelRatio, scheme, theme];
    if (shown.every((value, at) => value === this.painted[at])) return true;
    this.raster.begin(width, MINIMAP, devicePixelRatio, packed(theme.idle));
    const { columns } = this.raster;
    const grid = { first: 0, perPixel: limit / columns, columns, ratio: devicePixelRatio };
    const done = this.sum.advance(this.data, scheme, grid, performance.now() + budget);
    this.sum.paint(this.raster, grid, this.raster.rows(0, MINIMAP), theme.idle);
    this.painted = done ? shown : [];
    return done;
  }

  /** What is at a point of the plot. */
  gripAt(view: View, x: number): Grip {
    const [from, to] = this.window(view);
    if (to - from > 3 * GRIP) {
      if (Math.abs(x - from) < GRIP) return "start";
      if (Math.abs(x - to) < GRIP) return "end";
    }
    return x >= from && x <= to ? "inside" : "outside";
  }

  time(view: View, x: number): number {
    return (x / view.width) * view.limit;
  }

  private window(view: View): [number, number] {
    const at = (time: number): number => (Math.min(Math.max(time, 0), view.limit) / view.limit) * view.width;
    return [at(view.start), at(view.end)];
  }
}
