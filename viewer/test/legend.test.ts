// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { scheme } from "../src/colour";
import { legend } from "../src/legend";
import { KINDS, made, THEME, type Run } from "./made";

/** The sections of a legend: the title, and each entry with its time. */
function said(run: Run): string[][] {
  const { head, data } = made(run);
  const told = { theme: THEME, byKind: true, causes: false, phases: false, kernels: false, query: "" };
  return legend(head, { ...told, scheme: scheme("kind", head, data) }, () => {})
    .filter((part) => part.querySelector("h2"))
    .map((part) =>
      [part.querySelector("h2")!.firstChild!, ...part.querySelectorAll(".entry")].map((one) => one.textContent!),
    );
}

const times = (of: Record<string, [spent: number, beside: number]>) =>
  KINDS.map((kind) => {
    const [spent, beside] = of[kind.name] ?? [0, 0];
    return { ...kind, spent, beside };
  });

test("pairs of a forward and a backward are an entry too", () => {
  const pair = { start: 0, end: 10, kind: "forward_backward", microbatch: 1, pair: 0 };
  const head = { kinds: times({ forward: [2e6, 0], forward_backward: [9e6, 0] }) };
  const rows = [{ rank: 0, tasks: [pair, { start: 10, end: 12 }] }];
  expect(said({ rows, head })).toEqual([["Busy", "forward backward9.00 ms", "backward0 ns", "forward2.00 ms"]]);
});

test("what is in the lanes beside the compute lane stands apart, with its time", () => {
  const head = { kinds: times({ forward: [2e6, 0], send: [0, 3e6], other: [1e6, 7e6] }) };
  const rows = [
    {
      rank: 0,
      tasks: [
        { start: 0, end: 2 },
        { start: 2, end: 3, kind: "other" },
      ],
    },
    { rank: 0, lane: "comm" as const, tasks: [{ start: 0, end: 3, kind: "send" }] },
  ];
  expect(said({ rows, head })).toEqual([
    ["Busy", "forward2.00 ms", "other1.00 ms"],
    ["Other lanes", "send3.00 ms"],
  ]);
});
