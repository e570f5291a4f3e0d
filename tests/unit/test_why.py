"""Why devices are idle, in words: what is said, in which language, and what backs it."""

from __future__ import annotations

import json
from itertools import product

import msgspec
import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from bubblescope import Timeline
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.idle.evidence import Evidence
from bubblescope.analysis.idle.shares import shares
from bubblescope.analysis.study import study
from bubblescope.analysis.verdict import Verdict
from bubblescope.analysis.whatif import WhatIf
from bubblescope.analysis.why.findings import findings, spoken_of
from bubblescope.analysis.words import english, sentence
from bubblescope.cli import cli
from bubblescope.clocks import correction
from bubblescope.model.errors import ScheduleError, TimelineError
from bubblescope.model.language import LANGUAGES
from bubblescope.model.provenance import STEPS_DISAGREE, ClockReport, Notice, Run
from bubblescope.render.text.why import Explanation
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from injected import CAUSES, Fault, Job, fault, job


def test_every_cause_has_a_name():
    assert set(english.CAUSES) == set(Cause)


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_is_said_first_with_evidence_and_advice(cause):
    random = np.random.default_rng([4, CAUSES.index(cause)])
    made = job(random)
    run = made.play(fault(cause, random, made))
    found = Explanation.of(run)
    # What ranks do in whole steps comes before the causes of bubbles.
    [idle] = [at for at, one in enumerate(found.findings) if one.key in ("causes", "inherent")]
    bubbles = [one for one in found.findings[idle:] if one.key != "host"]
    roles = [finding.role for finding in bubbles[:4]]
    assert roles == ["verdict", "verdict", "evidence", "advice"]
    assert bubbles[1].values["cause"] is cause
    # Nobody has looked at the clocks of this run, so how far they are off is not known.
    unknown = "_unknown" if cause is Cause.CLOCK else ""
    assert bubbles[2].key == cause.name.lower() + unknown
    assert found.findings[-1].key == "no_wait"
    for language in LANGUAGES:
        for finding in found.findings:
            said = sentence(finding, language)
            assert said
            assert "None" not in said
    assert str(found)


def test_clocks_may_be_to_blame_though_no_result_was_used_too_early():
    random = np.random.default_rng([4, CAUSES.index(Cause.CLOCK)])
    made = job(random)
    run = made.play(fault(Cause.CLOCK, random, made))
    known = study(run)
    replays = known.ledger.counterfactuals
    cost = shares(replays)
    shown = Evidence.of_steps(run, replays, spoken_of(known.ledger, cost))
    none = shown.of[Cause.CLOCK].clear()

    def said(evidence):
        found = findings(run, known, cost, evidence)
        [clock] = (one for one in found if one.role == "evidence" and one.key.startswith("clock"))
        return sentence(clock, "en")

    assert "results before they had arrived" in said(shown)
    assert "had arrived" not in said(
        msgspec.structs.replace(shown, of={**shown.of, Cause.CLOCK: none})
    )


@pytest.mark.parametrize("apart", [True, False])
def test_of_clocks_that_were_solved_it_is_said_how_far_they_may_be_off(apart):
    """Also where replicas exchange nothing, but not where ranks of one pipeline may not."""
    made = Job(generate("1f1b", 4, 8), replicas=2, jitter=0.1, seed=2)
    ways = [(one, other) for one in range(4) for other in range(4)]
    far = Fault(Cause.TRANSFER, link_ns=dict.fromkeys(ways, 4_000_000))
    run = made.play(far, Fault(Cause.CLOCK, skew_ns=1_000_000))
    ranks = run.ranks.with_columns(host=pl.format("node{}", "rank"))
    if not apart:  # as if all were one pipeline, of which nothing tells the halves apart
        ranks = ranks.with_columns(dp=None)
    solved = correction(Timeline(run.tasks, ranks, Run()), "solve")
    assert len(solved.groups) == 2
    found = Explanation.of(solved.applied(Timeline(run.tasks, ranks, Run()))).findings
    clock = next(at for at, one in enumerate(found) if one.key.startswith("clock"))
    evidence, advice = found[clock], found[clock + 1]
    assert advice.key == "clock_solved"
    assert evidence.key == ("clock_alone" if apart else "clock_unknown_alone")
    if apart:
        assert evidence.values["error_ns"] == solved.ranks["clock_error_ns"].max()


def test_evidence_names_the_rank_the_link_and_the_stage():
    made = Job(generate("1f1b", 4, 12))
    slow = Explanation.of(made.play(Fault(Cause.SLOW_RANK, slow={(1, 2): 1.5})))
    values = slow.findings[2].values
    assert (values["rank"], values["steps"], values["of"]) == (6, 4, 4)
    assert values["slow_share"] == pytest.approx(0.5, abs=1e-6)
    link = Explanation.of(made.play(Fault(Cause.TRANSFER, link_ns={(1, 2): 5_000_000})))
    values = link.findings[2].values
    assert (values["from"] % 4, values["to"] % 4, values["delay_ns"]) == (1, 2, 5_000_000)
    assert link.findings[2].key == "transfer"
    links = {(stage, stage + 1): 5_000_000 for stage in range(3)}
    links |= {(end, start): delay for (start, end), delay in links.items()}
    alike = Explanation.of(made.play(Fault(Cause.TRANSFER, link_ns=links))).findings[2]
    assert alike.key == "transfer_alike"  # no link is named as if it were to blame
    heavy = {0: 0.9, 1: 1.3, 2: 0.9, 3: 0.9}
    stage = Explanation.of(made.play(Fault(Cause.IMBALANCE, heavy=heavy)))
    values = stage.findings[2].values
    assert (values["stage"], values["cost_ns"], values["mean_ns"]) == (1, 39_000_000, 30_000_000)


def test_a_slow_link_and_a_late_host_are_named_however_far_clocks_are_off():
    """Between two hosts the other ranks' results bound how far their clocks are off."""
    plan, replicas = generate("1f1b", 8, 16), 4
    ways = {(one, one + by): 100_000 for one in range(8) for by in (1, -1)}
    usual = Fault(Cause.TRANSFER, link_ns=ways)
    slow = Fault(Cause.TRANSFER, link_ns={(3, 4): 800_000, (4, 3): 800_000})
    on_5 = np.flatnonzero(plan.device == 5)[4:].tolist()
    late = Fault(
        Cause.LAUNCH, late_ns={(0, copy, at): 900_000 for copy in range(replicas) for at in on_5}
    )
    made = Job(plan, replicas, steps=1, jitter=0.01)
    healthy, with_link = made.play(usual, late), made.play(usual, late, slow)
    copy = pl.col("rank") // 8
    tasks = pl.concat([healthy.tasks.filter(copy != 2), with_link.tasks.filter(copy == 2)])
    off_ns = pl.Series(np.random.default_rng(2).normal(0, 3e6, 8).astype(np.int64))
    moved = pl.col("start_ns", "end_ns", "host_start_ns", "host_end_ns") + off_ns.gather(
        tasks["rank"] % 8
    )
    host = pl.format("node{}", pl.col("rank") % 8)
    run = Timeline(tasks.with_columns(moved), healthy.ranks.with_columns(host=host))
    found = Explanation.of(correction(run).applied(run))
    assert found.timeline.ranks["clock_error_ns"].max() > 400_000
    said = {one.key: one.values for one in found.findings if one.role == "evidence"}
    assert {said["transfer"]["from"], said["transfer"]["to"]} == {2 * 8 + 3, 2 * 8 + 4}
    assert said["transfer"]["delay_ns"] > 4 * said["transfer"]["median_ns"]
    assert (said["host"]["host"], said["host"]["ranks"]) == ("node5", replicas)


def test_no_wait_is_what_is_inherent_and_what_uneven_tasks_add():
    made = Job(generate("1f1b", 4, 12))
    even, inherent = 3 / 15, "inherent_share"
    link = Explanation.of(made.play(Fault(Cause.TRANSFER, link_ns={(1, 2): 5_000_000})))
    rate, values = link.study.bubbles.overall, link.findings[-1].values
    assert values["no_wait_share"] == pytest.approx(even)
    # Of the measured step, which is longer than the replay by its excess.
    assert values[inherent] == pytest.approx(even * (1 - rate.excess))
    heavy = Fault(Cause.IMBALANCE, heavy={0: 0.9, 1: 1.3, 2: 0.9, 3: 0.9})
    stage = Explanation.of(made.play(heavy))
    rate, values = stage.study.bubbles.overall, stage.findings[-1].values
    assert values["no_wait_share"] == rate.makespan
    uneven = sum(gap["idle_ns"] for gap in stage.to_dict()["causes"] if gap["cost_ns"] is not None)
    assert values[inherent] == pytest.approx(rate.makespan - uneven / rate.makespan_ns)
    assert uneven > 0


def test_what_is_saved_is_what_the_run_without_it_took():
    made = Job(generate("1f1b", 4, 12), replicas=1)
    run, healthy = made.play(Fault(Cause.LAUNCH, late_ns={(0, 0, 5): 80_000_000})), made.play()
    found = Explanation.of(run)
    lengths = [
        sum(int(part["end_ns"].max()) - int(part["start_ns"].min()) for part in steps) / 4
        for steps in (one.tasks.partition_by("step") for one in (run, healthy))
    ]
    assert found.findings[1].values["saved_ns"] == pytest.approx(lengths[0] - lengths[1], abs=1)


def test_a_timeline_says_why_by_itself():
    run = Job(generate("1f1b", 4, 8)).play(Fault(Cause.SLOW_RANK, slow={(0, 1): 1.4}))
    assert str(Explanation.of(run)) == str(Explanation.of(run))
    assert "慢卡" in str(Explanation.of(run, language="zh"))


def test_nothing_but_the_schedule_is_said_when_there_is_nothing_else():
    found = Explanation.of(Job(generate("1f1b", 4, 8)).play())
    assert [finding.key for finding in found.findings] == ["inherent", "inherent"]
    assert "inherent to 1f1b" in sentence(found.findings[0], "en")


def alone(*lengths: int, gap: int = 0) -> Timeline:
    """One rank that holds a whole model: a forward and a backward of each length, one step each."""
    rows, at = [], 0
    for number, length in enumerate(lengths):
        for kind in ("forward", "backward"):
            rows.append((0, kind, 0, number // 4, number % 4, at, at + length))
            at += length + gap
    names = ["rank", "kind", "stage", "step", "microbatch", "start_ns", "end_ns"]
    tasks = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        lane=pl.lit("compute"), name="kind"
    )
    return Timeline(tasks, pl.DataFrame({"rank": [0], "host": "h", "stages": [[0]]}))


def test_no_schedule_is_advised_where_there_is_no_pipeline():
    found = Explanation.of(alone(*[1000] * 8))
    assert [(one.role, one.key) for one in found.findings] == [("verdict", "no_pipeline")]
    assert Verdict.of(alone(*[1000] * 8), found.study).remedies == ()


def test_where_nothing_is_idle_no_share_of_idle_time_is_named():
    """One step takes longer than the others, and no device waits for it."""
    found = Explanation.of(alone(*[1000] * 4, *[3000] * 4, *[1000] * 4)).findings
    said = [sentence(one, "en") for one in found if one.role == "verdict"]
    assert said[0] == (
        "Ranks are never idle from the first forward to the last backward of a step."
    )
    assert said[1].endswith("shorter, though no rank is idle for it.")
    assert not any("idle time" in text or "–" in text for text in said)


@pytest.mark.parametrize(("gap", "advised"), [(53_000, False), (2_000_000, True)])
def test_nothing_is_advised_about_a_cause_that_costs_next_to_nothing(gap, advised):
    found = Explanation.of(alone(*[100_000_000] * 2, gap=gap)).findings
    assert any(one.role == "advice" for one in found) is advised
    assert (found[0].key == "no_pipeline") is not advised


def test_idle_time_is_not_called_inherent_where_the_rest_is_too_little_for_advice():
    made = Job(generate("1f1b", 2, 64), replicas=1, steps=2)
    late = Fault(Cause.LAUNCH, late_ns={(0, 0, 40): 1_000_000})
    found = Explanation.of(made.play(late)).findings
    assert [(one.role, one.key) for one in found] == [("verdict", "causes")]
    assert 0.01 < found[0].values["other_share"] < 0.5


def test_tasks_of_unequal_length_on_one_device_are_no_matter_of_packing():
    run = alone(1000, 1000, 5000, 1000, 1000, 1000, 5000, 1000, gap=10)
    said = [sentence(one, "en") for one in Explanation.of(run).findings]
    assert any("Look at why the same work takes longer at times" in text for text in said)
    assert not any("pack sequences" in text for text in said)


def replicas(*lengths: tuple[int, int]) -> Timeline:
    """Return two ranks that do the same in each step, given how long the forward of each takes."""
    rows, at = [], 0
    for step, of_ranks in enumerate(lengths):
        for rank, length in enumerate(of_ranks):
            end = at + length
            rows.append((rank, step, "forward", 0, 0, at, end))
            rows.append((rank, step, "backward", 0, 0, end, end + 2_000_000))
        at += max(of_ranks) + 2_000_000
    names = ["rank", "step", "kind", "stage", "microbatch", "start_ns", "end_ns"]
    tasks = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        lane=pl.lit("compute"), name="kind"
    )
    ranks = {"rank": [0, 1], "dp": [0, 1], "host": "h", "stages": [[0], [0]]}
    return Timeline(tasks, pl.DataFrame(ranks))


def test_a_first_step_that_is_unlike_the_others_is_named_where_lengths_vary():
    first, others = (90_000_000, 70_000_000), [(1_000_000 * at, 10_000_000) for at in range(6, 12)]
    said = [(one.role, one.key) for one in Explanation.of(replicas(first, *others)).findings]
    at = said.index(("evidence", "variation"))
    assert said[at + 1] == ("evidence", "warm_up")
    assert said.count(("evidence", "warm_up")) == 1
    even = [(one.role, one.key) for one in Explanation.of(replicas(*others)).findings]
    assert ("evidence", "variation") in even
    assert ("evidence", "warm_up") not in even


def test_short_tasks_that_vary_say_little_of_how_much_lengths_spread():
    """Forwards of 10 ms are a tenth off; one of the backwards, of 20 µs, takes ten times as long."""
    rows, times, weights = [], [], []
    for step, rank in product(range(12), range(2)):
        forward = 9_000_000 + (step + rank) % 2 * 2_000_000
        backward = 200_000 if (step, rank) == (5, 0) else 20_000
        begin = 13_000_000 * step
        rows.append((rank, step, "forward", begin, begin + forward))
        rows.append((rank, step, "backward", begin + forward, begin + forward + backward))
        times += [forward / 10_000_000, backward / 20_000]
        weights += [10_000_000, 20_000]
    tasks = pl.DataFrame(
        rows, schema=["rank", "step", "kind", "start_ns", "end_ns"], orient="row"
    ).with_columns(stage=0, microbatch=0, lane=pl.lit("compute"), name="kind")
    ranks = {"rank": [0, 1], "dp": [0, 1], "host": "h", "stages": [[0], [0]]}
    run = Timeline(tasks, pl.DataFrame(ranks))
    [found] = [one for one in Explanation.of(run).findings if one.values.get("spread_share")]
    mean = np.average(times, weights=weights)
    expected = np.sqrt(np.average((np.array(times) - mean) ** 2, weights=weights))
    assert np.std(times) > 1
    assert expected < 0.14
    assert found.values["spread_share"] == pytest.approx(expected, rel=1e-6)


def test_every_advice_has_a_headline():
    advised = {key for role, key in english.SENTENCES if role == "advice"}
    assert advised <= {key for role, key in english.SENTENCES if role == "headline"}


def invoke(*arguments: str):
    return CliRunner().invoke(cli, ["why", *arguments])


@pytest.fixture
def run(tmp_path):
    made = Job(generate("1f1b", 4, 8))
    timeline = made.play(Fault(Cause.SLOW_RANK, slow={(0, 1): 1.4}))
    return str(timeline.save(tmp_path / "run.parquet"))


def test_the_command_prints_words_and_tables(run):
    result = invoke(run, "-q")
    assert result.exit_code == 0
    assert "The first cause is slow rank" in result.stdout
    assert "Rank 1 is 40.00 % slower" in result.stdout
    assert "replay: 0.00 % off" in result.stdout


def test_the_command_speaks_chinese(run):
    result = invoke(run, "-q", "--lang", "zh")
    assert "首要原因是慢卡" in result.stdout


def test_json_has_sums_that_agree_and_tasks_behind_each_sentence(run):
    said = json.loads(invoke(run, "--json").stdout)
    assert said["schema"] == "bubblescope.why/1"
    assert sum(row["idle_ns"] for row in said["causes"]) == said["idle_ns"]
    assert sum(row["idle_ns"] for row in said["per_rank_step"]) == said["idle_ns"]
    costs = sum(row["cost_ns"] or 0 for row in said["causes"])
    assert said["bare_ns"] + costs == said["step_ns"]
    assert "gaps" not in said
    slow = next(row for row in said["findings"] if row["key"] == "slow_rank")
    assert slow["tasks"][0]["rank"] == 1
    full = json.loads(invoke(run, "--json", "--all").stdout)
    assert sum(row["end_ns"] - row["start_ns"] for row in full["gaps"]) == said["idle_ns"]


def test_a_rank_that_hardly_differs_is_no_device_to_look_at():
    timeline = Job(generate("1f1b", 4, 8)).play(Fault(Cause.SLOW_RANK, slow={(0, 1): 1.03}))
    said = Explanation.of(timeline)
    assert "slow_rank_alike" in {finding.key for finding in said.findings}
    assert "slow_rank" not in {finding.key for finding in said.findings}
    assert "No rank stands out: rank 1 is the slowest, over the run 3.00 % slower" in str(said)
    assert "take it out" not in str(said)
    assert said.study.slow_rank is None


def test_ranks_without_a_common_clock_are_refused(tmp_path):
    timeline = simulate(generate("1f1b", 2, 4), Costs(10, 10, 10))
    apart = Timeline(timeline.tasks, timeline.ranks, Run(common_clock=False))
    with pytest.raises(TimelineError, match=r"share no clock.*--clock solve tries to find one"):
        Explanation.of(apart)


@pytest.mark.parametrize(
    "known",
    [
        {"clock": ClockReport("refused", 4, 2, 2, 0)},
        {"warnings": (Notice(STEPS_DISAGREE, "steps of rank 1 do not overlap"),)},
    ],
)
def test_nobody_is_told_to_solve_for_a_clock_where_that_was_tried_or_cannot_help(known):
    timeline = simulate(generate("1f1b", 2, 4), Costs(10, 10, 10))
    apart = Timeline(timeline.tasks, timeline.ranks, Run(common_clock=False, **known))
    with pytest.raises(TimelineError, match="which task waited for which; the warnings say why"):
        Explanation.of(apart)


def test_of_one_rank_no_clock_is_to_be_solved_for():
    timeline = simulate(generate("1f1b", 2, 4), Costs(10, 10, 10)).slice(ranks=[0])
    apart = Timeline(timeline.tasks, timeline.ranks, Run(common_clock=False))
    with pytest.raises(TimelineError, match="the trace of one rank only"):
        Explanation.of(apart)


def test_a_run_without_pipeline_tasks_is_refused():
    timeline = simulate(generate("1f1b", 2, 4), Costs(10, 10, 10))
    with pytest.raises(TimelineError, match="neither forwards and backwards nor work of devices"):
        Explanation.of(Timeline(timeline.tasks.head(0), timeline.ranks))


def test_of_devices_without_a_trace_it_is_not_known_what_was_waited_for():
    """A rank alone waits for others all through warm-up and cool-down, and nothing shows that."""
    every = simulate(generate("1f1b", 4, 8), Costs(10_000_000, 20_000_000, 0), steps=3)
    alone = every.slice(ranks=[0])
    found = Explanation.of(alone)
    said = {(one.role, one.key): sentence(one, "en") for one in found.findings}
    assert "Of 4 devices, 3 left no trace" in said["verdict", "causes_partial"]
    assert "Give the traces of all devices" in said["advice", "unexplained_partial"]
    assert "may have waited for what is in no trace here" in said["evidence", "unexplained_partial"]
    assert ("evidence", "no_wait") not in said
    verdict = Verdict.of(alone, found.study)
    assert (verdict.inherent, verdict.share) == (None, pytest.approx(90 / 330))
    assert "3 left no trace: how much of the idle time is waiting for them" in verdict.said
    whole = {one.key for one in Explanation.of(every).findings}
    assert not {"causes_partial", "unexplained_partial"} & whole


def without_stages(every: Timeline) -> Timeline:
    return Timeline(every.tasks.with_columns(stage=pl.lit(None, pl.Int32)), every.ranks)


def lacking_one_of_a_replica(every: Timeline) -> Timeline:
    """Two replicas, of the slower of which the second of four ranks has no trace."""
    shift = pl.col("rank") + 4
    slower = every.tasks.with_columns(
        *(pl.col(name) * 3 // 2 for name in ("start_ns", "end_ns", "host_start_ns", "host_end_ns")),
        rank=shift,
        busy_ns=None,
    )
    both = Timeline(
        pl.concat([every.tasks, slower]),
        pl.concat([every.ranks.with_columns(dp=0), every.ranks.with_columns(rank=shift, dp=1)]),
    )
    return both.slice(ranks=[0, 1, 2, 3, 4, 6, 7])


@pytest.mark.parametrize(
    ("seen", "idle_ns"),
    [
        (without_stages, 4 * 2 * 90_000_000),
        (lambda every: every.slice(ranks=[0]), 2 * 90_000_000),
        (lambda every: every.slice(ranks=[0, 1, 3]), 2 * 180_000_000),
        (lacking_one_of_a_replica, None),
    ],
)
@pytest.mark.parametrize("timed", ["host", "device"])
def test_nobody_knows_what_a_step_would_be_without_waiting_for_what_left_no_trace(
    seen, idle_ns, timed
):
    every = simulate(generate("1f1b", 4, 8), Costs(10_000_000, 20_000_000, 0), steps=2)
    run = seen(Timeline(every.tasks, every.ranks.with_columns(timed=pl.lit(timed)), every.run))
    found = Explanation.of(run)
    rows = {row["cause"]: row for row in found.to_dict()["causes"]}
    if idle_ns is not None:
        assert not {"host code", "host launch"} & rows.keys()
        assert rows["unexplained"]["idle_ns"] == idle_ns
    assert {rows["unexplained"][name] for name in ("cost_ns", "alone_ns", "last_ns")} == {None}
    assert found.to_dict()["bare_ns"] is None
    [told] = [one for one in found.findings if one.values.get("cause") is Cause.UNEXPLAINED]
    assert "without it is not known" in sentence(told, "en")
    [first, *_] = found.findings
    assert first.key in ("causes_partial", "causes_unseen")
    assert {first.values[name] for name in ("inherent_share", "other_share")} == {None}
    [shown] = [
        one for one in Verdict.of(run, found.study).remedies if one.cause is Cause.UNEXPLAINED
    ]
    assert (shown.saved_ns, shown.spent_ns) == (None, told.values["per_step_ns"])
    answers = WhatIf(found.study.recognition, found.study.ledger, run)
    with pytest.raises(ScheduleError, match="without it is not known"):
        answers.without(Cause.UNEXPLAINED)
    with pytest.raises(ScheduleError, match="without it is not known"):
        answers.together(("without", "unexplained"), ("scaled", "rank", 0, 0.5))


def test_the_only_trace_of_several_ranks_tells_of_no_host_where_its_stage_was_inferred():
    """The last rank of a pipeline passes as a device that runs a whole model."""
    costs = Costs([10_000_000, 10_000_000, 15_000_000, 10_000_000], 20_000_000, 0)
    alone = simulate(generate("1f1b", 4, 8), costs, steps=2).slice(ranks=[3])
    tasks = alone.tasks.filter(pl.col("kind").is_in(["forward", "backward"]))
    tasks = tasks.with_columns(stage=pl.lit(0, pl.Int32))
    ranks = alone.ranks.with_columns(timed=pl.lit("host"))

    def explained(world: int | None) -> Explanation:
        told = Run(world=world, inferred={"stage": "order in which ranks ran"})
        return Explanation.of(Timeline(tasks, ranks, told))

    def causes(world: int | None) -> set[str]:
        rows = explained(world).to_dict()["causes"]
        return {row["cause"] for row in rows if row["idle_ns"]}

    assert causes(4) == {"unexplained"}
    assert causes(1) == causes(None) == {"host code"}
    between = [
        next(sentence(one, "en") for one in explained(world).findings if one.key == "outside_alone")
        for world in (4, 1)
    ]
    assert between[0].endswith("in code that is not recorded, or waiting for other ranks.")
    assert between[1].endswith("in code that is not recorded.")


def test_ranks_that_are_never_idle_are_not_told_of_another_schedule():
    made = simulate(generate("1f1b", 1, 8), Costs(10_000_000, 20_000_000, 0), steps=2)
    busy = Timeline(made.tasks.with_columns(stage=pl.lit(None, pl.Int32)), made.ranks, made.run)
    assert [(one.role, one.key) for one in Explanation.of(busy).findings] == [
        ("verdict", "never_idle")
    ]
