"""What sends and receives within passes are: collectives, of which the other end is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of
from bubblescope.record.integrations.torch_loop.ranks import global_rank
from bubblescope.recording.columns import RECEIVED, SENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    Transfer = tuple[Sequence[bytes], str | None]
    """Where it belongs, packed, and what it is called."""


def transfers(function: Any, args: Any, kwargs: Any, requests: int = 1) -> list[Transfer]:
    """Return what each request of a call is.

    Args:
        function: One of torch.distributed that sends or receives.
        args: What it is called with, by place.
        kwargs: The same by name.
        requests: How many it returned. If they are not as many as its operations, nobody knows which
            is which.
    """
    operations = _operations(function, args, kwargs)
    if operations is None:
        return [_transfer(function, _other_end(*args, **kwargs))]
    if len(operations) != requests:
        return [_transfer(function, None)] * requests
    return [_transfer(one.op, one.peer) for one in operations]


def names(function: Any, args: Any, kwargs: Any) -> set[str]:
    """Return what a call does, of `SENT` and `RECEIVED`.

    Args:
        function: As of `transfers`.
        args: The same.
        kwargs: The same.
    """
    operations = _operations(function, args, kwargs)
    return {_name(function)} if operations is None else {_name(one.op) for one in operations}


def _operations(function: Any, args: Any, kwargs: Any) -> Sequence[Any] | None:
    """Return the operations of a call; None if it is one by itself."""
    if function.__name__ != "batch_isend_irecv":
        return None
    operations: Sequence[Any] = args[0] if args else kwargs["p2p_op_list"]
    return operations


def _transfer(function: Any, peer: Any) -> Transfer:
    if peer is None:
        return (identity_of(Kind.COLLECTIVE),), None
    return (identity_of(Kind.COLLECTIVE, peer=peer),), _name(function)


def _name(function: Any) -> str:
    return SENT if function.__name__ in ("send", "isend") else RECEIVED


def _other_end(
    _: Any = None,
    peer: Any = None,
    group: Any = None,
    tag: Any = 0,
    group_peer: Any = None,
    **said: Any,
) -> Any:
    """Return the global rank at the other end of a call; None if it is whoever comes first."""
    del tag
    for end in ("dst", "src"):
        peer, group_peer = said.get(end, peer), said.get(f"group_{end}", group_peer)
    return global_rank(peer, said.get("group", group), group_peer)
