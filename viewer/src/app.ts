// The page: what it shows, and everything that can be asked of it.

import { arrowsInSight, arrowsOf, type Arrow } from "./arrows";
import { dimmed, modes, scheme, type Scheme } from "./colour";
import { extentAt, rowOf, spansOf, type Data, type Head, type Step } from "./data";
import { element } from "./dom";
import { gridOf } from "./grid";
import { help } from "./help";
import { History } from "./history";
import { hit } from "./hit";
import { began, inside, kernelDetails, kernelRowOf, type Inside } from "./kernels";
import {
  bandOf,
  GROUPINGS,
  groupOf,
  layout,
  overlayAbove,
  placeOf,
  SIZES,
  within,
  type Arrangement,
  type Extra,
  type Grouping,
  type Item,
  type Layout,
} from "./layout";
import { Minimap } from "./minimap";
import { Overlay } from "./overlay";
import { gutter, Painter } from "./paint";
import { details, heading, legend, notes, utc, warnings } from "./panel";
import { copy, png, save, svg } from "./picture";
import { Ruler } from "./ruler";
import { find, QueryError } from "./search";
import type { Loader } from "./served";
import { rangeDetails } from "./sheet";
import { ARROWS, fromHash, THEMES, toHash, type Range, type Sight, type State } from "./state";
import { summary } from "./summary";
import { theme, type Theme } from "./theme";
import { Toolbar } from "./toolbar";
import { totals, type Totals } from "./totals";
import { next, type Way } from "./tour";
import { kernelAt } from "./unfolded";
import { View } from "./view";
import { causes, gapDetails } from "./why";

const SETTLED = 300; // milliseconds without movement after which a place counts as visited

export class App {
  readonly view: View;
  readonly canvas = element("canvas", { class: "lanes", tabindex: "0", role: "application" });
  readonly over = element("canvas", { class: "over" });
  readonly strip = element("canvas", { class: "ruler" });
  readonly map = element("canvas", {
    class: "minimap",
    role: "img",
    "aria-label": "the whole run; drag to move, its edges to zoom",
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
  found: Int32Array = new Int32Array();
  arrows: Arrow[] = [];

  private readonly page = element("div", { class: "page" });
  private readonly stage: HTMLElement;
  private readonly panel = element("aside", { hidden: "", "aria-live": "polite", "aria-label": "details" });
  private readonly keys = help();
  private readonly legends = element("div", { class: "legends" });
  private readonly why: HTMLElement[];
  private readonly toolbar: Toolbar;
  private readonly painter: Painter;
  private readonly overlay: Overlay;
  private readonly history: History;
  private sheet: HTMLElement | null = null;
  private colours: Theme;
  private plain: Scheme; // without regard to a search
  private scheme: Scheme;
  private marked: Uint8Array | null = null; // tasks found
  private foundAt = -1;
  private frame = 0;
  private overFrame = 0;
  private settling: ReturnType<typeof setTimeout> | undefined;

  constructor(
    readonly head: Head,
    public data: Data,
    private readonly loader: Loader | null = null,
  ) {
    const { state, sight } = fromHash(location.hash, head);
    this.state = state;
    this.view = new View(Math.max(1, head.end));
    if (sight.start !== undefined && sight.end !== undefined) this.view.set(sight.start, sight.end);
    this.plan = layout(head, state.arranged);
    this.canvas.setAttribute("aria-label", `Timeline of ${head.ranks.length} ranks. Press ? for keys.`);
    this.stage = element("div", { class: "stage" }, this.canvas, this.over);
    this.page.append(this.stage);
    this.scroll = element("main", {}, this.page);
    this.why = causes(head);
    this.toolbar = new Toolbar(this);
    const foot = element("footer", {}, this.legends, ...notes(head));
    document.body.append(
      heading(head),
      ...warnings(head),
      this.toolbar.bar,
      this.map,
      this.strip,
      this.scroll,
      foot,
      this.panel,
      this.tip,
      this.keys,
    );
    document.documentElement.dataset.theme = state.theme;

    this.colours = theme();
    this.plain = this.scheme = scheme(state.mode, head, data, this.colours.dark);
    this.painter = new Painter(this.canvas, head, data);
    this.overlay = new Overlay(this.over);
    this.ruler = new Ruler(this.strip, head);
    this.minimap = new Minimap(this.map, head, data);
    this.resize();
    this.relayout();
    this.scroll.scrollTop = sight.top ?? 0;
    this.history = new History(this.sight());
    if (state.query) void this.find(state.query);
    this.restore();
    this.refresh();
    this.draw();
  }

  get left(): number {
    return gutter(this.state.arranged.figure);
  }

  get summaryShown(): boolean {
    return this.sheet !== null;
  }

  // Drawing

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
    const top = this.scroll.scrollTop;
    const shown = {
      scheme: this.scheme,
      theme: this.colours,
      causes: (state.causes || this.scheme.wholeGaps) && !figure,
      phases: state.phases && !figure,
      pale: !figure,
      launches: state.launches && !figure,
      figure,
      selected: state.selected,
      found: this.marked,
      arrows: this.arrowsShown(top),
    };
    const more = this.painter.draw(view, top, plan, shown, budget);
    this.ruler.draw(view, this.colours, figure);
    const mapping = !figure && this.minimap.draw(view, this.left, this.plain, this.colours, budget);
    this.drawOver();
    if (more || mapping) this.redraw();
    this.load(top);
  }

  /** Load what is in sight of a run that the page does not hold. */
  private load(top: number): void {
    const { loader, view, plan, state } = this;
    if (!loader) return;
    const bottom = top + this.canvas.clientHeight;
    const folded = within(plan.headings, top, bottom).flatMap(({ group }) => (group.folded ? group.ranks : []));
    const shown = [...new Set([...within(plan.bands, top, bottom).map(({ rank }) => rank), ...folded])];
    const grid = gridOf(view, devicePixelRatio, this.painter.grid);
    const lanes = ["compute", ...[...state.arranged.extras].filter((extra) => extra !== "counters")];
    const wanted = {
      start: grid.first * grid.perPixel,
      perPixel: grid.perPixel,
      columns: grid.columns,
      ranks: shown,
      lanes,
      unfolded: [...new Set(within(plan.kernels, top, bottom).map(({ row }) => row.rank))],
    };
    loader.need(
      wanted,
      (data) => this.replace(data),
      (error) => this.toolbar.say(`not loaded: ${String(error)}`, true),
    );
  }

  /** Show another part of the run. */
  private replace(data: Data): void {
    const id = this.selectedId();
    this.data = this.painter.data = data;
    this.plain = scheme(this.state.mode, this.head, data, this.colours.dark);
    this.pick(id);
    this.mark();
    this.restore();
    this.redraw();
  }

  /** The number of what is selected among all of the run. */
  private selectedId(): number | null {
    const { selected } = this.state;
    if (!selected) return null;
    const { id } = spansOf(this.data, selected);
    return this.sought ?? id?.[selected.index] ?? null;
  }

  /** Select what has a number among all of the run, if it is here. */
  private pick(id: number | null): void {
    const { selected } = this.state;
    if (!selected || id === null) return;
    const ids = spansOf(this.data, selected).id;
    const index = ids ? ids.indexOf(id) : -1;
    this.sought = index < 0 ? id : null;
    this.state = { ...this.state, selected: { what: selected.what, index } };
  }

  private sought: number | null = null; // of what is selected but not loaded

  private drawOver(): void {
    this.overFrame = 0;
    const range = this.selecting ?? this.state.range;
    const x = this.state.arranged.figure ? null : this.pointer;
    this.overlay.draw(this.view, this.plan, this.left, this.scroll.scrollTop, x, range, this.colours);
  }

  private arrowsShown(top: number): Arrow[] {
    const { state, plan, data } = this;
    if (state.arrows === "none") return [];
    if (state.arrows === "selected") return this.arrows;
    const places = plan.places.filter(
      (place) => place.top + place.height > top && place.top < top + this.canvas.clientHeight,
    );
    const { arrows, count } = arrowsInSight(data.links, data.tasks, places, this.view);
    if (count && !arrows.length)
      this.toolbar.say(`${count.toLocaleString("en-US")} arrows in sight are too many: zoom in`);
    return arrows;
  }

  resize(): void {
    this.stage.style.height = `${this.scroll.clientHeight}px`;
    this.view.width = Math.max(1, this.canvas.clientWidth - this.left);
    this.redraw();
  }

  private relayout(): void {
    this.plan = layout(this.head, this.state.arranged);
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

  private rescheme(): void {
    this.scheme = this.marked ? dimmed(this.plain, this.marked, this.colours.idle) : this.plain;
  }

  /** Bring everything around the lanes up to the state. */
  private refresh(): void {
    const { state, head, colours } = this;
    this.legends.replaceChildren(
      legend(head, this.plain, colours, state.phases && !state.arranged.figure, this.plan.kernels.length > 0),
      ...this.why,
    );
    for (const line of this.why) line.classList.toggle("off", !state.causes);
    this.toolbar.sync(state);
  }

  // State

  change(change: Partial<State>): void {
    const before = this.state;
    this.state = { ...before, ...change };
    if (this.state.arranged !== before.arranged) this.relayout();
    if (this.state.mode !== before.mode) {
      this.plain = scheme(this.state.mode, this.head, this.data, this.colours.dark);
      this.rescheme();
    }
    if (!this.state.causes && this.state.selected?.what === "gap" && this.state.mode !== "cause") this.select(null);
    if (this.state.theme !== before.theme || this.state.arranged.figure !== before.arranged.figure) this.retheme();
    this.refresh();
    this.redraw();
    this.settle();
  }

  arrange(change: Partial<Arrangement>): void {
    const arranged = { ...this.state.arranged, ...change };
    if (arranged.hidden.size >= this.head.ranks.length) return this.toolbar.say("the last rank stays", true);
    this.change({ arranged });
  }

  fold(key: string): void {
    const folded = new Set(this.state.arranged.folded);
    if (!folded.delete(key)) folded.add(key);
    this.arrange({ folded });
  }

  showRanks(ranks: number[], on: boolean): void {
    const hidden = new Set(this.state.arranged.hidden);
    for (const rank of ranks)
      if (on) hidden.delete(rank);
      else hidden.add(rank);
    this.arrange({ hidden });
  }

  /** Show or hide the kernels of ranks. */
  unfold(ranks: number[], on: boolean): void {
    const unfolded = new Set(this.state.arranged.unfolded);
    for (const rank of ranks)
      if (on) unfolded.add(rank);
      else unfolded.delete(rank);
    const { selected } = this.state;
    if (!on && selected?.what === "kernel" && ranks.includes(this.rankOf(selected))) this.select(null);
    this.arrange({ unfolded });
    this.restore(); // the button says what it does next
  }

  /** The same of the rank of what is selected; else of that under the pointer; else of the only one there is. */
  toggleKernels(): void {
    const {
      head,
      plan,
      state: { selected, arranged },
    } = this;
    if (!head.kernels)
      return this.toolbar.say(head.no_kernels?.replaceAll("`", "") ?? "the traces hold no kernels", true);
    const y = this.pointerTop + this.scroll.scrollTop;
    const pointed = plan.bands.find(
      ({ top, height, stack }) => stack === "compute" && top <= y && y < top + height,
    )?.rank;
    const shown = this.shownRanks();
    const rank =
      selected && selected.index >= 0
        ? this.rankOf(selected)
        : (pointed ?? (shown.length === 1 ? shown[0] : undefined));
    if (rank === undefined) return this.toolbar.say("select a task, or point at a rank", true);
    if (!head.kernel_rows.some((row) => row.rank === rank))
      return this.toolbar.say(`no kernels of rank ${head.ranks[rank]!.rank} are known`, true);
    this.unfold([rank], !arranged.unfolded.has(rank));
  }

  /** The rank of an item, by index. */
  private rankOf({ what, index }: Item): number {
    const { head } = this;
    if (what === "task") return rowOf(head, index).rank;
    return what === "gap" ? head.gaps[extentAt(head.gaps, index)]!.rank : kernelRowOf(head, index).rank;
  }

  showExtra(extra: Extra, on: boolean): void {
    const extras = new Set(this.state.arranged.extras);
    if (on) extras.add(extra);
    else extras.delete(extra);
    this.arrange({ extras });
  }

  toggleOverlays(): void {
    const { extras } = this.state.arranged;
    const on = !extras.has("ideal") && !extras.has("whatif");
    const rest = [...extras].filter((extra) => extra !== "ideal" && extra !== "whatif");
    this.arrange({ extras: new Set<Extra>(on ? [...rest, "ideal", "whatif"] : rest) });
  }

  /** Put the next overlay above all that was measured, or after the last none. */
  nextAbove(): void {
    const {
      head,
      state: { arranged },
    } = this;
    const above = following(
      [null, ...head.overlays.map(({ lane }) => lane)],
      overlayAbove(head, arranged)?.lane ?? null,
    );
    this.arrange({ above, extras: above === null ? arranged.extras : new Set([...arranged.extras, above]) });
    if (above !== null) this.scroll.scrollTop = 0;
  }

  toggleFigure(): void {
    this.arrange({ figure: !this.state.arranged.figure });
    this.resize();
  }

  nextTheme(): void {
    this.change({ theme: following(THEMES, this.state.theme) });
  }

  nextMode(): void {
    this.change({ mode: following(modes(this.head), this.state.mode) });
  }

  nextArrows(): void {
    this.toolbar.say("");
    this.change({ arrows: following(ARROWS, this.state.arrows) });
  }

  nextGrouping(): void {
    const choices = Object.keys(GROUPINGS) as Grouping[];
    this.arrange({ grouping: following(choices, this.state.arranged.grouping), folded: new Set() });
  }

  resizeLanes(by: 1 | -1): void {
    const size = SIZES[SIZES.indexOf(this.state.arranged.size) + by];
    if (size) this.arrange({ size });
  }

  toggleHelp(): void {
    this.keys.hidden = !this.keys.hidden;
    if (!this.keys.hidden) this.keys.focus();
  }

  toggleSummary(): void {
    if (this.sheet) this.sheet.remove();
    else {
      const go = (rank: number, step: number | null): void => {
        this.toggleSummary();
        const place = bandOf(this.plan, rank);
        if (place) this.scroll.scrollTop = place.top - this.scroll.clientHeight / 2;
        if (step !== null) this.showStep(this.head.steps[step]);
      };
      const made = summary(this.head, this.data, go);
      this.scroll.before(made);
      this.sheet = made;
      this.refresh();
      return;
    }
    this.sheet = null;
    this.refresh();
    this.resize();
  }

  escape(): void {
    if (!this.keys.hidden) this.keys.hidden = true;
    else if (this.sheet) this.toggleSummary();
    else if (this.state.arranged.figure) this.toggleFigure();
    else if (this.state.selected || this.state.range) this.select(null);
    else if (this.state.query) void this.find("");
  }

  // Navigation

  sight(): Sight {
    return { start: this.view.start, end: this.view.end, top: this.scroll.scrollTop };
  }

  /** The view moved: draw, and once it rests, remember where it is. */
  moved(): void {
    this.redraw();
    this.settle();
  }

  private settle(): void {
    clearTimeout(this.settling);
    this.settling = setTimeout(() => {
      this.history.visit(this.sight());
      this.address();
    }, SETTLED);
  }

  private address(): void {
    try {
      history.replaceState(null, "", `#${toHash(this.state, this.sight(), this.head)}`);
    } catch {
      // Some browsers allow files no address of their own; the page works without.
    }
  }

  undo(): void {
    this.settleNow();
    this.goTo(this.history.undo());
  }

  redo(): void {
    this.goTo(this.history.redo());
  }

  private settleNow(): void {
    clearTimeout(this.settling);
    this.history.visit(this.sight());
  }

  private goTo(sight: Sight | null): void {
    if (!sight) return;
    this.view.set(sight.start, sight.end);
    this.scroll.scrollTop = sight.top;
    this.redraw();
    this.address();
  }

  showStep(step: Step | undefined): void {
    if (!step) return;
    this.view.fit(step.start, step.end);
    this.moved();
  }

  /** Show the next or the previous step. */
  neighbour(direction: 1 | -1): void {
    const { view, head } = this;
    const middle = (view.start + view.end) / 2;
    const current = head.steps.findIndex((step) => middle < step.end);
    const whole = view.end - view.start >= head.end;
    const from = current < 0 ? head.steps.length - 1 : current;
    this.showStep(head.steps[whole ? (direction > 0 ? 0 : head.steps.length - 1) : from + direction]);
  }

  /** The address has another view. */
  readAddress(): void {
    const { state, sight } = fromHash(location.hash, this.head);
    if (sight.start !== undefined && sight.end !== undefined) this.view.set(sight.start, sight.end);
    this.change(state);
    // A link to the top of the page says nothing of the height.
    this.scroll.scrollTop = sight.top ?? (sight.start === undefined ? this.scroll.scrollTop : 0);
    if (state.query !== this.query) void this.find(state.query);
    this.restore();
  }

  private query = "";

  // Selection

  at(x: number, y: number): Item | null {
    const kernel = kernelAt(this.data.kernels, this.plan.kernels, this.view, x - this.left, y + this.scroll.scrollTop);
    if (kernel >= 0) return { what: "kernel", index: kernel };
    const shown = (this.state.causes || this.scheme.wholeGaps) && !this.state.arranged.figure;
    return hit(this.data, this.plan.places, this.view, x - this.left, y + this.scroll.scrollTop, shown);
  }

  select(item: Item | null): void {
    if (item && spansOf(this.data, item).merged?.[item.index]) return this.zoomTo(item); // to what it stands for
    this.state = { ...this.state, selected: item, range: null };
    this.restore();
    this.settle();
  }

  /** Show the details of what the state has selected. */
  private restore(): void {
    const { head, data } = this;
    const { selected: item, range } = this.state;
    if (item && item.index >= spansOf(data, item).start.length) return this.select(null);
    if (item && item.index < 0) return; // it is being loaded
    this.arrows = item && item.what !== "kernel" ? arrowsOf(item, data.links, data.gaps) : [];
    this.panel.hidden = !item && !range;
    if (item?.what === "task") this.restoreTask(item);
    if (item?.what === "kernel")
      this.panel.replaceChildren(kernelDetails(head, data, item.index, (time) => utc(head.origin, time)));
    if (item?.what === "gap")
      this.panel.replaceChildren(gapDetails(head, data, item.index, () => this.goToRoot(item.index)));
    if (!item && range)
      void this.totals(range).then(
        (found) => this.state.range === range && this.panel.replaceChildren(rangeDetails(head, range, found)),
      );
    this.redraw();
  }

  /** Show the details of a task; what ran in it comes from the server where the page has only a part. */
  private restoreTask(item: Item): void {
    const { head, data, loader } = this;
    const { rank, lane } = rowOf(head, item.index);
    const { start, end } = data.tasks;
    const [from, to] = [start[item.index]!, end[item.index]!];
    const known = head.kernels !== null && lane !== "ideal" && lane !== "whatif";
    const fill = (found: Inside | null): void => {
      const shown = this.state.arranged.unfolded.has(rank);
      const unfolding = {
        inside: found,
        shown,
        toggle: () => this.unfold([rank], !this.state.arranged.unfolded.has(rank)),
      };
      this.panel.replaceChildren(details(head, this.data, item.index, this.arrows, (task) => this.go(task), unfolding));
    };
    fill(known && !loader ? inside(head, data.kernels, rank, from, to) : null);
    // A part that was loaded meanwhile numbers its tasks anew, and asks again.
    if (known && loader)
      void loader.inside(rank, from, to).then((found) => this.state.selected === item && fill(found));
  }

  /** Select a task and bring it into sight. */
  go(task: number): void {
    const { head, scroll } = this;
    const item: Item = { what: "task", index: task };
    const row = rowOf(head, task);
    this.reveal(row.rank);
    const place = placeOf(head, this.plan, item);
    const { clientHeight, scrollTop } = scroll;
    if (place && (place.top < scrollTop || place.top + place.height > scrollTop + clientHeight)) {
      scroll.scrollTop = place.top - clientHeight / 2;
    }
    this.view.reveal(this.data.tasks.start[task]!, this.data.tasks.end[task]!);
    this.select(item);
    this.moved();
  }

  /** Select the task on which a gap waited in the end, wherever it is. */
  goToRoot(gap: number): void {
    const { root, root_id } = this.data.gaps;
    if (root[gap]! >= 0) this.go(root[gap]!);
    else if (root_id) void this.goFar(root_id[gap]!);
  }

  /** Select a task that may not be loaded, by its number among all of the run. */
  private async goFar(id: number): Promise<void> {
    const { rank, start, end } = await this.loader!.where(id);
    this.reveal(rank);
    const band = bandOf(this.plan, rank);
    const { clientHeight, scrollTop } = this.scroll;
    if (band && (band.top < scrollTop || band.top + band.height > scrollTop + clientHeight))
      this.scroll.scrollTop = band.top - clientHeight / 2;
    this.view.reveal(start, end);
    this.sought = id;
    this.state = { ...this.state, selected: { what: "task", index: -1 }, range: null };
    this.pick(id);
    this.restore();
    this.moved();
  }

  /** Show a rank, whatever hides it. */
  private reveal(rank: number): void {
    const { arranged } = this.state;
    const { dp } = this.head.ranks[rank]!;
    const key = groupOf(this.head.ranks[rank]!, arranged.grouping);
    if (arranged.hidden.has(rank)) this.showRanks([rank], true);
    if (arranged.folded.has(key)) this.fold(key);
    if (arranged.replica !== null && arranged.replica !== dp) this.arrange({ replica: null });
  }

  /** Select a task beside the one that is selected. */
  step(way: Way): void {
    const { selected } = this.state;
    if (selected?.what === "kernel" && (way === "left" || way === "right")) return this.stepKernel(selected.index, way);
    const from = selected?.what === "task" ? selected.index : -1;
    const task = next(this.head, this.data, this.plan, this.view, this.scroll.scrollTop, from, way);
    if (task >= 0) this.go(task);
  }

  /** Select the kernel before or after one in its row. */
  private stepKernel(kernel: number, way: "left" | "right"): void {
    const { from, to } = kernelRowOf(this.head, kernel);
    const index = kernel + (way === "left" ? -1 : 1);
    if (index < from || index >= to) return;
    this.view.reveal(began(this.data.kernels, index), this.data.kernels.end[index]!);
    this.select({ what: "kernel", index });
    this.moved();
  }

  zoomTo(item: Item | null): void {
    if (!item) return;
    const { start, end } = spansOf(this.data, item);
    const length = end[item.index]! - start[item.index]!;
    this.view.set(start[item.index]! - length, end[item.index]! + length);
    this.moved();
  }

  hideSelected(): void {
    const { selected } = this.state;
    if (!selected) return;
    this.showRanks([this.rankOf(selected)], false);
    this.select(null);
  }

  /** What happened in a stretch. */
  async totals({ start, end, ranks }: Range): Promise<Totals> {
    const some = ranks ?? this.shownRanks();
    return this.loader ? this.loader.totals(start, end, some) : totals(this.head, this.data, start, end, some);
  }

  shownRanks(): number[] {
    const { hidden, replica } = this.state.arranged;
    return this.head.ranks.flatMap(({ dp }, index) =>
      hidden.has(index) || (replica !== null && dp !== replica) ? [] : [index],
    );
  }

  selectRange(range: Range | null): void {
    this.state = { ...this.state, selected: null, range };
    this.restore();
    this.settle();
  }

  // Search

  find(query: string): Promise<void> | undefined {
    this.query = query;
    this.state = { ...this.state, query };
    this.foundAt = -1;
    if (query.trim() && this.loader) return this.findFar(query, this.loader);
    try {
      const found = find(query, this.head, this.data);
      this.show(found.length, found);
    } catch (error) {
      this.refuse(error);
    }
    return undefined;
  }

  /** Find in a run of which only a part is here. */
  private async findFar(query: string, loader: Loader): Promise<void> {
    try {
      const { count, ids } = await loader.find(query);
      if (this.query === query) this.show(count, Int32Array.from(ids));
    } catch (error) {
      if (this.query === query) this.refuse(error);
    }
  }

  /** Find, unless that was done, and select the next or previous that was found. */
  findAndGo(query: string, direction: 1 | -1): void {
    const searched = query === this.query ? undefined : this.find(query);
    if (searched) void searched.then(() => this.nextFound(direction));
    else this.nextFound(direction);
  }

  /** Show what was found: tasks, or where only a part of the run is here, their numbers in the run. */
  private show(count: number, found: Int32Array): void {
    this.found = found;
    this.toolbar.say(
      this.query.trim() ? (count ? `${count.toLocaleString("en-US")} found (. ,)` : "nothing found") : "",
    );
    this.mark();
    this.refresh();
    this.redraw();
    this.settle();
  }

  private refuse(error: unknown): void {
    if (!(error instanceof QueryError)) throw error;
    this.show(0, new Int32Array());
    this.toolbar.say(error.message, true);
  }

  /** Mark those of the tasks that are here that were found. */
  private mark(): void {
    const { id, kind } = this.data.tasks;
    this.marked = null;
    if (this.found.length) {
      const wanted = id ? new Set(this.found) : null;
      const marked = new Uint8Array(kind.length);
      if (wanted) id!.forEach((number, task) => (marked[task] = wanted.has(number) ? 1 : 0));
      else for (const task of this.found) marked[task] = 1;
      this.marked = marked;
    }
    this.rescheme();
  }

  nextFound(direction: 1 | -1): void {
    const count = this.found.length;
    if (!count) return;
    this.foundAt = this.foundAt < 0 && direction < 0 ? count - 1 : (this.foundAt + direction + count) % count;
    if (this.loader) void this.goFar(this.found[this.foundAt]!);
    else this.go(this.found[this.foundAt]!);
    this.toolbar.say(`${(this.foundAt + 1).toLocaleString("en-US")} of ${count.toLocaleString("en-US")}`);
  }

  focusSearch(): void {
    this.toolbar.search.focus();
    this.toolbar.search.select();
  }

  // Pictures

  async picture(format: "png" | "svg", way: "copy" | "save"): Promise<void> {
    const name = `${this.head.title.replace(/[^\w.-]+/g, "-").slice(0, 80) || "bubblescope"}.${format}`;
    this.draw();
    const blob =
      format === "png"
        ? await png([this.strip, this.canvas], this.colours)
        : new Blob([this.svg()], { type: "image/svg+xml" });
    if (way === "save") return save(blob, name);
    this.toolbar.say(
      (await copy(blob, name)) === "copied" ? `${format.toUpperCase()} copied` : `no clipboard here: saved ${name}`,
    );
  }

  svg(): string {
    const { view, plan, scheme, colours, scroll, state } = this;
    const height = this.canvas.clientHeight;
    return svg(this.head, this.data, {
      view,
      plan,
      scheme,
      theme: colours,
      figure: state.arranged.figure,
      top: scroll.scrollTop,
      height,
    });
  }

  async copyLink(): Promise<void> {
    this.address();
    try {
      await navigator.clipboard.writeText(location.href);
      this.toolbar.say("link copied");
    } catch {
      this.toolbar.say("the address bar has the link");
    }
  }
}

function following<T>(choices: readonly T[], current: T): T {
  return choices[(choices.indexOf(current) + 1) % choices.length]!;
}
