"""Pure functions from a `Timeline` to facts about it."""

from __future__ import annotations
