// Small runs for tests: a head and its data, as the page has them once it has read what it was given.

import type {
  Cause,
  Data,
  Extent,
  Head,
  KernelRow,
  KernelUse,
  Kind,
  Lane,
  Pattern,
  Rank,
  Row,
  SampleExtent,
} from "../src/data";
import { inkOn, lineOn } from "../src/light";
import type { Theme } from "../src/theme";

/** A task; what is left out is unknown. */
export interface Task {
  start: number; // ns since the origin, as is the end
  end: number;
  kind?: string;
  microbatch?: number;
  chunk?: number;
  stage?: number;
  step?: number;
  peer?: number;
  pair?: number;
  pairChunk?: number;
  busy?: number;
  lead?: number;
  name?: string;
  waited?: number;
  awaited?: number;
  off?: number;
}

export interface Gap {
  start: number;
  end: number;
  cause?: number;
  step?: number;
  task?: number;
  root?: number;
}

/** A kernel; what is left out is unknown. */
export interface Kernel {
  start: number; // as drawn
  end: number;
  cut?: number;
  use?: number;
  name?: string;
  module?: string;
  lead?: number;
}

/** A run: rows, gaps and samples by the index of their rank, in the order of the page. */
export interface Run {
  ranks?: Partial<Rank>[];
  rows?: { rank: number; lane?: Lane; tasks: Task[] }[];
  gaps?: { rank: number; gaps: Gap[] }[];
  kernels?: { rank: number; device?: number; stream?: number; row?: number; kernels: Kernel[] }[];
  links?: [source: number, target: number][];
  samples?: { rank: number; counter: number; points: [time: number, value: number][] }[];
  head?: Partial<Head>;
}

const NOTHING = { span: null, makespan: null, longest_span: null, over_ideal: null, no_wait: null, excess: null };

const shaded = (fill: string, dark: string) => ({
  fill,
  ink: inkOn(fill),
  outline: lineOn(fill),
  dark: { fill: dark, ink: inkOn(dark), outline: lineOn(dark) },
});

export const KINDS: Kind[] = [
  { name: "forward", short: "F", spent: 1, beside: 0, ...shaded("#4e79a7", "#a7c4e0") },
  { name: "backward", short: "B", spent: 1, beside: 0, ...shaded("#59a14f", "#2f6b27") },
  { name: "backward_weight", short: "W", spent: 1, beside: 0, ...shaded("#f28e2b", "#8f4c08") },
  { name: "forward_backward", short: "FB", spent: 1, beside: 0, ...shaded("#76b7b2", "#3b807b") },
  { name: "send", short: "S", spent: 1, beside: 0, ...shaded("#b07aa1", "#6d3f60") },
  { name: "optimizer", short: "O", spent: 1, beside: 0, ...shaded("#9c755f", "#ffffff") },
  { name: "other", short: "Other", spent: 1, beside: 0, ...shaded("#b0b0b0", "#606060") },
];

export const USES: KernelUse[] = [
  { name: "compute", ...shaded("#009e73", "#35b48d") },
  { name: "communication", ...shaded("#cc79a7", "#7a4462") },
  { name: "copy", ...shaded("#f0e442", "#857d12") },
];

const LOOKS: [Pattern, string, string][] = [
  ["line", "#888888", "#777777"],
  ["upright", "#e15759", "#ff9a9c"],
  ["dots", "#edc948", "#8a7010"],
];

export const CAUSES: Cause[] = ["warm-up", "waiting", "transfer"].map((name, index) => ({
  name,
  meaning: `${name}, said at length`,
  pattern: LOOKS[index]![0],
  fill: LOOKS[index]![1],
  dark: LOOKS[index]![2],
  inherent: index === 0,
  share: [0.5, 0.3, 0.2][index]!,
  idle: [5, 3, 2][index]!,
  saved: null,
}));

export const THEME: Theme = {
  text: "#1a1a1a",
  dim: "#666666",
  idle: "#eeeeee",
  warm: "#dde6ee",
  cool: "#eee6dd",
  band: "#f4f4f4",
  line: "#dddddd",
  page: "#ffffff",
  accent: "#d6279a",
  dark: false,
};

/** Make a run. It has as many ranks as its rows speak of, or as are given. */
export function made({ ranks = [], rows = [], gaps = [], links = [], samples = [], kernels = [], head = {} }: Run): {
  head: Head;
  data: Data;
} {
  const count = Math.max(ranks.length, 0, ...[...rows, ...gaps, ...samples, ...kernels].map(({ rank }) => rank + 1));
  const tasks = rows.flatMap((row) => row.tasks);
  const stretches = gaps.flatMap((one) => one.gaps);
  const points = samples.flatMap((one) => one.points);
  const ran = kernels.flatMap((one) => one.kernels);
  const [called, modules] = [
    [...new Set(ran.map(({ name = "" }) => name))],
    [...new Set(ran.flatMap(({ module }) => module ?? []))],
  ];
  const names = [...new Set(tasks.map(({ name }) => name ?? ""))];
  const column = (field: keyof Task): Int32Array =>
    Int32Array.from(tasks, (task) => (task[field] as number | undefined) ?? -1);
  const most = (...fields: (keyof Task)[]): number =>
    fields.flatMap((field) => [...column(field)]).reduce((one, other) => Math.max(one, other), -1);
  return {
    head: {
      title: "a run",
      above: null,
      verdict: { share: null, error: null, share_of: "", said: "", remedies: [] },
      opening: null,
      origin: "1700000000000000000",
      end: tasks.reduce((last, { end }) => Math.max(last, end), 1),
      kinds: KINDS,
      microbatches: 1 + most("microbatch", "pair"),
      chunks: 1 + most("chunk", "pairChunk"),
      ranks: Array.from({ length: count }, (_, index) => rank(index, ranks[index])),
      rows: extents(rows, ({ tasks: own }) => own.length).map((extent, index): Row => ({
        ...extent,
        lane: rows[index]!.lane ?? "compute",
        row: 0,
      })),
      standings: [],
      steps: [],
      overall: NOTHING,
      errors: NOTHING,
      definitions: {},
      facts: [],
      schedule: null,
      departures: [],
      notes: [],
      warnings: [],
      columns: {
        tasks: [],
        gaps: [],
        links: [],
        phases: [],
        cells: [],
        samples: [],
        kernels: [],
        communication: [],
        ghosts: [],
      },
      names,
      causes: gaps.length ? CAUSES : [],
      gaps: extents(gaps, (one) => one.gaps.length),
      overlays: [],
      whatif: null,
      spread: [],
      counters: [],
      samples: extents(samples, (one) => one.points.length).map((extent, index): SampleExtent => ({
        ...extent,
        counter: samples[index]!.counter,
      })),
      kernels: kernels.length
        ? { uses: USES, names: called.map((name) => [name, `void ${name}(int)`]), modules }
        : null,
      kernel_rows: extents(kernels, (one) => one.kernels.length).map((extent, index): KernelRow => {
        const { device = 0, stream = 7, row = 0 } = kernels[index]!;
        return { ...extent, device, stream, row };
      }),
      no_kernels: null,
      communicating: [],
      groups: [],
      devices: null,
      unrecorded: [],
      inferred: null,
      against: null,
      ...head,
    },
    data: {
      tasks: {
        start: Float64Array.from(tasks, ({ start }) => start),
        end: Float64Array.from(tasks, ({ end }) => end),
        kind: Uint8Array.from(tasks, ({ kind = "forward" }) => KINDS.findIndex(({ name }) => name === kind)),
        name: Uint32Array.from(tasks, ({ name = "" }) => names.indexOf(name)),
        microbatch: column("microbatch"),
        chunk: column("chunk"),
        stage: column("stage"),
        step: column("step"),
        peer: column("peer"),
        pair: column("pair"),
        pairChunk: column("pairChunk"),
        busy: column("busy"),
        lead: column("lead"),
        ...(most("waited") < 0 ? {} : { waited: column("waited"), awaited: column("awaited"), off: column("off") }),
      },
      gaps: {
        start: Float64Array.from(stretches, ({ start }) => start),
        end: Float64Array.from(stretches, ({ end }) => end),
        cause: Uint8Array.from(stretches, ({ cause = 0 }) => cause),
        step: Int32Array.from(stretches, ({ step = -1 }) => step),
        task: Int32Array.from(stretches, ({ task = -1 }) => task),
        root: Int32Array.from(stretches, ({ root = -1 }) => root),
      },
      links: {
        source: Int32Array.from(links, ([source]) => source),
        target: Int32Array.from(links, ([, target]) => target),
      },
      phases: {
        rank: new Int32Array(),
        step: new Int32Array(),
        start: new Float64Array(),
        steady: new Float64Array(),
        cool: new Float64Array(),
        end: new Float64Array(),
      },
      cells: { rank: new Int32Array(), step: new Int32Array(), busy: new Float64Array(), span: new Float64Array() },
      samples: {
        time: Float64Array.from(points, ([time]) => time),
        value: Float64Array.from(points, ([, value]) => value),
      },
      communication: {
        task: new Int32Array(),
        of: new Int32Array(),
        exposed: new Int32Array(),
        hidden: new Int32Array(),
      },
      kernels: {
        start: Float64Array.from(ran, ({ start }) => start),
        end: Float64Array.from(ran, ({ end }) => end),
        cut: Int32Array.from(ran, ({ cut = 0 }) => cut),
        use: Uint8Array.from(ran, ({ use = 0 }) => use),
        name: Uint8Array.from(ran, ({ name = "" }) => called.indexOf(name)),
        module: Int16Array.from(ran, ({ module }) => (module === undefined ? -1 : modules.indexOf(module))),
        lead: Int32Array.from(ran, ({ lead = -1 }) => lead),
      },
    },
  };
}

function rank(index: number, given: Partial<Rank> = {}): Rank {
  return {
    rank: index,
    host: "host0",
    stages: [index],
    device: 0,
    process: null,
    pp: null,
    dp: null,
    tp: null,
    cp: null,
    ep: null,
    etp: null,
    edp: null,
    off: null,
    standing: "alike",
    reason: null,
    like: null,
    rates: null,
    idle: null,
    ...given,
  };
}

function extents<T extends { rank: number }>(parts: T[], length: (part: T) => number): Extent[] {
  let at = 0;
  return parts.map((part) => ({ rank: part.rank, from: at, to: (at += length(part)) }));
}

export type Random = () => number;

/** Numbers from 0 up to 1 that look random and are the same in every run. */
export function random(seed: number): Random {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A whole number from `least` up to `most`. */
export function whole(next: Random, least: number, most: number): number {
  return least + Math.floor(next() * (most - least + 1));
}

/** Tasks one after the other, of all kinds, some with room between them, some without length. */
export function row(next: Random, count: number, longest = 9): Task[] {
  let at = whole(next, 0, longest);
  return Array.from({ length: count }, () => {
    const start = at + (next() < 0.5 ? 0 : whole(next, 0, longest));
    const end = start + (next() < 0.1 ? 0 : whole(next, 1, longest));
    at = end;
    return { start, end, kind: KINDS[whole(next, 0, KINDS.length - 1)]!.name };
  });
}
