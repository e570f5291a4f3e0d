"""Which task of one run is which of another: as plain Python finds them, and as they were made."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope import Timeline
from bubblescope.analysis.compare import Comparison
from bubblescope.analysis.pairing import Pairing, pairing
from bubblescope.analysis.step_measures import Side
from bubblescope.model.provenance import Run
from synthetic import empty, one_f_one_b
from two_runs import MS, injected, made

if TYPE_CHECKING:
    from collections.abc import Callable

MORE = {"interleaved-1f1b": {"chunks": 2}}


def changed(run: Timeline, **columns) -> Timeline:
    return Timeline(run.tasks.with_columns(**columns), None, run.run)


def paired(before: Timeline, after: Timeline) -> Pairing:
    return pairing(Comparison.of(before, after))


def paired_unmeasured(before: Timeline, after: Timeline) -> Pairing:
    """The same without measuring the runs, which takes longer and has no part in it."""
    side = Side((), None, (), None, None, None, None, None, None, (), ())
    runs, no = (before, after), ()
    return pairing(Comparison(runs, ("", ""), side, side, differs=no, changes=no, notes=no))


def codes(found: Pairing) -> list[str]:
    return [notice.code for notice in found.notices]


def lengths(tasks: pl.DataFrame, rows: pl.Series) -> pl.Series:
    return (tasks["end_ns"] - tasks["start_ns"]).gather(rows)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved-1f1b", "gpipe"])
@pytest.mark.parametrize("seed", range(3))
def test_each_task_changed_by_what_was_injected(name, seed):
    before = made(schedule=name, **MORE.get(name, {}))
    after, truth = injected(before, seed)
    found = paired(before, after)
    assert found.notices == ()
    own = before.tasks[found.tasks["task"]]
    change = lengths(found.timeline.tasks, found.tasks["other"]) - lengths(
        before.tasks, found.tasks["task"]
    )
    key = own.select("rank", "step", "kind", "stage", "microbatch").rows()
    on_device = before.tasks.filter(lane="compute")
    assert len(key) == on_device.height
    assert [truth[one] for one in key] == change.to_list()


# Beside plain Python ------------------------------------------------------------------------------


def plain(before: list[dict], after: list[dict]) -> set[tuple[int, int]]:
    """Match tasks as a person would: those of the same description, in order, if both have as many."""

    def described(tasks: list[dict], known: set[str]) -> dict[tuple, list[int]]:
        found = defaultdict(list)
        for at, task in sorted(
            enumerate(tasks), key=lambda pair: (pair[1]["start_ns"], pair[1]["end_ns"])
        ):
            if task["lane"] != "compute":
                continue
            name = task["name"] if task["kind"] == "other" else ""
            numbers = (task["rank"], task["step"], task["kind"], task["microbatch"], name)
            found[numbers + tuple(task[column] for column in sorted(known))].append(at)
        return found

    told = [
        {
            c
            for c in ("stage", "chunk")
            if any(t[c] is not None for t in tasks if t["lane"] == "compute")
        }
        for tasks in (before, after)
    ]
    known = {"stage", "chunk"} - (told[0] ^ told[1])
    mine, its = described(before, known), described(after, known)
    pairs = set()
    for key in mine.keys() & its.keys():
        if len(mine[key]) == len(its[key]):
            pairs |= set(zip(mine[key], its[key], strict=True))
    return pairs


KINDS = st.sampled_from(["forward", "backward", "optimizer", "other", "collective"])
TASK = st.fixed_dictionaries(
    {
        "rank": st.integers(0, 1),
        "step": st.integers(0, 1),
        "kind": KINDS,
        "stage": st.sampled_from([None, 1]),
        "chunk": st.sampled_from([None, 0]),
        "microbatch": st.sampled_from([None, 0]),
        "start_ns": st.integers(0, 1_000),
        "length": st.integers(0, 1_000),
        "name": st.sampled_from(["a", "b"]),
    }
)
ANCHOR = [
    {
        "rank": rank,
        "step": step,
        "kind": "forward",
        "stage": 1,
        "chunk": 0,
        "microbatch": 9,
        "start_ns": 0,
        "length": 5,
        "name": "",
    }
    for rank in range(2)
    for step in range(2)
]
"""So that both runs have the same ranks, steps and number of stages."""


def run_of(tasks: list[dict]) -> Timeline:
    frame = pl.DataFrame(
        tasks, schema_overrides={"stage": pl.Int32, "chunk": pl.Int16, "microbatch": pl.Int32}
    )
    lane = pl.when(pl.col("kind") == "collective").then(pl.lit("comm")).otherwise(pl.lit("compute"))
    end = pl.col("start_ns") + pl.col("length")
    return Timeline(frame.with_columns(lane=lane, end_ns=end).drop("length"))


@given(st.lists(TASK, max_size=30), st.lists(TASK, max_size=30), st.booleans())
def test_tasks_are_matched_as_plain_python_matches_them(mine, its, same):
    before = run_of([*ANCHOR, *mine])
    after = run_of([*ANCHOR, *(mine[::2] + its if same else its)])
    found = paired_unmeasured(before, after)
    compared = set(found.steps["step"])
    # Times are moved by as much in all of a run, which changes no order.
    oracle = plain(before.tasks.to_dicts(), found.timeline.tasks.to_dicts())
    steps = before.tasks["step"].to_list()
    assert set(found.tasks.rows()) == {pair for pair in oracle if steps[pair[0]] in compared}


def test_what_nothing_tells_apart_is_matched_in_the_order_of_starts():
    def run(*spans: tuple[int, int]) -> Timeline:
        rows = [(0, 0, "forward", "compute", "F", start, end) for start, end in spans]
        schema = ["rank", "step", "kind", "lane", "name", "start_ns", "end_ns"]
        return Timeline(pl.DataFrame(rows, schema, orient="row"))

    found = paired_unmeasured(run((0, 50), (10, 20)), run((0, 5), (10, 20)))
    assert found.tasks.rows() == [(0, 0), (1, 1)]


def test_of_unequally_many_of_the_same_none_is_matched():
    before = one_f_one_b(ranks=2, microbatches=3, steps=1)
    lost = before.tasks.with_row_index().filter(rank=0, kind="forward").row(1, named=True)["index"]
    bare = before.tasks.with_columns(microbatch=None)
    fewer = Timeline(bare.with_row_index().filter(pl.col("index") != lost).drop("index"))
    found = paired(Timeline(bare), fewer)
    kinds = before.tasks[found.tasks["task"]].filter(rank=0)["kind"].to_list()
    assert sorted(kinds) == ["backward"] * 3 + ["optimizer"]
    assert codes(found) == ["unmatched-tasks"]
    assert (found.notices[0].lost, found.notices[0].total) == (3 + 2, 14 + 13)


# Steps --------------------------------------------------------------------------------------------


def begins(run: Timeline) -> dict[int | None, int]:
    first = run.tasks.filter(lane="compute").group_by("step").agg(pl.col("start_ns").min())
    return dict(first.iter_rows())


@pytest.mark.parametrize("renumber", [lambda step: step, lambda step: step + 40])
def test_each_step_begins_where_it_begins_in_the_other_run(renumber: Callable):
    before = made(steps=4)
    after, _ = injected(before, 5)
    after = changed(after, step=renumber(pl.col("step")))
    found = paired(before, after)
    there, here = begins(found.timeline), begins(before)
    assert found.steps["step"].to_list() == [0, 1, 2, 3]
    assert found.steps["other"].to_list() == [renumber(step) for step in range(4)]
    for step, _, shift_ns in found.steps.rows():
        assert there[step] + shift_ns == here[step]
    assert found.steps["shift_ns"][0] == 0
    assert codes(found) == ([] if renumber(0) == 0 else ["steps-in-order"])
    assert found.tasks.height == before.tasks.filter(lane="compute").height


def test_steps_are_matched_by_number_where_they_share_some():
    run = made(steps=5)
    found = paired(run.slice(steps=[0, 1, 2, 3]), run.slice(steps=[2, 3, 4]))
    assert found.steps.select("step", "other").rows() == [(2, 2), (3, 3)]
    messages = [notice.message for notice in found.notices]
    assert messages == [
        "steps 0, 1 are in A only, and not compared",
        "step 4 is in B only, and not shown",
    ]
    assert set(found.timeline.tasks["step"]) == {2, 3}


def test_in_order_the_longer_run_has_steps_left_over():
    run = made(steps=5)
    after = changed(run, step=pl.col("step") + 100)
    found = paired(run, after.slice(steps=[100, 101]))
    assert found.steps.select("step", "other").rows() == [(0, 100), (1, 101)]
    assert [(one.code, one.lost) for one in found.notices] == [
        ("steps-in-order", None),
        ("unmatched-steps", 3),
    ]


def test_steps_that_were_not_recorded_whole_are_left_out():
    run = made(steps=4)
    last = run.tasks.filter(step=3)["start_ns"].min()
    found = paired(run, run.slice(end_ns=last + 10 * MS))
    assert found.steps["step"].to_list() == [0, 1, 2]


def test_runs_without_steps_are_one_step_each():
    run = changed(made(steps=1), step=pl.lit(None, pl.Int32))
    found = paired(run, run)
    assert found.steps.rows() == [(None, None, 0)]
    assert found.tasks.height == run.tasks.filter(lane="compute").height
    assert (
        found.tasks["task"].to_list()
        == run.tasks.with_row_index().filter(lane="compute")["index"].to_list()
    )


def test_a_run_without_steps_is_matched_with_one_step_only():
    whole = made(steps=1)
    bare = changed(whole, step=pl.lit(None, pl.Int32))
    one = paired(whole, bare)
    assert one.steps.select("step", "other").rows() == [(0, None)]
    assert one.tasks.height == whole.tasks.filter(lane="compute").height
    assert set(one.timeline.tasks["step"]) == {0}
    many = paired(made(steps=2), bare)
    assert not many.steps.height
    assert not many.tasks.height
    assert not len(many.timeline)
    assert codes(many) == ["one-with-steps"]


# Ranks --------------------------------------------------------------------------------------------


def test_ranks_are_matched_by_number():
    run = made()
    found = paired(run.slice(ranks=[0, 1, 2]), run.slice(ranks=[1, 2, 3]))
    assert found.ranks.rows() == [(1, 1), (2, 2)]
    assert set(found.timeline.ranks["rank"]) == {1, 2}
    assert [(one.code, one.message) for one in found.notices[:2]] == [
        ("unmatched-ranks", "rank 0 is in A only, and not compared"),
        ("unmatched-ranks", "rank 3 is in B only, and not shown"),
    ]
    tasks = run.slice(ranks=[0, 1, 2]).tasks
    assert set(tasks[found.tasks["task"]]["rank"]) == {1, 2}


def test_as_many_other_ranks_are_matched_in_order():
    run = made()
    after = changed(run, rank=pl.col("rank") + 8)
    found = paired(run, after)
    assert found.ranks.rows() == [(rank, rank + 8) for rank in range(4)]
    assert "ranks-in-order" in codes(found)
    assert found.tasks.height == run.tasks.filter(lane="compute").height
    assert set(found.timeline.tasks["rank"]) == {0, 1, 2, 3}


def test_ranks_without_a_common_clock_are_moved_each_by_itself():
    run = made(steps=2)
    off = pl.col("rank") * 987_654_321
    after = Timeline(
        run.tasks.with_columns(pl.col("start_ns") + off, pl.col("end_ns") + off),
        run.ranks,
        Run(common_clock=False),
    )
    found = paired(run, after)
    assert "no-common-clock" in codes(found)
    key = ["rank", "step"]
    first = pl.col("start_ns").min()
    there = found.timeline.tasks.group_by(key).agg(first).sort(key)
    here = run.tasks.filter(lane="compute").group_by(key).agg(first).sort(key)
    assert there.equals(here)


# Other shapes -------------------------------------------------------------------------------------


def test_passes_of_other_stages_are_not_the_same():
    before, after = made(), made(schedule="interleaved-1f1b", chunks=2)
    found = paired(before, after)
    assert "other-stages" in codes(found)
    kinds = set(before.tasks[found.tasks["task"]]["kind"])
    assert kinds == {"optimizer"}
    assert len(found.timeline) == after.tasks.filter(lane="compute").height


def test_of_another_schedule_what_it_does_as_well_is_matched():
    before, after = made(), made(schedule="zb-h1")
    found = paired(before, after)
    kinds = before.tasks[found.tasks["task"]]["kind"].value_counts().sort("kind")
    assert dict(kinds.iter_rows()) == {"forward": 4 * 8 * 3, "optimizer": 4 * 3}
    [notice] = found.notices
    assert (notice.lost, notice.total) == ((1 + 2) * 4 * 8 * 3, ((2 + 3) * 8 + 2) * 4 * 3)


def test_more_micro_batches_are_left_over():
    found = paired(made(microbatches=4), made(microbatches=6))
    [notice] = found.notices
    assert (notice.lost, notice.total) == (2 * 2 * 4 * 3, (8 + 1 + 12 + 1) * 4 * 3)


def test_stages_that_one_run_does_not_tell_tell_nothing_apart():
    run = made()
    bare = changed(run, stage=pl.lit(None, pl.Int32), pair_stage=pl.lit(None, pl.Int32))
    assert paired(run, bare).tasks.height == run.tasks.filter(lane="compute").height


def test_runs_without_tasks_have_none_in_common():
    found = paired(empty(), empty())
    assert not found.tasks.height
    found = paired(made(), empty())
    assert not found.tasks.height
    assert not len(found.timeline)
