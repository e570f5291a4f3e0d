"""The attempts of a recording: every start of a job records to a folder of its own.

    recording/attempt-0001/attempt.json       which start that was
    recording/attempt-0001/rank00000.bubbles

So a job that is started again, by hand or by its launcher, takes nothing from what is there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bubblescope.model import units
from bubblescope.model.bounds import UNDECODABLE, Amount, Time
from bubblescope.model.decoders import prepared
from bubblescope.model.errors import SourceError
from bubblescope.model.files import read_file
from bubblescope.recording.arrow import END

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MANIFEST: Final = "attempt.json"
"""File that makes a folder an attempt."""
ALL: Final = "all"
"""All attempts, as one run."""
_FOLDER: Final = re.compile(r"attempt-(\d{4,})")
_RANK_FILES: Final = "rank*.bubbles"


class Start(msgspec.Struct, frozen=True):
    """Which start of a job an attempt is, as the first of its ranks wrote it down.

    Attributes:
        host: The machine of that rank.
        began_utc_ns: When that rank began to record, by its clock.
        job: What its launcher calls the job: variable -> value.
        restart: How often its launcher had restarted it by then; None if it does not say.
        beside: Numbers of the attempts that were still being recorded to then, as far as is known.
        format: Version of this file.
    """

    host: str
    began_utc_ns: Time
    job: dict[str, str] = msgspec.field(default_factory=dict)
    restart: Amount | None = None
    beside: tuple[Amount, ...] = ()
    format: int = 1


class Attempt(NamedTuple):
    """One start of a job that records.

    Attributes:
        number: From 1 on; 0 is what lies in the recording's folder itself, as older versions left it.
        folder: Where its files are.
    """

    number: int
    folder: Path

    def start(self) -> Start | None:
        """Return what is known of the start; None if nothing is."""
        try:
            return msgspec.json.decode(read_file(self.folder / MANIFEST), type=prepared(Start))
        except (OSError, *UNDECODABLE):
            return None

    def holds_something(self) -> bool:
        """Say whether there is a file beside the manifest: a recording, or the log of a worker."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return any(path.name != MANIFEST for path in files)

    def made_ns(self) -> int:
        """Return when it was made, by the clock that stamps files there; 0 if it is gone."""
        try:
            return (self.folder / MANIFEST).stat().st_mtime_ns
        except OSError:
            return 0

    def files(self, *, halves: bool = False) -> list[Path]:
        """Return the ranks' files.

        Args:
            halves: Whether to return the older halves of those that have a limit, too.
        """
        found = sorted(path for path in self.folder.glob(_RANK_FILES) if path.is_file())
        return found if halves else [path for path in found if not is_older_half(path)]

    def ended(self) -> bool:
        """Say whether every rank ended its file in good order."""
        return all(map(_ended, self.files()))


def folder_name(number: int) -> str:
    """Return the name of an attempt's folder."""
    return f"attempt-{number:04d}"


def is_attempt(folder: Path) -> bool:
    """Say whether a folder is one attempt."""
    return (folder / MANIFEST).is_file()


def is_older_half(path: Path) -> bool:
    """Say whether a file is what was put aside of a recording with a limit."""
    return path.name.endswith(".older.bubbles")


def number_of(folder: Path) -> int:
    """Return the number of an attempt by the name of its folder; 0 if that is none."""
    found = _FOLDER.fullmatch(folder.name)
    return int(found[1]) if found else 0


def attempts_in(folder: Path) -> list[Attempt]:
    """Return the attempts that a recording's folder holds, oldest first; none if it cannot be read.

    What older versions recorded to the folder itself counts only beside others.
    """
    try:
        found = sorted(
            Attempt(number_of(path), path)
            for path in folder.iterdir()
            if number_of(path) and (is_attempt(path) or any(path.glob(_RANK_FILES)))
        )
    except OSError:
        return []
    bare = Attempt(0, folder)
    return [bare, *found] if found and bare.files() else found


def chosen(folder: Path, attempts: list[Attempt], which: int | str | None) -> list[Attempt]:
    """Return the attempts that are meant.

    Args:
        folder: The recording's.
        attempts: Those that it holds, oldest first.
        which: A number; `ALL`; or None for the latest.

    Raises:
        SourceError: There is no such attempt, or it has no file.
    """
    found = attempts
    if which is None:
        found = attempts[-1:]
    elif which != ALL:
        found = [attempt for attempt in attempts if attempt.number == which]
    if not found:
        raise SourceError(folder, f"has no attempt {which}; it holds {_numbers(attempts)}")
    if not any(attempt.holds_something() for attempt in found):
        text = f"holds nothing in attempt {_numbers(found)}: no rank could write there, or none started"
        others = [attempt for attempt in attempts if attempt.holds_something()]
        raise SourceError(
            folder, f"{text}; --attempt N reads another ({_numbers(others)})" if others else text
        )
    return found


def at_once(numbers: Sequence[int]) -> str | None:
    """Return the sentence that attempts began while others were still being recorded; None if none."""
    if not numbers:
        return None
    return (
        f"{units.listed('attempt', numbers)} began while another was still being recorded: that is no "
        "restart, but another job, or a process that has the rank of another; give each job a folder "
        "of its own, and each process a rank of its own"
    )


def _numbers(attempts: list[Attempt]) -> str:
    return ", ".join(str(attempt.number) for attempt in attempts)


def _ended(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-len(END), 2)
            return file.read() == END
    except OSError:
        return False
