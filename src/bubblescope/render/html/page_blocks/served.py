"""Answering a viewer of a run of which only the blocks in sight are read.

What a block shows is what a page of the whole run would show, to the nanosecond. Where more tasks are
in sight than can be read at once, the run is seen from afar: of each kind what lies within a stretch of
time no longer than a pixel is one, which is where the first of it was.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from functools import cached_property
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import polars as pl
from msgspec.structs import replace

from bubblescope.analysis.idle.causes import Cause
from bubblescope.model import parquet
from bubblescope.model.arrays import at_once
from bubblescope.model.errors import SourceError, reason
from bubblescope.model.kinds import Kind
from bubblescope.model.parquet import UNREADABLE
from bubblescope.model.timeline import TASK_SCHEMA
from bubblescope.render.html import schema
from bubblescope.render.html.data import PageData, Places
from bubblescope.render.html.in_tasks import NOTHING
from bubblescope.render.html.kernels import inside, no_kernels
from bubblescope.render.html.packing import GAPS, LANE, SUMS, TASK_ROW, extents, packed, seen
from bubblescope.render.html.page_blocks.block_files import (
    FIXED,
    OVERVIEW,
    Index,
    Levels,
    afar_file,
    block_file,
    counted,
    idle,
    overview_columns,
    spent,
    sums_file,
)
from bubblescope.render.html.page_blocks.step_questions import StepQuestions
from bubblescope.render.html.serve.query import Reach, found_of, matching, totals
from bubblescope.render.html.serve.resources import place_of, served_page
from bubblescope.render.html.serve.waiting import go_on
from bubblescope.render.html.serve.windows import Sight, Windows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from bubblescope.analysis.finding import Shown
    from bubblescope.model.arrays import Ints
    from bubblescope.render.html.page_blocks.block_files import Part
    from bubblescope.sources.dataset.catalogue import Catalogue
    from bubblescope.sources.dataset.store import Store

_HELD_BYTES: Final = 256 << 20
"""Of blocks that were read last."""
_AT_ONCE: Final = 2_000_000
"""Tasks that are read for one answer; of more, the run is seen from afar."""
_ORDER: Final = (*TASK_ROW, "start_ns", "end_ns")
"""The order of tasks on a page."""
_TOP: Final = 5
_EVER: Final = 1e30
_UNKNOWN: Final = -1

_TASKS: Final[dict[str, Any]] = {
    "position": pl.UInt32,
    "lane": LANE,
    "row": pl.Int32,
    **{name: TASK_SCHEMA[name] for name in (
        "step", "kind", "stage", "chunk", "microbatch", "pair_chunk", "pair_microbatch", "start_ns",
        "end_ns", "busy_ns", "host_start_ns", "peer",
    )},
    "certainty": pl.Int8,
    "code": pl.UInt32,
    "id": pl.Int64,
    "task": pl.Int64,
}  # fmt: skip
_GAPS: Final[dict[str, Any]] = {**GAPS, "task": pl.Int64, "root": pl.Int64, "id": pl.Int64}
_LINKS: Final[dict[str, Any]] = {"source": pl.Int64, "target": pl.Int64}
_NUMBERS: Final = frozenset({"id", "task"})
_SEEN: Final[dict[str, Any]] = {
    "start_ns": pl.Int64, "end_ns": pl.Int64, "merged": pl.Int64, "id": pl.Int64,
}  # fmt: skip
_FILES: Final[dict[str, dict[str, Any]]] = {
    "tasks": {name: kind for name, kind in _TASKS.items() if name not in _NUMBERS},
    "gaps": {name: kind for name, kind in _GAPS.items() if name != "id"},
    "links": _LINKS,
    "afar tasks": {**{name: _TASKS[name] for name in (*TASK_ROW, "kind")}, **_SEEN},
    "sums": {
        "position": pl.UInt32,
        **dict.fromkeys(("start_ns", "end_ns", "busy_ns"), pl.Int64),
        **{column(kind.value): pl.Int64 for kind in Kind for column in (spent, counted)},
        **{idle(cause.value): pl.Int64 for cause in Cause},
    },
    "afar gaps": {"position": pl.UInt32, "cause": GAPS["cause"], **_SEEN},
}
"""Columns of the files of each table; tasks may have sums besides."""


class _Address(NamedTuple):
    """A block: a part on a batch of ranks."""

    part: int
    batch: int


class Blocks:
    """A run of which blocks are read as they are asked for; see `serve.resources.Held`.

    Args:
        levels: Where they lie.
        index: Which there are; by default what the index says.
        title: Heading of the page; by default the names of the traces.
        dataset: What they were made of, where what-ifs are to be answered.
    """

    def __init__(
        self,
        levels: Levels,
        index: Index | None = None,
        *,
        title: str | None = None,
        dataset: tuple[Store, Catalogue] | None = None,
    ) -> None:
        self._levels = levels
        self._dataset = dataset
        self._title = title
        self._index = levels.index() if index is None else index
        self._held: OrderedDict[str, pl.DataFrame] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._first_task = _before(part.tasks for part in self._index.parts)
        self._first_gap = _before(part.gaps for part in self._index.parts)

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
        fixed = {name: packed(self._read(f"{name}.parquet")) for name in FIXED}
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
        if self._level(wanted, *span, sight.per_pixel_ns) is None:
            data = self._near(wanted, alone, *span, linked=True)
            return self._cutting(data, exact=True).cut(sight)
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
        return self._cutting(data, exact=False).cut(sight)

    def totals(self, start_ns: int, end_ns: int, ranks: Collection[int]) -> schema.Totals:
        """Return what happened in a stretch of time on some ranks.

        Of parts that lie in it, and that nothing of other parts overlaps on these ranks, it is known.
        """
        span = self._index.origin_ns + start_ns, self._index.origin_ns + end_ns
        wanted = np.array(sorted(ranks), np.int64)
        told = self._template.told
        sums, known = self._known(wanted, *span)
        busy = _total(sums, "busy_ns")
        kinds, counts, causes = (
            np.array([_total(sums, column(one.name)) for one in of], np.int64)
            for column, of in ((spent, told.kinds), (counted, told.kinds), (idle, told.causes))
        )
        here = (pl.col("start_ns") < span[1]) & (pl.col("end_ns") > span[0])
        for batch, mine in self._batches(wanted):
            rest = [at for at in self._addresses([batch], *span) if at not in known]
            if not rest:
                continue
            tasks = [self._template.tasks, *(self._block("tasks", at).filter(here) for at in rest)]
            data = replace(
                self._template,
                tasks=pl.concat(tasks, how="diagonal"),
                gaps=self._gaps_of(rest).filter(here),
            )
            found = totals(data, start_ns, end_ns, mine.tolist())
            busy += found.busy
            kinds, counts, causes = kinds + found.kinds, counts + found.tasks, causes + found.causes
        spanned = len(wanted) * (end_ns - start_ns)
        return schema.Totals(
            ranks=len(wanted),
            spanned=spanned,
            busy=busy,
            idle=spanned - busy,
            kinds=kinds.tolist(),
            tasks=counts.tolist(),
            causes=causes.tolist(),
        )

    def _known(
        self, wanted: Ints, start_ns: int, end_ns: int
    ) -> tuple[pl.DataFrame, set[_Address]]:
        """Return what ranks did in blocks of which all lies in a stretch of time, and those blocks."""
        batch = np.searchsorted(self._index.batches, wanted, "right") - 1
        ours = pl.DataFrame({"position": pl.Series(wanted, dtype=pl.UInt32), "batch": batch})
        parts = [
            self._read(sums_file(number), "sums").with_columns(part=pl.lit(number, pl.Int64))
            for number in range(len(self._index.parts))
        ]
        rows = pl.concat(parts).join(ours, on="position").sort("position", "start_ns", "end_ns")
        before = pl.col("end_ns").cum_max().shift(1).over("position")
        alone = (pl.col("start_ns") >= before).fill_null(value=True)
        alone &= (pl.col("end_ns") <= pl.col("start_ns").shift(-1).over("position")).fill_null(
            value=True
        )
        inside_ = (pl.col("start_ns") >= start_ns) & (pl.col("end_ns") <= end_ns)
        rows = rows.with_columns(known=alone & inside_)
        rows = rows.filter(pl.col("known").all().over("part", "batch"))
        return rows, {_Address(*at) for at in rows.select("part", "batch").unique().iter_rows()}

    def find(self, search: schema.Search) -> schema.Found:
        """Return what a search is about, in the order of the page."""
        table: Literal["tasks", "gaps"] = "gaps" if search.what == "gap" else "tasks"
        order = ("position", "start_ns") if table == "gaps" else _ORDER
        told = self._template.told

        def own(rows: pl.DataFrame) -> pl.DataFrame:
            return matching(rows.lazy(), search, told).select("id", *order).collect()

        def of_block(at: _Address) -> pl.DataFrame:
            return own(self._gaps_of([at]) if table == "gaps" else self._block(table, at))

        def of_batch(blocks: Iterable[_Address]) -> pl.Series:
            return pl.concat(at_once(of_block, list(blocks))).sort(order)["id"]

        own(self._template_of(table))  # refuses what cannot be answered
        # Batch after batch of ranks, as they stand on the page: not all that is found is held at once.
        reached = groupby(self._reached(table, Reach.of(search, told)), attrgetter("batch"))
        return found_of(search, (of_batch(blocks) for _, blocks in reached))

    def _reached(self, table: Literal["tasks", "gaps"], reach: Reach) -> list[_Address]:
        """Return the blocks in which something can be that a search is about, batch by batch.

        What is twice as long as the time of which all is one at some level is itself there.
        """
        batches = sorted({self._index.batch_of(position) for position in reach.positions})
        every = self._addresses(batches)
        widths_ns = self._index.widths_ns
        level = bisect_right(widths_ns, reach.length_ns / 2) - 1
        if level < 0:
            return every
        long = pl.col("end_ns") - pl.col("start_ns") >= reach.length_ns

        def of_part(number: int) -> set[_Address]:
            rows = self._read(afar_file(level, table, number), f"afar {table}")
            ids = rows.filter(long, pl.col("merged") == 0)["id"].to_numpy()
            held = _batches_of(self._index.parts[number], table, ids)
            return {_Address(number, batch) for batch in np.unique(held).tolist()}

        kept = set[_Address]().union(*at_once(of_part, range(len(self._index.parts))))
        return [at for at in every if at in kept]

    def inside(self, rank: int, start_ns: int, end_ns: int) -> schema.Inside:
        """Return which kernels ran: no block has any."""
        return inside(no_kernels().table, rank, start_ns, end_ns, _TOP)

    def where(self, what: str, item: int) -> schema.Where:
        """Return where a task or gap is."""
        table: Literal["tasks", "gaps"] = "gaps" if what == "gap" else "tasks"
        firsts = self._first_gap if table == "gaps" else self._first_task
        if not 0 <= item < firsts[-1]:
            raise ValueError(f"number {item}, where there are {firsts[-1]}")
        part = int(np.searchsorted(firsts, item, "right")) - 1
        own = np.array([item - firsts[part]])
        at = _Address(part, int(_batches_of(self._index.parts[part], table, own)[0]))
        frame = self._gaps_of([at]) if table == "gaps" else self._block(table, at)
        rows = frame.filter(pl.col("id") == item)
        if not rows.height:
            raise ValueError(f"number {item}: other idle time covers it")
        return place_of(rows.row(0, named=True), self._index.origin_ns)

    def number_of(self, position: int, shown: Shown) -> int | None:
        """Return the number of a task that shows something on a rank; None if it is nowhere."""
        same = [pl.col(name) == shown[name] for name in ("kind", "lane", "start_ns", "end_ns")]
        batch, ours = self._index.batch_of(position), np.array([position])
        rows = self._tasks(batch, shown["start_ns"], shown["end_ns"], ours)
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
            tasks=pl.DataFrame(schema=_TASKS),
            gaps=pl.DataFrame(schema=_GAPS),
            links=pl.DataFrame(schema=_LINKS),
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
        for batch, mine in self._batches(wanted):
            edges = self._index.batches
            share = len(mine) / (edges[batch + 1] - edges[batch])
            cells = [
                self._index.parts[at.part].cells[batch]
                for at in self._addresses([batch], start_ns, end_ns)
            ]
            tasks += share * sum(cell.tasks for cell in cells)
        if tasks <= _AT_ONCE:
            return None
        widths_ns = self._index.widths_ns
        level = max(0, bisect_right(widths_ns, per_pixel_ns) - 1)
        share = len(wanted) / self.ranks
        shares = [share * part.share(start_ns, end_ns) for part in self._index.parts]
        while (
            level + 1 < len(widths_ns)
            and sum(
                share * part.pieces(level, gaps=gaps)
                for share, part in zip(shares, self._index.parts, strict=True)
            )
            > _AT_ONCE
        ):
            level += 1
        return level

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
        for batch, mine in self._batches(wanted):
            tasks.append(self._tasks(batch, start_ns, end_ns, mine))
            blocks = self._addresses([batch], start_ns, end_ns) if linked else []
            links += [self._block("links", at) for at in blocks]
        for batch, mine in self._batches(idling):
            gaps.append(self._gaps(batch, start_ns, end_ns, mine))
        own = pl.concat(tasks, how="diagonal").sort(_ORDER, maintain_order=True)
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
            for number, part in enumerate(self._index.parts):
                if table == "gaps" and not gaps:
                    break
                if any(cell.overlaps(start_ns, end_ns) for cell in part.cells):
                    firsts = self._first_gap if table == "gaps" else self._first_task
                    rows_ = self._read(afar_file(level, table, number), f"afar {table}")
                    number_ = pl.col("id") + firsts[number]
                    found.append(rows_.filter(here).with_columns(id=number_))
            rows[table] = pl.concat(found, how="diagonal").sort(order, maintain_order=True)
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

    def _batches(self, wanted: Ints) -> Iterator[tuple[int, Ints]]:
        """Yield the batches that some ranks are in, each with those of them."""
        edges = np.searchsorted(wanted, self._index.batches)
        for batch, (low, high) in enumerate(pairwise(edges)):
            if low < high:
                yield batch, wanted[low:high]

    def _addresses(
        self, batches: Iterable[int], start_ns: float = -_EVER, end_ns: float = _EVER
    ) -> list[_Address]:
        """Return the blocks that have something in a stretch of time."""
        return [
            _Address(number, batch)
            for batch in batches
            for number, part in enumerate(self._index.parts)
            if part.cells[batch].overlaps(start_ns, end_ns)
        ]

    def _tasks(self, batch: int, start_ns: float, end_ns: float, ranks: Ints) -> pl.DataFrame:
        """Return the tasks of ranks of a batch in a stretch of time; those of a part stand together."""
        here = (pl.col("start_ns") < end_ns) & (pl.col("end_ns") > start_ns)
        here &= pl.col("position").is_in(ranks.tolist())

        def own(at: _Address) -> pl.DataFrame:
            return self._block("tasks", at).filter(here)

        blocks = at_once(own, self._addresses([batch], start_ns, end_ns))
        return pl.concat([self._template_of("tasks"), *blocks], how="diagonal")

    def _gaps(self, batch: int, start_ns: float, end_ns: float, ranks: Ints) -> pl.DataFrame:
        """Return the gaps of ranks of a batch in a stretch of time, in the order of the page."""
        here = (pl.col("start_ns") < end_ns) & (pl.col("end_ns") > start_ns)
        chosen = self._addresses([batch], start_ns, end_ns)
        return self._gaps_of(chosen, pl.col("position").is_in(ranks.tolist())).filter(here)

    def _gaps_of(self, chosen: Sequence[_Address], *ours: pl.Expr) -> pl.DataFrame:
        """Return what is seen of the gaps of blocks of one batch, in the order of the page.

        Those of ranks that are not `ours` are left out.

        Where steps overlap, a moment that is idle in both is of the gap that began first, which may be
        of another block.
        """
        near = {*chosen}
        for part, batch in chosen:
            cell = self._index.parts[part].cells[batch]
            if cell.start_ns is not None and cell.end_ns is not None:
                near |= {*self._addresses([batch], cell.start_ns, cell.end_ns)}

        def block(at: _Address) -> pl.DataFrame:
            return self._block("gaps", at).filter(*ours).with_columns(own=pl.lit(at in chosen))

        blocks = at_once(block, sorted(near))
        none = pl.DataFrame(schema={**_GAPS, "own": pl.Boolean})
        both = pl.concat([none, *blocks]).sort(
            "position", "start_ns", "end_ns", maintain_order=True
        )
        return seen(both).filter("own").drop("own")

    def _template_of(self, table: str) -> pl.DataFrame:
        return pl.DataFrame(schema={"tasks": _TASKS, "gaps": _GAPS, "links": _LINKS}[table])

    def _block(self, table: str, at: _Address) -> pl.DataFrame:
        """Return a table of a block, whose tasks and gaps are numbered as those of the run are."""
        cells = self._index.parts[at.part].cells
        if not getattr(cells[at.batch], table):
            return self._template_of(table)
        rows = self._read(block_file(table, at.part, at.batch), table)
        first_task = self._first_task[at.part]
        if table == "links":
            return rows.select((pl.col(_LINKS) + first_task).cast(pl.Int64))
        before = sum(getattr(cell, table) for cell in cells[: at.batch])
        if table == "gaps":
            number = self._first_gap[at.part] + before
            return rows.with_columns(
                pl.col("task", "root") + first_task,
                id=pl.int_range(pl.len(), dtype=pl.Int64) + number,
            ).select(_GAPS.keys())
        number = first_task + before
        # What no name is known of has the name of the first.
        codes = np.array([*self._index.parts[at.part].codes, 0], np.uint32)
        own = rows["code"].fill_null(0).clip(upper_bound=len(codes) - 1).to_numpy()
        return rows.with_columns(
            code=pl.Series(codes[own]),
            id=pl.int_range(pl.len(), dtype=pl.Int64) + number,
            task=pl.int_range(pl.len(), dtype=pl.Int64) + number,
        )

    def _sound(self, frame: pl.DataFrame, table: str) -> bool:
        """Say whether a file's table has its columns, and ranks that there are."""
        schema_of = {name: kind for name, kind in frame.schema.items() if name not in SUMS}
        if schema_of != _FILES[table]:
            return False
        if table == "links" or not frame.height:
            return True
        most: Any = frame["position"].max()
        return bool(most is not None and most < self.ranks)

    def _read(self, file: str, table: str | None = None) -> pl.DataFrame:
        """Return a table's file, or one of the whole run; those that were read last are kept.

        Raises:
            SourceError: It is missing or damaged.
            GoneError: Nobody waits for what it is read for.
        """
        go_on()
        with self._lock:
            if file in self._held:
                self._held.move_to_end(file)
                return self._held[file]
        place = self._levels.store.place(self._levels.name(file))
        try:
            frame = parquet.read(self._levels.store.read(self._levels.name(file)))
        except UNREADABLE as error:
            if not self._levels.there:
                raise SourceError(
                    place,
                    "is not there any more: the dataset was moved, removed or added to while it was "
                    "served; serve it again",
                ) from None
            raise SourceError(
                place,
                f"cannot be read ({reason(error)}); remove the folder {self._levels.folder} of the "
                "dataset, and its levels are made anew",
            ) from None
        if table is not None and not self._sound(frame, table):
            raise SourceError(
                place,
                f"does not hold what the index says; remove the folder {self._levels.folder} of the "
                "dataset, and its levels are made anew",
            )
        with self._lock:
            if file not in self._held:
                self._held[file] = frame
                self._bytes += int(frame.estimated_size())
            while self._bytes > _HELD_BYTES and len(self._held) > 1:
                self._bytes -= int(self._held.popitem(last=False)[1].estimated_size())
        return frame


def _batches_of(part: Part, table: Literal["tasks", "gaps"], rows: Ints) -> Ints:
    """Return the batch that each of some rows of a part's table is in."""
    counts = [getattr(cell, table) for cell in part.cells]
    return np.searchsorted(np.cumsum(counts), rows, "right")


def _beside(one: PageData, other: PageData) -> PageData:
    """Return what is seen of some ranks and of others, of which only the first are seen as they are."""
    tasks = pl.concat([one.tasks, other.tasks], how="diagonal")
    measured = [name for name in SUMS if name in tasks.columns]
    tasks = tasks.with_columns(
        pl.col("merged").fill_null(0), *(pl.col(name).fill_null(_UNKNOWN) for name in measured)
    )
    return replace(one, tasks=tasks.sort(_ORDER, maintain_order=True))


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
    return int(sums[column].sum())


def _before(counts: Iterable[int]) -> Ints:
    """Return how many there are before each, and in all."""
    return np.cumsum([0, *counts])
