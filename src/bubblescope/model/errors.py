"""Errors that users are meant to read.

Every one is a single sentence that names the thing at fault, what is wrong with it and what to do.
The command line prints the sentence and exits with `exit_code`; nothing else catches them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path


class BubblescopeError(Exception):
    """Base of all errors that bubblescope raises on purpose."""

    exit_code: ClassVar[int] = 2


class TimelineError(BubblescopeError):
    """A task or rank table breaks a rule of the data model; the message names the row and rule."""


class SourceError(BubblescopeError):
    """A trace cannot be read; the message starts with the path and ends with what to do.

    Attributes:
        path: The file or folder at fault.
    """

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class NamesError(BubblescopeError):
    """A `--names` pattern is not usable."""


class RecorderError(BubblescopeError):
    """The recorder was used in a way that would make a wrong recording."""


class ScheduleError(BubblescopeError, ValueError):
    """A schedule cannot be made as asked, or a plan cannot be run; the message says why."""
