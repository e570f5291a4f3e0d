"""Printing to somebody who may stop reading."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, TextIO


class Outlet:
    """A stream whose reader may go away, as `head` does: what is written then goes nowhere.

    A command still does all of its work, such as writing a file, and ends as it would have.

    Args:
        stream: The stream of the system; None if the command was started without, as a service may be.

    Attributes:
        gone: Whether the reader has gone.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: TextIO = Path(os.devnull).open("w") if stream is None else stream  # noqa: SIM115
        self.gone = False

    def write(self, text: str) -> int:
        """Write a text."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._leave()
            return len(text)

    def flush(self) -> None:
        """Write what is held back."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self) -> None:
        self.gone = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def unread() -> bool:
    """Say whether nobody reads what is printed any more."""
    return bool(getattr(sys.stdout, "gone", False))
