"""The page's data: what Python writes into a page and the viewer reads, once for both.

`viewer/src/schema.ts` is made of this module by `viewer/schema.py`; a test tells when it is behind.
All times are whole nanoseconds since the page's origin, all lengths whole nanoseconds. A rank is
named by its place on the page, which is its index in `Head.ranks`; kinds, causes, counters and names
likewise by their index in the head.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from bubblescope.render.palette import Pattern  # noqa: TC001  the schema of what is written is read from it

Lane = Literal["compute", "against", "ideal", "whatif", "comm", "host"]
OverlayLane = Literal["against", "ideal", "whatif"]
NumberType = Literal["u8", "i16", "i32", "u32", "f64"]
TableName = Literal[
    "tasks", "gaps", "links", "phases", "cells", "samples", "kernels", "communication", "ghosts"
]
Span = Literal["pipeline phase", "step", "capture"]
StandingName = Literal["odd", "waits", "alike"]
TableInSight = Literal["tasks", "gaps", "links", "kernels", "communication"]
Idle = Literal["explained", "closer", "unknown", "elsewhere"]

SearchColumn = Literal[
    "rank",
    "host",
    "standing",
    "lane",
    "step",
    "length",
    "cause",
    "kind",
    "stage",
    "chunk",
    "microbatch",
    "peer",
    "pair",
    "pair_chunk",
    "name",
    "slowness",
    "gained",
    "lost",
]

_TASKS: Final = (
    *("gap", "length", "busy", "lead", "kind", "microbatch", "chunk", "stage", "step", "peer"),
    *("pair", "pair_chunk", "name"),
)

TABLES: Final[dict[TableName, tuple[str, ...]]] = {
    "tasks": _TASKS,
    "gaps": ("gap", "length", "step", "cause", "task_step", "root"),
    "links": ("source_step", "reach"),
    "phases": ("rank", "step", "start", "steady", "cool", "end"),
    "cells": ("rank", "step", "busy", "span"),
    "samples": ("gap", "value"),
    "kernels": ("gap", "length", "cut", "use", "name", "module", "lead"),
    "communication": ("task_step", "of", "exposed", "hidden"),
    "ghosts": _TASKS,
}
"""Columns of each table, as `bubblescope.render.html.packing` makes them."""

OPTIONAL: Final[dict[TableName, tuple[str, ...]]] = {
    "tasks": (
        *("computing", "communicating", "copying", "waited", "awaited", "off"),
        *("certainty", "counterpart", "change", "id", "merged"),
    ),
    "gaps": ("id", "root_id", "merged"),
    "kernels": ("id", "merged"),
}
"""Columns that a table has only where they are known, or where the page holds a part of a run.

`waited` is how long a collective did until its last rank came, 0 if that is no longer than clocks may
be `off`, and `awaited` the place of that rank; all are -1 where they are not known. Of what several
are `merged` to, the first is how long they did together, and the others are not known. `certainty` is
the probability in per cent that a task is what it was inferred to be, -1 where the trace states it.
`counterpart`, on a page of two runs, is how many rows further the same task of the other run is; 0 if
it has none. `change`, where only a part of the rows is there, is by how many ns it is longer in B.
"""


class Shades(msgspec.Struct, frozen=True, kw_only=True):
    """A fill, what is written on it, and the lines around it."""

    fill: str
    ink: str
    outline: str


class Shaded(Shades, frozen=True, kw_only=True):
    """The same on a light ground and on a dark one."""

    dark: Shades


class Kind(Shaded, frozen=True, kw_only=True):
    """A kind of task: its name, what blocks say, and its colours.

    Attributes:
        spent: What a rank's compute lane spends in it a step, the mean of all.
        beside: The same of the lanes beside it, of communication and the host.
    """

    name: str
    short: str
    spent: int
    beside: int


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Bubble rates by their names; null where one is not known."""

    span: float | None
    makespan: float | None
    longest_span: float | None
    over_ideal: float | None
    no_wait: float | None
    excess: float | None


class RankRates(Rates, frozen=True, kw_only=True):
    """Those of a rank; the error is that of the makespan rate."""

    error: float | None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks that stand alike among those that do the same have in common."""

    name: StandingName
    said: str


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank and where it is; `off` is how far its clock may be off the first host's.

    `reason` says why it does not stand as most do; `like` is a rank that should do what it does. `idle`
    is the share of the time that its devices were idle, where the run is no pipeline; null where it is,
    and its rates say how much it was idle, or where that is not known.
    """

    rank: int
    host: str
    stages: list[int] | None
    device: int | None
    process: int | None
    pp: int | None
    dp: int | None
    tp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    edp: int | None
    off: int | None
    standing: StandingName
    reason: str | None
    like: int | None
    rates: RankRates | None
    idle: float | None


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why ranks were idle.

    Attributes:
        dark: Its fill on a dark ground.
        inherent: Whether it is inherent to the schedule.
        share: Of all idle time.
        idle: What a rank is idle for it a step, the mean of all.
        saved: What a step would be shorter by without it alone; null where that is not known.
    """

    name: str
    meaning: str
    pattern: Pattern
    fill: str
    dark: str
    inherent: bool
    share: float
    idle: int
    saved: int | None


class Extent(msgspec.Struct, frozen=True, kw_only=True, rename={"first": "from"}):
    """Which rows of a table belong to a rank: from the first to one past the last, by time.

    Tasks may overlap by as little as a trace cannot tell from none; then the later is drawn from the
    earlier's end.
    """

    rank: int
    first: int
    to: int


class Row(Extent, frozen=True, kw_only=True):
    """One row of blocks: part of a lane of a rank."""

    lane: Lane
    row: int


class KernelRow(Extent, frozen=True, kw_only=True):
    """One row of kernels: of a stream, of which there are several where its kernels overlap."""

    device: int
    stream: int
    row: int


class SampleExtent(Extent, frozen=True, kw_only=True):
    """Where the samples of a counter of a rank are."""

    counter: int


class Overlay(msgspec.Struct, frozen=True, kw_only=True):
    """What a run could have been, shown in lanes of its own beside those that were measured.

    `idle` is how much each rank, by index, would have been idle in it; null where that is not known, or
    where the rates of ranks say it.
    """

    lane: OverlayLane
    name: str
    detail: str
    idle: list[float | None] | None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would have taken, had something been different.

    Attributes:
        asked: The question, as options of a command line.
        change: What is different.
        needs: What that takes; empty if it is clear from the change.
        predicted: What a step takes then; of a range, the longer end.
        saved: By how much a step is shorter then.
        share: How much less a micro-batch takes, as a share; negative if it takes more.
        error: How far either end may be off, as a share of a step.
        best: The shorter end, where only a range is known.
        best_if: What has to be so for that.
        rows: Of its tasks among the ghosts; empty if the page does not hold them.
        idle: How much each rank, by index, would have been idle; empty likewise.
    """

    asked: str
    change: str
    needs: str
    predicted: int
    saved: int
    share: float
    error: float
    best: int | None
    best_if: str
    rows: list[Row]
    idle: list[float | None]


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """What can be asked about a run, and what was answered before it was asked.

    Attributes:
        command: What asks when the options of a question follow it, as one types it; None if the run
            was not read as a command could.
        step: What is predicted, as measured.
        span: What that is: the mean "pipeline phase" of a step, from its first forward to its last
            backward; without a pipeline a "step", or the whole "capture".
        moves: Whether stages, ranks and layers can be asked about, and an answer has lanes.
        causes: Causes of idle time, or classes of what devices spend time on, that the run can be
            asked to be without.
        stages: Those that there are.
        layers: How many each stage has; None if nobody said.
        answers: By what they save, most first.
    """

    command: str | None
    step: int
    span: Span
    moves: bool
    causes: list[str]
    stages: list[int]
    layers: list[int] | None
    answers: list[Answer]


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How long tasks of a kind take on one stage, or where the stage is not known.

    `low`, `middle` and `high` are the quartiles.
    """

    kind: int
    stage: int | None
    count: int
    least: int
    low: int
    middle: int
    high: int
    most: int
    mean: int


class Counter(msgspec.Struct, frozen=True, kw_only=True):
    """Something measured beside the tasks, such as memory."""

    name: str
    unit: str
    least: float
    most: float


class KernelUse(Shaded, frozen=True, kw_only=True):
    """What kernels do."""

    name: str


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What devices lose time to.

    Attributes:
        name: Of the class of time, as in `Devices`.
        detail: What of it is known besides, such as an operation; empty if nothing is.
        time: How long, of all devices.
        share: Of all their time.
    """

    name: str
    detail: str
    time: int
    share: float


class RankWaits(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank, given by its place, came to collectives whose kernels could be matched.

    Attributes:
        collectives: In how many of them it took part.
        last: In how many it alone came last.
        waits: How long it waited for others while nothing computed, at least, as a share of its time.
        late: How much later than half of the ranks it came, at least, likewise.
    """

    rank: int
    collectives: int
    last: int
    waits: float
    late: float


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """What every nanosecond of the devices was spent on.

    Times are lists: of what devices were busy with, in the order of `uses`, and then of the classes of
    idle time, in the order of `idle`.

    Attributes:
        uses: What devices were busy with; what runs first of them names the time.
        idle: Classes of idle time that there are.
        overall: Of all devices, from each one's first operation to its last.
        step: A step, the mean of all devices; of a run without steps, all of it.
        ranks: By rank, as of `overall`; null where that is not known.
        steps: By step, of all devices.
        open: Steps, by index, whose end was not recorded.
        losses: What time is lost to, most first.
        untold: Sentences: of which time the traces do not tell what it was spent on.
        waits: Who waits for whom in collectives; empty where hardly anybody does, or it is not known.
    """

    uses: list[KernelUse]
    idle: list[str]
    overall: list[int]
    step: list[int]
    ranks: list[list[int] | None]
    steps: list[list[int] | None]
    open: list[int]
    losses: list[Loss]
    untold: list[str]
    waits: list[RankWaits]


class Inferred(msgspec.Struct, frozen=True, kw_only=True):
    """What tells tasks that no name states.

    Attributes:
        how: What they were told by.
        way: What would have them stated, with commands between backticks; None if nothing is known.
    """

    how: str
    way: str | None


class KernelHead(msgspec.Struct, frozen=True, kw_only=True):
    """Of the kernels of a page: what their numbers mean.

    What runs first of the uses names the time; of each name, its short and full form.
    """

    uses: list[KernelUse]
    names: list[tuple[str, str]]
    modules: list[str]


class Communicating(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that communicates in groups of one role; null where the trace does not tell.

    `said` is what the groups are for, in a few words.
    """

    role: str | None
    said: str
    operation: str | None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that communicate with each other, by their own numbers, and for what."""

    role: str
    ranks: list[int]


class Unrecorded(msgspec.Struct, frozen=True, kw_only=True):
    """Time in which nothing was recorded of a rank, given by its place: between two captures of it."""

    rank: int
    start: int
    end: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step, from its first task to its last; of devices that run whole models, to the next one.

    What communicates ahead of all other tasks is no beginning. `phase` is how long its pipeline phase
    takes, `makespan` the share of that which is idle, and `error` how far it may be off because clocks
    differ. Of devices that run whole models `phase` is how long they were in the step, the mean, and
    `idle` the share of it that all were idle, as that of a rank.
    """

    step: int
    start: int
    end: int
    phase: int | None
    makespan: float | None
    error: float | None
    idle: float | None


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A step of A and the one of B that stands against it; null is all of a run without steps.

    `shift` is how much later the lane of B has to be for both to begin at once, `end` where the last of
    B's step then is.
    """

    step: int | None
    other: int | None
    shift: int
    end: int


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A measure of both runs, in the words of `bubblescope compare`.

    Attributes:
        group: What it is of: overall, cause, kind, stage, rank or device.
        name: Which of them.
        before: Its value in A.
        after: In B.
        rise: The difference, with half of its 95 % interval where noise is known.
        relative: The difference as a share of A, in words.
        difference: The same as a number: ns, or a rate; null where it is not known.
        certain: Whether it is beyond the noise; null if no noise is known.
    """

    group: str
    name: str
    before: str
    after: str
    rise: str
    relative: str
    difference: float | None
    certain: bool | None


class ChangeTable(msgspec.Struct, frozen=True, kw_only=True):
    """What changed of one group of measures, the largest difference first."""

    title: str
    of: str
    changes: list[Change]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of two runs: what it is called, and what it is."""

    label: str
    said: str


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """What changed from the run of a page, A, to another, B.

    Attributes:
        sides: A and B.
        headline: The verdict in a sentence.
        step: How long a step takes; null if that is not known.
        ranked: What added to the change or took from it, what is certain first, then the largest.
        tables: Everything that was compared.
        differs: What the runs do not have in common, a sentence each.
        notes: What to know before believing it.
        noise: What ± is; null where no noise is known.
        scale: By how many ns a task has to change to be of the next colour, ascending; the last is
            a round number that nearly no change exceeds.
        pairs: Which step is which, in the order of A's.
        rates: Of the ranks of B, by the place on the page of those that they stand against.
        idle: Likewise the share of the time that their devices were idle; null where it is not known.
    """

    sides: list[Side]
    headline: str
    step: Change | None
    ranked: list[Change]
    tables: list[ChangeTable]
    differs: list[str]
    notes: list[str]
    noise: str | None
    scale: list[int]
    pairs: list[Pair]
    rates: list[RankRates | None]
    idle: list[float | None]


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table as it travels."""

    name: str
    type: NumberType
    length: int


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What could be done about one thing that makes steps long.

    Attributes:
        cause: Of the idle time that it is about; null if it is about other time.
        saved: What a step would be shorter by; null where that is not known.
        spent: What it is of a step now, where what it would save is not known.
        headline: What to do, in a few words.
        evidence: What shows that.
        advice: What to do, at length.
        task: That shows it best, by its number among all tasks of the page; null if none does.
    """

    cause: int | None
    saved: int | None
    spent: int | None
    headline: str
    evidence: str
    advice: str
    task: int | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a run comes to.

    Attributes:
        share: Of the time that is idle; null if that is not known.
        error: How far it may be off because clocks differ.
        share_of: Of which time, as the sentence goes on after the number.
        said: What else belongs to that number.
        remedies: What would help, that which saves most first.
    """

    share: float | None
    error: float | None
    share_of: str
    said: str
    remedies: list[Remedy]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run, whatever part of it a page holds.

    Attributes:
        title: Heading.
        verdict: What the run comes to.
        opening: The step with which the page opens, by index: of median length; null if there is none.
        origin: When the page's time begins, ns since the epoch; as text, for it exceeds what a number
            of JavaScript holds.
        end: Of the last task.
        kinds: All kinds of tasks.
        microbatches: How many micro-batches tasks are numbered by: one more than the greatest number.
        chunks: The same of model chunks.
        ranks: In the order of the page.
        standings: How ranks stand among those that do the same; empty if none can be told apart.
        steps: In the order of time.
        overall: Bubble rates of the run.
        errors: How far they may be off because clocks differ.
        definitions: What each rate is, by its name.
        facts: Of the run, short.
        schedule: What was recognised; null if nothing was.
        departures: From its order.
        inferred: What tasks were told by that no name states; None if names state all.
        notes: Of reading the traces.
        warnings: Likewise, that matter more.
        names: Of tasks, by number.
        causes: None if it is not known why ranks were idle.
        overlays: What could have been.
        above: Which of them the page opens with above all that was measured.
        whatif: What can be asked about the run; None if nothing can.
        spread: How long tasks take.
        counters: What was measured beside the tasks.
        samples: Where the values of counters are.
        kernels: None if the page was made without.
        no_kernels: How to get them, if the traces hold some.
        communicating: What communicated in tasks.
        groups: Of ranks that communicate.
        devices: What devices spent their time on; None if the traces do not tell.
        unrecorded: When nothing was recorded of ranks, by rank and time.
        against: What changed to another run; None if the page shows one.
    """

    title: str
    verdict: Verdict
    opening: int | None
    origin: str
    end: int
    kinds: list[Kind]
    microbatches: int
    chunks: int
    ranks: list[Rank]
    standings: list[Standing]
    steps: list[Step]
    overall: Rates
    errors: Rates
    definitions: dict[str, str]
    facts: list[str]
    schedule: str | None
    departures: list[str]
    inferred: Inferred | None
    notes: list[str]
    warnings: list[str]
    names: list[str]
    causes: list[Cause]
    overlays: list[Overlay]
    above: OverlayLane | None
    whatif: WhatIf | None
    spread: list[Spread]
    counters: list[Counter]
    samples: list[SampleExtent]
    kernels: KernelHead | None
    no_kernels: str | None
    communicating: list[Communicating]
    groups: list[Group]
    devices: Devices | None
    unrecorded: list[Unrecorded]
    against: Against | None


class Head(Told, frozen=True, kw_only=True, omit_defaults=True):
    """All that a page knows of a run but its tasks, gaps, links and kernels.

    Attributes:
        rows: Of tasks, top to bottom.
        gaps: Where those of a rank are.
        kernel_rows: Of kernels.
        columns: Of each table.
        served: Whether tasks, gaps, links and kernels are loaded as they come into sight.
    """

    rows: list[Row]
    gaps: list[Extent]
    kernel_rows: list[KernelRow]
    columns: dict[TableName, list[Column]]
    served: bool = False


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a server sends of a run before the tables of what is in sight.

    Attributes:
        complete: Whether it is all of what is in sight.
        unexplained: Parts of the run, by number, of which it is not known yet why ranks are idle.
        rows: How many tasks each of the head's rows has here.
        gaps: How many gaps each rank has here.
        kernels: How many kernels each row of them has here.
        columns: Of each table that follows.
        sizes: Of each of them in bytes.
    """

    complete: bool
    unexplained: list[int]
    rows: list[int]
    gaps: list[int]
    kernels: list[int]
    columns: dict[TableInSight, list[Column]]
    sizes: dict[TableInSight, int]


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """What a server answers to who asks why ranks are idle in what is in sight.

    Attributes:
        idle: "explained" where that is known now of more of the parts that were named, "closer" where
            too many are in sight at once, "unknown" where it cannot be worked out, "elsewhere" where
            none of them is in sight.
    """

    idle: Idle


class Condition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a search asks of a column of tasks or gaps; what is not known meets none.

    Attributes:
        column: Of which. Kinds and causes are numbers in the head; `length` is in ns; `slowness` is
            how many times as long as the median of its kind and stage a task takes; `gained` and `lost`
            are by how many ns it is shorter or longer in B than in A.
        least: From where on.
        most: Up to where.
        open: Whether neither of these is within.
        text: Of a host, a part of its name; of a task, a part of its name in any case; of a lane or
            a standing, all of it.
    """

    column: SearchColumn
    least: float | None = None
    most: float | None = None
    open: bool = False
    text: str | None = None


class SearchWord(msgspec.Struct, frozen=True, kw_only=True):
    """One word of a search: any of some sets of conditions has to hold whole, or if negated none."""

    any: list[list[Condition]]
    negated: bool


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What a query asks for, as `viewer/src/search.ts` reads it: any of some sets of words."""

    what: Literal["task", "gap"]
    sets: list[list[SearchWord]]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a server's search found.

    Attributes:
        what: Of what.
        count: How many.
        ids: The first of them, by their number.
        unexplained: Steps that were left out, because it is not known why ranks are idle in them.
    """

    what: Literal["task", "gap"]
    count: int
    ids: list[int]
    unexplained: int


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a server answers to a question about a run.

    Attributes:
        answer: What is said.
        rows: Of all lanes while it is shown: the run's, and those of its tasks.
        names: Of tasks that the run has none of, numbered after those that it has.
        chinese: What sentences of the answer are in Chinese, if the server speaks it.
    """

    answer: Answer
    rows: list[Row]
    names: list[str]
    chinese: dict[str, str] = {}


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Where a task or gap of a run is, of which only a part is here."""

    rank: int
    lane: Lane
    start: int
    end: int


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a stretch of time on some ranks.

    Attributes:
        ranks: How many.
        spanned: The stretch, times the ranks.
        busy: Of it on compute lanes.
        idle: Of it.
        kinds: Time of each kind on compute lanes.
        tasks: How many of each kind are there.
        kinds_beside: Time of each kind on the lanes beside them, of communication and the host.
        tasks_beside: How many of each kind are there.
        causes: Idle time of each cause.
        unexplained: Steps in the stretch of which causes are not known.
    """

    ranks: int
    spanned: int
    busy: int
    idle: int
    kinds: list[int]
    tasks: list[int]
    kinds_beside: list[int]
    tasks_beside: list[int]
    causes: list[int]
    unexplained: int


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """What ran in a stretch of time on one rank.

    Attributes:
        count: Of kernels, copies and fills that ran in it, in whole or in part.
        compute: Time in which any computed.
        communication: In which any communicated, and none computed.
        copy: In which any copied, and none computed or communicated.
        top: Of each of the names that took longest, the most first: its number, how long in the
            stretch, however they overlap, and how many.
    """

    count: int
    compute: int
    communication: int
    copy: int
    top: list[tuple[int, int, int]]
