"""Trace formats, and reading them. Each is one module with one class that detects and reads its own.

A source knows one vendor and nothing of analysis. Other packages add one by declaring an entry
point in the group ``bubblescope.sources`` whose object is a class with the methods of `Source`.
"""

from __future__ import annotations

import errno
import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bubblescope.model import units
from bubblescope.model.clock_errors import may_differ
from bubblescope.model.errors import SourceError
from bubblescope.model.plain_text import utf8, whole
from bubblescope.model.progress import SILENT
from bubblescope.model.provenance import Notice, RecordedStart, Run
from bubblescope.model.registry import Registry
from bubblescope.model.timeline import Timeline, concat
from bubblescope.names.parser import NameParser
from bubblescope.recording.attempts import (
    MANIFEST,
    Attempt,
    at_once,
    attempts_in,
    chosen,
    is_older_half,
)
from bubblescope.sources.dataset.store import is_address
from bubblescope.sources.inventory import unmatched
from bubblescope.sources.source import LoadOptions, ReadOptions, Source, ranges
from bubblescope.sources.step_agreement import agreed
from bubblescope.sources.unsupported_files import near_miss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

SOURCES: Final[Registry[Source]] = Registry(
    "bubblescope.sources",
    {
        "native": "bubblescope.sources.recordings:NativeSource",
        "ascend": "bubblescope.sources.ascend:AscendSource",
        "dataset": "bubblescope.sources.dataset:DatasetSource",
        "jobtrace": "bubblescope.sources.jobtrace:JobTraceSource",
        "kineto": "bubblescope.sources.kineto:KinetoSource",
        "ndtimeline": "bubblescope.sources.ndtimeline:NdtimelineSource",
        "nsight": "bubblescope.sources.nsight:NsightSource",
        "paddle": "bubblescope.sources.paddle_logs:PaddleSource",
        "primus": "bubblescope.sources.primus:PrimusSource",
        "rocpd": "bubblescope.sources.rocpd:RocpdSource",
    },
)
"""Every installed source by name; other packages' are looked for if none of ours claims a trace.

Asked in this order, each imported only then: our own recordings need no other.
"""

_OF_FOLDERS: Final = frozenset({"ascend", "dataset", "nsight"})
"""Those of ours of which a whole folder may be a trace; the others are not imported to deny it."""


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
        EngineError: Workers cannot do it; see `bubblescope.engine.Engine.run`.
        TypeError: There is no such option.
    """
    options = _options(how)
    found = find(paths, how.get("source"), how.get("attempt"))
    try:
        timeline = _read(found.traces, options)
    except SourceError as error:
        if (earlier := _others(found.starts)) is None:
            raise
        problem = str(error).removeprefix(f"{error.path}: ")
        raise SourceError(error.path, f"{problem}; {earlier}") from None
    timeline = _matched(_settled(timeline, how), options.names)
    return timeline.with_run(found.described(timeline.run))


def _read(traces: Sequence[tuple[Source, Sequence[Path]]], options: ReadOptions) -> Timeline:
    try:
        parts = [source.read(paths, options) for source, paths in traces]
    except OSError as error:  # a file that was there when it was found
        path = error.filename or traces[0][1][0]
        raise SourceError(path, f"cannot be read ({error.strerror or error})") from None
    return parts[0] if len(parts) == 1 else concat(parts)


def read_part(source: str, paths: Sequence[Path], how: LoadOptions) -> Timeline:
    """Read some traces of a run, as a worker does for a dataset.

    Args:
        source: Name of their format.
        paths: The traces, as `find` found them.
        how: As `LoadOptions` says.

    Returns:
        What `load` returns, but for what depends on all of a run: clocks are as they were recorded,
        and so are the numbers of steps.

    Raises:
        SourceError: As `load`, and its other errors.
    """
    options = _options(how)
    return _matched(_read([(SOURCES[source], paths)], options), options.names)


def _matched(timeline: Timeline, names: NameParser) -> Timeline:
    """Return a run with a warning if its user's patterns match none of its ranges."""
    missed = unmatched(timeline, names) if names.own else None
    return timeline if missed is None else timeline.with_notices(missed)


def _settled(timeline: Timeline, how: LoadOptions) -> Timeline:
    """Return a run on one clock, with step numbers that its ranks agree on; see `load`."""
    clock = how.get("clock", "auto")
    several = may_differ(timeline.ranks, timeline.run)
    if clock == "solve" or (clock == "auto" and several and timeline.run.clock is None):
        from bubblescope.clocks import align  # noqa: PLC0415  slow, and only several clocks need it

        how.get("progress", SILENT).begin("finding one clock for all hosts")
        timeline = align(timeline, clock)
    return agreed(timeline)


def _options(how: LoadOptions) -> ReadOptions:
    if unknown := how.keys() - LoadOptions.__annotations__.keys():
        raise TypeError(f"load() takes no {', '.join(sorted(unknown))}; see LoadOptions")
    return ReadOptions(
        names=NameParser(how.get("names"), how.get("kinds")),
        progress=how.get("progress", SILENT),
        run=how.get("run"),
        engine=how.get("engine"),
        activities=how.get("activities", False),
        unlimited=how.get("unlimited", False),
        steps=ranges(how.get("steps")),
        ranks=ranges(how.get("ranks")),
        enough=how.get("enough"),
        median=how.get("median", False),
    )


_RECORDINGS: Final = "native"
_DATASET: Final = "dataset"


class Found(msgspec.Struct, frozen=True):
    """The traces that some paths stand for.

    Attributes:
        traces: The sources that read them, with what each is given.
        ignored: Files met in folders that no source claims.
        starts: The attempts of recordings, also those that are not to be read.
        beside: What else lies in the folders of recordings.
    """

    traces: list[tuple[Source, list[Path]]]
    ignored: list[Path]
    starts: list[RecordedStart]
    beside: list[Path]

    @property
    def files(self) -> list[Path]:
        """All traces."""
        return [path for _, paths in self.traces for path in paths]

    def described(self, run: Run) -> Run:
        """Return what is known of the run that was read of these, and of what was not read."""
        if len(self.starts) > 1 or self.beside:
            run = msgspec.structs.replace(run, attempts=tuple(self.starts))
            if (others := _others(self.starts)) is not None:
                run = run.noted(Notice("other-attempts", others))
            if (overlap := at_once(_beside(self.starts))) is not None:
                run = run.warned(Notice("attempts-at-once", overlap))
        if self.beside:
            shown = _named(self.beside)
            text = (
                f"other files beside the recording were not read ({shown}); name them to read them"
            )
            run = run.noted(Notice("beside-recording", text, len(self.beside)))
        if self.ignored:
            text = (
                f"left out {units.count(len(self.ignored), 'file')}, which no known format of traces "
                f"fits ({_named(self.ignored)})"
            )
            total = len(self.ignored) + len(self.files)
            run = run.warned(Notice("ignored-files", text, len(self.ignored), total))
        return run


def find(
    paths: Sequence[str | Path], source: str | None = None, attempt: int | str | None = None
) -> Found:
    """Work out which sources read the given paths.

    Args:
        paths: As for `load`.
        source: Name of the format, to skip detection.
        attempt: Which attempts of a recording: a number, "all", or None for the last.

    Raises:
        SourceError: As `load`.
    """
    if source is not None and source not in SOURCES:
        known = ", ".join(sorted(SOURCES))
        raise SourceError(source, f"is not a trace format; the formats are {known}")
    claimed: dict[str, list[Path]] = {}
    ignored: list[Path] = []
    attempts = _Attempts(attempt, [], [])
    for path in _expand(paths):
        if is_address(path):  # where only datasets are
            claimed.setdefault(_DATASET, []).append(path)
            continue
        if not utf8(path):
            raise SourceError(whole(str(path)), "has a name that is not valid UTF-8; rename it")
        if not (path.is_dir() or path.is_file()):
            raise SourceError(
                path, "is neither a file nor a folder; write what it holds into a file first"
            )
        folder = path.is_dir() and not _claim(path, source)
        members = _walk(path, source, attempts, set()) if folder else [path]
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
            raise _nothing_in(path, members, source)
    if attempt is not None and not attempts.starts:
        raise SourceError(paths[0], "is not a recording with attempts; leave --attempt out")
    traces = [(SOURCES[name], sorted(_once(found))) for name, found in claimed.items()]
    return Found(traces, ignored, attempts.starts, attempts.beside)


def _once(paths: list[Path]) -> list[Path]:
    """Return paths without those that lead to the same place once more, through links to folders.

    Links to files count: several ranks may be given one trace.
    """
    folders = {folder: folder.resolve() for folder in {path.parent for path in paths}}
    return list({folders[path.parent] / path.name: path for path in reversed(paths)}.values())


class _Attempts(msgspec.Struct, frozen=True):
    """Which attempts of recordings are meant, and what was met in their folders; see `Found`."""

    wanted: int | str | None
    starts: list[RecordedStart]
    beside: list[Path]

    def within(self, folder: Path) -> list[Attempt] | None:
        """Return the attempts to read of a recording's folder; None if it is none."""
        attempts = attempts_in(folder)
        if not attempts:
            return None
        known = {path for attempt in attempts for path in (attempt.folder, *attempt.files())}
        self.beside.extend(
            path
            for path in sorted(folder.iterdir())
            if path not in known and not path.name.startswith(".") and not is_older_half(path)
        )
        wanted = chosen(folder, attempts, self.wanted)
        for attempt in attempts:
            start = attempt.start()
            self.starts.append(
                RecordedStart(
                    attempt=attempt.number,
                    path=str(attempt.folder),
                    read=attempt in wanted,
                    began_utc_ns=start.began_utc_ns if start else None,
                    restart=start.restart if start else None,
                    ranks=len(attempt.files()),
                    ended=attempt.ended(),
                    beside=start.beside if start else (),
                )
            )
        return wanted


def _others(starts: list[RecordedStart]) -> str | None:
    """Return the sentence that there are attempts besides the one that is read."""
    unread = [start for start in starts if not start.read]
    if not unread:
        return None
    read = ", ".join(str(start.attempt) for start in starts if start.read)
    others = ", ".join(str(start.attempt) for start in unread)
    if _beside(starts):
        return f"this is attempt {read} of {len(starts)}; --attempt N reads another ({others})"
    return (
        f"the job was started {len(starts)} times: this is attempt {read}; --attempt N reads another "
        f"({others}), --attempt all reads all as one run"
    )


def _beside(starts: list[RecordedStart]) -> list[int]:
    """Return the attempts that began while others were still being recorded."""
    return [start.attempt for start in starts if start.beside]


def _named(paths: list[Path]) -> str:
    """Return the names of the first few files."""
    return ", ".join(path.name for path in paths[:3]) + (", ..." if len(paths) > 3 else "")


def _expand(paths: Sequence[str | Path]) -> list[Path]:
    if not paths:
        raise SourceError("no path", "give at least one trace file, folder or glob pattern")
    expanded: list[Path] = []
    for path in paths:
        exact = Path(path).expanduser()
        if is_address(path):
            expanded.append(exact)
            continue
        try:
            if exact.exists():
                expanded.append(exact)
                continue
        except OSError as error:
            raise SourceError(path, f"cannot be looked at ({error.strerror})") from None
        matches = _matching(exact)
        if not matches:
            raise SourceError(path, "no such file or folder, and as a pattern it matches nothing")
        expanded += matches
    return expanded


def _matching(pattern: Path) -> list[Path]:
    """Return what a glob pattern matches, hidden files aside.

    `**` follows no symbolic links, unlike that of the module glob: they may lead in circles.
    """
    magic = next((n for n, part in enumerate(pattern.parts) if glob.has_magic(part)), None)
    if magic is None:
        return []
    base, rest = Path(*pattern.parts[:magic]), pattern.parts[magic:]
    shown = any(part.startswith(".") for part in rest)
    folders = rest[-1] == "**"  # which matches files too from Python 3.13 on
    try:
        return sorted(
            path
            for path in base.glob(str(Path(*rest)))
            if (shown or not any(part.startswith(".") for part in path.relative_to(base).parts))
            and (path.is_dir() or not folders)
        )
    except (OSError, ValueError):  # such as "a**", which is no pattern
        return []


def _claim(path: Path, only: str | None) -> str | None:
    """Return the format of a path, of all or only of one, or None.

    What is neither a file nor a folder has none: reading from a pipe or a device may never end.
    """
    if path.is_file():
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise SourceError(
                path, f"cannot be opened ({error.strerror}); check its rights"
            ) from None
    elif not path.is_dir():
        return None
    elif not os.access(path, os.R_OK | os.X_OK):
        raise _unlisted(path, os.strerror(errno.EACCES))
    ours = SOURCES.built_in.keys()
    denied = ours - _OF_FOLDERS if path.is_dir() else frozenset()
    asked = (name for name in SOURCES if name not in denied and only in {None, name})
    return next((name for name in asked if SOURCES[name].detect(path)), None)


def _unlisted(folder: Path, strerror: str | None) -> SourceError:
    return SourceError(folder, f"cannot be listed ({strerror}); check its rights")


def _walk(
    folder: Path, only: str | None, attempts: _Attempts, seen: set[tuple[int, int]]
) -> list[Path]:
    """List what is under a folder, taking a folder that is itself a trace as one thing.

    Of a recording only the attempts that are meant count. A folder that symbolic links lead to once
    more, perhaps in a circle, counts where it was met first; `seen` are those that were.
    """
    try:
        status = folder.stat()
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise _unlisted(folder, error.strerror) from None
    if (status.st_dev, status.st_ino) in seen:
        return []
    seen.add((status.st_dev, status.st_ino))
    ours = only in {None, _RECORDINGS}
    if ours and (wanted := attempts.within(folder)) is not None:
        return [
            path
            for attempt in wanted
            for path in (
                _walk(attempt.folder, only, attempts, seen)
                if attempt.number
                else attempt.files(halves=True)
            )
        ]
    found: list[Path] = []
    for entry in entries:
        if entry.name.startswith(".") or entry.name == MANIFEST:
            continue
        if entry.is_dir() and not _claim(entry, only):
            found += _walk(entry, only, attempts, seen)
        else:
            found.append(entry)
    return found


def _nothing_in(path: Path, members: list[Path], only: str | None) -> SourceError:
    for member in members if path.is_dir() else [path]:
        if member.is_file() and (miss := near_miss(member)) is not None:
            return SourceError(*miss)
    if members and only:
        return SourceError(
            path, f"holds no trace of the format {only!r}; leave out --source to have it detected"
        )
    if path.is_dir():
        held = units.count(len(members), "file")
        what = f"holds {held}, but no trace of a known format" if members else "is an empty folder"
    elif path.stat().st_size == 0:
        what = "is an empty file"
    else:
        what = "is not a trace of a known format"
    return SourceError(path, f"{what}; `bubblescope formats` lists the formats that can be read")
