"""What traces are: format, hosts, ranks, steps, what was inferred, what was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.analysis.pictured import pictured
from bubblescope.analysis.unanswered import unanswered
from bubblescope.model.timing import timed

if TYPE_CHECKING:
    from typing_extensions import Self

    from bubblescope.analysis.pictured import Pictured
    from bubblescope.model.timeline import Timeline

SCHEMA: Final = "bubblescope.info/1"
"""Name and version of the JSON, described in docs/report.md. Keys are only ever added."""


class Info(msgspec.Struct, frozen=True, eq=False):
    """What traces are.

    Attributes:
        timeline: What was read.
    """

    timeline: Timeline

    @classmethod
    def of(cls, timeline: Timeline) -> Self:
        """Take stock of a timeline."""
        return cls(timeline)

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
            "steps": self.timeline.steps,
            "tasks": len(self.timeline),
            "cannot_answer": msgspec.to_builtins(unanswered(self.timeline)),
        }
