"""Schedules of whole backwards, and the zero-bubble ones that follow 1F1B step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bubblescope.model.errors import ScheduleError
from bubblescope.schedules.plan import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Plan,
    column,
    looped,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def gpipe(devices: int, microbatches: int, *, last_first: bool = False) -> Plan:
    """All forwards, then all backwards (Huang et al., arXiv 1811.06965).

    Args:
        devices: Pipeline devices p.
        microbatches: Micro-batches of a step m.
        last_first: Take the last micro-batch's backward first, as the paper draws it; PyTorch and
            others go through them in order. The bubble is the same.
    """
    return _breadth_first("gpipe", devices, microbatches, 1, last_first=last_first)


def looped_bfs(devices: int, microbatches: int, chunks: int, *, last_first: bool = False) -> Plan:
    """GPipe over looped stages, chunk by chunk (Lamy-Poirier, arXiv 2211.05953).

    Args:
        devices: Pipeline devices p.
        microbatches: Micro-batches of a step m.
        chunks: Model chunks on each device v.
        last_first: Take the last micro-batch's backward first, as PyTorch's ScheduleLoopedBFS does.
    """
    return _breadth_first("looped-bfs", devices, microbatches, chunks, last_first=last_first)


def _breadth_first(
    name: str, devices: int, microbatches: int, chunks: int, *, last_first: bool
) -> Plan:
    placement = looped(devices, chunks)
    forwards = np.arange(microbatches)
    backwards = forwards[:: -1 if last_first else 1]
    return Plan(
        name,
        placement,
        [
            np.concatenate(
                [
                    *(column(FORWARD, stage, forwards) for stage in held),
                    *(column(BACKWARD, stage, backwards) for stage in held[::-1]),
                ],
                axis=1,
            )
            for held in placement
        ],
    )


def one_f_one_b(devices: int, microbatches: int) -> Plan:
    """One forward, one backward, after just enough forwards to fill the devices that follow.

    PipeDream-flush (Narayanan et al., arXiv 2006.09503), DAPPLE (Fan et al., arXiv 2007.01045) and
    the default of Megatron-LM (Narayanan et al., arXiv 2104.04473, section 2.2).
    """
    warm_up = [devices - 1 - rank for rank in range(devices)]
    return _interleaved("1f1b", devices, microbatches, 1, warm_up)


def eager_1f1b(devices: int, microbatches: int) -> Plan:
    """1F1B with twice the warm-up, so that transfers hide behind work (Zhuang et al., 2211.05322)."""
    warm_up = [2 * (devices - 1 - rank) for rank in range(devices)]
    return _interleaved("eager-1f1b", devices, microbatches, 1, warm_up)


def interleaved_1f1b(devices: int, microbatches: int, chunks: int) -> Plan:
    """1F1B over looped stages, also called VPP (Narayanan et al., arXiv 2104.04473, section 2.2).

    Micro-batches go through the chunks in rounds of p; in rounds of m / (m // p) where p does not
    divide m but m // p does, as PyTorch has it.

    Args:
        devices: Pipeline devices p.
        microbatches: Micro-batches of a step m.
        chunks: Model chunks on each device v.
    """
    group = _round("interleaved-1f1b", devices, microbatches)
    warm_up = [2 * (devices - 1 - rank) + (chunks - 1) * group for rank in range(devices)]
    return _interleaved("interleaved-1f1b", devices, microbatches, chunks, warm_up)


def interleaved_zb(devices: int, microbatches: int, chunks: int) -> Plan:
    """Interleaved 1F1B with the backward split: device i runs i weight gradients late.

    PyTorch's ScheduleInterleavedZeroBubble, after Qi et al. (arXiv 2401.10241): its warm-up is
    shorter than that of interleaved 1F1B.
    """
    group = _round("interleaved-zb", devices, microbatches)
    warm_up = [(devices - 1 - rank) + (chunks - 1) * group for rank in range(devices)]
    return _interleaved(
        "interleaved-zb", devices, microbatches, chunks, warm_up, held=range(devices)
    )


def zb_h1(devices: int, microbatches: int) -> Plan:
    """1F1B with the backward split, and weight gradients put off to fill the cool-down.

    Qi et al., arXiv 2401.10241, section 2.1: device i holds back i weight gradients, so that every
    device needs the memory that 1F1B's first does.
    """
    warm_up = [devices - 1 - rank for rank in range(devices)]
    return _interleaved("zb-h1", devices, microbatches, 1, warm_up, held=range(devices))


def zb_h2(devices: int, microbatches: int) -> Plan:
    """ZB-H1 with twice the warm-up, which fills the bubble before the first backward as well.

    Qi et al., arXiv 2401.10241, section 2.2; it needs almost twice the memory of 1F1B.
    """
    warm_up = [2 * (devices - 1 - rank) for rank in range(devices)]
    held = [2 * rank for rank in range(devices)]
    return _interleaved("zb-h2", devices, microbatches, 1, warm_up, held=held)


def _round(name: str, devices: int, microbatches: int) -> int:
    """Return how many micro-batches go through a chunk before the next one's turn."""
    rounds = max(1, microbatches // devices)
    if microbatches % rounds:
        raise ScheduleError(
            f"{name} runs micro-batches in rounds of {devices} or more that are all alike: "
            f"{microbatches} do not divide into {rounds} rounds; take a multiple of {devices}"
        )
    return microbatches // rounds


def _interleaved(
    name: str,
    devices: int,
    microbatches: int,
    chunks: int,
    warm_up: Sequence[int],
    held: Sequence[int] | None = None,
) -> Plan:
    """Alternate forwards and backwards after a device's warm-up; 1F1B is the case of one chunk.

    For each device, `warm_up` is how many forwards run before the first pair, and `held` how many
    weight gradients run late; None if backwards are whole.
    """
    placement = looped(devices, chunks)
    group = _round(name, devices, microbatches) if chunks > 1 else 1
    count = chunks * microbatches
    turn = np.arange(count)
    chunk = turn // group % chunks
    microbatch = turn // (group * chunks) * group + turn % group
    columns = []
    for stages, warm, late in zip(placement, warm_up, held or [0] * devices, strict=True):
        first = min(warm, count)
        there = np.array(stages)
        # Where each operation comes: k-th forward, k-th backward, k-th weight gradient.
        forward = np.where(turn < first, turn, 2 * turn - first)
        backward = np.where(turn < count - first, first + 2 * turn + 1, count + turn)
        parts = [column(FORWARD, there[chunk], microbatch)]
        keys = [2 * forward, 2 * backward]
        back = there[chunks - 1 - chunk]
        if held is None:
            parts.append(column(BACKWARD, back, microbatch))
        else:
            parts.append(column(BACKWARD_INPUT, back, microbatch))
            parts.append(column(BACKWARD_WEIGHT, back, microbatch))
            followed = np.concatenate([backward[late:], 2 * count + turn[: min(late, count)]])
            keys.append(2 * followed + 1)
        order = np.argsort(np.concatenate(keys), kind="stable")
        columns.append(np.concatenate(parts, axis=1)[:, order])
    return Plan(name, placement, columns)
