"""Stragglers: published answers, answers known by simulation, and what cannot be known."""

from __future__ import annotations

import io
import json
import math

import msgspec
import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import bubblescope
import job_trace_maker
from bubblescope import sources
from bubblescope.analysis.stragglers import SCHEMA, Explained
from bubblescope.analysis.stragglers.slowness import outliers
from bubblescope.cli import cli
from bubblescope.model.errors import ScheduleError, TimelineError
from bubblescope.model.timeline import Timeline, concat
from bubblescope.render.text.stragglers import Stragglers
from bubblescope.schedules import SCHEDULES, generate
from bubblescope.schedules.replay import Edges, Graph
from bubblescope.schedules.simulate import Costs, simulate
from places import SHARED

PUBLISHED = SHARED / "jobtrace"
F, B, W = 1_000_000, 1_200_000, 700_000


def job(plan, costs, *, steps=1, dp=0):
    """Return a simulated pipeline that is one data-parallel replica of a job."""
    run = simulate(plan, costs, steps=steps)
    offset = dp * plan.devices
    ranks = run.ranks.with_columns(pl.col("rank") + offset, dp=pl.lit(dp, pl.Int32))
    return Timeline(run.tasks.with_columns(pl.col("rank") + offset), ranks, run.run)


def length_ns(plan, costs):
    """Return how long one step takes, replayed by the simulator."""
    return simulate(plan, costs).duration_ns


def close(values, expected, rel=1e-4):
    assert np.asarray(values, float) == pytest.approx(np.asarray(expected, float), rel=rel)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="needs the published job traces")
@pytest.mark.parametrize("name", ["ST", "SE"])
def test_published_answers(name):
    """Every number that StragglerAnalysis published for a trace."""
    said = json.loads((PUBLISHED / f"result-{name}.json").read_text())
    found = Stragglers.of(sources.load(PUBLISHED / f"trace-{name}.parquet"))
    steps = [str(step) for step in found.steps]
    assert set(steps) == set(said["step_t_base"])
    for key, times in (
        ("base", found.base_ns),
        ("nodelay", found.no_delay_ns),
        ("noblk", found.ideal_ns),
    ):
        close(times / 1e9, [said[f"step_t_{key}"][step] for step in steps])
    for key, slowdown in (("blocking", found.slowdown), ("launch", found.launch_slowdown)):
        close(slowdown.overall, [said[f"{key}_slowdown"]])
        close(slowdown.per_step[0], [said[f"{key}_step_slowdown"][step] for step in steps])
    for key, slowdown, things in (
        ("optype", found.by_type, found.types),
        ("stage", found.by_place, [str(place) for place in range(len(found.stages))]),
        ("dp_rank", found.by_replica, [str(dp) for dp in found.dp]),
    ):
        whole = said[f"blocking_decompose_by_{key}"]
        each = said[f"blocking_decompose_by_{key}_per_step"]
        assert set(things) == set(whole)
        close(slowdown.overall, [whole[thing] for thing in things])
        close(slowdown.per_step, [[each[step][thing] for step in steps] for thing in things])
    lesser = [
        [
            min(
                said["blocking_decompose_by_dp_rank"][str(dp)],
                said["blocking_decompose_by_stage"][str(place)],
            )
            for dp in found.dp
        ]
        for place in range(len(found.stages))
    ]
    close(found.by_worker, lesser)
    for key, title, explained in (
        ("ms", "Ms", found.last_stage),
        ("mw", "Mw", found.worst_workers),
    ):
        known = json.loads((PUBLISHED / f"{key}-{name}.json").read_text())
        close(explained.original_ns / 1e9, known["tori"])
        close(explained.ideal_ns / 1e9, known["tideal"])
        close(explained.removed_ns / 1e9, known["trem"])
        close(explained.added_ns / 1e9, known["tadd"])
        close(
            [explained.removed, explained.added, explained.removed],
            [known["rem"], known["add"], known[title]],
        )


@pytest.mark.parametrize(
    ("chunks", "overlapped", "slowdown", "launch", "stages", "replicas", "types"),
    [
        (
            1,
            False,
            1.1700293034395994,
            0.9181926261948642,
            [1.0657306810824523, 1.1554106004862292],
            [1.1457275401750975, 1.1179664935006364, 1.100516763936174],
            {"backward-compute": 1.0734635437400235, "forward-compute": 1.0540911364944652},
        ),
        (
            1,
            True,
            1.0637612266178256,
            1.0047816951038773,
            [1.033003900508916, 1.081609347752523],
            [1.0719755401562039, 1.0508948414223191, 1.0272219675495264],
            {"backward-compute": 1.073089872725623, "grads-reduce-scatter": 0.9851220977301927},
        ),
        (
            2,
            False,
            1.1544568077062656,
            0.889086627286904,
            [1.039558524064664, 1.1488894484150327],
            [1.0938487008691014, 1.126307517180862, 1.1345823897629193],
            {"backward-compute": 1.0631583167468859, "grads-reduce-scatter": 1.072981382392404},
        ),
        (
            2,
            True,
            1.0581724842538183,
            0.9984479856444677,
            [1.0150255821142795, 1.078135441235118],
            [1.021479656721242, 1.0568461325474272, 1.063408678411909],
            {"forward-compute": 1.0390890599545364, "grads-reduce-scatter": 0.9835232432953417},
        ),
    ],
)
def test_made_job_traces(tmp_path, chunks, overlapped, slowdown, launch, stages, replicas, types):
    """Answers of StragglerAnalysis for traces with chunks and with overlapped reductions."""
    path = job_trace_maker.make(
        tmp_path / "trace-made.parquet", replicas=3, steps=4, chunks=chunks, overlapped=overlapped
    )
    found = Stragglers.of(sources.load(path))
    assert found.model == "job-trace"
    close(found.slowdown.overall, [slowdown], 1e-6)
    close(found.launch_slowdown.overall, [launch], 1e-6)
    close(found.by_place.overall, stages, 1e-6)
    close(found.by_replica.overall, replicas, 1e-6)
    by_type = dict(zip(found.types, found.by_type.overall.tolist(), strict=True))
    close([by_type[name] for name in types], list(types.values()), 1e-6)


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "zb-auto"])
def test_where_nothing_is_slow_the_slowdown_is_one(schedule):
    plan = generate(schedule, 4, 8)
    found = Stragglers.of(simulate(plan, Costs(F, B, W), steps=2))
    assert found.slowdown.overall.tolist() == [1.0]
    assert found.launch_slowdown.overall.tolist() == [1.0]
    assert found.no_delay_ns.tolist() == found.ideal_ns.tolist() == found.base_ns.tolist()
    assert found.worst_workers.removed is None
    assert not found.odd_steps
    assert not found.odd_workers


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "dualpipev"])
@pytest.mark.parametrize("slow", [0, 2])
def test_a_slow_stage(schedule, slow):
    """The ideal, and the stage's own slowdown, are what the simulator says."""
    plan = generate(schedule, 4, 8)
    forward = [F + F * (stage == slow) for stage in range(plan.stages)]
    together = None if schedule != "dualpipev" else 3 * F
    costs = Costs(forward, B, W, forward_backward_ns=together)
    found = Stragglers.of(simulate(plan, costs))
    real = length_ns(plan, costs)
    assert found.no_delay_ns.tolist() == [real]
    # The mean of what ran as a forward of its own: overlapped ones are another type.
    tasks = simulate(plan, costs).tasks.filter(kind="forward")
    mean = round((tasks["end_ns"] - tasks["start_ns"]).mean())
    ideal = length_ns(plan, Costs(mean, B, W, forward_backward_ns=together))
    assert found.ideal_ns.tolist() == [ideal]
    close(found.slowdown.overall, [real / ideal], 1e-9)
    place = next(place for place, held in enumerate(found.stages) if slow in held)
    held = found.stages[place]
    only = [forward[stage] if stage in held else mean for stage in range(plan.stages)]
    expected = length_ns(plan, Costs(only, B, W, forward_backward_ns=together))
    close(found.by_place.overall[place], expected / ideal, 1e-9)


def test_a_slow_replica():
    """One worker of four replicas computes at half speed in all steps."""
    plan = generate("1f1b", 3, 6)
    slow = Costs([F, 2 * F, F], [B, 2 * B, B], 0)
    parts = [job(plan, slow if dp == 2 else Costs(F, B, 0), steps=5, dp=dp) for dp in range(4)]
    found = Stragglers.of(concat(parts))
    assert found.dp == [0, 1, 2, 3]
    mean = [round((11 * time + 2 * time) / 12) for time in (F, B)]
    ideal = length_ns(plan, Costs(*mean, 0))
    assert found.ideal_ns.tolist() == [ideal] * 5
    close(found.slowdown.overall, [length_ns(plan, slow) / ideal], 1e-9)
    close(found.by_replica.overall[2], found.slowdown.overall[0], 1e-9)
    only = Costs([mean[0], 2 * F, mean[0]], [mean[1], 2 * B, mean[1]], 0)
    close(found.alone[1, 2], length_ns(plan, only) / ideal, 1e-9)
    assert found.worst == [7]
    assert found.worst_workers.removed > 0.8
    assert (1, 2) in found.odd_workers
    assert found.slowness.pattern(1, 2) == "persistent"
    assert found.slowness.pattern(1, 1) == "none"
    assert found.slowness.persistence == pytest.approx(1)
    assert found.slowness.correlation == [None, None, None]  # micro-batches are all alike


@pytest.mark.parametrize(
    ("replicas", "steps", "pattern"), [(2, 5, None), (4, 3, None), (2, 20, "persistent")]
)
def test_with_few_workers_and_steps_it_cannot_be_told_whether_slowness_stays(
    tmp_path, replicas, steps, pattern
):
    plan = generate("1f1b", 1, 4)
    parts = [
        job(plan, Costs(F * (1 + (dp == 1)), B, 0), steps=steps, dp=dp) for dp in range(replicas)
    ]
    run = concat(parts)
    found = Stragglers.of(run)
    assert found.slowness.share[0, 1] == 1
    assert (found.slowness.pattern(0, 0), found.slowness.pattern(0, 1)) == ("none", pattern)
    shown = " ".join(command(run.save(tmp_path / "run.parquet")).output.split())
    untold = (
        "whether slowness stays with workers cannot be told: "
        f"{replicas} workers and {steps} steps are too few"
    )
    assert (untold in shown) == (pattern is None)
    assert ("slow in most steps" in shown) == (pattern is not None)


def test_slowness_that_comes_and_goes():
    """Long micro-batches fall on another worker in every step."""
    plan = generate("1f1b", 2, 4)
    rng = np.random.default_rng(1)
    steps = []
    for step in range(30):
        parts = []
        for dp in range(6):
            share = np.broadcast_to(rng.uniform(0.5, 2, 4), (2, 4))
            times = [(share * time).astype(np.int64) for time in (F, B)]
            parts.append(job(plan, Costs(*times, 0), dp=dp))
        run = concat(parts)
        shift = pl.col("start_ns", "end_ns") + step * 100 * F
        steps.append(run.tasks.with_columns(shift, step=pl.lit(step, pl.Int32)))
    found = Stragglers.of(Timeline(pl.concat(steps), run.ranks, run.run))
    patterns = {found.slowness.pattern(place, dp) for place in range(2) for dp in range(6)}
    assert patterns == {"random"}
    assert found.slowness.persistence < 0.1
    assert min(one.low for one in found.slowness.correlation) > 0.99
    assert found.slowdown.overall[0] > 1.1
    assert found.slowdown.per_step.shape == (1, 30)


def test_a_slow_step_is_an_outlier():
    plan = generate("1f1b", 2, 4)
    runs = [simulate(plan, Costs(F + step * 10 + F * (step == 3), B, 0)) for step in range(8)]
    tasks = [
        run.tasks.with_columns(
            pl.col("start_ns", "end_ns") + step * 100 * F, step=pl.lit(step, pl.Int32)
        )
        for step, run in enumerate(runs)
    ]
    found = Stragglers.of(Timeline(pl.concat(tasks), runs[0].ranks))
    assert found.odd_steps == [3]
    assert found.to_dict()["steps"][3]["outlier"]


def test_what_cannot_be_known_is_null():
    """One replica, no data-parallel ranks, no steps, no common clock."""
    run = simulate(generate("1f1b", 2, 4), Costs(F, B, 0))
    about = bubblescope.model.provenance.Run(common_clock=False)
    tasks = run.tasks.with_columns(step=pl.lit(None, pl.Int32))
    found = Stragglers.of(Timeline(tasks, run.ranks, about))
    assert found.model == "compute"
    assert found.steps == [None]
    assert found.base_ns is None
    assert found.launch_slowdown is None
    assert found.by_replica is None
    assert found.dp is None
    assert found.slowness.share is None
    said = found.to_dict()
    assert said["schema"] == SCHEMA
    assert said["replicas"] == []
    assert said["base_ns"] is said["launch_slowdown"] is said["persistence"] is None
    assert said["stages"][0]["sequence_length_correlation"] is None
    assert said["workers"][0]["pattern"] is None
    json.dumps(said, allow_nan=False)


def test_one_stage_alone():
    found = Stragglers.of(simulate(generate("1f1b", 1, 4), Costs(F, B, 0), steps=2))
    assert found.last_stage is None
    assert found.slowdown.overall.tolist() == [1.0]


def test_operations_that_take_no_time():
    found = Stragglers.of(simulate(generate("1f1b", 2, 2), Costs(0, 0, 0)))
    assert found.slowdown.overall.tolist() == [1.0]
    assert found.alone.tolist() == [[1.0], [1.0]]


def test_steps_that_are_not_whole_are_left_out():
    run = simulate(generate("1f1b", 3, 4), Costs(F, B, 0), steps=4)
    cut = (pl.col("step") == 0) & (pl.col("rank") == 1) & (pl.col("microbatch") == 0)
    found = Stragglers.of(Timeline(run.tasks.filter(~cut), run.ranks))
    assert found.steps == [1, 2, 3]
    assert [notice.code for notice in found.notices] == ["steps-left-out"]
    assert found.slowdown.overall.tolist() == [1.0]


def test_steps_of_another_order_of_micro_batches_are_left_out():
    run = simulate(generate("1f1b", 3, 4), Costs(F, B, 0), steps=4)
    turned = pl.when(pl.col("step") == 2).then(3 - pl.col("microbatch")).otherwise("microbatch")
    found = Stragglers.of(Timeline(run.tasks.with_columns(microbatch=turned), run.ranks))
    assert found.steps == [0, 1, 3]


def test_steps_that_ran_in_another_order_are_counted():
    """Forwards and backwards change places, so the replays keep the first step's order."""
    one, other = (simulate(generate(name, 3, 4), Costs(F, B, 0)) for name in ("1f1b", "gpipe"))
    late = other.tasks.with_columns(
        pl.col("start_ns", "end_ns") + 100 * F, step=pl.lit(1, pl.Int32)
    )
    found = Stragglers.of(Timeline(pl.concat([one.tasks, late]), one.ranks))
    assert found.steps == [0, 1]
    assert [notice.code for notice in found.notices] == ["other-order"]
    assert found.no_delay_ns[1] == found.no_delay_ns[0]


def test_replicas_that_lack_a_rank_are_left_out():
    plan = generate("1f1b", 2, 4)
    whole = concat([job(plan, Costs(F, B, 0), dp=dp) for dp in range(3)])
    found = Stragglers.of(whole.slice(ranks=[0, 1, 2, 4, 5]))
    assert found.dp == [0, 2]
    assert [notice.code for notice in found.notices] == ["ranks-left-out"]


def test_opposite_pipelines_are_no_replicas():
    found = Stragglers.of(simulate(generate("dualpipe", 4, 8), Costs(F, B, W)))
    assert found.rank.shape == (4, 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": pl.lit("optimizer")}, "no forward"),
        ({"microbatch": pl.lit(None, pl.Int32)}, "cannot be linked"),
    ],
)
def test_what_cannot_be_replayed_is_refused(change, says):
    run = simulate(generate("1f1b", 2, 4), Costs(F, B, 0))
    tasks = run.tasks.with_columns(**change).cast({"kind": run.tasks.schema["kind"]})
    with pytest.raises(TimelineError, match=says):
        Stragglers.of(Timeline(tasks, run.ranks))


def test_ranks_without_stages_are_refused():
    run = simulate(generate("1f1b", 2, 4), Costs(F, B, 0))
    tasks = run.tasks.with_columns(stage=pl.lit(None, pl.Int32))
    with pytest.raises(TimelineError, match="which stages"):
        Stragglers.of(Timeline(tasks))


def test_nothing_is_refused():
    with pytest.raises(TimelineError, match="no forward"):
        Stragglers.of(Timeline(pl.DataFrame(schema=bubblescope.model.timeline.TASK_SCHEMA)))


def test_messages_that_do_not_match_are_refused(tmp_path):
    path = job_trace_maker.make(
        tmp_path / "trace-cut.parquet", replicas=2, steps=2, chunks=1, overlapped=False
    )
    table = pl.read_parquet(path)
    lost = (pl.col("optype").cast(pl.String) == "forward-recv") & (pl.col("seq_id") < 2)
    table.filter(~lost).write_parquet(path)
    with pytest.raises(TimelineError, match="forward-recv"):
        Stragglers.of(sources.load(path))


def test_explained_shares():
    times = [np.array([value, value]) for value in (150, 100, 110, 120)]
    explained = Explained.of(*times)
    assert (explained.removed, explained.added) == (0.8, 0.4)
    assert Explained.of(times[0], times[0], times[0], times[0]).removed is None
    # Replays of the same steps may differ by what their sums are rounded to: nothing is slow.
    rounded = Explained.of(times[0] + 0.3, times[0], times[0], times[0] + 0.3)
    assert (rounded.removed, rounded.added) == (None, None)


def test_outliers():
    values = np.array([1.0, 1.01, 1.02, 1.0, 1.6, 1.02])
    assert outliers(values, 1.03).tolist() == [False] * 4 + [True, False]
    assert not outliers(values, 2.0).any()


@given(st.data(), st.integers(1, 10), st.integers(1, 4))
def test_a_sweep_is_as_many_replays(data, count, replays):
    """However often an edge is given, and whatever shape the replays have."""
    possible = [(a, b) for a in range(count) for b in range(a + 1, count)]
    pairs = data.draw(st.lists(st.sampled_from(possible), max_size=20)) if possible else []
    source, target = np.array(pairs, np.int64).reshape(-1, 2).T
    graph = Graph(count, Edges(source, target))
    lengths = np.random.default_rng(count).integers(0, 50, (count, replays, 1))
    ends = {}

    def finish(operation, begin):
        ends[operation] = begin + lengths[operation]
        return ends[operation]

    graph.sweep(finish)
    for replay in range(replays):
        _, end = graph.run(lengths[:, replay, 0])
        assert [int(ends[index][replay, 0]) for index in range(count)] == end.tolist()


def test_a_circle_is_named():
    """Stage 0 starts its second forward after its first backward, stage 1 before it."""
    run = simulate(generate("1f1b", 2, 2), Costs(F, B, 0))
    second = (pl.col("kind") == "forward") & (pl.col("microbatch") == 1)
    shift = pl.when(second & (pl.col("rank") == 0)).then(50 * F)
    shift = shift.when(second & (pl.col("rank") == 1)).then(-2 * F).otherwise(0)
    tasks = run.tasks.with_columns(pl.col("start_ns", "end_ns") + shift)
    with pytest.raises(ScheduleError, match="deadlock: backward at place 0, which waits for"):
        Stragglers.of(Timeline(tasks, run.ranks))


def command(*words):
    return CliRunner().invoke(cli, ["stragglers", *map(str, words)])


@pytest.fixture
def trace(tmp_path):
    return job_trace_maker.make(
        tmp_path / "trace-made.parquet", replicas=3, steps=4, chunks=1, overlapped=False
    )


def test_the_command_says_it_in_words(trace):
    done = command(trace)
    assert done.exit_code == 0
    for said in ("slowdown S", "1.170", "backward-compute", "M_S", "M_W", "stage 1", "rank"):
        assert said in done.output
    every = command(trace, "--all")
    assert "layernorm-grads-all-reduce" in every.output
    assert "layernorm-grads-all-reduce" not in done.output


def of_slow_step(by):
    """Return three replicas of three steps: in the second each operation takes as much longer."""
    plan = generate("1f1b", 1, 4)
    parts = []
    for dp in range(3):
        time = np.array([0, by, 0]) * F + F + (dp == 1) * F // 50
        parts.append(concat_steps([job(plan, Costs(int(one), B, 0), dp=dp) for one in time]))
    return concat(parts)


def concat_steps(runs):
    tasks = [
        run.tasks.with_columns(
            pl.col("start_ns", "end_ns") + step * 100 * F, step=pl.lit(step, pl.Int32)
        )
        for step, run in enumerate(runs)
    ]
    return Timeline(pl.concat(tasks), runs[0].ranks, runs[0].run)


def test_the_command_explains_no_slowdown_that_is_negligible(tmp_path):
    """A rank may seem slow beside the mean of all steps where the job is not."""
    path = of_slow_step(2).save(tmp_path / "run.parquet")
    found = Stragglers.of(sources.load(path))
    assert found.slowdown.overall[0] < 1.03
    assert found.alone.max() > 1.1
    assert found.worst_workers.added > 5
    shown = " ".join(command(path).output.split())
    assert "of the slowdown" not in shown
    assert f"{found.alone.max():.3f}" not in shown


@pytest.mark.parametrize(
    ("removed", "added", "says"),
    [
        (140, 145, "explains 20.0 % of the slowdown by making only it ideal (M_W), and 90.0 % by"),
        (
            140,
            222,
            "explains 20.0 % of the slowdown by making only it ideal (M_W), and more than all",
        ),
        (150, 222, "explains none of the slowdown: steps are no shorter with only it ideal (M_W)"),
    ],
)
def test_the_command_says_no_share_above_one(trace, removed, added, says):
    times = [np.array([float(value)]) for value in (150, 100, removed, added)]
    found = msgspec.structs.replace(
        Stragglers.of(sources.load(trace)), worst_workers=Explained.of(*times)
    )
    console = Console(width=400, file=io.StringIO())
    console.print(found)
    assert says in console.file.getvalue()


def test_the_command_prints_json(trace):
    done = command(trace, "--json", "-q")
    said = json.loads(done.output)
    assert said["schema"] == SCHEMA
    assert said["slowdown"] == pytest.approx(1.17003, rel=1e-5)
    assert len(said["workers"]) == 6
    assert len(said["steps"]) == 4
    assert {step["step"] for step in said["steps"]} == {10, 11, 12, 13}
    assert len(said["steps"][0]["operations"]) == len(said["operations"])


def test_the_command_on_one_replica(tmp_path):
    path = simulate(generate("zb-h1", 4, 8), Costs(F, B, W)).save(tmp_path / "run.parquet")
    done = command(path)
    assert done.exit_code == 0
    assert "communication is not modelled" in done.output


def test_the_command_without_tasks(tmp_path):
    empty = Timeline(pl.DataFrame(schema=bubblescope.model.timeline.TASK_SCHEMA))
    assert command(empty.save(tmp_path / "empty.parquet")).exit_code == 3


def test_the_command_on_what_cannot_be_replayed(tmp_path):
    run = simulate(generate("1f1b", 2, 4), Costs(F, B, 0))
    path = Timeline(run.tasks.filter(pl.col("kind") == "backward"), run.ranks).save(
        tmp_path / "run.parquet"
    )
    done = command(path)
    assert isinstance(done.exception, TimelineError)
    assert "no forward" in str(done.exception)


def of_microbatches(microbatches: int, steps: int, noise: float, *, dp: bool = True) -> Stragglers:
    """Return a job of two replicas whose forwards and backwards are long together but for noise."""
    plan = generate("1f1b", 2, microbatches)
    rng = np.random.default_rng(microbatches * steps)
    tasks = []
    for step in range(steps):
        parts = []
        for replica in range(2):
            data, *own = rng.normal(size=(3, microbatches))
            times = [
                np.broadcast_to(
                    time + F // 20 * ((1 - noise) * data + noise * each), (2, microbatches)
                )
                for time, each in zip((F, B), own, strict=True)
            ]
            costs = Costs(*(np.round(one).astype(np.int64) for one in times), 0)
            parts.append(job(plan, costs, dp=replica))
        run = concat(parts)
        shift = pl.col("start_ns", "end_ns") + step * 100 * microbatches * F
        tasks.append(run.tasks.with_columns(shift, step=pl.lit(step, pl.Int32)))
    ranks = run.ranks if dp else run.ranks.with_columns(dp=pl.lit(None, pl.Int32))
    return Stragglers.of(Timeline(pl.concat(tasks), ranks, run.run))


@pytest.mark.parametrize(
    ("microbatches", "steps", "noise", "said"),
    [
        (3, 1, 0.0, True),
        (3, 1, 0.6, False),
        (4, 2, 1.0, False),
        (8, 20, 1.0, False),
        (8, 20, 0.5, True),
    ],
)
def test_forward_and_backward_go_together_only_if_chance_cannot_be_why(
    microbatches, steps, noise, said
):
    found = of_microbatches(microbatches, steps, noise)
    known = [one for one in found.slowness.correlation if one is not None]
    assert ("are long together" in str(found)) == said == any(one.certain for one in known)
    for stage, one in zip(found.to_dict()["stages"], known, strict=True):
        low, high = stage["forward_backward_interval"]
        assert low <= stage["forward_backward_correlation"] <= high
        assert one.certain == (low > 0)


def test_the_interval_of_a_correlation_is_fishers():
    """Of 40 pairs, less the means of 10 groups: n - 3 is 28."""
    found = of_microbatches(4, 5, 0.4).slowness.correlation[0]
    middle, error = math.atanh(found.value), 3 / math.sqrt(30 - 2)
    assert found.low == pytest.approx(math.tanh(middle - error))
    assert found.high == pytest.approx(math.tanh(middle + error))


def test_ranks_that_may_run_the_same_microbatches_count_once():
    assert of_microbatches(4, 5, 0.4, dp=False).slowness.correlation[0].low < (
        of_microbatches(4, 5, 0.4).slowness.correlation[0].low
    )
