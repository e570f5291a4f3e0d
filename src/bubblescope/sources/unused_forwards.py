"""Forwards in loops of a job's own whose results the job did not use."""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

from bubblescope.model import units
from bubblescope.model.kinds import Kind, Lane
from bubblescope.model.provenance import Notice

NAME: Final = "forward without backward"
"""What such a forward is called."""

_OF: Final = ("rank", "step", "chunk")
_WORK: Final = (*_OF, "microbatch")


class Unused(NamedTuple):
    """What a run is without them.

    Attributes:
        tasks: Its tasks: these forwards are of kind other, and no micro-batches.
        steps: Rank -> the steps in which it ran some, one for each.
    """

    tasks: pl.DataFrame
    steps: dict[int, list[int]]

    def notices(self) -> tuple[Notice, ...]:
        """Say which ranks ran some."""
        return tuple(_notice(rank, steps) for rank, steps in self.steps.items())


def _notice(rank: int, steps: list[int]) -> Notice:
    text = (
        f"rank {rank} ran {units.count(len(steps), 'forward')} that no backward followed, as if "
        f"micro-batches were tried again ({units.listed('step', sorted(set(steps)))}): such forwards "
        f"are shown as {NAME}, and do not count as micro-batches"
    )
    return Notice("unused-forwards", text, len(steps))


def without_unused(tasks: pl.DataFrame) -> Unused:
    """Tell forwards apart whose results the job did not use, as of a batch that it ran again.

    Whoever follows a loop counts its forwards, and such a one moves all that come after it. It shows
    where half of the steps, or more, have a backward for each forward, all the same number: a step
    that has as many backwards, and more forwards, has forwards that are no micro-batches. Where most
    have such forwards, as of a generator that a discriminator judges, they are how the job trains.

    Args:
        tasks: Frame with columns of tasks, of all ranks.
    """
    works = _works(tasks)
    if works is None:
        return Unused(tasks, {})
    counts = works.group_by(_OF).agg(
        backwards=(~pl.col("unused")).sum(), whole=~pl.col("unused").any()
    )
    steps = counts.group_by("chunk").len("steps")
    alike = counts.filter("whole").group_by("chunk", "backwards").len("alike")
    usual = alike.join(steps, on="chunk", nulls_equal=True).filter(
        2 * pl.col("alike") >= pl.col("steps")
    )
    more = counts.filter(~pl.col("whole"))
    more = more.join(usual, on=("chunk", "backwards"), how="semi", nulls_equal=True)
    if not more.height:
        return Unused(tasks, {})
    works = works.join(more, on=_OF, how="semi", nulls_equal=True).sort(_WORK)
    each = works.filter("unused").group_by("rank", maintain_order=True).agg("step")
    return Unused(_without(tasks, works), dict(each.iter_rows()))


def _works(tasks: pl.DataFrame) -> pl.DataFrame | None:
    """Return micro-batches by rank, step and chunk, and which have no backward; None if all have one.

    A backward of no known micro-batch may be of any: steps with one are left out.
    """
    forwards, backwards = (
        tasks.filter(pl.col("kind") == kind.value).select(_WORK).drop_nulls("step")
        for kind in (Kind.FORWARD, Kind.BACKWARD)
    )
    known = forwards.drop_nulls("microbatch")
    alone = known.join(backwards, on=_WORK, how="anti", nulls_equal=True)
    if not alone.height:
        return None
    unknown = backwards.filter(pl.col("microbatch").is_null())
    return (
        pl.concat([known, backwards.drop_nulls("microbatch")])
        .unique()
        .join(unknown, on=("rank", "step"), how="anti")
        .join(
            alone.unique().with_columns(unused=True),
            on=_WORK,
            how="left",
            nulls_equal=True,
        )
        .with_columns(pl.col("unused").fill_null(value=False))
    )


def _without(tasks: pl.DataFrame, works: pl.DataFrame) -> pl.DataFrame:
    """Return tasks of which some forwards are no micro-batches, so that later ones are counted anew.

    Args:
        tasks: The tasks.
        works: The micro-batches of the steps that have such, in order, and whether they are these.
    """
    before = pl.col("unused").cum_sum().over(_OF).cast(pl.Int32)
    found = tasks.join(
        works.with_columns(before=before),
        on=_WORK,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    unused = pl.col("unused").fill_null(value=False)
    other = unused & (pl.col("kind") == Kind.FORWARD.value)
    return found.with_columns(
        kind=pl.when(other).then(pl.lit(Kind.OTHER.value)).otherwise("kind"),
        lane=pl.when(other).then(pl.lit(Lane.HOST.value)).otherwise("lane"),
        name=pl.when(other).then(pl.lit(NAME)).otherwise("name"),
        microbatch=pl.when(~unused).then(pl.col("microbatch") - pl.col("before").fill_null(0)),
        **{name: pl.when(~other).then(name) for name in ("stage", "chunk")},
    ).drop("unused", "before")
