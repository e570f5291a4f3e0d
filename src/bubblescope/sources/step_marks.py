"""The steps of a process, in host time, told by the best evidence that its trace holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.device_time import lookup
from bubblescope.model.kinds import Kind
from bubblescope.sources.capture import A_GRAPH, RANGES
from bubblescope.sources.kernel_period import steps_of_kernels
from bubblescope.sources.nesting import outermost
from bubblescope.sources.phase_evidence import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.names.parser import NameParser
    from bubblescope.sources.phase_evidence import Traced

STEPS: Final = {**RANGES, "step": pl.Int64}
"""Columns of step ranges: those of `RANGES`, and the step's number or ordinal."""

REPEATED: Final = (
    r"(?i)^(?:## )?(?:execute_|step\[|(?:(?:train(?:ing)?|eval(?:uation)?|val(?:idation)?|inference|"
    r"decode|global|mini|warm[ _-]?up|benchmark|measured?|timed|profiled?)[ _/-]?)?"
    r"(?:step|iter|iteration|batch)(?:[ _#:.=-]*\d+| ##|$))"
)
"""Annotations of a job's own steps: vLLM and SGLang name theirs `execute_...`, SGLang `step[DECODE
bs=32]`, training loops `iteration 7` and the like."""
_NUMBER: Final = r"(?i)(?:step|iter|iteration|batch)[ _#:.=-]*(\d{1,9})"

_WINDOW: Final = "recorded"
_HOW_RECORDED: Final = (
    "no sign of a step boundary: each time that the profiler was on taken as one step"
)
_HOW_REPEATED: Final = "a step is an outermost range named execute_*, step[*] or iteration N"
_HOW_OPTIMIZER: Final = "a step ends with its optimizer"
_HOW_KERNELS: Final = (
    "a guess: nothing names steps, but the names of kernels repeat ({} times {} kernels, {:.1f} % of "
    "them alike), so each repetition is taken for a step"
)


class Steps(NamedTuple):
    """The steps of a trace.

    Attributes:
        ranges: Frame with the columns of `STEPS`, by start; empty if nothing shows them.
        how: How they were found; None if the trace states them, or shows none.
        marked: Whether each has a range of its own.
        guessed: Whether the names of kernels alone tell them.
        counted: Whether their numbers are a count of those in this trace, which nothing states.
    """

    ranges: pl.DataFrame
    how: str | None
    marked: bool
    guessed: bool = False
    counted: bool = False


def step_ranges(trace: Traced, names: NameParser) -> Steps:
    """Return the steps of a trace in host time.

    The evidence, in this order: markers that state them (`ProfilerStep#7`); outermost ranges with
    the name of a step (`REPEATED`); ends of optimizers, of which all up to the next other launch
    of device work are one step's. In the last case a step begins where the one before it ended, and
    work after the last optimizer belongs to none.

    Args:
        trace: Any trace.
        names: What range names mean.
    """
    ranges = trace.capture.ranges
    meaning = names.parse_all(ranges["name"])
    number = {name: parsed[0].step for name, parsed in meaning.items() if parsed[0].kind is None}
    marks = _closed(ranges.filter(pl.col("name").is_in(list(number))), trace)
    if marks.height:
        said = pl.col("name").replace_strict(number, default=None, return_dtype=pl.Int64)
        return Steps(_numbered(marks, said), None, marked=True)
    repeated = _closed(
        ranges.filter(pl.col("name").str.contains(REPEATED) & ~pl.col("name").is_in(list(meaning))),
        trace,
    )
    if repeated.height:
        most = repeated["thread"].mode().sort()[0]
        outer = _outermost_repeated(repeated.filter(pl.col("thread") == most))
        stated = _stated(outer)
        return Steps(_numbered(outer, stated), _HOW_REPEATED, marked=True, counted=stated is None)
    optimizing = [name for name, parsed in meaning.items() if parsed[0].kind is Kind.OPTIMIZER]
    optimizers = ranges.drop_nulls("end_ns").filter(pl.col("name").is_in(optimizing))
    if optimizers.height:
        return Steps(_ended(optimizers, trace), _HOW_OPTIMIZER, marked=False)
    return Steps(pl.DataFrame(schema=STEPS), None, marked=False)


def recorded_apart(trace: Traced) -> Steps:
    """Return each time that a profiler was on as a step, if it was off in between; else none.

    Args:
        trace: A trace in which nothing else tells steps.
    """
    recorded, launches = trace.capture.recorded, trace.capture.launches
    if recorded is None or recorded.height < 2 or not launches.height:
        return Steps(pl.DataFrame(schema=STEPS), None, marked=False)
    of = launches.select(pl.col("process", "thread").first())
    windows = of.join(recorded, how="cross").with_columns(name=pl.lit(_WINDOW))
    return Steps(_numbered(windows), _HOW_RECORDED, marked=True, counted=True)


def _closed(ranges: pl.DataFrame, trace: Traced) -> pl.DataFrame:
    """Let steps that were left open end where the next begins, or with the last launch."""
    if not ranges["end_ns"].null_count():
        return ranges
    last = trace.capture.launches["start_ns"].max()
    following = pl.col("start_ns").shift(-1).over("thread")
    return (
        ranges.sort("start_ns")
        .with_columns(end_ns=pl.coalesce("end_ns", following, pl.lit(last, pl.Int64) + 1))
        .filter(pl.col("end_ns") > pl.col("start_ns"))
    )


def _outermost_repeated(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost ranges of a thread; what encloses all others is no step of several."""
    outer = outermost(ranges)
    inner = ranges.filter(
        (pl.col("start_ns") > outer["start_ns"][0]) | (pl.col("end_ns") < outer["end_ns"][0])
    )
    return outermost(inner) if outer.height == 1 and inner.height > 1 else outer


def _stated(ranges: pl.DataFrame) -> pl.Expr | None:
    """Return the numbers that names of steps state, if these go up from one to the next."""
    said = pl.col("name").str.extract(_NUMBER).cast(pl.Int64)
    [number] = ranges.sort("start_ns").select(said)
    return said if not number.null_count() and bool((number.diff() > 0).all()) else None


def guessed_steps(trace: Traced) -> Steps:
    """Return the steps that the names of kernels tell, where nothing else does.

    They are those of the device that ran most. Each begins with the launch of its first kernel and ends
    with that of the next.
    """
    nothing = Steps(pl.DataFrame(schema=STEPS), None, marked=False)
    kernels = trace.capture.work.filter(
        pl.col("kernel") != A_GRAPH, pl.col("comm").is_null(), pl.col("correlation") != NONE
    )
    if not kernels.height:
        return nothing
    kernels = kernels.filter(device=kernels["device"].mode().sort()[0])
    call = lookup(
        trace.capture.launches["correlation"].to_numpy(), kernels["correlation"].to_numpy()
    )
    if (call == NONE).sum() * 10 > len(call):
        return nothing
    kernels, call = kernels.filter(pl.Series(call != NONE)), call[call != NONE]
    launched = trace.capture.launches["start_ns"].to_numpy()[call]
    order = np.lexsort((kernels["start_ns"].to_numpy(), launched))
    launched, names = launched[order], kernels["kernel"].to_numpy()[order]
    optimizing = np.isin(names, trace.capture.optimizer_kernels)
    gap = np.diff(launched, prepend=launched[0])
    period = steps_of_kernels(names, optimizing, gap)
    if period is None:
        return nothing
    starts = launched[period.starts]
    threads = trace.capture.launches["thread"].to_numpy()[call][order]
    ends = np.append(starts[1:], launched[-1] + 1)
    ranges = pl.DataFrame(
        {"start_ns": starts, "end_ns": ends, "thread": threads[period.starts]}
    ).select(
        process=pl.lit(int(kernels["process"][0]), pl.Int64),
        thread="thread",
        start_ns="start_ns",
        end_ns="end_ns",
        name=pl.lit(""),
    )
    how = _HOW_KERNELS.format(period.whole, period.kernels, 100 * period.alike)
    return Steps(_named(_numbered(ranges)), how, marked=True, guessed=True)


def _named(ranges: pl.DataFrame) -> pl.DataFrame:
    """Name steps by their numbers."""
    return ranges.with_columns(name=pl.format("step {}", "step"))


def _numbered(ranges: pl.DataFrame, number: pl.Expr | None = None) -> pl.DataFrame:
    """Add the steps' numbers: those stated, or else their ordinals."""
    ordinal = pl.int_range(pl.len(), dtype=pl.Int64)
    step = ordinal if number is None else pl.coalesce(number, ordinal)
    return ranges.sort("start_ns").with_columns(step=step).select(*STEPS)


def _ended(optimizers: pl.DataFrame, trace: Traced) -> pl.DataFrame:
    """Return steps that end with the last of their optimizers, on the optimizers' thread."""
    most = optimizers["thread"].mode().sort()[0]
    outer = outermost(optimizers.filter(pl.col("thread") == most))
    launched = trace.capture.launches.join(trace.capture.work, on="correlation", how="semi")
    launches = launched.select("start_ns").sort("start_ns")
    # A group goes on as long as nothing is launched between one optimizer and the next.
    before = launches["start_ns"].search_sorted(outer["start_ns"], side="left")
    until = launches["start_ns"].search_sorted(outer["end_ns"], side="left")
    last = (before.shift(-1) != until).fill_null(value=True)
    ends = outer.filter(last)
    first = launches["start_ns"].min() if launches.height else None
    begin = ends["end_ns"].shift(1).fill_null(first if first is not None else outer["start_ns"][0])
    return _numbered(ends.with_columns(start_ns=pl.min_horizontal(begin, "start_ns")))


def in_line(found: Sequence[Steps]) -> Sequence[Steps]:
    """Number steps that kernels tell alike in all processes: those that begin at about the same time.

    A capture may hold one step more of one process than of another.
    """
    guessed = [one for one in found if one.guessed]
    if len(guessed) < 2:
        return found
    longest = max(guessed, key=lambda one: one.ranges.height)
    starts = longest.ranges["start_ns"].to_numpy()
    apart = float(np.median(np.diff(starts)))

    def numbered(one: Steps) -> Steps:
        if not one.guessed:
            return one
        first = one.ranges["start_ns"][0]
        nearest = int(np.argmin(np.abs(starts - first)))
        shift = nearest if abs(int(starts[nearest]) - first) * 2 <= apart else 0
        return one._replace(ranges=_named(one.ranges.with_columns(step=pl.col("step") + shift)))

    return [numbered(one) for one in found]
