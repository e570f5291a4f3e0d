// Where each row of blocks lies, from top to bottom.

import type { Extent, Head, Row } from "./data";

/** A task or a gap. */
export interface Item {
  what: "task" | "gap";
  index: number;
}

export interface Place {
  row: Row;
  top: number;
  height: number;
  gaps: Extent | undefined; // of the rank, on its first row
}

/** A rank's stretch of the page, or a host's heading. */
export interface Band {
  top: number;
  height: number;
  rank: number; // index into ranks, or -1 for a heading
  host: string;
  count: number; // ranks of the host, for a heading
  off: number; // how far its clock may be off, ns
}

export interface Layout {
  places: Place[];
  bands: Band[];
  height: number;
}

const MANY = 64;
const MOST_COMM = 42; // what the communication of one rank may take, however much of it overlaps
const THINNEST = 2;

/** @param ideal whether to show, below what was measured, what a perfect run would have been */
export function layout(head: Head, ideal: boolean): Layout {
  const dense = head.ranks.length > MANY;
  const heights = dense
    ? { compute: 14, ideal: 8, comm: 4, host: 4 }
    : { compute: 22, ideal: 16, comm: 7, host: 6 };
  const gap = dense ? 2 : 6;
  const grouped = new Set(head.ranks.map((rank) => rank.host)).size > 1;
  const gapsOf = new Map(head.gaps.map((gaps) => [gaps.rank, gaps]));
  const rowsOf = head.ranks.map((): Row[] => []);
  for (const row of head.rows) if (ideal || row.lane !== "ideal") rowsOf[row.rank].push(row);

  const places: Place[] = [];
  const bands: Band[] = [];
  let y = 4;
  head.ranks.forEach((rank, index) => {
    if (grouped && (index === 0 || head.ranks[index - 1].host !== rank.host)) {
      const own = head.ranks.filter((other) => other.host === rank.host);
      const off = Math.max(...own.map((other) => other.off ?? 0));
      bands.push({ top: y, height: 22, rank: -1, host: rank.host, count: own.length, off });
      y += 24;
    }
    const top = y;
    const crowd = rowsOf[index].filter((row) => row.lane === "comm").length;
    const comm = Math.max(THINNEST, Math.min(heights.comm, Math.floor(MOST_COMM / crowd)));
    let lane = "";
    for (const row of rowsOf[index]) {
      if (lane !== "" && row.lane !== lane) y += 1;
      lane = row.lane;
      const height = row.lane === "comm" ? comm : heights[row.lane];
      places.push({ row, top: y, height, gaps: y === top && row.lane === "compute" ? gapsOf.get(index) : undefined });
      y += height;
    }
    y = Math.max(y, top + heights.compute);
    bands.push({ top, height: y - top, rank: index, host: rank.host, count: 1, off: rank.off ?? 0 });
    y += gap;
  });
  return { places, bands, height: y + 4 };
}

/** The place of a task or a gap, if it is shown. */
export function placeOf(places: Place[], { what, index }: Item): Place | undefined {
  return places.find(({ row, gaps }) => {
    const extent = what === "task" ? row : gaps;
    return extent && extent.from <= index && index < extent.to;
  });
}

/** Index of the first place whose bottom is below `y`. Tops ascend. */
export function firstBelow(places: { top: number; height: number }[], y: number): number {
  let from = 0;
  let to = places.length;
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (places[middle].top + places[middle].height > y) to = middle;
    else from = middle + 1;
  }
  return from;
}
