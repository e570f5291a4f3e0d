"""The measured run as a graph that can be replayed: what each task waited for, and for how long.

A task starts when its device is free, when the results that it needs have arrived, and when its host
and its device get round to it. So of the time before its start, what is not another task's time is

* transfer: how long a result is on its way, on the edge from the pass that made it, and
* lag: how long the task starts after all of that, at the task itself.

Where sends and receives were recorded, a transfer lasts from the later start of both to the end of the
receive: one that waits for its peer is not transferring (Lin et al., OSDI 2025, arXiv 2505.05713,
section 3.2). Elsewhere it is the least that a result ever took between two ranks in one direction,
among those that their receiver, launched before, was waiting for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.idle.held_sends import held_sends
from bubblescope.analysis.idle.whole_run_facts import LINK, Ways, early_between, still_before
from bubblescope.analysis.pipeline_phase import compared, pipelines
from bubblescope.model.dependencies import messages, passes, with_turns
from bubblescope.model.errors import ScheduleError
from bubblescope.model.extents import extents
from bubblescope.model.intervals import reached_ns
from bubblescope.model.kinds import Kind
from bubblescope.model.ordering import order_of_runs, stretches_of
from bubblescope.schedules.parts import Parts
from bubblescope.schedules.replay import Edges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.idle.whole_run_facts import Known
    from bubblescope.model.arrays import Ints, Mask, Numbers
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.levels import Delays
    from bubblescope.schedules.replay import Graph

_NOTHING: Final = -1

_PART: Final = 1 << 16
"""Tasks of a part of a run, about: their columns fit into a processor's cache."""

_WIDE: Final = 512
"""Tasks of a part for each task of its busiest rank in a step: about so many are at the same depth."""

_NEEDED: Final = (*("task", "rank", "step", "kind", "stage", "microbatch", "start_ns", "end_ns"),)
"""Columns of tasks that a measured run is made of."""


class Replay(msgspec.Struct, frozen=True, eq=False):
    """When the tasks of a run ran, or would have run, and the idle time that this makes.

    Attributes:
        start_ns, end_ns: Of each task, since its step's first start; n long.
        gap_ns: How long the rank was idle before each task; n long.
        tail_ns: How long each rank was idle after its last task until the step was over; g long.
        length_ns: How long each step lasted, s long.
    """

    start_ns: Ints
    end_ns: Ints
    gap_ns: Ints
    tail_ns: Ints
    length_ns: Ints

    @property
    def step_ns(self) -> int:
        """How long a step lasted, the mean."""
        return round(float(self.length_ns.mean()))


class Waits(NamedTuple):
    """What the tasks of a run wait for, and how long, put in order once for many replays.

    Attributes:
        graph: In what order the tasks are; its edges begin with those within groups.
        delays: How long results are on their way.
    """

    graph: Parts
    delays: list[Delays]

    @classmethod
    def of(cls, graph: Parts, delay_ns: Ints) -> Self:
        """Take the delays of its edges."""
        return cls(graph, graph.delays(delay_ns))


class MeasuredRun(msgspec.Struct, frozen=True, eq=False):
    """The pipeline tasks of a run, in the order in which each rank ran them in each step.

    There are n tasks in g groups, one for each rank in each of s steps, and e edges: those within
    groups come first, then those from stage to stage, then those of sends that were held up.

    Attributes:
        task: Row in the timeline; n long, as all up to `feeder`.
        rank: As there.
        step: Index into `steps`.
        group: Number of the task's group, ascending.
        kind: Index into the members of `Kind`.
        stage, microbatch: As in the timeline; -1 where unknown.
        ready_ns: When the task could have started: its device was free and all results were there;
            since its step's first start, as all times.
        feeder: The task whose result came last, if the task had to wait for it; else -1.
        steps: The steps; None stands for a run without. Where pipelines run their steps each for
            itself, each of their steps is one of these, and `s` is the number of all.
        pipelines: Frame with rank and pipeline, as `bubblescope.analysis.pipeline_phase.pipelines`.
        pipeline: Of each of `steps`.
        opens_ns: First start of each step on the timeline's clock.
        first: First task of each group, and n: g + 1 long.
        graph: What waits for what: within a group, each for the one before it that ends last. Its
            parts are of whole steps.
        within: Number of the edges that are within a group.
        delay_ns: For each edge, how long after its source's end its target may start: how long the
            result was on its way, or less than 0 where tasks of a group overlap, and where either
            task is an overlapped pair, of whose halves no one knows when they ran.
        held: Number of the edges from a task to what another rank could begin only after the task's
            rank had taken what that other one sent; their delays are mostly less than 0.
        early_ns: For each edge from stage to stage, by how much its target started before its
            source's end, which clocks or trace must have wrong; 0 or less, e - within - held long.
        recorded: Number of transfers that were recorded, not inferred.
        left_out: Number of results that are no edges, because tasks would wait for each other in a
            circle: they were used before they were begun to be made.
        as_measured: The run as it was measured.
    """

    task: Numbers
    rank: Numbers
    step: Numbers
    group: Numbers
    kind: Numbers
    stage: Numbers
    microbatch: Numbers
    ready_ns: Ints
    feeder: Numbers
    steps: list[int | None]
    pipelines: pl.DataFrame
    pipeline: list[int]
    opens_ns: Ints
    first: Ints
    graph: Parts
    within: int
    held: int
    delay_ns: Ints
    early_ns: Ints
    recorded: int
    left_out: int
    as_measured: Replay

    def __len__(self) -> int:
        return len(self.task)

    @property
    def links(self) -> slice:
        """Which of the edges are from stage to stage."""
        return slice(self.within, len(self.delay_ns) - self.held)

    @property
    def duration_ns(self) -> Ints:
        """How long each task took, n long."""
        return self.as_measured.end_ns - self.as_measured.start_ns

    @property
    def lag_ns(self) -> Ints:
        """How long each task started after it could have, n long."""
        lag: Ints = np.maximum(self.as_measured.start_ns - self.ready_ns, 0)
        return lag

    @property
    def outer(self) -> Ints:
        """The task within which each lies, the one that ends last of several; -1 for none; n long."""
        end = self.as_measured.end_ns
        before = _longest_before(end, self.group)
        within = (self.group[before] == self.group) & (end[before] >= end)
        within[:1] = False
        return np.where(within, before, _NOTHING)

    def replay(
        self,
        duration_ns: Ints | None = None,
        lag_ns: Ints | None = None,
        waits: Waits | None = None,
    ) -> Replay:
        """Return the run with other durations, lags or delays; as measured where left out.

        Args:
            duration_ns: How long each task takes.
            lag_ns: How long it starts after it could.
            waits: What it waits for, and how long.
        """
        return as_replay(*self._times(duration_ns, lag_ns, waits), self.first, self.step)

    def lengths(
        self,
        duration_ns: Ints | None = None,
        lag_ns: Ints | None = None,
        waits: Waits | None = None,
    ) -> Ints:
        """Return how long each step of `replay` is, s long, without looking for its idle time."""
        start, end = self._times(duration_ns, lag_ns, waits)
        turn = _turns(self.first, self.step)
        length: Ints = np.maximum.reduceat(end, turn) - np.minimum.reduceat(start, turn)
        return length

    def _times(
        self, duration_ns: Ints | None, lag_ns: Ints | None, waits: Waits | None
    ) -> tuple[Ints, Ints]:
        """Return when each task starts and ends; arguments as of `replay`."""
        duration = self.duration_ns if duration_ns is None else duration_ns
        lag = self.lag_ns if lag_ns is None else lag_ns
        graph, delays = waits or Waits.of(self.graph, self.delay_ns)
        end = graph.ends(duration + lag, delays)
        return end - duration, end

    def links_of(self, index: int) -> Ints:
        """Return which of the edges from stage to stage are of one part of the run's graph."""
        own = self.graph.own[index] - self.within
        return own[(own >= 0) & (own < len(self.early_ns))]

    def part(self, index: int) -> MeasuredRun:
        """Return one part of the run's graph as a run of its own, with tasks numbered from 0."""
        tasks, own = self.graph.operations[index], self.graph.own[index]
        begin, end = np.searchsorted(self.first, (tasks.start, tasks.stop)).tolist()
        groups = slice(begin, end)
        step = slice(int(self.step[tasks.start]), int(self.step[tasks.stop - 1]) + 1)
        links, within = self.links_of(index), int(np.searchsorted(own, self.within))
        feeder, measured = self.feeder[tasks], self.as_measured
        return MeasuredRun(
            task=self.task[tasks],
            rank=self.rank[tasks],
            step=self.step[tasks] - step.start,
            group=self.group[tasks] - begin,
            kind=self.kind[tasks],
            stage=self.stage[tasks],
            microbatch=self.microbatch[tasks],
            ready_ns=self.ready_ns[tasks],
            feeder=np.where(feeder < 0, feeder, feeder - tasks.start),
            steps=self.steps[step],
            pipelines=self.pipelines,
            pipeline=self.pipeline[step],
            opens_ns=self.opens_ns[step],
            first=self.first[begin : end + 1] - tasks.start,
            graph=self.graph.alone(index),
            within=within,
            held=len(own) - within - len(links),
            delay_ns=self.delay_ns[own],
            early_ns=self.early_ns[links],
            recorded=self.recorded,
            left_out=self.left_out,
            as_measured=Replay(
                measured.start_ns[tasks],
                measured.end_ns[tasks],
                measured.gap_ns[tasks],
                measured.tail_ns[groups],
                measured.length_ns[step],
            ),
        )

    def only(self, steps: Mask) -> tuple[MeasuredRun, Mask, Mask]:
        """Return some of its steps as a run of their own, with which of its tasks and edges these are.

        Args:
            steps: Which, s long.
        """
        tasks = steps[self.step]
        place = np.cumsum(tasks) - 1
        edges = tasks[self.graph.edges.target]
        groups = steps[self.step[self.first[:-1]]]
        links = edges[self.links]
        sizes = np.diff(self.first)[groups]
        kept = np.flatnonzero(steps)
        step = (np.cumsum(steps) - 1)[self.step[tasks]]
        opening = stretches_of(step)
        local = Edges(*(place[end[edges]] for end in self.graph.edges))
        feeder, measured = self.feeder[tasks], self.as_measured
        run = msgspec.structs.replace(
            self,
            **{
                name: getattr(self, name)[tasks]
                for name in ("task", "rank", "kind", "stage", "microbatch", "ready_ns")
            },
            step=step,
            group=np.repeat(np.arange(len(sizes)), sizes),
            feeder=np.where(feeder < 0, feeder, place[feeder]),
            steps=[self.steps[at] for at in kept],
            pipeline=[self.pipeline[at] for at in kept],
            opens_ns=self.opens_ns[kept],
            first=np.append(0, np.cumsum(sizes)),
            graph=Parts(local, np.append(opening, len(step))),
            within=int(edges[: self.within].sum()),
            held=int(edges[len(edges) - self.held :].sum()),
            delay_ns=self.delay_ns[edges],
            early_ns=self.early_ns[links],
            as_measured=Replay(
                measured.start_ns[tasks],
                measured.end_ns[tasks],
                measured.gap_ns[tasks],
                measured.tail_ns[groups],
                measured.length_ns[kept],
            ),
        )
        return run, tasks, edges


def as_replay(start_ns: Ints, end_ns: Ints, first: Ints, step: Ints) -> Replay:
    """Return tasks with the idle time around them.

    Args:
        start_ns: When each task starts, n long; those of a group may be in any order. What is
            returned is written over it.
        end_ns: When it ends; likewise.
        first: First task of each group, and n.
        step: Index of each task's step.
    """
    begins, turn = first[:-1], _turns(first, step)
    opened = np.minimum.reduceat(start_ns, turn)[step]
    start_ns -= opened
    end_ns -= opened
    del opened
    length = np.maximum.reduceat(end_ns, turn)
    sizes = np.diff(first)
    group = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    earlier = np.zeros(len(start_ns), bool)  # than the task before
    np.less(start_ns[1:], start_ns[:-1], out=earlier[1:])
    earlier[begins] = False
    order = np.lexsort((start_ns, group)) if earlier.any() else None
    by_start = (start_ns, end_ns) if order is None else (start_ns[order], end_ns[order])
    gap = reached_ns(by_start[1], group)
    np.maximum(gap, 0, out=gap)
    np.subtract(by_start[0], gap, out=gap)
    np.maximum(gap, 0, out=gap)
    if order is not None:
        gap[order] = gap.copy()
    tail = length[step[begins]] - np.maximum.reduceat(end_ns, begins)
    return Replay(start_ns, end_ns, gap, tail, length)


def _turns(first: Ints, step: Ints) -> Ints:
    """Return the first task of each step, s long; arguments as of `as_replay`."""
    begins = first[:-1]
    return begins[stretches_of(step[begins])]


def measured_run(
    timeline: Timeline, known: Known | None = None, like: Sequence[Graph] = ()
) -> MeasuredRun | None:
    """Return the graph of a run; None if it has no pipeline tasks or its ranks share no clock.

    Steps that only some of the ranks have are left out, as of bubble rates.

    Args:
        timeline: The run, or whole steps of one that were told of it.
        known: What the whole run tells these steps; as they tell if left out.
        like: Graphs of other steps, which mostly wait for the same.
    """
    linked = Linked.of(timeline, None if known is None else known.still)
    if linked is None:
        return None
    column, measured = linked.column, linked.measured
    end, opens, step = measured.end_ns, linked.opens_ns, column["step"]
    source, target = _ends(linked.links)
    took = _transfers(linked.links, linked.ways(timeline) if known is None else known.ways)
    delay = np.where(
        linked.blurred, np.minimum(took, linked.wait), np.clip(took, 0, np.maximum(linked.wait, 0))
    )
    held = linked.held
    lifted, lifting = held["until_ns"].to_numpy() - opens[step[held["target"]]], _ends(held)
    arrived = (
        np.concatenate([source, lifting[0]]),
        np.concatenate([target, lifting[1]]),
        np.concatenate([end[source] + delay, lifted]),
    )
    ready, feeder = _ready(linked.free, *arrived)
    return MeasuredRun(
        **column,
        ready_ns=ready,
        feeder=feeder,
        steps=linked.steps,
        pipelines=pipelines(timeline),
        pipeline=linked.pipeline,
        opens_ns=opens,
        first=linked.first,
        graph=linked.graph or Parts(*linked.waits, like),
        within=len(linked.overlap),
        held=held.height,
        delay_ns=np.concatenate([linked.overlap, delay, lifted - end[lifting[0]]]),
        early_ns=linked.early_ns,
        recorded=int(linked.links["took_ns"].is_not_null().sum()),
        left_out=linked.left_out,
        as_measured=measured,
    )


class Linked(msgspec.Struct, frozen=True):
    """The tasks of a run and what each waits for, before it is known for how long.

    Attributes:
        column: task, rank, step, group, kind, stage and microbatch, as of `MeasuredRun`.
        steps, pipeline, opens_ns, first, left_out: Likewise.
        waits: What `MeasuredRun.graph` is made of: all edges, and where parts begin.
        graph: That graph, if it had to be made to see whether tasks wait for each other in a circle.
        measured: When they ran.
        overlap: The delays of edges within groups.
        free: When the device of each task was free, n long.
        links: Frame of edges from stage to stage: source, target, from, to, backward and took_ns.
        wait: From the end of each link's source to the start of its target.
        awaited: Of which links the receiver was waiting for nothing else; and of which it was, and was
            launched in time.
        blurred: Which links begin or end at an overlapped pair.
        held: Frame as of `held_sends`.
    """

    column: dict[str, Any]
    steps: list[int | None]
    pipeline: list[int]
    opens_ns: Ints
    first: Ints
    waits: tuple[Edges, Ints]
    graph: Parts | None
    left_out: int
    measured: Replay
    overlap: Ints
    free: Ints
    links: pl.DataFrame
    wait: Ints
    awaited: tuple[Mask, Mask]
    blurred: Mask
    held: pl.DataFrame

    @classmethod
    def of(cls, timeline: Timeline, still: pl.DataFrame | None = None) -> Self | None:
        """Link the tasks of a run.

        Args:
            timeline: As of `measured_run`.
            still: As of `Known`; as these steps tell if left out.

        Returns:
            None as of `measured_run`.
        """
        if not timeline.run.common_clock:
            return None
        tasks = compared(timeline, *_NEEDED)
        if not len(tasks):
            return None
        tasks = _by_step(tasks.select(_NEEDED), pipelines(timeline))
        column = _columns(tasks)
        count, step = len(tasks), column["step"]
        first = np.append(stretches_of(column["group"]), count)
        opening = stretches_of(step)
        opens = np.minimum.reduceat(column["start_ns"], opening)
        measured = as_replay(column.pop("start_ns"), column.pop("end_ns"), first, step)
        start, end = measured.start_ns, measured.end_ns
        after = np.delete(np.arange(count, dtype=np.int32), first[:-1])
        # Tasks of a rank may overlap: then what is kept is how long one starts before the other ends. A
        # task that lies within another, as recomputation does, does not free the device.
        before = _longest_before(end, column["group"])[after]
        overlap = np.minimum(start[after] - end[before], 0)
        free = np.zeros(count, np.int64)
        free[after] = end[before] + overlap
        links = _links(timeline, column, step)
        source, target = _ends(links)
        held = held_sends(
            timeline, tasks, (source, target), (start + opens[step], end + opens[step])
        )
        bounds = _bounds(opening, first)
        left_out = 0
        edges = _edges((before, after), (source, target), _ends(held))
        # Within a group time goes one way. If it also does between them, there is no circle.
        beyond = slice(len(after), None)
        one_way = (start[edges.source[beyond]] < start[edges.target[beyond]]).all()
        try:
            graph = None if one_way else Parts(edges, bounds)
        except ScheduleError:
            # Some results were used before their task had begun. Without these, time goes one
            # way: they are left out of the steps that cannot be replayed with them.
            circles = in_circles(edges, np.append(opening, count))
            impossible = (start[source] >= start[target]) & circles[step[source]]
            left_out = int(impossible.sum())
            links = links.filter(pl.Series(~impossible))
            source, target = _ends(links)
            held = held.filter(pl.Series(~circles[step[held["target"].to_numpy()]]))
            edges = _edges((before, after), (source, target), _ends(held))
            graph = Parts(edges, bounds)
        if still is None:
            still = still_before(extents(tasks, "rank", "step", "pipeline"))
        busy = (
            tasks[first[:-1]]
            .select("rank", "step")
            .join(
                still.with_columns(busy=pl.lit(value=True)),
                on=["rank", "step"],
                how="left",
                nulls_equal=True,
                maintain_order="left",
            )
        )
        within = np.zeros(count, bool)
        within[first[:-1]] = busy["busy"].fill_null(value=False).to_numpy()
        # Of an overlapped pair no one knows when either half ran, so it may feed and be fed meanwhile.
        pair = column["kind"] == list(Kind).index(Kind.FORWARD_BACKWARD)
        return cls(
            column=column,
            steps=tasks["step"].gather(opening).to_list(),
            pipeline=tasks["pipeline"].gather(opening).to_list(),
            opens_ns=opens,
            first=first,
            waits=(edges, bounds),
            graph=graph,
            left_out=left_out,
            measured=measured,
            overlap=overlap,
            free=free,
            links=links,
            wait=start[target] - end[source],
            awaited=_awaited(timeline, column, (opens, end, free), within, (source, target)),
            blurred=pair[source] | pair[target],
            held=held,
        )

    @property
    def early_ns(self) -> Ints:
        """As of `MeasuredRun`."""
        return np.where(self.blurred, 0, np.minimum(self.wait, 0))

    def ways(self, timeline: Timeline) -> Ways:
        """Return what the waits for results tell of their way and of clocks.

        Args:
            timeline: The run.
        """
        freed, in_time = (pl.Series(mask) for mask in self.awaited)
        links = self.links.select(*LINK, wait=pl.Series(self.wait, dtype=pl.Int64))
        wait = pl.col("wait")
        source, target = (self.column["rank"][end] for end in _ends(self.links))
        clock = clocks(timeline)
        least = links.select(
            *LINK,
            awaited_ns=pl.when(freed).then(wait),
            in_time_ns=pl.when(in_time).then(wait),
        )
        early = early_between(clock[source], clock[target], -self.early_ns)
        return Ways.joined([Ways(least, early)])


def in_circles(edges: Edges, bounds: Ints) -> Mask:
    """Say of each step whether its tasks wait for each other in a circle, s long.

    Args:
        edges: What waits for what.
        bounds: First task of each step, and their number.
    """
    found = np.zeros(len(bounds) - 1, bool)
    step = np.searchsorted(bounds, edges.source, "right") - 1
    order = np.argsort(step, kind="stable")
    ends = np.searchsorted(step[order], np.arange(len(bounds)))
    for at in range(len(found)):
        own = order[ends[at] : ends[at + 1]]
        local = Edges(edges.source[own] - bounds[at], edges.target[own] - bounds[at])
        try:
            Parts(local, bounds[at : at + 2] - bounds[at])
        except ScheduleError:
            found[at] = True
    return found


def _bounds(opening: Ints, first: Ints) -> Ints:
    """Return where the parts of a run begin, and its end: steps that are worth a replay of their own.

    Args:
        opening: First task of each step.
        first: First task of each group, and n.
    """
    # What a replay does for each depth takes as long for a hundred tasks as for one.
    enough = max(_PART, _WIDE * int(np.diff(first).max()))
    begins = stretches_of(opening // enough)
    return np.append(opening[begins], first[-1])


def _edges(*parts: tuple[Ints, Ints]) -> Edges:
    """Return all edges as one, in the order of the parts."""
    return Edges(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _ready(free: Ints, source: Numbers, target: Numbers, arrival: Ints) -> tuple[Ints, Numbers]:
    """Return when each task could have started, and the task that it waited for; -1 for none.

    Args:
        free: When its device was free.
        source: What was waited for.
        target: What waited for it.
        arrival: When that was there.
    """
    ready, feeder = free.copy(), np.full(len(free), _NOTHING, np.int32)
    np.maximum.at(ready, target, arrival)
    last = np.flatnonzero((arrival == ready[target]) & (arrival > free[target]))
    feeder[target[last]] = source[last]  # of several that arrived together, the last one
    return ready, feeder


def _by_step(tasks: pl.DataFrame, apart: pl.DataFrame) -> pl.DataFrame:
    """Return tasks with their pipeline, by step and pipeline; those without a step come last.

    Args:
        tasks: By rank, start and end, as those of a timeline are.
        apart: Frame with rank and pipeline.
    """
    step = tasks["step"].cast(pl.Int64).fill_null(np.iinfo(np.int32).max + 1).to_numpy()
    if apart["pipeline"].max():
        tasks = tasks.join(apart, on="rank", maintain_order="left")
        turn = step * (apart.height + 1) + tasks["pipeline"].to_numpy()
    else:
        tasks, turn = tasks.with_columns(pipeline=pl.lit(0, pl.Int32)), step
    return tasks[order_of_runs(turn)] if (turn[1:] < turn[:-1]).any() else tasks


def _columns(tasks: pl.DataFrame) -> dict[str, Any]:
    """Return the sorted tasks' columns, with numbers in place of names; step numbers windows."""
    numbers = tasks.select(
        "task",
        "rank",
        pl.col("stage", "microbatch").fill_null(_NOTHING),
        kind=pl.col("kind").to_physical(),
        step=pl.struct("step", "pipeline").rle_id(),
        group=pl.struct("step", "rank").rle_id(),
    )
    columns = {values.name: values.to_numpy().astype(np.int32) for values in numbers}
    # Of a column with an empty chunk, what Polars gives as writable is the column itself.
    return columns | {name: np.array(tasks[name].to_numpy()) for name in ("start_ns", "end_ns")}


def _awaited(
    timeline: Timeline,
    column: dict[str, Ints],
    times: tuple[Ints, Ints, Ints],
    still: Mask,
    links: tuple[Ints, Ints],
) -> tuple[Mask, Mask]:
    """Return of which results from stage to stage the receiver was waiting for nothing else.

    Args:
        timeline: The run.
        column: As `_columns` returns them.
        times: First start of each step; when each task ended, since then; and when its device was free.
        still: Which tasks are a rank's first of a step that opened elsewhere before its last one ended.
        links: What feeds what: e sources and targets.

    Returns:
        All of them, and those that were launched in time as well.
    """
    opens, end, free = times
    source, target = links
    step = column["step"]
    # A task that its host launched late was not waiting for its result alone. But clocks that differ
    # tell nothing.
    launched = timeline.tasks["host_start_ns"].fill_null(np.iinfo(np.int64).min).to_numpy()
    in_time = launched[column["task"][target]] <= end[source] + opens[step[source]]
    clock = clocks(timeline)[column["rank"]]
    distant = clock[source] != clock[target]
    # Nor was one whose rank was still in the step before.
    freed = distant | ~still[target]
    awaited: Mask = freed & (end[source] >= free[target])
    return awaited, awaited & (in_time | distant)


def _longest_before(end: Ints, group: Numbers) -> Numbers:
    """Return, for each task, which one before it in its group ends last; of the first it is any."""
    number = np.arange(len(end), dtype=np.int32)
    before = np.maximum(number - 1, 0)
    longer = end > reached_ns(end, group)  # than all before it in its group
    last: Numbers = np.maximum.accumulate(np.where(longer, number, 0))[before]
    return last


def _ends(links: pl.DataFrame) -> tuple[Numbers, Numbers]:
    source, target = (links[name].to_numpy().astype(np.int32) for name in ("source", "target"))
    return source, target


def clocks(timeline: Timeline) -> Ints:
    """Return a number for each rank's clock, the same for ranks that share one; by rank."""
    ranks = timeline.ranks.select(
        "rank", clock=pl.struct("host", "clock_offset_ns", "clock_error_ns").rank("dense")
    )
    numbers = np.zeros(int(ranks["rank"].max() or 0) + 1, np.int64)  # type: ignore[arg-type]
    numbers[ranks["rank"].to_numpy()] = ranks["clock"].to_numpy()
    return numbers


def _links(timeline: Timeline, column: dict[str, Ints], step: Ints) -> pl.DataFrame:
    """Return the edges from stage to stage between ranks.

    Returns:
        Frame with source and target, numbers of tasks in the graph, from and to (ranks), backward,
        and took_ns, how long the transfer took if it was recorded.
    """
    place = np.full(len(timeline), _NOTHING, np.int32)
    place[column["task"]] = np.arange(len(step))
    tasks = timeline.tasks
    pairs = passes(timeline)
    ends = {
        "source": pl.Series(place[pairs["source"]]),
        "target": pl.Series(place[pairs["target"]]),
        "from": tasks["rank"][pairs["source"]],
        "to": tasks["rank"][pairs["target"]],
    }
    apart = pl.col("source") >= 0, pl.col("target") >= 0, pl.col("from") != pl.col("to")
    met = messages(timeline)
    if not met.height:
        unknown = pl.lit(None, pl.Int64).alias("took_ns")
        return pairs.select("backward", **ends).filter(*apart).with_columns(unknown)
    links = pairs.with_columns(
        step=tasks["step"][pairs["source"]],
        microbatch=pl.when("backward")
        .then(_back(tasks)[pairs["source"]])
        .otherwise(tasks["microbatch"][pairs["source"]]),
        sent_ns=tasks["end_ns"][pairs["source"]],
        **ends,
    ).filter(*apart)
    send, receive = tasks[met["send"]], tasks[met["receive"]]
    carried = met.select(
        "backward",
        "turn",
        "count",
        step=send["step"],
        microbatch=send["microbatch"],
        sent_ns=send["start_ns"],
        posted_ns=receive["start_ns"],
        arrived_ns=receive["end_ns"],
        **{"from": send["rank"], "to": receive["rank"]},
    ).rename({"sent_ns": "send_ns"})
    key = ["step", "backward", "microbatch", "from", "to"]
    transfer = pl.col("arrived_ns") - pl.max_horizontal("send_ns", "posted_ns")
    # A send that begins late, and not because its receive does, is part of the way.
    late = pl.when(pl.col("send_ns") >= pl.col("posted_ns")).then(
        (pl.col("send_ns") - pl.col("sent_ns")).clip(lower_bound=0)
    )
    return (
        with_turns(links, key, "sent_ns")
        .join(
            carried, on=[*key, "turn", "count"], how="left", nulls_equal=True, maintain_order="left"
        )
        .with_columns(took_ns=(transfer + late.fill_null(0)).clip(lower_bound=0))
        .select("source", "target", "from", "to", "backward", "took_ns")
    )


def _back(tasks: pl.DataFrame) -> pl.Series:
    """Return the micro-batch whose backward each task makes."""
    return tasks.select(pl.coalesce("pair_microbatch", "microbatch")).to_series()


def _transfers(links: pl.DataFrame, ways: Ways) -> Ints:
    """Return how long each result was on its way.

    Args:
        links: As `_links` returns them.
        ways: How long that takes where it was not recorded.
    """
    return (
        links.select(*LINK, "took_ns")
        .join(ways.taken_ns(), on=LINK, how="left", maintain_order="left")
        .select(pl.coalesce("took_ns", "way_ns", pl.lit(0)).cast(pl.Int64))
        .to_series()
        .to_numpy()
    )
