"""How long tasks would take if only some of what makes them differ were so.

The length of a task is taken apart into what its stage costs, how slow its rank is, and what is its
own:

* even: every stage costs the same: the mean over the stages of what each costs;
* stage: what a stage costs on a healthy rank: the lower median over its ranks of their medians;
* rank: that times how slow the rank is in the step;
* its own: as measured.

A rank is slow where its median is beyond that of the stage, or a step's beyond that of its rank, by
more than three standard errors of the median and two per cent. Where a stage has one rank only, a
slow rank and a heavy stage look alike, except in time, or if a rank holds several stages that are all
slow alike: what they have in common is then the rank's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.idle.chance import OF_DEVIATION, OF_MEDIAN
from bubblescope.model.ordering import numbered

if TYPE_CHECKING:
    from typing_extensions import Self

    from bubblescope.analysis.idle.measured_run import MeasuredRun
    from bubblescope.model.arrays import Ints

_LEAST: Final = 1.02
"""Slower than this is slow."""

_SIGMAS: Final = 3.0
"""Standard errors beyond which a median is not just noise."""


class Durations(NamedTuple):
    """How long tasks took, without what they waited for, which needs no common clock.

    Attributes:
        task, rank, step, kind, stage, duration_ns, steps: As of `MeasuredRun`.
    """

    task: Ints
    rank: Ints
    step: Ints
    kind: Ints
    stage: Ints
    duration_ns: Ints
    steps: list[int | None]

    @classmethod
    def of(cls, tasks: pl.DataFrame) -> Self:
        """Take the columns of tasks, sorted by step and rank, with their rows as `task`."""
        columns = tasks.select(
            "task",
            "rank",
            step=pl.col("step").rle_id(),
            kind=pl.col("kind").to_physical(),
            stage=pl.col("stage").fill_null(-1),
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        )
        arrays = {
            column.name: column.to_numpy().astype(np.int64) for column in columns.iter_columns()
        }
        return cls(**arrays, steps=tasks["step"].unique().to_list())


class Lengths(NamedTuple):
    """Lengths of the tasks of a run, n long each, in nanoseconds.

    Attributes:
        even_ns, stage_ns, rank_ns, own_ns: As defined in this module.
    """

    even_ns: Ints
    stage_ns: Ints
    rank_ns: Ints
    own_ns: Ints

    def steps(self) -> dict[Cause, tuple[Ints, Ints]]:
        """Return the lengths without and with each cause that makes them differ."""
        return {
            Cause.IMBALANCE: (self.even_ns, self.stage_ns),
            Cause.SLOW_RANK: (self.stage_ns, self.rank_ns),
            Cause.VARIATION: (self.rank_ns, self.own_ns),
        }


def lengths(run: Durations | MeasuredRun) -> Lengths:
    """Take the lengths of a run's tasks apart."""
    cell = ["kind", "stage"]
    here = [*cell, "rank"]
    place, count = numbered(run.kind, run.stage, run.rank)
    places = _medians(place, run.duration_ns).select(
        *(_of_each(place, count, getattr(run, name)).alias(name) for name in here),
        "error",
        typical="middle",
    )
    places = places.with_columns(
        peers=pl.len().over(cell),
        healthy=pl.col("typical").quantile(0.5, "lower").over(cell),
    )
    shared = _shared_slowness(places)
    places = places.join(shared, on="rank", how="left", maintain_order="left").with_columns(
        healthy=pl.when(pl.col("peers") == 1)
        .then(pl.col("healthy") / pl.col("shared").fill_null(1.0))
        .otherwise("healthy")
    )
    beyond = pl.col("typical") / pl.col("healthy")
    noise = 1 + _SIGMAS * pl.col("error") / pl.col("typical")
    slow = (pl.col("healthy") > 0) & (beyond > pl.max_horizontal(noise, pl.lit(_LEAST)))
    costs = places.group_by(cell, maintain_order=True).agg(pl.col("healthy").first())
    costs = costs.select(*cell, even=pl.col("healthy").mean().over("kind"))
    places = places.join(costs, on=cell, maintain_order="left")
    even, stage, typical, rank = (
        places.select(column).to_series().to_numpy()
        for column in (
            _whole("even"),
            _whole("healthy"),
            pl.col("typical"),
            pl.col("healthy") * pl.when(slow).then(beyond).otherwise(1.0),
        )
    )
    slowed = pl.DataFrame({"rank": rank[place] * _passing(run, typical[place])})
    return Lengths(
        even[place],
        stage[place],
        slowed.select(_whole("rank")).to_series().to_numpy(),
        run.duration_ns,
    )


def _whole(column: str) -> pl.Expr:
    return pl.col(column).round().cast(pl.Int64)


def _of_each(group: Ints, count: int, values: Ints) -> pl.Series:
    """Return the value that all of a group have, group by group."""
    found = np.empty(count, values.dtype)
    found[group] = values
    return pl.Series(found)


def _medians(group: Ints, value: np.ndarray) -> pl.DataFrame:
    """Return of each group, ascending, the median of its values, and its standard error."""
    middle = pl.col("value").median()
    scatter = OF_DEVIATION * (pl.col("value") - middle).abs().median()
    return (
        pl.DataFrame({"group": group, "value": value.astype(np.float64)})
        .group_by("group")
        .agg(middle=middle, error=OF_MEDIAN * scatter / pl.len().sqrt())
        .sort("group")
    )


def _shared_slowness(places: pl.DataFrame) -> pl.DataFrame:
    """Return by how much all stages of a rank are slower than most, where a rank has several."""
    usual = pl.col("healthy").median().over("kind")
    return (
        places.filter(pl.col("stage") >= 0, usual > 0)
        .with_columns(times=pl.col("healthy") / usual)
        .group_by("rank")
        .agg(shared=pl.col("times").min(), held=pl.col("stage").n_unique())
        .filter(pl.col("held") > 1, pl.col("shared") > _LEAST)
        .select("rank", "shared")
    )


def _passing(run: Durations | MeasuredRun, typical: np.ndarray) -> np.ndarray:
    """Return how slow each task's rank was in its step, compared with its other steps.

    Args:
        run: The run.
        typical: How long each task takes on its rank, n long.
    """
    if len(run.steps) == 1:
        return np.ones(len(typical))
    here, count = numbered(run.rank, run.step)
    known = typical > 0
    found = _medians(here[known], run.duration_ns[known] / typical[known])
    noise = 1 + _SIGMAS * pl.col("error")
    slow = pl.when(pl.col("middle") > pl.max_horizontal(noise, pl.lit(_LEAST)))
    passing = np.ones(count)
    passing[found["group"].to_numpy()] = found.select(
        slow.then("middle").otherwise(1.0)
    ).to_series()
    times: np.ndarray = passing[here]
    return times
