// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { scheme } from "../src/colour";
import type { Devices } from "../src/data";
import { spentByDevices, spentInTasks } from "../src/devices";
import { legend } from "../src/legend";
import { made, THEME, USES, type Run } from "./made";

const WHY = ["host late: in operators", "starts of launched work"];
const DEVICES: Devices = {
  uses: USES,
  idle: WHY,
  overall: [400, 100, 0, 100, 400],
  step: [40e6, 10e6, 0, 10e6, 40e6],
  ranks: [[300, 100, 0, 80, 20], null, [100, 0, 0, 20, 380]],
  steps: [[400, 100, 0, 100, 400]],
  open: [0],
  losses: [{ name: WHY[0]!, detail: "aten::mm", time: 100, share: 0.1 }],
  untold: ["it is not known; `--nvtx` would tell"],
  waits: [],
};
const STEP = { step: 7, start: 0, end: 100, phase: 90, makespan: null, error: null, idle: 0.5 };
const RUN: Run = {
  ranks: [{ idle: 0.2 }, { idle: 0 }, { idle: 0.8 }],
  rows: [0, 2].map((rank) => ({
    rank,
    tasks: [
      { start: 0, end: 10 },
      { start: 10, end: 30 },
    ],
  })),
  head: { devices: DEVICES, steps: [STEP] },
};

const texts = (part: HTMLElement, of: string): string[] => [...part.querySelectorAll(of)].map((one) => one.textContent);

test("the legend says what devices spend a step on, and why they idle, most first", () => {
  const { head, data } = made(RUN);
  const told = { theme: THEME, byKind: true, causes: false, phases: false, kernels: false, query: "" };
  const parts = legend(head, { ...told, scheme: scheme("kind", head, data, false) }, () => {});
  const said = parts.filter((part) => /Devices/.test(part.textContent)).map((part) => texts(part, ".entry"));
  expect(said).toEqual([
    ["compute40.0 ms40.00 %", "communication10.0 ms10.00 %", "idle50.0 ms50.00 %"],
    ["starts of launched work40.0 ms40.00 %", "host late: in operators10.0 ms10.00 %"],
  ]);
});

test("the summary has a line for each rank and step that is known, which show it, and what time is lost to", () => {
  const { head } = made(RUN);
  const shown: (number | null)[][] = [];
  const parts = spentByDevices(head, (...at) => shown.push(at)).map(([, , ...content]) => {
    const part = document.createElement("div");
    part.append(...content);
    return part;
  });
  const [ranks, steps, lost] = [parts[0]!, parts[1]!, parts[2]!];
  expect(texts(ranks, "tbody tr")).toEqual([
    "060.020.00.020.0host late: in operators",
    "220.00.00.080.0starts of launched work",
  ]);
  expect(texts(steps, "tbody tr")).toEqual(["740.010.00.050.090 ns, open"]);
  expect(texts(lost, "tr, p")).toEqual([
    "100 ns10.00 %host late: in operators aten::mm",
    "it is not known; --nvtx would tell",
  ]);
  for (const part of [ranks, steps]) part.querySelectorAll("button").forEach((button) => button.click());
  expect(shown).toEqual([
    [0, null],
    [2, null],
    [null, 0],
  ]);
});

test("of a stretch what devices did in whole tasks is told, where that is known of each", () => {
  const { head, data } = made(RUN);
  const said = (start: number, end: number, ranks: number[]): string[] | undefined =>
    spentInTasks(head, data, { start, end, ranks: null }, ranks)?.map(
      ([name, value]) => `${name}: ${typeof value === "string" ? value : value!.textContent}`,
    );
  expect(said(0, 30, [0, 2])).toBeUndefined();
  Object.assign(data.tasks, {
    computing: Int32Array.of(5, 10, 7, -1),
    communicating: Int32Array.of(1, 2, 0, -1),
    copying: Int32Array.of(0, 1, 0, -1),
  });
  expect(said(5, 30, [0])).toEqual([
    "tasks: 1",
    "compute: 10 ns · 50.00 %",
    "communication: 2 ns · 10.00 %",
    "copy: 1 ns · 5.00 %",
    "idle: 7 ns · 35.00 %",
  ]);
  expect(said(0, 30, [0, 2])!.slice(0, 2)).toEqual(["tasks: 3", "compute: 22 ns · 55.00 %"]);
  expect(said(5, 25, [0])).toBeUndefined();
});

test("where ranks wait for each other in collectives, the legend says how long at least, and the summary who", () => {
  const waits = [
    { rank: 0, collectives: 9, last: 1, waits: 0.06, late: 0.001 },
    { rank: 2, collectives: 9, last: 7, waits: 0, late: 0.2 },
  ];
  const { head, data } = made({ ...RUN, head: { ...RUN.head, devices: { ...DEVICES, waits } } });
  const told = { theme: THEME, byKind: true, causes: false, phases: false, kernels: false, query: "" };
  const parts = legend(head, { ...told, scheme: scheme("kind", head, data, false) }, () => {});
  const said = parts.flatMap((part) => (/^Devicesa step/.test(part.textContent) ? texts(part, ".entry") : []));
  expect(said[2]).toBe("of it waiting for later ranks≥ 2.00 ms≥ 2.00 %");
  const part = spentByDevices(head, () => {}).find(([title]) => title === "Collectives")!;
  expect(texts(part[2]!, "tbody tr")).toEqual(["0916.00.1", "2970.020.0"]);
});

test("a run that is a pipeline has its devices too, but no steps of theirs", () => {
  const { head, data } = made({ ...RUN, ranks: [{}, {}, {}] });
  const titles = spentByDevices(head, () => {}).map(([title]) => title);
  expect(titles).toEqual(["Devices", "Where devices lose time"]);
  const told = { theme: THEME, byKind: true, causes: false, phases: false, kernels: false, query: "" };
  const parts = legend(head, { ...told, scheme: scheme("kind", head, data, false) }, () => {});
  expect(parts.map((part) => texts(part, "h2")[0]).join(" ")).toContain("Devices");
});
