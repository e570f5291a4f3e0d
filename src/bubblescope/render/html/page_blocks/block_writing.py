"""Laying out a run part by part as the page shows it: workers write blocks, read one by one."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.pipeline_phase import phases
from bubblescope.analysis.rank_standing import alike
from bubblescope.analysis.view import links_of, spread_of
from bubblescope.model import intervals
from bubblescope.model.arrays import blocks_of_ranks
from bubblescope.model.extents import extents, extremes
from bubblescope.model.kinds import Kind, Lane
from bubblescope.model.ordering import distinct, in_order, stretches
from bubblescope.render.html.in_tasks import sums_in_tasks
from bubblescope.render.html.packing import TASK_ROW, arranged_among, gaps_in_order, most_of, seen
from bubblescope.render.html.page_blocks import block_files
from bubblescope.render.html.page_blocks.block_files import (
    LEFT_OUT,
    Cell,
    Idling,
    afar_file,
    block_file,
    overview_columns,
)
from bubblescope.render.html.serve.windows import Drawn, Sight, chosen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bubblescope.analysis.overview import Overview
    from bubblescope.analysis.pieces.scans import Explained, Own
    from bubblescope.analysis.rank_standing import Alike
    from bubblescope.model.arrays import Ints
    from bubblescope.render.html.page_blocks.block_files import Levels

_DENSE: Final = 4
"""Tasks of a rank that are one at the finest level, about: of fewer there would be as many pieces."""
_COARSER: Final = 4
_KEPT: Final = (
    *("position", "lane", "row", "step", "kind", "stage", "chunk", "microbatch", "pair_chunk"),
    *("pair_microbatch", "start_ns", "end_ns", "busy_ns", "host_start_ns", "peer", "certainty"),
    "code",
)
"""Columns of arranged tasks that a block has, besides sums of what the device did."""
_NOBODY: Final = -1
_LENGTH: Final = pl.col("end_ns") - pl.col("start_ns")
_COMPUTES: Final = pl.col("lane") == Lane.COMPUTE.value


def widths(overview: Overview, ranks: int) -> tuple[int, ...]:
    """Return the times of which all tasks of a kind are one, level by level.

    Args:
        overview: How much there is of the run.
        ranks: How many ranks it has.
    """
    low, high = overview.span_ns or (0, 1)
    length = max(1, high - low)
    per_rank = max(1.0, overview.tasks / max(1, ranks))
    found = [1 << int(np.ceil(np.log2(max(1.0, _DENSE * length / per_rank))))]
    while _COARSER * found[-1] * overview_columns(ranks) <= length:
        found.append(_COARSER * found[-1])
    return tuple(found)


class Kept(NamedTuple):
    """What is known of a part whose blocks were written.

    Attributes:
        cells: Its blocks.
        afar: As of `block_files.Part`.
        names: Of its tasks, by the numbers that blocks have of them.
        rows: Frame with position, lane and row: the rows of the page that it has tasks in.
        phases: As `analysis.phase.phases` returns them.
        spent: Frame with kind, spent_ns and beside_ns: what ranks spent in it on their compute lanes,
            and on the lanes beside them.
        microbatches, chunks: How many its tasks are numbered by.
        standing: How ranks stand in it, and how long tasks take; None if it is not to tell.
    """

    cells: list[Cell]
    afar: list[int]
    names: list[str]
    rows: pl.DataFrame
    phases: pl.DataFrame
    spent: pl.DataFrame
    microbatches: int
    chunks: int
    standing: tuple[Alike, pl.DataFrame] | None


class Page(NamedTuple):
    """Where and how the blocks of a page are written.

    Attributes:
        levels: Where to.
        ranks: Frame with rank and position.
        batches: As of `block_files.Index`.
        origin_ns: Where the page begins.
        widths_ns: Of each level.
    """

    levels: Levels
    ranks: pl.DataFrame
    batches: tuple[int, ...]
    origin_ns: int
    widths_ns: tuple[int, ...]

    def arranged(self, own: Own) -> tuple[pl.DataFrame, list[str]]:
        """Return the tasks of a part in the order of the page, and their names."""
        return arranged_among(own.timeline.tasks, own.around.tasks, self.ranks)

    def edges(self, positions: pl.Series) -> Ints:
        """Return where batches begin among rows that are sorted by their positions, and the end."""
        return np.searchsorted(positions.to_numpy(), np.array(self.batches))

    def write_batches(self, table: str, number: int, frame: pl.DataFrame, edges: Ints) -> None:
        """Write a table of a part batch by batch."""
        for batch, (first, last) in enumerate(pairwise(edges.tolist())):
            if first < last:
                self.write(_without_unknown(frame[first:last]), block_file(table, number, batch))

    def write_afar(
        self, table: str, number: int, frame: pl.DataFrame, row: Sequence[str], code: str
    ) -> list[int]:
        """Write what is seen of a part from afar, level by level, and return how many pieces it is.

        Args:
            table: Of tasks or gaps.
            number: Of the part.
            frame: The table, in the order of the page.
            row: Columns that tell its rows on the page apart.
            code: What is told apart within them.
        """
        drawn = frame.select(*row, code, "start_ns", "end_ns").with_row_index("id")
        levels: list[list[pl.DataFrame]] = [[] for _ in self.widths_ns]
        # Some ranks at a time: what is as large as the processor's caches is done twice as fast.
        for some in blocks_of_ranks(drawn, "position"):
            seen_ = some
            for level, width_ns in enumerate(self.widths_ns):
                # Pieces of a level lie within those of the next, so that it can be made of them.
                seen_ = self._afar(seen_, row, code, width_ns)
                levels[level].append(seen_)
        for level, pieces in enumerate(levels):
            self.write(pl.concat(pieces), afar_file(level, table, number))
        return [sum(piece.height for piece in pieces) for pieces in levels]

    def _afar(
        self, frame: pl.DataFrame, row: Sequence[str], code: str, width_ns: int
    ) -> pl.DataFrame:
        """Return what is seen of a table from so far that all of a code in a stretch of time is one.

        Args:
            frame: The columns of the row, the code, start_ns, end_ns and id; or what this returned of
                it for shorter stretches, of which each lies within one of these.
            row: Columns that tell its rows on the page apart.
            code: What is told apart within them.
            width_ns: Of a stretch.

        Returns:
            The columns of the row, the code, start_ns, end_ns, merged (how many one stands for; 0 where
            it is one that is longer than that), and id, the first of these in the table.
        """
        begins = stretches(frame, *row)
        spans = np.stack([begins, np.append(begins, frame.height)[1:]], axis=1)
        everything = Sight(0.0, float(width_ns), 0, frozenset(), frozenset())
        found = chosen(Drawn.of(frame, code, self.origin_ns), spans, everything, whole=False)
        return frame.select(*row, code, "id")[found.ids].select(
            *row,
            code,
            start_ns=pl.Series(found.start_ns, dtype=pl.Int64) + self.origin_ns,
            end_ns=pl.Series(found.end_ns, dtype=pl.Int64) + self.origin_ns,
            merged=pl.Series(found.merged, dtype=pl.Int64),
            id=pl.col("id").cast(pl.Int64),
        )

    def write(self, frame: pl.DataFrame, file: str) -> None:
        """Write a table."""
        whole = io.BytesIO()
        # A block is read as a whole: nobody asks for statistics, and packing it harder saves little.
        frame.write_parquet(whole, compression_level=1, statistics=False)
        with whole.getbuffer() as content:
            self.levels.store.write(self.levels.name(file), content)


class Keeping(NamedTuple):
    """Writes the blocks of a part; see `bubblescope.analysis.pieces.scans.Keeps`.

    Attributes:
        page: Of which page.
        telling: The part that tells how ranks stand.
    """

    page: Page
    telling: int

    def __call__(self, own: Own, explained: Explained | None) -> Kept:
        """Write what a part shows, and return what is known of it."""
        page, timeline = self.page, own.timeline
        tasks, names = page.arranged(own)
        budget = pl.concat([timeline.budget, own.around.budget])
        sums = sums_in_tasks(tasks, budget) if budget.height else {}
        if explained is not None:
            explain(page, own.number, tasks, explained)
        kept = tasks.with_columns(**sums).select(*_KEPT, *sums)
        edges = page.edges(kept["position"])
        page.write_batches("tasks", own.number, kept, edges)
        afar = page.write_afar("tasks", own.number, kept, TASK_ROW, "kind")
        page.write(_sums(kept), block_files.sums_file(own.number))
        spent = kept.group_by("kind").agg(
            spent_ns=_LENGTH.filter(_COMPUTES).sum(), beside_ns=_LENGTH.filter(~_COMPUTES).sum()
        )
        told = own.number == self.telling
        return Kept(
            cells=[Cell(count, **span) for count, span in _extents(kept, edges)],
            afar=afar,
            names=names,
            rows=distinct(kept, *TASK_ROW),
            phases=phases(timeline.tasks),
            spent=spent,
            microbatches=most_of(kept, "microbatch"),
            chunks=most_of(kept, "chunk"),
            standing=(alike(timeline), spread_of(timeline.tasks)) if told else None,
        )


class Explaining(NamedTuple):
    """Writes why ranks are idle in a part whose blocks are there; see `Keeping`.

    Attributes:
        page: Of which page.
    """

    page: Page

    def __call__(self, own: Own, explained: Explained | None) -> None:
        """Write what a part shows."""
        if explained is not None:
            explain(self.page, own.number, self.page.arranged(own)[0], explained)


def explain(page: Page, number: int, tasks: pl.DataFrame, explained: Explained) -> None:
    """Write why ranks are idle in a part: gaps and what feeds what, by numbers of its tasks.

    Args:
        page: Of which page.
        number: Of the part.
        tasks: Its tasks, in the order of the page.
        explained: What was found out about it.
    """
    at = np.full(tasks.height + 1, _NOBODY, np.int64)
    at[tasks["task"].to_numpy()] = np.arange(tasks.height)
    # Of each task of what was replayed, its place among those of the page.
    place = np.append(at[explained.mine.fill_null(_NOBODY).to_numpy()], _NOBODY)
    gaps = gaps_in_order(explained.gaps, page.ranks)
    gaps = gaps.with_columns(task=_placed(gaps["task"], place), root=_placed(gaps["root"], place))
    links = links_of(explained.part).select(
        source=_placed_in("source", place), target=_placed_in("target", place)
    )
    links = links.drop_nulls().sort("source", "target")
    task_edges, gap_edges = page.edges(tasks["position"]), page.edges(gaps["position"])
    link_edges = np.searchsorted(links["source"].to_numpy(), task_edges)
    page.write_batches("gaps", number, gaps, gap_edges)
    page.write_batches("links", number, links, link_edges)
    afar = page.write_afar("gaps", number, gaps, ("position",), "cause")
    page.write(_causes(gaps), block_files.causes_file(number))
    cells = tuple(
        Idling(count, held, **span)
        for (count, span), held in zip(
            _extents(gaps, gap_edges), np.diff(link_edges).tolist(), strict=True
        )
    )
    page.levels.write(block_files.explained_file(number), block_files.Explained(cells, tuple(afar)))


def _without_unknown(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a block without columns of which none has a value."""
    return rows.drop(
        name
        for name in LEFT_OUT.intersection(rows.columns)
        if rows[name].null_count() == rows.height
    )


def _extents(frame: pl.DataFrame, edges: Ints) -> Iterator[tuple[int, dict[str, int | None]]]:
    """Yield of each batch how many rows it has, and from when to when, as `Spanned` has it."""
    for first, last in pairwise(edges.tolist()):
        rows = frame[first:last].select(pl.col("start_ns").min(), pl.col("end_ns").max())
        yield last - first, rows.row(0, named=True)


def _sums(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return what each rank did in a part, as of `sums_file`; tasks are in the page's order."""
    found = _spans(tasks)
    # Tasks of several rows of a lane overlap; the time in which any runs counts once.
    computing = in_order(
        tasks.select("position", "lane", "start_ns", "end_ns").filter(
            pl.col("lane") == Lane.COMPUTE.value
        ),
        *("position", "start_ns"),
    )
    fresh_ns = intervals.fresh_start_ns(*intervals.columns(computing, "position"))
    busy_ns = computing["end_ns"].to_numpy() - fresh_ns
    busy = extremes(computing.select("position"), sums={"busy_ns": busy_ns}).drop("count")
    # Added up by rank and kind first, what is one of few kinds need not be looked for among all rows.
    of_kinds = tasks.group_by("position", "kind", computes=_COMPUTES).agg(
        spent=_LENGTH.sum(), count=pl.len().cast(pl.Int64)
    )
    kind, computes = pl.col("kind"), pl.col("computes")
    by_kind = [
        pl.col(value).filter(where, kind == one.value).sum().alias(column(one.value))
        for one in Kind
        for value, where, column in (
            ("spent", computes, block_files.spent),
            ("count", computes, block_files.counted),
            ("spent", ~computes, block_files.spent_beside),
            ("count", ~computes, block_files.counted_beside),
        )
    ]
    sums = (
        busy,
        of_kinds.with_columns(kind.cast(pl.String)).group_by("position").agg(by_kind),
    )
    for one in sums:
        found = found.join(one, on="position", how="left")
    return _filled(found)


def _causes(gaps: pl.DataFrame) -> pl.DataFrame:
    """Return how long each rank was idle in a part, as of `causes_file`; likewise."""
    of_causes = seen(gaps).group_by("position", "cause").agg(spent=_LENGTH.sum())
    spent, cause = pl.col("spent"), pl.col("cause")
    by_cause = [
        spent.filter(cause == one.value).sum().alias(block_files.idle(one.value)) for one in Cause
    ]
    sums = of_causes.with_columns(cause.cast(pl.String)).group_by("position").agg(by_cause)
    return _filled(_spans(gaps).join(sums, on="position", how="left"))


def _spans(rows: pl.DataFrame) -> pl.DataFrame:
    """Return from when to when there is anything of each rank."""
    return extents(rows, "position")


def _filled(sums: pl.DataFrame) -> pl.DataFrame:
    return sums.with_columns(pl.exclude("position", "start_ns", "end_ns").fill_null(0)).sort(
        "position"
    )


def _placed(rows: pl.Series, place: Ints) -> pl.Series:
    """Return where on the page tasks of what was replayed are; null for none."""
    found = pl.Series(place[rows.cast(pl.Int64).fill_null(_NOBODY).to_numpy()], dtype=pl.Int64)
    return found.set(found == _NOBODY, None)


def _placed_in(column: str, place: Ints) -> pl.Expr:
    return pl.col(column).map_batches(lambda rows: _placed(rows, place), return_dtype=pl.Int64)
