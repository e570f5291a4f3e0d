// @vitest-environment happy-dom
import { describe, expect, test } from "vitest";
import { scheme } from "../src/colour";
import type { Data, Head } from "../src/data";
import { arrangement, EXTRAS, layout } from "../src/layout";
import { luminance } from "../src/light";
import { svg, type Pictured } from "../src/picture";
import { View } from "../src/view";
import { KINDS, made, random, row, THEME } from "./made";

function picture(
  { head, data }: { head: Head; data: Data },
  change: Partial<Pictured> = {},
): { text: string; root: Element } {
  const view = new View(head.end);
  view.width = 1000;
  view.set(0, head.end);
  const plan = layout(head, {
    ...arrangement(head),
    extras: new Set(EXTRAS),
    size: "large",
    figure: change.figure ?? false,
  });
  const text = svg(head, data, {
    view,
    plan,
    scheme: scheme("kind", head, data, false),
    theme: THEME,
    figure: false,
    causes: true,
    top: 0,
    height: 1e6,
    ...change,
  });
  return { text, root: new DOMParser().parseFromString(text, "image/svg+xml").documentElement };
}

const fill = (name: string): string => KINDS.find((kind) => kind.name === name)!.fill;
const number = (shape: Element, name: string): number => Number(shape.getAttribute(name));
const around = (one: Element): boolean => ["axis", "causes"].includes(one.parentElement?.getAttribute("class") ?? "");
const texts = (root: Element): string[] =>
  [...root.querySelectorAll("text")].filter((text) => !around(text)).map((text) => text.textContent ?? "");

/** The blocks, which are in groups, one for each row. */
const blocks = (root: Element): Element[] =>
  [...root.querySelectorAll("g:not(.legend) > rect")].filter((one) => !around(one));

const RUN = made({
  ranks: [
    {
      rates: {
        span: null,
        makespan: 0.125,
        longest_span: null,
        over_ideal: null,
        no_wait: null,
        excess: null,
        error: null,
      },
    },
    {},
  ],
  rows: [
    {
      rank: 0,
      tasks: [
        { start: 0, end: 250, microbatch: 3 },
        { start: 500, end: 1000, kind: "forward_backward", microbatch: 4, pair: 2 },
      ],
    },
    { rank: 0, lane: "ideal", tasks: [{ start: 0, end: 100 }] },
    { rank: 1, tasks: [{ start: 250, end: 500, kind: "backward", microbatch: 3 }] },
  ],
});

describe("a picture of shapes", () => {
  const { root } = picture(RUN);

  test("is an SVG document of its own", () => {
    expect(root.namespaceURI).toBe("http://www.w3.org/2000/svg");
    expect(number(root, "width")).toBeGreaterThan(1000);
    expect(root.getAttribute("viewBox")).toBe(`0 0 ${root.getAttribute("width")} ${root.getAttribute("height")}`);
  });

  test("has a block for every task, where and as long as it was; two for a pair", () => {
    const left = number(blocks(root)[0]!, "x");
    const found = blocks(root).map((block) => [
      number(block, "x") - left,
      number(block, "width"),
      block.getAttribute("fill"),
    ]);
    expect(found).toEqual([
      [0, 250, fill("forward")],
      [500, 500, fill("forward")],
      [500, 500, fill("backward")],
      [0, 100, fill("forward")],
      [250, 250, fill("backward")],
    ]);
    const [, upper, lower] = blocks(root) as [Element, Element, Element];
    expect(number(lower, "y")).toBe(number(upper, "y") + number(upper, "height"));
  });

  test("says which task, rank and colour is which", () => {
    expect(texts(root)).toEqual([
      "F3",
      "F4+B2",
      "F",
      "B3",
      "rank 0  12.50 % idle",
      "stage 0",
      "rank 1",
      "stage 1",
      "Forward",
      "Backward",
    ]);
  });

  test("has what could have been in pale", () => {
    expect(
      [...root.querySelectorAll("g")]
        .filter((group) => !group.hasAttribute("class"))
        .map((group) => group.getAttribute("opacity")),
    ).toEqual([null, "0.55", null]);
  });

  test("lies within its frame", () => {
    for (const shape of root.querySelectorAll("rect")) {
      expect(number(shape, "x") + number(shape, "width")).toBeLessThanOrEqual(number(root, "width"));
      expect(number(shape, "y") + number(shape, "height")).toBeLessThanOrEqual(number(root, "height"));
    }
  });
});

test("in the look of papers, devices are counted and blocks have edges and micro-batches only", () => {
  const { root } = picture(RUN, { figure: true });
  expect(texts(root)).toEqual(["3", "4", "3", "Device 1", "Device 2", "Forward", "Backward"]);
  for (const block of blocks(root)) expect(block.getAttribute("stroke")).toBe("#000000");
});

describe("with what could have been above what was", () => {
  const overlays = [{ lane: "ideal" as const, name: "the ideal", detail: "", idle: null }];
  const ranks = RUN.head.ranks.map((rank) => ({ ...rank, rates: rank.rates && { ...rank.rates, no_wait: 0.0625 } }));
  const above = { head: { ...RUN.head, ranks, overlays, above: "ideal" as const }, data: RUN.data };
  const opacities = (root: Element): (string | null)[] =>
    [...root.querySelectorAll("g")]
      .filter((group) => !group.hasAttribute("class"))
      .map((group) => group.getAttribute("opacity"));

  test("both have a caption, and ranks their titles in both", () => {
    const { root } = picture(above);
    const titles = texts(root).filter((text) => !/^[FB]/.test(text));
    expect(titles).toEqual([
      "rank 0  6.25 % idle",
      "rank 1",
      "rank 0  12.50 % idle",
      "stage 0",
      "rank 1",
      "stage 1",
      "the ideal",
      "as it ran",
    ]);
    const heights = ["the ideal", "rank 0  6.25 % idle", "rank 1", "as it ran", "rank 0  12.50 % idle"].map((wanted) =>
      number(
        [...root.querySelectorAll("text")].find(({ textContent }) => textContent === wanted)!,
        "y",
      ),
    );
    expect(heights).toEqual([...heights].sort((one, other) => one - other));
    expect(opacities(root)).toEqual(["0.55", null, null]);
  });

  test("ranks of a what-if have the rates of its answer", () => {
    const whatif = [{ lane: "whatif" as const, name: "zb-h1", detail: "", idle: [0.03125, null] }];
    const rows = above.head.rows.map((row) => (row.lane === "ideal" ? { ...row, lane: "whatif" as const } : row));
    const { root } = picture({
      ...above,
      head: { ...above.head, rows, overlays: whatif, above: "whatif" as const },
    });
    expect(texts(root)).toContain("rank 0  3.13 % idle");
    expect(texts(root)).not.toContain("rank 0  6.25 % idle");
  });

  test("it is pale, but not in the look of papers, which has both in the same colours", () => {
    const { root } = picture(above, { figure: true });
    expect(opacities(root)).toEqual([null, null, null]);
    expect(texts(root)).toEqual([
      "3",
      "4",
      "3",
      "Device 1",
      "Device 2",
      "Device 1",
      "Device 2",
      "the ideal",
      "as it ran",
      "Forward",
      "Backward",
    ]);
  });

  test("a folded group is the sum of either", () => {
    const plan = layout(above.head, { ...arrangement(above.head), grouping: "host", folded: new Set(["host0"]) });
    const { root } = picture(above, { plan });
    expect(opacities(root)).toEqual(["0.55", null]);
    const sums = [...root.querySelectorAll("g")]
      .filter((group) => !group.hasAttribute("class"))
      .map((group) =>
        [...group.children].slice(1).reduce((sum, box) => sum + number(box, "width") * number(box, "height"), 0),
      );
    const tall = plan.headings[0]!.height;
    // Two ranks: one could have run for 100 of 1,000 ns; they did run for 750 and for 250.
    expect(sums).toEqual([(100 * tall) / 2, (1000 * tall) / 2]);
  });
});

test("above the lanes stand ticks of time and steps, below blocks why ranks were idle", () => {
  const run = made({
    rows: [
      {
        rank: 0,
        tasks: [
          { start: 0, end: 200 },
          { start: 600, end: 1000 },
        ],
      },
    ],
    gaps: [{ rank: 0, gaps: [{ start: 200, end: 600, cause: 2 }] }],
    head: { steps: [{ step: 7, start: 0, end: 1000, phase: null, makespan: null, error: null, idle: null }] },
  });
  const { root } = picture(run);
  const axis = [...root.querySelectorAll(".axis text")].map(({ textContent }) => textContent);
  expect(axis).toContain("step 7");
  expect(axis).toContain("0.2 µs");
  const [band] = root.querySelectorAll(".causes rect");
  const [block] = blocks(root);
  expect(number(band!, "x") - number(block!, "x")).toBe(200);
  expect(number(band!, "width")).toBe(400);
  expect(number(band!, "y")).toBeGreaterThanOrEqual(number(block!, "y") + number(block!, "height"));
  const [mark, said] = [...root.querySelectorAll(".legend > *")].slice(-2);
  expect(said!.textContent).toBe("Transfer");
  expect(mark!.getAttribute("fill")).toBe(band!.getAttribute("fill"));
  const pattern = root.querySelector(band!.getAttribute("fill")!.slice(4, -1))!; // of dots
  expect(pattern.querySelectorAll("rect").length).toBeGreaterThan(10);
  expect(new Set([...pattern.children].map((dot) => dot.getAttribute("fill")))).toEqual(new Set(["#edc948"]));
  expect(picture(run, { figure: true, causes: false }).root.querySelectorAll(".axis, .causes rect").length).toBe(0);
});

test("only what is in sight is drawn", () => {
  const view = new View(1000);
  view.width = 1000;
  view.set(100, 200);
  const { root } = picture(RUN, { view });
  expect(blocks(root).map((block) => number(block, "width"))).toEqual([1000]);
  const plan = layout(RUN.head, { ...arrangement(RUN.head), extras: new Set(EXTRAS), size: "large" });
  const band = plan.bands[1]!;
  expect(texts(picture(RUN, { top: band.top, height: band.height }).root)).toEqual([
    "B3",
    "rank 1",
    "stage 1",
    "Forward",
    "Backward",
  ]);
});

test("blocks finer than pixels are few shapes and true shares of time", () => {
  const run = made({ rows: [{ rank: 0, tasks: row(random(8), 50_000) }] });
  const { root } = picture(run);
  expect(blocks(root).length).toBeLessThanOrEqual(1000);
  const { tasks } = run.data;
  const { fills, codes } = scheme("kind", run.head, run.data, false);
  const idle = luminance(THEME.idle);
  let wanted = 0; // how much light the blocks take from the ground, or add to it
  codes.forEach((code, task) => {
    wanted += ((luminance(fills[code]!) - idle) * (tasks.end[task]! - tasks.start[task]!)) / run.head.end;
  });
  const seen = blocks(root).reduce(
    (sum, block) => sum + ((luminance(block.getAttribute("fill")!) - idle) * number(block, "width")) / 1000,
    0,
  );
  expect(seen).toBeCloseTo(wanted, 3);
  expect(Math.abs(wanted)).toBeGreaterThan(0.1);
});

test("hostile text stays text", () => {
  const hostile = `</text><script>alert("1")</script><a href='javascript:x'>&amp;`;
  const kinds = KINDS.map((kind) => ({ ...kind, name: kind.name === "send" ? hostile : kind.name, short: hostile }));
  const { head, data } = made({
    rows: [
      {
        rank: 0,
        tasks: [
          { start: 0, end: 100_000 },
          { start: 100_000, end: 100_001 },
        ],
      },
    ],
    head: { kinds },
  });
  data.tasks.kind.fill(4);
  const view = new View(head.end);
  view.width = 5000;
  view.set(0, head.end);
  const { text, root } = picture({ head, data }, { view });
  expect(text).not.toContain("<script");
  expect(text).not.toContain("<a ");
  expect(root.querySelectorAll("script, a")).toHaveLength(0);
  expect(texts(root)[0]).toBe(hostile); // on the block
});

test("ranks of a run without a pipeline say how long their devices idled, whatever their tasks do", () => {
  const ranks = [{ idle: 0.762 }, { idle: 0.5 }, {}];
  const rows = ranks.map((_, rank) => ({ rank, tasks: [{ start: 0, end: 1000 }] }));
  const { root } = picture(made({ ranks, rows }));
  const titles = [...root.querySelectorAll("text")].map(({ textContent }) => textContent);
  expect(titles.filter((title) => title.startsWith("rank "))).toEqual([
    "rank 0  76.20 % idle",
    "rank 1  50.00 % idle",
    "rank 2",
  ]);
});
