"""Telling people how far long work has come, without the work knowing about terminals."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What long-running functions report to; the command line draws it as a bar."""

    def begin(self, what: str, total: int | None) -> None:
        """Start a phase of `total` units of work, or of an unknown extent."""

    def advance(self, amount: int = 1) -> None:
        """Say that `amount` more units of the phase are done."""


class _Silent:
    def begin(self, what: str, total: int | None) -> None: ...

    def advance(self, amount: int = 1) -> None: ...


SILENT: Progress = _Silent()
"""Reports to nobody."""
