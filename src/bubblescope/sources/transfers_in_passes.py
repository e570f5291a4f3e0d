"""Pipelines whose stages send and receive within their passes, as autograd functions may do.

Each rank's recording has these transfers as collectives within its passes, which they are in ring
attention. They are a pipeline's if there is no doubt: each rank receives in its forwards from one other
at most, and in its backwards from the one that does so from it, in chains of the same length that do
not go round; and in its passes it receives, computes, and sends, in this order and nothing before or
after. A pass is then what it computes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from bubblescope.model.kinds import Kind
from bubblescope.recording.columns import RECEIVED, SENT, UNTIMED
from bubblescope.sources.pipeline_order import places

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bubblescope.sources.pipeline_order import Place

_FORWARD, _BACKWARD = Kind.FORWARD.value, Kind.BACKWARD.value
_KINDS: Final = {
    (_FORWARD, RECEIVED): Kind.RECV_FORWARD.value,
    (_FORWARD, SENT): Kind.SEND_FORWARD.value,
    (_BACKWARD, RECEIVED): Kind.RECV_BACKWARD.value,
    (_BACKWARD, SENT): Kind.SEND_BACKWARD.value,
}
"""Pass, and what is done within it -> what that is in a pipeline."""
_TRANSFER: Final = (
    (pl.col("kind") == Kind.COLLECTIVE.value)
    & pl.col("name").is_in([SENT, RECEIVED])
    & pl.col("peer").is_not_null()
)
_APART_NS: Final = 1_000_000
_APART: Final = 0.1
"""How much of a pass may lie before what it receives and after what it sends, at the median: so long,
or such a share of what it computes in between. To begin a pass takes its time."""
_TIMES: Final = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")


class Stages(NamedTuple):
    """What ranks that send and receive within passes are.

    Attributes:
        places: Rank -> where it stands, if they are the stages of pipelines; None if they are not.
        tasks: Rank -> its tasks: with the transfers of a pipeline, or else with collectives.
        one_way: Whether they are none though not all ranks do the same, as those of ring attention do.
    """

    places: dict[int, Place] | None
    tasks: dict[int, pl.DataFrame]
    one_way: bool


class _Neighbours(NamedTuple):
    """Whom a rank of a pipeline receives results from, and whom it sends its own to; one at most."""

    before: set[int]
    after: set[int]


def stages(
    tasks: Mapping[int, pl.DataFrame], may_stand: Callable[[int, Place], bool]
) -> Stages | None:
    """Return what ranks are; None if none of them sends or receives within passes.

    Args:
        tasks: Rank -> its tasks, as the recorder has them.
        may_stand: Says whether what else is known of a rank allows for a place.
    """
    if not any(of_rank.select(_TRANSFER.any()).item() for of_rank in tasks.values()):
        return None
    within = {rank: _within(of_rank) for rank, of_rank in tasks.items()}
    around = _neighbours({rank: _ends(tasks[rank], one) for rank, one in within.items()})
    found = None if around is None else _chains(around)
    if (
        around is not None
        and found is not None
        and all(may_stand(rank, place) for rank, place in found.items())
        and all(map(_in_order, within.values()))
    ):
        apart = {
            rank: _collected(_told(_shortened(tasks[rank], one), one, around[rank]))
            for rank, one in within.items()
        }
        return Stages(found, apart, one_way=False)
    collected = {rank: _collected(of_rank) for rank, of_rank in tasks.items()}
    whole = all(set(one["peer"]) <= tasks.keys() for one in within.values())
    return Stages(None, collected, one_way=whole and not all(map(_both_ways, within.values())))


def untimed(tasks: pl.DataFrame) -> tuple[pl.DataFrame, bool]:
    """Return a rank's tasks without what is said of transfers in its forwards that are not recorded.

    Returns:
        The tasks, and whether it either sends or receives in its forwards, as not all stages do both.
    """
    said = tasks["name"].is_in([UNTIMED + SENT, UNTIMED + RECEIVED])
    if not said.any():
        return tasks, False
    return tasks.filter(~said), tasks.filter(said)["name"].n_unique() == 1


def _within(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the transfers within passes.

    Returns:
        Frame with row, peer, name, start_ns and end_ns of the transfer, and of_row, of_kind,
        since_ns, until_ns, chunk and microbatch of the pass.
    """
    tasks = tasks.with_row_index("row")
    passes = tasks.filter(pl.col("kind").is_in([_FORWARD, _BACKWARD])).select(
        "start_ns",
        "chunk",
        "microbatch",
        of_row="row",
        of_kind="kind",
        since_ns="start_ns",
        until_ns="end_ns",
    )
    transfers = tasks.filter(_TRANSFER).select("row", "peer", "name", "start_ns", "end_ns")
    found = transfers.sort("start_ns").join_asof(passes.sort("start_ns"), on="start_ns")
    # One that was issued in a pass may be waited for elsewhere; and one that failed was no pass.
    return found.filter(pl.col("end_ns") <= pl.col("until_ns"))


def _ends(tasks: pl.DataFrame, within: pl.DataFrame) -> dict[str, set[int]]:
    """Return the ranks at the other ends of a rank's transfers, by what these are in a pipeline."""
    ends: dict[str, set[int]] = {kind: set() for kind in _KINDS.values()}
    beside = tasks.filter(pl.col("kind").is_in(list(ends))).select("kind", "peer")
    for kind, peer in beside.drop_nulls().unique().iter_rows():
        ends[kind].add(peer)
    for kind, name, peer in within.select("of_kind", "name", "peer").unique().iter_rows():
        ends[_KINDS[kind, name]].add(peer)
    return ends


def _neighbours(ends: Mapping[int, Mapping[str, set[int]]]) -> dict[int, _Neighbours] | None:
    """Return the neighbours of ranks in pipelines; None unless backwards go the way back."""
    before = {rank: of[Kind.RECV_FORWARD.value] for rank, of in ends.items()}
    found = {}
    for rank, of in ends.items():
        after = {other for other, peers in before.items() if rank in peers}
        if (
            len(after) > 1
            or of[Kind.RECV_BACKWARD.value] != after
            or not of[Kind.SEND_FORWARD.value] <= after
            or not of[Kind.SEND_BACKWARD.value] <= before[rank]
        ):
            return None
        found[rank] = _Neighbours(before[rank], after)
    return found


def _chains(around: Mapping[int, _Neighbours]) -> dict[int, Place] | None:
    """Return where ranks stand; None if they are no chains of one length."""
    found = places({rank: one.before for rank, one in around.items()})
    if found is None:
        return None
    lengths = Counter(place.replica for place in found.values()).values()
    return found if min(lengths) == max(lengths) > 1 else None


def _by_pass(within: pl.DataFrame) -> pl.DataFrame:
    """Return the passes with transfers, and from when to when each computes."""
    received, sent = pl.col("name") == RECEIVED, pl.col("name") == SENT
    starts, ends = pl.col("since_ns").first(), pl.col("until_ns").first()
    return within.group_by("of_row", "of_kind").agg(
        begins_ns=pl.coalesce(pl.col("end_ns").filter(received).max(), starts),
        ends_ns=pl.coalesce(pl.col("start_ns").filter(sent).min(), ends),
        apart_ns=ends - starts - (pl.col("end_ns") - pl.col("start_ns")).sum(),
    )


def _in_order(within: pl.DataFrame) -> bool:
    """Say whether all passes receive, compute and send, in this order, and nothing else."""
    passes = _by_pass(within).with_columns(computes_ns=pl.col("ends_ns") - pl.col("begins_ns"))
    apart = passes.group_by("of_kind").agg(
        ordered=(pl.col("computes_ns") >= 0).all(),
        apart_ns=(pl.col("apart_ns") - pl.col("computes_ns")).median(),
        most_ns=(_APART * pl.col("computes_ns").median()).clip(_APART_NS),
    )
    fits = pl.col("ordered") & (pl.col("apart_ns") <= pl.col("most_ns"))
    return bool(apart.select(fits.all()).item())


def _shortened(tasks: pl.DataFrame, within: pl.DataFrame) -> pl.DataFrame:
    """Return tasks of which each pass is what it computes."""
    computed = _by_pass(within).select("begins_ns", "ends_ns", row="of_row")
    moved: dict[str, Any] = {
        name: pl.coalesce("begins_ns" if "start" in name else "ends_ns", name) for name in _TIMES
    }
    tasks = tasks.with_row_index("row").join(computed, on="row", how="left", maintain_order="left")
    return tasks.with_columns(**moved).drop("row", "begins_ns", "ends_ns")


def _told(tasks: pl.DataFrame, within: pl.DataFrame, around: _Neighbours) -> pl.DataFrame:
    """Return tasks of which transfers say what stages send and receive, and of which micro-batch.

    One that is waited for elsewhere than in a pass says so too, but for the micro-batch.
    """
    kind = pl.col("kind")
    for peers, ways in zip(around, ((RECEIVED, SENT), (SENT, RECEIVED)), strict=True):
        for name, of in zip(ways, (_FORWARD, _BACKWARD), strict=True):
            which = _TRANSFER & (pl.col("name") == name) & pl.col("peer").is_in(peers)
            kind = pl.when(which).then(pl.lit(_KINDS[of, name])).otherwise(kind)
    passes = within.select("row", of_chunk="chunk", of_microbatch="microbatch")
    tasks = tasks.with_row_index("row").join(passes, on="row", how="left", maintain_order="left")
    return tasks.with_columns(
        kind=kind,
        name=pl.when(_TRANSFER).then(kind).otherwise("name"),
        chunk=pl.coalesce("of_chunk", "chunk"),
        microbatch=pl.coalesce("of_microbatch", "microbatch"),
    ).drop("row", "of_chunk", "of_microbatch")


def _collected(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return tasks of which transfers that are collectives are so without a name or an other end."""
    return tasks.with_columns(
        name=pl.when(_TRANSFER).then("kind").otherwise("name"),
        peer=pl.when(_TRANSFER).then(None).otherwise("peer"),
    )


def _both_ways(within: pl.DataFrame) -> bool:
    """Say whether a rank both sends and receives in its forwards, if it does any."""
    return within.filter(of_kind=_FORWARD)["name"].n_unique() != 1
