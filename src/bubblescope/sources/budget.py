"""What each device of a trace spent its time on, summed while the trace is read.

Tasks have a row for each use of their time, and so have stretches between them. In a pipeline only its
passes have: outside of these every piece of time has a row of its own, for bubbles are explained moment
by moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.budget import (
    BUDGET_SCHEMA,
    COMMUNICATION,
    COMPUTE,
    COPY,
    IDLE,
    OPERATION_SCHEMA,
    Activities,
    Use,
    merged,
    overlaps,
    partition,
)
from bubblescope.model.device_time import NONE, innermost, lookup
from bubblescope.model.intervals import covered_ns
from bubblescope.model.kinds import COMPUTE_KINDS, Kind, Lane
from bubblescope.names.communication_kernels import communication_kernel
from bubblescope.sources.activities import NO_ACTIVITIES, activities
from bubblescope.sources.clock_shift import shifted
from bubblescope.sources.gaps import CODE, Gaps, judge
from bubblescope.sources.projection import pipelined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.model.budget import Partition, Pieces
    from bubblescope.sources.capture import Capture, Comm

LONG_NS: Final = 100_000
"""Idle time from which on a gap has a row of its own, and so can be pointed at."""

_USES: Final = [use.value for use in Use]
_KINDS: Final = [kind.value for kind in Kind]
_PASSES: Final = [index for index, kind in enumerate(Kind) if kind in COMPUTE_KINDS]
_IDLE: Final = np.array([use in IDLE for use in Use])
_PLACE: Final = {"process": pl.Int64(), "device": pl.Int32()}


def _at_place(schema: dict[str, pl.DataType]) -> dict[str, pl.DataType]:
    """Return the columns of a table before ranks and steps are known."""
    return {**_PLACE, **{name: kind for name, kind in schema.items() if name not in _LATER}}


_LATER: Final = {"rank", "step", "device"}
TABLE: Final = _at_place(BUDGET_SCHEMA)
OPERATIONS: Final = _at_place(OPERATION_SCHEMA)
WINDOWS: Final = {
    **_PLACE,
    "step": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "open": pl.Boolean(),
}


class Spent(msgspec.Struct, frozen=True):
    """What the devices of one trace spent their time on.

    Attributes:
        table: Frame with the columns of `TABLE`: those of `BUDGET_SCHEMA`, by process.
        operations: Frame with the columns of `OPERATIONS`, by process.
        windows: Steps in device time: process, device, step, start_ns, end_ns and
            open, which says that the step's end was not recorded.
        waits_known: Whether the trace would show that a stream was told to wait for an event.
        activities: Frame with the columns of `sources.activities.ACTIVITIES`, by process; empty
            unless kernels were asked for.
    """

    table: pl.DataFrame
    operations: pl.DataFrame
    windows: pl.DataFrame
    waits_known: bool
    activities: pl.DataFrame = NO_ACTIVITIES

    def by_rank(self, offset_ns: int, ranks: pl.DataFrame) -> Spent:
        """Return the same on the run's clock, with ranks instead of processes.

        Args:
            offset_ns: What to add to its times.
            ranks: Frame with rank and any of process and device: whose they are.
        """
        on = [name for name in ("process", "device") if name in ranks.columns]

        def placed(frame: pl.DataFrame) -> pl.DataFrame:
            of = shifted(frame, offset_ns)
            of = of.join(ranks, on=on) if on else of.join(ranks, how="cross")
            return of.drop("process")

        return Spent(
            placed(self.table),
            placed(self.operations),
            placed(self.windows),
            waits_known=self.waits_known,
            activities=placed(self.activities),
        )


def joined(parts: Sequence[Spent]) -> Spent:
    """Return what the devices of several traces spent their time on; see `Spent.by_rank`."""
    return Spent(
        pl.concat([one.table for one in parts]),
        pl.concat([one.operations for one in parts]),
        pl.concat([one.windows for one in parts]),
        waits_known=all(one.waits_known for one in parts),
        activities=pl.concat([one.activities for one in parts]),
    )


NOTHING: Final = Spent(
    pl.DataFrame(schema=TABLE),
    pl.DataFrame(schema=OPERATIONS),
    pl.DataFrame(schema=WINDOWS),
    waits_known=True,
)
"""That of a trace without device work."""


def spent(
    capture: Capture,
    tasks: pl.DataFrame,
    markers: pl.DataFrame,
    owners: pl.DataFrame | None = None,
) -> Spent:
    """Say what every nanosecond of a trace's devices was spent on.

    Args:
        capture: What the trace recorded.
        tasks: Tasks that were made of it: process, device, kind, lane, start_ns and end_ns.
        markers: Steps in host time: process, start_ns, end_ns and step, as in `Projection`.
        owners: The range of each row of the capture's work, as in `Projection`, if activities are to be
            kept.
    """
    places = capture.work.select(*_PLACE).unique().sort(*_PLACE).rows()
    done = [_of_device(_Device(capture, *place), tasks, markers) for place in places]
    together = joined([NOTHING, *done])
    return msgspec.structs.replace(
        together,
        waits_known=capture.waits is not None,
        activities=activities(capture, owners),
    )


class _Device:
    """What one device ran for one process, by start, and by launch where several start together."""

    def __init__(self, capture: Capture, process: int, device: int) -> None:
        self.capture, self.process, self.device = capture, process, device
        self.launches = capture.launches.filter(process=process)
        work = capture.work.filter(process=process, device=device)
        call = lookup(self.launches["correlation"].to_numpy(), work["correlation"].to_numpy())
        launched = np.append(self.launches["start_ns"].to_numpy(), _NEVER)[call]
        order = np.lexsort((launched, work["start_ns"].to_numpy()))
        self.work, self.call, self.launched_ns = work[order], call[order], launched[order]
        self.start_ns = self.work["start_ns"].to_numpy()
        self.end_ns = np.maximum(self.work["end_ns"].to_numpy(), self.start_ns)
        self.comm = self.work["comm"].fill_null(NONE).to_numpy()
        self.copy = self.work["copy"].fill_null(NONE).to_numpy()

    def activities(self) -> Activities:
        use = np.where(self.comm >= 0, COMMUNICATION, np.where(self.copy >= 0, COPY, COMPUTE))
        return Activities(self.start_ns, self.end_ns, use)

    def gaps(self, idle: Pieces) -> Gaps:
        """Return the idle stretches with what is known of the launches that end them."""
        call = self.call[idle.owner]
        ended = self.launches["end_ns"].fill_null(strategy="zero").to_numpy()
        stream = self.work["stream"].fill_null(NONE).to_numpy()
        known = call >= 0
        return Gaps(
            idle.start_ns,
            idle.end_ns,
            np.where(known, self.launched_ns[idle.owner], NONE),
            np.append(ended, NONE)[call],
            np.append(self.launches["thread"].to_numpy(), NONE)[call],
            stream[idle.owner],
            self._before(stream)[idle.owner],
        )

    def _before(self, stream: Ints) -> Ints:
        """Return when the operation before each on its stream was launched, or `NONE`."""
        before = np.full(len(stream), NONE, np.int64)
        if self.capture.waits is None or not self.capture.waits.height:
            return before
        order = np.lexsort((self.launched_ns, stream))
        same = stream[order][1:] == stream[order][:-1]
        before[order[1:][same]] = self.launched_ns[order[:-1][same]]
        return before


_NEVER: Final = np.iinfo(np.int64).max
"""When what has no known launch was launched: after everything else that starts together with it."""


def _of_device(ran: _Device, tasks: pl.DataFrame, markers: pl.DataFrame) -> Spent:
    cut = partition(ran.activities())
    windows = _windows(ran, markers.filter(process=ran.process))
    stretches = _stretches(ran, tasks, windows)
    names, roles = _Names(ran.capture.host_names), _Names()
    idle = judge(ran.gaps(cut.idle), ran.capture, ran.process)
    operation, role = _of_comms(ran, names, roles)
    moved = [
        (Use.COMMUNICATION, cut.communication, operation, role),
        (Use.COMMUNICATION_HIDDEN, cut.communication_hidden, operation, role),
        (Use.COPY, cut.copy, names.numbers(ran.capture.copies)[ran.copy], None),
        (Use.COPY_HIDDEN, cut.copy_hidden, names.numbers(ran.capture.copies)[ran.copy], None),
    ]
    parts = pl.concat(
        [
            *(_frame(*part) for part in idle),
            *(
                _frame(
                    pieces.start_ns,
                    pieces.end_ns,
                    np.full(len(pieces.owner), CODE[use], np.int8),
                    named[pieces.owner],
                    None if purpose is None else purpose[pieces.owner],
                )
                for use, pieces, named, purpose in moved
            ),
        ]
    )
    summed = np.isin(stretches.kind, _PASSES) if pipelined(tasks) else stretches.kind >= NONE
    table = pl.concat(
        [_computed(cut.compute, stretches, summed), _summed(parts, stretches, summed)]
    )
    return Spent(
        table.select(
            process=pl.lit(ran.process, pl.Int64),
            device=pl.lit(ran.device, pl.Int32),
            inside=_gathered(pl.Series(_KINDS, dtype=TABLE["inside"]), table["inside"]),
            start_ns="start_ns",
            end_ns="end_ns",
            use=_gathered(pl.Series(_USES, dtype=TABLE["use"]), table["use"]),
            detail=names.texts(table["detail"]),
            role=roles.texts(table["role"]),
            spent_ns="spent_ns",
        ),
        _operations(ran, cut),
        windows,
        waits_known=ran.capture.waits is not None,
    )


def _gathered(members: pl.Series, numbers: pl.Series) -> pl.Series:
    """Return the members that numbers stand for; null for `NONE`."""
    return members.gather(numbers.replace(NONE, None).cast(pl.UInt32))


class _Names:
    """Texts by number."""

    def __init__(self, known: Sequence[str] = ()) -> None:
        self._known = list(known)
        self._number = {name: number for number, name in enumerate(known)}

    def numbers(self, names: Sequence[str | None]) -> Ints:
        """Return the number of each, with `NONE` behind them, for what has no name."""
        return np.array([*map(self._numbered, names), NONE], np.int64)

    def _numbered(self, name: str | None) -> int:
        if name is None:
            return NONE
        if name not in self._number:
            self._number[name] = len(self._known)
            self._known.append(name)
        return self._number[name]

    def texts(self, numbers: pl.Series) -> pl.Series:
        """Return the texts of numbers; null for `NONE`."""
        return _gathered(pl.Series(self._known, dtype=pl.String), numbers)


def _of_comms(ran: _Device, names: _Names, roles: _Names) -> tuple[Ints, Ints]:
    """Return, for each activity, the number of its operation and of its group's role."""
    comms = ran.capture.comms
    operation = names.numbers([operation_of(comm) for comm in comms])
    role = roles.numbers([comm.role for comm in comms])
    return operation[ran.comm], role[ran.comm]


def operation_of(comm: Comm) -> str | None:
    """Return what a communication kernel does: what the trace says, or else its name."""
    if comm.operation is not None:
        return comm.operation
    known = communication_kernel(comm.name)
    return known.operation if known else None


def _frame(
    start: Ints, end: Ints, use: Ints, detail: Ints, role: Ints | None = None
) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": end,
            "use": use,
            "detail": detail,
            "role": np.full(len(start), NONE, np.int64) if role is None else role,
        },
        schema_overrides={"use": pl.Int8},
    )


def _windows(ran: _Device, markers: pl.DataFrame) -> pl.DataFrame:
    """Find the steps on the device: each from the first operation launched in it to that of the next.

    The last ends with whatever the device ran last, and is open.
    """
    order = np.argsort(ran.launched_ns, kind="stable")
    launched = ran.launched_ns[order]
    start, last = ran.start_ns[order], int(ran.end_ns.max())
    rows: list[tuple[int, int, int]] = []
    steps = pl.coalesce("step", pl.int_range(pl.len()))
    marked = markers.sort("start_ns", "end_ns").select(
        "start_ns", pl.col("end_ns").fill_null(_NEVER), steps
    )
    for begin, until, step in marked.iter_rows():
        low, high = np.searchsorted(launched, [begin, until])
        if low < high:
            first = int(start[low:high].min())
            if not rows or first > rows[-1][1]:
                rows.append((step, first, last))
    found = pl.DataFrame(rows, schema=["step", "start_ns", "end_ns"], orient="row")
    following = pl.col("start_ns").shift(-1)
    return found.select(
        process=pl.lit(ran.process, pl.Int64),
        device=pl.lit(ran.device, pl.Int32),
        step=pl.col("step").cast(pl.Int64),
        start_ns=pl.col("start_ns").cast(pl.Int64),
        end_ns=pl.coalesce(following, "end_ns").cast(pl.Int64),
        open=following.is_null(),
    )


class _Stretches(NamedTuple):
    """A device's time from first to last, cut where tasks and steps begin and end.

    Attributes:
        edges: n + 1 times, ascending.
        kind: For each stretch that of the task that it lies in, index into the members of `Kind`;
            `NONE` outside of all.
    """

    edges: Ints
    kind: Ints


def _stretches(ran: _Device, tasks: pl.DataFrame, windows: pl.DataFrame) -> _Stretches:
    first, last = int(ran.start_ns[0]), int(ran.end_ns.max())
    mine = tasks.filter(
        pl.col("process") == ran.process,
        pl.col("device") == ran.device,
        pl.col("lane") == Lane.COMPUTE.value,
    ).sort("start_ns", "end_ns", descending=[False, True])
    start, end = (mine[name].to_numpy().clip(first, last) for name in ("start_ns", "end_ns"))
    steps = np.concatenate([windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()])
    edges = np.unique(np.concatenate([start, end, steps.clip(first, last), [first, last]]))
    kind = np.full(len(edges) - 1, NONE, np.int64)
    if len(start):
        cuts, owner = innermost(start, end)
        at = np.searchsorted(cuts, edges[:-1], side="right") - 1
        held = np.where(at >= 0, owner[at], NONE)
        codes = mine["kind"].replace_strict(_KINDS, range(len(_KINDS)), return_dtype=pl.Int64)
        kind = np.append(codes.to_numpy(), NONE)[held]
    return _Stretches(edges, kind)


def _computed(compute: Pieces, stretches: _Stretches, summed: Mask) -> pl.DataFrame:
    """Return how much of each stretch is compute, and where exactly in those that are not summed."""
    start, end = stretches.edges[:-1], stretches.edges[1:]
    one, every = np.zeros(len(compute.start_ns), np.int64), np.zeros(int(summed.sum()), np.int64)
    windows = (every, start[summed], end[summed])
    time = covered_ns((one, compute.start_ns, compute.end_ns), windows)
    rows = [(start[summed], end[summed], stretches.kind[summed], time)]
    if not summed.all():
        solid = merged(compute)
        low = np.searchsorted(solid.end_ns, start[~summed], side="right")
        high = np.searchsorted(solid.start_ns, end[~summed], side="left")
        stretch, piece = overlaps(low, high)
        began = np.maximum(solid.start_ns[piece], start[~summed][stretch])
        ended = np.minimum(solid.end_ns[piece], end[~summed][stretch])
        rows.append((began, ended, stretches.kind[~summed][stretch], ended - began))
    begins, ends, kind, spent = (np.concatenate(column) for column in zip(*rows, strict=True))
    return (
        pl.DataFrame({"inside": kind, "start_ns": begins, "end_ns": ends, "spent_ns": spent})
        .filter(pl.col("spent_ns") > 0)
        .with_columns(
            use=pl.lit(CODE[Use.COMPUTE], pl.Int8),
            detail=pl.lit(NONE, pl.Int64),
            role=pl.lit(NONE, pl.Int64),
        )
        .select(_SUMMED)
    )


_SUMMED: Final = ["inside", "start_ns", "end_ns", "use", "detail", "role", "spent_ns"]


def _summed(parts: pl.DataFrame, stretches: _Stretches, summed: Mask) -> pl.DataFrame:
    """Sum parts of a device's time by stretch and use.

    Args:
        parts: Frame with start_ns, end_ns, use, detail and role.
        stretches: What to sum over; parts are cut at their edges.
        summed: The stretches that are summed; parts in others are kept as they are, and so are long
            gaps.
    """
    edges = stretches.edges
    start, end = parts["start_ns"].to_numpy(), parts["end_ns"].to_numpy()
    low = np.searchsorted(edges, start, side="right") - 1
    high = np.searchsorted(edges, end, side="left")
    if (high - low > 1).any():
        row, low = overlaps(low, high)
        parts = parts[row]
        start = np.maximum(start[row], edges[low])
        end = np.minimum(end[row], edges[low + 1])
    cut = parts.with_columns(
        start_ns=pl.Series(start, dtype=pl.Int64),
        end_ns=pl.Series(end, dtype=pl.Int64),
        stretch=pl.Series(low, dtype=pl.Int64),
        inside=pl.Series(stretches.kind[low], dtype=pl.Int64),
        spent_ns=pl.Series(end - start, dtype=pl.Int64),
    )
    long = _IDLE[cut["use"].to_numpy()] & (end - start >= LONG_NS)
    own = pl.Series(long | ~summed[low])
    sums = (
        cut.filter(~own)
        .group_by("stretch", "inside", "use", "detail", "role")
        .agg(pl.col("spent_ns").sum())
        .sort("stretch", "use", "detail", "role")
    )
    at = sums["stretch"].to_numpy()
    sums = sums.with_columns(start_ns=pl.Series(edges[at]), end_ns=pl.Series(edges[at + 1]))
    return pl.concat([cut.filter(own).select(_SUMMED), sums.select(_SUMMED)])


def _operations(ran: _Device, cut: Partition) -> pl.DataFrame:
    """Return what communicated, with how much of it was exposed and hidden."""
    rows = np.flatnonzero(ran.comm >= 0)
    comms = ran.capture.comms
    times = {}
    for name, pieces in (
        ("exposed_ns", cut.communication),
        ("hidden_ns", cut.communication_hidden),
    ):
        time = np.zeros(len(ran.comm), np.int64)
        np.add.at(time, pieces.owner, pieces.end_ns - pieces.start_ns)
        times[name] = time[rows]
    sorts = pl.DataFrame(
        [
            (
                comm.name,
                operation_of(comm),
                known.library if (known := communication_kernel(comm.name)) else None,
                comm.group,
                comm.role,
                comm.peer,
            )
            for comm in comms
        ],
        schema={name: OPERATIONS[name] for name in _OF_SORT},
        orient="row",
    )
    return pl.concat(
        [
            ran.work[rows].select("process", "device", "start_ns", "end_ns", "stream"),
            pl.DataFrame(times, schema={"exposed_ns": pl.Int64, "hidden_ns": pl.Int64}),
            sorts[ran.comm[rows]],
        ],
        how="horizontal",
    ).select(*OPERATIONS)


_OF_SORT: Final = ("name", "operation", "library", "group", "role", "peer")
