// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { rangeDetails } from "../src/sheet";
import { totals } from "../src/totals";
import { made, type Run } from "./made";

/** What is said of the first 100 ns of a run. */
function said(run: Run): string[] {
  const { head, data } = made(run);
  const range = { start: 0, end: 100, ranks: [0] };
  const sheet = rangeDetails(head, range, totals(head, data, 0, 100, [0]));
  return [...sheet.querySelectorAll("dl > div, h3, .hint")].map((one) => one.textContent);
}

const rows = [{ rank: 0, tasks: [{ start: 0, end: 90 }] }];

test("of devices that run whole models tasks are not all busy, nor the rest all idle", () => {
  expect(said({ rows })).toContain("busy90 ns · 90.00 %");
  const devices = said({ rows, ranks: [{ idle: 0.37 }] });
  expect(devices).toContain("in tasks90 ns · 90.00 %");
  expect(devices).toContain("outside of tasks10 ns · 10.00 %");
  expect(devices.join(" ")).not.toMatch(/busy/);
  expect(devices.join(" ")).toContain("idle shares stand beside the ranks");
});

test("what runs in the lanes beside the compute lane is not among its kinds", () => {
  const beside = { rank: 0, lane: "comm" as const, tasks: [{ start: 0, end: 50, kind: "other" }] };
  expect(said({ rows: [...rows, beside] }).slice(4)).toEqual([
    "tasks, and their share of the time of these ranks",
    "forward1 · 90 ns · 90.00 %",
    "beside them: communication and host",
    "other1 · 50 ns · 50.00 %",
  ]);
});
