"""One thing to say of a run: which sentence, with which numbers, and what shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline

Shown = dict[str, Any]
"""A task that shows something: what its timeline has of it, by column."""


class Finding(msgspec.Struct, frozen=True):
    """One sentence.

    Attributes:
        role: "verdict", "evidence" or "advice".
        key: Which sentence, as in `bubblescope.analysis.words`.
        values: The numbers and names in it; times end in `_ns`, shares in `_share`, factors in
            `_times`.
        tasks: Tasks that show it.
    """

    role: str
    key: str
    values: dict[str, Any]
    tasks: tuple[Shown, ...] = ()


def place(task: Shown) -> tuple[int, int, int]:
    """Return where a task of the compute lane stands among those of its run."""
    return task["rank"], task["start_ns"], task["end_ns"]


def row_of(task: Shown, timeline: Timeline) -> int:
    """Return the row of a task in its timeline."""
    same = [pl.col(name) == task[name] for name in ("rank", "kind", "lane", "start_ns", "end_ns")]
    return int(timeline.tasks.select(pl.arg_where(pl.all_horizontal(same))).item(0, 0))
