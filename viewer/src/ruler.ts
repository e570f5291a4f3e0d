// The strip above the lanes: steps, and time since the first task.

import type { Head, Step } from "./data";
import { GUTTER, MAKESPAN_RIGHT, SPAN_RIGHT, resize, type Theme } from "./paint";
import { duration, roundStep, tick, uncertain } from "./units";
import type { View } from "./view";

export const RULER = 46;
const STEP_ROW = 22;
const TICK_SPACING = 110;

export class Ruler {
  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly head: Head,
  ) {}

  draw(view: View, theme: Theme): void {
    const width = this.canvas.clientWidth;
    resize(this.canvas, width, RULER, devicePixelRatio);
    const context = this.canvas.getContext("2d")!;
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, width, RULER);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, view.width, RULER);
    context.clip();
    this.steps(context, view, theme);
    this.ticks(context, view, theme);
    context.restore();
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = theme.dim;
    context.fillText("rank", 10, RULER - 12);
    context.textAlign = "right";
    context.fillText("makespan", MAKESPAN_RIGHT, RULER - 12);
    context.fillText("span", SPAN_RIGHT, RULER - 12);
    context.fillText("bubble rate", SPAN_RIGHT, STEP_ROW / 2);
    context.textAlign = "left";
  }

  /** The step whose band is at a point of the ruler, if any. */
  stepAt(view: View, x: number, y: number): Step | undefined {
    if (y > STEP_ROW || x < GUTTER) return undefined;
    const time = view.time(x - GUTTER);
    return this.head.steps.find((step) => step.start <= time && time < step.end);
  }

  private steps(context: CanvasRenderingContext2D, view: View, theme: Theme): void {
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    let drawn = -Infinity;
    for (const step of this.head.steps) {
      const from = Math.max(-1, view.x(step.start));
      const to = Math.min(view.width + 1, view.x(step.end));
      if (to < 0 || from > view.width || to - drawn < 1) continue; // no two bands on one pixel
      drawn = to;
      context.fillStyle = theme.band;
      context.fillRect(GUTTER + from, 2, Math.max(1, to - from - 1), STEP_ROW - 4);
      context.fillStyle = theme.text;
      const number = `step ${step.step}`;
      const length = `${number} · ${duration(step.end - step.start)}`;
      for (const text of [`${length} · bubble ${uncertain(step.makespan, step.error)}`, length, number, String(step.step)]) {
        if (context.measureText(text).width + 10 > to - from) continue;
        context.fillText(text, GUTTER + from + 5, STEP_ROW / 2);
        break;
      }
    }
  }

  private ticks(context: CanvasRenderingContext2D, view: View, theme: Theme): void {
    const spacing = roundStep(TICK_SPACING / view.scale);
    context.fillStyle = theme.dim;
    for (let at = Math.ceil(view.start / spacing) * spacing; at <= view.end; at += spacing) {
      const x = GUTTER + view.x(at);
      context.fillRect(x, RULER - 5, 1, 5);
      context.fillText(tick(at, spacing), x + 4, RULER - 12);
    }
  }
}
