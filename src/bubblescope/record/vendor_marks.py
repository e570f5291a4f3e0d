"""Showing tasks to a vendor's profiler as well."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

from bubblescope.model.errors import RecorderError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Marks(Protocol):
    """Shows tasks to a vendor's profiler as well."""

    def push(self, name: str) -> None:
        """Open a range on the calling thread."""

    def pop(self) -> None:
        """Close it."""


class NvtxMarks:
    """NVTX ranges through PyTorch, for Nsight Systems; bubblescope reads their names back."""

    def __init__(self) -> None:
        from torch.cuda import nvtx  # noqa: PLC0415  torch is the job's, not a dependency

        self._nvtx: Any = nvtx
        # PyTorch built without CUDA has the module too, but refuses every call: better now than
        # amid the training.
        self._nvtx.mark("bubblescope")

    def push(self, name: str) -> None:
        """Open a range."""
        self._nvtx.range_push(name)

    def pop(self) -> None:
        """Close it."""
        self._nvtx.range_pop()


class MstxMarks:
    """Ranges of Ascend's mstx through torch_npu, for msprof and MindStudio."""

    def __init__(self) -> None:
        from torch_npu.npu import mstx  # noqa: PLC0415  the job's, not a dependency

        self._mstx: Any = mstx
        self._open = threading.local()

    def push(self, name: str) -> None:
        """Open a range, on the current stream too, so that the device's times are known."""
        import torch  # noqa: PLC0415

        stream = vars(torch)["npu"].current_stream()  # torch_npu puts it there
        _stack(self._open).append(self._mstx.range_start(name, stream))

    def pop(self) -> None:
        """Close it."""
        self._mstx.range_end(_stack(self._open).pop())


class RecordFunctionMarks:
    """PyTorch's own annotations, for torch.profiler."""

    def __init__(self) -> None:
        from torch.profiler import record_function  # noqa: PLC0415  the job's, not a dependency

        self._range: Any = record_function
        self._open = threading.local()

    def push(self, name: str) -> None:
        """Open a range."""
        opened = self._range(name)
        opened.__enter__()
        _stack(self._open).append(opened)

    def pop(self) -> None:
        """Close it."""
        _stack(self._open).pop().__exit__(None, None, None)


class AllMarks:
    """Several kinds of marks at once."""

    def __init__(self, marks: Sequence[Marks]) -> None:
        self._marks = tuple(marks)

    def push(self, name: str) -> None:
        """Open a range of each kind."""
        for marks in self._marks:
            marks.push(name)

    def pop(self) -> None:
        """Close them, the last opened first."""
        for marks in reversed(self._marks):
            marks.pop()


_MARKS: Final[dict[str, type[Any]]] = {
    "nvtx": NvtxMarks,
    "mstx": MstxMarks,
    "torch": RecordFunctionMarks,
}


def chosen_marks(names: Sequence[str]) -> Marks | None:
    """Return the marks of those names: nvtx, mstx, torch; None for none.

    Raises:
        RecorderError: There is none of that name, or the job lacks what it needs.
    """
    made: list[Marks] = []
    for name in names:
        if name not in _MARKS:
            raise RecorderError(f"{name!r} are not marks; use some of {', '.join(_MARKS)}")
        try:
            made.append(_MARKS[name]())
        except (ImportError, RuntimeError) as error:
            raise RecorderError(f"no {name} marks in this job ({error})") from None
    if len(made) > 1:
        return AllMarks(made)
    return made[0] if made else None


def _stack(local: threading.local) -> list[Any]:
    """Return what is open in this thread."""
    if not hasattr(local, "stack"):
        local.stack = []
    stack: list[Any] = local.stack
    return stack
