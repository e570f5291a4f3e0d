"""What each device of a trace spent its time on, summed while the trace is read.

Tasks have a row for each use of their time, and so have stretches between them. In a pipeline only its
passes have: outside of these every piece of time has a row of its own, for bubbles are explained moment
by moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.arrays import at_once, blocks
from bubblescope.model.budget import (
    AT_ONCE,
    BUDGET_SCHEMA,
    COMMUNICATION,
    COMPUTE,
    COPY,
    GRAPH,
    OPERATION_SCHEMA,
    WHOLE_GRAPH,
    Activities,
    Pieces,
    Use,
    partition,
    running_in,
)
from bubblescope.model.device_time import NONE, ascending, innermost, lookup
from bubblescope.model.kinds import COMPUTE_KINDS, Kind, Lane
from bubblescope.names.communication_kernels import communication_kernel
from bubblescope.sources.activities import NO_ACTIVITIES, activities
from bubblescope.sources.capture import A_GRAPH, UNIFIED, ByProcess
from bubblescope.sources.clock_shift import shifted
from bubblescope.sources.gaps import BY_DRIVER, BY_TOUCH, Calls, Gaps, Host, judge
from bubblescope.sources.projection import pipelined
from bubblescope.sources.stretch_sums import CODE, Bulk, Parts, Stretches, spent_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.model.budget import Partition
    from bubblescope.sources.capture import Capture, Comm

_USES: Final = [use.value for use in Use]
_KINDS: Final = [kind.value for kind in Kind]
_PASSES: Final = [index for index, kind in enumerate(Kind) if kind in COMPUTE_KINDS]
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
    "host_ns": pl.Int64(),
}


class Spent(msgspec.Struct, frozen=True):
    """What the devices of one trace spent their time on.

    Attributes:
        table: Frame with the columns of `TABLE`: those of `BUDGET_SCHEMA`, by process.
        operations: Frame with the columns of `OPERATIONS`, by process.
        windows: Steps in device time: process, device, step, start_ns, end_ns, open, which says that
            the step's end was not recorded, and host_ns, when it began on the host.
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
    work, launches = ByProcess(capture.work), ByProcess(capture.launches)

    def of(process: int) -> list[Spent]:
        ran = _devices(capture, work.of(process), launches.of(process))
        return [_of_device(one, tasks, markers) for one in ran]

    # As in the projection: processes are independent, and NumPy frees the other cores.
    done = [one for several in at_once(of, work.processes) for one in several]
    together = joined([NOTHING, *done])
    return msgspec.structs.replace(
        together,
        waits_known=capture.waits is not None,
        activities=activities(capture, owners),
    )


def _devices(capture: Capture, work: pl.DataFrame, launches: pl.DataFrame) -> Iterator[_Device]:
    """Yield what each device ran for one process, given its work and launches."""
    streams = capture.waits is not None and capture.waits.height > 0
    launches = launches.select(
        "correlation",
        "start_ns",
        # An end that is not known is taken to be the start.
        end_ns=pl.max_horizontal("start_ns", "end_ns"),
        thread="thread",
    )
    keys, *columns = (column.to_numpy() for column in launches)
    calls = Calls(*columns)
    call = lookup(keys, work["correlation"].to_numpy())
    device = work["device"]
    if device.min() == device.max():
        yield _Device(capture, work, call, calls, streams=streams)
        return
    for one in device.unique().sort():
        mine = device == one
        yield _Device(capture, work.filter(mine), call[mine.to_numpy()], calls, streams=streams)


class _Device:
    """What one device ran for one process, by start, and by launch where several start together.

    Args:
        capture: What the trace recorded.
        work: That of the device, for the process.
        call: What launched each row of it: index into the calls, or `NONE`.
        calls: Those of the process.
        streams: Whether it matters what the streams are.
    """

    def __init__(
        self, capture: Capture, work: pl.DataFrame, call: Ints, calls: Calls, *, streams: bool
    ) -> None:
        self.capture, self.calls, self._streams = capture, calls, streams
        self.process, self.device = work["process"][0], work["device"][0]
        start = work["start_ns"].to_numpy()
        if not (start[1:] > start[:-1]).all():
            order = np.lexsort((self._launched(call), start))
            work, call = work[order], call[order]
        self.work, self.call = work, call
        self.start_ns = work["start_ns"].to_numpy()
        end = work["end_ns"].to_numpy()
        sound = (end >= self.start_ns).all()
        self.end_ns = end if sound else np.maximum(end, self.start_ns)
        self.first_ns, self.last_ns = int(self.start_ns[0]), int(self.end_ns.max())

    def _launched(self, call: Ints) -> Ints:
        """Return when calls began, `_NEVER` for no call."""
        begun = self.calls.start_ns
        if len(begun) and call.min() != NONE:
            return begun[call]
        return np.append(begun, _NEVER)[call]

    def launched_ns(self) -> Ints:
        """Return when each activity was launched, `_NEVER` if that is not known."""
        return self._launched(self.call)

    def rows(self, column: str) -> Ints:
        """Return the activities for which a column says something."""
        return self.work[column].is_not_null().arg_true().to_numpy()

    def at(self, column: str, rows: Ints) -> Ints:
        """Return the values of a column in some rows, all of which have one."""
        return self.work[column].gather(rows).to_numpy()

    def activities(self) -> Activities:
        use = np.full(len(self.start_ns), COMPUTE, np.int8)
        use[self.rows("copy")] = COPY
        use[self.rows("comm")] = COMMUNICATION
        use[(self.work["kernel"] == A_GRAPH).arg_true().to_numpy()] = GRAPH
        return Activities(self.start_ns, self.end_ns, use)

    def gaps(self, idle: Pieces) -> Iterator[Gaps]:
        """Yield the idle stretches, block by block, with what is known of what ends them."""
        streams = before = None
        call, moved = self._called()
        if self._streams:
            streams = self.work["stream"].fill_null(NONE).to_numpy()
            before = self._before(streams)
        for rows in blocks(len(idle.owner)):
            start, end, owner = (column[rows] for column in idle)
            by = call[owner]
            if len(moved):
                by[(by == BY_DRIVER) & ~np.isin(start, moved)] = BY_TOUCH
            yield Gaps(
                start,
                end,
                by,
                None if streams is None else streams[owner],
                None if before is None else before[owner],
            )

    def _called(self) -> tuple[Ints, Ints]:
        """Return what launched each activity, and when the driver had moved pages to a device.

        `BY_DRIVER` moves these, which no call launches, `BY_TOUCH` those that move to the host.
        """
        unified = np.array([sort.endswith(UNIFIED) for sort in self.capture.copies], bool)
        back = np.array([sort.startswith(_TO_HOST) for sort in self.capture.copies], bool)
        copies = self.rows("copy")  # few of what a device does, so the rest is not looked at
        sort = self.at("copy", copies)
        moves = unified[sort]
        if not moves.any():
            return self.call, self.call[:0]
        call = self.call.copy()
        call[copies[moves]] = np.where(back[sort[moves]], BY_TOUCH, BY_DRIVER)
        return call, self.end_ns[call == BY_DRIVER]

    def _before(self, stream: Ints) -> Ints:
        """Return when the operation before each on its stream was launched, or `NONE`."""
        before, launched = np.full(len(stream), NONE, np.int64), self.launched_ns()
        order = np.lexsort((launched, stream))
        same = stream[order][1:] == stream[order][:-1]
        before[order[1:][same]] = launched[order[:-1][same]]
        return before


_TO_HOST: Final = "DtoH"
"""First word of the sorts of copies to the host."""

_NEVER: Final = np.iinfo(np.int64).max
"""When what has no known launch was launched: after everything else that starts together with it."""


def _of_device(ran: _Device, tasks: pl.DataFrame, markers: pl.DataFrame) -> Spent:
    cut = partition(ran.activities())
    own = markers.filter(process=ran.process)
    off = _recorder_off(ran, own, cut.idle)
    since, until = (times[off].tolist() for times in cut.idle[:2])
    cut = msgspec.structs.replace(cut, idle=Pieces(*(column[~off] for column in cut.idle)))
    windows = _windows(ran, own, dict(zip(until, since, strict=True)))
    stretches = _stretches(ran, tasks, windows)
    names, roles = _Names(ran.capture.host_names), _Names()
    table = spent_in(stretches, _pieces(ran, cut, names, roles))
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
            then=_gathered(pl.Series(_USES, dtype=TABLE["then"]), table["then"]),
        ),
        _operations(ran, cut),
        windows,
        waits_known=ran.capture.waits is not None,
    )


def _pieces(ran: _Device, cut: Partition, names: _Names, roles: _Names) -> Iterator[Bulk | Parts]:
    """Yield all of a device's time, by what it was spent on."""
    told = cut.told
    for rows in blocks(len(told.start_ns)):
        yield Bulk.of(Use.COMPUTE, told.start_ns[rows], told.end_ns[rows])
    host = Host(ran.capture, ran.process)
    for gaps in ran.gaps(cut.idle):
        yield from judge(gaps, ran.calls, host)
    yield from _moved(ran, cut, names, roles)


def _moved(ran: _Device, cut: Partition, names: _Names, roles: _Names) -> Iterator[Parts]:
    """Yield what communicates, what copies, and graphs of which no more is known."""
    comms = ran.capture.comms
    operation = names.numbers([operation_of(comm) for comm in comms])
    role = roles.numbers([comm.role for comm in comms])
    [graph, _] = names.numbers([WHOLE_GRAPH])
    for use, pieces in (
        (Use.COMMUNICATION, cut.communication),
        (Use.COMMUNICATION_HIDDEN, cut.communication_hidden),
    ):
        of = ran.at("comm", pieces.owner)
        uses, then = (np.full(len(of), code) for code in (CODE[use], NONE))
        yield Parts(pieces.start_ns, pieces.end_ns, uses, operation[of], role[of], then)
    yield from _copied(ran, cut, names)
    codes = (CODE[Use.COMPUTE], graph, NONE, NONE)
    ofs = [np.full(len(cut.graphs.start_ns), code) for code in codes]
    yield Parts(cut.graphs.start_ns, cut.graphs.end_ns, *ofs)


def _copied(ran: _Device, cut: Partition, names: _Names) -> Iterator[Parts]:
    """Yield what copies, by all the sorts of copies that run at once."""
    rows = ran.rows("copy")
    if not len(rows):
        return
    present, sort = np.unique(ran.at("copy", rows), return_inverse=True)
    sorts = [ran.capture.copies[number] for number in present.tolist()]
    sort = np.minimum(sort, _MOST_SORTS)
    for use, pieces in ((Use.COPY, cut.copy), (Use.COPY_HIDDEN, cut.copy_hidden)):
        if not len(pieces.start_ns):
            continue
        parts, running = running_in(pieces, ran.start_ns[rows], ran.end_ns[rows], sort)
        sets, of = np.unique(running, return_inverse=True)
        detail = names.numbers([_together(sorts, number) for number in sets.tolist()])
        uses, none = (np.full(len(of), code) for code in (CODE[use], NONE))
        yield Parts(parts.start_ns, parts.end_ns, uses, detail[of], none, none)


_MOST_SORTS: Final = 62
"""The last bit that tells a sort of copies; more are only in damaged traces, and count as the last."""


def _together(sorts: Sequence[str], running: int) -> str:
    """Return the names of the sorts whose bits are set."""
    return AT_ONCE.join(sorted(name for bit, name in enumerate(sorts) if running >> bit & 1))


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


def operation_of(comm: Comm) -> str | None:
    """Return what a communication kernel does: what the trace says, or else its name."""
    if comm.operation is not None:
        return comm.operation
    known = communication_kernel(comm.name)
    return known.operation if known else None


def _recorder_off(ran: _Device, markers: pl.DataFrame, idle: Pieces) -> Mask:
    """Mark the idle stretches in which nothing was recorded: a device may have done anything then.

    It was not where numbers of steps were left out between two marks, or where the trace says that its
    profiler was off, and nothing was launched.
    """
    off = np.zeros(len(idle.owner), bool)
    begun = np.sort(ran.calls.start_ns)
    marks = markers.drop_nulls(["step", "end_ns"]).sort("start_ns")
    left_out = pl.col("step").shift(-1) > pl.col("step") + 1
    told = [marks.with_columns(next_ns=_NEXT).filter(left_out)]
    if ran.capture.recorded is not None:
        told.append(ran.capture.recorded.with_columns(next_ns=_NEXT).drop_nulls())
    for end, start in pl.concat([one.select("end_ns", "next_ns") for one in told]).iter_rows():
        low, high = np.searchsorted(begun, [end, start])
        at = int(np.searchsorted(idle.end_ns, start))
        if low == high < len(begun) and at < len(off) and idle.start_ns[at] < start:
            off[at] = True
    return off


_NEXT: Final = pl.col("start_ns").shift(-1)


def _windows(ran: _Device, markers: pl.DataFrame, done: Mapping[int, int]) -> pl.DataFrame:
    """Find the steps on the device: each from the first operation launched in it to that of the next.

    The last ends with whatever the device ran last, and is open; so is the last before a time in which
    nothing was recorded.

    Args:
        ran: What the device ran.
        markers: Its process's steps.
        done: When such times end -> when they began.
    """
    launched, start = ran.launched_ns(), ran.start_ns
    if not ascending(launched):
        order = np.argsort(launched, kind="stable")
        launched, start = launched[order], start[order]
    rows: list[tuple[int, int, int, int]] = []
    steps = pl.coalesce("step", pl.int_range(pl.len()))
    marked = markers.sort("start_ns", "end_ns").select(
        "start_ns", pl.col("end_ns").fill_null(_NEVER), steps
    )
    for begin, until, step in marked.iter_rows():
        low, high = np.searchsorted(launched, [begin, until])
        if low < high:
            first = int(start[low:high].min())
            if not rows or first > rows[-1][1]:
                rows.append((step, first, ran.last_ns, begin))
    found = pl.DataFrame(rows, schema=["step", "start_ns", "end_ns", "host_ns"], orient="row")
    following = pl.col("start_ns").shift(-1)
    found = found.with_columns(
        pl.col("start_ns").cast(pl.Int64), end_ns=pl.coalesce(following, "end_ns").cast(pl.Int64)
    ).with_columns(
        done_ns=pl.col("end_ns").replace_strict(done, default=None, return_dtype=pl.Int64)
    )
    return found.select(
        process=pl.lit(ran.process, pl.Int64),
        device=pl.lit(ran.device, pl.Int32),
        step=pl.col("step").cast(pl.Int64),
        start_ns="start_ns",
        end_ns=pl.coalesce("done_ns", "end_ns"),
        open=following.is_null() | pl.col("done_ns").is_not_null(),
        host_ns=pl.col("host_ns").cast(pl.Int64),
    )


def _stretches(ran: _Device, tasks: pl.DataFrame, windows: pl.DataFrame) -> Stretches:
    first, last = ran.first_ns, ran.last_ns
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
    summed = np.isin(kind, _PASSES) if pipelined(tasks) else np.ones(len(kind), bool)
    return Stretches(edges, kind, summed)


def _operations(ran: _Device, cut: Partition) -> pl.DataFrame:
    """Return what communicated, with how much of it was exposed and hidden."""
    rows = ran.rows("comm")
    comms = ran.capture.comms
    times = {}
    for name, pieces in (
        ("exposed_ns", cut.communication),
        ("hidden_ns", cut.communication_hidden),
    ):
        times[name] = np.zeros(len(rows), np.int64)
        at = np.searchsorted(rows, pieces.owner)
        np.add.at(times[name], at, pieces.end_ns - pieces.start_ns)
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
            sorts[ran.at("comm", rows)],
        ],
        how="horizontal",
    ).select(*OPERATIONS)


_OF_SORT: Final = ("name", "operation", "library", "group", "role", "peer")
