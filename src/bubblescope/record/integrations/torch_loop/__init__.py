"""Training loops written by hand in PyTorch, with or without a pipeline.

Such a loop calls its model, `backward` and an optimizer, and perhaps `torch.distributed.send` and
`recv` between the stages of a pipeline of its own. Nobody says what is a step or a micro-batch:

* a step lasts until the next forward (or data, or receive) after an optimizer's step, or after
  gradients were cleared in its place;
* the models are the outermost modules that hold an optimizer's parameters; the n-th forward of a
  model in a step is micro-batch n, and each model of a rank is a chunk. Models that are called with
  what another has made, without a backward of their own, are one chunk with it;
* a backward belongs to the forward whose output it starts from, which autograd's graph tells, in
  whatever order backwards come; one that starts from several micro-batches is of none of them;
* modules with parameters that no optimizer holds are beside what is trained: teachers, averages;
* what fails was no task, and may be tried again;
* ranks are stages in order if all but the first begin with a receive; otherwise they are replicas.

Jobs that use the schedules of a framework with an integration of its own are left to that.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

from bubblescope.record.integrations.torch_common import (
    Steps,
    importing,
    in_compiled,
    leave_out,
    made_before,
)
from bubblescope.record.integrations.torch_loop.called import PASSING
from bubblescope.record.integrations.torch_loop.loop import Loop
from bubblescope.record.integrations.torch_loop.untrained import Untrained

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from bubblescope.record.integrations.torch_loop.models import Modules
    from bubblescope.record.session import Session

_COLLECTIVES: Final = (
    *("all_reduce", "reduce", "broadcast", "scatter", "gather", "barrier", "monitored_barrier"),
    *("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"),
    *("all_gather_single", "reduce_scatter_single"),  # what 2.13 calls these
    *("all_to_all", "all_to_all_single"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
)
"""What a loop may call of torch.distributed, by which ranks wait for each other."""


def optimizers(module: ModuleType, session: Session) -> None:
    """Find models when optimizers are made, and the ends of steps."""
    loop = session.shared(Loop)
    theirs = module.Optimizer.__init__

    @functools.wraps(theirs)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        theirs(self, *args, **kwargs)
        loop.adopt(self)

    module.Optimizer.__init__ = init
    session.shared(Steps).then(loop.end_step)
    session.shared(Steps).left_out(loop.stepped_elsewhere)
    session.shared(Steps).when_cleared(loop.clear)
    for optimizer in made_before(module):
        loop.adopt(optimizer)


def compiled(module: ModuleType, session: Session) -> None:
    """Follow what `torch.compile` makes of a model, from its first call on."""
    loop = session.shared(Loop)
    if in_compiled(sys.modules["torch"]) is not None:  # else nothing tells when to be left alone
        leave_out(module, *PASSING, *loop.passing, Untrained.__call__, Untrained._aside)  # noqa: SLF001
        loop.within_compiled(module)
    made = module.OptimizedModule
    theirs = made.__init__

    @functools.wraps(theirs)
    def init(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        theirs(self, model, *args, **kwargs)
        loop.compiled(model, self)

    made.__init__ = init
    loop.compiler.watch(module)


def translated(module: ModuleType, session: Session) -> None:
    """Notice when Dynamo follows code."""
    session.shared(Loop).compiler.watch(module)


def modules(module: ModuleType, session: Session) -> None:
    """Know the modules that are made, and follow a model that is compiled in place.

    A module begins with its `__init__`; one that is copied, or read from a file, with `__setstate__`.
    Its own `compile` puts something in the place of what notices its calls.
    """
    loop, kind = session.shared(Loop), module.Module
    known = loop.models.modules
    known.complete = importing()
    for name in ("__init__", "__setstate__"):
        setattr(kind, name, _making(getattr(kind, name), known, session))
        loop.recording.append(getattr(kind, name))
    kind.zero_grad = _clearing(kind.zero_grad, loop)
    theirs = kind.compile

    @functools.wraps(theirs)
    def compile_(self: Any, *args: Any, **kwargs: Any) -> None:
        theirs(self, *args, **kwargs)
        loop.compiled(self, self)

    kind.compile = compile_


def _making(function: Callable[..., None], known: Modules, session: Session) -> Callable[..., None]:
    """Return a function that makes a module, and tells of it."""

    @functools.wraps(function)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        function(self, *args, **kwargs)
        try:
            compiler = getattr(sys.modules["torch"], "compiler", None)  # there is none at first
            if compiler is None or not compiler.is_compiling():
                known.add(self)
        except Exception as error:  # noqa: BLE001  the job goes on
            session.fail(error)

    return make


def _clearing(function: Callable[..., None], loop: Loop) -> Callable[..., None]:
    """Return a function that clears gradients of a module, and tells of it."""

    @functools.wraps(function)
    def clear(self: Any, *args: Any, **kwargs: Any) -> None:
        function(self, *args, **kwargs)
        loop.clear(self)

    return clear


def scalers(module: ModuleType, session: Session) -> None:
    """End steps in which gradients overflow too: the scaler leaves out the optimizer's."""
    loop = session.shared(Loop)
    theirs = module.GradScaler.step

    @functools.wraps(theirs)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = theirs(self, *args, **kwargs)
        session.rounds.optimized()
        loop.end_step()
        return result

    module.GradScaler.step = step


def backwards(module: ModuleType, session: Session) -> None:
    """Record backwards; a tensor's `backward` and `torch.func` call these functions too."""
    loop = session.shared(Loop)
    module.backward = loop.backwards(module.backward)  # type: ignore[attr-defined]
    module.grad = loop.gradients(module.grad)  # type: ignore[attr-defined]


def data(module: ModuleType, session: Session) -> None:
    """Record waiting for data."""
    iterator = module._BaseDataLoaderIter  # noqa: SLF001  it has no other name
    iterator.__next__ = session.shared(Loop).fetching(iterator.__next__)


def transfers(module: ModuleType, session: Session) -> None:
    """Record what is sent and received, and collectives that the loop calls itself."""
    loop = session.shared(Loop)
    between_stages = {
        "send": loop.timed(module.send, loop.send),
        "recv": loop.timed(module.recv, loop.receive, loop.receives),
        "isend": loop.timed(module.isend, loop.send),
        "irecv": _receiving(module.irecv, loop),
        "batch_isend_irecv": _batching(module.batch_isend_irecv, loop),
    }
    recorded = {
        name: loop.transfer(getattr(module, name), between)
        for name, between in between_stages.items()
    }
    recorded |= {
        name: loop.collective(getattr(module, name))
        for name in _COLLECTIVES
        if hasattr(module, name)
    }
    for name, function in recorded.items():
        for home in (module, sys.modules["torch.distributed"]):  # it says all of them again
            setattr(home, name, function)


def functional(module: ModuleType, session: Session) -> None:
    """Record waiting for functional collectives, as those of a `DTensor`, which begin at once.

    Layers call the module's function, and compiled graphs the operator: its one overload, or, where
    they are as Dynamo makes them (`backend="eager"`), the packet of that.
    """
    loop, torch = session.shared(Loop), sys.modules["torch"]
    module.wait_tensor = loop.collective(module.wait_tensor)  # type: ignore[attr-defined]
    packet = torch.ops._c10d_functional.wait_tensor  # noqa: SLF001
    for operator in (packet, packet.default):
        operator._op = _WaitOfGraphs(operator._op, loop)  # noqa: SLF001  it has no other name
    # Which operator a packet's function is, PyTorch knows of the very object.
    torch.jit._builtins._register_builtin(packet._op, packet._qualified_op_name)  # noqa: SLF001


class _WaitOfGraphs:
    """Waits in the place of an operator's own function, and is recorded."""

    def __init__(self, theirs: Callable[..., Any], loop: Loop) -> None:
        self._theirs, self._recorded = theirs, loop.collective(theirs)
        self._tensor = sys.modules["torch"].Tensor
        loop.passing.append(_WaitOfGraphs.__call__)

    def __call__(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        # While a graph is made, it is tried with tensors of other classes.
        wait = self._recorded if type(tensor) is self._tensor else self._theirs
        return wait(tensor, *args, **kwargs)

    def __hash__(self) -> int:
        return hash(self._theirs)  # by which PyTorch's tables find the operator


def _receiving(function: Callable[..., Any], loop: Loop) -> Callable[..., Any]:
    """Return a function whose receive is recorded while it is waited for."""

    @functools.wraps(function)
    def receive(*args: Any, **kwargs: Any) -> Any:
        work = function(*args, **kwargs)
        if work is not None:
            loop.await_([work], loop.receive, loop.receives, *args, **kwargs)
        return work

    return receive


def _batching(function: Callable[..., Any], loop: Loop) -> Callable[..., Any]:
    """Return a function whose sends are recorded while issued, and receives while waited for."""

    def sends(operations: Any, *_: Any, **__: Any) -> list[bytes]:
        return [
            place for one in operations if _sends(one) for place in loop.send(one.tensor, one.peer)
        ]

    def receives(operations: Any) -> list[bytes]:
        return [
            place
            for one in operations
            if not _sends(one)
            for place in loop.receive(one.tensor, one.peer)
        ]

    sending = loop.timed(function, sends)
    receiving = loop.timed(function, sends, loop.receives)

    @functools.wraps(function)
    def batch(operations: Any, *args: Any, **kwargs: Any) -> Any:
        issue = sending if all(map(_sends, operations)) else receiving
        issued = issue(operations, *args, **kwargs)
        loop.await_(issued, receives, loop.receives, operations)
        return issued

    return batch


def _sends(operation: Any) -> bool:
    return getattr(getattr(operation, "op", None), "__name__", None) == "isend"
