// Where one has been, so that one can go back.

import type { Sight } from "./state";

const MOST = 200;

export class History {
  private back: Sight[] = [];
  private forth: Sight[] = [];

  constructor(private current: Sight) {}

  /** Remember a place that was come to; small steps of one movement count as one if called at its end. */
  visit(sight: Sight): void {
    if (same(sight, this.current)) return;
    this.back.push(this.current);
    if (this.back.length > MOST) this.back.shift();
    this.current = sight;
    this.forth = [];
  }

  undo(): Sight | null {
    return this.step(this.back, this.forth);
  }

  redo(): Sight | null {
    return this.step(this.forth, this.back);
  }

  private step(from: Sight[], onto: Sight[]): Sight | null {
    const target = from.pop();
    if (!target) return null;
    onto.push(this.current);
    this.current = target;
    return target;
  }
}

function same(one: Sight, other: Sight): boolean {
  return one.start === other.start && one.end === other.end && one.top === other.top;
}
