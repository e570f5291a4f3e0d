"""Dumps of AMD's Primus with several chunks on each rank: which pass is of which stage."""

from __future__ import annotations

import json

import pytest

from bubblescope import load, sources
from bubblescope.analysis.rates import bubble_rates
from bubblescope.analysis.schedule.recognise import recognise
from places import SHARED
from primus_maker import Pass, dump, in_rounds, interleaved, turning, v_shaped

REAL = SHARED / "primus" / "pp8_vpp2"
WAYS = {"forward": "fwd", "backward": "bwd"}


def sizes(devices, chunks, microbatches):
    return {"pp_size": devices, "vp_size": chunks, "num_mbs": microbatches}


def rewrite(folder, rank, change):
    path = folder / f"pp_rank_{rank}.json"
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def notice(timeline, code):
    return next((one.message for one in timeline.run.warnings if one.code == code), None)


def check(timeline, truth, devices, stage_of=in_rounds):
    """Every pass is of the micro-batch, chunk and stage that it was made of."""
    for (rank, step), passes in truth.items():
        tasks = timeline.tasks.filter(rank=rank, step=step).sort("start_ns")
        found = tasks.select("kind", "microbatch", "chunk", "stage").rows()
        assert [(WAYS[kind], *rest) for kind, *rest in found] == [
            (one.way, one.microbatch, one.chunk, stage_of(rank, one.chunk, devices))
            for _, one in passes
        ]


@pytest.mark.parametrize(
    ("devices", "chunks", "microbatches", "group"),
    [
        (8, 2, 16, None),
        (4, 3, 8, None),
        (2, 2, 2, None),  # all forwards are warm-up
        (4, 2, 8, 8),  # another size of groups
        (4, 2, 9, 5),  # the last group is smaller
        (4, 4, 12, 6),
    ],
)
def test_chunks_follow_from_megatrons_order(tmp_path, devices, chunks, microbatches, group):
    orders = interleaved(devices, chunks, microbatches, group)
    config = sizes(devices, chunks, microbatches)
    truth = dump(tmp_path / "d", orders, chunks=chunks, config=config)

    timeline = sources.load(tmp_path / "d", clock="raw")

    check(timeline, truth, devices)
    inferred = timeline.run.inferred
    assert f"groups of {group or devices} micro-batches" in inferred["chunk"]
    # Between stages, and from each forward to its own backward, in each of 3 iterations.
    stages = devices * chunks
    demands = 3 * microbatches * (2 * (stages - 1) + stages)
    assert f"checked against {demands:,} dependencies" in inferred["microbatch"]
    assert inferred["stage"].startswith("chunks dealt out in rounds")
    assert timeline.ranks["stages"].to_list()[0] == list(range(0, stages, devices))


def test_an_interleaved_run_has_clocks_a_schedule_and_answers(tmp_path):
    dump(tmp_path / "d", interleaved(4, 2, 8), config=sizes(4, 2, 8))

    run = load(tmp_path / "d")

    timeline = run.timeline
    assert timeline.run.common_clock
    found = recognise(timeline)
    assert (found.schedule, found.devices, found.microbatches, found.chunks) == (
        "interleaved-1f1b",
        4,
        8,
        2,
    )
    assert found.departures == ()
    assert 0 < bubble_rates(timeline).overall.makespan < 1
    assert "interleaved-1f1b" in str(run.why())
    assert "a step" in str(run.whatif())


@pytest.mark.parametrize("labels", [("minibatch", "chunk"), ("minibatch",), ("chunk",)])
def test_what_the_dumps_say_is_believed(tmp_path, labels):
    truth = dump(tmp_path / "d", interleaved(4, 2, 8), labels=labels, config=sizes(4, 2, 8))

    timeline = sources.load(tmp_path / "d", clock="raw")

    check(timeline, truth, 4)
    said = {"minibatch": "microbatch", "chunk": "chunk"}
    assert set(timeline.run.inferred) == {"stage", "microbatch", "chunk"} - {
        said[one] for one in labels
    }


def test_a_v_is_told_from_rounds(tmp_path):
    """Over a V the second chunk of the last rank follows its first."""
    labels = ("minibatch", "chunk")
    truth = dump(
        tmp_path / "d",
        v_shaped(4, 6),
        stage_of=turning,
        labels=labels,
        config=sizes(4, 2, 6),
    )

    timeline = sources.load(tmp_path / "d")

    check(timeline, truth, 4, turning)
    assert timeline.ranks["stages"].to_list() == [[0, 7], [1, 6], [2, 5], [3, 4]]
    assert timeline.run.common_clock
    assert timeline.run.inferred["stage"].startswith("chunks turning around at either end")


def test_names_of_primus_simulator(tmp_path):
    config = {"pp_size": 4, "vpp_size": 2, "micro_batches": 8}
    truth = dump(tmp_path / "d", interleaved(4, 2, 8), config=config, iterations=1)

    timeline = sources.load(tmp_path / "d", clock="raw")

    check(timeline, truth, 4)
    assert timeline.run.microbatches == 8


def test_without_a_configuration_the_warm_up_tells_the_chunks(tmp_path):
    truth = dump(tmp_path / "d", interleaved(4, 3, 8), chunks=3)

    timeline = sources.load(tmp_path / "d", clock="raw")

    check(timeline, truth, 4)
    assert notice(timeline, "no-config")


def test_without_a_configuration_one_chunk_stays_one(tmp_path):
    truth = dump(tmp_path / "d", interleaved_of_one(4, 8), chunks=1)

    timeline = sources.load(tmp_path / "d", clock="raw")

    assert timeline.ranks["stages"].to_list() == [[0], [1], [2], [3]]
    assert len(timeline) == sum(map(len, truth.values()))


def interleaved_of_one(devices, microbatches):
    """1F1B: p - 1 - r forwards, then a forward and a backward in turn."""
    orders = []
    for rank in range(devices):
        warm = devices - 1 - rank
        forwards = [Pass("fwd", one, 0) for one in range(microbatches)]
        backwards = [Pass("bwd", one, 0) for one in range(microbatches)]
        order = forwards[:warm]
        for ahead in range(warm, microbatches):
            order += [forwards[ahead], backwards[ahead - warm]]
        orders.append(order + backwards[microbatches - warm :])
    return orders


def test_evaluations_and_torn_iterations_keep_their_numbers(tmp_path):
    truth = dump(tmp_path / "d", interleaved(4, 2, 8), config=sizes(4, 2, 8))

    def change(said):
        for name in ("bwd_start", "bwd_end"):
            said["3"][name] = []

    for rank in range(4):
        rewrite(tmp_path / "d", rank, change)
    rewrite(tmp_path / "d", 1, lambda said: said["2"]["bwd_end"].pop())

    timeline = sources.load(tmp_path / "d", clock="raw")

    kept = {
        (rank, step): [one for one in passes if step != 3 or one[1].way == "fwd"]
        for (rank, step), passes in truth.items()
    }
    last = max(start for start, one in kept[1, 2] if one.way == "bwd")
    kept[1, 2] = [one for one in kept[1, 2] if one[0] != last]
    check(timeline, kept, 4)


@pytest.mark.parametrize("labels", [(), ("minibatch", "chunk")])
def test_what_contradicts_is_said_in_one_sentence(tmp_path, labels):
    """Rank 2 runs its backwards 1 s early; what they need cannot be there yet."""
    dump(tmp_path / "d", interleaved(4, 2, 8), labels=labels, config=sizes(4, 2, 8))

    def change(said):
        # The last three, so that the warm-up stays Megatron's.
        for name in ("bwd_start", "bwd_end"):
            said["2"][name][-3:] = [time - 350 for time in said["2"][name][-3:]]

    rewrite(tmp_path / "d", 2, change)

    timeline = sources.load(tmp_path / "d")

    said = notice(timeline, "stages-unknown")
    assert "in step 2, " in said
    assert "rank" in said
    assert "of stage" in said
    assert "\n" not in said
    assert timeline.tasks["stage"].null_count() == len(timeline)
    assert timeline.tasks["microbatch"].null_count() == (0 if labels else len(timeline))
    assert bubble_rates(timeline).overall.makespan is None


def test_an_order_that_is_not_megatrons_is_refused(tmp_path):
    dump(tmp_path / "d", v_shaped(4, 8), stage_of=turning, config=sizes(4, 2, 8))
    dump(tmp_path / "e", interleaved(4, 2, 8), config=sizes(4, 2, 8))

    def change(said):
        for one in said.values():
            one["fwd_start"][4:10] = [time + 200 for time in one["fwd_start"][4:10]]
            one["fwd_end"][4:10] = [time + 200 for time in one["fwd_end"][4:10]]

    rewrite(tmp_path / "e", 3, change)

    said = notice(sources.load(tmp_path / "e"), "stages-unknown")
    assert "forwards before its first backward, where Megatron's order" in said
    assert "rank 0 runs 16 of 16 forwards" in notice(sources.load(tmp_path / "d"), "stages-unknown")


def test_as_many_microbatches_as_ranks_may_all_come_first(tmp_path):
    """Older versions of Megatron-LM run all forwards first then."""
    table = [("fwd", one, chunk) for chunk in range(2) for one in range(4)]
    back = [("bwd", one, 1 - chunk) for _, one, chunk in table]
    orders = [[Pass(*one) for one in table + back]] * 4
    truth = dump(tmp_path / "d", orders, config=sizes(4, 2, 4))

    check(sources.load(tmp_path / "d", clock="raw"), truth, 4)


def test_a_number_of_forwards_that_cannot_be_is_said(tmp_path):
    dump(tmp_path / "d", interleaved(4, 2, 8), config=sizes(4, 3, 8))

    said = notice(sources.load(tmp_path / "d"), "stages-unknown")

    assert "16 forwards, no multiple of 3 chunks" in said


@pytest.mark.parametrize(
    "config",
    [{"vp_size": 0}, {"vp_size": 10**9}, {"pp_size": 10**12, "vp_size": 2}, {"vp_size": "2"}],
)
def test_sizes_that_cannot_be_are_not_used(tmp_path, config):
    truth = dump(tmp_path / "d", interleaved(4, 2, 8), config=config)

    timeline = sources.load(tmp_path / "d", clock="raw")

    check(timeline, truth, 4)
    assert "is invalid" in notice(timeline, "no-config")


@pytest.mark.skipif(not REAL.exists(), reason="the real dump is not here")
def test_a_real_interleaved_run_is_read_in_full():
    timeline = sources.load(REAL)

    assert (len(timeline), len(timeline.steps)) == (8 * 20 * 64, 20)
    assert timeline.run.common_clock
    assert not notice(timeline, "clocks-contradict")
    found = recognise(timeline)
    assert (found.schedule, found.departures) == ("interleaved-1f1b", ())
    rates = sorted(one.makespan for one in bubble_rates(timeline).per_step.values())
    assert rates[len(rates) // 2] == pytest.approx(0.27, abs=0.01)
