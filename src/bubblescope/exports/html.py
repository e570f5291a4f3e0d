"""The interactive timeline: one HTML file with everything in it, which opens offline.

Tasks travel as compressed binary columns, so that a million of them make a small page that opens
quickly. The page may load nothing from anywhere: its policy allows just its own script and style.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.bubbles import DEFINITIONS, Bubbles, Rates
from bubblescope.analysis.study import Study, study
from bubblescope.exports.files import replacing
from bubblescope.exports.layout import LANE_ORDER, ordered_ranks, with_rows
from bubblescope.exports.slices import step_spans
from bubblescope.palette import COLOURS, INK
from bubblescope.report import facts, what_schedule
from bubblescope.vocabulary import SHORT, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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
<script id="columns" type="application/octet-stream">{columns}</script>
<script>{script}</script>
</body>
</html>
"""

_INTEGERS: Final = {
    "kind": ("u8", np.uint8),
    "microbatch": ("i32", np.int32),
    "chunk": ("i16", np.int16),
    "stage": ("i32", np.int32),
    "step": ("i32", np.int32),
    "peer": ("i32", np.int32),
    "name": ("u32", np.uint32),
}
_TIMES: Final = ("gap", "length", "busy", "lead")
_UNKNOWN: Final = -1
_DEPARTURES: Final = 50
_IDEAL: Final = "ideal"


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
    best = known.ideal.timeline if known.ideal else None
    tasks, ranks = _arranged(timeline, best)
    columns, described = _columns(tasks)
    names = tasks["name"].unique(maintain_order=True).to_list()
    heading = title or _title(timeline)
    head = {
        **_head(timeline, known, tasks, ranks),
        "title": heading,
        "columns": described,
        "names": names,
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
        columns=base64.b64encode(columns).decode(),
        script=script,
    )


def _arranged(timeline: Timeline, ideal: Timeline | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Sort tasks by their place on the page, top to bottom and left to right.

    The tasks of the ideal have a lane of their own, below those that were measured.
    """
    ranks = ordered_ranks(timeline).with_row_index("position")
    lanes = {lane: index for index, lane in enumerate((LANE_ORDER[0], _IDEAL, *LANE_ORDER[1:]))}
    parts = [timeline.tasks.with_columns(pl.col("lane").cast(pl.String))]
    if ideal is not None:
        parts.append(ideal.tasks.with_columns(lane=pl.lit(_IDEAL)))
    tasks = (
        with_rows(pl.concat(parts))
        .join(ranks.select("rank", "position"), on="rank")
        .sort(
            "position",
            pl.col("lane").replace_strict(lanes, return_dtype=pl.Int32),
            "row",
            "start_ns",
            "end_ns",
        )
    )
    return tasks, ranks


def _columns(tasks: pl.DataFrame) -> tuple[bytes, list[dict[str, Any]]]:
    """Pack the tasks' columns, each padded to eight bytes, and describe them."""
    place = ("position", "lane", "row")
    previous = pl.col("start_ns").shift(1).over(place)
    origin = int(tasks["start_ns"].min() or 0)  # type: ignore[arg-type]
    frame = tasks.select(
        # Starts as differences within a row: small numbers, which compress well.
        gap=pl.col("start_ns") - previous.fill_null(origin),
        length=pl.col("end_ns") - pl.col("start_ns"),
        busy=pl.col("busy_ns").fill_null(_UNKNOWN),
        lead=(pl.col("start_ns") - pl.col("host_start_ns"))
        .clip(lower_bound=_UNKNOWN)
        .fill_null(_UNKNOWN),
        kind=pl.col("kind").to_physical(),
        microbatch=pl.col("microbatch").fill_null(_UNKNOWN),
        chunk=pl.col("chunk").fill_null(_UNKNOWN),
        stage=pl.col("stage").fill_null(_UNKNOWN),
        step=pl.col("step").fill_null(_UNKNOWN),
        peer=pl.col("peer").fill_null(_UNKNOWN),
        name=_codes(tasks["name"]),
    )
    packed = bytearray()
    described = []
    for column in frame.iter_columns():
        values = column.to_numpy()
        if column.name in _TIMES:
            small = column.len() == 0 or -(2**31) <= int(values.min()) <= int(values.max()) < 2**31
            code, dtype = ("i32", np.int32) if small else ("f64", np.float64)
        else:
            code, dtype = _INTEGERS[column.name]  # type: ignore[assignment]
        data = np.ascontiguousarray(values.astype(dtype)).tobytes()
        packed += data + bytes(-len(data) % 8)
        described.append({"name": column.name, "type": code, "length": column.len()})
    return zlib.compress(bytes(packed), 6), described


def _codes(names: pl.Series) -> pl.Series:
    """Number names in the order of their first appearance."""
    unique = names.unique(maintain_order=True)
    return names.to_frame("name").join(
        pl.DataFrame({"name": unique}).with_row_index("code"),
        on="name",
        how="left",
        maintain_order="left",
    )["code"]


def _head(
    timeline: Timeline, known: Study, tasks: pl.DataFrame, ranks: pl.DataFrame
) -> dict[str, Any]:
    bubbles = known.bubbles
    origin = timeline.start_ns
    rows = (
        tasks.with_row_index("index")
        .group_by("position", "lane", "row", maintain_order=True)
        .agg(begin=pl.col("index").min(), end=pl.col("index").max() + 1)
    )
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
        "rows": [
            {"rank": position, "lane": lane, "from": begin, "to": end}
            for position, lane, _, begin, end in rows.iter_rows()
        ],
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
