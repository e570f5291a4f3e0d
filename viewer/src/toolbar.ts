// The controls above the lanes. They show the state and ask for another; they keep none of their own.

import type { App } from "./app";
import { allImagined, imagined } from "./arranging";
import { MODES, modes, type Mode } from "./colour";
import { hasCauses } from "./data";
import { below, button, dropDown, element } from "./dom";
import { foldable } from "./folding";
import { EXTRAS, groups, GROUPINGS, moved, overlayAbove, SIZES, type Extra, type Grouping, type Size } from "./layout";
import { inSight } from "./journey";
import { completions, EXAMPLE } from "./search";
import { ARROWS, type State } from "./state";
import { duration } from "./units";
import { language, LANGUAGES, sentences, TONGUES, nameOf, t } from "./words";

const ROOMY = 900; // pixels of a page from which on the step in sight is also called the median
const TYPING = 120; // milliseconds without a letter after which a search begins
const LANES: Record<Extra, string> = {
  against: t("the other run"),
  ideal: t("ideal"),
  whatif: t("what-if"),
  comm: t("communication"),
  host: t("host"),
  counters: t("counters"),
};
const ARROW_NAMES: Record<State["arrows"], string> = {
  selected: t("of what is selected"),
  microbatch: t("the micro-batch's way"),
  critical: t("the critical path"),
  all: t("all in sight"),
  none: t("none"),
};

export class Toolbar {
  readonly bar: HTMLElement;
  readonly search: HTMLInputElement;
  private readonly found = element("span", { class: "found", role: "status", "aria-live": "polite" });
  private readonly colour: HTMLSelectElement;
  private readonly lanes = element("div", {}); // of the menu of what is shown
  private readonly completions = element("datalist", { id: "completions" });
  private readonly now = button("", t("the whole run (f)"), () => {
    this.app.view.fit();
    this.app.journey.moved();
  });
  private readonly toggles: { button: HTMLButtonElement; pressed: (state: State) => boolean; lanes: boolean }[] = [];
  private readonly controls: HTMLElement[]; // those that go into a menu where the bar has no room for them
  private readonly rest = element("div", {}); // of that menu
  private readonly more = dropDown({ class: "menu more" }, "…", this.rest);
  private width = 0; // for which there is room
  private lasting = { text: "", wrong: false }; // what the search found

  constructor(private readonly app: App) {
    const { head } = app;
    this.search = element("input", {
      type: "search",
      placeholder: t("search (/)"),
      title: t("for example {example}", { example: EXAMPLE }),
      "aria-label": t("search for tasks and idle time"),
      list: "completions",
    });
    let typing: ReturnType<typeof setTimeout> | undefined;
    this.search.addEventListener("input", () => {
      clearTimeout(typing);
      const offered = completions(this.search.value, head).map((value) => element("option", { value }));
      this.completions.replaceChildren(...offered);
      typing = setTimeout(() => void app.finding.find(this.search.value), TYPING);
    });
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        clearTimeout(typing);
        void app.finding.findAndGo(this.search.value, event.shiftKey ? -1 : 1);
      }
      if (event.key === "Escape") this.search.blur();
    });
    this.colour = this.choice(
      t("colour by"),
      modes(head).map((mode) => [mode, MODES[mode]]),
      (mode) => app.change({ mode: mode as Mode }),
    );
    const view = dropDown({ class: "menu" }, t("view"), this.lanes, () => this.fillLanes());
    const picture = dropDown(
      { class: "menu" },
      t("picture"),
      element(
        "div",
        {},
        button(t("copy as PNG"), t("the view as it is on the screen"), () => void app.pictures.picture("png", "copy")),
        button(t("save as PNG"), t("the view as it is on the screen"), () => void app.pictures.picture("png", "save")),
        button(t("copy as SVG"), t("the lanes in sight as shapes"), () => void app.pictures.picture("svg", "copy")),
        button(t("save as SVG"), t("the lanes in sight as shapes"), () => void app.pictures.picture("svg", "save")),
        button(t("copy link"), t("the address of this view"), () => void app.pictures.copyLink()),
      ),
    );
    this.more.querySelector("summary")!.setAttribute("aria-label", t("more controls"));
    const undo = button("↶", t("back to where you were (z)"), () => app.journey.undo());
    const redo = button("↷", t("forth again (shift + z)"), () => app.journey.redo());
    undo.setAttribute("aria-label", t("back to where you were"));
    redo.setAttribute("aria-label", t("forth again"));
    const other = LANGUAGES.find((one) => one !== language)!;
    const { short, name, alone } = TONGUES[other];
    const tongue = button(short, name + (Object.keys(sentences()).length ? "" : alone), () =>
      app.arranging.speak(other),
    );
    tongue.setAttribute("aria-label", name);
    tongue.lang = TONGUES[other].tag;
    this.now.className = "now";
    this.controls = [
      labelled(t("colour by"), this.colour),
      ...(hasCauses(head)
        ? [
            this.toggle(
              t("causes"),
              t("causes of idle time in the gaps (c)"),
              ({ causes }) => causes,
              () => app.change({ causes: !app.state.causes }),
              true,
            ),
          ]
        : []),
      ...(imagined(head).length
        ? [
            this.toggle(
              head.overlays.some(({ lane }) => lane === "ideal") ? t("ideal") : t("what-if"),
              t("what could have been (i)"),
              ({ arranged }) => allImagined(head, arranged.extras),
              () => app.arranging.toggleOverlays(),
              true,
            ),
          ]
        : []),
      ...(foldable(head)
        ? [
            this.toggle(
              t("fold"),
              t("ranks that are alike as their sums, odd ones apart (m)"),
              ({ arranged }) => arranged.grouping === "standing",
              () => app.arranging.toggleFolding(),
            ),
          ]
        : []),
      view,
      picture,
      this.toggle(
        t("summary"),
        t("the run in numbers and plots (e)"),
        () => app.pane.shown === "summary",
        () => app.pane.toggle("summary"),
      ),
      element(
        "span",
        { class: "last" },
        undo,
        redo,
        tongue,
        button("◐", t("light or dark (t)"), () => app.arranging.nextTheme()),
        button("?", t("keys (?)"), () => app.toggleHelp()),
      ),
    ];
    this.bar = element(
      "nav",
      { "aria-label": t("what is shown") },
      element("span", { class: "field" }, this.search, this.completions, this.found),
      this.steps(),
      ...this.controls,
      this.more,
    );
    this.bar
      .querySelector<HTMLElement>(".last button:nth-last-child(2)")!
      .setAttribute("aria-label", t("light or dark"));
    this.bar.querySelector<HTMLElement>(".last button:last-child")!.setAttribute("aria-label", t("show keys"));
    const menus = [view, picture, this.more];
    for (const menu of menus) {
      menu.addEventListener("focusout", (event) => {
        if (!menu.contains(event.relatedTarget as Node | null) && event.relatedTarget) menu.open = false;
      });
    }
    addEventListener("pointerdown", (event) => {
      for (const menu of menus) if (!menu.contains(event.target as Node)) menu.open = false;
    });
    for (const kind of ["keydown", "pointerdown"] as const)
      addEventListener(kind, () => this.hush(), { capture: true });
  }

  /** Show a state. */
  sync(state: State): void {
    this.colour.value = state.mode;
    if (document.activeElement !== this.search) this.search.value = state.query;
    for (const { button: toggle, pressed, lanes } of this.toggles) {
      toggle.disabled = lanes && state.arranged.figure;
      toggle.setAttribute("aria-pressed", String(!toggle.disabled && pressed(state)));
    }
    if (this.lanes.closest("details")!.open) this.fillLanes();
  }

  /** To the step before and after, and what is in sight now. */
  private steps(): HTMLElement {
    const { app } = this;
    const before = button("‹", t("previous step (p)"), () => app.journey.neighbour(-1));
    const after = button("›", t("next step (n)"), () => app.journey.neighbour(1));
    before.setAttribute("aria-label", t("previous step"));
    after.setAttribute("aria-label", t("next step"));
    const parts = app.head.steps.length > 1 ? [before, this.now, after] : [this.now];
    return element("span", { class: "steps", role: "group", "aria-label": t("steps") }, ...parts);
  }

  /** Say which step is in sight. */
  syncStep(): void {
    const { head, view } = this.app;
    const step = inSight(head, view);
    const opening = innerWidth >= ROOMY && head.steps.length > 2 && step && step === head.steps[head.opening ?? -1];
    this.now.textContent = step
      ? t(opening ? "step {step} · median · {time}" : "step {step} · {time}", {
          step: step.step,
          time: duration(step.end - step.start),
        })
      : head.steps.length > 1
        ? t("all {count} steps", { count: head.steps.length })
        : t("all {time}", { time: duration(head.end) });
    this.now.setAttribute("aria-pressed", String(step === undefined));
  }

  /** Say something until the next key or click. */
  say(text: string, wrong = false): void {
    this.found.textContent = this.found.title = text;
    this.found.classList.toggle("wrong", wrong);
    this.fitFound();
  }

  /** Say something until the next search. */
  sayFound(text: string, wrong = false): void {
    this.lasting = { text, wrong };
    this.say(text, wrong);
  }

  private hush(): void {
    const { text, wrong } = this.lasting;
    if (this.found.textContent !== text) this.say(text, wrong);
  }

  /** What the bar has no room for goes into a menu at its end. */
  fit(): void {
    const { bar, controls, more } = this;
    if (bar.clientWidth === this.width) return; // what has the focus would lose it on the way
    this.width = bar.clientWidth;
    more.before(...controls);
    more.hidden = true;
    for (const last of [...controls].reverse()) {
      if (bar.scrollWidth <= bar.clientWidth) break;
      more.hidden = false;
      this.rest.prepend(last);
    }
    this.fitFound();
  }

  /** What is said stands below the search where there is too little room beside it. */
  private fitFound(): void {
    const { found } = this;
    found.classList.remove("below");
    const tight = found.scrollWidth > found.clientWidth;
    found.classList.toggle("below", tight);
    if (tight) below(this.search, found);
  }

  /** @param lanes whether it is of lanes that the look of papers does not have */
  private toggle(
    label: string,
    title: string,
    pressed: (state: State) => boolean,
    change: () => void,
    lanes = false,
  ): HTMLButtonElement {
    const made = button(label, title, change);
    this.toggles.push({ button: made, pressed, lanes });
    return made;
  }

  private choice(
    label: string,
    options: [value: string, text: string][],
    chosen: (value: string) => void,
  ): HTMLSelectElement {
    const made = element(
      "select",
      { "aria-label": label, title: label },
      ...options.map(([value, text]) => element("option", { value }, text)),
    );
    made.addEventListener("change", () => chosen(made.value));
    return made;
  }

  /** Which lanes, how tall, which replica, and the groups and ranks, to show, hide, fold and move. */
  private fillLanes(): void {
    const { app } = this;
    const {
      head,
      state: { arranged },
    } = app;
    const present = new Set<string>([
      ...head.rows.map(({ lane }) => lane),
      ...(head.samples.length ? ["counters" as const] : []),
    ]);
    const extras = EXTRAS.filter((extra) => present.has(extra)).map((extra) =>
      checkbox(LANES[extra], arranged.extras.has(extra), (on) => app.arranging.showExtra(extra, on)),
    );
    const marks = [
      checkbox(t("warm-up and cool-down (k)"), app.state.phases, (phases) => app.change({ phases })),
      checkbox(t("launches (h)"), app.state.launches, (launches) => app.change({ launches })),
    ];
    const size = this.choice(
      t("height"),
      SIZES.map((one) => [one, nameOf(one)]),
      (one) => app.arranging.arrange({ size: one as Size }),
    );
    size.value = arranged.size;
    const replicas = [...new Set(head.ranks.flatMap(({ dp }) => dp ?? []))].sort((one, other) => one - other);
    const replica = this.choice(
      t("replicas"),
      [["", t("all")], ...replicas.map((dp): [string, string] => [String(dp), t("only {replica}", { replica: dp })])],
      (dp) => app.arranging.arrange({ replica: dp === "" ? null : Number(dp) }),
    );
    replica.value = String(arranged.replica ?? "");
    const streamed = [...new Set(head.kernel_rows.map(({ rank }) => rank))];
    const kernels = streamed.length
      ? [
          checkbox(
            t("kernels of all ranks (u: of one)"),
            streamed.every((rank) => arranged.unfolded.has(rank)),
            (on) => app.arranging.unfold(streamed, on),
          ),
        ]
      : [];
    const grouping = this.choice(t("group by"), this.groupings(), (one) =>
      app.arranging.arrange({ grouping: one as Grouping, folded: new Set() }),
    );
    grouping.value = arranged.grouping;
    const arrows = this.choice(
      t("arrows"),
      ARROWS.map((one) => [one, ARROW_NAMES[one]]),
      (one) => app.change({ arrows: one as State["arrows"] }),
    );
    arrows.value = app.state.arrows;
    const looks = [
      checkbox(t("legend ([)"), app.state.legend, (on) => app.change({ legend: on })),
      checkbox(t("look of papers (v)"), arranged.figure, () => app.arranging.toggleFigure()),
      checkbox(t("plain wheel zooms"), app.state.wheelZooms, (wheelZooms) => app.change({ wheelZooms })),
    ];
    if (head.overlays.length)
      looks.unshift(
        checkbox(t("what could have been, above (o)"), overlayAbove(head, arranged) !== undefined, () =>
          app.arranging.nextAbove(),
        ),
      );
    const chosen = [labelled(t("height"), size), labelled(t("group by"), grouping), labelled(t("arrows"), arrows)];
    const { lanes } = this;
    lanes.replaceChildren(...extras, ...kernels, ...marks, ...looks, ...chosen);
    if (replicas.length > 1) lanes.append(labelled(t("replicas"), replica));
    if (arranged.grouping !== "none") lanes.append(this.groups());
    if (arranged.hidden.size)
      lanes.append(
        button(t("show {count} hidden", { count: arranged.hidden.size }), t("show every rank"), () =>
          app.arranging.arrange({ hidden: new Set() }),
        ),
      );
  }

  /** By what ranks can be gathered. */
  private groupings(): [value: Grouping, text: string][] {
    const replicas = new Set(this.app.head.ranks.flatMap(({ dp }) => dp ?? []));
    const all = Object.entries(GROUPINGS) as [Grouping, string][];
    return all.filter(
      ([grouping]) =>
        (grouping !== "replica" || replicas.size > 1) && (grouping !== "standing" || foldable(this.app.head)),
    );
  }

  private groups(): HTMLElement {
    const { app } = this;
    const {
      head,
      state: { arranged },
    } = app;
    const all = groups(head, { ...arranged, hidden: new Set() });
    const made = element("div", { class: "groups", role: "group", "aria-label": t("groups") });
    const fold = (keys: string[]): void => app.arranging.arrange({ folded: new Set(keys) });
    made.append(
      element(
        "span",
        { class: "row" },
        button(t("fold all"), t("show only the sum of each group"), () => fold(all.map(({ key }) => key))),
        button(t("unfold all"), t("show all ranks"), () => fold([])),
      ),
    );
    all.forEach((group, at) => {
      const shown = group.ranks.some((rank) => !arranged.hidden.has(rank));
      const show = checkbox(group.title, shown, (on) => app.arranging.showRanks(group.ranks, on));
      const move = (other: number, behind: boolean) => (): void => {
        const target = all[other]!;
        if (target)
          app.arranging.arrange({
            order: moved(arranged.order, group.ranks, behind ? target.ranks.at(-1)! : target.ranks[0]!, behind),
          });
      };
      made.append(
        element(
          "span",
          { class: "row" },
          show,
          button(group.folded ? "▶" : "▼", t("fold or unfold"), () => app.arranging.fold(group.key)),
          button("↑", t("move {group} up", { group: group.title }), move(at - 1, false)),
          button("↓", t("move {group} down", { group: group.title }), move(at + 1, true)),
        ),
      );
    });
    return made;
  }
}

function labelled(text: string, control: HTMLElement): HTMLElement {
  return element("label", {}, element("span", {}, `${text} `), control);
}

function checkbox(text: string, checked: boolean, changed: (on: boolean) => void): HTMLElement {
  const box = element("input", { type: "checkbox" });
  box.checked = checked;
  box.addEventListener("change", () => changed(box.checked));
  return element("label", { class: "check" }, box, ` ${text}`);
}
