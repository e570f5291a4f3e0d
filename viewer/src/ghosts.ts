// The lanes of what would have run, beside what was measured.

import { times, type Columns, type Data, type Head, type Numbers, type Overlay, type Row, type Tasks } from "./data";

const UNKNOWN = -1;

/** What a page shows of an answer besides the measured: nothing of it is in the page's own head. */
export interface Ghost {
  rows: Row[]; // of all lanes
  data: Data;
}

/** The lanes of a head in which there is no what-if. */
export function measured({ rows }: Pick<Head, "rows">): Row[] {
  return rows.filter(({ lane }) => lane !== "whatif");
}

/** The overlays with an answer in place of the what-if that the page was made with. */
export function overlaid(overlays: Overlay[], shown: Omit<Overlay, "lane"> | null): Overlay[] {
  if (!shown) return overlays;
  return [...overlays.filter(({ lane }) => lane !== "whatif"), { lane: "whatif", ...shown }];
}

/** Put tasks of an answer, of which a table holds those of all, behind the measured ones. */
export function joined(head: Pick<Head, "rows">, data: Data, ghosts: Columns<"ghosts">, rows: Row[]): Ghost {
  const count = data.tasks.kind.length;
  const [first, last] = [Math.min(...rows.map(({ from }) => from)), Math.max(...rows.map(({ to }) => to))];
  const own = rows.map((row) => ({ ...row, from: row.from - first, to: row.to - first }));
  const columns = Object.fromEntries(
    Object.entries(ghosts).map(([name, values]) => [name, values.subarray(first, last)]),
  ) as Columns<"ghosts">;
  const added: Record<string, Numbers> = {
    ...times(columns.gap, columns.length, own),
    ...columns,
    pairChunk: columns.pair_chunk,
  };
  const tasks: Record<string, Numbers> = {};
  for (const [name, values] of Object.entries(data.tasks) as [string, Numbers][]) {
    const more = added[name] ?? new Int32Array(last - first).fill(UNKNOWN);
    tasks[name] = appended(values, more);
  }
  return {
    rows: [...measured(head), ...own.map((row) => ({ ...row, from: row.from + count, to: row.to + count }))],
    data: { ...data, tasks: tasks as unknown as Tasks },
  };
}

/** One column behind another, as numbers that hold both. */
function appended(one: Numbers, other: Numbers): Numbers {
  const same = one.constructor === other.constructor;
  const Kind = (same ? one.constructor : Float64Array) as new (length: number) => Numbers;
  const made = new Kind(one.length + other.length);
  made.set(one);
  made.set(other, one.length);
  return made;
}
