"""Floating-point operations that devices executed, as far as traces tell."""

from __future__ import annotations

from typing import Final

import polars as pl

FLOPS_SCHEMA: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "name": pl.String(),
    "precision": pl.String(),
    "flops": pl.Int64(),
    "operators": pl.Int64(),
    "unknown": pl.Int64(),
}
"""Columns of `Timeline.flops`: what operators of one name executed that a rank called in a step.

`precision` is that of what they multiply ("FP32", "BF16"), null where the trace does not tell.
`flops` is the sum of those `operators` whose arguments tell, null if it cannot be; `unknown` more
multiply matrices of a size that is not told. A rank without rows has no shapes in its trace.
"""
