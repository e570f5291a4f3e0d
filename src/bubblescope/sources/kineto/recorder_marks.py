"""Traces of a job that was recorded as well: `bubblescope record --marks torch`.

The recorder's marks name every task with all its numbers. PyTorch names many of the same tasks itself,
a little wider than the recorder does, and counts steps from where its profiler began. Taken together,
tasks would come twice and steps of two counts would be mixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model.kinds import COMPUTE_KINDS, Kind
from bubblescope.names.recorder_ranges import MARK_PREFIX
from bubblescope.sources.capture import LAUNCHES, RANGES, WORK, Capture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bubblescope.names.parsed import ParsedName
    from bubblescope.names.parser import NameParser
    from bubblescope.sources.kineto.collector import Events

    Meaning = Mapping[str, Sequence[ParsedName]]

_PASSES: Final = COMPUTE_KINDS - {Kind.RECOMPUTE}
_RECEIVES: Final = frozenset({Kind.RECV_FORWARD, Kind.RECV_BACKWARD})


def told_by_marks(events: Events, names: NameParser) -> Events:
    """Return a trace without what names the recorder's tasks a second time.

    Without a device, a mark is its task, from beginning to end, as the recorder timed it: neither a
    wait for a receive nor a backward without a gradient to compute has any operator.

    Args:
        events: Any trace; it comes back as it is unless the recorder's marks name its passes.
        names: What range names mean.
    """
    ranges = events.capture.ranges
    ours = ranges.filter(pl.col("name").str.starts_with(MARK_PREFIX))
    meaning = names.parse_all(ours["name"])
    told = {said.kind for parsed in meaning.values() for said in parsed if said.kind}
    if not told & _PASSES:
        return events
    others = ranges.filter(~pl.col("name").str.starts_with(MARK_PREFIX))
    of_others = names.parse_all(others["name"])
    steps = _steps(ours, meaning, others, of_others)
    if events.on_device:
        others = others.filter(~pl.col("name").is_in(_again(of_others, told)))
        capture = msgspec.structs.replace(
            events.capture, ranges=pl.concat([ours, others, steps]).sort("start_ns")
        )
    else:
        capture = _of_marks(ours.filter(pl.col("name").is_in(list(meaning))), steps)
    return msgspec.structs.replace(events, capture=capture)


def _again(meaning: Meaning, told: set[Kind]) -> list[str]:
    """Return the names that say what marks say.

    A receive's mark is about waiting for it, in which nothing is launched; PyTorch's own range is about
    its kernels, and stays.
    """
    known: set[Kind | None] = {None, *_PASSES, *(told - _RECEIVES)}
    return [name for name, parsed in meaning.items() if all(said.kind in known for said in parsed)]


def _steps(
    ours: pl.DataFrame, meaning: Meaning, others: pl.DataFrame, of_others: Meaning
) -> pl.DataFrame:
    """Return a range for each step of the marks, with the columns of `RANGES`.

    It ends with the step's last mark. It begins where PyTorch says that a step begins: receives are
    issued before the first mark.
    """
    step_of = {name: parsed[0].step for name, parsed in meaning.items()}
    markers = [name for name, parsed in of_others.items() if parsed[0].kind is None]
    begins = others.filter(pl.col("name").is_in(markers)).select("start_ns", since_ns="start_ns")
    return (
        ours.with_columns(
            step=pl.col("name").replace_strict(step_of, default=None, return_dtype=pl.Int64)
        )
        .drop_nulls("step")
        .group_by("process", "step")
        .agg(pl.col("thread").first(), pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("start_ns")
        .join_asof(begins.sort("start_ns"), on="start_ns")
        .with_columns(
            start_ns=pl.coalesce("since_ns", "start_ns"),
            name=pl.format(f"{MARK_PREFIX}step step={{}}", "step"),
        )
        .select(*RANGES)
    )


def _of_marks(ours: pl.DataFrame, steps: pl.DataFrame) -> Capture:
    """Let marks stand for launch and work at once."""
    work = ours.with_columns(
        device=pl.lit(0, pl.Int32),
        correlation=pl.int_range(pl.len(), dtype=pl.Int64),
        comm=pl.lit(None, pl.Int32),
        copy=pl.lit(None, pl.Int8),
        stream=pl.lit(None, pl.Int32),
        kernel=pl.lit(None, pl.Int32),
    )
    return Capture(pl.concat([ours, steps]), work.select(*LAUNCHES), work.select(*WORK))
