"""Telling people what long work is at and how far it has come, without it knowing about terminals.

Whatever may take longer than a second takes a `Progress` from its caller, or is silent.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What long-running functions report to; the command line draws it as a bar."""

    def begin(self, what: str, total: int | None = None) -> None:
        """Start a phase of `total` units of work, or of an unknown extent; the one before is over.

        Args:
            what: What is being done, such as "explaining idle time".
            total: How many units of work that is.
        """

    def advance(self, amount: int = 1) -> None:
        """Say that `amount` more units of the phase are done."""


class _Silent:
    def begin(self, what: str, total: int | None = None) -> None: ...

    def advance(self, amount: int = 1) -> None: ...


SILENT: Progress = _Silent()
"""Reports to nobody."""
