"""Recognising schedules: by order alone, with what is missing, and with what did not follow it."""

from __future__ import annotations

from itertools import product

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope import Timeline, sources
from bubblescope.analysis.schedule.recognise import Recognition, recognise
from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Run
from bubblescope.render.text.report import Report
from bubblescope.schedules import SCHEDULES, generate, torch_csv
from bubblescope.schedules.classic import gpipe, looped_bfs
from bubblescope.schedules.dualpipe import mindspeed_dualpipev
from bubblescope.schedules.plan import Operation, Plan, linear
from bubblescope.schedules.simulate import Costs, simulate
from bubblescope.schedules.zb_auto import Times
from places import SHARED

TIMES = Times(10_000_000, 11_000_000, 8_000_000)


def played(plan: Plan, *, seed: int = 0, steps: int = 3, noise: float = 0.3) -> Timeline:
    """Run a plan with durations that scatter, and say nothing of which schedule it was."""
    random = np.random.default_rng(seed)
    share = plan.devices / plan.stages

    def scattered(time_ns: int) -> np.ndarray:
        factor = random.uniform(1 - noise, 1 + noise, (plan.stages, plan.microbatches))
        return (time_ns * share * factor).astype(np.int64)

    costs = Costs(*(scattered(time) for time in TIMES[:3]), comm_ns=100_000)
    timeline = simulate(plan, costs, steps=steps)
    return Timeline(timeline.tasks, timeline.ranks, Run())


def kept(timeline: Timeline, keep: pl.Expr) -> Timeline:
    return Timeline(timeline.tasks.filter(keep), timeline.ranks, timeline.run)


def without(timeline: Timeline, *ranks: int) -> Timeline:
    gone = pl.col("rank").is_in(ranks)
    return Timeline(timeline.tasks.filter(~gone), timeline.ranks.filter(~gone), timeline.run)


def lossy(timeline: Timeline, seed: int | list[int]) -> Timeline:
    """Lose 1 % of the tasks."""
    random = np.random.default_rng(seed)
    return kept(timeline, pl.Series(random.random(len(timeline)) > 0.01))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v"])
@pytest.mark.parametrize(("m", "lost"), [(8, False), (8, True), (4, False), (1, False)])
def test_looking_at_the_first_steps_first_finds_what_looking_at_all_finds(
    name, m, lost, monkeypatch
):
    """Also which fit as well, as several do of few micro-batches, and where the first steps are cut."""
    run = played(generate(name, 4, m), steps=6)
    if lost:
        run = kept(lossy(run, seed=1), pl.col("start_ns") > run.tasks["start_ns"].quantile(0.1))
    whole = recognise(run)
    monkeypatch.setattr("bubblescope.analysis.schedule.recognise._LARGE", 0)
    early = recognise(run)
    names = ("schedule", "variant", "equals", "confidence", "missing", "departures", "devices")
    assert [getattr(early, one) for one in names] == [getattr(whole, one) for one in names]
    assert np.array_equal(early.position, whole.position)


@pytest.mark.parametrize("column", ["stage", "microbatch"])
def test_one_absurd_number_makes_no_plan_of_as_many(column):
    """Damage to a file may give a task any number: plans of a million stages fill the memory."""
    run = played(generate("1f1b", 4, 8))
    first = pl.int_range(pl.len()) == 7
    odd = run.tasks.with_columns(pl.when(first).then(2**20 - 1).otherwise(column).alias(column))
    found = recognise(Timeline(odd, run.ranks, run.run))
    assert (found.schedule, found.devices, found.microbatches) == ("1f1b", 4, 8)


def named(found: Recognition | None) -> set[str]:
    """Return the schedules that a run is said to be, the one that was chosen and its equals."""
    assert found is not None
    return {str(found.schedule), *found.equals}


GRID = [
    (name, p, m, v)
    for name, p, m, v in product(SCHEDULES, (2, 3, 4, 8), (4, 8, 12, 16, 24), (2, 3, 4))
    if name != "zb-auto" and (v == 2 or SCHEDULES[name].chunks in ("v", "2w"))
]


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "zb-auto"])
def test_every_schedule_is_recognised_in_spite_of_noise_and_losses(name):
    """30 % noise, 1 % of the tasks lost, and from three devices on one rank missing."""
    tried = 0
    for index, (_, p, m, v) in enumerate(one for one in GRID if one[0] == name):
        chunks = v if SCHEDULES[name].chunks in ("v", "2w") else None
        try:
            plan = generate(name, p, m, chunks=chunks, times=TIMES)
        except ScheduleError:
            continue
        tried += 1
        random = np.random.default_rng([index, p, m, v])
        timeline = lossy(played(plan, seed=index), seed=[index, p, m, v])
        if p > 2:
            timeline = without(timeline, int(random.integers(p)))
        found = recognise(timeline)
        assert name in named(found)
        if name == found.schedule:
            assert (found.microbatches, found.chunks) == (m, plan.chunks)
            assert found.splits_backward == plan.splits_backward
            assert found.overlaps == plan.overlaps
            # GPipe's other devices cannot know how many there are behind them.
            assert found.devices == p or (name == "gpipe" and found.devices == p - 1)
            if not SCHEDULES[name].searched:
                assert found.departures == ()
                assert found.confidence > 0.99
    assert tried


@pytest.mark.parametrize(
    "name", ["1f1b", "zb-2p", "zb-v", "v-half", "v-min", "dualpipev", "hanayo"]
)
def test_long_steps_are_recognised_by_their_beginning_and_checked_to_their_end(name):
    plan = generate(name, 3, 60, times=TIMES)
    found = recognise(played(plan, noise=0))
    assert (found.schedule, found.microbatches, found.departures) == (name, 60, ())
    late = swapped(plan, 1, int(plan.first[2] - plan.first[1]) - 9)
    assert len(recognise(played(late, noise=0, steps=1)).departures) == 1


@pytest.mark.parametrize("comm_ns", [0, 500_000, 2_000_000])
@pytest.mark.parametrize(("p", "m"), [(4, 16), (8, 32), (8, 64)])
@pytest.mark.parametrize("name", ["zb-1p", "zb-2p"])
def test_what_was_planned_for_other_times_is_known_by_what_a_search_promises(name, p, m, comm_ns):
    """Of the times that were planned for, and of transfers, a trace shows only what became of them."""
    plan = generate(name, p, m, times=TIMES._replace(comm_ns=comm_ns))
    for noise in (0.0, 0.05, 0.3):
        timeline = played(plan, seed=p, noise=noise)
        for seen in (timeline, without(timeline, 1), lossy(timeline, seed=m)):
            found = recognise(seen)
            assert name in named(found)
            assert (found.devices, found.microbatches) == (p, m)
            if found.schedule == name:
                assert found.plan is not None
                assert len(found.departures) <= 0.02 * found.operations


def test_an_own_order_is_that_of_most_steps():
    plan = generate("zb-2p", 8, 32, times=TIMES._replace(comm_ns=500_000))
    late = next(i for i in range(30, 60) if swapped_or_none(plan, 2, i))
    turned = swapped(plan, 2, late)
    steps = [played(turned, steps=1), played(plan, steps=3)]
    shifted = steps[1].tasks.with_columns(
        pl.col("start_ns", "end_ns") + 10 * int(steps[0].tasks["end_ns"].max()),
        step=pl.col("step") + 1,
    )
    run = Timeline(pl.concat([steps[0].tasks, shifted]), steps[0].ranks, Run())
    found = recognise(run)
    assert (found.schedule, found.variant) == ("zb-2p", "in an order of its own")
    assert [(departure.step, departure.rank) for departure in found.departures] == [(0, 2)]


def _reordered(order: list[Operation], rule: str) -> list[Operation]:
    weights = [one for one in order if one.kind is Kind.BACKWARD_WEIGHT]
    rest = [one for one in order if one.kind is not Kind.BACKWARD_WEIGHT]
    if rule == "weights at the end":
        return rest + weights
    after = {one.microbatch: one for one in weights}
    return [
        each
        for one in rest
        for each in ([one, after[one.microbatch]] if one.kind is not Kind.FORWARD else [one])
    ]


@pytest.mark.parametrize("rule", ["weights at the end", "weights at once"])
@pytest.mark.parametrize("name", ["zb-h1", "zb-h2"])
def test_a_split_backward_alone_is_no_searched_schedule(name, rule):
    """Weights at the end need more memory; weights at once spare too little of the bubble."""
    plan = generate(name, 8, 32)
    orders = [_reordered(plan.order(device), rule) for device in range(8)]
    found = recognise(played(Plan.of("mine", plan.placement, orders)))
    assert found.schedule is None


def test_micro_batches_out_of_turn_are_no_searched_schedule():
    random = np.random.default_rng(5)
    renamed = random.permutation(32)
    plan = generate("zb-2p", 8, 32, times=TIMES)
    orders = [
        [one._replace(microbatch=int(renamed[one.microbatch])) for one in plan.order(device)]
        for device in range(8)
    ]
    assert recognise(played(Plan.of("mine", plan.placement, orders))).schedule is None


def test_schedules_that_cannot_be_told_apart_are_named_together():
    found = recognise(played(generate("zb-1p", 4, 8, times=TIMES)))
    assert found.schedule == "zb-h1"
    assert found.equals == ("zb-1p",)


def test_where_order_cannot_tell_the_run_is_believed():
    timeline = played(generate("eager-1f1b", 2, 1))
    declared = Timeline(timeline.tasks, timeline.ranks, Run(schedule="Eager 1F1B"))
    assert recognise(declared).schedule == "eager-1f1b"
    declared = Timeline(timeline.tasks, timeline.ranks, Run(schedule="ZB-V"))
    assert recognise(declared).schedule == "1f1b"


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("m", [1, 4])
def test_one_device_is_no_pipeline(name, m):
    """Whatever it is called, and however many copies of the model there are."""
    timeline = played(generate(name, 1, m))
    copy = (pl.col("rank") + 1).alias("rank")
    both = Timeline(
        pl.concat([timeline.tasks, timeline.tasks.with_columns(copy)]),
        pl.concat([timeline.ranks, timeline.ranks.with_columns(copy)]),
        Run(schedule="1F1B"),
    )
    for run in (timeline, both):
        found = recognise(run)
        assert (found.schedule, found.plan, found.devices) == (None, None, 1)
        assert (found.microbatches, found.replicas) == (m, run.ranks.height)
    assert "no pipeline" in str(Report.of(timeline))


@pytest.mark.parametrize(
    ("plan", "name", "variant"),
    [
        (gpipe(4, 8, last_first=True), "gpipe", "last micro-batch's backward first"),
        (looped_bfs(4, 8, 2, last_first=True), "looped-bfs", "last micro-batch's backward first"),
        (mindspeed_dualpipev(4, 10), "dualpipev", "MindSpeed's, last backwards whole"),
    ],
)
def test_variants_are_told_from_the_common_form(plan, name, variant):
    found = recognise(played(plan))
    assert (found.schedule, found.variant, found.departures) == (name, variant, ())


def swapped(plan: Plan, device: int, first: int) -> Plan:
    """Let a device run an operation and the one after it the other way round."""
    orders = [plan.order(one) for one in range(plan.devices)]
    order = orders[device]
    order[first], order[first + 1] = order[first + 1], order[first]
    return Plan.of(plan.name, plan.placement, orders)


def test_departures_say_what_ran_where_and_what_was_expected():
    plan = generate("1f1b", 4, 12)
    # Device 2 runs F0 F1 B0 F2 B1 F3 B2 ...: turn F3 B2 into B2 F3.
    found = recognise(played(swapped(plan, 2, 5), steps=2))
    assert found.schedule == "1f1b"
    assert [str(departure) for departure in found.departures] in (
        [f"step {step}, stage 2 (rank 2): B2 ran before F3, expected after" for step in (0, 1)],
        [f"step {step}, stage 2 (rank 2): F3 ran after B2, expected before" for step in (0, 1)],
    )
    assert 0.9 < found.confidence < 1


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("pairs", "schedule"), [(16, "1f1b"), (17, None)])
def test_with_more_than_a_tenth_out_of_order_it_is_no_longer_that_schedule(pairs, schedule, seed):
    plan = generate("1f1b", 4, 20)  # of 160 operations
    places = [(device, place) for device in range(4) for place in range(4, 37)]
    np.random.default_rng(seed).shuffle(places)
    turned: set[tuple[int, int]] = set()
    for device, place in places:
        near = {(device, other) for other in range(place - 2, place + 3)}
        if len(turned) == pairs or near & turned:
            continue
        if one := swapped_or_none(plan, device, place):
            plan = one
            turned.add((device, place))
    assert len(turned) == pairs
    found = recognise(played(plan, steps=1))
    assert found.schedule == schedule
    assert len(found.departures) == (pairs if schedule else 0)


def test_an_operation_of_another_stage_is_named_with_it():
    plan = generate("interleaved-1f1b", 2, 4, chunks=2)
    orders = [plan.order(0), plan.order(1)]
    move = next(i for i, o in enumerate(orders[0]) if o.stage == 2 and o.kind is Kind.BACKWARD)
    orders[0].insert(move + 3, orders[0].pop(move))
    found = recognise(played(Plan.of("mine", plan.placement, orders), steps=1))
    assert found.schedule == "interleaved-1f1b"
    said = [str(departure) for departure in found.departures]
    assert said == ["step 0, stage 2 (rank 0): B0 ran after B1, expected before"] or len(said) == 1


@given(st.sampled_from(["1f1b", "zb-h1"]), st.integers(2, 5), st.integers(6, 12), st.data())
def test_one_pair_out_of_order_is_one_departure(name, p, m, data):
    plan = generate(name, p, m)
    device = data.draw(st.integers(0, p - 1))
    size = int(plan.first[device + 1] - plan.first[device])
    turned = swapped_or_none(plan, device, data.draw(st.integers(0, size - 2)))
    if turned is None:
        return
    found = recognise(played(turned, steps=1))
    assert name in named(found)
    if found.schedule == name:
        assert len(found.departures) == 1
        assert found.departures[0].rank == device


def swapped_or_none(plan: Plan, device: int, first: int) -> Plan | None:
    try:
        turned = swapped(plan, device, first)
        simulate(turned, Costs(1, 1, 1))
    except ScheduleError:  # the pair was bound to that order
        return None
    return turned


def test_replicas_of_data_and_tensor_parallel_runs_are_told_apart():
    timeline = played(generate("1f1b", 4, 8))
    parts, ranks = [], []
    for copy in range(3):
        shift = pl.col("rank") + 4 * copy
        parts.append(timeline.tasks.with_columns(rank=shift))
        ranks.append(timeline.ranks.with_columns(rank=shift, dp=pl.lit(copy)))
    whole = Timeline(pl.concat(parts), pl.concat(ranks))
    found = recognise(whole)
    assert (found.schedule, found.devices, found.replicas) == ("1f1b", 4, 3)
    assert found.coordinates.replica[9] == 2
    assert found.coordinates.device[9] == 1
    # Nothing says which ranks belong together: those of one stage are counted.
    blank = whole.ranks.with_columns(dp=pl.lit(None, pl.Int32))
    assert recognise(Timeline(whole.tasks, blank)).replicas == 3


def test_two_of_eight_ranks_are_enough_for_1f1b():
    found = recognise(without(played(generate("1f1b", 8, 16)), 0, 2, 4, 5, 6, 7))
    assert (found.schedule, found.devices, found.confidence) == ("1f1b", 8, pytest.approx(1))
    assert found.missing_devices == (0, 2, 4, 5, 6, 7)


def test_steps_cut_at_the_edges_of_the_capture_are_no_departures():
    timeline = played(generate("zb-h2", 4, 12))
    begin = timeline.start_ns + timeline.duration_ns // 7
    end = timeline.end_ns - timeline.duration_ns // 9
    found = recognise(timeline.slice(start_ns=begin, end_ns=end))
    assert (found.schedule, found.microbatches, found.departures) == ("zb-h2", 12, ())
    assert found.missing > 0


def test_zero_bubble_with_whole_backwards_on_rank_0():
    """Megatron's light patch for ZB-H1 leaves the backward whole where nothing waits for it."""
    timeline = played(generate("zb-h1", 4, 8))
    first = pl.col("rank") == 0
    tasks = timeline.tasks.filter(~(first & (pl.col("kind") == "backward_weight")))
    whole = pl.when(first & (pl.col("kind") == "backward_input"))
    kind = whole.then(pl.lit("backward", tasks.schema["kind"])).otherwise("kind")
    found = recognise(Timeline(tasks.with_columns(kind=kind), timeline.ranks))
    assert (found.schedule, found.fused_ranks, found.missing) == ("zb-h1", (0,), 0)


@pytest.mark.parametrize("seed", range(5))
def test_what_follows_no_schedule_is_unknown_and_shown_as_it_was(seed):
    """A pipeline that runs whatever comes first in a shuffled list of what it could."""
    random = np.random.default_rng(seed)
    orders = []
    for device in range(4):
        # Groups of two with whole backwards in between: no known schedule does that.
        order = []
        for i in range(0, 12, 3):
            three = range(i, i + 3)
            order += [Operation(Kind.FORWARD, device, k) for k in three]
            order += [
                Operation(Kind.BACKWARD, device, k) for k in random.permutation(three).tolist()
            ]
        orders.append(order)
    for device in range(1, 4):
        orders[device] = [Operation(k, device, i) for k, _, i, *_ in orders[0]]
    found = recognise(played(Plan.of("mine", linear(4), orders)))
    assert found.schedule is None
    assert found.plan is None
    assert found.confidence == 0
    assert found.departures == ()
    assert found.order[2].startswith("F0 F1 F2 B")
    assert "none of the known ones" in str(Report.of(played(Plan.of("mine", linear(4), orders))))
    mine = Plan.of("mine", linear(4), orders)
    known = recognise(played(mine), also=[mine])
    assert (known.schedule, known.variant, known.departures) == ("mine", "as given", ())


def test_a_plan_of_ones_own_is_recognised_from_its_csv(tmp_path):
    from click.testing import CliRunner

    from bubblescope.cli import cli

    plan = generate("zb-auto", 4, 12, memory=6, times=Times(3, 2, 1))
    path = torch_csv.write(plan, tmp_path / "special.csv")
    trace = played(plan).save(tmp_path / "run.bubbles.parquet")
    result = CliRunner().invoke(cli, ["report", str(trace), "--plan", str(path)])
    assert "special (as given), 4 devices" in result.output
    page = tmp_path / "x.html"
    arguments = ["view", str(trace), "--plan", str(path), "-o", str(page), "--no-open"]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert "special (as given)" in page.read_text()


def test_a_run_without_numbers_is_left_alone():
    timeline = played(generate("1f1b", 2, 4))
    blank = timeline.tasks.with_columns(microbatch=pl.lit(None, pl.Int32))
    assert recognise(Timeline(blank, timeline.ranks)) is None
    assert recognise(timeline.slice(end_ns=0)) is None
    assert "not known" in str(Report.of(Timeline(blank, timeline.ranks)))


def test_the_json_says_everything_but_the_evidence():
    said = recognise(played(swapped(generate("1f1b", 3, 9), 1, 4))).to_dict()
    assert said["schedule"] == "1f1b"
    assert said["departures"][0]["text"].startswith("step 0, stage 1")
    assert {"plan", "observed", "position", "coordinates"}.isdisjoint(said)


REAL = {
    "kineto/torch-2.13-gloo/1F1B": ("1f1b", 4, 8, 1, 1),
    "kineto/torch-2.13-gloo/Interleaved1F1B": ("interleaved-1f1b", 4, 8, 2, 1),
    "kineto/torch-2.13-gloo/ZBVZeroBubble": ("zb-v", 4, 8, 2, 1),
    "kineto/torch-2.13-gloo/DualPipeV": ("dualpipev", 4, 8, 2, 1),
    "jobtrace/trace-ST.parquet": ("1f1b", 4, 4, 1, 2),
    "jobtrace/trace-SE.parquet": ("1f1b", 2, 8, 1, 32),
    "primus/pp8": ("1f1b", 8, 16, 1, 1),
    "nsight/made/zb_2nodes": ("zb-h1", 8, 16, 1, 1),
    "nsight/made/1f1b_autograd_thread": ("1f1b", 4, 8, 1, 1),
    "ascend/1f1b": ("1f1b", 4, 8, 1, 1),
    "ascend/dualpipev": ("dualpipev", 4, 10, 2, 1),
    "paddle/1f1b": ("1f1b", 4, 8, 1, 1),
}


@pytest.mark.parametrize("path", REAL)
def test_real_runs_are_recognised(path):
    if not (SHARED / path).exists():
        pytest.skip("the shared traces are not here")
    timeline = sources.load(SHARED / path)
    found = recognise(timeline)
    size = (found.devices, found.microbatches, found.chunks, found.replicas)
    assert (found.schedule, *size) == REAL[path]
    assert found.departures == ()
    assert set(found.equals) <= {"zb-1p"}  # for these times, ZB-H1
    ideal = Report.of(timeline).bubbles.overall
    assert ideal.excess is None or 0 <= ideal.excess < 0.15


@pytest.mark.parametrize("rank", range(4))
def test_one_rank_of_1f1b_is_not_surely_that_of_another_schedule_with_fewer_devices(rank):
    """Device 1 of 4 warms up in 1F1B as device 1 of 3 does in eager 1F1B."""
    alone = [other for other in range(4) if other != rank]
    found = recognise(without(played(generate("1f1b", 4, 8)), *alone))
    assert (found.schedule, found.devices) == ("1f1b", 4)
    others = dict(zip(found.equals, found.equal_devices, strict=True))
    assert others == {1: {"eager-1f1b": 3}, 3: {"eager-1f1b": 4}}.get(rank, {})


def test_what_a_run_says_of_itself_decides_which_schedule_one_rank_followed():
    alone = without(played(generate("eager-1f1b", 3, 8)), 0, 2)
    declared = msgspec.structs.replace(alone.run, schedule="eager-1f1b")
    found = recognise(Timeline(alone.tasks, alone.ranks, declared))
    assert (found.schedule, found.devices) == ("eager-1f1b", 3)
    assert (found.equals, found.equal_devices) == (("1f1b",), (4,))
