"""Which forward or backward made a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

if TYPE_CHECKING:
    from bubblescope.record.integrations.megatron.placement import Work


def first_tensor(made: Any) -> Any:
    """Return the first tensor of a result, however it is wrapped."""
    while isinstance(made, list | tuple) and made:
        made = made[0]
    return made


class Origins:
    """What made the tensors of a step that may be sent."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[ReferenceType[Any], bool, Work]] = {}

    def clear(self) -> None:
        """Forget the last step."""
        self._made.clear()

    def note(self, tensor: Any, work: Work, *, activation: bool) -> None:
        """Remember what a forward returned, which is an activation, or a backward."""
        # Not the tensor itself: it would live longer than without us.
        if hasattr(tensor, "__weakref__"):
            self._made[id(tensor)] = ref(tensor), activation, work

    def of(self, tensor: Any) -> tuple[bool, Work] | None:
        """Return whether a tensor is an activation, and of which work.

        None if it is neither that nor a gradient, or was not made in this step.
        """
        made = self._made.get(id(tensor))
        # What was at this place in memory may be gone, and something else there.
        return None if made is None or made[0]() is not tensor else made[1:]
