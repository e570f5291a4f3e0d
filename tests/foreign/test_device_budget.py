"""The device's budget, to the nanosecond, of traces whose idle time was put in on purpose."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from bubblescope.analysis.report import Report
from bubblescope.sources import load
from device_exports import kineto, nsight
from device_maker import HOST_CLASSES, LATE, NSIGHT_HOSTS, Mode, make
from device_truth import SUMS
from full import FULL, examples

MODES = {
    "each class": Mode(),
    "two classes at once": Mode(pairs=True),
    "streams that overlap": Mode(pairs=True, streams=3),
    "jitter": Mode(pairs=True, streams=2, jitter=True),
    "cut": Mode(streams=2, cut=True),
    "lost launches": Mode(streams=2, lost=0.1),
    "ranks": Mode(ranks=3),
    "threads": Mode(pairs=True, engine=True),
    "hip": Mode(pairs=True, streams=2, hip=True),
    "all": Mode(pairs=True, streams=3, jitter=True, cut=True, lost=0.1, ranks=2, engine=True),
}
ALONE = range(30)
"""Seeds that are jobs of their own."""
TOGETHER = range(len(ALONE), examples(1000) if FULL else len(ALONE))
"""Seeds whose ranks are read as those of one job, `BATCH` of one mode at a time: most of what reading
costs is the same for one file of this size and for many."""
BATCH = 10
CLASSES = {*HOST_CLASSES.values(), "launch_call", *LATE, "unlinked"}


def of(seed):
    """Return the mode of a seed: they take turns."""
    return list(MODES.values())[seed % len(MODES)]


def reported(path):
    """Return what a report says of the devices."""
    return Report.of(load(path)).to_dict()


def plain(budget):
    """Return a budget in the terms of the truth: idle time by class, without those that have none."""
    assert {"idle", *SUMS} <= budget.keys()
    classes = [row["class"] for row in budget["idle"]]
    assert len(classes) == len(set(classes))
    idle = {row["class"]: row["idle_ns"] for row in budget["idle"] if row["idle_ns"]}
    return {key: budget[key] for key in SUMS} | {"idle": idle}


def pages(report):
    """Yield every budget of a report."""
    for rank in [*report["devices"], report["device"]]:
        yield rank["capture"]
        yield from rank["steps"]


def summed(budgets):
    """Return the sum of budgets as the truth has them."""
    total, idle = Counter(dict.fromkeys(SUMS, 0)), Counter()
    for budget in budgets:
        total.update({key: budget[key] for key in SUMS})
        idle.update(budget["idle"])
    return {**total, "idle": dict(idle)}


def check(report, ranks):
    """Compare a report with the truth, rank by rank, step by step, and over all ranks."""
    by_step = defaultdict(list)
    for rank, device in zip(ranks, report["devices"], strict=True):
        assert device["rank"] == rank.number
        assert plain(device["capture"]) == rank.truth["capture"]
        steps = [{"step": step["step"], **plain(step)} for step in device["steps"]]
        assert steps == rank.truth["steps"]
        for step in rank.truth["steps"]:
            by_step[step["step"]].append(step)
    whole = report["device"]
    assert plain(whole["capture"]) == summed(rank.truth["capture"] for rank in ranks)
    assert {step["step"]: plain(step) for step in whole["steps"]} == {
        step: summed(budgets) for step, budgets in by_step.items()
    }


def exact(report):
    """Check that every nanosecond has exactly one class, in whole numbers."""
    for budget in pages(report):
        idle = [row["idle_ns"] for row in budget["idle"]]
        assert all(type(budget[key]) is int for key in SUMS)
        assert all(type(ns) is int and ns >= 0 for ns in idle)
        assert {row["class"] for row in budget["idle"]} <= CLASSES
        assert sum(idle) == budget["idle_ns"]
        assert budget["total_ns"] == (
            budget["compute_ns"]
            + budget["communication_exposed_ns"]
            + budget["copy_exposed_ns"]
            + budget["idle_ns"]
        )


def batches():
    """Return the seeds of `TOGETHER`, so many at a time."""
    each = [TOGETHER[first :: len(MODES)] for first in range(len(MODES))]
    return [seeds[at : at + BATCH] for seeds in each for at in range(0, len(seeds), BATCH)]


def together(seeds, **hosts):
    """Make the ranks of a job for each seed, and number them through."""
    ranks = [rank for seed in seeds for rank in make(replace(of(seed), **hosts), seed)]
    for number, rank in enumerate(ranks):
        rank.number = rank.truth["rank"] = number
    return ranks


def test_every_seed_is_tried():
    tried = [*ALONE, *(seed for seeds in batches() for seed in seeds)]
    assert sorted(tried) == [*ALONE, *TOGETHER]
    assert all(of(seed) is of(seeds[0]) for seeds in batches() for seed in seeds)


@pytest.mark.parametrize("seed", ALONE)
def test_kineto(seed, tmp_path):
    ranks = make(of(seed), seed)
    report = reported(kineto(ranks, tmp_path))
    exact(report)
    check(report, ranks)


@pytest.mark.parametrize("seed", [seed for seed in ALONE if not of(seed).hip])
def test_nsight(seed, tmp_path):
    ranks = make(replace(of(seed), hosts=NSIGHT_HOSTS), seed)
    report = reported(nsight(ranks, tmp_path / "all.sqlite"))
    exact(report)
    check(report, ranks)


@pytest.mark.parametrize("seed", range(examples(30) if FULL else 8))
def test_graphs_that_are_recorded_as_a_whole(seed, tmp_path):
    """They count as compute, and how much of it they alone are is said."""
    mode = Mode(pairs=True, streams=1 + seed % 3, cut=seed % 2 > 0, graphs=0.5, hosts=NSIGHT_HOSTS)
    ranks = make(mode, seed)
    assert all(rank.truth["capture"]["graphs_ns"] > 0 for rank in ranks)
    report = reported(nsight(ranks, tmp_path / "all.sqlite"))
    exact(report)
    check(report, ranks)


@pytest.mark.parametrize("seeds", batches(), ids=str)
def test_kineto_together(seeds, tmp_path):
    ranks = together(seeds)
    report = reported(kineto(ranks, tmp_path))
    exact(report)
    check(report, ranks)


@pytest.mark.parametrize("seeds", [it for it in batches() if not of(it[0]).hip], ids=str)
def test_nsight_together(seeds, tmp_path):
    ranks = together(seeds, hosts=NSIGHT_HOSTS)
    report = reported(nsight(ranks, tmp_path / "all.sqlite"))
    exact(report)
    check(report, ranks)


@pytest.mark.parametrize("name", MODES)
def test_what_is_made_has_every_class(name):
    """The truth that the others compare with: it is exact too, and leaves no class out."""
    made = [rank.truth for seed in range(20) for rank in make(MODES[name], seed)]
    wanted = CLASSES - {"event_wait"} if MODES[name].hip else CLASSES
    assert {sort for truth in made for sort in truth["capture"]["idle"]} == wanted
    for truth in made:
        exact(
            {
                "devices": [],
                "device": {
                    key: [_listed(page) for page in value] if key == "steps" else _listed(value)
                    for key, value in truth.items()
                    if key != "rank"
                },
            }
        )


def _listed(page):
    """Return a page of the truth as a report has it."""
    return page | {"idle": [{"class": key, "idle_ns": ns} for key, ns in page["idle"].items()]}
