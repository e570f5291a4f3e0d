"""What the budget of a run's devices comes to, as findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.device_budget import bound, main_reason
from bubblescope.analysis.finding import Finding
from bubblescope.analysis.losses import BETWEEN
from bubblescope.model.budget import Use

if TYPE_CHECKING:
    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.losses import Losses

_LEAST: Final = 0.01
"""Share of the time below which a loss is not spoken of."""
_MOSTLY: Final = 0.5
"""Share of a loss above which one sort of it decides what to do."""
_MOST: Final = 3
"""Losses that are spoken of."""


def verdict(budget: Budget) -> Finding:
    """Return what a run is bound by, and why its devices are idle."""
    whole = budget.overall
    if not whole.idle_ns:
        return Finding("verdict", "busy", {"bound": bound(whole)})
    key, time = main_reason(whole)
    values = {
        "bound": bound(whole),
        "idle_tenth": whole.share(whole.idle_ns),
        "main_whole": time / whole.idle_ns,
        "reason": key,
    }
    return Finding("verdict", "device", values)


def lost(budget: Budget, losses: Losses) -> list[Finding]:
    """Return what time is lost to that is no bubble, most first."""
    ranked = losses.ranked().filter(pl.col("place") != BETWEEN, pl.col("share") >= _LEAST)
    by_use = ranked.unique("use", keep="first", maintain_order=True).head(_MOST)
    said = []
    for row in by_use.to_dicts():
        use = Use(row["use"])
        values = {
            "use": use,
            "per_step_ns": row["per_step_ns"],
            "time_share": row["share"],
            "place": row["place"],
        }
        said.append(Finding("verdict", "loss", values))
        of_use = budget.details.filter(use=use.value)
        top = of_use.filter(pl.col("detail").is_not_null()).head(1)
        advised = use.value
        if top.height:
            detail = top["detail"][0]
            share = top["spent_ns"][0] / of_use["spent_ns"].sum()
            said.append(Finding("evidence", "loss", {"detail": detail, "detail_share": share}))
            if use is Use.COPY and share > _MOSTLY:
                advised = _copies(detail)
        said.append(Finding("advice", advised, {}))
    return said


def _copies(sort: str) -> str:
    """Return the key of the advice about copies: pinned memory helps only those from and to a host."""
    way, _, memory = sort.partition(" ")
    if memory == "unified":
        return Use.PAGES.value
    return {"DtoD": "copy_on_device", "PtoP": "copy_between_devices"}.get(way, Use.COPY.value)
