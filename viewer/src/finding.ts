// The search that is on: what it found, and the way through it.

import type { App } from "./app";
import { find, QueryError } from "./search";
import type { Loader } from "./served";

export class Finding {
  found: Int32Array = new Int32Array(); // tasks, or where only a part of the run is here, their numbers in it
  marked: Uint8Array | null = null; // of the tasks that are here, those that were found
  query = "";
  private foundAt = -1;

  constructor(private readonly app: App) {}

  find(query: string): Promise<void> | undefined {
    this.query = query;
    this.app.state = { ...this.app.state, query };
    this.foundAt = -1;
    if (query.trim() && this.app.loader) return this.findFar(query, this.app.loader);
    try {
      const found = find(query, this.app.head, this.app.data);
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
    this.app.toolbar.say(
      this.query.trim() ? (count ? `${count.toLocaleString("en-US")} found (. ,)` : "nothing found") : "",
    );
    this.mark();
    this.app.refresh();
    this.app.redraw();
    this.app.journey.settle();
  }

  private refuse(error: unknown): void {
    if (!(error instanceof QueryError)) throw error;
    this.show(0, new Int32Array());
    this.app.toolbar.say(error.message, true);
  }

  /** Mark those of the tasks that are here that were found. */
  mark(): void {
    const { id, kind } = this.app.data.tasks;
    this.marked = null;
    if (this.found.length) {
      const wanted = id ? new Set(this.found) : null;
      const marked = new Uint8Array(kind.length);
      if (wanted) id!.forEach((number, task) => (marked[task] = wanted.has(number) ? 1 : 0));
      else for (const task of this.found) marked[task] = 1;
      this.marked = marked;
    }
    this.app.rescheme();
  }

  nextFound(direction: 1 | -1): void {
    const count = this.found.length;
    if (!count) return;
    this.foundAt = this.foundAt < 0 && direction < 0 ? count - 1 : (this.foundAt + direction + count) % count;
    if (this.app.loader) void this.app.selection.goFar(this.found[this.foundAt]!);
    else this.app.selection.go(this.found[this.foundAt]!);
    this.app.toolbar.say(`${(this.foundAt + 1).toLocaleString("en-US")} of ${count.toLocaleString("en-US")}`);
  }

  focusSearch(): void {
    this.app.toolbar.search.focus();
    this.app.toolbar.search.select();
  }
}
