"""The steps of a trace, in host time, told by the best evidence that it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.model.kinds import Kind
from bubblescope.sources.capture import RANGES
from bubblescope.sources.kineto.nesting import outermost

if TYPE_CHECKING:
    from bubblescope.names.parser import NameParser
    from bubblescope.sources.kineto.collector import Events

STEPS: Final = {**RANGES, "step": pl.Int64}
"""Columns of step ranges: those of `RANGES`, and the step's number or ordinal."""

REPEATED: Final = (
    r"(?i)^(?:## )?(?:execute_|step\[|(?:(?:train|eval|inference|decode)(?:ing)?[ _]?)?"
    r"(?:step|iter|iteration)(?:[ _#:.=]*\d+| ##|$))"
)
"""Annotations of a job's own steps: vLLM and SGLang name theirs `execute_...`, SGLang `step[DECODE
bs=32]`, training loops `iteration 7` and the like."""

_HOW_REPEATED: Final = "a step is an outermost range named execute_*, step[*] or iteration N"
_HOW_OPTIMIZER: Final = "a step ends with its optimizer"


class Steps(NamedTuple):
    """The steps of a trace.

    Attributes:
        ranges: Frame with the columns of `STEPS`, by start; empty if nothing shows them.
        how: How they were found; None if the trace states them, or shows none.
        marked: Whether each has a range of its own in the trace.
    """

    ranges: pl.DataFrame
    how: str | None
    marked: bool


def step_ranges(events: Events, names: NameParser) -> Steps:
    """Return the steps of a trace in host time.

    The evidence, in this order: markers that state them (`ProfilerStep#7`); outermost ranges with
    the name of a step (`REPEATED`); ends of optimizers, of which all up to the next other launch
    of device work are one step's. In the last case a step begins where the one before it ended, and
    work after the last optimizer belongs to none.

    Args:
        events: Any trace.
        names: What range names mean.
    """
    ranges = events.capture.ranges.drop_nulls("end_ns")
    meaning = names.parse_all(ranges["name"])
    number = {name: parsed[0].step for name, parsed in meaning.items() if parsed[0].kind is None}
    stated = ranges.filter(pl.col("name").is_in(list(number))).sort("start_ns")
    if stated.height:
        said = pl.col("name").replace_strict(number, default=None, return_dtype=pl.Int64)
        return Steps(_numbered(stated, said), None, marked=True)
    repeated = ranges.filter(
        pl.col("name").str.contains(REPEATED) & ~pl.col("name").is_in(list(meaning))
    )
    if repeated.height:
        most = repeated["thread"].mode().sort()[0]
        outer = outermost(repeated.filter(pl.col("thread") == most))
        return Steps(_numbered(outer), _HOW_REPEATED, marked=True)
    optimizing = [name for name, parsed in meaning.items() if parsed[0].kind is Kind.OPTIMIZER]
    optimizers = ranges.filter(pl.col("name").is_in(optimizing))
    if optimizers.height:
        return Steps(_ended(optimizers, events), _HOW_OPTIMIZER, marked=False)
    return Steps(pl.DataFrame(schema=STEPS), None, marked=False)


def _numbered(ranges: pl.DataFrame, number: pl.Expr | None = None) -> pl.DataFrame:
    """Add the steps' numbers: those stated, or else their ordinals."""
    ordinal = pl.int_range(pl.len(), dtype=pl.Int64)
    step = ordinal if number is None else pl.coalesce(number, ordinal)
    return ranges.sort("start_ns").with_columns(step=step).select(*STEPS)


def _ended(optimizers: pl.DataFrame, events: Events) -> pl.DataFrame:
    """Return steps that end with the last of their optimizers, on the optimizers' thread."""
    most = optimizers["thread"].mode().sort()[0]
    outer = outermost(optimizers.filter(pl.col("thread") == most))
    launched = events.capture.launches.join(events.capture.work, on="correlation", how="semi")
    launches = launched.select("start_ns").sort("start_ns")
    # A group goes on as long as nothing is launched between one optimizer and the next.
    before = launches["start_ns"].search_sorted(outer["start_ns"], side="left")
    until = launches["start_ns"].search_sorted(outer["end_ns"], side="left")
    last = (before.shift(-1) != until).fill_null(value=True)
    ends = outer.filter(last)
    first = launches["start_ns"].min() if launches.height else None
    begin = ends["end_ns"].shift(1).fill_null(first if first is not None else outer["start_ns"][0])
    return _numbered(ends.with_columns(start_ns=pl.min_horizontal(begin, "start_ns")))
