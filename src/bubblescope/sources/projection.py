"""From ranges on the host to intervals on the device.

A framework marks its tasks with ranges on the host, but launches are asynchronous: the host leaves
a range long before its kernels run. A task's true interval is that of the device work *launched*
inside its range (`bubblescope.model.device_time`).

Communication kernels never count as part of a compute task, for one that waits for its peer is not
work. They become tasks of the communication lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.model import device_time
from bubblescope.model.arrays import at_once
from bubblescope.model.device_time import NO_INTERVALS, NONE, busy_intervals, match_work
from bubblescope.model.kinds import LANE_OF, Kind, Lane
from bubblescope.model.provenance import Notice
from bubblescope.names.layer_part_ranges import LAYER_PART
from bubblescope.sources.capture import WORK, ByProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.names.parsed import ParsedName
    from bubblescope.names.parser import NameParser
    from bubblescope.sources.capture import Capture, Comm

_FOREVER: Final = 2**62
_FIELDS: Final = (
    "microbatch",
    "chunk",
    "stage",
    "step",
    "rank",
    "peer",
    "pair_stage",
    "pair_microbatch",
    "graph",
    "received",
    "sent_to",
)
PLACES: Final = ("microbatch", "chunk", "stage", "step", "rank")
"""What communication launched inside a compute task shares with it."""
TASK_COLUMNS: Final = [
    "process",
    "device",
    "kind",
    "lane",
    *_FIELDS,
    "certainty",
    "splits",
    "start_ns",
    "end_ns",
    "busy_ns",
    "host_start_ns",
    "host_end_ns",
    "name",
]
"""Columns of a projection's tasks."""
_OPERATIONS: Final = {
    "name": pl.String,
    "kind": pl.String,
    "lane": pl.String,
    **dict.fromkeys(_FIELDS, pl.Int64),
    "certainty": pl.Float32,
    "splits": pl.Boolean,
}
_PASSES: Final = [Kind.FORWARD.value, Kind.BACKWARD.value, Kind.FORWARD_BACKWARD.value]
_NO_PEERS: Final = pl.DataFrame(schema={"range": pl.Int64, "peer": pl.Int64})


class Projection(msgspec.Struct, frozen=True):
    """Tasks of one trace before their ranks and steps are known, and what was not matched.

    Attributes:
        tasks: Frame with process, device, kind, lane, microbatch, chunk, stage, step, rank, peer,
            splits, start_ns, end_ns, busy_ns, host_start_ns, host_end_ns and name.
        markers: Step markers in host time: process, start_ns, end_ns, step, rank
            (the last two null if unnumbered).
        work: Amount of device work in the processes that have task ranges.
        unlaunched: How much of it has no launching call, as at the edge of a capture, and is no task.
        outside: How much of it was launched outside every task range and is no task.
        elsewhere: How much of it ran on another device than most of its range's work.
        ranges: Number of task ranges.
        idle_ranges: How many of them launched no device work and are no task. Collectives without
            work are not counted: frameworks mark them even where there is nothing to do.
        open_ranges: How many of them were still open when the capture ended.
        impossible: Number of ranges that are none, for their names have numbers that no job has.
        owners: For each row of the capture's work, host_start_ns and name of the task range in which
            it was launched, null outside of all; None unless kernels were asked for.
    """

    tasks: pl.DataFrame
    markers: pl.DataFrame
    work: int
    unlaunched: int
    outside: int
    elsewhere: int
    ranges: int
    idle_ranges: int
    open_ranges: int
    impossible: int
    owners: pl.DataFrame | None = None

    @property
    def named(self) -> int:
        """Number of ranges that are named as tasks are."""
        return self.ranges + self.impossible

    @property
    def pipelined(self) -> bool:
        """Whether any task is a forward or a backward."""
        return pipelined(self.tasks)


def pipelined(tasks: pl.DataFrame) -> bool:
    """Say whether any task, by its column kind, is a forward or a backward."""
    return bool(tasks["kind"].is_in(_PASSES).any())


def project(capture: Capture, names: NameParser) -> Projection:
    """Find the device interval of every task that the capture's range names describe."""
    operations = _operations({**names.parse_all(capture.ranges["name"]), **capture.meaning})
    markers = capture.ranges.join(operations.filter(pl.col("kind").is_null()), on="name").select(
        "process", "start_ns", "end_ns", "step", "rank"
    )
    operations = _whole(operations.filter(pl.col("kind").is_not_null()))
    ranges = _task_ranges(capture.ranges, operations)
    beyond = names.impossible(capture.ranges["name"])
    impossible = capture.ranges.filter(pl.col("name").is_in(beyond)).height
    # Processes are independent and small enough, one by one, for caches; NumPy frees both cores.
    processes = ranges["process"].unique(maintain_order=True).to_list()
    work, launches = ByProcess(capture.work), ByProcess(capture.launches)

    def of(process: int) -> _Found:
        mine = ranges.filter(process=process)
        return _of_process(capture, mine, launches.of(process), work.of(process))

    found = at_once(of, processes)
    intervals = pl.concat([one.intervals for one in found] or [NO_INTERVALS])
    of_ranges = (
        ranges.join(intervals, on="range")
        .drop("lane", "until_ns")
        .rename({"host_start": "host_start_ns", "host_end": "host_end_ns"})
        .join(operations, on="name")
    )
    peers = pl.concat([one.peers for one in found] or [_NO_PEERS])
    of_ranges = (
        of_ranges.join(peers.rename({"peer": "met"}), on="range", how="left")
        .with_columns(peer=pl.coalesce("peer", "met"))
        .drop("met")
    )
    of_kernels = kernel_tasks(capture.comms, [one.kernels for one in found], of_ranges)
    return Projection(
        tasks=pl.concat([of_ranges.select(of_kernels.columns), of_kernels]),
        markers=markers,
        work=sum(one.work for one in found),
        unlaunched=sum(one.unlaunched for one in found),
        outside=sum(one.outside for one in found),
        elsewhere=sum(one.elsewhere for one in found),
        ranges=ranges.height,
        idle_ranges=ranges.join(intervals, on="range", how="anti")
        .join(operations.filter(pl.col("kind") != Kind.COLLECTIVE.value), on="name", how="semi")
        .height,
        open_ranges=ranges["host_end"].null_count(),
        impossible=impossible,
        owners=None if capture.kernels is None else _owners(capture, ranges, processes, found),
    )


def _owners(
    capture: Capture, ranges: pl.DataFrame, processes: list[int], found: list[_Found]
) -> pl.DataFrame:
    """Return for each row of the work host_start_ns and name of its range."""
    owner = np.full(capture.work.height, NONE, np.int64)
    process_of = capture.work["process"].to_numpy()
    for process, one in zip(processes, found, strict=True):
        if one.owner is not None:
            owner[process_of == process] = one.owner
    row = pl.Series(owner).replace(NONE, None).cast(pl.UInt32)
    return pl.DataFrame(
        {"host_start_ns": ranges["host_start"].gather(row), "name": ranges["name"].gather(row)}
    )


def losses(projections: Sequence[Projection], work: str) -> list[Notice]:
    """Return a warning for each way in which work or ranges of the traces came to nothing.

    Args:
        projections: Those of all traces of a run.
        work: What the traces' device work consists of, in the plural.
    """

    def total(field: str) -> int:
        return sum(getattr(projection, field) for projection in projections)

    lines = (
        (
            "kernels-without-launch",
            "unlaunched",
            "work",
            "have no launching call in the trace (usual at a capture's edges) and are in no task",
        ),
        (
            "kernels-outside-ranges",
            "outside",
            "work",
            "were launched outside every pipeline range and are not shown",
        ),
        (
            "work-on-other-device",
            "elsewhere",
            "work",
            "ran on another device than the rest of their range and were left out of its interval",
        ),
        (
            "ranges-without-work",
            "idle_ranges",
            "ranges",
            "launched no device work, so their time on the device is unknown and they are left out",
        ),
        (
            "open-ranges",
            "open_ranges",
            "ranges",
            "were still open when the capture ended; their tasks may be cut short",
        ),
        (
            "impossible-numbers",
            "impossible",
            "named",
            "have a number in their names that no job has, and are left out",
        ),
    )
    notices = []
    for code, field, whole, text in lines:
        lost, of = total(field), total(whole)
        if lost:
            items = work if whole == "work" else "pipeline ranges"
            notices.append(Notice(code, f"{lost} of {of} {items} {text}", lost, of))
    return notices


class _Found(NamedTuple):
    """What one process's work turned out to be."""

    intervals: pl.DataFrame  # one row per range with work: range, device, start, end, busy
    peers: pl.DataFrame  # range and the one rank that its communication kernels name
    kernels: pl.DataFrame  # communication kernels that are tasks of their own
    work: int
    unlaunched: int
    outside: int
    elsewhere: int
    owner: Ints | None  # for each row of the work the number of its range, if kernels are kept


def _of_process(
    capture: Capture, ranges: pl.DataFrame, launches: pl.DataFrame, work: pl.DataFrame
) -> _Found:
    """Find the intervals of one process's task ranges, and its communication beside them."""
    full, work = work, work.select(*device_time.WORK).rechunk()
    launched, owner, timed, elsewhere = match_work(ranges, launches, work)
    number = np.append(ranges["range"].to_numpy(), NONE)
    comm = work["comm"].is_not_null().arg_true().to_numpy()
    alone = comm[~timed[comm]]  # a task of its own, wherever it was launched
    unlaunched = launched == NONE
    outside = (owner == NONE) & ~unlaunched
    return _Found(
        peers=_peers(work, owner, timed, ranges, capture.comms),
        intervals=busy_intervals(work, owner, np.flatnonzero(timed), ranges["range"].to_numpy()),
        kernels=full[alone].with_columns(
            range=pl.Series(number[owner[alone]]), host_start_ns=pl.Series(launched[alone])
        ),
        work=work.height,
        unlaunched=int(unlaunched.sum() - unlaunched[alone].sum()),
        outside=int(outside.sum() - outside[alone].sum()),
        elsewhere=elsewhere,
        owner=None if capture.kernels is None else number[owner],
    )


def _operations(meaning: Mapping[str, Sequence[ParsedName]]) -> pl.DataFrame:
    """Return one row per operation that a range name stands for, in the order they are named."""
    rows = [
        (
            name,
            said.kind.value if said.kind else None,
            LANE_OF[said.kind].value if said.kind else None,
            *(getattr(said, field) for field in _FIELDS),
            said.certainty,
            said.splits,
        )
        for name, parsed in meaning.items()
        for said in parsed
    ]
    return pl.DataFrame(rows, schema=_OPERATIONS, orient="row")


def _whole(operations: pl.DataFrame) -> pl.DataFrame:
    """Leave parts of layers out unless they are all that tells forwards from backwards.

    Where whole passes are named they are within those, and forwards alone, as a model written by hand
    may mark them, leave the backwards to be told by other evidence.
    """
    part = pl.col("name").str.contains(LAYER_PART)
    others = operations.filter(~part)
    kinds = set(operations.filter(part)["kind"])
    both = {Kind.FORWARD.value, Kind.BACKWARD.value} <= kinds
    return operations if both and not pipelined(others) else others


def _task_ranges(ranges: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges that name tasks, in order of start, each with an index and an end.

    A range without a micro-batch inside one of its own kind says nothing new and is left out: Sail's
    runtime has a plain "F" inside "F3.0.0", PyTorch an "Optimizer.step" inside "Optimizer". A range
    left open is taken to end where its thread begins its next compute task, and to enclose no more
    than what its thread does before the next task of another kind.
    """
    first = operations.unique("name", keep="first").select("name", "kind", "lane", "microbatch")
    way = pl.col("kind").replace(Kind.BACKWARD_INPUT.value, Kind.BACKWARD.value)
    next_other = pl.when(way != way.shift(1)).then("start_ns").shift(-1).backward_fill()
    until = pl.col("end_ns").fill_null(_FOREVER)
    enclosed = pl.col("reach").cum_max().shift(1).over("process", "thread", way) >= pl.col("reach")
    next_compute = (
        pl.when(pl.col("lane") != Lane.COMM.value)
        .then("start_ns")
        .shift(-1)
        .backward_fill()
        .over("process", "thread")
    )
    return (
        ranges.join(first, on="name")
        .sort("process", "start_ns", until, descending=[False, False, True])
        .with_columns(
            reach=pl.coalesce("end_ns", next_other.over("process", "thread"), pl.lit(_FOREVER))
        )
        .filter(~(enclosed.fill_null(value=False) & pl.col("microbatch").is_null()))
        .with_columns(until_ns=pl.coalesce("end_ns", next_compute, pl.lit(_FOREVER)))
        .drop("kind", "microbatch", "reach")
        .rename({"start_ns": "host_start", "end_ns": "host_end"})
        .with_row_index("range")
        .with_columns(pl.col("range").cast(pl.Int64))
    )


def _peers(
    work: pl.DataFrame, owner: Ints, timed: Mask, ranges: pl.DataFrame, comms: tuple[Comm, ...]
) -> pl.DataFrame:
    """Return the ranges whose communication kernels all name one and the same other rank."""
    named = [comm.peer for comm in comms]
    rows = np.flatnonzero(timed & work["comm"].is_not_null().to_numpy())
    if not len(rows) or not any(peer is not None for peer in named):
        return _NO_PEERS
    peer = pl.Series(named, dtype=pl.Int64).gather(work["comm"].gather(rows))
    return (
        pl.DataFrame({"range": ranges["range"].gather(owner[rows]), "peer": peer})
        .group_by("range")
        .agg(pl.col("peer").drop_nulls().unique())
        .filter(pl.col("peer").list.len() == 1)
        .with_columns(pl.col("peer").list.first())
    )


def kernel_tasks(
    comms: tuple[Comm, ...],
    kernels: list[pl.DataFrame],
    of_ranges: pl.DataFrame,
) -> pl.DataFrame:
    """Make a task of each communication kernel that no communication range accounts for.

    Launched inside a compute task (tensor parallelism, gradient reduction), it shares that task's
    micro-batch, chunk, stage and step.

    Args:
        comms: The sorts of communication kernels.
        kernels: Frames with the columns of `WORK`, range (the number of the task's range, or `NONE`)
            and host_start_ns.
        of_ranges: Frame with range and `PLACES`.

    Returns:
        Frame with `TASK_COLUMNS`.
    """
    sorts = pl.DataFrame(
        [
            (index, comm.name, comm.known_kind().value, comm.peer)
            for index, comm in enumerate(comms)
        ],
        schema={"comm": pl.Int32, "name": pl.String, "kind": pl.String, "peer": pl.Int64},
        orient="row",
    )
    inside = of_ranges.unique("range", keep="first").select("range", *PLACES)
    nothing = pl.DataFrame(schema={**WORK, "range": pl.Int64, "host_start_ns": pl.Int64})
    return (
        pl.concat([nothing, *kernels])
        .join(sorts, on="comm")
        .join(inside, on="range", how="left")
        .with_columns(
            pl.col("host_start_ns").replace(NONE, None),
            lane=pl.lit(Lane.COMM.value),
            pair_stage=pl.lit(None, pl.Int64),
            pair_microbatch=pl.lit(None, pl.Int64),
            graph=pl.lit(None, pl.Int64),
            received=pl.lit(None, pl.Int64),
            sent_to=pl.lit(None, pl.Int64),
            certainty=pl.lit(None, pl.Float32),
            splits=pl.lit(value=False),
            busy_ns=pl.lit(None, pl.Int64),
            host_end_ns=pl.lit(None, pl.Int64),
        )
        .select(TASK_COLUMNS)
    )
