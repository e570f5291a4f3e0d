"""Showing tasks to a vendor's profiler as well."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Marks", "NvtxMarks"]


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

    def push(self, name: str) -> None:
        """Open a range."""
        self._nvtx.range_push(name)

    def pop(self) -> None:
        """Close it."""
        self._nvtx.range_pop()
