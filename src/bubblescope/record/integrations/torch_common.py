"""What every job with PyTorch has: optimizers.

`torch.optim.optimizer.register_optimizer_step_pre_hook` and `..._post_hook` are called around every
optimizer's step. A step that is given a closure calls it for the loss, once or several times: forwards
and backwards, which are no part of the optimizer's own work. The hook before may change the arguments.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of

if TYPE_CHECKING:
    from types import ModuleType

    from bubblescope.record.session import Begun, Session


_OPTIMIZER: Final = identity_of(Kind.OPTIMIZER)


class _Running(NamedTuple):
    """An optimizer whose step has begun, the tasks that it is, packed, and these as they have begun."""

    optimizer: Any
    places: list[bytes]
    begun: Begun


class _Steps:
    """Records steps of optimizers.

    Args:
        session: Records them.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._running: list[_Running] = []

    def before(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Begin a step; return the arguments that it is to have, if not these."""
        if _compiling():
            return None
        # One that runs already failed then. One that holds others is one task with them.
        while any(one.optimizer is optimizer for one in self._running):
            self._running.pop()
        places = [] if self._running else [_OPTIMIZER]
        self._running.append(_Running(optimizer, places, self._session.begin(places)))
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": self._passing(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):  # after the optimizer itself
            return (args[0], self._passing(args[1]), *args[2:]), kwargs
        return None

    def after(self, optimizer: Any, *_: Any) -> None:
        """End a step."""
        if _compiling():
            return
        self._session.optimized(optimizer)
        if self._running:
            self._session.end(self._running.pop().begun)

    def _passing(self, closure: Any) -> Any:
        """Return a closure for whose time the optimizer's task is interrupted."""
        computed = False

        @functools.wraps(closure)
        def compute(*args: Any, **kwargs: Any) -> Any:
            nonlocal computed
            if not self._running:  # called elsewhere than in the step
                return closure(*args, **kwargs)
            optimizer, places, begun = self._running.pop()
            # Before the first there is nothing but what calls it.
            (self._session.end if computed else self._session.abandon)(begun)
            computed = True
            try:
                return closure(*args, **kwargs)
            finally:
                self._running.append(_Running(optimizer, places, self._session.begin(places)))

        return compute


def optimizer(module: ModuleType, session: Session) -> None:
    """Record the steps of all optimizers, and number steps on from those that they have made before."""
    made: weakref.WeakSet[Any] = weakref.WeakSet(made_before(module))
    for _ in made:
        session.rounds.made_optimizer()
    session.ask(lambda: {"first_step": max(map(_steps_made, made), default=0)})
    theirs = module.Optimizer.__init__

    @functools.wraps(theirs)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        session.rounds.made_optimizer()
        theirs(self, *args, **kwargs)
        made.add(self)

    zero = module.Optimizer.zero_grad

    @functools.wraps(zero)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        # Some jobs measure passes alone: gradients that are thrown away end a step as well.
        if not _compiling():
            session.rounds.optimized()
        zero(self, *args, **kwargs)

    steps = _Steps(session)
    module.Optimizer.__init__ = init
    module.Optimizer.zero_grad = zero_grad
    module.register_optimizer_step_pre_hook(steps.before)
    module.register_optimizer_step_post_hook(steps.after)


def importing() -> bool:
    """Say whether PyTorch is being imported, so that a job has made nothing of it before."""
    return bool(getattr(sys.modules["torch"].__spec__, "_initializing", False))


def made_before(module: ModuleType) -> list[Any]:
    """Return the optimizers that a job made before it began to be recorded.

    Args:
        module: `torch.optim.optimizer`.
    """
    if importing():
        return []
    # By type, for `isinstance` asks objects, and some answer by doing something.
    return [one for one in gc.get_objects() if issubclass(type(one), module.Optimizer)]


def _compiling() -> bool:
    """Say whether what runs is being compiled: with hooks in it, which would break its graph."""
    return bool(sys.modules["torch"].compiler.is_compiling())


def _steps_made(optimizer: Any) -> int:
    """Return how many steps an optimizer has made by its own count, which checkpoints carry.

    Adam and those like it count for each parameter; others do not, and have made none.
    """
    with suppress(Exception):  # whatever it keeps there instead is no count
        states = list(optimizer.state.values())
        return int(states[0].get("step", 0)) if states else 0
    return 0
