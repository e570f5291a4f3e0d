"""Whether anybody still waits for an answer while it is worked out: who has moved on needs none."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class GoneError(Exception):
    """Nobody waits for the answer any more."""


@contextmanager
def waited_for(gone: Callable[[], bool]) -> Iterator[None]:
    """Work out an answer, for as long as somebody waits for it.

    Args:
        gone: Says whether who asked has gone.
    """
    before = _gone.set(gone)
    try:
        yield
    finally:
        _gone.reset(before)


def go_on() -> None:
    """Go on with an answer; what takes long calls this between its parts.

    Raises:
        GoneError: Nobody waits for it.
    """
    if _gone.get()():
        raise GoneError


def _nobody_goes() -> bool:
    return False


_gone: ContextVar[Callable[[], bool]] = ContextVar("gone", default=_nobody_goes)
