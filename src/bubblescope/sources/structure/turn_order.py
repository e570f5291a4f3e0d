"""Micro-batches and stages of passes that only turns between transfers tell, by the schedule they keep.

Such passes are forwards and backwards in an order, and no more. But a schedule gives each its
micro-batch, so that an order that only one schedule has tells them all.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import TRANSFERS, Kind, Lane
from bubblescope.schedules import SCHEDULES
from bubblescope.schedules.classic import gpipe, looped_bfs
from bubblescope.schedules.plan import KINDS
from bubblescope.sources.structure.stage_credibility import share_possible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bubblescope.model.arrays import Ints
    from bubblescope.schedules.plan import Plan

_HOW: Final = "of all schedules only {} runs forwards and backwards in this order"
_NONE: Final = "unknown: no schedule runs forwards and backwards in this order"
_SEVERAL: Final = (
    "unknown: forwards and backwards run in the order of {}, where micro-batches may come back in "
    "several orders"
)

_CERTAINTY: Final = 0.7
"""Certainty of passes that one schedule alone explains: it may be one that nobody described."""
_POSSIBLE: Final = 0.98
"""Share of the ways from stage to stage that must agree with the clock."""
_UNEVEN: Final = 0.15
"""How far the shares may be apart of what ranks move of what a plan says, for profilers lose some."""
_MOVES: Final = [Kind.OTHER.value, *(kind.value for kind in TRANSFERS)]
_CHUNKS: Final = 8
"""Stages on a device that are tried."""
_STEP: Final = ["rank", "step"]
_TURNS: Final = [Kind.FORWARD.value, Kind.BACKWARD.value]


class _Fit(NamedTuple):
    """A schedule that has the order of a run, and the passes that it numbers."""

    name: str
    numbered: pl.DataFrame


def number_by_plans(tasks: pl.DataFrame, *, common_clock: bool) -> tuple[pl.DataFrame, str | None]:
    """Number passes that nothing but turns tells, if one schedule alone has their order.

    Every known schedule is planned for as many ranks, in the order in which they begin, and as many
    micro-batches as a rank runs forwards, or as chunks of it leave. What a plan gives to the passes
    must agree with the clock, for a micro-batch is in one stage at a time; and with how much each rank
    sends and receives, which is less at the ends of a pipeline.

    Args:
        tasks: Frame with rank, step, kind, lane, start_ns, end_ns, host_start_ns, certainty, stage,
            microbatch and, where passes were inferred, graph and received.
        common_clock: Whether times of different ranks may be compared.

    Returns:
        The tasks; how they were numbered, or why not; None if there are no such passes.
    """
    if "graph" not in tasks.columns or not common_clock:
        return tasks, None
    turn = pl.col("received").is_not_null() & pl.col("graph").is_null()
    tasks = tasks.with_row_index("row")
    passes = tasks.filter(turn & pl.col("kind").is_in(_TURNS)).sort("rank", "host_start_ns")
    if not passes.height or tasks["stage"].is_not_null().any():
        return tasks.drop("row"), None
    moves = (pl.col("lane") == Lane.COMM.value) & pl.col("kind").is_in(_MOVES)
    fits = _distinct(_fits(_whole_steps(passes), tasks.filter(moves)))
    if len(fits) != 1:
        names = sorted({fit.name for fit in fits})
        why = _SEVERAL.format(" and ".join(names)) if names else _NONE
        return tasks.drop("row"), why
    [fit] = fits
    told = fit.numbered.select("row", told_stage="stage", told_microbatch="microbatch")
    known = pl.col("told_stage").is_not_null()
    numbered = (
        tasks.join(told, on="row", how="left", maintain_order="left")
        .with_columns(
            stage=pl.coalesce("stage", pl.col("told_stage").cast(tasks.schema["stage"])),
            microbatch=pl.coalesce(
                "microbatch", pl.col("told_microbatch").cast(tasks.schema["microbatch"])
            ),
            certainty=pl.when(known).then(_CERTAINTY).otherwise("certainty").cast(pl.Float32),
        )
        .drop("row", "told_stage", "told_microbatch")
    )
    return numbered, _HOW.format(fit.name)


def _whole_steps(passes: pl.DataFrame) -> pl.DataFrame:
    """Return the passes of steps in which every rank has as many forwards and as many backwards."""
    counts = passes.group_by(_STEP).agg(
        forwards=(pl.col("kind") == Kind.FORWARD.value).sum(),
        backwards=(pl.col("kind") == Kind.BACKWARD.value).sum(),
    )
    most = int(counts["forwards"].mode().max() or 0)  # type: ignore[arg-type]  # a column of integers
    whole = counts.filter(
        pl.col("forwards") == most,
        pl.col("backwards") == most,
        pl.len().over("step") == passes["rank"].n_unique(),
    )
    return passes.join(whole, on=_STEP, how="semi", nulls_equal=True, maintain_order="left")


def _fits(passes: pl.DataFrame, moves: pl.DataFrame) -> Iterator[_Fit]:
    """Yield the schedules that have the order of every rank and step, as far as all else agrees.

    Args:
        passes: The passes of whole steps.
        moves: What every rank sent and received.
    """
    if not passes.height:
        return
    moved = dict(
        moves.join(passes.select(_STEP).unique(), on=_STEP, nulls_equal=True)
        .group_by("rank")
        .len()
        .iter_rows()
    )
    begun = passes.group_by("rank").agg(pl.col("start_ns").min()).sort("start_ns", "rank")
    device = {rank: index for index, rank in enumerate(begun["rank"].to_list())}
    steps = passes.partition_by(_STEP, as_dict=True, maintain_order=True)
    forwards = {key: (one["kind"] == _TURNS[0]).to_numpy() for key, one in steps.items()}
    count = int(next(iter(forwards.values())).sum())
    for name, plan in _plans(len(device), count):
        orders = [_order(plan, number) for number in range(plan.devices)]
        if any(order is None for order in orders):
            continue  # its backwards are split, or overlap
        if not _moves_alike({number: moved.get(rank, 0) for rank, number in device.items()}, plan):
            continue
        said = []
        for key, own in steps.items():
            order = orders[device[key[0]]]
            if order is None or not np.array_equal(order.forward, forwards[key]):
                break
            said.append(
                own.with_columns(
                    stage=pl.Series(order.stage), microbatch=pl.Series(order.microbatch)
                )
            )
        else:
            numbered = pl.concat(said)
            if share_possible(numbered) >= _POSSIBLE:
                yield _Fit(name, numbered)


def _moves_alike(moved: Mapping[int, int], plan: Plan) -> bool:
    """Say whether each device moves as large a share of what its plan says; true if nothing was seen.

    Several transfers may be one kernel, or one several, as long as that is so on every device.
    """
    home = np.empty(plan.stages, np.int64)
    for device, stages in enumerate(plan.placement):
        home[list(stages)] = device
    inner = np.diff(home) != 0
    # Each stage receives from and sends to the one before and the one behind it, forward and back.
    of_stage = np.append(0, inner).astype(np.int64) + np.append(inner, 0).astype(np.int64)
    due = np.bincount(plan.device, weights=of_stage[plan.stage], minlength=plan.devices)
    if not any(moved.values()):
        return True
    shares = np.array([moved[device] for device in range(plan.devices)]) / np.maximum(due, 1)
    return bool(shares.max() - shares.min() <= _UNEVEN * shares.max())


class _Order(NamedTuple):
    """What a device runs in a step: whether each is a forward, its stage and its micro-batch."""

    forward: Ints
    stage: Ints
    microbatch: Ints


def _order(plan: Plan, device: int) -> _Order | None:
    """Return what a device of a plan runs; None if it runs more than whole forwards and backwards."""
    own = slice(plan.first[device], plan.first[device + 1])
    kinds = [KINDS[kind] for kind in plan.kind[own].tolist()]
    if not set(kinds) <= {Kind.FORWARD, Kind.BACKWARD}:
        return None
    forward = np.array([kind is Kind.FORWARD for kind in kinds])
    stage, microbatch = (
        np.asarray(column[own], np.int64) for column in (plan.stage, plan.microbatch)
    )
    return _Order(forward, stage, microbatch)


def _plans(devices: int, forwards: int) -> Iterator[tuple[str, Plan]]:
    """Yield the plans of every schedule in which each device runs so many forwards."""
    if devices < 2:
        return
    makers: list[tuple[str, bool, int, Callable[..., Plan]]] = [
        (name, one.any_chunks, 0 if one.any_chunks else int(one.chunks), one.make)
        for name, one in SCHEDULES.items()
        if not one.searched
    ]
    makers.append(("gpipe", False, 1, partial(gpipe, last_first=True)))
    makers.append(("looped-bfs", True, 0, partial(looped_bfs, last_first=True)))
    for name, any_chunks, own, make in makers:
        for chunks in range(2, _CHUNKS + 1) if any_chunks else [own]:
            if forwards % chunks == 0:
                with suppress(ScheduleError):  # not for these numbers
                    asked = {"chunks": chunks} if any_chunks else {}
                    yield name, make(devices, forwards // chunks, **asked)


def _distinct(fits: Iterator[_Fit]) -> list[_Fit]:
    """Return the fits of which no two number the passes alike."""
    found: list[_Fit] = []
    for fit in fits:
        said = fit.numbered.select("row", "stage", "microbatch")
        if not any(said.equals(one.numbered.select("row", "stage", "microbatch")) for one in found):
            found.append(fit)
    return found
