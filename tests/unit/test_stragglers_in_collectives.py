"""Stragglers of runs without a pipeline: which ranks others wait for, and what cannot be known."""

from __future__ import annotations

import json

import polars as pl
import pytest
from click.testing import CliRunner

import bubblescope
from bubblescope import Timeline
from bubblescope.analysis.whatif_device import DeviceWhatIf
from bubblescope.cli import cli
from bubblescope.model.errors import TimelineError
from bubblescope.model.provenance import Run
from bubblescope.render.text.stragglers import Stragglers
from bubblescope.render.text.stragglers_in_collectives import LateRanks
from coupled_job import MS, Job, mean, traced
from synthetic import one_f_one_b


def changed(run: Timeline, facts: Run | None = None, **tables: pl.DataFrame) -> Timeline:
    """Return a run with other facts or tables."""
    ranks = tables.pop("ranks", run.ranks)
    return Timeline(run.tasks, ranks, facts or run.run, **{**run.tables, **tables})


def scattered(run: Timeline) -> pl.DataFrame:
    """Return collectives that end on one rank when they like."""
    later = pl.when(pl.col("rank") == 0).then(pl.int_range(pl.len()) % 7 * 2 * MS).otherwise(0)
    return run.operations.with_columns(pl.col("start_ns", "end_ns") + later)


def slowed(run: Timeline) -> LateRanks:
    found = bubblescope.Trace(run).stragglers()
    assert isinstance(found, LateRanks)
    return found


def test_a_rank_that_computes_longer_is_told_with_what_it_costs():
    found = slowed(traced(Job(4, jitter=0.02, slow={2: 1.5})))
    [row] = found.to_dict()["late_ranks"]
    assert (row["rank"], row["class"]) == (2, "compute")
    assert row["last"] > 0.8 * row["collectives"]
    _, windows = Job(4, jitter=0.02).steps(3, seed=0)
    healthy = row["healthy"]
    assert healthy["error"] < 0.1
    assert mean(windows) == pytest.approx(healthy["predicted_ns"], rel=healthy["error"])
    assert found.together == found.healthy[2]
    said = " ".join(str(found).split())
    assert said.startswith("bubblescope 4 ranks · no pipeline rank 2 comes ")
    assert " computation: " in said
    assert "together" not in said


def test_the_slowest_is_first_and_all_of_them_together_are_last():
    run = traced(Job(6, jitter=0.02, slow={2: 1.5, 4: 1.6}))
    found = slowed(run)
    assert [one.late.rank for one in found.late] == [4, 2]
    assert found.together == DeviceWhatIf(run).healthy(2, 4)
    assert found.headline().startswith("rank 4 comes ")
    assert " together " in " ".join(str(found).split())


def test_a_rank_whose_host_is_late_is_told_so():
    run = traced(Job(4, jitter=0.02, late=0.3))
    idle = (pl.col("use") == "host_operator") & (pl.col("rank") != 1)
    alone = run.budget.with_columns(
        use=pl.when(idle).then(pl.lit("compute")).otherwise("use").cast(run.budget["use"].dtype)
    )
    slow = traced(Job(4, jitter=0.02, slow={1: 1.5})).operations
    found = slowed(changed(run, budget=alone, operations=slow))
    assert [(one.late.rank, one.use) for one in found.late] == [(1, "host_operator")]
    assert "host late: in operators" in str(found)


def test_where_none_is_late_that_is_said():
    found = slowed(traced(Job(4)))
    assert (found.late, found.together) == ((), None)
    assert found.headline() == "no rank of 4 comes late to collectives"
    assert "Late ranks" not in str(found)
    assert "Collectives" in str(found)


def test_what_a_step_would_take_may_be_unknown():
    """A single other rank in a single step does not tell how much what ranks have to do scatters."""
    found = slowed(traced(Job(2, slow={1: 1.5}), 1))
    why = "a single step and one other rank do not tell how much the times of ranks scatter"
    told = found.to_dict()
    [row] = told["late_ranks"]
    assert (row["healthy"], told["late_together"]) == (None, None)
    assert row["healthy_unknown"].startswith(why)
    assert told["late_together_unknown"] == row["healthy_unknown"]
    said = " ".join(str(found).split())
    assert " 12 of 12 unknown – computation: " in said
    assert said.count(f"unknown {why}") == 1


def test_what_is_known_has_no_reason_to_be_unknown():
    found = slowed(traced(Job(4, jitter=0.02, slow={2: 1.5})))
    told = found.to_dict()
    assert (told["late_ranks"][0]["healthy_unknown"], told["late_together_unknown"]) == (None, None)
    assert "unknown" not in str(found)


@pytest.mark.parametrize(
    ("why", "run"),
    [
        ("the trace of one rank only", traced(Job(1))),
        (
            "4 of 8 ranks have no trace here, and others may wait for these",
            changed(traced(Job(4)), Run(world=8), groups=traced(Job(4)).groups.clear()),
        ),
        ("hold no work of devices", changed(traced(Job(4)), budget=traced(Job(4)).budget.clear())),
        (
            "hold no collectives of",
            changed(traced(Job(4)), operations=traced(Job(4)).operations[:0]),
        ),
        ("end together", changed(traced(Job(4)), operations=scattered(traced(Job(4))))),
        (
            "ranks hold different stages",
            changed(
                traced(Job(4)),
                ranks=traced(Job(4)).ranks.with_columns(stages=pl.Series([[0], [0], [1], [1]])),
            ),
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_ranks_that_cannot_be_compared_are_refused(why, run):
    with pytest.raises(TimelineError, match=why) as refused:
        bubblescope.Trace(run).stragglers()
    assert str(refused.value).startswith(
        "there is no pipeline to replay (no forward of a known stage)"
    )


def test_groups_that_are_whole_tell_though_other_ranks_have_no_trace():
    """Rank 3 waits for rank 2 in the small group, and so comes late to the large one as well."""
    run = traced(Job(4, tensor=2, jitter=0.02, slow={2: 1.5}))
    found = slowed(changed(run, Run(world=8)))
    assert [(one.late.rank, one.use) for one in found.late] == [(2, "compute"), (3, None)]
    assert found.healthy[3].saved_share < 0.01 < found.healthy[2].saved_share


def test_pipelines_are_replayed_as_before():
    assert isinstance(bubblescope.Trace(one_f_one_b()).stragglers(), Stragglers)


def test_the_json_has_all_keys_of_the_other(tmp_path):
    path = tmp_path / "run.parquet"
    traced(Job(4, jitter=0.02, slow={2: 1.5})).save(path)
    done = CliRunner().invoke(cli, ["stragglers", "-q", "--json", str(path)])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    other = json.loads(bubblescope.Trace(one_f_one_b()).stragglers().to_json())
    assert said.keys() == other.keys()
    assert (said["schema"], said["model"]) == (other["schema"], "collectives")
    assert [row["rank"] for row in said["collectives"]] == [0, 1, 2, 3]
    assert all(isinstance(other[key], list) for key, value in said.items() if value == [])
