// Which items a search is about; `bubblescope.render.html.serve.query` does the same for a run that is served.

import { changeOf } from "./against";
import {
  usualLength,
  type Data,
  type Extent,
  type Head,
  type Numbers,
  type Row,
  type Spread,
  type Tasks,
} from "./data";
import type { Condition, Search, SearchColumn, SearchWord } from "./schema";

/** What a search found, in the order of the page: tasks that were measured, or stretches of idle time. */
export interface Matches {
  what: Search["what"];
  items: Int32Array | Float64Array; // numbers of the whole run may be larger
}

/** Which items of a row meet something: 1 for each that does. A row at a time is many times as fast as an item at a time. */
type Test = () => Uint8Array;
/** What a column has: numbers, of which those below 0 are not known, or what is worked out, NaN where it is not known. */
type Values = Numbers | ((index: number) => number);

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
    const size = extent.to - extent.from;
    const held = anyOf(possible.map((set) => allOf(set, size)));
    for (let at = 0; at < size; at++) if (held[at]) found.push(extent.from + at);
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
  const sets = any.map((set) => set.map((one) => ofRow(one, head, extent) ?? testing(one, head, extent, columns)));
  const possible = sets.filter((set) => !set.includes(false)).map((set) => set.filter((one) => one !== true) as Test[]);
  if (!possible.length) return negated;
  if (possible.some((set) => !set.length)) return !negated;
  const size = extent.to - extent.from;
  return () => {
    const held = anyOf(possible.map((set) => allOf(set, size)));
    return negated ? held.map((one) => 1 - one) : held;
  };
}

function allOf(tests: Test[], size: number): Uint8Array {
  const [first, ...rest] = tests.map((test) => test());
  if (!first) return new Uint8Array(size).fill(1);
  for (const other of rest) for (let at = 0; at < size; at++) first[at]! &= other[at]!;
  return first;
}

function anyOf([first, ...rest]: Uint8Array[]): Uint8Array {
  for (const other of rest) for (let at = 0; at < first!.length; at++) first![at]! |= other[at]!;
  return first!;
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

function testing(condition: Condition, head: Head, { from, to }: Extent, columns: Map<SearchColumn, Values>): Test {
  const values = columns.get(condition.column)!;
  const named = condition.column === "name" ? namesOf(condition, head) : null;
  const holds = within(condition);
  return () => {
    const held = new Uint8Array(to - from);
    if (typeof values === "function") for (let at = 0; at < held.length; at++) held[at] = +holds(values(from + at));
    else
      for (let at = 0, index = from; index < to; at++, index++) {
        const value = values[index]!;
        held[at] = named ? named[value]! : +(value >= 0 && holds(value));
      }
    return held;
  };
}

/** Which names have a text in them. */
function namesOf(condition: Condition, { names }: Head): Uint8Array {
  const wanted = condition.text!.toLowerCase();
  const known = texts.get(condition) ?? Uint8Array.from(names, (name) => +name.toLowerCase().includes(wanted));
  texts.set(condition, known);
  return known;
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
    step: () => step,
    cause: () => gaps.cause,
    kind: () => tasks.kind,
    name: () => tasks.name,
    stage: () => tasks.stage,
    chunk: () => tasks.chunk,
    microbatch: () => tasks.microbatch,
    peer: () => tasks.peer,
    pair: () => tasks.pair,
    pair_chunk: () => tasks.pairChunk,
    slowness: () => slowness(head.spread, tasks),
    lost: () => (task) => changeOf(tasks, task) ?? NaN,
    gained: () => (task) => -(changeOf(tasks, task) ?? NaN),
  };
  return new Map(named.flatMap(({ column }) => (all[column] ? [[column, all[column]()]] : [])));
}

/** How many times as long as the median of its kind and stage a task takes. */
function slowness(spread: Spread[], { kind, stage, start, end }: Tasks): Values {
  const usual = usualLength(spread);
  return (task) => (end[task]! - start[task]!) / usual(kind[task]!, stage[task]!);
}
