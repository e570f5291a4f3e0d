"""Time of simulating schedules and of recognising them.

Simulation is compared with a plain simulator that keeps its state in dictionaries and goes from
operation to operation, as scripts for this purpose do.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median
from typing import TYPE_CHECKING

from bubblescope.analysis.rates import bubble_rates
from bubblescope.analysis.schedule.ideal import ideal
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.model.kinds import Kind
from bubblescope.schedules import generate
from bubblescope.schedules.replay import Graph, edges_of
from bubblescope.schedules.simulate import Costs, durations, simulate
from bubblescope.schedules.zb_auto import Times

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.schedules.plan import Plan

DEVICES = 16
TIMES = Times(1_000, 1_100, 900, 50)


def timed(call: Callable[[], object], repeats: int) -> tuple[float, object]:
    """Return the median time of some calls and what the last one returned."""
    taken, result = [], None
    for _ in range(repeats):
        begin = time.perf_counter()
        result = call()
        taken.append(time.perf_counter() - begin)
    return median(taken), result


def plainly(plan: Plan) -> int:
    """Simulate with dictionaries; return the makespan."""
    length = {Kind.FORWARD: 1_000, Kind.BACKWARD: 2_000, Kind.BACKWARD_INPUT: 1_100}
    orders = [plan.order(device) for device in range(plan.devices)]
    ended: dict[tuple[bool, int, int], int] = {}
    free = [0] * plan.devices
    done = [0] * plan.devices
    while True:
        moved = False
        for device, order in enumerate(orders):
            while done[device] < len(order):
                kind, stage, microbatch, *_ = order[done[device]]
                start = free[device]
                if kind is not Kind.BACKWARD_WEIGHT:
                    forward = kind is Kind.FORWARD
                    before = stage - 1 if forward else stage + 1
                    if 0 <= before < plan.stages:
                        arrival = ended.get((forward, before, microbatch))
                        if arrival is None:
                            break
                        start = max(start, arrival + TIMES.comm_ns)
                free[device] = start + length.get(kind, 900)
                if kind is not Kind.BACKWARD_WEIGHT:
                    ended[forward, stage, microbatch] = free[device]
                done[device] += 1
                moved = True
        if not moved:
            return max(free)


def simulation(sizes: list[int], repeats: int) -> None:
    """Print how long each part of a simulation takes."""
    print(
        "| schedule | operations | plan | graph | replay | graph + replay | dictionaries | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for size in sizes:
        for name, chunks in (("1f1b", 1), ("zb-h1", 1), ("interleaved-1f1b", 4)):
            each = {"1f1b": 2, "zb-h1": 3, "interleaved-1f1b": 8}[name]
            microbatches = max(1, size // (each * DEVICES * DEVICES)) * DEVICES
            planned, plan = timed(
                lambda n=name, m=microbatches, v=chunks: generate(
                    n, DEVICES, m, chunks=v if v > 1 else None
                ),
                repeats,
            )
            built, graph = timed(lambda p=plan: Graph(len(p), edges_of(p)[0]), repeats)
            lengths = durations(plan, Costs(1_000, 1_100, 900, backward_ns=2_000))
            played, _ = timed(lambda g=graph, d=lengths: g.run(d), repeats)
            plain, _ = timed(lambda p=plan: plainly(p), 1)
            print(
                f"| {name} | {len(plan):,} | {planned:.2f} s | {built:.2f} s | {played:.2f} s "
                f"| {built + played:.2f} s | {plain:.2f} s | {plain / (built + played):.1f} |"
            )


def recognition(sizes: list[int], repeats: int) -> None:
    """Print how long recognising a run and replaying its ideal take, beside measuring it."""
    print("| schedule | tasks | steps | recognise | ideal | bubble rates |")
    print("|---|---|---|---|---|---|")
    several = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipev", "zb-2p")
    cases = [(name, 8 * DEVICES, size) for size in sizes for name in several]
    # Of one long step it is the plan itself that takes time.
    cases += [(name, 64 * DEVICES, 1) for name in ("1f1b", "zb-v", "dualpipev", "zb-2p")]
    for name, microbatches, size in cases:
        # Searched plans count on transfers that the run does not have: their order is not known.
        plan = generate(name, DEVICES, microbatches, times=TIMES)
        steps = max(1, size // len(plan))
        timeline = simulate(plan, Costs(1_000, 1_100, 900), steps=steps)
        taken, found = timed(lambda t=timeline: recognise(t), repeats)
        replayed, best = timed(lambda t=timeline, f=found: ideal(t, f), repeats)
        rates, _ = timed(lambda t=timeline, b=best: bubble_rates(t, b.steps), repeats)
        if found.schedule != name:
            sys.exit(f"{name} was taken for {found.schedule}")
        print(
            f"| {name} | {len(timeline):,} | {steps} | {taken:.2f} s | {replayed:.2f} s | "
            f"{rates:.2f} s |"
        )


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--tasks", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    simulation(options.operations, options.repeats)
    print()
    recognition(options.tasks, options.repeats)


if __name__ == "__main__":
    main()
