"""A dataset as a run in pieces: parts of whole steps, and batches of ranks, read where they are needed.

What it holds travels to workers with each piece of work: the catalogue, the ranks, and how clocks are
corrected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.clocks import Correction, correction
from bubblescope.model import units
from bubblescope.model.errors import SourceError, TimelineError
from bubblescope.model.provenance import Notice
from bubblescope.model.timeline import TASK_SCHEMA, Timeline
from bubblescope.model.timeline_tables import TABLES
from bubblescope.sources.dataset.catalogue import BY_BLOCK, NO_STEP, TASKS, Catalogue, Part
from bubblescope.sources.dataset.reading import Tables, few_steps, tables_of
from bubblescope.sources.step_agreement import agreed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Literal

    from bubblescope.engine import Engine
    from bubblescope.model.provenance import Run
    from bubblescope.sources.dataset.store import Store

A_PIECE: Final = 1_000_000
"""Tasks of a part or of a batch, about; at least a step, or the ranks of one file."""
_TO_SETTLE: Final = 2_000_000
"""Tasks by which clocks are put right."""
_COUNTERS: Final = "counters"
_OF_PARTS: Final = tuple(
    name for name, table in TABLES.items() if name in BY_BLOCK and "start_ns" in table.schema
    and name not in {"activities", "flops"}
)  # fmt: skip


class DatasetPieces:
    """A dataset in pieces; see `bubblescope.analysis.pieces.given.Pieces`.

    Args:
        tables: Its tables.
        steps: The steps that are asked about; all if None.
        settled: How its clocks are corrected, and what is known of ranks and run.
        size: Tasks of a part or batch, about.
    """

    def __init__(
        self,
        tables: Tables,
        steps: Sequence[int] | None,
        settled: Correction,
        size: int = A_PIECE,
    ) -> None:
        self._tables = tables
        self._settled = settled
        self._moved_ns = _most_moved_ns(settled)
        self._places = _places(tables.catalogue)
        self._steps = steps
        chosen = tables.catalogue.steps if steps is None else steps
        self._parts = _parts(tables.catalogue, chosen, size)
        self._groups = list(_batches(tables.catalogue, size))

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
        part = self._parts[index]
        found = [(part.blocks, self._own(index))]
        if index == 0 and self._steps is None:
            found.append(({NO_STEP}, pl.lit(value=True)))
        return self._settled.applied(self._read(found))

    def around(self, index: int, start_ns: int, end_ns: int) -> Timeline:
        """Return what is not among a part's own and overlaps a time."""
        low, high = start_ns - self._moved_ns, end_ns + self._moved_ns
        where = (pl.col("end_ns") > low) & (pl.col("start_ns") < high)
        if self._steps is not None:
            where &= pl.col("step").is_in(self._steps)
        own, blocks = self._parts[index].blocks, self._places.during(low, high)
        elsewhere = blocks - own - ({NO_STEP} if index == 0 else set())
        found = [(blocks & own, where & ~self._own(index)), (elsewhere, where)]
        moved = self._settled.applied(self._read(found))
        return moved.slice(start_ns=start_ns, end_ns=end_ns)

    def along(self, batch: int) -> Timeline:
        """Return the tasks of some ranks in all steps."""
        where = None if self._steps is None else pl.col("step").is_in(self._steps)
        tasks = self._tables.rows(TASKS, self._groups[batch], where)
        return self._settled.applied(Timeline(tasks, self.ranks, self.run))

    def counters(self) -> pl.DataFrame:
        """Return the counters of the whole run."""
        own = self._tables.rows(_COUNTERS, self._tables.catalogue.parts)
        none = pl.DataFrame(schema=TASK_SCHEMA)
        return self._settled.applied(Timeline(none, self.ranks, self.run, counters=own)).counters

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

    def _read(self, found: Sequence[tuple[set[int], pl.Expr]]) -> Timeline:
        """Return rows of some blocks, each with the condition that they meet."""
        parts = self._tables.catalogue.parts
        rows = {
            name: pl.concat(
                [self._tables.rows(name, parts, where, blocks) for blocks, where in found]
            )
            for name in (TASKS, *_OF_PARTS)
        }
        tasks = rows.pop(TASKS)
        try:
            return Timeline(tasks, self.ranks, self.run, **rows)
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
) -> DatasetPieces:
    """Return a dataset in pieces, on one clock.

    Args:
        store: Where it lies.
        engine: Where the steps are looked at that tell of its clocks.
        steps: The steps that are asked about; all if None.
        clock: As of `bubblescope.load`. Clocks are put right by a few steps from the first to the last.
        size: Tasks of a part or batch, about.

    Raises:
        SourceError: It is not finished, or damaged, or no steps tell what its ranks agree on.
        TimelineError: A step is not in it.
    """
    tables = tables_of(store)
    tables.refuse_absent(steps)
    wanted = None
    if steps is not None:
        wanted = [step for step in tables.catalogue.steps if any(step in some for some in steps)]
    [(_, settled)] = engine.run(_settle, [_Settling(tables, clock, wanted)], apart=True)
    return DatasetPieces(tables, wanted, settled, size)


class _Settling(NamedTuple):
    tables: Tables
    clock: Literal["raw", "auto", "solve"]
    steps: list[int] | None


def _settle(job: _Settling) -> Correction:
    """Work out how clocks are corrected, by a few steps."""
    tables = job.tables
    catalogue = tables.catalogue
    if job.steps is not None:
        catalogue = msgspec.structs.replace(catalogue, steps=tuple(job.steps))
    some = few_steps(catalogue, _TO_SETTLE)
    everything = len(some) == len(tables.catalogue.steps)
    few = tables.part(None if everything else [range(step, step + 1) for step in some], None)
    several = few.ranks["host"].n_unique() > 1 or not few.run.common_clock
    found = Correction(few.ranks, few.run, {}, [])
    if job.clock == "solve" or (job.clock == "auto" and several and few.run.clock is None):
        found = correction(few, job.clock)
    checked = agreed(found.applied(few))
    if checked.run.warnings != found.run.warnings:
        raise SourceError(
            str(tables.store),
            f"ranks do not agree on the numbers of steps ({checked.run.warnings[-1].message}); read "
            "some of them with --steps",
        )
    run = found.run
    if len(some) < len(catalogue.steps) and run.clock is not None:
        text = f"clocks were looked at in {units.listed('step', some)} of {len(catalogue.steps)}"
        run = run.noted(Notice("clocks-sampled", text, len(some), len(catalogue.steps)))
    run = msgspec.structs.replace(run, contents=())
    groups = [group._replace(pairs=group.pairs.clear()) for group in found.groups]
    return found._replace(run=run, groups=groups)


def _most_moved_ns(settled: Correction) -> int:
    """Return more than any time is moved: clocks drift by a fraction of what they are off."""
    offset: Any = settled.ranks["clock_offset_ns"].fill_null(0).abs().max() if settled.groups else 0
    return 2 * int(offset or 0) + 1_000_000


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
    tasks = sum(part.count(TASKS) for part in catalogue.parts)
    count = max(1, size * len(catalogue.steps) // max(1, tasks))
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


class _Places(NamedTuple):
    """When steps and blocks were, by the clocks of their ranks.

    Attributes:
        begins: Step -> first start of its tasks.
        during_ns: Block -> first start and last end of its rows.
    """

    begins: dict[int, int]
    during_ns: dict[int, tuple[int, int]]

    def during(self, start_ns: int, end_ns: int) -> set[int]:
        """Return the blocks with rows that may overlap a time."""
        return {
            block
            for block, (low, high) in self.during_ns.items()
            if low < end_ns and high > start_ns
        }

    def opens(self, steps: Sequence[int]) -> int:
        """Return the first start of any task of some steps."""
        return min(self.begins[step] for step in steps if step in self.begins)


def _places(catalogue: Catalogue) -> _Places:
    begins: dict[int, int] = {}
    during: dict[int, tuple[int, int]] = {}
    for part in catalogue.parts:
        for block, held in part.blocks.items():
            if held.start_ns is not None and held.end_ns is not None:
                low, high = during.get(block, (held.start_ns, held.end_ns))
                during[block] = min(low, held.start_ns), max(high, held.end_ns)
            for step, start_ns, _ in held.steps:
                if start_ns is not None:
                    begins[step] = min(begins.get(step, start_ns), start_ns)
    return _Places(begins, during)


def _batches(catalogue: Catalogue, size: int) -> Iterator[list[Part]]:
    """Yield the parts of the dataset in batches of about so many tasks."""
    batch: list[Part] = []
    tasks = 0
    for part in catalogue.parts:
        if batch and tasks + part.count(TASKS) > size:
            yield batch
            batch, tasks = [], 0
        batch.append(part)
        tasks += part.count(TASKS)
    if batch:
        yield batch
