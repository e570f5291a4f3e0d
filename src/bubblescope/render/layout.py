"""What every picture of a timeline agrees on: order of ranks, rows and labels."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model import intervals
from bubblescope.model.kinds import SHORT, Kind, Lane

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline

LANE_ORDER: Final = tuple(lane.value for lane in Lane)


def ordered_ranks(timeline: Timeline) -> pl.DataFrame:
    """Return the ranks from top to bottom, with `title`: by host, then first stage, then rank.

    Hosts come in the order of the first stage they hold. Unknown stages order by rank.
    """
    first = pl.coalesce(pl.col("stages").list.first(), pl.col("rank"))
    return (
        timeline.ranks.with_columns(first_stage=first)
        .with_columns(
            host_stage=pl.col("first_stage").min().over("host"),
            host_rank=pl.col("rank").min().over("host"),
        )
        .sort("host_stage", "host_rank", "host", "first_stage", "rank")
        .with_columns(
            title=pl.format(
                "rank {}{} · {}",
                "rank",
                pl.when(pl.col("stages").list.len() > 0)
                .then(
                    pl.format(
                        " · stage {}", pl.col("stages").cast(pl.List(pl.String)).list.join(", ")
                    )
                )
                .otherwise(pl.lit("")),
                "host",
            ),
        )
        .drop("first_stage", "host_stage", "host_rank")
    )


def with_rows(tasks: pl.DataFrame, *key: str) -> pl.DataFrame:
    """Add `row`: tasks of one lane and row never overlap, and rows are as few as can be.

    Trace viewers take tasks of one row to be nested, and lose those that overlap otherwise.

    Args:
        tasks: Frame with start_ns, end_ns and the columns of the key.
        key: What a lane is told by; rank and lane if left out.

    Returns:
        The tasks by key, start and end.
    """
    key = key or ("rank", "lane")
    ordered = tasks.sort(*key, "start_ns", "end_ns", maintain_order=True).with_row_index("_index")
    _, ends, group = intervals.columns(ordered, *key)
    reached = pl.Series(intervals.reached_ns(ends, group))
    # Tasks from one moment at which none of the lane runs to the next are placed by themselves, so that
    # those which nothing overlaps are on the first row.
    together = (pl.col("start_ns") >= reached).cum_sum()
    ordered = ordered.with_columns(_together=together)
    crowded = ordered.filter(pl.len().over("_together") > 1)
    rows: list[int] = []
    free: list[tuple[int, int]] = []  # (end of the row's last task, row)
    last = None
    for crowd, start, end in crowded.select("_together", "start_ns", "end_ns").iter_rows():
        if crowd != last:
            free, last = [], crowd
        row = heapq.heappop(free)[1] if free and free[0][0] <= start else len(free)
        rows.append(row)
        heapq.heappush(free, (end, row))
    placed = crowded.select("_index", row=pl.Series(rows, dtype=pl.Int32))
    return (
        ordered.join(placed, on="_index", how="left", maintain_order="left")
        .with_columns(pl.col("row").fill_null(0))
        .drop("_index", "_together")
    )


UNSEEN: Final = "[\\x00-\\x1f\\x7f-\\x9f\\u{200e}\\u{200f}\\u{2028}-\\u{202e}\\u{2066}-\\u{2069}]"
"""Control characters, ends of lines, and marks that change the direction of what follows."""

_MODULE: Final = "nn.Module: "
"""What PyTorch's profiler puts before the name of every module: it says nothing on a block."""
_LONGEST: Final = 120
"""Characters of a task's own name on its block."""


def own_name() -> pl.Expr:
    """Say which blocks have their task's own name: those of no known kind that have one."""
    return (pl.col("kind") == Kind.OTHER.value) & (pl.col("name") != "")


def short_label() -> pl.Expr:
    """Return the label of a block: kind, micro-batch, and chunk where a rank has several.

    Tasks of no known kind have their own name. It is text of the trace, in which what moves or turns
    other text is replaced; it is not escaped.
    """
    name = pl.col("name").str.strip_prefix(_MODULE).str.replace_all(UNSEEN, "\ufffd")
    shown = (
        pl.when(name.str.len_chars() > _LONGEST)
        .then(pl.format("{}…", name.str.slice(0, _LONGEST - 1)))
        .otherwise(name)
    )
    return pl.when(own_name()).then(shown).otherwise(_kind_and_numbers())


def _kind_and_numbers() -> pl.Expr:
    chunks = pl.col("chunk").max() > 0
    kind = pl.col("kind").cast(pl.String).replace_strict({k.value: v for k, v in SHORT.items()})
    return pl.concat_str(
        kind,
        pl.col("microbatch").cast(pl.String).fill_null(""),
        pl.when(chunks & pl.col("chunk").is_not_null())
        .then(pl.format(".{}", "chunk"))
        .otherwise(pl.lit("")),
    )


def duration_text() -> pl.Expr:
    """Return a task's length in its natural unit, with four significant digits."""
    length = pl.col("end_ns") - pl.col("start_ns")

    def fixed(unit_ns: int, digits: int) -> pl.Expr:
        """Write the length in units, with that many digits after the point."""
        whole = 10**digits
        scaled = (length * whole / unit_ns).round().cast(pl.Int64)
        number = pl.concat_str(
            scaled // whole, pl.lit("."), (scaled % whole).cast(pl.String).str.zfill(digits)
        )
        return number if digits else scaled.cast(pl.String)

    def written(unit_ns: int, unit: str) -> pl.Expr:
        number = fixed(unit_ns, 0)
        for digits in (1, 2, 3):
            shorter = length < 10 ** (4 - digits) * unit_ns
            number = pl.when(shorter).then(fixed(unit_ns, digits)).otherwise(number)
        return pl.format("{} {}", number, pl.lit(unit))

    return (
        pl.when(length < 1_000)
        .then(pl.format("{} ns", length))
        .when(length < 1_000_000)
        .then(written(1_000, "µs"))
        .when(length < 1_000_000_000)
        .then(written(1_000_000, "ms"))
        .otherwise(written(1_000_000_000, "s"))
    )
