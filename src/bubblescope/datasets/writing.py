"""One part of a dataset: a worker reads a batch of traces and writes its tables, cut into blocks."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model.extents import extents, extremes
from bubblescope.model.ordering import order_of_runs, stretches
from bubblescope.model.timeline_tables import TABLES
from bubblescope.model.version import __version__
from bubblescope.sources import read_part
from bubblescope.sources.dataset.catalogue import (
    BY_BLOCK,
    MANIFESTS,
    NO_STEP,
    RANKS,
    TASKS,
    Held,
    Manifest,
    Part,
    Span,
    table_file,
)

if TYPE_CHECKING:
    from bubblescope.datasets.batches import Batch
    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.dataset.store import Store
    from bubblescope.sources.source import LoadOptions

_LEVEL: Final = 2
"""How hard it is packed: 3, as Polars has it, takes a tenth longer to save a fiftieth."""

_ROWS: Final = 16_384
"""Rows of a row group: a reader that wants one step, or few ranks of it, skips the others."""
_LOCAL: Final = {"microbatch": None, "step": None, "peer": None, "certainty": None,
    "stage": "rank and parallel sizes, in Megatron's order"}  # fmt: skip
"""What may be inferred of a part as of the whole run, and how; None is in whatever way: each rank's own
order tells it."""
_ALONE: Final = frozenset({"no-absolute-time"})
"""Codes of notices that say that traces were placed by each other."""


class Job(msgspec.Struct, frozen=True):
    """What a worker needs to make a part.

    Attributes:
        store: Where the dataset lies.
        batch: What to read.
        how: How to read it.
        options: What decides what is made of it, for the manifest.
        block_steps: Steps of a block.
    """

    store: Store
    batch: Batch
    how: LoadOptions
    options: dict[str, str]
    block_steps: int

    def __str__(self) -> str:
        return str(self.batch)


def make_part(job: Job) -> str:
    """Read a batch of traces, write them as a part of a dataset, and return the part's name.

    Raises:
        SourceError: As `bubblescope.load`, and its other errors.
        OSError: It cannot be written.
    """
    timeline = read_part(job.batch.source, job.batch.paths, job.how)
    part = write_part(timeline, job.store, job.batch.name(job.options), job.block_steps)
    manifest = Manifest(
        part,
        job.batch.source,
        job.batch.inputs,
        job.options,
        timeline.run,
        needs_all(timeline),
        __version__,
    )
    job.store.write(f"{MANIFESTS}/{part.name}.json", msgspec.json.encode(manifest))
    return part.name


def needs_all(timeline: Timeline) -> str | None:
    """Say what of a part of a run only all ranks together tell; None if there is nothing."""
    if timeline.tasks["certainty"].is_not_null().any():
        return "which pass is which"
    for field, how in timeline.run.inferred.items():
        if field not in _LOCAL or _LOCAL[field] not in {None, how}:
            return {"stage": "the order of stages", "rank": "which rank each is"}.get(field, field)
    if any(one.code in _ALONE for one in timeline.run.warnings):
        return "when each began"
    return None


def write_part(timeline: Timeline, store: Store, name: str, block_steps: int) -> Part:
    """Write the tables of some ranks; files of these names are replaced one by one.

    Args:
        timeline: Some ranks of a run.
        store: Where the dataset lies.
        name: Of the part.
        block_steps: Steps of a block.
    """
    rows: dict[str, int] = {}
    blocks: dict[int, _Block] = {}
    begun = _begun(timeline, block_steps)
    for table, frame in {TASKS: timeline.tasks, **timeline.tables}.items():
        if table not in BY_BLOCK:
            if frame.height:
                rows[table] = _write(frame, store, table_file(table, name))
            continue
        for block, held in _blocks(_by_step(frame, table), begun, block_steps):
            _write(held, store, table_file(table, name, block))
            blocks.setdefault(block, _Block()).add(table, held)
    rows[RANKS] = _write(timeline.ranks, store, table_file(RANKS, name))
    return Part(
        name,
        tuple(timeline.ranks["rank"]),
        tuple(timeline.ranks["host"].unique().sort()),
        {block: held.said() for block, held in sorted(blocks.items())},
        rows,
    )


def _by_step(frame: pl.DataFrame, table: str) -> pl.DataFrame:
    """Return a timeline's table by step, then in its own order; rows of no step come last."""
    if table == TASKS:  # in its order already, of columns that are never null
        return frame[order_of_runs(frame["step"].cast(pl.Int64).fill_null(_LAST).to_numpy())]
    order = dict.fromkeys(("step", *TABLES[table].order))
    return frame.sort([*order], nulls_last=True, maintain_order=True)


_LAST: Final = 1 << 32


class _Block:
    """What a part has of a block, table by table; tasks come first."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._spans: dict[int, Span] = {}
        self._times: list[int] = []
        self._stepless = False

    def add(self, table: str, rows: pl.DataFrame) -> None:
        """Add the rows of a table."""
        self._rows[table] = rows.height
        self._stepless |= rows["step"].has_nulls()
        stepped = rows.drop_nulls("step")
        start, end = pl.col("start_ns").min(), pl.col("end_ns").max()
        if "start_ns" in rows.columns:
            self._times += [time for time in rows.select(start, end).row(0) if time is not None]
        if table == TASKS:
            self._spans = {row[0]: Span(*row) for row in extents(stepped, "step").iter_rows()}
        else:
            for step in stepped["step"].unique():
                self._spans.setdefault(step, Span(step, None, None))

    def said(self) -> Held:
        """Return what the catalogue says of it."""
        return Held(
            self._rows,
            tuple(self._spans[step] for step in sorted(self._spans)),
            min(self._times, default=None),
            max(self._times, default=None),
            self._stepless,
        )


def _begun(timeline: Timeline, block_steps: int) -> pl.DataFrame:
    """Return when each rank began each block, by its own clock: rank, start_ns and block."""
    of = timeline.tasks if timeline.tasks["step"].is_not_null().any() else timeline.step_times
    known = of.select("rank", "start_ns", block=_block_of(block_steps)).drop_nulls()
    first = extremes(known.drop("start_ns"), least={"start_ns": known["start_ns"].to_numpy()})
    return first.drop("count").sort("start_ns")


def _block_of(block_steps: int) -> pl.Expr:
    return (pl.col("step") // block_steps).clip(lower_bound=0)


def _blocks(
    frame: pl.DataFrame, begun: pl.DataFrame, block_steps: int
) -> list[tuple[int, pl.DataFrame]]:
    """Return a table's rows by their block.

    Rows of no step are in the block in whose time they begin on their rank, or in its first.
    """
    block = _block_of(block_steps)
    if frame["step"].has_nulls() and "start_ns" in frame.columns:
        first = begun.sort("rank", "start_ns").unique("rank", keep="first", maintain_order=True)
        at = (
            frame.select("rank", "start_ns")
            .with_row_index("row")
            .sort("start_ns")
            .join_asof(begun, on="start_ns", by="rank", check_sortedness=False)
            .join(first.select("rank", first="block"), on="rank", how="left")
            .sort("row")
        )
        block = pl.coalesce(block, at.select(pl.coalesce("block", "first")).to_series())
    placed = frame.with_columns(block.fill_null(NO_STEP).alias("block"))
    begins = stretches(placed, "block").tolist()
    numbers = placed["block"][begins].to_list()
    if len({*numbers}) == len(numbers):
        edges = zip(numbers, begins, [*begins, frame.height][1:], strict=True)
        return [(int(number), frame[begin:end]) for number, begin, end in edges]
    parts = placed.partition_by("block", as_dict=True, include_key=False)
    return [(int(key[0]), rows) for key, rows in parts.items()]


def _write(frame: pl.DataFrame, store: Store, file: str) -> int:
    whole = io.BytesIO()
    frame.write_parquet(whole, row_group_size=_ROWS, compression_level=_LEVEL)
    with whole.getbuffer() as content:
        store.write(file, content)
    return frame.height
