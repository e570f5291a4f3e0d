"""What a model calls in place of itself, so that a loop's forwards are noticed."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from functools import cache
from typing import Any, Final

from bubblescope.record.integrations.torch_loop.compiling import Compiler

_holders: Final = sys.getrefcount
_now: Final = time.monotonic_ns
_thread: Final = threading.get_ident


class Called:
    """What a model calls in place of itself, to be noticed.

    It lies where `Module.compile` puts what it made: PyTorch calls that first, and leaves it out of
    what is saved, copied and compiled. A hook would be in all of these, and slower.

    Args:
        model: The model.
        loop: The `Loop` that follows it.
        wrapper: What it is wrapped in, if that is followed too.

    Attributes:
        chunk: Which of its rank's chunks the model is, once `loop` has found out.
        loop: What follows the model.
        wrapper: Returns what it is wrapped in; None if there is nothing.
    """

    def __init__(self, model: Any, loop: Any, wrapper: Any = None) -> None:
        torch = sys.modules["torch"]
        self.chunk: Any = None
        self.loop = loop
        self.wrapper = _nothing if wrapper is None else weakref.ref(wrapper)
        self._model = weakref.ref(model)
        self._theirs = model._compiled_call_impl  # noqa: SLF001  the place for it
        self._intake, self._origins = loop.intake, loop.origins
        self._tensor, self._number = torch.Tensor, loop.number
        self._compiler = loop.compiler
        self._alone, self._all_alone = _alone(torch.nn.Module)
        self._made = -1
        """How many nodes of a graph its last forward made."""
        self._kind: Any = None
        self._run: Any = None
        """What models of `_kind`, which is this one's, call without us."""
        model._compiled_call_impl = self  # noqa: SLF001

    # A pass empties the caches, so it is not what a line does that takes long, but that there is one,
    # and most of all one that calls a function or asks a module for an attribute. The usual case is
    # told here, in one piece: the loop is in a step and in no task, nothing has ever been compiled, and
    # this model goes forward on data that no model has made. All else is the loop's own `forward`.
    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: PLR0911  see above
        """Call the model."""
        model: Any = self._model()
        compiler = self._compiler
        if compiler.used and compiler.traces():
            return (self._theirs or model._call_impl)(*args, **kwargs)  # noqa: SLF001
        loop, items = self.loop, self._intake.items
        if (
            loop.inside is not None
            or items is None
            or type(model) is not self._kind  # none is there, or it was not called so far
            or _thread() != loop.thread
            or (compiler.used and compiler.compiles())
        ):
            return self._otherwise(model, args, kwargs)
        its = model.__dict__
        if (
            _holders(self) != self._alone
            or _holders(its) != self._all_alone
            or "_compiled_call_impl" not in its
            or its["_compiled_call_impl"] is not self
        ):
            return self._otherwise(model, args, kwargs)
        for one in (*args, *kwargs.values()) if kwargs else args:
            if type(one) is not self._tensor or (one.requires_grad and one.grad_fn is not None):
                return self._aside(model, args, kwargs)
        chunk = self.chunk
        work = None if chunk is None else chunk.next
        if work is None:  # the first of its chunk, or of all steps
            return self._aside(model, args, kwargs)
        theirs = self._theirs
        try:  # signals may raise behind any call, and nothing is inside then
            loop.inside = self
            step, before, begin = self._intake.step, self._number(), _now()
            if theirs is not None or "_call_impl" in its:
                output = (theirs or model._call_impl)(*args, **kwargs)  # noqa: SLF001
            elif kwargs:
                output = self._run(model, *args, **kwargs)
            else:
                output = self._run(model, *args)
        finally:
            loop.inside = loop.outside
            end = _now()
        after = self._number()
        if after - before != self._made and self._evaluates(begin, after - before):
            return output
        items += (step, work.forward, begin, end, begin, end, None)
        chunk.next = work.next
        origins = self._origins
        origins.bounds += (before, after)
        origins.works.append(work)
        origins.last = work
        origins.open += 1
        return output

    def _evaluates(self, begin: int, made: int) -> bool:
        """Say whether a forward that made other than the usual number of nodes was an evaluation.

        Without gradients there is no graph, but functions of the job's own are counted all the same.
        """
        if self.loop.evaluated(begin):
            return True
        self._made = made
        return False

    def _aside(self, model: Any, args: Any, kwargs: Any) -> Any:
        """Call the model, though the loop must think about what its forward is."""
        self._kind, self._run = type(model), type(model)._call_impl  # noqa: SLF001
        run = self._theirs or model._call_impl  # noqa: SLF001  what it calls without us
        return self.loop.forward(self, run, args, kwargs)

    def _otherwise(self, model: Any, args: Any, kwargs: Any) -> Any:
        """Call what is to be called, for something is not as usual."""
        # Where a graph breaks within it, the model is called anew, by what has been compiled.
        if self._compiler.compiles():
            return (self._theirs or model._call_impl)(*args, **kwargs)  # noqa: SLF001
        # What was copied from a model, such as the replicas of DataParallel, or took its place with all
        # that it had, has this too, and may outlive it.
        caller: Any = sys._getframe(2).f_locals.get("self")  # noqa: SLF001  `Module.__call__`
        if caller is not model and hasattr(caller, "_call_impl"):
            return caller._call_impl(*args, **kwargs)  # noqa: SLF001
        if self.loop.inside is not self.loop.outside:  # as part of another task
            return (self._theirs or model._call_impl)(*args, **kwargs)  # noqa: SLF001
        return self._aside(model, args, kwargs)

    def leave(self) -> None:
        """Let the model be called as if this had never been here."""
        model: Any = self._model()
        if model is not None:
            model._compiled_call_impl = self._theirs  # noqa: SLF001

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a module that says itself how it is saved or copied leaves it in


class Part(Called):
    """What a part of a model calls, until it shows whether the loop calls the whole or its parts.

    A loop may call the `forward` of a model by itself, which nothing notices but its parts.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the part."""
        return self._otherwise(self._model(), args, kwargs)

    def _aside(self, model: Any, args: Any, kwargs: Any) -> Any:
        self.loop.call_part()
        call = model._compiled_call_impl  # noqa: SLF001  what follows it now, if anything does
        call = self._theirs if call is self else call
        return (call or model._call_impl)(*args, **kwargs)  # noqa: SLF001


def _nothing() -> None:
    """There is no wrapper."""


class _Counting:
    """Is called as `Called` is, and counts who holds it."""

    def __call__(self, *_: Any, **__: Any) -> int:
        return _holders(self)


@cache
def _alone(module: Any) -> tuple[int, int]:
    """Return how many hold what a module calls, and its `__dict__`, if the module alone does.

    Some do so for a moment only: how many these are depends on Python. So the caller need not be looked
    up, which takes as long as all else: what has been copied holds both, or one of them, too.

    Args:
        module: PyTorch's class of modules.
    """
    probe = module()
    probe._compiled_call_impl = _Counting()  # noqa: SLF001  the place for it
    # Python may hold one less once it has seen the calls a few times.
    its = probe.__dict__
    return min(probe() for _ in range(100)), _holders(its)


PASSING: Final = (
    *(Called.__call__, Called._otherwise, Called._aside),  # noqa: SLF001
    *(Part.__call__, Part._aside),  # noqa: SLF001
    *(Compiler.compiles, Compiler.graphs),
)
"""What only passes on the call of a model within what was compiled."""
