"""The interactive timeline of a run that is too large for one file, served to a browser here."""

from __future__ import annotations

from bubblescope.serve.server import Server

__all__ = ["Server"]
