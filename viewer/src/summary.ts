// The run in numbers and plots: bubble rates by their names, ranks, how long tasks take, ranks by steps.

import { hasCauses, idleOf, ofDevices, type Data, type Head, type Remedy, type Spread } from "./data";
import { spentByDevices } from "./devices";
import { button, either, element, shape, shortened, withCommands } from "./dom";
import { blend } from "./raster";
import { duration, percent, roundStep, tick } from "./units";
import { gain, rates, RATES, shownInLanes } from "./verdict";
import { causes } from "./why";
import { nameOf, t } from "./words";

const WIDTH = 560; // of a plot, pixels
const MOST_BARS = 48;
const MOST_BOXES = 96;
const HEAT = ["#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b"];

/** @param go shows a rank and, if given, a step; both by index @param show shows what a remedy is about */
export function summary(
  head: Head,
  data: Data,
  go: (rank: number | null, step: number | null) => void,
  show: (remedy: Remedy) => void,
): HTMLElement {
  return element(
    "section",
    { class: "summary", "aria-label": t("summary of the run") },
    ...remedies(head, show),
    ...(ofDevices(head) ? [] : [section(t("Bubble rates"), "", rates(head, RATES))]),
    ...(hasCauses(head) ? [section(t("Idle because of"), "", ...causes(head))] : []),
    ...spentByDevices(head, go).map((part) => section(...part)),
    ...(ofDevices(head) && head.devices ? [] : ranks(head, go)),
    ...(ofDevices(head) ? [] : cells(head, data, go)),
    ...spreads(head),
    ...(head.warnings.length
      ? [
          section(
            t("Warnings"),
            "",
            element("ul", {}, ...head.warnings.map((text) => element("li", {}, ...withCommands(shortened(text))))),
          ),
        ]
      : []),
  );
}

function section(title: string, hint: string, ...content: (Node | string)[]): HTMLElement {
  return element(
    "article",
    {},
    element("h2", {}, title),
    ...(hint ? [element("p", { class: "hint" }, hint)] : []),
    ...content,
  );
}

/** All that would help, that which saves most first. */
function remedies(head: Head, go: (remedy: Remedy) => void): HTMLElement[] {
  const { remedies: all } = head.verdict;
  if (!all.length) return [];
  const rows = all.map((remedy) => {
    const headline = shownInLanes(remedy)
      ? button(remedy.headline, t("show it"), () => go(remedy))
      : element("b", {}, remedy.headline);
    return element(
      "tr",
      {},
      element("td", { class: "number" }, gain(remedy)),
      element("td", {}, headline, element("p", {}, [remedy.evidence, remedy.advice].join(" ").trim())),
    );
  });
  return [
    section(
      t("What would help"),
      t("a step: what doing this alone saves, or what is lost to it"),
      element("table", {}, ...rows),
    ),
  ];
}

/** How much each rank was idle, the idlest first where they are many. */
function ranks(head: Head, go: (rank: number, step: null) => void): HTMLElement[] {
  const known = head.ranks.flatMap((rank, index) => {
    const rate = idleOf(rank);
    return rate === null ? [] : [{ index, rate }];
  });
  if (!known.length) return [];
  const shown = known.length > MOST_BARS ? [...known].sort((a, b) => b.rate - a.rate).slice(0, MOST_BARS) : known;
  const most = Math.max(0.01, ...shown.map(({ rate }) => rate));
  const bars = shown.map(({ index, rate }, at) => {
    const y = at * 18;
    const long = (rate / most) * (WIDTH - 240);
    const bar = shape(
      "g",
      { class: "go", tabindex: 0, role: "button" },
      shape("title", {}, t("show rank {rank}", { rank: head.ranks[index]!.rank })),
      shape("rect", { x: 0, y, width: WIDTH, height: 18, class: "hit" }),
      shape("text", { x: 0, y: y + 13 }, t("rank {rank}", { rank: head.ranks[index]!.rank })),
      shape("text", { x: 80, y: y + 13, class: "dim" }, stages(head, index)),
      shape("rect", { x: 170, y: y + 3, width: long, height: 12, class: "bar" }),
      shape("text", { x: 176 + long, y: y + 13 }, percent(rate)),
    );
    bar.addEventListener("click", () => go(index, null));
    bar.addEventListener("keydown", (event) => event.key === "Enter" && go(index, null));
    return bar;
  });
  const devices = ofDevices(head);
  const hint =
    known.length > shown.length
      ? t("the {shown} idlest of {count}", { shown: shown.length, count: known.length })
      : devices
        ? t("share of the time in which devices were idle")
        : t("makespan bubble rate");
  const label = devices ? t("idle share of each rank") : t("bubble rate of each rank");
  return [section(t("Ranks"), hint, plot(WIDTH, shown.length * 18, label, ...bars))];
}

function stages(head: Head, index: number): string {
  const { stages: own } = head.ranks[index]!;
  return own?.length
    ? t("stage {stage}", { stage: own.length > 4 ? `${own[0]} … ${own.at(-1)}` : own.join(", ") })
    : "";
}

const ROW = 18; // pixels of height of a line of a plot
const BOXES = { from: 90, to: WIDTH - 90 }; // where they are, left of their medians
const TICKS = 4; // of an axis, about

/** How long tasks take: whiskers from the shortest to the longest, a box for the middle half, a line for the median. */
function spreads(head: Head): HTMLElement[] {
  return head.kinds.flatMap(({ name, fill, ink, dark }, kind) => {
    const all = head.spread.filter((spread) => spread.kind === kind);
    if (!all.length) return [];
    const shown = all.slice(0, MOST_BOXES);
    const most = Math.max(1, ...shown.map((spread) => spread.most));
    const x = (time: number): number => BOXES.from + (time / most) * (BOXES.to - BOXES.from);
    const boxes = shown.map((spread, at) =>
      box(spread, (at + 1) * ROW, x, either(fill, dark.fill), either(ink, dark.ink)),
    );
    const hint =
      all.length > shown.length
        ? t("the first {shown} of {count} stages", { shown: shown.length, count: all.length })
        : t("by stage: least, quartiles, median, most");
    const height = (shown.length + 2) * ROW;
    const parts = [axis(most, x, height), ...boxes];
    return [
      section(
        t("Lengths of {kind}", { kind: nameOf(name) }),
        hint,
        plot(WIDTH, height, t("lengths of {kind}", { kind: nameOf(name) }), ...parts),
      ),
    ];
  });
}

/** Times below boxes, with lines through them, and what stands beside them. */
function axis(most: number, x: (time: number) => number, height: number): SVGElement {
  const spacing = roundStep(most / TICKS);
  const times = Array.from({ length: Math.floor(most / spacing) + 1 }, (_, at) => at * spacing);
  return shape(
    "g",
    { class: "axis" },
    shape("text", { x: WIDTH, y: 13, class: "dim", "text-anchor": "end" }, t("median")),
    ...times.flatMap((time) => [
      shape("line", { x1: x(time), x2: x(time), y1: ROW, y2: height - ROW, class: "tick" }),
      shape(
        "text",
        { x: x(time), y: height - 5, class: "dim", "text-anchor": "middle" },
        time ? tick(time, { spacing, most }) : "0",
      ),
    ]),
  );
}

function box(spread: Spread, y: number, x: (time: number) => number, fill: string, ink: string): SVGElement {
  const { stage, count, least, low, middle, high, most, mean } = spread;
  const said = t("{count} tasks, median {median}, mean {mean}, {least} to {most}", {
    count,
    median: duration(middle),
    mean: duration(mean),
    least: duration(least),
    most: duration(most),
  });
  return shape(
    "g",
    {},
    shape("title", {}, said),
    shape("rect", { x: 0, y, width: WIDTH, height: ROW, class: "hit" }),
    shape("text", { x: 0, y: y + 13 }, stage === null ? t("no stage") : t("stage {stage}", { stage })),
    shape("line", { x1: x(least), x2: x(most), y1: y + 9, y2: y + 9, class: "whisker" }),
    shape("line", { x1: x(most), x2: x(most), y1: y + 5, y2: y + 13, class: "whisker" }),
    shape("rect", { x: x(low), y: y + 3, width: Math.max(2, x(high) - x(low)), height: 12, fill }),
    shape("rect", { x: x(middle) - 1, y: y + 3, width: 2, height: 12, fill: ink }),
    shape("text", { x: WIDTH, y: y + 13, "text-anchor": "end" }, duration(middle)),
  );
}

function plot(width: number, height: number, label: string, ...shapes: SVGElement[]): SVGElement {
  // What holds something to press is no image.
  const role: "group" | "img" = shapes.some((one) => one.hasAttribute("tabindex")) ? "group" : "img";
  return shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role, "aria-label": label }, ...shapes);
}

/** Idle share of each rank in each step, as a picture to point at. */
function cells(head: Head, data: Data, go: (rank: number, step: number | null) => void): HTMLElement[] {
  const { rank, step, busy, span } = data.cells;
  if (!rank.length) return [];
  const [columns, rows] = [head.steps.length, head.ranks.length];
  const shares = new Float32Array(columns * rows).fill(NaN);
  for (let i = 0; i < rank.length; i++)
    if (span[i]! > 0) shares[rank[i]! * columns + step[i]!] = 1 - busy[i]! / span[i]!;
  const known = shares.filter((share) => !Number.isNaN(share));
  let [least, most] = [1, 0];
  for (const share of known) [least, most] = [Math.min(least, share), Math.max(most, share)];
  const range = Math.max(most - least, 0.001);

  const wide = Math.max(1, Math.min(24, Math.floor(WIDTH / columns)));
  const tall = Math.max(1, Math.min(18, Math.floor(480 / rows)));
  const canvas = element("canvas", {
    class: "heat",
    role: "img",
    "aria-label": t("idle share of each rank in each step"),
  });
  // One cell a pixel, stretched to whole pixels where there is room; a long run is wider than the page and scrolls.
  [canvas.width, canvas.height] = [columns * wide, rows * tall];
  const context = canvas.getContext("2d")!;
  for (let at = 0; at < shares.length; at++) {
    if (Number.isNaN(shares[at])) continue;
    context.fillStyle = heat((shares[at]! - least) / range);
    context.fillRect((at % columns) * wide, Math.floor(at / columns) * tall, wide, tall);
  }
  const said = element(
    "p",
    { class: "hint", "aria-live": "polite" },
    t("from {least} (light) to {most} (dark); point at a cell, click to go there", {
      least: percent(least),
      most: percent(most),
    }),
  );
  const cellAt = (event: MouseEvent): [number, number] => {
    const box = canvas.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * columns);
    const y = Math.floor(((event.clientY - box.top) / box.height) * rows);
    return [Math.min(x, columns - 1), Math.min(y, rows - 1)];
  };
  canvas.addEventListener("mousemove", (event) => {
    const [x, y] = cellAt(event);
    const share = shares[y * columns + x]!;
    const cell = { rank: head.ranks[y]!.rank, step: head.steps[x]!.step };
    said.textContent = Number.isNaN(share)
      ? t("rank {rank}, step {step}: no tasks", cell)
      : t("rank {rank}, step {step}: {share} idle", { ...cell, share: percent(share) });
  });
  canvas.addEventListener("click", (event) => {
    const [x, y] = cellAt(event);
    go(y, x);
  });
  return [
    section(
      t("Idle share: ranks by steps"),
      t("ranks from top to bottom as in the lanes, steps from left to right"),
      element("div", { class: "scroll" }, canvas),
      said,
    ),
  ];
}

function heat(share: number): string {
  const at = Math.min(share * (HEAT.length - 1), HEAT.length - 1.0001);
  return blend(HEAT[Math.floor(at) + 1]!, HEAT[Math.floor(at)]!, at - Math.floor(at));
}
