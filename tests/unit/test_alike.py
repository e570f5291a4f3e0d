"""Which ranks are alike, odd or waiting: in runs into which slow ranks were put, or none."""

from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.rank_standing import Alike, Standing, alike
from bubblescope.analysis.study import study
from bubblescope.model.provenance import Run
from bubblescope.render.text.stragglers import Stragglers
from bubblescope.schedules import generate
from injected import Fault, Job
from synthetic import empty, one_f_one_b

SLOW = Cause.SLOW_RANK


def played(
    stages: int, replicas: int, microbatches: int, steps: int, jitter: float, *, seed=0, **fault
) -> Timeline:
    """A 1F1B run; ranks count through the stages of one replica, then those of the next."""
    plan = generate("1f1b", stages, microbatches)
    return Job(plan, replicas, steps, jitter, seed).play(Fault(SLOW, **fault))


def working(
    stages: int, replicas: int, microbatches: int, steps: int, noise: float, seed: int
) -> Timeline:
    """Ranks that work without waiting, all as fast, with normal noise on every task."""
    random = np.random.default_rng([seed, stages, replicas, steps])
    shape = (stages * replicas, steps, microbatches, 2)
    length = np.array([10e6, 20e6]) * np.maximum(1 + noise * random.normal(size=shape), 0.1)
    end = length.astype(np.int64).reshape(shape[0], -1).cumsum(axis=1)
    rank, step, microbatch, kind = np.indices(shape).reshape(4, -1)
    tasks = pl.DataFrame(
        {
            "rank": rank,
            "step": step,
            "kind": np.array(["forward", "backward"])[kind],
            "stage": rank % stages,
            "microbatch": microbatch,
            "lane": "compute",
            "start_ns": np.pad(end, [(0, 0), (1, 0)])[:, :-1].ravel(),
            "end_ns": end.ravel(),
            "name": "",
        }
    )
    numbers = np.arange(shape[0])
    ranks = {
        "rank": numbers,
        "host": "node",
        "stages": (numbers % stages)[:, None].tolist(),
        "dp": numbers // stages,
    }
    return Timeline(tasks, pl.DataFrame(ranks), Run())


def named(timeline: Timeline) -> set[int]:
    """The ranks that `stragglers` calls slow, in any of its ways, unless whole stages are."""
    found = Stragglers.of(timeline)
    slow = {found.slow_rank.rank} if found.slow_rank else set()
    slow |= {int(found.rank[worker]) for worker in found.odd_workers}
    if found.slowness.persistent is not None:
        slow |= set(found.rank[found.slowness.persistent].tolist())
    return slow


def reasons(found: Alike) -> dict[int, str]:
    return dict(found.ranks.drop_nulls("reason").select("rank", "reason").iter_rows())


class TestOdd:
    @pytest.mark.parametrize("noise", [0.01, 0.05, 0.1])
    @pytest.mark.parametrize(
        ("stages", "replicas", "steps", "seeds"),
        [(2, 2, 1, 20), (4, 1, 2, 20), (4, 2, 4, 10), (8, 8, 1, 10), (8, 8, 2, 10), (64, 16, 1, 2)],
    )
    def test_none_is_by_chance(self, stages, replicas, steps, seeds, noise):
        for seed in range(seeds):
            found = alike(working(stages, replicas, 8, steps, noise, seed))
            assert found.of(Standing.ODD) == [], seed

    @pytest.mark.parametrize("jitter", [0.0, 0.02, 0.1])
    @pytest.mark.parametrize(
        ("stages", "replicas", "microbatches", "steps"),
        [(2, 2, 8, 2), (4, 2, 16, 1), (8, 8, 16, 1), (8, 8, 16, 4), (64, 16, 64, 1)],
    )
    def test_the_slow_rank_is(self, stages, replicas, microbatches, steps, jitter):
        copy, device = replicas - 1, stages // 3
        run = played(stages, replicas, microbatches, steps, jitter, slow={(copy, device): 1.3})
        found = alike(run)
        rank = copy * stages + device
        assert found.of(Standing.ODD) == [rank]
        assert f"of stage {device}" in reasons(found)[rank]
        like = found.ranks.filter(rank=rank)["like"].item()
        assert like != rank
        assert like % stages == device

    @pytest.mark.parametrize(
        "slow",
        [
            {(0, 2): 1.3, (3, 2): 1.2},
            {(0, 2): 1.3, (1, 2): 1.3, (2, 2): 1.25, (3, 2): 1.2},
            {(1, 0): 1.2, (1, 7): 1.1, (5, 3): 2.0},
        ],
        ids=["two of a stage", "half of a stage", "different stages"],
    )
    def test_several_slow_ranks_are(self, slow):
        run = played(8, 8, 16, 3, 0.03, slow=slow)
        assert alike(run).of(Standing.ODD) == sorted(copy * 8 + device for copy, device in slow)

    def test_what_takes_longer_is_said_in_numbers(self):
        run = played(8, 8, 16, 3, 0.0, slow={(5, 3): 1.3})
        assert reasons(alike(run))[43] == (
            "forward and backward +30 % against the 7 other ranks of stage 3"
        )

    def test_a_rank_that_was_slow_in_some_steps_says_in_which_share(self):
        run = played(4, 1, 8, 4, 0.01)
        late = (pl.col("rank") == 2) & (pl.col("step") == 1) & (pl.col("lane") == "compute")
        more = (pl.col("end_ns") - pl.col("start_ns")) * 6 // 10
        tasks = run.tasks.with_columns(
            end_ns=pl.col("end_ns") + pl.when(late).then(more).otherwise(0)
        )
        found = alike(Timeline(tasks, run.ranks, run.run))
        assert found.of(Standing.ODD) == [2]
        assert reasons(found)[2].endswith("against its other steps, in 1 of 4 steps")

    def test_a_stage_that_nobody_else_holds_and_takes_longest_is(self):
        found = alike(played(16, 1, 32, 3, 0.05, heavy={15: 1.3}))
        assert found.of(Standing.ODD) == [15]
        assert reasons(found)[15].startswith("its stage takes ")

    def test_a_stage_that_takes_longest_on_all_its_ranks_is_not(self):
        assert alike(played(8, 4, 16, 3, 0.05, heavy={7: 1.3})).of(Standing.ODD) == []

    def test_work_that_makes_no_step_longer_is_not(self):
        """One of the ranks takes twice as long for a stage that hardly works."""
        run = played(8, 8, 16, 2, 0.0, heavy={3: 0.004}, slow={(5, 3): 2.0})
        assert alike(run).of(Standing.ODD) == []

    @pytest.mark.parametrize("seed", range(4))
    def test_it_is_whom_stragglers_names(self, seed):
        random = np.random.default_rng(seed)
        stages, replicas = 4, 6
        places = [*product(range(replicas), range(stages))]
        chosen = random.permutation(len(places))[: 1 + seed % 3]
        slow = {places[index]: float(random.uniform(1.15, 1.6)) for index in chosen}
        run = played(stages, replicas, 12, 4, 0.03, seed=seed, slow=slow)
        odd = set(alike(run).of(Standing.ODD))
        assert odd == {copy * stages + device for copy, device in slow}
        assert named(run)
        assert named(run) <= odd

    def test_stragglers_says_it_in_its_text_and_json(self):
        run = played(8, 8, 16, 3, 0.0, slow={(5, 3): 1.3})
        found = Stragglers.of(run)
        workers = {worker["rank"]: worker for worker in found.to_dict()["workers"]}
        assert workers[43]["standing"] == "odd"
        assert workers[43]["reason"] == reasons(alike(run))[43]
        assert (workers[0]["standing"], workers[0]["reason"]) == ("alike", None)
        text = " ".join(str(found).split())
        assert f"1 odd, 7 waiting, 56 alike: rank 43: {workers[43]['reason']}; own work" in text

    def test_text_says_nothing_of_ranks_that_are_all_alike(self):
        assert "alike:" not in str(Stragglers.of(played(4, 4, 8, 2, 0.02)))

    def test_a_worker_between_two_slow_ones_is_no_outlier(self):
        """It shares the stage of one and the replica of the other; replayed alone it costs nothing."""
        found = Stragglers.of(played(8, 8, 16, 3, 0.0, slow={(5, 3): 1.3, (2, 6): 1.3}))
        assert {int(found.rank[worker]) for worker in found.odd_workers} == {43, 22}


class TestWaiting:
    def test_the_replica_of_a_slow_rank_waits(self):
        found = alike(played(8, 8, 16, 3, 0.02, slow={(5, 3): 1.3}))
        assert found.of(Standing.WAITS) == [rank for rank in range(40, 48) if rank != 43]
        assert found.said[Standing.WAITS].endswith("points more: replica 5 with rank 43")
        assert str(found) == "1 odd, 7 waiting, 56 alike"

    def test_one_of_two_replicas_waits(self):
        found = alike(played(16, 2, 32, 2, 0.02, slow={(1, 7): 1.3}))
        assert found.of(Standing.WAITS) == [rank for rank in range(16, 32) if rank != 23]

    @pytest.mark.parametrize("jitter", [0.01, 0.1])
    def test_nobody_waits_where_all_are_alike(self, jitter):
        for seed in range(5):
            found = alike(played(8, 8, 16, 2, jitter, seed=seed))
            assert found.said.keys() == {Standing.ALIKE}, seed

    def test_how_much_more_they_idle_is_counted(self):
        """Of each rank's own span, in the median step, against the ranks at its stage."""
        run = played(4, 4, 8, 3, 0.02, slow={(2, 1): 1.4})
        found = alike(run)
        idle: dict[int, list[float]] = {}
        for (rank, _), part in run.tasks.filter(lane="compute").group_by("rank", "step"):
            rows = [*part.select("start_ns", "end_ns").iter_rows()]
            span = max(end for _, end in rows) - min(start for start, _ in rows)
            idle.setdefault(rank, []).append(1 - sum(end - start for start, end in rows) / span)
        usual = {rank: sorted(shares)[1] for rank, shares in idle.items()}
        for rank in found.of(Standing.WAITS):
            peers = sorted(usual[other] for other in usual if other % 4 == rank % 4)
            more = 100 * (usual[rank] - peers[1])
            assert reasons(found)[rank].startswith(f"idle {more:.1f} points more")


class TestRunsThatLackSomething:
    def test_ranks_that_are_missing_change_no_other(self):
        run = played(8, 8, 16, 3, 0.02, slow={(5, 3): 1.3})
        gone = [0, 11, 12, 44]
        left = Timeline(
            run.tasks.filter(~pl.col("rank").is_in(gone)),
            run.ranks.filter(~pl.col("rank").is_in(gone)),
            run.run,
        )
        whole, part = alike(run).ranks, alike(left).ranks
        kept = whole.filter(~pl.col("rank").is_in(gone))
        assert part.select("rank", "standing").equals(kept.select("rank", "standing"))

    def test_stages_are_those_of_the_tasks_where_ranks_do_not_say(self):
        run = played(8, 8, 16, 3, 0.0, slow={(5, 3): 1.3})
        silent = run.ranks.with_columns(stages=pl.lit(None, run.ranks.schema["stages"]))
        found = alike(Timeline(run.tasks, silent, run.run))
        assert found.ranks.equals(alike(run).ranks)

    def test_without_stages_ranks_are_compared_with_all(self):
        run = played(1, 8, 16, 3, 0.0, slow={(5, 0): 1.3})
        silent = run.ranks.with_columns(stages=pl.lit(None, run.ranks.schema["stages"]))
        tasks = run.tasks.with_columns(stage=pl.lit(None, run.tasks.schema["stage"]))
        found = alike(Timeline(tasks, silent, run.run))
        assert reasons(found)[5].endswith("against the 7 other ranks of the run")

    def test_without_replicas_all_are_alike(self):
        found = alike(one_f_one_b())
        assert found.said == {
            Standing.ALIKE: "each as in its other steps: no other rank holds the same"
        }

    def test_without_tasks_too(self):
        assert alike(empty()).of(Standing.ALIKE) == [0, 1]

    def test_the_lengths_that_somebody_took_apart_are_used(self):
        run = played(4, 4, 8, 3, 0.02, slow={(2, 1): 1.4})
        known = study(run).ledger
        found = alike(run, known)
        assert found.ranks.equals(alike(run).ranks)
        assert found.said == alike(run).said
