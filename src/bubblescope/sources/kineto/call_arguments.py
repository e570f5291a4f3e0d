"""What the arguments of an event say about a call of a communication library."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bubblescope.names.communication_kernels import operation_in

if TYPE_CHECKING:
    from bubblescope.sources.kineto.document import Arguments

_SILENT: Final = frozenset({"wait", "init"})
"""What PyTorch also calls a collective, though it carries out nothing."""
_SPACED: Final = (9, 10)
_WITH_TENSORS: Final = (8, 10)


class Said(NamedTuple):
    """What one event says, as far as it makes sense; None is unsaid.

    Attributes:
        operation: In the words of `CommunicationKernel`.
        peer: Global rank of the other end of a send or receive.
        local_peer: The same, as the group counts its ranks; only operators have it.
        name, description, ranks, size, start, stride: As for `group_of_call`.
        pointer: Where the group lies in the process's memory, if that is all that names it.
    """

    operation: str | None = None
    peer: int | None = None
    local_peer: int | None = None
    name: str | int | None = None
    description: str | None = None
    ranks: str | tuple[int, ...] | None = None
    size: str | int | None = None
    start: str | int | None = None
    stride: str | int | None = None
    pointer: str | None = None

    @property
    def tells_group(self) -> bool:
        """Whether anything is said of the group."""
        return any(one is not None for one in (self.name, self.description, self.ranks, self.size))


def said(args: Arguments | None) -> Said:
    """Return what the arguments of a kernel or of a `record_param_comms` operator say.

    Before 2024 operators say it only in their "Concrete Inputs": [tensors,] number, group, rank, the
    operation's name (never written), splits in and out, [first rank, stride,] size of the group.
    """
    if args is None:
        return Said()
    operation = _operation(args.collective) if isinstance(args.collective, str) else None
    found = Said(
        operation,
        _rank(args.destination if operation == "send" else args.source),
        _rank(args.peer),
        _plain(args.group),
        args.description if isinstance(args.description, str) else None,
        tuple(args.members) if _are_whole(args.members) else _text(args.members),
        _plain(args.size),
        _plain(args.first),
        _plain(args.stride),
    )
    return found if found.tells_group else _from_inputs(found, args.inputs)


def _from_inputs(found: Said, inputs: Any) -> Said:
    if not isinstance(inputs, list) or len(inputs) not in {7, *_SPACED, *_WITH_TENSORS}:
        return found
    texts = [one if isinstance(one, str) else "" for one in inputs]
    spaced, before = len(texts) in _SPACED, len(texts) in _WITH_TENSORS
    pointer = texts[1 + before]
    if not (pointer.isdigit() and texts[-1].isdigit() and pointer.strip("0")):
        return found
    first, stride = texts[-3:-1] if spaced else (None, None)
    return found._replace(size=texts[-1], start=first, stride=stride, pointer=pointer)


@cache
def _operation(collective: str) -> str | None:
    return None if collective in _SILENT else operation_in(collective)


def _rank(value: Any) -> int | None:
    whole = type(value) is int and 0 <= value < 1 << 31
    return value if whole else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _plain(value: Any) -> str | int | None:
    return value if type(value) in {str, int} else None


def _are_whole(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int for one in value)
