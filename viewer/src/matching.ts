// Which items a search is about; `bubblescope.render.html.serve.query` does the same for a run that is served.

import { changeOf } from "./against";
import { usualLength, type Data, type Extent, type Head, type Row, type Spread, type Tasks } from "./data";
import type { Condition, Search, SearchColumn, SearchWord } from "./schema";

/** What a search found, in the order of the page: tasks that were measured, or stretches of idle time. */
export interface Matches {
  what: Search["what"];
  items: Int32Array | Float64Array; // numbers of the whole run may be larger
}

type Test = (index: number) => boolean;
type Values = (index: number) => number; // NaN where it is not known

/** Find what is asked for. */
export function find(search: Search, head: Head, data: Data): Matches {
  const found: number[] = [];
  const columns = columnsOf(search, head, data);
  for (const extent of search.what === "gap" ? head.gaps : head.rows) {
    const { lane } = extent as Partial<Row>;
    if (lane === "ideal" || lane === "whatif") continue;
    const sets = search.sets.map((set) => set.map((word) => testOf(word, head, extent, columns)));
    const possible = sets
      .filter((set) => !set.includes(false))
      .map((set) => set.filter((one): one is Test => one !== true));
    if (!possible.length) continue;
    for (let index = extent.from; index < extent.to; index++)
      if (possible.some((set) => set.every((holds) => holds(index)))) found.push(index);
  }
  return { what: search.what, items: Int32Array.from(found) };
}

/** What a word asks of the items of a row: of all the same, or of each by itself. */
function testOf(
  { any, negated }: SearchWord,
  head: Head,
  extent: Extent,
  columns: Map<SearchColumn, Values>,
): boolean | Test {
  const sets = any.map((set) => set.map((one) => ofRow(one, head, extent) ?? testing(one, head, columns)));
  const possible = sets.filter((set) => !set.includes(false)).map((set) => set.filter((one) => one !== true) as Test[]);
  if (!possible.length) return negated;
  if (possible.some((set) => !set.length)) return !negated;
  return (index) => possible.some((set) => set.every((holds) => holds(index))) !== negated;
}

/** Whether all items of a row meet a condition that is about nothing else; null if it is about each by itself. */
function ofRow(condition: Condition, head: Head, extent: Extent): boolean | null {
  const rank = head.ranks[extent.rank]!;
  const { column, text } = condition;
  if (column === "rank") return within(condition)(rank.rank);
  if (column === "host") return rank.host.includes(text!);
  if (column === "standing") return rank.standing === text;
  return column === "lane" ? (extent as Row).lane === text : null;
}

const texts = new WeakMap<Condition, Uint8Array>(); // of a condition on names, which of them meet it

function testing(condition: Condition, head: Head, columns: Map<SearchColumn, Values>): Test {
  const value = columns.get(condition.column)!;
  if (condition.column !== "name") {
    const holds = within(condition);
    return (index) => holds(value(index));
  }
  const wanted = condition.text!.toLowerCase();
  const named = texts.get(condition) ?? Uint8Array.from(head.names, (name) => +name.toLowerCase().includes(wanted));
  texts.set(condition, named);
  return (index) => named[value(index)] === 1;
}

/** Whether a number is where a condition has it; what is not known is nowhere. */
function within({ least = null, most = null, open = false }: Condition): (value: number) => boolean {
  const [low, high] = [least ?? -Infinity, most ?? Infinity];
  return open ? (value) => low < value && value < high : (value) => low <= value && value <= high;
}

/** The columns that a search is about. */
function columnsOf(search: Search, head: Head, { tasks, gaps }: Data): Map<SearchColumn, Values> {
  const named = search.sets.flat().flatMap(({ any }) => any.flat());
  const { start, end, step } = search.what === "gap" ? gaps : tasks;
  const all: Partial<Record<SearchColumn, () => Values>> = {
    length: () => (index) => end[index]! - start[index]!,
    step: () => known(step),
    cause: () => (gap) => gaps.cause[gap]!,
    kind: () => (task) => tasks.kind[task]!,
    name: () => (task) => tasks.name[task]!,
    stage: () => known(tasks.stage),
    chunk: () => known(tasks.chunk),
    microbatch: () => known(tasks.microbatch),
    peer: () => known(tasks.peer),
    pair: () => known(tasks.pair),
    pair_chunk: () => known(tasks.pairChunk),
    slowness: () => slowness(head.spread, tasks),
    lost: () => (task) => changeOf(tasks, task) ?? NaN,
    gained: () => (task) => -(changeOf(tasks, task) ?? NaN),
  };
  return new Map(named.flatMap(({ column }) => (all[column] ? [[column, all[column]()]] : [])));
}

function known(column: ArrayLike<number>): Values {
  return (index) => (column[index]! < 0 ? NaN : column[index]!);
}

/** How many times as long as the median of its kind and stage a task takes. */
function slowness(spread: Spread[], { kind, stage, start, end }: Tasks): Values {
  const usual = usualLength(spread);
  return (task) => (end[task]! - start[task]!) / usual(kind[task]!, stage[task]!);
}
