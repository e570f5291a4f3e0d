"""In place of `paddle.distributed.fleet.utils` helpers of the static-graph schedule profiler."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["job_schedule_profiler_range"]


@contextmanager
def job_schedule_profiler_range(
    iter_id: int,
    start: int,
    stop: int,
    exit_after_prof: bool = True,
) -> Iterator[bool]:
    """Say whether an iteration is to be profiled, and end the job after the last one.

    Put it around each iteration and give what it yields to
    `exe.enable_job_schedule_profiler`. Unlike the original, which exits with code 0 even out of an
    exception, an exception of the last iteration goes its way.

    Args:
        iter_id: The iteration, counted from 0.
        start: The first iteration to profile.
        stop: The first not to profile any more; nothing is profiled if it is not after `start`.
        exit_after_prof: Whether to exit the process, with code 0, after iteration `stop` - 1.

    Yields:
        Whether to profile this iteration.

    Raises:
        SystemExit: After the last iteration to profile, if so wished.

    >>> for iteration in range(3):
    ...     with job_schedule_profiler_range(iteration, 1, 2, exit_after_prof=False) as profiling:
    ...         print(profiling)
    False
    True
    False
    """
    yield start <= iter_id < stop
    if exit_after_prof and start < stop and iter_id == stop - 1:
        sys.exit()
