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

    def exchanging(stage: int, kinds: list[str]) -> list[int]:
        found = moved.filter(pl.col("kind").is_in(kinds), place=stage)
        return found["rank"].unique().sort().to_list()

    said = []
    if ranks := exchanging(stages["place"].min(), _BEFORE):  # type: ignore[arg-type]  # of integers
        text = (
            f"the first stage that is here ({units.listed('rank', ranks)}) exchanges results with one "
            "before it, which has no trace: waiting for that one is not known as such, and the "
            "schedule may be another; give the traces of all ranks"
        )
        said.append(Notice("stages-missing", text, len(ranks)))
    if ranks := exchanging(stages["place"].max(), _AFTER):  # type: ignore[arg-type]  # of integers
        text = (
            f"the last stage that is here ({units.listed('rank', ranks)}) exchanges results with one "
            "after it, which has no trace: waiting for that one is not known as such, and the "
            "schedule may be another; give the traces of all ranks"
        )
        said.append(Notice("stages-missing", text, len(ranks)))
    return said
