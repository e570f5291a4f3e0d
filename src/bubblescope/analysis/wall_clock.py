"""Where the time of whole steps goes, from the start of each to the start of the next.

A pipeline's rates and the causes of its idle time are about its forwards and backwards. What a job pays
for is more: it loads data, reduces gradients, steps its optimizer, writes checkpoints, evaluates. Every
nanosecond of a rank's step is here what the rank was in then. Where tasks overlap, the first of
`bubblescope.model.whole_steps.ORDER` counts; pauses of the host that have names come after, most time
first; then what else was recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.between_rounds import laid_open
from bubblescope.analysis.outside_passes import ASIDE, names_of
from bubblescope.analysis.pipeline_phase import cut_steps_of, pipelines
from bubblescope.model import intervals
from bubblescope.model.arrays import A_FEW, at_once, blocks_of_ranks, in_blocks
from bubblescope.model.extents import extents
from bubblescope.model.kinds import Kind
from bubblescope.model.memory import give_back
from bubblescope.model.ordering import in_order
from bubblescope.model.whole_steps import ORDER, OTHER, UNRECORDED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline

WAITS: Final = ("collectives", "receiving", "sending", "waiting for send")
"""What ranks are in while they wait for each other, besides what it takes."""

_SCHEMA: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "what": pl.String(),
    "spent_ns": pl.Int64(),
    "phase_ns": pl.Int64(),
}


class WallClock(msgspec.Struct, frozen=True, eq=False):
    """What ranks were in, in each of their steps.

    Attributes:
        steps: Frame with rank, step, start_ns and end_ns: from the step's first task to that of the
            rank's next step. The last of a rank has no end, and is left out; so are steps that lack
            passes that others have.
        table: Frame with rank, step, what, spent_ns and phase_ns, how much of that was in the pipeline
            phase of a step; only where not 0. Of a rank and step, spent_ns adds up to the step.
    """

    steps: pl.DataFrame
    table: pl.DataFrame

    @property
    def step_ns(self) -> int:
        """How long a step of a rank lasts, the mean."""
        return round(float((self.steps["end_ns"] - self.steps["start_ns"]).mean()))  # type: ignore[arg-type]

    @property
    def phase_ns(self) -> int:
        """How much of that is the pipeline phase, the mean."""
        return int(self.table["phase_ns"].sum()) // self.steps.height

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.steps["rank"].n_unique()

    def lengths_ns(self) -> dict[int, int]:
        """Return how long each step lasts, the mean of the ranks."""
        length = (pl.col("end_ns") - pl.col("start_ns")).mean().round().cast(pl.Int64)
        return dict(self.steps.group_by("step").agg(length).iter_rows())

    def per_rank(self) -> pl.DataFrame:
        """Return rank, what, per_step_ns and outside_ns, both the mean of the rank's steps."""
        counts = self.steps.group_by("rank").len("steps")
        return (
            self.table.group_by("rank", "what")
            .agg(pl.col("spent_ns", "phase_ns").sum())
            .join(counts, on="rank")
            .select(
                "rank",
                "what",
                per_step_ns=pl.col("spent_ns") // pl.col("steps"),
                outside_ns=(pl.col("spent_ns") - pl.col("phase_ns")) // pl.col("steps"),
            )
        )

    def totals(self) -> pl.DataFrame:
        """Return what, per_step_ns and outside_ns (both a rank and step, the mean), share; most first.

        `outside_ns` is what is not in the pipeline phase, `share` that of per_step_ns in the step.
        """
        count, whole = self.steps.height, int(self.table["spent_ns"].sum())
        return (
            self.table.group_by("what")
            .agg(pl.col("spent_ns", "phase_ns").sum())
            .select(
                "what",
                per_step_ns=pl.col("spent_ns") // count,
                outside_ns=(pl.col("spent_ns") - pl.col("phase_ns")) // count,
                share=pl.col("spent_ns") / whole,
            )
            .sort("per_step_ns", "what", descending=[True, False])
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "step_ns": self.step_ns,
            "phase_ns": self.phase_ns,
            "spent": self.totals().to_dicts(),
            "per_rank": self.table.group_by("rank", "what")
            .agg(pl.col("spent_ns", "phase_ns").sum())
            .sort("rank", "spent_ns", "what", descending=[False, True, False])
            .to_dicts(),
        }


def wall_clock(timeline: Timeline, ledger: Ledger | None) -> WallClock | None:
    """Take whole steps apart by what each rank was in.

    Args:
        timeline: The run.
        ledger: Its ledger, which knows when pipeline phases were.

    Returns:
        None if no rank has two steps that follow each other, so that the length of none is known; or
        if the traces say what devices did all the time, which is told elsewhere (`Timeline.budget`).
    """
    if timeline.budget.height or ledger is None:
        return None
    give_back()
    cut = cut_steps_of(timeline)
    starts = step_starts(timeline.tasks)
    steps = whole_steps(starts, timeline.run.resumed).filter(~pl.col("step").is_in(cut))
    if not steps.height:
        return None
    phases = pipeline_phases(ledger.phases, ledger.between, pipelines(timeline))
    asides = names_of(timeline).asides
    tasks = timeline.tasks.select("rank", "kind", "lane", "name", *_EDGES)

    def table(block: pl.DataFrame) -> list[pl.DataFrame]:
        own = pl.col("rank").is_between(block["rank"].min(), block["rank"].max())
        some = steps.filter(own)
        return [taken_apart(block, some, phases.filter(own), asides)] if some.height else []

    tables = at_once(table, list(blocks_of_ranks(tasks)), A_FEW)
    return WallClock(steps, pl.concat([one for some in tables for one in some]))


def taken_apart(
    tasks: pl.DataFrame, steps: pl.DataFrame, phases: pl.DataFrame, asides: Sequence[str]
) -> pl.DataFrame:
    """Return what ranks were in, in steps.

    Args:
        tasks: Frame with rank, kind, lane, name, start_ns and end_ns: all that ran in the steps, and
            perhaps more.
        steps: As `whole_steps` returns them.
        phases: Frame with rank, start_ns and end_ns of pipeline phases, in any order.
        asides: Names of tasks beside the compute lane that are told apart.

    Returns:
        Frame as `WallClock.table`.
    """
    windows = _columns(steps)
    at, inner = _shared(windows, _columns(_disjoint(phases)))
    of, begin, until = (np.concatenate(edges) for edges in zip(windows, inner, strict=True))
    both = (of, begin, until)
    names = [*ORDER, *asides, OTHER]
    # Sorted once: whatever of them counts so far is in order too.
    ordered = in_order(tasks.select("rank", *_EDGES, place=_place(asides)), "rank", "start_ns")
    rank, start, end = _columns(ordered)
    place = ordered["place"].to_numpy()
    times = [np.zeros((2, steps.height), np.int64)]  # whole steps, and their pipeline phases
    found = np.unique(place).tolist()
    for number in found:
        sofar = place <= number
        covered = intervals.covered_ns((rank[sofar], start[sofar], end[sofar]), both)
        meanwhile = _summed(at, covered[steps.height :], steps.height)
        times.append(np.array([covered[: steps.height], meanwhile]))
    phase_ns = _summed(at, inner[2] - inner[1], steps.height)
    times.append(np.array([windows[2] - windows[1], phase_ns]))
    spent, within = np.diff(times, axis=0).swapaxes(0, 1).reshape(2, -1)
    whats = pl.Series([*(names[number] for number in found), UNRECORDED])
    count = len(whats)
    table = pl.DataFrame(
        {
            "rank": np.tile(windows[0], count),
            "step": np.tile(steps["step"].to_numpy(), count),
            "what": whats.gather(np.repeat(np.arange(count), steps.height)),
            "spent_ns": spent,
            "phase_ns": within,
        }
    ).cast(_SCHEMA)  # type: ignore[arg-type]
    return table.filter(pl.col("spent_ns") > 0).sort("rank", "step", maintain_order=True)


_EDGES: Final = ("start_ns", "end_ns")


def step_starts(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return rank, step and start_ns of all steps: when the first task of each began.

    Args:
        tasks: Frame with rank, step, start_ns and end_ns.
    """
    blocks = in_blocks(tasks.select("rank", "step", *_EDGES))
    parts = [extents(block, "rank", "step").drop_nulls("step") for block in blocks]
    return extents(pl.concat(parts), "rank", "step").drop("end_ns").sort("rank", "step")


def whole_steps(starts: pl.DataFrame, resumed: Sequence[int] = ()) -> pl.DataFrame:
    """Return rank, step, start_ns and end_ns of all steps of which the next is known.

    Args:
        starts: As `step_starts` returns it.
        resumed: As of `Run`: what was before such a step is no part of the one before it.
    """
    return (
        starts.with_columns(
            end_ns=pl.col("start_ns").shift(-1).over("rank"),
            after=pl.col("step").shift(-1).over("rank"),
        )
        # What was not recorded in between is no part of a step.
        .filter(pl.col("after") == pl.col("step") + 1, pl.col("end_ns") >= pl.col("start_ns"))
        .filter(~pl.col("after").is_in(list(resumed)))
        .drop("after")
    )


def pipeline_phases(
    phases: pl.DataFrame, between: pl.DataFrame, apart: pl.DataFrame
) -> pl.DataFrame:
    """Return rank, start_ns and end_ns of the pipeline phases of all steps, or of their rounds.

    Args:
        phases: As of `Ledger`.
        between: As of `Ledger`.
        apart: Which rank is of which pipeline, as `analysis.phase.pipelines` returns it.
    """
    whole = phases.join(apart, on="pipeline").drop("pipeline")
    return laid_open(whole, between, apart)


def _disjoint(phases: pl.DataFrame) -> pl.DataFrame:
    """Return phases in order of which none begins before the one before it on its rank has ended.

    Where ranks begin a step while others are in the one before, the phases of both overlap, and that
    time is in one of them.
    """
    ordered = phases.sort("rank", "start_ns")
    fresh_ns = intervals.fresh_start_ns(*intervals.columns(ordered, "rank"))
    return ordered.with_columns(start_ns=pl.Series(fresh_ns)).filter(
        pl.col("start_ns") < pl.col("end_ns")
    )


_PLACE_OF: Final = {
    kind.value: number for number, kinds in enumerate(ORDER.values()) for kind in kinds
}
"""The place in `ORDER` of each kind of tasks; all kinds but others have one."""


def _place(asides: Sequence[str]) -> pl.Expr:
    """Return which of `ORDER`, `asides` and `OTHER` each task is."""
    other = len(ORDER) + len(asides)
    places = _PLACE_OF | {Kind.OTHER.value: other}
    place = pl.col("kind").replace_strict(
        list(places), list(places.values()), return_dtype=pl.Int32
    )
    if not asides:
        return place
    named = pl.col("name").replace_strict(
        list(asides), range(len(ORDER), other), default=other, return_dtype=pl.Int32
    )
    return pl.when(ASIDE).then(named).otherwise(place)


def _columns(frame: pl.DataFrame) -> tuple[Ints, Ints, Ints]:
    rank, start, end = (frame[name].to_numpy().astype(np.int64) for name in ("rank", *_EDGES))
    return rank, start, end


def _shared(
    windows: tuple[Ints, Ints, Ints], phases: tuple[Ints, Ints, Ints]
) -> tuple[Ints, tuple[Ints, Ints, Ints]]:
    """Return where steps and phases of the same rank overlap: the step's index, and the parts."""
    at, of = intervals.met(phases, windows)
    rank, start, end = windows
    _, opens, closes = phases
    return at, (rank[at], np.maximum(start[at], opens[of]), np.minimum(end[at], closes[of]))


def _summed(at: Ints, lengths: Ints, count: int) -> Ints:
    return np.bincount(at, lengths, minlength=count).astype(np.int64)
