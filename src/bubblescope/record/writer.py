"""Writing buffers of tasks to a file, off the job's own thread."""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from bubblescope.record.buffer import Buffer
from bubblescope.record.job_log import warn
from bubblescope.record.step_times import step_times
from bubblescope.recording.columns import PERIOD_S
from bubblescope.recording.file import Sink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bubblescope.record.step_times import StepTimes
    from bubblescope.record.timers.timer import Timer
    from bubblescope.recording.columns import Header
    from bubblescope.recording.rows import Rows

_MOST: Final = 1 << 18
"""Tasks that wait to be written at most, some 120 bytes each; and of one step, those that are kept for
observers. The job never waits for a disk: what comes while there are as many is dropped and counted."""


class _Dropped(NamedTuple):
    """Tasks that were not written.

    Attributes:
        tasks: How many.
        steps: The first and the last step that they were of; None if they were of none.
    """

    tasks: int
    steps: tuple[int, int] | None

    def and_of(self, buffer: Buffer) -> _Dropped:
        """Return these and all of a buffer."""
        steps = [*(self.steps or ()), *(buffer.steps() or ())]
        return _Dropped(self.tasks + len(buffer), (min(steps), max(steps)) if steps else None)

    def of(self, step: int) -> bool:
        """Say whether some may be of a step."""
        return self.steps is not None and self.steps[0] <= step <= self.steps[1]


_NOTHING: Final = _Dropped(0, None)


class Writer:
    """Times and writes buffers in a thread of its own; gives up, with one warning, on failure.

    Buffers that come while too many tasks wait are dropped. The file says how many those were, and so
    does a warning at the end.

    Args:
        claim: Returns the file, new and empty; called again if somebody deletes it meanwhile.
        header: Its first row.
        timer: Reads the tasks' marks.
        limit: Most bytes on disk, if any.
        observers: Called with every step.
        take: Returns tasks that nobody hands over, if there are any; called a few times a second. The
            less the job's own thread does, the less it is held up.

    Attributes:
        works: Whether tasks are still accepted.
        path: The file; None if none could be made.
        failure: Why none are any more; None while they are.
        elsewhere: Steps that the job has made in other threads than the one that is recorded.
    """

    def __init__(
        self,
        claim: Callable[[], Path],
        header: Header,
        timer: Timer,
        limit: int | None,
        observers: list[Callable[[StepTimes], None]],
        take: Callable[[], Buffer | None] | None,
    ) -> None:
        self.works = True
        self.failure: str | None = None
        self._take = take
        self.path: Path | None = None
        self._claim, self._header, self._limit = claim, header, limit
        self._timer = timer
        self._queue: queue.SimpleQueue[Buffer | int | None] = queue.SimpleQueue()
        self._observers = observers
        self._queued = self._fetched = 0
        """Tasks that were queued until now, and those of them that the thread has fetched."""
        self._given: Buffer | None = None
        """The last tasks that were fetched."""
        self._dropped = _NOTHING
        self.elsewhere = 0
        self._told = _NOTHING, 0
        """What the file says was dropped, and how many steps were made elsewhere."""
        self._seen: list[Rows] = []
        """Tasks of the step that has not ended, if anybody wants to know of it."""
        self._before: list[Rows] = []
        """Tasks of the step before that one; none if they are not all there."""
        self._told_of: int | None = None
        """The last step that the observers were told of, or would have been."""
        self._unseen = False
        """Whether tasks of the step that has not ended were too many to be kept."""
        self._deleted = False
        """Whether it was warned already that somebody takes the file away."""
        self._error: Exception | None = None
        """What stopped the thread; the job's own thread warns of it. The file may then end in half a
        record, and nothing may follow that."""
        self._sink: Sink | None = None
        try:
            self._sink = self._begun()
        except OSError as error:
            self.give_up(error)
        self._thread = threading.Thread(target=self._run, name="bubblescope-writer", daemon=True)
        self._thread.start()

    def _begun(self) -> Sink:
        """Begin a file.

        Raises:
            OSError: It cannot be made or written.
            RecorderError: The limit is too small.
        """
        self.path = self._claim()
        try:
            return Sink(self.path, self._header, self._limit, busy=self._timer.sees_kernels)
        except BaseException:
            with suppress(OSError):  # of what has no beginning, nobody can tell what it was to be
                if not self.path.stat().st_size:
                    self.path.unlink()
            raise

    def write(self, tasks: Buffer) -> None:
        """Queue tasks to be written, or drop them if too many wait; one thread at a time.

        Tasks that are given twice in a row, because the first time was interrupted, are written once.
        """
        self.heed_thread()
        if not self.works:
            return
        waiting = self._queued - self._fetched
        if waiting > _MOST // 2:
            time.sleep(0)  # what the thread lacks may be the interpreter; a disk is not waited for
        if waiting + len(tasks) > _MOST:
            self._dropped = self._dropped.and_of(tasks)
            return
        self._queued += len(tasks)
        self._queue.put(tasks)

    def end_step(self, number: int) -> None:
        """Queue that all tasks of a step have been written."""
        self._queue.put(number)

    def close(self, patience_s: float | None) -> None:
        """Write everything queued, and the end of the file.

        Args:
            patience_s: How long to wait for the device to finish; None for as long as it takes.
        """
        self._queue.put(None)
        self._thread.join(patience_s)
        if self._thread.is_alive():
            self.give_up(TimeoutError("the device did not finish the last tasks"))
            return
        self.heed_thread()
        if self._sink is None:
            return
        try:
            if not isinstance(self._error, OSError):
                self._heed_deletion()
                self._tell_lacks(self._sink, least=1)
            self._sink.close(complete=self.works)
        except OSError as error:
            self.give_up(error)
        if self._dropped.tasks:
            warn(
                f"{self.path}: bubblescope dropped {self._dropped.tasks:,} tasks, which came faster "
                "than they could be written",
                stacklevel=4,
            )

    def give_up(self, error: Exception) -> None:
        """Accept no more tasks, and say why, once. What is queued is still written."""
        if not self.works:
            return
        self.works = False
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        self.failure = reason or type(error).__name__
        path = self.path or getattr(error, "filename", None)
        where = f"{path}: " if path else ""
        warn(
            f"{where}bubblescope stopped recording ({self.failure}); training goes on",
            stacklevel=4,
        )

    def heed_thread(self) -> None:
        """Give up if the thread had to."""
        if self._error is not None:
            self.give_up(self._error)

    def _run(self) -> None:
        while (tasks := self._next()) is not None:
            if self._sink is None or self._error is not None:
                continue
            try:
                if isinstance(tasks, int):
                    self._tell(tasks)
                    continue
                rows = tasks.rows(self._timer)
                self._heed_deletion()
                self._tell_lacks(self._sink, least=1 + self._told[1])
                self._sink.write(rows)
                if self._observers:
                    self._see(rows)
            except Exception as error:  # noqa: BLE001  whatever it is, training goes on
                self._error = error

    def _tell_lacks(self, sink: Sink, least: int) -> None:
        """Write what the file lacks, if that is news.

        Args:
            sink: The file.
            least: How many more steps elsewhere are news.
        """
        dropped, elsewhere = self._told
        if self._dropped != dropped or self.elsewhere >= elsewhere + least:
            dropped, elsewhere = self._told = self._dropped, self.elsewhere
            sink.tell(dropped=dropped.tasks, dropped_steps=dropped.steps, elsewhere=elsewhere)

    def _heed_deletion(self) -> None:
        """Begin a new file if somebody deleted or moved the one there was, and warn of it once.

        Raises:
            OSError: None can be made.
        """
        if self._sink is None or not self._sink.gone():
            return
        lost, old = self.path, self._sink
        moved = old.moved()
        old.release()
        self._sink = None
        self._sink, self._told = self._begun(), (_NOTHING, 0)
        if self._deleted:
            return
        self._deleted = True
        if moved:
            warn(
                f"{lost} was moved while bubblescope was recording to it: what it held is where it was "
                f"moved to, and recording goes on in {self.path}",
                stacklevel=2,
            )
        else:
            warn(
                f"{lost} was deleted while bubblescope was recording to it: what it held is lost, and "
                f"recording goes on in {self.path}",
                stacklevel=2,
            )

    def _next(self) -> Buffer | int | None:
        """Return what is to be written or told next; None at the end."""
        while True:
            with suppress(queue.Empty):
                found = self._queue.get(timeout=PERIOD_S if self._take else None)
                if isinstance(found, Buffer):
                    self._fetched += len(found)
                    if found is self._given:
                        continue
                    self._given = found
                return found
            tasks = self._take() if self._take else None
            if tasks is not None:
                return tasks

    def _see(self, rows: Rows) -> None:
        """Keep tasks until their step has ended."""
        self._seen.append(rows)
        count = sum(map(len, self._seen))
        if self._before and count + sum(map(len, self._before)) > _MOST:
            self._before = []
        if count > _MOST:
            self._seen.clear()
            self._unseen = True

    def _tell(self, number: int) -> None:
        """Tell the observers what a step was; not of one of which tasks were dropped."""
        lacks = self._unseen or self._dropped.of(number)
        seen, self._seen, self._unseen = self._seen, [], False
        before = self._before if self._told_of == number - 1 else []
        self._before, self._told_of = [] if lacks else seen, number
        times = None if lacks else step_times(number, seen, before, self._header.microbatches)
        if times is None:
            return
        for observer in list(self._observers):
            self._call(observer, times)

    def _call(self, observer: Callable[[StepTimes], None], times: StepTimes) -> None:
        try:
            observer(times)
        except Exception as error:  # noqa: BLE001  it is the job's, not the recording's
            self._observers.remove(observer)
            warn(
                f"on_step: {observer!r} failed ({type(error).__name__}: {error}) and will not be "
                "called again",
                stacklevel=2,
            )
