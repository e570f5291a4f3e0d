"""How gaps are given to causes, against the definition, one nanosecond after another."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bubblescope.analysis.idle import explained_gaps
from bubblescope.analysis.idle import ledger as module
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.model.kinds import Kind
from bubblescope.schedules import generate
from bubblescope.schedules.plan import Operation, Plan
from bubblescope.schedules.simulate import Costs, simulate
from injected import Fault, Job


def growth(levels):
    """Return by how much each of some levels is above the one before, the first above nothing."""
    return [level - before for level, before in zip(levels, [0, *levels], strict=False)]


def shared_out(idle, *, displaced):
    """Return how much of each gap of one rank's step each replay is responsible for.

    Args:
        idle: How long each gap is in each replay; the last one is what was measured.
        displaced: Whether the last replay gets all by which it makes gaps longer.
    """
    replays, gaps = range(len(idle)), range(len(idle[0]))
    own = np.zeros((len(idle), len(idle[0])), int)
    for gap in gaps:
        reached = [max(idle[one][gap] for one in range(last + 1)) for last in replays]
        own[:, gap] = growth([min(one, idle[-1][gap]) for one in reached])
    totals = [sum(row) for row in idle]
    if displaced:
        most = totals[-1] - own[-1].sum()
        totals[:-1] = [min(total, most) for total in totals[:-1]]
    due = growth([min(totals[one:]) for one in replays])
    # What a cause has beyond that is taken from its latest gaps, nanosecond by nanosecond,
    taken = []
    for one in replays:
        for gap in reversed(gaps):
            while own[one, gap] and own[one].sum() > due[one]:
                own[one, gap] -= 1
                taken.append((gap, one))
    # and given, the earliest gap's first, to those that have too little, the first cause first.
    for gap, _ in sorted(taken):
        short = next(one for one in replays if own[one].sum() < due[one])
        own[short, gap] += 1
    return own.tolist()


@st.composite
def steps(draw):
    """Draw the gaps of some ranks' steps in some replays, and how many each has."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    gap = st.integers(0, 6)
    idle = [draw(st.lists(gap, min_size=sum(sizes), max_size=sum(sizes))) for _ in range(4)]
    return idle, sizes


@given(steps(), st.booleans())
@example(([[2, 0, 3], [3, 1, 0], [1, 1, 5]], [3]), True)
@example(([[0, 5], [5, 0], [4, 4]], [2]), False)
def test_each_gap_is_given_to_the_causes_that_made_it_and_each_cause_gets_its_due(drawn, displaced):
    idle, sizes = drawn
    edges = np.append(0, np.cumsum(sizes))
    expected = [
        shared_out([row[low:high] for row in idle], displaced=displaced)
        for low, high in pairwise(edges.tolist())
    ]
    for at_once in (1, 1 << 14):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(explained_gaps, "_AT_ONCE", at_once)
            found = explained_gaps._given(np.array(idle), edges[:-1], displaced=displaced)
        assert found.tolist() == np.concatenate(expected, axis=1).tolist()
    assert found.sum(axis=0).tolist() == idle[-1]


def test_totals_are_in_order_of_their_size_and_then_by_name():
    run = Job(generate("1f1b", 4, 8)).play(Fault(Cause.SLOW_RANK, slow={(0, 2): 1.5}))
    totals = module.ledger(run, recognise(run)).totals()
    rows = totals.select(-pl.col("idle_ns"), pl.col("cause").cast(pl.String)).rows()
    assert rows == sorted(rows)
    assert len({row[0] for row in rows}) > 2
    assert totals["share"].sum() == pytest.approx(1)
    tied = pl.DataFrame({"step": 0, "rank": [0, 0], "cause": ["late", "early"], "idle_ns": 10**12})
    first = msgspec.structs.replace(module.ledger(run, recognise(run)), table=tied).totals()
    assert first["cause"].to_list()[:2] == ["early", "late"]
    nothing = Job(generate("1f1b", 1, 2)).play()
    shares = module.ledger(nothing, recognise(nothing)).totals()["share"]
    assert shares.to_list() == [0.0] * len(shares)


def test_a_gap_before_the_very_first_task_of_a_timeline_names_it():
    """Rank 0 holds the last stage."""
    orders = [
        [Operation(kind, stage, 0) for kind in (Kind.FORWARD, Kind.BACKWARD)] for stage in (1, 0)
    ]
    run = simulate(Plan.of("turned", ((1,), (0,)), orders), Costs(10, 20, 0))
    gaps = module.ledger(run, recognise(run)).gaps
    assert gaps.filter(rank=0).select("task", "root").row(0) == (0, 2)
    assert run.tasks["kind"].to_list() == ["forward", "backward"] * 2
