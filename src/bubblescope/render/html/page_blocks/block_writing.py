"""Laying out a run part by part as the page shows it: workers write blocks, read one by one."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.pipeline_phase import phases
from bubblescope.analysis.rank_standing import alike
from bubblescope.analysis.view import links_of, spread_of
from bubblescope.model import intervals
from bubblescope.model.kinds import Kind, Lane
from bubblescope.render.html.in_tasks import sums_in_tasks
from bubblescope.render.html.packing import (
    TASK_ROW,
    arranged_among,
    extents,
    gaps_in_order,
    most_of,
    seen,
)
from bubblescope.render.html.page_blocks import block_files
from bubblescope.render.html.page_blocks.block_files import (
    Cell,
    afar_file,
    block_file,
    overview_columns,
)
from bubblescope.render.html.serve.windows import Drawn, Sight, chosen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.overview import Overview
    from bubblescope.analysis.pieces.scans import Own
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
        spent: Frame with kind and spent_ns: what ranks spent in it on their compute lanes.
        microbatches, chunks: How many its tasks are numbered by.
        standing: How ranks stand in it, and how long tasks take; None if it is not to tell.
    """

    cells: list[Cell]
    afar: list[tuple[int, int]]
    names: list[str]
    rows: pl.DataFrame
    phases: pl.DataFrame
    spent: pl.DataFrame
    microbatches: int
    chunks: int
    standing: tuple[Alike, pl.DataFrame] | None


class Keeping(NamedTuple):
    """Writes the blocks of a part; see `bubblescope.analysis.pieces.scans.Keeps`.

    Attributes:
        levels: Where to.
        ranks: Frame with rank and position.
        batches: As of `block_files.Index`.
        origin_ns: Where the page begins.
        widths_ns: Of each level.
        telling: The part that tells how ranks stand.
    """

    levels: Levels
    ranks: pl.DataFrame
    batches: tuple[int, ...]
    origin_ns: int
    widths_ns: tuple[int, ...]
    telling: int

    def __call__(self, own: Own, gaps: Sequence[pl.DataFrame]) -> Kept:
        """Write what a part shows, and return what is known of it."""
        timeline = own.timeline
        tasks, names = arranged_among(timeline.tasks, own.around.tasks, self.ranks)
        budget = pl.concat([timeline.budget, own.around.budget])
        sums = sums_in_tasks(tasks, budget) if budget.height else {}
        tasks = tasks.with_columns(**sums)
        at = np.full(timeline.tasks.height + 1, _NOBODY, np.int64)
        at[tasks["task"].to_numpy()] = np.arange(tasks.height)
        # Of each task of what was replayed, its place among those of the page.
        place = np.append(at[own.mine.fill_null(_NOBODY).to_numpy()], _NOBODY)
        idle = gaps_in_order(gaps, self.ranks)
        idle = idle.with_columns(
            task=_placed(idle["task"], place), root=_placed(idle["root"], place)
        )
        links = links_of(own.part).select(
            source=_placed_in("source", place), target=_placed_in("target", place)
        )
        links = links.drop_nulls().sort("source", "target")
        kept = tasks.select(*_KEPT, *sums)
        cells = self._blocks(own.number, kept, idle, links)
        afar, ran, waited = [], kept, idle
        for level, width_ns in enumerate(self.widths_ns):
            # Pieces of a level lie within those of the next, so that it can be made of them.
            ran = self._afar(ran, TASK_ROW, "kind", width_ns)
            self._write(ran, afar_file(level, "tasks", own.number))
            waited = self._afar(waited, ("position",), "cause", width_ns)
            self._write(waited, afar_file(level, "gaps", own.number))
            afar.append((ran.height, waited.height))
        self._write(_sums(kept, idle), block_files.sums_file(own.number))
        computing = kept.filter(pl.col("lane") == Lane.COMPUTE.value)
        spent = computing.group_by("kind").agg(spent_ns=_LENGTH.sum())
        told = own.number == self.telling
        return Kept(
            cells=cells,
            afar=afar,
            names=names,
            rows=kept.select(TASK_ROW).unique(),
            phases=phases(timeline.tasks),
            spent=spent,
            microbatches=most_of(kept, "microbatch"),
            chunks=most_of(kept, "chunk"),
            standing=(alike(timeline), spread_of(timeline.tasks)) if told else None,
        )

    def _blocks(
        self, number: int, tasks: pl.DataFrame, gaps: pl.DataFrame, links: pl.DataFrame
    ) -> list[Cell]:
        """Write a part batch by batch; both frames are in the order of the page."""
        edges = np.array(self.batches)
        task_at = np.searchsorted(tasks["position"].to_numpy(), edges)
        gap_at = np.searchsorted(gaps["position"].to_numpy(), edges)
        link_at = np.searchsorted(links["source"].to_numpy(), task_at)
        cells = []
        for batch in range(len(edges) - 1):
            own = {
                name: frame[int(where[batch]) : int(where[batch + 1])]
                for name, frame, where in (
                    ("tasks", tasks, task_at),
                    ("gaps", gaps, gap_at),
                    ("links", links, link_at),
                )
            }
            for name, frame in own.items():
                if frame.height:
                    self._write(frame, block_file(name, number, batch))
            times = pl.concat(
                [own[name].select("start_ns", "end_ns") for name in ("tasks", "gaps")]
            )
            edge = times.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
            cells.append(Cell(*(frame.height for frame in own.values()), *edge))
        return cells

    def _afar(
        self, frame: pl.DataFrame, row: Sequence[str], code: str, width_ns: int
    ) -> pl.DataFrame:
        """Return what is seen of a table from so far that all of a code in a stretch of time is one.

        Args:
            frame: The table, or what this returned of it for shorter stretches, of which each lies
                within one of these.
            row: Columns that tell its rows on the page apart.
            code: What is told apart within them.
            width_ns: Of a stretch.

        Returns:
            The columns of the row, start_ns, end_ns, the code, merged (how many one stands for; 0 where
            it is one that is longer than that), and id, the first of these in the table.
        """
        spans = [(one["from"], one["to"]) for one in extents(frame, *row)]
        everything = Sight(0.0, float(width_ns), 0, frozenset(), frozenset())
        found = chosen(Drawn.of(frame, code, self.origin_ns), spans, everything, whole=False)
        ids = frame["id"].to_numpy()[found.ids] if "id" in frame.columns else found.ids
        return frame.select(*row, code)[found.ids].with_columns(
            start_ns=pl.Series(found.start_ns, dtype=pl.Int64) + self.origin_ns,
            end_ns=pl.Series(found.end_ns, dtype=pl.Int64) + self.origin_ns,
            merged=pl.Series(found.merged, dtype=pl.Int64),
            id=pl.Series(ids, dtype=pl.Int64),
        )

    def _write(self, frame: pl.DataFrame, file: str) -> None:
        whole = io.BytesIO()
        # A block is read as a whole: nobody asks for statistics, and packing it harder saves little.
        frame.write_parquet(whole, compression_level=1, statistics=False)
        with whole.getbuffer() as content:
            self.levels.store.write(self.levels.name(file), content)


def _sums(tasks: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return what each rank did in a part, as of `sums_file`; both are in the page's order."""
    edges = pl.concat([frame.select("position", "start_ns", "end_ns") for frame in (tasks, gaps)])
    found = edges.group_by("position").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    # Tasks of several rows of a lane overlap; the time in which any runs counts once.
    computing = tasks.filter(pl.col("lane") == Lane.COMPUTE.value).sort("position", "start_ns")
    fresh_ns = intervals.fresh_start_ns(*intervals.columns(computing, "position"))
    busy = computing.with_columns(start_ns=pl.Series(fresh_ns, dtype=pl.Int64))
    # Added up by rank and kind first, what is one of few kinds need not be looked for among all rows.
    of_kinds = tasks.group_by("position", "kind").agg(spent=_LENGTH.sum(), count=pl.len())
    of_causes = seen(gaps).group_by("position", "cause").agg(spent=_LENGTH.sum())
    spent, kind, cause = pl.col("spent"), pl.col("kind"), pl.col("cause")
    by_kind = [
        column
        for one in Kind
        for column in (
            spent.filter(kind == one.value).sum().alias(block_files.spent(one.value)),
            pl.col("count").filter(kind == one.value).sum().cast(pl.Int64)
            .alias(block_files.counted(one.value)),
        )
    ]  # fmt: skip
    by_cause = [
        spent.filter(cause == one.value).sum().alias(block_files.idle(one.value)) for one in Cause
    ]
    sums = (
        busy.group_by("position").agg(busy_ns=_LENGTH.sum()),
        of_kinds.with_columns(kind.cast(pl.String)).group_by("position").agg(by_kind),
        of_causes.with_columns(cause.cast(pl.String)).group_by("position").agg(by_cause),
    )
    for one in sums:
        found = found.join(one, on="position", how="left")
    return found.with_columns(pl.exclude("position", "start_ns", "end_ns").fill_null(0)).sort(
        "position"
    )


def _placed(rows: pl.Series, place: Ints) -> pl.Series:
    """Return where on the page tasks of what was replayed are; null for none."""
    found = pl.Series(place[rows.cast(pl.Int64).fill_null(_NOBODY).to_numpy()], dtype=pl.Int64)
    return found.set(found == _NOBODY, None)


def _placed_in(column: str, place: Ints) -> pl.Expr:
    return pl.col(column).map_batches(lambda rows: _placed(rows, place), return_dtype=pl.Int64)
