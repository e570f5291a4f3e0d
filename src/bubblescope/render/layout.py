"""What every picture of a timeline agrees on: order of ranks, rows and labels."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from bubblescope.model import intervals
from bubblescope.model.kinds import SHORT, Kind, Lane
from bubblescope.model.ordering import in_order
from bubblescope.model.plain_text import UNSEEN_IN_LINE

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


TOUCHING_NS: Final = 2_000
"""By how much tasks may overlap and still be one after the other.

Profilers round the start and the length of each to microseconds, which is up to 1.5 µs. Seconds as
32-bit numbers are as coarse from 8 s on.
"""
_TOUCHING_PARTS: Final = 1_000
"""Of how many parts of the shorter of two tasks an overlap may be one: clocks are not more precise."""


def with_rows(tasks: pl.DataFrame, *key: str, exact: bool = False) -> pl.DataFrame:
    """Add `row`: tasks of one lane and row do not overlap, and each is in the lowest that is free.

    Trace viewers take tasks of one row to be nested, and lose those that overlap otherwise. Tasks that
    overlap by up to `TOUCHING_NS` or 0.1 % of the shorter of both, and by less than half of it, ran one
    after the other as far as a trace can tell: they share a row, and the later is drawn from where the
    earlier ends.

    Args:
        tasks: Frame with start_ns, end_ns and the columns of the key.
        key: What a lane is told by; rank and lane if left out.
        exact: Whether any overlap makes a second row, where lengths as drawn are to add up.

    Returns:
        The tasks by key, start and end, with `row`, and `cut_ns`: by how much each began before the one
        before it in its row ended, which is not drawn. Starts and ends are the true ones.
    """
    key = key or ("rank", "lane")
    ordered = in_order(tasks, *key, "start_ns", "end_ns").with_row_index("_index")
    start, end, group = intervals.columns(ordered, *key)
    # Tasks from one moment at which none of the lane runs to the next are placed by themselves, so that
    # those which nothing overlaps, and which only touch the one before them, are on the first row.
    reached = intervals.reached_ns(end, group)
    free = start >= reached
    if not exact and not free.all():
        others = np.append(
            intervals.NEVER, reached[:-1]
        )  # how far those before the last one reached
        length = np.minimum(end - start, np.append(0, (end - start)[:-1]))
        # The one after it must not begin before those of the last row have ended, too.
        alone = np.append((reached[1:] == intervals.NEVER) | (start[1:] >= reached[:-1]), True)
        free |= alone & (start >= others) & _touching(reached - start, length)
    if free.all():
        over = np.clip(reached - start, 0, None)
        placed = ordered.with_columns(row=pl.lit(0, pl.Int32), cut_ns=pl.Series(over))
        return placed.drop("_index")
    ordered = ordered.with_columns(_together=pl.Series(free).cum_sum())
    crowded = ordered.filter(pl.len().over("_together") > 1)
    placed = crowded.select("_index", row=pl.Series(_rows(crowded, exact=exact), dtype=pl.Int32))
    drawn = (
        ordered.join(placed, on="_index", how="left", maintain_order="left")
        .with_columns(pl.col("row").fill_null(0))
        .drop("_index", "_together")
    )
    before = pl.col("end_ns").shift(1).over(*key, "row")
    cut = (before - pl.col("start_ns")).clip(lower_bound=0).fill_null(0)
    return drawn.with_columns(cut_ns=cut)


def drawn_ns() -> pl.Expr:
    """Return where tasks with rows are drawn from."""
    return pl.col("start_ns") + pl.col("cut_ns")


def _touching(overlap_ns: Any, shorter_ns: Any) -> Any:
    """Say whether tasks ran one after the other, though their times overlap; numbers or arrays.

    Args:
        overlap_ns: By how much they do.
        shorter_ns: How long the shorter of both is.
    """
    rounded = (overlap_ns <= TOUCHING_NS) | (overlap_ns <= shorter_ns // _TOUCHING_PARTS)
    return rounded & (2 * overlap_ns < shorter_ns)


def _rows(crowded: pl.DataFrame, *, exact: bool) -> list[int]:
    """Return the lowest free row of each task, those of one `_together` by themselves."""
    rows: list[int] = []
    used: list[tuple[int, int]] = []  # (when a row may be free at the earliest, row)
    open_rows: list[int] = []  # rows that may be free
    last: dict[int, tuple[int, int]] = {}  # row -> end and length of its last task
    crowd = None
    for number, start, end in crowded.select("_together", "start_ns", "end_ns").iter_rows():
        if number != crowd:
            used, open_rows, last, crowd = [], [], {}, number
        while used and used[0][0] <= start:
            heapq.heappush(open_rows, heapq.heappop(used)[1])
        length, late = end - start, []
        while open_rows:
            row = heapq.heappop(open_rows)
            over, shorter = last[row][0] - start, min(last[row][1], length)
            if over <= 0 or (not exact and _touching(over, shorter)):
                break
            late.append(row)
        else:
            row = len(last)
        for other in late:
            heapq.heappush(open_rows, other)
        rows.append(row)
        last[row] = (end, length)
        heapq.heappush(used, (end - max(TOUCHING_NS, length // _TOUCHING_PARTS), row))
    return rows


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
    name = pl.col("name").str.strip_prefix(_MODULE).str.replace_all(UNSEEN_IN_LINE, "\ufffd")
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
    """Return a task's length as `units.duration` writes it."""
    length = pl.col("end_ns") - pl.col("start_ns")

    def fixed(unit_ns: int, digits: int) -> pl.Expr:
        """Write the length in units, with that many digits after the point."""
        whole = 10**digits
        scaled = (length * whole / unit_ns).round().cast(pl.Int64)
        number = pl.concat_str(
            scaled // whole, pl.lit("."), (scaled % whole).cast(pl.String).str.zfill(digits)
        )
        return number if digits else scaled.cast(pl.String)

    minutes = (length / 60_000_000_000).round().cast(pl.Int64)

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
        .when(length < 3_600_000_000_000)
        .then(written(1_000_000_000, "s"))
        .otherwise(
            pl.format("{} h {} min", minutes // 60, (minutes % 60).cast(pl.String).str.zfill(2))
        )
    )
