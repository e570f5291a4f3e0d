"""Stages at the ends of a pipeline that have no trace: others pass results on to them."""

from __future__ import annotations

from typing import Final

import polars as pl

from bubblescope.model import units
from bubblescope.model.kinds import COMPUTE_KINDS, Kind
from bubblescope.model.provenance import Notice

_PASSES: Final = [kind.value for kind in COMPUTE_KINDS]
_BEFORE: Final = [Kind.RECV_FORWARD.value, Kind.SEND_BACKWARD.value]
_AFTER: Final = [Kind.SEND_FORWARD.value, Kind.RECV_BACKWARD.value]


def missing_stages(tasks: pl.DataFrame) -> list[Notice]:
    """Return warnings that stages before the first or after the last that is here are missing.

    A device of the first stage then receives forwards or sends backwards, as all others do, and one
    of the last sends forwards or receives backwards. Where ranks have several stages, nothing is
    said: they pass results around. Transfers count that a device is known to have worked on: a call
    for them may do nothing.

    Args:
        tasks: Frame with rank, kind and stage, as far as it is known, and, where the source knows them,
            peer and busy_ns.
    """
    if not {"peer", "busy_ns"}.issubset(tasks.columns):
        return []
    stages = (
        tasks.filter(pl.col("kind").is_in(_PASSES))
        .group_by("rank")
        .agg(place=pl.col("stage").min(), several=pl.col("stage").n_unique() > 1)
    )
    unknown = stages["place"].has_nulls() or stages["place"].n_unique() < 2
    if unknown or stages["several"].any():
        return []
    here = pl.col("peer").is_in(tasks["rank"].unique().implode()).fill_null(value=False)
    moved = tasks.filter((pl.col("busy_ns") > 0) & ~here).join(stages, on="rank")
    said = []
    for end, beyond, kinds, stage in (
        ("first", "before", _BEFORE, stages["place"].min()),
        ("last", "after", _AFTER, stages["place"].max()),
    ):
        ranks = moved.filter(pl.col("kind").is_in(kinds), place=stage)["rank"].unique().sort()
        if len(ranks):
            of = units.listed("rank", ranks.to_list())
            text = (
                f"the {end} stage that is here ({of}) exchanges results with one {beyond} it, which "
                "has no trace: waiting for that one is not known as such, and the schedule may be "
                "another; give the traces of all ranks"
            )
            said.append(Notice("stages-missing", text, len(ranks)))
    return said
