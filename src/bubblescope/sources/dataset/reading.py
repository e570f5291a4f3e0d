"""From a dataset to the timeline of its run, or of some steps and ranks of it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model import parquet, units
from bubblescope.model.errors import SourceError, TimelineError, reason
from bubblescope.model.parquet import UNREADABLE
from bubblescope.model.provenance import Notice, clocks_unchecked
from bubblescope.model.timeline import TASK_SCHEMA, Timeline, among, joined
from bubblescope.model.timeline_tables import RANK_SCHEMA, TABLES
from bubblescope.sources.dataset.catalogue import (
    BY_BLOCK,
    RANKS,
    TASKS,
    Catalogue,
    Part,
    catalogue_of,
    manifest_of,
    table_file,
)
from bubblescope.sources.inventory import missing_ranks

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from bubblescope.model.provenance import Run
    from bubblescope.sources.dataset.store import Store
    from bubblescope.sources.source import ReadOptions

_OF_ALL: Final = frozenset({"missing-ranks", "clocks-unchecked"})
"""Codes of notices about all the ranks of a run, which say nothing of a part."""
_THREADS: Final = 8
_GLIMPSED: Final = 32
"""Files of tasks that are looked at for what may be asked of a dataset, at most."""


def read_dataset(store: Store, options: ReadOptions) -> Timeline:
    """Read a dataset, or the part of it that the options ask for.

    Raises:
        SourceError: It is not finished, or damaged; names the file.
    """
    tables = tables_of(store)
    catalogue = tables.catalogue
    options.progress.begin("reading the dataset", None)
    steps, notices = options.steps, []
    if steps is None and options.enough is not None:
        some = few_steps(catalogue, options.enough, median=options.median)
        if len(some) < len(catalogue.steps):
            steps = [range(step, step + 1) for step in some]
            notices.append(_sampled(catalogue, some))
    part = tables.part(steps, options.ranks, activities=options.activities)
    return part.with_notices(*notices)


def tables_of(store: Store) -> Tables:
    """Return the tables of a dataset.

    Raises:
        SourceError: It is not finished, or its catalogue is damaged.
    """
    catalogue = catalogue_of(store)
    if not catalogue.finished:
        raise SourceError(
            str(store),
            f"was not finished: {len(catalogue.parts)} parts are in it, and {catalogue.inputs} traces "
            "were to be read; give the command that made it once more, and it goes on",
        )
    return Tables(store, catalogue)


def few_steps(catalogue: Catalogue, enough: int, *, median: bool = False) -> list[int]:
    """Return as many of a dataset's steps as have about so many tasks, at least one.

    They are from the first to the last as evenly as can be; one alone, which is all if `median` says
    so, is of median length.
    """
    steps = catalogue.steps
    tasks = sum(part.count(TASKS) for part in catalogue.parts)
    count = max(1, enough * len(steps) // max(1, tasks))
    if count >= len(steps):
        return list(steps)
    if median or count == 1:
        return [median_step(catalogue)]
    last = len(steps) - 1
    places = [round(index * last / (count - 1)) for index in range(count)]
    return [steps[place] for place in dict.fromkeys(places)]


def median_step(catalogue: Catalogue) -> int:
    """Return the step of median length, by the clocks as they were recorded; the lower of two."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for part in catalogue.parts:
        for held in part.blocks.values():
            for step, start_ns, end_ns in held.steps:
                if start_ns is not None and end_ns is not None:
                    first[step] = min(first.get(step, start_ns), start_ns)
                    last[step] = max(last.get(step, end_ns), end_ns)
    if not first:
        return catalogue.steps[len(catalogue.steps) // 2]
    by_length = sorted(first, key=lambda step: (last[step] - first[step], step))
    return by_length[(len(by_length) - 1) // 2]


def glimpse(store: Store) -> Timeline:
    """Return all ranks of a dataset and what is known of its run, with some tasks of one step.

    The step is of median length, and its tasks those of some files, evenly from the first to the last.

    Raises:
        SourceError: It is not finished, or damaged; names the file.
    """
    tables = tables_of(store)
    parts = tables.catalogue.parts
    few = parts[:: -(-len(parts) // _GLIMPSED)] if parts else ()
    ranks = tables.ranks(parts)
    tasks = pl.DataFrame(schema=TASK_SCHEMA)
    if tables.catalogue.steps:
        step = median_step(tables.catalogue)
        blocks = tables.blocks_with([range(step, step + 1)])
        tasks = tables.rows(TASKS, few, pl.col("step") == step, blocks)
    return Timeline(tasks, ranks, tables.run(parts, ranks), groups=tables.groups())


def duration_ns(catalogue: Catalogue) -> int:
    """Return how long a dataset is from its first start to its last end, by the clocks of its ranks."""
    held = [held for part in catalogue.parts for held in part.blocks.values()]
    starts = [one.start_ns for one in held if one.start_ns is not None]
    ends = [one.end_ns for one in held if one.end_ns is not None]
    return max(ends) - min(starts) if starts and ends else 0


def _sampled(catalogue: Catalogue, steps: Sequence[int]) -> Notice:
    """Say which steps were read."""
    which = units.listed("step", list(steps))
    how = "of median length" if len(steps) == 1 else "evenly from the first to the last"
    text = (
        f"read {len(steps)} of the dataset's {len(catalogue.steps)} steps ({which}, {how}): all of "
        "them have more tasks than are read at once; --steps names others"
    )
    return Notice("sampled-steps", text, len(catalogue.steps) - len(steps), len(catalogue.steps))


class Tables(msgspec.Struct, frozen=True):
    """The tables of a dataset.

    Attributes:
        store: Where it lies.
        catalogue: Its catalogue.
    """

    store: Store
    catalogue: Catalogue

    def rows(
        self,
        table: str,
        parts: Iterable[Part],
        where: pl.Expr | None = None,
        blocks: Container[int] | None = None,
    ) -> pl.DataFrame:
        """Return rows of a table of several parts, in their order.

        Args:
            table: Its name.
            parts: The parts.
            where: Which rows; all if None.
            blocks: Of which blocks, if it is a table that tells steps apart; of all if None.

        Raises:
            SourceError: A file is missing or damaged.
        """
        if table not in BY_BLOCK:
            files = [table_file(table, part.name) for part in parts if part.rows.get(table)]
        else:
            files = [
                table_file(table, part.name, block)
                for part in parts
                for block, held in part.blocks.items()
                if held.rows.get(table) and (blocks is None or block in blocks)
            ]
        nothing = pl.DataFrame(schema=_SCHEMAS[table])
        if not files:
            return nothing
        with ThreadPoolExecutor(min(_THREADS, len(files), 2 * (os.cpu_count() or 1))) as pool:
            frames = list(pool.map(_frame, repeat(self.store), files, repeat(where)))
        frames = [_of_today(one, nothing.schema) for one in frames]
        odd = next((at for at, one in enumerate(frames) if one.schema != nothing.schema), None)
        if odd is not None:
            raise SourceError(
                self.store.place(files[odd]),
                f"has other columns than a table of {table}; make the dataset anew",
            )
        return pl.concat(frames)

    def ranks(self, parts: Iterable[Part]) -> pl.DataFrame:
        """Return the ranks of several parts."""
        return self.rows(RANKS, parts)

    def groups(self) -> pl.DataFrame:
        """Return the communication groups of all ranks."""
        if self.catalogue.groups is None:
            return pl.DataFrame(schema=TABLES["groups"].schema)
        return _frame(self.store, self.catalogue.groups)

    def run(self, parts: Iterable[Part], ranks: pl.DataFrame) -> Run:
        """Return what is known of a run, of which some parts are looked at."""
        runs = [manifest_of(self.store, part.name).run for part in parts]
        return together([*runs, self.catalogue.run], ranks)

    def part(
        self,
        steps: Sequence[range] | None,
        ranks: Sequence[range] | None,
        *,
        activities: bool = False,
    ) -> Timeline:
        """Return the run as far as some steps and ranks; all if None.

        Raises:
            SourceError: A file is damaged or missing.
            TimelineError: A step or rank is not in the dataset.
        """
        self.refuse_absent(steps, ranks)
        parts = [part for part in self.catalogue.parts if _overlaps(part.ranks, ranks)]
        mine = None if ranks is None else _within("rank", ranks)
        of_steps = None if steps is None else _within("step", steps)
        both = [one for one in (mine, of_steps) if one is not None]
        where = pl.all_horizontal(both) if both else None
        blocks = None if steps is None else self.blocks_with(steps)
        there = self.rows(RANKS, parts, mine)
        tables = {
            name: self.rows(name, parts, where if name in BY_BLOCK else mine, blocks)
            for name in (TASKS, *TABLES)
            if name != "groups" and (name != "activities" or activities)
        }
        tasks = tables.pop(TASKS)
        run = self.run(parts, there)
        try:
            return Timeline(tasks, there, run, groups=self.groups(), **tables)
        except TimelineError as error:
            raise SourceError(str(self.store), f"holds contradictory data ({error})") from None

    def blocks_with(self, steps: Sequence[range]) -> set[int]:
        """Return the blocks that have some of these steps."""
        size = self.catalogue.block_steps
        return {
            step // size if step > 0 else 0
            for step in self.catalogue.steps
            if any(step in some for some in steps)
        }

    def refuse_absent(
        self, steps: Sequence[range] | None, ranks: Sequence[range] | None = None
    ) -> None:
        """Refuse ranges of which nothing is in the dataset.

        Raises:
            TimelineError: There is one.
        """
        known = sorted(rank for part in self.catalogue.parts for rank in part.ranks)
        for what, wanted, present in (
            ("step", steps, self.catalogue.steps),
            ("rank", ranks, known),
        ):
            held = set(present)
            for some in wanted or ():
                if held.isdisjoint(some):
                    among(what, some[:1], present)


_SCHEMAS: Final = {
    TASKS: TASK_SCHEMA,
    RANKS: RANK_SCHEMA,
    **{name: table.schema for name, table in TABLES.items()},
}


def _overlaps(ranks: Iterable[int], wanted: Sequence[range] | None) -> bool:
    return wanted is None or any(rank in some for some in wanted for rank in ranks)


def _frame(store: Store, file: str, where: pl.Expr | None = None) -> pl.DataFrame:
    path = store.place(file)
    try:
        return parquet.read(store.read(file), where=where)
    except FileNotFoundError:
        raise SourceError(path, "is in the catalogue and missing; make the dataset anew") from None
    except UNREADABLE as error:
        raise SourceError(path, f"cannot be read as Parquet ({reason(error)})") from None


def _of_today(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """Return rows by the names that columns of names have today, if some were added since."""
    pairs = {name: (frame.schema.get(name), today) for name, today in schema.items()}
    more = [
        pl.col(name).cast(today)
        for name, (then, today) in pairs.items()
        if isinstance(then, pl.Enum)
        and isinstance(today, pl.Enum)
        and then != today
        and {*then.categories} <= {*today.categories}
    ]
    return frame.with_columns(more) if more else frame


def _within(column: str, wanted: Sequence[range]) -> pl.Expr:
    """Return whether a column has one of some numbers."""
    number = pl.col(column)
    return pl.any_horizontal(
        pl.lit(value=False), *(number.is_in(list(some)) if len(some) < 2 or some.step != 1 else
        number.is_between(some.start, some.stop - 1) for some in wanted)
    )  # fmt: skip


def together(runs: Sequence[Run], ranks: pl.DataFrame) -> Run:
    """Return what is known of a run that was read part by part.

    What a part was warned of that is about all ranks is said of these.
    """
    run = joined(runs, ranks.height)
    warnings = [one for one in run.warnings if one.code not in _OF_ALL]
    if any(one.code == "missing-ranks" for one in run.warnings) or (
        run.world is not None and run.world > ranks.height
    ):
        warnings = [*missing_ranks(ranks["rank"].to_list(), run.world), *warnings]
    hosts = ranks["host"].n_unique()
    if hosts > 1 and any(one.code == "clocks-unchecked" for one in run.warnings):
        warnings.append(clocks_unchecked(hosts))
    return msgspec.structs.replace(run, warnings=tuple(_summed(warnings)))


def _summed(notices: Iterable[Notice]) -> list[Notice]:
    """Return notices of which those that count the same thing, part by part, are one with the sums.

    "51 of 27555 operators were ..." of one part and "54 of 28758 operators were ..." of another.
    """
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    order: list[Notice | tuple[str, str]] = []
    for one in notices:
        head = f"{one.lost} of {one.total} "
        if one.lost is None or one.total is None or not one.message.startswith(head):
            order.append(one)
            continue
        key = one.code, one.message.removeprefix(head)
        if key not in counts:
            order.append(key)
        lost, total = counts.get(key, (0, 0))
        counts[key] = lost + one.lost, total + one.total
    return [
        Notice(one[0], f"{counts[one][0]} of {counts[one][1]} {one[1]}", *counts[one])
        if isinstance(one, tuple)
        else one
        for one in order
    ]
