"""Times of one trace put on the clock of the run."""

from __future__ import annotations

from typing import Final

import polars as pl

_LENGTHS: Final = ("busy_ns", "spent_ns", "exposed_ns", "hidden_ns")
"""Columns that hold lengths of time; all others that end in _ns hold moments."""


def shifted(frame: pl.DataFrame, offset_ns: int) -> pl.DataFrame:
    """Return a frame whose moments are on a clock that is ahead by so much."""
    moments = [
        name for name in frame.columns if name.endswith("_ns") and not name.endswith(_LENGTHS)
    ]
    return frame.with_columns(pl.col(moments) + offset_ns)
