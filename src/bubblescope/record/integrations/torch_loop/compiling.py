"""Whether PyTorch compiles what runs now, asked as cheaply as can be, for every call asks."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

from bubblescope.record.integrations.torch_common import in_compiled

if TYPE_CHECKING:
    from collections.abc import Callable

_BEGINNINGS: Final = {
    "torch._dynamo.eval_frame": "OptimizeContext",
    "torch._dynamo.symbolic_convert": "InstructionTranslator",
}
"""Module of Dynamo -> its class that is made where something is to be compiled, or is."""


class Compiler:
    """What is known of PyTorch's compiler.

    Most jobs compile nothing, and need not ask: without one of `_BEGINNINGS`, nothing is compiled, and
    no code is followed for it. Until all of these have been found, nobody knows, and each call asks.

    Attributes:
        used: Whether anything may have been compiled, or is. Dynamo reads it, and must find it true.
        traces: Returns what Dynamo takes for true, without looking into it, where it follows code; else
            false.
    """

    def __init__(self) -> None:
        self.used = True
        self.traces: Callable[[], bool] = _never
        self._flags: Any = _NoFlags
        self._in_compiled: Callable[[], Any] = _nothing
        self._late = any(module in sys.modules for module in _BEGINNINGS)
        """Whether PyTorch's compiler was there before us, so that nobody knows what it has done."""
        self._watched: set[str] = set()

    def bind(self, torch: Any) -> None:
        """Learn how to ask PyTorch, once it has been imported as a whole."""
        self.traces = getattr(torch.compiler, "is_dynamo_compiling", torch.compiler.is_compiling)
        shown = hasattr(torch.compiler, "_is_compiling_flag")
        self._flags = torch.compiler if shown else _Asking(torch)
        self._in_compiled = in_compiled(torch) or _nothing

    def graphs(self) -> bool:
        """Say whether a graph is made of what runs."""
        return bool(self._flags._is_compiling_flag)  # noqa: SLF001

    def compiles(self) -> bool:
        """Say whether a graph is made of what runs, or what runs is called by what was compiled."""
        return self.graphs() or self._in_compiled() is not None

    def watch(self, module: Any) -> None:
        """Let one of Dynamo's modules tell when something begins to be compiled."""
        name = module.__name__
        kind = getattr(module, _BEGINNINGS[name], None)
        if kind is None or self._late:
            return
        theirs = kind.__init__

        @functools.wraps(theirs)
        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            self.used = True
            theirs(made, *args, **kwargs)

        kind.__init__ = init
        self._watched.add(name)
        if self._watched == _BEGINNINGS.keys():
            self.used = False


class _NoFlags:
    """What is asked before PyTorch can be."""

    _is_compiling_flag = False


class _Asking:
    """Asks a version of PyTorch that does not show its flag."""

    def __init__(self, torch: Any) -> None:
        self._asked = torch.compiler.is_compiling

    @property
    def _is_compiling_flag(self) -> bool:
        return bool(self._asked())


def _nothing() -> None:
    """There is no compiler."""


def _never() -> bool:
    return False
