"""A dataset as a run in pieces: parts of whole steps, and batches of ranks, read where they are needed.

What it is made of is held where workers see it: the catalogue, the ranks, and how clocks are corrected.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import polars as pl

from bubblescope.clocks import CORRECTION, Correction, as_it_is, settled
from bubblescope.clocks.bounded_clocks import clocks_of
from bubblescope.clocks.tightest_pairs import Evidence
from bubblescope.engine.remote_results import Holder
from bubblescope.model import units
from bubblescope.model.clock_errors import may_differ
from bubblescope.model.errors import SourceError, TimelineError
from bubblescope.model.provenance import RUN
from bubblescope.model.timeline import TASK_SCHEMA, Timeline
from bubblescope.model.timeline_tables import TABLES
from bubblescope.sources.dataset.catalogue import BY_BLOCK, NO_STEP, TASKS, Catalogue
from bubblescope.sources.dataset.reading import Tables, tables_of
from bubblescope.sources.step_agreement import disagreeing, windows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Literal

    from bubblescope.datasets.prepared_parts import Kept
    from bubblescope.engine import Engine
    from bubblescope.engine.remote_results import Held
    from bubblescope.model.provenance import Run
    from bubblescope.sources.dataset.catalogue import Part
    from bubblescope.sources.dataset.measures_folder import Measures
    from bubblescope.sources.dataset.store import Store

A_PIECE: Final = 1_000_000
"""Tasks of a part or of a batch, about; at least a step, or the ranks of one file."""
_COUNTERS: Final = "counters"
_OF_PARTS: Final = tuple(
    name for name, table in TABLES.items() if name in BY_BLOCK and "start_ns" in table.schema
    and name not in {"activities", "flops"}
)  # fmt: skip
_TABLES: Final = (TASKS, *_OF_PARTS)
_ALONG: Final = ("rank", "step", "kind", "stage", "lane", "start_ns", "end_ns", "name")
"""What is asked of ranks over all steps."""
_CLOCKS: Final = "clocks"
_KNOWN: Final = (*CORRECTION, *RUN)
"""What the measures of a dataset's clocks are made of."""
_Rows = TypeVar("_Rows")


class DatasetPieces:
    """A dataset in pieces; see `bubblescope.analysis.pieces.run_in_pieces.Pieces`.

    Args:
        tables: Its tables.
        steps: The steps that are asked about; all if None.
        settled: How its clocks are corrected, and what is known of ranks and run.
        size: Tasks of a part or batch, about.
        kept: Where parts are kept that were made ready; None if they are read each time.
    """

    def __init__(
        self,
        tables: Tables,
        steps: Sequence[int] | None,
        settled: Correction,
        size: int = A_PIECE,
        kept: Kept | None = None,
    ) -> None:
        self._tables = tables
        self._kept = kept
        self._settled = settled
        self._places = _places(tables.catalogue, settled)
        self._steps = steps
        chosen = tables.catalogue.steps if steps is None else steps
        self._parts = _parts(tables.catalogue, chosen, size)
        self._cuts = (
            [] if kept is None or not kept.every else _cuts(tables.catalogue, self._parts, size)
        )
        self._groups = list(_batches(tables.catalogue, TASKS, size))
        self._of_kernels = list(_batches(tables.catalogue, "activities", size))

    @property
    def parts(self) -> list[Sequence[int]]:
        """The steps of each part."""
        return [part.steps for part in self._parts]

    @property
    def ranks(self) -> pl.DataFrame:
        """All ranks."""
        return self._settled.ranks

    @property
    def run(self) -> Run:
        """What is known of the run."""
        return self._settled.run

    @property
    def batches(self) -> int:
        """Number of batches of ranks."""
        return len(self._groups)

    def part(self, index: int) -> Timeline:
        """Return all that ran in the steps of a part, and what of no step is in their blocks."""
        held = None if self._kept is None else self._kept.kept(self._place(index))
        if held is not None:
            return self._timeline(held)
        place = self._place(index)
        made = self._joined(index, place) if self._settled.groups else None
        if made is None:
            made = self._settled.applied(self.recorded(index))
        if self._kept is not None:
            self._kept.keep(place, {TASKS: made.tasks, **made.tables})
            names = {f"{index}", *self._cut(index, f"{index}"), *self._cut(index, place)}
            for name in names - {place}:
                self._kept.forget(name)
        return made

    def make_ready(self, index: int) -> None:
        """Keep a part, if there is room; else it would be read now and again when it is looked at."""
        if self._kept is None:
            return
        catalogue = self._tables.catalogue
        share = len(self._parts[index].steps) / max(1, len(catalogue.steps))
        if self._kept.has_room(int(share * _tasks_of(catalogue))):
            self.part(index)

    def _place(self, index: int) -> str:
        """Return what a part is called where it is kept."""
        return f"{index}.settled" if self._settled.groups else f"{index}"

    def _cut(self, index: int, place: str) -> list[str]:
        """Return what a part's share of each of `cuts` is called where it is kept."""
        blocks = self._parts[index].blocks
        return [f"{place}.{number}" for number, cut in enumerate(self._cuts) if cut.block in blocks]

    @property
    def cuts(self) -> int:
        """Number of stretches of files, of blocks that have several parts, to `cut` before all else."""
        return len(self._cuts)

    def cut(self, number: int) -> None:
        """Keep what of some files of a block is of each of its parts, so that they are read once."""
        if self._kept is None:
            return
        block, first, last = self._cuts[number]
        wanted = [
            index
            for index, part in enumerate(self._parts)
            if block in part.blocks
            and not self._kept.holds(self._place(index))
            and not self._kept.holds(f"{index}.{number}")  # by the clocks of its ranks
        ]
        if not wanted:
            return
        files = self._tables.catalogue.parts[first:last]
        rows = {name: self._tables.rows(name, files, None, {block}) for name in _TABLES}
        with self._unbroken():
            Timeline.refuse(rows[TASKS], self.ranks, **{name: rows[name] for name in _OF_PARTS})
        for index in wanted:
            own = self._own(index)
            # Files are in the order of steps, then ranks: a step is in order, all of them are not.
            mine = self._timeline({name: frame.filter(own) for name, frame in rows.items()})
            mine = self._settled.applied(mine)
            self._kept.keep(f"{self._place(index)}.{number}", {TASKS: mine.tasks, **mine.tables})

    def recorded(self, index: int) -> Timeline:
        """Return a part by the clocks of its ranks, and keep it."""
        kept, place = self._kept, f"{index}"
        if self._cut(index, place):
            joined = self._joined(index, place)
            if joined is not None:
                return joined
        else:
            held = None if kept is None else kept.kept(place)
            if held is not None:
                return self._timeline(held)
        every = self._tables.catalogue.parts
        own = _Wanted(every, self._parts[index].blocks, self._own(index))
        made = self._checked(self._read([own, *self._unstepped(index)]))
        if kept is not None and not self._settled.groups:
            kept.keep(place, {TASKS: made.tasks, **made.tables})
        return made

    def _unstepped(self, index: int) -> list[_Wanted]:
        """Return where rows of a part are that are of no block, and which they are."""
        if index or self._steps is not None:
            return []
        return [_Wanted(self._tables.catalogue.parts, {NO_STEP}, pl.lit(value=True))]

    def _joined(self, index: int, place: str) -> Timeline | None:
        """Return a part of which the shares of all cuts are kept; None if they are not.

        Args:
            index: Of the part.
            place: What it is called, as it was recorded or on one clock.
        """
        cut = self._cut(index, place)
        held = self._kept.kept(*cut) if self._kept is not None and cut else None
        if held is None:
            return None
        if unstepped := self._unstepped(index):
            beside = self._checked(self._read(unstepped))
            if place != f"{index}":
                beside = self._settled.applied(beside)
            for name, frame in {TASKS: beside.tasks, **beside.tables}.items():
                if frame.height:
                    held[name] = pl.concat([held[name], frame]) if name in held else frame
        return self._timeline(held)

    def around(self, index: int, start_ns: int, end_ns: int) -> Timeline:
        """Return what is not among a part's own and overlaps a time."""
        part = self._parts[index]
        near = self._places.during(start_ns, end_ns, part.steps)
        if not index:
            near.pop(NO_STEP, None)
        others = [
            other
            for other, of in enumerate(self._parts)
            if other != index and (of.blocks & near.keys() or (not other and NO_STEP in near))
        ]
        held = self._held(others, lambda kept, place: kept.during(place, start_ns, end_ns))
        if held is not None:
            names = {name for one in held for name in one}
            return self._timeline(
                {name: pl.concat([one[name] for one in held if name in one]) for name in names}
            )
        where, not_own = self._overlapping(start_ns, end_ns), ~self._own(index)
        found = [
            _Wanted(files, {block}, where & not_own if block in part.blocks else where)
            for block, files in near.items()
        ]
        moved = self._settled.applied(self._checked(self._read(found)))
        return moved.slice(start_ns=start_ns, end_ns=end_ns)

    def during(self, ranks: Sequence[int], start_ns: int, end_ns: int) -> pl.DataFrame:
        """Return the tasks of some ranks that overlap a time, on one clock."""
        where = self._overlapping(start_ns, end_ns) & pl.col("rank").is_in(list(ranks))
        wanted = {*ranks}
        found = [
            _Wanted([one for one in files if wanted & {*one.ranks}], {block}, where)
            for block, files in self._places.during(start_ns, end_ns).items()
        ]
        moved = self._settled.applied(self._checked({TASKS: self._rows(TASKS, found)}))
        return moved.slice(start_ns=start_ns, end_ns=end_ns).tasks

    def _overlapping(self, start_ns: int, end_ns: int) -> pl.Expr:
        """Return whether a row that is asked about may overlap a time, by the clock of its rank."""
        least_ns, most_ns = self._places.moves_ns
        where = (pl.col("end_ns") > start_ns - most_ns) & (pl.col("start_ns") < end_ns - least_ns)
        return where if self._steps is None else where & pl.col("step").is_in(self._steps)

    def along(self, batch: int, parts: Sequence[int] | None = None) -> Timeline:
        """Return the tasks of some ranks in some parts, or in all steps."""
        low, high = self._groups[batch]
        wanted = range(len(self._parts)) if parts is None else parts
        held = self._held(wanted, lambda kept, place: kept.along(place, low, high, _ALONG))
        if held is not None:
            return Timeline.of_checked(pl.concat(held), self.ranks, self.run)
        tasks = self._along(TASKS, low, high)
        if parts is not None:
            tasks = tasks.filter(pl.any_horizontal(self._own(index) for index in parts))
        return self._settled.applied(Timeline(tasks, self.ranks, self.run))

    @property
    def kernel_batches(self) -> int:
        """Number of batches of ranks of which kernels are looked at together."""
        return len(self._of_kernels)

    def kernels(self, batch: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the activities of some ranks in all steps, and their budget, on one clock."""
        place, names = f"kernels.{batch}", ("activities", "budget")
        held = None if self._kept is None else self._kept.kept(place)
        if held is None:
            low, high = self._of_kernels[batch]
            held = {
                name: self._settled.moved_table(self._along(name, low, high), name)
                for name in names
            }
            if self._kept is not None:
                self._kept.keep(place, held)
        activities, spent = (
            held[name] if name in held else pl.DataFrame(schema=TABLES[name].schema)
            for name in names
        )
        return activities, spent

    def _along(self, table: str, low: int, high: int) -> pl.DataFrame:
        """Return the rows of a table of some ranks in all steps, by the clocks of these."""
        where = pl.col("rank").is_between(low, high)
        if self._steps is not None:
            where &= pl.col("step").is_in(self._steps)
        parts = [
            part
            for part in self._tables.catalogue.parts
            if part.ranks and part.ranks[0] <= high and part.ranks[-1] >= low
        ]
        return self._tables.rows(table, parts, where)

    def _held(
        self, parts: Iterable[int], rows: Callable[[Kept, str], _Rows | None]
    ) -> list[_Rows] | None:
        """Return rows of parts as they are kept; None unless all are."""
        if self._kept is None:
            return None
        found = []
        for index in parts:
            held = rows(self._kept, self._place(index))
            if held is None:
                return None
            found.append(held)
        return found

    def _timeline(self, tables: dict[str, pl.DataFrame]) -> Timeline:
        """Return a timeline of tables whose rows break no rules."""
        tasks = tables.pop(TASKS, pl.DataFrame(schema=TASK_SCHEMA))
        return Timeline.of_checked(tasks, self.ranks, self.run, **tables)

    def counters(self) -> pl.DataFrame:
        """Return the counters of the whole run."""
        own = self._tables.rows(_COUNTERS, self._tables.catalogue.parts)
        return self._settled.moved_table(own, _COUNTERS)

    def _own(self, index: int) -> pl.Expr:
        """Return whether a row of a part's blocks is its own.

        It is of its steps; or, in a block that has several parts, it is of no step and began in their
        time.
        """
        part = self._parts[index]
        step, start = pl.col("step"), pl.col("start_ns")
        mine = step.is_in(list(part.steps)) & step.is_not_null()
        if self._steps is not None:
            return mine
        begun = pl.lit(value=True)
        if index and self._parts[index - 1].blocks & part.blocks:
            begun &= start >= self._places.opens(part.steps)
        if index + 1 < len(self._parts) and self._parts[index + 1].blocks & part.blocks:
            begun &= start < self._places.opens(self._parts[index + 1].steps)
        return mine | (step.is_null() & begun)

    def _read(self, found: Sequence[_Wanted]) -> dict[str, pl.DataFrame]:
        """Return rows by table."""
        return {name: self._rows(name, found) for name in _TABLES}

    def _rows(self, table: str, found: Sequence[_Wanted]) -> pl.DataFrame:
        """Return rows of a table; nothing may be wanted."""
        rows = [self._tables.rows(table, one.files, one.where, one.blocks) for one in found]
        return pl.concat(rows) if rows else self._tables.rows(table, ())

    def _checked(self, rows: dict[str, pl.DataFrame]) -> Timeline:
        """Return a timeline of rows that were read.

        Raises:
            SourceError: They break a rule.
        """
        with self._unbroken():
            return Timeline(rows.pop(TASKS), self.ranks, self.run, **rows)

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        """Say of rows that break a rule where they lie."""
        try:
            yield
        except TimelineError as error:
            place = str(self._tables.store)
            raise SourceError(place, f"holds contradictory data ({error})") from None


def pieces_of(
    store: Store,
    engine: Engine,
    *,
    steps: Sequence[range] | None = None,
    clock: Literal["raw", "auto", "solve"] = "auto",
    size: int = A_PIECE,
    kept: Kept | None = None,
    measures: Measures | None = None,
) -> Held[DatasetPieces]:
    """Return a dataset in pieces, on one clock, as it is held where its parts are looked at.

    Args:
        store: Where it lies.
        engine: Where the parts are looked at that tell of its clocks.
        steps: The steps that are asked about; all if None.
        clock: As of `bubblescope.load`.
        size: Tasks of a part or batch, about.
        kept: As of `DatasetPieces`.
        measures: Its measures, if they count: those of its clocks, of all steps and for `auto`, spare
            looking at all parts, and are written where they are missing and to be kept.

    Raises:
        SourceError: It is not finished, or damaged, or its ranks do not agree on what a step is.
        TimelineError: A step is not in it.
    """
    tables = tables_of(store.anywhere())
    tables.refuse_absent(steps)
    wanted = None
    if steps is not None:
        wanted = [step for step in tables.catalogue.steps if any(step in some for some in steps)]
    folder = None if kept is None else kept.folder

    holder = Holder(partial(engine.run, apart=True), folder)
    whole = steps is None and clock == "auto"
    asked = _Asked(tables, wanted, size, kept, clock, measures if whole else None)
    settled, found = holder.put(_known_pieces, asked)
    if not settled.nothing:
        _refuse_odd(store, found.got())
        return settled
    recorded, outline = holder.put(_recorded_pieces, asked)
    parts, solves, cuts = outline.got()
    recorded = recorded.shared
    holder.hold(_cut, [(recorded, number) for number in range(cuts)])
    jobs = [_Recorded(recorded, index, solves) for index in range(parts)]
    settled, found = holder.put(_settled_pieces, asked, recorded, holder.hold(_recorded, jobs))
    _refuse_odd(store, found.got())
    return settled


def _refuse_odd(store: Store, odd: list[int]) -> None:
    """Refuse ranks that do not agree with the others on the numbers of steps."""
    if odd:
        raise SourceError(
            str(store),
            f"{units.listed('rank', odd)} do not agree with the others on the numbers of steps; read "
            "some of them with --steps",
        )


class _Asked(NamedTuple):
    """What is asked of a dataset.

    Attributes:
        tables: Its tables.
        steps, size, kept: As of `DatasetPieces`.
        clock: As of `pieces_of`.
        measures: Likewise; None if they are not of what is asked.
    """

    tables: Tables
    steps: Sequence[int] | None
    size: int
    kept: Kept | None
    clock: Literal["raw", "auto", "solve"]
    measures: Measures | None

    def pieces(self, correction: Correction) -> DatasetPieces:
        """Return it in pieces, its clocks corrected."""
        return DatasetPieces(self.tables, self.steps, correction, self.size, self.kept)


def _known_pieces(asked: _Asked) -> tuple[DatasetPieces | None, list[int] | None]:
    """Return what `_settled_pieces` does as its measures tell; None if there are none."""
    found = None if asked.measures is None else asked.measures.found(_CLOCKS, _KNOWN)
    if found is None:
        return None, None
    correction, odd = found
    return asked.pieces(correction), odd


def _recorded_pieces(asked: _Asked) -> tuple[DatasetPieces, tuple[int, bool, int]]:
    """Return a dataset by the clocks of its ranks; how many parts, if clocks are solved for, and cuts.

    What is known of its ranks and of the run is read from very many files.
    """
    tables = asked.tables
    ranks = tables.ranks(tables.catalogue.parts).sort("rank")
    run = tables.run(tables.catalogue.parts, ranks)
    run = msgspec.structs.replace(run, contents=()).encodable()
    pieces = asked.pieces(Correction(ranks, run, {}, []))
    several = may_differ(ranks, run)
    solves = asked.clock == "solve" or (asked.clock == "auto" and several and run.clock is None)
    return pieces, (len(pieces.parts), solves, pieces.cuts)


def _cut(job: tuple[DatasetPieces, int]) -> None:
    pieces, number = job
    pieces.cut(number)


class _Recorded(NamedTuple):
    """A part to be looked at as it was recorded.

    Attributes:
        pieces: The run, by the clocks of its ranks; it is held.
        number: Of the part.
        solves: Whether clocks are solved for.
    """

    pieces: Any
    number: int
    solves: bool


class _Told(NamedTuple):
    """What a part tells by itself, as it was recorded.

    Attributes:
        clocks: How clocks differ; None if they are not solved for.
        windows: As of `bubblescope.sources.step_agreement.windows`.
    """

    clocks: Evidence | None
    windows: pl.DataFrame


def _recorded(job: _Recorded) -> _Told:
    """Look at a part as it was recorded, and keep it."""
    part = job.pieces.recorded(job.number)
    clocks = clocks_of(part.ranks, part.run)
    found = None
    if job.solves and clocks.number > 1:
        found = Evidence.of(part, clocks.of, by_step=clocks.by_step)
    return _Told(found, windows(part.tasks))


def _settled_pieces(
    asked: _Asked, pieces: DatasetPieces, told: Sequence[_Told]
) -> tuple[DatasetPieces, list[int]]:
    """Return a dataset on one clock, and the ranks that do not agree then on the numbers of steps."""
    found = Correction(pieces.ranks, pieces.run, {}, [])
    clocks = clocks_of(pieces.ranks, pieces.run)
    tell = [one.clocks for one in told if one.clocks is not None]
    if asked.clock != "raw" and tell:
        evidence = Evidence.joined(tell, by_step=clocks.by_step)
        found = settled(pieces.ranks, pieces.run, evidence, asked.clock)
    elif asked.clock == "solve":
        found = as_it_is(pieces.ranks, pieces.run, asked.clock)
    both = pl.concat([one.windows for one in told])
    odd = disagreeing(found.ranks, found.moved(both, "start_ns", "end_ns"))
    groups = [group._replace(pairs=group.pairs.clear()) for group in found.groups]
    found = found._replace(groups=groups)
    if asked.measures is not None:
        asked.measures.keep(_CLOCKS, (found, odd), _KNOWN)
    return asked.pieces(found), odd


class _Wanted(NamedTuple):
    """Rows that are read.

    Attributes:
        files: Of which files, as the catalogue's parts.
        blocks: Of which blocks.
        where: The condition that they meet.
    """

    files: Sequence[Part]
    blocks: set[int]
    where: pl.Expr


class _Part(NamedTuple):
    """Some steps: of whole blocks, or of one that is too large to be one part.

    Attributes:
        steps: The steps.
        blocks: Where they are.
        torn: Whether the block has other parts.
    """

    steps: list[int]
    blocks: set[int]
    torn: bool = False


def _parts(catalogue: Catalogue, steps: Sequence[int], size: int) -> list[_Part]:
    """Return steps in parts of about so many tasks."""
    count = max(1, size * len(catalogue.steps) // max(1, _tasks_of(catalogue)))
    of_block: dict[int, list[int]] = {}
    for step in steps:
        of_block.setdefault(max(0, step // catalogue.block_steps), []).append(step)
    parts: list[_Part] = []
    for block, mine in of_block.items():
        if len(mine) > count:
            parts += [
                _Part(mine[at : at + count], {block}, torn=True)
                for at in range(0, len(mine), count)
            ]
        elif parts and not parts[-1].torn and len(parts[-1].steps) + len(mine) <= count:
            parts[-1].steps.extend(mine)
            parts[-1].blocks.add(block)
        else:
            parts.append(_Part(mine, {block}))
    everything = {block for part in catalogue.parts for block in part.blocks}
    return parts or [_Part([], everything - {NO_STEP})]


def _tasks_of(catalogue: Catalogue) -> int:
    return sum(part.count(TASKS) for part in catalogue.parts)


class _Cut(NamedTuple):
    """Files of a block that has several parts, each of some ranks.

    Attributes:
        block: The block.
        first, last: Of the catalogue's parts, from the first to before the last.
    """

    block: int
    first: int
    last: int


def _cuts(catalogue: Catalogue, parts: Sequence[_Part], size: int) -> list[_Cut]:
    """Return the files of blocks that have several parts, about so many tasks at a time."""
    cuts: list[_Cut] = []
    for block in sorted(set().union(*(part.blocks for part in parts if part.torn))):
        first, tasks = 0, 0
        for at, part in enumerate(catalogue.parts):
            held = part.blocks.get(block)
            count = 0 if held is None else held.rows.get(TASKS, 0)
            if tasks and tasks + count > size:
                cuts.append(_Cut(block, first, at))
                first, tasks = at, 0
            tasks += count
        cuts.append(_Cut(block, first, len(catalogue.parts)))
    return cuts


class _Places(NamedTuple):
    """When steps were, and where what overlaps a time may be.

    Attributes:
        files: The catalogue's parts, each with by how much its times are moved at least and at most.
        begins: Step -> first start of its tasks, by the clocks of their ranks.
    """

    files: list[tuple[Part, int, int]]
    begins: dict[int, int]

    @property
    def moves_ns(self) -> tuple[int, int]:
        """By how much any time is moved at least and at most."""
        return (
            min((least_ns for _, least_ns, _ in self.files), default=0),
            max((most_ns for _, _, most_ns in self.files), default=0),
        )

    def during(
        self, start_ns: int, end_ns: int, without: Sequence[int] = ()
    ) -> dict[int, list[Part]]:
        """Return the blocks of which rows may overlap a time on one clock, and in which files.

        Args:
            start_ns: From when.
            end_ns: Until when.
            without: Steps of which no rows are wanted.
        """
        found: dict[int, list[Part]] = {}
        for part, least_ns, most_ns in self.files:
            low, high = start_ns - most_ns, end_ns - least_ns
            for block, held in part.blocks.items():
                spans = [(held.start_ns, held.end_ns)]
                if not held.stepless and held.rows.keys() == {TASKS}:
                    spans = [
                        (one.start_ns, one.end_ns) for one in held.steps if one.step not in without
                    ]
                timed = [(one, end) for one, end in spans if one is not None and end is not None]
                if any(one < high and end > low for one, end in timed):
                    found.setdefault(block, []).append(part)
        return found

    def opens(self, steps: Sequence[int]) -> int:
        """Return the first start of any task of some steps."""
        return min(self.begins[step] for step in steps if step in self.begins)


_BESIDE_NS: Final = 1_000_000
"""How much further times may be moved than those of tasks, of which corrections are: of what began
before the first, or ended after the last, on a clock that drifts."""


def _places(catalogue: Catalogue, settled: Correction) -> _Places:
    moves = settled.moves_ns()
    files = []
    begins: dict[int, int] = {}
    for part in catalogue.parts:
        moved = [moves[rank] for rank in part.ranks if rank in moves] or [(0, 0)]
        least_ns, most_ns = min(one for one, _ in moved), max(one for _, one in moved)
        files.append((part, min(0, least_ns) - _BESIDE_NS, max(0, most_ns) + _BESIDE_NS))
        for held in part.blocks.values():
            for step, start_ns, _ in held.steps:
                if start_ns is not None:
                    begins[step] = min(begins.get(step, start_ns), start_ns)
    return _Places(files, begins)


def _batches(catalogue: Catalogue, table: str, size: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last rank of batches of about so many rows, of ranks in a row."""
    low, high, tasks = None, 0, 0.0
    counts = sorted(
        (rank, part.count(table) / len(part.ranks))
        for part in catalogue.parts
        for rank in part.ranks
    )
    for rank, count in counts:
        if low is not None and tasks + count > size:
            yield low, high
            low, tasks = None, 0.0
        low = rank if low is None else low
        high, tasks = rank, tasks + count
    if low is not None:
        yield low, high
