"""Forwards and backwards, by the order in which a process launched its work.

What autograd's engine launched without a break is a backward, and what the caller launched before it a
forward. What the caller launched where autograd records nothing, under `torch.no_grad`, is no part of
the forward after it, if it multiplies matrices as only a forward does: it evaluates, or is of a model
that is not trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from bubblescope.model.kinds import Kind
from bubblescope.sources.nesting import enclosing, outermost
from bubblescope.sources.phase_evidence import CAST, COMPUTE, NONE, PRODUCT

if TYPE_CHECKING:
    from bubblescope.sources.step_marks import Steps

# What the moments are that the order of a process's launches is made of. Of several at one moment
# the lower comes first. The last are launches of the main thread, where autograd records and not.
_ENDED, _BEGAN, _OPTIMIZER, _ENGINE, _MAIN, _ALONE = range(6)


def moments(
    launches: pl.DataFrame,
    engine: pl.DataFrame,
    engines: pl.Series,
    main: int,
    optimizers: pl.DataFrame,
    aside: pl.DataFrame,
    steps: Steps,
) -> pl.DataFrame:
    """Return everything that makes or parts passes, in order: sort, start_ns, end_ns, launched."""

    def of(frame: pl.DataFrame, sort: int, start: str, end: str | pl.Expr) -> pl.DataFrame:
        return frame.select(
            sort=pl.lit(sort),
            start_ns=pl.col(start),
            end_ns=pl.col(end) if isinstance(end, str) else end,
            launched=pl.lit(value=sort == _MAIN),
        )

    at_once = pl.col("start_ns") + 1
    by_engine = pl.col("engine") | pl.col("thread").is_in(engines.implode())
    backward = of(launches.filter(by_engine), _ENGINE, "start_ns", at_once)
    ours = launches.filter(~pl.col("engine"), pl.col("thread") == main).select("thread", "start_ns")
    for taken in (optimizers, aside):
        found = enclosing(ours, taken)
        ours = found.filter(pl.col("until_ns").is_null()).select("thread", "start_ns")
    marks = steps.ranges if steps.marked else steps.ranges.clear()
    return pl.concat(
        [
            of(marks, _ENDED, "end_ns", "end_ns"),
            of(marks, _BEGAN, "start_ns", "start_ns"),
            of(optimizers, _OPTIMIZER, "start_ns", "end_ns"),
            of(engine, _ENGINE, "start_ns", "end_ns"),
            backward.with_columns(launched=pl.lit(value=True)),
            of(ours, _MAIN, "start_ns", at_once),
        ]
    ).sort("start_ns", "sort")


def _without_unrecorded(moments: pl.DataFrame, operators: pl.DataFrame, main: int) -> pl.DataFrame:
    """Tell forwards that autograd does not record from the one that comes after them.

    An operator has a sequence number unless autograd is off, and the number advances with every
    operator that autograd records. So a product of matrices that no operator with a number called,
    before the first advance of a run of launches, is of another forward than what is recorded there.
    That other one ends before the next operator with a number.

    Args:
        moments: As `_moments` has them.
        operators: The main thread's own.
        main: The main thread.

    Returns:
        The moments with `unrecorded`, whether a launch is of such a product; those of a forward of its
        own, in front of one that is recorded, are `_ALONE`.
    """
    numbered = operators.filter(pl.col("sequence") != NONE, pl.col("role") != CAST)
    products = operators.filter(pl.col("role") == PRODUCT, pl.col("sequence") == NONE)
    moments = moments.with_columns(
        run=pl.col("sort").rle_id(), unrecorded=pl.lit(value=False)
    ).with_row_index("moment")
    if not products.height:
        return moments.drop("run", "moment")
    ours = moments.filter(sort=_MAIN).select(
        "moment", "run", "start_ns", thread=pl.lit(main, pl.Int64)
    )
    for column, spans in (("recorded", numbered), ("product", products)):
        found = enclosing(ours, outermost(spans))
        ours = found.with_columns(pl.col("until_ns").is_not_null().alias(column)).drop(
            "since_ns", "until_ns"
        )
    ours = ours.with_columns(unrecorded=pl.col("product") & ~pl.col("recorded"))
    begins = ours.group_by("run").agg(begin_ns=pl.col("start_ns").min()).sort("begin_ns")
    advance = (
        numbered.sort("start_ns")
        .join_asof(begins, left_on="start_ns", right_on="begin_ns")
        .filter(pl.col("sequence") > pl.col("sequence").min().over("run"))
        .group_by("run")
        .agg(advance_ns=pl.col("start_ns").min())
    )
    early = pl.col("unrecorded") & (pl.col("start_ns") < pl.col("advance_ns"))
    last = pl.col("start_ns").filter(early).max().over("run")
    alone = (
        ours.join(advance, on="run", how="left")
        .with_columns(last_ns=last)
        .with_columns(
            until_ns=pl.col("start_ns")
            .filter("recorded", pl.col("start_ns") > pl.col("last_ns"))
            .min()
            .over("run")
        )
        .select("moment", alone=pl.col("start_ns") < pl.col("until_ns"), told="unrecorded")
    )
    return (
        moments.join(alone, on="moment", how="left", maintain_order="left")
        .with_columns(
            sort=pl.when("alone").then(pl.lit(_ALONE, pl.Int32)).otherwise("sort"),
            unrecorded=pl.col("told").fill_null(value=False),
        )
        .drop("run", "moment", "alone", "told")
    )


def passes(
    order: pl.DataFrame, operators: pl.DataFrame, main: int, *, separable: bool
) -> pl.DataFrame:
    """Return forwards, backwards and what is neither: a run of moments of one sort each.

    Args:
        order: As `moments` has them.
        operators: Frame with the columns of `OPERATORS`.
        main: The thread that launched most.
        separable: Whether forwards can be told from optimizers: by what names these, or by operators.
            Otherwise nothing is a forward.

    Returns:
        Frame with start_ns, end_ns, kind, unrecorded (whether autograd recorded nothing of it) and
        thread.
    """
    operators = operators.filter(pl.col("thread") == main)
    own = operators.filter(pl.col("role").is_between(CAST, COMPUTE))
    runs = (
        _without_unrecorded(order, own, main)
        .group_by(pl.col("sort").rle_id().alias("run"), "sort", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.col("start_ns").max().alias("last_ns"),
            pl.col("launched").any(),
            pl.col("unrecorded").any(),
        )
        .with_columns(
            before=pl.col("sort").shift(1),
            after=pl.col("sort").shift(-1),
            next_ns=pl.col("start_ns").shift(-1),
        )
    )
    ours = runs.filter(pl.col("sort") >= _MAIN)
    before, after = pl.col("before"), pl.col("after")
    # A step without a backward evaluates; what autograd recorded is a forward, wherever it is cut off.
    evaluates = (before == _BEGAN) & after.is_in([_ENDED, _BEGAN]).fill_null(value=True)
    cut_off = pl.col("recorded") & ((before != _ENGINE).fill_null(value=True) | after.is_null())
    forward = (after == _ENGINE).fill_null(value=False) | evaluates.fill_null(value=False) | cut_off
    forward &= (pl.col("sort") == _MAIN) & pl.lit(separable)
    forwards = (
        ours.join(_recorded(ours, operators), on="run", how="left")
        .with_columns(pl.col("recorded").fill_null(value=False))
        .with_columns(
            kind=pl.when(forward)
            .then(pl.lit(Kind.FORWARD.value))
            .otherwise(pl.lit(Kind.OTHER.value)),
        )
    )
    # The host leaves the last operator some time after its launch.
    ends = enclosing(
        forwards.select("run", thread=pl.lit(main, pl.Int64), start_ns="last_ns"),
        outermost(operators),
    ).select("run", "until_ns")
    forwards = forwards.join(ends, on="run", how="left").with_columns(
        end_ns=pl.when((after == _ENGINE).fill_null(value=False))
        .then("next_ns")
        .otherwise(
            pl.min_horizontal(pl.max_horizontal("end_ns", "until_ns"), "next_ns").clip(
                lower_bound=pl.col("end_ns")
            )
        )
    )
    backwards = runs.filter(pl.col("sort") == _ENGINE, "launched").with_columns(
        kind=pl.lit(Kind.BACKWARD.value)
    )
    return pl.concat(
        frame.select("start_ns", "end_ns", "kind", "unrecorded", thread=pl.lit(main, pl.Int64))
        for frame in (forwards, backwards)
    )


def _recorded(runs: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Say in which runs autograd recorded an operator: its sequence number advanced there."""
    numbered = operators.filter(
        pl.col("role").is_between(PRODUCT, COMPUTE), pl.col("sequence") != NONE
    )
    return (
        numbered.sort("start_ns")
        .join_asof(
            runs.select("run", "start_ns", "last_ns").sort("start_ns"),
            on="start_ns",
        )
        .filter(pl.col("start_ns") <= pl.col("last_ns"))
        .group_by("run")
        .agg(recorded=pl.col("sequence").n_unique() > 1)
    )
