"""Aligning ranks by what must come before what, against pipelines whose skew is known."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import bubblescope
import kineto_maker
from bubblescope import sources
from bubblescope.analysis.rates import bubble_rates
from bubblescope.analysis.view import View
from bubblescope.cli import cli
from bubblescope.clocks import align, correction, tightest_pairs
from bubblescope.clocks.causality import constraints
from bubblescope.clocks.solution import ROUNDING_NS, Moments
from bubblescope.clocks.solution import solve as solve_clocks
from bubblescope.model import units
from bubblescope.model.provenance import Run
from bubblescope.model.timeline import Timeline
from bubblescope.model.timeline_tables import RANK_SCHEMA
from bubblescope.render.html import page as html
from bubblescope.render.text.report import Report
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from nsight_maker import Style, solve
from places import SHARED

DATA = SHARED


def made(skews, *, transfer=50, replicas=1, common=True, schedule="1f1b", steps=2):
    """A pipeline whose every transfer takes `transfer` ns, each rank with a skew of its own."""
    stages = len(skews) // replicas
    style = Style(schedule=schedule, stages=stages, microbatches=2 * stages)
    # Transfers lengthen the critical path: as if each task took that long more, unseen.
    style.times = {kind: time + transfer for kind, time in style.times.items()}
    rows = []
    for step in range(steps):
        for stage, tasks in solve(style).items():
            for replica in range(replicas):
                rank = stage * replicas + replica
                skew = skews[rank] if common else skews[(rank + step) % len(skews)]
                for kind, microbatch, start, end in tasks:
                    at = 10**6 * step + skew
                    row = (rank, step, kind.value, stage, microbatch)
                    rows.append(
                        (*row, start + at, end - transfer + at, f"{kind.name[0]}{microbatch}")
                    )
    columns = ["rank", "step", "kind", "stage", "microbatch", "start_ns", "end_ns", "name"]
    tasks = pl.DataFrame(rows, schema=columns, orient="row").with_columns(lane=pl.lit("compute"))
    ranks = pl.DataFrame(
        [{"rank": rank, "host": f"node{rank}"} for rank in range(len(skews))], schema=RANK_SCHEMA
    )
    return Timeline(tasks, ranks, Run(common_clock=common))


def codes(timeline):
    return {notice.code: notice for notice in timeline.run.warnings}


@given(
    st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=6),
    st.integers(0, 400),
    st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
)
def test_the_true_offset_is_always_within_the_stated_error(skews, transfer, schedule):
    aligned = align(made(skews, transfer=transfer, schedule=schedule))

    for rank, offset, error in aligned.ranks.select(
        "rank", "clock_offset_ns", "clock_error_ns"
    ).iter_rows():
        assert abs(offset - (skews[0] - skews[rank])) <= error + 1


def test_without_skew_the_bubble_rate_stays_and_with_it_comes_back():
    truth = bubble_rates(made([0] * 4)).overall.makespan

    aligned = align(made([0, 3_000, -40_000, 500_000]))

    assert bubble_rates(aligned).overall.makespan == pytest.approx(truth, abs=1e-4)
    assert aligned.run.common_clock


def test_ranks_without_a_common_clock_are_aligned_step_by_step():
    apart = made([0, 700, -90], common=False)
    assert bubble_rates(apart).overall.makespan is None

    aligned = align(apart)

    assert aligned.run.common_clock
    truth = bubble_rates(made([0] * 3)).overall.makespan
    assert bubble_rates(aligned).overall.makespan == pytest.approx(truth, abs=1e-4)
    assert "clocks-aligned" in codes(aligned)
    assert aligned.run.inferred["clock"]


def test_hosts_that_share_no_clock_have_one_correction_each_even_if_nothing_contradicts_them():
    shared = made([0, 10], transfer=100)
    assert align(shared, "auto").ranks["clock_offset_ns"].to_list() == [0, 0]

    apart = Timeline(shared.tasks, shared.ranks, Run(common_clock=False, host_clocks=True))
    aligned = align(apart, "auto")

    assert aligned.run.common_clock
    assert aligned.ranks["clock_offset_ns"].to_list() == [0, -10]


def test_replicas_are_aligned_each_for_itself():
    skews = [0, 10**6, 5, -7, 2000, 10**6 - 40]

    ranks = align(made(skews, replicas=2)).ranks

    for replica in (0, 1):
        for stage in range(3):
            rank = 2 * stage + replica
            offset = skews[replica] - skews[rank]
            assert abs(ranks["clock_offset_ns"][rank] - offset) <= ranks["clock_error_ns"][rank] + 1


def test_a_contradiction_is_refused_and_named():
    timeline = made([0, 10_000])
    tasks = timeline.tasks.with_columns(
        start_ns=pl.when((pl.col("rank") == 1) & (pl.col("name") == "F3") & (pl.col("step") == 1))
        .then(pl.col("start_ns") - 10**5)
        .otherwise("start_ns")
    )
    broken = Timeline(tasks, timeline.ranks, timeline.run)

    refused = align(broken)

    assert refused.tasks.equals(broken.tasks)
    notice = codes(refused)["clocks-contradict"]
    assert "F3 on rank 0 before F3 on rank 1" in notice.message
    assert "contradict by" in notice.message


def test_with_traffic_one_way_only_nothing_is_claimed():
    timeline = made([0, 10_000])
    forwards = Timeline(
        timeline.tasks.filter(pl.col("kind") == "forward"), timeline.ranks, timeline.run
    )

    aligned = align(forwards)

    assert aligned.ranks["clock_offset_ns"].to_list()[1] is None
    assert aligned.tasks.equals(forwards.tasks)
    clock = aligned.run.clock
    assert clock.method == "unbounded"
    assert "from one side only" in codes(aligned)["clocks-unbounded"].message
    assert "clocks-aligned" not in codes(aligned)
    assert clock.violations_before == clock.violations_after  # not made good by what is unknown


def test_a_timeline_without_stages_is_left_as_it_is():
    timeline = made([0, 10_000])
    bare = Timeline(timeline.tasks.drop("stage"), timeline.ranks, timeline.run)

    same = align(bare)

    assert same.tasks.equals(bare.tasks)
    assert same.ranks.equals(bare.ranks)
    assert same.run.clock is None
    assert "nothing in the traces shows" in codes(same)["clocks-disconnected"].message
    assert align(same) == same


def test_overlapped_pairs_bound_no_more_than_they_can():
    timeline = made([0, 10_000])
    both = (pl.col("kind") == "forward") & (pl.col("microbatch") == 2)
    tasks = timeline.tasks.with_columns(
        kind=pl.when(both)
        .then(pl.lit("forward_backward"))
        .otherwise(pl.col("kind").cast(pl.String)),
        pair_stage=pl.when(both).then("stage"),
        pair_microbatch=pl.when(both).then(9 + pl.col("rank")),
    )

    [_, rank] = align(Timeline(tasks, timeline.ranks, timeline.run)).ranks.to_dicts()

    assert abs(rank["clock_offset_ns"] + 10_000) <= rank["clock_error_ns"] + 1


def test_what_was_unsettled_is_no_warning_any_more():
    timeline = made([0, 700, -90], common=False)
    notice = bubblescope.model.provenance.Notice("no-common-clock", "ranks share no clock")

    aligned = align(timeline.with_notices(notice))

    assert "no-common-clock" not in codes(aligned)


@pytest.mark.skipif(not DATA.exists(), reason="the real dumps are not here")
def test_real_dumps_of_eight_ranks_are_aligned():
    timeline = sources.load(DATA / "primus" / "pp8")

    assert timeline.run.common_clock
    error = timeline.ranks["clock_error_ns"].drop_nulls().max()
    assert 0 < error < 10_000_000
    rates = bubble_rates(timeline)
    assert all(0.3 < one.makespan < 0.7 for one in rates.per_step.values())


@pytest.mark.skipif(not DATA.exists(), reason="the made profiles are not here")
def test_a_skew_between_two_hosts_is_found():
    folder = DATA / "ascend" / "two_hosts_3ms_skew"

    ranks = sources.load(folder).ranks

    raw = sources.load(DATA / "ascend" / "1f1b").tasks
    skewed = sources.load(folder, clock="raw").tasks
    shift = (skewed["start_ns"] - raw["start_ns"]).to_list()
    truth = {rank: shift[list(raw["rank"]).index(rank)] for rank in range(4)}
    for rank in range(4):
        offset = truth[0] - truth[rank]
        found = ranks.filter(rank=rank).to_dicts()[0]
        assert abs(found["clock_offset_ns"] - offset) <= found["clock_error_ns"] + 1


def test_the_origin_of_a_timeline_survives():
    timeline = made([0, 5])
    run = msgspec.structs.replace(timeline.run, schedule="1f1b")

    assert align(Timeline(timeline.tasks, timeline.ranks, run)).run.schedule == "1f1b"


# Hosts with known skew and drift.

LATENCY = 20_000


def pipeline_on(hosts, seed, *, ranks=None, steps=3, skew_ns=1e6, ppm=0.0, messages=True):
    """A pipeline whose transfers take at least 20 us, on hosts whose clocks are off.

    Returns:
        The timeline as the hosts saw it, and the same on the first host's clock.
    """
    random = np.random.default_rng(seed)
    ranks = ranks or max(4, hosts)
    plan = generate("1f1b", ranks, 8)
    parts, at = [], 0
    for step in range(steps):
        work = (1_000_000 * random.uniform(0.8, 1.2, (ranks, 8))).astype(np.int64)
        latency = (LATENCY * (1 + random.exponential(0.5, (ranks, ranks)))).astype(np.int64)
        played = simulate(plan, Costs(work, work, work, comm_ns=latency))
        times = {name: pl.col(name) + at for name in ("start_ns", "end_ns")}
        parts.append(played.tasks.with_columns(step=pl.lit(step, pl.Int32), **times))
        at += played.duration_ns + 1_000_000
    tasks = pl.concat(parts).drop("busy_ns")
    if not messages:
        tasks = tasks.filter(pl.col("lane") == "compute")
    host = np.arange(ranks) * hosts // ranks
    offset = random.uniform(-skew_ns, skew_ns, hosts)
    rate = 1 + random.uniform(-ppm, ppm, hosts) * 1e-6
    named = played.ranks.with_columns(host=pl.Series([f"node{one}" for one in host]))
    own = host[tasks["rank"].to_numpy()]

    def seen(on):
        columns = {
            name: pl.Series(
                np.rint(tasks[name].to_numpy() * rate[on] + offset[on]).astype(np.int64)
            )
            for name in ("start_ns", "end_ns")
        }
        return Timeline(tasks.with_columns(**columns), named)

    return seen(own), seen(np.zeros(len(own), np.int64))


def place(timeline):
    return timeline.tasks.sort("rank", "step", "kind", "microbatch", "peer", "name")


@given(st.integers(0, 10**6), st.integers(2, 6))
def test_without_drift_the_bounds_are_the_longest_paths(seed, count):
    """Difference constraints have another solution: Floyd's and Warshall's, on any machine."""
    random = np.random.default_rng(seed)
    true = random.integers(-(10**9), 10**9, count)
    a = np.concatenate([np.arange(count - 1), np.arange(1, count), random.integers(0, count, 30)])
    b = np.concatenate([np.arange(1, count), np.arange(count - 1), random.integers(0, count, 30)])
    a, b = a[a != b], b[a != b]
    sent = random.integers(0, 10**8, len(a))
    arrived = sent + random.integers(0, 10**5, len(a))
    found = solve_clocks(Moments(a, b, sent - true[a], arrived - true[b]), count, drift=False)

    path = np.full((count, count), -(2**60))
    np.maximum.at(path, (a, b), (sent - true[a]) - (arrived - true[b]))
    np.fill_diagonal(path, 0)
    for middle in range(count):
        path = np.maximum(path, path[:, [middle]] + path[[middle]])
    low, high = path[0], -path[:, 0]
    correction = found.ends_ns[0]
    assert (correction >= low).all()
    assert (correction <= high).all()
    expected = np.maximum(correction - low, high - correction)
    # On the way to the farthest clock, each stamp may have been rounded.
    assert (found.error_ns >= expected).all()
    assert (found.error_ns <= expected + count + 2).all()
    assert (found.slack(Moments(a, b, sent - true[a], arrived - true[b])) >= 0).all()


@pytest.mark.parametrize("hosts", [2, 8])
@pytest.mark.parametrize("skew_ns", [0, 1e3, 1e6, 1e10])
@pytest.mark.parametrize("ppm", [0, 1, 100])
def test_corrected_times_are_within_the_stated_error_of_the_truth(hosts, skew_ns, ppm):
    """`benchmarks/clocks.py` does it for a thousand seeds."""
    errors = []
    for seed in range(3):
        for steps in (1, 12):
            timeline, truth = pipeline_on(hosts, seed, steps=steps, skew_ns=skew_ns, ppm=ppm)
            found = align(timeline)
            assert found.run.clock.violations_after == 0
            both = place(found).join(found.ranks.select("rank", "clock_error_ns"), on="rank")
            off = (both["start_ns"] - place(truth)["start_ns"]).abs()
            assert (off <= both["clock_error_ns"]).all()
            if steps > 1:
                errors.append(off.filter(both["clock_error_ns"] > 0).median())
            rates, expected = bubble_rates(found), bubble_rates(truth)
            error = rates.overall.makespan_error
            assert abs(rates.overall.makespan - expected.overall.makespan) <= error + 1e-4
    assert np.median(errors) <= LATENCY / 2


def test_drift_is_corrected_when_the_capture_is_long_enough_to_tell():
    timeline, truth = pipeline_on(2, 5, steps=60, ppm=100)
    found = align(timeline)
    clock = found.run.clock
    assert clock.drift_ppm["node0"] == 0
    assert "clocks-drift" in codes(found)
    late = place(found).tail(50)["start_ns"] - place(truth).tail(50)["start_ns"]
    assert late.abs().max() < LATENCY
    short, _ = pipeline_on(2, 5, steps=1, ppm=0)
    assert align(short).run.clock.drift_ppm == {}


@pytest.mark.parametrize("ppm", [0, 100])
def test_a_correction_says_how_far_it_moves_the_times_of_each_rank(ppm):
    timeline, _ = pipeline_on(4, 5, steps=60, ppm=ppm)
    found = correction(timeline)
    assert found.groups
    tasks = timeline.tasks
    moved = found.moved(tasks, "start_ns", "end_ns")
    moves = found.moves_ns()
    assert set(moves) == set(timeline.ranks["rank"])
    for rank, (least, most) in moves.items():
        own = tasks["rank"] == rank
        by = [(moved[name] - tasks[name]).filter(own) for name in ("start_ns", "end_ns")]
        shortest, furthest = (f([f(one) for one in by]) for f in (min, max))
        assert least <= shortest <= least + 100
        assert most - 100 <= furthest <= most


def test_messages_bound_more_than_passes():
    with_messages, _ = pipeline_on(2, 3, steps=2)
    without, _ = pipeline_on(2, 3, steps=2, messages=False)
    assert align(with_messages).run.clock.constraints == 2 * align(without).run.clock.constraints
    # They also reach a little further, so drift has more time.
    longer = 1.001
    assert align(with_messages).run.clock.error_ns <= align(without).run.clock.error_ns * longer


@given(st.integers(0, 10**6), st.sampled_from([2, 4]), st.integers(200_000, 10**8))
def test_an_injected_contradiction_is_refused_with_its_pair_and_size(seed, hosts, excess):
    """One forward is recorded as having begun before its input had left the other host."""
    timeline, _ = pipeline_on(hosts, seed, steps=2)
    whole = align(timeline)
    random = np.random.default_rng(seed)
    rank = (
        int(random.integers(1, hosts)) * (4 // hosts) if hosts < 4 else int(random.integers(1, 4))
    )
    chosen = (
        (pl.col("rank") == rank)
        & (pl.col("kind") == "forward")
        & (pl.col("microbatch") == int(random.integers(8)))
        & (pl.col("step") == 1)
    )
    early = pl.when(chosen).then(pl.col("start_ns") - 10**7 - excess).otherwise("start_ns")
    broken = Timeline(timeline.tasks.with_columns(start_ns=early), timeline.ranks)
    refused = align(broken)
    assert refused.tasks.equals(broken.tasks)
    assert refused.run.clock.method == "refused"
    message = codes(refused)["clocks-contradict"].message
    assert f"on rank {rank} of step 1" in message
    assert whole.run.clock.method == "solved"


def test_well_kept_clocks_are_left_alone_and_wrong_ones_corrected(tmp_path):
    kept, _ = pipeline_on(2, 1, skew_ns=0)
    checked = align(kept, "auto")
    assert checked.tasks.equals(kept.tasks)
    assert checked.run.clock.method == "checked"
    assert checked.ranks["clock_offset_ns"].to_list() == [0, 0, 0, 0]
    assert 0 < checked.ranks["clock_error_ns"].max() < 200_000
    [note] = checked.run.notes  # good news is no warning
    assert note.code == "clocks-checked"
    assert "were left as they are" in note.message
    assert not checked.run.warnings
    wrong, _ = pipeline_on(2, 1, skew_ns=1e9)
    assert align(wrong, "auto").run.clock.method == "solved"
    path = wrong.save(tmp_path / "run.parquet")
    assert sources.load(path).run.clock.method == "solved"
    assert sources.load(path, clock="raw").run.clock is None
    assert sources.load(path, clock="solve") == sources.load(path)
    solved = sources.load(path)
    solved.save(path)
    assert sources.load(path) == solved


def test_runs_of_one_host_are_left_alone():
    timeline, _ = pipeline_on(1, 1)
    assert align(timeline, "auto") == timeline
    asked = align(timeline)
    assert asked.tasks.equals(timeline.tasks)
    [note] = asked.run.notes
    assert note.code == "clocks-single"
    assert "none was corrected" in note.message
    assert not asked.run.warnings


def test_the_certificate_names_the_tightest_pairs():
    timeline, _ = pipeline_on(2, 7, skew_ns=1e7)
    clock = align(timeline).run.clock
    assert clock.constraints == 2 * 2 * 8 * 3
    assert clock.violations_before > 0
    assert clock.violations_after == 0
    assert clock.groups == 1
    assert len(clock.tightest) == 3
    assert all("before" in text and "step" in text for text in clock.tightest)


def test_info_prints_the_certificate(tmp_path):
    timeline, _ = pipeline_on(2, 7, skew_ns=1e7)
    path = timeline.save(tmp_path / "run.parquet")
    shown = CliRunner().invoke(cli, ["info", str(path)]).output
    assert "solved: 96 pairs of moments in 1 group, 48 violated as recorded, 0 now" in shown
    assert "tightest: " in shown


def test_hosts_that_are_connected_through_others_only_are_on_one_clock():
    timeline, truth = pipeline_on(8, 2, steps=6, skew_ns=1e9)
    found = align(timeline)
    assert found.ranks["clock_error_ns"].is_sorted()  # farther from the first, less is known
    off = (place(found)["start_ns"] - place(truth)["start_ns"]).abs().max()
    assert off <= found.ranks["clock_error_ns"].max() < 10**6


def test_groups_that_exchange_nothing_are_said_so():
    timeline, _ = pipeline_on(2, 4)
    other, _ = pipeline_on(2, 5)
    shift = pl.col("rank") + 4
    peers = pl.col("peer") + 4
    host = pl.format("far {}", "host")
    both = Timeline(
        pl.concat([timeline.tasks, other.tasks.with_columns(rank=shift, peer=peers)]),
        pl.concat([timeline.ranks, other.ranks.with_columns(rank=shift, host=host)]),
    )
    found = align(both)
    assert found.run.clock.groups == 2
    assert "2 groups of hosts exchange nothing" in codes(found)["clocks-disconnected"].message


def test_rates_and_reports_carry_what_the_clocks_leave_open():
    timeline, _ = pipeline_on(2, 9, steps=2)
    # On a clock of its own, the last device ends last: how long a step took depends on both clocks.
    late = pl.when(pl.col("rank") == 3).then(pl.col("end_ns") + 10**7).otherwise("end_ns")
    last = (pl.col("kind") == "backward") & (pl.col("microbatch") == 7)
    tasks = timeline.tasks.with_columns(end_ns=pl.when(last).then(late).otherwise("end_ns"))
    found = align(Timeline(tasks, timeline.ranks))
    rates = bubble_rates(found).overall
    error = found.ranks["clock_error_ns"][3]
    assert rates.uncertain_ns == 4 * 2 * error
    busy = rates.busy_ns * (1 + found.run.clock.rate_error)
    assert 0 < found.run.clock.rate_error < 3e-4  # on a short capture, what oscillators may do
    assert rates.makespan_error == pytest.approx(
        busy / (rates.makespan_ns - rates.uncertain_ns) - rates.busy_ns / rates.makespan_ns
    )
    shown = units.uncertain(rates.makespan, rates.makespan_error)
    assert " ± " in shown
    assert shown in str(Report.of(found))
    assert Report.of(found).to_dict()["run"]["clock"]["method"] == "solved"
    page = html.render(View.of(found))
    assert '"makespan_error"' not in page
    assert '"errors":{' in page


def test_traces_of_several_formats_merge_onto_one_clock(tmp_path):
    """Half of the ranks as a saved timeline of one host, half as the PyTorch profiler saw another."""
    traces, _, _ = kineto_maker.pipeline(Style(hosts=1))
    for rank, trace in enumerate(traces):
        if rank >= 2:
            trace.write(tmp_path / f"rank{rank}.json")
    whole = tmp_path / "all"
    whole.mkdir()
    for rank, trace in enumerate(traces):
        trace.write(whole / f"rank{rank}.json")
    first = sources.load(whole).slice(ranks=[0, 1])
    late = [pl.col(name) + 5_000_000 for name in ("start_ns", "end_ns")]
    moved = first.tasks.with_columns(*late)
    host = first.ranks.with_columns(host=pl.lit("elsewhere"))
    Timeline(moved, host, first.run).save(tmp_path / "half.parquet")
    merged = sources.load(tmp_path / "half.parquet", *sorted(tmp_path.glob("rank*.json")))
    assert {origin.format for origin in merged.run.origins} >= {"kineto"}
    assert merged.ranks["rank"].to_list() == [0, 1, 2, 3]
    assert merged.run.clock.method == "solved"
    expected = sources.load(whole)
    error = merged.run.clock.error_ns
    for step, rates in bubble_rates(merged).per_step.items():
        same = bubble_rates(expected).per_step[step]
        assert abs(rates.makespan - same.makespan) <= (rates.makespan_error or 0) + 1e-6
    assert error < 5_000_000


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(-(10**15), 10**15), st.integers(-(10**9), 10**9)),
        min_size=1,
        max_size=40,
    ),
    st.integers(-(10**6), 10**6),
)
def test_the_pairs_that_are_kept_imply_all_others(points, slope):
    """No line over time is above them and below another; nor do they hang on how they are split."""

    def implying(rows):
        pairs = pl.DataFrame(rows, ["clock_a", "before_ns", "need"], orient="row").select(
            "clock_a",
            "before_ns",
            clock_b=pl.lit(3),
            after_ns=pl.col("before_ns") - pl.col("need"),
            together=pl.lit(value=False),
            step=pl.lit(None, pl.Int32),
        )
        few = tightest_pairs._implying(pairs, by_step=False)
        kept = few.select("clock_a", "before_ns", need=pl.col("before_ns") - pl.col("after_ns"))
        return sorted({*kept.iter_rows()})

    few = implying(points)
    assert {*few} <= {*points}
    half = len(points) // 2
    parts = [implying(part) for part in (points[:half], points[half:]) if part]
    assert implying([point for part in parts for point in part]) == few
    for clock in {point[0] for point in points}:
        highest = [
            max(need * 10**6 - slope * before for way, before, need in some if way == clock)
            for some in (few, points)
        ]
        assert highest[0] == highest[1]


@pytest.mark.parametrize("messages", [True, False])
def test_what_is_left_out_early_is_counted_and_implied(monkeypatch, messages):
    """Of large runs, most pairs are left out before they are put in order, rank by rank."""
    run, _ = pipeline_on(3, 7, ranks=6, steps=4, messages=messages)
    clock_of = {rank: rank // 2 for rank in range(6)}
    known = constraints(run, np.array([clock_of[rank] for rank in run.tasks["rank"]]))
    rank = run.tasks["rank"]
    clocks = [clock_of[one] for end in ("cause", "effect") for one in rank.gather(known[end])]
    ways = list(zip(clocks[: known.height], clocks[known.height :], strict=True))
    small = tightest_pairs.Evidence.of(run, clock_of, by_step=False)
    monkeypatch.setattr(tightest_pairs, "_FEW", 0)
    monkeypatch.setattr(tightest_pairs, "_STRETCH", 2)
    large = tightest_pairs.Evidence.of(run, clock_of, by_step=False)
    counted = {(a, b): count for _, a, b, count, _ in large.ways.iter_rows()}
    assert counted == Counter(ways)
    late = known["after_ns"] - known["before_ns"]
    assert large.violated == (late < -ROUNDING_NS).sum()
    assert 0 < large.pairs.height < known.height
    assert large.pairs.equals(small.pairs)
