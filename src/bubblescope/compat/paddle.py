"""In place of the helpers of Paddle's static-graph schedule profiler, `paddle.profiler.utils`."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["job_schedule_profiler_range", "switch_job_schedule_profiler"]


@contextmanager
def job_schedule_profiler_range(
    iter_id: int,
    start: int | None = None,
    end: int | None = None,
    exit_after_prof: bool = True,
    *,
    stop: int | None = None,
    start_step: int | None = None,
    stop_step: int | None = None,
) -> Iterator[bool]:
    """Say whether an iteration is to be profiled, and end the job after the last one.

    Put it around each iteration and give what it yields to
    `exe.enable_job_schedule_profiler`. Unlike the original, which exits with code 0 even out of an
    exception, an exception of the last iteration goes its way.

    Args:
        iter_id: The iteration, counted from 0.
        start: The first iteration to profile.
        end: The first not to profile any more; nothing is profiled if it is not after `start`.
        exit_after_prof: Whether to exit the process, with code 0, after the last of them.
        stop: `end`, as `Recorder` calls it.
        start_step: `start`, as Paddle's manual calls it.
        stop_step: `end`, as Paddle's manual calls it.

    Yields:
        Whether to profile this iteration.

    Raises:
        TypeError: The first or the last is not given, or given twice.
        SystemExit: After the last iteration to profile, if so wished.

    >>> for iteration in range(3):
    ...     with job_schedule_profiler_range(iteration, 1, 2, exit_after_prof=False) as profiling:
    ...         print(profiling)
    False
    True
    False
    """
    first = _one(start=start, start_step=start_step)
    last = _one(end=end, stop_step=stop_step, stop=stop)
    yield first <= iter_id < last
    if exit_after_prof and first < last and iter_id == last - 1:
        sys.exit()


def switch_job_schedule_profiler(
    model: Any, iter_id: int, start: int, end: int, exit_after_prof: bool = True
) -> None:
    """Switch the profiler of a model's engine on or off, before each iteration.

    The first time that it is on, the log is told which step that is, as its reader expects. Unlike the
    original, which ends the job before the last of the iterations has run, it does so after it.

    Args:
        model: What `paddle.distributed.to_static` returned.
        iter_id: The iteration that begins, counted from 0.
        start: The first iteration to profile.
        end: The first not to profile any more; nothing is profiled if it is not after `start`.
        exit_after_prof: Whether to exit the process, with code 0, when iteration `end` would begin.

    Raises:
        SystemExit: All iterations to profile have run, if so wished.
    """
    if exit_after_prof and start < end and iter_id == end:
        sys.exit()
    if iter_id == start < end:
        sys.stderr.write(f"Schedule Profiler start at step {start} and end at step {end}\n")
        sys.stderr.flush()
    model._engine.enable_job_schedule_profiler = start <= iter_id < end  # noqa: SLF001  as Paddle does


def _one(**given: int | None) -> int:
    """Return the one that is given of an argument's names."""
    said = [value for value in given.values() if value is not None]
    if len(said) != 1:
        raise TypeError(f"give one of {', '.join(given)}" + (f", not {len(said)}" if said else ""))
    return said[0]
