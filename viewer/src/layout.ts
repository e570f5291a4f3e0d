// Where each row of blocks lies, from top to bottom.

import { rowsOfGroup, foldedAtFirst, groupingAtFirst, STANDINGS } from "./folding";
import {
  extentAt,
  type Extent,
  type Head,
  type KernelRow,
  type Lane,
  type Overlay,
  type OverlayLane,
  type Rank,
  type Row,
  type SampleExtent,
  type StandingName,
} from "./data";
import { t } from "./words";

/** A task, a gap or a kernel. */
export interface Item {
  what: "task" | "gap" | "kernel";
  index: number;
}

/** By what ranks are gathered under a heading. */
export const GROUPINGS = {
  none: t("nothing"),
  host: t("machine"),
  stage: t("stage"),
  replica: t("replica"),
  standing: t("odd or alike"),
} as const;
export type Grouping = keyof typeof GROUPINGS;

/** How tall lanes are: as they fit into the room there is, or by themselves. */
export const SIZES = ["fit", "overview", "tiny", "small", "medium", "large"] as const;
export type Size = (typeof SIZES)[number];

export const EXTRAS = ["against", "ideal", "whatif", "comm", "host", "counters"] as const;
export type Extra = (typeof EXTRAS)[number];

/** Lanes of all ranks that stand together, by what they show first: what was measured, or an overlay. */
export type Stack = "compute" | OverlayLane;

/** What is shown of a run, and in which order. */
export interface Arrangement {
  grouping: Grouping;
  folded: ReadonlySet<string>; // groups of which only sums are shown
  opened: ReadonlySet<string>; // sums of folded groups whose ranks are shown after all
  hidden: ReadonlySet<number>; // ranks, by index
  order: readonly number[]; // ranks, by index, from top to bottom
  replica: number | null; // the only one shown
  extras: ReadonlySet<Extra>; // lanes beside those of the device's computing
  above: OverlayLane | null; // the extra that stands above all that was measured, not among it
  unfolded: ReadonlySet<number>; // ranks, by index, whose kernels are shown
  size: Size;
  figure: boolean; // the look of papers
}

/** A row of blocks. */
export interface Place {
  row: Row;
  top: number;
  height: number;
  gaps: Extent | undefined; // of the rank, on its first row
  band: number; // at its foot, for why the rank was idle; within the height
}

/** A row of kernels. */
export interface KernelPlace {
  row: KernelRow;
  top: number;
  height: number;
}

/** The curve of a counter. */
export interface Curve {
  samples: SampleExtent;
  top: number;
  height: number;
}

export interface Group {
  key: string;
  title: string;
  detail: string; // what its ranks have in common, where that is known
  ranks: number[]; // by index, those that are shown
  folded: boolean;
  off: number; // how far its clock may be off, ns
}

/** A rank's stretch of the page. */
export interface Band {
  top: number;
  height: number;
  stack: Stack; // of which it is a part
  titled: number; // height of the line of its title, where that stands above its lanes
  rank: number; // by index
  like: boolean; // whether it is here to be compared with the one above, and elsewhere with those like it
  number: number; // from the top, 1 the first
  unfolded: boolean | null; // whether its kernels are shown; null if there are none
}

/** A group's heading. */
export interface Heading {
  top: number;
  height: number;
  stack: Stack;
  group: Group;
}

/** Some ranks of a folded group: their sum, the lane of the only one, or where opened, what is above them. */
export interface Fold {
  top: number;
  height: number;
  stack: Stack;
  key: string; // among those that can be opened; empty where only the group can
  title: string; // empty where the group's heading says it
  ranks: number[]; // by index
  shows: "sum" | "lane" | "ranks";
}

/** What is to be said of the lane above. */
export interface Note {
  top: number;
  height: number;
  text: string;
}

/** What stands over a stack, where there are two. */
export interface Caption {
  top: number;
  height: number;
  title: string;
  detail: string;
}

export interface Layout {
  places: Place[];
  kernels: KernelPlace[];
  curves: Curve[];
  bands: Band[];
  headings: Heading[];
  folds: Fold[];
  notes: Note[];
  captions: Caption[];
  above: OverlayLane | null; // which overlay has a stack of its own
  placeOfRow: ReadonlyMap<Row, Place>;
  height: number;
}

type Heights = Record<Exclude<Lane, "against"> | "counter" | "between", number>;

const HEIGHTS: Record<Exclude<Size, "fit">, Heights> = {
  overview: { compute: 1, ideal: 0, whatif: 0, comm: 0, host: 0, counter: 0, between: 0 },
  tiny: { compute: 4, ideal: 0, whatif: 0, comm: 0, host: 0, counter: 0, between: 1 },
  small: { compute: 14, ideal: 8, whatif: 8, comm: 4, host: 4, counter: 14, between: 2 },
  medium: { compute: 22, ideal: 16, whatif: 16, comm: 7, host: 6, counter: 22, between: 6 },
  large: { compute: 36, ideal: 24, whatif: 24, comm: 12, host: 9, counter: 40, between: 8 },
};
const FIGURE: Heights = { ...HEIGHTS.medium, compute: 26, between: 3 };
const FIGURE_OF_TWO: Heights = { ...FIGURE, compute: 16, between: 2 }; // where there are two stacks, to be seen at once
const FITTED = { least: 5, most: 118 }; // heights of lanes that fill the room there is
const TITLE_LINE = 18;
const MOST_COMM = 42; // what the communication of one rank may take, however much of it overlaps
const KERNELS = 15; // height of a row of kernels
const MOST_KERNELS = 180; // what those of one rank may take, however many streams it has
const LEAST_KERNELS = 3;
const TITLED = 20; // least distance of the first of them from the top of the rank
const THINNEST = 1;
const BANDED = 10; // least height of lanes that have a band below their blocks
const BAND = { share: 0.28, least: 5, most: 9 };
const LOW = 12; // lower lanes than that have no title each, and their groups no headings
const HEADING = 22;
const FOLDED = 26;
const STAGE = 2; // least height of the lane of a stage in it
const OPENED = 16;
const NOTE = 18;
const FEW_ODD = 6; // odd ranks up to which each is set beside one that is not
const CAPTION = 22;
const MEASURED = t("as it ran");
const APART = 10; // between two stacks

/** What is shown when a page opens. */
export function arrangement(head: Head): Arrangement {
  const grouping = groupingAtFirst(head);
  const above = head.overlays.find(({ lane }) => lane === head.above)?.lane ?? null;
  // What is set above is to be compared with what was measured, among which another would be in the way.
  const overlays: Extra[] = above !== null ? [above] : ["whatif"];
  return {
    grouping,
    folded: foldedAtFirst(grouping),
    opened: new Set(),
    hidden: new Set(),
    order: head.ranks.map((_, index) => index),
    replica: null,
    // Two runs are looked at side by side: what each has besides would stand between them.
    extras: new Set(head.against ? ["against"] : [...overlays, "comm", "host", "counters"]),
    above,
    unfolded: new Set(),
    size: "fit",
    figure: false,
  };
}

/** Another run is as tall as the one it is set against. */
function heightOf(heights: Heights, lane: Lane): number {
  return heights[lane === "against" ? ("compute" as const) : lane];
}

/** Heights in the proportions of the usual ones, for compute lanes of one. */
function heightsOf(compute: number): Heights {
  const overlay = Math.round(compute * 0.66);
  if (compute < HEIGHTS.small.compute)
    return { ...HEIGHTS.tiny, compute, whatif: overlay, between: compute > 6 ? 2 : 1 }; // it is there if asked for
  const usual =
    compute < HEIGHTS.medium.compute ? HEIGHTS.small : compute < HEIGHTS.large.compute ? HEIGHTS.medium : HEIGHTS.large;
  return { ...usual, compute, ideal: overlay, whatif: overlay };
}

/** The room for lanes: how high the window on them is, and whether titles stand above them. */
export interface Room {
  height: number;
  named: boolean;
}

/** The tallest lanes with which all ranks are in sight, or the lowest that can be told apart. */
function fitted(head: Head, arranged: Arrangement, room: Room): Heights {
  const folded = { ...arranged, unfolded: new Set<number>() }; // to unfold kernels moves nothing above them
  let [low, high] = [room.named ? LOW : FITTED.least, FITTED.most]; // a title wants a lane under it
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (arrange(head, folded, heightsOf(middle), room.named).height <= room.height) low = middle;
    else high = middle - 1;
  }
  return heightsOf(low);
}

/** What the group of a rank is called. */
function titleOf(rank: Rank, grouping: Grouping): string {
  if (grouping === "stage")
    return rank.stages?.length ? t("stage {stage}", { stage: rank.stages.join(", ") }) : t("no stage");
  if (grouping === "replica") return rank.dp === null ? t("no replica") : t("replica {replica}", { replica: rank.dp });
  return groupOf(rank, grouping);
}

/** The group of a rank, as the address has it. */
export function groupOf(rank: Rank, grouping: Grouping): string {
  if (grouping === "host") return rank.host;
  if (grouping === "stage")
    return rank.stages?.length ? (`stage ${rank.stages.join(", ")}` as const) : ("no stage" as const);
  if (grouping === "replica") return rank.dp === null ? ("no replica" as const) : (`replica ${rank.dp}` as const);
  return grouping === "standing" ? rank.standing : "";
}

/** The groups from top to bottom, each with the ranks of it that are shown. */
export function groups(head: Head, { grouping, order, hidden, replica, folded }: Arrangement): Group[] {
  const found = new Map<string, Group>();
  const standings = grouping === "standing" ? head.standings : [];
  for (const { name, said } of standings) found.set(name, gathered(name, name, said));
  for (const index of order) {
    const rank = head.ranks[index]!;
    const key = groupOf(rank, grouping);
    const group = found.get(key) ?? gathered(key, titleOf(rank, grouping), "");
    found.set(key, group);
    group.off = Math.max(group.off, rank.off ?? 0);
    if (!hidden.has(index) && (replica === null || rank.dp === replica)) group.ranks.push(index);
  }
  const shown = [...found.values()].filter(({ ranks }) => ranks.length);
  for (const group of standings.length ? shown : [])
    group.title = STANDINGS[group.key as StandingName](group.ranks.length.toLocaleString("en-US"));
  return shown;

  function gathered(key: string, title: string, detail: string): Group {
    return { key, title, detail, ranks: [], folded: folded.has(key) && grouping !== "none", off: 0 };
  }
}

/** The overlay that stands above all that was measured, if there is one and it is shown. */
export function overlayAbove(
  { overlays }: Head,
  { above, extras }: Pick<Arrangement, "above" | "extras">,
): Overlay | undefined {
  return overlays.find(({ lane }) => lane === above && extras.has(lane));
}

/** @param room what lanes that fit have */
export function layout(head: Head, arranged: Arrangement, room: Room = { height: 480, named: false }): Layout {
  const heights = heightsFor(head, arranged, room);
  const named = room.named && !arranged.figure;
  const found = arrange(head, arranged, heights, named);
  const stages = found.folds.filter(({ key, shows }) => key && shows !== "ranks").length;
  const left = room.height - found.height;
  if (!stages || left < stages) return found;
  // What is left is shared by the lanes of stages, and where there is much, by odd ranks: no sum is taller than they.
  const odd = found.bands.filter(({ rank, like }) => like || head.ranks[rank]!.standing === "odd").length;
  const least = HEIGHTS.medium.compute;
  const all = Math.floor((left + stages * STAGE + odd * least) / (stages + odd));
  for (let height = Math.min(FITTED.most, all); height > least; height--) {
    const filled = arrange(head, arranged, heights, named, height, heightsOf(height));
    if (filled.height <= room.height) return filled; // bands below blocks have taken some of it
  }
  return arrange(head, arranged, heights, named, Math.min(least, STAGE + Math.floor(left / stages)));
}

/** How tall lanes are; where most ranks are folded, those that are not. */
function heightsFor(head: Head, arranged: Arrangement, room: Room): Heights {
  const { figure, size, grouping } = arranged;
  if (figure) return overlayAbove(head, arranged) ? FIGURE_OF_TWO : FIGURE;
  if (size !== "fit") return HEIGHTS[size];
  return grouping === "standing" ? HEIGHTS.small : fitted(head, arranged, room);
}

/**
 * @param stage height of the lane of a stage in a group that is folded
 * @param tallest how tall the lanes of odd ranks are, if that is more than usual
 */
function arrange(
  head: Head,
  arranged: Arrangement,
  usual: Heights,
  named: boolean,
  stage = STAGE,
  tallest = HEIGHTS.medium,
): Layout {
  const { extras, figure, grouping } = arranged;
  const overlay = overlayAbove(head, arranged);
  const tall = tallest.compute > usual.compute ? tallest : usual;
  let heights = usual;
  const standing = grouping === "standing";
  const low = heights.compute < LOW && !standing;
  const gapsOf = new Map(head.gaps.map((gaps) => [gaps.rank, gaps]));
  const [rowsOf, rowsAbove] = [head.ranks.map((): Row[] => []), head.ranks.map((): Row[] => [])];
  for (const row of head.rows) {
    if (row.lane === overlay?.lane) rowsAbove[row.rank]!.push(row);
    else if (row.lane === "compute" || (extras.has(row.lane) && !figure && heightOf(heights, row.lane)))
      rowsOf[row.rank]!.push(row);
  }
  const curvesOf = head.ranks.map((): SampleExtent[] => []);
  if (extras.has("counters") && !figure && heights.counter) {
    for (const samples of head.samples) curvesOf[samples.rank]!.push(samples);
  }

  const streamsOf = new Map<number, KernelRow[]>();
  if (!figure) for (const row of head.kernel_rows) streamsOf.set(row.rank, [...(streamsOf.get(row.rank) ?? []), row]);

  const made = {
    places: [] as Place[],
    kernels: [] as KernelPlace[],
    curves: [] as Curve[],
    bands: [] as Band[],
    headings: [] as Heading[],
    folds: [] as Fold[],
    notes: [] as Note[],
    captions: [] as Caption[],
  };
  const shown = groups(head, arranged);
  let y = 4;
  if (overlay) {
    caption(overlay.name, overlay.detail);
    stack(overlay.lane, lanesAbove);
    y += APART;
    caption(overlay.lane === "against" ? "A" : MEASURED, "");
  }
  stack("compute", lanes);
  const placeOfRow = new Map(made.places.map((place) => [place.row, place]));
  return { ...made, above: overlay?.lane ?? null, placeOfRow, height: y + 4 };

  function caption(title: string, detail: string): void {
    made.captions.push({ top: y, height: CAPTION, title, detail });
    y += CAPTION + (low ? 8 : 2); // titles are higher than low lanes
  }

  /** All ranks, in their groups; an overlay has headings only where they stand for ranks. */
  function stack(which: Stack, lanesOf: (rank: number, like: boolean) => void): void {
    let number = 0;
    for (const group of shown) {
      const odd = standing && group.key === "odd";
      heights = odd && !figure ? tall : usual;
      if (group.folded || (which === "compute" && grouping !== "none" && !figure && !low)) {
        const height = group.folded && !standing ? FOLDED : HEADING;
        made.headings.push({ top: y, height, stack: which, group });
        if (group.folded && !standing) fold(height, "", "", group.ranks, "sum");
        y += height + 2;
      }
      if (group.folded && standing) stages(group);
      else if (!group.folded) for (const rank of group.ranks) band(rank, odd);
      if (standing) y += NOTE / 2;
      else if (grouping !== "none" && !group.folded && (low || which !== "compute")) y += 1;
    }

    function band(rank: number, odd = false, like = false): void {
      const top = y;
      const titled = named && !low && !figure ? TITLE_LINE : 0;
      y += titled;
      lanesOf(rank, like);
      made.bands.push({
        top,
        height: y - top,
        titled,
        stack: which,
        rank,
        like,
        number: ++number,
        unfolded: streamsOf.has(rank) && !like ? arranged.unfolded.has(rank) : null,
      });
      y += heights.between;
      if (odd && which === "compute" && !figure) compared(rank);
    }

    /** Say what is odd about a rank, and show one that does the same and is not. */
    function compared(rank: number): void {
      const { reason, like } = head.ranks[rank]!;
      const few = head.ranks.filter((one) => one.standing === "odd").length <= FEW_ODD;
      const beside = few && like !== null && !arranged.hidden.has(like) ? like : null;
      const below =
        beside === null ? "" : t("; below: rank {rank}, which should be like it", { rank: head.ranks[beside]!.rank });
      made.notes.push({ top: y - heights.between, height: NOTE, text: `${reason ?? ""}${below}` });
      y += NOTE;
      if (beside !== null) band(beside, false, true);
    }

    /** The sum of the ranks of each stage of a folded group; of some stages together where there are many. */
    function stages(group: Group): void {
      for (const { key, title, ranks } of rowsOfGroup(head, group)) {
        if (arranged.opened.has(key)) {
          fold(OPENED, key, title, ranks, "ranks");
          y += OPENED + 2;
          for (const rank of ranks) band(rank);
          continue;
        }
        const rows = ranks.length === 1 ? (which === "compute" ? rowsOf : rowsAbove)[ranks[0]!]! : [];
        const [row, second] = rows.filter(({ lane }) => lane === which);
        const lane = row !== undefined && second === undefined;
        fold(stage, key, title, ranks, lane ? "lane" : "sum");
        if (lane) made.places.push({ row, top: y, height: stage, band: 0, gaps: undefined });
        y += stage;
      }
    }

    function fold(height: number, key: string, title: string, ranks: number[], shows: Fold["shows"]): void {
      made.folds.push({ top: y, height, stack: which, key, title, ranks, shows });
    }
  }

  /** What a rank could have done, as tall as what it did. */
  function lanesAbove(rank: number): void {
    const top = y;
    for (const row of rowsAbove[rank]!) {
      made.places.push({ row, top: y, height: heights.compute, gaps: undefined, band: 0 });
      y += heights.compute;
    }
    y = Math.max(y, top + heights.compute);
  }

  function lanes(rank: number, like: boolean): void {
    const top = y;
    const crowd = rowsOf[rank]!.filter((row) => row.lane === "comm").length;
    const most = Math.min(MOST_COMM, Math.max(heights.comm, heights.compute));
    const comm = Math.max(THINNEST, Math.min(heights.comm, Math.floor(most / crowd)));
    let lane = "";
    let folded = true; // the kernels are still to come
    for (const row of rowsOf[rank]!) {
      if (folded && row.lane !== "compute") unfold();
      if (lane !== "" && row.lane !== lane && !(low && row.lane === "against")) y += 1;
      lane = row.lane;
      const gaps = y === top && row.lane === "compute" ? gapsOf.get(rank) : undefined;
      const band = gaps && !figure ? bandOfCauses(heights.compute) : 0;
      const height = (row.lane === "comm" ? comm : heightOf(heights, row.lane)) + band;
      made.places.push({ row, top: y, height, gaps, band });
      y += height;
    }
    if (folded) unfold();
    y = Math.max(y, top + heights.compute);
    for (const samples of curvesOf[rank]!) {
      made.curves.push({ samples, top: y + 2, height: heights.counter });
      y += heights.counter + 2;
    }

    /** Put the kernels directly under what computes. */
    function unfold(): void {
      folded = false;
      const streams = arranged.unfolded.has(rank) && !like ? (streamsOf.get(rank) ?? []) : [];
      if (!streams.length) return;
      y = Math.max(y + 1, top + TITLED);
      const height = Math.max(LEAST_KERNELS, Math.min(KERNELS, Math.floor(MOST_KERNELS / streams.length)));
      for (const row of streams) {
        made.kernels.push({ row, top: y, height });
        y += height + (height > LEAST_KERNELS ? 1 : 0);
      }
      y += 2;
    }
  }
}

/** The usual size of lanes that is next to one: the first of those that are taller, or lower. */
export function sizeBeside({ size }: Arrangement, { places }: Layout, by: 1 | -1): Size | undefined {
  const usual = SIZES.filter((one): one is Exclude<Size, "fit"> => one !== "fit");
  if (size !== "fit") return usual[usual.indexOf(size) + by];
  const compute = places.find(({ row }) => row.lane === "compute")?.height ?? HEIGHTS.medium.compute;
  const beside = usual.filter((one) => by * (HEIGHTS[one].compute - compute) > 0);
  return by > 0 ? beside[0] : beside.at(-1);
}

/** Whether lanes of a size have others beside them, such as what would have run. */
export function besides(size: Size): boolean {
  return size === "fit" || HEIGHTS[size].whatif > 0;
}

/** The height of the band below blocks of a height. */
function bandOfCauses(height: number): number {
  return height < BANDED ? 0 : Math.min(BAND.most, Math.max(BAND.least, Math.round(height * BAND.share)));
}

/** What was measured of a rank that is shown. */
export function bandOf({ bands }: Layout, rank: number): Band | undefined {
  const found = bands.filter((band) => band.rank === rank && band.stack === "compute");
  return found.find(({ like }) => !like) ?? found[0];
}

/** The sum at a height, if there is one. */
export function foldAt({ folds }: Layout, y: number): Fold | undefined {
  const fold = folds[firstBelow(folds, y)];
  return fold && fold.top <= y ? fold : undefined;
}

/** The place of a task, a gap or a kernel, if it is shown. */
export function placeOf(
  head: Head,
  { places, kernels, placeOfRow }: Layout,
  { what, index }: Item,
): Pick<Place, "top" | "height"> | undefined {
  if (what === "kernel") return kernels.find(({ row }) => row.from <= index && index < row.to);
  if (what === "task") return placeOfRow.get(head.rows[extentAt(head.rows, index)]!);
  const extent = head.gaps[extentAt(head.gaps, index)];
  return places.findLast(({ gaps }) => gaps === extent); // of a rank that is there twice, not what is compared with
}

/** Index of the first place whose bottom is below `y`. Tops ascend. */
export function firstBelow(places: { top: number; height: number }[], y: number): number {
  let from = 0;
  let to = places.length;
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (places[middle]!.top + places[middle]!.height > y) to = middle;
    else from = middle + 1;
  }
  return from;
}

/** Those that are at least in part between two heights. */
export function within<T extends { top: number; height: number }>(places: T[], top: number, bottom: number): T[] {
  const from = firstBelow(places, top);
  let to = from;
  while (to < places.length && places[to]!.top < bottom) to++;
  return places.slice(from, to);
}

/** The order with a rank, or all ranks of a group, put before or behind another. */
export function moved(order: readonly number[], what: readonly number[], target: number, behind: boolean): number[] {
  if (what.includes(target)) return [...order];
  const rest = order.filter((index) => !what.includes(index));
  rest.splice(rest.indexOf(target) + (behind ? 1 : 0), 0, ...what);
  return rest;
}
