"""The interactive timeline: one HTML file with everything in it, which opens offline.

Tasks travel as compressed binary columns, so that a million of them make a small page that opens
quickly. The page may load nothing from anywhere: its policy allows just its own script and style.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.analysis.bubbles import DEFINITIONS, Bubbles, Rates
from bubblescope.analysis.causes import ADDED, MEANINGS, Cause
from bubblescope.analysis.study import Study, study
from bubblescope.exports.files import replacing
from bubblescope.exports.html_tables import (
    arranged,
    gap_columns,
    gaps_of,
    link_columns,
    packed,
    task_columns,
)
from bubblescope.exports.layout import ordered_ranks
from bubblescope.exports.slices import step_spans
from bubblescope.palette import CAUSE_COLOURS, COLOURS, INK, STRIPED
from bubblescope.report import facts, what_schedule
from bubblescope.vocabulary import SHORT, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.analysis.ledger import Ledger
    from bubblescope.schedules import Plan
    from bubblescope.timeline import Timeline

__all__ = ["render", "write"]

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="generator" content="bubblescope">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<script id="head" type="application/json">{head}</script>
<script id="tasks" type="application/octet-stream">{tasks}</script>
<script id="gaps" type="application/octet-stream">{gaps}</script>
<script id="links" type="application/octet-stream">{links}</script>
<script>{script}</script>
</body>
</html>
"""

_DEPARTURES: Final = 50


def write(
    timeline: Timeline, path: Path, *, title: str | None = None, also: Sequence[Plan] = ()
) -> Path:
    """Write the page."""
    with replacing(path) as partial:
        partial.write_text(render(timeline, title=title, also=also), encoding="utf-8")
    return path


def render(timeline: Timeline, *, title: str | None = None, also: Sequence[Plan] = ()) -> str:
    """Return the page.

    Args:
        timeline: What to show.
        title: Heading; by default the names of the traces.
        also: Schedules to recognise besides the known ones.
    """
    known = study(timeline, also)
    ranks = ordered_ranks(timeline).with_row_index("position")
    tasks = arranged(timeline, known.ideal.timeline if known.ideal else None, ranks)
    gaps = gaps_of(known.ledger, ranks)
    tables = {
        "tasks": packed(task_columns(tasks)),
        "gaps": packed(gap_columns(gaps, tasks)),
        "links": packed(link_columns(timeline, tasks)),
    }
    heading = title or _title(timeline)
    head = {
        **_head(timeline, known, tasks, ranks),
        "title": heading,
        "columns": {name: table.columns for name, table in tables.items()},
        "names": tasks["name"].unique(maintain_order=True).to_list(),
        "gaps": _extents(gaps, "position") if len(gaps) else [],
        "causes": _causes(known.ledger) if known.ledger else [],
    }
    script, style = _asset("bundle.js"), _asset("bundle.css")
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    )
    return _PAGE.format(
        policy=policy,
        title=_inert(heading),
        style=style,
        head=_json(head),
        script=script,
        **{name: table.text for name, table in tables.items()},
    )


def _head(
    timeline: Timeline, known: Study, tasks: pl.DataFrame, ranks: pl.DataFrame
) -> dict[str, Any]:
    bubbles = known.bubbles
    origin = timeline.start_ns
    run = timeline.run
    return {
        "origin": str(origin),
        "end": timeline.duration_ns,
        "kinds": [
            {"name": kind.value, "short": SHORT[kind], "fill": COLOURS[kind], "ink": INK[kind]}
            for kind in Kind
        ],
        "chunks": bool((tasks["chunk"].max() or 0) > 0),  # type: ignore[operator]
        "ranks": [_rank(row, bubbles) for row in ranks.iter_rows(named=True)],
        "rows": _extents(tasks, "position", "lane", "row"),
        "steps": _steps(timeline, bubbles, origin),
        "overall": _rates(bubbles.overall),
        "errors": {name: getattr(bubbles.overall, f"{name}_error", None) for name in DEFINITIONS},
        "definitions": DEFINITIONS,
        "facts": facts(timeline),
        "schedule": what_schedule(known.recognition).plain if known.recognition else None,
        "departures": _departures(known),
        "notes": [f"{field} was inferred: {how}" for field, how in run.inferred.items()],
        "warnings": [notice.message for notice in run.warnings],
    }


def _extents(rows: pl.DataFrame, *place: str) -> list[dict[str, Any]]:
    """Return from where to where the rows of each place on the page go."""
    return (
        rows.select(*place)
        .rename({"position": "rank"})
        .with_row_index("index")
        .group_by(pl.exclude("index"), maintain_order=True)
        .agg(pl.col("index").min().alias("from"), to=pl.col("index").max() + 1)
        .to_dicts()
    )


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
        **{key: row[key] for key in ("rank", "host", "stages", "device", "process")},
        "off": row["clock_error_ns"],
        "rates": {**_rates(rates), "error": rates.makespan_error} if rates else None,
    }


def _rates(rates: Any) -> dict[str, float | None]:
    return {name: getattr(rates, name) for name in DEFINITIONS}


def _steps(timeline: Timeline, bubbles: Bubbles, origin: int) -> list[dict[str, Any]]:
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


def _title(timeline: Timeline) -> str:
    paths = [PurePath(origin.path) for origin in timeline.run.origins]
    if len(paths) > 2 and len({path.parent for path in paths}) == 1:
        return paths[0].parent.name
    if len(paths) > 2:
        return f"{paths[0].name} and {len(paths) - 1} more"
    return " and ".join(path.name for path in paths) or "bubblescope"


@cache
def _asset(name: str) -> str:
    return (resources.files("bubblescope") / "viewer" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: Any) -> str:
    """Encode so that no text in it can end the script element that holds it."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _inert(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
