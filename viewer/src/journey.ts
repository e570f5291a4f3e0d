// Which stretch is in sight, where one was before, and the address that says so.

import { stepEnd } from "./against";
import type { App } from "./app";
import type { Head, Step } from "./data";
import { History } from "./history";
import type { View } from "./view";
import { fromHash, toHash, type Sight } from "./state";

const SETTLED = 300; // milliseconds without movement after which a place counts as visited

export class Journey {
  private history: History;
  private settling: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly app: App) {
    this.history = new History(this.sight());
  }

  /** Begin here: there is nothing to go back to. */
  start(): void {
    clearTimeout(this.settling);
    this.history = new History(this.sight());
  }

  sight(): Sight {
    return { start: this.app.view.start, end: this.app.view.end, top: this.app.scroll.scrollTop };
  }

  /** The view moved: draw, and once it rests, remember where it is. */
  moved(): void {
    this.app.tip.hidden = true; // what it told of is elsewhere now
    this.app.redraw();
    this.settle();
  }

  settle(): void {
    clearTimeout(this.settling);
    this.settling = setTimeout(() => {
      this.history.visit(this.sight());
      this.address();
    }, SETTLED);
  }

  address(): void {
    try {
      history.replaceState(null, "", `#${toHash(this.app.state, this.sight(), this.app.head)}`);
    } catch {
      // Some browsers allow files no address of their own; the page works without.
    }
  }

  undo(): void {
    this.settleNow();
    this.goTo(this.history.undo());
  }

  redo(): void {
    this.goTo(this.history.redo());
  }

  private settleNow(): void {
    clearTimeout(this.settling);
    this.history.visit(this.sight());
  }

  private goTo(sight: Sight | null): void {
    if (!sight) return;
    this.app.view.set(sight.start, sight.end);
    this.app.scroll.scrollTop = sight.top;
    this.app.tip.hidden = true;
    this.app.redraw();
    this.address();
  }

  showStep(step: Step | undefined): void {
    if (!step) return;
    this.app.view.fit(step.start, stepEnd(this.app.head, step));
    this.moved();
  }

  /** Show the next or the previous step. */
  neighbour(direction: 1 | -1): void {
    const { view, head } = this.app;
    const middle = (view.start + view.end) / 2;
    const current = head.steps.findIndex((step) => middle < step.end);
    const whole = view.end - view.start >= head.end;
    const from = current < 0 ? head.steps.length - 1 : current;
    this.showStep(head.steps[whole ? (direction > 0 ? 0 : head.steps.length - 1) : from + direction]);
  }

  /** The address has another view. */
  readAddress(): void {
    const { state, sight } = fromHash(location.hash, this.app.head);
    if (sight.start !== undefined && sight.end !== undefined) this.app.view.set(sight.start, sight.end);
    this.app.change(state);
    // A link to the top of the page says nothing of the height.
    this.app.scroll.scrollTop = sight.top ?? (sight.start === undefined ? this.app.scroll.scrollTop : 0);
    if (state.query !== this.app.finding.query) void this.app.finding.find(state.query);
    this.app.selection.restore();
    this.app.whatifs.restore();
  }
}

/** From when time counts: within a step from its start. */
export function zeroOf(head: Head, view: View): number {
  return inSight(head, view)?.start ?? 0;
}

const MOSTLY = 1.4; // times as much as a step may be in sight for it to be the one

/** The step that is in sight, if it is one. */
export function inSight(head: Head, view: View): Step | undefined {
  const middle = (view.start + view.end) / 2;
  const step = head.steps.find(({ start, end }) => start <= middle && middle < end);
  return step && view.end - view.start < MOSTLY * (step.end - step.start) ? step : undefined;
}
