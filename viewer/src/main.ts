// Where the page begins: reads what it was given and starts.

import { App } from "./app";
import { decode, type Head } from "./data";
import { element } from "./dom";
import { listen } from "./input";
import { Loader } from "./served";

const text = (id: string): string => document.getElementById(id)?.textContent ?? "";

async function start(): Promise<void> {
  const head = JSON.parse(text("head")) as Head;
  const loader = head.served ? new Loader(head) : null;
  const app = new App(head, loader ? await loader.overview(text) : await decode(head, text), loader);
  listen(app);
  expose(app);
}

/** For tests and benchmarks: what is shown, and a way to show something else and wait until it is. */
function expose(app: App): void {
  const { head } = app;
  const selected = (what: string): number => (app.state.selected?.what === what ? app.state.selected.index : -1);
  Object.assign(window, {
    bubblescope: {
      app,
      get gutter() {
        return app.left;
      },
      get places() {
        return app.plan.places;
      },
      view: () => ({ start: app.view.start, end: app.view.end }),
      show: (from: number, to: number) => {
        app.view.set(from, to);
        app.draw(Infinity);
      },
      at: (x: number, y: number) => app.selection.at(x, y),
      selected: () => selected("task"),
      gap: () => selected("gap"),
      arrows: () => (app.state.arrows === "none" ? [] : app.selection.arrows),
      gaps: () => {
        const { gaps } = app.data;
        return head.gaps.map(({ rank, from, to }) => ({
          rank: head.ranks[rank]!.rank,
          start: [...gaps.start.subarray(from, to)],
          end: [...gaps.end.subarray(from, to)],
          cause: [...gaps.cause.subarray(from, to)].map((cause) => head.causes[cause]!.name),
          task: [...gaps.task.subarray(from, to)],
          root: [...gaps.root.subarray(from, to)],
          first: from,
        }));
      },
    },
  });
}

start().catch((error: unknown) => {
  document.body.append(element("p", { class: "failed" }, `This page is damaged: ${String(error)}`));
});
