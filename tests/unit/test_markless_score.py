"""What judges inference without marks is judged: by answers that are wrong in a known way."""

from __future__ import annotations

import random
from dataclasses import replace

import polars as pl
import pytest

import markless_damage as damage
import markless_score as scoring
from markless_score import MICROBATCH, PAIR, STAGE, STEP, TASK, Action, Claim

SURE = dict.fromkeys(scoring.ASPECTS, 0.9)


def passes(step=0, microbatches=2):
    """Forwards of 10 ns each, then backwards of 20 ns, on one rank."""
    found = []
    for i in range(microbatches):
        start = 1000 * step + 100 * i
        found.append(Action(0, step, 3, i, frozenset({"forward"}), start, start + 10))
        found.append(Action(0, step, 3, i, frozenset({"backward"}), start + 50, start + 70))
    return found


def said(actions, **changed):
    claims = [
        Claim(*one.forward, min(one.kinds), one.start, one.end, probability=SURE) for one in actions
    ]
    return [replace(claim, **changed) for claim in claims]


def wrong(result):
    return sorted(aspect for aspect, _, right in result.answers if not right)


def test_the_truth_is_all_right():
    truth = passes() + passes(step=1)
    result = scoring.score(truth, said(truth))
    assert (result.passes, result.found, result.placed) == (8, 8, 8)
    assert (result.backwards, result.paired) == (4, 4)
    assert (result.tasks, result.wrong, result.wrong_and_sure) == (8, 0, 0)
    assert len(result.answers) == 4 * 8 + 4
    assert wrong(result) == []


def test_steps_may_be_numbered_from_anywhere_but_must_be_told_apart():
    truth = passes() + passes(step=1)
    claims = [replace(claim, step=claim.step + 7) for claim in said(truth)]
    assert wrong(scoring.score(truth, claims)) == []
    claims[0] = replace(claims[0], step=8)
    result = scoring.score(truth, claims)
    assert STEP in wrong(result)
    assert result.wrong >= 1


def test_backwards_that_are_exchanged_are_not_paired():
    truth = passes()
    claims = [
        replace(claim, microbatch=1 - claim.microbatch) if claim.kind == "backward" else claim
        for claim in said(truth)
    ]
    result = scoring.score(truth, claims)
    assert wrong(result) == [MICROBATCH, MICROBATCH, PAIR, PAIR]
    assert (result.found, result.paired, result.placed, result.wrong) == (4, 0, 2, 2)


def test_numbers_that_are_all_shifted_pair_but_do_not_place():
    truth = passes()
    claims = [replace(claim, microbatch=claim.microbatch + 1) for claim in said(truth)]
    result = scoring.score(truth, claims)
    assert (result.found, result.paired, result.placed, result.wrong) == (4, 2, 0, 4)


def test_what_is_not_said_is_neither_right_nor_wrong():
    truth = passes()
    result = scoring.score(truth, said(truth, stage=None, microbatch=None))
    assert (result.found, result.paired, result.placed, result.wrong) == (4, 0, 0, 0)
    assert {aspect for aspect, _, _ in result.answers} == {TASK, STEP}


def test_a_doubt_is_no_bravado():
    truth = passes()
    doubted = said(truth, stage=0, probability={**SURE, STAGE: 0.4})
    result = scoring.score(truth, doubted)
    assert (result.wrong, result.wrong_and_sure) == (4, 0)
    assert scoring.score(truth, said(truth, stage=0)).wrong_and_sure == 4


@pytest.mark.parametrize(
    ("kind", "start", "end"),
    [("forward", 50, 70), ("backward", 0, 10), ("backward", 45, 95), ("backward", 50, 59)],
)
def test_a_task_of_another_kind_or_time_finds_nothing(kind, start, end):
    result = scoring.score(passes(), [Claim(0, 0, 3, 0, kind, start, end, SURE)])
    assert (result.found, result.wrong) == (0, 1)
    assert wrong(result) == [TASK]


def test_time_in_which_a_process_was_halted_is_no_work():
    truth = passes()
    late = [replace(claim, end=claim.end + 20) for claim in said(truth)]
    assert scoring.score(truth, late).found == 0
    busy = scoring.Working([(one.start, one.end) for one in truth])
    assert scoring.score(truth, late, {0: busy}).found == 4
    assert busy.between(-5, 60) == 20
    assert busy.between(105, 108) == 3
    assert busy.between(9, 9) == busy.between(11, 50) == 0
    assert busy.between(0, 10**6) == 60


def test_a_pass_is_found_once():
    truth = passes()
    result = scoring.score(truth, [*said(truth), said(truth)[0]])
    assert (result.found, result.wrong) == (4, 1)


def test_an_overlapped_pair_is_two_answers():
    both = [
        Action(0, 0, 1, 5, frozenset({"forward"}), 0, 10, overlapped=(0, 40)),
        Action(0, 0, 2, 3, frozenset({"backward"}), 10, 40, overlapped=(0, 40)),
    ]
    row = {"rank": 0, "step": 0, "kind": "forward_backward", "stage": 1, "microbatch": 5}
    row |= {"pair_stage": 2, "pair_microbatch": 3, "start_ns": 0, "end_ns": 40}
    result = scoring.score(both, scoring.claims(pl.DataFrame([row]), {}))
    assert (result.found, result.placed, result.wrong) == (2, 2, 0)


def test_each_answer_may_have_a_column_of_its_own():
    row = {"rank": 0, "step": 0, "kind": "forward", "stage": 1, "microbatch": 5}
    row |= {"start_ns": 0, "end_ns": 40, "sure": 0.5, "placed": None}
    tasks = pl.DataFrame([row, {**row, "kind": "optimizer"}])
    (claim,) = scoring.claims(tasks, {TASK: "sure", STAGE: "placed", MICROBATCH: "missing"})
    assert claim.probability == {**dict.fromkeys(scoring.ASPECTS, 1.0), TASK: 0.5}


def test_a_cut_trace_is_asked_for_what_is_in_it():
    left = scoring.seen(passes(), {0: (5, 62), 1: (0, 100)})
    assert [(one.start, one.end, one.expected) for one in left] == [(5, 10, False), (50, 62, True)]
    assert scoring.seen(passes(), {1: (0, 100)}) == []


def test_the_bubble_is_what_is_left_of_a_step():
    two = [*passes(), *(replace(one, rank=1) for one in passes())]
    assert scoring.bubble(two) == pytest.approx(1 - 60 / 170)
    assert scoring.bubble([*two, *passes(step=1)]) == pytest.approx(1 - 180 / 680)


BASE = 1_000_000


def trace(operators=400):
    """Operators of 5 µs one after the other; every second one is a backward, with an arrow to it."""
    events = [{"ph": "M", "name": "process_name", "ts": 0, "pid": 7, "tid": 0}]
    for i in range(operators):
        name = f"{damage.BACKWARD}: X" if i % 2 else "aten::mm"
        args = {"Ev Idx": i, "Sequence number": i // 2, "Fwd thread id": 0, "Input Dims": [[2]]}
        place = {"pid": 7, "tid": 7, "ts": 10.0 * i}
        events.append({"ph": "X", "cat": "cpu_op", "name": name, "dur": 5.0, "args": args, **place})
        events.append(
            {"ph": "f" if i % 2 else "s", "cat": "fwdbwd", "name": "fwdbwd", "id": i // 2, **place}
        )
    messages = {"ph": "X", "cat": "cpu_op", "name": "c10d::send", "pid": 7, "tid": 7, "dur": 1.0}
    events.append({**messages, "ts": 10.0 * operators})
    ranges = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "pid": 7, "tid": 7}
    events.append({**ranges, "ts": 0.0, "dur": 10.0 * operators})
    return {"baseTimeNanoseconds": BASE, "traceEvents": events}


def made(version, seed=0, ranks=2):
    documents = {rank: trace() for rank in range(ranks)}
    return damage.VERSIONS[version](documents, random.Random(seed))


def events(document, **wanted):
    return [
        event
        for event in document["traceEvents"]
        if all(event.get(key) == value for key, value in wanted.items())
    ]


@pytest.mark.parametrize("version", damage.VERSIONS)
def test_every_version_differs_by_its_seed_alone(version):
    assert made(version) == made(version)
    assert made(version) != {rank: trace() for rank in range(2)}
    seeds = [made(version, seed) for seed in range(6)]
    assert any(one != seeds[0] for one in seeds) == (version in damage.SEEDED)


@pytest.mark.parametrize("version", ["begins late", "ends early"])
def test_what_is_cut_is_cut_at_one_instant_and_said(version):
    left = made(version)
    windows = damage.windows(left)
    assert windows[0] == windows[1]
    inside = [event["ts"] for event in events(left[0], cat="cpu_op")]
    late = version == "begins late"
    assert (min(inside) > 0) == late
    assert (max(inside) < 10.0 * 400) != late
    assert windows[0][0] == BASE + 1000 * min(inside)
    assert events(left[0], cat="user_annotation") == []


def test_lost_operators_take_their_arrows_along():
    left = made("10 % of operators lost")[0]
    kept = {event["ts"] for event in events(left, cat="cpu_op")}
    assert 300 < len(kept) < 390
    arrows = events(left, cat="fwdbwd")
    assert {event["ts"] for event in arrows} <= kept
    assert len(arrows) % 2 == 0
    assert len(arrows) == 2 * len({event["id"] for event in arrows})


def test_each_version_lacks_what_it_says():
    assert len(made("a rank missing")) == 1
    assert len(made("a rank missing", ranks=1)) == 1
    for version, lacks in (("no sequence numbers", "Sequence number"), ("no shapes", "Input Dims")):
        args = [event["args"] for event in events(made(version)[0], name="aten::mm")]
        assert len(args) == 200
        assert not any(lacks in one for one in args)
        assert all("Ev Idx" in one for one in args)
    assert events(made("no flows")[0], cat="fwdbwd") == []
    assert events(made("no messages")[0], name="c10d::send") == []
    assert len(events(made("no messages")[0], cat="cpu_op")) == 400
    assert events(made("no ranges")[0], cat="user_annotation") == []
    assert {event["tid"] for event in made("threads merged")[0]["traceEvents"]} == {1}


def test_backwards_get_a_thread_with_all_that_is_in_them():
    left = made("backwards in their own thread")[0]
    for event in events(left, cat="cpu_op") + events(left, cat="fwdbwd"):
        backward = event["ts"] % 20 == 10
        assert event["tid"] == (8 if backward else 7)


def test_a_corpus_comes_back_as_it_was_written(tmp_path):
    documents = {rank: trace() for rank in range(2)}
    damage.write(documents, tmp_path)
    assert damage.read(tmp_path) == documents
