"""The recorder: what a training job calls."""

from __future__ import annotations

import functools
import inspect
import os
import queue
import socket
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import numpy as np
import polars as pl

from bubblescope.errors import RecorderError
from bubblescope.record.sink import COLUMNS, FORMAT, Header, Sink
from bubblescope.record.timers import CpuTimer, CudaTimer, Timer
from bubblescope.vocabulary import LANE_OF, Kind, Lane, mark_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["Marks", "NvtxMarks", "Recorder"]

_UNKNOWN: Final = -1
"""Stands for null in the integer buffers, whose real values are never negative."""

_CAPACITY: Final = 4096
_FIELDS: Final = ("step", "stage", "chunk", "microbatch", "peer")
_PAIR: Final = ("pair_stage", "pair_chunk", "pair_microbatch")
_KINDS: Final = {kind.value: kind for kind in Kind}
_KIND_CODES: Final = {kind: code for code, kind in enumerate(Kind)}
_LANE_CODES: Final = {lane: code for code, lane in enumerate(Lane)}


class Marks(Protocol):
    """Shows tasks to a vendor's profiler as well."""

    def push(self, name: str) -> None:
        """Open a range on the calling thread."""

    def pop(self) -> None:
        """Close it."""


class NvtxMarks:
    """NVTX ranges through PyTorch, for Nsight Systems; bubblescope reads their names back."""

    def __init__(self) -> None:
        from torch.cuda import nvtx  # noqa: PLC0415  torch is the job's, not a dependency

        self._nvtx: Any = nvtx

    def push(self, name: str) -> None:
        """Open a range."""
        self._nvtx.range_push(name)

    def pop(self) -> None:
        """Close it."""
        self._nvtx.range_pop()


class Recorder:
    """Records the tasks of one rank to one file.

    Tasks are timed by marks; a thread of its own reads their times and writes them, at the end of
    every step or when there are thousands. A crash loses at most the step that was running. A
    recorder that cannot write warns once and stops recording; it never disturbs the training.

    Tasks may come from several threads. A recorder does not survive a fork: make it in the process
    that uses it.

    Args:
        folder: Where to write `rank00000.bubbles`; made if missing.
        rank: Global rank.
        stages: Global virtual stages that this rank holds, by chunk.
        host: Machine name; the system's own by default.
        device: Device ordinal.
        schedule: Name of the pipeline schedule, as the job knows it.
        microbatches: Micro-batches per step.
        dp, tp, cp: Coordinates in the other parallel dimensions.
        timer: Clock; by default CUDA events if the job has loaded PyTorch with CUDA, else the CPU.
        start: First step to record.
        stop: First step not to record any more; None for all.
        exit_after: Leave the process, with SystemExit, after the last recorded step is on disk.
        marks: Vendor's marks to emit around each task.

    Raises:
        RecorderError: The arguments contradict each other.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        rank: int,
        stages: Sequence[int] | None = None,
        host: str | None = None,
        device: int | None = None,
        schedule: str | None = None,
        microbatches: int | None = None,
        dp: int | None = None,
        tp: int | None = None,
        cp: int | None = None,
        timer: Timer | None = None,
        start: int = 0,
        stop: int | None = None,
        exit_after: bool = False,
        marks: Marks | None = None,
    ) -> None:
        if rank < 0 or start < 0:
            raise RecorderError(f"rank and start must not be negative, but are {rank} and {start}")
        if stop is not None and stop <= start:
            raise RecorderError(f"no step to record: stop ({stop}) must be after start ({start})")
        if exit_after and stop is None:
            raise RecorderError("exit_after needs stop, the step before which to leave")
        self.path = Path(folder) / f"rank{rank:05d}.bubbles"
        self._timer = timer or _default_timer()
        self._marks = marks
        self._window = range(start, stop if stop is not None else sys.maxsize)
        self._exit_after = exit_after
        self._lock = threading.Lock()
        self._anchor: Any = None
        self._buffer = _Buffer(None)
        self._step: int | None = None
        self._next_step = 0
        self._writer: _Writer | None = None
        self.recording = start == 0
        """Whether tasks are being recorded now. Before the first step, only if step 0 will be."""
        self._header = Header(
            format=FORMAT,
            version=_version(),
            rank=rank,
            stages=list(stages) if stages is not None else None,
            host=host or socket.gethostname(),
            process=os.getpid(),
            device=device,
            boot=_boot_id(),
            utc_ns=_utc_minus_monotonic(),
            timer=self._timer.name,
            schedule=schedule,
            microbatches=microbatches,
            dp=dp,
            tp=tp,
            cp=cp,
        )

    def __enter__(self) -> Recorder:
        if self._writer is None:
            self._writer = _Writer(self.path, self._header, self._timer)
            self._anchor = self._timer.anchor()
            self._buffer = _Buffer(self._anchor)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is left and end the file. Closing twice does nothing."""
        self.recording = False
        if self._writer is not None:
            self._flush()
            self._writer.close()
            self._writer = None

    def step(self, number: int | None = None) -> _Step:
        """Return a context manager around one training step.

        Args:
            number: The step; by default one more than the last, from 0.
        """
        return _Step(self, self._next_step if number is None else number)

    def task(
        self,
        kind: Kind | str,
        *,
        microbatch: int | None = None,
        chunk: int | None = None,
        stage: int | None = None,
        peer: int | None = None,
        pair: tuple[int | None, int | None, int | None] | None = None,
        lane: Lane | str | None = None,
        name: str | None = None,
    ) -> _Task:
        """Return a context manager that times one task.

        Args:
            kind: What the task does.
            microbatch: Micro-batch within the step.
            chunk: Model chunk on this rank.
            stage: Global virtual stage, if `stages` and `chunk` do not tell.
            peer: Other rank of a send or receive.
            pair: Stage, chunk and micro-batch of the backward overlapped with this forward.
            lane: Where it runs, if not where its kind usually does.
            name: What to call it; by default the name its vendor mark would have.

        Raises:
            RecorderError: The kind or lane is unknown.
        """
        return _Task(self, _kind(kind), microbatch, chunk, stage, peer, pair, lane, name)

    def wrap(
        self,
        kind: Kind | str,
        *,
        microbatch: int | str | None = None,
        chunk: int | str | None = None,
        stage: int | str | None = None,
        peer: int | str | None = None,
    ) -> Callable[[Function], Function]:
        """Return a decorator that records every call of a function as a task.

        Each of the numbers is a constant, or the name of the function's parameter that holds it.

        Raises:
            RecorderError: The function has no such parameter.
        """
        kind = _kind(kind)
        given = {"microbatch": microbatch, "chunk": chunk, "stage": stage, "peer": peer}
        constant = {key: value for key, value in given.items() if isinstance(value, int)}
        named = {key: value for key, value in given.items() if isinstance(value, str)}

        def decorate(function: Function) -> Function:
            signature = inspect.signature(function)
            for parameter in named.values():
                if parameter not in signature.parameters:
                    raise RecorderError(
                        f"{function.__qualname__} has no parameter {parameter!r} to take a number from",
                    )

            @functools.wraps(function)
            def recorded(*args: Any, **kwargs: Any) -> Any:
                if not self.recording:
                    return function(*args, **kwargs)
                said: dict[str, Any] = dict(constant)
                if named:
                    bound = signature.bind(*args, **kwargs)
                    bound.apply_defaults()
                    said |= {key: bound.arguments[name] for key, name in named.items()}
                with self.task(kind, **said):
                    return function(*args, **kwargs)

            return recorded  # type: ignore[return-value]  # functools.wraps keeps the signature

        return decorate

    def _begin(self, number: int) -> None:
        if self._writer is None:
            raise RecorderError("the recorder is not open: use `with Recorder(...) as recorder:`")
        if self._step is not None:
            raise RecorderError(f"step {number} begins inside step {self._step}; steps do not nest")
        self._flush()
        self._step = number
        self._next_step = number + 1
        self.recording = number in self._window
        if self.recording:
            self._anchor = self._timer.anchor()
            self._buffer = _Buffer(self._anchor)

    def _end(self, *, failed: bool) -> None:
        number, self._step = self._step, None
        self._flush()
        if number != self._window.stop - 1:
            return
        self.recording = False
        # A step that failed must end the job with its own exception.
        if self._exit_after and not failed:
            self.close()
            raise SystemExit(0)

    def _flush(self) -> None:
        """Hand what was recorded to the writer."""
        with self._lock:
            self._swap()

    def _swap(self) -> None:
        full, self._buffer = self._buffer, _Buffer(self._anchor)
        if self._writer is not None and len(full):
            self._writer.write(full)

    def _commit(self, task: _Task) -> None:
        with self._lock:
            self._buffer.append(task, self._step)
            if len(self._buffer) == _CAPACITY:
                self._swap()


class _Step:
    """One training step, as a context manager."""

    __slots__ = ("_number", "_recorder")

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder = recorder
        self._number = number

    def __enter__(self) -> int:
        self._recorder._begin(self._number)  # noqa: SLF001
        return self._number

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._recorder._end(failed=kind is not None)  # noqa: SLF001


class _Task:
    """One task, as a context manager. Outside the step window it does nothing."""

    __slots__ = (
        "_active",
        "_recorder",
        "begin",
        "chunk",
        "end",
        "host_begin",
        "host_end",
        "kind",
        "lane",
        "microbatch",
        "name",
        "pair",
        "peer",
        "stage",
    )

    def __init__(
        self,
        recorder: Recorder,
        kind: Kind,
        microbatch: int | None,
        chunk: int | None,
        stage: int | None,
        peer: int | None,
        pair: tuple[int | None, int | None, int | None] | None,
        lane: Lane | str | None,
        name: str | None,
    ) -> None:
        self._recorder = recorder
        self.kind = kind
        self.microbatch = microbatch
        self.chunk = chunk
        self.stage = stage
        self.peer = peer
        self.pair = pair
        self.lane = LANE_OF[kind] if lane is None else _lane(lane)
        self.name = name

    def __enter__(self) -> None:
        recorder = self._recorder
        self._active = recorder.recording
        if not self._active:
            return
        if recorder._marks is not None:  # noqa: SLF001
            recorder._marks.push(self.label(recorder._step))  # noqa: SLF001
        self.host_begin = time.monotonic_ns()
        self.begin = recorder._timer.mark()  # noqa: SLF001

    def __exit__(self, *_: object) -> None:
        if not self._active:
            return
        recorder = self._recorder
        self.end = recorder._timer.mark()  # noqa: SLF001
        self.host_end = time.monotonic_ns()
        if recorder._marks is not None:  # noqa: SLF001
            recorder._marks.pop()  # noqa: SLF001
        recorder._commit(self)  # noqa: SLF001

    def label(self, step: int | None) -> str:
        """Return the task's name."""
        return self.name or mark_name(
            self.kind,
            step=step,
            stage=self.stage,
            chunk=self.chunk,
            microbatch=self.microbatch,
            peer=self.peer,
        )


class _Buffer:
    """Preallocated columns that tasks are put into, one row at a time.

    Args:
        anchor: What the timer tied the clocks to when these tasks were recorded.
    """

    def __init__(self, anchor: Any) -> None:
        self._anchor = anchor
        self._rows = 0
        self._numbers = np.empty((_CAPACITY, len(_FIELDS) + len(_PAIR) + 4), np.int64)
        self._marks: list[Any] = []
        self._names: list[str | None] = []

    def __len__(self) -> int:
        return self._rows

    def append(self, task: _Task, step: int | None) -> None:
        """Add a finished task."""
        pair = task.pair or (None, None, None)
        self._numbers[self._rows] = (
            *(
                _UNKNOWN if value is None else value
                for value in (step, task.stage, task.chunk, task.microbatch, task.peer, *pair)
            ),
            _KIND_CODES[task.kind],
            _LANE_CODES[task.lane],
            task.host_begin,
            task.host_end,
        )
        self._marks += (task.begin, task.end)
        self._names.append(task.name)
        self._rows += 1

    def frame(self, timer: Timer) -> pl.DataFrame:
        """Return the rows as a frame with the columns of `COLUMNS`."""
        numbers = self._numbers[: self._rows]
        times = timer.resolve(self._marks, self._anchor)
        kinds = np.array([kind.value for kind in Kind])
        lanes = np.array([lane.value for lane in Lane])
        first = len(_FIELDS) + len(_PAIR)
        columns: dict[str, Any] = {
            name: numbers[:, index] for index, name in enumerate((*_FIELDS, *_PAIR))
        }
        columns |= {
            "kind": kinds[numbers[:, first]],
            "lane": lanes[numbers[:, first + 1]],
            "host_start_ns": numbers[:, first + 2],
            "host_end_ns": numbers[:, first + 3],
            "start_ns": times[::2],
            "end_ns": times[1::2],
            "name": pl.Series(self._names, dtype=pl.String),
        }
        return (
            pl.DataFrame(columns)
            .with_columns(pl.col(*_FIELDS, *_PAIR).replace(_UNKNOWN, None))
            .select(pl.col(name).cast(dtype) for name, dtype in COLUMNS.items())
        )


class _Writer:
    """Times and writes buffers in a thread of its own; gives up, with one warning, on failure."""

    def __init__(self, path: Path, header: Header, timer: Timer) -> None:
        self._path = path
        self._timer = timer
        self._queue: queue.SimpleQueue[_Buffer | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        try:
            self._sink: Sink | None = Sink(path, header)
        except OSError as error:
            self._sink = None
            self._give_up(error)
        self._thread = threading.Thread(target=self._run, name="bubblescope-writer", daemon=True)
        self._thread.start()

    def write(self, tasks: _Buffer) -> None:
        """Queue tasks to be written."""
        if self._error is not None:
            self._give_up(self._error)
        elif self._sink is not None:
            self._queue.put(tasks)

    def close(self) -> None:
        """Write everything queued, and the end of the file."""
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            self._give_up(self._error)
        if self._sink is not None:
            try:
                self._sink.close()
            except OSError as error:
                self._give_up(error)

    def _run(self) -> None:
        while (tasks := self._queue.get()) is not None:
            if self._sink is None or self._error is not None:
                continue
            try:
                self._sink.write(tasks.frame(self._timer))
            except Exception as error:  # noqa: BLE001  whatever it is, training goes on
                self._error = error  # warned of by the next call from the job's own thread

    def _give_up(self, error: Exception) -> None:
        self._error = None
        self._sink = None
        reason = getattr(error, "strerror", None) or error
        warnings.warn(
            f"{self._path}: bubblescope stopped recording, it cannot write ({reason}); "
            "training goes on",
            RuntimeWarning,
            stacklevel=4,
        )


def _kind(kind: Kind | str) -> Kind:
    try:
        return kind if isinstance(kind, Kind) else _KINDS[kind]
    except KeyError:
        raise RecorderError(f"{kind!r} is no task kind; use one of {', '.join(_KINDS)}") from None


def _lane(lane: Lane | str) -> Lane:
    try:
        return Lane(lane)
    except ValueError:
        raise RecorderError(f"{lane!r} is no lane; use compute, comm or host") from None


def _default_timer() -> Timer:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return CudaTimer()
    return CpuTimer()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _utc_minus_monotonic() -> int:
    """Return the offset between the clocks, from the tightest of a few readings."""
    readings = []
    for _ in range(5):
        before, utc, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, utc - (before + after) // 2))
    return min(readings)[1]


def _version() -> str:
    from bubblescope import __version__  # noqa: PLC0415  the package imports its parts

    return __version__
