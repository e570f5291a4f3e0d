"""Reading many files: the one way in which every trace format does it.

A format reads each file by itself, on whatever worker it is given to, and then assembles what came of
them. What travels back is small: tasks and sums, never raw events.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

from bubblescope.engine.local import LocalEngine
from bubblescope.model.progress import SILENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bubblescope.model.progress import Progress
    from bubblescope.sources.source import ReadOptions

File = TypeVar("File")
File_contra = TypeVar("File_contra", contravariant=True)
Part = TypeVar("Part")
Part_co = TypeVar("Part_co", covariant=True)


_WORTH_THREADS_BYTES: Final = 1 << 20
"""Below this, threads take longer to hand over to each other than files take to read."""


def _itself(file: Any) -> Path:
    return file  # type: ignore[no-any-return]


class ReadsFile(Protocol[File_contra, Part_co]):
    """Reads one file; must be picklable, and so must what it is given and what it returns."""

    def __call__(self, file: File_contra, progress: Progress, /) -> Part_co:
        """Read the file.

        Args:
            file: The file, and what else is known of it.
            progress: Told of bytes as they are read, or of another measure once it was told to begin
                a phase of its own. What it is not told of the file's size, it is told afterwards.
        """


def read_each(
    read: ReadsFile[File, Part],
    files: Sequence[File],
    options: ReadOptions,
    *,
    what: str,
    path: Callable[[File], Path] = _itself,
    threads: bool = False,
) -> list[Part]:
    """Read files, side by side where that pays, and return what came of them in the files' order.

    Args:
        read: What reads one file.
        files: The files.
        options: How to read: here, on which engine, and whom to tell.
        what: What is being done, for those who wait: "reading traces".
        path: Says which file it is where more than its path is given.
        threads: Whether `read` spends its time outside of Python: threads of this process then do
            what its processes would, start at once, and have nothing to send.

    Raises:
        Exception: Whatever `read` raised first.
        EngineError: See `bubblescope.engine.Engine.run`.
    """
    paths = [path(file) for file in files]
    sizes = [_size(one) for one in paths]
    progress, engine = options.progress, options.engine or LocalEngine()
    progress.begin(what, sum(sizes))
    if engine.sends(len(files), sum(sizes), threads=threads):
        parts: list[Any] = [None] * len(files)
        for index, part in engine.run(_Silently(read), files, name=lambda file: str(path(file))):
            parts[index] = part
            progress.advance(sizes[index])
        return parts
    here = _Here(read, progress)
    if threads and min(engine.workers, len(files)) > 1 and sum(sizes) >= _WORTH_THREADS_BYTES:
        with ThreadPoolExecutor(min(engine.workers, len(files))) as pool:
            return list(pool.map(here, files, sizes))
    return list(map(here, files, sizes))


class _Silently(msgspec.Struct, Generic[File, Part], frozen=True):
    """Reads a file on a worker, where nobody watches."""

    read: ReadsFile[File, Part]

    def __call__(self, file: File) -> Part:
        return self.read(file, SILENT)


class _Here(msgspec.Struct, Generic[File, Part], frozen=True):
    """Reads a file in this process, and tells of as many bytes as it has."""

    read: ReadsFile[File, Part]
    progress: Progress

    def __call__(self, file: File, size: int) -> Part:
        untold = _Untold(self.progress, size)
        part = self.read(file, untold)
        untold.end()
        return part


class _Untold:
    """Passes on what is told of the reading of one file, and knows what of its size is left to tell."""

    def __init__(self, progress: Progress, size: int) -> None:
        self._progress = progress
        self._left = size

    def begin(self, what: str, total: int | None = None) -> None:
        self._left = 0
        self._progress.begin(what, total)

    def advance(self, amount: int = 1) -> None:
        self._left -= amount
        self._progress.advance(amount)

    def end(self) -> None:
        if self._left > 0:
            self._progress.advance(self._left)


def _size(path: Path) -> int:
    """Return the bytes of a file, or of the files of a folder."""
    if path.is_dir():
        return sum(one.stat().st_size for one in path.iterdir() if one.is_file())
    return path.stat().st_size
