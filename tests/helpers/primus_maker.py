"""Dumps as Primus writes them, of runs that follow schedules as their authors publish them.

Nothing here uses bubblescope: the orders are written down from Megatron-LM's documentation of
`forward_backward_pipelining_with_interleaving`, and the times follow from what waits for what.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Pass(NamedTuple):
    """A forward ("fwd") or backward ("bwd") of a rank."""

    way: str
    microbatch: int
    chunk: int


def schedule_table(microbatches: int, chunks: int, group: int) -> list[tuple[int, int]]:
    """Megatron's table: (micro-batch, chunk) of a rank's k-th forward."""
    table = []
    for first in range(0, microbatches, group):
        last = min(first + group, microbatches)
        table += [(one, chunk) for chunk in range(chunks) for one in range(first, last)]
    return table


def interleaved(
    devices: int, chunks: int, microbatches: int, group: int | None = None
) -> list[list[Pass]]:
    """Megatron's interleaved 1F1B: warm-up, then a forward and a backward in turn, then the rest."""
    group = group or devices
    table = schedule_table(microbatches, chunks, group)
    orders = []
    for rank in range(devices):
        warm = min((devices - rank - 1) * 2 + (chunks - 1) * group, len(table))
        forwards = [Pass("fwd", one, chunk) for one, chunk in table]
        backwards = [Pass("bwd", one, chunks - 1 - chunk) for one, chunk in table]
        order = forwards[:warm]
        for ahead in range(warm, len(table)):
            order += [forwards[ahead], backwards[ahead - warm]]
        orders.append(order + backwards[len(table) - warm :])
    return orders


def v_shaped(devices: int, microbatches: int) -> list[list[Pass]]:
    """Two chunks on each rank, the second on the way back, all forwards before all backwards."""
    ways = [("fwd", 0), ("fwd", 1), ("bwd", 1), ("bwd", 0)]
    order = [Pass(way, one, chunk) for way, chunk in ways for one in range(microbatches)]
    return [list(order) for _ in range(devices)]


def in_rounds(rank: int, chunk: int, devices: int) -> int:
    """Stage of a chunk as Megatron deals them out."""
    return chunk * devices + rank


def turning(rank: int, chunk: int, devices: int) -> int:
    """Stage of a chunk over a V."""
    return rank if chunk == 0 else 2 * devices - 1 - rank


def times(
    orders: list[list[Pass]],
    stages: int,
    stage_of: Callable[[int, int, int], int],
    draw: random.Random,
) -> list[list[tuple[float, float]]]:
    """When each pass runs, in milliseconds on one clock: as soon as it can, of random lengths."""
    done: dict[tuple[str, int, int], float] = {}
    ran: list[list[tuple[float, float]]] = [[] for _ in orders]
    free = [0.0] * len(orders)
    while any(len(one) < len(order) for one, order in zip(ran, orders, strict=True)):
        moved = False
        for rank, order in enumerate(orders):
            while len(ran[rank]) < len(order):
                way, microbatch, chunk = order[len(ran[rank])]
                stage = stage_of(rank, chunk, len(orders))
                needs = {
                    "fwd": [("fwd", stage - 1)] * (stage > 0),
                    "bwd": [("fwd", stage), ("bwd", stage + 1)][: 1 + (stage < stages - 1)],
                }[way]
                keys = [(needed, at, microbatch) for needed, at in needs]
                if not all(key in done for key in keys):
                    break
                # What another rank sends is a little on its way.
                start = max([free[rank], *(done[key] + 0.1 for key in keys)])
                free[rank] = start + (20 if way == "fwd" else 30) * draw.uniform(0.8, 1.4)
                ran[rank].append((start, free[rank]))
                done[way, stage, microbatch] = free[rank]
                moved = True
        assert moved, "the order waits for itself"
    return ran


def dump(
    folder: Path,
    orders: list[list[Pass]],
    *,
    chunks: int = 2,
    iterations: int = 3,
    stage_of: Callable[[int, int, int], int] = in_rounds,
    labels: tuple[str, ...] = (),
    config: dict[str, int] | None = None,
    seed: int = 0,
) -> dict[tuple[int, int], list[tuple[float, Pass]]]:
    """Write the dumps of a run; every rank counts from a zero of its own in every iteration.

    Returns:
        The truth: (rank, iteration) -> start on the rank's clock and pass, in order of the pass.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    said: list[dict[str, dict[str, object]]] = [{} for _ in orders]
    truth = {}
    for iteration in range(1, iterations + 1):
        ran = times(orders, chunks * len(orders), stage_of, draw)
        for rank, order in enumerate(orders):
            zero = min(start for start, _ in ran[rank]) - draw.uniform(0, 5)
            lists: dict[str, list[float]] = {
                f"{way}_{what}": []
                for way in ("fwd", "bwd", "wgrad")
                for what in ("start", "end", "minibatch", "chunk")
            }
            for one, (start, end) in zip(order, ran[rank], strict=True):
                lists[f"{one.way}_start"].append(start - zero)
                lists[f"{one.way}_end"].append(end - zero)
                for label, value in (("minibatch", one.microbatch), ("chunk", one.chunk)):
                    if label in labels:
                        lists[f"{one.way}_{label}"].append(value)
            total = max(end for _, end in ran[rank]) - zero
            said[rank][str(iteration)] = {"total": total, "memory": 1.0, **lists}
            truth[rank, iteration] = sorted(
                (start - zero, one) for one, (start, _) in zip(order, ran[rank], strict=True)
            )
    for rank, iterations_said in enumerate(said):
        (folder / f"pp_rank_{rank}.json").write_text(json.dumps(iterations_said))
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return truth
