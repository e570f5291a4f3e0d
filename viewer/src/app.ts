// The page: what it shows, and how its parts come together.

import { Alignment, stepEnd } from "./against";
import { Arranging } from "./arranging";
import { dimmed, scheme, type Scheme } from "./colour";
import { type Columns, type Data, type Head, type Row } from "./data";
import { differences } from "./difference";
import { button, element } from "./dom";
import { Finding } from "./finding";
import { gridOf } from "./grid";
import { help } from "./help";
import { Journey } from "./journey";
import { told } from "./folding";
import { bandOf, layout, within, type Layout } from "./layout";
import { legend } from "./legend";
import { Minimap } from "./minimap";
import { Overlay } from "./overlay";
import { Painter } from "./paint";
import { Pane } from "./pane";
import { notes, warnings } from "./panel";
import { Pictures } from "./pictures";
import { Ruler } from "./ruler";
import { Selection } from "./selection";
import type { Loader } from "./served";
import { fromHash, type Range, type State } from "./state";
import { summary } from "./summary";
import { theme, type Theme } from "./theme";
import { gutterOf } from "./titles";
import { inSight } from "./table";
import { Toolbar } from "./toolbar";
import { View } from "./view";
import { WhatIfs } from "./whatif";
import { whatIfTab } from "./whatif_tab";
import { idleSaid } from "./why";
import { t } from "./words";
import { firstWaiting } from "./waits";

export class App {
  readonly view: View;
  readonly canvas = element("canvas", { class: "lanes", tabindex: "0", role: "application" });
  readonly over = element("canvas", { class: "over" });
  readonly strip = element("canvas", { class: "ruler" });
  readonly map = element("canvas", {
    class: "minimap",
    role: "img",
    "aria-label": t("the whole run; drag to move, its edges to zoom"),
  });
  readonly scroll: HTMLElement;
  readonly tip = element("div", { class: "tip", hidden: "" });
  readonly ruler: Ruler;
  readonly minimap: Minimap;
  state: State;
  plan: Layout;
  pointer: number | null = null; // where the crosshair is, pixels from the left of the plot
  pointerTop = -1; // how far it is below the top of the lanes that are in sight; -1 if it is elsewhere
  selecting: Range | null = null; // while it is being drawn
  readonly selection = new Selection(this);
  readonly finding = new Finding(this);
  readonly arranging = new Arranging(this);
  readonly pictures = new Pictures(this);
  readonly whatifs: WhatIfs;
  readonly journey: Journey;
  private readonly page = element("div", { class: "page" });
  private readonly stage: HTMLElement;
  private readonly idle = element("p", { class: "idle", role: "status" });
  private readonly hidden = button("", t("show every rank"), () => this.arranging.arrange({ hidden: new Set() }));
  readonly pane = new Pane(() => this.docked());
  readonly keys = help();
  private readonly legend = element("aside", { class: "legend", "aria-label": t("legend") });
  readonly toolbar: Toolbar;
  readonly painter: Painter;
  private readonly overlay: Overlay;
  readonly alignment: Alignment | null; // of two runs
  colours: Theme;
  plain: Scheme; // without regard to a search
  scheme: Scheme;
  private rows: Row[]; // those that are laid out
  private frame = 0;
  private overFrame = 0;

  constructor(
    readonly head: Head,
    public data: Data,
    readonly loader: Loader | null = null,
    ghosts: (() => Promise<Columns<"ghosts">>) | null = null,
  ) {
    const { state, sight } = fromHash(location.hash, head);
    this.state = state;
    this.whatifs = new WhatIfs(this, ghosts);
    this.alignment = head.against && new Alignment(head, head.against, loader ? null : data);
    this.view = new View(Math.max(1, head.end));
    const opening = head.opening === null ? undefined : head.steps[head.opening];
    if (sight.start !== undefined && sight.end !== undefined) this.view.set(sight.start, sight.end);
    else if (opening) this.view.fit(opening.start, stepEnd(head, opening));
    this.plan = layout(head, state.arranged);
    this.rows = head.rows;
    this.canvas.setAttribute(
      "aria-label",
      t("Timeline of {count} ranks. Press ? for keys.", { count: head.ranks.length }),
    );
    this.canvas.setAttribute("aria-description", told(head));
    this.stage = element("div", { class: "stage" }, this.canvas, this.over, this.idle, this.hidden);
    this.hidden.className = "hidden-ranks";
    this.page.append(this.stage);
    this.scroll = element("main", {}, this.page);
    this.toolbar = new Toolbar(this);
    const chart = element("div", { class: "chart" }, this.map, this.strip, this.scroll);
    document.body.append(
      ...warnings(head),
      this.toolbar.bar,
      element("div", { class: "work" }, chart, this.legend),
      this.pane.section,
      this.tip,
      this.keys,
    );
    this.tabs();
    document.documentElement.dataset.theme = state.theme;

    this.colours = theme();
    this.plain = this.scheme = scheme(state.mode, head, data, this.colours.dark);
    this.painter = new Painter(this.canvas, head, data);
    this.overlay = new Overlay(this.over, head);
    this.ruler = new Ruler(this.strip, head);
    this.minimap = new Minimap(this.map, head, data, loader !== null);
    this.resize();
    this.relayout();
    this.scroll.scrollTop = sight.top ?? 0;
    this.journey = new Journey(this);
    if (state.query) void this.finding.find(state.query);
    this.whatifs.restore();
    this.selection.restore();
    this.refresh();
    this.draw();
  }

  get left(): number {
    return gutterOf(innerWidth, this.state.arranged.figure);
  }

  /** What the pane below the lanes can show. */
  private tabs(): void {
    const { head, pane } = this;
    pane.tab("details", t("Details"), (body) => this.selection.describe(body));
    const { against } = head;
    if (against) pane.tab("difference", t("Difference"), (body) => body.append(differences(against)));
    pane.tab("summary", t("Summary"), (body) => {
      const go = (rank: number | null, step: number | null): void => {
        const place = rank === null ? undefined : bandOf(this.plan, rank);
        if (place) this.scroll.scrollTop = place.top - this.scroll.clientHeight / 2;
        if (step !== null) this.journey.showStep(head.steps[step]);
      };
      body.append(summary(head, this.data, go, (remedy) => void this.selection.show(remedy)));
    });
    if (head.whatif) pane.tab("whatif", t("What if"), (body) => whatIfTab(body, this.whatifs));
    pane.tab("table", t("In sight"), (body) => body.append(inSight(this)));
    if (head.notes.length) pane.tab("notes", t("Notes"), (body) => body.append(notes(head)));
    pane.rename("details", null);
  }

  /** The pane takes more or less of the page: what is selected stays in sight. */
  private docked(): void {
    this.resize();
    this.selection.keepInSight();
    this.toolbar.sync(this.state);
  }

  /** Draw soon. */
  redraw(): void {
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  /** Draw what moves with the pointer soon. */
  hover(): void {
    this.overFrame ||= requestAnimationFrame(() => this.drawOver());
  }

  /** @param budget milliseconds that may go into pixels; what is not done in it is done in the next frame */
  draw(budget?: number): void {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.frame = 0;
    const { view, state, plan } = this;
    const { figure } = state.arranged;
    view.width = Math.max(1, this.canvas.clientWidth - this.left);
    this.lay();
    const top = this.scroll.scrollTop;
    const shown = {
      scheme: this.scheme,
      theme: this.colours,
      causes: (state.causes || this.scheme.wholeGaps) && !figure,
      phases: state.phases && !figure,
      pale: !figure,
      launches: state.launches && !figure,
      figure,
      left: this.left,
      selected: state.selected,
      found: this.finding.marked,
      foundGaps: this.finding.markedGaps,
      arrows: this.selection.arrowsShown(top),
    };
    const more = this.painter.draw(view, top, plan, shown, budget);
    this.ruler.draw(view, this.left, this.colours, figure);
    const mapping = !figure && this.minimap.draw(view, this.left, this.plain, state.mode, this.colours, budget);
    this.toolbar.syncStep();
    this.drawOver();
    if (more || mapping) this.redraw();
    this.load(top);
  }

  /** Lay the other run on this one: the step that is in sight begins at once in both. */
  private lay(): void {
    const { alignment, view, data, loader } = this;
    if (!alignment?.align(view.start, view.end)) return;
    if (loader) return this.refresh();
    this.data = this.painter.data = { ...data, tasks: { ...data.tasks } }; // what was painted is worth nothing
    this.refresh();
  }

  /** Load what is in sight of a run that the page does not hold. */
  private load(top: number): void {
    const { loader, view, plan, state } = this;
    if (!loader) return;
    const bottom = top + this.canvas.clientHeight;
    const folded = within(plan.folds, top, bottom).flatMap(({ ranks, shows }) => (shows === "ranks" ? [] : ranks));
    const alone = within(plan.bands, top, bottom).map(({ rank }) => rank);
    const shown = [...new Set([...alone, ...folded])];
    const grid = gridOf(view, devicePixelRatio, this.painter.grid);
    const lanes = ["compute" as const, ...[...state.arranged.extras].filter((extra) => extra !== "counters")];
    const wanted = {
      start: grid.first * grid.perPixel,
      perPixel: grid.perPixel,
      columns: grid.columns,
      ranks: shown,
      lanes,
      unfolded: [...new Set(within(plan.kernels, top, bottom).map(({ row }) => row.rank))],
      shift: this.alignment?.shift ?? 0,
      idle: [...new Set(alone)],
    };
    const busy = (is: boolean): void => this.stage.setAttribute("aria-busy", String(is));
    loader.need(
      wanted,
      () => busy(true),
      (data) => {
        busy(false);
        this.replace(data);
      },
      (error) => {
        busy(false);
        this.toolbar.say(t("not loaded: {error}", { error: String(error) }), true);
      },
    );
    loader.explain(
      wanted,
      (idle) => {
        this.idle.textContent = idleSaid(idle);
        this.idle.classList.toggle("soon", idle === "soon");
        if (idle === "explained") this.redraw();
      },
      (error) => (this.idle.textContent = String(error)),
    );
  }

  /** Show another part of the run, or other lanes. */
  replace(data: Data): void {
    const id = this.selection.selectedId();
    if (this.head.rows !== this.rows) {
      this.rows = this.head.rows;
      this.relayout();
    }
    this.data = this.painter.data = data;
    this.plain = scheme(this.state.mode, this.head, data, this.colours.dark);
    this.selection.pick(id);
    this.finding.mark();
    this.selection.restore(false);
    this.redraw();
  }

  private drawOver(): void {
    this.overFrame = 0;
    const range = this.selecting ?? this.state.range;
    const x = this.state.arranged.figure ? null : this.pointer;
    this.overlay.draw(this.view, this.plan, this.left, this.scroll.scrollTop, x, range, this.colours);
  }

  /** The window on the lanes has another size. */
  resize(): void {
    this.toolbar.fit();
    this.stage.style.height = `${this.scroll.clientHeight}px`;
    if (this.plan.folds.length) this.relayout();
    this.view.width = Math.max(1, this.canvas.clientWidth - this.left);
    this.relayout();
    this.redraw();
  }

  relayout(): void {
    const named = this.left === 0;
    this.plan = layout(this.head, this.state.arranged, { height: this.scroll.clientHeight, named });
    this.page.style.height = `${this.plan.height}px`;
    document.body.classList.toggle("figure", this.state.arranged.figure);
  }

  /** Read the theme's colours again. */
  retheme(): void {
    document.documentElement.dataset.theme = this.state.arranged.figure ? "light" : this.state.theme;
    this.colours = theme();
    this.plain = scheme(this.state.mode, this.head, this.data, this.colours.dark);
    this.rescheme();
    this.refresh();
    this.redraw();
  }

  rescheme(): void {
    this.scheme = this.finding.marked ? dimmed(this.plain, this.finding.marked, this.colours.idle) : this.plain;
  }

  /** Bring everything around the lanes up to the state. */
  refresh(): void {
    const { state, head, colours } = this;
    this.legend.hidden = !state.legend;
    const { size } = state.arranged.hidden;
    this.hidden.hidden = size === 0;
    this.hidden.textContent =
      size === 1 ? t("1 rank hidden · show") : t("{count} ranks hidden · show", { count: size });
    const byKind = state.mode === "kind";
    const told = {
      scheme: this.plain,
      theme: colours,
      byKind,
      causes: state.causes || this.plain.wholeGaps,
      phases: state.phases && !state.arranged.figure,
      kernels: this.plan.kernels.length > 0,
      query: state.query,
      pair: this.alignment?.pair ?? null,
      lanes: state.arranged.extras,
      waiting: this.plain.codes[firstWaiting(this.data.tasks)],
    };
    this.legend.replaceChildren(...legend(head, told, (query) => void this.finding.find(query)));
    this.toolbar.sync(state);
  }

  change(change: Partial<State>): void {
    const before = this.state;
    this.state = { ...before, ...change };
    if (this.state.arranged !== before.arranged) this.relayout();
    if (this.state.mode !== before.mode) {
      this.plain = scheme(this.state.mode, this.head, this.data, this.colours.dark);
      this.rescheme();
    }
    if (!this.state.causes && this.state.selected?.what === "gap" && this.state.mode !== "cause")
      this.selection.select(null);
    if (this.state.theme !== before.theme || this.state.arranged.figure !== before.arranged.figure) this.retheme();
    this.refresh();
    this.redraw();
    this.journey.settle();
  }

  toggleHelp(): void {
    if (this.keys.open) this.keys.close();
    else this.keys.showModal();
  }

  escape(): void {
    if (this.state.arranged.figure) this.arranging.toggleFigure();
    else if (this.state.selected || this.state.range) this.selection.select(null);
    else if (this.pane.shown !== null) this.pane.close();
    else if (this.state.query) void this.finding.find("");
  }
}
