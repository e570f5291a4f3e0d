"""What the page says of a run besides its tasks: the head of the page, plain values all of it.

Times are whole nanoseconds since the run's first start, lengths whole nanoseconds.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bubblescope import units
from bubblescope.analysis.bubbles import DEFINITIONS
from bubblescope.analysis.causes import ADDED, MEANINGS, Cause
from bubblescope.exports.slices import step_spans
from bubblescope.palette import CAUSE_COLOURS, COLOURS, INK, STRIPED
from bubblescope.plain import cut
from bubblescope.report import facts, what_schedule
from bubblescope.vocabulary import SHORT, Kind, Lane

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.analysis.bubbles import Bubbles, Rates
    from bubblescope.analysis.ledger import Ledger
    from bubblescope.analysis.study import Study
    from bubblescope.analysis.whatif import Prediction
    from bubblescope.timeline import Timeline

__all__ = ["overlays_of", "spread_of", "summary", "title_of"]

_DEPARTURES: Final = 50

_FACT: Final = 120
_TEXT: Final = 2_000
"""Letters of a text from a trace that the page holds."""

_PLACE: Final = ("rank", "host", "stages", "device", "process", "dp", "tp", "cp")


def summary(timeline: Timeline, known: Study, ranks: pl.DataFrame) -> dict[str, Any]:
    """Return the kinds, ranks, steps, rates and words of a run.

    Args:
        timeline: The run.
        known: What was worked out about it.
        ranks: Its ranks in the order of the page.
    """
    bubbles = known.bubbles
    run = timeline.run
    return {
        "origin": str(timeline.start_ns),
        "kinds": [
            {"name": kind.value, "short": SHORT[kind], "fill": COLOURS[kind], "ink": INK[kind]}
            for kind in Kind
        ],
        "ranks": [_rank(row, bubbles) for row in ranks.iter_rows(named=True)],
        "steps": _steps(timeline, bubbles),
        "overall": _rates(bubbles.overall),
        "errors": {name: getattr(bubbles.overall, f"{name}_error", None) for name in DEFINITIONS},
        "definitions": DEFINITIONS,
        "facts": [cut(fact, _FACT) for fact in facts(timeline)],
        "schedule": what_schedule(known.recognition).plain if known.recognition else None,
        "departures": _departures(known),
        "notes": [
            cut(f"{field} was inferred: {how}", _TEXT) for field, how in run.inferred.items()
        ],
        "warnings": [cut(notice.message, _TEXT) for notice in run.warnings],
        "causes": _causes(known.ledger) if known.ledger else [],
        "spread": spread_of(timeline.tasks),
    }


def overlays_of(lanes: Collection[str], answer: Prediction | None) -> list[dict[str, str]]:
    """Return what could have been and has a lane beside what was: its lane, name and a sentence."""
    overlays = []
    if "ideal" in lanes:
        detail = (
            "the same tasks in the order of the schedule, where nothing waits but for the results "
            "that it needs, and these arrive at once"
        )
        overlays.append({"lane": "ideal", "name": "ideal", "detail": detail})
    if answer is not None:
        overlays.append({"lane": "whatif", "name": answer.change, "detail": _said(answer)})
    return overlays


def _said(answer: Prediction) -> str:
    """Say in one sentence what was predicted."""
    less = answer.saved_share >= 0
    said = (
        f"a step takes {units.duration(answer.predicted_ns)} instead of "
        f"{units.duration(answer.step_ns)}, {units.percent(abs(answer.saved_share))} "
        f"{'less' if less else 'more'} for a micro-batch; the same method is "
        f"{units.percent(answer.error)} off the measured step when nothing is changed"
    )
    return f"{said}; it needs {answer.needs}" if answer.needs else said


def spread_of(tasks: pl.DataFrame) -> list[dict[str, Any]]:
    """Return how long tasks take, by kind and stage, over all ranks and steps.

    Args:
        tasks: As in `Timeline.tasks`; those of the host are left out.

    Returns:
        For each kind and stage, ascending, an unknown stage last: kind (index into the kinds),
        stage, count, and in ns: least, low (first quartile), middle (median), high (third
        quartile), most and mean. Quartiles lie linearly between the two nearest lengths.
    """
    length = pl.col("end_ns") - pl.col("start_ns")
    figures = {
        "low": length.quantile(0.25, "linear"),
        "middle": length.median(),
        "high": length.quantile(0.75, "linear"),
        "mean": length.mean(),
    }
    return (
        tasks.filter(pl.col("lane") != Lane.HOST.value)
        .group_by(pl.col("kind").to_physical(), "stage")
        .agg(
            count=pl.len(),
            least=length.min(),
            **{name: figure.round().cast(pl.Int64) for name, figure in figures.items()},
            most=length.max(),
        )
        .select("kind", "stage", "count", "least", "low", "middle", "high", "most", "mean")
        .sort("kind", "stage", nulls_last=True)
        .to_dicts()
    )


def title_of(timeline: Timeline) -> str:
    """Return the heading of a page that was given none: the names of the traces."""
    paths = [PurePath(origin.path) for origin in timeline.run.origins]
    if len(paths) > 2 and len({path.parent for path in paths}) == 1:
        return paths[0].parent.name
    if len(paths) > 2:
        return f"{paths[0].name} and {len(paths) - 1} more"
    return " and ".join(path.name for path in paths) or "bubblescope"


def _causes(ledger: Ledger) -> list[dict[str, Any]]:
    shares = dict(ledger.totals().select("cause", "share").iter_rows())
    return [
        {
            "name": cause.value,
            "meaning": MEANINGS[cause],
            "fill": CAUSE_COLOURS[cause],
            "striped": cause in STRIPED,
            "inherent": cause not in ADDED,
            "share": shares.get(cause.value, 0.0),
        }
        for cause in Cause
    ]


def _departures(known: Study) -> list[str]:
    found = known.recognition
    if found is None:
        return []
    said = [str(departure) for departure in found.departures[:_DEPARTURES]]
    more = len(found.departures) - len(said)
    return [*said, f"and {more:,} more"] if more else said


def _rank(row: dict[str, Any], bubbles: Bubbles) -> dict[str, Any]:
    rates = bubbles.per_rank.get(row["rank"])
    return {
        **{key: row[key] for key in _PLACE},
        "host": cut(row["host"], _FACT),
        "off": row["clock_error_ns"],
        "rates": {**_rates(rates), "error": rates.makespan_error} if rates else None,
    }


def _rates(rates: Rates) -> dict[str, float | None]:
    return {name: getattr(rates, name) for name in DEFINITIONS}


def _steps(timeline: Timeline, bubbles: Bubbles) -> list[dict[str, Any]]:
    origin = timeline.start_ns
    spans = step_spans(timeline.tasks, per_rank=False).sort("start_ns")
    return [
        {
            "step": step,
            "start": start - origin,
            "end": end - origin,
            **_makespan(bubbles.per_step.get(step)),
        }
        for step, start, end in spans.select("step", "start_ns", "end_ns").iter_rows()
    ]


def _makespan(rates: Rates | None) -> dict[str, float | None]:
    if rates is None:
        return {"makespan": None, "error": None}
    return {"makespan": rates.makespan, "error": rates.makespan_error}
