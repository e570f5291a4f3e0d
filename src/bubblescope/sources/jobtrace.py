"""Job traces of ByteDance's StragglerAnalysis: one Parquet table of a whole job's operations.

Every step has a zero of its own, which all ranks share; times are float32 seconds
(https://github.com/ByteDance-Seed/StragglerAnalysis; Lin et al., "Understanding Stragglers in Large
Model Training Using What-if Analysis", OSDI 2025, arXiv 2505.05713).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model import parquet
from bubblescope.model.bounds import RANKS
from bubblescope.model.column_types import UnfitError, typed
from bubblescope.model.errors import SourceError, reason
from bubblescope.model.kinds import TRANSFERS, Kind
from bubblescope.model.parquet import UNREADABLE
from bubblescope.model.provenance import Notice
from bubblescope.model.timing import DEVICE
from bubblescope.sources.assembly import assembled
from bubblescope.sources.operation_names import (
    contents,
    one_place_each,
    operations,
    peers,
    together,
)
from bubblescope.sources.parallel import read_each
from bubblescope.sources.plausibility import impossible_times

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.source import ReadOptions

_MAGIC: Final = b"PAR1"
_NAME: Final = re.compile(r"trace-.+\.parquet")
_SIGNS: Final = {"optype", "start_ts", "duration"}
_NEEDED: Final = {
    "dp_rank": pl.Int32,
    "stage": pl.Int32,
    "step": pl.Int32,
    "optype": pl.String,
    "start_ts": pl.Float64,
    "duration": pl.Float64,
}
_OPTIONAL: Final = {
    "rank": pl.Int32,
    "seq_id": pl.Int32,
    "mc": pl.Int16,
    "mb_id": pl.Int32,
    "gmc": pl.Int32,
}
_LONGEST_S: Final = 86_400.0
_MOVES: Final = [kind.value for kind in TRANSFERS]


class JobTraceSource:
    """Reads the Parquet tables of whole jobs."""

    name = "jobtrace"
    summary = "job traces of ByteDance's StragglerAnalysis (.parquet)"

    def detect(self, path: Path) -> bool:
        """Recognise a table by its columns."""
        if not path.is_file():
            return False
        try:
            with path.open("rb") as file:
                if file.read(4) != _MAGIC:
                    return False
            return set(parquet.columns_of(path)) >= _SIGNS
        except UNREADABLE:
            return _NAME.fullmatch(path.name) is not None

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read the tables of one job.

        Raises:
            SourceError: A table is damaged or lacks columns, or two hold the same operations.
        """
        tables, notices = together(read_each(_read, paths, options, what="reading job traces"))
        table = pl.concat(tables)
        key = ["rank", "step", "name", "sequence", "chunk", "microbatch", "start_ns"]
        twice = table.height - table.select(key).n_unique()
        if twice:
            table = table.unique(key, keep="first", maintain_order=True)
            text = f"{twice} operations are there twice; one of each was kept"
            notices.append(Notice("repeated-rows", text, twice, table.height + twice))
        ranks, inferred = _ranks(paths, table)
        tasks = _laid_out(_meant(table, options), ranks)
        notices.append(_layout(table))
        return assembled(
            "jobtrace",
            [(None, path) for path in paths],
            tasks,
            ranks,
            notices=notices,
            contents=contents(paths, tables, options.names),
            inferred=inferred,
            microbatches=_microbatches(tasks),
            timed=DEVICE,
        )


def _read(path: Path, _: Progress) -> tuple[pl.DataFrame, list[Notice]]:
    """Return one table in our own terms, and what is wrong with it."""
    try:
        frame = parquet.read(path)
    except UNREADABLE as error:
        raise SourceError(
            path, f"cannot be read as Parquet ({reason(error)}); copy it again"
        ) from None
    if missing := [name for name in _NEEDED if name not in frame.columns]:
        raise SourceError(
            path,
            f"has no column {', '.join(missing)}; a job trace has {', '.join(_NEEDED)} and may have "
            f"{', '.join(_OPTIONAL)}",
        )
    columns = []
    for name, dtype in {**_NEEDED, **_OPTIONAL}.items():
        if name not in frame.columns:
            columns.append(pl.lit(None, dtype).alias(name))
            continue
        try:
            columns.append(pl.lit(typed(frame[name], dtype)).alias(name))
        except UnfitError as error:
            raise SourceError(path, f"{error}; copy it again") from None
    table = frame.select(columns)
    total = table.height
    possible = (
        pl.all_horizontal(pl.col(list(_NEEDED)).is_not_null())
        & pl.col("start_ts").is_between(-_LONGEST_S, _LONGEST_S)
        & pl.col("duration").is_between(0, _LONGEST_S)
        & pl.all_horizontal(pl.col("dp_rank", "stage").is_between(0, RANKS - 1))
        & pl.all_horizontal((pl.col("rank", "mb_id", "gmc") < RANKS).fill_null(value=True))
    )
    table = table.filter(possible)
    notices = impossible_times(total - table.height, total, "operations", str(path))
    if total and not table.height:
        raise SourceError(
            path,
            "holds no operation whose time can be: times are seconds within a step, from 0 to a day; "
            "these may be of another unit or since 1970",
        )

    def applicable(name: str) -> pl.Expr:
        return pl.when(pl.col(name) >= 0).then(pl.col(name))

    replicas = int(table["dp_rank"].max() or 0) + 1 if table.height else 1  # type: ignore[arg-type]
    whole = pl.col("rank").is_not_null() & (pl.col("rank") >= 0)
    return table.select(
        "step",
        rank=pl.when(whole).then("rank").otherwise(pl.col("stage") * replicas + pl.col("dp_rank")),
        dp=pl.col("dp_rank"),
        device=pl.col("stage"),
        name=pl.col("optype"),
        stage=applicable("gmc"),
        chunk=applicable("mc"),
        microbatch=applicable("mb_id"),
        sequence=applicable("seq_id"),
        start_ns=(pl.col("start_ts") * 1e9).round().cast(pl.Int64),
        end_ns=((pl.col("start_ts") + pl.col("duration")) * 1e9).round().cast(pl.Int64),
    ), notices


def _ranks(paths: Sequence[Path], table: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, str]]:
    """Return the ranks, each with the stages that it ran, or else its place in the pipeline."""
    found = one_place_each(paths, table, stages=pl.col("stage").drop_nulls().unique().sort())
    known = pl.when(pl.col("stages").list.len() > 0).then("stages")
    ranks = found.select(
        "rank",
        "dp",
        host=pl.lit("unknown"),
        stages=known.otherwise(pl.concat_list("device")),
        tp=pl.lit(None, pl.Int32),
    )
    inferred = {"peer": "data-parallel replica and neighbouring stage"}
    if not (table["chunk"].fill_null(0) > 0).any():
        inferred["microbatch"] = "order of sends and receives within the step"
    return ranks, inferred


def _meant(table: pl.DataFrame, options: ReadOptions) -> pl.DataFrame:
    """Give each operation its kind; of sends and receives, the k-th is of micro-batch k."""
    single = not (table["chunk"].fill_null(0) > 0).any()
    moves = pl.col("kind").is_in(_MOVES)
    return table.join(operations(table["name"], options.names), on="name").with_columns(
        microbatch=pl.when(pl.col("kind") == Kind.GC.value)
        .then(None)
        .when(moves & pl.lit(single))
        .then(pl.coalesce("microbatch", "sequence"))
        .otherwise("microbatch"),
        stage=pl.when(moves & pl.lit(single))
        .then(pl.coalesce("stage", "device"))
        .otherwise("stage"),
    )


def _laid_out(tasks: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Put the steps one after the other on one axis: each begins where all of the last is over."""
    steps = (
        tasks.group_by("step")
        .agg(low=pl.col("start_ns").min().clip(upper_bound=0), high=pl.col("end_ns").max())
        .sort("step")
        .with_columns(length=pl.col("high") - pl.col("low"))
        .with_columns(shift=pl.col("length").cum_sum() - pl.col("length") - pl.col("low"))
    )
    return peers(
        tasks.join(steps.select("step", "shift"), on="step").with_columns(
            pl.col("start_ns", "end_ns") + pl.col("shift")
        ),
        ranks,
    )


def _layout(table: pl.DataFrame) -> Notice:
    """Say what the times are worth."""
    longest = int(table["end_ns"].max() or 0)  # type: ignore[arg-type]
    resolution = max(1, round(longest * 2**-24))
    return Notice(
        "steps-laid-out",
        "each step counts time from its own zero, so steps are placed one after the other and the time "
        f"between them is unknown; within a step, float32 seconds resolve {resolution:,} ns",
    )


def _microbatches(tasks: pl.DataFrame) -> int | None:
    forwards = tasks.filter(pl.col("kind") == Kind.FORWARD.value)
    highest = forwards["microbatch"].max()
    return highest + 1 if isinstance(highest, int) else None
