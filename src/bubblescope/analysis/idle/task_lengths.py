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

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.idle.rank_noise import OF_DEVIATION, OF_MEDIAN
from bubblescope.model.ordering import numbered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.model.arrays import Floats, Ints

_LEAST: Final = 1.02
"""Slower than this is slow."""

_SIGMAS: Final = 3.0
"""Standard errors beyond which a median is not just noise."""


DURATION: Final = ("task", "rank", "step", "kind", "stage", "start_ns", "end_ns")
"""Columns of tasks that tell how long they took, with their rows."""


class Timed(Protocol):
    """Tasks of which it is known how long they took; attributes as of `Durations`."""

    @property
    def task(self) -> Ints: ...  # noqa: D102
    @property
    def rank(self) -> Ints: ...  # noqa: D102
    @property
    def step(self) -> Ints: ...  # noqa: D102
    @property
    def kind(self) -> Ints: ...  # noqa: D102
    @property
    def stage(self) -> Ints: ...  # noqa: D102
    @property
    def duration_ns(self) -> Ints: ...  # noqa: D102
    @property
    def steps(self) -> list[int | None]: ...  # noqa: D102


class Durations(msgspec.Struct, frozen=True):
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
        arrays: dict[str, Ints] = {
            column.name: column.to_numpy().astype(np.int32)
            for column in columns.drop("duration_ns").iter_columns()
        }
        arrays["duration_ns"] = columns["duration_ns"].to_numpy()
        return cls(**arrays, steps=tasks["step"].unique(maintain_order=True).to_list())


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


class Medians(NamedTuple):
    """What tasks of ranks take, as a rule, over all steps; ranks have nothing to do with each other.

    Attributes:
        places: Frame with kind, stage, rank, size (number of tasks), usual (their median length), error
            (its standard error), by these.
        passing: Frame with rank, step and times: how many times as long the rank's tasks took in steps
            in which it was slow.
        noise: Frame with rank, steps (how many it has), and by_tasks and by_steps: how far its tasks
            are from their mean, and its steps from what its tasks usually take, as shares, the medians;
            null where there are no two to compare.
    """

    places: pl.DataFrame
    passing: pl.DataFrame
    noise: pl.DataFrame

    @classmethod
    def of(cls, run: Timed) -> Self:
        """Look at all tasks of some ranks."""
        place, count = numbered(run.kind, run.stage, run.rank)
        tasks = pl.DataFrame({"place": place, "length": run.duration_ns})
        length = pl.col("length").cast(pl.Float64)
        scatter = OF_DEVIATION * (length - length.median()).abs().median()
        cells = tasks.group_by("place").agg(
            size=pl.len().cast(pl.Int64),
            usual=length.median(),
            error=OF_MEDIAN * scatter / pl.len().sqrt(),
            mean=length.mean(),
        )
        places = cells.sort("place").with_columns(
            _of_each(place, count, getattr(run, name)).alias(name) for name in _PLACE
        )
        usual = places["usual"].to_numpy()[place]
        step = pl.Series(run.steps, dtype=pl.Int32).gather(run.step)
        noise = _noise(run, place, places, usual).sort("rank")
        return cls(
            places.select(*_PLACE, "size", "usual", "error").sort(_PLACE),
            _passing(run, usual, step),
            noise,
        )

    @classmethod
    def joined(cls, parts: Sequence[Medians]) -> Self:
        """Return those of several batches of ranks together."""
        places, passing, noise = (pl.concat(frames) for frames in zip(*parts, strict=True))
        return cls(places.sort(_PLACE), passing, noise.sort("rank"))


_PLACE: Final = ["kind", "stage", "rank"]


class Typical(msgspec.Struct, frozen=True):
    """What tasks would take if only some of what makes them differ were so.

    Attributes:
        medians: What they take, as a rule.
        places: Frame as `Medians.places`, with even_ns and healthy_ns, as even and stage are defined in
            this module, and own_rank: the same times how slow the rank is, not rounded.
    """

    medians: Medians
    places: pl.DataFrame

    @classmethod
    def of(cls, medians: Medians) -> Self:
        """Set the ranks of a run beside each other.

        Args:
            medians: Of all its ranks.
        """
        cell = ["kind", "stage"]
        places = medians.places.with_columns(
            peers=pl.len().over(cell),
            healthy=pl.col("usual").quantile(0.5, "lower").over(cell),
        )
        shared = _shared_slowness(places)
        places = places.join(shared, on="rank", how="left", maintain_order="left").with_columns(
            healthy=pl.when(pl.col("peers") == 1)
            .then(pl.col("healthy") / pl.col("shared").fill_null(1.0))
            .otherwise("healthy")
        )
        beyond = pl.col("usual") / pl.col("healthy")
        noise = 1 + _SIGMAS * pl.col("error") / pl.col("usual")
        slow = (pl.col("healthy") > 0) & (beyond > pl.max_horizontal(noise, pl.lit(_LEAST)))
        costs = places.group_by(cell, maintain_order=True).agg(pl.col("healthy").first())
        costs = costs.select(*cell, even=pl.col("healthy").mean().over("kind"))
        return cls(
            medians,
            places.join(costs, on=cell, maintain_order="left").select(
                *medians.places.columns,
                even_ns=_whole("even"),
                healthy_ns=_whole("healthy"),
                own_rank=pl.col("healthy") * pl.when(slow).then(beyond).otherwise(1.0),
            ),
        )


def lengths(run: Timed, typical: Typical | None = None) -> Lengths:
    """Take the lengths of a run's tasks apart.

    Args:
        run: The run, or some steps of it.
        typical: What tasks of the whole run take; as these steps tell if left out.
    """
    typical = typical or Typical.of(Medians.of(run))
    place, count = numbered(run.kind, run.stage, run.rank)
    cells = pl.DataFrame(
        {name: _of_each(place, count, getattr(run, name)) for name in _PLACE}
    ).join(
        typical.places.with_columns(pl.col(_PLACE).cast(pl.Int64)),
        on=_PLACE,
        how="left",
        maintain_order="left",
    )
    even, stage, rank = (
        cells[name].to_numpy()[place] for name in ("even_ns", "healthy_ns", "own_rank")
    )
    here, count = numbered(run.rank, run.step)
    step = pl.Series(run.steps, dtype=pl.Int32).gather(_of_each(here, count, run.step))
    times = (
        pl.DataFrame({"rank": _of_each(here, count, run.rank), "step": step})
        .join(
            typical.medians.passing,
            on=["rank", "step"],
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )["times"]
        .fill_null(1.0)
        .to_numpy()
    )
    slowed = pl.DataFrame({"rank": rank * times[here]})
    return Lengths(
        even,
        stage,
        slowed.select(_whole("rank")).to_series().to_numpy(),
        run.duration_ns,
    )


def _whole(column: str) -> pl.Expr:
    return pl.col(column).round().cast(pl.Int64)


def _of_each(group: Ints, count: int, values: Ints) -> pl.Series:
    """Return the value that all of a group have, group by group."""
    found = np.empty(count, np.int64)
    found[group] = values
    return pl.Series(found)


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


def _passing(run: Timed, usual: Floats, step: pl.Series) -> pl.DataFrame:
    """Return `Medians.passing`: how slow ranks were in steps, compared with their other steps.

    Args:
        run: The run.
        usual: How long each task takes on its rank, n long.
        step: The number of each task's step, n long.
    """
    known = usual > 0
    value = pl.col("value")
    middle = value.median()
    scatter = OF_DEVIATION * (value - middle).abs().median()
    steps = (
        pl.DataFrame(
            {
                "rank": run.rank[known].astype(np.int64),
                "step": step.filter(pl.Series(known)),
                "value": run.duration_ns[known] / usual[known],
            }
        )
        .group_by("rank", "step")
        .agg(times=middle, error=OF_MEDIAN * scatter / pl.len().sqrt())
        .filter(pl.len().over("rank") > 1)
    )
    noise = 1 + _SIGMAS * pl.col("error")
    slow = pl.col("times") > pl.max_horizontal(noise, pl.lit(_LEAST))
    return steps.filter(slow).select("rank", "step", "times").sort("rank", "step")


def _noise(run: Timed, place: Ints, places: pl.DataFrame, usual: Floats) -> pl.DataFrame:
    """Return `Medians.noise`.

    Args:
        run: The run.
        place: Which of `places` each task is of, n long.
        places: Frame with size, usual and mean.
        usual: The first of each task's place, n long.
    """
    tasks = pl.DataFrame(
        {
            "rank": run.rank.astype(np.int64),
            "step": run.step,
            "own": run.duration_ns,
            "usual": usual,
            "mean": places["mean"].to_numpy()[place],
            "size": places["size"].to_numpy()[place],
        }
    )
    several = tasks.filter(pl.col("size") > 1, pl.col("mean") > 0)
    by_tasks = several.group_by("rank").agg(by_tasks=_beyond("mean", "size").median())
    steps = tasks.group_by("rank", "step").agg(pl.col("own", "usual").sum())
    steps = steps.with_columns(steps=pl.len().over("rank").cast(pl.Int64))
    by_steps = (
        steps.filter(pl.col("steps") > 1, pl.col("usual") > 0)
        .group_by("rank")
        .agg(by_steps=_beyond("usual", "steps").median())
    )
    return (
        steps.group_by("rank")
        .agg(pl.col("steps").first())
        .join(by_tasks, on="rank", how="left")
        .join(by_steps, on="rank", how="left")
    )


def _beyond(mean: str, size: str) -> pl.Expr:
    """Return how far values are from the mean of so many, 2 or more, as shares of it."""
    small = (pl.col(size) / (pl.col(size) - 1)).sqrt()
    return (pl.col("own") / pl.col(mean) - 1).abs() * small
