"""Errors that users are meant to read.

Every one is a single sentence that names the thing at fault, what is wrong with it and what to do.
The command line prints the sentence and exits with `exit_code`; nothing else catches them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST: Final = 1000
"""Letters of a message. One that quotes its input, or another program, could have any number."""
_QUOTED: Final = 80
"""Letters of what a message quotes."""


class BubblescopeError(Exception):
    """Base of all errors that bubblescope raises on purpose.

    Args:
        message: The sentence. Of one that is too long to be read, the middle is left out.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str = "") -> None:
        super().__init__(_without_middle(message, _LONGEST))


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
        self._problem = problem

    def __reduce__(self) -> tuple[Any, ...]:  # an error of a worker reaches the process that waits
        return type(self), (self.path, self._problem)


class NamesError(BubblescopeError):
    """A `--names` pattern is not usable."""


class RecorderError(BubblescopeError):
    """The recorder was used in a way that would make a wrong recording."""


class EngineError(BubblescopeError):
    """Workers cannot do what they were asked to: they died of it, or cannot be had."""


class ScheduleError(BubblescopeError, ValueError):
    """A schedule cannot be made as asked, or a plan cannot be run; the message says why."""


def quoted(value: object) -> str:
    """Return something that a file says, as a message can quote it: on one line, and not all of it."""
    text = value if isinstance(value, str) else repr(value)
    return _without_middle(" ".join(text.split()), _QUOTED)


def reason(error: BaseException) -> str:
    """Return what another library or the system says is wrong: the beginning of its first line."""
    if isinstance(error, OSError) and error.strerror:  # without its number, and the file once more
        return error.strerror
    lines = str(error).strip().splitlines()
    return _without_middle(lines[0], 2 * _QUOTED) if lines else type(error).__name__


def _without_middle(text: str, most: int) -> str:
    """Return a text of which the middle is left out, so that it has no more than so many letters."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    return f"{text[:head]} … {text[len(text) - (most - head) :]}"
