"""Kernels of a run in parts: as `bubblescope.analysis.kernels` has it, some ranks at a time.

Sums add up. A median or a 95th percentile is a length in the middle of all ranks' lengths: first it is
counted how many are about as long, which says among which the wanted one is; then those are counted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import polars as pl

from bubblescope.analysis.kernels import (
    BY,
    HIDDEN_USES,
    HIGH,
    LENGTH,
    NO_KERNELS,
    Counted,
    Peers,
    against,
    known,
    of_ranks,
    peers_of,
    spread_over,
    spread_within,
    summed,
    table_of,
    varied,
)
from bubblescope.analysis.overview import sized
from bubblescope.analysis.pieces.run_in_pieces import here
from bubblescope.engine.remote_results import Held, Holder
from bubblescope.model.errors import TimelineError
from bubblescope.model.timeline import TASK_SCHEMA, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bubblescope.analysis.pieces.run_in_pieces import Runs
    from bubblescope.model.provenance import Run

Answer = TypeVar("Answer")


def _itself(found: Counted) -> Any:
    return found


class Activities(Protocol):
    """The kernels of a run, in batches of ranks; sent to wherever they are looked at."""

    @property
    def run(self) -> Run:
        """What is known of the whole run."""

    @property
    def ranks(self) -> pl.DataFrame:
        """All ranks, as in `Timeline.ranks`."""

    @property
    def kernel_batches(self) -> int:
        """Number of batches that all ranks are in."""

    def kernels(self, batch: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the activities of a batch of ranks in all steps, and their budget."""


def kernels_of(
    pieces: Activities | Held[Activities],
    run: Runs = here,
    *,
    by: Sequence[str] | None = None,
    folder: Path | None = None,
    then: Callable[[Counted], Answer] = _itself,
) -> Answer:
    """Sum up the kernels of a run, some ranks at a time.

    Args:
        pieces: The run.
        run: What runs the looks, each at one batch: `Engine.run`, or this process.
        by: As of `Kernels.of`.
        folder: As of `bubblescope.analysis.pieces.study_of_pieces.study_of`.
        then: What is wanted of what is known of it, worked out where looks are taken; all by default.

    Raises:
        TimelineError: As `Kernels.of`.
    """
    chosen = known(BY if by is None else by)
    holder = Holder(run, folder)
    given: Any = pieces if isinstance(pieces, Held) else Held.of(pieces, folder)
    batches = range(holder.ask(_batches, given))
    first = holder.hold(_first, [_Batch(given, at, chosen) for at in batches])
    wanted = holder.put(_to_look_for, given, first, chosen)
    second = holder.hold(_second, [_Batch(given, at, chosen, wanted) for at in batches])
    return holder.ask(partial(_counted, then), given, first, second, wanted, chosen)  # type: ignore[no-any-return]


def _batches(pieces: Activities) -> int:
    return pieces.kernel_batches


def _sums(first: Sequence[_First], by: Sequence[str]) -> pl.DataFrame:
    return _added([one.sums for one in first], by, "count", "total_ns")


def _to_look_for(
    pieces: Activities, first: Sequence[_First], by: Sequence[str]
) -> tuple[pl.DataFrame, list[Peers]]:
    """Return among which sizes medians are, and which ranks are compared."""
    sums = _sums(first, by)
    if not sums.height:
        raise TimelineError(NO_KERNELS)
    sizes = _added([one.sizes for one in first], [*by, "size"], "count")
    ranks = [rank for one in first for rank in one.ranks]
    peers = peers_of(pieces.ranks, ranks, pl.concat([one.steps for one in first]))
    return _wanted(sizes, sums, by), peers


def _counted(
    then: Callable[[Counted], Answer],
    pieces: Activities,
    first: Sequence[_First],
    second: Sequence[_Second],
    looked_for: tuple[pl.DataFrame, list[Peers]],
    by: tuple[str, ...],
) -> Answer:
    """Put together what was found, and work out what is wanted of it."""
    wanted, peers = looked_for
    sums = _sums(first, by)
    near = _added([one.near for one in second], [*by, "size", "length_ns"], "count")
    within = spread_within(pl.concat([one.varied for one in first]), by)
    over = spread_over(pl.concat([one.of_ranks for one in first]), by)
    found = Counted(
        Timeline(pl.DataFrame(schema=TASK_SCHEMA), pieces.ranks, pieces.run),
        by,
        table_of(_middle(sums, near, wanted, by), within, over, by),
        int(sums["total_ns"].sum()),
        sum(one.device_ns for one in first),
        against(
            peers,
            pl.concat([one.spent for one in second]),
            pl.concat([one.ran for one in second]),
        ),
        sum(one.devices for one in first),
    )
    return then(found)


class _Batch(NamedTuple):
    """A batch of ranks to be looked at.

    Attributes:
        pieces: The run.
        number: Of the batch.
        by: What rows are told apart by.
        more: Which sizes are wanted, and which ranks are compared; None if that is not known yet.
    """

    pieces: Activities
    number: int
    by: tuple[str, ...]
    more: Any = None

    def rows(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the kernels with their lengths, and what devices spent time on but for what hides."""
        ran, spent = self.pieces.kernels(self.number)
        return ran.with_columns(LENGTH), spent.filter(~pl.col("use").is_in(HIDDEN_USES))


class _First(NamedTuple):
    """What ranks tell by themselves.

    Attributes:
        sums: Frame with the columns of `by`, count and total_ns.
        sizes: Frame with these, size and count: how many are about as long.
        varied, of_ranks: As the functions of these names return them.
        ranks: Those with kernels.
        steps: Frame with rank and step, unique, of the budget.
        device_ns: Time of the devices.
        devices: How many devices have kernels.
    """

    sums: pl.DataFrame
    sizes: pl.DataFrame
    varied: pl.DataFrame
    of_ranks: pl.DataFrame
    ranks: list[int]
    steps: pl.DataFrame
    device_ns: int
    devices: int


def _first(job: _Batch) -> _First:
    """Look at a batch that is told nothing yet."""
    ran, spent = job.rows()
    by = job.by
    return _First(
        ran.group_by(by).agg(count=pl.len(), total_ns=pl.col("length_ns").sum()),
        _with_size(ran).group_by(*by, "size").agg(count=pl.len()),
        varied(ran, by),
        of_ranks(ran, by),
        ran["rank"].unique().to_list(),
        spent.select("rank", "step").unique(),
        int(spent["spent_ns"].sum()),
        ran.select("rank", "device").n_unique(),
    )


class _Second(NamedTuple):
    """What ranks tell once it is known among which lengths the wanted ones are.

    Attributes:
        near: Frame with the columns of `by`, size, length_ns and count.
        spent, ran: As `summed` returns them.
    """

    near: pl.DataFrame
    spent: pl.DataFrame
    ran: pl.DataFrame


def _second(job: _Batch) -> _Second:
    """Look again; `more` is which sizes are wanted, and which ranks are compared."""
    wanted, peers = job.more
    ran, spent = job.rows()
    place = [*job.by, "size"]
    near = _with_size(ran).join(wanted, on=place, how="semi", nulls_equal=True)
    return _Second(
        near.group_by(*place, "length_ns").agg(count=pl.len()),
        summed(spent, peers),
        summed(ran, peers),
    )


def _with_size(ran: pl.DataFrame) -> pl.DataFrame:
    return ran.with_columns(size=pl.Series(sized(ran["length_ns"].to_numpy()), dtype=pl.Int64))


def _added(parts: Sequence[pl.DataFrame], by: Sequence[str], *names: str) -> pl.DataFrame:
    counts = [part.with_columns(pl.col(names).cast(pl.Int64)) for part in parts]
    return pl.concat(counts).group_by(by).agg(pl.col(names).sum())


def _places() -> dict[str, pl.Expr]:
    """Return where the lengths stand that are wanted, among those of a kernel in their order."""
    last = pl.col("of") - 1
    high = last * HIGH
    return {
        "low": last // 2,
        "high": pl.col("of") // 2,
        "p95_low": high.floor().cast(pl.Int64),
        "p95_high": high.ceil().cast(pl.Int64),
    }


def _wanted(sizes: pl.DataFrame, sums: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the sizes among which wanted lengths are, and `first`, how many are shorter than all."""
    of = sums.select(*by, of="count")
    upto = pl.col("count").cum_sum().over(by)
    placed = (
        sizes.join(of, on=by, nulls_equal=True)
        .sort("size")
        .with_columns(upto=upto, first=upto - pl.col("count"))
    )
    inside = [(pl.col("first") <= place) & (place < pl.col("upto")) for place in _places().values()]
    return placed.filter(pl.any_horizontal(inside)).select(*by, "size", "first")


def _middle(
    sums: pl.DataFrame, near: pl.DataFrame, wanted: pl.DataFrame, by: Sequence[str]
) -> pl.DataFrame:
    """Return `sums` with median_ns and p95_ns."""
    place = [*by, "size"]
    placed = (
        near.join(wanted, on=place, nulls_equal=True)
        .join(sums.select(*by, of="count"), on=by, nulls_equal=True)
        .sort("length_ns")
        .with_columns(upto=pl.col("first") + pl.col("count").cum_sum().over(place))
    )
    found = placed.group_by(by).agg(
        pl.col("of").first(),
        **{
            name: pl.col("length_ns").filter(pl.col("upto") > at).min()
            for name, at in _places().items()
        },
    )
    share = (pl.col("of") - 1) * HIGH
    part = share - share.floor()
    median = (pl.col("low") + pl.col("high")) / 2
    p95 = pl.col("p95_low") + part * (pl.col("p95_high") - pl.col("p95_low"))
    lengths = found.select(
        *by, median_ns=median.round().cast(pl.Int64), p95_ns=p95.round().cast(pl.Int64)
    )
    return sums.join(lengths, on=by, how="left", nulls_equal=True)
