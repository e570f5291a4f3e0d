"""Which ranks of a run do alike what their stage does, which are odd, and which only wait for those.

A thousand ranks are looked at as a few: those that are slow (as `stragglers`, `report` and `why` name
them), those that work as usual but idle more than others at their stage, and all the rest.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.idle.inside_passes import inside_passes
from bubblescope.analysis.idle.rank_noise import OF_MEDIAN, scatter, spread_between
from bubblescope.analysis.idle.slow_ranks import (
    PLACE,
    Work,
    Worked,
    joined_by_place,
    places_of,
    slow_ranks,
    work_by_place,
)
from bubblescope.analysis.idle.task_lengths import DURATION, Durations, Medians, Typical, lengths
from bubblescope.analysis.pipeline_phase import seen_by_ranks
from bubblescope.model import units
from bubblescope.model.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.idle.inside_passes import Inside
    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.idle.measured_run import MeasuredRun
    from bubblescope.analysis.idle.slow_ranks import SlowRank
    from bubblescope.model.timeline import Timeline

_SIGMAS: Final = 6.0
"""Standard errors beyond which none of a thousand ranks is by chance."""

_LEAST: Final = 0.05
"""By how much longer a stage must take than others to be odd, where it has one rank only."""

_IDLE: Final = 0.005
"""Share of its span that a rank must idle more than others at its stage, to be waiting."""

_FEWEST: Final = 8
"""Ranks below which none is odd because its stage takes longer than the others."""

_KINDS: Final = [kind.value for kind in Kind]


class Standing(Enum):
    """How a rank stands among those that do the same."""

    ODD = "odd"
    WAITS = "waits"
    ALIKE = "alike"


class Alike(NamedTuple):
    """How the ranks of a run stand.

    Attributes:
        ranks: One row a rank, ascending: rank, standing (as text), reason (why it is not alike; else
            null), and like (of an odd rank, one of the same stages that is not; null if there is none).
        said: Of each standing that there is, what its ranks have in common; empty where no rank has
            forwards or backwards by which to tell.
        slowest: The slowest rank, if it stands out.
    """

    ranks: pl.DataFrame
    said: dict[Standing, str]
    slowest: SlowRank | None

    def of(self, standing: Standing) -> list[int]:
        """Return the ranks that stand so, ascending."""
        return self.ranks.filter(standing=standing.value)["rank"].to_list()

    def __str__(self) -> str:
        counts = ((len(self.of(standing)), standing) for standing in self.said)
        words = {Standing.ODD: "odd", Standing.WAITS: "waiting", Standing.ALIKE: "alike"}
        return ", ".join(f"{count:,} {words[standing]}" for count, standing in counts)


def alike(timeline: Timeline, ledger: Ledger | None = None) -> Alike:
    """Tell the ranks of a run apart.

    Odd is a rank that is slower than a healthy one at its stages by a twentieth and by six standard
    errors (`SlowRank.odd`): against its replicas, and where there are none, against its other steps
    and stages. So is the only rank of a stage that takes as much longer than others mostly do. Waits
    is a rank that is not odd and idles, of the time from its first to its last task of a step, half a
    per cent more than the lower median of the ranks at its stages, and by six standard errors.

    Args:
        timeline: The run.
        ledger: Why its ranks were idle, if that is known: it knows what its tasks take.
    """
    ranks = timeline.ranks.select("rank", "dp").sort("rank")
    needed = DURATION if ledger is None else ("start_ns", "end_ns")

    def seen(own: pl.DataFrame) -> tuple[pl.DataFrame, Durations | None]:
        return idle_shares(own), Durations.of(own) if ledger is None else None

    looked = seen_by_ranks(seen, timeline, *needed)
    idle = [shares for shares, _ in looked]
    runs = [own for _, own in looked if own is not None]
    if not idle:
        none = pl.lit(None, pl.String)
        table = ranks.with_columns(
            standing=pl.lit(Standing.ALIKE.value), reason=none, like=none.cast(pl.Int64)
        )
        return Alike(table.select("rank", "standing", "reason", "like"), {}, None)
    inside = inside_passes(timeline)
    if ledger is not None and ledger.told is not None:
        doing = Doing(ledger.told.work, pl.concat(idle))
        places = ledger.typical.places.filter(pl.col("stage") >= 0).select(*PLACE, own="usual")
        return alike_of(timeline, doing, places, ledger.told.slow_ranks)
    if ledger is not None:
        found = ledger.counterfactuals
        doing = Doing.of(pl.concat(idle), found.run, inside)
        return alike_of(timeline, doing, usual_work(found.run), found.slow_ranks)
    typical = Typical.of(Medians.joined([Medians.of(run) for run in runs]))
    doings, usual, worked = [], [], []
    for shares, run in zip(idle, runs, strict=True):
        doings.append(Doing.of(shares, run, inside))
        usual.append(usual_work(run))
        worked.append(Worked.of(run, lengths(run, typical), inside))
    slow_ones = slow_ranks(Work.of_ranks(worked, timeline), typical)
    return alike_of(timeline, Doing.joined(doings), pl.concat(usual), slow_ones)


class Doing(NamedTuple):
    """What ranks did in some steps of a run; of several parts it is put together.

    Attributes:
        work: Frame with rank, stage, kind and own: how long tasks took in all, without waits for
            other ranks inside of them.
        idle: Frame with rank, step and idle: what share of its span it idled.
    """

    work: pl.DataFrame
    idle: pl.DataFrame

    @classmethod
    def of(cls, idle: pl.DataFrame, run: Durations | MeasuredRun, inside: Inside) -> Self:
        """Look at some tasks.

        Args:
            idle: As `idle_shares` returns it of their ranks and steps.
            run: The tasks.
            inside: What devices did in the tasks of the timeline.
        """
        return cls(work_by_place(run, inside), idle)

    @classmethod
    def joined(cls, parts: Sequence[Doing]) -> Self:
        """Return that of several parts of a run together, each of whole steps or whole ranks."""
        work, idle = zip(*parts, strict=True)
        return cls(joined_by_place(work), pl.concat(idle))


def idle_shares(phase: pl.DataFrame) -> pl.DataFrame:
    """Return rank, step and idle, the share of its span that the rank idled.

    Args:
        phase: Frame with rank, step, start_ns and end_ns: the tasks that are compared.
    """
    span = pl.col("end_ns").max() - pl.col("start_ns").min()
    busy = (pl.col("end_ns") - pl.col("start_ns")).sum()
    return phase.group_by("rank", "step").agg(idle=1 - busy / span)


def usual_work(run: Durations | MeasuredRun) -> pl.DataFrame:
    """Return rank, stage, kind and own, the median length of their tasks, where stages are known.

    Args:
        run: All tasks of some ranks.
    """
    tasks = pl.DataFrame({**places_of(run), "own": run.duration_ns})
    known = tasks.filter(pl.col("stage") >= 0)
    return known.group_by(PLACE).agg(pl.col("own").median())


def alike_of(
    timeline: Timeline, doing: Doing, usual: pl.DataFrame, slow_ones: Sequence[SlowRank]
) -> Alike:
    """Tell the ranks of a run apart, as `alike` does.

    Args:
        timeline: Of which the ranks are looked at.
        doing: What they did in all steps.
        usual: As `usual_work` returns it, of all ranks.
        slow_ones: The ranks that are slower than healthy ones, slowest first.
    """
    ranks = timeline.ranks.select("rank", "dp").sort("rank")
    tasks = doing.work
    stages = pl.col("stage").unique().sort().cast(pl.String)
    held = tasks.filter(pl.col("stage") >= 0).group_by("rank").agg(held=stages)
    ranks = ranks.join(held, on="rank", how="left").with_columns(
        pl.col("held").list.join(", ").fill_null("")
    )
    odd = _heavy(usual)
    odd |= {slow.rank: _reason(slow, ranks) for slow in slow_ones if slow.odd}
    work = tasks.group_by("rank").agg(work=pl.col("own").sum())
    off = (pl.col("work") / _lower_median("work").over("held") - 1).abs()
    told = pl.len().over("held") > 1
    ranks = ranks.join(work, on="rank", how="left").with_columns(off=pl.when(told).then(off))
    table, said = _told(ranks, odd, _waiting(doing.idle, ranks, [*odd]))
    slowest = slow_ones[0] if slow_ones and slow_ones[0].stands_out else None
    return Alike(table, said, slowest)


def _reason(slow: SlowRank, ranks: pl.DataFrame) -> str:
    """Say by how much which kinds of a slow rank's tasks take longer, and than what."""
    by_share: dict[str, list[str]] = {}
    for kind, share in slow.more.items():
        if share > 0:
            by_share.setdefault(f"{100 * share:.0f}", []).append(_KINDS[kind].replace("_", " "))
    said = ", ".join(f"{_and(names)} +{share} %" for share, names in by_share.items())
    held = ranks.filter(rank=slow.rank)["held"].item()
    others = ranks.filter(held=held).height - 1
    sometimes = slow.steps < slow.of
    if others:
        against = f"the other rank of {_stages(held)}"
        if others > 1:
            against = f"the {others:,} other ranks of {_stages(held)}"
    else:
        against = "its other steps" if sometimes else "other stages"
    if sometimes:
        return f"{said} against {against}, in {slow.steps:,} of {units.count(slow.of, 'step')}"
    return f"{said} against {against}"


def _heavy(usual: pl.DataFrame) -> dict[int, str]:
    """Return the ranks whose stages take longer than most, where no other rank holds them, and why."""
    holders = usual.group_by("stage").agg(pl.col("rank").n_unique())
    if holders.height < 2 or not (holders["rank"] == 1).any():
        return {}
    places = usual.filter(pl.col("own") > 0).with_columns(
        usual=pl.col("own").median().over("kind"),
        peers=pl.len().over("stage", "kind"),
    )
    each = (
        places.group_by("rank")
        .agg(pl.col("own", "usual").sum(), pl.col("peers").max())
        .with_columns(beyond=pl.col("own") / pl.col("usual") - 1)
    )
    if each.height < _FEWEST:
        return {}
    error = spread_between(each["beyond"].to_numpy(), np.zeros(each.height, np.int64))
    most = max(_LEAST, _SIGMAS * error)
    found = each.filter(pl.col("peers") == 1, pl.col("beyond") > most).sort("rank")
    why = "no other rank holds it, so whether it is slow or its layers are many is not known"
    return {
        rank: f"its stage takes {100 * beyond:.0f} % longer than most; {why}"
        for rank, beyond in found.select("rank", "beyond").iter_rows()
    }


def _waiting(idle: pl.DataFrame, ranks: pl.DataFrame, odd: list[int]) -> pl.DataFrame:
    """Return the ranks that wait, and by how much more of their spans they idle than others.

    Ranks of a replica with an odd one may all wait, so they do not tell how much ranks differ anyhow.
    """
    each = (
        idle.sort("rank", "step")
        .filter(pl.col("idle").is_finite())
        .with_columns(usual=pl.col("idle").median().over("rank"), steps=pl.len().over("rank"))
    )
    several = each.filter(pl.col("steps") > 1)
    by_step = OF_MEDIAN * scatter(several["idle"] - several["usual"], several["steps"])
    idle = (
        each.group_by("rank")
        .agg(pl.col("usual", "steps").first())
        .join(ranks.filter(pl.col("held") != ""), on="rank")
        .sort("rank")
        .filter(~pl.col("rank").is_in(odd))
        .with_columns(more=pl.col("usual") - _lower_median("usual").over("held"))
    )
    held_up = ranks.filter(pl.col("rank").is_in(odd))["dp"].drop_nulls().to_list()
    free = idle.filter(~pl.col("dp").is_in(held_up).fill_null(value=False))
    groups = free["held"].cast(pl.Categorical).to_physical().cast(pl.Int64)
    between = spread_between(free["usual"].to_numpy(), groups.to_numpy())
    error = pl.max_horizontal(by_step / pl.col("steps").sqrt(), pl.lit(between))
    waits = (pl.col("more") > _IDLE) & (pl.col("more") > _SIGMAS * error)
    return idle.filter(waits).select("rank", "more")


def _told(
    ranks: pl.DataFrame, odd: dict[int, str], waiting: pl.DataFrame
) -> tuple[pl.DataFrame, dict[Standing, str]]:
    """Return how all ranks stand and what they have in common, as of `Alike`."""
    reasons = pl.DataFrame(
        {"rank": [*odd], "reason": [*odd.values()]}, schema={"rank": pl.Int64, "reason": pl.String}
    )
    idles = pl.format(
        "idle {} points more of its span than is usual at its stage, its own work as elsewhere",
        (100 * pl.col("more")).round(1),
    )
    table = (
        ranks.with_columns(pl.col("rank").cast(pl.Int64))
        .join(reasons, on="rank", how="left")
        .join(waiting.cast({"rank": pl.Int64}), on="rank", how="left")
        .with_columns(
            standing=pl.when(pl.col("reason").is_not_null())
            .then(pl.lit(Standing.ODD.value))
            .when(pl.col("more").is_not_null())
            .then(pl.lit(Standing.WAITS.value))
            .otherwise(pl.lit(Standing.ALIKE.value)),
            reason=pl.coalesce("reason", idles),
        )
        .sort("rank")
    )
    parts = {one: table.filter(standing=one.value) for one in Standing}
    said = {
        Standing.ODD: _said_of_odd,
        Standing.WAITS: lambda part: _said_of_waiting(part, parts[Standing.ODD]),
        Standing.ALIKE: _said_of_alike,
    }
    held = {one: said[one](part) for one, part in parts.items() if part.height}
    return _with_like(table).select("rank", "standing", "reason", "like"), held


def _with_like(table: pl.DataFrame) -> pl.DataFrame:
    """Add `like`: of an odd rank, the one of the next number that holds the same and is not odd."""
    odd = table.filter(standing=Standing.ODD.value).select("rank", "held")
    others = table.filter(pl.col("standing") != Standing.ODD.value)
    others = others.select("held", like="rank", waits=pl.col("standing") == Standing.WAITS.value)
    apart = (pl.col("like") - pl.col("rank")).abs()
    nearest = odd.join(others, on="held").sort("waits", apart, "like").unique("rank", keep="first")
    return table.join(nearest.select("rank", "like"), on="rank", how="left")


def _said_of_odd(part: pl.DataFrame) -> str:
    verb = "takes" if part.height == 1 else "take"
    return f"{units.listed('rank', part['rank'].to_list())} {verb} longer than others for the same"


def _said_of_waiting(part: pl.DataFrame, odd: pl.DataFrame) -> str:
    said = f"own work as elsewhere, idle up to {100 * (_most(part, 'more') or 0):.1f} points more"
    for_whom = odd.filter(pl.col("dp").is_in(part["dp"].drop_nulls().to_list()))
    replicas = part["dp"].unique().sort()
    if replicas.has_nulls() or not set(replicas) <= set(for_whom["dp"]):
        return said
    whose = units.listed("replica", replicas.to_list())
    return f"{said}: {whose} with {units.listed('rank', for_whom['rank'].to_list())}"


def _said_of_alike(part: pl.DataFrame) -> str:
    """Say how far the work of ranks is from the median of those that hold the same."""
    off = _most(part, "off")
    if off is None:
        return "each as in its other steps: no other rank holds the same"
    return f"own work within {100 * off:.1f} % of the median at its stage"


def _most(part: pl.DataFrame, column: str) -> float | None:
    most: float | None = part.select(pl.col(column).max()).item()
    return most


def _lower_median(column: str) -> pl.Expr:
    return pl.col(column).quantile(0.5, "lower")


def _stages(held: str) -> str:
    if not held:
        return "the run"
    return f"{'stages' if ',' in held else 'stage'} {held}"


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
