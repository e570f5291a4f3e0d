// What the ruler says of a step.
import { describe, expect, it } from "vitest";

import { idleIn } from "../src/ruler";

const STEP = { step: 3, start: 1_000_000, end: 3_000_000, phase: 2_000_000, makespan: 0.25, error: null, idle: null };

describe("how much of a step was idle", () => {
  it("is a share of it where the pipeline runs all through it", () => {
    expect(idleIn(STEP)).toBe("bubble 25.00 %");
  });
  it("names the time that it is a share of where ranks receive and wait around the pipeline", () => {
    expect(idleIn({ ...STEP, end: 3_500_000 })).toBe("bubble 25.00 % of 2.000 ms");
  });
  it("is that of the devices where there is no pipeline", () => {
    expect(idleIn({ ...STEP, phase: null, makespan: null, idle: 0.5 })).toBe("50.00 % idle");
    expect(idleIn({ ...STEP, makespan: null, idle: 0.5 })).toBe("50.00 % idle");
    expect(idleIn({ ...STEP, phase: 9_000_000, makespan: null, idle: 0.5 })).toBe("50.00 % idle of 9.000 ms");
  });
  it("is not said where it is not known", () => {
    expect(idleIn({ ...STEP, makespan: null })).toBe("");
  });
});
