"""Blocks of a run, read one by one from where its levels lie: tasks, gaps, links as they are in it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.idle.causes import Cause
from bubblescope.model import parquet
from bubblescope.model.arrays import at_once
from bubblescope.model.errors import SourceError, reason
from bubblescope.model.kinds import Kind
from bubblescope.model.parquet import UNREADABLE
from bubblescope.model.timeline import TASK_SCHEMA
from bubblescope.render.html.packing import GAPS, LANE, SUMS, TASK_ROW, seen
from bubblescope.render.html.page_blocks.block_files import (
    LEFT_OUT,
    block_file,
    counted,
    counted_beside,
    idle,
    spent,
    spent_beside,
)
from bubblescope.render.html.serve.waiting import go_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bubblescope.model.arrays import Ints
    from bubblescope.render.html.page_blocks.block_files import (
        Cell,
        Explained,
        Idling,
        Index,
        Levels,
    )

_HELD_BYTES: Final = 256 << 20
"""Of blocks that were read last."""
_EVER: Final = 1e30
_GAPS: Final = 1 << 32
"""Numbers of gaps that a part has, whether it is explained yet or not: more than there can be."""

TASKS: Final[dict[str, Any]] = {
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
PLACED_GAPS: Final[dict[str, Any]] = {**GAPS, "task": pl.Int64, "root": pl.Int64, "id": pl.Int64}
LINKS: Final[dict[str, Any]] = {"source": pl.Int64, "target": pl.Int64}
_NUMBERS: Final = frozenset({"id", "task"})
_SEEN: Final[dict[str, Any]] = {
    "start_ns": pl.Int64, "end_ns": pl.Int64, "merged": pl.Int64, "id": pl.Int64,
}  # fmt: skip
_FILES: Final[dict[str, dict[str, Any]]] = {
    "tasks": {name: kind for name, kind in TASKS.items() if name not in _NUMBERS},
    "gaps": {name: kind for name, kind in PLACED_GAPS.items() if name != "id"},
    "links": LINKS,
    "afar tasks": {**{name: TASKS[name] for name in (*TASK_ROW, "kind")}, **_SEEN},
    "sums": {
        "position": pl.UInt32,
        **dict.fromkeys(("start_ns", "end_ns", "busy_ns"), pl.Int64),
        **{
            column(kind.value): pl.Int64
            for kind in Kind
            for column in (spent, counted, spent_beside, counted_beside)
        },
    },
    "causes": {
        "position": pl.UInt32,
        **dict.fromkeys(("start_ns", "end_ns"), pl.Int64),
        **{idle(cause.value): pl.Int64 for cause in Cause},
    },
    "afar gaps": {"position": pl.UInt32, "cause": GAPS["cause"], **_SEEN},
}
"""Columns of the files of each table; tasks may have sums besides."""


class Address(NamedTuple):
    """A block: a part on a batch of ranks."""

    part: int
    batch: int


class BlockReader:
    """Reads blocks, and keeps those that were read last.

    Attributes:
        index: Which there are.
        firsts: Number of the first task and gap of each part, by table, and one that is past all.

    Args:
        levels: Where they lie.
        index: Which there are.
    """

    def __init__(self, levels: Levels, index: Index) -> None:
        self.index = index
        parts = index.parts
        self.firsts = {
            "tasks": np.cumsum([0, *(part.tasks for part in parts)]),
            "gaps": np.arange(len(parts) + 1) * _GAPS,
        }
        self._levels = levels
        self._explained: dict[int, Explained | None] = {}
        self._held: OrderedDict[str, pl.DataFrame] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def explained(self, part: int) -> Explained | None:
        """Return which gaps and links there are of a part; None if it was not explained when looked."""
        return self._explained[part] if part in self._explained else self.look_again(part)

    def look_again(self, part: int) -> Explained | None:
        """Return the same of a part that may have been explained meanwhile."""
        if self._explained.get(part) is None:
            self._explained[part] = self._levels.explained(part, self.index)
        return self._explained[part]

    def during(self, start_ns: float, end_ns: float) -> list[int]:
        """Return the parts that have tasks in a stretch of time."""
        return [
            number
            for number, part in enumerate(self.index.parts)
            if any(cell.overlaps(start_ns, end_ns) for cell in part.cells)
        ]

    def cell(self, table: str, at: Address) -> Cell | Idling | None:
        """Return what a block has: tasks, or gaps and links; None if it is not explained."""
        if table == "tasks":
            return self.index.parts[at.part].cells[at.batch]
        found = self.explained(at.part)
        return None if found is None else found.cells[at.batch]

    def pieces(self, level: int, start_ns: float, end_ns: float, *, gaps: bool) -> float:
        """Return of how many pieces a stretch of time is at a level, about, with gaps or without."""
        found = 0.0
        for number, part in enumerate(self.index.parts):
            share = part.share(start_ns, end_ns)
            explained = self.explained(number) if gaps and share else None
            found += share * (part.afar[level] + (explained.afar[level] if explained else 0))
        return found

    def batches(self, wanted: Ints) -> Iterator[tuple[int, Ints]]:
        """Yield the batches that some ranks are in, each with those of them."""
        edges = np.searchsorted(wanted, self.index.batches)
        for batch, (low, high) in enumerate(pairwise(edges)):
            if low < high:
                yield batch, wanted[low:high]

    def addresses(
        self,
        table: Literal["tasks", "gaps"],
        batches: Iterable[int],
        start_ns: float = -_EVER,
        end_ns: float = _EVER,
    ) -> list[Address]:
        """Return the blocks that have some of a table in a stretch of time."""
        found = []
        for batch in batches:
            for number in range(len(self.index.parts)):
                at = Address(number, batch)
                cell = self.cell(table, at)
                if cell is not None and cell.overlaps(start_ns, end_ns):
                    found.append(at)
        return found

    def tasks(self, batch: int, start_ns: float, end_ns: float, ranks: Ints) -> pl.DataFrame:
        """Return the tasks of ranks of a batch in a stretch of time; those of a part stand together."""
        here = (pl.col("start_ns") < end_ns) & (pl.col("end_ns") > start_ns)
        here &= pl.col("position").is_in(ranks.tolist())

        def own(at: Address) -> pl.DataFrame:
            return self.block("tasks", at).filter(here)

        blocks = at_once(own, self.addresses("tasks", [batch], start_ns, end_ns))
        return pl.concat([none_of("tasks"), *blocks], how="diagonal")

    def gaps(self, batch: int, start_ns: float, end_ns: float, ranks: Ints) -> pl.DataFrame:
        """Return the gaps of ranks of a batch in a stretch of time, in the order of the page."""
        here = (pl.col("start_ns") < end_ns) & (pl.col("end_ns") > start_ns)
        chosen = self.addresses("gaps", [batch], start_ns, end_ns)
        return self.gaps_of(chosen, pl.col("position").is_in(ranks.tolist())).filter(here)

    def gaps_of(self, chosen: Sequence[Address], *ours: pl.Expr) -> pl.DataFrame:
        """Return what is seen of the gaps of blocks of one batch, in the order of the page.

        Where steps overlap, a moment that is idle in both is of the gap that began first, which may be
        of another block.

        Args:
            chosen: The blocks.
            ours: What holds for the ranks that are wanted; all are if left out.
        """
        near = {*chosen}
        for at in chosen:
            cell = self.cell("gaps", at)
            if cell is not None and cell.start_ns is not None and cell.end_ns is not None:
                near |= {*self.addresses("gaps", [at.batch], cell.start_ns, cell.end_ns)}

        def block(at: Address) -> pl.DataFrame:
            return self.block("gaps", at).filter(*ours).with_columns(own=pl.lit(at in chosen))

        blocks = at_once(block, sorted(near))
        none = pl.DataFrame(schema={**PLACED_GAPS, "own": pl.Boolean})
        both = pl.concat([none, *blocks]).sort(
            "position", "start_ns", "end_ns", maintain_order=True
        )
        return seen(both).filter("own").drop("own")

    def shown(self, table: Literal["tasks", "gaps"], at: Address) -> pl.DataFrame:
        """Return what is seen of a block: its tasks, or its gaps as `gaps_of` has them."""
        return self.gaps_of([at]) if table == "gaps" else self.block(table, at)

    def block(self, table: str, at: Address) -> pl.DataFrame:
        """Return a table of a block, whose tasks and gaps are numbered as those of the run are."""
        cell = self.cell(table, at)
        if cell is None or not getattr(cell, table):
            return none_of(table)
        rows = self.read(block_file(table, at.part, at.batch), table)
        first_task = self.firsts["tasks"][at.part]
        if table == "links":
            return rows.select((pl.col(LINKS) + first_task).cast(pl.Int64))
        before = sum(self.counts(table, at.part)[: at.batch])
        if table == "gaps":
            number = self.firsts["gaps"][at.part] + before
            return rows.with_columns(
                pl.col("task", "root") + first_task,
                id=pl.int_range(pl.len(), dtype=pl.Int64) + number,
            ).select(PLACED_GAPS.keys())
        number = first_task + before
        # What no name is known of has the name of the first.
        codes = np.array([*self.index.parts[at.part].codes, 0], np.uint32)
        own = rows["code"].fill_null(0).clip(upper_bound=len(codes) - 1).to_numpy()
        return rows.with_columns(
            code=pl.Series(codes[own]),
            id=pl.int_range(pl.len(), dtype=pl.Int64) + number,
            task=pl.int_range(pl.len(), dtype=pl.Int64) + number,
        )

    def counts(self, table: str, part: int) -> list[int]:
        """Return how many of a table each block of a part has."""
        of = self.index.parts[part] if table == "tasks" else self.explained(part)
        return [] if of is None else [getattr(cell, table) for cell in of.cells]

    def batches_of(self, table: str, part: int, rows: Ints) -> Ints:
        """Return the batch that each of some rows of a part's table is in."""
        return np.searchsorted(np.cumsum(self.counts(table, part)), rows, "right")

    def read(self, file: str, table: str | None = None) -> pl.DataFrame:
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
        if table is not None:
            frame = _with_unknown(frame, table)
            if not self._sound(frame, table):
                raise SourceError(
                    place,
                    f"does not hold what the index says; remove the folder {self._levels.folder} of "
                    "the dataset, and its levels are made anew",
                )
        with self._lock:
            if file not in self._held:
                self._held[file] = frame
                self._bytes += int(frame.estimated_size())
            while self._bytes > _HELD_BYTES and len(self._held) > 1:
                self._bytes -= int(self._held.popitem(last=False)[1].estimated_size())
        return frame

    def _sound(self, frame: pl.DataFrame, table: str) -> bool:
        """Say whether a file's table has its columns, and ranks that there are."""
        schema_of = {name: kind for name, kind in frame.schema.items() if name not in SUMS}
        if schema_of != _FILES[table]:
            return False
        if table == "links" or not frame.height:
            return True
        most: Any = frame["position"].max()
        return bool(most is not None and most < self.index.ranks)


def _with_unknown(rows: pl.DataFrame, table: str) -> pl.DataFrame:
    """Return the rows of a file with the columns that it is without since none has a value in them."""
    kinds, there = _FILES[table], frozenset(rows.columns)
    return rows.with_columns(
        pl.lit(None, kind).alias(name)
        for name, kind in kinds.items()
        if name in LEFT_OUT and name not in there
    )


def none_of(table: str) -> pl.DataFrame:
    """Return a block's table without rows."""
    return pl.DataFrame(schema={"tasks": TASKS, "gaps": PLACED_GAPS, "links": LINKS}[table])
