"""Which modules a training loop calls, its models; and being there when it does."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_NO_FORWARD: Final = frozenset(
    {"torch.nn.modules.module", "lightning.pytorch.core.module", "pytorch_lightning.core.module"}
)
"""Where a `forward` comes from that only says, if it is called, that there is none."""
_REPLICATED: Final = frozenset(
    {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
)


class Called:
    """What a model calls in place of itself, to be noticed.

    It lies where `Module.compile` puts what it made: PyTorch calls that first, and leaves it out of
    what is saved, copied and compiled. A hook would be in all of these, and slower.

    Args:
        model: The model.
        notice: Called with this, what to call for the model, and the arguments by place and by name;
            returns what the model does.

    Attributes:
        chunk: Which of its rank's chunks the model is, once `notice` has found out.
        notice: What is called.
    """

    def __init__(self, model: Any, notice: Callable[..., Any]) -> None:
        self.chunk: Any = None
        self._model = weakref.ref(model)
        self._theirs = model._compiled_call_impl  # noqa: SLF001  the place for it
        self.notice = notice
        torch = sys.modules["torch"]
        self._compiling = torch.compiler.is_compiling
        self._in_compiled = _compiler(torch) or _nothing
        model._compiled_call_impl = self  # noqa: SLF001

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        model: Any = self._model()
        # Where a graph breaks within it, the model is called anew, by what has been compiled.
        if self._compiling() or self._in_compiled() is not None:
            return (self._theirs or model._call_impl)(*args, **kwargs)  # noqa: SLF001
        # What was copied from a model, such as the replicas of DataParallel, or took its place with all
        # that it had, has this too, and may outlive it.
        caller: Any = sys._getframe(1).f_locals.get("self")  # noqa: SLF001  `Module.__call__`
        if caller is not model and hasattr(caller, "_call_impl"):
            return caller._call_impl(*args, **kwargs)  # noqa: SLF001
        run = self._theirs or model._call_impl  # noqa: SLF001  what it calls without us
        return self.notice(self, run, args, kwargs)

    def leave(self) -> None:
        """Let the model be called as if this had never been here."""
        model: Any = self._model()
        if model is not None:
            model._compiled_call_impl = self._theirs  # noqa: SLF001

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a module that says itself how it is saved or copied leaves it in


def leave_out(eval_frame: Any) -> None:
    """Let Dynamo, whose module of that name this is, not compile the calls of `Called` as a frame.

    It still looks through them where it compiles what calls the model. Where a graph breaks within the
    model, there are as many graphs and breaks as without us.
    """
    if _compiler(sys.modules["torch"]) is not None:  # else nothing tells when to be left alone
        eval_frame.skip_code(Called.__call__.__code__)


def _compiler(torch: Any) -> Callable[[], Any] | None:
    """Return what tells whether code is run that Dynamo compiles; older versions have nothing."""
    return getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)  # noqa: SLF001


def _nothing() -> None:
    """There is no compiler."""


def models_of(parameters: Iterable[Any]) -> list[Any]:
    """Return the modules that hold some of these parameters and are part of no other module.

    A loop may keep its model anywhere; among all objects of the process it is found.
    """
    wanted = {id(parameter) for parameter in parameters}
    module = sys.modules["torch.nn"].Module
    # By type, for `isinstance` asks objects, and some answer by doing something.
    modules = [one for one in gc.get_objects() if issubclass(type(one), module)]
    inner = {id(part) for one in modules for part in vars(one).get("_modules", {}).values()}
    return [one for one in modules if id(one) not in inner and _holds(one, wanted)]


def called_of(models: Iterable[Any]) -> Iterator[Any]:
    """Yield the modules that a loop can call: a model's parts, where it only holds them together.

    So do lists of modules, and Lightning's modules that leave it to `training_step` what is called.
    """
    for model in models:
        home = getattr(type(model).forward, "__module__", None)
        # What is compiled has one of its own.
        if home in _NO_FORWARD and "forward" not in vars(model):
            yield from called_of(parts_of(model))
        else:
            yield model


def parts_of(model: Any) -> list[Any]:
    """Return the direct parts of a module that have parameters."""
    return [part for part in model.children() if next(part.parameters(), None) is not None]


def replicated(model: Any) -> bool:
    """Say whether every rank holds a replica of the model, or a shard of it."""
    return any(kind.__name__ in _REPLICATED for kind in type(model).__mro__)


def _holds(module: Any, wanted: set[int]) -> bool:
    return any(id(parameter) in wanted for parameter in module.parameters())
