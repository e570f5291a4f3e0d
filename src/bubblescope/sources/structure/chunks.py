"""Chunks and micro-batches of passes, by the order in which a rank built and consumed autograd graphs.

Every micro-batch goes forward through the chunks of a rank in one order and comes back in the other,
and every chunk takes the micro-batches in one order both ways. Then, of two graphs of which the one
built first is consumed last, the one built first is of an earlier chunk. Were both of one chunk, their
micro-batches would have changed places. Were it of a later chunk, its micro-batch would come back
there after the other micro-batch came back to the earlier chunk, which is after its own did: too late.

The graphs of one micro-batch are all nested so, one in the other. Hence a graph is of chunk k if and
only if the longest nest around it has k graphs, and through every graph runs a nest of as many graphs
as there are chunks. Where the counts from outside and from within do not agree, the assumption does
not hold, and nothing is numbered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.kinds import BACKWARDS, SHORT, Kind

if TYPE_CHECKING:
    from polars import Expr

HOW_ORDER: Final = "order in which autograd built and consumed graphs: {} of {} passes certain"
"""How micro-batches were found."""

_BACK: Final = [kind.value for kind in BACKWARDS]
_STEP: Final = ["rank", "step"]
_GRAPH: Final = [*_STEP, "graph"]
_CHUNKS: Final = 64
"""Chunks that any rank may hold."""
_WHOLE, _PARTIAL, _REVERSED = 1.0, 0.9, 0.9
"""Factors of certainty: of steps that were seen whole; of others that are like these as far as they
were seen; and of backwards in reverse, of which the number of receives tells the chunks."""


def number_by_graphs(tasks: pl.DataFrame, markers: pl.DataFrame) -> tuple[pl.DataFrame, str | None]:
    """Number the micro-batches and chunks of passes of which the autograd graph is known.

    Args:
        tasks: Frame with rank, step, kind, graph, certainty, microbatch, chunk, name and host_start_ns.
        markers: Step markers with rank, start_ns and end_ns (host time).

    Returns:
        The tasks, those without a graph as they were; and how micro-batches were found, or None.
    """
    if "graph" not in tasks.columns:
        return tasks, None
    # Where each rank holds the whole model, the order within the step tells all.
    inferred = pl.col("graph").is_not_null() & pl.col("stage").is_null()
    if not tasks.select(inferred.any()).item():
        return tasks, None
    tasks = _beside_markers(tasks, markers, inferred).with_row_index("row")
    passes = tasks.filter(inferred).sort("rank", "host_start_ns")
    whole = _numbered(_graphs(passes))
    found = passes.select("row", "kind", *_GRAPH).join(
        whole, on=_GRAPH, how="left", nulls_equal=True
    )
    found = _like_whole_steps(found)
    known = found.filter(pl.col("number").is_not_null())
    several = bool((known["label"] > 0).any())
    said = known.select(
        "row",
        found_kind="told_kind",
        found_microbatch=pl.col("number").cast(pl.Int64),
        found_chunk=pl.col("label").cast(pl.Int64) if several else pl.lit(None, pl.Int64),
        factor="factor",
    )
    tasks = tasks.join(said, on="row", how="left", maintain_order="left").with_columns(
        kind=pl.coalesce("found_kind", "kind"),
        microbatch=pl.coalesce(
            "microbatch", pl.col("found_microbatch").cast(tasks.schema["microbatch"])
        ),
        chunk=pl.coalesce("chunk", pl.col("found_chunk").cast(tasks.schema["chunk"])),
        certainty=(pl.col("certainty") * pl.col("factor").fill_null(1.0)).cast(pl.Float32),
    )
    tasks = tasks.drop("row", "found_kind", "found_microbatch", "found_chunk", "factor")
    certain = known.filter(pl.col("factor") >= _WHOLE).height
    return tasks, HOW_ORDER.format(certain, passes.height)


def pass_name() -> Expr:
    """Return what to call a pass that nothing names: its letter, micro-batch and chunk, as in F3.1."""
    letters = {kind.value: SHORT[kind] for kind in Kind}
    letter = pl.col("kind").cast(pl.String).replace_strict(letters, default="")
    chunk = pl.coalesce(pl.format(".{}", "chunk"), pl.lit(""))
    return pl.coalesce(pl.format("{}{}", letter, "microbatch") + chunk, letter)


def with_pass_names(tasks: pl.DataFrame) -> pl.DataFrame:
    """Name the passes that autograd's graphs tell; until then their names say no more than that."""
    if "received" not in tasks.columns:
        return tasks
    named = pl.when(pl.col("received").is_null()).then("name").otherwise(pass_name())
    return tasks.with_columns(name=named)


def _beside_markers(tasks: pl.DataFrame, markers: pl.DataFrame, inferred: Expr) -> pl.DataFrame:
    """Number the steps of inferred passes beside a rank's markers: of steps that the trace cut off."""
    edges = markers.group_by("rank").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    inside = tasks.group_by("rank").agg(low=pl.col("step").min(), high=pl.col("step").max())
    edges = edges.join(inside, on="rank").select(
        "rank", "low", "high", from_ns="start_ns", until_ns="end_ns"
    )
    before = inferred & (pl.col("host_start_ns") < pl.col("from_ns"))
    after = inferred & (pl.col("host_start_ns") >= pl.col("until_ns"))
    # Below zero no step can be: of one before the first nothing is said.
    step = (
        pl.when(before & (pl.col("low") > 0))
        .then(pl.col("low") - 1)
        .when(after)
        .then(pl.col("high") + 1)
        .otherwise("step")
    )
    return (
        tasks.join(edges, on="rank", how="left", maintain_order="left")
        .with_columns(step=step)
        .drop("low", "high", "from_ns", "until_ns")
    )


def _graphs(passes: pl.DataFrame) -> pl.DataFrame:
    """Return the graphs of those steps of which every forward has a backward: built_ns, consumed_ns."""
    built = (
        passes.filter(kind=Kind.FORWARD.value)
        .group_by(_GRAPH)
        .agg(built_ns=pl.col("host_start_ns").min())
    )
    consumed = (
        passes.filter(pl.col("kind").is_in(_BACK))
        .group_by(_GRAPH)
        .agg(consumed_ns=pl.col("host_start_ns").min())
    )
    received = passes.group_by(_GRAPH).agg(pl.col("received").sum())
    both = built.join(consumed, on=_GRAPH, how="full", coalesce=True, nulls_equal=True)
    lacks = pl.any_horizontal(pl.col("built_ns", "consumed_ns").is_null()).any().over(_STEP)
    whole = both.filter(~lacks).join(received, on=_GRAPH, nulls_equal=True)
    # A rank builds as many graphs in each step; where it did not, something is not in the trace.
    sizes = whole.group_by(_STEP).len()
    usual = sizes.group_by("rank").agg(pl.col("len").mode().max())
    return whole.join(sizes.join(usual, on=["rank", "len"]), on=_STEP, nulls_equal=True).drop("len")


def _numbered(graphs: pl.DataFrame) -> pl.DataFrame:
    """Return the graphs with label, number (of the micro-batch) and factor (of certainty).

    Graphs of steps that cannot be numbered are left out.
    """
    graphs = graphs.sort("built_ns")
    # Each is a chunk for itself, or the micro-batches of each chunk come back in reverse.
    falls = (pl.col("consumed_ns").diff().over(_STEP) < 0).fill_null(value=True)
    reverse = falls.all().over(_STEP) & (pl.len().over(_STEP) > 1)
    graphs = graphs.with_columns(reverse=reverse)
    back, others = graphs.filter("reverse"), graphs.filter(~pl.col("reverse"))
    outside = _layers(others, pl.col("consumed_ns").cum_max(), "label")
    inside = _layers(others.reverse(), pl.col("consumed_ns").cum_min(), "within")
    nested = outside.join(inside.select(*_GRAPH, "within"), on=_GRAPH, nulls_equal=True)
    last = pl.col("label").max().over(_STEP)
    size = pl.len().over([*_STEP, "label"])
    agrees = (pl.col("label") + pl.col("within") == last).all().over(_STEP)
    even = (size == pl.len().over(_STEP) / (last + 1)).all().over(_STEP)
    order = pl.int_range(pl.len()).over(_STEP)
    count = _reversed_count(back)
    back = back.clear() if count is None else back
    turned = back.with_columns(label=(order // (count or 1)).cast(pl.Int32))
    found = pl.concat([nested.filter(agrees & even).drop("within"), turned])
    return found.sort("built_ns").select(
        *_GRAPH,
        "label",
        number=pl.int_range(pl.len()).over([*_STEP, "label"]),
        factor=pl.when("reverse").then(_REVERSED).otherwise(_WHOLE),
    )


def _reversed_count(graphs: pl.DataFrame) -> int | None:
    """Return how many micro-batches a step has of which the backwards run in reverse.

    A rank posts a receive for each forward and each backward, but at the ends of the pipeline: the
    first chunk receives no input and the last no gradient. So with n graphs and m micro-batches these
    ranks post 2n - m.

    Returns:
        None if ranks or steps do not agree.
    """
    told = graphs.group_by(_STEP).agg(size=pl.len(), lacks=2 * pl.len() - pl.col("received").sum())
    sizes = told["size"].unique()
    ends = told.filter(pl.col("lacks") > 0, pl.col("size") % pl.col("lacks") == 0)
    counts = (ends["lacks"] if ends.height else sizes).unique()
    agree = len(sizes) == 1 and len(counts) == 1
    return int(counts[0]) if agree else None


def _layers(graphs: pl.DataFrame, furthest: Expr, name: str) -> pl.DataFrame:
    """Return the graphs with the number of others in the longest nest before them.

    Args:
        graphs: Graphs in the order in which nests are counted.
        furthest: How far those up to each are consumed, in that order.
        name: Name of the column of that number.
    """
    rest, found = graphs, []
    for layer in range(_CHUNKS):
        if not rest.height:
            break
        rest = rest.with_columns(furthest=furthest.over(_STEP))
        at = pl.col("consumed_ns") == pl.col("furthest")
        found.append(rest.filter(at).with_columns(pl.lit(layer, pl.Int32).alias(name)))
        rest = rest.filter(~at)
    nothing = graphs.with_columns(pl.lit(0, pl.Int32).alias(name)).clear()
    return pl.concat([nothing, *(one.drop("furthest") for one in found)])


def _like_whole_steps(found: pl.DataFrame) -> pl.DataFrame:
    """Number the passes of steps that were cut off as those of the rank's first whole step.

    A rank's first step may lack its beginning and its last step the end; what there is must be the
    same, pass by pass.

    Args:
        found: Frame with row, kind, rank, step, graph, label, number and factor, by rank and start.

    Returns:
        The same with told_kind, the kind of such passes.
    """
    found = found.with_columns(
        told_kind=pl.lit(None, found.schema["kind"]),
        whole=pl.col("number").is_not_null().all().over(_STEP),
        place=pl.int_range(pl.len()).over(_STEP),
        left=pl.int_range(pl.len(), 0, -1).over(_STEP),
    )
    model = found.filter("whole").filter(pl.col("step") == pl.col("step").min().over("rank"))
    cut = found.filter(~pl.col("whole"))
    if not (model.height and cut.height):
        return found.drop("whole", "place", "left")
    edges = found.group_by("rank").agg(first=pl.col("step").min(), last=pl.col("step").max())
    like = model.select(
        "rank", "place", "left", model_kind="kind", model_label="label", model_number="number"
    )
    told = []
    for side, key in (("last", "place"), ("first", "left")):
        mine = cut.join(edges, on="rank").filter(pl.col("step").eq_missing(pl.col(side)))
        beside = mine.join(
            like.select("rank", key, "model_kind", "model_label", "model_number"),
            on=["rank", key],
            how="left",
        )
        one_way = pl.col("kind").replace(Kind.BACKWARD_INPUT.value, Kind.BACKWARD.value)
        other_way = pl.col("model_kind").replace(Kind.BACKWARD_INPUT.value, Kind.BACKWARD.value)
        same = (one_way == other_way).fill_null(value=False)
        one_place = pl.struct("model_label", "model_number").n_unique().over(_GRAPH) == 1
        told.append(beside.filter((same & one_place).all().over(_STEP)))
    said = (
        pl.concat(told)
        .unique("row", keep="none")
        .select(
            "row",
            told_label="model_label",
            told_number="model_number",
            model_kind="model_kind",
            told_factor=pl.lit(_PARTIAL),
        )
    )
    return (
        found.join(said, on="row", how="left", maintain_order="left")
        .with_columns(
            label=pl.coalesce("told_label", "label"),
            number=pl.coalesce("told_number", "number"),
            factor=pl.coalesce("told_factor", "factor"),
            told_kind=pl.col("model_kind"),
        )
        .drop("told_label", "told_number", "told_factor", "model_kind", "whole", "place", "left")
    )
