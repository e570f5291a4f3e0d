"""From a dataset to the timeline of its run, or of some steps and ranks of it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model import parquet, units
from bubblescope.model.errors import SourceError, TimelineError, reason
from bubblescope.model.parquet import UNREADABLE
from bubblescope.model.provenance import Notice, clocks_unchecked
from bubblescope.model.timeline import RANK_SCHEMA, TASK_SCHEMA, Timeline, among, joined
from bubblescope.model.timeline_tables import TABLES
from bubblescope.sources.dataset.catalogue import (
    BY_BLOCK,
    NO_STEP,
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
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from bubblescope.model.provenance import Run
    from bubblescope.sources.source import ReadOptions

_OF_ALL: Final = frozenset({"missing-ranks", "clocks-unchecked"})
"""Codes of notices about all the ranks of a run, which say nothing of a part."""
_THREADS: Final = 8


def read_dataset(root: Path, options: ReadOptions) -> Timeline:
    """Read a dataset, or the part of it that the options ask for.

    Raises:
        SourceError: It is not finished, or damaged; names the file.
    """
    catalogue = catalogue_of(root)
    if not catalogue.finished:
        raise SourceError(
            root,
            f"was not finished: {len(catalogue.parts)} parts are in it, and {catalogue.inputs} traces "
            "were to be read; give the command that made it once more, and it goes on",
        )
    options.progress.begin("reading the dataset", None)
    steps, notices = options.steps, []
    if steps is None and options.enough is not None:
        some = few_steps(catalogue, options.enough)
        if len(some) < len(catalogue.steps):
            steps = [range(step, step + 1) for step in some]
            notices.append(_sampled(catalogue, some))
    part = _Slice(root, catalogue, steps, options.ranks)
    return part.timeline(activities=options.activities).with_notices(*notices)


def few_steps(catalogue: Catalogue, enough: int) -> list[int]:
    """Return as many of a dataset's steps as have about so many tasks, at least one.

    They are from the first to the last as evenly as can be; one alone is of median length.
    """
    steps = catalogue.steps
    tasks = sum(part.count(TASKS) for part in catalogue.parts)
    count = max(1, enough * len(steps) // max(1, tasks))
    if count >= len(steps):
        return list(steps)
    if count == 1:
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


def _sampled(catalogue: Catalogue, steps: Sequence[int]) -> Notice:
    """Say which steps were read."""
    which = units.listed("step", list(steps))
    how = "of median length" if len(steps) == 1 else "evenly from the first to the last"
    text = (
        f"of the dataset's {len(catalogue.steps)} steps, {len(steps)} were read ({which}, {how}): its "
        "tasks are more than fit into memory; --steps names others"
    )
    return Notice("sampled-steps", text, len(catalogue.steps) - len(steps), len(catalogue.steps))


class _Slice(msgspec.Struct, frozen=True):
    """Some steps and ranks of a dataset.

    Attributes:
        root: Its folder.
        catalogue: Its catalogue.
        steps: The steps; all if None.
        ranks: The ranks; all if None.
    """

    root: Path
    catalogue: Catalogue
    steps: Sequence[range] | None
    ranks: Sequence[range] | None

    def timeline(self, *, activities: bool) -> Timeline:
        """Return the run as far as these steps and ranks.

        Raises:
            SourceError: A file is damaged or missing.
            TimelineError: A step or rank is not in the dataset.
        """
        self._refuse_absent()
        parts = [part for part in self.catalogue.parts if self._has_ranks(part)]
        runs = [manifest_of(self.root, part.name).run for part in parts]
        ranks = self._of_ranks(self._frames([self._file(part, RANKS) for part in parts]))
        ranks = ranks if ranks is not None else pl.DataFrame(schema=RANK_SCHEMA)
        tasks = self._table(TASKS, parts)
        tables = {
            name: self._table(name, parts) for name in TABLES if name != "activities" or activities
        }
        held = {name: frame for name, frame in tables.items() if frame is not None}
        if self.catalogue.groups is not None:
            held["groups"] = _frame(self.root / self.catalogue.groups)
        try:
            return Timeline(
                tasks if tasks is not None else pl.DataFrame(schema=TASK_SCHEMA),
                ranks,
                together([*runs, self.catalogue.run], ranks),
                **held,
            )
        except TimelineError as error:
            raise SourceError(self.root, f"holds what contradicts itself ({error})") from None

    def _table(self, name: str, parts: Iterable[Part]) -> pl.DataFrame | None:
        """Return the rows of a table; None if there are none."""
        if name not in BY_BLOCK:
            files = [self._file(part, name) for part in parts if part.rows.get(name)]
            rows = self._frames(files)
            return rows if rows is None or "rank" not in rows.columns else self._of_ranks(rows)
        files = [
            table_file(self.root, name, part.name, block)
            for part in parts
            for block, held in part.blocks.items()
            if held.rows.get(name) and self._has_steps(block)
        ]
        rows = self._of_ranks(self._frames(files))
        if rows is not None and self.steps is not None:
            rows = rows.filter(_within("step", self.steps))
        return rows

    def _of_ranks(self, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Return the rows of the wanted ranks."""
        if rows is None or self.ranks is None:
            return rows
        return rows.filter(_within("rank", self.ranks))

    def _refuse_absent(self) -> None:
        """Refuse ranges of which nothing is in the dataset."""
        ranks = sorted(rank for part in self.catalogue.parts for rank in part.ranks)
        for what, wanted, present in (
            ("step", self.steps, self.catalogue.steps),
            ("rank", self.ranks, ranks),
        ):
            held = set(present)
            for some in wanted or ():
                if held.isdisjoint(some):
                    among(what, some[:1], present)

    def _file(self, part: Part, table: str) -> Path:
        return table_file(self.root, table, part.name)

    def _has_ranks(self, part: Part) -> bool:
        return self.ranks is None or any(rank in some for some in self.ranks for rank in part.ranks)

    def _has_steps(self, block: int) -> bool:
        if self.steps is None:
            return True
        if block == NO_STEP:
            return False
        first = block * self.catalogue.block_steps
        mine = range(first, first + self.catalogue.block_steps)
        return any(some.start < mine.stop and mine.start < some.stop for some in self.steps)

    @staticmethod
    def _frames(files: Sequence[Path]) -> pl.DataFrame | None:
        """Return the rows of several files, in their order; None if there is no file.

        Raises:
            SourceError: One is missing or damaged.
        """
        if not files:
            return None
        with ThreadPoolExecutor(min(_THREADS, len(files), 2 * (os.cpu_count() or 1))) as pool:
            frames = list(pool.map(_frame, files))
        try:
            return pl.concat(frames)
        except pl.exceptions.PolarsError:  # tables of other columns
            first = frames[0].schema
            odd = next(at for at, frame in enumerate(frames) if frame.schema != first)
            raise SourceError(
                files[odd], f"has other columns than {files[0].name}; make the dataset anew"
            ) from None


def _frame(path: Path) -> pl.DataFrame:
    try:
        return parquet.read(path)
    except FileNotFoundError:
        raise SourceError(path, "is in the catalogue and missing; make the dataset anew") from None
    except UNREADABLE as error:
        raise SourceError(path, f"cannot be read as Parquet ({reason(error)})") from None


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
