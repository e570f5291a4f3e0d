import { describe, expect, test } from "vitest";
import { brief, duration, exact, percent, quantity, roundStep, tick, uncertain, withMinus } from "../src/units";
import { random } from "./made";

test.each([
  [0, "0 ns"],
  [999, "999 ns"],
  [1000, "1.000 µs"],
  [1_234_567, "1.235 ms"],
  [45_678_900, "45.68 ms"],
  [456_789_000, "456.8 ms"],
  [12_000_000_000, "12.00 s"],
  [1_234_567_000_000_000, "342 h 56 min"],
  [-1_234_567, "-1.235 ms"],
])("%d ns is %s, as in the report", (ns, text) => {
  expect(duration(ns)).toBe(text);
});

test("exact leaves nothing out", () => {
  expect(exact(1_234_567)).toBe("1,234,567 ns");
});

test("a rate that is unknown is a dash, not 0", () => {
  expect([percent(3 / 19), percent(0), percent(null)]).toEqual(["15.79 %", "0.00 %", "–"]);
  expect([uncertain(0.2727, 0.0012), uncertain(0.2727, null), uncertain(0.2727, 0), uncertain(null, 0.1)]).toEqual([
    "27.27 ± 0.12 %",
    "27.27 %",
    "27.27 %",
    "–",
  ]);
});

describe("the steps of a ruler", () => {
  const SERIES = Array.from({ length: 14 }, (_, power) => [1, 2, 5].map((factor) => factor * 10 ** power)).flat();

  test("are the smallest 1, 2 or 5 times a power of ten that suffices", () => {
    const next = random(9);
    const tried = [...SERIES, 0.001, 0.3, 1, ...Array.from({ length: 500 }, () => 10 ** (13 * next()))];
    for (const least of tried) expect(roundStep(least)).toBe(SERIES.find((step) => step >= least));
  });

  test("have labels that differ", () => {
    for (const spacing of SERIES) {
      const labels = Array.from({ length: 50 }, (_, index) =>
        tick((index + 7) * spacing, { spacing, most: 57 * spacing }),
      );
      expect(new Set(labels).size).toBe(50);
    }
  });

  test.each([
    [1500, 500, "1.5 µs"],
    [2_000_000, 1_000_000, "2 ms"],
    [200, 200, "0.2 µs"],
    [150, 50, "150 ns"],
    [3_000_000_000, 1_000_000_000, "3 s"],
    [123.456, 1, "123 ns"],
  ])("%d ns at %d ns apart is %s", (ns, spacing, text) => {
    expect(tick(ns, { spacing, most: ns })).toBe(text);
  });

  test.each([
    [364_548_000, 100_000_000, 463_000_000, 500_000, "364.5 ms"],
    [63_371_432, 5, 63_371_500, 1, "63.371432 ms"],
    [63_371_432, 5, 63_371_500, 5, "63.371432 ms"],
    [123_456, 100_000_000, 463_000_000, 500_000, "0.1 ms"],
    [1500, 500, 9_000, 10, "1.50 µs"],
  ])("%d ns, %d ns apart up to %d, told to %d, is %s", (ns, spacing, most, least, text) => {
    expect(tick(ns, { spacing, most }, least)).toBe(text);
  });
});

test.each([
  [0, "bytes", "0 B"],
  [1023, "bytes", "1023 B"],
  [1024, "bytes", "1 KiB"],
  [3 * 2 ** 30, "bytes", "3 GiB"],
  [1.5 * 2 ** 40, "bytes", "1.5 TiB"],
  [-(2 ** 20), "bytes", "-1 MiB"],
  [12345.678, "W", "12,350 W"],
  [0.5, "", "0.5"],
])("%d %s is %s", (value, unit, text) => {
  expect(quantity(value, unit)).toBe(text);
});

test.each([
  [15_729e9, "4 h 22 min"],
  [3600e9, "1 h 00 min"],
  [7199.9e9, "2 h 00 min"],
  [-4000e9, "-1 h 07 min"],
])("hours are no thousands of seconds: %s", (ns, said) => {
  expect(duration(ns)).toBe(said);
  expect(brief(ns)).toBe(said);
});

test("a minus is no hyphen", () => {
  expect(withMinus("-9.75 % (95 % interval -40.47 to +26.72 %) of zb-h1, 1-2")).toBe(
    "−9.75 % (95 % interval −40.47 to +26.72 %) of zb-h1, 1-2",
  );
});
