"""One thing to say of a run: which sentence, with which numbers, and what shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bubblescope.model.timeline import Timeline


class ShownTask(msgspec.Struct, frozen=True):
    """A task that shows something.

    Attributes:
        values: What its timeline has of it, by column.
        row: Its row there; None if only a part of the run was at hand.
    """

    values: dict[str, Any]
    row: int | None = None

    @classmethod
    def of(cls, timeline: Timeline, row: int) -> ShownTask:
        """Return the task in a row of a timeline's tasks."""
        return cls(timeline.tasks.row(row, named=True), row)

    @property
    def place(self) -> tuple[int, str, int, int]:
        """Where it stands among the tasks of a run."""
        return tuple(self.values[name] for name in ("rank", "lane", "start_ns", "end_ns"))  # type: ignore[return-value]


def first(tasks: Iterable[ShownTask]) -> ShownTask:
    """Return that which stands before all others in the run."""
    return min(tasks, key=lambda task: task.place)


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
    tasks: tuple[ShownTask, ...] = ()
