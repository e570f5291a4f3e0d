"""What is recorded of this process by hooks in its frameworks.

The hooks tell the session what they see: that a step begins, which stages a rank holds, that a
function is a task. The session makes the recorder when the first step begins, which is when the rank
is known, so processes that train nothing (launchers, data loaders) record nothing.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from bubblescope.model.kinds import Kind, Lane
from bubblescope.record.buffer import identity_of
from bubblescope.record.collected import Collected
from bubblescope.record.early import Early
from bubblescope.record.intake import Intake
from bubblescope.record.interruptions import of_the_job
from bubblescope.record.job_log import told, warn
from bubblescope.record.leaving import before_leaving_at_once
from bubblescope.record.notes import Note, leave, why_nothing
from bubblescope.record.recorder import Recorder
from bubblescope.record.rounds import Rounds
from bubblescope.record.settings import Settings
from bubblescope.record.timers import chosen_timer
from bubblescope.record.vendor_marks import chosen_marks
from bubblescope.recording.columns import LOOP, SPOILED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bubblescope.record.step_times import StepTimes

    Function = TypeVar("Function", bound=Callable[..., Any])
    Shared = TypeVar("Shared")
    Began = tuple[bytes, int, Any]  # what the recorder wants back at the end of a task

_now: Final = time.monotonic_ns


class Begun(NamedTuple):
    """Tasks that have begun together, and the recorder that knows: the session's may fail meanwhile."""

    recorder: Recorder | None
    tasks: list[tuple[bytes, Began]]


class Session:
    """Records this process.

    Args:
        settings: What to record.

    Attributes:
        recorder: What records, once the first step has begun; None before, and after a failure.
        stages: Global virtual stages of this rank, by chunk; another list when they are others.
        pipeline: Place of this rank in its pipeline and how many ranks that has, if a mesh says.
        framework: Name of the framework whose schedules the job uses; None for a loop of its own, or as
            long as nothing is known.
        saw: Signs of a training loop of the job's own; see `notes.Note`.
        rounds: Which calls of a schedule are rounds of one step.
        thread: The thread that trains; the main thread, as far as nobody has told.
        unfollowed: How many steps optimizers made, at least, in a loop beside a framework's schedules.
        elsewhere: How many they made in other threads than that which is recorded.
        intake: Where hooks that are called for every task put it; the recorder's, once there is one.
    """

    def __init__(self, settings: Settings) -> None:
        self.recorder: Recorder | None = None
        self.stages: list[int] = []
        self.pipeline: tuple[int, int] | None = None
        self.framework: str | None = None
        self.saw: set[str] = set()
        self.rounds = Rounds()
        self.thread = threading.main_thread()
        self.unfollowed = self.elsewhere = 0
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._following = False
        """Optimizers that have made a step since a schedule last began."""
        self.intake = Intake()
        self._aside = False
        self._shared: dict[Any, Any] = {}
        self._settings = settings
        self._facts: dict[str, Any] = {}
        self._asked: list[Callable[[], dict[str, Any]]] = []
        self._used: list[Callable[[], None]] = []
        self._heeding: list[Callable[[bool], None]] = []
        self._step: Any = None
        self._early = Early(settings.timer) if settings.start == 0 else None
        """What is to be recorded though it is before the first step; None from then on."""
        self._first = self._next = 0
        """Number of the first step, and how many have begun."""
        self._failed = self._closed = False
        self._retired: Recorder | None = None
        """The recorder of a session that has failed: its file is still to be closed."""
        self._observers: list[Callable[[StepTimes], None]] = []
        self._process = os.getpid()
        self._stop_serving: Callable[[], None] | None = None
        self._failure: str | None = None
        if settings.notes is not None:
            # At its end, whoever started the job will see that it was there.
            with suppress(OSError):
                leave(settings.notes, Note(ended=False))
            atexit.register(self._leave_note, settings.notes)

    def about(self, **facts: Any) -> None:
        """Tell what is known of this rank: what `Recorder` takes of it, such as stages, schedule, dp.

        What is told after the first step began has no effect: it is in the file's first line.
        `first_step` is its number, where the job goes on from a checkpoint; 0 if nobody tells.
        """
        self._facts.update({name: value for name, value in facts.items() if value is not None})
        stages = facts.get("stages")
        if stages is not None and self.stages != list(stages):
            self.stages = list(stages)

    def ask(self, facts: Callable[[], dict[str, Any]]) -> None:
        """Have this called when the first step begins, for what nobody has told until then."""
        self._asked.append(facts)

    def use(self, framework: str) -> None:
        """Tell that the job uses a framework's schedules: a loop around them is then none of its own.

        To import a framework says nothing: many do that need only a part of it, or nothing.
        """
        self.framework = self.framework or framework
        for heed in self._used:
            heed()

    def when_used(self, heed: Callable[[], None]) -> None:
        """Have this called when a framework's schedules are used."""
        self._used.append(heed)

    def when_recording(self, heed: Callable[[bool], None]) -> None:
        """Have this called with whether anything is recorded now: as steps begin, and at the end."""
        self._heeding.append(heed)

    def used_by(self, owner: Any, framework: str) -> None:
        """Let a class of a framework tell, as `use` does, when one of its kind is made."""
        theirs = owner.__init__

        @functools.wraps(theirs)
        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            self.use(framework)
            theirs(made, *args, **kwargs)

        owner.__init__ = init

    def on_step(self, callback: Callable[[StepTimes], None]) -> None:
        """Call a function after every recorded step; see `Recorder.on_step`."""
        self._observers.append(callback)

    def chunk_of(self, stage: int | None) -> int | None:
        """Return which of this rank's chunks a stage is; None if it holds one only."""
        return self.stages.index(stage) if len(self.stages) > 1 and stage in self.stages else None

    def shared(self, make: Callable[[Session], Shared]) -> Shared:
        """Return what this makes of the session: once, for the hooks of several modules to share."""
        if make not in self._shared:
            self._shared[make] = make(self)
        shared: Shared = self._shared[make]
        return shared

    def begin_step(self) -> None:
        """Begin the next training step, and end the last.

        Raises:
            SystemExit: The last step to record has ended, and the job is to leave then.
        """
        self.go_on()
        if self._failed or self._closed or os.getpid() != self._process:
            return
        self.thread = threading.current_thread()
        try:
            self._end_step()
            if self.recorder is None:
                self._open()
            if self.recorder is not None:
                self._step = self.recorder.step(self._first + self._next)
                self._step.__enter__()
            self._next += 1
            self._tell(recording=self.recorder is not None and self.recorder.recording)
        except Exception as error:  # noqa: BLE001  the job goes on
            self.fail(error)

    def begin_round(self, microbatches: int, *, changed: bool = False) -> None:
        """Begin a round of a schedule with so many micro-batches, and a step if it is its first.

        Args:
            microbatches: How many.
            changed: As of `Rounds.begin`.
        """
        self.go_on()
        if self.rounds.begin(microbatches, within=self._step is not None, changed=changed):
            self.begin_step()

    def go_on(self) -> None:
        """Tell that a framework's schedule runs, within a step or without one."""
        self._stepped.clear()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Look for no loop of the job's own while a schedule runs: optimizers may step in it."""
        self._following = True
        try:
            yield
        finally:
            self._following = False

    def optimized(self, optimizer: Any) -> None:
        """Tell that an optimizer has made a step.

        One that makes a second before a schedule begins again is used in a loop of the job's own. Where
        the job uses a framework's schedules, that loop is not recorded: it is said, once.
        """
        self.rounds.optimized()
        if self.framework is None or self._following or self._failed:
            return
        if os.getpid() != self._process:
            return
        if optimizer not in self._stepped:
            self._stepped.add(optimizer)
            return
        if not self.unfollowed:
            warn(
                f"the job trains in a loop of its own now, not by the schedules of {self.framework} "
                "that it used before; that loop is not recorded: run it as a job by itself, or mark it "
                "by hand (docs/recording.md)",
                stacklevel=3,
            )
        self.unfollowed += 1

    def optimized_elsewhere(self) -> None:
        """Tell that an optimizer has made a step in another thread than the one that is recorded."""
        self.count_elsewhere(1)
        if self.elsewhere == 2:  # after one, that thread may turn out to be the one that trains
            warn(
                "the job trains in several threads at once; only one of them is recorded: run each as "
                "a job by itself (docs/recording.md)",
                stacklevel=3,
            )

    def count_elsewhere(self, steps: int) -> None:
        """Count so many steps more, or less, that were made in other threads."""
        self.elsewhere += steps
        if self.recorder is not None:
            self.recorder.trained_elsewhere(self.elsewhere)

    def skip_steps(self, steps: int) -> None:
        """Tell that so many steps were made that are not recorded, but have numbers of their own."""
        self._next += steps

    def _in_thread(self) -> bool:
        return threading.get_ident() == self.thread.ident

    def in_other_thread(self) -> bool:
        """Say whether this is another thread of the job than the one that trains, in its own loop.

        Those that the job has not started, such as autograd's, do what that one asks for.
        """
        if self.framework is not None or self._in_thread():
            return False
        return not isinstance(threading.current_thread(), threading._DummyThread)  # noqa: SLF001

    def spoil_round(self) -> None:
        """Tell that the round failed: the next one takes its place, and what it did is of no step.

        So ranks of which one leaves out a batch, or tries it again, number the others alike.
        """
        if self._step is not None and self.recorder is not None:
            self.rounds.failed = True
            self.spoil(self.rounds.first_microbatch)

    def spoil(self, first: int) -> None:
        """Tell that what was recorded of a step's micro-batches, from this one on, is of no step."""
        recorder = self.recorder
        if recorder is not None and recorder.recording:
            what = identity_of(Kind.OTHER, lane=Lane.HOST, microbatch=first)
            recorder.end_task(what, recorder.begin_task(what, SPOILED), SPOILED)

    def _end_step(self) -> None:
        # What a signal interrupts in it is done again: the recorder knows whether its step has ended.
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def _tell(self, *, recording: bool) -> None:
        for heed in self._heeding:
            heed(recording)

    def _open(self) -> None:
        settings = self._settings
        facts = {"rank": _rank(), "recorded_by": self.framework or LOOP, **self._facts}
        for ask in self._asked:
            facts = {**ask(), **facts}
        # The job's own count has steps that were made in a thread before that was known to train.
        self._first = max(facts.pop("first_step", 0) - self._next, 0)
        early, self._early = self._early, None
        recorder = Recorder(
            settings.out,
            **facts,
            timer=(early and early.timer) or chosen_timer(settings.timer),
            # Which steps are to be recorded is counted from where this process begins.
            start=self._first + settings.start,
            stop=None if settings.stop is None else self._first + settings.stop,
            exit_after=settings.exit_after,
            marks=chosen_marks(settings.marks),
            max_mb=settings.max_mb,
            profiler_api=settings.profiler_api,
            since_ns=settings.since_ns,
            intake=self.intake,
        )
        for observer in self._observers:
            recorder.on_step(observer)
        recorder.__enter__()
        recorder.trained_elsewhere(self.elsewhere)
        if early is not None and (tasks := early.taken()) is not None:
            recorder.write(tasks)
        if settings.prometheus:
            self._stop_serving = _serve(recorder, settings.prometheus)
        self.recorder = recorder
        if settings.marks:  # which have to be set while garbage is collected
            gc.callbacks.append(self._collecting)
        else:
            self._collected = recorder.collected = Collected()
            self._collected.begin()
        atexit.register(self.close)
        before_leaving_at_once(self._leave_at_once)
        processes = sys.modules.get("multiprocessing.util")
        if processes is not None:  # whose children, where they are forked, do not leave by `atexit`
            processes.Finalize(None, self.close, exitpriority=0)

    def close(self) -> None:
        """End the last step and the file, for good. A process that was forked has neither."""
        recorder, self.recorder, self._retired = self.recorder or self._retired, None, None
        self._closed, self._early = True, None
        self._tell(recording=False)
        if recorder is None or os.getpid() != self._process:
            return
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)
        try:
            step, self._step = self._step, None
            if step is not None:
                # The last step may be the one to leave after; the job is leaving already.
                step.__exit__(SystemExit, None, None)
            if self._collected is not None:
                self._collected.end()
            recorder.close()
            self._failure = self._failure or recorder.failure
            if self._stop_serving is not None:
                self._stop_serving()
        except Exception as error:  # noqa: BLE001  the job's own exit must be the one seen
            self.fail(error)

    def _leave_at_once(self) -> None:
        self.close()
        if self._settings.notes is not None:
            self._leave_note(self._settings.notes)

    def go_on_in_child(self) -> None:
        """Record this process, which was forked, in its parent's place if that had begun no step.

        It may be one of the job's ranks. What its parent did is not its own.
        """
        if not self._next:
            self._process = os.getpid()
            self._early = self._early and Early(self._settings.timer)

    def fail(self, error: Exception) -> None:
        """Stop recording, and say why, once.

        Raises:
            Exception: The error itself, if it is the job's own.
        """
        if of_the_job(error):
            raise error
        if self._failed:
            return
        self._failed, self._early = True, None
        self._tell(recording=False)
        self._failure = f"{type(error).__name__}: {error}"
        recorder, self.recorder = self.recorder, None
        self._retired = recorder
        if self._collected is not None:
            self._collected.end()
        warn(
            f"bubblescope stopped recording ({type(error).__name__}: {error}); training goes on",
            stacklevel=3,
        )
        if recorder is not None:
            recorder.retire()

    def _note(self) -> Note:
        saw = tuple(sorted(self.saw))
        left_out = self.unfollowed, self.elsewhere
        due = max(min(self._next, self._settings.stop or self._next) - self._settings.start, 0)
        return Note(self._next, self.framework, saw, self._failure, *left_out, due)

    def _leave_note(self, folder: str) -> None:
        """Tell whoever started the job what this process saw, if it is still there to hear it."""
        if os.getpid() == self._process:
            with suppress(OSError):
                leave(folder, self._note())

    def say_if_nothing(self, known: str) -> None:
        """Say on the standard error why nothing was recorded, if this process was to train.

        For a job that nobody waits for. Rank 0 speaks for all, and a failure has been said before.

        Args:
            known: The frameworks that are known, listed.
        """
        if os.getpid() != self._process or self._failure or self._next > self._settings.start:
            return
        if (self._next or self.framework or self.saw) and not _rank():
            why = why_nothing([self._note()], self._settings.window, known)
            with suppress(OSError, ValueError, AttributeError):  # it is closed, or there is none
                said = told(f"bubblescope: nothing was recorded: {why}")
                sys.stderr.write(f"{said}\n")

    def timed(self, function: Function, place: Callable[..., bytes | None] | bytes) -> Function:
        """Return a function that does the same and is recorded as a task.

        Args:
            function: What to record.
            place: Where the task belongs, as `buffer.identity_of` packs it; or called with the same
                arguments returns that, or None if this call is not to be recorded.
        """
        intake, now = self.intake, _now
        said = None if isinstance(place, bytes) else place
        known = place if isinstance(place, bytes) else None

        # A task empties the caches, and the less runs here the better: see `Intake`.
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            items = intake.items
            if items is None:
                return self._marked(function, place, args, kwargs)
            what = known
            if said is not None:
                try:
                    what = said(*args, **kwargs) if kwargs else said(*args)
                except Exception as error:  # noqa: BLE001  the job goes on
                    self.fail(error)
                if what is None:
                    return function(*args, **kwargs)
            step, begin = intake.step, now()
            try:
                return function(*args, **kwargs) if kwargs else function(*args)
            finally:
                end = now()
                if intake.items is not None:
                    items += (step, what, begin, end, begin, end, None)
                    if len(items) >= intake.most:
                        intake.relieve()

        return call  # type: ignore[return-value]  # functools.wraps keeps the signature

    def _marked(
        self,
        function: Callable[..., Any],
        place: Callable[..., bytes | None] | bytes,
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Call a function, and record it with marks of a device or of a vendor, if it is to be."""
        recorder = self.recorder
        if recorder is None or not recorder.recording:
            return function(*args, **kwargs)
        began = what = None
        try:
            what = place if isinstance(place, bytes) else place(*args, **kwargs)
            began = None if what is None else recorder.begin_task(what)
        except Exception as error:  # noqa: BLE001  the job goes on
            self.fail(error)
        if what is None or began is None:
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            recorder.end_task(what, began)

    def beside(
        self,
        function: Function,
        place: bytes,
        name: str | None = None,
        least_ns: int = 0,
        *,
        early: bool = False,
    ) -> Function:
        """Return a function that does the same and is recorded as something beside the passes.

        It is not in other threads than the one that trains, while `torch.compile` looks at it, and
        within another such function.

        Args:
            function: What to record.
            place: Where it belongs, packed.
            name: What to call it; by default what its place says.
            least_ns: How long it lasts on the host at least to be worth a task.
            early: Whether it is one before the first step as well, if that comes.
        """

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            torch = sys.modules.get("torch")
            if torch is not None and torch.compiler.is_compiling():
                return function(*args, **kwargs)
            recorder = self.recorder or (self._early if early else None)
            if recorder is None or not recorder.recording or self._aside or not self._in_thread():
                return function(*args, **kwargs)
            # Signals may raise behind any call: whatever is, what is inside ends.
            began = None
            try:
                self._aside = True
                began = recorder.begin_task(place, name)
                return function(*args, **kwargs)
            finally:
                self._aside = False
                if began is None:
                    pass
                elif least_ns and _now() - began[1] < least_ns:
                    recorder.abandon_task()
                else:
                    recorder.end_task(place, began, name)

        return call  # type: ignore[return-value]  # functools.wraps keeps the signature

    def was_beside(
        self, place: bytes, name: str, began_ns: int, ended_ns: int | None = None
    ) -> None:
        """Record what a call was, of which only that shows that it was beside the passes.

        Args:
            place: As `beside` takes it.
            name: The same.
            began_ns: When it began, on the host's monotonic clock.
            ended_ns: When it ended; now by default.
        """
        recorder = self.recorder
        if recorder is None or not recorder.recording or self._aside or not self._in_thread():
            return
        recorder.add_task(place, began_ns, _now() if ended_ns is None else ended_ns, name)

    def alone(self, function: Function) -> Function:
        """Return a function that does the same, and inside of which nothing is recorded."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            recorder = self.recorder
            if recorder is None or not recorder.recording:
                return function(*args, **kwargs)
            recorder.recording = False
            try:
                return function(*args, **kwargs)
            finally:
                recorder.recording = self.recorder is recorder

        return call  # type: ignore[return-value]  # functools.wraps keeps the signature

    def begin(self, places: Iterable[bytes]) -> Begun:
        """Begin tasks now, for hooks that do more than wrap a function; none if nothing is recorded.

        Args:
            places: Where they belong. They are worked out here, so that a failure stops no job.

        Returns:
            What `end` wants.
        """
        recorder = self.recorder
        if recorder is None or not recorder.recording:
            return Begun(None, [])
        begun = Begun(recorder, [])
        try:
            for place in places:
                begun.tasks.append((place, recorder.begin_task(place)))
        except Exception as error:  # noqa: BLE001  the job goes on
            self.fail(error)
        return begun

    def end(self, begun: Begun, name: str | None = None) -> None:
        """End tasks now, the last begun first.

        Args:
            begun: What `begin` returned.
            name: What to call them; by default what their places say.
        """
        if begun.recorder is not None:
            for place, began in reversed(begun.tasks):
                begun.recorder.end_task(place, began, name)

    def abandon(self, begun: Begun) -> None:
        """Let tasks that have begun be none."""
        if begun.recorder is not None:
            for _ in begun.tasks:
                begun.recorder.abandon_task()

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        """Record garbage collections: everything of this process waits for them."""
        recorder = self.recorder
        if recorder is None or not recorder.recording or recorder.settling:
            return
        if phase == "start":
            self._collection = recorder.begin_task(_GC)
        elif self._collection is not None:
            recorder.end_task(_GC, self._collection)
            self._collection = None

    _collection: Began | None = None
    _collected: Collected | None = None


_GC = identity_of(Kind.GC)
_session: Session | None = None


def _go_on_in_child() -> None:
    if _session is not None:
        _session.go_on_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_go_on_in_child)


def current(known: str = "") -> Session | None:
    """Return the session of this process; None if it is not to be recorded.

    Args:
        known: The frameworks that are known, listed.
    """
    global _session  # noqa: PLW0603  there is one process
    if _session is None:
        settings = Settings.of_environment()
        if settings is not None:
            _session = Session(settings)
            if settings.notes is None:
                atexit.register(_session.say_if_nothing, known)
    return _session


def begin(settings: Settings) -> Session:
    """Begin the session of this process by hand; what the environment says is not heeded."""
    global _session  # noqa: PLW0603  there is one process
    if _session is not None:
        _session.close()
    _session = Session(settings)
    return _session


def _serve(recorder: Recorder, address: str) -> Callable[[], None] | None:
    """Serve metrics; if that cannot be, say so, and record all the same."""
    from bubblescope.record.prometheus import serve  # noqa: PLC0415  only if asked

    rank = recorder.header.rank
    try:
        return serve(recorder, address, _told_by(_LOCAL_RANKS, rank))
    except Exception as error:  # noqa: BLE001  neither the job nor the recording needs them
        warn(
            f"bubblescope serves no metrics of rank {rank} ({error}); recording goes on",
            stacklevel=4,
        )
        return None


def _rank() -> int:
    """Return this process's global rank, as its framework or its launcher says it."""
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return int(torch.get_rank())
    return _told_by(_RANKS, 0)


_RANKS: Final = ("RANK", "PADDLE_TRAINER_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_LOCAL_RANKS: Final = (
    *("LOCAL_RANK", "PADDLE_RANK_IN_NODE", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    "SLURM_LOCALID",
)
"""Variables by which launchers tell a process its rank in the job and on its machine."""


def _told_by(variables: tuple[str, ...], otherwise: int) -> int:
    """Return the first number that the environment says."""
    told = (os.environ.get(name, "") for name in variables)
    return next((int(text) for text in told if text.isdecimal()), otherwise)
