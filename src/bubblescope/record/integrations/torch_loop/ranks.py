"""Where a rank stands, in a job that does not say."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from bubblescope.record.integrations.torch_loop.models import replicated

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Standing(NamedTuple):
    """Where a rank stands in a pipeline, and among replicas.

    Attributes:
        stage: Stage of its first chunk.
        stages: How far it is to the stage of its next chunk.
        replica: Which replica of the model it is part of; None if a mesh says that.
    """

    stage: int
    stages: int
    replica: int | None

    @classmethod
    def found(
        cls, pipeline: tuple[int, int] | None, models: Iterable[Any], *, receives: bool
    ) -> Standing:
        """Find out where this rank stands.

        Args:
            pipeline: Its place in the pipeline and how many ranks that has, if a mesh says.
            models: The models it runs.
            receives: Whether it begins with a receive. All ranks of a pipeline but the first must;
                replicas of a model begin with data of their own.
        """
        if pipeline is not None:
            return cls(*pipeline, None)
        rank, ranks = _rank()
        replicas = next((_replicas(model) for model in models if replicated(model)), [rank])
        count = len(replicas)
        apart = replicas[1] - replicas[0] if count > 1 else 1
        stage = rank % apart + rank // (apart * count) * apart
        if stage > 0 and not receives:
            return cls(0, 1, replicas.index(rank) if count > 1 else rank)
        return cls(stage, ranks // count, replicas.index(rank))


def comes_next(peer: int) -> bool:
    """Say whether a rank is further down the pipeline; the first comes after the last."""
    rank, ranks = _rank()
    around = ranks > 2 and 2 * abs(peer - rank) > ranks
    return (peer > rank) != around


def global_rank(rank: Any, group: Any, group_rank: Any) -> Any:
    """Return a global rank, which may be given as one of a group."""
    if group_rank is None:
        return rank
    distributed = sys.modules["torch.distributed"]
    return distributed.get_global_rank(group or distributed.group.WORLD, group_rank)


def _rank() -> tuple[int, int]:
    """Return this process's rank and how many there are."""
    distributed = sys.modules["torch.distributed"]
    if not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _replicas(model: Any) -> Sequence[int]:
    """Return the ranks that hold replicas, or shards, of a model."""
    group = getattr(model, "process_group", None)
    ranks: Sequence[int] = sys.modules["torch.distributed"].get_process_group_ranks(group)
    return ranks
