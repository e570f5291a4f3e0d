// What a search asks for: "rank:3 kind:B mb:7", each word one thing, all of which must hold.
//
// This is the one place that knows the words. What they ask is evaluated in matching.ts, and of a run of
// which only a part is here by the process that serves it.

import { HALVES, PAIR } from "./data";
import type { Condition, Head, Search, SearchColumn, SearchWord } from "./schema";
import { nameOf, t } from "./words";

export const EXAMPLE = "F3  B2@stage 1  rank:3 dur>5ms  slow>1.3  cause:launch" as const;

/** Why a query cannot be answered. */
export class QueryError extends Error {}

// Micro has a sign of its own, and some keyboards write the Greek letter instead.
const UNITS: Record<string, number> = { ns: 1, us: 1e3, "\u00b5s": 1e3, "\u03bcs": 1e3, ms: 1e6, s: 1e9 };
const NUMBERED: Record<string, SearchColumn> = {
  rank: "rank",
  mb: "microbatch",
  microbatch: "microbatch",
  step: "step",
  stage: "stage",
  chunk: "chunk",
  peer: "peer",
};
const FIELDS = ["rank", "kind", "mb", "step", "stage", "chunk", "peer", "lane", "host", "name", "cause"] as const;
const MEASURES = ["dur>", "slow>", "idle>"] as const;
const COMPARED = ["gained>", "lost>"] as const; // where there are two runs
const ODD = "odd" as const;
const PLACE = /@\s*(stage|rank|step|chunk)?[\s:]*(\d+)/gi; // "@stage 4", "@rank:3", and "@4", a stage
const MEASURE = /^(dur|duration|idle|gained|lost|slow)([<>])(=?)(.*)$/i;
const LENGTH = /^(\d+(?:\.\d+)?)(ns|us|\u00b5s|\u03bcs|ms|s)?$/i;
const RATIO = /^\d+(?:\.\d+)?$/;
const LABEL = /^([a-z]+)(\d+)(?:\.(\d+))?$/i;
const MOST = 12; // completions that are offered

/** What either kind of item has; all other columns are of one. */
const EITHER = new Set<SearchColumn>(["rank", "host", "standing", "step"]);

/** A word as it was written, and what it asks for. */
interface Written extends SearchWord {
  word: string;
  about: Search["what"] | "either";
}

/**
 * What a query asks for.
 *
 * Words: what blocks say, such as `F3` or `B2.1`; `@stage 4`, `@rank 3`; `rank:`, `kind:` (short as on the
 * blocks or long), `mb:`, `step:`, `stage:`, `chunk:`, `peer:`, `lane:`, `host:`; `dur>`, `dur>=`, `dur<` and
 * `dur<=` with a unit; `slow>` with how many times as long as the median of its kind and stage; `gained>` and
 * `lost>` where there are two runs; `odd`, the ranks that stand apart; of idle time `cause:` and `idle>`;
 * anything else is a part of a name in the trace. Numbers may be lists and ranges: `mb:1,4-6`. A `-` before a
 * word turns it round, `or` between words begins another set of them.
 *
 * @throws QueryError with what is not understood, or cannot be found in this run
 */
export function asked(query: string, head: Head): Search {
  const sets = split(words(query)).map((set) => set.map((word) => written(word, head)));
  const kinds = new Set(sets.map(aboutOf));
  if (kinds.size > 1)
    throw new QueryError(t("one side of `or` is about tasks, the other about idle time: ask for one"));
  return {
    what: [...kinds][0] ?? "task",
    sets: sets.map((set) => set.map(({ any, negated }) => ({ any, negated }))),
  };
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

function aboutOf(set: Written[]): Search["what"] {
  const gaps = set.find(({ about }) => about === "gap");
  const tasks = set.find(({ about }) => about === "task");
  if (gaps && tasks)
    throw new QueryError(
      t("{gaps} is about idle time, {tasks} about tasks: ask for one", { gaps: gaps.word, tasks: tasks.word }),
    );
  return gaps ? "gap" : "task";
}

function written(word: string, head: Head): Written {
  const plain = word.replace(/^-+(?=.)/, "");
  const any = meant(plain, head);
  const columns = any.flat().map(({ column }) => column);
  const gap = columns.includes("cause") || /^idle/i.test(plain);
  const about = gap
    ? ("gap" as const)
    : columns.length && columns.every((column) => EITHER.has(column))
      ? ("either" as const)
      : ("task" as const);
  return { word, about, any, negated: (word.length - plain.length) % 2 === 1 };
}

/** What a word asks for: any of some sets of conditions, each of which must hold whole. */
function meant(word: string, head: Head): Condition[][] {
  if (word.toLowerCase() === ODD) return odd(head);
  const measure = MEASURE.exec(word);
  if (measure) return measured(measure, head);
  const at = word.indexOf(":");
  const [field, value] = at < 0 ? ["", word] : [word.slice(0, at).toLowerCase(), word.slice(at + 1)];
  if (Object.hasOwn(NUMBERED, field)) return numbers(value, field);
  if (field === "host" || field === "lane") return [[{ column: field, text: value }]];
  if (field === "cause") return caused(value, head);
  if (field === "kind") {
    return ofKind(value, head);
  }
  return labelled(word, head) ?? called(word, field === "name" ? value : word, head);
}

/** Tasks of a kind, and the pairs of which it is a half. */
function ofKind(value: string, { kinds }: Head): Condition[][] {
  const named = kinds.filter(
    ({ name, short }) => value === short || name === value || plainly(name) === value || nameOf(name) === value,
  );
  if (!named.length) throw new QueryError(t("no kind is called {value}", { value }));
  const half = named.some(({ name }) => HALVES.some((one) => one === name));
  const wanted = kinds.filter((one) => named.includes(one) || (half && one.name === PAIR));
  return wanted.map((one) => [is("kind", kinds.indexOf(one))]);
}

/** The ranks that stand apart, as the command `stragglers` names them. */
function odd({ standings }: Head): Condition[][] {
  if (!standings.length) throw new QueryError(t("nothing tells the ranks of this run apart, so none is odd"));
  if (!standings.some(({ name }) => name === ODD))
    throw new QueryError(t("no rank of this run is odd; name:{odd} finds names", { odd: ODD }));
  return [[{ column: "standing", text: ODD }]];
}

/** "dur>5ms", "slow>=1.3". */
function measured([, name, sign, equal, text]: RegExpExecArray, head: Head): Condition[][] {
  const field = name!.toLowerCase();
  const open = equal === "";
  const beyond = (column: SearchColumn, limit: number): Condition =>
    sign === ">" ? { column, least: limit, open } : { column, most: limit, open };
  if (field === "slow") {
    if (!RATIO.test(text!))
      throw new QueryError(t("slow wants how many times as long as its like a task takes, such as slow>1.3"));
    return [[beyond("slowness", Number(text))]];
  }
  const [, number, unit] = LENGTH.exec(text!) ?? [];
  if (number === undefined) throw new QueryError(t("{field} wants a length of time, such as {field}>5ms", { field }));
  const limit = finite(number) * UNITS[(unit ?? ("ns" as const)).toLowerCase()]!;
  if (field !== "gained" && field !== "lost") return [[beyond("length", limit)]];
  if (!head.against) throw new QueryError(t("{field} is a word of pages of two runs", { field }));
  const some: Condition = { column: field, least: 0, open: true };
  return [[some, beyond(field, limit)]];
}

/** "3", "1,4-6": which numbers are meant. */
function numbers(text: string, field: string): Condition[][] {
  return text.split(",").map((part) => {
    const parsed = /^(\d+)(?:-(\d+))?$/.exec(part.trim());
    if (!parsed) throw new QueryError(t("{field}: wants numbers, such as {field}:3 or {field}:1,4-6", { field }));
    return [{ column: NUMBERED[field]!, least: finite(parsed[1]!), most: finite(parsed[2] ?? parsed[1]!) }];
  });
}

function caused(value: string, { causes }: Head): Condition[][] {
  const wanted = value.toLowerCase();
  const named = causes.flatMap(({ name }, cause) =>
    wanted !== "" && (name.toLowerCase().includes(wanted) || nameOf(name).includes(wanted))
      ? [[is("cause", cause)]]
      : [],
  );
  if (named.length) return named;
  const known = causes.filter(({ share }) => share > 0).map(({ name }) => nameOf(name));
  throw new QueryError(
    known.length
      ? t("no cause is called {value}: there are {causes}", { value, causes: known.join(", ") })
      : t("no cause is called {value}", { value }),
  );
}

/** What blocks say: "F3" is also the forward half of a pair "F3+B1". */
function labelled(word: string, { kinds }: Head): Condition[][] | null {
  const said = LABEL.exec(word);
  const kind = kinds.findIndex(({ short }) => short !== "" && short === said?.[1]);
  if (!said || kind < 0) return null;
  const { short } = kinds[kind]!;
  const number = finite(said[2]!);
  const of = (microbatch: SearchColumn, chunk: SearchColumn): Condition[] => [
    is(microbatch, number),
    ...(said[3] === undefined ? [] : [is(chunk, finite(said[3]))]),
  ];
  const own = of("microbatch", "chunk");
  const sets = [[is("kind", kind), ...own]];
  if (short === "F") sets.push([{ column: "pair", least: 0 }, ...own]);
  if (short === "B") sets.push(of("pair", "pair_chunk"));
  return sets;
}

/** Those in whose name in the trace a text is. */
function called(word: string, text: string, { names, against }: Head): Condition[][] {
  const wanted = text.toLowerCase();
  if (names.some((name) => name.toLowerCase().includes(wanted))) return [[{ column: "name", text }]];
  const field = /^([a-z]+)[:<>]/i.exec(word)?.[1];
  if (field === undefined || field === "name") throw new QueryError(t("nothing is called {text}", { text }));
  const known = [...FIELDS.map((one) => `${one}:`), ...MEASURES, ...(against ? COMPARED : []), ODD];
  throw new QueryError(t("{field} is not a search field; the fields are {fields}", { field, fields: known.join(" ") }));
}

function is(column: SearchColumn, value: number): Condition {
  return { column, least: value, most: value };
}

/** A number as written, or the largest that there is: what follows it has no name in JSON. */
function finite(digits: string): number {
  return Math.min(Number(digits), Number.MAX_VALUE);
}

function plainly(name: string): string {
  return name.replaceAll("_", " ");
}

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
    ...(head.standings.some(({ name }) => name === ODD) ? [ODD] : []),
    ...(head.against ? COMPARED : []),
    ...head.kinds.filter(({ spent, beside }) => spent + beside > 0).map(({ name }) => `kind:${name}`),
    ...head.causes.filter(({ share }) => share > 0).map(({ name }) => `cause:${quoted(name)}`),
    ...head.ranks.map(({ rank }) => `rank:${rank}`),
    ...head.steps.map(({ step }) => `step:${step}`),
    ...[...new Set(head.rows.map(({ lane }) => lane))].map((lane) => `lane:${lane}`),
    ...[...new Set(head.ranks.map(({ host }) => host))].map((host) => `host:${quoted(host)}`),
  ];
}
