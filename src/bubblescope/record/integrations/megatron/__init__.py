"""Megatron-LM's core, and what its forks share with it.

A step is one call of a `forward_backward_...` function of `pipeline_parallel.schedules`, which calls
`forward_step` and `backward_step`, by those names, for every micro-batch; with experts that overlap,
`combined_1f1b.combined_forward_backward_step` does both at once. Neither says the micro-batch in all
versions, but each model chunk runs its forwards in the order of micro-batches, and a backward is given
the very output that its forward returned. All that stages send each other goes through
`_communicate`, a method of `P2PCommunicator` since 0.14 and a function before. Read in 0.4 to 0.20,
run with 0.16.1.

`pipeline` sees where a step begins, and begins all else with the `layout` of that. `progress` says
which work each forward and backward is, `compute` records them, and `origins` remembers what they
returned. By these, `messages` tells what is sent and received, and records it, with `receipts` for what
is waited for later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of
from bubblescope.record.integrations.megatron.functions import replace
from bubblescope.record.integrations.megatron.pipeline import SCHEDULES, pipeline_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from bubblescope.record.session import Session


def schedules(module: ModuleType, session: Session) -> None:
    """Record the steps of all schedules, their forwards and their backwards."""
    pipeline = pipeline_of(session)
    replace(
        module,
        {
            **dict.fromkeys(SCHEDULES, pipeline.stepping),
            "get_forward_backward_func": pipeline.choosing,
            "forward_step": pipeline.compute.forward,
            "backward_step": pipeline.compute.backward,
        },
    )
    if hasattr(module, "backward_step_multimodule"):
        replace(module, {"backward_step_multimodule": pipeline.compute.backward})


def combined(module: ModuleType, session: Session) -> None:
    """Record forwards overlapped with the backward of another micro-batch."""
    replace(module, {"combined_forward_backward_step": pipeline_of(session).compute.both})


def p2p(module: ModuleType, session: Session) -> None:
    """Record what stages send each other."""
    owner = getattr(module, "P2PCommunicator", module)
    replace(owner, {"_communicate": pipeline_of(session).communicating})


def gradients(module: ModuleType, session: Session) -> None:
    """Record the reductions of gradients at the end of a step."""
    replace(
        module,
        {
            "finalize_model_grads": lambda function: session.timed(
                function, lambda *_, **__: identity_of(Kind.COLLECTIVE)
            )
        },
    )


def optimizer(module: ModuleType, session: Session) -> None:
    """Record the steps of Megatron's optimizers, with their norms and gathers.

    The step of PyTorch's optimizer is inside, and is not recorded again.
    """
    known = module.MegatronOptimizer

    def recorded(step: Callable[..., Any]) -> Callable[..., Any]:
        return session.timed(session.alone(step), lambda *_, **__: identity_of(Kind.OPTIMIZER))

    for kind in list(vars(module).values()):
        if isinstance(kind, type) and issubclass(kind, known) and "step" in vars(kind):
            replace(kind, {"step": recorded})
