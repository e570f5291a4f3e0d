"""What every job with PyTorch has: optimizers.

`torch.optim.optimizer.register_optimizer_step_pre_hook` and `..._post_hook` are called around every
optimizer's step. A step that is given a closure calls it for the loss, once or several times: forwards and
backwards, which are no part of the optimizer's own work. The hook before may change the arguments.
"""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of

if TYPE_CHECKING:
    from types import ModuleType

    from bubblescope.record.session import Session


def optimizer(module: ModuleType, session: Session) -> None:
    """Record the steps of all optimizers."""
    what = identity_of(Kind.OPTIMIZER)
    begun: list[Any] = []

    def compiling() -> bool:
        # A step that is compiled is compiled with its hooks, which would break its graph.
        return bool(sys.modules["torch"].compiler.is_compiling())

    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if compiling():
            return None
        begun.append(session.begin([what]))
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": passing(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):  # after the optimizer itself
            return (args[0], passing(args[1]), *args[2:]), kwargs
        return None

    def passing(closure: Any) -> Any:
        """Return a closure for whose time the optimizer's task is interrupted."""
        computed = False

        @functools.wraps(closure)
        def compute(*args: Any, **kwargs: Any) -> Any:
            nonlocal computed
            # Before the first there is nothing but what calls it.
            (session.end if computed else session.abandon)(begun.pop())
            try:
                return closure(*args, **kwargs)
            finally:
                computed = True
                begun.append(session.begin([what]))

        return compute

    def after(*_: Any) -> None:
        if compiling():
            return
        session.rounds.optimized()
        if begun:
            session.end(begun.pop())

    theirs = module.Optimizer.__init__
    optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
    session.ask(lambda: {"first_step": max(map(_steps_made, optimizers), default=0)})

    @functools.wraps(theirs)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        session.rounds.made_optimizer()
        theirs(self, *args, **kwargs)
        optimizers.add(self)

    zero = module.Optimizer.zero_grad

    @functools.wraps(zero)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        # Some jobs measure passes alone: gradients that are thrown away end a step as well.
        if not compiling():
            session.rounds.optimized()
        zero(self, *args, **kwargs)

    module.Optimizer.__init__ = init
    module.Optimizer.zero_grad = zero_grad
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def _steps_made(optimizer: Any) -> int:
    """Return how many steps an optimizer has made by its own count, which checkpoints carry.

    Adam and those like it count for each parameter; others do not, and have made none.
    """
    with suppress(Exception):  # whatever it keeps there instead is no count
        states = list(optimizer.state.values())
        return int(states[0].get("step", 0)) if states else 0
    return 0
