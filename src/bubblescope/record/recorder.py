"""The recorder: what a training job calls."""

from __future__ import annotations

import functools
import inspect
import operator
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from bubblescope.errors import RecorderError
from bubblescope.record.rows import (
    CAPACITY,
    KIND_CODES,
    KINDS,
    LANE_CODES,
    LANE_OF_KIND,
    NO_PAIR,
    PAIR,
    PAIRED,
    UNKNOWN,
    WIDTH,
    Buffer,
    label_of,
    pack_place,
    pack_step,
)
from bubblescope.record.sink import FORMAT, Header
from bubblescope.record.timers import CpuTimer, Timer, chosen_timer
from bubblescope.record.writer import Writer
from bubblescope.vocabulary import Kind, Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from bubblescope.record.marks import Marks
    from bubblescope.record.steps import StepTimes

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["Recorder"]

_now: Final = time.monotonic_ns

_FULL: Final = CAPACITY * WIDTH
"""Values in the list of tasks at which it is handed to the writer."""

_LAST: Final = np.iinfo(np.int32).max
_LAST_CHUNK: Final = np.iinfo(np.int16).max
"""The largest numbers that the columns of a recording hold."""

_PATIENCE_S: Final = 10.0
"""How long a job that failed waits for its device: it may have hung, and the job must end."""


class Recorder:
    """Records the tasks of one rank to one file.

    Tasks are timed by marks; a thread of its own reads their times and writes them, at the end of
    every step or when there are thousands. A crash loses at most the step that was running. A
    recorder that cannot write or read its clock warns once and stops recording; it never disturbs
    the training.

    Open it, by `with`, once the process has chosen its device. Tasks may come from several threads.
    A recorder does not survive a fork: make it in the process
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
        max_mb: Most megabytes on disk; when they are used up, the older half is dropped, and the
            recording says how much that was. None for no limit.

    Raises:
        RecorderError: The arguments contradict each other, or, on opening, the recorder was closed
            before or another is recording to the same file.
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
        max_mb: float | None = None,
    ) -> None:
        _whole("start", start)
        _optional("stop", stop)
        if stop is not None and stop <= start:
            raise RecorderError(f"no step to record: stop ({stop}) must be after start ({start})")
        if exit_after and stop is None:
            raise RecorderError("exit_after needs stop, the step before which to leave")
        if max_mb is not None and not max_mb > 0:
            raise RecorderError(f"max_mb must be more than 0, not {max_mb!r}")
        timer = timer or chosen_timer()
        header = Header(
            format=FORMAT,
            version=_version(),
            rank=_whole("rank", rank),
            stages=None if stages is None else [_whole("stage", stage) for stage in stages],
            host=host or socket.gethostname(),
            process=os.getpid(),
            device=_optional("device", device),
            boot=_boot_id(),
            utc_ns=_utc_minus_monotonic(),
            timer=timer.name,
            schedule=schedule,
            microbatches=_optional("microbatches", microbatches),
            dp=_optional("dp", dp),
            tp=_optional("tp", tp),
            cp=_optional("cp", cp),
        )
        self.path = Path(folder) / f"rank{rank:05d}.bubbles"
        self._timer = timer
        self.plain = isinstance(timer, CpuTimer) and marks is None
        """Whether tasks are timed by the host's clock and told to nobody else: see `add`."""
        self._header = header
        self._marks = marks
        self._limit = None if max_mb is None else int(max_mb * 1e6)
        self._observers: list[Callable[[StepTimes], None]] = []
        self._window = range(start, stop if stop is not None else sys.maxsize)
        self._exit_after = exit_after
        self._lock = threading.Lock()
        self._anchor: Any = None
        self._items: list[Any] = []
        self._put = self._items.extend
        """Adds the values of a task, or of several, at once: other threads see all of them or none."""
        self._step: int | None = None
        self.what_step = pack_step(UNKNOWN)
        """The step that tasks begin in now, packed."""
        self._next_step = 0
        self._writer: Writer | None = None
        self._closed = False
        self.recording = False
        """Whether tasks are being recorded now. Before the first step, only if step 0 will be."""

    def __enter__(self) -> Recorder:
        if self._closed:
            raise RecorderError(
                f"{self.path} is finished, and opening its recorder again would empty it; make "
                "another recorder, with another folder",
            )
        if self._writer is None:
            self._writer = Writer(
                self.path, self._header, self._timer, self._limit, self._observers
            )
            self._record_if(wanted=0 in self._window)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(None if kind is None else _PATIENCE_S)

    def close(self) -> None:
        """Write what is left and end the file. Closing twice does nothing."""
        self._close(None)

    def _close(self, patience_s: float | None) -> None:
        self.recording = False
        self._closed = True
        if self._writer is not None:
            self._flush(failed=patience_s is not None)
            self._rest()
            self._writer.close(patience_s)
            self._writer = None

    def step(self, number: int | None = None) -> _Step:
        """Return a context manager around one training step.

        Args:
            number: The step; by default one more than the last, from 0.

        Raises:
            RecorderError: It is no step number; or, on entering, the recorder is not open or the last
                step has not ended.
        """
        number = _optional("step", number)
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
            RecorderError: The kind or lane is unknown; or, on entering while recording, a number is
                not one, or a pair is given for another kind than forward_backward.
        """
        code = _kind_code(kind)
        lane_code = LANE_OF_KIND[code] if lane is None else _lane_code(lane)
        return _Task(self, code, lane_code, microbatch, chunk, stage, peer, pair, name)

    def on_step(self, callback: Callable[[StepTimes], None]) -> None:
        """Call a function after every recorded step with what the step was, for a live metric.

        It is called in the recorder's own thread, once the device has finished the step, which may
        be during a later one. If it fails, that is one warning, and it is not called again.
        """
        self._observers.append(callback)

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
        _kind_code(kind)
        given = {"microbatch": microbatch, "chunk": chunk, "stage": stage, "peer": peer}
        named = {key: value for key, value in given.items() if isinstance(value, str)}
        constant: dict[str, Any] = {key: value for key, value in given.items() if key not in named}

        def decorate(function: Function) -> Function:
            takers = {key: _takes(function, parameter) for key, parameter in named.items()}

            @functools.wraps(function)
            def recorded(*args: Any, **kwargs: Any) -> Any:
                if not self.recording:
                    return function(*args, **kwargs)
                said = {key: take(args, kwargs) for key, take in takers.items()}
                with self.task(kind, **constant, **said):
                    return function(*args, **kwargs)

            return recorded  # type: ignore[return-value]  # functools.wraps keeps the signature

        return decorate

    def begin_task(self, what: bytes) -> tuple[bytes, int, Any]:
        """Take the time at the beginning of a task, for wrappers that call often.

        Args:
            what: The task's place, as `rows.pack_place` packs it.

        Returns:
            What `end_task` wants.
        """
        # The step it begins in: a task of another thread may end after its step.
        step = self.what_step
        if self.plain:
            host = _now()
            return step, host, host
        if self._marks is not None:
            self._marks.push(label_of(what, self._step))
        host = _now()
        return step, host, self._mark()

    def end_task(self, what: bytes, began: tuple[bytes, int, Any]) -> None:
        """Record a task that ends now. Never raises: it runs where the job's own error may be on."""
        try:
            step, host_begin, begin = began
            if self.plain:
                end = host_end = _now()
            else:
                end = self._mark()
                host_end = _now()
                if self._marks is not None:
                    self._marks.pop()
                if begin is None or end is None:
                    return
            self.add((step, what, begin, end, host_begin, host_end, None))
        except Exception as error:  # noqa: BLE001  the job goes on
            self._give_up(error)

    def abandon_task(self) -> None:
        """End what `begin_task` began last as none."""
        if self._marks is not None:
            self._marks.pop()

    def add(self, task: tuple[Any, ...]) -> None:
        """Record a task that has ended, for wrappers that time it themselves where all is `plain`.

        Never raises, like `end_task`.

        Args:
            task: The values that `rows.WIDTH` lists.
        """
        if not self.recording:
            return
        self._put(task)
        if len(self._items) >= _FULL:
            try:
                self._flush_full()
            except Exception as error:  # noqa: BLE001  the job goes on
                self._give_up(error)

    def _begin(self, number: int) -> None:
        if self._writer is None:
            raise RecorderError("the recorder is not open: use `with Recorder(...) as recorder:`")
        if self._step is not None:
            raise RecorderError(f"step {number} begins inside step {self._step}; steps do not nest")
        self._flush()
        self._step = number
        self.what_step = pack_step(number)
        self._next_step = number + 1
        self._record_if(wanted=number in self._window)

    def _end(self, *, failed: bool) -> None:
        number, self._step = self._step, None
        self.what_step = pack_step(UNKNOWN)
        self._flush(failed=failed)
        if number is not None and number in self._window and self._writer and self._observers:
            self._writer.end_step(number)
        if number != self._window.stop - 1:
            return
        self.recording = False
        self._rest()
        # A step that failed must end the job with its own exception.
        if self._exit_after and not failed:
            self.close()
            raise SystemExit(0)

    def _record_if(self, *, wanted: bool) -> None:
        """Start recording, on clocks tied anew, or stop."""
        self.recording = wanted and self._writer is not None and self._writer.works
        if not self.recording:
            self._rest()
            return
        try:
            anchor = self._timer.anchor()
        except Exception as error:  # noqa: BLE001  if the device is lost, the job will notice itself
            self._give_up(error)
            return
        with self._lock:
            self._hand_over()  # other threads may have ended tasks meanwhile
            self._anchor = anchor

    def _give_up(self, error: Exception) -> None:
        self.recording = False
        if self._writer is not None:
            self._writer.give_up(error)

    def _rest(self) -> None:
        """Let the timer cost nothing."""
        try:
            self._timer.rest()
        except Exception as error:  # noqa: BLE001  the job goes on
            self._give_up(error)

    def _flush(self, *, failed: bool = False) -> None:
        """Hand what was recorded to the writer."""
        with self._lock:
            if not failed:  # else the device may hang, and only the writer's thread may wait for it
                self._settle()
            self._hand_over()

    def _flush_full(self) -> None:
        """Do so in the midst of a step, unless somebody does it already.

        That may be this very thread: a garbage collection in the midst of it is a task too.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
                self._hand_over()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        if self._items:
            try:
                self._timer.settle()
            except Exception as error:  # noqa: BLE001  if the device is lost, the job will notice itself
                self._give_up(error)

    def _hand_over(self) -> None:
        # Other threads may add tasks meanwhile, behind these.
        count = len(self._items)
        if not count:
            return
        items = self._items[:count]
        del self._items[:count]
        if self._writer is not None:
            self._writer.write(Buffer(items, self._anchor))

    def _mark(self) -> Any:
        """Return the timer's mark, or None if it can give none any more."""
        try:
            return self._timer.mark()
        except Exception as error:  # noqa: BLE001  the job's own error, if any, must be the one seen
            self._give_up(error)
            return None


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
        "_begin",
        "_chunk",
        "_host_begin",
        "_kind",
        "_lane",
        "_microbatch",
        "_name",
        "_pair",
        "_peer",
        "_place",
        "_recorder",
        "_stage",
        "_step",
    )

    def __init__(
        self,
        recorder: Recorder,
        kind: int,
        lane: int,
        microbatch: int | None,
        chunk: int | None,
        stage: int | None,
        peer: int | None,
        pair: tuple[int | None, int | None, int | None] | None,
        name: str | None,
    ) -> None:
        self._recorder = recorder
        self._kind = kind
        self._lane = lane
        self._microbatch = microbatch
        self._chunk = chunk
        self._stage = stage
        self._peer = peer
        self._pair = pair
        self._name = name

    def __enter__(self) -> None:
        recorder = self._recorder
        self._active = recorder.recording
        if not self._active:
            return
        # The step it begins in: a task of another thread may end after its step.
        self._step = recorder.what_step
        step = recorder._step  # noqa: SLF001
        self._place = self._describe()
        if recorder._marks is not None:  # noqa: SLF001
            recorder._marks.push(self._label(step))  # noqa: SLF001
        self._host_begin = _now()
        self._begin = recorder._mark()  # noqa: SLF001

    def __exit__(self, *_: object) -> None:
        if not self._active:
            return
        recorder = self._recorder
        end = recorder._mark()  # noqa: SLF001
        host_end = _now()
        if recorder._marks is not None:  # noqa: SLF001
            recorder._marks.pop()  # noqa: SLF001
        if self._begin is None or end is None:
            return
        recorder._put(  # noqa: SLF001
            (self._step, self._place, self._begin, end, self._host_begin, host_end, self._name)
        )
        if len(recorder._items) >= _FULL:  # noqa: SLF001
            recorder._flush_full()  # noqa: SLF001

    def _describe(self) -> bytes:
        """Return the task's place, refusing what would make the recording unreadable.

        Raises:
            RecorderError: A number is not one, the name is no text, or there is a pair that may not
                be.
        """
        stage, chunk, microbatch, peer = self._stage, self._chunk, self._microbatch, self._peer
        pair = NO_PAIR if self._pair is None else self._checked_pair(self._pair)
        if self._name is not None and not isinstance(self._name, str):
            raise RecorderError(f"the name of a task must be text, not {self._name!r}")
        try:
            # Of numbers joined by "or", the sign is negative if any is.
            joined = (stage or 0) | (chunk or 0) | (microbatch or 0) | (peer or 0)
            if joined >= 0 and (chunk or 0) <= _LAST_CHUNK:
                return pack_place(
                    UNKNOWN if stage is None else stage,
                    UNKNOWN if chunk is None else chunk,
                    UNKNOWN if microbatch is None else microbatch,
                    UNKNOWN if peer is None else peer,
                    *pair,
                    self._kind,
                    self._lane,
                )
        except (TypeError, struct.error):
            pass  # one of them is no whole number, or too large: the slow way says which
        numbers = {"stage": stage, "chunk": chunk, "microbatch": microbatch, "peer": peer}
        return pack_place(
            *(_number(what, value) for what, value in numbers.items()),
            *pair,
            self._kind,
            self._lane,
        )

    def _checked_pair(self, pair: Sequence[int | None]) -> tuple[int, ...]:
        if self._kind != PAIRED:
            raise RecorderError(
                "only a forward_backward task has a pair, and this is of the kind "
                f"{KINDS[self._kind].value}",
            )
        if len(pair) != len(PAIR):
            raise RecorderError(f"a pair is its stage, chunk and micro-batch, not {pair!r}")
        return tuple(_number(what, value) for what, value in zip(PAIR, pair, strict=True))

    def _label(self, step: int | None) -> str:
        """Return the task's name for a vendor's profiler."""
        return self._name or label_of(self._place, step)


def _takes(function: Callable[..., Any], name: str) -> Callable[[Any, Any], Any]:
    """Return a function that finds a parameter's value in a call's arguments.

    Far cheaper than binding the whole signature in every call.
    """
    parameters = inspect.signature(function).parameters
    if name not in parameters:
        raise RecorderError(
            f"{getattr(function, '__qualname__', function)} has no parameter {name!r} to take a "
            "number from",
        )
    parameter = parameters[name]
    default = None if parameter.default is parameter.empty else parameter.default
    position = (
        sys.maxsize if parameter.kind is parameter.KEYWORD_ONLY else list(parameters).index(name)
    )

    def take(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return args[position] if position < len(args) else kwargs.get(name, default)

    return take


def _kind_code(kind: Kind | str) -> int:
    try:
        return KIND_CODES[kind]
    except (KeyError, TypeError):
        kinds = ", ".join(known.value for known in Kind)
        raise RecorderError(f"{kind!r} is no task kind; use one of {kinds}") from None


def _lane_code(lane: Lane | str) -> int:
    try:
        return LANE_CODES[lane]
    except (KeyError, TypeError):
        raise RecorderError(f"{lane!r} is no lane; use compute, comm or host") from None


def _number(what: str, value: Any) -> int:
    """Return a number as it stands in a row; see `_whole`."""
    return UNKNOWN if value is None else _whole(what, value)


def _optional(what: str, value: Any) -> int | None:
    return None if value is None else _whole(what, value)


def _whole(what: str, value: Any) -> int:
    """Return a number as an int.

    Raises:
        RecorderError: It is not a whole number, negative, or out of the range of its column.
    """
    limit = _LAST_CHUNK if what.endswith("chunk") else _LAST
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number <= limit:
        raise RecorderError(f"{what} must be a whole number from 0 to {limit}, not {value!r}")
    return number


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
