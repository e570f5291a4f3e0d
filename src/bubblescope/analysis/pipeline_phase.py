"""The part of a run that analyses are about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
import polars as pl

from bubblescope.model.arrays import A_FEW, at_once, blocks_of_ranks
from bubblescope.model.cached_results import remembered
from bubblescope.model.dependencies import passes
from bubblescope.model.extents import extremes
from bubblescope.model.kinds import COMPUTE_KINDS, Kind, Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from typing_extensions import Self

    from bubblescope.model.arrays import Mask
    from bubblescope.model.timeline import Timeline

_Seen = TypeVar("_Seen")

_FORWARDS: Final = [Kind.FORWARD.value, Kind.FORWARD_BACKWARD.value]
_BACKWARDS: Final = [kind.value for kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT)] + _FORWARDS[1:]


def pipeline_phase(
    tasks: pl.DataFrame, kinds: Collection[str | Kind] = COMPUTE_KINDS
) -> pl.DataFrame:
    """Return the tasks of some kinds on the compute lane.

    Tasks that belong to no step are left out if any belongs to one: they would otherwise stretch over
    the whole run.
    """
    return tasks.filter(of_phase(tasks, kinds))


def of_phase(tasks: pl.DataFrame, kinds: Collection[str | Kind] = COMPUTE_KINDS) -> pl.Expr:
    """Return the condition by which `pipeline_phase` chooses among tasks, or any part of them.

    Args:
        tasks: Frame with kind, lane and step: all tasks.
        kinds: Which are wanted.
    """
    wanted = [Kind(kind).value for kind in kinds]
    some = pl.col("kind").is_in(wanted) & (pl.col("lane") == Lane.COMPUTE.value)
    if tasks["step"].null_count() in {0, tasks.height}:
        return some
    stepped = some & pl.col("step").is_not_null()
    return stepped if tasks.select(stepped.any()).item() else some


class StepFacts(NamedTuple):
    """What whole steps tell of a run, of some of them or of all.

    Attributes:
        spans: Frame with step, start_ns, end_ns and ranks (how many) of the pipeline phase of each, and
            size: how many micro-batches it has, as far as they are numbered; null if none is.
        ranks: Those that ran any pipeline tasks, ascending.
        wholes: Frame with rank, stage, way and wholes: in how many of the steps all micro-batches went
            this way; only where in any.
        lacking: Frame with rank, stage, way and step: in which steps they did not, of those in
            `wholes`.
    """

    spans: pl.DataFrame
    ranks: pl.Series
    wholes: pl.DataFrame
    lacking: pl.DataFrame

    @classmethod
    def of(cls, tasks: pl.DataFrame) -> Self:
        """Look at all tasks of some steps.

        Args:
            tasks: As in `Timeline.tasks`.
        """
        needed = ("rank", "step", "kind", "lane", "stage", "microbatch", *_SPAN)
        tasks = tasks.select(*needed, "pair_stage", "pair_microbatch")
        wanted = of_phase(tasks)
        edges = pl.col("start_ns").min(), pl.col("end_ns").max()

        def seen(block: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.Series]:
            phase = block.filter(wanted)
            spans = phase.group_by("step").agg(*edges, ranks=pl.col("rank").n_unique())
            passed = went_through(phase.drop_nulls(["step", "microbatch"]))
            return spans, passed, phase["rank"].unique()

        found = at_once(seen, list(blocks_of_ranks(tasks)), A_FEW)
        spans, counts, ranks = zip(*found, strict=True)
        size, wholes, lacking = _passed(pl.concat(counts))
        whole = pl.concat(spans).group_by("step").agg(*edges, pl.col("ranks").sum())
        whole = whole.join(size, on="step", how="left").sort("step")
        return cls(whole, pl.concat(ranks).sort(), wholes, lacking)

    @classmethod
    def joined(cls, parts: Sequence[StepFacts]) -> Self:
        """Return what all steps tell together, of which these have some each."""
        spans, ranks, wholes, lacking = zip(*parts, strict=True)
        numbered = [part.with_columns(part=pl.lit(at)) for at, part in enumerate(wholes)]
        every = pl.concat(numbered)
        # What is never whole in a part lacks in all of its steps.
        steps = [
            frame.drop_nulls("size").select("step", part=pl.lit(at))
            for at, frame in enumerate(spans)
        ]
        absent = (
            every.select(_WAY)
            .unique()
            .join(pl.DataFrame({"part": range(len(parts))}, {"part": pl.Int32}), how="cross")
            .join(every, on=[*_WAY, "part"], how="anti", nulls_equal=True)
            .join(pl.concat(steps), on="part")
            .select(*_WAY, "step")
        )
        return cls(
            pl.concat(spans).sort("step"),
            pl.concat(ranks).unique().sort(),
            every.group_by(_WAY).agg(pl.col("wholes").sum()),
            pl.concat([*lacking, absent]),
        )

    @property
    def cut(self) -> list[int]:
        """The steps that lack forwards or backwards, as `cut_steps` has it."""
        if not self.lacking.height:
            return []
        count = self.spans["size"].count()
        usual = self.wholes.filter(pl.col("wholes") >= _USUAL * count)
        lacking = self.lacking.join(usual, on=_WAY, how="semi", nulls_equal=True)
        sets = lacking.group_by(_WAY).agg(pl.col("step").unique().sort())["step"].unique()
        steps = self.spans.drop_nulls("size")["step"]
        irregular = [one for one in sets.to_list() if not _regular(steps.is_in(one).to_numpy())]
        return sorted({step for one in irregular for step in one})

    @property
    def lacking_ranks(self) -> list[int]:
        """The steps in which only some of the ranks that ever ran pipeline tasks ran any."""
        few = self.spans.drop_nulls("step").filter(pl.col("ranks") < len(self.ranks))
        return few["step"].to_list()

    @property
    def partial(self) -> list[int]:
        """The steps of which something is missing: some ranks, or some passes."""
        return sorted({*self.lacking_ranks, *self.cut})

    @property
    def compared(self) -> list[int | None]:
        """The steps that are compared across ranks: those that are not `partial`, or all if all are."""
        steps: list[int | None] = self.spans["step"].to_list()
        partial = {*self.partial}
        return [step for step in steps if step not in partial] or steps

    @property
    def overlapping(self) -> tuple[int | None] | None:
        """A step of most ranks, if steps of this run overlap: see `pipelines`; None if they do not."""
        spans = self.spans.sort("start_ns", "step")
        if spans.height < 2:
            return None
        begin, until = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
        overlap, length = until[:-1] - begin[1:], until - begin
        if np.median(overlap / np.maximum(length[:-1], 1)) <= _OVERLAP:
            return None
        return (spans.sort("ranks", "step", descending=[True, False])["step"][0],)


_WAY: Final = ["rank", "stage", "way"]


@remembered
def step_facts(timeline: Timeline) -> StepFacts:
    """Return what the steps of a run tell; of a part of a run, what all of the run's do."""
    return StepFacts.of(timeline.tasks)


def partial_steps(timeline: Timeline) -> list[int]:
    """Return the steps of which something is missing: some ranks (`lacking_ranks`), or some passes."""
    return step_facts(timeline).partial


def cut_steps_of(timeline: Timeline) -> list[int]:
    """Return the steps of a run that lack passes, as `cut_steps` does."""
    return step_facts(timeline).cut


def cut_steps(tasks: pl.DataFrame) -> list[int]:
    """Return the steps that lack forwards or backwards that the others have.

    A recording cut them, or it lost tasks. What is counted is how many of a step's micro-batches, as
    many as any rank has in it, went forwards, backwards and through weight gradients on each stage of
    each rank: where that is all of them in half of the steps or more, it should be in each. So steps
    may have more or fewer micro-batches than others, as where batches grow. Tasks without a
    micro-batch, and ranks that have only a part of the micro-batches in most steps, tell nothing. Nor
    do steps that lack something in turns, as where two models are trained in turn.

    Args:
        tasks: As in `Timeline.tasks`.
    """
    return StepFacts.of(tasks).cut


def went_through(phase: pl.DataFrame) -> pl.DataFrame:
    """Count how many micro-batches went each way through each stage of each rank, in each step.

    Args:
        phase: Pipeline tasks of steps and micro-batches; columns as in `Timeline.tasks`.

    Returns:
        Frame with rank, step, stage, way, count, and size: the highest micro-batch's number, plus one.
    """
    place = ("rank", "step", "stage", "microbatch")
    kind = pl.col("kind")
    pair = phase.filter(kind == Kind.FORWARD_BACKWARD.value).select(
        "rank", "step", stage="pair_stage", microbatch="pair_microbatch"
    )
    passes = {
        "forward": phase.filter(kind.is_in(_FORWARDS)).select(place),
        "backward": pl.concat(
            [phase.filter(kind.is_in(_BACKWARDS[:2])).select(place), pair.drop_nulls("microbatch")]
        ),
        "weights": phase.filter(kind == Kind.BACKWARD_WEIGHT.value).select(place),
    }
    each = pl.concat([part.with_columns(way=pl.lit(way)) for way, part in passes.items()])
    number = pl.col("microbatch")
    return each.group_by("rank", "step", "stage", "way").agg(
        count=number.n_unique(), size=number.max() + 1
    )


def cut_of(counts: pl.DataFrame) -> list[int]:
    """Return the steps that lack forwards or backwards, as `cut_steps`.

    Args:
        counts: As `went_through` returns it, of all steps.
    """
    size, wholes, lacking = _passed(counts)
    return StepFacts(size, pl.Series([], dtype=pl.Int32), wholes, lacking).cut


def _passed(counts: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the size of each step, and `wholes` and `lacking` of `StepFacts`.

    Args:
        counts: As `went_through` returns it, of all ranks of these steps.
    """
    size = counts.group_by("step").agg(pl.col("size").max())
    whole = (
        counts.drop("size").join(size, on="step").filter(pl.col("count") == pl.col("size"))
    ).select(*_WAY, "step")
    wholes = whole.group_by(_WAY).agg(wholes=pl.len().cast(pl.Int64))
    few = wholes.filter(pl.col("wholes") < size.height).select(_WAY)
    lacking = few.join(size.select("step"), how="cross").join(
        whole, on=[*_WAY, "step"], how="anti", nulls_equal=True
    )
    return size, wholes, lacking


def _regular(lacking: Mask) -> bool:
    """Say whether steps lack something in turns, from the first to the last of them.

    As where a job trains two models in turn: nothing is lost from steps that are not of one model.
    """
    turns = range(2, min(_LONGEST_TURN, len(lacking) // _TURNS) + 1)
    return any((lacking[turn:] == lacking[:-turn]).all() for turn in turns)


_LONGEST_TURN: Final = 16
_TURNS: Final = 3
"""As many turns there must be at least."""

_USUAL: Final = 0.5
"""Share of the steps in which a rank has all micro-batches, from which on it should in each."""


def lacking_ranks(timeline: Timeline) -> list[int]:
    """Return the steps in which only some of the ranks that ever ran pipeline tasks ran any."""
    return step_facts(timeline).lacking_ranks


def torn_steps(tasks: pl.DataFrame) -> list[int]:
    """Return the first and the last step, where they have fewer tasks than usual: they were cut.

    A recording that begins or ends in the middle of a step has only a part of it, which is shorter than
    a step. Where ranks do not wait for each other, it may cut the next one as well, which overlaps.
    Usual is the median number of tasks of the pipeline phase.

    Args:
        tasks: As in `Timeline.tasks`.
    """
    start, end = pl.col("start_ns").min(), pl.col("end_ns").max()
    steps = (
        pipeline_phase(tasks.select("kind", "lane", "step", *_SPAN))
        .drop_nulls("step")
        .group_by("step")
        .agg(start, end, tasks=pl.len())
    )
    if steps.height < 2:
        return []
    rows = steps.sort("step").with_columns(few=pl.col("tasks") < pl.col("tasks").median())
    numbers, starts, ends, few = (rows[name].to_list() for name in ("step", *_SPAN, "few"))
    torn = {at for at in (0, len(few) - 1) if few[at]}
    if 0 in torn and few[1] and starts[1] < ends[0]:
        torn.add(1)
    if len(few) - 1 in torn and few[-2] and starts[-1] < ends[-2]:
        torn.add(len(few) - 2)
    return [numbers[at] for at in sorted(torn)]


_SPAN: Final = ("start_ns", "end_ns")


def compared(timeline: Timeline, *columns: str) -> pl.DataFrame:
    """Return the pipeline phase without the steps that are not compared across ranks.

    Those are the ones of which something is missing (`partial_steps`), unless there are no others.

    Args:
        timeline: The run.
        columns: Those of its tasks to return, or `task` for their rows.
    """
    wanted = dict.fromkeys((*columns, "kind", "lane", "step"))
    phase = pipeline_phase(timeline.tasks.with_row_index("task").select(*wanted))
    facts = step_facts(timeline)
    kept = facts.compared
    if len(kept) == facts.spans.height:
        return phase
    return phase.filter(pl.col("step").is_in(kept))


def seen_by_ranks(
    look: Callable[[pl.DataFrame], _Seen], timeline: Timeline, *columns: str
) -> list[_Seen]:
    """Return what is seen in the rows of `compared`, of some ranks at a time.

    Args:
        look: Looks at those of some ranks, by step, rank and start.
        timeline: The run.
        columns: As of `compared`; start_ns is among them.
    """
    wanted_columns = dict.fromkeys((*columns, "rank", "kind", "lane", "step"))
    tasks = timeline.tasks.with_row_index("task").select(*wanted_columns)
    facts = step_facts(timeline)
    wanted = of_phase(tasks)
    if len(facts.compared) < facts.spans.height:
        wanted &= pl.col("step").is_in(facts.compared)

    def seen(block: pl.DataFrame) -> list[_Seen]:
        own = block.filter(wanted)
        # Tasks of a lane are in the order of rank and start as they are.
        return [look(own.sort("step", maintain_order=True))] if own.height else []

    found = at_once(seen, list(blocks_of_ranks(tasks)), A_FEW)
    return [one for some in found for one in some]


@remembered
def pipelines(timeline: Timeline) -> pl.DataFrame:
    """Return which pipeline each rank is of, where pipelines run their steps each for itself.

    The ranks of one pass micro-batches to each other. Where replicas wait for each other at the end of
    a step, its steps do not overlap, and a step is one of all ranks: all are of pipeline 0. Where they
    do not wait, each drifts away from the others, and the window from the first start to the last end
    of a step anywhere says nothing: then a step of a pipeline is between its own first start and last
    end. Pipelines are told apart only if, in the middle one of the steps by that, a step overlaps the
    next by more than a hundredth of its length.

    Returns:
        Frame with rank and pipeline, numbered by their lowest ranks.
    """
    facts = step_facts(timeline)
    step = facts.overlapping
    if step is None:
        return together(facts.ranks)
    return apart(timeline, step[0], facts.ranks)


def together(ranks: pl.Series) -> pl.DataFrame:
    """Return the frame of `pipelines` for ranks that are all of one."""
    return pl.DataFrame({"rank": ranks}).with_columns(pipeline=pl.lit(0, pl.Int32))


def apart(timeline: Timeline, step: int | None, ranks: pl.Series) -> pl.DataFrame:
    """Return the frame of `pipelines`, as one step of a run tells.

    Args:
        timeline: The run, or a part of it that has this step.
        step: The step, of all ranks or as many as any.
        ranks: All that ever ran pipeline tasks, ascending.
    """
    one = timeline.tasks.filter(pl.col("step").eq_missing(step))
    number = _components(timeline, one, ranks.to_numpy())
    if np.bincount(number).min() < 2:  # what some ranks pass on is not known
        return together(ranks)
    return pl.DataFrame({"rank": ranks, "pipeline": pl.Series(number, dtype=pl.Int32)})


_OVERLAP: Final = 0.01
"""Share of a step by which it overlaps the next where pipelines do not wait for each other."""


def _components(timeline: Timeline, tasks: pl.DataFrame, ranks: np.ndarray) -> np.ndarray:
    """Number the ranks that pass micro-batches to each other, directly or not, alike."""
    links = passes(type(timeline)(tasks, timeline.ranks, timeline.run))
    rank = tasks["rank"].to_numpy()
    pairs = np.unique(rank[links.select("source", "target").to_numpy()], axis=0)
    one, other = np.searchsorted(ranks, pairs).T
    lowest = np.arange(len(ranks))
    while True:
        before = lowest.copy()
        np.minimum.at(lowest, one, lowest[other])
        np.minimum.at(lowest, other, lowest[one])
        if (lowest == before).all():
            number: np.ndarray = np.unique(lowest, return_inverse=True)[1]
            return number


def phases(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return when each rank was warming up, steady and cooling down in each step.

    Over a rank's pipeline tasks i of a step, with F the forwards and B the backwards (an overlapped
    pair is both):

    * warm-up is [start, steady): start = min start_i, steady = min start_b over b in B;
    * steady is [steady, cool);
    * cool-down is [cool, end): cool = max(steady, max end_f over f in F), end = max end_i.

    So they add up to the rank's span. Without a backward all of it is warm-up (steady = cool = end);
    without a forward, or where every forward has ended before the first backward begins, nothing is
    steady (cool = steady).

    Args:
        tasks: As in `Timeline.tasks`.

    Returns:
        Frame with rank, step, start_ns, steady_ns, cool_ns and end_ns, by rank and step.
    """
    phase = pipeline_phase(tasks.select("rank", "step", "kind", "lane", *_SPAN))
    start, end = (phase[name].to_numpy() for name in _SPAN)
    back, ahead = (phase["kind"].is_in(kinds).to_numpy() for kinds in (_BACKWARDS, _FORWARDS))
    found = extremes(
        phase.select("rank", "step"),
        least={"start_ns": start, "steady_ns": np.where(back, start, _NEVER)},
        most={"end_ns": end, "cool_ns": np.where(ahead, end, -_NEVER)},
    )
    steady = pl.when(pl.col("steady_ns") < _NEVER).then("steady_ns").otherwise("end_ns")
    return (
        found.with_columns(steady_ns=steady)
        .with_columns(cool_ns=pl.max_horizontal("steady_ns", "cool_ns"))
        .select("rank", "step", "start_ns", "steady_ns", "cool_ns", "end_ns")
        .sort("rank", "step")
    )


_NEVER: Final = np.iinfo(np.int64).max
