// What the page was given: a small JSON head and a compressed block of binary columns.

/** A fill, what is written on it, and the lines around it. */
export interface Shades {
  fill: string;
  ink: string;
  outline: string;
}

/** The same on a light ground and on a dark one. */
export interface Shaded extends Shades {
  dark: Shades;
}

export interface Kind extends Shaded {
  name: string;
  short: string;
}

export interface Rates {
  span: number | null;
  makespan: number | null;
  over_ideal: number | null;
  no_wait: number | null;
  excess: number | null;
}

/** The parallel dimensions, in the order in which a rank's coordinates are listed. */
export const DIMENSIONS = ["pp", "dp", "tp", "cp", "ep", "etp", "edp"] as const;

/** Where a rank stands in each of them; null where that is not known. */
type Coordinates = Record<(typeof DIMENSIONS)[number], number | null>;

export interface Rank extends Coordinates {
  rank: number;
  host: string;
  stages: number[] | null;
  device: number | null;
  process: number | null;
  off: number | null; // how far the clock may be off against the first host's, ns
  rates: (Rates & { error: number | null }) | null; // the error is that of the makespan rate
}

/** The coordinates of a rank that are known; null if none is. */
export function coordinates(rank: Coordinates): string | null {
  const known = DIMENSIONS.filter((name) => rank[name] !== null).map((name) => `${name} ${rank[name]}`);
  return known.length ? known.join(", ") : null;
}

export const PATTERNS = ["solid", "upright", "level", "rising", "falling", "dots", "check", "line"] as const;
export type Pattern = (typeof PATTERNS)[number];

/** Why ranks were idle. */
export interface Cause {
  name: string;
  meaning: string;
  pattern: Pattern;
  fill: string;
  dark: string; // its fill on a dark ground
  inherent: boolean; // to the schedule
  share: number; // of all idle time
}

/** Which rows of a table belong to a rank. They are in the order of time: starts and ends
 *  rise. Tasks may overlap by as little as a trace cannot tell from none; then the later is drawn from the earlier's end. */
export interface Extent {
  rank: number; // index into ranks
  from: number; // first
  to: number; // one past the last
}

/** One row of blocks: part of a lane of a rank. */
export interface Row extends Extent {
  lane: Lane;
}

export type Lane = "compute" | OverlayLane | "comm" | "host";

/** Lanes of what a run could have been. */
export type OverlayLane = "ideal" | "whatif";

/** What a run could have been, shown in lanes of its own beside those that were measured. */
export interface Overlay {
  lane: OverlayLane;
  name: string;
  detail: string;
}

/** How long tasks of a kind take, on one stage or, without one, where none is known; ns. */
export interface Spread {
  kind: number; // index into kinds
  stage: number | null;
  count: number;
  least: number;
  low: number; // the quartiles
  middle: number;
  high: number;
  most: number;
  mean: number;
}

/** Something measured beside the tasks, such as memory. */
export interface Counter {
  name: string;
  unit: string;
  least: number;
  most: number;
}

/** What kernels do. */
export interface KernelUse extends Shaded {
  name: string;
}

/** Of the kernels of a page: what their numbers mean. */
export interface KernelHead {
  uses: KernelUse[]; // compute, communication, copy: what runs first of these names the time
  names: [short: string, full: string][];
  modules: string[];
}

/** One row of kernels: of a stream, of which there are several where its kernels overlap. */
export interface KernelRow extends Extent {
  device: number; // -1 if unknown, as the stream
  stream: number;
  row: number;
}

export interface SampleExtent extends Extent {
  counter: number; // index into counters
}

export interface Step {
  step: number;
  start: number; // ns since the origin
  end: number;
  makespan: number | null;
  error: number | null; // how far it may be off because clocks differ
}

export interface Column {
  name: string;
  type: "u8" | "i16" | "i32" | "u32" | "f64";
  length: number;
}

export interface Head {
  title: string;
  origin: string; // ns since the epoch, as text: it exceeds what a number holds
  end: number; // of the last task, ns since the origin
  kinds: Kind[];
  chunks: boolean; // a rank has more than one model chunk
  ranks: Rank[];
  rows: Row[];
  steps: Step[];
  overall: Rates;
  errors: Rates; // how far they may be off because clocks differ
  definitions: Record<string, string>;
  facts: string[];
  schedule: string | null; // what was recognised
  departures: string[]; // from its order
  notes: string[];
  warnings: string[];
  columns: Record<Table, Column[]>;
  names: string[];
  causes: Cause[]; // none if it is not known why ranks were idle
  gaps: Extent[];
  overlays: Overlay[];
  above?: OverlayLane | null; // which of them the page opens with above all that was measured
  spread: Spread[];
  counters: Counter[];
  samples: SampleExtent[];
  kernels: KernelHead | null; // none if the page was made without
  kernel_rows: KernelRow[];
  no_kernels: string | null; // how to get them, if the traces hold some
  served?: boolean; // tasks, gaps, links and kernels are loaded as they come into sight
}

export const TABLES = ["tasks", "gaps", "links", "phases", "cells", "samples", "kernels"] as const;
export type Table = (typeof TABLES)[number];

const ARRAYS = {
  u8: Uint8Array,
  i16: Int16Array,
  i32: Int32Array,
  u32: Uint32Array,
  f64: Float64Array,
} as const;

export type Numbers = Uint8Array | Int16Array | Int32Array | Uint32Array | Float64Array;

/** Stretches of time, ns since the origin. */
export interface Spans {
  start: Float64Array;
  end: Float64Array;
}

/** Of a run of which only a part is here: which these are, and what was merged because it fills no pixel. */
export interface Part {
  id?: Numbers; // among all of the run
  merged?: Numbers; // for how many of its kind in a pixel one stands; 0 where it is itself
}

/** Tasks as columns, in the order of the rows. What is unknown is -1. */
export interface Tasks extends Spans, Part {
  kind: Numbers;
  microbatch: Numbers;
  chunk: Numbers;
  stage: Numbers;
  step: Numbers;
  peer: Numbers;
  pair: Numbers; // micro-batch and chunk of the other half of an overlapped pair
  pairChunk: Numbers;
  busy: Numbers;
  lead: Numbers; // from launch on the host to start on the device
  name: Numbers;
  computing?: Numbers; // how long the device did, ns
  communicating?: Numbers; // and did not compute
  copying?: Numbers; // and did neither
}

/** Kernels as columns, in the order of their rows; start and end are as they are drawn. */
export interface Kernels extends Spans, Part {
  cut: Numbers; // by how much one began before the one before it in its row ended, ns
  use: Numbers;
  name: Numbers;
  module: Numbers; // -1 if it is of none
  lead: Numbers; // from launch to start, ns, -1 if unknown
}

/** Idle time, each stretch with one cause. */
export interface Gaps extends Spans, Part {
  cause: Numbers; // index into causes
  step: Numbers;
  task: Int32Array; // before which it is; -1 if it is the last of the step
  root: Numbers; // the task that all those waited for which it waited for; -1 if it is not here
  root_id?: Numbers; // the same among all tasks of a run of which only a part is here
}

/** What feeds what, and which send meets which receive, by source. */
export interface Links {
  source: Int32Array;
  target: Int32Array;
}

/** The pipeline phases of each rank in each step, by rank. */
export interface Phases {
  rank: Numbers; // index into ranks
  step: Numbers;
  start: Numbers;
  steady: Numbers; // first backward begins: warm-up ends
  cool: Numbers; // last forward ended: cool-down begins
  end: Numbers;
}

/** How busy each rank was in each step. */
export interface Cells {
  rank: Numbers; // index into ranks
  step: Numbers; // index into steps
  busy: Numbers; // ns
  span: Numbers; // ns
}

/** Values of counters; each holds until the next. */
export interface Samples {
  time: Float64Array;
  value: Numbers;
}

export interface Data {
  tasks: Tasks;
  gaps: Gaps;
  links: Links;
  phases: Phases;
  cells: Cells;
  samples: Samples;
  kernels: Kernels;
}

/** Cut a buffer into its columns. Each begins at a multiple of eight bytes. */
export function cut(buffer: ArrayBuffer, columns: Column[]): Record<string, Numbers> {
  const found: Record<string, Numbers> = {};
  let offset = 0;
  for (const { name, type, length } of columns) {
    found[name] = new ARRAYS[type](buffer, offset, length);
    offset += Math.ceil((length * ARRAYS[type].BYTES_PER_ELEMENT) / 8) * 8;
  }
  return found;
}

/** Turn gaps between starts, which restart in every row, and lengths into starts and ends. */
export function times(gap: Numbers, length: Numbers, rows: Extent[]): Spans {
  const start = new Float64Array(gap.length);
  const end = new Float64Array(gap.length);
  for (const { from, to } of rows) {
    let at = 0;
    for (let i = from; i < to; i++) {
      at += gap[i]!;
      start[i] = at;
      end[i] = at + length[i]!;
    }
  }
  return { start, end };
}

/** Turn differences into values. */
function sums(differences: Numbers): Int32Array {
  let at = 0;
  return Int32Array.from(differences, (difference) => (at += difference));
}

/** Read the columns of a table. */
export async function unpack(bytes: Uint8Array<ArrayBuffer>, columns: Column[]): Promise<Record<string, Numbers>> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return cut(await new Response(stream).arrayBuffer(), columns);
}

/** Read the columns of a table that the page holds. */
export function unpackText(base64: string, columns: Column[]): Promise<Record<string, Numbers>> {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  // Some ten times as fast as `Uint8Array.from`, which counts where there are tens of millions of bytes.
  for (let at = 0; at < bytes.length; at++) bytes[at] = text.charCodeAt(at);
  return unpack(bytes, columns);
}

/** @param text returns what is in the element of a table's name */
export async function decode(head: Head, text: (table: string) => string): Promise<Data> {
  const unpacked = await Promise.all(TABLES.map((name) => unpackText(text(name), head.columns[name])));
  return assemble(head, Object.fromEntries(TABLES.map((name, index) => [name, unpacked[index]])) as unknown as Tables);
}

/** Columns by name. That those are there which the page reads is the schema's promise. */
export type Columns = Record<string, Numbers> &
  Record<"gap" | "length" | "value" | "reach" | "source_step" | "task_step", Numbers>;

export type Tables = Record<Table, Columns>;

/** Make of the columns as they travel those that are drawn. */
export function assemble(head: Pick<Head, "rows" | "gaps" | "samples" | "kernel_rows">, tables: Tables): Data {
  const { tasks, gaps, links, samples, kernels } = tables;
  const source = sums(links.source_step);
  return {
    tasks: {
      ...times(tasks.gap, tasks.length, head.rows),
      ...tasks,
      pairChunk: tasks["pair_chunk"],
    } as unknown as Tasks,
    gaps: { ...times(gaps.gap, gaps.length, head.gaps), ...gaps, task: sums(gaps.task_step) } as unknown as Gaps,
    links: { source, target: source.map((task, index) => task + links.reach[index]!) },
    phases: tables.phases as unknown as Phases,
    cells: tables.cells as unknown as Cells,
    samples: { time: times(samples.gap, samples.gap, head.samples).start, value: samples.value },
    kernels: { ...times(kernels.gap, kernels.length, head.kernel_rows), ...kernels } as unknown as Kernels,
  };
}

/** Index of the first task of a row that ends after `time`: ends ascend within a row. */
export function firstEndingAfter(end: Float64Array, from: number, to: number, time: number): number {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (end[middle]! > time) to = middle;
    else from = middle + 1;
  }
  return from;
}

/** The same as `firstEndingAfter`, quicker where it is near `from`. */
export function nextEndingAfter(end: Float64Array, from: number, to: number, time: number): number {
  let reach = 1;
  while (from + reach < to && end[from + reach]! <= time) {
    from += reach;
    reach *= 2;
  }
  return firstEndingAfter(end, from, Math.min(to, from + reach + 1), time);
}

/** Index of what is there at `time`, or -1. */
export function running(spans: Spans, { from, to }: Extent, time: number): number {
  const index = firstEndingAfter(spans.end, from, to, time);
  return index < to && spans.start[index]! <= time ? index : -1;
}

/** Index of the last of some extents, in the order of their rows, that begins at or before a row. */
export function extentAt(extents: { from: number }[], index: number): number {
  let from = 0;
  let to = extents.length;
  while (to - from > 1) {
    const middle = (from + to) >>> 1;
    if (extents[middle]!.from <= index) from = middle;
    else to = middle;
  }
  return from;
}

/** The stretches of time of what an item is one of. */
export function spansOf({ tasks, gaps, kernels }: Data, { what }: { what: "task" | "gap" | "kernel" }): Spans & Part {
  return what === "task" ? tasks : what === "gap" ? gaps : kernels;
}

export function rowOf(head: Head, task: number): Row {
  return head.rows[extentAt(head.rows, task)]!;
}

/** The rows of a lane of each rank. */
export function rowsByRank(head: Head, lane: Lane): Row[][] {
  const found = head.ranks.map((): Row[] => []);
  for (const row of head.rows) if (row.lane === lane) found[row.rank]!.push(row);
  return found;
}
