"""Trace formats. Each is one module with one class that detects and reads its own format.

A source knows one vendor and nothing of analysis. Other packages add one by declaring an entry
point in the group ``bubblescope.sources`` whose object is a class with the methods of `Source`.
"""

from __future__ import annotations

import glob
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import msgspec

from bubblescope.errors import SourceError
from bubblescope.plain import utf8, whole
from bubblescope.progress import SILENT, Progress
from bubblescope.timeline import Notice, concat
from bubblescope.vocabulary import NameParser

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from bubblescope.timeline import Timeline

__all__ = ["ReadOptions", "Source", "find", "load", "sources"]

GROUP: Final = "bubblescope.sources"
_BUILT_IN: Final = {
    "ascend": "AscendSource",
    "jobtrace": "JobTraceSource",
    "kineto": "KinetoSource",
    "native": "NativeSource",
    "ndtimeline": "NdtimelineSource",
    "nsight": "NsightSource",
    "paddle": "PaddleSource",
    "primus": "PrimusSource",
}
"""Module in this package -> class in it."""


class ReadOptions(msgspec.Struct, frozen=True):
    """How to read, the same for every source.

    Attributes:
        names: Meaning of range names, with the user's own pattern if there is one.
        progress: Where to report progress.
        run: Which run to read from logs that several were appended to, counted from 0; the last
            if None.
        executor: Where to read large files side by side; local processes if None.
    """

    names: NameParser = msgspec.field(default_factory=NameParser)
    progress: Progress = SILENT
    run: int | None = None
    executor: Executor | None = None


class Source(Protocol):
    """One trace format."""

    name: str
    """Short name: its module's, or its entry point's."""

    summary: str
    """What it reads, in a few words: "Nsight Systems exports (.sqlite, parquetdir, .nsys-rep)"."""

    def detect(self, path: Path) -> bool:
        """Say whether a file or folder is, or means to be, of this format.

        Looks at the name and the first bytes only, and never raises for a file it cannot judge.
        """

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read all the traces of one run.

        Raises:
            SourceError: A trace is damaged beyond use; names it and says what to do.
        """


def sources() -> Mapping[str, Source]:
    """Return every installed source by name, in alphabetical order."""
    return MappingProxyType(dict(sorted(_candidates())))


def _candidates() -> Iterator[tuple[str, Source]]:
    """Yield our own sources, then those of other packages, which are looked for only if asked for."""
    yield from _built_in().items()
    yield from _plugins().items()


@cache
def _built_in() -> dict[str, Source]:
    return {
        name: getattr(import_module(f"{__name__}.{name}"), class_name)()
        for name, class_name in _BUILT_IN.items()
    }


@cache
def _plugins() -> dict[str, Source]:
    from importlib.metadata import entry_points  # noqa: PLC0415  slow, and seldom needed

    return {entry.name: entry.load()() for entry in entry_points(group=GROUP)}


def load(
    *paths: str | Path,
    names: str | None = None,
    source: str | None = None,
    progress: Progress = SILENT,
    run: int | None = None,
    executor: Executor | None = None,
    clock: Literal["raw", "auto", "solve"] = "auto",
) -> Timeline:
    """Read the traces of one run, whatever made them.

    Args:
        paths: Files, folders or glob patterns; together they are one run.
        names: Regular expression with named groups for range names of your own; see `NameParser`.
        source: Name of the format, to skip detection.
        progress: Where to report progress.
        run: Which run to read from logs that several were appended to, counted from 0; the last
            if None.
        executor: A `concurrent.futures` executor to read large files with, such as a Dask client's
            `get_executor()`; local processes if None.
        clock: "auto" corrects the clocks of several hosts, or of ranks that share none, if what
            must come before what shows them to be wrong (`clocks.align`); "solve" corrects them in
            any case; "raw" takes times as they are.

    Returns:
        One timeline on one clock. It has no tasks where the traces hold no pipeline ranges; its
        `run.contents` then says what they do hold.

    Raises:
        SourceError: A path is missing, unreadable, damaged or of no known format.
        TimelineError: Traces of several formats claim the same rank.
        NamesError: The pattern is not usable.
    """
    options = ReadOptions(names=NameParser(names), progress=progress, run=run, executor=executor)
    found = find(paths, source)
    parts = [chosen.read(traces, options) for chosen, traces in found.traces]
    timeline = parts[0] if len(parts) == 1 else concat(parts)
    several = timeline.ranks["host"].n_unique() > 1 or not timeline.run.common_clock
    if clock == "solve" or (clock == "auto" and several and timeline.run.clock is None):
        from bubblescope.clocks import align  # noqa: PLC0415  needed for several clocks only

        timeline = align(timeline, clock)
    if found.ignored:
        names_of = [path.name for path in found.ignored]
        shown = ", ".join(names_of[:3]) + (", ..." if len(names_of) > 3 else "")
        timeline = timeline.with_notices(
            Notice(
                "ignored-files",
                f"{len(names_of)} of the files found are no trace and were not read ({shown})",
                len(names_of),
                len(names_of) + len(found.files),
            ),
        )
    return timeline


class Found(NamedTuple):
    """The traces that some paths stand for.

    Attributes:
        traces: The sources that read them, with what each is given.
        ignored: Files met in folders that no source claims.
    """

    traces: list[tuple[Source, list[Path]]]
    ignored: list[Path]

    @property
    def files(self) -> list[Path]:
        """All traces."""
        return [path for _, paths in self.traces for path in paths]


def find(paths: Sequence[str | Path], source: str | None = None) -> Found:
    """Work out which sources read the given paths.

    Raises:
        SourceError: As `load`.
    """
    if source is not None and source not in sources():
        raise SourceError(source, f"is no trace format; the formats are {', '.join(sources())}")
    claimed: dict[str, list[Path]] = {}
    ignored: list[Path] = []
    for path in _expand(paths):
        if not utf8(path):
            raise SourceError(whole(str(path)), "has a name that is no UTF-8; rename it")
        members = [path] if not path.is_dir() or _claim(path, source) else _walk(path, source)
        found = 0
        for member in members:
            # A file that the user both names and gives a format to is of that format.
            name = source if source and member == path else _claim(member, source)
            if name is None:
                ignored.append(member)
            else:
                claimed.setdefault(name, []).append(member)
                found += 1
        if not found:
            raise _nothing_in(path, members)
    traces = [(_source(name), sorted(dict.fromkeys(found))) for name, found in claimed.items()]
    return Found(traces, ignored)


def _expand(paths: Sequence[str | Path]) -> list[Path]:
    if not paths:
        raise SourceError("no path", "give at least one trace file, folder or glob pattern")
    expanded: list[Path] = []
    for path in paths:
        exact = Path(path).expanduser()
        try:
            if exact.exists():
                expanded.append(exact)
                continue
        except OSError as error:
            raise SourceError(path, f"cannot be looked at ({error.strerror})") from None
        matches = sorted(glob.glob(str(exact), recursive=True))  # noqa: PTH207  may be absolute
        if not matches:
            raise SourceError(path, "no such file or folder, and as a pattern it matches nothing")
        expanded += map(Path, matches)
    return expanded


def _source(name: str) -> Source:
    return next(source for known, source in _candidates() if known == name)


def _claim(path: Path, only: str | None) -> str | None:
    """Return the format of a path, of all or only of one, or None."""
    if path.is_file():
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise SourceError(
                path, f"cannot be opened ({error.strerror}); check its rights"
            ) from None
    return next(
        (
            name
            for name, source in _candidates()
            if (only is None or name == only) and source.detect(path)
        ),
        None,
    )


def _walk(folder: Path, only: str | None) -> list[Path]:
    """List what is under a folder, taking a folder that is itself a trace as one thing."""
    found: list[Path] = []
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise SourceError(
            folder, f"cannot be listed ({error.strerror}); check its rights"
        ) from None
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and not _claim(entry, only):
            found += _walk(entry, only)
        else:
            found.append(entry)
    return found


def _nothing_in(path: Path, members: list[Path]) -> SourceError:
    reads = "; ".join(f"{name}: {source.summary}" for name, source in sources().items())
    if path.is_dir():
        what = (
            f"none of the {len(members)} files in it is a trace"
            if members
            else "is an empty folder"
        )
    elif path.stat().st_size == 0:
        what = "is an empty file"
    else:
        what = "is not a trace of a known format"
    return SourceError(path, f"{what}. bubblescope reads {reads}")
