"""The run's kernels as trace viewers are told of them, the same in Perfetto and Chrome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.render.layout import with_rows

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline

KERNEL_ARGUMENTS: Final = (
    "full",
    "module",
    "launch_delay_ns",
    "kind",
    "step",
    "stage",
    "microbatch",
)
"""What a kernel's slice carries as arguments: its full name, its module, how long after the launching
call began it started, and its task, by the columns that tasks have."""

_PLACE: Final = ("rank", "device", "stream")


def kernel_slices(timeline: Timeline) -> pl.DataFrame:
    """Return the kernels, copies and fills of a run, each on a track on which none overlap.

    Returns:
        Frame with `track`, a number from 0 that rises by rank, device, stream and row; rank; `title`,
        what the track is called below its rank; start_ns, end_ns, use, name, and the columns of
        `KERNEL_ARGUMENTS`. By track and start.
    """
    kernels = with_rows(timeline.activities, *_PLACE, exact=True).with_columns(
        launch_delay_ns=pl.col("start_ns") - pl.col("launch_ns"),
        kind=pl.col("kind").cast(pl.String),
        use=pl.col("use").cast(pl.String),
    )
    tracks = kernels.select(*_PLACE, "row").unique().sort(*_PLACE, "row")
    tracks = tracks.with_row_index("track").with_columns(title=_title())
    return kernels.join(
        tracks, on=(*_PLACE, "row"), nulls_equal=True, maintain_order="left"
    ).select("track", "rank", "title", "start_ns", "end_ns", "use", "name", *KERNEL_ARGUMENTS)


def kernel_tracks(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the tracks of `kernel_slices`, one a row: track, rank, title."""
    return kernels.select("track", "rank", "title").unique().sort("track")


def _title() -> pl.Expr:
    """Name a track: by its stream; by its device too where a rank has several."""

    def said(what: str) -> pl.Expr:
        text = pl.format(f"{what} {{}}", pl.col(what))
        return pl.when(pl.col(what).is_null()).then(pl.lit(f"{what} unknown")).otherwise(text)

    several = pl.col("device").n_unique().over("rank") > 1
    return pl.concat_str(
        pl.when(several).then(pl.concat_str(said("device"), pl.lit(" · "))).otherwise(pl.lit("")),
        said("stream"),
        pl.when(pl.col("row") > 0)
        .then(pl.format(" ({})", pl.col("row") + 1))
        .otherwise(pl.lit("")),
    )
