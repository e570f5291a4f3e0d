"""A clock that times tasks by their kernels, through NVIDIA's CUPTI.

Events time a place in a stream: a task seems to begin when the stream reaches its first event, though
its first kernel may only be launched much later. CUPTI says when every kernel ran. A task's interval
is then first kernel's start to last kernel's end of what was launched in it, by its own thread or by
autograd's, exactly as for traces: `bubblescope.sources.projection` does both.

It costs more than events: a record of every kernel and of its launch, and waiting for the device at
the end of every step. CUPTI serves one tool a process, so neither torch.profiler nor Nsight Systems can
run beside it.
https://docs.nvidia.com/cupti/main/main.html#cupti-activity-api
"""

from __future__ import annotations

import importlib
import queue
import re
import threading
import time
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.device_time import LAUNCHES, WORK, device_intervals
from bubblescope.model.errors import RecorderError
from bubblescope.model.kinds import Lane
from bubblescope.names.communication_kernels import is_communication_kernel
from bubblescope.record.timers.timer import Timer
from bubblescope.recording.rows import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_WORK: Final = ("CONCURRENT_KERNEL", "MEMCPY", "MEMCPY2", "MEMSET", "GRAPH_TRACE")
_CALLS: Final = {
    "RUNTIME": ("RuntimeApiTraceCbid", "runtime_api_trace_cbid"),
    "DRIVER": ("DriverApiTraceCbid", "driver_api_trace_cbid"),
}
"""Kinds of calls, and what cupti-python calls their numbers: now, and up to 13.0."""
_LAUNCHING: Final = re.compile(r"cu(da)?(64)?(Launch(?!Host)|GraphLaunch|Memcpy|Memset)")
"""Calls that start device work. The rest, several for each kernel, are not even recorded."""

_BUFFER_BYTES: Final = 8 << 20
"""What NVIDIA's own samples give CUPTI at a time; it asks for more when they are full."""
_ANY_NUMBER: Final = 0
_FORCED: Final = 1
"""Flag to flush buffers that are not full; nothing in them is unfinished after a synchronisation."""

_LAUNCH_COLUMNS: Final = {name: LAUNCHES[name] for name in ("thread", "start_ns", "correlation")}
_WORK_COLUMNS: Final = {name: dtype for name, dtype in WORK.items() if name != "process"}
_RANGES: Final = {
    "range": pl.Int64,
    "thread": pl.Int64,
    "host_start": pl.Int64,
    "until_ns": pl.Int64,
    "lane": pl.String,
}


class _Anchor(NamedTuple):
    """What ties CUPTI's clock to the host's.

    Attributes:
        offset_ns: The host's monotonic time less CUPTI's.
        since: CUPTI's time at the anchor before. A task still open may have launched work since then.
    """

    offset_ns: int
    since: int


class _Records(NamedTuple):
    """What CUPTI told, as frames with the columns of `LAUNCHES` and `WORK` but process."""

    launches: pl.DataFrame
    work: pl.DataFrame


class CuptiTimer(Timer):
    """Kernels' own times.

    A task that launched nothing on the device is timed where it ran, on the host. Communication
    kernels count in tasks of communication only.

    Args:
        cupti: The module `cupti.cupti` of cupti-python, which is the default.
        cuda: Something with the `synchronize` and `current_device` of `torch.cuda`, the default.
        clock: The host's monotonic clock.

    Raises:
        RecorderError: cupti-python or PyTorch is not installed, or CUPTI does not work here.
    """

    name = "cupti"
    sees_kernels = True

    def __init__(self, cupti: Any = None, cuda: Any = None, clock: Any = time.monotonic_ns) -> None:
        self._cupti = cupti or _installed()
        if cuda is None:
            import torch  # noqa: PLC0415  it is the job's, not a dependency

            cuda = torch.cuda
        self._cuda = cuda
        self._clock = clock
        self._device = 0
        self._collecting = False
        self._last_anchor = 0
        self._settled = -1
        """CUPTI's time up to which everything launched has run and was told."""
        self._told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._kept = _records([], [])
        self._comm: dict[str, bool] = {}
        try:
            self._timestamp = self._cupti.get_timestamp
            self._timestamp()
            # As Python's threads are known, so that a launch is known to be of a task's own thread.
            self._cupti.set_thread_id_type(self._cupti.ActivityThreadIdType.SYSTEM)
            self._cupti.activity_register_callbacks(_more, self._take)
        except Exception as error:
            raise RecorderError(
                f"CUPTI does not work in this process ({error}); only one tool may use it, so run "
                "without torch.profiler and Nsight Systems, or use the timer 'cuda'"
            ) from error

    def anchor(self) -> _Anchor:
        """Compare CUPTI's clock with the host's, by the tightest of a few readings."""
        if not self._collecting:
            self._collect(enable=True)
        self._device = self._cuda.current_device()
        readings = []
        for _ in range(5):
            before, here, after = self._clock(), self._timestamp(), self._clock()
            readings.append((after - before, (before + after) // 2 - here))
        since, self._last_anchor = self._last_anchor, self._timestamp()
        return _Anchor(min(readings)[1], since)

    def mark(self) -> tuple[int, int]:
        """Return CUPTI's time of the host, and the thread."""
        return self._timestamp(), threading.get_native_id()

    def settle(self) -> None:
        """Let the device run empty and have CUPTI tell what it did."""
        now = self._timestamp()
        self._cuda.synchronize(self._device)
        self._cupti.activity_flush_all(_FORCED)
        self._settled = now

    def rest(self) -> None:
        """Let CUPTI record nothing, until the next anchor."""
        if self._collecting:
            self._collect(enable=False)

    def resolve(
        self,
        begins: Sequence[tuple[int, int]],
        ends: Sequence[tuple[int, int]],
        anchor: _Anchor,
        comm: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """Return first kernel's start and last kernel's end of each task, and how long kernels ran.

        Raises:
            RecorderError: A record of CUPTI could not be read.
        """
        times = np.array([[at for at, _ in begins], [at for at, _ in ends]], np.int64)
        if self._settled < times.max(initial=0):
            self.settle()  # the job failed in mid-step; it launches nothing any more
        records = self._all_records()
        threads = [thread for _, thread in begins]
        # The outer task first; of tasks in the same tick, the one that ended last.
        order = np.lexsort((-np.arange(len(threads)), -times[1], times[0]))
        ranges = pl.DataFrame(
            {
                "range": np.arange(len(threads)),
                "thread": threads,
                "host_start": times[0],
                "until_ns": times[1],
                "lane": np.where(comm, Lane.COMM.value, Lane.COMPUTE.value),
            },
            schema=_RANGES,
        )[order]
        intervals, owned, launched = device_intervals(ranges, *records)
        self._kept = _Records(
            records.launches.filter(pl.col("start_ns") >= anchor.since),
            records.work.filter(pl.Series(~owned & (launched >= anchor.since))),
        )
        found = intervals["range"].to_numpy()
        times[0, found] = intervals["start_ns"].to_numpy()
        times[1, found] = intervals["end_ns"].to_numpy()
        busy = np.full(len(threads), UNKNOWN, np.int64)
        busy[found] = intervals["busy_ns"].to_numpy()
        return np.vstack([times + anchor.offset_ns, busy])

    def _collect(self, *, enable: bool) -> None:
        """Switch the records on or off."""
        cupti = self._cupti
        switch = cupti.activity_enable if enable else cupti.activity_disable
        for name in (*_WORK, *_CALLS):
            switch(cupti.ActivityKind[name])
        self._collecting = enable
        if enable:
            self._only_launches()

    def _only_launches(self) -> None:
        """Leave out the calls that start nothing: there are several for each kernel.

        CUPTI forgets this when the kind is switched on; and a function that is switched on by itself,
        in a context that was made while the kind was off, tells nothing.
        """
        cupti = self._cupti
        ones = (cupti.activity_enable_runtime_api, cupti.activity_enable_driver_api)
        for enums, one in zip(_CALLS.values(), ones, strict=True):
            for enum in enums:
                for number in getattr(cupti, enum, ()):  # older ones do not name them
                    if not _LAUNCHING.match(number.name):
                        with suppress(Exception):  # names of no function, such as SIZE
                            one(number, 0)

    def _take(self, records: Iterable[Any]) -> None:
        """Keep what is needed of records that are only valid now. CUPTI may call from any thread."""
        try:
            self._told.put(self._read(records))
        except Exception as error:  # noqa: BLE001  nobody is above this call to see it: `resolve` is
            self._told.put(error)

    def _read(self, records: Iterable[Any]) -> tuple[array[int], array[int]]:
        cupti, comm = self._cupti, self._comm
        calls = {int(cupti.ActivityKind[name]) for name in _CALLS}
        kernel = int(cupti.ActivityKind.CONCURRENT_KERNEL)
        # Numbers in a row: an object for each record would set off garbage collections.
        launches, work = array("q"), array("q")
        for record in records:
            kind, start = record.kind, record.start
            if kind in calls:
                launches.extend((record.thread_id, start, record.correlation_id))
                continue
            end = record.end
            if not start or not end:
                continue  # CUPTI could not time it
            communicates = False
            if kind == kernel:
                name = record.name
                if name not in comm:
                    comm[name] = is_communication_kernel(name)
                communicates = comm[name]
            work.extend((record.device_id, start, end, record.correlation_id, communicates))
        return launches, work

    def _all_records(self) -> _Records:
        """Return what was told since the last time, and what was kept of it."""
        told = []
        while not self._told.empty():
            one = self._told.get()
            if isinstance(one, Exception):
                raise RecorderError(f"a record of CUPTI could not be read ({one})") from one
            told.append(one)
        new = _records([launches for launches, _ in told], [work for _, work in told])
        return _Records(
            pl.concat([self._kept.launches, new.launches]),
            pl.concat([self._kept.work, new.work]).rechunk(),
        )


def _installed() -> Any:
    try:
        return importlib.import_module("cupti.cupti")
    except ImportError as error:
        raise RecorderError(
            f"the timer 'cupti' needs cupti-python ({error}): pip install cupti-python, of the CUDA "
            "version that the job uses"
        ) from None


def _more() -> tuple[int, int]:
    """Say how large a buffer CUPTI gets, and how many records may be in it."""
    return _BUFFER_BYTES, _ANY_NUMBER


def _records(launches: Sequence[array[int]], work: Sequence[array[int]]) -> _Records:
    records = _Records(_frame(launches, _LAUNCH_COLUMNS), _frame(work, _WORK_COLUMNS))
    # Which communication it is, no task asks; none is null.
    comm = pl.when(pl.col("comm") == 1).then(0)
    return records._replace(work=records.work.with_columns(comm=comm.cast(WORK["comm"])))


def _frame(told: Sequence[array[int]], columns: dict[str, Any]) -> pl.DataFrame:
    """Return rows that were told as numbers in a row."""
    rows = np.concatenate([np.empty(0, np.int64), *told]).reshape(-1, len(columns))
    return pl.DataFrame(
        {
            name: pl.Series(rows[:, i], dtype=dtype)
            for i, (name, dtype) in enumerate(columns.items())
        }
    )
