// A run that is too large for one page: what is in sight is loaded from the process that serves it.

import {
  assemble,
  TABLES,
  unpack,
  unpackText,
  type Columns,
  type Data,
  type Head,
  type Numbers,
  type Row,
  type Tables,
} from "./data";
import { QueryError } from "./search";
import { spans } from "./units";
import { spoken } from "./words";
import type { Asked, Explained, Found, Idle, Inside, Part, Search, TableInSight, Totals, Where } from "./schema";

const SOON = 40; // milliseconds without movement after which what is in sight is loaded
const OVERVIEW = 300_000; // pixels of all ranks together of which the overview consists

/** What is in sight. */
export interface Wanted {
  start: number; // ns since the origin
  perPixel: number;
  columns: number;
  ranks: number[]; // by index
  lanes: string[];
  unfolded: number[]; // those of the ranks whose kernels are in sight
  shift: number; // by how much the lanes of another run are moved, ns
  idle: number[]; // those of the ranks whose idle time is in sight
}

/** What a server says instead of an answer. */
interface Refusal {
  error?: string;
}

const SENT: TableInSight[] = ["tasks", "gaps", "links", "kernels", "communication"]; // tables of what is in sight

/** Gives what a page that holds only a part of its run cannot know by itself. */
export class Loader {
  private had: Wanted | null = null;
  private complete = false;
  private asked: AbortController | null = null;
  private waiting: ReturnType<typeof setTimeout> | undefined;
  private fixed: Record<string, Record<string, Numbers>> = {};
  private unexplained: number[] = []; // parts that are here of which it is not known why ranks are idle
  private sought = ""; // of which that was asked last
  private explaining: AbortController | null = null;
  private asking = ""; // the what-if whose lanes are loaded too
  private rows: Row[]; // of all lanes that are loaded

  constructor(private readonly head: Head) {
    this.rows = head.rows;
  }

  /** Load what ran in the whole run, as it looks from afar. @param text returns what is in the element of a table's name */
  async overview(text: (table: string) => string): Promise<Data> {
    for (const name of ["phases", "cells", "samples"] as const) {
      this.fixed[name] = await unpackText(text(name), this.head.columns[name]);
    }
    const columns = Math.max(100, Math.min(1200, Math.floor(OVERVIEW / Math.max(1, this.head.ranks.length))));
    const lanes = [...new Set(this.head.rows.map(({ lane }) => lane as string))];
    return this.load({
      start: 0,
      perPixel: this.head.end / columns,
      columns,
      ranks: this.head.ranks.map((_, index) => index),
      lanes,
      unfolded: [],
      shift: 0,
      idle: [],
    });
  }

  /**
   * Load what is in sight, unless it is here. Of quick movements only the last counts.
   *
   * @param began is called when that begins, and then one of the others, unless it begins again before
   */
  need(wanted: Wanted, began: () => void, came: (data: Data) => void, failed: (error: unknown) => void): void {
    if (this.has(wanted)) return;
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      // Half a screen more on both sides, on the same grid of pixels, for the next movement.
      const margin = Math.round(wanted.columns / 2);
      const more = { ...wanted, start: wanted.start - margin * wanted.perPixel, columns: wanted.columns + 2 * margin };
      this.asked?.abort();
      this.asked = new AbortController();
      began();
      this.load(more, this.asked.signal).then(came, (error: unknown) => {
        if (!(error instanceof DOMException && error.name === "AbortError")) failed(error);
      });
    }, SOON);
  }

  /**
   * Have the server work out why ranks are idle in what is in sight, where it is here and not known.
   *
   * @param said is called with what is to be said: "soon" when that begins, and whatever comes of it
   */
  explain(wanted: Wanted, said: (idle: Idle | "soon") => void, failed: (error: unknown) => void): void {
    if (!this.has(wanted)) return;
    const span = { start: String(wanted.start), end: String(wanted.start + wanted.columns * wanted.perPixel) };
    const parts = wanted.idle.length ? spans(this.unexplained) : "";
    const sought = [span.start, span.end, parts].join();
    if (sought === this.sought) return;
    this.sought = sought;
    this.explaining?.abort();
    if (!parts) return said("elsewhere");
    const { signal } = (this.explaining = new AbortController());
    const asked = async (): Promise<void> => {
      await new Promise((done) => setTimeout(done, SOON));
      signal.throwIfAborted();
      said("soon");
      const answer = (await (await this.get("explain", { ...span, parts }, signal)).json()) as Explained & Refusal;
      if (answer.error !== undefined) throw new Error(answer.error);
      signal.throwIfAborted();
      if (answer.idle === "explained") this.had = null; // it is loaded anew
      said(answer.idle);
    };
    asked().catch((error: unknown) => signal.aborted || failed(error));
  }

  /** Answer a question about the run, or of a large one about the step in the middle of what is in sight. */
  async whatif(ask: string): Promise<Asked> {
    const { had } = this;
    const at = had ? { at: String(had.start + (had.columns / 2) * had.perPixel) } : {};
    const answer = (await (await this.get("whatif", { ask, ...at })).json()) as Asked & Refusal;
    if (answer.error !== undefined) throw new QueryError(answer.error);
    return spoken(answer, answer.chinese ?? {});
  }

  /** From now on load what would have run too, or with "" only what ran. @param rows of all lanes then */
  turn(ask: string, rows: Row[]): void {
    if (ask === this.asking) return;
    [this.asking, this.rows, this.had] = [ask, rows, null];
    this.asked?.abort();
    clearTimeout(this.waiting);
  }

  private has({ start, perPixel, columns, ranks, lanes, unfolded, shift, idle }: Wanted): boolean {
    const { had } = this;
    if (had?.shift !== shift || !lanes.every((lane) => had.lanes.includes(lane))) return false;
    const here = new Set(had.ranks);
    const idling = new Set(had.idle);
    if (!ranks.every((rank) => here.has(rank)) || !idle.every((rank) => idling.has(rank))) return false;
    if (!unfolded.every((rank) => had.unfolded.includes(rank))) return false;
    const slack = perPixel * 1e-6;
    if (start < had.start - slack || start + columns * perPixel > had.start + had.columns * had.perPixel + slack)
      return false;
    if (this.complete) return true;
    const offset = (start - had.start) / perPixel;
    return Math.abs(perPixel / had.perPixel - 1) < 1e-9 && Math.abs(offset - Math.round(offset)) < 1e-3;
  }

  private async load(wanted: Wanted, signal?: AbortSignal): Promise<Data> {
    const { start, perPixel, columns, ranks, lanes, unfolded, shift, idle } = wanted;
    const rows = this.rows;
    const asked = {
      ...(this.asking ? { ask: this.asking } : {}),
      start: String(start),
      perpixel: String(perPixel),
      columns: String(columns),
      ranks: spans(ranks),
      lanes: lanes.join(","),
      unfolded: spans(unfolded),
      shift: String(shift),
      idle: spans(idle),
    };
    const bytes = new Uint8Array(await (await this.get("window", asked, signal)).arrayBuffer());
    const size = new DataView(bytes.buffer).getUint32(0, true);
    const part = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size))) as Part;
    let at = 4 + size;
    const tables = { ...this.fixed } as Tables;
    for (const name of SENT) {
      tables[name] = (await unpack(bytes.slice(at, at + part.sizes[name]), part.columns[name])) as Columns<typeof name>;
      at += part.sizes[name];
    }
    signal?.throwIfAborted();
    place(rows, part.rows);
    this.head.rows = rows;
    place(this.head.gaps, part.gaps);
    place(this.head.kernel_rows, part.kernels);
    for (const name of TABLES) this.head.columns[name] = part.columns[name as "tasks"] ?? this.head.columns[name];
    this.had = wanted;
    this.complete = part.complete;
    this.unexplained = part.unexplained;
    return assemble(this.head, tables);
  }

  async totals(start: number, end: number, ranks: number[]): Promise<Totals> {
    const answer = await this.get("totals", { start: String(start), end: String(end), ranks: spans(ranks) });
    return (await answer.json()) as Totals;
  }

  async inside(rank: number, start: number, end: number): Promise<Inside> {
    const answer = await this.get("inside", { rank: String(rank), start: String(start), end: String(end) });
    return (await answer.json()) as Inside;
  }

  async find(search: Search): Promise<Found> {
    const answer = (await (await this.get("find", { search: JSON.stringify(search) })).json()) as Found & Refusal;
    if (answer.error !== undefined) throw new QueryError(answer.error);
    return answer;
  }

  async where(id: number, what: "task" | "gap"): Promise<Where> {
    return (await (await this.get("where", { id: String(id), what })).json()) as Where;
  }

  private async get(what: string, asked: Record<string, string>, signal?: AbortSignal): Promise<Response> {
    const answer = await fetch(`${what}?${new URLSearchParams(asked)}`, signal ? { signal } : {});
    if (!answer.ok) throw new Error(await answer.text());
    return answer;
  }
}

/** Where rows of a table begin and end, of which how many each place has is known. */
function place(extents: { from: number; to: number }[], counts: number[]): void {
  let at = 0;
  extents.forEach((extent, index) => {
    extent.from = at;
    extent.to = at += counts[index]!;
  });
}
