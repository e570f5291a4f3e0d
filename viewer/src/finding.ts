// The search that is on: what it found, and the way through it.

import type { App } from "./app";
import type { Part, Spans } from "./data";
import { find, type Matches } from "./matching";
import { asked, QueryError } from "./search";
import type { Loader } from "./served";
import { t } from "./words";

export class Finding {
  what: Matches["what"] = "task";
  found: Matches["items"] = new Int32Array(); // items, or where only a part of the run is here, their numbers in it
  marked: Uint8Array | null = null; // of the tasks that are here, those that were found
  markedGaps: Uint8Array | null = null; // the same of idle time; null where none was looked for
  query = "";
  private foundAt = -1;
  private within = ""; // of what it was, if not of all of the run

  constructor(private readonly app: App) {}

  async find(query: string): Promise<void> {
    this.query = query;
    this.app.state = { ...this.app.state, query };
    this.foundAt = -1;
    try {
      if (!query.trim()) this.show({ what: "task", items: new Int32Array() }, 0);
      else if (this.app.loader) await this.findFar(query, this.app.loader);
      else {
        const { head, data } = this.app;
        const matches = find(asked(query, head), head, data);
        this.show(matches, matches.items.length);
      }
    } catch (error) {
      if (this.query === query) this.refuse(error);
    }
  }

  /** Find in a run of which only a part is here. */
  private async findFar(query: string, loader: Loader): Promise<void> {
    const { count, ids, what, unexplained } = await loader.find(asked(query, this.app.head));
    if (this.query === query) this.show({ what, items: Float64Array.from(ids) }, count, unexplained);
  }

  /** Find, unless that was done, and select the next or previous that was found. */
  async findAndGo(query: string, direction: 1 | -1): Promise<void> {
    if (query !== this.query) await this.find(query);
    this.nextFound(direction);
  }

  /** Show what was found. @param unexplained steps of which it is not known why ranks are idle */
  private show({ what, items }: Matches, count: number, unexplained = 0): void {
    this.what = what;
    this.found = items;
    const found = count ? t("{count} found (. ,)", { count: count.toLocaleString("en-US") }) : t("nothing found");
    const explained = this.app.head.steps.length - unexplained;
    this.within = unexplained ? ` · ${t("in {count} explained steps", { count: explained })}` : "";
    const said = found + this.within;
    this.app.toolbar.sayFound(this.query.trim() ? said : "");
    this.mark();
    this.app.refresh();
    this.app.redraw();
    this.app.journey.settle();
  }

  private refuse(error: unknown): void {
    if (!(error instanceof QueryError)) throw error;
    this.show({ what: "task", items: new Int32Array() }, 0);
    this.app.toolbar.sayFound(error.message, true);
  }

  /** Mark those of the tasks or of the idle time here that were found; idle time stands out from all tasks too. */
  mark(): void {
    const { tasks, gaps } = this.app.data;
    const some = this.found.length > 0;
    const ofTasks = this.what === "task";
    this.marked = !some ? null : ofTasks ? this.foundAmong(tasks) : new Uint8Array(tasks.start.length);
    this.markedGaps = !some || ofTasks ? null : this.foundAmong(gaps);
    this.app.rescheme();
  }

  private foundAmong({ start, id }: Spans & Part): Uint8Array {
    const marked = new Uint8Array(start.length);
    if (id) {
      const wanted = new Set<number>(this.found);
      id.forEach((number, index) => (marked[index] = wanted.has(number) ? 1 : 0));
    } else for (const index of this.found) marked[index] = 1;
    return marked;
  }

  nextFound(direction: 1 | -1): void {
    const count = this.found.length;
    if (!count) return;
    this.foundAt = this.foundAt < 0 && direction < 0 ? count - 1 : (this.foundAt + direction + count) % count;
    this.goToFound();
  }

  /** Select the longest of the idle times that were found, of those in sight if there are any. */
  goToLongest(): void {
    const { loader, data, view } = this.app;
    if (this.what !== "gap" || !this.found.length) return;
    const { start, end, id } = data.gaps;
    const here = id ? new Map([...id].map((number, gap) => [number, gap])) : null;
    let [best, most] = [0, -1];
    this.found.forEach((item, at) => {
      const gap = here ? (here.get(item) ?? -1) : item;
      if (gap < 0) return;
      const within = end[gap]! > view.start && start[gap]! < view.end;
      const length = end[gap]! - start[gap]! + (within ? view.limit : 0);
      if (length > most) [best, most] = [at, length];
    });
    if (most < 0 && !loader) return;
    this.foundAt = best;
    this.goToFound();
  }

  private goToFound(): void {
    const { loader, selection, toolbar } = this.app;
    const item = this.found[this.foundAt]!;
    if (loader) void selection.goFar(item, this.what);
    else selection.go({ what: this.what, index: item });
    const count = this.found.length.toLocaleString("en-US");
    toolbar.sayFound(t("{at} of {count}", { at: (this.foundAt + 1).toLocaleString("en-US"), count }) + this.within);
  }

  focusSearch(): void {
    this.app.toolbar.search.focus();
    this.app.toolbar.search.select();
  }
}
