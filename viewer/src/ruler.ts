// The strip above the lanes: steps, and time since the first task.

import { firstEndingAfter, type Head, type Step } from "./data";
import { inSight, zeroOf } from "./journey";
import { resize } from "./paint";
import type { Theme } from "./theme";
import { rated, rateRight } from "./titles";
import { duration, percent, roundStep, tick, uncertain, type Scale } from "./units";
import type { View } from "./view";
import { t } from "./words";

export const RULER = 46;
const STEP_ROW = 22;
const TICK_SPACING = 110;
const BESIDE = 5; // pixels beside a step's number

export class Ruler {
  private readonly ends: Float64Array;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly head: Head,
  ) {
    this.ends = Float64Array.from(head.steps, ({ end }) => end);
  }

  /** @param left of the plot */
  draw(view: View, left: number, theme: Theme, figure: boolean): void {
    const width = this.canvas.clientWidth;
    resize(this.canvas, width, RULER, devicePixelRatio);
    const context = this.canvas.getContext("2d")!;
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, width, RULER);
    context.textBaseline = "middle";
    if (figure) return arrow(context, view, left);
    context.save();
    context.beginPath();
    context.rect(left, 0, view.width, RULER);
    context.clip();
    context.font = "11px system-ui, sans-serif";
    this.steps(context, view, left, theme);
    this.ticks(context, view, left, theme);
    context.restore();
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = theme.dim;
    if (left === 0) return;
    context.fillText(t("rank"), 10, RULER - 12);
    context.textAlign = "right";
    // The step in sight has a share of its own above; what stands beside the ranks is of all.
    const apart = inSight(this.head, view) !== undefined && this.head.steps.length > 1 && rated(left);
    context.fillText(apart ? t("idle, all steps") : t("idle"), rateRight(left), RULER - 12);
    context.textAlign = "left";
  }

  /** The step whose band is at a point of the ruler, if any. */
  stepAt(view: View, x: number, y: number): Step | undefined {
    if (y > STEP_ROW || x < 0) return undefined;
    const time = view.time(x);
    return this.head.steps.find((step) => step.start <= time && time < step.end);
  }

  private steps(context: CanvasRenderingContext2D, view: View, left: number, theme: Theme): void {
    let drawn = -Infinity;
    const { steps } = this.head;
    const bands: { step: Step; at: number; from: number; to: number; long: number }[] = [];
    for (let i = firstEndingAfter(this.ends, 0, steps.length, view.start); i < steps.length; i++) {
      const step = steps[i]!;
      const from = Math.max(-1, view.x(step.start));
      const next = steps[i + 1]?.start ?? Infinity; // may begin on one rank before this one ends on another
      const end = view.x(Math.min(step.end, next));
      const to = Math.min(view.width + 1, end);
      if (from > view.width) break;
      if (to - drawn < 1) continue; // no two bands on one pixel
      drawn = to;
      context.fillStyle = theme.band;
      context.fillRect(left + from, 2, Math.max(1, to - from - 1), STEP_ROW - 4);
      bands.push({ step, at: i, from, to, long: end - view.x(step.start) });
    }
    context.fillStyle = theme.text;
    // Where bands are narrower than their numbers, every so many are numbered, over the bands that follow.
    const widest = Math.max(0, ...bands.map(({ step }) => context.measureText(String(step.step)).width));
    const mean = bands.reduce((sum, { long }) => sum + long, 0) / Math.max(1, bands.length);
    const narrow = mean < widest + 2 * BESIDE;
    const every = narrow ? roundStep((widest + 2 * BESIDE) / mean) : 1;
    for (const { step, at, from, to } of bands) {
      const number = t("step {step}", { step: step.step });
      const length = `${number} · ${duration(step.end - step.start)}`;
      const idle = idleIn(step);
      const texts = narrow ? [] : [idle === "" ? length : `${length} · ${idle}`, length, number];
      const fits = texts.find((text) => context.measureText(text).width + 2 * BESIDE <= to - from);
      const bare = narrow ? at % every === 0 : to - from >= widest + 2 * BESIDE;
      if (fits ?? bare) context.fillText(fits ?? String(step.step), left + from + BESIDE, STEP_ROW / 2);
    }
  }

  private ticks(context: CanvasRenderingContext2D, view: View, left: number, theme: Theme): void {
    context.fillStyle = theme.dim;
    const axis = axisOf(this.head, view);
    for (const at of ticksOf(view, axis)) {
      const x = left + view.x(at);
      context.fillRect(x, RULER - 5, 1, 5);
      const said = tick(at - axis.zero, axis);
      if (x + 4 + context.measureText(said).width <= left + view.width) context.fillText(said, x + 4, RULER - 12);
    }
  }
}

/** How time is told above the lanes. */
export interface Axis extends Scale {
  zero: number; // from which it counts
}

export function axisOf(head: Head, view: View): Axis {
  const zero = zeroOf(head, view);
  return { zero, spacing: roundStep(TICK_SPACING / view.scale), most: view.end - zero };
}

/** The times of the ticks in sight. */
export function ticksOf(view: View, { zero, spacing }: Axis): number[] {
  const first = Math.ceil((view.start - zero) / spacing);
  const last = Math.floor((view.end - zero) / spacing);
  return Array.from({ length: last - first + 1 }, (_, at) => zero + (first + at) * spacing);
}

/** The axis of the look of papers. */
function arrow(context: CanvasRenderingContext2D, view: View, left: number): void {
  const y = RULER - 10;
  context.font = "13px system-ui, sans-serif";
  context.fillStyle = context.strokeStyle = "#000000";
  context.fillText(t("Time"), left, y - 14);
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(left, y + 0.5);
  context.lineTo(left + view.width - 12, y + 0.5);
  context.stroke();
  context.beginPath();
  const tip = left + view.width - 6;
  context.moveTo(tip, y + 0.5);
  context.lineTo(tip - 9, y - 3.5);
  context.lineTo(tip - 9, y + 4.5);
  context.fill();
}

/**
 * How much of a step was idle: bubbles of a pipeline, else the time of devices; empty where that is not known.
 *
 * Bubbles are a share of the pipeline phase, which may be shorter than the step: ranks receive and wait around it. What
 * devices idle is a share of the time up to the next step, which may be longer.
 */
export function idleIn({ start, end, phase, makespan, error, idle }: Step): string {
  const whole = phase === null || duration(phase) === duration(end - start);
  if (idle !== null) {
    const share = percent(idle);
    return whole ? t("{share} idle", { share }) : t("{share} idle of {time}", { share, time: duration(phase) });
  }
  if (makespan === null) return "";
  const rate = uncertain(makespan, error);
  return whole ? t("bubble {rate}", { rate }) : t("bubble {rate} of {time}", { rate, time: duration(phase) });
}
