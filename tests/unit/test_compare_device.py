"""What devices did in two runs: exact, certain only where noise allows, also without pipelines."""

from __future__ import annotations

import json
import re

import msgspec
import numpy as np
import polars as pl
import pytest

from bubblescope import BubblescopeError, Timeline
from bubblescope.analysis.device_measures import NAMES, PARTS
from bubblescope.analysis.gate import condition, judge
from bubblescope.model.budget import BUDGET_SCHEMA, HIDDEN, STEP_SCHEMA, Use
from bubblescope.model.provenance import ONE_STEP, Contents
from bubblescope.render.text.compare import Comparison
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from commands import called
from places import ROOT, SHARED
from synthetic import HOSTILE

MS = 1_000_000
COMPUTE, COMM, COPY = Use.COMPUTE, Use.COMMUNICATION, Use.COPY
DATA, OPERATOR, LATENCY = Use.HOST_DATA, Use.HOST_OPERATOR, Use.LATENCY
HIDDEN_COMM = Use.COMMUNICATION_HIDDEN

USUAL = ((COMPUTE, 60), (COMM, 20), (COPY, 2), (DATA, 10), (OPERATOR, 7), (LATENCY, 1))
"""A step of 100 ms."""


def devices(*steps, ranks=1, stepped=True, tasks=None, more=()):
    """Return a run whose every device did in each step what is told; the last has no end.

    Args:
        steps: Of each step, tuples of use, milliseconds and, if any, detail and role.
        ranks: Number of ranks, all alike, or what to number them.
        stepped: Whether it is known when steps began.
        tasks: The run's tasks, if any.
        more: Ranks that ran nothing.
    """
    numbers = range(ranks) if isinstance(ranks, int) else ranks
    budget, times = [], []
    for rank in numbers:
        at = 0
        for number, uses in enumerate(steps):
            begun = at
            for use, time, *about in uses:
                spent = max(0, round(time * MS))
                detail, role = (*about, None, None)[:2]
                row = (rank, 0, number, at, at + spent, use.value, detail, role, spent)
                budget.append(row)
                at += spent * (use not in HIDDEN)
            times.append((rank, number, begun, at, number == len(steps) - 1))
    names = [name for name in BUDGET_SCHEMA if name not in {"inside", "then"}]
    frame = pl.DataFrame(budget, {name: BUDGET_SCHEMA[name] for name in names}, orient="row")
    if not stepped:
        frame, times = frame.with_columns(step=pl.lit(None, pl.Int32)), []
    given = (
        simulate(generate("1f1b", 1, 1), Costs(1, 1, 1)).tasks.clear() if tasks is None else tasks
    )
    known = pl.DataFrame({"rank": [*numbers, *more]}, {"rank": pl.Int32})
    return Timeline(
        given,
        known.with_columns(host=pl.lit("node")),
        budget=frame,
        step_times=pl.DataFrame(times, STEP_SCHEMA, orient="row"),
    )


def longer(uses, **rise):
    """Return a step with some uses longer by milliseconds."""
    more = {Use[name]: time for name, time in rise.items()}
    return tuple((use, time + more.get(use, 0), *about) for use, time, *about in uses)


def scattered(seed, use, uses=USUAL, steps=9, sigma=3.0):
    """Return steps in which one use takes more or less time by chance, and an open one."""
    random = np.random.default_rng(seed)
    return [longer(uses, **{use.name: sigma * random.standard_normal()}) for _ in range(steps)]


def pipeline(**tables):
    """Return a pipeline of two devices and four steps of 60 ms each."""
    run = simulate(generate("1f1b", 2, 2), Costs(10 * MS, 10 * MS, 10 * MS), steps=4)
    return Timeline(run.tasks, run.ranks, run.run, **tables)


def data_parallel():
    """Return the tasks of a run with a forward and a backward of the whole model on each device."""
    return simulate(generate("1f1b", 1, 1), Costs(30 * MS, 15 * MS, 15 * MS), steps=4).tasks


def changes(found, group="device"):
    return {one.name: one.difference for one in found.group(group) if one.difference}


def codes(found):
    return [note.code for note in found.notes]


def verdict(text, found):
    return judge(condition(text), found)


# Steps --------------------------------------------------------------------------------------------


def test_a_step_is_one_of_the_wall_clock_and_its_parts_add_up():
    slow = longer(USUAL, COMMUNICATION=3, HOST_DATA=5, COMPUTE=-1)
    found = Comparison.of(devices(*[USUAL] * 4), devices(*[slow] * 4))
    assert not found.pipelined
    assert (found.before.pipelined, found.before.schedule) == (False, None)
    assert changes(found) == {
        "step": 7 * MS,
        "compute": -1 * MS,
        "exposed communication": 3 * MS,
        "idle": 5 * MS,
        "host late": 5 * MS,
        "host late: loading data": 5 * MS,
    }
    assert changes(found, "overall") == {"step": 7 * MS, "busy": 2 * MS, "idle": 5 * MS}
    step = found.find("device", "step")
    assert (step.before, step.after, step.certain) == (100 * MS, 107 * MS, True)
    assert sum(one.after for one in found.group("device") if one.name in PARTS) == 107 * MS
    assert found.group("cause") == found.group("stage") == found.group("rank") == []


def test_a_step_without_an_end_counts_only_where_there_is_no_other():
    cut = ((COMPUTE, 1),)
    found = Comparison.of(devices(USUAL, USUAL, cut), devices(USUAL, USUAL, USUAL, cut))
    assert found.before.steps == (0, 1)
    assert (found.before.left_out, found.after.left_out) == ((2,), (3,))
    assert changes(found) == {}
    [note] = found.notes
    assert note.message == "step 2 of A and step 3 of B have no end in the traces and are left out"
    alone = Comparison.of(devices(USUAL), devices(cut))
    assert alone.find("device", "step").after == MS
    assert codes(alone) == ["one-step", "open-steps"]
    assert "no step of A or B has an end" in alone.notes[-1].message


def test_measures_are_means_over_ranks_and_steps():
    one, other = devices(*[USUAL] * 3, ranks=2), devices(*[USUAL] * 3, ranks=2)
    late = pl.when(pl.col("rank") == 1, pl.col("use") == DATA.value)
    budget = other.budget.with_columns(
        late.then(pl.col(name) + 8 * MS).otherwise(name).alias(name)
        for name in ("end_ns", "spent_ns")
    )
    tables = {**other.tables, "budget": budget}
    found = Comparison.of(one, Timeline(other.tasks, other.ranks, other.run, **tables))
    assert changes(found)["host late: loading data"] == 4 * MS
    assert changes(found, "rank") == {"1": 8 * MS}
    assert [one.name for one in found.group("rank")] == ["1", "0"]


def test_a_rank_may_have_several_devices():
    run = devices(*[USUAL] * 3)
    twice = pl.concat([run.budget, run.budget.with_columns(device=pl.lit(1, pl.Int32))])
    both = Timeline(run.tasks, run.ranks, run.run, **{**run.tables, "budget": twice})
    assert changes(Comparison.of(run, both)) == {}


def test_a_slow_first_step_is_told():
    warm = longer(USUAL, COMPUTE=80)
    found = Comparison.of(devices(*[USUAL] * 5), devices(warm, *[USUAL] * 5))
    assert codes(found) == ["slow-first-step", "open-steps"]
    assert "--steps-b 1:5 leaves it out" in found.notes[0].message


def test_ranks_of_other_numbers_are_compared_and_told():
    found = Comparison.of(devices(*[USUAL] * 3), devices(*[USUAL] * 3, ranks=[6]))
    assert [(one.what, one.before, one.after) for one in found.differs] == [
        ("ranks", "rank 0", "rank 6")
    ]
    assert "other-work" not in codes(found)
    more = Comparison.of(devices(*[USUAL] * 3), devices(*[USUAL] * 3, ranks=4))
    assert "other-work" in codes(more)
    assert more.group("rank") == []


# Captures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stepped", [False, True])
def test_without_steps_captures_are_compared(stepped):
    slow = longer(USUAL, HOST_OPERATOR=7)
    before = devices(USUAL, USUAL, stepped=stepped)
    found = Comparison.of(before, devices(slow, slow, stepped=False))
    assert (found.before.steps, found.captures) == ((None,), True)
    assert changes(found)["host late: in operators"] == 14 * MS
    assert found.find("overall", "step").before == 200 * MS
    assert codes(found) == ["no-steps"]
    assert "no noise, so no difference is certain" in found.notes[0].message
    assert {one.certain for one in found.changes} == {None}
    assert found.headline() == (
        "B is 7.00 % slower than A (no noise known): the capture takes 214.0 ms instead of 200.0 ms, "
        "the largest change: host late: in operators (+14.00 ms a rank)."
    )
    assert "whole capture" in str(found)


def inferred(run, **how):
    """Return the run as one of whose tasks something was told by other things than their names."""
    return Timeline(
        run.tasks, run.ranks, msgspec.structs.replace(run.run, inferred=how), **run.tables
    )


def held(run, **counts):
    """Return the run with what its traces are said to hold."""
    content = Contents(path="a", host="node", process=1, counts=counts)
    return Timeline(
        run.tasks, run.ranks, msgspec.structs.replace(run.run, contents=(content,)), **run.tables
    )


def test_a_step_that_nothing_marks_is_no_step():
    run = inferred(devices(USUAL), step=ONE_STEP)
    found = Comparison.of(run, run)
    assert (found.captures, codes(found)) == (True, ["no-steps"])


@pytest.mark.parametrize(
    ("kernels", "said"),
    [
        (1000, "B is 7.00 % slower than A"),
        (1009, "B is 7.00 % slower than A"),
        (1100, "Which run is faster is not known: without steps, captures are compared as a whole"),
    ],
)
def test_captures_of_different_work_say_nothing_of_speed(kernels, said):
    before = held(devices(USUAL, stepped=False), kernels=1000, calls=5)
    after = devices(longer(USUAL, HOST_OPERATOR=7), stepped=False)
    found = Comparison.of(before, held(after, kernels=kernels, calls=2000))
    assert found.headline().startswith(said)
    assert "the capture takes 107.0 ms instead of 100.0 ms" in found.headline()


def test_captures_that_read_alike_are_not_said_to_take_one_instead_of_the_other():
    before = held(devices(USUAL, stepped=False), kernels=1000)
    last = pl.col("end_ns") == pl.col("end_ns").max()
    budget = before.budget.with_columns(pl.col("end_ns", "spent_ns") + last.cast(pl.Int64))
    after = Timeline(before.tasks, before.ranks, before.run, **{**before.tables, "budget": budget})
    found = Comparison.of(before, held(after, kernels=1100))
    assert "; the capture takes 100.0 ms in both, the largest change: " in found.headline()


def test_what_was_not_recorded_between_captures_is_no_time_of_a_run():
    """A process that was traced twice: an hour between is in none of its parts, nor in their sum."""
    whole = devices(USUAL, USUAL, stepped=False)
    hour = 3600 * 10**9
    late = pl.when(pl.col("start_ns") >= 100 * MS).then(hour).otherwise(0)
    apart = whole.budget.with_columns(pl.col("start_ns", "end_ns") + late)
    twice = Timeline(whole.tasks, whole.ranks, whole.run, **{**whole.tables, "budget": apart})
    found = Comparison.of(whole, twice)
    assert found.find("device", "step").after == 200 * MS
    assert changes(found) == {}


def test_passes_without_stages_that_only_structure_tells_have_no_causes_of_bubbles():
    run = devices(USUAL, USUAL, tasks=data_parallel().with_columns(stage=pl.lit(None, pl.Int32)))
    found = Comparison.of(*[inferred(run, kind="FSDP's ranges")] * 2)
    assert not found.pipelined
    assert not found.group("cause")


# Noise --------------------------------------------------------------------------------------------


def test_only_what_is_beyond_the_noise_is_certain():
    one = scattered(1, DATA)
    other = [longer(step, COMMUNICATION=2, HOST_DATA=0.5) for step in scattered(2, DATA)]
    found = Comparison.of(devices(*one), devices(*other))
    certain = {one.name: one.certain for one in found.group("device") if one.difference}
    assert certain["exposed communication"]
    assert not certain["host late: loading data"]
    assert not certain["idle"]
    assert not certain["step"]
    steady = found.find("device", "exposed communication")
    assert steady.interval == (2 * MS, 2 * MS)
    low, high = found.find("device", "step").interval
    assert low < 0 < 2.5 * MS < high


def test_intervals_hold_the_truth():
    held = 0
    for seed in range(60):
        other = [longer(step, HOST_DATA=4) for step in scattered(2 * seed + 1, DATA)]
        found = Comparison.of(devices(*scattered(2 * seed, DATA)), devices(*other))
        low, high = found.find("device", "idle").interval
        held += low <= 4 * MS <= high
    assert held >= 51  # fewer are less likely than one in ten thousand


def test_of_one_whole_step_no_noise_is_known():
    found = Comparison.of(devices(*[USUAL] * 2), devices(*[longer(USUAL, COPY=3)] * 5))
    assert codes(found) == ["one-step", "open-steps"]
    assert {one.interval for one in found.changes} == {None}


# What both have -----------------------------------------------------------------------------------


def with_roles(*roles, each=10):
    return ((COMPUTE, 50), *((COMM, each, "allreduce", role) for role in roles))


def test_communication_is_compared_by_role():
    found = Comparison.of(
        devices(*[with_roles("tp", "dp", None)] * 3), devices(*[with_roles("tp", "tp", "pp")] * 3)
    )
    by_role = {
        name: time for name, time in changes(found).items() if name.startswith("exposed comm")
    }
    assert by_role == {
        "exposed communication: dp": -10 * MS,
        "exposed communication: pp": 10 * MS,
        "exposed communication: role unknown": -10 * MS,
        "exposed communication: tp": 10 * MS,
    }
    assert verdict("device:exposed communication: pp > +9ms", found).outcome == "failed"
    assert verdict("device:exposed communication: cp > 1ns", found).outcome == "passed"


def test_roles_that_one_run_does_not_know_are_not_compared():
    found = Comparison.of(devices(*[with_roles("tp")] * 3), devices(*[with_roles(None)] * 3))
    assert changes(found) == {}
    assert not any(one.name.startswith("exposed communication: ") for one in found.group("device"))
    assert "which groups communicate is known of A only" in found.notes[-1].message
    with pytest.raises(BubblescopeError, match=r"cannot be decided: .* known of A only"):
        verdict("device:exposed communication: tp > 1ms", found)
    silent = Comparison.of(devices(*[with_roles("tp")] * 3), devices(*[((COMPUTE, 50),)] * 3))
    assert changes(silent)["exposed communication: tp"] == -10 * MS


def test_hidden_time_is_no_part_of_a_step():
    hidden = (*USUAL, (HIDDEN_COMM, 12), (Use.COPY_HIDDEN, 1))
    found = Comparison.of(devices(*[USUAL] * 3), devices(*[hidden] * 3))
    assert changes(found) == {"hidden communication": 12 * MS, "hidden copies": MS}


def test_details_are_those_that_changed_most():
    def step(add, more):
        names = [(OPERATOR, 0.1 + more, f"aten::op{number}") for number in range(40)]
        return ((COMPUTE, 50), (OPERATOR, add, "aten::add"), (COPY, 1, "HtoD pinned"), *names)

    found = Comparison.of(devices(*[step(1, 0)] * 3), devices(*[step(9, 0.01)] * 3))
    details = found.group("detail")
    assert len(details) == 32
    assert (details[0].name, details[0].difference) == (
        "host late: in operators: aten::add",
        8 * MS,
    )
    assert [one.difference for one in details] == sorted(
        (one.difference for one in details), reverse=True
    )


def test_numbers_in_names_that_change_every_time_are_no_difference():
    def steps(first):
        return [
            ((COMPUTE, 50), (OPERATOR, 5, f"aten::mm, op_id = {n}"), (DATA, 1, f"ProfilerStep#{n}"))
            for n in range(first, first + 3)
        ]

    found = Comparison.of(devices(*steps(0)), devices(*steps(70)))
    assert changes(found, "detail") == {}
    assert [one.name for one in found.group("detail")] == [
        "host late: in operators: aten::mm",
        "host late: loading data: ProfilerStep",
    ]


def test_kinds_are_compared_in_the_same_steps():
    run = devices(*[USUAL] * 4, tasks=data_parallel())
    longest = pl.col("step") == 3
    tasks = run.tasks.with_columns(
        end_ns=pl.when(longest).then(pl.col("end_ns") + MS).otherwise("end_ns")
    )
    found = Comparison.of(run, devices(*[USUAL] * 4, tasks=tasks))
    assert found.after.steps == (0, 1, 2)
    assert changes(found, "kind") == {}
    assert found.find("kind", "forward").before == 30 * MS


def test_time_in_two_tasks_of_a_kind_counts_once():
    run = devices(*[USUAL] * 4, tasks=data_parallel())
    shorter = run.tasks.with_columns(end_ns=pl.col("end_ns") - 1, busy_ns=None)
    doubled = pl.concat([run.tasks, shorter], how="vertical_relaxed")
    twice = devices(*[USUAL] * 4, tasks=doubled)
    assert len(twice) == 2 * len(run)
    assert changes(Comparison.of(run, twice), "kind") == {}


def test_tasks_that_only_one_run_has_are_not_compared():
    found = Comparison.of(devices(*[USUAL] * 4), devices(*[USUAL] * 4, tasks=data_parallel()))
    assert found.group("kind") == []
    assert "only B's traces tell tasks apart" in found.notes[-1].message
    with pytest.raises(BubblescopeError, match="only B's traces tell tasks apart"):
        verdict("kind:recompute > 1ms", found)


def test_devices_that_only_one_run_tells_of():
    run = devices(*[USUAL] * 4, tasks=data_parallel())
    bare = Timeline(run.tasks, run.ranks, run.run, step_times=run.step_times)
    found = Comparison.of(run, bare)
    assert codes(found) == ["one-budget", "open-steps"]
    assert "only A's traces hold device work" in found.notes[0].message
    assert [one.name for one in found.group("device")] == ["step"]
    assert changes(found) == changes(found, "kind") == {}
    tasks_only = Comparison.of(run, Timeline(run.tasks, run.ranks, run.run))
    assert tasks_only.group("device") == []
    assert tasks_only.find("overall", "step").difference == 0
    with pytest.raises(BubblescopeError, match="not both traces hold device work"):
        verdict("device:idle > 1ms", tasks_only)


def test_runs_that_have_nothing_in_common():
    found = Comparison.of(devices(*[USUAL] * 3), Timeline(data_parallel(), devices(USUAL).ranks))
    assert found.find("overall", "step").difference is None
    assert "Which run is faster is not known" in found.headline()


# Pipelines ----------------------------------------------------------------------------------------


def test_what_devices_did_stands_beside_the_bubbles():
    slow = longer(USUAL, COMPUTE=5)
    one, other = (devices(*[uses] * 4, ranks=2).tables for uses in (USUAL, slow))
    found = Comparison.of(pipeline(**one), pipeline(**other))
    bare = Comparison.of(pipeline(), pipeline())
    assert found.pipelined
    ours = [change for change in found.changes if change.group not in ("device", "detail")]
    assert ours == list(bare.changes)
    assert changes(found) == {"step": 5 * MS, "compute": 5 * MS}
    assert "left out of what is said of devices" in found.notes[0].message
    assert found.before.steps == (0, 1, 2, 3)
    assert found.headline() == bare.headline()
    assert str(found).index("Idle by rank") < str(found).index("Device  of a rank")


def test_pipelines_whose_devices_are_unknown_are_compared_as_ever():
    bare = Comparison.of(pipeline(), pipeline())
    times = devices(*[USUAL] * 4, ranks=2).step_times
    stepped = Comparison.of(pipeline(step_times=times), pipeline())
    assert str(stepped) == str(bare)
    assert stepped.to_json() == bare.to_json()
    assert "device" not in bare.to_dict()["changes"]
    assert "pipelined" not in bare.to_dict()["before"]


def test_a_pipeline_beside_a_run_that_is_none():
    piped = pipeline(**devices(*[USUAL] * 4, ranks=2).tables)
    found = Comparison.of(piped, devices(*[longer(USUAL, COPY=2)] * 4, ranks=2))
    assert not found.pipelined
    assert codes(found)[0] == "one-pipeline"
    assert ("schedule", "1f1b", "no pipeline") in found.differs
    assert changes(found, "overall") == {"step": 2 * MS, "busy": 2 * MS}
    assert {one.group for one in found.changes} == {"overall", "rank", "device", "detail"} - {
        "detail"
    }


# The gate -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slower():
    """A step takes 8 ms more than 100 ms: 3 ms of communication, 5 ms of loading data."""
    return Comparison.of(
        devices(*[USUAL] * 4), devices(*[longer(USUAL, COMMUNICATION=3, HOST_DATA=5)] * 4)
    )


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("step > +7%", "failed"),
        ("step > +9%", "passed"),
        ("idle >= +5ms", "failed"),
        ("busy > +3ms", "passed"),
        ("device:step > 0.1s", "failed"),
        ("device:idle > +25%", "failed"),
        ("device:idle > +30%", "passed"),
        ("device:host late > +4.9ms", "failed"),
        ("device:host late: loading data > +49%", "failed"),
        ("device:exposed communication > +2ms", "failed"),
        ("device:exposed communication > +4ms", "passed"),
        ("device:compute > +0%", "passed"),
        ("device:host late: collecting garbage > 1us", "passed"),
        ("device:hidden communication > 1us", "passed"),
    ],
)
def test_conditions(slower, text, outcome):
    assert verdict(text, slower).outcome == outcome, verdict(text, slower)


def test_noise_alone_never_fails_a_gate():
    one, other = scattered(3, DATA, sigma=6), scattered(4, DATA, sigma=6)
    rise = np.mean([step[3][1] for step in other[:-1]]) - np.mean([step[3][1] for step in one[:-1]])
    text = f"device:idle {'>' if rise > 0 else '<'} +0%"
    found = Comparison.of(devices(*one), devices(*other))
    assert verdict(text, found).outcome == "not certain"
    assert judge(condition(text), found, strict=True).outcome == "failed"


def test_what_only_pipelines_have_cannot_be_decided(slower):
    for text in ("bubble > +2%", "cause:warm-up > 1ms", "stage:0 > 1ms"):
        with pytest.raises(BubblescopeError, match="only pipelines have it"):
            verdict(text, slower)


def test_mistaken_conditions():
    with pytest.raises(ValueError, match="there is no measure 'device:idel'; there are step, comp"):
        condition("device:idel > +2%")
    with pytest.raises(ValueError, match="idle is a time and has no percentage points"):
        condition("device:idle > +2pp")


# What is printed ----------------------------------------------------------------------------------


def test_only_what_matters_is_shown():
    tiny = (*USUAL, (Use.HOST_GC, 0.05), (Use.EVENT_WAIT, 0.05))
    found = Comparison.of(devices(*[USUAL] * 3), devices(*[longer(tiny, HOST_GC=0.2)] * 3))
    text = str(found)
    assert "collecting garbage" in text
    assert "waiting for events" not in text
    assert "hidden" not in text
    assert "Overall" not in text
    assert len(found.group("device")) > 10


def test_names_that_break_out_are_text():
    step = (*USUAL, (OPERATOR, 9, HOSTILE), (COMM, 9, HOSTILE, HOSTILE))
    found = Comparison.of(devices(*[USUAL] * 3), devices(*[step] * 3))
    for text in (str(found), found._repr_html_()):
        assert not set(text) & {"\x1b", "\a", "\0", "\x9b"}
    assert "<img src=x" not in found._repr_html_()


@pytest.fixture
def files(tmp_path):
    slow = longer(USUAL, HOST_DATA=5)
    devices(*[USUAL] * 4).save(tmp_path / "a.parquet")
    devices(*[slow] * 4, tasks=data_parallel()).save(tmp_path / "b.parquet")
    return tmp_path


def run(*arguments, cwd, code=0):
    done = called("compare", *arguments, cwd=cwd, COLUMNS="80")
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_the_command(files):
    done = run("a.parquet", "b.parquet", cwd=files)
    for line in done.stdout.splitlines():
        assert len(line) <= 80
        assert "…" not in line
    said = re.sub(r"\s+", " ", done.stdout)
    assert "the largest change: host late: loading data (+5.000 ms a rank)" in said
    assert "no pipeline · 1 rank · 3 steps" in said
    everything = run("a.parquet", "b.parquet", "--all", cwd=files).stdout
    assert len(everything.splitlines()) >= len(done.stdout.splitlines())
    run("a.parquet", "b.parquet", "--fail-if", "device:idle > +2%", cwd=files, code=1)
    run("a.parquet", "b.parquet", "--fail-if", "bubble > +2%", cwd=files, code=2)
    run("a.parquet", "b.parquet", "--picture", "both.svg", cwd=files)
    assert (files / "both.svg").exists()
    refused = run("a.parquet", "a.parquet", "--picture", "none.svg", cwd=files, code=2)
    assert "there are no tasks to draw" in refused.stderr


def test_the_json_has_the_documented_keys(files):
    data = json.loads(run("a.parquet", "b.parquet", "--json", cwd=files).stdout)
    documented = (ROOT / "docs" / "compare.md").read_text()
    assert list(data["changes"])[-1] == "device"
    assert data["before"]["pipelined"] is False
    for key in (*data["before"], *data["changes"], *data["changes"]["device"][0]):
        assert re.search(rf"\b{key}\b", documented), key
    for name in NAMES:
        assert name in documented, name


@pytest.mark.skipif(not SHARED.exists(), reason="needs the shared traces")
@pytest.mark.parametrize(
    ("one", "other", "step_ms"),
    [
        ("kineto/real/nccl_parser_config_nccl_data.json.gz",) * 2 + ((220.893, 220.893),),
        ("kineto/no_ranges/tl_b200_eager.json.gz",) * 2 + ((84.487, 84.487),),
        (
            "kineto/real/trace_filter_sampled_rank-0.json.gz",
            "kineto/real/trace_filter_sampled_rank-1.json.gz",
            (607.246, 607.900),
        ),
        (
            "communication/megatron_tp8_8rank/megatron_kineto_0.json.gz",
            "communication/megatron_tp8_8rank/megatron_kineto_6.json.gz",
            (595.241, 606.299),
        ),
    ],
)
def test_real_traces_without_a_pipeline(one, other, step_ms):
    options = ("-q", "--json", SHARED / one, SHARED / other)
    data = json.loads(run(*options, cwd=SHARED).stdout)
    overall = [one["name"] for one in data["changes"]["overall"]]
    assert overall == ["step", "busy", "idle"]
    for side, step in zip(("before", "after"), step_ms, strict=True):
        times = {one["name"]: one[side] for one in data["changes"]["device"]}
        assert round(times["step"] / MS, 3) == step
        parts = sum(times.get(name, 0) for name in PARTS)
        assert abs(parts - times["step"]) <= len(PARTS)
