// The tab of what-ifs: the answers that are ready, and controls that ask anything else.

import type { Answer, WhatIf } from "./data";
import { button, element } from "./dom";
import {
  factorOf,
  layersIn,
  NOTHING,
  parse,
  partitionOf,
  toggled,
  values,
  withFactor,
  withPartition,
} from "./question";
import { duration } from "./units";
import { relative, taken, type WhatIfs } from "./whatif";
import { nameOf, t } from "./words";

const MOST = 3; // times as long as it is that a stage can be dragged to
const STAGES = 64; // that have a line each
const SPANS: Record<WhatIf["span"], string> = {
  "pipeline phase": t("the pipeline phase of a step"),
  step: t("a step"),
  capture: t("what was captured"),
};

/** Brings a part of the tab up to the question and its answer. */
type Sync = () => void;

export function whatIfTab(body: HTMLElement, whatifs: WhatIfs): void {
  const { whatif } = whatifs;
  if (!whatif) return;
  const syncs: Sync[] = [];
  const parts = [told(whatifs, whatif, syncs)];
  const controls = whatif.moves ? [stages(whatifs, whatif, syncs), layers(whatifs, whatif, syncs)] : [];
  const chosen = [
    ...(whatif.moves ? [healthy(whatifs, syncs)] : []),
    ...(whatif.causes.length ? [without(whatifs, whatif, syncs)] : []),
  ];
  parts.push(
    element(
      "div",
      { class: "asking" },
      ready(whatifs, whatif, syncs),
      element("div", { class: "controls" }, ...controls, ...chosen),
    ),
  );
  body.append(element("div", { class: "whatif" }, ...parts));
  const sync = (): void => syncs.forEach((one) => one());
  whatifs.watch(sync);
  sync();
}

/** By how much a step would be shorter, or longer. */
export function saving({ saved, predicted, best }: Pick<Answer, "saved" | "predicted" | "best">): string {
  const signed = (time: number): string => `${time > 0 ? "−" : time < 0 ? "+" : ""}${duration(Math.abs(time))}`;
  // Of a range both ends: which of them it is, the run does not show.
  return best === null
    ? signed(saved)
    : t("{least} to {most}", { least: signed(saved + predicted - best), most: signed(saved) });
}

/** Whether it is known if a step would be shorter or longer: of a range, whether both ends are. */
export function decided({ saved, predicted, best }: Pick<Answer, "saved" | "predicted" | "best">): boolean {
  return best === null || saved * (saved + predicted - best) > 0;
}

/** What is asked, what is said, and the command that says the same. */
function told(whatifs: WhatIfs, whatif: WhatIf, syncs: Sync[]): HTMLElement {
  const said = element("div", { class: "said", role: "status", "aria-live": "polite" });
  const line = element("code", { tabindex: "0", "aria-label": t("the command that asks this") });
  const copying = button(t("copy as command"), t("copy the command that asks this"), () => {
    void copied(line).then((done) => (copying.textContent = done ? t("copied") : t("selected: press ctrl + C")));
  });
  const clear = button(t("clear"), t("ask nothing"), () => whatifs.ask(NOTHING, 0));
  const command = element("div", { class: "command" }, line, copying, clear);
  syncs.push(() => {
    const { told, text } = whatifs;
    said.classList.toggle("wrong", told.what === "refused");
    command.hidden = !text;
    line.textContent = whatifs.command();
    line.title = whatif.command === null ? t("the run was not read from files: put those of a trace for PATH") : "";
    copying.textContent = t("copy as command");
    said.replaceChildren(...sentence(whatifs, whatif));
  });
  return element("section", { class: "told", "aria-label": t("the answer") }, said, command);
}

function sentence({ told, seen }: WhatIfs, whatif: WhatIf): (HTMLElement | string)[] {
  if (told.what === "nothing")
    return [
      t("Now {what} takes {time}. Choose an answer, or change something.", {
        what: SPANS[whatif.span],
        time: duration(whatif.step),
      }),
    ];
  if (told.what === "waiting") return [t("Asking …")];
  if (told.what === "unheld") return [t("This page has no answer to that ready. The command below gives it.")];
  if (told.what === "refused") return [t("{sentence}.", { sentence: told.why })];
  const { answer, lanes } = told;
  const rest = [
    taken(answer, whatif.span),
    ...(lanes || !whatif.moves ? [] : [t("; its lanes are not in this page")]),
    ...(lanes && !seen ? [t("; its lanes are beside taller ones (+)")] : []),
  ];
  return [
    element(
      "b",
      { class: "gain" },
      whatif.span === "capture" ? saving(answer) : t("{time} a step", { time: saving(answer) }),
    ),
    element("span", {}, element("b", {}, answer.change), t(": {rest}.", { rest: rest.join("") })),
  ];
}

/** Put a command on the clipboard; where there is none, select it. Says whether it was the former. */
async function copied(line: HTMLElement): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(line.textContent);
    return true;
  } catch {
    getSelection()?.selectAllChildren(line);
    return false;
  }
}

/** The answers that are ready, by what they save. Those about stages stand at the stages. */
function ready(whatifs: WhatIfs, whatif: WhatIf, syncs: Sync[]): HTMLElement {
  const answers = whatif.answers.filter(({ asked }) => !asked.startsWith("--stage "));
  const rows = answers.map((answer) => {
    const show = button(t("show"), t("show what would run: {change}", { change: answer.change }), () =>
      whatifs.toggle(answer.asked),
    );
    const line = element("code", { hidden: "" }, whatifs.command(answer.asked));
    const copying = button(t("copy"), whatifs.command(answer.asked), () => {
      line.hidden = false;
      void copied(line).then((done) => {
        line.hidden = done;
        copying.textContent = done ? t("copied") : t("selected: press ctrl + C");
      });
    });
    copying.setAttribute("aria-label", t("copy as command"));
    const row = element(
      "tr",
      answer.share > answer.error ? {} : { class: "little", title: t("no more than it may be off") },
      element("td", { class: "number" }, saving(answer)),
      element("td", { class: "number" }, relative(answer)),
      element("th", { scope: "row" }, answer.change),
      element("td", {}, answer.needs),
      element("td", { class: "do" }, ...(whatifs.drawn(answer) ? [show] : []), copying, line),
    );
    syncs.push(() => show.setAttribute("aria-pressed", String(whatifs.text === answer.asked)));
    return row;
  });
  const none = element(
    "p",
    { class: "hint" },
    whatifs.free
      ? t("No answer is ready, for the run is large. What you choose here is asked about the step in sight.")
      : t("No answer is ready: nothing that was tried saves time, or the run is too large to try all."),
  );
  if (!rows.length) return element("section", { class: "ready" }, none);
  const [time, share] = {
    "pipeline phase": [t("a step"), t("a micro-batch")],
    step: [t("a step"), t("share")],
    capture: [t("time"), t("share")],
  }[whatif.span] as [string, string];
  const head = [time, share, t("with"), t("needs"), ""].map((name) => element("th", { scope: "col" }, name));
  return element(
    "section",
    { class: "ready", "aria-label": t("answers") },
    element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)),
  );
}

/** A bar for each stage, as long as what the stage takes; its end can be dragged. */
function stages(whatifs: WhatIfs, whatif: WhatIf, syncs: Sync[]): HTMLElement {
  const time = new Map<number, number>();
  for (const { stage, mean, count } of whatifs.head.spread)
    if (stage !== null) time.set(stage, (time.get(stage) ?? 0) + mean * count);
  const shown = whatif.stages.slice(0, STAGES);
  const longest = Math.max(1, ...shown.map((stage) => time.get(stage) ?? 0));
  const lines = shown.map((stage) => line(whatifs, stage, (time.get(stage) ?? 0) / longest, syncs));
  const more = whatif.stages.length - shown.length;
  return element(
    "fieldset",
    { class: "stages" },
    element("legend", {}, t("Length of a stage")),
    ...lines,
    ...(more > 0 ? [element("p", { class: "hint" }, t("and {count} more: ask the command", { count: more }))] : []),
  );
}

/** @param share its time beside that of the longest stage */
function line(whatifs: WhatIfs, stage: number, share: number, syncs: Sync[]): HTMLElement {
  const step = whatifs.free ? 0.05 : 0.1; // a page alone knows a tenth less and a tenth more
  const set = (factor: number): void => {
    const round = Math.round(Math.min(Math.max(factor, 0), MOST) / step) * step;
    whatifs.ask(withFactor(whatifs.base("--stage"), stage, Number(round.toFixed(2))));
  };
  const name = t("stage {stage}", { stage });
  const handle = element("i", {
    class: "handle",
    role: "slider",
    tabindex: "0",
    "aria-label": t("{name}: times as long", { name }),
    "aria-valuemin": "0",
    "aria-valuemax": String(MOST),
  });
  const bar = element("span", { class: "bar" }, handle);
  const now = element("span", { class: "now" });
  const track = element("span", { class: "track" }, now, bar);
  const field = element("input", {
    type: "number",
    min: "0",
    max: String(MOST),
    step: String(step),
    "aria-label": t("{name}: times as long, as a number", { name }),
  });
  const scale = 100 / 1.6; // of the track is what the longest stage takes
  now.style.width = `${scale * share}%`;
  drag(handle, (event) => {
    const box = track.getBoundingClientRect();
    set((event.clientX - box.left) / Math.max(1, (box.width * scale * share) / 100));
  });
  handle.addEventListener("keydown", (event) => {
    const factor = factorOf(whatifs.question, stage);
    const by = { ArrowRight: step, ArrowUp: step, ArrowLeft: -step, ArrowDown: -step }[event.key];
    if (by === undefined && event.key !== "Home") return;
    event.preventDefault();
    event.stopPropagation();
    set(by === undefined ? 1 : factor + by);
  });
  field.addEventListener("change", () => {
    const factor = Number(field.value);
    if (field.value !== "" && factor >= 0) whatifs.ask(withFactor(whatifs.base("--stage"), stage, factor));
  });
  const tenth = whatifs.whatif?.answers.find(({ asked }) => asked === `--stage ${stage}=0.9`);
  const hint = tenth && decided(tenth) ? t("a tenth less: {saving}", { saving: saving(tenth) }) : "";
  syncs.push(() => {
    const factor = factorOf(whatifs.question, stage);
    bar.style.width = `${Math.min(100, scale * share * factor)}%`;
    bar.classList.toggle("changed", factor !== 1);
    handle.setAttribute("aria-valuenow", String(factor));
    handle.setAttribute("aria-valuetext", t("{factor} times as long", { factor }));
    if (document.activeElement !== field) field.value = String(factor);
  });
  return element(
    "div",
    { class: "stage-line" },
    element("span", {}, name),
    track,
    element("label", {}, "× ", field),
    element("small", {}, hint),
  );
}

/** Where one stage ends and the next begins, in layers; each boundary can be dragged. */
function layers(whatifs: WhatIfs, whatif: WhatIf, syncs: Sync[]): HTMLElement {
  const count = Math.max(0, ...whatif.stages.map((stage) => stage + 1));
  const field = element("input", {
    type: "text",
    placeholder: Array.from({ length: Math.min(count, 4) }, () => 8).join(","),
    "aria-label": t("layers of each stage as they are"),
  });
  field.value = whatifs.layers?.join(",") ?? "";
  const wrong = element("small", { role: "status" });
  const strip = element("div", { class: "layers" });
  const boundaries = Array.from({ length: Math.max(0, count - 1) }, (_, left) => boundary(whatifs, strip, left));
  const parts = Array.from({ length: count }, () => element("span", { class: "part" }));
  strip.append(...parts.flatMap((part, stage) => [part, ...(boundaries[stage] ? [boundaries[stage]] : [])]));
  field.addEventListener("input", () => {
    whatifs.layers = layersIn(field.value, count);
    wrong.textContent = whatifs.layers || !field.value ? "" : t("{count} numbers, such as 8,8,8", { count });
    whatifs.ask(whatifs.question.filter(([flag]) => !["--move", "--partition", "--layers"].includes(flag)));
  });
  syncs.push(() => {
    const now = whatifs.layers;
    strip.hidden = now === null;
    if (!now) return;
    const then = partitionOf(whatifs.question, now);
    then.forEach((layers, stage) => {
      parts[stage]!.style.flexGrow = String(layers);
      parts[stage]!.textContent = String(layers);
      parts[stage]!.title =
        layers === now[stage]
          ? t("stage {stage}: {layers} layers", { stage, layers })
          : t("stage {stage}: {layers} layers, not {now}", { stage, layers, now: now[stage]! });
      parts[stage]!.classList.toggle("changed", layers !== now[stage]);
    });
    boundaries.forEach((made, left) => {
      const before = then.slice(0, left + 1).reduce((sum, layers) => sum + layers, 0);
      made.setAttribute("aria-valuenow", String(before));
      made.setAttribute("aria-valuemax", String(then.reduce((sum, layers) => sum + layers, 0)));
      made.setAttribute(
        "aria-valuetext",
        t("stage {left} has {before}, stage {right} has {behind} layers", {
          left,
          before: then[left]!,
          right: left + 1,
          behind: then[left + 1]!,
        }),
      );
    });
  });
  return element(
    "fieldset",
    {},
    element("legend", {}, t("Layers of the stages")),
    element("label", {}, t("as they are "), field),
    wrong,
    strip,
  );
}

/** What one drags to move layers between a stage and the next. */
function boundary(whatifs: WhatIfs, strip: HTMLElement, left: number): HTMLElement {
  const made = element("i", {
    class: "boundary",
    role: "separator",
    tabindex: "0",
    "aria-orientation": "vertical",
    "aria-label": t("boundary between stage {left} and stage {right}", { left, right: left + 1 }),
    "aria-valuemin": "0",
  });
  /** Give the stage on the left so many layers more. */
  const move = (by: number): void => {
    const now = whatifs.layers;
    if (!now) return;
    const then = partitionOf(whatifs.question, now);
    const bounded = Math.max(-then[left]!, Math.min(by, then[left + 1]!));
    if (!bounded) return;
    then[left]! += bounded;
    then[left + 1]! -= bounded;
    whatifs.ask(withPartition(whatifs.base("--move", "--partition", "--layers"), now, then));
  };
  drag(made, (event) => {
    const box = strip.getBoundingClientRect();
    const then = partitionOf(whatifs.question, whatifs.layers ?? []);
    const total = then.reduce((sum, layers) => sum + layers, 0);
    const before = then.slice(0, left + 1).reduce((sum, layers) => sum + layers, 0);
    move(Math.round(((event.clientX - box.left) / Math.max(1, box.width)) * total) - before);
  });
  made.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    move(by);
  });
  return made;
}

/** Ranks that are as fast as a healthy one at their stage. */
function healthy(whatifs: WhatIfs, syncs: Sync[]): HTMLElement {
  const known = new Set(whatifs.head.ranks.map(({ rank }) => rank));
  const slow = whatifs.whatif!.answers.flatMap(({ asked }) => values(parse(asked), "--healthy"));
  const chips = element("span", { class: "chips" });
  const field = element("input", { type: "number", min: "0", "aria-label": t("rank to make healthy") });
  const add = (): void => {
    const rank = Number(field.value);
    if (field.value === "" || !known.has(rank)) return field.setCustomValidity(t("there is no such rank"));
    field.setCustomValidity("");
    if (!values(whatifs.question, "--healthy").includes(String(rank)))
      whatifs.ask(toggled(whatifs.base("--healthy"), "--healthy", String(rank)), 0);
    field.value = "";
  };
  field.addEventListener("change", add);
  syncs.push(() => {
    const chosen = values(whatifs.question, "--healthy");
    const focused = chips.contains(document.activeElement) ? document.activeElement?.textContent : null;
    chips.replaceChildren(
      ...[...new Set([...slow, ...chosen])].map((rank) => chip(whatifs, "--healthy", rank, t("rank {rank}", { rank }))),
    );
    for (const one of chips.children) if (one.textContent === focused) (one as HTMLElement).focus();
  });
  const legend = element("legend", {}, t("Healthy ranks"));
  return element("fieldset", {}, legend, chips, element("label", {}, t("rank "), field));
}

/** Causes that are gone. */
function without(whatifs: WhatIfs, { causes }: WhatIf, syncs: Sync[]): HTMLElement {
  const chips = causes.map((cause) => chip(whatifs, "--without", cause, nameOf(cause)));
  syncs.push(() => {
    const chosen = values(whatifs.question, "--without");
    chips.forEach((one, index) => one.setAttribute("aria-pressed", String(chosen.includes(causes[index]!))));
  });
  return element(
    "fieldset",
    {},
    element("legend", {}, t("Without a cause")),
    element("span", { class: "chips" }, ...chips),
  );
}

/** A button that is pressed while an option has a value. */
function chip(whatifs: WhatIfs, flag: string, value: string, text: string): HTMLButtonElement {
  const made = button(text, "", () => whatifs.ask(toggled(whatifs.base(flag), flag, value), 0));
  made.setAttribute("aria-pressed", String(values(whatifs.question, flag).includes(value)));
  return made;
}

/** Call while something is dragged. */
function drag(handle: HTMLElement, moved: (event: PointerEvent) => void): void {
  let held = false;
  handle.addEventListener("pointerdown", (event) => {
    held = true;
    handle.setPointerCapture(event.pointerId);
    event.preventDefault();
    handle.focus();
  });
  handle.addEventListener("pointermove", (event) => held && moved(event));
  const release = (): void => void (held = false);
  handle.addEventListener("pointerup", release);
  handle.addEventListener("pointercancel", release);
}
