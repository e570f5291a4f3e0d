"""The two files that Paddle's own `profiler_helper_static.py` makes of its worker logs.

`pipeline_profile.json` is for chrome://tracing, with named rows; `pipeline_profile_perfetto.json` is
the same with numbered rows. Compared with the script of PaddlePaddle 3.3.1 in `docs/paddle.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model import intervals
from bubblescope.model.files import replacing
from bubblescope.model.kinds import Kind, Lane
from bubblescope.model.plain_text import inert_json

if TYPE_CHECKING:
    from pathlib import Path

    from bubblescope.model.timeline import Timeline

_CHROME: Final = "pipeline_profile.json"
_PERFETTO: Final = "pipeline_profile_perfetto.json"
_STEP_ROW: Final = 2333
_COLOURS: Final = {
    Kind.FORWARD.value: "thread_state_running",
    Kind.BACKWARD.value: "rail_idle",
    Kind.BACKWARD_INPUT.value: "rail_idle",
    Kind.BACKWARD_WEIGHT.value: "rail_animation",
    Kind.OPTIMIZER.value: "rail_response",
}
"""Catapult's reserved colour names; the first, second and last are the original's."""


def write(timeline: Timeline, folder: Path, steps: pl.DataFrame | None = None) -> list[Path]:
    """Write both files into a folder, replacing them if they are there.

    Args:
        timeline: What the Paddle source read: tasks named "<type>_<job>", ranks with a device, and
            hosts "machineK" if there are several.
        folder: Where to write.
        steps: When steps were, where the job said so: frame with step, start_ns and end_ns, on the
            timeline's clock. The others last from the first start to the last end of their tasks.

    Returns:
        The two paths.

    Raises:
        OSError: A file cannot be written; one of that name that was there is as it was.
    """
    rows = _rows(timeline)
    events = pl.concat([_task_events(timeline, rows), _step_events(timeline, steps)])
    numbers = {row: number for row, number, _ in rows} | {"Step": _STEP_ROW}
    numbered = events.with_columns(
        tid=pl.col("tid").replace_strict(list(numbers), list(numbers.values()), default=None)
    )
    labels = [("STEP", _STEP_ROW), *((label, number) for _, number, label in rows)]
    metadata = [
        {
            "args": {"name": label},
            "cat": "__metadata",
            "name": "thread_name",
            "ph": "M",
            "pid": 0,
            "tid": number,
            "ts": 0,
        }
        for label, number in labels
    ]
    chrome, perfetto = folder / _CHROME, folder / _PERFETTO
    _write(chrome, events.write_json())
    more = msgspec.json.encode(metadata).decode()
    _write(perfetto, f"{numbered.write_json()[:-1]},{more[1:]}")
    return [chrome, perfetto]


def _write(path: Path, events: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(f'{{"traceEvents": {inert_json(events)}}}', encoding="utf-8")


def _rows(timeline: Timeline) -> list[tuple[str, int, str]]:
    """Return each rank's row: its name, its number and its label."""
    ranks = timeline.ranks.sort("rank")
    machines = ranks["host"].str.extract(r"^machine(\d+)$").to_list()
    rows = []
    for index, (machine, device) in enumerate(zip(machines, ranks["device"], strict=True)):
        where = "" if machine is None else f"(machine:{machine})"
        rows.append((f"GPU{device}{where}", _STEP_ROW + 1 + index, f"GPU:{device}{where}"))
    return rows


def _kept(timeline: Timeline) -> pl.DataFrame:
    return timeline.tasks.filter(pl.col("lane") == Lane.COMPUTE.value)


def _events(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a begin and an end event for each row of name, cat, start_ns, end_ns, tid and cname.

    Microseconds come from milliseconds, as in the original, so that they are equal to the last bit.
    """

    def microseconds(name: str) -> pl.Expr:
        whole = (pl.col(name) // 1_000_000).cast(pl.String)
        broken = (pl.col(name) % 1_000_000).cast(pl.String).str.zfill(6)
        return pl.concat_str(whole, pl.lit("."), broken).cast(pl.Float64) * 1000

    both = frame.with_row_index("row").with_columns(pid=pl.lit(0))
    return (
        pl.concat(
            [
                both.with_columns(ph=pl.lit(phase), ts=microseconds(time))
                for phase, time in (("B", "start_ns"), ("E", "end_ns"))
            ]
        )
        .sort("row", maintain_order=True)
        .select("name", "cat", "ph", "ts", "pid", "tid", "cname")
    )


def _task_events(timeline: Timeline, rows: list[tuple[str, int, str]]) -> pl.DataFrame:
    names = dict(zip(timeline.ranks.sort("rank")["rank"], (row for row, _, _ in rows), strict=True))
    return _events(
        _kept(timeline).select(
            "name",
            "start_ns",
            "end_ns",
            cat=pl.col("name").str.replace(r"_\d+$", ""),
            tid=pl.col("rank").replace_strict(names, return_dtype=pl.String),
            cname=pl.col("kind").cast(pl.String).replace_strict(_COLOURS, default="generic_work"),
        )
    )


def _step_events(timeline: Timeline, said: pl.DataFrame | None) -> pl.DataFrame:
    """Return a row of steps, from the first start to the last end anywhere; they do not overlap."""
    steps = _kept(timeline).drop_nulls("step").select("step", "start_ns", "end_ns")
    if said is not None:
        said = said.select(steps.columns)
        steps = pl.concat([said, steps.join(said, on="step", how="anti")])
    steps = (
        steps.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("step")
    )
    # By number and not by start: what comes after in the run begins no earlier than what came before.
    reached = pl.Series(intervals.reached_ns(steps["end_ns"].to_numpy()), dtype=pl.Int64)
    steps = steps.with_columns(start_ns=pl.max_horizontal("start_ns", reached)).with_columns(
        end_ns=pl.max_horizontal("start_ns", "end_ns")
    )
    return _events(
        steps.select(
            "start_ns",
            "end_ns",
            name=pl.concat_str(pl.lit("step"), pl.col("step")),
            cat=pl.lit("step"),
            tid=pl.lit("Step"),
            cname=pl.lit("thread_state_unknown"),
        )
    )
