"""Where a rank stands in each parallel dimension, told by the groups that it communicates in."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.recording.columns import Membership

    Ranks = tuple[int, ...]

_AXES: Final = ("pp", "tp", "cp", "ep", "etp")
"""Dimensions with groups of their own; replicas may be spread over several groups."""
_OF_ONE_SAMPLE: Final = ("cp", "sp")
"""Roles of groups whose ranks hold parts of the same samples, so that they are no replicas."""
_OF_ONE_REPLICA: Final = ("pp", "tp", *_OF_ONE_SAMPLE)
"""Roles of groups whose ranks are part of one replica."""
_REPLICATES: Final = ("dp_replicate", "replicate")
"""What the outer dimension of hybrid sharding is called, without "mesh_"."""


def coordinates(rank: int, groups: Sequence[Membership]) -> dict[str, int]:
    """Return a rank's coordinates: pp, dp, tp, cp, ep, etp and edp, those that are known.

    The coordinate is the rank's position in the largest group of that role. Data parallel ranks are
    numbered as PyTorch numbers them: the outer dimension (`dp_replicate`) before the inner one
    (`dp_shard`), without the ranks that hold other parts of the same samples. So are the replicas of
    experts (edp).

    Args:
        rank: Global rank.
        groups: Those that it is part of. Groups of one rank count: they say that it is 0 there.
    """
    found = {}
    for axis, place in (*((axis, _plain) for axis in _AXES), ("dp", _replica), ("edp", _experts)):
        with suppress(_UnclearError):
            at = place(rank, groups, axis)
            if at is not None:
                found[axis] = at
    return found


def replica_of(rank: int, groups: Sequence[Membership]) -> int:
    """Return which replica a rank is part of, where no group of replicas is known.

    Ranks that share a replica are no replicas of each other; the others are taken for such, in the
    order of the grid of all ranks.

    Args:
        rank: Global rank.
        groups: As of `coordinates`.
    """
    shared = []
    for role in _OF_ONE_REPLICA:
        with suppress(_UnclearError):
            ranks = _largest(groups, role)
            if ranks is not None and len(ranks) > 1:
                shared.append((abs(ranks[1] - ranks[0]), len(ranks)))
    # The widest first, so that the strides that follow stay what they are.
    for stride, count in sorted(shared, reverse=True):
        rank = rank % stride + rank // (stride * count) * stride
    return rank


class _UnclearError(ValueError):
    """What groups say contradicts itself."""


def _plain(rank: int, groups: Sequence[Membership], axis: str) -> int | None:
    return _position(_largest(groups, axis), rank)


def _replica(rank: int, groups: Sequence[Membership], _: str) -> int | None:
    data, shards = (_data(rank, groups, role) for role in ("dp", "fsdp"))
    if data is not None and (shards is None or set(shards) <= set(data)):
        return _position(data, rank)
    return _joined(data, shards, rank)


def _experts(rank: int, groups: Sequence[Membership], axis: str) -> int | None:
    whole = _largest(groups, axis)
    if whole is not None:
        return _position(whole, rank)
    outer = [one for one in groups if (one.description or "").removeprefix("mesh_") in _REPLICATES]
    shards = _largest(groups, "efsdp")
    return None if shards is None else _joined(_largest(outer, "dp"), shards, rank)


def _joined(outer: Ranks | None, inner: Ranks | None, rank: int) -> int | None:
    """Return a rank's place in two dimensions together, either of which may be unknown."""
    if outer is None or inner is None:
        return _position(outer or inner, rank)
    return outer.index(rank) * len(inner) + inner.index(rank)


def _data(rank: int, groups: Sequence[Membership], role: str) -> Ranks | None:
    """Return the replicas in the largest group of a role: of those that share samples, one."""
    ranks = _largest(groups, role)
    for other in _OF_ONE_SAMPLE:
        parts = _largest(groups, other)
        if ranks is not None and parts is not None:
            ranks = _across(ranks, parts, rank)
    return ranks


def _across(ranks: Ranks, parts: Ranks, rank: int) -> Ranks:
    """Return those of `ranks` that stand where this rank does among `parts`, a dimension of them.

    If `parts` is no dimension of them, that is all.

    Raises:
        _UnclearError: They are not in the order of a grid.
    """
    if len(parts) < 2 or not set(parts) <= set(ranks):
        return ranks
    at = sorted(map(ranks.index, parts))
    stride = at[1] - at[0]
    turns = [place // stride % len(parts) for place in range(len(ranks))]
    whole = len(ranks) % (stride * len(parts)) == 0
    if not whole or [turns[place] for place in at] != list(range(len(parts))):
        raise _UnclearError
    mine = turns[ranks.index(rank)]
    return tuple(one for one, turn in zip(ranks, turns, strict=True) if turn == mine)


def _largest(groups: Sequence[Membership], role: str) -> Ranks | None:
    """Return the ranks of the largest group of a role; None if there is none.

    Raises:
        _UnclearError: There are several.
    """
    of_role = {one.ranks for one in groups if one.role == role}
    most = max(map(len, of_role), default=0)
    largest = [ranks for ranks in of_role if len(ranks) == most]
    if len(largest) > 1:
        raise _UnclearError
    return largest[0] if largest else None


def _position(ranks: Ranks | None, rank: int) -> int | None:
    return None if ranks is None else ranks.index(rank)
