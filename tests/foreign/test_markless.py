"""Pipelines without marks: what was true of them, before anything is inferred.

The truth of real runs comes from the jobs themselves, that of made exports from what played them. Where
a schedule marks its actions, what is read from the marks must agree.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise

import pytest
from packaging import version

import markless_nsight as played
import markless_runs as runs
import markless_score as scoring
from bubblescope import sources
from bubblescope.analysis.rates import bubble_rates
from bubblescope.analysis.schedule.recognise import recognise
from full import FULL

ALWAYS = "Interleaved1F1B"
"""The schedule that is run where not everything is."""

MARKED = [schedule for schedule in runs.SCHEDULES if schedule != "1F1B"]
"""The schedules of torch that name their actions."""


@pytest.fixture(scope="module", params=runs.SCHEDULES if FULL else [ALWAYS])
def case(request, tmp_path_factory):
    """The smallest run of a schedule, and its folder."""
    if find_spec("torch") is None and not FULL:
        pytest.skip("torch is not installed")
    if find_spec("torch") and version.parse(metadata.version("torch")) < version.parse("2.5"):
        pytest.skip("before PyTorch 2.5, its pipelines have no schedules by name, and other stages")
    made, folder = runs.pipelines(request.param)[0], tmp_path_factory.mktemp("corpus")
    runs.make(folder, [made])
    return made, folder / made.path


def test_every_action_of_the_schedule_is_noted(case):
    made, folder = case
    noted = Counter(
        (action["step"], action["stage"], action["microbatch"], action["kind"])
        for action in json.loads((folder / "truth.json").read_text())["actions"]
        if action["kind"] != "optimizer"
    )
    assert set(noted.values()) == {1}
    stages = made.ranks * made.chunks
    for step in range(made.steps):
        for number in range(made.microbatches):
            assert (step, stages - 1, number, "loss") in noted
            for stage in range(stages):
                place = (step, stage, number)
                assert (*place, "forward") in noted
                halves = {(*place, f"backward_{half}") in noted for half in ("input", "weight")}
                assert halves == {(*place, "backward") not in noted}


def test_nothing_but_the_marks_is_taken_out(case):
    made, folder = case
    for rank in range(made.ranks):
        marked, stripped = (
            json.loads(gzip.decompress((folder / kind / f"rank{rank}.json.gz").read_bytes()))
            for kind in ("marked", "stripped")
        )
        names = {event["name"] for event in stripped["traceEvents"]}
        assert not any(name.startswith(("TRUTH", "PP:", "Forward ", "Backward ")) for name in names)
        left = [
            event
            for event in marked["traceEvents"]
            if not event["name"].startswith(("PP:", "Forward ", "Backward "))
        ]
        when = [
            [(event["name"], event.get("ts"), event.get("dur")) for event in events]
            for events in (left, stripped["traceEvents"])
        ]
        assert when[0] == when[1]
        numbers = [
            event["args"]["Ev Idx"]
            for event in stripped["traceEvents"]
            if "Ev Idx" in event.get("args", ())
        ]
        assert sorted(numbers) == list(range(len(numbers)))  # no gap says where a mark was


def most_of(count):
    """Return how many of the passes of a real run must be right.

    A busy machine may halt a process within an operator, at the edge of a pass: now and then one.
    """
    return int(0.95 * count)


def test_the_marks_say_what_the_job_does(case):
    made, folder = case
    if made.schedule not in MARKED:
        pytest.skip("torch's 1F1B names nothing")
    timeline = sources.load(folder / "marked")
    truth = scoring.truth(folder)
    result = scoring.score(truth, scoring.claims(timeline.tasks, {}), scoring.working(folder))
    assert result.found >= most_of(result.passes)
    assert result.wrong <= result.tasks - most_of(result.tasks)
    assert all(right for aspect, _, right in result.answers if aspect != scoring.TASK)
    seen = recognise(timeline)
    assert seen is not None
    assert scoring.NAMES[made.schedule] in {seen.schedule, *seen.equals}
    if made.schedule != "DualPipeV":  # whose overlapped pairs have time between their halves
        said = bubble_rates(timeline).overall.makespan
        assert said == pytest.approx(scoring.bubble(truth), abs=0.02)


@pytest.mark.parametrize("name", played.JOBS)
def test_what_is_played_follows_its_schedule(name, tmp_path):
    job = replace(played.JOBS[name], steps=played.JOBS[name].steps if FULL else 1)
    export, actions = played.play(job)
    lanes, last = {}, job.devices * job.chunks - 1
    passes = {
        (one["step"], one["kind"], one["stage"], one["microbatch"]): one
        for one in actions
        if one["kind"] != "optimizer"
    }
    kinds = 3 if job.schedule == "ZB-H1" else 2
    assert len(passes) == job.steps * kinds * job.microbatches * (last + 1)
    for (step, kind, stage, number), one in passes.items():
        lanes.setdefault(one["rank"], []).append((one["first_ns"], one["last_ns"]))
        way = {"forward": -1, "backward": 1, "backward_input": 1}.get(kind)
        if way is not None and 0 <= stage + way <= last:
            before = passes[step, kind, stage + way, number]
            assert one["first_ns"] >= before["last_ns"] + played.TRANSFER
        if kind != "forward":
            own = "backward_input" if kind == "backward_weight" else "forward"
            assert one["first_ns"] >= passes[step, own, stage, number]["last_ns"]
    for lane in lanes.values():
        lane.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(lane))

    # What the exports say of the devices is the same time, kernel by kernel.
    timeline = sources.load(export.write(tmp_path / "node0.sqlite"), activities=True)
    kernels = timeline.activities
    ours = kernels.filter(~kernels["name"].str.starts_with("nccl"))
    assert ours.height == sum(one["operators"] for one in actions)
    assert ours["start_ns"].min() == min(one["first_ns"] for one in actions)
    assert ours["end_ns"].max() == max(one["last_ns"] for one in actions)


def test_ranges_are_named_as_pytorch_names_them():
    export, _ = played.play(played.Job("1F1B", devices=2, microbatches=2, steps=1, layers=1))
    threads = {}
    for row in export.rows["NVTX_EVENTS"]:
        threads.setdefault(row["text"].partition(", op_id = ")[0], set()).add(row["globalTid"])
    forward = {name for name in threads if name.startswith("aten::linear, seq = ")}
    node = "autograd::engine::evaluate_function: AddmmBackward0, seq = "
    numbers = {int(name.rpartition(" ")[2]) for name in forward}
    assert numbers == {int(name.removeprefix(node)) for name in threads if name.startswith(node)}
    assert not {one for name in forward for one in threads[name]} & {
        one for name in threads if name.startswith(node) for one in threads[name]
    }


def certain(timeline):
    """What a timeline says of passes, with its certainty."""
    return scoring.claims(timeline.tasks, dict.fromkeys(scoring.ASPECTS, "certainty"))


def named(timeline):
    """What the schedule of a timeline is called."""
    seen = recognise(timeline)
    return set() if seen is None or not seen.schedule else {seen.schedule, *seen.equals}


def test_the_same_is_told_without_the_marks(case):
    made, folder = case
    timeline = sources.load(folder / "stripped")
    said = certain(timeline)
    # A busy machine lets ranks wait, so that another may seem to be between them, and so do passes that
    # could be of another kind: each halves what is sure, and neither makes it wrong.
    assert all(0 < claim.probability[scoring.TASK] < 1 for claim in said)
    result = scoring.score(scoring.truth(folder), said, scoring.working(folder))
    assert result.found >= most_of(result.passes)
    assert result.paired >= most_of(result.backwards)
    assert result.placed >= most_of(result.passes)
    assert result.wrong <= result.tasks - most_of(result.tasks)
    others = [right for aspect, _, right in result.answers if aspect != scoring.TASK]
    assert sum(others) >= most_of(len(others))
    assert scoring.NAMES[made.schedule] in named(timeline)


@pytest.mark.parametrize("name", played.JOBS)
def test_exports_without_marks_give_their_bubble_rate_or_none(name, tmp_path):
    job = replace(played.JOBS[name], steps=3 if FULL else 2)
    export, actions = played.play(job)
    (tmp_path / "truth.json").write_text(json.dumps({"actions": actions}))
    truth = scoring.truth(tmp_path)
    timeline = sources.load(export.write(tmp_path / "node0.sqlite"))
    said = bubble_rates(timeline).overall.makespan
    result = scoring.score(truth, certain(timeline))
    assert result.wrong_and_sure == 0
    if job.ranges:
        assert result.wrong == 0
        assert result.found == result.placed == result.passes
        assert said == pytest.approx(scoring.bubble(truth), abs=0.005)
        assert scoring.NAMES[job.schedule] in named(timeline)
    elif job.schedule == "ZB-H1":  # turns do not tell gradients of weights
        assert said is None
        assert not result.tasks
    else:
        assert result.wrong == 0
        assert result.placed == result.passes
        assert said == pytest.approx(scoring.bubble(truth), abs=0.005)
        assert scoring.NAMES[job.schedule] in named(timeline)


@pytest.mark.skipif(not FULL, reason="./check --full runs it")
def test_what_is_no_pipeline_is_called_none(tmp_path):
    runs.make(tmp_path, runs.loops())
    for made in runs.loops():
        timeline = sources.load(tmp_path / made.path / "stripped")
        assert named(timeline) == set(), made
        assert {claim.stage for claim in certain(timeline)} <= {0, None}, made
