"""What ranks do beside the passes of a pipeline, as recordings have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model.cached_results import remembered
from bubblescope.model.kinds import Kind, Lane
from bubblescope.model.whole_steps import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self

    from bubblescope.model.timeline import Timeline

_OTHER: Final = pl.col("kind") == Kind.OTHER.value
ON_HOST: Final = _OTHER & (pl.col("lane") == Lane.HOST.value)
"""What the host does, by names of its own: checkpoints, evaluations."""
AWAITS_SENDS: Final = _OTHER & (pl.col("lane") == Lane.COMM.value)
"""Waiting until a send is done."""
ASIDE: Final = _OTHER & (pl.col("lane") != Lane.COMPUTE.value)
"""Both, and whatever else has a name of its own and is not on the compute lane."""


class Names(msgspec.Struct, frozen=True):
    """Names of what ranks do beside the passes, and how long they are in it.

    Attributes:
        spent: Frame with name, host (whether it is `ON_HOST`) and ns.
    """

    spent: pl.DataFrame

    @classmethod
    def of(cls, tasks: pl.DataFrame) -> Self:
        """Look at tasks, as in `Timeline.tasks`."""
        aside = tasks.filter(ASIDE).select(
            "name", host=ON_HOST, ns=pl.col("end_ns") - pl.col("start_ns")
        )
        return cls(aside.group_by("name", "host").agg(pl.col("ns").sum()))

    @classmethod
    def joined(cls, parts: Sequence[Names]) -> Self:
        """Return those of several parts of a run together."""
        spent = pl.concat([part.spent for part in parts])
        return cls(spent.group_by("name", "host").agg(pl.col("ns").sum()))

    @property
    def pauses(self) -> list[str]:
        """A few names of what hosts do, those on which most time was spent, most first."""
        return _most(self.spent.filter("host"))

    @property
    def asides(self) -> list[str]:
        """A few names of what is beside the compute lane, likewise."""
        return _most(self.spent)


def _most(spent: pl.DataFrame) -> list[str]:
    names = spent.group_by("name").agg(pl.col("ns").sum())
    return names.sort("ns", "name", descending=[True, False])["name"].head(NAMES).to_list()


@remembered
def names_of(timeline: Timeline) -> Names:
    """Return the names of a run; of a part of a run, those of the whole run."""
    return Names.of(timeline.tasks)


def by_name(tasks: pl.DataFrame, names: Iterable[str]) -> dict[str, pl.DataFrame]:
    """Return the tasks of each of some names."""
    return {name: tasks.filter(name=name) for name in names}
