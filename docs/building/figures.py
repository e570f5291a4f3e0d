"""The small pictures of the explanations: what each bubble rate counts, and a run with each cause.

Runs are simulated with one fault each. What is marked as the cause is what `why` finds of it, so that a
picture which would show nothing fails the build.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

import bubblescope
from bubblescope.analysis.idle.causes import MEANINGS, Cause
from bubblescope.analysis.pipeline_phase import pipeline_phase
from bubblescope.model.provenance import Origin, Run
from bubblescope.schedules import generate
from bubblescope.schedules.plan import Plan
from bubblescope.schedules.simulate import Costs, simulate
from docs.building.lanes import Stretch, svg

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MS: Final = 1_000_000
STAGES, MICROBATCHES = 3, 4
FORWARD_NS: Final = np.full((STAGES, MICROBATCHES), 10 * MS)
LATE_NS: Final = 12 * MS
_NAMES: Final = [f"stage {stage}" for stage in range(STAGES)]
_ABOUT: Final = Run(origins=(Origin("made", None, "figures"),), microbatches=MICROBATCHES)


def draw(folder: Path) -> None:
    """Draw all pictures: `rate-NAME.svg` and `cause-NAME.svg`."""
    folder.mkdir(parents=True)
    for name, picture in {**_rates(), **_causes()}.items():
        (folder / f"{name}.svg").write_text(picture, encoding="utf-8")


def run_of(plan: Plan | None = None, **costs: Any) -> bubblescope.Timeline:
    """Return a step of 1F1B, or of a plan, with a backward that takes twice as long as a forward.

    Args:
        plan: What is run.
        costs: Other than usual, as of `Costs`.
    """
    usual = {"forward_ns": FORWARD_NS, "backward_ns": 2 * FORWARD_NS}
    costs = {"backward_input_ns": 0, "backward_weight_ns": 0, **usual, **costs}
    return simulate(plan or generate("1f1b", STAGES, MICROBATCHES), Costs(**costs))


# --- rates ----------------------------------------------------------------------


def _rates() -> dict[str, str]:
    """Return a picture of what each bubble rate counts, all of the same step."""
    tasks = pipeline_phase(run_of(comm_ns=4 * MS).tasks)
    ideal = pipeline_phase(run_of().tasks)
    own, replayed = _spans(tasks), _spans(ideal)
    start, end = min(one.start_ns for one in own), max(one.end_ns for one in own)
    shorter = max(one.end_ns for one in replayed)
    longest = max(one.end_ns - one.start_ns for one in own)
    fitted = [Stretch(one.rank, one.start_ns, one.start_ns + longest) for one in own]
    whole = [Stretch(one.rank, start, end) for one in own]
    replay = [Stretch(one.rank, start, shorter) for one in replayed]
    beyond = [Stretch(one.rank, shorter, end) for one in own]
    busy = pl.col("end_ns") - (pl.col("end_ns") - pl.col("start_ns")) // 4
    kernels = tasks.with_columns(end_ns=busy)
    stalls = [
        Stretch(*row) for row in tasks.select("rank", start_ns=busy, end_ns="end_ns").iter_rows()
    ]
    shown: dict[str, tuple[pl.DataFrame, Sequence[Stretch], Sequence[Stretch], str]] = {
        "span": (tasks, _idle(tasks, own), own, "idle time within each rank's own span"),
        "longest-span": (tasks, _idle(tasks, fitted), fitted, "idle time within the longest span"),
        "makespan": (tasks, _idle(tasks, whole), whole, "idle time from first start to last end"),
        "over-ideal": (tasks, _idle(tasks, whole), (), "idle time, over the time of the tasks"),
        "no-wait": (ideal, _idle(ideal, replay), replay, "the same tasks without waiting"),
        "excess": (ideal, beyond, whole, "what the step takes beyond the replay"),
        "kernel-share": (kernels, stalls, (), "parts of tasks in which no kernel runs"),
    }
    return {
        f"rate-{name}": svg(of, marked, about, windows=windows, lanes=_NAMES)
        for name, (of, marked, windows, about) in shown.items()
    }


def _spans(tasks: pl.DataFrame) -> list[Stretch]:
    """Return from when to when each rank has tasks."""
    spans = tasks.group_by("rank").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return [Stretch(*row) for row in spans.sort("rank").iter_rows()]


def _idle(tasks: pl.DataFrame, windows: Sequence[Stretch]) -> list[Stretch]:
    """Return the idle time of windows."""
    gaps = []
    for rank, start, end in windows:
        own = tasks.filter(rank=rank).sort("start_ns").select("start_ns", "end_ns")
        at = start
        for first, last in [*own.iter_rows(), (end, end)]:
            if at < first:
                gaps.append(Stretch(rank, at, first))
            at = max(at, last)
    return gaps


# --- causes ----------------------------------------------------------------------


def _causes() -> dict[str, str]:
    """Return a picture of a run with each cause."""
    return {
        f"cause-{cause.value.replace(' ', '-')}": _pictured(cause, make())
        for cause, make in _MADE.items()
    }


def _pictured(cause: Cause, run: bubblescope.Timeline) -> str:
    """Return a picture in which the idle time of a cause is marked.

    Raises:
        AssertionError: There is none.
    """
    ledger = bubblescope.Trace(run).why().ledger
    gaps = ledger.gaps.filter(pl.col("cause") == cause.value) if ledger else pl.DataFrame()
    if not gaps.height:
        raise AssertionError(f"why finds no {cause.value} in the run that was made to show it")
    marked = [Stretch(*row) for row in gaps.select("rank", "start_ns", "end_ns").iter_rows()]
    lanes = [
        ("" if replica is None else f"{'AB'[replica]} · ") + f"stage {', '.join(map(str, stages))}"
        for stages, replica in run.ranks.sort("rank").select("stages", "dp").iter_rows()
    ]
    return svg(run.tasks, marked, MEANINGS[cause], lanes=lanes)


def measured(
    run: bubblescope.Timeline, tasks: pl.DataFrame | None = None, **ranks: Any
) -> bubblescope.Timeline:
    """Return a run as if a trace of it had been read.

    Args:
        run: As it was simulated.
        tasks: Other tasks than its own.
        ranks: Other columns of the ranks.
    """
    passes = run.tasks.filter(pl.col("lane") == "compute") if tasks is None else tasks
    return bubblescope.Timeline(passes, run.ranks.with_columns(**ranks), _ABOUT)


def _longer(
    factor: float, *, stage: int | None = None, microbatch: int | None = None
) -> bubblescope.Timeline:
    """Return a run in which a stage or a micro-batch takes longer."""
    table = FORWARD_NS.astype(float)
    every = slice(None)
    table[every if stage is None else stage, every if microbatch is None else microbatch] *= factor
    return run_of(forward_ns=table.astype(np.int64), backward_ns=(2 * table).astype(np.int64))


def _slow_rank() -> bubblescope.Timeline:
    """Return two replicas, of which one has a slow rank."""
    runs = run_of(), _longer(1.4, stage=1)
    tasks = pl.concat(
        run.tasks.with_columns(pl.col("rank") + STAGES * copy) for copy, run in enumerate(runs)
    )
    numbers = np.arange(2 * STAGES)
    ranks = pl.DataFrame({"rank": numbers, "host": "node0", "dp": numbers // STAGES})
    stages = pl.Series([[stage] for stage in (numbers % STAGES).tolist()])
    return bubblescope.Timeline(tasks, ranks.with_columns(stages=stages), _ABOUT)


def _swapped() -> bubblescope.Timeline:
    """Let the last stage run a forward before the backward that should come first."""
    plan = generate("1f1b", STAGES, MICROBATCHES)
    orders = [plan.order(device) for device in range(STAGES)]
    orders[-1][1], orders[-1][2] = orders[-1][2], orders[-1][1]
    return measured(run_of(Plan.of(plan.name, plan.placement, orders)))


def _late(
    beside: dict[str, Any] | None = None, *, launched: bool = False, host: bool = False
) -> bubblescope.Timeline:
    """Let a task begin later than it could have.

    Args:
        beside: A task of its rank meanwhile, but for its times.
        launched: Whether the trace has launches, of which this one was late.
        host: Whether times are the host's.
    """
    longer = FORWARD_NS.copy()
    longer[1, 2] += LATE_NS
    run = run_of(forward_ns=longer)
    it = (pl.col("rank") == 1) & (pl.col("kind") == "forward") & (pl.col("microbatch") == 2)
    tasks = run.tasks.drop("busy_ns").with_columns(
        start_ns=pl.col("start_ns") + pl.when(it).then(LATE_NS).otherwise(0)
    )
    begins = tasks.filter(it)["start_ns"].item()
    if launched:
        ahead = pl.col("start_ns") - pl.when(it).then(0).otherwise(100 * MS) - MS // 10
        tasks = tasks.with_columns(host_start_ns=ahead, host_end_ns=ahead)
    if beside is not None:
        times = {"start_ns": begins - LATE_NS, "end_ns": begins}
        more = pl.DataFrame({"rank": 1, "step": 0, "name": "", **times, **beside})
        types = {name: tasks.schema[name] for name in more.columns}
        tasks = pl.concat([tasks, more.cast(types)], how="diagonal")  # type: ignore[arg-type]
    return measured(run, tasks, timed=pl.lit("host" if host else "device"))


def _skewed() -> bubblescope.Timeline:
    """Return a run on two hosts whose clocks differ."""
    run = run_of()
    ahead = pl.when(pl.col("rank") > 0).then(4 * MS).otherwise(0)
    tasks = run.tasks.with_columns(pl.col("start_ns", "end_ns") + ahead)
    return measured(run, tasks, host=pl.Series(["node0", "node1", "node1"]))


_SEND: Final = {"kind": "send_forward", "lane": "comm", "stage": 1, "microbatch": 1, "peer": 2}

_MADE: Final[dict[Cause, Callable[[], bubblescope.Timeline]]] = {
    Cause.WARM_UP: lambda: measured(run_of()),
    Cause.STEADY: lambda: measured(
        bubblescope.simulate("v-half", devices=STAGES, microbatches=MICROBATCHES).timeline
    ),
    Cause.COOL_DOWN: lambda: measured(run_of()),
    Cause.IMBALANCE: lambda: measured(_longer(1.4, stage=1)),
    Cause.SLOW_RANK: _slow_rank,
    Cause.VARIATION: lambda: measured(_longer(1.5, microbatch=2)),
    Cause.ORDER: _swapped,
    Cause.TRANSFER: lambda: measured(run_of(comm_ns=5 * MS)),
    Cause.PAUSE: lambda: _late({"kind": "gc", "lane": "host"}),
    Cause.LAUNCH: lambda: _late(launched=True),
    Cause.SEND: lambda: _late(_SEND, host=True),
    Cause.CODE: lambda: _late(host=True),
    Cause.SYNC: lambda: _late({"kind": "collective", "lane": "comm"}),
    Cause.UNEXPLAINED: _late,
    Cause.CLOCK: _skewed,
}
"""A run that shows each cause."""
