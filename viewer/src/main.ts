// Where the page begins: reads what it was given and starts.

import { App } from "./app";
import { decode, unpackText, type Columns, type Head } from "./data";
import { comparedVerdict } from "./difference";
import { element } from "./dom";
import { listen } from "./input";
import type { Item } from "./layout";
import { find } from "./matching";
import { asked } from "./search";
import { Loader } from "./served";
import { fromHash } from "./state";
import { verdict } from "./verdict";
import { language, sentences, spoken, TONGUES, t } from "./words";

const text = (id: string): string => document.getElementById(id)?.textContent ?? "";

async function start(): Promise<void> {
  const head = spoken(JSON.parse(text("head")) as Head, sentences());
  let opened: (app: App) => void;
  const opening = new Promise<App>((done) => (opened = done));
  document.documentElement.dataset["theme"] = fromHash(location.hash, head).state.theme;
  document.documentElement.lang = TONGUES[language].tag;
  document.body.append(heading(head, opening));
  await shown(); // the verdict is there while the tables are still on their way
  const loader = head.served ? new Loader(head) : null;
  const ghosts = loader ? null : () => unpackText(text("ghosts"), head.columns.ghosts) as Promise<Columns<"ghosts">>;
  const app = new App(head, loader ? await loader.overview(text) : await decode(head, text), loader, ghosts);
  listen(app);
  expose(app);
  opened!(app);
}

/** What stands first: the verdict, or that over two runs. What it leads to waits for the rest of the page. */
function heading(head: Head, opening: Promise<App>): HTMLElement {
  const then = (act: (app: App) => unknown) => (): void => void opening.then(act);
  if (!head.against)
    return verdict(
      head,
      (remedy) => then(({ selection }) => selection.show(remedy))(),
      then(({ pane }) => pane.open("summary")),
    );
  return comparedVerdict(
    head,
    head.against,
    (query) => then(({ finding }) => finding.find(query))(),
    then(({ pane }) => pane.open("difference")),
  );
}

/** Wait until the browser could draw, and all of the page is there. */
async function shown(): Promise<void> {
  if (document.readyState === "loading")
    await new Promise((done) => addEventListener("DOMContentLoaded", done, { once: true }));
  await new Promise((done) => setTimeout(done)); // a frame would never come in a tab that is not in sight
}

/** For tests and benchmarks: what is shown, and a way to show something else and wait until it is. */
function expose(app: App): void {
  const { head } = app;
  const selected = (what: Item["what"]): number => (app.state.selected?.what === what ? app.state.selected.index : -1);
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
      sought: (query: string) => {
        const search = asked(query, head);
        return { search, found: [...find(search, head, app.data).items] };
      },
      selected: () => selected("task" as const),
      gap: () => selected("gap" as const),
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
  document.body.append(element("p", { class: "failed" }, t("This page is damaged: {error}", { error: String(error) })));
});
