// Made by viewer/schema.py of src/bubblescope/render/html/schema.py: change that, not this.

export type Pattern = "solid" | "upright" | "level" | "rising" | "falling" | "dots" | "check" | "line";

export type Lane = "compute" | "against" | "ideal" | "whatif" | "comm" | "host";

export type OverlayLane = "against" | "ideal" | "whatif";

export type NumberType = "u8" | "i16" | "i32" | "u32" | "f64";

export type TableName =
  "tasks" | "gaps" | "links" | "phases" | "cells" | "samples" | "kernels" | "communication" | "ghosts";

export type Span = "pipeline phase" | "step" | "capture";

export type StandingName = "odd" | "waits" | "alike";

export type TableInSight = "tasks" | "gaps" | "links" | "kernels" | "communication";

export type Idle = "explained" | "closer" | "unknown" | "elsewhere";

export type SearchColumn =
  | "rank"
  | "host"
  | "standing"
  | "lane"
  | "step"
  | "length"
  | "cause"
  | "kind"
  | "stage"
  | "chunk"
  | "microbatch"
  | "peer"
  | "pair"
  | "pair_chunk"
  | "name"
  | "slowness"
  | "gained"
  | "lost";

/** Columns of each table, as they travel. */
export const COLUMNS = {
  tasks: [
    "gap",
    "length",
    "busy",
    "lead",
    "kind",
    "microbatch",
    "chunk",
    "stage",
    "step",
    "peer",
    "pair",
    "pair_chunk",
    "name",
  ],
  gaps: ["gap", "length", "step", "cause", "task_step", "root"],
  links: ["source_step", "reach"],
  phases: ["rank", "step", "start", "steady", "cool", "end"],
  cells: ["rank", "step", "busy", "span"],
  samples: ["gap", "value"],
  kernels: ["gap", "length", "cut", "use", "name", "module", "lead"],
  communication: ["task_step", "of", "exposed", "hidden"],
  ghosts: [
    "gap",
    "length",
    "busy",
    "lead",
    "kind",
    "microbatch",
    "chunk",
    "stage",
    "step",
    "peer",
    "pair",
    "pair_chunk",
    "name",
  ],
} as const;

/** A fill, what is written on it, and the lines around it. */
export interface Shades {
  fill: string;
  ink: string;
  outline: string;
}

/** The same on a light ground and on a dark one. */
export interface Shaded extends Shades {
  dark: Shades;
}

/** A kind of task: its name, what blocks say, and its colours. */
export interface Kind extends Shaded {
  name: string;
  short: string;
  /** What a rank's compute lane spends in it a step, the mean of all. */
  spent: number;
  /** The same of the lanes beside it, of communication and the host. */
  beside: number;
}

/** Bubble rates by their names; null where one is not known. */
export interface Rates {
  span: number | null;
  makespan: number | null;
  longest_span: number | null;
  over_ideal: number | null;
  no_wait: number | null;
  excess: number | null;
}

/** Those of a rank; the error is that of the makespan rate. */
export interface RankRates extends Rates {
  error: number | null;
}

/** What the ranks that stand alike among those that do the same have in common. */
export interface Standing {
  name: StandingName;
  said: string;
}

/** A rank and where it is; `off` is how far its clock may be off the first host's. `reason` says why it does not stand as most do; `like` is a rank that should do what it does. `idle` is the share of the time that its devices were idle, where the run is no pipeline; null where it is, and its rates say how much it was idle, or where that is not known. */
export interface Rank {
  rank: number;
  host: string;
  stages: number[] | null;
  device: number | null;
  process: number | null;
  pp: number | null;
  dp: number | null;
  tp: number | null;
  cp: number | null;
  ep: number | null;
  etp: number | null;
  edp: number | null;
  off: number | null;
  standing: StandingName;
  reason: string | null;
  like: number | null;
  rates: RankRates | null;
  idle: number | null;
}

/** Why ranks were idle. */
export interface Cause {
  name: string;
  meaning: string;
  pattern: Pattern;
  fill: string;
  /** Its fill on a dark ground. */
  dark: string;
  /** Whether it is inherent to the schedule. */
  inherent: boolean;
  /** Of all idle time. */
  share: number;
  /** What a rank is idle for it a step, the mean of all. */
  idle: number;
  /** What a step would be shorter by without it alone; null where that is not known. */
  saved: number | null;
}

/** Which rows of a table belong to a rank: from the first to one past the last, by time. Tasks may overlap by as little as a trace cannot tell from none; then the later is drawn from the earlier's end. */
export interface Extent {
  rank: number;
  from: number;
  to: number;
}

/** One row of blocks: part of a lane of a rank. */
export interface Row extends Extent {
  lane: Lane;
  row: number;
}

/** One row of kernels: of a stream, of which there are several where its kernels overlap. */
export interface KernelRow extends Extent {
  device: number;
  stream: number;
  row: number;
}

/** Where the samples of a counter of a rank are. */
export interface SampleExtent extends Extent {
  counter: number;
}

/** What a run could have been, shown in lanes of its own beside those that were measured. `idle` is how much each rank, by index, would have been idle in it; null where that is not known, or where the rates of ranks say it. */
export interface Overlay {
  lane: OverlayLane;
  name: string;
  detail: string;
  idle: (number | null)[] | null;
}

/** What a run would have taken, had something been different. */
export interface Answer {
  /** The question, as options of a command line. */
  asked: string;
  /** What is different. */
  change: string;
  /** What that takes; empty if it is clear from the change. */
  needs: string;
  /** What a step takes then; of a range, the longer end. */
  predicted: number;
  /** By how much a step is shorter then. */
  saved: number;
  /** How much less a micro-batch takes, as a share; negative if it takes more. */
  share: number;
  /** How far either end may be off, as a share of a step. */
  error: number;
  /** The shorter end, where only a range is known. */
  best: number | null;
  /** What has to be so for that. */
  best_if: string;
  /** Of its tasks among the ghosts; empty if the page does not hold them. */
  rows: Row[];
  /** How much each rank, by index, would have been idle; empty likewise. */
  idle: (number | null)[];
}

/** What can be asked about a run, and what was answered before it was asked. */
export interface WhatIf {
  /** What asks when the options of a question follow it, as one types it; None if the run was not read as a command could. */
  command: string | null;
  /** What is predicted, as measured. */
  step: number;
  /** What that is: the mean "pipeline phase" of a step, from its first forward to its last backward; without a pipeline a "step", or the whole "capture". */
  span: Span;
  /** Whether stages, ranks and layers can be asked about, and an answer has lanes. */
  moves: boolean;
  /** Causes of idle time, or classes of what devices spend time on, that the run can be asked to be without. */
  causes: string[];
  /** Those that there are. */
  stages: number[];
  /** How many each stage has; None if nobody said. */
  layers: number[] | null;
  /** By what they save, most first. */
  answers: Answer[];
}

/** How long tasks of a kind take on one stage, or where the stage is not known. `low`, `middle` and `high` are the quartiles. */
export interface Spread {
  kind: number;
  stage: number | null;
  count: number;
  least: number;
  low: number;
  middle: number;
  high: number;
  most: number;
  mean: number;
}

/** Something measured beside the tasks, such as memory. */
export interface Counter {
  name: string;
  unit: string;
  least: number;
  most: number;
}

/** What kernels do. */
export interface KernelUse extends Shaded {
  name: string;
}

/** What devices lose time to. */
export interface Loss {
  /** Of the class of time, as in `Devices`. */
  name: string;
  /** What of it is known besides, such as an operation; empty if nothing is. */
  detail: string;
  /** How long, of all devices. */
  time: number;
  /** Of all their time. */
  share: number;
}

/** How a rank, given by its place, came to collectives whose kernels could be matched. */
export interface RankWaits {
  rank: number;
  /** In how many of them it took part. */
  collectives: number;
  /** In how many it alone came last. */
  last: number;
  /** How long it waited for others while nothing computed, at least, as a share of its time. */
  waits: number;
  /** How much later than half of the ranks it came, at least, likewise. */
  late: number;
}

/** What every nanosecond of the devices was spent on. Times are lists: of what devices were busy with, in the order of `uses`, and then of the classes of idle time, in the order of `idle`. */
export interface Devices {
  /** What devices were busy with; what runs first of them names the time. */
  uses: KernelUse[];
  /** Classes of idle time that there are. */
  idle: string[];
  /** Of all devices, from each one's first operation to its last. */
  overall: number[];
  /** A step, the mean of all devices; of a run without steps, all of it. */
  step: number[];
  /** By rank, as of `overall`; null where that is not known. */
  ranks: (number[] | null)[];
  /** By step, of all devices. */
  steps: (number[] | null)[];
  /** Steps, by index, whose end was not recorded. */
  open: number[];
  /** What time is lost to, most first. */
  losses: Loss[];
  /** Sentences: of which time the traces do not tell what it was spent on. */
  untold: string[];
  /** Who waits for whom in collectives; empty where hardly anybody does, or it is not known. */
  waits: RankWaits[];
}

/** What tells tasks that no name states. */
export interface Inferred {
  /** What they were told by. */
  how: string;
  /** What would have them stated, with commands between backticks; None if nothing is known. */
  way: string | null;
}

/** Of the kernels of a page: what their numbers mean. What runs first of the uses names the time; of each name, its short and full form. */
export interface KernelHead {
  uses: KernelUse[];
  names: [string, string][];
  modules: string[];
}

/** An operation that communicates in groups of one role; null where the trace does not tell. `said` is what the groups are for, in a few words. */
export interface Communicating {
  role: string | null;
  said: string;
  operation: string | null;
}

/** Ranks that communicate with each other, by their own numbers, and for what. */
export interface Group {
  role: string;
  ranks: number[];
}

/** Time in which nothing was recorded of a rank, given by its place: between two captures of it. */
export interface Unrecorded {
  rank: number;
  start: number;
  end: number;
}

/** One step, from its first task to its last; of devices that run whole models, to the next one. What communicates ahead of all other tasks is no beginning. `phase` is how long its pipeline phase takes, `makespan` the share of that which is idle, and `error` how far it may be off because clocks differ. Of devices that run whole models `phase` is how long they were in the step, the mean, and `idle` the share of it that all were idle, as that of a rank. */
export interface Step {
  step: number;
  start: number;
  end: number;
  phase: number | null;
  makespan: number | null;
  error: number | null;
  idle: number | null;
}

/** A step of A and the one of B that stands against it; null is all of a run without steps. `shift` is how much later the lane of B has to be for both to begin at once, `end` where the last of B's step then is. */
export interface Pair {
  step: number | null;
  other: number | null;
  shift: number;
  end: number;
}

/** A measure of both runs, in the words of `bubblescope compare`. */
export interface Change {
  /** What it is of: overall, cause, kind, stage, rank or device. */
  group: string;
  /** Which of them. */
  name: string;
  /** Its value in A. */
  before: string;
  /** In B. */
  after: string;
  /** The difference, with half of its 95 % interval where noise is known. */
  rise: string;
  /** The difference as a share of A, in words. */
  relative: string;
  /** The same as a number: ns, or a rate; null where it is not known. */
  difference: number | null;
  /** Whether it is beyond the noise; null if no noise is known. */
  certain: boolean | null;
}

/** What changed of one group of measures, the largest difference first. */
export interface ChangeTable {
  title: string;
  of: string;
  changes: Change[];
}

/** One of two runs: what it is called, and what it is. */
export interface Side {
  label: string;
  said: string;
}

/** What changed from the run of a page, A, to another, B. */
export interface Against {
  /** A and B. */
  sides: Side[];
  /** The verdict in a sentence. */
  headline: string;
  /** How long a step takes; null if that is not known. */
  step: Change | null;
  /** What added to the change or took from it, what is certain first, then the largest. */
  ranked: Change[];
  /** Everything that was compared. */
  tables: ChangeTable[];
  /** What the runs do not have in common, a sentence each. */
  differs: string[];
  /** What to know before believing it. */
  notes: string[];
  /** What ± is; null where no noise is known. */
  noise: string | null;
  /** By how many ns a task has to change to be of the next colour, ascending; the last is a round number that nearly no change exceeds. */
  scale: number[];
  /** Which step is which, in the order of A's. */
  pairs: Pair[];
  /** Of the ranks of B, by the place on the page of those that they stand against. */
  rates: (RankRates | null)[];
  /** Likewise the share of the time that their devices were idle; null where it is not known. */
  idle: (number | null)[];
}

/** A column of a table as it travels. */
export interface Column {
  name: string;
  type: NumberType;
  length: number;
}

/** What could be done about one thing that makes steps long. */
export interface Remedy {
  /** Of the idle time that it is about; null if it is about other time. */
  cause: number | null;
  /** What a step would be shorter by; null where that is not known. */
  saved: number | null;
  /** What it is of a step now, where what it would save is not known. */
  spent: number | null;
  /** What to do, in a few words. */
  headline: string;
  /** What shows that. */
  evidence: string;
  /** What to do, at length. */
  advice: string;
  /** That shows it best, by its number among all tasks of the page; null if none does. */
  task: number | null;
}

/** What a run comes to. */
export interface Verdict {
  /** Of the time that is idle; null if that is not known. */
  share: number | null;
  /** How far it may be off because clocks differ. */
  error: number | null;
  /** Of which time, as the sentence goes on after the number. */
  share_of: string;
  /** What else belongs to that number. */
  said: string;
  /** What would help, that which saves most first. */
  remedies: Remedy[];
}

/** What is known of a run, whatever part of it a page holds. */
export interface Told {
  /** Heading. */
  title: string;
  /** What the run comes to. */
  verdict: Verdict;
  /** The step with which the page opens, by index: of median length; null if there is none. */
  opening: number | null;
  /** When the page's time begins, ns since the epoch; as text, for it exceeds what a number of JavaScript holds. */
  origin: string;
  /** Of the last task. */
  end: number;
  /** All kinds of tasks. */
  kinds: Kind[];
  /** How many micro-batches tasks are numbered by: one more than the greatest number. */
  microbatches: number;
  /** The same of model chunks. */
  chunks: number;
  /** In the order of the page. */
  ranks: Rank[];
  /** How ranks stand among those that do the same; empty if none can be told apart. */
  standings: Standing[];
  /** In the order of time. */
  steps: Step[];
  /** Bubble rates of the run. */
  overall: Rates;
  /** How far they may be off because clocks differ. */
  errors: Rates;
  /** What each rate is, by its name. */
  definitions: Record<string, string>;
  /** Of the run, short. */
  facts: string[];
  /** What was recognised; null if nothing was. */
  schedule: string | null;
  /** From its order. */
  departures: string[];
  /** What tasks were told by that no name states; None if names state all. */
  inferred: Inferred | null;
  /** Of reading the traces. */
  notes: string[];
  /** Likewise, that matter more. */
  warnings: string[];
  /** Of tasks, by number. */
  names: string[];
  /** None if it is not known why ranks were idle. */
  causes: Cause[];
  /** What could have been. */
  overlays: Overlay[];
  /** Which of them the page opens with above all that was measured. */
  above: OverlayLane | null;
  /** What can be asked about the run; None if nothing can. */
  whatif: WhatIf | null;
  /** How long tasks take. */
  spread: Spread[];
  /** What was measured beside the tasks. */
  counters: Counter[];
  /** Where the values of counters are. */
  samples: SampleExtent[];
  /** None if the page was made without. */
  kernels: KernelHead | null;
  /** How to get them, if the traces hold some. */
  no_kernels: string | null;
  /** What communicated in tasks. */
  communicating: Communicating[];
  /** Of ranks that communicate. */
  groups: Group[];
  /** What devices spent their time on; None if the traces do not tell. */
  devices: Devices | null;
  /** When nothing was recorded of ranks, by rank and time. */
  unrecorded: Unrecorded[];
  /** What changed to another run; None if the page shows one. */
  against: Against | null;
}

/** All that a page knows of a run but its tasks, gaps, links and kernels. */
export interface Head extends Told {
  /** Of tasks, top to bottom. */
  rows: Row[];
  /** Where those of a rank are. */
  gaps: Extent[];
  /** Of kernels. */
  kernel_rows: KernelRow[];
  /** Of each table. */
  columns: Record<TableName, Column[]>;
  /** Whether tasks, gaps, links and kernels are loaded as they come into sight. */
  served?: boolean;
}

/** What a server sends of a run before the tables of what is in sight. */
export interface Part {
  /** Whether it is all of what is in sight. */
  complete: boolean;
  /** Parts of the run, by number, of which it is not known yet why ranks are idle. */
  unexplained: number[];
  /** How many tasks each of the head's rows has here. */
  rows: number[];
  /** How many gaps each rank has here. */
  gaps: number[];
  /** How many kernels each row of them has here. */
  kernels: number[];
  /** Of each table that follows. */
  columns: Record<TableInSight, Column[]>;
  /** Of each of them in bytes. */
  sizes: Record<TableInSight, number>;
}

/** What a server answers to who asks why ranks are idle in what is in sight. */
export interface Explained {
  /** "explained" where that is known now of more of the parts that were named, "closer" where too many are in sight at once, "unknown" where it cannot be worked out, "elsewhere" where none of them is in sight. */
  idle: Idle;
}

/** What a search asks of a column of tasks or gaps; what is not known meets none. */
export interface Condition {
  /** Of which. Kinds and causes are numbers in the head; `length` is in ns; `slowness` is how many times as long as the median of its kind and stage a task takes; `gained` and `lost` are by how many ns it is shorter or longer in B than in A. */
  column: SearchColumn;
  /** From where on. */
  least?: number | null;
  /** Up to where. */
  most?: number | null;
  /** Whether neither of these is within. */
  open?: boolean;
  /** Of a host, a part of its name; of a task, a part of its name in any case; of a lane or a standing, all of it. */
  text?: string | null;
}

/** One word of a search: any of some sets of conditions has to hold whole, or if negated none. */
export interface SearchWord {
  any: Condition[][];
  negated: boolean;
}

/** What a query asks for, as `viewer/src/search.ts` reads it: any of some sets of words. */
export interface Search {
  what: "task" | "gap";
  sets: SearchWord[][];
}

/** What a server's search found. */
export interface Found {
  /** Of what. */
  what: "task" | "gap";
  /** How many. */
  count: number;
  /** The first of them, by their number. */
  ids: number[];
  /** Steps that were left out, because it is not known why ranks are idle in them. */
  unexplained: number;
}

/** What a server answers to a question about a run. */
export interface Asked {
  /** What is said. */
  answer: Answer;
  /** Of all lanes while it is shown: the run's, and those of its tasks. */
  rows: Row[];
  /** Of tasks that the run has none of, numbered after those that it has. */
  names: string[];
  /** What sentences of the answer are in Chinese, if the server speaks it. */
  chinese?: Record<string, string>;
}

/** Where a task or gap of a run is, of which only a part is here. */
export interface Where {
  rank: number;
  lane: Lane;
  start: number;
  end: number;
}

/** What happened in a stretch of time on some ranks. */
export interface Totals {
  /** How many. */
  ranks: number;
  /** The stretch, times the ranks. */
  spanned: number;
  /** Of it on compute lanes. */
  busy: number;
  /** Of it. */
  idle: number;
  /** Time of each kind on compute lanes. */
  kinds: number[];
  /** How many of each kind are there. */
  tasks: number[];
  /** Time of each kind on the lanes beside them, of communication and the host. */
  kinds_beside: number[];
  /** How many of each kind are there. */
  tasks_beside: number[];
  /** Idle time of each cause. */
  causes: number[];
  /** Steps in the stretch of which causes are not known. */
  unexplained: number;
}

/** What ran in a stretch of time on one rank. */
export interface Inside {
  /** Of kernels, copies and fills that ran in it, in whole or in part. */
  count: number;
  /** Time in which any computed. */
  compute: number;
  /** In which any communicated, and none computed. */
  communication: number;
  /** In which any copied, and none computed or communicated. */
  copy: number;
  /** Of each of the names that took longest, the most first: its number, how long in the stretch, however they overlap, and how many. */
  top: [number, number, number][];
}
