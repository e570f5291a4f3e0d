"""Writing buffers of tasks to a file, off the job's own thread."""

from __future__ import annotations

import queue
import threading
import warnings
from typing import TYPE_CHECKING

from bubblescope.record.sink import Header, Sink

if TYPE_CHECKING:
    from pathlib import Path

    from bubblescope.record.rows import Buffer
    from bubblescope.record.timers import Timer

__all__ = ["Writer"]


class Writer:
    """Times and writes buffers in a thread of its own; gives up, with one warning, on failure.

    Attributes:
        works: Whether tasks are still accepted.
    """

    def __init__(self, path: Path, header: Header, timer: Timer) -> None:
        self.works = True
        self._path = path
        self._timer = timer
        self._queue: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        """What stopped the thread; the job's own thread warns of it."""
        self._sink: Sink | None = None
        try:
            self._sink = Sink(path, header)
        except OSError as error:
            self.give_up(error)
        self._thread = threading.Thread(target=self._run, name="bubblescope-writer", daemon=True)
        self._thread.start()

    def write(self, tasks: Buffer) -> None:
        """Queue tasks to be written."""
        self._heed_thread()
        if self.works:
            self._queue.put(tasks)

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
        self._heed_thread()
        if self._sink is not None:
            try:
                self._sink.close(complete=self.works)
            except OSError as error:
                self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Accept no more tasks, and say why, once. What is queued is still written."""
        if not self.works:
            return
        self.works = False
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        warnings.warn(
            f"{self._path}: bubblescope stopped recording ({reason or type(error).__name__}); "
            "training goes on",
            RuntimeWarning,
            stacklevel=4,
        )

    def _heed_thread(self) -> None:
        if self._error is not None:
            self.give_up(self._error)

    def _run(self) -> None:
        while (tasks := self._queue.get()) is not None:
            # After a failure the file may end in half a record: nothing may follow it.
            if self._sink is None or self._error is not None:
                continue
            try:
                self._sink.write(tasks.frame(self._timer))
            except Exception as error:  # noqa: BLE001  whatever it is, training goes on
                self._error = error
