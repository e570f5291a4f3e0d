"""The events of one PyTorch profiler trace as columns, in the terms that all vendors share."""

from __future__ import annotations

import re
from collections import Counter
from itertools import compress, repeat
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.counters import changes
from bubblescope.model.kinds import Kind
from bubblescope.names.communication_kernels import is_communication_kernel
from bubblescope.names.host_ranges import ON_HOST, Doing, doing
from bubblescope.names.phase_words import OPTIMIZER_KERNEL
from bubblescope.sources.capture import LAUNCHES, OPERATORS, RANGES, RECORDED, WORK, Capture, Comm
from bubblescope.sources.kineto.collective_calls import CollectiveCalls
from bubblescope.sources.kineto.counters import MEMORY, Counters
from bubblescope.sources.kineto.document import (
    Count,
    ExactCount,
    ExactInstant,
    ExactShapedSlice,
    ExactSlice,
    Instant,
    Memory,
    ShapedSlice,
    Slice,
)
from bubblescope.sources.kineto.host import Host, Numbers
from bubblescope.sources.kineto.host_transfers import HostTransfers
from bubblescope.sources.kineto.process_groups import RankGroups
from bubblescope.sources.kineto.products import Products
from bubblescope.sources.phase_evidence import (
    BACKWARD,
    COMMUNICATION,
    MODULE,
    NONE,
    RECEIVE,
    SEND,
    role,
)
from bubblescope.sources.plausibility import possible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from bubblescope.model.arrays import Ints

_RANGE, _OPERATOR, _LAUNCH, _KERNEL, _COPY, _FILL, _PYTHON, _SYNC = range(8)
_GROUPS: Final = {
    "user_annotation": _RANGE,
    "cpu_op": _OPERATOR,
    "Operator": _OPERATOR,  # capital letters: PyTorch 1.8 to 1.11
    "cuda_runtime": _LAUNCH,
    "cuda_driver": _LAUNCH,
    "Runtime": _LAUNCH,
    "privateuse1_runtime": _LAUNCH,
    "privateuse1_driver": _LAUNCH,
    "xpu_runtime": _LAUNCH,
    "xpu_driver": _LAUNCH,
    "mtia_runtime": _LAUNCH,
    "kernel": _KERNEL,
    "Kernel": _KERNEL,
    "mtia_ccp_events": _KERNEL,  # Meta's MTIA: kernels, and copies by `_MTIA_COPY`
    "gpu_memcpy": _COPY,
    "Memcpy": _COPY,
    "gpu_memset": _FILL,
    "Memset": _FILL,
    "python_function": _PYTHON,
    "cuda_sync": _SYNC,
}
_COUNTED: Final = {
    _RANGE: "ranges",
    _OPERATOR: "operators",
    _LAUNCH: "calls",
    _KERNEL: "kernels",
    _COPY: "copies",
    _FILL: "fills",
}
_SHOWS: Final = {
    "cpu_op": "ProfilerActivity.CPU",
    "Operator": "ProfilerActivity.CPU",
    "user_annotation": "ProfilerActivity.CPU",
    "cuda_runtime": "ProfilerActivity.CUDA",
    "cuda_driver": "ProfilerActivity.CUDA",
    "Runtime": "ProfilerActivity.CUDA",
    "python_function": "with_stack",
    "cuda_sync": "enable_cuda_sync_events",
}
"""The option of torch.profiler without which there are no events of a category."""
_NO_WORK: Final = frozenset({None, "", "gpu_user_annotation", "Trace", "overhead", "Overhead"})
"""Categories that are not read and tell nothing of what a device did."""
_CATEGORY, _NAME, _THREAD = attrgetter("cat"), attrgetter("name"), attrgetter("tid")
_PROCESS: Final = attrgetter("pid")
_START, _LENGTH = attrgetter("ts"), attrgetter("dur")
_STREAM = attrgetter("args.stream")


class Events(msgspec.Struct, frozen=True):
    """What one trace holds.

    Attributes:
        process: Process id, or None if no event names one.
        named_by: Process id -> names of its ranges.
        capture: Ranges, launches and device work; on a run without a device, operators stand for
            both the launch and the work.
        operators: Frame with the columns of `OPERATORS`.
        products: Frame with the columns of `products.OPERATORS`: operators that may multiply matrices,
            with what they were called with; empty if no operator tells.
        frames: Frame with those of `FRAMES`, of the functions that `is_frame_of_use` tells.
        on_device: Whether the trace holds device work.
        unread: Category -> number of its events, of those that are not read: a device's, perhaps.
        places: The process and the device of its kernels; Kineto writes the device as both.
        devices: The devices that ran something.
        counts: Number of events by what they are.
        names: Frame with the distinct range names and the count of each.
        counters: Frame with name, unit, time_ns and value of its counters.
        groups: Frame with the columns of `GROUP_SCHEMA`: the process groups that it tells.
        impossible: Events dropped because their times cannot be.
        options: The options of torch.profiler that events show to have been on.
    """

    process: int | None
    named_by: dict[int | str | None, set[str]]
    capture: Capture
    operators: pl.DataFrame
    products: pl.DataFrame
    frames: pl.DataFrame
    on_device: bool
    unread: dict[str, int]
    places: set[tuple[int | str | None, int]]
    devices: tuple[int, ...]
    counts: dict[str, int]
    names: pl.DataFrame
    counters: pl.DataFrame
    groups: pl.DataFrame
    impossible: int
    options: set[str]


class Collector:
    """Takes batches of events and keeps the few columns that matter.

    Args:
        kernels: Whether to keep the names of device work.
    """

    def __init__(self, *, kernels: bool = False) -> None:
        self._named = kernels
        self._columns: dict[int, list[tuple[Any, ...]]] = {group: [] for group in _COUNTED}
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._categories: set[str] = set()
        self._unread: Counter[str] = Counter()
        self._places: set[tuple[int | str | None, int]] = set()
        self._processes: dict[int | str | None, set[str]] = {}
        self._threads: dict[int | str | None, int] = {}
        self._calls = CollectiveCalls()
        self._transfers = HostTransfers()
        self._products = Products()
        self._copies: dict[str, int] = {}
        self._kernels = Numbers()
        self._counters = Counters()
        self._host = Host()
        self._recorded: list[tuple[Ints, Ints]] = []
        self._takers: dict[type, Callable[[list[Any]], None]] = {
            Slice: self._take,
            ExactSlice: self._take,
            ShapedSlice: self._take,
            ExactShapedSlice: self._take,
            Instant: self._take_memory,
            ExactInstant: self._take_memory,
            Count: self._take_counts,
            ExactCount: self._take_counts,
        }
        self._sort = _Remembered(_sort_of_kernel)
        self._role = _Remembered(role)
        self._is_frame = _Remembered(is_frame_of_use)

    def take(self, batch: list[Any]) -> None:
        """Take the complete events of a batch, and those that count something."""
        types = list(map(type, batch))
        present = set(types)
        for written, take in self._takers.items():
            if written in present:
                take(list(compress(batch, map(is_, types, repeat(written)))))

    def _take_memory(self, instants: list[Any]) -> None:
        events = [one for one in instants if one.name == MEMORY and type(one.args) is Memory]
        if events:
            self._counters.take_memory(_nanoseconds(events, _START), events)

    def _take_counts(self, counts: list[Any]) -> None:
        events = [one for one in counts if type(one.args) is dict]
        if events:
            self._counters.take(_nanoseconds(events, _START), events)

    def _take(self, slices: list[Any]) -> None:
        self._categories.update(map(_CATEGORY, slices))
        groups = np.fromiter(map(_GROUPS.get, map(_CATEGORY, slices), repeat(-1)), np.int8)
        held = np.empty(len(slices), object)
        held[:] = slices
        for group in _COUNTED:
            mine = groups == group
            self._counts[group] += int(mine.sum())
            events = held[mine].tolist()
            if group == _RANGE:
                events += self._old_ranges(held, groups)
            if events:
                start = _nanoseconds(events, _START)
                end = start + _nanoseconds(events, _LENGTH)
                details = self._details(group, events, start, end)
                self._columns[group].append((start, end, *details))
        self._unread.update(map(_CATEGORY, held[groups == -1].tolist()))
        self._take_functions(held[groups == _PYTHON].tolist())
        if "Trace" in self._categories:
            self._take_recorded([event for event in slices if event.cat == "Trace"])
        if syncs := held[groups == _SYNC].tolist():
            self._host.take_syncs(syncs, _nanoseconds(syncs, _START))

    def _take_recorded(self, spans: list[Any]) -> None:
        """Take Kineto's own spans, each of which says from when to when the profiler was on."""
        spans = [span for span in spans if span.name.startswith(_PROFILER)]
        if spans:
            start = _nanoseconds(spans, _START)
            self._recorded.append((start, start + _nanoseconds(spans, _LENGTH)))

    def _take_functions(self, functions: list[Any]) -> None:
        """Take Python's functions, of `with_stack=True`; one of ten may tell a phase."""
        if not functions:
            return
        start, length = _nanoseconds(functions, _START), _nanoseconds(functions, _LENGTH)
        names, threads = list(map(_NAME, functions)), self._thread_ids(functions)
        self._host.take_functions(names, start, start + length, threads)
        kept = np.flatnonzero(list(map(self._is_frame.__getitem__, names)))
        if len(kept):
            self._columns.setdefault(_PYTHON, []).append(
                (start[kept], (start + length)[kept], threads[kept], [names[row] for row in kept])
            )

    def _old_ranges(self, held: NDArray[np.object_], groups: NDArray[np.int8]) -> list[Any]:
        """Return the ranges among operators: until 2021 both were of one category."""
        operators = held[groups == _OPERATOR].tolist()
        if not operators or operators[0].cat != "Operator":
            return []
        return [event for event in operators if "::" not in event.name]

    def _take_host_operators(
        self, events: list[Any], names: list[str], start: Ints, end: Ints, threads: Ints
    ) -> None:
        """Take the operators that the host was in, without the ranges among them (`_old_ranges`)."""
        if events[0].cat == "Operator":
            kept = np.array([doing(name) is Doing.OPERATOR for name in names])
            names = list(compress(names, kept))
            start, end, threads = start[kept], end[kept], threads[kept]
        self._host.take_operators(names, start, end, threads)

    def _details(self, group: int, events: list[Any], start: Ints, end: Ints) -> tuple[Any, ...]:
        """Return the columns that events of a group have beside their times."""
        if group in {_RANGE, _OPERATOR, _LAUNCH}:
            threads, names = self._thread_ids(events), list(map(_NAME, events))
            if group == _LAUNCH:
                self._host.take_calls(names, start, end, threads)
                return (threads, _correlation(events))
            if group == _RANGE:
                for event in events:
                    self._processes.setdefault(event.pid, set()).add(event.name)
                return (threads, names)
            self._processes.setdefault(events[0].pid, set())
            self._take_host_operators(events, names, start, end, threads)
            self._calls.take_operators(names, events, start, end, threads)
            roles = np.fromiter(map(self._role.__getitem__, names), np.int8, len(names))
            self._transfers.take(events, start, end, threads, roles >= SEND)
            return (
                threads,
                roles,
                _argument(events, "sequence"),
                self._products.take(names, events),
            )
        comm = np.full(len(events), NONE, np.int32)
        copy = np.full(len(events), NONE, np.int8)
        sorts = np.fromiter(map(self._sort.__getitem__, map(_NAME, events)), np.int8, len(events))
        for row in np.flatnonzero(sorts == _COMM):
            comm[row] = self._calls.take_kernel(events[row])
        copies = np.arange(len(events)) if group == _COPY else np.flatnonzero(sorts == _COPIES)
        for row in copies:
            copy[row] = self._copies.setdefault(_sort_of_copy(events[row].name), len(self._copies))
        devices, correlation = _devices(events), _correlation(events)
        if group == _KERNEL:
            self._places.update(zip(map(_PROCESS, events), devices.tolist(), strict=True))
        numbers = map(self._kernels.__getitem__, map(_NAME, events))
        kernel = np.fromiter(numbers, np.int32, len(events))
        return (devices, correlation, comm, copy, _streams(events), kernel)

    def _thread_ids(self, events: list[Any]) -> Ints:
        """Return thread ids, which some writers give as text, as numbers."""
        found = list(map(_THREAD, events))
        if set(map(type, found)) == {int}:
            return np.array(found, np.int64)
        threads = self._threads
        return np.array(
            [
                one if type(one) is int else threads.setdefault(one, -(2**40) - len(threads))
                for one in found
            ],
            np.int64,
        )

    def finish(self, distributed: Mapping[str, Any]) -> Events:
        """Return everything taken as one capture.

        Args:
            distributed: The header's `distributedInfo`, empty if it has none.
        """
        counts = {_COUNTED[group]: total for group, total in self._counts.items() if total}
        frames = {
            _RANGE: self._frame(_RANGE, {"thread": pl.Int64, "name": pl.String}),
            _OPERATOR: self._frame(
                _OPERATOR,
                {"thread": pl.Int64, "role": pl.Int64, "sequence": pl.Int64, "call": pl.Int32},
            ),
            _LAUNCH: self._frame(_LAUNCH, {"thread": pl.Int64, "correlation": pl.Int64}),
            _PYTHON: self._frame(_PYTHON, {"thread": pl.Int64, "name": pl.String}),
        }
        work = pl.concat(
            self._frame(group, _WORK_DETAILS) for group in (_KERNEL, _COPY, _FILL)
        ).with_columns(pl.col("comm", "copy", "kernel").replace(NONE, None))
        samples = self._counters.finish()
        if samples.height:
            counts["samples"] = samples.height
        frames, work, samples, impossible = _without_impossible(frames, work, samples)
        ranges, operators, launches = frames[_RANGE], frames[_OPERATOR], frames[_LAUNCH]
        comms = self._calls.comms()
        on_device = work.height > 0
        host, host_names, waits = self._host.finish(ranges)
        known_groups = RankGroups(distributed)
        if not on_device:
            launches, work, comms = _work_on_host(
                ranges, operators, lambda begun: self._transfers.peers(begun, known_groups)
            )
        capture = Capture(
            ranges=ranges.with_columns(process=pl.lit(0, pl.Int64)).select(*RANGES),
            launches=launches.filter(pl.col("correlation") != NONE)
            .with_columns(process=pl.lit(0, pl.Int64))
            .select(*LAUNCHES),
            work=work.with_columns(process=pl.lit(0, pl.Int64)).select(*WORK),
            comms=comms,
            copies=tuple(self._copies),
            host=host,
            host_names=host_names,
            recorded=self._windows(),
            waits=waits,
            optimizer_kernels=tuple(
                number for name, number in self._kernels.items() if _OF_OPTIMIZER.search(name)
            ),
        )
        if self._named and on_device:
            capture = msgspec.structs.replace(
                capture,
                kernels=work["kernel"],
                kernel_names=tuple(self._kernels),
                operators=_sequenced(operators),
            )
        transfers = operators.filter(pl.col("role").is_in([SEND, RECEIVE])).with_columns(
            receives=pl.col("role") == RECEIVE
        )
        groups = known_groups.table()
        if on_device:
            capture, groups = self._calls.attributed(capture, transfers, distributed)
        return Events(
            process=self._process(),
            named_by={pid: names for pid, names in self._processes.items() if names},
            capture=capture,
            operators=operators.drop("call"),
            products=self._products.finish(operators),
            frames=frames[_PYTHON],
            on_device=on_device,
            unread={cat: count for cat, count in self._unread.items() if cat not in _NO_WORK},
            places=self._places,
            devices=tuple(work["device"].unique().sort()) if on_device else (),
            counts=counts,
            names=ranges.group_by("name").agg(count=pl.len()),
            counters=changes(samples),
            groups=groups,
            impossible=impossible,
            options={_SHOWS[one] for one in self._categories & _SHOWS.keys()},
        )

    def _windows(self) -> pl.DataFrame:
        """Return from when to when the profiler was on, with the columns of `RECORDED`."""
        if not self._recorded:
            return pl.DataFrame(schema=RECORDED)
        start, end = (np.concatenate(times) for times in zip(*self._recorded, strict=True))
        windows = pl.DataFrame({"start_ns": start, "end_ns": end})
        windows = windows.filter(pl.col("start_ns") < pl.col("end_ns")).sort("start_ns")
        begun = pl.col("start_ns") > pl.col("end_ns").cum_max().shift(1)
        number = begun.fill_null(value=False).cum_sum().alias("number")
        return (
            windows.group_by(number, maintain_order=True)
            .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
            .select(*RECORDED)
        )

    def _frame(self, group: int, details: dict[str, Any]) -> pl.DataFrame:
        """Join the batches of one group into a frame."""
        batches = self._columns.pop(group, [])
        schema = {"start_ns": pl.Int64, "end_ns": pl.Int64, **details}
        if not batches:
            return pl.DataFrame(schema=schema)
        columns = zip(*batches, strict=True)
        return pl.DataFrame(
            {
                name: _joined(parts, dtype)
                for (name, dtype), parts in zip(schema.items(), columns, strict=True)
            }
        )

    def _process(self) -> int | None:
        numbers = [pid for pid in self._processes if isinstance(pid, int)]
        return max(numbers, key=lambda pid: len(self._processes[pid])) if numbers else None


_PROFILER: Final = "PyTorch Profiler"
"""What the name of a span begins with that says that the profiler was on."""

_OF_OPTIMIZER: Final = re.compile(OPTIMIZER_KERNEL)


class _Remembered(dict[str, Any]):
    """Judges each distinct name once."""

    def __init__(self, judge: Callable[[str], Any]) -> None:
        self._judge = judge

    def __missing__(self, name: str) -> Any:
        self[name] = found = self._judge(name)
        return found


_COMM, _COPIES = 1, 2
_ROCM_COPY: Final = ("MEMORY_COPY_", "__amd_rocclr_copyBuffer")
_COPY_NAME: Final = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")


_MTIA_COPY: Final = "dma_request"
"""What moves data on Meta's MTIA; Kineto writes it with the kernels, in HTA's public traces."""


def _sort_of_kernel(name: str) -> int:
    """Say whether a kernel communicates, copies as ROCm's did until 2023, or else."""
    if is_communication_kernel(name):
        return _COMM
    return _COPIES * (name.startswith(_ROCM_COPY) or name == _MTIA_COPY)


def _sort_of_copy(name: str) -> str:
    """Return the direction of a copy, and how the host's memory is held: "HtoD pinned"."""
    found = _COPY_NAME.match(name)
    if found is None:
        return name.removeprefix("Memcpy ").strip()
    held = {"Pinned", "Pageable"} & {found[2], found[3]}
    return " ".join([found[1], *sorted(held)]).replace("P", "p")


def _sequenced(operators: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that have a sequence number, with the columns of `OPERATORS`."""
    return (
        operators.filter(pl.col("sequence") != NONE)
        .with_columns(process=pl.lit(0, pl.Int64), engine=pl.col("role") == BACKWARD)
        .select(*OPERATORS)
    )


def _streams(events: list[Any]) -> NDArray[np.int32]:
    """Return the numbers of streams, or `NONE`."""
    try:
        found = list(map(_STREAM, events))
    except AttributeError:  # some have no arguments
        found = [None if event.args is None else event.args.stream for event in events]
    if set(map(type, found)) != {int}:
        found = [one if type(one) is int else NONE for one in found]
    return np.array([one if 0 <= one < 2**31 else NONE for one in found], np.int32)


_WORK_DETAILS: Final = {
    "device": pl.Int32,
    "correlation": pl.Int64,
    "comm": pl.Int32,
    "copy": pl.Int8,
    "stream": pl.Int32,
    "kernel": pl.Int32,
}


def is_frame_of_use(name: str) -> bool:
    """Say whether a Python function may tell a phase: a module's forward, or a recomputation."""
    return name.startswith(MODULE) or name.endswith(": recompute_fn")


def _joined(parts: Sequence[Any], dtype: Any) -> pl.Series:
    if dtype == pl.String:
        return pl.concat([pl.Series(part, dtype=dtype) for part in parts])
    return pl.Series(np.concatenate(parts), dtype=dtype)


def _argument(events: list[Any], name: str) -> Ints:
    """Return an argument that is a whole number, or `NONE`."""
    try:
        values = list(map(attrgetter(f"args.{name}"), events))
    except AttributeError:  # some have no arguments
        get = attrgetter(name)
        values = [None if event.args is None else get(event.args) for event in events]
    if None in values:
        values = [NONE if value is None else value for value in values]
    return np.array(values, np.int64)


def _correlation(events: list[Any]) -> Ints:
    """Return correlation ids, which are positive, or `NONE`."""
    values = _argument(events, "correlation")
    return np.where(values == 0, NONE, values)


def _devices(events: list[Any]) -> NDArray[np.int32]:
    """Return device ordinals: an argument, or, from writers that leave it out, the "process"."""
    try:
        return np.array(list(map(attrgetter("args.device"), events)), np.int32)
    except (AttributeError, TypeError, OverflowError):
        devices = [
            event.pid if event.args is None or event.args.device is None else event.args.device
            for event in events
        ]
    known = [one if type(one) is int and abs(one) < 2**31 else 0 for one in devices]
    return np.array(known, np.int32)


def _nanoseconds(events: list[Any], get: Callable[[Any], Any]) -> Ints:
    """Return times in integer nanoseconds; the microseconds have at most three decimals.

    The whole and the broken part are scaled apart: their product would not fit a float64.
    """
    times = list(map(get, events))
    if isinstance(times[0], msgspec.Raw):
        return _from_text(times)
    us = np.array(times, np.float64)
    known = np.abs(us) < 2.0**53
    us[~known] = 0
    whole = np.floor(us)
    ns = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
    ns[~known] = _NEVER_NS
    return ns


_NEVER_NS: Final = -(2**61)
"""A time that no clock shows."""


def _from_text(texts: list[msgspec.Raw]) -> Ints:
    """Turn decimal numbers of microseconds into integers of nanoseconds, exactly."""
    text = pl.Series([bytes(one) for one in texts], dtype=pl.Binary).cast(pl.String)
    parts = pl.DataFrame({"text": text}).select(
        negative=pl.col("text").str.starts_with("-"),
        whole=pl.col("text").str.extract(r"^-?(\d{1,16})(?:\.|$)").cast(pl.Int64, strict=False),
        broken=pl.col("text").str.extract(r"\.(\d+)$").fill_null("0"),
    )
    digits = pl.col("broken").str.slice(0, 3).str.pad_end(3, "0").cast(pl.Int64)
    size = (
        pl.col("whole") * 1000 + digits + (pl.col("broken").str.slice(3, 1) >= "5").cast(pl.Int64)
    )
    signed = pl.when("negative").then(-size).otherwise(size)
    return parts.select(signed.fill_null(_NEVER_NS).alias("ns"))["ns"].to_numpy()


def _work_on_host(
    ranges: pl.DataFrame,
    operators: pl.DataFrame,
    peers: Callable[[pl.DataFrame], pl.Series],
) -> tuple[pl.DataFrame, pl.DataFrame, tuple[Comm, ...]]:
    """Let operators stand for launch and work at once, on a run without a device.

    A task is then first operator start to last operator end, which leaves out the wait for a
    receive at its beginning. Communication runs from its issue to its completion.

    Args:
        ranges: The trace's ranges.
        operators: Its operators.
        peers: Returns the rank at the other end of each transfer, by its thread and start_ns.
    """
    comm = ranges.filter(pl.col("name").str.contains("^(?:" + "|".join(ON_HOST) + ")"))
    comm = comm.with_columns(peer=peers(comm))
    sorts = comm.select("name", "peer").unique().sort("name", "peer", nulls_last=True)
    done = comm.join(
        sorts.with_row_index("comm").cast({"comm": pl.Int32}),
        on=["name", "peer"],
        nulls_equal=True,
        maintain_order="left",
    ).drop("name", "peer")
    times = operators.filter(pl.col("role") < COMMUNICATION).select("start_ns", "end_ns", "thread")
    work = pl.concat(
        [times.with_columns(comm=pl.lit(None, pl.Int32)), done.select(*times.columns, "comm")]
    ).with_columns(
        device=pl.lit(0, pl.Int32),
        correlation=pl.int_range(pl.len(), dtype=pl.Int64),
        copy=pl.lit(None, pl.Int8),
        stream=pl.lit(None, pl.Int32),
        kernel=pl.lit(None, pl.Int32),
    )
    comms = tuple(_comm_on_host(name, peer) for name, peer in sorts.iter_rows())
    return work.drop("device", "comm", "copy", "stream", "kernel"), work.drop("thread"), comms


def _comm_on_host(name: str, peer: int | None) -> Comm:
    """Return the sort of an annotation such as "gloo:send"."""
    way = name.rpartition(":")[2]
    if way not in {"send", "recv"}:
        return Comm(name, Kind.COLLECTIVE)
    return Comm(name, Kind.OTHER, peer, way)


def _without_impossible(
    frames: dict[int, pl.DataFrame], work: pl.DataFrame, samples: pl.DataFrame
) -> tuple[dict[int, pl.DataFrame], pl.DataFrame, pl.DataFrame, int]:
    """Drop events that end before they start, or lie days away from all others."""
    starts = pl.concat([frame["start_ns"] for frame in (*frames.values(), work)])
    starts = starts if len(starts) else samples["time_ns"]
    if not len(starts):
        return frames, work, samples, 0
    middle = int(starts.median() or 0)  # type: ignore[arg-type]  # a column of integers
    sound = possible(middle)
    kept = {group: frame.filter(sound) for group, frame in frames.items()}
    kept_work = work.filter(sound)
    times = samples.select(start_ns="time_ns", end_ns="time_ns")
    kept_samples = samples.filter(times.select(sound).to_series()) if len(samples) else samples
    before = sum(map(len, (*frames.values(), work, samples)))
    lost = before - sum(map(len, (*kept.values(), kept_work, kept_samples)))
    return kept, kept_work, kept_samples, lost
