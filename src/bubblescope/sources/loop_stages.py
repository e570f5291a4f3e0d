"""Where the ranks of loops of a job's own stand, by what they send each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Notice
from bubblescope.sources.pipeline_order import places
from bubblescope.sources.transfers_in_passes import stages, untimed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.sources.pipeline_order import Place
    from bubblescope.sources.recorded_parts import Part


def with_stages(parts: Sequence[Part]) -> tuple[Sequence[Part], Sequence[Notice]]:
    """Return recordings with the stages that transfers show, and what is to be said of these.

    Nobody tells a rank of such a loop where it stands: it knows whether it begins with a receive, and
    guesses, as if all ranks were one pipeline. Recordings of frameworks' schedules stay as they are.
    """
    apart, notices = _taken_apart(parts)
    return _placed(apart), notices


def _taken_apart(parts: Sequence[Part]) -> tuple[Sequence[Part], Sequence[Notice]]:
    """Return recordings of a loop of a job's own, told what is sent and received within passes.

    If ranks are stages that do so, this says where they stand, unless the job has.
    """
    if not all(part.is_loop for part in parts):
        return parts, ()
    read = [(part, *untimed(part.tasks)) for part in parts]
    parts = [msgspec.structs.replace(part, tasks=tasks) for part, tasks, _ in read]
    of_ranks = {part.rank["rank"]: part for part in parts}
    replicas = all(
        part.rank["pp"] is None and not (part.rank["stages"] or [0])[0] for part in parts
    )
    if replicas and any(one_way for *_, one_way in read):
        return parts, (_UNKNOWN,)
    if len(of_ranks) < len(parts):
        return parts, ()

    def may_stand(rank: int, place: Place) -> bool:
        known = of_ranks[rank].rank
        alone = len(known["stages"] or ()) == 1
        return alone and (known["pp"] is None or known["stages"] == [place.stage])

    found = stages({rank: part.tasks for rank, part in of_ranks.items()}, may_stand)
    if found is None:
        return parts, ()
    told = [
        msgspec.structs.replace(part, tasks=found.tasks[rank]) for rank, part in of_ranks.items()
    ]
    if found.places is None:
        return told, (_UNCLEAR,) * (found.one_way and replicas)
    return [
        part if part.rank["pp"] is not None else _moved(part, found.places[part.rank["rank"]])
        for part in told
    ], ()


_UNKNOWN: Final = Notice(
    "transfers-in-passes",
    "ranks send or receive within their passes, which is recorded only where the host's clock times, "
    "without marks; whether they are stages of a pipeline is not known, so they are taken for replicas",
)
_UNCLEAR: Final = Notice(
    "transfers-in-passes",
    "ranks send and receive within their passes, but not as stages of a pipeline do: receive as a pass "
    "begins and send as it ends, from one rank to the next; they are taken for replicas, and what they "
    "send and receive for collectives",
)


def _placed(parts: Sequence[Part]) -> Sequence[Part]:
    """Return recordings with the stages that transfers between passes show."""
    before: dict[int, set[int]] = {}
    for part in parts:
        rank, held = part.rank["rank"], part.rank["stages"]
        if not part.place_is_guessed or rank in before or len(held or ()) != 1:
            return parts
        received = part.tasks.filter(pl.col("kind") == Kind.RECV_FORWARD.value)["peer"]
        before[rank] = set(received.drop_nulls())
        if bool(before[rank]) != (held[0] > 0):
            return parts
    found = places(before)
    if found is None or all(
        part.rank["stages"] == [found[part.rank["rank"]].stage] for part in parts
    ):
        return parts
    return [_moved(part, found[part.rank["rank"]]) for part in parts]


def _moved(part: Part, place: Place) -> Part:
    """Return a recording of a rank of one stage with where it stands."""
    told = pl.col("stage").is_not_null()
    tasks = part.tasks.with_columns(stage=pl.when(told).then(pl.lit(place.stage, pl.Int32)))
    rank = part.rank | {"stages": [place.stage], "dp": place.replica}
    return msgspec.structs.replace(part, tasks=tasks, rank=rank)
