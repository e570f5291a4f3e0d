"""Where this rank stands, as Megatron's communicators and its `parallel_state` say it."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, Final

_STATE: Final = "megatron.core.parallel_state"


def pipeline_place(communicator: Any) -> tuple[int, int]:
    """Return this rank's place in its pipeline, and how many ranks that has.

    Args:
        communicator: The schedule's `P2PCommunicator`; None in versions without.
    """
    group = getattr(communicator, "pp_group", None)
    if group is not None:
        return group.rank(), group.size()
    state = sys.modules[_STATE]
    return (
        state.get_pipeline_model_parallel_rank(),
        state.get_pipeline_model_parallel_world_size(),
    )


def coordinates(groups: Any) -> dict[str, int]:
    """Return this rank's place in the other dimensions, as far as it is known.

    Args:
        groups: The schedule's own process groups; None if it has none.
    """
    state = sys.modules.get(_STATE)
    found = {}
    for name, usual in (("dp", "data"), ("tp", "tensor_model"), ("cp", "context")):
        group = getattr(groups, name, None)
        ask = getattr(state, f"get_{usual}_parallel_rank", None) if group is None else group.rank
        # Without its group, the state asserts instead of answering.
        with suppress(Exception):
            found[name] = int(ask())  # type: ignore[misc]  # None is suppressed as well
    return found


def neighbours(communicator: Any) -> tuple[Any, Any]:
    """Return the next rank of the pipeline and the one before.

    Args:
        communicator: The `P2PCommunicator` that sends and receives; None in versions without.
    """
    if hasattr(communicator, "next_rank"):
        return communicator.next_rank, communicator.prev_rank
    return neighbour(following=True), neighbour(following=False)


def neighbour(*, following: bool) -> Any:
    """Return the next rank of the pipeline, or the one before."""
    state = sys.modules[_STATE]
    if following:
        return state.get_pipeline_model_parallel_next_rank()
    return state.get_pipeline_model_parallel_prev_rank()
