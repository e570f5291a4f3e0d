// Which colour each block has: by what it is, or by something that is known of it.

import { changeOf, signed } from "./against";
import { HALVES, PAIR, usualLength, type Data, type Head, type Lane, type Numbers, type Tasks } from "./data";
import { inkOn, lineOn } from "./light";
import { blend } from "./raster";
import { duration } from "./units";
import { nameOf, t } from "./words";

export const MODES = {
  kind: t("kind"),
  microbatch: t("micro-batch"),
  chunk: t("model chunk"),
  length: t("length against its like"),
  ideal: t("delay against the ideal"),
  whatif: t("delay against the what-if"),
  change: t("change from A to B"),
  cause: t("cause of idle time"),
} as const;

export type Mode = keyof typeof MODES;

/** A colour for every task. */
export interface Scheme {
  codes: Numbers; // one of the fills for each task
  below: Numbers; // the same for the lower half of a block: another for the second task of a pair
  fills: string[];
  inks: string[]; // of what is written on them
  edges: string[]; // of the lines around them
  legend: [fill: string, meaning: string][];
  title?: string; // of the legend
  hatched?: number; // the code of what is not known
  wholeGaps: boolean; // gaps are coloured in all their height
}

const GREY = "#b4b7bb";
const FEW = 10; // micro-batches that the legend names each
const VIRIDIS = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"];
const CHUNKS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#5c5c5c"];
const RATIOS: [least: number, fill: string, meaning: string][] = [
  [0, "#2166ac", t("under 0.80 of the median of its kind and stage")],
  [0.8, "#92c5de", t("{least} to {most}", { least: "0.80", most: "0.95" })],
  [0.95, "#c9cbcd", t("{least} to {most}", { least: "0.95", most: "1.05" })],
  [1.05, "#f4c08d", t("{least} to {most}", { least: "1.05", most: "1.25" })],
  [1.25, "#e08214", t("{least} to {most}", { least: "1.25", most: "2" })],
  [2, "#a50026", t("over {ratio}", { ratio: 2 })],
];
const DELAYS: [least: number, fill: string][] = [
  [-Infinity, "#c9cbcd"],
  [0.005, "#fde0b6"],
  [0.02, "#f9b25f"],
  [0.05, "#e08214"],
  [0.1, "#b2182b"],
  [0.25, "#67001f"],
];

// From what B gained to what it lost: blue and orange are told apart by all eyes, ends are the darkest.
// In dark they are the lightest.
const CHANGES = ["#114781", "#2f79b5", "#7fb2d6", "#b9bdc1", "#f0b06a", "#d2691e", "#86280b"];
const CHANGES_DARK = ["#b3daff", "#62a8e5", "#38709f", "#5c6168", "#935c22", "#dd8a35", "#ffd0a0"];
const UNKNOWN = { light: "#e3e4e6", dark: "#33373c" }; // hatched where there is room

/** Which ways of colouring say something about a run. */
export function modes(head: Head): Mode[] {
  const overlays = new Set<string>(head.overlays.map(({ lane }) => lane));
  return (Object.keys(MODES) as Mode[]).filter((mode) => {
    if (mode === "chunk") return head.chunks > 1;
    if (mode === "change") return head.against !== null;
    if (mode === "cause") return head.gaps.length > 0;
    if (mode === "ideal" || mode === "whatif") return overlays.has(mode);
    return mode !== "length" || head.spread.length > 0;
  });
}

/** @param dark whether the ground is */
export function scheme(mode: Mode, head: Head, data: Data, dark = false): Scheme {
  if (mode === "microbatch") return byMicrobatch(head, data.tasks);
  if (mode === "chunk") return byChunk(head, data.tasks);
  if (mode === "length") return byLength(head, data.tasks);
  if (mode === "ideal" || mode === "whatif") return byDelay(mode, head, data.tasks);
  if (mode === "change") return byChange(head.against?.scale ?? [], data.tasks, dark);
  if (mode === "cause") return byCause(data.tasks);
  return byKind(head, data.tasks, dark);
}

function byKind(head: Head, { kind }: Tasks, dark: boolean): Scheme {
  const shades = head.kinds.map((one) => (dark ? one.dark : one));
  const used = new Set<number>(kind);
  // Of a run of which only a part is here, also those of which no task is loaded now.
  if (head.served) head.kinds.forEach((one, index) => one.spent + one.beside > 0 && used.add(index));
  const of = (name: string): number => head.kinds.findIndex((one) => one.name === name);
  const [pair, forward, backward] = [of(PAIR), ...HALVES.map(of)] as [number, number, number];
  const legend = head.kinds.flatMap(({ name }, index): [string, string][] =>
    used.has(index) && index !== pair ? [[shades[index]!.fill, nameOf(name)]] : [],
  );
  const scheme = {
    fills: shades.map(({ fill }) => fill),
    inks: shades.map(({ ink }) => ink),
    edges: shades.map(({ outline }) => outline),
    wholeGaps: false,
  };
  if (!used.has(pair)) return { ...scheme, codes: kind, below: kind, legend };
  const half = (code: number): Numbers => coded(kind, (one) => (one === pair ? code : one));
  for (const index of [backward, forward]) {
    const entry: [string, string] = [shades[index]!.fill, nameOf(head.kinds[index]!.name)];
    if (!used.has(index)) legend.unshift(entry);
  }
  return { ...scheme, codes: half(forward), below: half(backward), legend };
}

/** The same colours whatever part of the run is here, and whatever more micro-batches a what-if has. */
function byMicrobatch({ microbatches }: Head, { microbatch, pair }: Tasks): Scheme {
  const most = Math.max(1, microbatches - 1);
  const steps = Math.min(most + 1, 64);
  const fills = Array.from({ length: steps }, (_, index) => along(VIRIDIS, steps > 1 ? index / (steps - 1) : 0));
  const code = (value: number): number => (value < 0 ? steps : Math.round(Math.min(value / most, 1) * (steps - 1)));
  const codes = coded(microbatch, code);
  const below = anyKnown(pair) ? coded(pair, (value, task) => (value < 0 ? codes[task]! : code(value))) : codes;
  const told =
    most < FEW
      ? Array.from({ length: most + 1 }, (_, value) => value)
      : [0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * most));
  const legend = told.map((value): [string, string] => [fills[code(value)]!, String(value)]);
  return inked({ codes, below, fills: [...fills, GREY], legend, title: t("Micro-batches"), wholeGaps: false });
}

function byChunk({ chunks }: Head, { chunk, pairChunk }: Tasks): Scheme {
  const code = (value: number): number => (value < 0 ? CHUNKS.length : value % CHUNKS.length);
  const codes = coded(chunk, code);
  const below = anyKnown(pairChunk)
    ? coded(pairChunk, (value, task) => (value < 0 ? codes[task]! : code(value)))
    : codes;
  const legend = CHUNKS.slice(0, chunks).map((fill, index): [string, string] => [
    fill,
    t("chunk {chunk}", { chunk: index }),
  ]);
  return inked({ codes, below, fills: [...CHUNKS, GREY], legend, wholeGaps: false });
}

function byLength(head: Head, tasks: Tasks): Scheme {
  const usual = usualLength(head.spread);
  const codes = new Uint8Array(tasks.kind.length).fill(RATIOS.length);
  for (let task = 0; task < codes.length; task++) {
    const ratio = (tasks.end[task]! - tasks.start[task]!) / usual(tasks.kind[task]!, tasks.stage[task]!);
    if (isNaN(ratio)) continue;
    codes[task] = RATIOS.findLastIndex(([least]) => ratio >= least);
  }
  // Communication lasts as long as it waits: beside slow computing it would stand out most.
  const waiting = head.rows.filter(({ lane, from, to }) => lane === "comm" && to > from);
  for (const { from, to } of waiting) codes.fill(RATIOS.length, from, to);
  const legend = RATIOS.map(([, fill, meaning]): [string, string] => [fill, meaning]);
  if (waiting.length) legend.push([GREY, t("communication, which waits too")]);
  const fills = [...RATIOS.map(([, fill]) => fill), GREY];
  return inked({ codes, below: codes, fills, legend, title: t("Length against its like"), wholeGaps: false });
}

/** By how much each task is longer in B than in A. @param scale from where on they have another colour */
function byChange(scale: number[], tasks: Tasks, dark: boolean): Scheme {
  const unknown = CHANGES.length;
  const codes = new Uint8Array(tasks.kind.length).fill(unknown);
  for (let task = 0; task < codes.length; task++) {
    const change = changeOf(tasks, task);
    if (change === null) continue;
    codes[task] = scale.length + Math.sign(change) * scale.filter((edge) => Math.abs(change) >= edge).length;
  }
  const [least, middle, most] = scale as [number, number, number];
  const at = (change: number): string => plainly(signed(change));
  const between = (one: number, other: number): string => t("{least} to {most}", { least: at(one), most: at(other) });
  const meanings = [
    t("{change} and more: B is faster", { change: at(-most) }),
    between(-most, -middle),
    between(-middle, -least),
    t("less than {time}", { time: plainly(duration(least)) }),
    between(least, middle),
    between(middle, most),
    t("{change} and more: B is slower", { change: at(most) }),
    t("no counterpart in the other run"),
  ];
  const fills = dark ? [...CHANGES_DARK, UNKNOWN.dark] : [...CHANGES, UNKNOWN.light];
  const legend = fills.map((fill, code): [string, string] => [fill, meanings[code]!]);
  return inked({ codes, below: codes, fills, legend, title: t("From A to B"), hatched: unknown, wholeGaps: false });
}

/** A round number without the digits that say that it is exact. */
function plainly(text: string): string {
  return text.replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ");
}

/** How much later each task ended, since its step began, than the same task of an overlay. */
function byDelay(lane: Lane, head: Head, tasks: Tasks): Scheme {
  const steps = new Map(head.steps.map((step) => [step.step, step]));
  const greatestStep = greatest(tasks.step);
  const ends = new Map<number, number>();
  const [passes, stages] = [greatest(tasks.microbatch) + 2, greatest(tasks.stage) + 2];
  const own = (task: number): number => (tasks.microbatch[task]! + 1) * stages + tasks.stage[task]! + 1;
  const key = (rank: number, task: number): number =>
    ((rank * (greatestStep + 2) + tasks.step[task]! + 1) * head.kinds.length + tasks.kind[task]!) * passes * stages +
    own(task);
  for (const row of head.rows) {
    if (row.lane !== lane) continue;
    for (let task = row.from; task < row.to; task++) ends.set(key(row.rank, task), tasks.end[task]!);
  }
  const codes = new Uint8Array(tasks.kind.length).fill(DELAYS.length);
  for (const row of head.rows) {
    if (row.lane !== "compute") continue;
    for (let task = row.from; task < row.to; task++) {
      const [end, step] = [ends.get(key(row.rank, task)), steps.get(tasks.step[task]!)];
      if (end === undefined || !step) continue;
      const delay = (tasks.end[task]! - end) / (step.end - step.start);
      codes[task] = DELAYS.findLastIndex(([least]) => delay >= least);
    }
  }
  const length = head.steps.length ? head.steps[0]!.end - head.steps[0]!.start : 0;
  const legend = DELAYS.map(([least, fill], index): [string, string] => {
    const share = t("{percent} % of a step", { percent: 100 * least });
    if (index === 0) return [fill, t("hardly later")];
    return [
      fill,
      index === 1
        ? t("over {share} later ({time})", { share, time: duration(least * length) })
        : t("over {percent} %", { percent: 100 * least }),
    ];
  });
  return inked({ codes, below: codes, fills: [...DELAYS.map(([, fill]) => fill), GREY], legend, wholeGaps: false });
}

function byCause({ kind }: Tasks): Scheme {
  const codes = new Uint8Array(kind.length);
  return inked({ codes, below: codes, fills: [GREY], legend: [[GREY, t("busy")]], wholeGaps: true });
}

/** A colour as it is of what was not found. */
export function pale(fill: string, ground: string): string {
  return blend(fill, ground, 0.18);
}

/** The same scheme with all tasks but those found pale. */
export function dimmed(scheme: Scheme, found: Uint8Array, ground: string): Scheme {
  const count = scheme.fills.length;
  const apart = (codes: Numbers): Numbers => coded(codes, (code, task) => (found[task] ? code : code + count));
  const codes = apart(scheme.codes);
  return {
    ...scheme,
    codes,
    below: scheme.below === scheme.codes ? codes : apart(scheme.below),
    fills: [...scheme.fills, ...scheme.fills.map((fill) => pale(fill, ground))],
    inks: [...scheme.inks, ...scheme.inks.map(() => "#808080")],
    edges: [...scheme.edges, ...scheme.edges.map((edge) => blend(edge, ground, 0.3))],
  };
}

function inked(scheme: Omit<Scheme, "inks" | "edges">): Scheme {
  return { ...scheme, inks: scheme.fills.map(inkOn), edges: scheme.fills.map(lineOn) };
}

function along(colours: string[], share: number): string {
  const at = Math.min(share * (colours.length - 1), colours.length - 1.000001);
  const index = Math.floor(at);
  return blend(colours[index + 1]!, colours[index]!, at - index);
}

function greatest(values: Numbers): number {
  let most = -1;
  for (const value of values) if (value > most) most = value;
  return most;
}

/** A code for each value: what `Uint8Array.from` does, many times as fast, which counts where there are a million. */
export function coded(values: Numbers, code: (value: number, index: number) => number): Uint8Array {
  const codes = new Uint8Array(values.length);
  for (let index = 0; index < codes.length; index++) codes[index] = code(values[index]!, index);
  return codes;
}

function anyKnown(values: Numbers): boolean {
  return greatest(values) >= 0;
}
