"""What steps tell each other of the idle time in them, and what a part of a run is told of the rest.

The steps of a run are replayed each by itself. All that one has to know of others is here: of which
kind a rank's tasks are as a rule, how long results are on their way between two ranks at the least, and
which ranks were still in the step before. Each can be had of parts of a run and put together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.idle.task_lengths import Typical
    from bubblescope.model.arrays import Ints

LINK: Final = ("from", "to", "backward")
"""What tells the ways between ranks apart."""


class Ways(NamedTuple):
    """What the waits for results between ranks tell of their way and of clocks.

    Attributes:
        least: Frame with from, to and backward, awaited_ns: the least wait for a result that nothing
            else was waited for with, and in_time_ns: the same of those that were launched before; null
            where there is none.
        early: Frame with one and other, numbers of clocks, and early_ns: by how much a result of the
            one seems to have been used on the other before it was made, at most.
    """

    least: pl.DataFrame
    early: pl.DataFrame

    @classmethod
    def joined(cls, parts: Sequence[Ways]) -> Self:
        """Return what several parts of a run tell together."""
        least, early = (pl.concat(frames) for frames in zip(*parts, strict=True))
        return cls(
            least.group_by(LINK).agg(pl.col("awaited_ns", "in_time_ns").min()).sort(LINK),
            _most(early),
        )

    def taken_ns(self) -> pl.DataFrame:
        """Return how long results are on their way, as from, to, backward and way_ns.

        A task that its host launched late was not waiting for its result alone. But a host that itself
        waits for results, as on a CPU, launches everything late: then all waits count.
        """
        told = self.least["in_time_ns"].is_not_null().any()
        return self.least.select(*LINK, way_ns="in_time_ns" if told else "awaited_ns")


def early_between(one: Ints, other: Ints, early_ns: Ints) -> pl.DataFrame:
    """Return `Ways.early`.

    Args:
        one: The clock that each result was made by.
        other: That by which it was used.
        early_ns: By how much it was used before it was made; 0 or less for one that was not.
    """
    found = pl.DataFrame({"one": one, "other": other, "early_ns": early_ns})
    return _most(found.filter(pl.col("early_ns") > 0))


def _most(early: pl.DataFrame) -> pl.DataFrame:
    return early.group_by("one", "other").agg(pl.col("early_ns").max()).sort("one", "other")


class Known(msgspec.Struct, frozen=True):
    """What the whole of a run tells a part of it.

    Attributes:
        still: Frame with rank and step, as `still_before` returns it.
        ways: How long results are on their way.
        typical: What tasks take, as a rule.
    """

    still: pl.DataFrame
    ways: Ways
    typical: Typical


def still_before(spans: pl.DataFrame) -> pl.DataFrame:
    """Return in which steps a rank was still in the one before when the step opened elsewhere.

    A rank's first step of all may have had one before it that was not recorded: it is as its others.

    Args:
        spans: Frame with rank, step, pipeline, start_ns and end_ns: when each rank was in each of the
            steps that are compared across ranks.

    Returns:
        Frame with rank and step, by these.
    """
    opens = pl.col("start_ns").min().over("step", "pipeline")
    busy = (pl.col("end_ns").shift(1).over("rank") > pl.col("opens")).fill_null(value=False)
    first = pl.col("end_ns").shift(1).over("rank").is_null()
    return (
        spans.select("rank", "step", "end_ns", opens=opens)
        .sort("rank", "step", nulls_last=True)
        .with_columns(busy=busy, first=first)
        .filter(pl.col("busy") | (pl.col("first") & pl.col("busy").any().over("rank")))
        .select("rank", "step")
    )
