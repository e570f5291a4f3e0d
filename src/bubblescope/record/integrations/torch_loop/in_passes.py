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
    if function.__name__ != "batch_isend_irecv":
        return [_transfer(function, _other_end(*args, **kwargs))]
    operations = args[0] if args else kwargs["p2p_op_list"]
    if len(operations) != requests:
        return [_transfer(function, None)] * requests
    return [_transfer(one.op, one.peer) for one in operations]


def _transfer(function: Any, peer: Any) -> Transfer:
    if peer is None:
        return (identity_of(Kind.COLLECTIVE),), None
    sends = function.__name__ in ("send", "isend")
    return (identity_of(Kind.COLLECTIVE, peer=peer),), SENT if sends else RECEIVED


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
