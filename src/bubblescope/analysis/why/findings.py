"""What the ledger of a run comes to: a verdict, the evidence for it, and what to do next.

A finding says nothing that it has no number for; the tasks that show it are named with it. The words
are those of `bubblescope.analysis.words`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from bubblescope.analysis.finding import Finding
from bubblescope.analysis.idle.causes import INHERENT, Cause
from bubblescope.analysis.idle.slowest import LEAST, notable, slowest
from bubblescope.analysis.wall_clock import WAITS
from bubblescope.model.clock_errors import clock_errors
from bubblescope.model.kinds import SHORT, Kind
from bubblescope.model.whole_steps import PASSES, UNRECORDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.idle.shares import Shares
    from bubblescope.analysis.study import Study
    from bubblescope.analysis.wall_clock import WallClock
    from bubblescope.model.timeline import Timeline

_MOST: Final = 4
"""Causes that are spoken of."""
_OUTSIDE: Final = 0.05
"""Share of a step from which on what a rank does beside forwards and backwards is spoken of."""


def findings(timeline: Timeline, study: Study, shares: Shares) -> list[Finding]:
    """Return what is to be said of a run, most important first; nothing if it has no ledger."""
    ledger = study.ledger
    if ledger is None:
        return []
    totals = {Cause(row["cause"]): row for row in ledger.totals().to_dicts()}
    whole = sum(row["idle_ns"] for row in totals.values())
    inherent = sum(totals[cause]["idle_ns"] for cause in INHERENT if cause in totals)
    rate = study.bubbles.overall.makespan
    recognition = study.recognition
    schedule = recognition.schedule if recognition else None
    common = {
        "rate_share": rate,
        "schedule": schedule,
        "inherent_share": inherent / whole if whole else None,
        "other_share": 1 - inherent / whole if whole else None,
    }
    causes = [
        cause for cause, row in totals.items() if cause not in INHERENT and row["share"] >= LEAST
    ][:_MOST]
    if Cause.SLOW_RANK not in causes and notable(ledger) is not None:
        causes = [*causes[: _MOST - 1], Cause.SLOW_RANK]
    rated = "" if rate is not None else "_unrated"
    if not causes:
        verdict = Finding("verdict", f"inherent{rated}", common)
        return [verdict, Finding("advice", "inherent", {})]
    said = [Finding("verdict", f"causes{rated}", common)]
    costs = {share.cause: share for share in shares.shares}
    for index, cause in enumerate(causes):
        saved = costs[cause].last_ns
        values = {
            "cause": cause,
            "idle_share": totals[cause]["share"],
            "idle_ns": totals[cause]["idle_ns"],
            "saved_ns": saved,
            "saved_share": saved / shares.step_ns,
        }
        key = ("first" if not index else "next") + ("" if saved > 0 else "_hidden")
        said.append(Finding("verdict", key, values))
        said.append(_EVIDENCE[cause](timeline, ledger, study))
        said.append(Finding("advice", cause.name.lower(), {}))
    return [*said, *_no_wait(study, inherent)]


def outside(wall: WallClock) -> list[Finding]:
    """Return what makes steps longer than their pipeline phase, if that is worth a word.

    First what most time goes to on some rank. That ranks wait for each other is a consequence of such,
    and is told only where there is nothing else.
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
    for row in (does if does.height else own).head(_MOST).to_dicts():
        told = {"what": row["what"], "rank": row["rank"], "rank_ns": row["per_step_ns"]}
        told |= {"time_share": row["per_step_ns"] / whole, "mean_ns": row["mean_ns"]}
        said.append(Finding("evidence", "outside", told))
        if row["what"] in _ADVISED:
            said.append(Finding("advice", _ADVISED[row["what"]], {}))
    return said


_ADVISED: Final = {
    "data loading": "host_data",
    "checkpoint": "checkpoint",
    "evaluation": "evaluation",
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


def _task(timeline: Timeline, row: int) -> dict[str, Any]:
    """Return what names a task: label, rank and step."""
    task = timeline.tasks.row(row, named=True)
    number = "" if task["microbatch"] is None else task["microbatch"]
    return {
        "label": f"{SHORT[Kind(task['kind'])]}{number}",
        "rank": task["rank"],
        "step": task["step"],
    }


def _imbalance(_timeline: Timeline, ledger: Ledger, _study: Study) -> Finding:
    run, length = ledger.counterfactuals.run, ledger.counterfactuals.lengths
    cells = pl.DataFrame(
        {"stage": run.stage, "kind": run.kind, "ns": length.stage_ns, "task": run.task}
    )
    costs = (
        cells.group_by("stage", "kind")
        .agg(pl.col("ns", "task").first())
        .group_by("stage")
        .agg(pl.col("ns").sum(), pl.col("task").min())  # groups come in no order
        .sort("ns", "stage", descending=[True, False])
    )
    top = costs.row(0, named=True)
    values = {
        "stage": top["stage"],
        "cost_ns": top["ns"],
        "mean_ns": int(costs["ns"].mean()),  # type: ignore[arg-type]
        "mean_times": top["ns"] / costs["ns"].mean(),
    }
    return Finding("evidence", "imbalance", values, (top["task"],))


def _slow_rank(_timeline: Timeline, ledger: Ledger, _study: Study) -> Finding:
    top = slowest(ledger)
    if top is None:
        raise ValueError("no rank is slow")
    values = {name: getattr(top, name) for name in ("rank", "slow_share", "steps", "of")}
    return Finding("evidence", "slow_rank", values, (top.task,))


def _variation(timeline: Timeline, ledger: Ledger, _study: Study) -> Finding:
    run, length = ledger.counterfactuals.run, ledger.counterfactuals.lengths
    beyond = length.own_ns - length.rank_ns
    at = int(beyond.argmax())
    usual = np.maximum(length.rank_ns, 1)
    values = {
        "spread_share": float(np.std(length.own_ns / usual)),
        "task": _task(timeline, int(run.task[at])),
        "longest_ns": int(length.own_ns[at]),
        "usual_ns": int(length.rank_ns[at]),
    }
    return Finding("evidence", "variation", values, (int(run.task[at]),))


def _transfer(_timeline: Timeline, ledger: Ledger, _study: Study) -> Finding:
    run = ledger.counterfactuals.run
    source, target = (edge[run.links] for edge in run.graph.edges)
    links = (
        pl.DataFrame(
            {
                "from": run.rank[source],
                "to": run.rank[target],
                "ns": run.delay_ns[run.links],
                "task": run.task[target],
            }
        )
        .group_by("from", "to")
        .agg(pl.col("ns").median().cast(pl.Int64), pl.col("task").first())
        .sort("ns", "from", "to", descending=[True, False, False])
    )
    top = links.row(0, named=True)
    values = {
        "from": top["from"],
        "to": top["to"],
        "delay_ns": top["ns"],
        "median_ns": int(links["ns"].median() or 0),  # type: ignore[arg-type]
        "recorded": run.recorded,
    }
    return Finding("evidence", "transfer", values, (top["task"],))


def _late(key: str, timeline: Timeline, ledger: Ledger, _study: Study) -> Finding:
    """Return evidence of a cause that holds up tasks on their own rank."""
    run = ledger.counterfactuals.run
    late = ledger.counterfactuals.late_ns(Cause[key.upper()])
    ranks = (
        pl.DataFrame({"rank": run.rank, "ns": late, "task": run.task})
        .filter(pl.col("ns") > 0)
        .group_by("rank")
        .agg(
            pl.col("ns").sum(),
            count=pl.len(),
            task=pl.col("task").sort_by("ns").last(),
            longest=pl.col("ns").max(),
        )
        .sort("ns", "rank", descending=[True, False])
    )
    top = ranks.row(0, named=True)
    values = {
        "count": int(ranks["count"].sum()),
        "late_ns": int(ranks["ns"].sum()),
        "rank": top["rank"],
        "rank_ns": top["ns"],
        "task": _task(timeline, top["task"]),
        "longest_ns": top["longest"],
    }
    if key == "pause":
        values["pause"], values["pause_ns"] = ledger.counterfactuals.longest_pause()
    return Finding("evidence", key, values, (top["task"],))


def _order(_timeline: Timeline, _ledger: Ledger, study: Study) -> Finding:
    found = study.recognition
    departures = found.departures if found else ()
    values = {
        "count": found.departed if found else 0,
        "first": str(departures[0]) if departures else "",
    }
    return Finding("evidence", "order", values)


def _clock(timeline: Timeline, ledger: Ledger, _study: Study) -> Finding:
    run = ledger.counterfactuals.run
    values: dict[str, Any] = {
        "early": int((run.early_ns < 0).sum()),
        "early_ns": int(-run.early_ns.min(initial=0)),
    }
    known = clock_errors(timeline)
    key = "clock_unknown"
    if timeline.run.clock is not None and known["group"].n_unique() == 1:
        key, values["error_ns"] = "clock", known["error_ns"].max()
    at = run.graph.edges.target[run.links][run.early_ns.argmin()] if len(run.early_ns) else 0
    return Finding("evidence", key, values, (int(run.task[at]),))


_EVIDENCE: Final[dict[Cause, Callable[[Timeline, Ledger, Study], Finding]]] = {
    Cause.IMBALANCE: _imbalance,
    Cause.SLOW_RANK: _slow_rank,
    Cause.VARIATION: _variation,
    Cause.ORDER: _order,
    Cause.TRANSFER: _transfer,
    Cause.PAUSE: partial(_late, "pause"),
    Cause.LAUNCH: partial(_late, "launch"),
    Cause.SEND: partial(_late, "send"),
    Cause.CODE: partial(_late, "code"),
    Cause.SYNC: partial(_late, "sync"),
    Cause.UNEXPLAINED: partial(_late, "unexplained"),
    Cause.CLOCK: _clock,
}
