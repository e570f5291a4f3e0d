"""What ranks do beside the passes of a pipeline, as recordings have it."""

from __future__ import annotations

from typing import Final

import polars as pl

from bubblescope.model.kinds import Kind, Lane
from bubblescope.model.whole_steps import NAMES

_OTHER: Final = pl.col("kind") == Kind.OTHER.value
ON_HOST: Final = _OTHER & (pl.col("lane") == Lane.HOST.value)
"""What the host does, by names of its own: checkpoints, evaluations."""
AWAITS_SENDS: Final = _OTHER & (pl.col("lane") == Lane.COMM.value)
"""Waiting until a send is done."""


def by_name(tasks: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the tasks of each of a few names, those on which most time was spent, most first."""
    spent = (pl.col("end_ns") - pl.col("start_ns")).sum()
    names = tasks.group_by("name").agg(ns=spent).sort("ns", "name", descending=[True, False])
    return {name: tasks.filter(name=name) for name in names["name"].head(NAMES)}
