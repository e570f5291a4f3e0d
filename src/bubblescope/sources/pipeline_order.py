"""Which stages ranks hold, told by whom they receive from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Place(NamedTuple):
    """Where a rank stands.

    Attributes:
        stage: How many ranks results pass before they come to it.
        replica: Which of the pipelines it is in, by their first ranks.
    """

    stage: int
    replica: int


def places(before: Mapping[int, set[int]]) -> dict[int, Place] | None:
    """Return where ranks stand; None if they are no pipelines of one rank after the other.

    Args:
        before: Rank -> those that it receives results of forwards from.
    """
    if any(len(peers) > 1 or not peers <= before.keys() for peers in before.values()):
        return None
    firsts = sorted(rank for rank, peers in before.items() if not peers)
    found = {}
    for rank in before:
        at, stage = rank, 0
        while before[at]:
            (at,) = before[at]
            stage += 1
            if stage == len(before):  # they go round
                return None
        found[rank] = Place(stage, firsts.index(at))
    return found
