"""Whether the ledger names known causes, one and two at a time, and how long it takes."""

from __future__ import annotations

import argparse
import sys
import time
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from bubblescope import sources
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.idle.ledger import Ledger, ledger
from bubblescope.analysis.idle.measured_run import measured_run
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.model.errors import ScheduleError
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from injected import CAUSES, fault, grown, idle, job

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline

INHERENT = {Cause.WARM_UP.value, Cause.STEADY.value, Cause.COOL_DOWN.value}


def added(found: Ledger) -> dict[str, int]:
    """Return the idle time by cause of what is not inherent, largest first."""
    totals = found.totals().filter(~pl.col("cause").is_in(INHERENT))
    return dict(totals.select("cause", "idle_ns").iter_rows())


def explained(timeline: Timeline) -> Ledger:
    """Return the ledger of a run."""
    found = ledger(timeline, recognise(timeline))
    if found is None:
        sys.exit("a run without a ledger")
    return found


def causes(seeds: int, jitter: float) -> None:
    """Print how often a cause that was put into a run comes first, and how far its size is off."""
    print(
        f"| one cause, {jitter:.0%} jitter | runs | named first | size off, median | 99 % | most |"
    )
    print("|---|---|---|---|---|---|")
    for cause in CAUSES:
        right, off = 0, []
        for seed in range(seeds):
            random = np.random.default_rng([seed, CAUSES.index(cause)])
            made = job(random, jitter=jitter)
            try:
                one = fault(cause, random, made)
            except ScheduleError:  # no swap of this schedule costs anything
                continue
            without, with_it = made.play(), made.play(one)
            truth = grown(without, with_it, cause)
            found = added(explained(with_it))
            right += next(iter(found), None) == cause.value
            off.append(abs(found.get(cause.value, 0) / truth - 1) if truth else 0.0)
        print(
            f"| {cause.value} | {len(off)} | {right / len(off):.1%} | {median(off):.2%} | "
            f"{np.quantile(off, 0.99):.2%} | {max(off):.2%} |"
        )


def pairs(seeds: int, jitter: float) -> None:
    """Print how often two causes that were put into a run are the first two.

    One that hardly adds anything beside the other (under 2 % of the idle time) does not count.
    """
    print(f"| two causes, {jitter:.0%} jitter | runs | both named first |")
    print("|---|---|---|")
    every = []
    for one, other in combinations(CAUSES, 2):
        right = []
        for seed in range(seeds):
            random = np.random.default_rng([seed, CAUSES.index(one), CAUSES.index(other)])
            made = job(random, jitter=jitter)
            try:
                first, second = (fault(cause, random, made) for cause in (one, other))
                both = made.play(first, second)
            except ScheduleError:
                continue
            least = 0.02 * idle(both).sum()
            if grown(made.play(second), both, one) < least:
                continue
            if grown(made.play(first), both, other) < least:
                continue
            named = list(added(explained(both)))[:2]
            right.append(set(named) == {one.value, other.value})
        every += right
        share = f"{sum(right) / len(right):.1%}" if right else "-"
        print(f"| {one.value}, {other.value} | {len(right)} | {share} |")
    print(f"| all | {len(every)} | {sum(every) / len(every):.1%} |")


def nothing(seeds: int) -> None:
    """Print whether runs without faults are said to have nothing but inherent idle time."""
    clean = 0
    for seed in range(seeds):
        clean += not added(explained(job(np.random.default_rng(seed)).play()))
    print(f"nothing put in: inherent only in {clean} of {seeds}")


def replays(paths: list[Path]) -> None:
    """Print how far the replays of traces are from their steps."""
    print("| trace | tasks | steps | off, mean | off, most | first avoidable cause |")
    print("|---|---|---|---|---|---|")
    for path in paths:
        timeline = sources.load(path)
        found = explained(timeline)
        first = next(iter(added(found).items()), None)
        share = first[1] / found.table["idle_ns"].sum() if first else 0
        said = f"{first[0]}, {share:.1%}" if first else "none"
        run = found.counterfactuals.run
        print(
            f"| {path.name} | {len(run):,} | {len(run.steps)} | "
            f"{found.replay_error:.3%} | {found.worst_error:.3%} | {said} |"
        )


def speed(sizes: list[int], repeats: int) -> None:
    """Print how long the ledger takes beside the recognition before it."""
    print("| tasks | recognise | graph | ledger | rows |")
    print("|---|---|---|---|---|")
    plan = generate("1f1b", 16, 128)
    random = np.random.default_rng(0)
    for size in sizes:
        steps = max(1, size // len(plan))
        noisy = (10_000_000 * random.uniform(0.9, 1.1, (16, 128))).astype(np.int64)
        timeline = simulate(plan, Costs(noisy, noisy, noisy, comm_ns=200_000), steps=steps)
        taken: list[tuple[float, float, float]] = []
        for _ in range(repeats):
            begin = time.perf_counter()
            found = recognise(timeline)
            known = time.perf_counter()
            measured_run(timeline)
            built = time.perf_counter()
            rows = ledger(timeline, found)
            taken.append((known - begin, built - known, time.perf_counter() - built))
        times = " | ".join(f"{median(column):.2f} s" for column in zip(*taken, strict=True))
        print(f"| {len(plan) * steps:,} | {times} | {len(rows.gaps) if rows else 0:,} |")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=20, help="seeds of each pair of causes")
    parser.add_argument("--jitter", type=float, nargs="*", default=[0.0, 0.01])
    parser.add_argument("--tasks", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--traces", type=Path, nargs="*", help="real traces to replay")
    options = parser.parse_args()
    if options.traces:
        replays(options.traces)
        return
    if options.seeds:
        nothing(options.seeds)
        for jitter in options.jitter:
            print()
            causes(options.seeds, jitter)
    if options.pairs:
        for jitter in options.jitter:
            print()
            pairs(options.pairs, jitter)
    if options.tasks:
        print()
        speed(options.tasks, options.repeats)


if __name__ == "__main__":
    main()
