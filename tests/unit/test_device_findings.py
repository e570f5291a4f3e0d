"""What is said of runs without a pipeline: of their steps, and not of what was recorded around them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import polars as pl
import pytest
from rich.console import Console

from bubblescope import Timeline
from bubblescope.analysis.compare import Comparison
from bubblescope.analysis.device_budget import Spent, budget, budget_of
from bubblescope.analysis.losses import OUTSIDE, Losses, Lost, losses, losses_of
from bubblescope.analysis.whatif_device import DeviceWhatIf
from bubblescope.analysis.why.device_findings import lost
from bubblescope.analysis.words import sentence
from bubblescope.model.budget import Use
from bubblescope.model.language import LANGUAGES
from bubblescope.model.provenance import ONE_STEP, Run
from bubblescope.model.timeline import TASK_SCHEMA
from bubblescope.render.html.device_sums import devices_of
from bubblescope.render.text.report import Report
from bubblescope.render.text.why import Explanation

if TYPE_CHECKING:
    from collections.abc import Sequence

MS = 1_000_000


def run(*spent: tuple[int | None, str, int, str | None], goes_on: Sequence[int] = ()) -> Timeline:
    """Return what one device did, one thing after another: step, class, time and detail of each.

    Args:
        spent: What it did.
        goes_on: Steps that go on when the recording ends.
    """
    rows, at = [], 0
    for step, use, time_ns, detail in spent:
        rows.append((0, 0, step, at, at + time_ns, use, detail, time_ns))
        at += time_ns
    names = ["rank", "device", "step", "start_ns", "end_ns", "use", "detail", "spent_ns"]
    budget = pl.DataFrame(rows, schema=names, orient="row")
    steps = budget.drop_nulls("step").group_by("rank", "step", maintain_order=True)
    times = steps.agg(pl.col("start_ns").min(), pl.col("end_ns").max()).with_columns(
        open=pl.col("step").is_in(list(goes_on))
    )
    ranks = pl.DataFrame({"rank": [0], "host": "h"}, schema_overrides={"rank": pl.Int32})
    return Timeline(pl.DataFrame(schema=TASK_SCHEMA), ranks, budget=budget, step_times=times)


def said(timeline: Timeline) -> dict[tuple[str, str], str]:
    found = Explanation.of(timeline).findings
    for language in LANGUAGES:
        assert all("None" not in sentence(one, language) for one in found)
    return {(one.role, one.key): sentence(one, "en") for one in found}


def test_the_verdict_is_of_the_steps_and_says_how_much_lies_outside_of_them():
    step = [(7, "compute", 60 * MS, None), (7, "host_data", 40 * MS, "next")]
    around = run((None, "host_python", 290 * MS, None), (None, "compute", 10 * MS, None), *step)
    found = said(around)
    assert "idle 40.0 %" in found["verdict", "device_in_steps"]
    assert "75.0 % of the recording is in no whole step" in found["verdict", "device_in_steps"]
    assert losses(around, None).table["spent_ns"].sum() == 100 * MS
    assert ("verdict", "device") in said(run(*step))


def test_a_step_that_goes_on_is_in_no_mean():
    whole = [(step, use, ms * MS, "next") for step in (1, 2) for use, ms in PARTS.items()]
    cut = run(*whole, (3, "compute", 50 * MS, None), (3, "copy", 8 * MS, "HtoD"), goes_on=[3])
    found = said(cut)
    assert "idle 40.0 %" in found["verdict", "device_in_steps"]
    assert "22.5 % of the recording is in no whole step" in found["verdict", "device_in_steps"]
    assert "40.00 ms a step and rank (40.00 %)" in found["verdict", "loss"]
    # What would be saved is what is lost.
    asked = DeviceWhatIf(cut)
    assert asked.step_ns == 100 * MS
    assert asked.step_ns - asked.without("host_data").predicted_ns == 40 * MS
    assert losses(cut, None).table["spent_ns"].sum() == 200 * MS
    # Of a run that has no other, it is all there is.
    only = run(*whole[:2], goes_on=[1])
    assert losses(only, None).table["spent_ns"].sum() == 100 * MS
    assert "idle 40.0 %" in said(only)["verdict", "device"]
    assert DeviceWhatIf(only).step_ns == 100 * MS
    # What was recorded before it is in no step, and no reason to leave it out.
    late = DeviceWhatIf(run((None, "compute", 7 * MS, None), *whole[:2], goes_on=[1]))
    assert (late.step_ns, late.open) == (100 * MS, True)


def test_a_step_that_goes_on_on_one_rank_is_in_no_mean_of_any():
    """As in what-ifs: ranks wait for each other."""
    whole = [(1, use, ms * MS, "next") for use, ms in PARTS.items()]
    one = run(*whole, (2, "compute", 10 * MS, None), (2, "host_gc", 290 * MS, None))
    cut = run(*whole, (2, "compute", 10 * MS, None), goes_on=[2])
    tables = [
        pl.concat([table, other.with_columns(rank=pl.lit(1, other.schema["rank"]))])
        for table, other in ((one.ranks, cut.ranks), (one.budget, cut.budget))
    ]
    times = pl.concat([one.step_times, cut.step_times.with_columns(rank=pl.lit(1, pl.Int32))])
    both = Timeline(one.tasks, tables[0], budget=tables[1], step_times=times)
    assert losses(both, None).table["spent_ns"].sum() == 200 * MS
    assert set(budget(both).in_steps.spending.idle) == {Use.HOST_DATA}
    assert DeviceWhatIf(both).step_ns == 100 * MS


PARTS = {"compute": 60, "host_data": 40}
"""What a whole step is spent on, in milliseconds."""


def test_parts_of_a_run_know_together_which_steps_go_on():
    spent = [(step, use, ms * MS, "next") for step in (1, 2) for use, ms in PARTS.items()]
    first, last = run(*spent, goes_on=[2]), run((3, "compute", 10 * MS, None), goes_on=[3])
    both = Spent.joined([Spent.of(first), Spent.of(last)])
    assert budget_of(both, first.run).in_steps.spending.total_ns == 100 * MS
    lost = Lost.joined([Lost.of(first, None), Lost.of(last, None)])
    assert losses_of(lost).table["spent_ns"].sum() == 100 * MS
    assert losses_of(lost).devices == 1


def test_how_long_a_step_is_does_not_grow_with_the_devices_of_a_rank():
    one = run(*((1, use, ms * MS, None) for use, ms in PARTS.items()))
    two = pl.concat([one.budget, one.budget.with_columns(device=pl.lit(1, pl.Int32))])
    tasks = pl.DataFrame(schema=TASK_SCHEMA)
    pair = Timeline(tasks, one.ranks, budget=two, step_times=one.step_times)
    assert budget(pair).lengths_ns == budget(one).lengths_ns == {1: 100 * MS}


def test_without_steps_all_of_the_recording_is_meant():
    found = run((None, "host_python", 30 * MS, None), (None, "compute", 10 * MS, None))
    assert "idle 75.0 %" in said(found)["verdict", "device"]
    assert losses(found, None).table["spent_ns"].sum() == 40 * MS


def test_of_a_recording_without_steps_nothing_is_said_of_a_step():
    unmarked = run((None, "host_python", 30 * MS, None), (None, "compute", 10 * MS, None))
    one = run((0, "host_python", 30 * MS, None), (0, "compute", 10 * MS, None))
    about = Run(inferred={"step": ONE_STEP})
    taken = Timeline(one.tasks, one.ranks, about, budget=one.budget, step_times=one.step_times)
    for found in (unmarked, taken):
        text = shown(Explanation.of(found))
        assert "in Python: 30.00 ms of a rank's recording (75.00 %)." in text
        assert "What makes the recording long, for a rank" in text
        assert "a step" not in text
    assert "30.00 ms a step and rank (75.00 %), in the step." in shown(Explanation.of(one))


def test_what_came_before_all_that_was_taken_as_one_step_is_of_the_recording_too():
    step = [(0, "host_python", 30 * MS, None), (0, "compute", 10 * MS, None)]
    found = run((None, "compute", 60 * MS, None), *step, goes_on=[0])
    taken = found.with_run(Run(inferred={"step": ONE_STEP}))
    text = shown(Explanation.of(taken))
    assert "devices idle 30.0 %" in text
    assert "in Python: 30.00 ms of a rank's recording (30.00 %)." in text
    assert "a step" not in text
    assert "in the steps" not in text
    # What-ifs are of as much.
    assert DeviceWhatIf(taken).without("host_python").predicted_ns == 70 * MS


def shown(found: Explanation) -> str:
    console = Console(width=400, file=io.StringIO())
    console.print(found)
    return console.file.getvalue()


def test_a_first_step_unlike_the_others_is_named():
    later = [(step, "compute", 10 * MS, None) for step in (1, 2)]
    found = said(run((0, "compute", 90 * MS, None), *later))
    assert (
        "Step 0 takes 90.00 ms, 9.00 times the median of the others"
        in (found["evidence", "warm_up"])
    )
    assert ("evidence", "warm_up") not in said(run((0, "compute", 19 * MS, None), *later))


@pytest.mark.parametrize(
    ("calls", "key", "text"),
    [
        ([8 * MS], "slow_call", "is in a single launch call, of 8.000 ms"),
        ([8 * MS, 2 * MS], "slow_calls", "2 launch calls of over a millisecond each, the longest"),
    ],
)
def test_launches_that_load_their_kernels_are_no_cost_of_every_step(calls, key, text):
    spent = [(0, "launch_call", call, "cudaLaunchKernel") for call in calls]
    found = said(run((0, "compute", 10 * MS, None), *spent))
    assert text in found["evidence", key]
    assert ("advice", "first_use") in found
    assert ("advice", "launch_call") not in found


def test_many_short_launches_are_a_cost_of_every_step():
    spent = [(0, use, MS // 50, None) for _ in range(500) for use in ("launch_call", "compute")]
    found = said(run(*spent))
    assert ("advice", "launch_call") in found
    assert not {("advice", "first_use"), ("advice", "long_calls")} & found.keys()


def test_launches_that_take_long_each_are_no_matter_of_their_number():
    """Graphs save many short calls: these wait for something, whatever it is."""
    spent = [(0, use, MS // 5, None) for _ in range(20) for use in ("launch_call", "compute")]
    found = said(run(*spent, (0, "launch_call", MS // 20, None)))
    assert found["evidence", "long_calls"] == (
        "Of this time, 98.77 % is in launch calls of 100 us or longer, 20 in all."
    )
    assert "a lock that another thread holds" in found["advice", "long_calls"]
    assert not {("advice", "first_use"), ("advice", "launch_call")} & found.keys()


@pytest.mark.parametrize(
    ("calls", "loads"), [([600, 8, 8], True), ([90, 8], False), ([300] * 2, False)]
)
def test_one_launch_that_takes_most_of_the_time_of_all_loads_its_kernel(calls, loads):
    spent = [(0, "launch_call", call * 1000, None) for call in calls]
    found = said(run((0, "compute", MS, None), *spent))
    text = f"is in a single launch call, of {calls[0]}.0 µs"
    assert (text in found.get(("evidence", "slow_call"), "")) is loads
    assert (("advice", "first_use") in found) is loads
    assert (("advice", "launch_call") in found) is (max(calls) < 100)
    assert (("advice", "long_calls") in found) is (not loads and max(calls) >= 100)


def test_launches_that_are_slow_in_every_step_are_not_said_to_be_of_first_use():
    spent = [(step, use, 4 * MS, None) for step in range(4) for use in ("compute", "launch_call")]
    found = said(run(*spent))
    assert ("advice", "long_calls") in found
    assert ("advice", "first_use") not in found


def losing(*each: int, use: str = "host_after_sync") -> dict[tuple[str, str], str]:
    """Return what is said of steps that compute for 10 ms and lose some milliseconds each."""
    spent = [(step, "compute", 10 * MS, None) for step in range(len(each))]
    lost = [(step, use, ms * MS, "call") for step, ms in enumerate(each)]
    return said(run(*(one for pair in zip(spent, lost, strict=True) for one in pair)))


def test_what_only_the_first_step_loses_is_no_cost_of_every_step():
    found = losing(90, 1, 0, 1, 1)
    assert found["evidence", "first_step"] == (
        "Of this time, 96.77 % is in step 0, the first of the trace; of the others it takes 9.09 % "
        "(median)."
    )
    assert "leave that step out" in found["advice", "first_step"]
    assert ("advice", "host_after_sync") not in found


def test_what_is_lost_outside_of_whole_steps_alone_is_told_without_evidence():
    """As by devices of a pipeline whose launches are not in the trace, so that they have no tasks."""
    spent = budget(run((0, "compute", 10 * MS, None), (None, "unlinked", 90 * MS, None)))
    rows = [(OUTSIDE, "compute", None, 10 * MS), (OUTSIDE, "unlinked", "unexplained", 90 * MS)]
    table = pl.DataFrame(rows, schema=["place", "use", "cause", "spent_ns"], orient="row")
    found = [(one.role, one.key) for one in lost(spent, Losses(table, 1), stepped=True)]
    assert found == [("verdict", "loss"), ("advice", "unlinked")]


def test_launches_from_before_the_recording_are_not_put_down_to_loading():
    found = losing(90, 1, 0, 1, 1, use="unlinked")
    assert "is in step 0, the first of the trace" in found["evidence", "first_step"]
    assert ("advice", "unlinked") in found
    assert ("advice", "first_step") not in found


@pytest.mark.parametrize("each", [(20, 10, 10, 10), (1, 90, 1, 1), (90, 10)])
def test_what_recurs_or_may_recur_is_not_put_down_to_the_first_step(each):
    found = losing(*each)
    assert ("advice", "host_after_sync") in found
    assert ("evidence", "first_step") not in found


def test_long_gaps_in_operators_of_too_few_steps_may_be_of_first_use():
    found = losing(90, 20, use="host_operator")
    assert "is in 2 gaps of over a millisecond each" in found["evidence", "slow_gaps"]
    assert "may be used for the first time" in found["advice", "recurs"]
    assert ("advice", "host_operator") not in found
    assert "in a single gap, of 90.00 ms" in losing(90, use="host_operator")["evidence", "slow_gap"]
    assert ("advice", "host_operator") in losing(90, 80, 90, use="host_operator")


@pytest.mark.parametrize(
    ("name", "advised"),
    [
        ("executor_utils::Nvrtc::CompileProgram", "compiling"),
        ("FusionKernelRuntime::compileFusionParallel", "compiling"),
        ("Torch-Compiled Region: 0/0", "compiled"),
        ("CompiledFunctionBackward", "compiled"),
        ("aten::mm", "host_operator"),
    ],
)
@pytest.mark.parametrize("steps", [1, 4])
def test_operators_that_compile_are_not_told_to(name, advised, steps):
    lost = [(step, "host_operator", 9 * MS, name) for step in range(steps)]
    found = said(run((0, "compute", MS, None), *lost))
    unsure = steps == 1 and advised != "compiling"
    assert (("advice", "recurs") in found) == unsure
    assert (("advice", advised) in found) != unsure


def test_what_is_a_small_part_of_a_loss_is_not_named():
    names = [f"aten::op{number}" for number in range(20)]
    few = [(0, "host_operator", MS // 4, name) for name in names]
    found = said(run((0, "compute", MS, None), *few))
    assert ("evidence", "loss_mostly") not in found
    found = said(run((0, "compute", MS, None), *few, (0, "host_operator", 9 * MS, "aten::item")))
    assert "in gaps that the host mostly spent in aten::item" in found["evidence", "loss_mostly"]


@pytest.mark.parametrize(
    ("graphs", "bound"),
    [(70, "In CUDA graphs whose kernels the trace does not show"), (9, "Compute-bound")],
)
def test_time_in_graphs_of_which_no_more_is_known_is_not_called_computing(graphs, bound):
    spent = [(0, "compute", graphs * MS, "CUDA graph"), (0, "compute", (90 - graphs) * MS, None)]
    found = said(run(*spent, (0, "host_python", 10 * MS, None)))
    assert found["verdict", "device"].startswith(f"{bound}: devices idle 10.0 %")
    assert f"For {graphs}.0 % of the time" in found["verdict", "graphs"]
    assert "--cuda-graph-trace=node" in found["advice", "graphs"]


def test_where_there_is_nothing_but_graphs_nothing_is_claimed():
    graphs = run((0, "compute", 10 * MS, "CUDA graph"))
    assert said(graphs)["verdict", "busy_outside"].endswith(
        "devices are never idle outside of them."
    )
    out = io.StringIO()
    Console(file=out, width=200).print(Report.of(graphs))
    assert (
        "whether devices idled or waited for others in them, is not in the trace" in out.getvalue()
    )


def test_a_moment_in_a_graph_is_not_spoken_of():
    spent = [(0, "compute", MS // 2, "CUDA graph"), (0, "compute", 90 * MS, None)]
    assert ("verdict", "graphs") not in said(run(*spent))


@pytest.mark.parametrize(
    ("sort", "advised"),
    [
        ("HtoD pinned", "copy_pinned"),
        ("HtoD pageable", "copy"),
        ("DtoD", "copy_on_device"),
        ("DtoH pinned and HtoD pinned", "copies_at_once"),
    ],
)
def test_nobody_is_told_to_pin_what_is_pinned(sort, advised):
    assert ("advice", advised) in said(run((0, "compute", MS, None), (0, "copy", MS, sort)))


def test_time_that_the_traces_leave_undecided_is_told_with_its_length():
    idle = run((0, "host_unknown", 30 * MS, None), (0, "compute", 10 * MS, None))
    [told] = Report.of(idle).to_dict()["device"]["undecided"]
    assert (told["class"], told["spent_ns"], told["idle_ns"]) == ("host_unknown", 30 * MS, 30 * MS)
    assert told["why"] == "what the host did is not in the trace"


def numbered(first: int, *names: str) -> Timeline:
    """Return a run whose host is late in ranges of its iterations, and in others."""
    spent = [
        (step, use, ms * MS, name.format(first + step, micro))
        for step in range(3)
        for micro, name in enumerate(["iter_{}_{}"] * 4 + [*names])
        for use, ms, name in (("compute", 5, ""), ("host_operator", 5, name))
    ]
    return run(*spent)


def test_ranges_that_differ_in_their_numbers_only_are_one_line_wherever_they_are_listed():
    made = numbered(7)
    report = Report.of(made)
    [row] = report.to_dict()["device"]["details"]
    assert (row["detail"], row["spent_ns"]) == ("iter_* × 12", 60 * MS)
    assert str(report).count("iter_") == 1
    assert "iter_* × 12" in said(made)["evidence", "loss_mostly"]
    shown = devices_of(budget(made), [0], [0, 1, 2])
    assert [one.detail for one in shown.losses] == ["iter_* × 12"]


def test_names_that_mean_something_else_by_their_numbers_are_not_put_together():
    names = ("aten::conv2d", "aten::conv3d", "train.py(35): forward", "train.py(48): forward")
    found = Report.of(numbered(7, *names)).to_dict()["device"]["details"]
    assert {row["detail"] for row in found} == {"iter_* × 12", *names}


def test_iterations_of_two_runs_are_compared_whatever_their_numbers():
    found = Comparison.of(numbered(7), numbered(70))
    [detail] = found.group("detail")
    assert (detail.name, detail.difference) == ("host late: in operators: iter_*", 0)
