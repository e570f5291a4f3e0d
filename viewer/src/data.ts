// What the page was given: a small JSON head and a compressed block of binary columns.

import {
  COLUMNS,
  type Column,
  type Extent,
  type Head,
  type Lane,
  type NumberType,
  type Rank,
  type Row,
  type Spread,
  type TableName,
} from "./schema";

export type * from "./schema";

/** The kind of a forward and a backward that run as one task, and what the halves of its block are. */
export const PAIR = "forward_backward" as const;
export const HALVES = ["forward", "backward"] as const;

/** The parallel dimensions, in the order in which a rank's coordinates are listed. */
const DIMENSIONS = ["pp", "dp", "tp", "cp", "ep", "etp", "edp"] as const;

/** The coordinates of a rank that are known; null if none is. */
export function coordinates(rank: Pick<Rank, (typeof DIMENSIONS)[number]>): string | null {
  const known = DIMENSIONS.filter((name) => rank[name] !== null).map((name) => `${name} ${rank[name]}`);
  return known.length ? known.join(", ") : null;
}

/** Whether devices run whole models: what idles there are they, and no pipeline has bubbles. */
export function ofDevices({ ranks }: Pick<Head, "ranks">): boolean {
  return ranks.some(({ idle }) => idle !== null);
}

/** Whether idle time has causes: there are none of what was never idle, nor of devices that run whole models. */
export function hasCauses({ causes }: Pick<Head, "causes">): boolean {
  return causes.some(({ share }) => share > 0);
}

/** How much of its time a rank was idle: by its bubbles, or its devices where the run is no pipeline; null if unknown. */
export function idleOf({ idle, rates }: Pick<Rank, "idle" | "rates">): number | null {
  return idle ?? rates?.makespan ?? null;
}

/** The tables that a page begins with; the lanes of answers are read when one is shown. */
export type FirstTable = Exclude<TableName, "ghosts">;
export const TABLES = (Object.keys(COLUMNS) as TableName[]).filter((name) => name !== "ghosts") as FirstTable[];

const ARRAYS = {
  u8: Uint8Array,
  i16: Int16Array,
  i32: Int32Array,
  u32: Uint32Array,
  f64: Float64Array,
} as const satisfies Record<NumberType, unknown>;

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
  waited?: Numbers; // how long collectives did until their last rank came, ns; -1 where that is not known
  awaited?: Numbers; // the last rank, by index; -1 where none alone was
  off?: Numbers; // by how much clocks may be off there, ns
  certainty?: Numbers; // that it is what it was inferred to be, in per cent; -1 where the trace states it
  counterpart?: Numbers; // how many rows further the same task of another run is; 0 if it has none
  change?: Numbers; // where not all rows are here: by how much it is longer in B, ns
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

/** What communicated in tasks, by task: of how long nothing computed meanwhile, and for how long something did. */
export interface Communication {
  task: Int32Array;
  of: Numbers; // index into what communicates
  exposed: Numbers; // ns
  hidden: Numbers; // ns
}

export interface Data {
  tasks: Tasks;
  gaps: Gaps;
  links: Links;
  phases: Phases;
  cells: Cells;
  samples: Samples;
  kernels: Kernels;
  communication: Communication;
}

/**
 * Cut a buffer into its columns, none of which holds on to the buffer. Each begins at a multiple of eight bytes; see
 * `joined` for numbers of four or more.
 */
export function cut(buffer: ArrayBuffer, columns: Column[]): Record<string, Numbers> {
  const found: Record<string, Numbers> = {};
  let offset = 0;
  for (const { name, type, length } of columns) {
    const size = ARRAYS[type].BYTES_PER_ELEMENT;
    const whole = size < 4;
    const bytes = whole ? buffer.slice(offset, offset + length * size) : joined(buffer, offset, length, size);
    found[name] = new ARRAYS[type](bytes, 0, length);
    offset += whole ? padded(length * size) : size * padded(length);
  }
  return found;
}

const padded = (bytes: number) => Math.ceil(bytes / 8) * 8;

/** Put the bytes of each number together, of which the lowest of all come first, then the second ones, and so on. */
function joined(buffer: ArrayBuffer, offset: number, length: number, size: number): ArrayBuffer {
  const plane = padded(length);
  const words = size / 4;
  const numbers = new Uint32Array(words * plane);
  const fours = (index: number) => new Uint32Array(buffer, offset + index * plane, plane / 4);
  for (let word = 0; word < words; word++) {
    const [first, second, third, fourth] = [0, 1, 2, 3].map((byte) => fours(4 * word + byte)) as Four;
    // Those of four numbers at a time, as the rows of a square, whose columns they become.
    for (let i = 0, at = word; i < first.length; i++, at += 4 * words) {
      const a = first[i]!;
      const b = second[i]!;
      const c = third[i]!;
      const d = fourth[i]!;
      numbers[at] = (a & 0xff) | ((b & 0xff) << 8) | ((c & 0xff) << 16) | (d << 24);
      numbers[at + words] = ((a >>> 8) & 0xff) | (b & 0xff00) | ((c & 0xff00) << 8) | ((d & 0xff00) << 16);
      numbers[at + 2 * words] = ((a >>> 16) & 0xff) | ((b >>> 8) & 0xff00) | (c & 0xff0000) | ((d & 0xff0000) << 8);
      numbers[at + 3 * words] = (a >>> 24) | ((b >>> 16) & 0xff00) | ((c >>> 8) & 0xff0000) | (d & 0xff000000);
    }
  }
  return numbers.buffer;
}

type Four = [Uint32Array, Uint32Array, Uint32Array, Uint32Array];

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
  return unpack(bytesOf(base64), columns);
}

/** What browsers since 2025 have, some ten times as fast. */
const native = Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> };

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  if (native.fromBase64) return native.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  // Some ten times as fast as `Uint8Array.from`, which counts where there are tens of millions of bytes.
  for (let at = 0; at < bytes.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
}

/** @param text returns what is in the element of a table's name */
export async function decode(head: Head, text: (table: string) => string): Promise<Data> {
  const unpacked = await Promise.all(TABLES.map((name) => unpackText(text(name), head.columns[name])));
  return assemble(head, Object.fromEntries(TABLES.map((name, index) => [name, unpacked[index]])) as unknown as Tables);
}

/** The columns of each table as they travelled: those of the schema, and what is known besides. */
export type Tables = { [name in FirstTable]: Columns<name> };
export type Columns<name extends TableName> = Record<(typeof COLUMNS)[name][number], Numbers> & Record<string, Numbers>;

/** Make of the columns as they travel those that are drawn. */
export function assemble(head: Pick<Head, "rows" | "gaps" | "samples" | "kernel_rows">, tables: Tables): Data {
  const { tasks, gaps, links, samples, kernels, communication } = tables;
  const source = sums(links.source_step);
  return {
    tasks: {
      ...times(tasks.gap, tasks.length, head.rows),
      ...tasks,
      pairChunk: tasks.pair_chunk,
    },
    gaps: { ...times(gaps.gap, gaps.length, head.gaps), ...gaps, task: sums(gaps.task_step) },
    links: { source, target: source.map((task, index) => task + links.reach[index]!) },
    phases: tables.phases,
    cells: tables.cells,
    samples: { time: times(samples.gap, samples.gap, head.samples).start, value: samples.value },
    kernels: { ...times(kernels.gap, kernels.length, head.kernel_rows), ...kernels },
    communication: { ...communication, task: sums(communication.task_step) },
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

const KINDS = 64; // more than there are

/** The median length of tasks of a kind and stage, -1 where that is not known; NaN where there is none. */
export function usualLength(spread: Spread[]): (kind: number, stage: number) => number {
  const middles = new Map(spread.map(({ kind, stage, middle }) => [((stage ?? -1) + 1) * KINDS + kind, middle]));
  return (kind, stage) => middles.get((stage + 1) * KINDS + kind) || NaN;
}
