"""What the ledger of a run comes to: a verdict, the evidence for it, and what to do next.

A finding says nothing that it has no number for; the tasks that show it are named with it. The words
are those of `bubblescope.analysis.words`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.analysis.finding import Finding
from bubblescope.analysis.idle.causes import INHERENT, Cause
from bubblescope.analysis.idle.evidence import LATE, deviation
from bubblescope.analysis.idle.notable_rank import LEAST, notable, slowest
from bubblescope.analysis.prediction import WORTH
from bubblescope.analysis.step_lengths import is_one_step
from bubblescope.analysis.wall_clock import WAITS
from bubblescope.analysis.why.device_findings import warming
from bubblescope.model.clock_errors import clock_errors
from bubblescope.model.kinds import SHORT, Kind
from bubblescope.model.timeline_tables import PIPELINE
from bubblescope.model.whole_steps import PASSES, UNRECORDED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bubblescope.analysis.finding import Shown
    from bubblescope.analysis.idle.evidence import Evidence
    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.idle.shares import Shares
    from bubblescope.analysis.study import Study
    from bubblescope.analysis.wall_clock import WallClock
    from bubblescope.model.timeline import Timeline

_MOST: Final = 4
"""Causes that are spoken of."""
_ONE_HOST: Final = 0.8
"""Share of what holds up tasks from which on the host is named that has it."""
_OUTSIDE: Final = 0.05
"""Share of a step from which on what a rank does beside forwards and backwards is spoken of."""


def spoken_of(ledger: Ledger, shares: Shares) -> list[Cause]:
    """Return the causes that are spoken of, besides those that the schedule is.

    They make a hundredth of the idle time and a step longer by what is worth a line, or make a step a
    hundredth longer: among a thousand ranks, what one link does to its own pipeline is a small share of
    the idle time of all. That comes first without which a step would be shortest, and of those alike in
    that, what makes most idle time. One of which it is not known what it costs counts by its idle time,
    and as if a step would not be shorter.
    """
    totals = ledger.totals().select("cause", "share").iter_rows()
    idle = {Cause(cause): share for cause, share in totals}
    saved = {share.cause: max(share.last_ns, 0) for share in shares.shares}
    cost = {share.cause: share.cost_ns / shares.step_ns for share in shares.shares}
    causes = [cause for cause in saved if cost[cause] >= (WORTH if idle[cause] >= LEAST else LEAST)]
    causes += [cause for cause in shares.unknown if idle[cause] >= LEAST]
    causes.sort(key=lambda cause: (-saved.get(cause, 0), -idle[cause]))
    slow = slowest(ledger)
    if slow is None or slow.waited_for:
        # A rank may be slower in some steps, and in all of them together none; what ranks cost that
        # wait for each other in passes, idle time does not tell (`_waited_for`).
        causes = [cause for cause in causes if cause is not Cause.SLOW_RANK]
    causes = causes[:_MOST]
    if Cause.SLOW_RANK not in causes and (odd := notable(ledger)) and not odd.waited_for:
        causes = [*causes[: _MOST - 1], Cause.SLOW_RANK]
    return causes


def of_whole_steps(
    timeline: Timeline, study: Study, shares: Shares, evidence: Evidence, wall: WallClock | None
) -> list[Finding]:
    """Return what is to be said of a run's steps, and of the pipeline phase in them.

    Args:
        timeline: The run, or a part of it that was told of the whole.
        study: What was worked out about it.
        shares: What its causes cost.
        evidence: What shows those that are `spoken_of`.
        wall: What its whole steps are spent on, if that is known.
    """
    if wall is None:
        return findings(timeline, study, shares, evidence)
    around = outside(wall, unseen=study.ledger is not None and study.ledger.unseen)
    first = [] if around else warming(wall.lengths_ns())
    return [*around, *findings(timeline, study, shares, evidence, first)]


def findings(
    timeline: Timeline,
    study: Study,
    shares: Shares,
    evidence: Evidence,
    first_step: Sequence[Finding] = (),
) -> list[Finding]:
    """Return what is to be said of a run, most important first; nothing if it has no ledger.

    Args:
        timeline: The run, or a part of it that was told of the whole.
        study: What was worked out about it.
        shares: What its causes cost.
        evidence: What shows those that are `spoken_of`.
        first_step: That the first step is unlike the others, if it is, where nobody has said so.
    """
    ledger = study.ledger
    if ledger is None:
        return []
    totals = {Cause(row["cause"]): row for row in ledger.totals().to_dicts()}
    whole = sum(row["idle_ns"] for row in totals.values())
    inherent = sum(totals[cause]["idle_ns"] for cause in INHERENT if cause in totals)
    rate = study.bubbles.overall.makespan
    recognition = study.recognition
    causes = spoken_of(ledger, shares)
    unseen = _unseen(study, causes, shares)
    known = bool(whole) and not unseen
    common = {
        "rate_share": rate,
        "schedule": recognition.schedule if recognition else None,
        "inherent_share": inherent / whole if known else None,
        "other_share": 1 - inherent / whole if known else None,
    }
    waited_for = _waited_for(ledger)
    verdict = _verdict(study, common, whole, inherent, unseen, caused=bool(causes))
    if not causes:
        alone = verdict.key.startswith("inherent") and not waited_for
        asked = [Finding("advice", "inherent", {})] if alone else []
        told = [] if verdict.key.startswith("no_pipeline") else waited_for
        return [verdict, *told, *asked]
    said = [verdict, *waited_for]
    for index, cause in enumerate(causes):
        said.append(_of_cause("next" if index else "first", cause, totals[cause], shares, ledger))
        shown = _EVIDENCE[cause](timeline, study, evidence)
        if cause in shares.unknown:
            shown = msgspec.structs.replace(shown, key=shown.key + unseen)
        said.append(shown)
        if cause in LATE:
            said += _host(timeline, evidence.of[cause])
        if cause is Cause.VARIATION:
            said += first_step
        if cause is Cause.VARIATION and is_one_step(timeline.run):
            said.append(Finding("evidence", "one_step", {}))
        advised = _advised(cause, shown, timeline, pipelined=study.pipelined)
        if cause in shares.unknown:
            advised += unseen
        said.append(Finding("advice", advised, {}))
    return said if unseen else [*said, *_no_wait(study, inherent)]


def _unseen(study: Study, causes: Sequence[Cause], shares: Shares) -> str:
    """Return what keys of sentences end in where it is not known what ranks waited for."""
    if study.recognition is not None and study.recognition.partial:
        return "_partial"
    return "_unseen" if {*causes} & {*shares.unknown} else ""


def _of_cause(
    first: str, cause: Cause, row: dict[str, Any], shares: Shares, ledger: Ledger
) -> Finding:
    """Return how much idle time a cause makes, and what a step would be without it.

    Args:
        first: "first" or "next".
        cause: The cause.
        row: Its row of `Ledger.totals`.
        shares: What causes cost.
        ledger: The ledger.
    """
    known = {share.cause: share.last_ns for share in shares.shares}
    saved = known.get(cause)
    values = {
        "cause": cause,
        "idle_share": row["share"],
        "idle_ns": row["idle_ns"],
        "saved_ns": saved,
        "saved_share": None if saved is None else saved / shares.step_ns,
    }
    if saved is None:
        windows = ledger.table.select("rank", "step").n_unique()
        lost = {"per_step_ns": row["idle_ns"] // max(1, windows)}
        return Finding("verdict", f"{first}_unknown", {**values, **lost})
    if saved <= 0:
        return Finding("verdict", f"{first}_hidden", values)
    return Finding("verdict", first if row["idle_ns"] else "not_idle", values)


def _verdict(
    study: Study, common: dict[str, Any], whole: int, inherent: int, unseen: str, *, caused: bool
) -> Finding:
    """Return the first thing that is said of the idle time of a run.

    Args:
        study: What was worked out about it.
        common: The values of the sentence.
        whole: The idle time, in ns.
        inherent: How much of it is inherent to the schedule, if that is known.
        unseen: As `_unseen` returns it.
        caused: Whether any cause is worth speaking of.
    """
    rated = "" if common["rate_share"] is not None else "_unrated"
    if not caused and not study.pipelined:
        return Finding("verdict", f"no_pipeline{rated}", common)
    if not whole:
        return Finding("verdict", "never_idle", common)
    if not unseen and not caused and inherent >= (1 - LEAST) * whole:
        return Finding("verdict", f"inherent{rated}", common)
    if study.recognition is not None and study.recognition.partial:
        common |= {
            "missing": len(study.recognition.missing_devices),
            "devices": study.recognition.devices,
        }
    return Finding("verdict", f"causes{unseen}{rated}", common)


def _advised(cause: Cause, shown: Finding, timeline: Timeline, *, pipelined: bool) -> str:
    """Return the key of the advice about a cause, given what shows it."""
    if cause is Cause.SLOW_RANK:
        return shown.key
    if cause is Cause.VARIATION:
        of_steps = timeline.tasks["microbatch"].max() == 0
        return "variation_of_steps" if of_steps else "variation" if pipelined else "variation_alone"
    if cause is Cause.SYNC and timeline.ranks.height == 1:
        return "sync_alone"
    if cause is Cause.PAUSE:
        return _PAUSES_ADVISED.get(shown.values["pause"], "pause")
    clock = timeline.run.clock
    if cause is Cause.CLOCK and clock is not None and clock.method == "solved":
        return "clock_solved"
    return cause.name.lower()


_PAUSES_ADVISED: Final = {
    Kind.DATA.value: "host_data",
    Kind.GC.value: "pause_gc",
    "checkpoint": "checkpoint",
    "evaluation": "evaluation",
    "forward without backward": "unused_forward",
}
"""What hosts pause for, and the advice about it."""


def outside(wall: WallClock, *, unseen: bool = False) -> list[Finding]:
    """Return what makes steps longer than their pipeline phase, if that is worth a word.

    First what most time goes to on some rank. That ranks wait for each other is a consequence of such,
    and is told only where there is nothing else.

    Args:
        wall: What whole steps are spent on.
        unseen: As of `Ledger`: a rank in no task may wait for the first result of a step.
    """
    whole = wall.step_ns
    if not whole:
        return []
    # In no task within the phase is idle time, which has causes of its own.
    idle = pl.col("what") == UNRECORDED
    own = (
        wall.per_rank()
        .filter(pl.col("what") != PASSES)
        .with_columns(per_step_ns=pl.when(idle).then("outside_ns").otherwise("per_step_ns"))
        .sort("per_step_ns", "what", "rank", descending=[True, False, False])
        .group_by("what", maintain_order=True)
        .agg(
            pl.col("rank", "per_step_ns").first(), mean_ns=pl.col("per_step_ns").sum() // wall.ranks
        )
        .filter(pl.col("per_step_ns") >= _OUTSIDE * whole)
    )
    does = own.filter(~pl.col("what").is_in(WAITS))
    rest = 1 - wall.phase_ns / whole
    if rest < _OUTSIDE and not does.height:
        return []
    said = [Finding("verdict", "whole_step", {"step_ns": whole, "phase_share": 1 - rest})]
    said += warming(wall.lengths_ns())
    for row in (does if does.height else own).head(_MOST).to_dicts():
        what = _MAY_WAIT if unseen and row["what"] == UNRECORDED else row["what"]
        told = {"what": what, "rank": row["rank"], "rank_ns": row["per_step_ns"]}
        told |= {"time_share": row["per_step_ns"] / whole, "mean_ns": row["mean_ns"]}
        said.append(Finding("evidence", "outside" if wall.ranks > 1 else OUTSIDE_ALONE, told))
        if what in _ADVISED:
            said.append(Finding("advice", _ADVISED[what], {}))
    return said


OUTSIDE_ALONE: Final = "outside_alone"
"""Key of the evidence of what a rank does beside the pipeline, where there is no other to compare."""

_MAY_WAIT: Final = "in no task, or waiting"
"""What `UNRECORDED` is called of ranks that may wait for others whose results nobody sees."""

_ADVISED: Final = {
    "data loading": "host_data",
    "checkpoint": "checkpoint",
    "evaluation": "evaluation",
    "forward without backward": "unused_forward",
    "in no task": "no_task",
    "receiving": "receiving",
}
"""What ranks do beside forwards and backwards, and the advice about it."""


def _no_wait(study: Study, inherent_ns: int) -> list[Finding]:
    """Set what is inherent beside the rate of the same tasks replayed without waiting."""
    overall, found = study.bubbles.overall, study.recognition
    if overall.no_wait is None or not overall.makespan_ns or found is None:
        return []
    values = {
        "schedule": found.schedule,
        "inherent_share": inherent_ns / overall.makespan_ns,
        "no_wait_share": overall.no_wait,
    }
    return [Finding("evidence", "no_wait", values)]


def _task(task: Shown) -> dict[str, Any]:
    """Return what names a task: label, rank and step."""
    number = "" if task["microbatch"] is None else task["microbatch"]
    return {
        "label": f"{SHORT[Kind(task['kind'])]}{number}",
        "rank": task["rank"],
        "step": task["step"],
    }


def _imbalance(_timeline: Timeline, study: Study, evidence: Evidence) -> Finding:
    places = _ledger(study).typical.places
    cells = places.group_by("stage", "kind").agg(pl.col("healthy_ns").first())
    costs = (
        cells.group_by("stage")
        .agg(ns=pl.col("healthy_ns").sum())
        .sort("ns", "stage", descending=[True, False])
    )
    top = costs.row(0, named=True)
    values = {
        "stage": top["stage"],
        "cost_ns": top["ns"],
        "mean_ns": int(costs["ns"].mean()),  # type: ignore[arg-type]
        "mean_times": top["ns"] / costs["ns"].mean(),
    }
    shown = evidence.of[Cause.IMBALANCE].filter(stage=top["stage"])["shown"][0]
    return Finding("evidence", "imbalance", values, (shown,))


def _waited_for(ledger: Ledger) -> list[Finding]:
    """Return that a rank is slow which others wait for inside of their passes, if there is one.

    All passes of its stage are long then, so it makes hardly any idle time that is told from theirs.
    """
    slow = notable(ledger)
    if slow is None or not slow.waited_for:
        return []
    values = {"rank": slow.rank, "slow_share": slow.slow_share, "steps": slow.steps, "of": slow.of}
    said = Finding("verdict", "waited_for", values, (slow.task,))
    return [said, Finding("advice", "slow_rank", {})]


def _slow_rank(_timeline: Timeline, study: Study, _evidence: Evidence) -> Finding:
    top = slowest(_ledger(study))
    if top is None:
        raise ValueError("no rank is slow")
    values: dict[str, Any] = {"rank": top.rank, "steps": top.steps, "of": top.of}
    if top.passing_share is not None:
        values["passing_share"] = top.passing_share
        return Finding("evidence", "slow_steps", values, (top.task,))
    values["slow_share"] = top.slow_share
    if top.mixed:
        return Finding("evidence", "slow_or_waits", values, (top.task,))
    return Finding("evidence", "slow_rank" if top.odd else "slow_rank_alike", values, (top.task,))


def _variation(_timeline: Timeline, _study: Study, evidence: Evidence) -> Finding:
    top = evidence.of[Cause.VARIATION].row(0, named=True)
    values = {
        "spread_share": deviation(top),
        "task": _task(top["shown"]),
        "longest_ns": top["longest_ns"],
        "usual_ns": top["usual_ns"],
    }
    return Finding("evidence", "variation", values, (top["shown"],))


_ALIKE: Final = 1.1
"""How much longer than the median a link may take and be as the others."""


def _transfer(_timeline: Timeline, _study: Study, evidence: Evidence) -> Finding:
    links = (
        evidence.of[Cause.TRANSFER]
        .with_columns(pl.col("ns") // pl.col("count"))
        .sort("ns", "from", "to", descending=[True, False, False])
    )
    top = links.row(0, named=True)
    values = {
        "from": top["from"],
        "to": top["to"],
        "delay_ns": top["ns"],
        "median_ns": int(links["ns"].median() or 0),  # type: ignore[arg-type]
        "recorded": evidence.recorded,
    }
    key = "transfer" if values["delay_ns"] > _ALIKE * values["median_ns"] else "transfer_alike"
    return Finding("evidence", key, values, (top["shown"],))


def _late(cause: Cause, _timeline: Timeline, _study: Study, evidence: Evidence) -> Finding:
    """Return evidence of a cause that holds up tasks on their own rank."""
    ranks = evidence.of[cause].sort("ns", "rank", descending=[True, False])
    top = ranks.row(0, named=True)
    values = {
        "count": int(ranks["count"].sum()),
        "late_ns": int(ranks["ns"].sum()),
        "rank": top["rank"],
        "rank_ns": top["ns"],
        "task": _task(top["shown"]),
        "longest_ns": top["longest_ns"],
    }
    if cause is Cause.PAUSE:
        pause = max(evidence.pauses_ns, key=lambda one: evidence.pauses_ns[one])
        values |= {"pause": pause, "pause_ns": evidence.pauses_ns[pause]}
    return Finding("evidence", cause.name.lower(), values, (top["shown"],))


def _host(timeline: Timeline, late: pl.DataFrame) -> list[Finding]:
    """Return that most of what held up tasks did so on several ranks of one host, if it did."""
    hosts = timeline.ranks.select("rank", "host")
    if hosts["host"].n_unique() < 2:
        return []
    total = int(late["ns"].sum())
    by_host = late.join(hosts, on="rank").group_by("host")
    sums = by_host.agg(pl.col("ns").sum(), ranks=pl.len(), most=pl.col("ns").max())
    top = sums.sort("ns", "host", descending=[True, False]).row(0, named=True)
    if top["ns"] < _ONE_HOST * total or 2 * top["most"] > top["ns"]:
        return []
    values = {"host": top["host"], "host_ns": top["ns"], "ranks": top["ranks"]}
    return [Finding("evidence", "host", {**values, "host_share": top["ns"] / total})]


def _order(_timeline: Timeline, study: Study, _evidence: Evidence) -> Finding:
    found = study.recognition
    departures = found.departures if found else ()
    values = {
        "count": found.departed if found else 0,
        "first": str(departures[0]) if departures else "",
    }
    return Finding("evidence", "order", values)


def _clock(timeline: Timeline, _study: Study, evidence: Evidence) -> Finding:
    rows = evidence.of[Cause.CLOCK].to_dicts()
    values: dict[str, Any] = {
        "early": sum(row["count"] for row in rows),
        "early_ns": max((row["early_ns"] for row in rows), default=0),
    }
    known = clock_errors(timeline)
    key = "clock_unknown"
    # Ranks of different pipelines hand each other no results.
    coordinates = timeline.ranks.select("rank", *PIPELINE)
    groups = known.join(coordinates, on="rank").group_by(PIPELINE).agg(pl.col("group").n_unique())
    if timeline.run.clock is not None and (groups["group"] == 1).all():
        key, values["error_ns"] = "clock", known["error_ns"].max()
    if not values["early"]:
        key += "_alone"
    return Finding("evidence", key, values, tuple(row["shown"] for row in rows))


def _ledger(study: Study) -> Ledger:
    if study.ledger is None:
        raise ValueError("nothing of a run without a ledger is spoken of")
    return study.ledger


_EVIDENCE: Final[dict[Cause, Callable[[Timeline, Study, Evidence], Finding]]] = {
    Cause.IMBALANCE: _imbalance,
    Cause.SLOW_RANK: _slow_rank,
    Cause.VARIATION: _variation,
    Cause.ORDER: _order,
    Cause.TRANSFER: _transfer,
    Cause.CLOCK: _clock,
    **{cause: partial(_late, cause) for cause in LATE},
}
