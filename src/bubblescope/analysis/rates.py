"""Bubble rates: how much of a pipeline's time its devices stand idle.

People mean different things by "bubble rate", so each has its own name here and is always shown
with it. All of them are about the pipeline phase of a step, from its first forward to its last
backward: forward, backward, weight-gradient, overlapped and recompute tasks on the compute lane.
The optimizer is left out, as in the literature.

With, for rank r of a step, busy_r the length of the union of its tasks' intervals, and over a set of
R ranks:

* ``span``: 1 - sum(busy_r) / sum(end_r - start_r), each rank over its own first start to last end.
* ``longest_span``: 1 - sum(busy_r) / (R * max(end_r - start_r)), the longest of these spans in place of
  each: the bubble rate of Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241, section
  5.3), (cost - m(T_F + T_B + T_W)) / cost, where cost is the longest span and every rank works for
  m(T_F + T_B + T_W). A step comes to it where no rank waits for the others at its end.
* ``makespan``: 1 - sum(busy_r) / (R * T), T the step's first start to last end over *all* ranks.
* ``over_ideal``: (R * T - sum(busy_r)) / sum(busy_r), idle time as a share of useful time: the
  (p - 1) / m of Narayanan et al. (arXiv 2104.04473, section 2.2).
* ``no_wait``: ``makespan`` of the same tasks replayed without waiting: in the order of the recognised
  schedule, nobody waits for anything but the result that a task needs, and results arrive at once
  (`bubblescope.analysis.schedule.ideal`). With its makespan I it is 1 - sum(busy_r) / (R * I). It has
  what is inherent to the schedule, and what stages, ranks and micro-batches of unequal length add.
* ``excess``: what waiting adds, as a share of R * T: (T - I) / T.

The last two are null wherever the schedule was not recognised, and where devices of the pipeline left
no trace: what their stages take is not known. They are about the steps that were recorded whole.

Every rate is from 0 to 1 (``over_ideal`` is 0 or more), or null with the reason, which `Rates.unknown`
holds: all are checked here, before anyone sees them. A step that only some of the ranks have, or
that lacks passes that others have (`phase.cut_steps`), is not compared across ranks: it has a ``span``
and no other rate, and those of the run leave it out. So do
those of the ideal with a step in which ranks worked for longer than the perfect run of its schedule
has time for: then its tasks are not those of one such step.

Where ranks are on different clocks whose difference is known up to some error, T may be longer or
shorter by as much as its first start and its last end may be off, and busy time by as much as a
clock's rate may be; ``makespan_error``,
``over_ideal_error`` and ``excess_error`` are what that makes of the rates. Where ranks share no
clock, only ``span`` can be known; everything over the makespan is null.

Where a step runs its schedule several times, to accumulate gradients, T and the ranks' spans are those
of its rounds, summed, without the time between rounds in which nobody is in one
(`bubblescope.analysis.between_rounds`).

Where pipelines run without waiting for each other at the end of a step, their steps overlap, and T of a
rank is from the first start to the last end on the ranks of its own pipeline
(`bubblescope.analysis.pipeline_phase.pipelines`).

Inside a task the device may still stall between kernels; ``kernel_share`` says how much of the
tasks' time kernels were really running, where the trace tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.between_rounds import closed, rounds
from bubblescope.analysis.pipeline_phase import of_phase, pipeline_phase, pipelines, step_facts
from bubblescope.model import intervals, units
from bubblescope.model.arrays import blocks_of_ranks
from bubblescope.model.cached_results import told
from bubblescope.model.clock_errors import clock_errors
from bubblescope.model.extents import extremes
from bubblescope.model.intervals import idle_share
from bubblescope.model.ordering import in_order
from bubblescope.model.provenance import Notice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.model.timeline import Timeline

DEFINITIONS: Final[dict[str, str]] = {
    "span": "idle share of each rank's own span, its first start to its last end in the step",
    "makespan": "idle share of the step's span over all ranks, first start to last end anywhere",
    "longest_span": "idle share of the longest rank's span; the Zero Bubble paper's bubble rate",
    "over_ideal": "idle time over that span as a share of busy time; (p-1)/m for ideal 1F1B",
    "no_wait": "makespan rate of the same tasks replayed without waiting: what is inherent to the "
    "schedule, and what tasks of unequal length add",
    "excess": "what waiting adds: idle time beyond that replay, as a share of the step's span",
}
"""One line for each rate, to be printed beside it."""

NO_WORK: Final = "no forward or backward takes any time"
NO_CLOCK: Final = "the ranks share no clock"
PARTIAL: Final = "only some of the ranks have the step, so it is not compared across ranks"
CUT: Final = (
    "the step lacks forwards or backwards that others have, so it is not compared across ranks"
)
ALL_PARTIAL: Final = "no step is on all ranks, so none is compared across ranks"
NO_IDEAL: Final = "no schedule was recognised in steps that were recorded whole"
UNTRACED: Final = "devices of the pipeline left no trace"
NOT_REPLAYED: Final = "only some of the steps were replayed"
CROWDED: Final = "ranks were busy for longer than a perfect run of the step takes"
SHORTER: Final = "the run is shorter than a perfect run of the recognised schedule"
NO_KERNELS: Final = "the trace does not show when kernels ran"
BEYOND: Final = "more than all of the time"

_KEYS = ("step", "rank")
_WINDOW = ("step", "pipeline")
_NEEDED = ("rank", "step", "kind", "lane", "start_ns", "end_ns", "busy_ns")
_SHARED = pl.col("makespan_ns").is_not_null()
_KNOWN = pl.col("ideal_ns").is_not_null()
_TOTALS = [
    *(pl.col(name).sum() for name in ("busy_ns", "span_ns", "kernel_ns", "kernel_task_ns")),
    *(
        pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name)
        for name in ("makespan_ns", "longest_ns", "uncertain_ns", "ideal_ns")
    ),
    pl.col("busy_ns").filter(_SHARED).sum().alias("shared_busy_ns"),
    pl.col("busy_ns").filter(pl.col("longest_ns").is_not_null()).sum().alias("longest_busy_ns"),
    pl.col("busy_ns").filter(_KNOWN).sum().alias("ideal_busy_ns"),
    pl.col("makespan_ns").filter(_KNOWN).sum().alias("ideal_makespan_ns"),
    pl.col("uncertain_ns").filter(_KNOWN).sum().alias("ideal_uncertain_ns"),
    pl.col("partial").all(),
    pl.col("cut").any(),
    pl.col("crowded").any(),
    pl.len().alias("rows"),
    pl.col("step").n_unique().alias("steps"),
]
"""Sums in which steps that are not compared are left out; what is unknown of all is unknown."""


class Rates(msgspec.Struct, frozen=True):
    """The bubble rates of a set of ranks and steps, and the times behind them.

    Attributes:
        span, longest_span, makespan, over_ideal, no_wait, excess: As defined in this module; null if
            unknown.
        makespan_error, over_ideal_error, excess_error: How far they may be off because clocks
            differ; null if nothing is known of the clocks.
        kernel_share: Share of the tasks' time in which a kernel was running; null if unknown.
        busy_ns: Time inside tasks, summed over the ranks and steps.
        idle_ns: Makespan time outside tasks, summed over the ranks and steps that are compared across
            ranks; null if unknown.
        makespan_ns: Step span, summed over the same; null if unknown.
        uncertain_ns: How far idle_ns and makespan_ns may be off; null if nothing is known of the
            clocks.
        unknown: Name of each rate that is null -> why, as a part of a sentence.
    """

    span: float | None
    longest_span: float | None
    makespan: float | None
    over_ideal: float | None
    no_wait: float | None
    excess: float | None
    makespan_error: float | None
    over_ideal_error: float | None
    excess_error: float | None
    kernel_share: float | None
    busy_ns: int
    idle_ns: int | None
    makespan_ns: int | None
    uncertain_ns: int | None
    unknown: dict[str, str] = {}

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values; `no_wait` has its first name `ideal` too."""
        said: dict[str, Any] = msgspec.to_builtins(self)
        said["ideal"] = self.no_wait
        if "no_wait" in self.unknown:
            said["unknown"]["ideal"] = self.unknown["no_wait"]
        return said


class BubbleRates(msgspec.Struct, frozen=True):
    """Rates at every level.

    Attributes:
        overall: Over all ranks and steps.
        per_rank: Rank -> rates over its steps.
        per_step: Step -> rates over its ranks; the key None holds tasks that belong to no step.
        table: Frame with one row per (step, rank): step, rank, start_ns, end_ns, tasks, busy_ns,
            span_ns, longest_ns, makespan_ns, ideal_ns and uncertain_ns (null if unknown), kernel_ns and
            kernel_task_ns (kernel time, and the time of the tasks for which it is known), partial
            (whether only some of the ranks have the step, or it is cut), cut (whether it lacks passes
            that others have), pipeline (as `phase.pipelines`) and
            crowded (whether its ideal is left out because ranks worked for longer).
        rate_error: How far the lengths of tasks may be off because clocks drift, as a share.
        notices: Which steps the rates leave out, and why.
        replayed: The steps that were replayed, ascending; None if all were that can be.
        no_ideal: Why steps have no ideal of which nothing else says why.
    """

    overall: Rates
    per_rank: dict[int, Rates]
    per_step: dict[int | None, Rates]
    table: pl.DataFrame
    rate_error: float = 0.0
    notices: tuple[Notice, ...] = ()
    replayed: tuple[int, ...] | None = None
    no_ideal: str = NO_IDEAL

    @property
    def rated(self) -> list[int]:
        """The steps of which the makespan bubble rate is known."""
        known = {step: rates.makespan for step, rates in self.per_step.items()}
        return [step for step, rate in known.items() if step is not None and rate is not None]

    def per_rank_step(self) -> list[Rates]:
        """Return the rates of each row of `table`."""
        rows = self.table.iter_rows(named=True)
        return [_rates(row, self.rate_error, self.no_ideal, self.replayed) for row in rows]


def bubble_rates(
    timeline: Timeline,
    ideal: pl.DataFrame | None = None,
    own_ideal: pl.DataFrame | None = None,
    *,
    no_ideal: str = NO_IDEAL,
) -> BubbleRates:
    """Compute the bubble rates of a timeline.

    Args:
        timeline: The run.
        ideal: How long its steps would take at best, as `analysis.schedule.ideal.Ideal.steps` has it;
            without it the rates of the ideal are null.
        own_ideal: The same of each rank's own replica, as `Ideal.own`, for pipelines that run their
            steps each for itself; `ideal` if left out.
        no_ideal: As of `BubbleRates`.

    Tasks that belong to no step are measured only where no task belongs to one: they would
    otherwise stretch over the whole run.
    """
    return rates_of(measured(timeline), timeline, ideal, own_ideal, no_ideal=no_ideal)


def measured(timeline: Timeline) -> pl.DataFrame:
    """Return what the rates are made of, of all steps of a timeline by itself.

    Args:
        timeline: A run, or whole steps of one that were told of it (`model.cached_results.told`).

    Returns:
        Frame as `BubbleRates.table`, without what other steps tell (ideal_ns, partial, cut, crowded),
        and closed_start_ns and closed_end_ns: its start and end once time between rounds is taken out.
    """
    table = _uncertain(_table(closed(timeline), pipelines(timeline)), timeline)
    table = table.with_columns(closed_start_ns="start_ns", closed_end_ns="end_ns")
    if rounds(timeline).between.height:  # when the ranks' spans were, and not when they would be
        spans = pipeline_phase(timeline.tasks.select(_NEEDED)).group_by(_KEYS)
        own = spans.agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        columns = table.columns
        table = table.drop("start_ns", "end_ns").join(own, on=_KEYS, nulls_equal=True)
        table = table.select(columns).sort(_KEYS)
    return table


def rates_of(
    table: pl.DataFrame,
    timeline: Timeline,
    ideal: pl.DataFrame | None = None,
    own_ideal: pl.DataFrame | None = None,
    *,
    replayed: Sequence[int] | None = None,
    no_ideal: str = NO_IDEAL,
) -> BubbleRates:
    """Compute the bubble rates of a run.

    Args:
        table: As `measured` returns it, of all steps, by step and rank.
        timeline: The run, or a part of it that was told of the whole.
        ideal: As of `bubble_rates`.
        own_ideal: As of `bubble_rates`.
        replayed: The steps that were replayed, which alone `ideal` may have; None for all.
        no_ideal: As of `BubbleRates`.
    """
    table = _told_whole(table.drop("closed_start_ns", "closed_end_ns"), timeline)
    several = pipelines(timeline)["pipeline"].n_unique() > 1
    if ideal is None:
        table = table.with_columns(ideal_ns=pl.lit(None, pl.Int64))
    else:
        best, key = ideal, ["step"]
        if several and own_ideal is not None:
            best, key = own_ideal, ["rank", "step"]
        table = table.join(best, on=key, how="left", nulls_equal=True, maintain_order="left")
    compared = ~pl.col("partial")
    busy, room = (pl.col(name).sum().over(_WINDOW) for name in ("busy_ns", "ideal_ns"))
    table = table.with_columns(crowded=compared & _KNOWN & (busy > room)).with_columns(
        *(
            pl.when(compared).then(name).alias(name)
            for name in ("makespan_ns", "longest_ns", "uncertain_ns")
        ),
        pl.when(compared & ~pl.col("crowded")).then("ideal_ns").alias("ideal_ns"),
    )
    if not timeline.run.common_clock:
        unknown = pl.lit(None, pl.Int64)
        table = table.with_columns(makespan_ns=unknown, uncertain_ns=unknown)
    rate = timeline.run.clock.rate_error if timeline.run.clock else 0.0
    overall = _rates(table.select(_TOTALS).row(0, named=True), rate, no_ideal)
    return BubbleRates(
        overall=overall,
        per_rank={row["rank"]: _rates(row, rate, no_ideal) for row in _sums(table, "rank")},
        per_step={
            row["step"]: _rates(row, rate, no_ideal, replayed) for row in _sums(table, "step")
        },
        table=table,
        rate_error=rate,
        notices=(
            *_notices(table),
            *([_apart(table)] if several else []),
            *([] if replayed is None else [_replays(table, replayed)]),
        ),
        replayed=None if replayed is None else tuple(replayed),
        no_ideal=no_ideal,
    )


def _told_whole(table: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    """Add whether only some of the ranks have a step, or it is cut."""
    facts = step_facts(timeline)
    table = table.with_columns(partial=pl.len().over("step") < len(facts.ranks))
    return table.with_columns(
        cut=~pl.col("partial") & pl.col("step").is_in(facts.cut)
    ).with_columns(partial=pl.col("partial") | pl.col("cut").fill_null(value=False))


def makespan_rates(might: Timeline, timeline: Timeline) -> dict[int, float | None]:
    """Compute the makespan bubble rate that ranks would have if a run had been otherwise.

    Args:
        might: What would have run; its steps begin when those of the run did, so that one that takes
            longer overlaps the next, which says nothing of its pipelines.
        timeline: The run, which tells which of its steps are whole and what its pipelines are.

    Returns:
        Rank -> the rate over its steps, as `BubbleRates.per_rank` has it; null if unknown.
    """
    part = told(might, {step_facts: step_facts(timeline), pipelines: pipelines(timeline)})
    table = _told_whole(_table(closed(part), pipelines(part)), part)
    rates: dict[int, float | None] = dict.fromkeys(table["rank"].to_list())
    if timeline.run.common_clock:
        sums = table.filter(~pl.col("partial")).group_by("rank")
        for rank, busy, makespan in sums.agg(pl.col("busy_ns", "makespan_ns").sum()).iter_rows():
            rate = idle_share(busy, makespan)
            rates[rank] = rate if rate is not None and 0 <= rate <= 1 else None
    return rates


def _replays(table: pl.DataFrame, replayed: Sequence[int]) -> Notice:
    """Say of which steps replays tell."""
    total = table["step"].n_unique()
    which = units.listed("step", list(replayed))
    text = (
        f"what replays tell (no wait, excess, why ranks were idle and which of them are slow) is from "
        f"{len(replayed)} of {total} steps ({which}, evenly over the run), all else from all of them; "
        "--steps names others, and bubblescope why replays all"
    )
    return Notice("replayed-steps", text, total - len(replayed), total)


def _apart(table: pl.DataFrame) -> Notice:
    """Say that pipelines run their steps each for itself."""
    count = table["pipeline"].n_unique()
    text = (
        f"{count} pipelines do not wait for each other at the end of a step, so steps overlap; each "
        "pipeline's step is measured from its own first start to its own last end"
    )
    return Notice("steps-apart", text)


def _notices(table: pl.DataFrame) -> tuple[Notice, ...]:
    """Say which steps are not compared across ranks, or with a perfect run."""
    total, notices = table["step"].n_unique(), []
    ranks = table["rank"].n_unique()
    partial = table.filter("partial", ~pl.col("cut")).group_by("step").len().sort("step")
    if partial.height:
        said = units.listed("step", partial["step"].to_list())
        theirs = "it" if partial.height == 1 else "them"
        text = (
            f"{said} not compared across ranks: only some of the {ranks} ranks have {theirs}, so only "
            "the rate over each rank's own span is known"
        )
        notices.append(Notice("partial-steps", text, partial.height, total))
    cut = table.filter("cut")["step"].unique().sort().to_list()
    if cut:
        has = "it lacks" if len(cut) == 1 else "they lack"
        text = (
            f"{units.listed('step', cut)} not compared across ranks: {has} forwards or backwards that "
            "others have"
        )
        notices.append(Notice("cut-steps", text, len(cut), total))
    crowded = table.filter("crowded")["step"].unique().sort().to_list()
    if crowded:
        named = "the run" if crowded == [None] else units.listed("step", crowded)
        text = f"{named} not compared with a perfect run: {CROWDED}"
        notices.append(Notice("crowded-steps", text, len(crowded), total))
    return tuple(notices)


def _table(timeline: Timeline, apart: pl.DataFrame) -> pl.DataFrame:
    tasks = timeline.tasks.select(_NEEDED)
    wanted = of_phase(tasks)
    return (
        pl.concat([_of_ranks(block.filter(wanted)) for block in blocks_of_ranks(tasks)])
        .join(apart, on="rank", maintain_order="left")
        .with_columns(
            span_ns=pl.col("end_ns") - pl.col("start_ns"),
            makespan_ns=(pl.col("end_ns").max() - pl.col("start_ns").min()).over(_WINDOW),
            longest_ns=(pl.col("end_ns") - pl.col("start_ns")).max().over(_WINDOW),
        )
        .sort(_KEYS)
    )


def _of_ranks(phase: pl.DataFrame) -> pl.DataFrame:
    """Return what each of some ranks did in each step of the pipeline phase."""
    phase = in_order(phase, "rank", "step", "start_ns")
    fresh_ns = intervals.fresh_start_ns(*intervals.columns(phase, *_KEYS))
    start, end = (phase[name].to_numpy() for name in ("start_ns", "end_ns"))
    known = phase["busy_ns"].is_not_null().to_numpy()
    sums = {
        "busy_ns": end - fresh_ns,
        "kernel_ns": phase["busy_ns"].fill_null(0).to_numpy(),
        "kernel_task_ns": np.where(known, end - start, 0),
    }
    keys = phase.select(_KEYS)
    found = extremes(keys, least={"start_ns": start}, most={"end_ns": end}, sums=sums)
    tasks = pl.col("count").cast(pl.UInt32).alias("tasks")
    return found.select(*_KEYS, "start_ns", "end_ns", tasks, *sums)


def _uncertain(table: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    """Add how much longer or shorter a step may have been, for what the clocks may be off."""
    if timeline.run.clock is None:
        return table.with_columns(uncertain_ns=pl.lit(None, pl.Int64))
    off = table.join(clock_errors(timeline), on="rank", maintain_order="left")
    error = pl.col("error_ns")
    begin, end = pl.col("start_ns"), pl.col("end_ns")
    length = end.max() - begin.min()
    longest = (end + error).max() - (begin - error).min()
    shortest = (end - error).max() - (begin + error).min()
    uncertain = pl.max_horizontal(longest - length, length - shortest)
    known = pl.col("group").n_unique() == 1
    return off.with_columns(
        uncertain_ns=pl.when(known.over(_WINDOW)).then(uncertain.over(_WINDOW))
    ).drop("group", "error_ns")


def _sums(table: pl.DataFrame, key: str) -> list[dict[str, Any]]:
    return table.group_by(key).agg(_TOTALS).sort(key).to_dicts()


def _rates(
    sums: dict[str, Any], rate_error: float, no_ideal: str, replayed: Sequence[int] | None = None
) -> Rates:
    """Return the rates of sums as of `_TOTALS`, or of a row of the table, each checked.

    Args:
        sums: The sums; of a step if they have one.
        rate_error: As of `BubbleRates`.
        no_ideal: Likewise.
        replayed: Likewise.
    """
    busy, makespan, best = sums["busy_ns"], sums["makespan_ns"], sums["ideal_ns"]
    # Of a single row, all are its own; of many, those of the steps that are compared.
    shared = sums.get("shared_busy_ns", busy)
    longest_busy = sums.get("longest_busy_ns", busy)
    best_busy, best_makespan, best_uncertain = (
        sums.get(f"ideal_{name}_ns", sums[f"{name}_ns"])
        for name in ("busy", "makespan", "uncertain")
    )
    idle = None if makespan is None else makespan - shared
    off = sums["uncertain_ns"]
    excess = (best_makespan - best) / best_makespan if best and best_makespan else None
    excess_error = _off(best, best_makespan, best_uncertain if best else None, rate_error)
    if excess is not None and excess < 0 and excess >= -(excess_error or 0):
        excess = 0.0  # as near to it as a time can be
    kernels = sums["kernel_ns"] / sums["kernel_task_ns"] if sums["kernel_task_ns"] else None
    if sums["partial"] and sums.get("rows", 1):
        apart = CUT if sums["cut"] else PARTIAL
        apart = ALL_PARTIAL if sums.get("steps", 1) > 1 else apart
    else:
        apart = NO_WORK if makespan is not None or not sums.get("rows", 1) else NO_CLOCK
    ideal_reason = apart if sums["partial"] else CROWDED if sums["crowded"] else no_ideal
    if replayed is not None and ideal_reason == NO_IDEAL and sums["step"] not in replayed:
        ideal_reason = NOT_REPLAYED
    checked = _Checked(
        {
            "span": (idle_share(busy, sums["span_ns"]), NO_WORK, BEYOND),
            "longest_span": (
                idle_share(longest_busy, sums["longest_ns"]),
                apart if sums["partial"] else NO_WORK,
                BEYOND,
            ),
            "makespan": (idle_share(shared, makespan), apart, BEYOND),
            "over_ideal": (idle / shared if idle is not None and shared else None, apart, BEYOND),
            "no_wait": (idle_share(best_busy, best), ideal_reason, CROWDED),
            "excess": (excess, ideal_reason if best is None else apart, SHORTER),
            "kernel_share": (kernels, NO_KERNELS, BEYOND),
        }
    )
    return Rates(
        **checked.rates,
        makespan_error=_off(shared, makespan, off, rate_error),
        over_ideal_error=(
            (off + rate_error * makespan) / shared if off is not None and shared else None
        ),
        excess_error=excess_error if checked.rates["excess"] is not None else None,
        busy_ns=busy,
        idle_ns=idle,
        makespan_ns=makespan,
        uncertain_ns=off,
        unknown=checked.unknown,
    )


class _Checked:
    """Rates that are what they are said to be, and why the others are not known.

    Args:
        found: Name -> rate or None, why it may be None, and what is wrong where it is no share.

    Attributes:
        rates: Name -> rate, or None.
        unknown: Name -> why it is None.
    """

    def __init__(self, found: dict[str, tuple[float | None, str, str]]) -> None:
        self.rates: dict[str, float | None] = {}
        self.unknown: dict[str, str] = {}
        for name, (rate, missing, wrong) in found.items():
            sound = rate is not None and rate >= 0 and (rate <= 1 or name == "over_ideal")
            self.rates[name] = rate if sound else None
            if not sound:
                self.unknown[name] = missing if rate is None else wrong


def _off(part: int, whole: int | None, off: int | None, rate_error: float) -> float | None:
    """Return how far 1 - part / whole may be off.

    The whole may be longer or shorter by `off`, and the part by its share `rate_error`.
    """
    if not whole or off is None:
        return None
    if off >= whole:
        return 1.0
    return part * (1 + rate_error) / (whole - off) - part / whole
