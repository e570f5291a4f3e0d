// What the page was given: a small JSON head and a compressed block of binary columns.

export interface Kind {
  name: string;
  short: string;
  fill: string;
  ink: string;
}

export interface Rates {
  span: number | null;
  makespan: number | null;
  over_ideal: number | null;
  ideal: number | null;
  excess: number | null;
}

export interface Rank {
  rank: number;
  host: string;
  stages: number[] | null;
  device: number | null;
  process: number | null;
  off: number | null; // how far the clock may be off against the first host's, ns
  rates: (Rates & { error: number | null }) | null; // the error is that of the makespan rate
}

/** One row of blocks that never overlap: part of a lane of a rank. */
export interface Row {
  rank: number; // index into ranks
  lane: "compute" | "ideal" | "comm" | "host";
  from: number; // first task
  to: number; // one past the last task
}

export interface Step {
  step: number;
  start: number; // ns since the origin
  end: number;
  makespan: number | null;
  error: number | null; // how far it may be off because clocks differ
}

interface Column {
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
  columns: Column[];
  names: string[];
}

const ARRAYS = {
  u8: Uint8Array,
  i16: Int16Array,
  i32: Int32Array,
  u32: Uint32Array,
  f64: Float64Array,
} as const;

type Numbers = Uint8Array | Int16Array | Int32Array | Uint32Array | Float64Array;

/** Tasks as columns, in the order of the rows. Unknown integers are -1, unknown times NaN. */
export interface Tasks {
  start: Float64Array; // ns since the origin
  end: Float64Array;
  kind: Numbers;
  microbatch: Numbers;
  chunk: Numbers;
  stage: Numbers;
  step: Numbers;
  peer: Numbers;
  busy: Numbers;
  lead: Numbers; // from launch on the host to start on the device
  name: Numbers;
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
export function times(gap: Numbers, length: Numbers, rows: Row[]): { start: Float64Array; end: Float64Array } {
  const start = new Float64Array(gap.length);
  const end = new Float64Array(gap.length);
  for (const { from, to } of rows) {
    let at = 0;
    for (let i = from; i < to; i++) {
      at += gap[i];
      start[i] = at;
      end[i] = at + length[i];
    }
  }
  return { start, end };
}

export async function decode(head: Head, base64: string): Promise<Tasks> {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const columns = cut(await new Response(stream).arrayBuffer(), head.columns);
  return { ...times(columns.gap, columns.length, head.rows), ...columns } as unknown as Tasks;
}

/** Index of the first task of a row that ends after `time`: ends ascend within a row. */
export function firstEndingAfter(end: Float64Array, from: number, to: number, time: number): number {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (end[middle] > time) to = middle;
    else from = middle + 1;
  }
  return from;
}

/** Index of the task of a row that runs at `time`, or -1. */
export function running(tasks: Tasks, row: Row, time: number): number {
  const index = firstEndingAfter(tasks.end, row.from, row.to, time);
  return index < row.to && tasks.start[index] <= time ? index : -1;
}
