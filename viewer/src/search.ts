// Finding tasks and idle time: "rank:3 kind:B mb:7", each word one condition, all of which must hold.

import { changeOf } from "./against";
import type { Data, Head, Row, Tasks } from "./data";
import { nameOf, t } from "./words";

export const EXAMPLE = "F3  B2@stage 1  rank:3 dur>5ms  cause:launch" as const;

/** What a query found, in the order of the page: tasks that were measured, or stretches of idle time. */
export interface Matches {
  what: "task" | "gap";
  items: Int32Array;
}

/** Why a query cannot be answered. */
export class QueryError extends Error {}

// Micro has a sign of its own, and some keyboards write the Greek letter instead.
const UNITS: Record<string, number> = { ns: 1, us: 1e3, "\u00b5s": 1e3, "\u03bcs": 1e3, ms: 1e6, s: 1e9 };
const NUMBERED: Record<string, "microbatch" | "step" | "stage" | "chunk" | "peer"> = {
  mb: "microbatch",
  microbatch: "microbatch",
  step: "step",
  stage: "stage",
  chunk: "chunk",
  peer: "peer",
};
const FIELDS = ["rank", "kind", "mb", "step", "stage", "chunk", "peer", "lane", "host", "name", "cause"] as const;
const MEASURES = ["dur>", "idle>"] as const;
const PLACE = /@\s*(stage|rank|step|chunk)?[\s:]*(\d+)/gi; // "@stage 4", "@rank:3", and "@4", a stage
const LASTING = /^(dur|duration|idle|gained|lost)([<>])(=?)(\d+(?:\.\d+)?)(ns|us|\u00b5s|\u03bcs|ms|s)?$/i;
const LABEL = /^([a-z]+)(\d+)(?:\.(\d+))?$/i;

type Test = (index: number) => boolean;

/** One word of a query: what it asks of the row of an item, and of the item. */
interface Condition {
  word: string;
  about: Matches["what"] | "either";
  task?: Test;
  gap?: Test;
  rank?: (rank: number) => boolean;
  row?: (row: Row) => boolean;
}

/**
 * What a query is about.
 *
 * Words: what blocks say, such as `F3` or `B2.1`; `@stage 4`, `@rank 3`; `rank:`, `kind:` (short as on the
 * blocks or long), `mb:`, `step:`, `stage:`, `chunk:`, `peer:`, `lane:`, `host:`; `dur>`, `dur>=`, `dur<` and
 * `dur<=` with a unit, and so `gained>` and `lost>` where there are two runs; of idle time `cause:` and `idle>`; anything else is a part of a name in the trace.
 * Numbers may be lists and ranges: `mb:1,4-6`. A `-` before a word turns it round, `or` between words begins
 * another set of conditions.
 */
export function find(query: string, head: Head, data: Data): Matches {
  const sets = split(words(query)).map((set) => set.map((word) => condition(word, head, data)));
  const kinds = new Set(sets.map(aboutOf));
  if (kinds.size > 1)
    throw new QueryError(t("one side of `or` is about tasks, the other about idle time: ask for one"));
  const what = [...kinds][0] ?? "task";
  const found: number[] = [];
  const extents = what === "gap" ? head.gaps : head.rows;
  for (const extent of extents) {
    const row = what === "task" ? (extent as Row) : null;
    if (row && (row.lane === "ideal" || row.lane === "whatif")) continue;
    const here = sets.filter((set) =>
      set.every(({ rank, row: wanted }) => (!rank || rank(extent.rank)) && (!wanted || (row !== null && wanted(row)))),
    );
    const tests = here.map((set) => set.flatMap((one) => one[what] ?? []));
    if (!tests.length) continue;
    for (let index = extent.from; index < extent.to; index++)
      if (tests.some((all) => all.every((holds) => holds(index)))) found.push(index);
  }
  return { what, items: Int32Array.from(found) };
}

function words(query: string): string[] {
  const placed = query.replace(
    PLACE,
    (_, field: string | undefined, number: string) => ` ${field ?? ("stage" as const)}:${number} `,
  );
  return placed.match(/(?:[^\s"]|"[^"]*")+/g)?.map((word) => word.replaceAll('"', "")) ?? [];
}

/** The sets of words between `or`s. */
function split(all: string[]): string[][] {
  const sets: string[][] = [[]];
  for (const word of all) {
    if (word.toLowerCase() === "or") sets.push([]);
    else sets.at(-1)!.push(word);
  }
  return sets.filter((set) => set.length);
}

function aboutOf(set: Condition[]): Matches["what"] {
  const gaps = set.find(({ about }) => about === "gap");
  const tasks = set.find(({ about }) => about === "task");
  if (gaps && tasks)
    throw new QueryError(
      t("{gaps} is about idle time, {tasks} about tasks: ask for one", { gaps: gaps.word, tasks: tasks.word }),
    );
  return gaps ? "gap" : "task";
}

function condition(word: string, head: Head, data: Data): Condition {
  if (word.startsWith("-") && word.length > 1) return negated(condition(word.slice(1), head, data), word);
  const { tasks } = data;
  const lasting = LASTING.exec(word);
  if (lasting) {
    const [, field, sign, equal, number, unit] = lasting;
    const length = lengthOf(field!.toLowerCase(), data);
    const limit = Number(number) * UNITS[(unit ?? ("ns" as const)).toLowerCase()]!;
    const holds = (index: number): boolean => {
      const measured = length(index);
      if (measured === null) return false;
      return measured === limit ? equal !== "" : measured > limit === (sign === ">");
    };
    return field!.toLowerCase() === "idle" ? { word, about: "gap", gap: holds } : { word, about: "task", task: holds };
  }
  const at = word.indexOf(":");
  const [field, value] = at < 0 ? ["", word] : [word.slice(0, at).toLowerCase(), word.slice(at + 1)];
  if (field === "rank") {
    const wanted = numbers(value, field);
    return { word, about: "either", rank: (rank) => wanted(head.ranks[rank]!.rank) };
  }
  if (field === "host") return { word, about: "either", rank: (rank) => head.ranks[rank]!.host.includes(value) };
  if (field === "lane") return { word, about: "task", row: (row) => row.lane === value };
  if (field === "cause") return { word, about: "gap", gap: caused(value, head, data) };
  if (field === "kind") {
    const named = head.kinds.map(
      ({ name, short }) => value === short || name === value || plain(name) === value || nameOf(name) === value,
    );
    if (!named.includes(true)) throw new QueryError(t("no kind is called {value}", { value }));
    return { word, about: "task", task: (task) => named[tasks.kind[task]!]! };
  }
  if (Object.hasOwn(NUMBERED, field)) return numbered(word, field, value, data);
  return labelled(word, head, tasks) ?? called(word, field === "name" ? value : word, head, tasks);
}

/** How long an item is, or by how much less or more it is in another run: null where that is not so. */
function lengthOf(field: string, { tasks, gaps }: Data): (index: number) => number | null {
  if (field === "gained" || field === "lost") {
    if (!tasks.counterpart) throw new QueryError(t("{field} is a word of pages of two runs", { field }));
    const towards = field === "lost" ? 1 : -1;
    return (task) => Math.max(0, (changeOf(tasks, task) ?? 0) * towards) || null;
  }
  const { start, end } = field === "idle" ? gaps : tasks;
  return (index) => end[index]! - start[index]!;
}

/** What a word asks of a row, an item there must then not have: each word asks one thing only. */
function negated({ about, task, gap, rank, row }: Condition, word: string): Condition {
  return {
    word,
    about,
    ...(task ? { task: (index: number) => !task(index) } : {}),
    ...(gap ? { gap: (index: number) => !gap(index) } : {}),
    ...(rank ? { rank: (index: number) => !rank(index) } : {}),
    ...(row ? { row: (one: Row) => !row(one) } : {}),
  };
}

function caused(value: string, head: Head, { gaps }: Data): Test {
  const wanted = value.toLowerCase();
  const named = head.causes.map(
    ({ name }) => wanted !== "" && (name.toLowerCase().includes(wanted) || nameOf(name).includes(wanted)),
  );
  if (!named.includes(true)) {
    const known = head.causes.filter(({ share }) => share > 0).map(({ name }) => nameOf(name));
    throw new QueryError(
      known.length
        ? t("no cause is called {value}: there are {causes}", { value, causes: known.join(", ") })
        : t("no cause is called {value}", { value }),
    );
  }
  return (gap) => named[gaps.cause[gap]!]!;
}

function numbered(word: string, field: string, value: string, { tasks, gaps }: Data): Condition {
  const wanted = numbers(value, field);
  const column = NUMBERED[field]!;
  const task = (index: number): boolean => wanted(tasks[column][index]!);
  // Idle time belongs to a step too; whether that is meant, the other words tell.
  if (column === "step") return { word, about: "either", task, gap: (index) => wanted(gaps.step[index]!) };
  return { word, about: "task", task };
}

/** What blocks say: "F3" is also the forward half of a pair "F3+B1". */
function labelled(word: string, head: Head, tasks: Tasks): Condition | null {
  const said = LABEL.exec(word);
  const kind = head.kinds.findIndex(({ short }) => short !== "" && short === said?.[1]);
  if (!said || kind < 0) return null;
  const [number, chunk] = [Number(said[2]), said[3] === undefined ? null : Number(said[3])];
  const { short } = head.kinds[kind]!;
  const holds = (task: number): boolean => {
    if (short === "B" && tasks.pair[task] === number) return chunk === null || tasks.pairChunk[task] === chunk;
    const fits = tasks.kind[task] === kind || (short === "F" && tasks.pair[task]! >= 0);
    return fits && tasks.microbatch[task] === number && (chunk === null || tasks.chunk[task] === chunk);
  };
  return { word, about: "task", task: holds };
}

/** Those in whose name in the trace a text is. */
function called(word: string, text: string, head: Head, tasks: Tasks): Condition {
  const wanted = text.toLowerCase();
  const named = head.names.map((name) => name.toLowerCase().includes(wanted));
  if (!named.includes(true)) {
    const field = /^([a-z]+)[:<>]/i.exec(word)?.[1];
    if (field && field !== "name")
      throw new QueryError(
        t("{field} is not a search field; the fields are {fields}", {
          field,
          fields: [...FIELDS.map((one) => `${one}:`), ...MEASURES].join(" "),
        }),
      );
    throw new QueryError(t("nothing is called {text}", { text }));
  }
  return { word, about: "task", task: (task) => named[tasks.name[task]!]! };
}

/** "3", "1,4-6": which numbers are meant. */
function numbers(text: string, field: string): (value: number) => boolean {
  const spans = text.split(",").map((part) => {
    const parsed = /^(\d+)(?:-(\d+))?$/.exec(part.trim());
    if (!parsed) throw new QueryError(t("{field}: wants numbers, such as {field}:3 or {field}:1,4-6", { field }));
    return [Number(parsed[1]), Number(parsed[2] ?? parsed[1])] as const;
  });
  return (value) => spans.some(([least, most]) => least <= value && value <= most);
}

function plain(name: string): string {
  return name.replaceAll("_", " ");
}

const MOST = 12; // completions that are offered

/** Whole queries that begin as one that is being written, its last word completed. */
export function completions(query: string, head: Head): string[] {
  const start = /\S*$/.exec(query)!.index;
  const last = query.slice(start).toLowerCase();
  if (last === "") return [];
  const fits = wordsOf(head).filter((word) => word.toLowerCase().startsWith(last) && word.toLowerCase() !== last);
  return fits.slice(0, MOST).map((word) => query.slice(0, start) + word);
}

/** Words that mean something in a run. */
function wordsOf(head: Head): string[] {
  const quoted = (text: string): string => (/\s/.test(text) ? `"${text}"` : text);
  return [
    ...FIELDS.map((field) => `${field}:`),
    ...MEASURES,
    ...(head.against ? (["gained>", "lost>"] as const) : []),
    ...head.kinds.filter(({ spent }) => spent > 0).map(({ name }) => `kind:${name}`),
    ...head.causes.filter(({ share }) => share > 0).map(({ name }) => `cause:${quoted(name)}`),
    ...head.ranks.map(({ rank }) => `rank:${rank}`),
    ...head.steps.map(({ step }) => `step:${step}`),
    ...[...new Set(head.rows.map(({ lane }) => lane))].map((lane) => `lane:${lane}`),
    ...[...new Set(head.ranks.map(({ host }) => host))].map((host) => `host:${quoted(host)}`),
  ];
}
