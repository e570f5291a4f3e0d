"""What devices did in the bubbles of a pipeline, counted moment by moment."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.analysis.losses import BETWEEN, UNRECORDED, Lost, losses
from bubblescope.analysis.study import study
from bubblescope.model.budget import BUDGET_SCHEMA, HIDDEN, Use
from dealt_runs import spent
from unsynchronised import Pipeline

LENGTH = 60
COUNTED = ~pl.col("use").is_in([use.value for use in HIDDEN])


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
        for row in budget:
            if gap["rank"] == row["rank"]:
                both = min(gap["end_ns"], row["end_ns"]) - max(gap["start_ns"], row["start_ns"])
                wanted[row["use"], gap["cause"]] += max(0, both)
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
    held = pl.DataFrame(gaps).with_columns(step=pl.lit(0, pl.Int32))
    held = held.with_columns(pl.col("rank").cast(pl.Int32))
    lost = Lost.of(Timeline(tasks, budget=table), [held])
    found = {(use, cause): ns for use, cause, ns in lost.bubbles.iter_rows() if ns}
    assert found == {key: ns for key, ns in wanted.items() if ns}


def test_a_moment_in_bubbles_of_two_steps_is_lost_once():
    """Ranks begin a step while others are in the one before: each step has bubbles of its own then.

    Nor is lost what a rank runs of the one step in a bubble of the other.
    """
    run = Pipeline("zb-h2", (1.0, 1.4, 1.0, 0.9), rest=2.0).play()
    budget = spent(run.tasks, np.random.default_rng(1))
    timeline = Timeline(run.tasks, run.ranks, run.run, budget=budget)
    tasks = run.tasks.filter(lane="compute")
    opens, closes = tasks.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    worked = int((tasks["end_ns"] - tasks["start_ns"]).sum())
    found = study(timeline)
    assert found.bubbles.overall.idle_ns > 4 * (closes - opens) - worked  # each step's own
    table = losses(timeline, found.ledger).table
    assert (table["spent_ns"] > 0).all()
    between = table.filter(place=BETWEEN)
    assert between["spent_ns"].sum() == 4 * (closes - opens) - worked
    known = table.filter(pl.col("use") != UNRECORDED)
    assert known["spent_ns"].sum() == timeline.budget.filter(COUNTED)["spent_ns"].sum()
