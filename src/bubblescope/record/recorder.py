"""The recorder: what a training job calls."""

from __future__ import annotations

import functools
import inspect
import os
import socket
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bubblescope.model.errors import RecorderError
from bubblescope.model.kinds import Kind
from bubblescope.model.version import __version__
from bubblescope.record.arguments import taker
from bubblescope.record.buffer import (
    CAPACITY,
    LANE_OF_KIND,
    WIDTH,
    Buffer,
    identity_of,
    label_of,
    pack_step,
)
from bubblescope.record.checks import checked_identity, kind_code, lane_code, optional, whole
from bubblescope.record.claims import claim
from bubblescope.record.intake import Intake
from bubblescope.record.interruptions import of_the_job
from bubblescope.record.profiler_api import Switch, switch
from bubblescope.record.settings import LEAST_MB
from bubblescope.record.settings import folder as named
from bubblescope.record.timers import chosen_timer
from bubblescope.record.timers.timer import CpuTimer, Timer
from bubblescope.record.writer import Writer
from bubblescope.recording.columns import FORMAT, Header
from bubblescope.recording.rows import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from bubblescope.model.kinds import Lane
    from bubblescope.record.collected import Collected
    from bubblescope.record.step_times import StepTimes
    from bubblescope.record.vendor_marks import Marks
    from bubblescope.recording.columns import Membership

    Function = TypeVar("Function", bound=Callable[..., Any])

_now: Final = time.monotonic_ns
_COLLECTION: Final = identity_of(Kind.GC)

_FULL: Final = CAPACITY * WIDTH
"""Values in the list of tasks at which it is handed to the writer."""

_PATIENCE_S: Final = 10.0
"""How long a job that failed waits for its device: it may have hung, and the job must end."""


class Recorder:
    """Records the tasks of one rank to one file.

    Tasks are timed by marks; a thread of its own reads their times and writes them: four times a second
    if they are the host's, else at the end of every step; or when there are thousands. A crash loses at
    most what came after. A recorder that cannot write or read its clock warns once and stops
    recording; it never disturbs the training.

    Open it, by `with`, once the process has chosen its device. Tasks may come from several threads.
    A process that is forked while it is open records nothing, and leaves the file alone: make a
    recorder in the process that uses it.

    Args:
        folder: The recording's; made if missing. What is there stays: each start of a job records to an
            attempt of its own, such as `attempt-0001/rank00000.bubbles` (`record.claims`).
        rank: Global rank.
        stages: Global virtual stages that this rank holds, by chunk.
        host: Machine name; the system's own by default.
        device: Device ordinal.
        schedule: Name of the pipeline schedule, as the job knows it.
        microbatches: Micro-batches per step.
        dp, tp, cp, pp, ep, etp, edp: Coordinates in the parallel dimensions: replica, tensor, context,
            pipeline, expert, tensor within an expert, replica of the experts.
        groups: The communication groups that it is part of.
        timer: Clock; by default CUDA events if the job has loaded PyTorch with CUDA, else the CPU.
        start: First step to record.
        stop: First step not to record any more; None for all.
        exit_after: Leave the process, with SystemExit, after the last recorded step is on disk.
        marks: Vendor's marks to emit around each task.
        max_mb: Most megabytes on disk; when they are used up, the older half is dropped, and the
            recording says how much that was. None for no limit.
        profiler_api: Whether to switch the device's profiler on for the recorded steps: by
            `cudaProfilerStart` and `cudaProfilerStop`, which Nsight Systems waits for with
            `--capture-range=cudaProfilerApi`, or Ascend's, which then writes beside the recording.
        since_ns: When the job was started, by the clock of the folder's file system; by default when
            this process was.
        recorded_by: The framework whose hooks call the recorder; None for marks set by hand.
        intake: Where hooks put tasks; one of its own by default.

    Attributes:
        header: What the recording says of its rank.
        path: The file, once the recorder is open; None before, and if none could be made.
        failure: Why it stopped to write, once it is closed; None if it did not.

    Raises:
        RecorderError: The arguments contradict each other or name nothing, or, on opening, the recorder
            was closed before.
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
        pp: int | None = None,
        ep: int | None = None,
        etp: int | None = None,
        edp: int | None = None,
        groups: Sequence[Membership] = (),
        timer: Timer | None = None,
        start: int = 0,
        stop: int | None = None,
        exit_after: bool = False,
        marks: Marks | None = None,
        max_mb: float | None = None,
        profiler_api: bool = False,
        since_ns: int | None = None,
        recorded_by: str | None = None,
        intake: Intake | None = None,
    ) -> None:
        whole("start", start)
        optional("stop", stop)
        if stop is not None and stop <= start:
            raise RecorderError(f"no step to record: stop ({stop}) must be after start ({start})")
        if exit_after and stop is None:
            raise RecorderError("exit_after needs stop, the step before which to leave")
        if max_mb is not None and not max_mb >= LEAST_MB:
            raise RecorderError(f"max_mb must be at least {LEAST_MB}, not {max_mb!r}")
        try:
            named(str(folder))
        except ValueError as error:
            raise RecorderError(str(error)) from None
        timer = timer or chosen_timer()
        header = Header(
            format=FORMAT,
            version=__version__,
            rank=whole("rank", rank),
            stages=None if stages is None else [whole("stage", stage) for stage in stages],
            host=host or socket.gethostname(),
            process=os.getpid(),
            device=optional("device", device),
            boot=_boot_id(),
            utc_ns=_utc_minus_monotonic(),
            timer=timer.name,
            schedule=schedule,
            microbatches=optional("microbatches", microbatches),
            dp=optional("dp", dp),
            tp=optional("tp", tp),
            cp=optional("cp", cp),
            pp=optional("pp", pp),
            ep=optional("ep", ep),
            etp=optional("etp", etp),
            edp=optional("edp", edp),
            groups=tuple(groups),
            recorded_by=recorded_by,
        )
        self.path: Path | None = None
        self.failure: str | None = None
        self._claim = functools.partial(claim, Path(folder), f"rank{rank:05d}.bubbles", since_ns)
        self._folder = folder
        self._timer = timer
        self.plain = isinstance(timer, CpuTimer) and marks is None
        """Whether tasks are timed by the host's clock and told to nobody else: see `Intake`."""
        self.header = header
        self._marks = marks
        self._limit = None if max_mb is None else int(max_mb * 1e6)
        self._observers: list[Callable[[StepTimes], None]] = []
        self._window = range(start, stop if stop is not None else sys.maxsize)
        self._exit_after = exit_after
        self._profiled = profiler_api
        self._profiler: Switch | None = None
        # One that Ctrl-C leaves locked, raised just behind the locking, its thread can lock again.
        self._lock = threading.RLock()
        self._handing_over = False
        """Whether tasks are being taken, perhaps by this thread: a garbage collection is a task."""
        self._anchor: Any = None
        self._items: list[Any] = []
        self._step: int | None = None
        self._intake = intake or Intake()
        self._intake.most, self._intake.relieve = _FULL, self._relieve
        self._next_step = 0
        self._writer: Writer | None = None
        self._closed = False
        self._forgotten = False
        """Whether this is a process that was forked, where nothing is recorded."""
        self._recording = False
        self.settling = False
        """Whether the job waits for the recorder: what happens meanwhile is none of the job's."""
        self.collected: Collected | None = None
        """What notes garbage collections, if they are to be recorded."""

    @property
    def recording(self) -> bool:
        """Whether tasks are being recorded now. Before the first step, only if step 0 will be."""
        return self._recording

    @recording.setter
    def recording(self, wanted: bool) -> None:
        self._recording = wanted
        self._intake.items = self._items if wanted and self.plain else None

    def __enter__(self) -> Recorder:
        if self._closed:
            raise RecorderError(
                f"{self.path} is finished; make another recorder",
            )
        if self._writer is None:
            _opened.add(self)
            take = None if self._timer.tied else self._take
            self._writer = Writer(
                self._claim, self.header, self._timer, self._limit, self._observers, take
            )
            self.path = self._writer.path
            if self._profiled:
                self._profiler = switch(self.path.parent if self.path else self._folder)
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
        self._profile(on=False)
        if self._writer is not None:
            self._flush(failed=patience_s is not None)
            self._rest()
            self._writer.close(patience_s)
            self.failure, self._writer = self._writer.failure, None

    def forget(self) -> None:
        """Be closed without touching the file: in a process that was forked, it is the parent's."""
        self.recording, self._closed, self._forgotten = False, True, True
        if self.collected is not None:
            self.collected.end()
        self._writer, self._profiler = None, None
        self._lock = threading.RLock()  # whoever held it is not in this process
        self._handing_over = False
        self._items.clear()

    def retire(self) -> None:
        """Record nothing more, because something else failed. Never raises.

        What there is is written; the file will lack its end, so that its reader is warned.
        """
        self.recording = False
        try:
            self._flush(failed=True)
            self._rest()
        except Exception as error:  # noqa: BLE001  the job goes on
            self._give_up(error)
        if self._writer is not None:
            self._writer.works = False

    def step(self, number: int | None = None) -> _Step:
        """Return a context manager around one training step.

        Args:
            number: The step; by default one more than the last, from 0.

        Raises:
            RecorderError: It is no step number; or, on entering, the recorder is not open or the last
                step has not ended.
        """
        number = optional("step", number)
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
        code = kind_code(kind)
        where = LANE_OF_KIND[code] if lane is None else lane_code(lane)
        return _Task(self, name, (code, where, stage, chunk, microbatch, peer, pair))

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
        kind_code(kind)
        given = {"microbatch": microbatch, "chunk": chunk, "stage": stage, "peer": peer}
        named = {key: value for key, value in given.items() if isinstance(value, str)}
        constant: dict[str, Any] = {key: value for key, value in given.items() if key not in named}

        def decorate(function: Function) -> Function:
            takers = {key: _taker(function, parameter) for key, parameter in named.items()}

            @functools.wraps(function)
            def recorded(*args: Any, **kwargs: Any) -> Any:
                if not self.recording:
                    return function(*args, **kwargs)
                said = {key: take(args, kwargs) for key, take in takers.items()}
                with self.task(kind, **constant, **said):
                    return function(*args, **kwargs)

            return recorded  # type: ignore[return-value]  # functools.wraps keeps the signature

        return decorate

    def begin_task(self, what: bytes, name: str | None = None) -> tuple[bytes, int, Any]:
        """Take the time at the beginning of a task, for wrappers that call often.

        Args:
            what: The task's place, as `buffer.pack_identity` packs it.
            name: What to call it; by default what its place says.

        Returns:
            What `end_task` wants.
        """
        # The step it begins in: a task of another thread may end after its step.
        step = self._intake.step
        if self.plain:
            host = _now()
            return step, host, host
        if self._marks is not None:
            self._marks.push(name or label_of(what, self._step))
        host = _now()
        return step, host, self._mark()

    def end_task(self, what: bytes, began: tuple[bytes, int, Any], name: str | None = None) -> None:
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
            if self._recording:
                self._items += (step, what, begin, end, host_begin, host_end, name)
                if len(self._items) >= self._intake.most:
                    self._flush_full()
        except Exception as error:  # noqa: BLE001  the job goes on
            self._give_up(error)

    def add_task(self, what: bytes, began_ns: int, ended_ns: int, name: str) -> None:
        """Record a task of the host of which only its end has shown that it is one. Never raises.

        Whatever the clock is, it has no marks of a device.

        Args:
            what: As of `begin_task`.
            began_ns: When it began, on the host's monotonic clock.
            ended_ns: When it ended.
            name: What to call it.
        """
        try:
            if self._recording:
                marks = (began_ns, ended_ns) if self.plain else (None, None)
                self._items += (self._intake.step, what, *marks, began_ns, ended_ns, name)
                if len(self._items) >= self._intake.most:
                    self._flush_full()
        except Exception as error:  # noqa: BLE001  the job goes on
            self._give_up(error)

    def abandon_task(self) -> None:
        """End what `begin_task` began last as none."""
        if self._marks is not None:
            self._marks.pop()

    def _begin(self, number: int) -> None:
        if self._forgotten:
            return
        if self._writer is None:
            raise RecorderError("the recorder is not open: use `with Recorder(...) as recorder:`")
        if self._step is not None:
            raise RecorderError(f"step {number} begins inside step {self._step}; steps do not nest")
        if self._timer.tied:
            self._flush()
        if number in self._window:
            self._profile(on=True)
        self._add_collections()
        self._step = number
        self._intake.step = pack_step(number)
        self._next_step = number + 1
        self._record_if(wanted=number in self._window)

    def _end(self, *, failed: bool) -> None:
        if self._forgotten:
            return
        self._add_collections()
        number, self._step = self._step, None
        self._intake.step = pack_step(UNKNOWN)
        last = number == self._window.stop - 1
        if self._timer.tied or self._observers or last or failed:
            self._flush(failed=failed)
        if number is not None and number in self._window and self._writer and self._observers:
            self._writer.end_step(number)
        if not last:
            return
        self.recording = False
        self._profile(on=False)
        self._rest()
        # A step that failed must end the job with its own exception.
        if self._exit_after and not failed:
            self.close()
            raise SystemExit(0)

    def _record_if(self, *, wanted: bool) -> None:
        """Start recording, on clocks tied anew, or stop."""
        if self._writer is not None:
            self._writer.heed_thread()
        self.recording = wanted and self._writer is not None and self._writer.works
        if not self.recording:
            self._rest()
            return
        if not self._timer.tied:
            return
        try:
            anchor = self._timer.anchor()
        except Exception as error:  # noqa: BLE001  if the device is lost, the job will notice itself
            self._give_up(error)
            return
        with self._lock:
            self._hand_over()  # other threads may have ended tasks meanwhile
            self._anchor = anchor

    def _profile(self, *, on: bool) -> None:
        """Switch the device's profiler, if it is to be switched."""
        if self._profiler is not None:
            self._profiler.on() if on else self._profiler.off()

    def _give_up(self, error: Exception) -> None:
        if of_the_job(error):
            raise error
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
        self._add_collections()
        with self._lock:
            if not failed:  # else the device may hang, and only the writer's thread may wait for it
                self._settle()
            self._hand_over()

    def _flush_full(self) -> None:
        """Do so in the midst of a step, unless somebody does it already.

        That may be this very thread: a garbage collection in the midst of it is a task too.
        """
        if self.settling or self._handing_over:
            return
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
                self._hand_over()
            finally:
                self._lock.release()

    def _relieve(self) -> None:
        """Do so for a hook: the job goes on, whatever happens."""
        try:
            self._flush_full()
        except Exception as error:  # noqa: BLE001  the job goes on
            self._give_up(error)

    def _settle(self) -> None:
        self._add_collections()
        if self._items:
            self.settling = True
            try:
                self._timer.settle()
            except Exception as error:  # noqa: BLE001  if the device is lost, the job will notice itself
                self._give_up(error)
            finally:
                self._add_collections()
                self.settling = False

    def write(self, tasks: Buffer) -> None:
        """Write tasks that were timed before the first step, by the same timer."""
        if self._writer is not None:
            self._writer.write(tasks)

    def trained_elsewhere(self, steps: int) -> None:
        """Let the recording say that the job made so many steps in threads that are not recorded."""
        if self._writer is not None:
            self._writer.elsewhere = steps

    def _add_collections(self) -> None:
        """Record the garbage collections since this was called last; everything waits for them.

        They are timed on the host, whatever the clock: they have no mark of a device.
        """
        if self.collected is None:
            return
        stamps = self.collected.taken()
        if not self._recording or self.settling:
            return
        for begin, end in zip(stamps[::2], stamps[1::2], strict=True):
            marks = (begin, end) if self.plain else (None, None)
            self._items += (self._intake.step, _COLLECTION, *marks, begin, end, None)

    def _hand_over(self) -> None:
        """Take what was recorded, and give it to the writer.

        Ctrl-C, or a handler of the job's, may raise between any two of these: tasks that are in the
        list no longer are then given in any case.
        """
        writer, tasks = self._writer, None
        if writer is None or self._handing_over or not self._items:
            return
        try:
            self._handing_over = True
            tasks = Buffer(self._items[:], self._anchor)
            tasks.remove_from(self._items)
            writer.write(tasks)
        except BaseException:
            if tasks is not None and not tasks.begins(self._items):
                writer.write(tasks)  # perhaps once more, which it notices
            raise
        finally:
            self._handing_over = False

    def _take(self) -> Buffer | None:
        """Return what was recorded, unless somebody hands it over right now. The writer calls this."""
        if self._handing_over or not self._lock.acquire(blocking=False):
            return None
        try:
            self._add_collections()
            if not self._items:
                return None
            self._handing_over = True
            tasks = Buffer(self._items[:], self._anchor)
            tasks.remove_from(self._items)  # the writer's own thread is not interrupted
            return tasks
        finally:
            self._handing_over = False
            self._lock.release()

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

    __slots__ = ("_began", "_name", "_place", "_recorder", "_said")

    def __init__(self, recorder: Recorder, name: str | None, said: tuple[Any, ...]) -> None:
        self._recorder = recorder
        self._name = name
        self._said = said

    def __enter__(self) -> None:
        self._began: tuple[bytes, int, Any] | None = None
        if not self._recorder.recording:
            return
        if self._name is not None and not isinstance(self._name, str):
            raise RecorderError(f"the name of a task must be text, not {self._name!r}")
        self._place = checked_identity(*self._said)
        self._began = self._recorder.begin_task(self._place, self._name)

    def __exit__(self, *_: object) -> None:
        if self._began is not None:
            self._recorder.end_task(self._place, self._began, self._name)


_opened: Final[weakref.WeakSet[Recorder]] = weakref.WeakSet()
"""Recorders that were opened in this process, or in the one that it was forked of."""


def _forget_all() -> None:
    for recorder in list(_opened):
        recorder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _taker(function: Callable[..., Any], name: str) -> Callable[[Any, Any], Any]:
    if name not in inspect.signature(function).parameters:
        raise RecorderError(
            f"{getattr(function, '__qualname__', function)} has no parameter {name!r} to take a "
            "number from",
        )
    return taker(function, name)


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
