"""What is promised of clocks, against runs whose truth is known.

The runs are played here, by nothing that the package has: every stage works in its order, results take
their time to the next stage, and each host's clock shows its own time of it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubblescope.analysis.idle import counterfactuals
from bubblescope.analysis.idle.measured_run import measured_run
from bubblescope.analysis.rates import bubble_rates
from bubblescope.clocks import align
from bubblescope.clocks.solution import Moments, solve
from bubblescope.model.clock_errors import MAX_DRIFT
from bubblescope.model.provenance import Run
from bubblescope.model.timeline import Timeline
from bubblescope.model.timeline_tables import RANK_SCHEMA
from bubblescope.render.text.info import Info
from bubblescope.render.text.report import Report
from full import examples

COLUMNS = ["rank", "step", "kind", "stage", "microbatch", "start_ns", "end_ns", "name"]


class Played(NamedTuple):
    """A run as it was: rows as in COLUMNS, in true time; its ranks' hosts; how their clocks are off."""

    rows: list[tuple]
    host: list[int]
    offset: np.ndarray
    rate: np.ndarray

    def seen(self, times, ranks):
        """Return what the clocks of ranks showed at true times, in whole nanoseconds."""
        on = np.array(self.host)[ranks]
        return np.rint(np.asarray(times) * self.rate[on] + self.offset[on]).astype(np.int64)

    def kept(self, keep):
        """Return the run as it was recorded by somebody who saw only some of it."""
        return self._replace(rows=[row for row in self.rows if keep(*row[:5], row[5], row[6])])

    def timeline(self, **run):
        """Return the run as its hosts' clocks saw it."""
        return self._on([row[0] for row in self.rows], run)

    def truth(self, rank=0):
        """Return the run as the clock of one rank would have seen all of it."""
        return self._on([rank] * len(self.rows), {})

    def _on(self, clock, run):
        columns = dict(zip(COLUMNS, map(list, zip(*self.rows, strict=True)), strict=True))
        for name in ("start_ns", "end_ns"):
            columns[name] = self.seen(columns[name], clock)
        tasks = pl.DataFrame(columns).with_columns(lane=pl.lit("compute"))
        ranks = [
            {"rank": rank, "host": f"node{host}"} | {"dp": rank % self.pipelines, "stages": None}
            for rank, host in enumerate(self.host)
        ]
        return Timeline(tasks, pl.DataFrame(ranks, schema=RANK_SCHEMA, orient="row"), Run(**run))

    @property
    def pipelines(self):
        """How many pipelines run side by side."""
        return len(self.host) // (1 + max(row[3] for row in self.rows))


def order_of(stage, stages, microbatches, *, all_forwards_first):
    """Return kinds and micro-batches in the order of GPipe or of 1F1B."""
    ahead = microbatches if all_forwards_first else min(microbatches, stages - stage)
    order = [("forward", one) for one in range(ahead)]
    for one in range(microbatches):
        order.append(("backward", one))
        if ahead + one < microbatches:
            order.append(("forward", ahead + one))
    return order


def played(
    seed,
    *,
    hosts,
    stages,
    steps=3,
    microbatches=4,
    forward_ns=20_000,
    backward_ns=20_000,
    jitter=0.5,
    skew_ns=1e6,
    ppm=0.0,
    pipelines=1,
):
    """Play a run: each link takes so long forward and backward, and up to `jitter` longer."""
    random = np.random.default_rng(seed)
    rows, at = [], 0.0
    for step in range(steps):
        latest = at
        for pipeline in range(pipelines):
            done, free = {}, dict.fromkeys(range(stages), at + float(random.uniform(0, 1e5)))
            first = bool(random.integers(2))
            left = {
                stage: order_of(stage, stages, microbatches, all_forwards_first=first)
                for stage in range(stages)
            }
            while any(left.values()):
                for stage, tasks in left.items():
                    while tasks:
                        kind, number = tasks[0]
                        forward = kind == "forward"
                        source = stage - 1 if forward else stage + 1
                        ready = free[stage]
                        if 0 <= source < stages:
                            if (kind, source, number) not in done:
                                break
                            least = forward_ns if forward else backward_ns
                            took = least * (1 + jitter * random.random())
                            ready = max(ready, done[kind, source, number] + took)
                        tasks.pop(0)
                        end = ready + float(random.uniform(2e5, 1e6)) * (1 if forward else 2)
                        done[kind, stage, number] = free[stage] = end
                        rank = stage * pipelines + pipeline
                        name = f"{kind[0].upper()}{number}"
                        rows.append((rank, step, kind, stage, number, ready, end, name))
            latest = max(latest, *free.values())
        at = latest + 1e6
    ranks = stages * pipelines
    host = [rank * hosts // ranks for rank in range(ranks)]
    offset = random.uniform(-skew_ns, skew_ns, hosts)
    return Played(rows, host, offset, 1 + random.uniform(-ppm, ppm, hosts) * 1e-6)


def codes(timeline):
    return {notice.code: notice.message for notice in timeline.run.warnings}


def in_order(timeline):
    """Return the tasks in an order that does not depend on clocks."""
    return timeline.tasks.sort("rank", "step", "kind", "microbatch")


def broken(timeline):
    """Return how many results were used a nanosecond or more before they were there: by a join."""
    tasks = timeline.tasks.join(timeline.ranks.select("rank", "dp"), on="rank")
    count = 0
    for kind, ahead in (("forward", 1), ("backward", -1)):
        one = tasks.filter(pl.col("kind") == kind)
        fed = one.with_columns(stage=pl.col("stage") + ahead)
        pairs = fed.join(one, on=["step", "dp", "stage", "microbatch"], suffix="_fed")
        count += pairs.filter(pl.col("start_ns_fed") < pl.col("end_ns")).height
    return count


def check(run, found):
    """Hold what was found against the truth.

    Returns:
        How many ranks something was promised of that are on another host than their group's first.
    """
    report = found.run.clock
    ranks = {row["rank"]: row for row in found.ranks.to_dicts()}
    assert sorted(rank for group in report.comparable for rank in group) == sorted(ranks)
    promised, raw = 0, in_order(run.timeline())
    for group in report.comparable:
        truth = in_order(run.truth(group[0]))
        for rank in group:
            error = ranks[rank]["clock_error_ns"]
            mine = in_order(found).filter(rank=rank)
            if error is None:  # nothing is claimed, and nothing was done
                assert {run.host[rank]} == {run.host[one] for one in group}
                assert mine.equals(raw.filter(rank=rank).select(mine.columns))
                continue
            assert error <= report.error_ns
            promised += run.host[rank] != run.host[group[0]]
            true = truth.filter(rank=rank)
            for name in ("start_ns", "end_ns"):
                assert ((mine[name] - true[name]).abs() <= error).all()
    rates = bubble_rates(found)
    true_rates = bubble_rates(run.truth())
    for step, one in rates.per_step.items():
        true = true_rates.per_step[step]
        if one.uncertain_ns is not None:
            busy = one.makespan_ns * (report.rate_error + 1e-9) + 2 * len(ranks)
            assert abs(one.makespan_ns - true.makespan_ns) <= one.uncertain_ns + busy
            assert abs(one.makespan - true.makespan) <= one.makespan_error + 1e-6
    if any(row["clock_error_ns"] is None for row in ranks.values()):
        assert {"clocks-unbounded", "clocks-disconnected"} & set(codes(found))
        assert all(one.makespan_error is None for one in rates.per_step.values() if one.makespan)
    return promised


links = st.sampled_from([(20_000, 20_000), (2_000, 20_000), (20_000, 2_000), (0, 0), (0, 50_000)])
skews = st.sampled_from([0, 5_000, 1e6, 1e10])
drifts = st.sampled_from([0, 1, 30, 100])
modes = st.sampled_from(["auto", "solve"])


@given(st.integers(0, 2**32), links, skews, drifts, st.integers(2, 4), modes)
@settings(max_examples=examples(120), deadline=None)
def test_the_error_covers_the_truth_however_asymmetric_the_links(
    seed, link, skew_ns, ppm, hosts, mode
):
    forward_ns, backward_ns = link
    run = played(
        seed,
        hosts=hosts,
        stages=hosts * (1 + seed % 2),
        steps=1 + seed % 3,
        forward_ns=forward_ns,
        backward_ns=backward_ns,
        jitter=seed % 3 / 2,
        skew_ns=skew_ns,
        ppm=ppm,
    )

    found = align(run.timeline(), mode)

    assert check(run, found) == sum(host > 0 for host in run.host)
    assert found.run.clock.violations_after == 0
    if mode == "auto":
        left = found.run.clock.method == "checked"
        assert left == found.tasks.equals(run.timeline().tasks)


@given(st.integers(0, 2**32), st.sampled_from([0, 10]), drifts, modes)
@settings(max_examples=examples(60), deadline=None)
def test_without_any_transfer_time_corrected_times_are_in_order(seed, jitter_ns, ppm, mode):
    """All that the clocks leave open is what the stages wait for each other: at times, nothing."""
    run = played(
        seed,
        hosts=3,
        stages=3,
        forward_ns=jitter_ns,
        backward_ns=0,
        jitter=0,
        skew_ns=1e4,
        ppm=ppm,
    )
    if not ppm:  # the clocks then differ by whole nanoseconds, and nothing is lost in rounding
        rows = [(*row[:5], round(row[5]), round(row[6]), row[7]) for row in run.rows]
        run = run._replace(rows=rows, offset=np.rint(run.offset))

    found = align(run.timeline(), mode)

    check(run, found)
    assert found.run.clock.violations_after == 0
    if not ppm and mode == "solve":
        assert broken(found) == 0


@pytest.mark.parametrize(("ppm", "by_step"), [(0, False), (50, False), (0, True)])
def test_clocks_of_which_only_one_is_possible_are_found(ppm, by_step):
    """One stage's every task begins as the last one's ends, on both sides: no room at all."""
    rows = []
    for step in range(1 if by_step else 2):
        at = step * 10**9
        # F0 on stage 0, F0 and B0 on stage 1, B0 on stage 0, each when the one before has ended.
        for index, (rank, kind) in enumerate(
            [(0, "forward"), (1, "forward"), (1, "backward"), (0, "backward")]
        ):
            begin = at + 1_000_003 * index
            rows.append(
                (rank, step, kind, rank, 0, begin, begin + 1_000_003, f"{kind[0].upper()}0")
            )
    rate = np.array([1, 1 + ppm * 1e-6])
    run = Played(rows, [0, 1], np.array([0, 123_456_789.0]), rate)

    found = align(run.timeline(common_clock=not by_step))

    assert found.run.clock.method == "solved"
    assert found.run.clock.violations_after == 0
    check(run, found)
    if by_step:
        assert found.run.clock.error_ns <= 3


@given(st.integers(0, 2**32), st.integers(0, 2), skews, drifts, modes)
@settings(max_examples=examples(60), deadline=None)
def test_a_host_may_begin_late_or_end_early(seed, late, skew_ns, ppm, mode):
    whole = played(seed, hosts=3, stages=3, steps=5, skew_ns=skew_ns, ppm=ppm)
    last = max(row[6] for row in whole.rows)
    cut = seed % 2
    run = whole.kept(
        lambda rank, step, _kind, _stage, _number, _start, end: (
            rank != late or (end < 0.6 * last if cut else step >= 3)
        )
    )

    found = align(run.timeline(), mode)

    assert check(run, found) == 2
    assert found.run.clock.violations_after == 0


@pytest.mark.parametrize("host", [0, 1, 2])
@pytest.mark.parametrize("mode", ["auto", "solve"])
def test_a_host_that_is_bounded_from_one_side_only_gets_no_number(host, mode):
    """Its trace has one forward. The others are aligned with each other all the same."""
    kept = {0: 1, 1: 3, 2: 4}[host]  # the rank that borders on another host
    run = played(host, hosts=3, stages=6).kept(
        lambda rank, step, kind, _stage, number, _start, _end: (
            rank // 2 != host or (rank, step, kind, number) == (kept, 1, "forward", 1)
        )
    )

    found = align(run.timeline(), mode)

    errors = dict(found.ranks.select("host", "clock_error_ns").iter_rows())
    assert errors[f"node{host}"] is None
    clock = found.run.clock
    shown = str(Report.of(found)) + str(Info.of(found))
    assert "±0 ns" not in shown
    if host == 1:  # it stood between the others, which exchange nothing without it
        assert check(run, found) == 0
        assert clock.method == "unbounded"
        assert clock.error_ns is None
        assert clock.comparable == ((0, 1), (2, 3), (4, 5))
        assert "how far clocks are off is unknown" in " ".join(str(Info.of(found)).split())
        assert "from one side only" in codes(found)["clocks-unbounded"]
        assert "2 groups of hosts exchange nothing" in codes(found)["clocks-disconnected"]
    else:
        assert check(run, found) == 2
        assert clock.violations_after == 0 or mode == "auto"
        assert f"the clocks of node{host} against the other" in codes(found)["clocks-unbounded"]
        assert "the clocks of 2 of 3 hosts" in str(codes(found))


@pytest.mark.parametrize("mode", ["auto", "solve"])
def test_between_pipelines_that_exchange_nothing_no_number_is_claimed(mode):
    run = played(1, hosts=6, stages=3, pipelines=2)

    found = align(run.timeline(), mode)

    assert check(run, found) == 4
    assert found.run.clock.comparable == ((0, 2, 4), (1, 3, 5))
    assert found.ranks["clock_error_ns"].to_list()[:2] == [0, 0]  # each is the first of its own
    assert "2 groups of hosts exchange nothing" in codes(found)["clocks-disconnected"]
    assert bubble_rates(found).overall.makespan_error is None
    one = found.slice(ranks=[1, 3, 5])
    assert bubble_rates(one).overall.makespan_error > 0


def test_a_rank_that_is_bounded_in_some_steps_only_gets_no_number():
    """Each step has a zero of its own: that of the last step is known of rank 0 and 1, and not of 2."""
    run = played(1, hosts=3, stages=3, skew_ns=0).kept(
        lambda rank, step, kind, *_: (rank, step, kind) != (2, 2, "backward")
    )

    found = align(run.timeline(common_clock=False))

    errors = found.ranks["clock_error_ns"].to_list()
    assert errors[0] == 0
    assert errors[1] > 0
    assert errors[2] is None
    assert not found.run.common_clock


def test_a_task_is_busy_for_no_longer_than_it_lasts_by_the_corrected_clock():
    """Clocks that run 100 parts per million fast make a task of 100 ms 10 us too long."""
    run = played(5, hosts=2, stages=2, steps=40, microbatches=8)
    run = run._replace(rate=np.array([0.9999, 1.0001]))
    seen = run.timeline()
    length = pl.col("end_ns") - pl.col("start_ns")
    half = pl.when(pl.col("microbatch") % 2 == 0).then(length).otherwise(length // 2)
    busy = seen.tasks.with_columns(busy_ns=half)

    found = align(Timeline(busy, seen.ranks, seen.run))

    clock = found.run.clock
    true = 0.9999 / 1.0001 - 1
    assert abs(clock.drift_ppm["node1"] * 1e-6 - true) <= clock.rate_error < abs(true) / 2
    lasts = (found.tasks["end_ns"] - found.tasks["start_ns"]).to_list()
    expected = [min(was, now) for was, now in zip(busy["busy_ns"], lasts, strict=True)]
    assert found.tasks["busy_ns"].to_list() == expected
    assert found.tasks["busy_ns"].to_list() != busy["busy_ns"].to_list()


def test_hosts_of_which_nothing_is_known_are_left_as_they_are():
    run = played(1, hosts=2, stages=2).kept(lambda rank, step, *_: rank == step % 2)

    found = align(run.timeline())

    assert found.tasks.equals(run.timeline().tasks)
    assert "nothing in the traces shows how the clocks of 2 hosts differ" in str(codes(found))
    assert bubble_rates(found).overall.makespan_error is None


@pytest.mark.parametrize("mode", ["auto", "solve"])
def test_the_error_holds_before_the_first_message_and_after_the_last(mode):
    """Forty seconds are long for clocks that are 100 parts per million fast or slow."""
    whole = played(3, hosts=2, stages=2, ppm=100, skew_ns=0)
    others = [
        (rank, 1, "optimizer", rank, None, at, at + 2e10, "step")
        for rank in range(2)
        for at in (-3e10, 2e10)
    ]
    rows = [*whole.rows, *others]
    run = whole._replace(rows=rows, rate=np.array([0.9999, 1.0001]))

    found = align(run.timeline(), mode)

    assert check(run, found) == 1
    assert found.run.clock.error_ns > 200e-6 * 4e10


@pytest.mark.parametrize("mode", ["auto", "solve"])
def test_why_takes_ways_between_unbounded_clocks_for_transfer_by_what_the_soonest_lacks(mode):
    """How far the clocks are off, nothing tells; but no result was used before it was there."""
    forwards = played(2, hosts=2, stages=4, forward_ns=3e6, skew_ns=0).kept(
        lambda rank, _step, kind, *_: kind == "forward" or rank >= 2
    )

    found = align(forwards.timeline(), mode)

    assert found.run.clock.method == "unbounded"
    run = measured_run(found)
    doubt = counterfactuals._doubt(run, found)
    source, target = (run.rank[edge[run.within :]] for edge in run.graph.edges)
    between = (source < 2) & (target >= 2)
    assert between.any()
    delay = run.delay_ns[run.within :]
    step = run.step[run.graph.edges[1][run.within :]]
    for one in np.unique(step):
        ways = between & (step == one)
        drift = 2 * MAX_DRIFT * 1e9 * (one + 1)  # a step takes no second
        soonest = delay[ways].min()
        assert ((doubt[ways] >= soonest) & (doubt[ways] < soonest + drift)).all()
    assert (doubt[~between] == 0).all()


def test_what_clocks_drift_within_a_step_is_no_transfer():
    """Each way takes 5 ms by the truth; the clock that it ends by is 200 parts per million fast."""
    made = np.arange(0, 10**10, 10**9)
    used = made + 5_000_000 + (made * 200e-6).astype(np.int64)
    count = len(made)
    run = SimpleNamespace(
        graph=SimpleNamespace(edges=(np.arange(count), np.arange(count, 2 * count))),
        links=slice(None),
        as_measured=SimpleNamespace(
            start_ns=np.concatenate([made - 10, used]), end_ns=np.concatenate([made, used + 10])
        ),
        kind=np.zeros(2 * count, np.int8),
        step=np.zeros(2 * count, np.int64),
    )
    one = np.zeros(count, np.int64)
    assert (counterfactuals._soonest(run, one, one + 1) >= used - made).all()


def test_clocks_left_alone_may_be_off_by_more_than_corrected_ones():
    """Messages take 2 us one way and 20 us the other: half way between is 9 us off, zero is 18."""
    run = played(4, hosts=2, stages=2, forward_ns=2_000, backward_ns=20_000, jitter=0, skew_ns=0)
    run = run._replace(offset=np.array([0.0, 18_000.0]))

    left, solved = (align(run.timeline(), mode) for mode in ("auto", "solve"))

    assert check(run, left) == check(run, solved) == 1
    assert (left.run.clock.method, solved.run.clock.method) == ("checked", "solved")
    [note] = [note.message for note in left.run.notes if note.code == "clocks-checked"]
    assert note.startswith("the clocks of 2 hosts agree with ")
    assert left.run.clock.error_ns > 18_000 > solved.run.clock.error_ns


@pytest.mark.parametrize(("early_ns", "broken_ones"), [(0, 0), (1, 0), (2, 1)])
def test_an_effect_a_nanosecond_before_its_cause_is_rounding_and_two_are_not(early_ns, broken_ones):
    rows = [
        (0, 0, "forward", 0, 0, 0, 1000, "F0"),
        (1, 0, "forward", 1, 0, 1000 - early_ns, 2000, "F0"),
        (1, 0, "backward", 1, 0, 2000, 3000, "B0"),
        (0, 0, "backward", 0, 0, 4000, 5000, "B0"),
    ]
    run = Played(rows, [0, 1], np.zeros(2), np.ones(2))

    found = align(run.timeline(), "auto")

    clock = found.run.clock
    assert clock.violations_before == broken_ones
    assert clock.method == ("solved" if broken_ones else "checked")
    assert found.tasks.equals(run.timeline().tasks) == (not broken_ones)
    assert clock.violations_after == 0


def test_rounding_puts_no_effect_before_its_cause():
    """Two clocks are half a nanosecond off a whole one, and exactly one apart."""
    a, b, need = np.array([(0, 1, 0), (1, 0, -3), (1, 2, 1), (2, 1, -1)]).T
    moments = Moments(a, b, need, np.zeros(4, np.int64))
    solved = solve(moments, 3, drift=False)
    for off in (0.0, 0.25, -0.25, 0.5):  # whatever the first clock leaves open
        line = np.array([[0, 1.5 + off, 2.5 + off]] * 2)
        found = msgspec.structs.replace(solved, rough_ns=np.zeros(3, np.int64), line_ns=line)

        assert (found.slack(moments) >= 0).all()
    assert (solved.slack(moments) >= 0).all()
