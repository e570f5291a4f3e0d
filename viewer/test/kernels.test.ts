// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { inside, insideFacts, kernelDetails, kernelTooltip, longest, streamOf } from "../src/kernels";
import { packed, Raster } from "../src/raster";
import { drawKernels, kernelAt, KernelPainter } from "../src/unfolded";
import { View } from "../src/view";
import { made, random, THEME, USES, whole, type Kernel } from "./made";

const next = random(7);

/** Kernels of a row: none overlaps as drawn, but some began a little earlier than that. */
function stream(count: number): Kernel[] {
  let at = 0;
  return Array.from({ length: count }, () => {
    const start = at + whole(next, 0, 6);
    const end = start + whole(next, 1, 9);
    const cut = at > 0 && start === at ? 1 : 0;
    at = end;
    return { start, end, cut, use: whole(next, 0, 2), name: "abcdefg"[whole(next, 0, 6)]! };
  });
}

test("what runs in a stretch of time, against every nanosecond of it", () => {
  for (let round = 0; round < 60; round++) {
    const rows = Array.from({ length: whole(next, 1, 4) }, (_, number) => ({
      rank: number === 3 ? 1 : 0,
      stream: number,
      kernels: stream(12),
    }));
    const { head, data } = made({ kernels: rows });
    const [from, to] = [whole(next, -3, 60), whole(next, 61, 120)];
    const own = rows.filter(({ rank }) => rank === 0).flatMap(({ kernels }) => kernels);
    const ran = own.filter(({ start, end, cut }) => start - cut! < to && end > from);
    const sums = [0, 0, 0];
    for (let at = from; at < to; at++) {
      const uses = ran.filter(({ start, end, cut }) => start - cut! <= at && at < end).map(({ use }) => use!);
      if (uses.length) sums[Math.min(...uses)]!++;
    }
    const found = inside(head, data.kernels, 0, from, to);
    expect([found.count, found.compute, found.communication, found.copy]).toEqual([ran.length, ...sums]);
    const took = new Map<string, number>();
    for (const { start, end, cut, name } of ran)
      took.set(name!, (took.get(name!) ?? 0) + Math.min(to, end) - Math.max(from, start - cut!));
    const most = [...took.values()].sort((one, other) => other - one).slice(0, 5);
    expect(found.top.map(([, ns]) => ns)).toEqual(most);
    for (const [name, ns] of found.top) expect(took.get(head.kernels!.names[name]![0])).toBe(ns);
  }
});

const TASKS = [
  { start: 0, end: 1000, busy: 400 },
  { start: 1000, end: 1000 },
  { start: 1000, end: 3000 },
];

test("a task's kernels in words: of kernels, of sums, of what is busy, or nothing", () => {
  const { head, data } = made({
    rows: [{ rank: 0, tasks: TASKS }],
    kernels: [
      {
        rank: 0,
        kernels: [
          { start: 0, end: 300, name: "gemm" },
          { start: 300, end: 500, use: 1, name: "AllReduce" },
          { start: 600, end: 700, name: "gemm" },
        ],
      },
    ],
  });
  const found = inside(head, data.kernels, 0, 0, 1000);
  const said = Object.fromEntries(insideFacts(data.tasks, 0, found));
  expect(said).toEqual({
    kernels: "3, with copies",
    computing: "40.00 % · 400 ns",
    "exposed communication": "20.00 % · 200 ns",
    "exposed copies": null,
    "idle inside": "40.00 % · 400 ns",
  });
  expect(
    longest(head.kernels!, found)
      .map(({ textContent }) => textContent)
      .join(" "),
  ).toContain("400 ns · 2 ×gemm200 ns · 1 ×AllReduce");

  const summed = {
    ...data.tasks,
    computing: Int32Array.from([250, 0, -1]),
    communicating: Int32Array.from([0, 0, -1]),
    copying: Int32Array.from([50, 0, -1]),
  };
  expect(insideFacts(summed, 0, null)).toEqual([
    ["kernels", null],
    ["computing", "25.00 % · 250 ns"],
    ["exposed communication", "none"],
    ["exposed copies", "5.00 % · 50 ns"],
    ["idle inside", "70.00 % · 700 ns"],
  ]);
  expect(insideFacts(data.tasks, 0, null)).toEqual([
    ["kernels running", "40.00 %"],
    ["idle inside", "60.00 % · 600 ns"],
  ]);
  expect(insideFacts(summed, 1, null)).toEqual([]);
  expect(insideFacts(summed, 2, null)).toEqual([]);
});

test("what is said of a kernel", () => {
  const { head, data } = made({
    kernels: [
      {
        rank: 0,
        stream: 7,
        kernels: [{ start: 1000, end: 3000, cut: 500, name: "gemm", module: "layers.3", lead: 4000 }],
      },
      { rank: 0, device: 1, stream: -1, kernels: [{ start: 0, end: 5, use: 2, name: "Memcpy" }] },
    ],
  });
  expect(kernelTooltip(head, data, 0)).toBe(
    "gemm  2.500 µs\nmodule layers.3\ndevice 0 · stream 7\nstarted 4.000 µs after its launch",
  );
  expect(kernelTooltip(head, data, 1)).toBe("Memcpy  5 ns\ndevice 1 · stream unknown");
  expect(streamOf({ ...head, kernel_rows: [head.kernel_rows[0]!] }, head.kernel_rows[0]!)).toBe("stream 7");
  const text = kernelDetails(head, data, 0, String).textContent;
  for (const part of ["gemm", "compute", "void gemm(int)", "layers.3", "2.500 µs (2,500 ns)", "4.000 µs"])
    expect(text).toContain(part);
});

test("kernels are where they are drawn, and near them", () => {
  const { head, data } = made({
    kernels: [
      {
        rank: 0,
        kernels: [
          { start: 100, end: 200 },
          { start: 900, end: 910 },
        ],
      },
    ],
  });
  const view = new View(1000);
  view.width = 100;
  view.set(0, 1000);
  const places = [{ row: head.kernel_rows[0]!, top: 40, height: 15 }];
  const at = (time: number, y = 45): number => kernelAt(data.kernels, places, view, view.x(time), y);
  expect([at(150), at(201), at(500), at(915), at(150, 39), at(150, 56)]).toEqual([0, 0, -1, 1, -1, -1]);
});

test("a pixel of a row of kernels shows what runs at its centre", () => {
  const context = { putImageData: (image: ImageData) => (painted = new Uint32Array(image.data.buffer)) };
  let painted = new Uint32Array();
  (globalThis as { ImageData?: unknown }).ImageData ??= class {
    data;
    constructor(
      public width: number,
      public height: number,
    ) {
      this.data = new Uint8ClampedArray(4 * width * height);
    }
  };
  const { head, data } = made({
    kernels: [
      {
        rank: 0,
        kernels: [
          { start: 0, end: 10 },
          { start: 20, end: 30, use: 1 },
          { start: 31, end: 34, use: 2 },
        ],
      },
    ],
  });
  const raster = new Raster();
  raster.begin(4, 1, 1, 0);
  const grid = { first: 0, perPixel: 10, columns: 4, ratio: 1 };
  const paint = new KernelPainter(head.kernels!).painter(raster, data.kernels, THEME, grid, 0);
  paint({ row: head.kernel_rows[0]!, top: 0, height: 1 }, raster.whole);
  raster.flush(context as unknown as CanvasRenderingContext2D, 0);
  expect([...painted].slice(0, 3)).toEqual([USES[0]!.fill, THEME.idle, USES[1]!.fill].map(packed));
  // The fourth is a mean: three parts in ten are a copy.
  expect([packed(USES[2]!.fill), packed(THEME.idle)]).not.toContain(painted[3]);
});

test("names stand on kernels that have room for their beginning", () => {
  const { head, data } = made({
    kernels: [
      {
        rank: 0,
        kernels: [
          { start: 0, end: 500, name: "vectorized_elementwise_kernel" },
          { start: 500, end: 520, name: "b" },
        ],
      },
    ],
  });
  const view = new View(1000);
  view.width = 100;
  view.set(0, 1000);
  const said: string[] = [];
  const context = {
    measureText: (text: string) => ({ width: 6 * text.length }),
    fillRect: () => {},
    fillText: (text: string) => said.push(text),
  };
  drawKernels(
    context as unknown as CanvasRenderingContext2D,
    head.kernels!,
    data.kernels,
    { row: head.kernel_rows[0]!, top: 0, height: 15 },
    view,
    0,
    0,
    false,
  );
  expect(said).toEqual(["vector…"]);
});
