"""Answering a viewer of a run of which only the blocks in sight are read.

What a block shows is what a page of the whole run would show, to the nanosecond. Where more tasks are
in sight than can be read at once, the run is seen from afar: of each kind what lies within a stretch of
time no longer than a pixel is one, which is where the first of it was. Ranks that are drawn one by one
are seen as finely as if they were in sight alone.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from functools import cached_property
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import polars as pl
from msgspec.structs import replace

from bubblescope.model.arrays import at_once
from bubblescope.model.ordering import in_order, numbered, order_of_runs
from bubblescope.render.html import schema
from bubblescope.render.html.data import PageData, Places
from bubblescope.render.html.in_tasks import NOTHING
from bubblescope.render.html.kernels import inside, no_kernels
from bubblescope.render.html.packing import SUMS, TASK_ROW, extents, packed
from bubblescope.render.html.page_blocks.block_files import (
    FIXED,
    OVERVIEW,
    Index,
    Levels,
    afar_file,
    causes_file,
    counted,
    counted_beside,
    idle,
    overview_columns,
    spent,
    spent_beside,
    sums_file,
)
from bubblescope.render.html.page_blocks.block_reading import Address, BlockReader, none_of
from bubblescope.render.html.page_blocks.step_questions import StepQuestions
from bubblescope.render.html.serve.query import Reach, found_of, matching, totals
from bubblescope.render.html.serve.resources import place_of, served_page
from bubblescope.render.html.serve.waiting import go_on
from bubblescope.render.html.serve.windows import Sight, Windows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from bubblescope.analysis.finding import Shown
    from bubblescope.model.arrays import Ints
    from bubblescope.sources.dataset.catalogue import Catalogue
    from bubblescope.sources.dataset.store import Store

_AT_ONCE: Final = 2_000_000
"""Tasks that are read for one answer; of more, the run is seen from afar."""
_ORDER: Final = (*TASK_ROW, "start_ns", "end_ns")
"""The order of tasks on a page."""
_EXPLAINED: Final = 3
"""Parts in sight up to which it is worked out why ranks are idle in them: each takes seconds."""
_TOP: Final = 5
_UNKNOWN: Final = -1


class Blocks:
    """A run of which blocks are read as they are asked for; see `serve.resources.Held`.

    Args:
        levels: Where they lie.
        index: Which there are; by default what the index says.
        title: Heading of the page; by default the names of the traces.
        dataset: What they were made of, where what-ifs are to be answered.
        explain: Works out and writes why ranks are idle in a part; None if nobody can.
    """

    def __init__(
        self,
        levels: Levels,
        index: Index | None = None,
        *,
        title: str | None = None,
        dataset: tuple[Store, Catalogue] | None = None,
        explain: Callable[[int], None] | None = None,
    ) -> None:
        self._levels = levels
        self._explain = explain
        self._dataset = dataset
        self._title = title
        self._index = levels.index() if index is None else index
        self._blocks = BlockReader(levels, self._index)

    @property
    def ranks(self) -> int:
        """How many ranks it has."""
        return self._index.ranks

    @property
    def warnings(self) -> list[str]:
        """What is to be known before the page is believed."""
        return self._template.told.warnings

    @cached_property
    def asking(self) -> StepQuestions | None:
        """Answers what-ifs about single steps; None if what the levels were made of is not here."""
        return None if self._dataset is None else StepQuestions(*self._dataset, self._template.told)

    def page(self) -> bytes:
        """Return the page without its tasks."""
        fixed = {name: packed(self._blocks.read(f"{name}.parquet")) for name in FIXED}
        columns = {name: table.columns for name, table in fixed.items()}
        places = Places(list(self._index.rows), self._nowhere, [])
        return served_page(self._template.head(columns, places, served=True), fixed)

    def overview(self) -> bytes:
        """Return what a page that opens asks for: what ran in all of the run, from afar."""
        return self._cut(self._afar_sight)

    @cached_property
    def _afar_sight(self) -> Sight:
        columns = overview_columns(self.ranks)
        return Sight(
            start_ns=0.0,
            per_pixel_ns=self._template.told.end / columns,
            columns=columns,
            ranks=frozenset(range(self.ranks)),
            lanes=frozenset(row.lane for row in self._index.rows),
            idle=frozenset(),
        )

    def cut(self, sight: Sight) -> bytes:
        """Return what is in sight."""
        if sight == self._afar_sight:
            with suppress(OSError):
                return self._levels.store.read(self._levels.name(OVERVIEW))
        return self._cut(sight)

    def _cut(self, sight: Sight) -> bytes:
        origin_ns = self._index.origin_ns
        span = origin_ns + sight.start_ns, origin_ns + sight.end_ns
        wanted, alone = (np.array(sorted(ranks), np.int64) for ranks in (sight.ranks, sight.idling))
        unexplained = self._unexplained(*span)
        if self._level(wanted, *span, sight.per_pixel_ns) is None:
            data = self._near(wanted, alone, *span, linked=True)
            return self._cutting(data, exact=True).cut(sight, unexplained)
        # Of ranks that are only added up, less is to be seen than of those that are drawn one by one.
        level = self._level(alone, *span, sight.per_pixel_ns, gaps=True)
        if level is None:
            data = self._near(alone, alone, *span)
        else:
            data = self._afar(level, alone, *span, gaps=True)
        rest = np.setdiff1d(wanted, alone)
        if len(rest):
            level = self._level(rest, *span, sight.per_pixel_ns) or 0
            data = _beside(data, self._afar(level, rest, *span, gaps=False))
        return self._cutting(data, exact=False).cut(sight, unexplained)

    def totals(self, start_ns: int, end_ns: int, ranks: Collection[int]) -> schema.Totals:
        """Return what happened in a stretch of time on some ranks.

        Of parts that lie in it, and that nothing of other parts overlaps on these ranks, it is known.
        """
        span = self._index.origin_ns + start_ns, self._index.origin_ns + end_ns
        wanted = np.array(sorted(ranks), np.int64)
        told = self._template.told
        ran, known = self._known("tasks", wanted, *span)
        idled, explained = self._known("gaps", wanted, *span)
        busy = _total(ran, "busy_ns")
        sums = {
            name: np.array([_total(table, column(one.name)) for one in of], np.int64)
            for name, table, column, of in (
                ("kinds", ran, spent, told.kinds),
                ("tasks", ran, counted, told.kinds),
                ("kinds_beside", ran, spent_beside, told.kinds),
                ("tasks_beside", ran, counted_beside, told.kinds),
                ("causes", idled, idle, told.causes),
            )
        }
        here = (pl.col("start_ns") < span[1]) & (pl.col("end_ns") > span[0])
        for batch, mine in self._blocks.batches(wanted):
            at_tasks = {*self._blocks.addresses("tasks", [batch], *span)} - known
            at_gaps = {*self._blocks.addresses("gaps", [batch], *span)} - explained
            tasks = [self._blocks.block("tasks", at).filter(here) for at in sorted(at_tasks)]
            gaps = self._blocks.gaps_of(sorted(at_gaps)).filter(here)
            if not tasks and not gaps.height:
                continue
            data = replace(
                self._template,
                tasks=pl.concat([self._template.tasks, *tasks], how="diagonal"),
                gaps=gaps,
            )
            found = totals(data, start_ns, end_ns, mine.tolist())
            busy += found.busy
            for name in sums:
                sums[name] += getattr(found, name)
        spanned = len(wanted) * (end_ns - start_ns)
        return schema.Totals(
            ranks=len(wanted),
            spanned=spanned,
            busy=busy,
            idle=spanned - busy,
            **{name: values.tolist() for name, values in sums.items()},
            unexplained=self._steps_of(self._unexplained(*span)),
        )

    def _known(
        self, table: Literal["tasks", "gaps"], wanted: Ints, start_ns: int, end_ns: int
    ) -> tuple[pl.DataFrame, set[Address]]:
        """Return sums of blocks of which all lies in a stretch of time, and those blocks.

        They are of what ranks did, or of how long they were idle.
        """
        batch = np.searchsorted(self._index.batches, wanted, "right") - 1
        ours = pl.DataFrame({"position": pl.Series(wanted, dtype=pl.UInt32), "batch": batch})
        name, file = ("sums", sums_file) if table == "tasks" else ("causes", causes_file)
        parts = [
            self._blocks.read(file(number), name).with_columns(part=pl.lit(number, pl.Int64))
            for number in range(len(self._index.parts))
            if table == "tasks" or self._blocks.explained(number)
        ]
        if not parts:
            return pl.DataFrame(), set()
        rows = pl.concat(parts).join(ours, on="position").sort("position", "start_ns", "end_ns")
        before = pl.col("end_ns").cum_max().shift(1).over("position")
        alone = (pl.col("start_ns") >= before).fill_null(value=True)
        alone &= (pl.col("end_ns") <= pl.col("start_ns").shift(-1).over("position")).fill_null(
            value=True
        )
        inside_ = (pl.col("start_ns") >= start_ns) & (pl.col("end_ns") <= end_ns)
        rows = rows.with_columns(known=alone & inside_)
        rows = rows.filter(pl.col("known").all().over("part", "batch"))
        return rows, {Address(*at) for at in rows.select("part", "batch").unique().iter_rows()}

    def _unexplained(self, start_ns: float, end_ns: float) -> list[int]:
        """Return the parts in a stretch of time of which it is not known why ranks are idle."""
        parts = self._blocks.during(start_ns, end_ns)
        return [number for number in parts if self._blocks.explained(number) is None]

    def _steps_of(self, parts: Sequence[int]) -> int:
        return sum(self._index.parts[number].steps for number in parts)

    def explain(self, start_ns: int, end_ns: int, parts: Collection[int]) -> schema.Idle:
        """Work out why ranks are idle in one of some parts, the one most in sight.

        Raises:
            BubblescopeError: Workers died, or the dataset cannot be read any more.
            OSError: What was found cannot be written.
        """
        span = self._index.origin_ns + start_ns, self._index.origin_ns + end_ns
        wanted = [number for number in self._blocks.during(*span) if number in parts]
        if not wanted:
            return "elsewhere"
        # Another server of the same levels may have done that.
        if any(self._blocks.look_again(number) for number in wanted):
            return "explained"
        if self._explain is None:
            return "unknown"
        if len(wanted) > _EXPLAINED:
            return "closer"
        go_on()
        most = max(wanted, key=lambda number: self._index.parts[number].within_ns(*span))
        self._explain(most)
        self._blocks.look_again(most)
        return "explained"

    def find(self, search: schema.Search) -> schema.Found:
        """Return what a search is about, in the order of the page."""
        table: Literal["tasks", "gaps"] = "gaps" if search.what == "gap" else "tasks"
        order = ("position", "start_ns") if table == "gaps" else _ORDER
        told = self._template.told

        def own(rows: pl.DataFrame) -> pl.DataFrame:
            return matching(rows.lazy(), search, told).select("id", *order).collect()

        def of_block(at: Address) -> pl.DataFrame:
            return own(self._blocks.shown(table, at))

        def of_batch(blocks: Iterable[Address]) -> pl.Series:
            return pl.concat(at_once(of_block, list(blocks))).sort(order)["id"]

        own(none_of(table))  # refuses what cannot be answered
        # Batch after batch of ranks, as they stand on the page: not all that is found is held at once.
        reached = groupby(self._reached(table, Reach.of(search, told)), attrgetter("batch"))
        found = found_of(search, (of_batch(blocks) for _, blocks in reached))
        if table == "tasks":
            return found
        return replace(found, unexplained=self._steps_of(self._unexplained(-inf, inf)))

    def _reached(self, table: Literal["tasks", "gaps"], reach: Reach) -> list[Address]:
        """Return the blocks in which something can be that a search is about, batch by batch.

        What is twice as long as the time of which all is one at some level is itself there.
        """
        batches = sorted({self._index.batch_of(position) for position in reach.positions})
        every = self._blocks.addresses(table, batches)
        widths_ns = self._index.widths_ns
        level = bisect_right(widths_ns, reach.length_ns / 2) - 1
        if level < 0:
            return every
        long = pl.col("end_ns") - pl.col("start_ns") >= reach.length_ns

        def of_part(number: int) -> set[Address]:
            rows = self._blocks.read(afar_file(level, table, number), f"afar {table}")
            ids = rows.filter(long, pl.col("merged") == 0)["id"].to_numpy()
            held = self._blocks.batches_of(table, number, ids)
            return {Address(number, batch) for batch in np.unique(held).tolist()}

        kept = set[Address]().union(*at_once(of_part, sorted({at.part for at in every})))
        return [at for at in every if at in kept]

    def inside(self, rank: int, start_ns: int, end_ns: int) -> schema.Inside:
        """Return which kernels ran: no block has any."""
        return inside(no_kernels().table, rank, start_ns, end_ns, _TOP)

    def where(self, what: str, item: int) -> schema.Where:
        """Return where a task or gap is."""
        table: Literal["tasks", "gaps"] = "gaps" if what == "gap" else "tasks"
        firsts = self._blocks.firsts[table]
        if not 0 <= item < firsts[-1]:
            raise ValueError(f"number {item}, where there are {firsts[-1]}")
        part = int(np.searchsorted(firsts, item, "right")) - 1
        own = np.array([item - firsts[part]])
        batch = int(self._blocks.batches_of(table, part, own)[0])
        if batch >= len(self._blocks.counts(table, part)):
            raise ValueError(f"number {item}, which no idle time has")
        rows = self._blocks.shown(table, Address(part, batch)).filter(pl.col("id") == item)
        if not rows.height:
            raise ValueError(f"number {item}: other idle time covers it")
        return place_of(rows.row(0, named=True), self._index.origin_ns)

    def number_of(self, position: int, shown: Shown) -> int | None:
        """Return the number of a task that shows something on a rank; None if it is nowhere."""
        same = [pl.col(name) == shown[name] for name in ("kind", "lane", "start_ns", "end_ns")]
        batch, ours = self._index.batch_of(position), np.array([position])
        rows = self._blocks.tasks(batch, shown["start_ns"], shown["end_ns"], ours)
        found = rows.filter(*same)["id"]
        return int(found[0]) if len(found) else None

    @cached_property
    def _template(self) -> PageData:
        """What a page of none of the run would hold."""
        none = pl.DataFrame()
        told = self._levels.told()
        if self._title is not None:
            told = replace(told, title=self._title)
        if self._dataset is not None:
            store, catalogue = self._dataset
            kept = any(part.count("activities") for part in catalogue.parts)
            told = replace(
                told,
                whatif=StepQuestions(store, catalogue, told).head(),
                no_kernels=_of_steps(store, told) if kept else told.no_kernels,
            )
        return PageData(
            told=told,
            origin_ns=self._index.origin_ns,
            tasks=none_of("tasks"),
            gaps=none_of("gaps"),
            links=none_of("links"),
            phases=none,
            cells=none,
            samples=none,
            kernels=no_kernels().table,
            communication=NOTHING,
            ghosts=none,
            asks=None,
        )

    def _level(
        self,
        wanted: Ints,
        start_ns: float,
        end_ns: float,
        per_pixel_ns: float,
        *,
        gaps: bool = False,
    ) -> int | None:
        """Return the level at which a stretch of time is seen on some ranks; None for all as it is.

        That is one in whose pieces pixels can be told apart, unless these are too many: with those of
        gaps, or of tasks alone.
        """
        tasks = 0.0
        for batch, mine in self._blocks.batches(wanted):
            edges = self._index.batches
            share = len(mine) / (edges[batch + 1] - edges[batch])
            cells = [
                self._index.parts[at.part].cells[batch]
                for at in self._blocks.addresses("tasks", [batch], start_ns, end_ns)
            ]
            tasks += share * sum(cell.tasks for cell in cells)
        if tasks <= _AT_ONCE:
            return None
        widths_ns = self._index.widths_ns
        finest = max(0, bisect_right(widths_ns, per_pixel_ns) - 1)
        share = len(wanted) / self.ranks
        for level in range(finest, len(widths_ns)):
            if share * self._blocks.pieces(level, start_ns, end_ns, gaps=gaps) <= _AT_ONCE:
                return level
        return len(widths_ns) - 1

    def _near(
        self,
        wanted: Ints,
        idling: Ints,
        start_ns: float,
        end_ns: float,
        *,
        linked: bool = False,
    ) -> PageData:
        """Return what is in a stretch of time on some ranks, as it is.

        Args:
            wanted: The ranks.
            idling: Those of which gaps are wanted too.
            start_ns: From when.
            end_ns: Until when.
            linked: Whether links are wanted.
        """
        tasks, gaps, links = [self._template.tasks], [self._template.gaps], [self._template.links]
        for batch, mine in self._blocks.batches(wanted):
            tasks.append(self._blocks.tasks(batch, start_ns, end_ns, mine))
            blocks = self._blocks.addresses("tasks", [batch], start_ns, end_ns) if linked else []
            links += [self._blocks.block("links", at) for at in blocks]
        for batch, mine in self._blocks.batches(idling):
            gaps.append(self._blocks.gaps(batch, start_ns, end_ns, mine))
        own = _in_order(pl.concat(tasks, how="diagonal"), _ORDER)
        own = own.with_columns(
            pl.col(name).fill_null(_UNKNOWN) for name in SUMS if name in own.columns
        )
        place = _Places(own["id"])
        between = pl.concat(gaps)
        return replace(
            self._template,
            tasks=own.with_columns(task=pl.int_range(pl.len(), dtype=pl.Int64)),
            gaps=between.with_columns(
                task=place.of(between["task"]),
                root=place.of(between["root"]),
                root_id=pl.col("root").fill_null(_UNKNOWN),
            ),
            links=pl.concat(links).with_columns(place.of_column("source"), place.of_column("target"))
            .drop_nulls(),
        )  # fmt: skip

    def _afar(
        self, level: int, wanted: Ints, start_ns: float, end_ns: float, *, gaps: bool
    ) -> PageData:
        """Return what is in a stretch of time on some ranks, seen from afar; with idle time or not."""
        here = pl.col("position").is_in(wanted.tolist())
        here &= (pl.col("start_ns") < end_ns) & (pl.col("end_ns") > start_ns)
        rows: dict[str, pl.DataFrame] = {}
        for table, order, none in (
            ("tasks", _ORDER, self._template.tasks),
            ("gaps", ("position", "start_ns", "end_ns"), self._template.gaps),
        ):
            found = [none.with_columns(merged=pl.lit(0, pl.Int64))]
            parts = self._blocks.during(start_ns, end_ns) if table == "tasks" or gaps else []
            for number in parts:
                if table == "gaps" and self._blocks.explained(number) is None:
                    continue
                rows_ = self._blocks.read(afar_file(level, table, number), f"afar {table}")
                number_ = pl.col("id") + self._blocks.firsts[table][number]
                found.append(rows_.filter(here).with_columns(id=number_))
            rows[table] = _in_order(pl.concat(found, how="diagonal"), order)
        return replace(
            self._template,
            tasks=rows["tasks"].with_columns(code=pl.lit(0, pl.UInt32)),
            gaps=rows["gaps"].with_columns(root_id=pl.lit(_UNKNOWN, pl.Int64)),
        )

    def _cutting(self, data: PageData, *, exact: bool) -> Windows:
        """Return what cuts out of what was read what is in sight."""
        return Windows(data, self._places(data), exact=exact)

    def _places(self, data: PageData) -> Places:
        """Return where each row of the page is in what was read."""
        row = {
            (one["rank"], one["lane"], one["row"]): (one["from"], one["to"])
            for one in extents(data.tasks, *TASK_ROW)
        }
        gaps = {one["rank"]: (one["from"], one["to"]) for one in extents(data.gaps, "position")}
        rows = [
            one if at is None else replace(one, first=at[0], to=at[1])
            for one in self._index.rows
            for at in [row.get((one.rank, one.lane, one.row))]
        ]
        of_gaps = self._nowhere.copy()
        for at, (first, to) in gaps.items():
            of_gaps[at] = self._extent(at, first, to)
        return Places(rows, of_gaps, [])

    @cached_property
    def _nowhere(self) -> list[schema.Extent]:
        """Where the gaps of each rank are if there are none."""
        return [self._extent(at) for at in range(self.ranks)]

    def _extent(self, position: int, first: int = 0, to: int = 0) -> schema.Extent:
        return schema.Extent(rank=position, first=first, to=to)


def _beside(one: PageData, other: PageData) -> PageData:
    """Return what is seen of some ranks, with what is seen from afar of others."""
    tasks = pl.concat([one.tasks, other.tasks], how="diagonal")
    measured = [name for name in SUMS if name in tasks.columns]
    tasks = tasks.with_columns(
        pl.col("merged").fill_null(0), *(pl.col(name).fill_null(_UNKNOWN) for name in measured)
    )
    return replace(one, tasks=_in_order(tasks, _ORDER))


def _in_order(rows: pl.DataFrame, order: Sequence[str]) -> pl.DataFrame:
    """Return rows of several parts, each in order, in the order of the page.

    Once those of a row of the page are together, they are mostly in order: a part runs after another.
    """
    together = [name for name in order if name in TASK_ROW]
    place, _ = numbered(*(rows[name].to_physical().to_numpy() for name in together))
    return in_order(rows.rechunk()[order_of_runs(place)], *order)


class _Places:
    """Where tasks of some numbers are.

    Args:
        numbers: Of the tasks, in their order.
    """

    def __init__(self, numbers: pl.Series) -> None:
        self._order = numbers.arg_sort().to_numpy()
        self._sorted = numbers.to_numpy()[self._order]

    def of(self, numbers: pl.Series) -> pl.Series:
        """Return where each is; null where it is not."""
        wanted = numbers.fill_null(_UNKNOWN).to_numpy()
        at = np.searchsorted(self._sorted, wanted)
        inside_ = at < len(self._sorted)
        found = np.zeros(len(wanted), np.int64)
        found[inside_] = self._order[at[inside_]]
        known = inside_.copy()
        known[inside_] = self._sorted[at[inside_]] == wanted[inside_]
        return pl.Series(numbers.name, found).set(pl.Series(~known), None)

    def of_column(self, name: str) -> pl.Expr:
        """Return the same of a column."""
        return pl.col(name).map_batches(self.of, return_dtype=pl.Int64)


def _of_steps(store: Store, told: schema.Told) -> str:
    """Say how kernels are shown of a dataset that has them."""
    step = f" --steps {told.steps[told.opening or 0].step}" if told.steps else ""
    return (
        f"kernels are shown of steps that are chosen: `bubblescope serve {store} --kernels{step}`"
    )


def _total(sums: pl.DataFrame, column: str) -> int:
    return int(sums[column].sum()) if sums.width else 0
