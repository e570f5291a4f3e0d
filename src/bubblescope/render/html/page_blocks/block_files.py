"""What the blocks of a page are on disk, and what is known of them.

    index.json                   which blocks there are
    told.json                    what the page tells of the whole run
    overview.bin                 what a server answers a page that opens: all of it from afar
    phases.parquet               tables of the whole run, likewise cells and samples
    tasks/3/7.parquet            tasks of part 3 on the ranks of batch 7, likewise gaps and links
    sums/3.parquet               what each rank did in part 3, in all
    causes/3.parquet             how long it was idle in part 3 for which cause
    afar/1/tasks/3.parquet       tasks of part 3 on all ranks seen from afar: level 1, likewise gaps
    explained/3.json             which gaps and links there are of part 3, of which these are all

A part is some steps, a batch some ranks that stand together on the page. The index is written last, of
what it says; parts are explained then or later, each by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from bubblescope.model.bounds import UNDECODABLE, Amount, Place, Time
from bubblescope.model.decoders import prepared
from bubblescope.model.errors import SourceError, reason
from bubblescope.render.html.schema import Row, TableName, Told
from bubblescope.sources.dataset.levels_folder import SCHEMA, folder_of

if TYPE_CHECKING:
    from bubblescope.sources.dataset.catalogue import Catalogue
    from bubblescope.sources.dataset.store import Store

INDEX: Final = "index.json"
TOLD: Final = "told.json"
OVERVIEW: Final = "overview.bin"
_PIXELS: Final = 300_000
FIXED: Final[tuple[TableName, ...]] = ("phases", "cells", "samples")
"""Tables of the whole run."""

LEFT_OUT: Final = frozenset(
    {
        *("step", "stage", "chunk", "microbatch", "pair_chunk", "pair_microbatch", "busy_ns"),
        *("host_start_ns", "peer", "certainty", "task", "root"),
    }
)
"""Columns that a block's file is without where they have no value in it: to write and read one costs as
much as if it had."""

_Any = TypeVar("_Any")


class Spanned(msgspec.Struct, frozen=True, kw_only=True):
    """What has a first start and a last end, or is empty.

    Attributes:
        start_ns, end_ns: These; None of what is empty.
    """

    start_ns: Time | None = None
    end_ns: Time | None = None

    def overlaps(self, start_ns: float, end_ns: float) -> bool:
        """Say whether anything of it may be in a stretch of time."""
        if self.start_ns is None or self.end_ns is None:
            return False
        return self.start_ns < end_ns and self.end_ns > start_ns


class Cell(Spanned, frozen=True):
    """The tasks of a block, from when to when: of a part of the run on a batch of ranks.

    Attributes:
        tasks: How many it has.
    """

    tasks: Amount


class Part(msgspec.Struct, frozen=True):
    """The tasks of a part of the run.

    Attributes:
        cells: One for each batch.
        codes: Number among the page's names of each of those that tasks of the part have.
        afar: How many pieces its tasks are at each level.
        steps: How many steps it has.
    """

    cells: tuple[Cell, ...]
    codes: tuple[Place, ...]
    afar: tuple[Amount, ...]
    steps: Amount

    @property
    def span_ns(self) -> tuple[int, int]:
        """From the first start to the last end; nothing of a part without tasks."""
        starts = [cell.start_ns for cell in self.cells if cell.start_ns is not None]
        ends = [cell.end_ns for cell in self.cells if cell.end_ns is not None]
        return min(starts, default=0), max(ends, default=0)

    def within_ns(self, start_ns: float, end_ns: float) -> float:
        """Return how much of its time lies in a stretch of time."""
        first, last = self.span_ns
        return max(0.0, min(end_ns, last) - max(start_ns, first))

    def share(self, start_ns: float, end_ns: float) -> float:
        """Return the same as a share of its time, about."""
        first, last = self.span_ns
        return self.within_ns(start_ns, end_ns) / max(1, last - first)

    @property
    def tasks(self) -> int:
        """How many tasks it has."""
        return sum(cell.tasks for cell in self.cells)


class Idling(Spanned, frozen=True):
    """The idle time of a block, from when to when there is any.

    Attributes:
        gaps, links: How many it has; links are where their source is.
    """

    gaps: Amount
    links: Amount


class Explained(msgspec.Struct, frozen=True):
    """Why ranks are idle in a part of the run.

    Attributes:
        cells: One for each batch.
        afar: How many pieces its gaps are at each level.
    """

    cells: tuple[Idling, ...]
    afar: tuple[Amount, ...]


class Index(msgspec.Struct, frozen=True):
    """Which blocks there are.

    Tasks are numbered part by part, within one in the order of the page.

    Attributes:
        schema: `SCHEMA`.
        written_by: Version of bubblescope.
        origin_ns: First start of the run, from which the page counts time.
        batches: The first position on the page of each batch, and one past the last of all.
        widths_ns: Of each level, the time in which all tasks of a kind are one.
        parts: The parts, in the order of time.
        rows: Rows of tasks that the page has, top to bottom.
    """

    schema: str
    written_by: str
    origin_ns: Time
    batches: tuple[Amount, ...]
    widths_ns: tuple[Amount, ...]
    parts: tuple[Part, ...]
    rows: tuple[Row, ...]

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.batches[-1]

    def batch_of(self, position: int) -> int:
        """Return the batch that a rank is in."""
        return bisect_right(self.batches, position) - 1


def overview_columns(ranks: int) -> int:
    """Return of how many pixels a page that opens shows each rank, as viewer/src/served.ts has it."""
    return max(100, min(1200, _PIXELS // max(1, ranks)))


def block_file(table: str, part: int, batch: int) -> str:
    """Return the file of a block's table."""
    return f"{table}/{part}/{batch}.parquet"


def sums_file(part: int) -> str:
    """Return the file of what ranks did in a part.

    Its columns are position, start_ns and end_ns (of the rank's tasks in the part), busy_ns (of its
    compute lane), and by kind those that `spent` and `counted` name, and of other lanes `spent_beside`
    and `counted_beside`.
    """
    return f"sums/{part}.parquet"


def causes_file(part: int) -> str:
    """Return the file of how long ranks were idle in a part.

    Its columns are position, start_ns and end_ns (of the rank's gaps in the part), and by cause those
    that `idle` names.
    """
    return f"causes/{part}.parquet"


def explained_file(part: int) -> str:
    """Return the file that says which gaps and links there are of a part."""
    return f"explained/{part}.json"


def spent(kind: str) -> str:
    """Return the column of the time that tasks of a kind took on compute lanes."""
    return f"{kind} ns"


def counted(kind: str) -> str:
    """Return the column of how many there are."""
    return f"{kind} tasks"


def spent_beside(kind: str) -> str:
    """Return the column of the time that tasks of a kind took on the lanes beside compute lanes."""
    return f"beside: {kind} ns"


def counted_beside(kind: str) -> str:
    """Return the column of how many there are."""
    return f"beside: {kind} tasks"


def idle(cause: str) -> str:
    """Return the column of the idle time of a cause."""
    return f"idle: {cause} ns"


def afar_file(level: int, table: str, part: int) -> str:
    """Return the file of a part seen from afar."""
    return f"afar/{level}/{table}/{part}.parquet"


class Levels(msgspec.Struct, frozen=True):
    """The levels of a dataset.

    Attributes:
        store: Where they lie.
        folder: In which folder of it.
    """

    store: Store
    folder: str

    @classmethod
    def of(cls, store: Store, catalogue: Catalogue) -> Levels:
        """Return where the levels of a dataset are, or will be."""
        return cls(store, folder_of(catalogue))

    @property
    def there(self) -> bool:
        """Whether they have been made."""
        try:
            self.store.read(self.name(INDEX))
        except OSError:
            return False
        return True

    def name(self, file: str) -> str:
        """Return the name of a file of theirs in the store."""
        return f"{self.folder}/{file}"

    def index(self) -> Index:
        """Return which blocks there are; raises as `told`."""
        found: Index = self._decoded(INDEX, Index)
        if found.schema != SCHEMA or not _sound(found):
            raise SourceError(
                self.store.place(self.name(INDEX)),
                f"is not of the layout {SCHEMA!r}; remove the folder {self.folder}, and the levels are "
                "made anew",
            )
        return found

    def explained(self, part: int, index: Index) -> Explained | None:
        """Return which gaps and links there are of a part; None if it is not explained.

        Raises:
            SourceError: The file is damaged.
        """
        file = explained_file(part)
        try:
            content = self.store.read(self.name(file))
        except OSError:
            return None
        found: Explained = self._decoded(file, Explained, content)
        batches, levels = len(index.batches) - 1, len(index.widths_ns)
        if (len(found.cells), len(found.afar)) != (batches, levels):
            raise SourceError(
                self.store.place(self.name(file)),
                f"does not hold what the index says; remove the folder {self.folder} of the dataset, "
                "and its levels are made anew",
            )
        return found

    def told(self) -> Told:
        """Return what the page tells of the whole run.

        Raises:
            SourceError: The file is missing or damaged.
        """
        return self._decoded(TOLD, Told)

    def _decoded(self, file: str, kind: type[_Any], content: bytes | None = None) -> _Any:
        """Return what a file holds, which is read now if its content is not given."""
        place = self.store.place(self.name(file))
        try:
            if content is None:
                content = self.store.read(self.name(file))
            return msgspec.json.decode(content, type=prepared(kind))
        except (OSError, *UNDECODABLE) as error:
            raise SourceError(
                place,
                f"cannot be read ({reason(error)}); remove the folder {self.folder} of the dataset, "
                "and its levels are made anew",
            ) from None

    def write(self, file: str, value: Any) -> None:
        """Write a value as JSON."""
        self.store.write(self.name(file), msgspec.json.encode(value))


def _sound(index: Index) -> bool:
    """Say whether numbers of an index agree with each other."""
    edges = index.batches
    return (
        bool(edges)
        and edges[0] == 0
        and all(one < other for one, other in pairwise(edges))
        and all(len(part.cells) == len(edges) - 1 for part in index.parts)
        and all(len(part.afar) == len(index.widths_ns) for part in index.parts)
        and all(index.widths_ns)
        and all(0 <= row.rank < index.ranks and row.first == row.to == 0 for row in index.rows)
    )
