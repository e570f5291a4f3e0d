// What moves with the pointer: a line through all lanes, and the stretch that is being selected. It has
// a canvas of its own, so that the lanes need not be drawn again.

import type { Head } from "./data";
import type { Layout } from "./layout";
import { resize } from "./paint";
import { axisOf } from "./ruler";
import type { Range } from "./state";
import type { Theme } from "./theme";
import { duration, tick } from "./units";
import type { View } from "./view";

export class Overlay {
  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly head: Head,
  ) {}

  /** @param x of the pointer, pixels from the left of the plot */
  draw(view: View, plan: Layout, left: number, top: number, x: number | null, range: Range | null, theme: Theme): void {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    resize(this.canvas, width, height, devicePixelRatio);
    const context = this.canvas.getContext("2d")!;
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.save();
    context.beginPath();
    context.rect(left, 0, width - left, height);
    context.clip();
    if (range) this.range(context, view, plan, left, top, height, range, theme);
    if (x !== null) this.crosshair(context, view, left, height, x, theme);
    context.restore();
  }

  private range(
    context: CanvasRenderingContext2D,
    view: View,
    plan: Layout,
    left: number,
    top: number,
    height: number,
    range: Range,
    theme: Theme,
  ): void {
    const [from, to] = [left + view.x(range.start), left + view.x(range.end)];
    const wanted = range.ranks && new Set(range.ranks);
    context.fillStyle = theme.accent;
    for (const band of wanted ? plan.bands.filter(({ rank }) => wanted.has(rank)) : [{ top, height }]) {
      context.globalAlpha = 0.16;
      context.fillRect(from, band.top - top, to - from, band.height);
    }
    context.globalAlpha = 1;
    context.fillRect(from, 0, 1, height);
    context.fillRect(to - 1, 0, 1, height);
    label(context, duration(range.end - range.start), (from + to) / 2, 4, theme);
  }

  private crosshair(
    context: CanvasRenderingContext2D,
    view: View,
    left: number,
    height: number,
    x: number,
    theme: Theme,
  ): void {
    context.fillStyle = theme.text;
    context.globalAlpha = 0.55;
    context.fillRect(left + x, 0, 1, height);
    context.globalAlpha = 1;
    const axis = axisOf(this.head, view);
    const said = tick(view.time(x) - axis.zero, axis, Math.max(1, 1 / view.scale)); // as exact as a pixel
    label(context, said, left + x, height - 20, theme);
  }
}

/** A text on a ground of its own, centred at a point but within the canvas. */
function label(context: CanvasRenderingContext2D, text: string, x: number, y: number, theme: Theme): void {
  context.font = "11px system-ui, sans-serif";
  const width = context.measureText(text).width + 10;
  const right = context.canvas.clientWidth - width - 2;
  const from = Math.min(Math.max(2, x - width / 2), right);
  context.fillStyle = theme.text;
  context.fillRect(from, y, width, 16);
  context.fillStyle = theme.page;
  context.textBaseline = "middle";
  context.fillText(text, from + 5, y + 8.5);
}
