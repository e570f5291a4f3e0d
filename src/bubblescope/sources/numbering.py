"""Steps, micro-batches and stages that a trace leaves unsaid, and how each was worked out.

Everything here works on the small task table, in host order: the order in which the job issued its
tasks, which no amount of asynchrony changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.kinds import BACKWARDS, COMPUTE_KINDS, Kind, Lane
from bubblescope.model.provenance import ONE_STEP, Notice
from bubblescope.names.layer_part_ranges import LAYER_PART
from bubblescope.sources.structure.chunks import number_by_graphs, with_pass_names
from bubblescope.sources.structure.common_steps import (
    of_one_job,
    with_common_steps,
    without_messages,
)
from bubblescope.sources.structure.inferred_names_file import corrected
from bubblescope.sources.structure.missing_stages import missing_stages
from bubblescope.sources.structure.peers import place_of_pass, stages_of_peers
from bubblescope.sources.structure.replicas import with_stages_of_replicas
from bubblescope.sources.structure.stage_credibility import may_be_all, with_believable_stages
from bubblescope.sources.structure.turn_order import number_by_plans

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bubblescope.names.own_passes import OwnPasses

_COMPUTE: Final = [kind.value for kind in COMPUTE_KINDS]
_BACKWARD: Final = [kind.value for kind in BACKWARDS]
_IS_FORWARD: Final = pl.col("kind") == Kind.FORWARD.value
_IS_BACKWARD: Final = pl.col("kind").is_in(_BACKWARD)
_ONE_STEP: Final = 0.5
"""Factor of the certainty of inferred passes where nothing tells a step: there may be several."""
_AHEAD: Final = (
    pl.when(_IS_FORWARD).then(1).when(_IS_BACKWARD).then(-1).otherwise(0).cum_sum().over("rank")
)
"""How many more forwards than backwards a rank has issued, this task included."""


NO_MARKERS: Final = pl.DataFrame(
    schema={"rank": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "step": pl.Int64}
)
"""Step markers of a trace without any."""


def number(
    tasks: pl.DataFrame,
    markers: pl.DataFrame,
    *,
    common_clock: bool = True,
    passes: Mapping[int, OwnPasses] | None = None,
) -> tuple[pl.DataFrame, dict[str, str], list[Notice]]:
    """Fill every number that the trace leaves unsaid: steps, micro-batches, stages, then chunks.

    Args:
        tasks: Frame with the task columns and `splits` (see `split_backward`).
        markers: Step markers, as for `number_steps`.
        common_clock: Whether times of different ranks may be compared.
        passes: What a user says of passes that the trace does not name, by rank.

    Returns:
        The tasks, field -> how it was inferred, and warnings.
    """
    tasks, how_step = number_steps(split_backward(tasks), markers)
    tasks = without_messages(of_one_job(tasks))
    if common_clock:
        tasks = with_common_steps(tasks, how_step)
    if how_step == ONE_STEP and "certainty" in tasks.columns:
        tasks = tasks.with_columns(pl.col("certainty") * _ONE_STEP)
    tasks, how_plan = number_by_plans(tasks, common_clock=common_clock)
    tasks, how_graph = number_by_graphs(tasks, markers)
    tasks, how_microbatch, notices = number_microbatches(tasks)
    how_microbatch = how_plan or how_graph or how_microbatch
    tasks, how_stage = stages_of_peers(tasks)
    told = how_stage is not None
    if not told:
        tasks, how_stage = number_stages(tasks, common_clock=common_clock)
    marked = "graph" not in tasks.columns or tasks["graph"].null_count() == tasks.height
    if marked and not told and how_stage and not may_be_all(tasks):
        tasks, how_stage = tasks.with_columns(stage=pl.lit(None, pl.Int32)), None
    if common_clock and how_stage:
        tasks, why = with_believable_stages(tasks, by_peers=told)
        how_stage = why or how_stage
    elif common_clock:
        tasks, how_stage = with_stages_of_replicas(tasks, number_stages)
    how_stage = how_stage or how_plan
    tasks = with_pass_names(_number_chunks(corrected(tasks, passes or {})))
    notices += missing_stages(tasks)
    how = {"step": how_step, "microbatch": how_microbatch, "stage": how_stage}
    return tasks, {field: said for field, said in how.items() if said}, notices


def number_steps(tasks: pl.DataFrame, markers: pl.DataFrame) -> tuple[pl.DataFrame, str | None]:
    """Fill `step` where it is null, from the first kind of evidence that the trace holds.

    Args:
        tasks: Frame with rank, kind, lane, chunk, microbatch, step, host_start_ns and host_end_ns.
        markers: Step markers with rank, start_ns, end_ns (host time) and step; where step is null,
            a rank's markers are counted from 0.

    Returns:
        The tasks with steps, and how they were found: None if the trace stated them.
    """
    if not tasks.height or tasks["step"].null_count() == 0:
        return tasks, None
    marked = markers["rank"].unique()
    passes, optimizer = pl.col("kind").is_in(_COMPUTE), pl.col("kind") == Kind.OPTIMIZER.value
    # Where there are markers or optimizers but no passes, other work makes up the steps.
    regions = (pl.col("kind") == Kind.OTHER.value) & (pl.col("lane") == Lane.COMPUTE.value)
    told = pl.col("rank").is_in(marked.implode()) | optimizer.any().over("rank")
    alone = regions & ~passes.any().over("rank") & told
    issued = (
        tasks.filter(passes | optimizer | alone)
        .sort("rank", "host_start_ns")
        .with_columns(
            previous=pl.col("kind").shift(1).over("rank"),
            # Receives for a new step are issued before its first forward, so the step begins where
            # the last task of the old one, usually its optimizer, ended.
            since_ns=pl.coalesce("host_end_ns", "host_start_ns").shift(1).over("rank"),
        )
    )
    unmarked = issued.filter(~pl.col("rank").is_in(marked.implode()))
    starts, how, first = _marked(issued, markers), None, 0
    if unmarked.height:
        first = int(starts["found"].min() or 0)  # type: ignore[arg-type]  # a column of integers
        boundaries, how = _boundaries(unmarked)
        starts = pl.concat([starts, boundaries.with_columns(pl.col("found") + first)])
        if marked.len():
            how = f"on ranks without step markers, {how}"
    elif not issued.height and not marked.len():
        how = ONE_STEP
    filled = tasks.sort("host_start_ns").join_asof(
        starts.sort("since_ns"),
        left_on="host_start_ns",
        right_on="since_ns",
        by="rank",
        check_sortedness=False,  # it cannot be checked by group; both sides are sorted above
    )
    # What comes before a rank's first boundary is the first step; before its first *marker*, none.
    found = (
        pl.when(pl.col("rank").is_in(marked.implode()))
        .then("found")
        .otherwise(pl.col("found").fill_null(first))
    )
    filled = filled.with_columns(step=pl.coalesce("step", found)).drop("found")
    return _without_spanning(filled, markers), how


def _without_spanning(filled: pl.DataFrame, markers: pl.DataFrame) -> pl.DataFrame:
    """Take ranges that are no passes out of steps if several begin within them, as in a whole loop."""
    other = pl.col("kind") == Kind.OTHER.value
    wide = filled.with_row_index("row").filter(other & pl.col("step").is_not_null())
    if not wide.height or not markers.height:
        return filled
    begun = markers.sort("start_ns").select(
        "rank", "start_ns", count=pl.int_range(1, pl.len() + 1).over("rank")
    )
    counts = [
        wide.sort(at)
        .join_asof(begun, left_on=at, right_on="start_ns", by="rank", check_sortedness=False)
        .select("row", pl.col("count").fill_null(0))
        .sort("row")["count"]
        for at in ("host_start_ns", "host_end_ns")
    ]
    rows = wide.sort("row")["row"].filter(counts[1] - counts[0] > 1)
    spans = pl.int_range(pl.len()).is_in(rows.implode())
    return filled.with_columns(step=pl.when(~spans).then("step"))


def _marked(issued: pl.DataFrame, markers: pl.DataFrame) -> pl.DataFrame:
    """Find where steps begin from markers that enclose them: before the first compute task inside.

    That is where the last task of the step before ended, for a step's receives may be issued before its
    marker; but what the marker before it encloses is of that one.
    A marker is taken to begin where the one before it ended, should they overlap. Where a rank lacks
    the marker of the next step, which others have, what it launched after a marker's end is in no step:
    it would otherwise count as more of the step before. Nor is what it launched after its last marker's
    end, such as an evaluation, if no other step goes on after its marker.
    """
    marks = markers.sort("start_ns").select(
        "rank",
        begin_ns=pl.max_horizontal("start_ns", pl.col("end_ns").shift(1).over("rank")),
        before_ns=pl.col("end_ns").shift(1).over("rank"),
        found=pl.coalesce("step", pl.int_range(pl.len()).over("rank")),
        close_ns="end_ns",
        last=pl.int_range(pl.len()).over("rank") == pl.len().over("rank") - 1,
    )
    numbers = marks.select(pl.col("found").unique().sort())
    numbers = numbers.with_columns(expected=pl.col("found").shift(-1))
    lacks = (pl.col("found").shift(-1).over("rank") != pl.col("expected")).fill_null(value=True)
    marks = marks.join(numbers, on="found", how="left", maintain_order="left").with_columns(
        lacks=pl.col("expected").is_not_null() & lacks
    )
    after = (pl.col("host_start_ns") >= pl.col("close_ns")).fill_null(value=False)
    enclosing = ~(after & ~pl.col("last")).any() & (~after & pl.col("last")).any()
    closes = pl.col("lacks") | (pl.col("last") & enclosing.over("rank"))
    passes = pl.col("kind") != Kind.OPTIMIZER.value
    labelled = (
        issued.filter(passes | ~passes.any().over("rank"))
        .sort("host_start_ns")
        .join_asof(
            marks.sort("begin_ns"),
            left_on="host_start_ns",
            right_on="begin_ns",
            by="rank",
            check_sortedness=False,
        )
        .filter(pl.col("found").is_not_null())
        .with_columns(found=pl.when(~(after & closes)).then("found"))
    )
    begins = pl.col("found").ne_missing(pl.col("found").shift(1).over("rank"))
    return labelled.filter(begins).select(
        "rank",
        pl.col("found").cast(pl.Int64),
        since_ns=pl.max_horizontal(pl.coalesce("since_ns", "begin_ns"), "before_ns"),
    )


def _boundaries(issued: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Find where each rank's second and later steps begin, without markers."""
    begins, how = issued.clear(), ONE_STEP
    for evidence, name in _EVIDENCE:
        found = evidence(issued)
        if found is not None:
            begins, how = issued.filter(found), name
            break
    ordinal = pl.int_range(1, pl.len() + 1).over("rank")
    return begins.sort("since_ns").select(
        "rank", found=ordinal.cast(pl.Int64), since_ns="since_ns"
    ), how


def _optimized(issued: pl.DataFrame) -> pl.Expr | None:
    """A step ends with its optimizer, provided that every rank shows one."""
    optimizer = pl.col("kind") == Kind.OPTIMIZER.value
    if issued.filter(optimizer)["rank"].n_unique() < issued["rank"].n_unique():
        return None
    return (pl.col("previous") == Kind.OPTIMIZER.value) & ~optimizer


def _restarted(issued: pl.DataFrame) -> pl.Expr | None:
    """A step begins where the forward micro-batches of a rank's lowest chunk start over.

    Not if backwards are still owed there: then the numbers mean something else, or nothing.
    """
    chunk = pl.col("chunk").fill_null(0)
    first = (pl.col("kind") == Kind.FORWARD.value) & (chunk == chunk.min().over("rank"))
    number = pl.when(first).then("microbatch")
    restarts = first & (number <= number.shift(1).forward_fill().over("rank"))
    owed = issued.filter(restarts & (_AHEAD > 1))
    trains = issued["kind"].is_in(_BACKWARD).any()
    if (owed.height and trains) or issued.filter(restarts).is_empty():
        return None
    return restarts


def _balanced(issued: pl.DataFrame) -> pl.Expr | None:
    """Unnumbered forwards and backwards: a rank has run as many of each at a step's end.

    Ranks near the end of a pipeline are balanced after every pair, so the one that is balanced
    least often tells how many micro-batches a step has, and every rank's forwards are counted off
    by that number. Numbers that never repeat are believed instead: all is one step.
    """
    forwards = issued.filter(_IS_FORWARD).select("rank", "chunk", "microbatch")
    if not forwards["microbatch"].has_nulls() and forwards.is_unique().all():
        return None
    # After the last balance may come a step that was cut short, or an evaluation, which owes backwards.
    # If training goes on after that, forwards cannot be counted off.
    even = _IS_BACKWARD & (_AHEAD == 0)
    trained = pl.col("even").cum_sum(reverse=True).over("rank") > 0
    per_rank = (
        issued.with_columns(even=even, forward=_IS_FORWARD, backward=_IS_BACKWARD)
        .with_columns(trained=trained)
        .group_by("rank")
        .agg(
            balanced=pl.col("even").sum(),
            forward=(pl.col("forward") & pl.col("trained")).sum(),
            later=(pl.col("forward") & ~pl.col("trained")).sum(),
            goes_on=(pl.col("backward") & ~pl.col("trained")).any(),
        )
        .filter(
            pl.col("balanced") > 0,
            pl.col("forward") % pl.col("balanced") == 0,
            ~pl.col("goes_on") | (pl.col("later") * pl.col("balanced") <= pl.col("forward")),
        )
    )
    microbatches = (per_rank["forward"] // per_rank["balanced"]).max()
    if not isinstance(microbatches, int) or microbatches == 1:
        return None
    ordinal = _IS_FORWARD.cum_sum().over("rank") - 1
    return _IS_FORWARD & (ordinal > 0) & (ordinal % microbatches == 0)


_EVIDENCE: Final[tuple[tuple[Callable[[pl.DataFrame], pl.Expr | None], str], ...]] = (
    (_optimized, "a step ends with its optimizer"),
    (_restarted, "a step begins where forward micro-batch numbers start over"),
    (_balanced, "a step ends where a rank has run as many backwards as forwards"),
)


def split_backward(tasks: pl.DataFrame) -> pl.DataFrame:
    """Decide what a plain "B" means: the input gradient alone on ranks that also compute W.

    Args:
        tasks: Frame with rank, kind and `splits`, true where the name was a plain "B".
    """
    weights = (pl.col("kind") == Kind.BACKWARD_WEIGHT.value).any().over("rank")
    return tasks.with_columns(
        kind=pl.when(pl.col("splits") & weights)
        .then(pl.lit(Kind.BACKWARD_INPUT.value))
        .otherwise("kind"),
    ).drop("splits")


def number_microbatches(tasks: pl.DataFrame) -> tuple[pl.DataFrame, str | None, list[Notice]]:
    """Number tasks whose names have no micro-batch, by their order within the step.

    Names that repeat within a step, such as the constant "F0.0.0" that Sail's fork of Megatron
    gives every micro-batch of an interleaved schedule, say nothing; their numbers are dropped.
    With several chunks on a rank the order alone does not tell which micro-batch a task is of, nor
    where names are of parts of layers (`attn(F)`), so those stay unnumbered. What is recomputed in the
    midst of a backward is of its micro-batch.

    Returns:
        The tasks, how micro-batches were found (None if stated), and warnings.
    """
    notices: list[Notice] = []
    compute = pl.col("kind").is_in(_COMPUTE) & (pl.col("lane") == Lane.COMPUTE.value)
    key = ["rank", "step", "name"]
    repeated = compute & pl.col("microbatch").is_not_null() & (pl.len().over(key) > 1)
    if "received" in tasks.columns:  # names of inferred passes say nothing
        repeated &= pl.col("received").is_null()
    tasks = tasks.with_columns(repeated=repeated)
    if count := int(tasks["repeated"].sum()):
        text = (
            f"{count} of {tasks.height} tasks share their name with another of the same step, so their "
            "micro-batch and chunk numbers are ambiguous and were dropped"
        )
        notices.append(Notice("repeated-names", text, count, tasks.height))
        tasks = tasks.with_columns(
            pl.when("repeated").then(None).otherwise(column).alias(column)
            for column in ("microbatch", "chunk")
        )
    flush = (pl.col("kind") == Kind.BACKWARD_WEIGHT.value) & pl.col("chunk").is_not_null()
    part = pl.col("name").str.contains(LAYER_PART)  # of which a micro-batch has several
    unnumbered = pl.col("microbatch").is_null() & ~pl.col("repeated") & ~flush
    bare = compute & unnumbered & ~part.fill_null(value=False)
    if (
        "certainty" in tasks.columns
    ):  # passes told by structure, whose order has told all that it can
        bare &= pl.col("certainty").is_null() | pl.col("stage").is_not_null()
    tasks = tasks.with_columns(bare=bare)
    if not tasks["bare"].any():
        return tasks.drop("repeated", "bare"), None, notices
    ordinal = pl.int_range(pl.len()).over("rank", "step", "kind", "bare")
    tasks = tasks.sort("host_start_ns", "host_end_ns", descending=[False, True]).with_columns(
        microbatch=pl.when("bare").then(ordinal).otherwise("microbatch"),
    )
    last, until_ns = (
        pl.when(_IS_BACKWARD).then(column).forward_fill().over("rank")
        for column in ("microbatch", "host_end_ns")
    )
    within = (pl.col("kind") == Kind.RECOMPUTE.value) & (pl.col("host_end_ns") <= until_ns)
    tasks = tasks.with_columns(
        microbatch=pl.when(pl.col("bare") & within).then(last).otherwise("microbatch")
    )
    return tasks.drop("repeated", "bare"), "order of tasks within the step", notices


def number_stages(
    tasks: pl.DataFrame, *, common_clock: bool = True
) -> tuple[pl.DataFrame, str | None]:
    """Infer the global virtual stage of every (rank, chunk) from one micro-batch's way through.

    Micro-batch 0 visits the stages in order, so its forwards sorted by start are the pipeline,
    whether chunks are placed linearly, round-robin or in a V. That holds only if each forward
    starts after the one before it ended; otherwise there are several pipelines side by side (data
    parallel replicas), or clocks disagree, and the stages stay unknown.

    Where no clock says which start is the first, its backwards do: it comes back to each stage later
    than to all that follow.

    Returns:
        The tasks, and how stages were found: None if they were stated or stay unknown.
    """
    if not tasks.height or tasks["stage"].is_not_null().any():
        return tasks, None
    place = pl.col("chunk").fill_null(0)
    if "graph" in tasks.columns:  # of an inferred pass nothing says that it is of the first chunk
        place = pl.when(pl.col("graph").is_null()).then(place).otherwise(place_of_pass())
    passes = tasks.with_columns(chunk=place)
    forwards = passes.filter(_IS_FORWARD).drop_nulls("chunk")
    firsts = forwards.filter(pl.col("microbatch") == 0)
    seen = firsts.group_by("step").len().sort("len", "step", descending=[True, False])
    path = firsts.join(seen.head(1), on="step", nulls_equal=True, how="semi")
    places = forwards.select("rank", "chunk").unique()
    if common_clock:
        path, how = path.sort("start_ns"), "order in which micro-batch 0 passed through the ranks"
        in_turn = path["start_ns"] >= path["end_ns"].shift(1)
    else:
        path, how = _returned(path, passes), "time until micro-batch 0 came back to each rank"
        in_turn = path["whole_ns"] <= path["away_ns"].shift(1)
    complete = path.height == places.height and path.select("rank", "chunk").is_unique().all()
    if not (path.height and complete and in_turn.fill_null(value=True).all()):
        return tasks, None
    stages = path.select("rank", "chunk").with_row_index("found")
    placed = (
        tasks.with_columns(place=place)
        .join(stages, left_on=["rank", "place"], right_on=["rank", "chunk"], how="left")
        .with_columns(
            stage=pl.when(pl.col("kind") != Kind.OPTIMIZER.value).then(
                pl.col("found").cast(pl.Int32)
            )
        )
    )
    return placed.drop("place", "found"), how


def _returned(path: pl.DataFrame, passes: pl.DataFrame) -> pl.DataFrame:
    """Return a micro-batch's forwards by how long it was away until its backward, longest first.

    Returns:
        Frame with the columns of `path`, `away_ns` (between its forward and its backward) and
        `whole_ns` (with both); what it is away from a stage holds the whole of the next.
    """
    place = ["rank", "chunk", "step", "microbatch"]
    backwards = passes.filter(_IS_BACKWARD).select(*place, back_ns="start_ns", done_ns="end_ns")
    return (
        path.join(backwards, on=place, nulls_equal=True)
        .with_columns(
            away_ns=pl.col("back_ns") - pl.col("end_ns"),
            whole_ns=pl.col("done_ns") - pl.col("start_ns"),
        )
        .sort("away_ns", descending=True)
    )


def _number_chunks(tasks: pl.DataFrame) -> pl.DataFrame:
    """Number the chunks of ranks that hold several stages, where only the stages are stated.

    A rank's chunks are its stages in ascending order, whatever the placement: round-robin (Megatron's
    interleaving) or a V.
    """
    places = (
        tasks.select("rank", "stage")
        .drop_nulls()
        .unique()
        .with_columns(found=pl.col("stage").rank("dense").over("rank") - 1)
        .filter(pl.len().over("rank") > 1)
    )
    if not places.height or tasks["chunk"].is_not_null().any():
        return tasks
    pairs = places.rename({"stage": "pair_stage", "found": "pair_found"})
    return (
        tasks.join(places, on=["rank", "stage"], how="left", maintain_order="left")
        .join(pairs, on=["rank", "pair_stage"], how="left", maintain_order="left")
        .with_columns(
            chunk=pl.col("found").cast(pl.Int16), pair_chunk=pl.col("pair_found").cast(pl.Int16)
        )
        .drop("found", "pair_found")
    )


def with_stages(ranks: pl.DataFrame, tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the rank table with the stages that each rank's tasks are of."""
    stages = tasks.group_by("rank").agg(stages=pl.col("stage").drop_nulls().unique().sort())
    return ranks.drop("stages").join(stages, on="rank", how="left")
