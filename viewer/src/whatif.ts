// What would have been: the question that is asked, its answer, and the lanes of what would have run.

import type { App } from "./app";
import { rowOf, type Answer, type Columns, type Data, type Head, type Overlay, type Row, type WhatIf } from "./data";
import { joined, overlaid } from "./ghosts";
import { besides } from "./layout";
import { NOTHING, parse, written, type Question } from "./question";
import { QueryError } from "./search";
import type { Span } from "./schema";
import { duration, uncertain } from "./units";
import { t } from "./words";

const SOON = 150; // milliseconds without a change after which a question is asked

/** What is known of the question. */
export type Told =
  | { what: "nothing" } // is asked
  | { what: "waiting" }
  | { what: "answer"; answer: Answer; lanes: boolean }
  | { what: "unheld" } // the page has no answer ready, and nobody to ask
  | { what: "refused"; why: string };

/** By how much a micro-batch takes less, with how far that may be off. */
export function relative({ share, error }: Pick<Answer, "share" | "error">): string {
  const [sign, text] = [share > 0 ? "−" : share < 0 ? "+" : "", uncertain(Math.abs(share), error)];
  return `${sign}${text}`;
}

/** What a step takes then, and what that takes. */
export function taken(answer: Answer, span: Span): string {
  const { predicted, saved, best, best_if, needs } = answer;
  const [time, now] = [duration(predicted), duration(predicted + saved)];
  const range = best === null ? "" : t(" ({time} if {condition})", { time: duration(best), condition: best_if });
  return [
    time === now
      ? t("{time} as now{range}, ", { time, range })
      : t("{time} instead of {now}{range}, ", { time, now, range }),
    span === "pipeline phase" ? t("{share} a micro-batch", { share: relative(answer) }) : relative(answer),
    ...(needs ? [t("; needs {needs}", { needs })] : []),
  ].join("");
}

export class WhatIfs {
  question: Question = NOTHING;
  told: Told = { what: "nothing" };
  /** Layers of each stage: of the run, or as the reader says. */
  layers: number[] | null;
  private readonly held: Map<string, Answer>;
  private readonly rows: Row[]; // of all lanes when the page opened, as are the overlays and names
  private readonly overlays: Overlay[];
  private readonly names: string[];
  private measured: Data | null = null; // what the page holds, while more than that is shown
  private table: Promise<Columns<"ghosts">> | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private latest = 0; // number of the last question
  private chosen = false; // whether it is one of the answers that are ready
  private changed: () => void = () => undefined;

  /** @param ghosts reads the lanes of the answers that the page holds; null if a server has them */
  constructor(
    private readonly app: App,
    private readonly ghosts: (() => Promise<Columns<"ghosts">>) | null,
  ) {
    const { head } = app;
    [this.rows, this.overlays, this.names] = [head.rows, head.overlays, head.names];
    this.held = new Map(this.whatif?.answers.map((answer) => [answer.asked, answer]));
    this.layers = this.whatif?.layers ?? null;
  }

  get head(): Head {
    return this.app.head;
  }

  get whatif(): WhatIf | null {
    return this.app.head.whatif;
  }

  /** Whether any question can be answered, not only those that the page has answers for. */
  get free(): boolean {
    return this.app.loader !== null;
  }

  /** The text of the question, as options of the command. */
  get text(): string {
    return written(this.question);
  }

  /** The command that asks the same. */
  command(text = this.text): string {
    return `${this.whatif?.command ?? "bubblescope whatif PATH"} ${text}`;
  }

  /** Whether an answer has lanes that can be shown. */
  drawn(answer: Answer): boolean {
    return this.free ? (this.whatif?.moves ?? false) : answer.rows.length > 0;
  }

  /** Call whenever there is another question or answer; only the last that was given is called. */
  watch(changed: () => void): void {
    this.changed = changed;
  }

  /** What a control goes on from: what was put together, but not an answer that was chosen. */
  base(...flags: string[]): Question {
    return this.chosen ? this.question.filter(([flag]) => flags.includes(flag)) : this.question;
  }

  /** Ask something else; while it changes quickly only the last is asked. */
  ask(question: Question, soon = SOON): void {
    this.question = question;
    this.chosen = false;
    clearTimeout(this.timer);
    const number = ++this.latest;
    const { app, text } = this;
    app.state = { ...app.state, ask: text };
    app.journey.settle();
    if (!text) void this.show(number, { what: "nothing" }, null);
    else if (!this.free) void this.answer(number, text);
    else {
      this.told = { what: "waiting" };
      this.timer = setTimeout(() => void this.answer(number, text), soon);
    }
    this.changed();
  }

  /** Ask what is written; what is shown already is taken away. */
  toggle(asked: string): void {
    this.ask(asked === this.text ? NOTHING : parse(asked), 0);
    this.chosen = true;
  }

  /** Ask what the address says. */
  restore(): void {
    if (this.whatif && this.app.state.ask !== this.text) this.toggle(this.app.state.ask);
  }

  /** Whether lanes of what would have run can be seen: low lanes have none beside them. */
  get seen(): boolean {
    return besides(this.app.state.arranged.size);
  }

  private async answer(number: number, text: string): Promise<void> {
    const { loader } = this.app;
    try {
      if (loader) {
        const { answer, rows, names } = await loader.whatif(text);
        await this.show(number, { what: "answer", answer, lanes: rows.length > 0 }, { rows, names });
        return;
      }
      const answer = this.held.get(text);
      if (!answer) await this.show(number, { what: "unheld" }, null);
      else await this.show(number, { what: "answer", answer, lanes: answer.rows.length > 0 }, { rows: answer.rows });
    } catch (error) {
      if (!(error instanceof QueryError)) throw error;
      await this.show(number, { what: "refused", why: error.message }, null);
    }
  }

  /** Say what is known and show the lanes, unless something else was asked meanwhile. */
  private async show(number: number, told: Told, lanes: { rows: Row[]; names?: string[] } | null): Promise<void> {
    const { app, head } = this;
    if (number !== this.latest) return;
    const table = lanes?.rows.length && this.ghosts ? await (this.table ??= this.ghosts()) : null;
    if (number !== this.latest) return;
    this.told = told;
    this.leave();
    const shown = told.what === "answer" && told.lanes ? told.answer : null;
    head.overlays = overlaid(
      this.overlays,
      shown && { name: shown.change, detail: taken(shown, this.whatif!.span), idle: shown.idle },
    );
    head.names = lanes?.names?.length ? [...this.names, ...lanes.names] : this.names;
    if (app.loader) {
      if (shown) app.loader.turn(this.text, lanes!.rows);
      else app.loader.turn("", this.rows);
      app.redraw();
    } else {
      this.measured ??= app.data;
      head.rows = this.rows;
      const ghost = shown && table ? joined(head, this.measured, table, lanes!.rows) : null;
      if (ghost) head.rows = ghost.rows;
      app.replace(ghost?.data ?? this.measured);
    }
    this.brought(shown !== null);
    this.changed();
  }

  /** What is selected among lanes that go is selected no more. */
  private leave(): void {
    const { app, head } = this;
    const { selected } = app.state;
    if (selected?.what === "task" && selected.index >= 0 && rowOf(head, selected.index).lane === "whatif")
      app.selection.select(null);
  }

  /** The lanes came or went: show them, and colour by them no more. */
  private brought(shown: boolean): void {
    const { app } = this;
    if (shown) app.arranging.showExtra("whatif", true);
    if (app.state.mode === "whatif" && !app.head.overlays.some(({ lane }) => lane === "whatif"))
      app.change({ mode: "kind" });
    app.refresh();
  }
}
