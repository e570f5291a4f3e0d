// Which lanes are shown, in which order, how tall and in which look.

import type { App } from "./app";
import { modes } from "./colour";
import type { Head, OverlayLane } from "./data";
import { foldable, foldedAtFirst, groupingAtFirst } from "./folding";
import {
  bandOf,
  GROUPINGS,
  groupOf,
  overlayAbove,
  sizeBeside,
  type Arrangement,
  type Extra,
  type Fold,
  type Grouping,
} from "./layout";
import { ARROWS, THEMES } from "./state";
import { t, type Language } from "./words";

export class Arranging {
  constructor(private readonly app: App) {}

  arrange(change: Partial<Arrangement>): void {
    const arranged = { ...this.app.state.arranged, ...change };
    if (arranged.hidden.size >= this.app.head.ranks.length) return this.app.toolbar.say(t("the last rank stays"), true);
    this.app.change({ arranged });
  }

  fold(key: string): void {
    const folded = new Set(this.app.state.arranged.folded);
    if (!folded.delete(key)) folded.add(key);
    this.arrange({ folded });
  }

  /** Show the ranks of which there is a sum, or the sum again. */
  open({ key }: Fold): void {
    const opened = new Set(this.app.state.arranged.opened);
    if (!opened.delete(key)) opened.add(key);
    this.arrange({ opened });
  }

  group(grouping: Grouping): void {
    this.arrange({ grouping, folded: foldedAtFirst(grouping), opened: new Set() });
  }

  /** Fold the ranks that are alike, or show all ranks as they are without. */
  toggleFolding(): void {
    const { head, state } = this.app;
    if (!head.standings.length) return this.app.toolbar.say(t("no rank has forwards or backwards to tell by"), true);
    if (!foldable(head)) return this.app.toolbar.say(t("no two ranks hold the same"), true);
    const folding = state.arranged.grouping === "standing";
    const without = groupingAtFirst({ ...head, standings: [] });
    this.group(folding ? without : "standing");
    this.app.scroll.scrollTop = 0;
  }

  showRanks(ranks: number[], on: boolean): void {
    const hidden = new Set(this.app.state.arranged.hidden);
    for (const rank of ranks)
      if (on) hidden.delete(rank);
      else hidden.add(rank);
    this.arrange({ hidden });
  }

  /** Show or hide the kernels of ranks. */
  unfold(ranks: number[], on: boolean): void {
    const unfolded = new Set(this.app.state.arranged.unfolded);
    for (const rank of ranks)
      if (on) unfolded.add(rank);
      else unfolded.delete(rank);
    const { selected } = this.app.state;
    if (!on && selected?.what === "kernel" && ranks.includes(this.app.selection.rankOf(selected)))
      this.app.selection.select(null);
    this.arrange({ unfolded });
    this.app.selection.restore(); // the button says what it does next
  }

  /** The same of the rank of what is selected; else of that under the pointer; else of the only one there is. */
  toggleKernels(): void {
    const {
      head,
      plan,
      state: { selected, arranged },
    } = this.app;
    if (!head.kernels)
      return this.app.toolbar.say(head.no_kernels?.replaceAll("`", "") ?? t("the traces hold no kernels"), true);
    const y = this.app.pointerTop + this.app.scroll.scrollTop;
    const pointed = plan.bands.find(
      ({ top, height, stack }) => stack === "compute" && top <= y && y < top + height,
    )?.rank;
    const shown = this.shownRanks();
    const rank =
      selected && selected.index >= 0
        ? this.app.selection.rankOf(selected)
        : (pointed ?? (shown.length === 1 ? shown[0] : undefined));
    if (rank === undefined) return this.app.toolbar.say(t("select a task, or point at a rank"), true);
    if (!head.kernel_rows.some((row) => row.rank === rank))
      return this.app.toolbar.say(t("no kernels of rank {rank} are known", { rank: head.ranks[rank]!.rank }), true);
    this.unfold([rank], !arranged.unfolded.has(rank));
  }

  showExtra(extra: Extra, on: boolean): void {
    const extras = new Set(this.app.state.arranged.extras);
    if (on) extras.add(extra);
    else extras.delete(extra);
    this.arrange({ extras });
  }

  /** Show all that could have been, or where all is shown, none of it. */
  toggleOverlays(): void {
    const { extras } = this.app.state.arranged;
    const on = !allImagined(this.app.head, extras);
    const rest = [...extras].filter((extra) => extra !== "ideal" && extra !== "whatif");
    this.arrange({ extras: new Set<Extra>(on ? [...rest, "ideal", "whatif"] : rest) });
  }

  /** Put the next overlay above all that was measured, or after the last none. */
  nextAbove(): void {
    const {
      head,
      state: { arranged },
    } = this.app;
    const above = following(
      [null, ...head.overlays.map(({ lane }) => lane)],
      overlayAbove(head, arranged)?.lane ?? null,
    );
    this.arrange({ above, extras: above === null ? arranged.extras : new Set([...arranged.extras, above]) });
    if (above !== null) this.app.scroll.scrollTop = 0;
  }

  toggleFigure(): void {
    this.arrange({ figure: !this.app.state.arranged.figure });
    this.app.resize();
  }

  nextTheme(): void {
    this.app.change({ theme: following(THEMES, this.app.state.theme) });
  }

  /** Open the page again, in another language. */
  speak(language: Language): void {
    this.app.change({ language });
    this.app.journey.address();
    location.reload();
  }

  nextMode(): void {
    this.app.change({ mode: following(modes(this.app.head), this.app.state.mode) });
  }

  nextArrows(): void {
    this.app.change({ arrows: following(ARROWS, this.app.state.arrows) });
  }

  nextGrouping(): void {
    const choices = Object.keys(GROUPINGS) as Grouping[];
    this.group(following(choices, this.app.state.arranged.grouping));
  }

  resizeLanes(by: 1 | -1): void {
    const size = sizeBeside(this.app.state.arranged, this.app.plan, by);
    if (size) this.arrange({ size });
  }

  /** Show a rank, whatever hides it. */
  reveal(rank: number): void {
    const { arranged } = this.app.state;
    const { dp } = this.app.head.ranks[rank]!;
    const key = groupOf(this.app.head.ranks[rank]!, arranged.grouping);
    if (arranged.hidden.has(rank)) this.showRanks([rank], true);
    if (arranged.replica !== null && arranged.replica !== dp) this.arrange({ replica: null });
    const fold = this.app.plan.folds.find(({ ranks }) => ranks.includes(rank));
    if (bandOf(this.app.plan, rank) || fold?.shows === "lane") return;
    if (fold?.key) this.open(fold);
    else if (arranged.folded.has(key)) this.fold(key);
  }

  shownRanks(): number[] {
    const { hidden, replica } = this.app.state.arranged;
    return this.app.head.ranks.flatMap(({ dp }, index) =>
      hidden.has(index) || (replica !== null && dp !== replica) ? [] : [index],
    );
  }
}

function following<T>(choices: readonly T[], current: T): T {
  return choices[(choices.indexOf(current) + 1) % choices.length]!;
}

/** Whether all lanes of what could have been are shown. */
export function allImagined(head: Head, extras: ReadonlySet<Extra>): boolean {
  return imagined(head).every((lane) => extras.has(lane));
}

/** Lanes of what could have been, which another run is not. */
export function imagined({ overlays }: Head): OverlayLane[] {
  return overlays.map(({ lane }) => lane).filter((lane) => lane !== "against");
}
