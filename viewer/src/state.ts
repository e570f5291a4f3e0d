// What is shown and how, and the same as the part of an address behind "#", so that a view can be shared.

import { MODES, modes, type Mode } from "./colour";
import type { Head } from "./data";
import { hasCauses } from "./data";
import { foldedAtFirst } from "./folding";
import {
  arrangement,
  EXTRAS,
  GROUPINGS,
  SIZES,
  type Arrangement,
  type Extra,
  type Grouping,
  type Item,
} from "./layout";
import { LANGUAGES, usual as usualLanguage, type Language } from "./words";

export const ARROWS = ["selected", "microbatch", "critical", "all", "none"] as const;
export const THEMES = ["auto", "light", "dark"] as const;

/** A stretch of time on some lanes. */
export interface Range {
  start: number; // ns since the origin
  end: number;
  ranks: number[] | null; // by index; null for all that are shown
}

export interface State {
  arranged: Arrangement;
  mode: Mode;
  causes: boolean; // in the gaps
  phases: boolean; // behind the lanes
  launches: boolean; // when tasks were issued on the host
  arrows: (typeof ARROWS)[number];
  theme: (typeof THEMES)[number];
  language: Language; // of all that the page itself says
  legend: boolean; // beside the lanes
  wheelZooms: boolean; // without a key
  query: string;
  ask: string; // the what-if, as options of its command
  selected: Item | null;
  range: Range | null;
}

/** Which part of the run is in sight. */
export interface Sight {
  start: number;
  end: number;
  top: number; // pixels scrolled
}

export function initial(head: Head): State {
  return {
    arranged: arrangement(head),
    mode: head.against ? "change" : "kind",
    causes: hasCauses(head) && !head.against, // their colours are too near those of changes
    phases: !head.against,
    launches: false,
    arrows: "selected",
    theme: "auto",
    language: usualLanguage,
    legend: true,
    wheelZooms: false,
    query: "",
    ask: "",
    selected: null,
    range: null,
  };
}

const FLAGS = ["causes", "phases", "launches", "legend", "wheelZooms"] as const;

/** Write what differs from how the page opens. */
export function toHash(state: State, sight: Sight, head: Head): string {
  const usual = initial(head);
  const { arranged, selected, range } = state;
  const fields: [string, string, string?][] = [
    ["t", `${Math.round(sight.start)}~${Math.round(sight.end)}`],
    ["y", String(Math.round(sight.top)), "0"],
    ["group", arranged.grouping, usual.arranged.grouping],
    ...folds(arranged),
    ...[...arranged.opened].map((key): [string, string] => ["open", key]),
    ["hide", [...arranged.hidden].join("~"), ""],
    ["order", arranged.order.join("~"), usual.arranged.order.join("~")],
    ["replica", String(arranged.replica ?? ""), ""],
    ["lanes", listed(arranged), listed(usual.arranged)],
    ["above", arranged.above ?? "none", usual.arranged.above ?? "none"],
    ["kernels", [...arranged.unfolded].join("~"), ""],
    ["size", arranged.size, usual.arranged.size],
    ["look", arranged.figure ? "figure" : "", ""],
    ["colour", state.mode, usual.mode],
    ...FLAGS.map((flag): [string, string, string] => [flag, String(state[flag]), String(usual[flag])]),
    ["arrows", state.arrows, usual.arrows],
    ["theme", state.theme, usual.theme],
    ["language", state.language, usual.language],
    ["find", state.query, ""],
    ["whatif", state.ask, ""],
    ["select", selected ? `${selected.what}~${selected.index}` : "", ""],
    [
      "range",
      range
        ? [range.start, range.end]
            .map(Math.round)
            .concat(range.ranks ?? [])
            .join("~")
        : "",
      "",
    ],
  ];
  const said = fields.filter(([, value, otherwise]) => value !== otherwise);
  return new URLSearchParams(said.map(([name, value]) => [name, value])).toString();
}

/** Read it again. What makes no sense for this page is left out. */
export function fromHash(hash: string, head: Head): { state: State; sight: Partial<Sight> } {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const state = initial(head);
  const text = (name: string): string => given.get(name) ?? "";
  const parts = (name: string): string[] => text(name).split("~").filter(Boolean);
  const indices = (values: string[], count: number): number[] =>
    values.map(Number).filter((value) => Number.isInteger(value) && value >= 0 && value < count);
  const one = <T extends string>(name: string, choices: readonly T[], otherwise: T): T =>
    choices.find((choice) => choice === text(name)) ?? otherwise;

  const ranks = head.ranks.length;
  const usual = state.arranged;
  const order = [...new Set(indices(parts("order"), ranks))];
  const replica = text("replica") === "" ? null : Number(text("replica"));
  const above = one("above", ["none", ...head.overlays.map(({ lane }) => lane)], usual.above ?? "none");
  const groupings = (Object.keys(GROUPINGS) as Grouping[]).filter(
    (grouping) => grouping !== "standing" || head.standings.length,
  );
  const grouping = one("group", groupings, usual.grouping);
  state.arranged = {
    grouping,
    folded: given.has("fold")
      ? new Set(given.getAll("fold"))
      : text("folds") === "none"
        ? new Set()
        : foldedAtFirst(grouping),
    opened: new Set(given.getAll("open")),
    hidden: new Set(indices(parts("hide"), ranks)),
    order: order.length === ranks ? order : usual.order,
    replica: head.ranks.some(({ dp }) => dp !== null && dp === replica) ? replica : null,
    extras: given.has("lanes") ? new Set(EXTRAS.filter((extra) => parts("lanes").includes(extra))) : usual.extras,
    above: above === "none" ? null : above,
    unfolded: new Set(indices(parts("kernels"), ranks)),
    size: one("size", SIZES, usual.size),
    figure: text("look") === "figure",
  };
  if (state.arranged.hidden.size >= ranks) state.arranged.hidden = new Set();
  state.mode = one(
    "colour",
    modes(head).filter((mode) => mode in MODES),
    state.mode,
  );
  for (const flag of FLAGS) if (["true", "false"].includes(text(flag))) state[flag] = text(flag) === "true";
  state.causes &&= hasCauses(head);
  state.arrows = one("arrows", ARROWS, state.arrows);
  state.theme = one("theme", THEMES, state.theme);
  state.language = one("language", LANGUAGES, state.language);
  state.query = text("find");
  state.ask = text("whatif");
  const [what, ...index] = parts("select");
  const [selected] = indices(index, Infinity);
  if ((what === "task" || what === "gap" || (what === "kernel" && head.kernels)) && selected !== undefined)
    state.selected = { what, index: selected };
  const stretch = (name: string): { start: number; end: number } | null => {
    const [start, end] = parts(name).map(Number) as [number, number];
    return end > start && Number.isFinite(end - start) ? { start, end } : null;
  };
  const range = stretch("range");
  const some = indices(parts("range").slice(2), ranks);
  if (range) state.range = { ...range, ranks: some.length ? some : null };
  const sight: Partial<Sight> = stretch("t") ?? {};
  const top = Number(text("y"));
  if (text("y") !== "" && top >= 0 && Number.isFinite(top)) sight.top = top;
  return { state, sight };
}

/** The groups that are folded, or that none is where some are at first. */
function folds({ grouping, folded }: Arrangement): [string, string][] {
  const usual = foldedAtFirst(grouping);
  if (folded.size === usual.size && [...folded].every((key) => usual.has(key))) return [];
  return folded.size ? [...folded].map((key): [string, string] => ["fold", key]) : [["folds", "none"]];
}

function listed({ extras }: { extras: ReadonlySet<Extra> }): string {
  return EXTRAS.filter((extra) => extras.has(extra)).join("~");
}
