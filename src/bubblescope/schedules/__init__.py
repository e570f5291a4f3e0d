"""Pipeline schedules: the order in which each stage runs its operations.

A schedule is a function of the number of stages p, a stage's own number and the number of
micro-batches m. It returns that stage's operations in order; what a stage waits for follows from the
data: a forward needs the forward of the stage before, a backward that of the stage after, a weight
gradient its own backward.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from bubblescope.vocabulary import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["SCHEDULES", "Operation", "gpipe", "one_f_one_b", "zb_h1"]


class Operation(NamedTuple):
    """One operation of one stage."""

    kind: Kind
    microbatch: int


def gpipe(stages: int, stage: int, microbatches: int) -> list[Operation]:
    """All forwards, then all backwards (Huang et al., arXiv 1811.06965).

    The paper draws the last micro-batch's backward first. Here they are in order; the bubble is the
    same.
    """
    del stages, stage  # every stage does the same
    return [Operation(Kind.FORWARD, i) for i in range(microbatches)] + [
        Operation(Kind.BACKWARD, i) for i in range(microbatches)
    ]


def one_f_one_b(stages: int, stage: int, microbatches: int) -> list[Operation]:
    """One forward, one backward, after just enough forwards to fill the stages that follow.

    PipeDream-flush, the default of Megatron-LM (Narayanan et al., arXiv 2104.04473, section 2.2). At
    most `stages - stage` micro-batches are in flight on a stage.
    """
    warm_up = min(stages - stage - 1, microbatches)
    order = [Operation(Kind.FORWARD, i) for i in range(warm_up)]
    for i in range(microbatches - warm_up):
        order += [Operation(Kind.FORWARD, warm_up + i), Operation(Kind.BACKWARD, i)]
    return order + [
        Operation(Kind.BACKWARD, i) for i in range(microbatches - warm_up, microbatches)
    ]


def zb_h1(stages: int, stage: int, microbatches: int) -> list[Operation]:
    """1F1B with the backward split, and weight gradients put off to fill the cool-down.

    Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2.1: stage i holds back i
    weight gradients, so that every stage has as many micro-batches in flight as 1F1B's first has.
    """
    order: list[Operation] = []
    held: deque[int] = deque()
    for kind, microbatch in one_f_one_b(stages, stage, microbatches):
        if kind is Kind.FORWARD:
            order.append(Operation(kind, microbatch))
            continue
        order.append(Operation(Kind.BACKWARD_INPUT, microbatch))
        held.append(microbatch)
        if len(held) > stage:
            order.append(Operation(Kind.BACKWARD_WEIGHT, held.popleft()))
    return order + [Operation(Kind.BACKWARD_WEIGHT, microbatch) for microbatch in held]


SCHEDULES: Final[Mapping[str, Callable[[int, int, int], list[Operation]]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zb-h1": zb_h1,
}
"""Every schedule by its usual name."""
