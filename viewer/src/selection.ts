// What is selected, its details, and the way from one thing to the next.

import { arrowsInSight, arrowsOf, type Arrow } from "./arrows";
import type { App } from "./app";
import { extentAt, rowOf, spansOf, type Data, type Head, type Inside, type Remedy, type Totals } from "./data";
import { hit } from "./hit";
import { began, inside, kernelDetails, kernelRowOf } from "./kernels";
import { bandOf, placeOf, type Item } from "./layout";
import { whose } from "./label";
import { details, utc } from "./panel";
import { spentInTasks } from "./devices";
import { rangeDetails } from "./sheet";
import type { Range } from "./state";
import { totals } from "./totals";
import { next, type Way } from "./tour";
import { shownInLanes } from "./verdict";
import { kernelAt } from "./unfolded";
import { arrowsAlong, criticalPath, wayOf } from "./ways";
import { gapDetails } from "./why";
import { t } from "./words";

export class Selection {
  arrows: Arrow[] = []; // of what is selected
  private sought: number | null = null; // the number of what is selected but not loaded

  constructor(private readonly app: App) {}

  /** The number of what is selected among all of the run. */
  selectedId(): number | null {
    const { selected } = this.app.state;
    if (!selected) return null;
    const { id } = spansOf(this.app.data, selected);
    return this.sought ?? id?.[selected.index] ?? null;
  }

  /** Select what has a number among all of the run, if it is here. */
  pick(id: number | null): void {
    const { selected } = this.app.state;
    if (!selected || id === null) return;
    const ids = spansOf(this.app.data, selected).id;
    const index = ids ? ids.indexOf(id) : -1;
    this.sought = index < 0 ? id : null;
    this.app.state = { ...this.app.state, selected: { what: selected.what, index } };
  }

  /** The rank of an item, by index. */
  rankOf({ what, index }: Item): number {
    const { head } = this.app;
    if (what === "task") return rowOf(head, index).rank;
    return what === "gap" ? head.gaps[extentAt(head.gaps, index)]!.rank : kernelRowOf(head, index).rank;
  }

  at(x: number, y: number): Item | null {
    const kernel = kernelAt(
      this.app.data.kernels,
      this.app.plan.kernels,
      this.app.view,
      x - this.app.left,
      y + this.app.scroll.scrollTop,
    );
    if (kernel >= 0) return { what: "kernel", index: kernel };
    const shown = (this.app.state.causes || this.app.scheme.wholeGaps) && !this.app.state.arranged.figure;
    return hit(
      this.app.data,
      this.app.plan.places,
      this.app.view,
      x - this.app.left,
      y + this.app.scroll.scrollTop,
      shown,
    );
  }

  /** The way of the micro-batch of what is selected, or of the step in sight. */
  private way(which: "microbatch" | "critical"): Arrow[] {
    const { head, data, view, state } = this.app;
    const middle = (view.start + view.end) / 2;
    const step = head.steps.find(({ end }) => middle < end)?.step ?? -1;
    const task = state.selected?.what === "task" ? state.selected.index : -1;
    const key = `${which} ${which === "critical" ? step : task}`;
    if (this.known?.key !== key || this.known.data !== data) {
      const arrows =
        which === "critical" ? arrowsAlong(criticalPath(step, head, data)) : task < 0 ? [] : wayOf(task, data);
      this.known = { key, data, arrows };
    }
    return this.known.arrows;
  }

  private known: { key: string; data: Data; arrows: Arrow[] } | null = null;

  select(item: Item | null): void {
    if (item && spansOf(this.app.data, item).merged?.[item.index]) return this.zoomTo(item); // to what it stands for
    this.app.state = { ...this.app.state, selected: item, range: null };
    this.restore();
    this.app.journey.settle();
  }

  /**
   * Bring the page up to what the state has selected: its arrows, and its details in the pane.
   * @param opening whether the pane goes to the details; if not, what it shows stays
   */
  restore(opening = true): void {
    const { head, data, pane } = this.app;
    const { selected: item, range } = this.app.state;
    if (item && item.index >= spansOf(data, item).start.length) return this.select(null);
    if (item && item.index < 0) return; // it is being loaded
    this.arrows = item && item.what !== "kernel" ? arrowsOf(item, data.links, data.gaps) : [];
    if (!item && !range) pane.rename("details", null);
    else {
      pane.rename("details", item ? titleOf(head, data, item) : t("Stretch"));
      if (pane.shown === "details") pane.refresh("details");
      else if (opening) pane.open("details");
    }
    this.app.redraw();
  }

  /** Put the details of what is selected into the pane. */
  describe(body: HTMLElement): void {
    const { head, data } = this.app;
    const { selected: item, range } = this.app.state;
    if (item?.what === "task") this.describeTask(body, item);
    if (item?.what === "kernel") body.append(kernelDetails(head, data, item.index, (time) => utc(head.origin, time)));
    if (item?.what === "gap") body.append(gapDetails(head, data, item.index, () => this.goToRoot(item.index)));
    if (!item && range)
      void this.totals(range).then((found) => {
        if (this.app.state.range !== range) return;
        const inside = spentInTasks(head, data, range, range.ranks ?? this.app.arranging.shownRanks());
        body.replaceChildren(rangeDetails(head, range, found, inside));
      });
  }

  /** Details of a task; what ran in it comes from the server where the page has only a part. */
  private describeTask(body: HTMLElement, item: Item): void {
    const { head, data, loader } = this.app;
    const { rank, lane } = rowOf(head, item.index);
    const { start, end } = data.tasks;
    const [from, to] = [start[item.index]!, end[item.index]!];
    const known = head.kernels !== null && lane !== "against" && lane !== "ideal" && lane !== "whatif";
    const fill = (found: Inside | null): void => {
      const shown = this.app.state.arranged.unfolded.has(rank);
      const unfolding = {
        inside: found,
        shown,
        toggle: () => this.app.arranging.unfold([rank], !this.app.state.arranged.unfolded.has(rank)),
      };
      body.replaceChildren(
        details(
          head,
          this.app.data,
          item.index,
          this.arrows,
          (task) => this.go({ what: "task", index: task }),
          (id) => void this.goFar(id),
          unfolding,
          lane === "against" ? this.app.alignment?.off(data.tasks.step[item.index]!) : 0,
        ),
      );
    };
    fill(known && !loader ? inside(head, data.kernels, rank, from, to) : null);
    // A part that was loaded meanwhile numbers its tasks anew, and asks again.
    if (known && loader)
      void loader.inside(rank, from, to).then((found) => this.app.state.selected === item && fill(found));
  }

  /** Scroll so that what is selected is in sight, whatever was put beside the lanes. */
  keepInSight(): void {
    const { head, plan, scroll, state } = this.app;
    const place = state.selected && state.selected.index >= 0 ? placeOf(head, plan, state.selected) : undefined;
    if (!place) return;
    const { clientHeight, scrollTop } = scroll;
    if (place.top < scrollTop || place.top + place.height > scrollTop + clientHeight)
      scroll.scrollTop = place.top - Math.max(0, clientHeight - place.height) / 2;
  }

  /**
   * Show what a remedy is about: the task that shows it best, or the longest idle time of its cause; or what is said of
   * it at length, where it is about neither.
   */
  async show(remedy: Remedy): Promise<void> {
    const { finding, head, loader, pane } = this.app;
    const { task, cause } = remedy;
    if (!shownInLanes(remedy)) return pane.open("summary");
    if (cause !== null) await finding.find(`cause:"${head.causes[cause]!.name}"`);
    if (task !== null && loader) await this.goFar(task);
    else if (task !== null) this.go({ what: "task", index: task });
    else finding.goToLongest();
  }

  /** Select something and bring it into sight. */
  go(item: Item): void {
    const { data, view, journey, arranging } = this.app;
    arranging.reveal(this.rankOf(item));
    const { start, end } = spansOf(data, item);
    view.reveal(start[item.index]!, end[item.index]!);
    this.select(item);
    this.keepInSight();
    journey.moved();
  }

  /** Select the task on which a gap waited in the end, wherever it is. */
  goToRoot(gap: number): void {
    const { root, root_id } = this.app.data.gaps;
    if (root[gap]! >= 0) this.go({ what: "task", index: root[gap]! });
    else if (root_id) void this.goFar(root_id[gap]!);
  }

  /** Select what may not be loaded, by its number among all of the run. */
  async goFar(id: number, what: "task" | "gap" = "task"): Promise<void> {
    const { rank, lane, start: from, end: to } = await this.app.loader!.where(id, what);
    const shift = lane === "against" ? (this.app.alignment?.shift ?? 0) : 0;
    const [start, end] = [from + shift, to + shift];
    this.app.arranging.reveal(rank);
    const band = bandOf(this.app.plan, rank);
    const { clientHeight, scrollTop } = this.app.scroll;
    if (band && (band.top < scrollTop || band.top + band.height > scrollTop + clientHeight))
      this.app.scroll.scrollTop = band.top - clientHeight / 2;
    this.app.view.reveal(start, end);
    this.sought = id;
    this.app.state = { ...this.app.state, selected: { what, index: -1 }, range: null };
    this.pick(id);
    this.restore();
    this.app.journey.moved();
  }

  /** Select a task beside the one that is selected. */
  step(way: Way): void {
    const { selected } = this.app.state;
    if (selected?.what === "kernel" && (way === "left" || way === "right")) return this.stepKernel(selected.index, way);
    const from = selected?.what === "task" ? selected.index : -1;
    const task = next(this.app.head, this.app.data, this.app.plan, this.app.view, this.app.scroll.scrollTop, from, way);
    if (task >= 0) this.go({ what: "task", index: task });
  }

  /** Select the kernel before or after one in its row. */
  private stepKernel(kernel: number, way: "left" | "right"): void {
    const { from, to } = kernelRowOf(this.app.head, kernel);
    const index = kernel + (way === "left" ? -1 : 1);
    if (index < from || index >= to) return;
    this.app.view.reveal(began(this.app.data.kernels, index), this.app.data.kernels.end[index]!);
    this.select({ what: "kernel", index });
    this.app.journey.moved();
  }

  zoomTo(item: Item | null): void {
    if (!item) return;
    const { start, end } = spansOf(this.app.data, item);
    const length = end[item.index]! - start[item.index]!;
    this.app.view.set(start[item.index]! - length, end[item.index]! + length);
    this.app.journey.moved();
  }

  hideSelected(): void {
    const { selected } = this.app.state;
    if (!selected) return;
    this.app.arranging.showRanks([this.rankOf(selected)], false);
    this.select(null);
  }

  /** What happened in a stretch. */
  async totals({ start, end, ranks }: Range): Promise<Totals> {
    const some = ranks ?? this.app.arranging.shownRanks();
    return this.app.loader
      ? this.app.loader.totals(start, end, some)
      : totals(this.app.head, this.app.data, start, end, some);
  }

  selectRange(range: Range | null): void {
    this.app.state = { ...this.app.state, selected: null, range };
    this.restore();
    this.app.journey.settle();
  }

  arrowsShown(top: number): Arrow[] {
    const { state, plan, data, loader } = this.app;
    if (state.arrows === "none") return [];
    if (state.arrows === "selected") return this.arrows;
    if (state.arrows !== "all") {
      if (loader) this.app.toolbar.say(t("ways need a page that holds the whole run: bubblescope view"));
      return loader ? [] : this.way(state.arrows);
    }
    const places = plan.places.filter(
      (place) => place.top + place.height > top && place.top < top + this.app.canvas.clientHeight,
    );
    const { arrows, count } = arrowsInSight(data.links, data.tasks, places, this.app.view);
    if (count && !arrows.length)
      this.app.toolbar.say(
        t("{count} arrows in sight are too many: zoom in", { count: count.toLocaleString("en-US") }),
      );
    return arrows;
  }
}

/** What a tab calls what is selected. */
function titleOf(head: Head, data: Data, item: Item): string {
  if (item.what === "task") return whose(head, data.tasks, item.index);
  return item.what === "gap" ? t("Idle time") : t("Kernel");
}
