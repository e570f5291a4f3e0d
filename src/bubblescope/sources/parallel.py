"""Reading many files at once: on all cores, or wherever a `concurrent.futures` executor runs.

Reading is per file and independent, and what travels back is small: tasks, never raw events.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from bubblescope.model.progress import SILENT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor, Future
    from pathlib import Path

    from bubblescope.model.progress import Progress

Result_co = TypeVar("Result_co", covariant=True)

_WORTHWHILE_BYTES: Final = 1 << 26
"""Below this a process takes longer to start than it saves."""


class ReadsFile(Protocol[Result_co]):
    """Reads one file; must be picklable, and so must what it returns."""

    def __call__(self, path: Path, progress: Progress) -> Result_co:
        """Read the file, telling `progress` of its bytes as they are read."""


def read_each(
    read: ReadsFile[Result_co],
    paths: Sequence[Path],
    progress: Progress,
    executor: Executor | None = None,
    *,
    threads: bool = False,
) -> list[Result_co]:
    """Read files, side by side where that pays, and return the results in the files' order.

    Args:
        read: What reads one file.
        paths: The files.
        progress: Is told of bytes.
        executor: Where to run, such as a Dask client's `get_executor()`; if None, local processes
            when there are several large files, and this process otherwise.
        threads: Whether `read` spends its time outside of Python: threads of this process then do
            what processes would, and start at once.

    Raises:
        Exception: Whatever `read` raised first.
    """
    sizes = {path: path.stat().st_size for path in paths}
    cores = len(os.sched_getaffinity(0))
    if executor is None:
        workers = min(len(paths), cores)
        if threads:
            with ThreadPoolExecutor(workers) as pool:
                return list(pool.map(read, paths, repeat(progress)))
        if workers < 2 or sum(sizes.values()) < _WORTHWHILE_BYTES:
            return [read(path, progress) for path in paths]
        from loky import get_reusable_executor  # noqa: PLC0415  slow, and only large runs need it

        executor = get_reusable_executor(workers, timeout=30)
    futures: dict[Future[Any], Path] = {executor.submit(read, path, SILENT): path for path in paths}
    try:
        for future in as_completed(futures):
            future.result()
            progress.advance(sizes[futures[future]])
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return [future.result() for future in futures]
