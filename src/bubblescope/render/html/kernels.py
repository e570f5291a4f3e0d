"""Kernels as the page shows them: in rows of streams, and their names as numbers.

A row is one of a stream's of a rank's device; in it nothing overlaps, as the page's painter wants it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model import intervals
from bubblescope.model.budget import BUSY
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.plain_text import cut
from bubblescope.render.html import schema
from bubblescope.render.html.summary import shades
from bubblescope.render.layout import drawn_ns, with_rows
from bubblescope.render.palette import DARK_USE_COLOURS, USE_COLOURS

if TYPE_CHECKING:
    from bubblescope.model.budget import Use
    from bubblescope.model.timeline import Timeline

MOST_KERNELS: Final = 5_000_000
"""Kernels that one page holds: a file of some 60 MB, which takes a browser ten seconds to open."""

ROW: Final = ("position", "device", "stream", "row")
"""What tells rows of kernels apart."""

_NAME: Final = 1_000
"""Letters of a kernel's name that the page holds."""

_UNKNOWN: Final = -1
_STREAM: Final = ("position", "device", "stream")
_CODES: Final = {use.value: code for code, use in enumerate(BUSY)}

NOT_ASKED: Final = (
    "this page has no kernels; `bubblescope view PATH --kernels` makes one that has them"
)
"""How the page says that it was made without kernels, though the traces hold them."""


class Kernels(NamedTuple):
    """The kernels of a page.

    Attributes:
        table: By the columns of `ROW` and start: start_ns and end_ns as drawn, cut_ns (by how much it
            began before the one before it in its row ended, which is not drawn), use (index into
            `BUSY`), name and module (numbers, -1 for no module) and lead_ns (from its launch to its
            start, -1 if that is not known). Empty if the page has none.
        names: Short and full name of each number.
        modules: Module of each number.
    """

    table: pl.DataFrame
    names: list[tuple[str, str]]
    modules: list[str]

    def head(self) -> schema.KernelHead | None:
        """Return what the head of the page says of them; None if there are none."""
        if not self.table.height:
            return None
        return schema.KernelHead(
            uses=[shown_use(use, use.value) for use in BUSY],
            names=self.names,
            modules=self.modules,
        )


def shown_use(use: Use, name: str) -> schema.KernelUse:
    """Return what devices are busy with, in its colours."""
    dark = schema.Shades(**shades(DARK_USE_COLOURS[use]))
    return schema.KernelUse(name=name, **shades(USE_COLOURS[use]), dark=dark)


def need_room(timeline: Timeline) -> None:
    """Refuse to put more kernels into a page than browsers can hold.

    Raises:
        BubblescopeError: There are more than `MOST_KERNELS`.
    """
    count = timeline.activities.height
    if count > MOST_KERNELS:
        raise BubblescopeError(
            f"the run has {count:,} kernels, and a page holds {MOST_KERNELS:,} at most: choose some "
            "with --steps or --ranks, or see all with `bubblescope serve --kernels`"
        )


def kernels_of(timeline: Timeline, ranks: pl.DataFrame) -> Kernels:
    """Return the kernels of a run in the order of the page.

    Args:
        timeline: The run; its `activities` are the kernels.
        ranks: With rank and position.
    """
    ran = (
        timeline.activities.lazy()
        .join(ranks.lazy().select("rank", "position"), on="rank")
        .with_columns(pl.col("device", "stream").fill_null(_UNKNOWN))
        .collect()
    )
    placed = (
        with_rows(ran, *_STREAM)
        .with_columns(
            start_ns=drawn_ns(),
            # Before the cut: the host launched it then, and the device began then.
            lead_ns=(pl.col("start_ns") - pl.col("launch_ns"))
            .clip(lower_bound=_UNKNOWN)
            .fill_null(_UNKNOWN),
        )
        .sort(*ROW, "start_ns", "end_ns")
    )
    name, names = _numbered(placed, "name", "full")
    module, modules = _numbered(placed, "module")
    table = placed.select(
        *ROW,
        "start_ns",
        "end_ns",
        "cut_ns",
        use=pl.col("use").cast(pl.String).replace_strict(_CODES, return_dtype=pl.UInt8),
        name=name,
        module=module.fill_null(_UNKNOWN),
        lead_ns="lead_ns",
    )
    texts = [(cut(short, _NAME), cut(full, _NAME)) for short, full in names.iter_rows()]
    return Kernels(table, texts, [cut(text, _NAME) for (text,) in modules.iter_rows()])


def _numbered(frame: pl.DataFrame, *columns: str) -> tuple[pl.Series, pl.DataFrame]:
    """Number what columns hold in the order of its first appearance; what is null has no number."""
    unique = frame.select(columns).drop_nulls(columns[0]).unique(maintain_order=True)
    found = frame.select(columns).join(
        unique.with_row_index("number"),
        on=list(columns),
        how="left",
        maintain_order="left",
        nulls_equal=True,
    )
    return found["number"].cast(pl.Int32), unique.with_columns(pl.col(columns[-1]).fill_null(""))


def no_kernels() -> Kernels:
    """Return those of a page without any."""
    schema = {
        **dict.fromkeys(ROW, pl.Int32),
        **dict.fromkeys(("start_ns", "end_ns", "cut_ns"), pl.Int64),
        "use": pl.UInt8,
        "name": pl.Int32,
        "module": pl.Int32,
        "lead_ns": pl.Int64,
    }
    return Kernels(pl.DataFrame(schema=schema), [], [])


def kernel_columns(kernels: pl.DataFrame, origin_ns: int) -> pl.DataFrame:
    """Return the columns of arranged kernels; starts are differences within a row of the page."""
    before = pl.col("start_ns").shift(1).over(ROW).fill_null(origin_ns)
    return kernels.select(
        gap=pl.col("start_ns") - before,
        length=pl.col("end_ns") - pl.col("start_ns"),
        cut="cut_ns",
        use="use",
        name="name",
        module="module",
        lead="lead_ns",
    )


def inside(
    kernels: pl.DataFrame, position: int, start_ns: int, end_ns: int, most: int
) -> schema.Inside:
    """Sum up what ran in a stretch of time on a rank.

    Args:
        kernels: All of them, as in `Kernels.table`.
        position: The rank's place on the page.
        start_ns: Where the stretch begins.
        end_ns: Where it ends.
        most: Names to return.
    """
    begun = pl.col("start_ns") - pl.col("cut_ns")
    ran = (
        kernels.filter(pl.col("position") == position, begun < end_ns, pl.col("end_ns") > start_ns)
        .select(
            "use",
            "name",
            start_ns=begun.clip(lower_bound=start_ns),
            end_ns=pl.col("end_ns").clip(upper_bound=end_ns),
        )
        .sort("start_ns")
    )
    covered = [_covered(ran.filter(pl.col("use") <= code)) for code in range(len(BUSY))]
    top = (
        ran.group_by("name")
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum(), count=pl.len())
        .sort("ns", "name", descending=[True, False])
        .head(most)
    )
    compute, communication, copy = np.diff(covered, prepend=0).tolist()
    return schema.Inside(
        count=ran.height,
        compute=compute,
        communication=communication,
        copy=copy,
        top=top.rows(),
    )


def _covered(ran: pl.DataFrame) -> int:
    """Return the time that intervals, by start, cover together."""
    start, end = ran["start_ns"].to_numpy(), ran["end_ns"].to_numpy()
    return int((end - intervals.fresh_start_ns(start, end)).sum())
