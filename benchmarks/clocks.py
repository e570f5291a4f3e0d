"""What aligning clocks gets right, against pipelines whose skew is known, and how long it takes."""

from __future__ import annotations

import argparse
import time

import numpy as np
import polars as pl

from bubblescope.analysis.rates import bubble_rates
from bubblescope.clocks import align
from bubblescope.model.timeline import Timeline
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate

LATENCY = 20_000
WORK = 1_000_000


def pipeline(
    random: np.random.Generator,
    *,
    ranks: int,
    hosts: int,
    microbatches: int,
    steps: int,
    **clock: float,
) -> tuple[Timeline, Timeline]:
    """Return a 1F1B run as its hosts' clocks saw it, and as the first one's would have.

    Transfers take 20 us and an exponential rest of 10 us on average, which differs from link to link
    and step to step; `skew_ns` and `ppm` are the most that clocks are off and drift.
    """
    plan = generate("1f1b", ranks, microbatches)
    parts, at = [], 0
    for step in range(steps):
        work = (WORK * random.uniform(0.8, 1.2, (ranks, microbatches))).astype(np.int64)
        links = (LATENCY * (1 + random.exponential(0.5, (ranks, ranks)))).astype(np.int64)
        played = simulate(plan, Costs(work, work, work, comm_ns=links))
        moved = [pl.col(name) + at for name in ("start_ns", "end_ns")]
        parts.append(played.tasks.with_columns(step=pl.lit(step, pl.Int32)).with_columns(*moved))
        at += played.duration_ns + WORK
    tasks = pl.concat(parts).drop("busy_ns")
    host = np.arange(ranks) * hosts // ranks
    offset = random.uniform(-clock["skew_ns"], clock["skew_ns"], hosts)
    rate = 1 + random.uniform(-clock["ppm"], clock["ppm"], hosts) * 1e-6
    named = played.ranks.with_columns(host=pl.Series([f"node{one}" for one in host]))
    own = host[tasks["rank"].to_numpy()]

    def seen(on: np.ndarray) -> Timeline:
        columns = {
            name: pl.Series(
                np.rint(tasks[name].to_numpy() * rate[on] + offset[on]).astype(np.int64)
            )
            for name in ("start_ns", "end_ns")
        }
        return Timeline(tasks.with_columns(**columns), named)

    return seen(own), seen(np.zeros(len(own), np.int64))


def ordered(timeline: Timeline) -> pl.DataFrame:
    """Return tasks in an order that does not depend on clocks."""
    return timeline.tasks.sort("rank", "step", "kind", "microbatch", "peer", "name")


def known_skew(seeds: int) -> None:
    """Print how often the truth is inside what is stated, and how far the middle is from it.

    The seeds are shared out among the cases.
    """
    print(
        "| hosts | skew | drift | runs | truth inside | median error | stated | rate inside its ± |"
    )
    print("|---|---|---|---|---|---|---|---|")
    cases = ((0, 0), (1e3, 0), (1e6, 0), (1e10, 0), (1e6, 1), (1e6, 10), (1e6, 100))
    for hosts, ranks in ((2, 4), (8, 8)):
        for case, (skew_ns, ppm) in enumerate(cases):
            inside = rates = 0
            errors, stated = [], []
            for seed in range(case, seeds, len(cases)):
                timeline, truth = pipeline(
                    np.random.default_rng([seed, hosts]),
                    ranks=ranks,
                    hosts=hosts,
                    microbatches=8,
                    steps=int(3 + seed % 18),
                    skew_ns=skew_ns,
                    ppm=ppm,
                )
                found = align(timeline)
                both = ordered(found).join(
                    found.ranks.select("rank", "clock_error_ns"), on="rank", maintain_order="left"
                )
                off = (both["start_ns"] - ordered(truth)["start_ns"]).abs()
                inside += bool((off <= both["clock_error_ns"]).all())
                errors.append(off.filter(both["clock_error_ns"] > 0).median())
                stated.append(found.run.clock.error_ns)
                rate = bubble_rates(found).overall
                gap = abs(rate.makespan - bubble_rates(truth).overall.makespan)
                rates += gap <= rate.makespan_error + 1e-6
            print(
                f"| {hosts} | {skew_ns / 1e3:,.0f} µs | {ppm:g} ppm | {len(errors)} | {inside} "
                f"| {np.median(errors) / 1e3:.1f} µs | ±{np.median(stated) / 1e3:.0f} µs | {rates} |",
                flush=True,
            )


def refusals(seeds: int) -> None:
    """Print how often a contradiction that was put in is refused."""
    refused = 0
    for seed in range(seeds):
        random = np.random.default_rng([seed, 7])
        timeline, _ = pipeline(
            random, ranks=4, hosts=2, microbatches=8, steps=3, skew_ns=1e6, ppm=10
        )
        chosen = (
            (pl.col("rank") == 2)
            & (pl.col("kind") == "forward")
            & (pl.col("microbatch") == int(random.integers(8)))
            & (pl.col("step") == int(random.integers(3)))
        )
        back = int(20 * WORK * random.uniform(1, 3))
        early = pl.when(chosen).then(pl.col("start_ns") - back).otherwise("start_ns")
        broken = Timeline(timeline.tasks.with_columns(start_ns=early), timeline.ranks)
        found = align(broken)
        refused += found.run.clock.method == "refused" and found.tasks.equals(broken.tasks)
    print(f"\n{refused} of {seeds} injected contradictions refused\n")


def sizes(largest: int) -> None:
    """Print time against size: eight ranks on a host, ten steps."""
    print(
        "| ranks | hosts | tasks | pairs | processor time | error stated | violations before, after |"
    )
    print("|---|---|---|---|---|---|---|")
    hosts = 2
    while hosts <= largest:
        timeline, _ = pipeline(
            np.random.default_rng(hosts),
            ranks=8 * hosts,
            hosts=hosts,
            microbatches=16,
            steps=10,
            skew_ns=1e6,
            ppm=10,
        )
        begin = time.process_time()
        found = align(timeline)
        taken = time.process_time() - begin
        said = found.run.clock
        print(
            f"| {8 * hosts} | {hosts} | {len(timeline):,} | {said.constraints:,} | {taken:.2f} s "
            f"| ±{said.error_ns / 1e3:.0f} µs | {said.violations_before:,}, {said.violations_after} |",
            flush=True,
        )
        hosts *= 4 if hosts * 4 <= largest or hosts == largest else max(1, largest // hosts)


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--hosts", type=int, default=128)
    options = parser.parse_args()
    sizes(options.hosts)
    print()
    known_skew(options.seeds)
    refusals(options.seeds)


if __name__ == "__main__":
    main()
