"""What communicates in tasks, by group, beside a plain look at every row of the device's budget."""

from __future__ import annotations

import random
from collections import defaultdict

import polars as pl

from bubblescope import Timeline
from bubblescope.analysis.view import View
from bubblescope.model.groups import Group, tabled
from bubblescope.render.html.data import PageData
from bubblescope.render.html.in_tasks import groups_of
from communicating import GROUPS, collectives, communicating
from synthetic import one_f_one_b

USES = ("communication", "communication_hidden")


def scattered(seed: int) -> Timeline:
    """A run with communication of random roles, inside of tasks and between them."""
    run, rng = communicating(one_f_one_b()), random.Random(seed)
    rows = run.budget.to_dicts()
    for row in rows:
        if row["use"] in USES:
            row |= {"use": rng.choice(USES), "role": rng.choice(["tp", "ep", None])}
            row["detail"] = rng.choice(["allreduce", None])
            row["spent_ns"] = rng.choice([0, rng.randrange(row["spent_ns"])])
            if rng.random() < 0.2:
                shift = row["end_ns"] - row["start_ns"]  # to just after the task
                row |= {"start_ns": row["end_ns"], "end_ns": row["end_ns"] + shift, "inside": None}
    budget = pl.DataFrame(rows, run.budget.schema)
    return Timeline(run.tasks, run.ranks, run.run, **{**run.tables, "budget": budget})


def by_task(data: PageData) -> dict[tuple, list[int]]:
    """Task, role and operation -> exposed and hidden time."""
    kinds = data.told.communicating
    rows = data.communication.select("at", "of", "exposed_ns", "hidden_ns").rows()
    return {
        (data.tasks["task"][at], kinds[of].role, kinds[of].operation): times
        for at, of, *times in rows
    }


def test_each_task_has_what_communicated_in_it():
    run = scattered(3)
    moved = [row for row in run.budget.iter_rows(named=True) if row["use"] in USES]
    wanted: dict[tuple, list[int]] = defaultdict(lambda: [0, 0])
    for task, own in enumerate(run.tasks.iter_rows(named=True)):
        for row in moved if own["lane"] == "compute" else ():
            within = own["start_ns"] <= row["start_ns"] < own["end_ns"]
            if within and row["rank"] == own["rank"]:
                times = wanted[task, row["role"], row["detail"]]
                times[USES.index(row["use"])] += row["spent_ns"]
    found = by_task(PageData.of(View.of(run)))
    assert found == {key: times for key, times in wanted.items() if any(times)}
    assert len(found) > 100


def test_a_rank_of_several_devices_tells_nothing():
    run = communicating(one_f_one_b())
    other = run.budget.filter(rank=1).with_columns(device=pl.lit(1, pl.Int32))
    budget = pl.concat([run.budget, other])
    several = Timeline(run.tasks, run.ranks, run.run, **{**run.tables, "budget": budget})
    data = PageData.of(View.of(several))
    ranks = data.tasks["rank"].gather(data.communication["at"])
    assert ranks.unique().sort().to_list() == [0, 2, 3]


def test_groups_are_those_of_several_ranks_and_known_use_once_each():
    run = communicating(one_f_one_b())
    more = [Group(name="x", ranks=(0, 1), role=None), Group(name="y", ranks=(2,), role="dp")]
    again = Group(name="z", ranks=(0, 1), role="tp")
    groups = pl.concat([run.groups, tabled([*more, again])])
    told = groups_of(Timeline(run.tasks, groups=groups))
    assert sorted((group.role, tuple(group.ranks)) for group in told) == sorted(GROUPS)


def test_collectives_say_how_long_they_waited_for_whom():
    data = PageData.of(View.of(collectives(communicating(one_f_one_b()))))
    rows = data.tasks.filter(lane="comm", kind="collective")
    ranks = [rank.rank for rank in data.told.ranks]
    assert rows.height == 12 * len(ranks)
    assert rows["awaited"].unique().to_list() == [ranks.index(2)]
    for row in rows.iter_rows(named=True):
        assert row["waited"] == (0 if row["rank"] == 2 else 300_000 - 10_000 * row["rank"])
        assert row["off"] == len(ranks) - 1
    others = data.tasks.filter(pl.col("kind") != "collective")
    assert others["waited"].unique().to_list() == [-1]


def test_where_collectives_are_not_matched_a_page_has_nothing_of_waiting():
    run = collectives(communicating(one_f_one_b()), matched=False)
    assert "waited" not in PageData.of(View.of(run)).tasks.columns
