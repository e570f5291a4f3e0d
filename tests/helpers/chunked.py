"""Frames that lie in memory as filters leave them, of which Polars hands out what is no copy."""

from __future__ import annotations

import polars as pl


def with_an_empty_chunk(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with columns of two chunks, of which one is empty, as filters leave them."""
    twice = pl.concat([frame, frame], rechunk=False)
    first = [pl.Series([kept] * frame.height) for kept in (True, False)]
    kept = twice.filter(pl.concat([part.to_frame() for part in first], rechunk=False).to_series())
    assert kept.to_series().chunk_lengths() == [frame.height, 0]
    return kept
