"""Inferred passes as a names file, to be corrected by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.errors import NamesError
from bubblescope.names.own_passes import PASS_LETTERS, OwnPass
from bubblescope.sources.structure.chunks import pass_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubblescope.model.timeline import Timeline
    from bubblescope.names.own_passes import OwnPasses

_OF: Final = {kind.value: letter for letter, kind in PASS_LETTERS.items()}
_HEAD: Final = """\
# Passes that bubblescope inferred: F forward, B backward, I and W gradients of inputs and of weights,
# R recomputation; then the micro-batch, "?" if unknown, "." chunk and "@" stage. A line is a step.
# Correct what is wrong, keep the order and the number of passes, and give the file with --names.
[passes]
"""


def names_file(timeline: Timeline) -> str | None:
    """Return the inferred passes of a run as a names file; None if none was inferred."""
    passes = _inferred(timeline.tasks)
    if not passes.height:
        return None
    said = pl.concat_str(
        pl.col("kind").cast(pl.String).replace_strict(_OF),
        pl.coalesce(pl.col("microbatch").cast(pl.String), pl.lit("?")),
        pl.coalesce(pl.format(".{}", "chunk"), pl.lit("")),
        pl.coalesce(pl.format("@{}", "stage"), pl.lit("")),
    )
    lines = (
        passes.with_columns(said=said)
        .group_by("rank", "step", maintain_order=True)
        .agg(pl.col("said").str.join(" "))
        .group_by("rank", maintain_order=True)
        .agg(pl.col("said").str.join("\n"))
    )
    return _HEAD + "".join(f'{rank} = """\n{text}"""\n' for rank, text in lines.iter_rows())


def corrected(tasks: pl.DataFrame, passes: Mapping[int, OwnPasses]) -> pl.DataFrame:
    """Let inferred passes be what a user says they are; those are inferred no longer.

    Args:
        tasks: Frame with the task columns.
        passes: Rank -> its passes, in the order in which the host issued them. Of ranks that it lacks
            nothing is changed.

    Raises:
        NamesError: A rank has another number of passes.
    """
    if not passes or "certainty" not in tasks.columns:
        return tasks
    tasks = tasks.with_row_index("row")
    inferred = _inferred(tasks)
    counts = dict(inferred.group_by("rank").len().iter_rows())
    for rank, own in passes.items():
        if counts.get(rank, 0) != len(own.passes):
            raise NamesError(
                f"{own.where}: has {len(own.passes)} passes, of which {counts.get(rank, 0)} were "
                "inferred; it is of another trace, or lacks a pass"
            )
    kept = inferred.filter(pl.col("rank").is_in(list(passes)))
    stating = [
        one for rank in kept["rank"].unique(maintain_order=True) for one in passes[rank].passes
    ]
    kinds = {"kind": pl.String, "microbatch": pl.Int64, "chunk": pl.Int64, "stage": pl.Int64}
    said = pl.DataFrame(stating, schema=kinds, orient="row").with_columns(row=kept["row"])
    stated = pl.col("kind_said").is_not_null()
    return (
        tasks.join(said, on="row", how="left", maintain_order="left", suffix="_said")
        .with_columns(
            *(
                pl.when(stated)
                .then(pl.col(f"{name}_said").cast(tasks.schema[name]))
                .otherwise(name)
                .alias(name)
                for name in OwnPass._fields
            ),
            certainty=pl.when(~stated).then("certainty"),
        )
        .with_columns(name=pl.when(stated).then(pass_name()).otherwise("name"))
        .drop("row", *(f"{name}_said" for name in OwnPass._fields))
    )


def _inferred(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the inferred passes by rank, in the order in which the host issued them."""
    told = pl.col("certainty").is_not_null() & pl.col("kind").cast(pl.String).is_in(list(_OF))
    return tasks.filter(told).sort("rank", "host_start_ns", "start_ns", maintain_order=True)
