"""A plan is played the same whether what its operations take is looked up at each depth or at once."""

from __future__ import annotations

import numpy as np
import pytest

from bubblescope.analysis import plan_replays
from bubblescope.analysis.plan_replays import Costs, PlanReplays
from bubblescope.schedules import generate


@pytest.mark.parametrize("late_ns", [0, 7])
@pytest.mark.parametrize("mixed", [False, True])
def test_small_plans_are_played_as_large_ones(monkeypatch, mixed, late_ns):
    random = np.random.default_rng(1)
    plan = generate("zb-h1", 4, 6)
    terms, devices, runs = (2 if mixed else 1), 4, 3
    costs = Costs(
        random.uniform(10, 1000, (5, runs)),
        random.integers(0, 5, (terms, len(plan))),
        random.uniform(0, 1, (terms, len(plan))) if mixed else None,
        random.uniform(1, 2, (devices, runs)) if mixed else None,
        late_ns,
    )
    delay = random.integers(0, 50, (devices, devices))
    free = random.integers(0, 500, (devices, runs))
    replays = PlanReplays(plan)
    known = replays.of(costs, delay)
    at_once = (*known.play(free), *known.times(free))
    monkeypatch.setattr(plan_replays, "_SMALL", 0)
    looked_up = replays.of(costs, delay)
    by_depth = (*looked_up.play(free), *looked_up.times(free))
    for one, other in zip(at_once, by_depth, strict=True):
        assert one.tolist() == other.tolist()
    assert at_once[0].min() > 0
    for again in (known, looked_up):
        assert [one.tolist() for one in again.play(free)] == [one.tolist() for one in at_once[:4]]
