"""What every job with PyTorch has: optimizers.

`torch.optim.optimizer.register_optimizer_step_pre_hook` and `..._post_hook` are called around every
optimizer's step. A step that is given a closure calls it for the loss, once or several times: forwards
and backwards, which are no part of the optimizer's own work. The hook before may change the arguments.

Where a step is compiled, these hooks are compiled too, to nothing. But PyTorch breaks the graph within
every step, so Python calls what is in the place of the class's `step`: that calls us then.
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
    from collections.abc import Callable
    from types import ModuleType

    from bubblescope.record.session import Begun, Session


_OPTIMIZER: Final = identity_of(Kind.OPTIMIZER)


class _Running(NamedTuple):
    """An optimizer whose step has begun, the tasks that it is, packed, and these as they have begun."""

    optimizer: Any
    places: list[bytes]
    begun: Begun


class Steps:
    """Records steps of optimizers.

    Args:
        session: Records them.

    Attributes:
        computing: Whether a step has called its closure, which runs now.
    """

    def __init__(self, session: Session) -> None:
        self.computing = False
        self._session = session
        self._running: list[_Running] = []
        self._elsewhere: weakref.WeakSet[Any] = weakref.WeakSet()
        self._heeding: list[Callable[[], None]] = []
        self._heeding_others: list[Callable[[Any], None]] = []
        self._heeding_clears: list[Callable[[Any], None]] = []
        self._in_compiled: Callable[[], Any] = _nothing
        module = sys.modules["torch.optim.optimizer"]
        module.register_optimizer_step_pre_hook(self._before)
        module.register_optimizer_step_post_hook(self._after)
        theirs = module.Optimizer._patch_step_function  # noqa: SLF001  called as each is made

        @functools.wraps(theirs)
        def patch(optimizer: Any) -> None:
            theirs(optimizer)
            self._notice(type(optimizer))

        module.Optimizer._patch_step_function = patch  # noqa: SLF001
        for optimizer in made_before(module):
            self._notice(type(optimizer))

    def then(self, heed: Callable[[], None]) -> None:
        """Have this called after every step."""
        self._heeding.append(heed)

    def left_out(self, heed: Callable[[Any], None]) -> None:
        """Have this called with the optimizer after every step that was left out."""
        self._heeding_others.append(heed)

    def when_cleared(self, heed: Callable[[Any], None]) -> None:
        """Have this called with the optimizer after its gradients were cleared."""
        self._heeding_clears.append(heed)

    def clears(self, theirs: Callable[..., None]) -> Callable[..., None]:
        """Return an optimizer's `zero_grad` that tells of it."""

        @functools.wraps(theirs)
        def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            theirs(optimizer, *args, **kwargs)
            if compiling():
                return
            # Some jobs measure passes alone: gradients that are thrown away end a step as well.
            self._session.rounds.optimized()
            if not self._leaves_out(optimizer):
                for heed in self._heeding_clears:
                    heed(optimizer)

        return zero_grad

    def leave(self, optimizer: Any) -> None:
        """Do not record an optimizer of another thread than the one that is recorded."""
        self._elsewhere.add(optimizer)

    def leaves(self, optimizer: Any) -> bool:
        """Say whether an optimizer is one of these."""
        return optimizer in self._elsewhere

    def join(self, optimizer: Any) -> None:
        """Record an optimizer after all."""
        self._elsewhere.discard(optimizer)

    def _before(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Begin a step; return the arguments that it is to have, if not these."""
        if compiling() or self._in_compiled() is not None or self._leaves_out(optimizer):
            return None
        self._begin(optimizer, [_OPTIMIZER])
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": self._passing(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):  # after the optimizer itself
            return (args[0], self._passing(args[1]), *args[2:]), kwargs
        return None

    def _after(self, optimizer: Any, *_: Any) -> None:
        if not compiling() and self._in_compiled() is None:
            self._end(optimizer)

    def _notice(self, kind: Any) -> None:
        """Record the steps of a kind of optimizers where they are compiled."""
        if not getattr(kind.step, "noticed", False):
            kind.step = self.noticed(kind.step)

    def noticed(self, theirs: Any) -> Any:
        """Return a step that does the same and is recorded if it is compiled."""
        begin, end = self._begin, self._end

        @functools.wraps(theirs)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling() or self._in_compiled() is None:
                return theirs(optimizer, *args, **kwargs)
            # What a closure computes cannot be told from the optimizer's own work.
            begin(optimizer, [] if args or kwargs else [_OPTIMIZER])
            result = theirs(optimizer, *args, **kwargs)
            end(optimizer)
            return result

        vars(step)["noticed"] = True  # what wraps it has that too
        return step

    def compiled(self, eval_frame: Any) -> None:
        """Let Dynamo, whose module of that name this is, compile what we call, but nothing of ours."""
        asks = in_compiled(sys.modules["torch"])
        if asks is not None and leave_out_whole(eval_frame, Steps._begin, Steps._end):
            # All that `noticed` returns have one code.
            leave_out(eval_frame, self.noticed(compiling), compiling)
            self._in_compiled = asks

    def _leaves_out(self, optimizer: Any) -> bool:
        return optimizer in self._elsewhere or self._session.in_other_thread()

    def _begin(self, optimizer: Any, places: list[bytes]) -> None:
        if self._leaves_out(optimizer):
            return
        # One that runs already failed then. One that holds others is one task with them.
        while any(one.optimizer is optimizer for one in self._running):
            self._running.pop()
        places = [] if self._running else places
        self._running.append(_Running(optimizer, places, self._session.begin(places)))

    def _end(self, optimizer: Any) -> None:
        if self._leaves_out(optimizer):
            for heed_other in self._heeding_others:
                heed_other(optimizer)
            return
        self._session.optimized(optimizer)
        if self._running:
            self._session.end(self._running.pop().begun)
        for heed in self._heeding:
            heed()

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
                self.computing = True
                return closure(*args, **kwargs)
            finally:
                self.computing = False
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

    module.Optimizer.__init__ = init
    module.Optimizer.zero_grad = session.shared(Steps).clears(module.Optimizer.zero_grad)


def compiled(module: ModuleType, session: Session) -> None:
    """Record steps that are compiled."""
    session.shared(Steps).compiled(module)


def leave_out(eval_frame: Any, *functions: Any) -> None:
    """Let Dynamo, whose module of that name this is, not compile functions that only pass on.

    It still looks through them where it compiles what calls them, and compiles what they call.
    """
    for function in functions:
        eval_frame.skip_code(function.__code__)


def leave_out_whole(eval_frame: Any, *functions: Any) -> bool:
    """Let it compile neither functions nor what they call; say whether that can be.

    Older versions of PyTorch cannot.
    """
    strategy = getattr(eval_frame, "FrameExecStrategy", None)
    if strategy is None:
        return False
    skip = eval_frame.FrameAction.SKIP
    for function in functions:
        eval_frame.set_code_exec_strategy(function.__code__, strategy(skip, skip))
    return True


def in_compiled(torch: Any) -> Callable[[], Any] | None:
    """Return what tells whether code is run that Dynamo compiles; older versions have nothing."""
    return getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)  # noqa: SLF001


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


def compiling() -> bool:
    """Say whether what runs is being compiled: with hooks in it, which would break its graph."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def _nothing() -> None:
    """Nothing is compiled."""


def _steps_made(optimizer: Any) -> int:
    """Return how many steps an optimizer has made by its own count, which checkpoints carry.

    Adam and those like it count for each parameter; others do not, and have made none.
    """
    with suppress(Exception):  # whatever it keeps there instead is no count
        states = list(optimizer.state.values())
        return int(states[0].get("step", 0)) if states else 0
    return 0
