"""Trace formats, and reading them. Each is one module with one class that detects and reads its own.

A source knows one vendor and nothing of analysis. Other packages add one by declaring an entry
point in the group ``bubblescope.sources`` whose object is a class with the methods of `Source`.
"""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bubblescope.model.errors import SourceError
from bubblescope.model.plain_text import utf8, whole
from bubblescope.model.progress import SILENT
from bubblescope.model.provenance import Notice
from bubblescope.model.registry import Registry
from bubblescope.model.timeline import concat
from bubblescope.names.parser import NameParser
from bubblescope.sources.inventory import unmatched
from bubblescope.sources.source import LoadOptions, ReadOptions, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from bubblescope.model.timeline import Timeline

SOURCES: Final[Registry[Source]] = Registry(
    "bubblescope.sources",
    {
        "ascend": "bubblescope.sources.ascend:AscendSource",
        "jobtrace": "bubblescope.sources.jobtrace:JobTraceSource",
        "kineto": "bubblescope.sources.kineto:KinetoSource",
        "native": "bubblescope.sources.recordings:NativeSource",
        "ndtimeline": "bubblescope.sources.ndtimeline:NdtimelineSource",
        "nsight": "bubblescope.sources.nsight:NsightSource",
        "paddle": "bubblescope.sources.paddle_logs:PaddleSource",
        "primus": "bubblescope.sources.primus:PrimusSource",
        "rocpd": "bubblescope.sources.rocpd:RocpdSource",
    },
)
"""Every installed source by name; other packages' are looked for if none of ours claims a trace."""


def load(*paths: str | Path, **how: Unpack[LoadOptions]) -> Timeline:
    """Read the traces of one run, whatever made them.

    Args:
        paths: Files, folders or glob patterns; together they are one run.
        how: As `LoadOptions` says.

    Returns:
        One timeline on one clock. It has no tasks where the traces hold no pipeline ranges; its
        `run.contents` then says what they do hold.

    Raises:
        SourceError: A path is missing, unreadable, damaged or of no known format.
        TimelineError: Traces of several formats claim the same rank.
        NamesError: A pattern or a names file is not usable, or captures what it must not.
    """
    options = ReadOptions(
        names=NameParser(how.get("names"), how.get("kinds")),
        progress=how.get("progress", SILENT),
        run=how.get("run"),
        executor=how.get("executor"),
        activities=how.get("activities", False),
    )
    found = find(paths, how.get("source"))
    parts = [chosen.read(traces, options) for chosen, traces in found.traces]
    timeline = parts[0] if len(parts) == 1 else concat(parts)
    clock = how.get("clock", "auto")
    several = timeline.ranks["host"].n_unique() > 1 or not timeline.run.common_clock
    if clock == "solve" or (clock == "auto" and several and timeline.run.clock is None):
        from bubblescope.clocks import align  # noqa: PLC0415  slow, and only several clocks need it

        timeline = align(timeline, clock)
    if options.names.own and (missed := unmatched(timeline, options.names)) is not None:
        timeline = timeline.with_notices(missed)
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
    if source is not None and source not in SOURCES:
        known = ", ".join(sorted(SOURCES))
        raise SourceError(source, f"is no trace format; the formats are {known}")
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
    traces = [(SOURCES[name], sorted(dict.fromkeys(found))) for name, found in claimed.items()]
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
            for name, source in SOURCES.items()
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
    reads = "; ".join(f"{name}: {source.summary}" for name, source in sorted(SOURCES.items()))
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
