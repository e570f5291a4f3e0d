"""One part of a dataset: a worker reads a batch of traces and writes its tables, cut into blocks."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model.files import replacing
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
    from pathlib import Path

    from bubblescope.datasets.batches import Batch
    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.source import LoadOptions

_ROWS: Final = 20_000
"""Rows of a row group: a reader that wants few ranks of a step skips the others."""
_TASK_ORDER: Final = ("step", "rank", "lane", "start_ns", "end_ns")
_LOCAL: Final = {"microbatch": None, "step": None, "peer": None, "certainty": None,
    "stage": "rank and parallel sizes, in Megatron's order"}  # fmt: skip
"""What may be inferred of a part as of the whole run, and how; None is in whatever way: each rank's own
order tells it."""
_ALONE: Final = frozenset({"no-absolute-time"})
"""Codes of notices that say that traces were placed by each other."""


class Job(msgspec.Struct, frozen=True):
    """What a worker needs to make a part.

    Attributes:
        root: Folder of the dataset.
        batch: What to read.
        how: How to read it.
        options: What decides what is made of it, for the manifest.
        block_steps: Steps of a block.
    """

    root: Path
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
    part = write_part(timeline, job.root, job.batch.name(job.options), job.block_steps)
    manifest = Manifest(
        part,
        job.batch.source,
        job.batch.inputs,
        job.options,
        timeline.run,
        needs_all(timeline),
        __version__,
    )
    with replacing(_made(job.root / MANIFESTS / f"{part.name}.json")) as file:
        file.write_bytes(msgspec.json.encode(manifest))
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


def write_part(timeline: Timeline, root: Path, name: str, block_steps: int) -> Part:
    """Write the tables of some ranks; files of these names are replaced one by one.

    Args:
        timeline: Some ranks of a run.
        root: Folder of the dataset.
        name: Of the part.
        block_steps: Steps of a block.
    """
    rows: dict[str, int] = {}
    by_block: dict[int, dict[str, int]] = {}
    spans: dict[int, dict[int, Span]] = {}
    for table, frame in {TASKS: timeline.tasks, **timeline.tables}.items():
        if table not in BY_BLOCK:
            if frame.height:
                rows[table] = _write(frame, table_file(root, table, name))
            continue
        order = _TASK_ORDER if table == TASKS else ("step", *TABLES[table].order)
        sorted_ = frame.sort([*dict.fromkeys(order)], nulls_last=True, maintain_order=True)
        for block, held in _blocks(sorted_, block_steps):
            by_block.setdefault(block, {})[table] = _write(
                held, table_file(root, table, name, block)
            )
            known = spans.setdefault(block, {})
            for span in _spans(held, timed=table == TASKS):
                known.setdefault(span.step, span)  # tasks come first
    rows[RANKS] = _write(timeline.ranks, table_file(root, RANKS, name))
    return Part(
        name,
        tuple(timeline.ranks["rank"]),
        tuple(timeline.ranks["host"].unique().sort()),
        {
            block: Held(held, tuple(spans[block][step] for step in sorted(spans[block])))
            for block, held in sorted(by_block.items())
        },
        rows,
    )


def _spans(rows: pl.DataFrame, *, timed: bool) -> list[Span]:
    """Return the steps that rows are of, and from when to when, if that is what they tell."""
    steps = rows.drop_nulls("step").group_by("step")
    if not timed:
        return [Span(step, None, None) for (step,), _ in steps]
    edges = steps.agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return [Span(*row) for row in edges.iter_rows()]


def _blocks(frame: pl.DataFrame, block_steps: int) -> list[tuple[int, pl.DataFrame]]:
    """Return a table's rows by their block."""
    block = (pl.col("step") // block_steps).clip(lower_bound=0).fill_null(NO_STEP).alias("block")
    parts = frame.with_columns(block).partition_by("block", as_dict=True, include_key=False)
    return [(int(key[0]), rows) for key, rows in parts.items()]


def _write(frame: pl.DataFrame, path: Path) -> int:
    whole = io.BytesIO()  # Polars does not say what was wrong with a disk
    frame.write_parquet(whole, row_group_size=_ROWS)
    with replacing(_made(path)) as file:
        file.write_bytes(whole.getbuffer())
    return frame.height


def _made(path: Path) -> Path:
    """Return a path whose folder there is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
