// What the colours mean, with what a rank spends on each a step; a click shows only those.

import type { Scheme } from "./colour";
import { HALVES, ofDevices, PAIR, type Devices, type Head, type Kind, type Pair } from "./data";
import { rowFacts } from "./difference";
import { stepTimes, type Spent } from "./devices";
import { button, element, swatch } from "./dom";
import type { Theme } from "./theme";
import { gain } from "./verdict";
import { LEAST_CONTRAST } from "./area";
import { contrast } from "./light";
import { patternImage } from "./pattern";
import { causeSwatch } from "./why";
import { brief, percent } from "./units";
import { waitingFill } from "./waits";
import { nameOf, t } from "./words";

/** What of the page the legend speaks of. */
export interface Told {
  scheme: Scheme;
  theme: Theme;
  byKind: boolean; // blocks are coloured by what they are
  causes: boolean; // gaps have the colours of their causes
  phases: boolean;
  kernels: boolean;
  query: string; // what is searched for
  lanes?: ReadonlySet<string>; // beside those of the device's computing
  pair?: Pair | null; // of two runs, the steps that begin at once
  waiting?: number | undefined; // the code of a block that waits for the last rank, if any is known to
}

/** @param find searches for something, or with "" for nothing */
export function legend(head: Head, told: Told, find: (query: string) => void): HTMLElement[] {
  const made = told.byKind ? kinds(head, told, find) : [colours(told)];
  if (head.against) made.unshift(rowFacts(head.against, told.pair ?? null));
  const known = head.causes.filter(({ share }) => share > 0);
  if (told.causes && known.length) made.push(causes(head, told, find));
  if (told.byKind && head.devices) made.push(...devices(head.devices));
  const grounds = told.phases && head.columns.phases[0]?.length;
  const rest: HTMLElement[] = [entry(edged(told.theme.idle), t("idle"))];
  if (grounds)
    rest.push(
      entry(striped("warm-up", told.theme.warm, told.theme), t("warm-up")),
      entry(striped("cool-down", told.theme.cool, told.theme), t("cool-down")),
    );
  if (told.waiting !== undefined)
    rest.push(entry(waitingOf(told.waiting, told), t("collective, waiting for the last rank")));
  if (head.unrecorded.length)
    rest.push(entry(striped("unrecorded", told.theme.page, told.theme), t("not recorded: between two captures")));
  if (told.kernels && head.kernels)
    rest.push(
      ...head.kernels.uses.map(({ fill, dark, name }) =>
        entry(swatch(fill, dark.fill), t("kernels: {use}", { use: nameOf(name) })),
      ),
    );
  for (const { lane, name, detail } of head.overlays) {
    if (lane === "against" || told.lanes?.has(lane) === false) continue; // not pale, or not shown
    const line = entry(edged("transparent"), t("pale lanes: {name}", { name: nameOf(name) }));
    line.title = detail;
    rest.push(line);
  }
  made.push(section("", "", rest));
  return made;
}

/** The kinds of compute lanes, and those that are only in the lanes beside them. */
function kinds(head: Head, told: Told, find: (query: string) => void): HTMLElement[] {
  const { scheme, query } = told;
  const row = (mark: HTMLElement, { name, spent, beside }: Kind): HTMLElement =>
    choice(mark, nameOf(name), [brief(spent || beside)], `kind:${name}`, query, find);
  const shown = scheme.legend.flatMap(([fill, text]) => {
    const kind = head.kinds.find(({ name }) => nameOf(name) === text);
    return kind ? [{ kind, made: row(blockOf(fill, told), kind) }] : [];
  });
  const pair = scheme.below === scheme.codes ? undefined : head.kinds.find(({ name }) => name === PAIR);
  if (pair) shown.unshift({ kind: pair, made: row(halvesOf(scheme, head), pair) });
  const part = (title: string, wanted: (kind: Kind) => boolean): HTMLElement[] => {
    const rows = shown.flatMap(({ kind, made }) => (wanted(kind) ? [made] : []));
    return rows.length ? [section(title, t("a step, per rank"), rows)] : [];
  };
  const besides = ({ spent, beside }: Kind): boolean => !spent && beside > 0;
  return [
    // Where devices idle inside of tasks, these are not all busy.
    ...part(ofDevices(head) ? t("In tasks") : t("Busy"), (kind) => !besides(kind)),
    ...part(t("Other lanes"), besides),
  ];
}

/** What devices spend a step on, busy or idle, and why they idle: tasks do not tell. */
function devices(known: Devices): HTMLElement[] {
  const { all, idle } = stepTimes(known);
  const row = ({ name, time, share, use, part }: Spent): HTMLElement => {
    const mark = use ? swatch(use.fill, use.dark.fill) : edged("transparent");
    const made = entry(mark, nameOf(name));
    made.classList.toggle("part", part === true);
    const least = part ? "≥ " : "";
    made.append(element("b", {}, least + brief(time)), element("b", {}, least + percent(share)));
    return made;
  };
  const made = [section(t("Devices"), t("a step, per rank"), all.map(row))];
  if (idle.length) made.push(section(t("Devices idle: why"), "", idle.map(row)));
  return made;
}

function causes(head: Head, { query }: Told, find: (query: string) => void): HTMLElement {
  const present = head.causes.filter(({ share }) => share > 0).sort((one, other) => other.share - one.share);
  const known = present.some(({ saved }) => saved !== null);
  const rows = present.map((cause) => {
    const fixed = cause.inherent ? "" : gain({ saved: cause.saved, spent: null });
    const made = choice(
      causeSwatch(cause),
      nameOf(cause.name),
      [brief(cause.idle), ...(known ? [fixed] : [])],
      `cause:"${cause.name}"`,
      query,
      find,
    );
    made.title = t("{meaning}: {share} of the idle time", { meaning: cause.meaning, share: percent(cause.share) });
    return made;
  });
  const made = section(t("Idle, by cause"), known ? t("idle / if fixed") : t("a step, per rank"), rows);
  if (known && present.filter(({ saved }) => saved).length > 1)
    made.append(element("p", { class: "hint" }, t("Causes overlap: fixes do not add up.")));
  return made;
}

function colours(told: Told): HTMLElement {
  return section(
    told.scheme.title ?? t("Colours"),
    "",
    told.scheme.legend.map(([fill, text]) => entry(blockOf(fill, told), text)),
  );
}

function section(title: string, hint: string, rows: HTMLElement[]): HTMLElement {
  const head = title ? [element("h2", {}, title, element("small", {}, hint))] : [];
  return element("section", {}, ...head, ...rows);
}

/** A line that is a switch: pressed, only what it names stands out. */
function choice(
  mark: HTMLElement,
  text: string,
  numbers: string[],
  wanted: string,
  query: string,
  find: (query: string) => void,
): HTMLElement {
  const pressed = query === wanted;
  const made = button("", "", () => find(pressed ? "" : wanted));
  made.className = "entry";
  made.setAttribute("aria-pressed", String(pressed));
  made.append(mark, element("span", {}, text), ...numbers.map((number) => element("b", {}, number)));
  return made;
}

function entry(mark: HTMLElement, text: string): HTMLElement {
  return element("span", { class: "entry" }, mark, element("span", {}, text));
}

/** A fill as blocks have it: with a line around it where it hardly differs from the ground. */
function blockOf(fill: string, { scheme, theme }: Told): HTMLElement {
  const made = swatch(fill);
  const edge = scheme.edges[scheme.fills.indexOf(fill)];
  if (edge && contrast(fill, theme.idle) < LEAST_CONTRAST) made.style.boxShadow = `inset 0 0 0 1px ${edge}`;
  return made;
}

/** A block that waits, and then goes on with all ranks together. */
function waitingOf(code: number, told: Told): HTMLElement {
  const { scheme, theme } = told;
  const [fill, edge] = [scheme.fills[code]!, scheme.edges[code]!];
  const made = blockOf(fill, told);
  made.style.background = `linear-gradient(90deg, ${waitingFill(fill, theme)} 55%, ${edge} 55% 63%, ${fill} 63%)`;
  return made;
}

/** A pair as blocks have it: the forward above the backward. */
function halvesOf({ fills }: Scheme, { kinds }: Head): HTMLElement {
  const made = swatch("");
  const [upper, lower] = HALVES.map((half) => fills[kinds.findIndex(({ name }) => name === half)]);
  made.style.background = `linear-gradient(${upper} 50%, ${lower} 50%)`;
  return made;
}

function striped(name: "warm-up" | "cool-down" | "unrecorded", fill: string, theme: Theme): HTMLElement {
  const made = edged(fill);
  made.style.background = `${patternImage(name, theme.dim)}, ${fill}`;
  return made;
}

function edged(fill: string): HTMLElement {
  const made = swatch(fill);
  made.className = "edged";
  return made;
}
