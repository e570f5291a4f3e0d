// What happened in a stretch of time on some ranks, to the nanosecond.

import { firstEndingAfter, type Data, type Extent, type Head, type Numbers, type Spans } from "./data";
import type { Totals } from "./schema";

/** @param ranks by index */
export function totals(head: Head, data: Data, start: number, end: number, ranks: readonly number[]): Totals {
  const wanted = new Set(ranks);
  const found: Totals = {
    ranks: wanted.size,
    spanned: wanted.size * (end - start),
    busy: 0,
    idle: 0,
    kinds: head.kinds.map(() => 0),
    tasks: head.kinds.map(() => 0),
    kinds_beside: head.kinds.map(() => 0),
    tasks_beside: head.kinds.map(() => 0),
    causes: head.causes.map(() => 0),
    unexplained: 0,
  };
  const computing = new Map<number, Extent[]>();
  for (const row of head.rows) {
    if (!wanted.has(row.rank) || row.lane === "against" || row.lane === "ideal" || row.lane === "whatif") continue;
    const { kind } = data.tasks;
    if (row.lane !== "compute") {
      add(data.tasks, row, start, end, kind, found.kinds_beside, found.tasks_beside);
      continue;
    }
    found.busy += add(data.tasks, row, start, end, kind, found.kinds, found.tasks);
    computing.set(row.rank, [...(computing.get(row.rank) ?? []), row]);
  }
  // Tasks in several rows overlap, and those of one row may touch; the time in which any ran counts once.
  for (const rows of computing.values()) {
    found.busy -= rows.length > 1 ? twice(data.tasks, rows, start, end) : touched(data.tasks, rows[0]!, start, end);
  }
  for (const extent of head.gaps) {
    if (wanted.has(extent.rank)) add(data.gaps, extent, start, end, data.gaps.cause, found.causes);
  }
  found.idle = found.spanned - found.busy;
  return found;
}

/** Add what lies between two times, by code; return its sum. */
function add(
  spans: Spans,
  { from, to }: Extent,
  start: number,
  end: number,
  codes: Numbers,
  sums: number[],
  counts?: number[],
): number {
  let all = 0;
  for (let i = firstEndingAfter(spans.end, from, to, start); i < to && spans.start[i]! < end; i++) {
    const length = Math.min(end, spans.end[i]!) - Math.max(start, spans.start[i]!);
    sums[codes[i]!]! += length;
    if (counts) counts[codes[i]!]! += 1;
    all += length;
  }
  return all;
}

/** By how much the sum of what lies in one row exceeds the time in which there is anything. */
function touched(spans: Spans, { from, to }: Extent, start: number, end: number): number {
  let [reached, excess] = [-Infinity, 0];
  for (let i = firstEndingAfter(spans.end, from, to, start); i < to && spans.start[i]! < end; i++) {
    const until = Math.min(end, spans.end[i]!);
    excess += Math.max(0, Math.min(until, reached) - Math.max(start, spans.start[i]!));
    reached = until;
  }
  return excess;
}

/** By how much the sum of what lies in some rows exceeds the time in which there is anything. */
function twice(spans: Spans, rows: Extent[], start: number, end: number): number {
  const parts: [number, number][] = [];
  for (const { from, to } of rows) {
    for (let i = firstEndingAfter(spans.end, from, to, start); i < to && spans.start[i]! < end; i++) {
      parts.push([Math.max(start, spans.start[i]!), Math.min(end, spans.end[i]!)]);
    }
  }
  parts.sort(([one], [other]) => one - other);
  let [reached, excess] = [-Infinity, 0];
  for (const [from, to] of parts) {
    excess += Math.max(0, Math.min(to, reached) - from);
    reached = Math.max(reached, to);
  }
  return excess;
}
