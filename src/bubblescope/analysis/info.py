"""What traces are: format, hosts, ranks, steps, what was inferred, what was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from bubblescope.analysis.cannot_answer import unanswered
from bubblescope.analysis.picture_data import pictured
from bubblescope.model.timing import timed

if TYPE_CHECKING:
    from typing_extensions import Self

    from bubblescope.analysis.picture_data import Pictured
    from bubblescope.model.timeline import Timeline

SCHEMA: Final = "bubblescope.info/1"
"""Name and version of the JSON, described in docs/report.md. Keys are only ever added."""


class Size(NamedTuple):
    """How much there is of a run of which only some was read.

    Attributes:
        tasks: Number of its tasks.
        steps: Its steps, ascending.
        duration_ns: From its first start to its last end, as far as its clocks tell.
    """

    tasks: int
    steps: list[int]
    duration_ns: int


class Info(msgspec.Struct, frozen=True, eq=False):
    """What traces are.

    Attributes:
        timeline: What was read; all ranks.
        size: How much there is of it.
    """

    timeline: Timeline
    size: Size

    @classmethod
    def of(cls, timeline: Timeline, size: Size | None = None) -> Self:
        """Take stock of a timeline.

        Args:
            timeline: All of a run, or all ranks and some tasks.
            size: How much there is of the run; as much as of the timeline if left out.
        """
        if size is None:
            size = Size(len(timeline), timeline.steps, timeline.duration_ns)
        return cls(timeline, size)

    def described(self) -> str:
        """Say in a few words how much there is of it."""
        return (
            f"Timeline({self.size.tasks} tasks, {self.timeline.ranks.height} ranks, "
            f"{len(self.size.steps)} steps, {self.size.duration_ns / 1e6:.3f} ms)"
        )

    def pictured(self) -> list[Pictured]:
        """Return what its picture shows: the first step."""
        return [pictured(self.timeline, max_steps=1)] if len(self.timeline) else []

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, following the schema `SCHEMA`."""
        return {
            "schema": SCHEMA,
            **msgspec.to_builtins(self.timeline.run),
            "timed": timed(self.timeline.ranks),
            "ranks": self.timeline.ranks.to_dicts(),
            "groups": self.timeline.groups.to_dicts(),
            "steps": self.size.steps,
            "tasks": self.size.tasks,
            "cannot_answer": msgspec.to_builtins(
                unanswered(self.timeline, steps=len(self.size.steps))
            ),
        }
