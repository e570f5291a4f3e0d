// A what-if as text: the options of `bubblescope whatif`, as the analysis reads and writes them.

/** Options with their values, "" for one that has none; all are asked about at once. */
export type Question = readonly (readonly [flag: string, value: string])[];

export const NOTHING: Question = [];

/** The options in the order in which a question has them, so that there is one text of each. */
const ORDER = [
  "--without",
  "--host-never-late",
  "--kernel",
  "--stage",
  "--rank",
  "--healthy",
  "--move",
  "--partition",
  "--microbatches",
  "--schedule",
  "--layers",
  "--chunks",
];
const ALONE = new Set(["--host-never-late"]); // options without a value

/** Read a question. What asks nothing is left out: an address may hold anything, and a command is copied. */
export function parse(text: string): Question {
  const rest = words(text);
  const found: [string, string][] = [];
  for (let at = 0; at < rest.length; at++) {
    const flag = rest[at]!;
    if (ORDER.includes(flag)) found.push([flag, ALONE.has(flag) ? "" : (rest[++at] ?? "")]);
  }
  return found;
}

/** Write a question as one types it. */
export function written(question: Question): string {
  return [...question]
    .sort(([one], [other]) => ORDER.indexOf(one) - ORDER.indexOf(other))
    .map(([flag, value]) => (ALONE.has(flag) ? flag : `${flag} ${quoted(value)}`))
    .join(" ");
}

/** A word as a shell reads it; plain where it may be. */
export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/** The words of a command line. */
export function words(text: string): string[] {
  const parts = text.match(/(?:'[^']*'|"[^"]*"|[^\s'"])+/g) ?? [];
  return parts.map((part) =>
    part.replace(/'([^']*)'|"([^"]*)"/g, (_, one?: string, other?: string) => one ?? other ?? ""),
  );
}

/** Values of an option. */
export function values(question: Question, flag: string): string[] {
  return question.flatMap(([name, value]) => (name === flag ? [value] : []));
}

/** The question with an option's value, or without it if it has it. */
export function toggled(question: Question, flag: string, value: string): Question {
  const rest = question.filter(([name, one]) => name !== flag || one !== value);
  return rest.length < question.length ? rest : [...question, [flag, value]];
}

/** How many times as long a stage takes. */
export function factorOf(question: Question, stage: number): number {
  const found = values(question, "--stage").find((value) => value.startsWith(`${stage}=`));
  return found === undefined ? 1 : Number(found.slice(found.indexOf("=") + 1));
}

export function withFactor(question: Question, stage: number, factor: number): Question {
  const rest = question.filter(([flag, value]) => flag !== "--stage" || !value.startsWith(`${stage}=`));
  return factor === 1 ? rest : [...rest, ["--stage", `${stage}=${factor}`]];
}

/** Layers of each stage as they would be. @param layers what they are */
export function partitionOf(question: Question, layers: readonly number[]): number[] {
  const outright = values(question, "--partition")[0];
  if (outright !== undefined) return outright.split(",").map(Number);
  const made = [...layers];
  for (const move of values(question, "--move")) {
    const [count, source, target] = move.split(/[@:]/).map(Number) as [number, number, number];
    made[source]! -= count;
    made[target]! += count;
  }
  return made;
}

/** The same with other layers: one move if that is all, else outright. */
export function withPartition(question: Question, layers: readonly number[], others: readonly number[]): Question {
  const rest = question.filter(([flag]) => !["--move", "--partition", "--layers"].includes(flag));
  const changed = layers.flatMap((count, stage) => (others[stage] === count ? [] : [stage]));
  if (!changed.length) return rest;
  const now: [string, string] = ["--layers", layers.join(",")];
  if (changed.length > 2) return [...rest, ["--partition", others.join(",")], now];
  const [one, other] = changed as [number, number];
  const [source, target] = others[one]! < layers[one]! ? [one, other] : [other, one];
  return [...rest, ["--move", `${layers[source]! - others[source]!}@${source}:${target}`], now];
}

/** Layers of each stage, as one types them; null if these are none, or not as many as stages. */
export function layersIn(text: string, stages: number): number[] | null {
  if (!/^\s*\d+(\s*,\s*\d+)*\s*$/.test(text)) return null;
  const found = text.split(",").map(Number);
  return found.length === stages && found.some(Boolean) ? found : null;
}
