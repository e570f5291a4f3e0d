"""What the page says of a run besides its tasks: the parts of its head."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.analysis.idle.causes import ADDED, MEANINGS, Cause
from bubblescope.analysis.rates import DEFINITIONS
from bubblescope.analysis.step_lengths import phase_lengths
from bubblescope.model.clock_errors import clock_errors
from bubblescope.model.decoders import prepared
from bubblescope.model.kinds import SHORT, Kind, Lane
from bubblescope.model.plain_text import cut
from bubblescope.model.provenance import INFERRED_PASSES
from bubblescope.model.timing import on_host
from bubblescope.render.html import schema
from bubblescope.render.html.whatif_answers import idle_of, sentence
from bubblescope.render.palette import CAUSE_LOOKS, colours_beside, ink_on, outline_of
from bubblescope.render.text.sections import what_schedule
from bubblescope.render.wording import counted, whose_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.overview import Overview
    from bubblescope.analysis.rank_standing import Alike
    from bubblescope.analysis.rates import BubbleRates, Rates
    from bubblescope.analysis.spending import Spending
    from bubblescope.analysis.study import Study
    from bubblescope.analysis.verdict import Verdict
    from bubblescope.analysis.view import View
    from bubblescope.model.provenance import Run
    from bubblescope.model.timeline import Timeline

_DEPARTURES: Final = 50

_FACT: Final = 120
_OF_TASKS: Final = ("kind", "microbatch", "stage")
"""What of a task may be inferred, by the keys of `Run.inferred`."""
_TEXT: Final = 2_000
"""Letters of a text from a trace that the page holds."""

_PLACE: Final = (
    *("rank", "stages", "device", "process"),
    *("pp", "dp", "tp", "cp", "ep", "etp", "edp"),
)


def summary(view: View, overview: Overview, ranks: pl.DataFrame, origin_ns: int) -> dict[str, Any]:
    """Return the kinds, ranks, steps, rates and words of a run, by their names in `schema.Told`.

    Args:
        view: What is shown of it.
        overview: How much there is of it.
        ranks: Its ranks in the order of the page.
        origin_ns: Where the page begins.
    """
    timeline, known = view.timeline, view.study
    bubbles = known.bubbles
    run = timeline.run
    off = _off(timeline)
    said = whose_times(timeline)
    spent = _spent(timeline)
    shown = spent.keys() | _kinds_beside(view)
    light, dark = (colours_beside(shown, dark=ground) for ground in (False, True))
    times = [] if said is None else [cut(said, _TEXT)]
    return {
        "origin": str(origin_ns),
        "kinds": [
            schema.Kind(
                name=kind.value,
                short=SHORT[kind],
                **shades(light[kind]),
                dark=schema.Shades(**shades(dark[kind])),
                spent=spent_ns,
                beside=beside_ns,
            )
            for kind in Kind
            for spent_ns, beside_ns in [spent.get(kind.value, (0, 0))]
        ],
        "ranks": [
            _rank(row, off, bubbles, view.devices)
            for row in _with_standings(ranks, view.alike).iter_rows(named=True)
        ],
        "standings": [
            schema.Standing(name=standing.value, said=said)
            for standing, said in view.alike.said.items()
        ],
        **_steps(overview, view, origin_ns),
        "overall": schema.Rates(**_figures(bubbles.overall)),
        "errors": schema.Rates(
            **{name: getattr(bubbles.overall, f"{name}_error", None) for name in DEFINITIONS}
        ),
        "definitions": DEFINITIONS,
        "facts": [
            cut(fact, _FACT)
            for fact in counted(timeline, overview, of_devices=view.devices is not None)
        ],
        "schedule": what_schedule(known.recognition).plain if known.recognition else None,
        "departures": _departures(known),
        "inferred": _inferred(run),
        "notes": [
            *(cut(f"{field} was inferred: {how}", _TEXT) for field, how in run.inferred.items()),
            *(cut(notice.message, _TEXT) for notice in run.notes),
            *([] if on_host(timeline.ranks) else times),
        ],
        "warnings": [
            *(times if on_host(timeline.ranks) else []),
            *(cut(notice.message, _TEXT) for notice in (*run.warnings, *bubbles.notices)),
            *_other_run(view),
        ],
        "causes": _causes(known.ledger, view) if known.ledger else [],
        "spread": msgspec.convert(view.spread.to_dicts(), prepared(list[schema.Spread])),
    }


def _inferred(run: Run) -> schema.Inferred | None:
    """Return what the tasks of a run were told by that no name states; None if names state all."""
    told = [run.inferred[field] for field in _OF_TASKS if field in run.inferred]
    ways = [notice.message for notice in run.notes if notice.code == INFERRED_PASSES]
    if not ways:
        return None
    how = "; ".join(dict.fromkeys(told))
    return schema.Inferred(how=cut(how, _TEXT), way=cut(ways[0], _TEXT))


def shades(fill: str) -> dict[str, str]:
    """Return a fill with the colours of what is written on it and of the lines around it."""
    return {"fill": fill, "ink": ink_on(fill), "outline": outline_of(fill)}


def overlays_of(view: View, ranks: pl.DataFrame) -> list[schema.Overlay]:
    """Return what has a lane beside what was measured: its lane, name and a sentence.

    Args:
        view: What is shown.
        ranks: In the order of the page, with rank and position.
    """
    overlays = []
    if view.against is not None:
        label = view.against.comparison.labels[1]
        detail = f"the other run{f', {label}' if label else ''}: the same steps on the same ranks"
        overlays.append(
            schema.Overlay(lane="against", name="B", detail=cut(detail, _TEXT), idle=None)
        )
    if "ideal" in view.overlays:
        detail = (
            "the same tasks in the order of the schedule, where tasks wait only for the "
            "results that they need, which arrive at once"
        )
        overlays.append(schema.Overlay(lane="ideal", name="ideal", detail=detail, idle=None))
    answer, reference = view.prediction, view.reference
    could = view.overlays.get("whatif")
    idle = None if could is None else idle_of(could, view.timeline, ranks)
    if answer is not None:
        name, detail = answer.change, sentence(answer)
        overlays.append(schema.Overlay(lane="whatif", name=name, detail=detail, idle=idle))
    elif reference is not None and could is not None:
        name, detail = reference.title, reference.detail
        overlays.append(schema.Overlay(lane="whatif", name=name, detail=detail, idle=idle))
    return overlays


def _other_run(view: View) -> list[str]:
    """Say what could not be set against another run, and what its traces warn of."""
    if view.against is None:
        return []
    other = view.against.comparison.runs[1].run
    return [
        *(f"B: {cut(notice.message, _TEXT)}" for notice in other.warnings),
        *(notice.message for notice in view.against.pairing.notices),
    ]


def title_of(view: View) -> str:
    """Return the heading of a page that was given none: the names of the traces."""
    if view.against is None:
        return _title_of(view.timeline)
    return " and ".join(_title_of(run) for run in view.against.comparison.runs)


def _title_of(timeline: Timeline) -> str:
    paths = [PurePath(origin.path) for origin in timeline.run.origins]
    if len(paths) > 2 and len({path.parent for path in paths}) == 1:
        return paths[0].parent.name
    if len(paths) > 2:
        return f"{paths[0].name} and {len(paths) - 1} more"
    return " and ".join(path.name for path in paths) or "bubblescope"


def verdict_of(verdict: Verdict, error: float | None, places: Sequence[int]) -> schema.Verdict:
    """Return a run's verdict.

    Args:
        verdict: What it comes to.
        error: How far its share may be off because clocks differ.
        places: Of the task that shows each remedy, its number on the page; -1 for none.
    """
    causes = list(Cause)
    return schema.Verdict(
        share=verdict.share,
        error=error,
        share_of=verdict.share_of,
        said=verdict.said,
        remedies=[
            schema.Remedy(
                cause=None if remedy.cause is None else causes.index(remedy.cause),
                saved=remedy.saved_ns,
                spent=remedy.spent_ns,
                headline=remedy.headline,
                evidence=cut(remedy.evidence, _TEXT),
                advice=remedy.advice,
                task=place if place >= 0 else None,
            )
            for remedy, place in zip(verdict.remedies, places, strict=True)
        ],
    )


def _spent(timeline: Timeline) -> dict[str, tuple[int, int]]:
    """Return what a rank spends in each kind a step, on its compute lane and beside it.

    Both are the mean of all, in ns.
    """
    parts = max(1, len(timeline.steps)) * max(1, len(timeline.ranks))
    length = pl.col("end_ns") - pl.col("start_ns")
    tasks = timeline.tasks.select("kind", "lane", "start_ns", "end_ns")
    computes = pl.col("lane") == Lane.COMPUTE.value
    spent = tasks.group_by("kind").agg(
        spent_ns=length.filter(computes).sum() // parts,
        beside_ns=length.filter(~computes).sum() // parts,
    )
    return {kind: (spent_ns, beside_ns) for kind, spent_ns, beside_ns in spent.iter_rows()}


def _kinds_beside(view: View) -> set[str]:
    """Return the kinds of what stands beside what was measured."""
    kinds = (run.tasks["kind"].unique().cast(pl.String) for run in view.overlays.values())
    return {kind for run in kinds for kind in run}


def _causes(ledger: Ledger, view: View) -> list[schema.Cause]:
    """Return the causes, with nothing of them where devices run whole models, which have no bubbles."""
    costs = view.verdict.shares
    told: dict[str, dict[str, Any]] = {}
    if view.devices is None:
        told = {row["cause"]: row for row in ledger.totals().iter_rows(named=True)}
    saved = {one.cause: max(0, one.last_ns) for one in costs.shares} if costs else {}
    parts = max(1, ledger.table.select("rank", "step").n_unique())
    return [
        schema.Cause(
            name=cause.value,
            meaning=MEANINGS[cause],
            pattern=CAUSE_LOOKS[cause][0],
            fill=CAUSE_LOOKS[cause][1],
            dark=CAUSE_LOOKS[cause][2],
            inherent=cause not in ADDED,
            share=told.get(cause.value, {}).get("share", 0.0),
            idle=told.get(cause.value, {}).get("idle_ns", 0) // parts,
            saved=saved.get(cause),
        )
        for cause in Cause
    ]


def _departures(known: Study) -> list[str]:
    found = known.recognition
    if found is None:
        return []
    said = [str(departure) for departure in found.departures[:_DEPARTURES]]
    more = found.departed - len(said)
    return [*said, f"and {more:,} more"] if more else said


def _off(timeline: Timeline) -> dict[int, int]:
    """Return how far the times of ranks may be off against the first host, where it is known."""
    errors = clock_errors(timeline).sort("rank")
    known = errors.filter(pl.col("group") == pl.col("group").first())
    return dict(known.select("rank", "error_ns").iter_rows())


def _with_standings(ranks: pl.DataFrame, found: Alike) -> pl.DataFrame:
    """Add how ranks stand, the one that each is like by its place on the page."""
    place = ranks.select(like="rank", place="position")
    known = found.ranks.cast({"rank": ranks.schema["rank"], "like": ranks.schema["rank"]})
    known = known.join(place, on="like", how="left").drop("like").rename({"place": "like"})
    return ranks.join(known, on="rank", how="left", maintain_order="left")


def _rank(
    row: dict[str, Any], off: dict[int, int], bubbles: BubbleRates, devices: Budget | None
) -> schema.Rank:
    rates = bubbles.per_rank.get(row["rank"])
    return schema.Rank(
        **{key: row[key] for key in _PLACE},
        host=cut(row["host"], _FACT),
        off=off.get(row["rank"]),
        standing=row["standing"],
        reason=row["reason"],
        like=row["like"],
        rates=rank_rates(rates),
        idle=None if devices is None else idle_share(devices.per_rank.get(row["rank"])),
    )


def idle_share(spent: Spending | None) -> float | None:
    """Return the share of their time that devices were idle, if it is known."""
    return None if spent is None else spent.share(spent.idle_ns)


def rank_rates(rates: Rates | None) -> schema.RankRates | None:
    """Return the bubble rates of a rank, if they are known."""
    return schema.RankRates(**_figures(rates), error=rates.makespan_error) if rates else None


def _figures(rates: Rates) -> dict[str, float | None]:
    return {name: getattr(rates, name) for name in DEFINITIONS}


def _steps(overview: Overview, view: View, origin_ns: int) -> dict[str, Any]:
    """Return the steps of a run in the order of time, and the place of the one to open with.

    Args:
        overview: How much there is of the run.
        view: What is shown of it.
        origin_ns: Where the page begins.
    """
    bubbles, devices = view.study.bubbles, view.devices
    spans = overview.spans(of_devices=devices is not None)
    lengths = phase_lengths(bubbles) if devices is None else devices.lengths_ns
    steps = [
        schema.Step(
            step=step,
            start=max(0, start - origin_ns),
            end=end - origin_ns,
            phase=lengths.get(step),
            **_makespan(bubbles.per_step.get(step)),
            idle=None if devices is None else idle_share(devices.per_step.get(step)),
        )
        for step, start, end in spans.iter_rows()
    ]
    chosen = overview.typical(
        common_clock=view.timeline.run.common_clock,
        of_devices=devices is not None,
        among=bubbles.rated,
    )
    opens = None if chosen is None else chosen["step"]
    places = [place for place, step in enumerate(steps) if step.step == opens]
    return {"steps": steps, "opening": places[0] if places else None}


def unrecorded_of(
    between: pl.DataFrame, ranks: pl.DataFrame, origin_ns: int
) -> list[schema.Unrecorded]:
    """Return when nothing was recorded of ranks, by their place on the page.

    Args:
        between: Frame with rank, start_ns and end_ns.
        ranks: Frame with rank and position.
        origin_ns: Where the page begins.
    """
    found = between.join(ranks.select("rank", "position"), on="rank").sort("position", "start_ns")
    return [
        schema.Unrecorded(rank=at, start=start - origin_ns, end=end - origin_ns)
        for at, start, end in found.select("position", "start_ns", "end_ns").iter_rows()
    ]


def _makespan(rates: Rates | None) -> dict[str, float | None]:
    if rates is None:
        return {"makespan": None, "error": None}
    return {"makespan": rates.makespan, "error": rates.makespan_error}
