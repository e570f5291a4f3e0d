"""Whether PyTorch compiles what runs now, asked as cheaply as can be, for every call asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def traced(torch: Any) -> Callable[[], bool]:
    """Return what Dynamo takes for true, without looking into it, where it follows code; else false."""
    found: Callable[[], bool] = getattr(
        torch.compiler, "is_dynamo_compiling", torch.compiler.is_compiling
    )
    return found


def flags(torch: Any) -> Any:
    """Return what has an attribute `_is_compiling_flag`: whether a graph is made of what runs."""
    return torch.compiler if hasattr(torch.compiler, "_is_compiling_flag") else _Asking(torch)


def in_compiled(torch: Any) -> Callable[[], Any] | None:
    """Return what tells whether code is run that Dynamo compiles; older versions have nothing."""
    return getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)  # noqa: SLF001


class _Asking:
    """Asks a version of PyTorch that does not show its flag."""

    def __init__(self, torch: Any) -> None:
        self._asked = torch.compiler.is_compiling

    @property
    def _is_compiling_flag(self) -> bool:
        return bool(self._asked())
