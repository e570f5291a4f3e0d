"""The small pictures of the explanations: what each bubble rate counts, and a run with each cause.

Runs are simulated with one fault each. What is marked as the cause is what `why` finds of it, so a picture
that shows nothing fails the build.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

import bubblescope
from bubblescope.analysis.idle.causes import MEANINGS, Cause
from bubblescope.analysis.phase import pipeline_phase
from bubblescope.model.kinds import COMPUTE_KINDS
from bubblescope.model.provenance import Origin, Run
from bubblescope.render.palette import BUBBLE, COLOURS
from bubblescope.schedules import generate
from bubblescope.schedules.plan import Plan
from bubblescope.schedules.simulate import Costs, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MS: Final = 1_000_000
STAGES, MICROBATCHES = 3, 4
_MARK: Final = "#c2185b"
_INK: Final = "#333333"
_WIDTH, _LEFT, _LANE, _GAP, _TOP = 640, 84, 20, 6, 8
_BESIDE: Final = 5
"""How high what ran beside the passes is drawn."""
_FONT: Final = "Helvetica,Arial,DejaVu Sans,sans-serif"


def draw(folder: Path) -> None:
    """Draw all pictures: `rate-NAME.svg` and `cause-NAME.svg`."""
    folder.mkdir(parents=True)
    for name, picture in {**_rates(), **_causes()}.items():
        (folder / f"{name}.svg").write_text(picture, encoding="utf-8")


def file_of(cause: Cause) -> str:
    """Return the name of a cause's picture, without its ending."""
    return f"cause-{cause.value.replace(' ', '-')}"


def _svg(
    tasks: pl.DataFrame,
    marked: Sequence[tuple[int, int, int]],
    about: str,
    *,
    windows: Sequence[tuple[int, int, int]] = (),
    lanes: Sequence[str] | None = None,
) -> str:
    """Draw lanes of tasks.

    Args:
        tasks: Compute tasks with rank, kind, microbatch, start_ns and end_ns.
        marked: Idle time that is marked: rank, start and end.
        about: What the picture shows, for who cannot see it.
        windows: Stretches that are framed: rank, start and end.
        lanes: Titles of the lanes; stages by default.
    """
    names = lanes or [f"stage {rank}" for rank in sorted(tasks["rank"].unique())]
    first = min(tasks["start_ns"].min(), *(start for _, start, _ in [*marked, *windows]))
    last = max(tasks["end_ns"].max(), *(end for _, _, end in [*marked, *windows]))
    scale = (_WIDTH - _LEFT - 8) / (last - first)

    def place(rank: int, start: int, end: int) -> str:
        x, y = _LEFT + (start - first) * scale, _TOP + rank * (_LANE + _GAP)
        return f'x="{x:.1f}" y="{y}" width="{(end - start) * scale:.1f}" height="{_LANE}"'

    parts = []
    for rank, name in enumerate(names):
        middle = _TOP + rank * (_LANE + _GAP) + _LANE * 0.7
        parts.append(
            f'<text x="{_LEFT - 8}" y="{middle:.1f}" text-anchor="end">{escape(name)}</text>'
        )
        parts.append(f'<rect {place(rank, first, last)} fill="{BUBBLE}"/>')
    parts += [f'<rect {place(*one)} fill="url(#marked)" stroke="{_MARK}"/>' for one in marked]
    for row in tasks.iter_rows(named=True):
        at = row["rank"], row["start_ns"], row["end_ns"]
        kind = bubblescope.Kind(row["kind"])
        colour = COLOURS[kind]
        if kind not in COMPUTE_KINDS:
            low = place(*at).replace(f'height="{_LANE}"', f'height="{_BESIDE}"')
            parts.append(f'<rect {low} fill="{_INK}"><title>{kind.value}</title></rect>')
            continue
        parts.append(f'<rect {place(*at)} fill="{colour}" stroke="#ffffff" stroke-width="0.6"/>')
        if row["microbatch"] is not None and (at[2] - at[1]) * scale > _LANE / 2:
            x = _LEFT + ((at[1] + at[2]) / 2 - first) * scale
            y = _TOP + at[0] * (_LANE + _GAP) + _LANE * 0.7
            parts.append(
                f'<text x="{x:.1f}" y="{y:.1f}" fill="#fff" text-anchor="middle">{row["microbatch"]}</text>'
            )
    parts += [
        f'<rect {place(*one)} fill="none" stroke="{_INK}" stroke-width="1.5" stroke-dasharray="4 2"/>'
        for one in windows
    ]
    height = 2 * _TOP + len(names) * (_LANE + _GAP) - _GAP
    hatch = (
        '<defs><pattern id="marked" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="6" height="6" fill="#fbe3ec"/>'
        f'<rect width="2" height="6" fill="{_MARK}"/></pattern></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" font-family="{_FONT}" font-size="12" fill="{_INK}"><title>{escape(about)}</title>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{hatch}{"".join(parts)}</svg>\n'
    )


def _healthy(**costs: object) -> bubblescope.Timeline:
    """Return a step of 1F1B whose last stage takes a little longer."""
    table = np.full((STAGES, MICROBATCHES), 10 * MS)
    given = {"forward_ns": table, "backward_ns": 2 * table, "comm_ns": 0} | costs
    return simulate(_plan(), Costs(backward_input_ns=0, backward_weight_ns=0, **given))  # type: ignore[arg-type]


def _plan() -> Plan:
    return generate("1f1b", STAGES, MICROBATCHES)


def _compute(timeline: bubblescope.Timeline) -> pl.DataFrame:
    return pipeline_phase(timeline.tasks).select("rank", "kind", "microbatch", "start_ns", "end_ns")


# --- rates ---------------------------------------------------------------------------------------------


def _rates() -> dict[str, str]:
    """Return a picture of what each bubble rate counts, of the same step."""
    run = _healthy(comm_ns=4 * MS)
    tasks = _compute(run)
    start, end = tasks["start_ns"].min(), tasks["end_ns"].max()
    spans = (
        tasks.group_by("rank").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("rank")
    )
    own = list(spans.iter_rows())
    longest = max(last - first for _, first, last in own)
    fitted = [(rank, first, first + longest) for rank, first, _ in own]
    whole = [(rank, start, end) for rank, *_ in own]
    ideal = _compute(_healthy())
    shorter = ideal["end_ns"].max() - ideal["start_ns"].min()
    replayed = [(rank, 0, shorter) for rank, *_ in own]
    inside = tasks.with_columns(
        start_ns=pl.col("start_ns"),
        end_ns=pl.col("end_ns") - (pl.col("end_ns") - pl.col("start_ns")) // 4,
    )
    stalls = [
        (rank, kernel, last)
        for rank, kernel, last in zip(tasks["rank"], inside["end_ns"], tasks["end_ns"], strict=True)
    ]
    said = {
        "span": (tasks, _idle(tasks, own), own, "idle time within each rank's own span"),
        "longest-span": (tasks, _idle(tasks, fitted), fitted, "idle time within the longest span, from each rank's start"),
        "makespan": (tasks, _idle(tasks, whole), whole, "idle time from the first start to the last end on any rank"),
        "over-ideal": (tasks, _idle(tasks, whole), (), "idle time, to be divided by the time of the tasks"),
        "no-wait": (ideal, _idle(ideal, replayed), replayed, "the same tasks without transfers and waiting"),
        "excess": (ideal, [(rank, shorter, end - start) for rank, *_ in own], whole, "what the step takes beyond the replay"),
        "kernel-share": (inside, stalls, (), "parts of tasks in which no kernel runs"),
    }  # fmt: skip
    return {
        f"rate-{name}": _svg(of, marked, about, windows=windows)
        for name, (of, marked, windows, about) in said.items()
    }


def _idle(
    tasks: pl.DataFrame, windows: Sequence[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """Return what is idle of each window: rank, start and end."""
    gaps = []
    for rank, start, end in windows:
        at = start
        for first, last in (
            tasks.filter(rank=rank).sort("start_ns").select("start_ns", "end_ns").iter_rows()
        ):
            if at < min(first, end):
                gaps.append((rank, at, min(first, end)))
            at = max(at, last)
        if at < end:
            gaps.append((rank, at, end))
    return gaps


# --- causes --------------------------------------------------------------------------------------------


def _causes() -> dict[str, str]:
    """Return a picture of a run with each cause."""
    drawn = {}
    for cause, make in _MADE.items():
        run = make()
        gaps = bubblescope.Trace(run).why().ledger.gaps.filter(pl.col("cause") == cause.value)
        if not gaps.height:
            raise AssertionError(f"why finds no {cause.value} in the run that was made to show it")
        step = gaps.group_by("step").agg(pl.len()).sort("len", "step")["step"][-1]
        tasks = run.slice(steps=[step]).tasks.filter(pl.col("kind") != "optimizer")
        marked = gaps.filter(pl.col("step") == step).select("rank", "start_ns", "end_ns")
        ranks = run.ranks.sort("rank")
        lanes = [
            ("" if copy is None else f"{'AB'[copy]} · ") + f"stage {', '.join(map(str, held))}"
            for held, copy in ranks.select("stages", "dp").iter_rows()
        ]
        drawn[file_of(cause)] = _svg(tasks, list(marked.iter_rows()), MEANINGS[cause], lanes=lanes)
    return drawn


def _with(
    timeline: bubblescope.Timeline, tasks: pl.DataFrame, **ranks: object
) -> bubblescope.Timeline:
    """Return a timeline of other tasks, as a trace that was measured."""
    about = Run(origins=(Origin("made", None, "figures"),), microbatches=MICROBATCHES)
    return bubblescope.Timeline(tasks, timeline.ranks.with_columns(**ranks), about)  # type: ignore[arg-type]


def _measured(timeline: bubblescope.Timeline, **ranks: object) -> bubblescope.Timeline:
    return _with(timeline, timeline.tasks, **ranks)


def _table(stage: int | None, microbatch: int | None, factor: float) -> dict[str, object]:
    """Return costs of which those of a stage or a micro-batch are larger."""
    times = np.full((STAGES, MICROBATCHES), 10.0 * MS)
    times[
        slice(stage, None if stage is None else stage + 1),
        slice(microbatch, None if microbatch is None else microbatch + 1),
    ] *= factor
    return {"forward_ns": times.astype(np.int64), "backward_ns": (2 * times).astype(np.int64)}


def _slow_rank() -> bubblescope.Timeline:
    """Two replicas, of which one has a slow rank."""
    runs = [_healthy(), _healthy(**_table(1, None, 1.4))]
    tasks = pl.concat(
        [run.tasks.with_columns(pl.col("rank") + STAGES * copy) for copy, run in enumerate(runs)]
    )
    ranks = pl.DataFrame(
        {
            "rank": range(2 * STAGES),
            "host": "node0",
            "stages": [[stage] for stage in (0, 1, 2) * 2],
            "dp": [0] * STAGES + [1] * STAGES,
        }
    )
    return bubblescope.Timeline(tasks, ranks, Run(origins=(Origin("made", None, "figures"),)))


def _swapped() -> bubblescope.Timeline:
    """Let the second stage run a forward before the backward that should come first."""
    plan = _plan()
    orders = [plan.order(device) for device in range(STAGES)]
    orders[2][1], orders[2][2] = orders[2][2], orders[2][1]
    other = Plan.of(plan.name, plan.placement, orders)
    return _measured(simulate(other, Costs(10 * MS, 0, 0, 20 * MS)))


def _late(
    beside: dict[str, object] | None = None, *, launched: bool = False, host: bool = False
) -> bubblescope.Timeline:
    """Let a task begin 12 ms after it could have.

    Args:
        beside: A task of its rank meanwhile, but for its times.
        launched: Whether the trace has launches, of which this one was late.
        host: Whether times are the host's.
    """
    late = 12 * MS
    table = np.full((STAGES, MICROBATCHES), 10 * MS)
    forward = table.copy()
    forward[1, 2] += late
    tasks = _healthy(forward_ns=forward, backward_ns=2 * table).tasks.drop("busy_ns")
    it = (pl.col("rank") == 1) & (pl.col("kind") == "forward") & (pl.col("microbatch") == 2)
    tasks = tasks.with_columns(
        start_ns=pl.when(it).then(pl.col("start_ns") + late).otherwise(pl.col("start_ns"))
    )
    begins = tasks.filter(it)["start_ns"].item()
    if launched:
        ahead = (
            pl.when(it).then(pl.col("start_ns")).otherwise(pl.col("start_ns") - 100 * MS) - MS // 10
        )
        tasks = tasks.with_columns(host_start_ns=ahead, host_end_ns=ahead)
    if beside is not None:
        more = pl.DataFrame(
            {
                "rank": 1,
                "step": 0,
                "start_ns": begins - late,
                "end_ns": begins,
                "name": "",
                **beside,
            }
        )
        tasks = pl.concat(
            [tasks, more.cast({name: tasks.schema[name] for name in more.columns})], how="diagonal"
        )
    run = _healthy()
    return _with(run, tasks, timed=pl.lit("host" if host else "device"))


def _skewed() -> bubblescope.Timeline:
    """Two hosts whose clocks differ."""
    run = _healthy()
    ahead = pl.when(pl.col("rank") > 0).then(4 * MS).otherwise(0)
    tasks = run.tasks.with_columns(pl.col("start_ns", "end_ns") + ahead)
    return _with(run, tasks, host=pl.Series(["node0", "node1", "node1"]))


def _without_transfers(timeline: bubblescope.Timeline) -> bubblescope.Timeline:
    """Return a run of which only the passes were recorded."""
    return _with(timeline, timeline.tasks.filter(lane="compute"))


_MADE: Final[dict[Cause, Callable[[], bubblescope.Timeline]]] = {
    Cause.WARM_UP: lambda: _measured(_healthy()),
    Cause.STEADY: lambda: _measured(
        bubblescope.simulate("v-half", devices=STAGES, microbatches=4).timeline
    ),
    Cause.COOL_DOWN: lambda: _measured(_healthy()),
    Cause.IMBALANCE: lambda: _measured(_healthy(**_table(1, None, 1.4))),
    Cause.SLOW_RANK: _slow_rank,
    Cause.VARIATION: lambda: _measured(_healthy(**_table(None, 2, 1.5))),
    Cause.ORDER: _swapped,
    Cause.TRANSFER: lambda: _measured(_without_transfers(_healthy(comm_ns=5 * MS))),
    Cause.PAUSE: lambda: _late({"kind": "gc", "lane": "host"}),
    Cause.LAUNCH: lambda: _late(launched=True),
    Cause.SEND: lambda: _late(
        {"kind": "send_forward", "lane": "comm", "stage": 1, "microbatch": 1, "peer": 2}, host=True
    ),
    Cause.CODE: lambda: _late(host=True),
    Cause.SYNC: lambda: _late({"kind": "collective", "lane": "comm"}),
    Cause.UNEXPLAINED: _late,
    Cause.CLOCK: _skewed,
}
"""A run that shows each cause."""
