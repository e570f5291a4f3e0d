"""What devices did in the bubbles of a pipeline, counted moment by moment."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.analysis.losses import Lost
from bubblescope.model.budget import BUDGET_SCHEMA, Use

LENGTH = 60


def stretches(random, ranks, column, values):
    """Stretches of time of each rank, one after the other, each of a value or of none."""
    rows = []
    for rank in ranks:
        edges = [0, *sorted(random.choice(np.arange(1, LENGTH), 8, replace=False).tolist()), LENGTH]
        for start, end in pairwise(edges):
            if random.random() < 0.7:
                what = values[random.integers(len(values))]
                rows.append({"rank": rank, "start_ns": start, "end_ns": end, column: what})
    return rows


@pytest.mark.parametrize("seed", range(8))
def test_what_devices_did_in_bubbles_is_what_overlaps_them(seed):
    """Also where only some of the ranks tell what their devices did."""
    random = np.random.default_rng(seed)
    ranks = [0, 1, 2, 3]
    telling = ranks[: random.integers(0, 5)]
    uses = [use.value for use in (Use.COMPUTE, Use.COPY)]
    budget = stretches(random, telling, "use", uses)
    gaps = stretches(random, ranks, "cause", ["launch", "cool-down"])
    wanted: Counter[tuple[str, str]] = Counter()
    for gap in gaps:
        for spent in budget:
            if gap["rank"] == spent["rank"]:
                both = min(gap["end_ns"], spent["end_ns"]) - max(gap["start_ns"], spent["start_ns"])
                wanted[spent["use"], gap["cause"]] += max(0, both)
    table = pl.DataFrame(
        [{**row, "step": 0, "spent_ns": row["end_ns"] - row["start_ns"]} for row in budget],
        schema={
            name: BUDGET_SCHEMA[name]
            for name in ("rank", "start_ns", "end_ns", "use", "step", "spent_ns")
        },
    )
    tasks = pl.DataFrame(
        {
            "rank": ranks, "step": 0, "kind": "forward", "lane": "compute",
            "start_ns": LENGTH, "end_ns": LENGTH + 1, "name": "F0",
        }
    )  # fmt: skip
    lost = Lost.of(Timeline(tasks, budget=table), [pl.DataFrame(gaps)])
    found = {(use, cause): ns for use, cause, ns in lost.bubbles.iter_rows() if ns}
    assert found == {key: ns for key, ns in wanted.items() if ns}
