// What is said of two runs: the verdict of `bubblescope compare` over the lanes, and all it compared in the pane.

import { changeOf, counterpartId, counterpartOf, signed } from "./against";
import type { Against, Change, ChangeTable, Head, Pair, Tasks } from "./data";
import { button, element, list, shortened, unbroken, type Fact } from "./dom";
import { duration, percent, withMinus } from "./units";
import { nameOf, t } from "./words";

const IN_SIGHT = 3; // parts of a step that changed most
const LABEL = 80; // letters of the name of a run
const FACTS = 240;

/**
 * The head of a page of two runs. Nothing in it is surer than what `compare` prints.
 *
 * @param find shows where a part of a step is @param more shows all that was compared
 */
export function comparedVerdict(
  head: Head,
  against: Against,
  find: (query: string) => void,
  more: () => void,
): HTMLElement {
  const { step, headline, ranked } = against;
  return element(
    "header",
    { class: "compared" },
    element(
      "div",
      { class: "idle" },
      element(
        "div",
        {},
        ...(step === null ? [] : [element("strong", { class: `share ${doubt(step)}` }, withMinus(step.rise))]),
        element("p", {}, ...unbroken(withMinus(headline))),
      ),
    ),
    element(
      "ol",
      { class: "remedies", "aria-label": t("what changed of a step, per rank") },
      ...ranked.slice(0, IN_SIGHT).map((one) => element("li", {}, part(one, find, more))),
    ),
    element(
      "div",
      { class: "what" },
      element("h1", {}, shortened(head.title, FACTS)),
      ...names(against).map((name, at) => {
        const { label, said } = against.sides[at]!;
        return element("p", { title: label }, element("b", {}, "AB"[at]!), ...unbroken(` ${name} · ${said}`));
      }),
      button(t("all differences"), t("every measure of both runs"), more),
    ),
  );
}

/** What the runs are called, without the folders that both are in. */
export function names({ sides }: Against): string[] {
  const paths = sides.map(({ label }) => label.split("/"));
  let shared = 0;
  const [one, other] = paths as [string[], string[]];
  while (shared < Math.min(one.length, other.length) - 1 && one[shared] === other[shared]) shared++;
  return paths.map((path) => shortened(path.slice(shared).join("/"), LABEL));
}

/** One part of a step: by how much it changed, and whether that may be chance. */
function part(change: Change, find: (query: string) => void, more: () => void): HTMLElement {
  const query = queryOf(change);
  const made = button("", t("{before} in A, {after} in B", { before: change.before, after: change.after }), () =>
    query ? find(query) : more(),
  );
  made.className = `remedy ${doubt(change)}`;
  const what = change.group === "cause" ? t("idle: ") : change.group === "kind" ? t("busy: ") : "";
  made.append(
    element("span", { class: "gain" }, ...unbroken(withMinus(change.rise))),
    element(
      "span",
      { class: "said" },
      element("b", {}, `${what}${nameOf(change.name)}`),
      ...unbroken(` ${change.before} → ${change.after}`),
      ...[certainty(change)].filter(Boolean).map((text) => element("em", {}, ` ${text}`)),
    ),
  );
  return made;
}

/** What a search finds of a part of a step. */
function queryOf({ group, name }: Change): string | null {
  if (group === "cause") return `cause:"${name}"`;
  return group === "kind" ? `kind:${name}` : null;
}

function doubt({ certain }: Change): "doubtful" | "" {
  return certain === false ? "doubtful" : "";
}

function certainty({ certain, difference }: Change): string {
  if (!difference) return "";
  if (certain === null) return t("no noise known");
  return certain ? "" : t("may be noise");
}

/** All that was compared, with what the runs do not have in common. */
export function differences(against: Against): HTMLElement {
  const said = [...against.differs.map((text) => t("differs: {what}", { what: text })), ...against.notes];
  return element(
    "div",
    { class: "differences" },
    ...against.tables.map(table),
    ...(said.length || against.noise !== null
      ? [
          element(
            "article",
            {},
            element("h2", {}, t("Before believing it")),
            element("ul", { class: "notes" }, ...said.map((text) => element("li", {}, shortened(text)))),
            ...(against.noise === null ? [] : [element("p", { class: "hint" }, against.noise)]),
          ),
        ]
      : []),
  );
}

function table({ title, of, changes }: ChangeTable): HTMLElement {
  const columns = [t("measure"), "A", "B", t("change"), t("relative"), ""];
  return element(
    "article",
    {},
    element("h2", {}, title),
    element("p", { class: "hint" }, of),
    element(
      "table",
      {},
      element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name))),
      ...changes.map((change) =>
        element(
          "tr",
          { class: doubt(change) },
          element("th", { scope: "row" }, change.group === "detail" ? change.name : nameOf(change.name)),
          ...[change.before, change.after, change.rise, change.relative].map((text) =>
            element("td", { class: "number" }, withMinus(text)),
          ),
          element("td", {}, change.certain === false && change.difference ? t("noise") : ""),
        ),
      ),
    ),
  );
}

/**
 * Of a task: its counterpart, and what changed.
 *
 * @param show shows another task
 * @param showFar shows one that is not here, by its number among all of the run
 */
export function counterpartFacts(
  tasks: Tasks,
  task: number,
  show: (task: number) => void,
  showFar: (id: number) => void,
): Fact[] {
  const change = changeOf(tasks, task);
  if (change === null)
    return [[t("in the other run"), t("no task of this rank, step, kind, stage, chunk and micro-batch")]];
  const own = tasks.end[task]! - tasks.start[task]!;
  const here = tasks.counterpart![task]! > 0; // in A, whose rows are above B's
  const [mine, its] = here ? [own, own + change] : [own - change, own];
  const share = mine > 0 && change ? `, ${change < 0 ? "−" : "+"}${percent(Math.abs(change) / mine)}` : "";
  const name = here ? "B" : "A";
  const other = counterpartOf(tasks, task);
  const go = (): void => (other < 0 ? showFar(counterpartId(tasks, task)) : show(other));
  return [
    [
      t("from A to B"),
      t("{change}: one pair of tasks, so chance is not ruled out", { change: `${signed(change)}${share}` }),
    ],
    [
      t("in {run}", { run: name }),
      button(duration(here ? its : mine), t("show the same task of {run}", { run: name }), go),
    ],
  ];
}

/** What of a task's length changed, for where there is little room. */
export function changeText(tasks: Tasks, task: number): string {
  if (!tasks.counterpart) return "";
  const change = changeOf(tasks, task);
  return change === null
    ? `\n${t("no counterpart in the other run")}`
    : `\n${t("from A to B: {change}", { change: signed(change) })}`;
}

/** Which steps begin at once. */
export function pairText({ step, other }: Pair): string {
  if (step === null || other === null) return t("B begins where A does");
  return step === other
    ? t("step {step} begins at the same moment in both", { step })
    : t("B's step {other} begins with A's step {step}", { other, step });
}

/** What the rows are, for the legend. */
export function rowFacts(against: Against, pair: Pair | null): HTMLElement {
  const [mine, its] = names(against);
  const facts: Fact[] = [
    ["A", t("upper row of a rank: {run}", { run: mine! })],
    ["B", t("lower row: {run}", { run: its! })],
  ];
  return element(
    "section",
    { class: "runs" },
    list(facts),
    ...(pair ? [element("p", { class: "hint" }, t("{sentence}.", { sentence: pairText(pair) }))] : []),
  );
}
