"""Counters as the page shows them: in the order of the page, and no more than can be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.model.counters import in_force
from bubblescope.model.decoders import prepared
from bubblescope.render.html import schema

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline

_MOST_SAMPLES: Final = 200_000
"""Samples in a page. More of them are thinned."""

_KEPT_PER_BUCKET: Final = 3
_PLACE: Final = ("position", "counter")


class Counters(NamedTuple):
    """The counters of a page.

    Attributes:
        table: Frame with gap (ns since the previous sample of the extent; since the origin for the
            first one) and value; its rows are sorted by position, counter and time.
        counters: Name, unit, least and most value of each counter, over all ranks.
        samples: From where to where the samples of each rank (its position) and counter (its index)
            go.
        left_out: Samples that were thinned out.
    """

    table: pl.DataFrame
    counters: list[schema.Counter]
    samples: list[schema.SampleExtent]
    left_out: int


def counters_of(
    timeline: Timeline,
    ranks: pl.DataFrame,
    origin_ns: int,
    *,
    most_samples: int = _MOST_SAMPLES,
) -> Counters:
    """Return the counters from the origin to the end of the last task.

    Args:
        timeline: What to show.
        ranks: Frame with rank and position, the rank's place on the page.
        origin_ns: Where the page begins.
        most_samples: How many to show at most. Of more, each stretch of time keeps the least, the
            most and the last, which holds until the next: what is thinned is no wider than it.
    """
    end_ns = timeline.end_ns + 1 if len(timeline) else None
    held = in_force(timeline.counters, origin_ns, end_ns)
    named = held.group_by("name", "unit").agg(least=pl.min("value"), most=pl.max("value"))
    named = named.sort("name", "unit").with_row_index("counter")
    held = (
        held.join(ranks.select("rank", "position"), on="rank")
        .join(named.select("name", "unit", "counter"), on=["name", "unit"])
        .sort(*_PLACE, "time_ns", maintain_order=True)
    )
    shown = _thinned(held, most_samples)
    extents = (
        shown.with_row_index("index")
        .group_by(_PLACE, maintain_order=True)
        .agg(pl.col("index").min().alias("from"), to=pl.col("index").max() + 1)
        .rename({"position": "rank"})
    )
    before = pl.col("time_ns").shift(1).over(_PLACE).fill_null(origin_ns)
    return Counters(
        shown.select("value", gap=pl.col("time_ns") - before).select("gap", "value"),
        msgspec.convert(named.drop("counter").to_dicts(), prepared(list[schema.Counter])),
        msgspec.convert(extents.to_dicts(), prepared(list[schema.SampleExtent])),
        held.height - shown.height,
    )


def _thinned(samples: pl.DataFrame, most: int) -> pl.DataFrame:
    """Thin the counters that have more than their share, each evenly over the time they all take."""
    if samples.height <= most:
        return samples
    sizes = samples.group_by(_PLACE).agg(size=pl.len())
    small = pl.col("size") <= most // sizes.height
    spare = most - int(sizes.filter(small)["size"].sum())
    buckets = max(1, spare // (_KEPT_PER_BUCKET * sizes.filter(~small).height))
    low, high = samples.select(pl.min("time_ns").alias("low"), pl.max("time_ns").alias("high")).row(
        0
    )
    share = (pl.col("time_ns") - low) / (high - low + 1)
    kept = (
        samples.join(sizes, on=_PLACE, maintain_order="left")
        .with_row_index("index")
        .with_columns(
            # A counter within its share has a bucket for each sample.
            bucket=pl.when(small)
            .then(pl.col("index").cast(pl.Int64))
            .otherwise((share * buckets).floor().cast(pl.Int64))
        )
        .group_by(*_PLACE, "bucket")
        .agg(
            pl.col("index").get(pl.col("value").arg_min()).alias("least"),
            pl.col("index").get(pl.col("value").arg_max()).alias("most"),
            pl.col("index").last().alias("last"),
        )
    )
    rows = pl.concat([kept["least"], kept["most"], kept["last"]]).unique().sort()
    return samples[rows]
