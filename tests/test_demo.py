"""The demo: real training in a real pipeline, recorded."""

from __future__ import annotations

import multiprocessing
import os

import numpy as np
import pytest

import bubblescope
from bubblescope import BubblescopeError
from bubblescope.demo import Options, Result, contention_note, model, reference, run
from bubblescope.schedules import SCHEDULES

SMALL = {"width": 16, "samples": 8, "layers": 1, "steps": 3, "microbatches": 5}


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("stages", [1, 3])
def test_a_pipeline_ends_with_the_weights_of_training_in_one_process(tmp_path, schedule, stages):
    options = Options(schedule=schedule, stages=stages, **SMALL)
    piped, alone = run(options, tmp_path), reference(options)
    assert piped.losses == pytest.approx(alone.losses, rel=1e-5)
    assert len(piped.weights) == 2 * stages
    for ours, theirs in zip(piped.weights, alone.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_loss_falls(tmp_path):
    losses = run(Options(stages=2, width=32, samples=32, layers=1, steps=8), tmp_path).losses
    assert losses[-1] < 0.9 * losses[0]


def test_the_split_backward_is_the_gradient():
    """Against finite differences of the loss."""
    stage = model.Stage(width=4, layers=2, first=0, seed=1)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    target = np.zeros((3, 4), np.float32)

    def loss(values):
        return model.loss_and_gradient(stage.forward(9, values), target)[0]

    _, gradient = model.loss_and_gradient(stage.forward(0, x), target)
    found = stage.backward_input(0, gradient)
    nudge = np.zeros_like(x)
    nudge[1, 2] = 1e-2
    assert found[1, 2] == pytest.approx((loss(x + nudge) - loss(x - nudge)) / 2e-2, rel=1e-2)
    stage.backward_weight(0)
    before = stage.weights[0].copy()
    stage.weights[0][2, 1] += 1e-2
    up = loss(x)
    stage.weights[0][2, 1] -= 2e-2
    down = loss(x)
    stage.weights[0][:] = before
    stage.optimize(rate=1.0, samples=1)
    assert before[2, 1] - stage.weights[0][2, 1] == pytest.approx((up - down) / 2e-2, rel=1e-2)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_every_task_is_recorded_in_the_schedules_order(tmp_path, schedule):
    options = Options(schedule=schedule, stages=3, **SMALL)
    run(options, tmp_path)
    timeline = bubblescope.load(tmp_path)
    assert timeline.run.schedule == schedule
    assert timeline.run.warnings == ()
    kinds = ["forward", "backward", "backward_input", "backward_weight"]
    for (rank, _), tasks in timeline.tasks.group_by("rank", "step"):
        found = [
            (kind, i)
            for kind, i in tasks.sort("start_ns").select("kind", "microbatch").rows()
            if kind in kinds
        ]
        order = SCHEDULES[schedule](options.stages, rank, options.microbatches)
        assert found == [(kind.value, i) for kind, i in order]
    sends = timeline.tasks.filter(kind="send_forward")
    assert sends.height == 2 * options.microbatches * options.steps
    assert set(sends.select("rank", "peer").rows()) == {(0, 1), (1, 2)}


def test_stages_that_sleep_show_the_bubble_of_their_schedule(tmp_path):
    rates = {}
    for schedule in ("1f1b", "zb-h1"):
        options = Options(schedule=schedule, stages=3, sleep_compute_ms=15, **SMALL)
        run(options, tmp_path / schedule)
        rates[schedule] = bubblescope.load(tmp_path / schedule).report().bubbles.overall.makespan
    # Theory: 2/7 and 2/17; messages take time besides, and the machine may be busy.
    assert rates["1f1b"] > 2 / 7 - 0.02
    assert 2 / 17 - 0.02 < rates["zb-h1"] < rates["1f1b"]


def test_a_stage_that_is_killed_stops_the_demo_and_is_named(tmp_path):
    class KillOne:
        """Kills stage 1 once training is under way."""

        def begin(self, what, total):
            pass

        def advance(self, amount=1):
            for child in multiprocessing.active_children():
                if child.name == "stage 1":
                    child.kill()

    options = Options(stages=3, **SMALL | {"steps": 10_000})
    with pytest.raises(BubblescopeError, match="stage 1 of the demo ended without a word"):
        run(options, tmp_path, KillOne())
    assert not multiprocessing.active_children()


def test_a_stage_that_fails_passes_its_reason_on(tmp_path):
    too_big = Options(stages=2, width=10**7, samples=1, steps=1)
    with pytest.raises(BubblescopeError, match=r"stage \d of the demo failed: .*MemoryError"):
        run(too_big, tmp_path)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"schedule": "chaos"},
            "'chaos' is no schedule of the demo; use one of gpipe, 1f1b, zb-h1",
        ),
        ({"stages": 0}, "needs stages of at least 1, not 0"),
        ({"microbatches": 0}, "needs microbatches of at least 1"),
        ({"stages": 65}, "at most 64 stages"),
        ({"sleep_compute_ms": -1.0}, "must be more than 0 ms"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(BubblescopeError, match=message):
        Options(**options)


def test_contention_is_admitted():
    crowded = Result([], [], 1.0, stages=4, cores=2, contention=True)
    assert "4 stages shared 2 cores" in contention_note(crowded)
    assert contention_note(Result([], [], 1.0, stages=2, cores=2, contention=False)) is None


def test_the_environment_is_left_as_it_was(tmp_path):
    before = dict(os.environ)
    run(Options(stages=1, **SMALL), tmp_path)
    assert dict(os.environ) == before
