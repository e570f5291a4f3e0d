"""Budgets of real traces, beside figures that others worked out of the same files."""

from __future__ import annotations

import csv
import re

import polars as pl
import pytest

from bubblescope.analysis.device_budget import budget
from bubblescope.analysis.device_words import headline
from bubblescope.analysis.losses import BETWEEN, UNRECORDED, losses
from bubblescope.analysis.step_lengths import is_one_step
from bubblescope.analysis.study import study
from bubblescope.model import intervals
from bubblescope.model.budget import BUSY, HIDDEN, IDLE, Use
from bubblescope.render.text.report import Report
from bubblescope.render.text.why import Explanation
from bubblescope.sources import load
from places import SHARED

GOLDEN = SHARED.parent / "golden"
pytestmark = pytest.mark.skipif(not GOLDEN.exists(), reason="needs the shared golden figures")

LATE = (
    *("host_data", "host_optimizer", "host_gc", "host_call", "host_operator", "host_python"),
    "host_unknown",
)
COLUMNS = {
    "own_total_us": lambda of: of.total_ns,
    "own_compute_us": lambda of: of.compute_ns,
    "own_comm_exposed_us": lambda of: of.communication_exposed_ns,
    "own_comm_overlapped_us": lambda of: of.communication_hidden_ns,
    "own_copy_exposed_us": lambda of: of.copy_exposed_ns,
    "own_idle_us": lambda of: of.idle_ns,
    "own_idle_host_other_us": lambda of: idle(of, *LATE),
    "own_idle_host_after_sync_us": lambda of: idle(of, "host_after_sync"),
    "own_idle_launch_call_us": lambda of: idle(of, "launch_call"),
    "own_idle_queued_lt10us_us": lambda of: idle(of, "latency"),
    "own_idle_queued_ge10us_us": lambda of: idle(of, "event_wait", "untraced"),
    "own_idle_unlinked_us": lambda of: idle(of, "unlinked"),
}
"""Columns of the golden figures, and what they are here."""


def idle(spending, *classes):
    """Return the idle time of some classes."""
    return sum(spending.idle.get(Use(name), 0) for name in classes)


def golden():
    """Yield trace, row of figures, and file."""
    if not GOLDEN.exists():
        return
    with (GOLDEN / "inside.csv").open() as file:
        for row in csv.DictReader(file):
            found = sorted(SHARED.glob(f"*/*/{row['trace'].split(' ')[0]}*"))
            yield pytest.param(row, found[0] if found else None, id=row["trace"])


def of_rank(row, path):
    """Return the budget of the one rank that a row is about, alone."""
    found = budget(load(path))
    place = re.search(r"dev(\d)", row["trace"])
    return found, found.per_rank[int(place[1])] if place else found.overall


@pytest.mark.parametrize(("row", "path"), list(golden()))
def test_budgets_are_those_of_the_golden_figures(row, path):
    _, spending = of_rank(row, path)
    operations = 2 * int(row["gpu_ops"])  # the figures were rounded to a nanosecond for each
    for column, of in COLUMNS.items():
        if row[column]:
            assert of(spending) == pytest.approx(1000 * float(row[column]), abs=operations), column


@pytest.mark.parametrize(("row", "path"), list(golden()))
def test_steps_are_those_of_the_golden_figures(row, path):
    if "ProfilerStep" not in row["own_steps"]:
        pytest.skip("has no steps")
    found, _ = of_rank(row, path)
    stated = re.findall(r"ProfilerStep#(\d+):([\d.]+)/([\d.]+)", row["own_steps"])
    steps = {
        step: (of.total_ns, of.idle_ns) for (_, step), of in sorted(found.per_rank_step.items())
    }
    assert list(steps) == [int(step) for step, _, _ in stated]
    for step, length, lost in stated:
        expected = tuple(1000 * float(value) for value in (length, lost))
        assert steps[int(step)] == pytest.approx(expected, abs=2)


def test_the_nsight_export_idles_for_the_stated_reasons():
    with (GOLDEN / "inside.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if "sqlite" in row["trace"]]
    for row in rows:
        said = dict(re.findall(r"(host_late|launch_call|queued|unlinked) (\d+)", row["own_steps"]))
        _, spending = of_rank(row, next(SHARED.glob("nsight/real/h100*.sqlite")))
        assert spending.host_late_ns == int(said["host_late"])
        assert idle(spending, "launch_call") == int(said["launch_call"])
        assert idle(spending, "latency", "event_wait", "untraced") == int(said["queued"])
        assert idle(spending, "unlinked") == int(said["unlinked"])


RUNS = {
    "nsight zero-bubble": "nsight/made/zb_2nodes",
    "nsight autograd": "nsight/made/1f1b_autograd_thread",
    "nsight fsdp": "communication/ulysses_fsdp_2rank/mfu_2gpu_before.sqlite",
    "h100": "nsight/real/h100_2gpu_1s.sqlite",
    "megatron": "communication/megatron_tp8_8rank",
    "dlrm": "communication/dlrm_ep_dp_rank3",
    "tp8": "communication/tp8_symm",
    "mi300": "kineto/real/mi300_resnet_act_checkpoint.json.gz",
    "nccl": "kineto/real/nccl_parser_config_nccl_data.json.gz",
    "df_index": "kineto/no_ranges/hta_df_index.json.gz",
}


@pytest.mark.parametrize("place", RUNS.values(), ids=list(RUNS))
def test_both_partitions_of_a_run_add_up(place):
    run = load(SHARED / place)
    table = run.budget.filter(~pl.col("use").is_in([use.value for use in HIDDEN]))
    for (rank,), rows in table.group_by("rank"):
        devices = rows.group_by("device").agg(pl.col("spent_ns").sum(), whole=whole())
        assert (devices["spent_ns"] == devices["whole"]).all(), rank
    known = study(run)
    ledger = known.ledger if known.pipelined else None
    both = losses(run, ledger).table
    # Without a pipeline, what is in no step is no loss of one, nor what is in one that goes on.
    # Of a recording that was taken as one step, all is.
    stepped = ledger is None and not is_one_step(run.run)
    within = table.drop_nulls("step") if stepped else table
    ended = within.join(run.step_times.filter("open"), on=["rank", "step"], how="anti")
    parts = (ended, within, table) if stepped else (table,)
    meant = next(part for part in parts if part.height)
    assert both.filter(pl.col("use") != UNRECORDED)["spent_ns"].sum() == meant["spent_ns"].sum()
    if ledger:
        bubbles = both.filter(place=BETWEEN).group_by("cause").agg(pl.col("spent_ns").sum())
        totals = ledger.totals().select("cause", spent_ns="idle_ns")
        assert sorted(bubbles.rows()) == sorted(totals.rows())


def whole():
    """Return how long a device was recorded, from its first operation to its last."""
    return pl.col("end_ns").max() - pl.col("start_ns").min()


def test_steps_lie_side_by_side():
    run = load(SHARED / RUNS["df_index"])
    steps = run.step_times
    assert (steps["end_ns"][:-1] == steps["start_ns"][1:]).all()
    assert steps["open"].to_list() == [False] * 4 + [True]
    found = budget(run)
    lengths = (steps["end_ns"] - steps["start_ns"]).to_list()
    assert [of.total_ns for of in found.per_step.values()] == lengths


def test_every_class_is_shown():
    assert {*BUSY, *IDLE, *HIDDEN} == {*Use}


def test_a_launch_bound_run_is_called_so():
    run = load(SHARED / RUNS["nccl"])
    said = "idle 76.2 %, of it 94 % the host launched late"
    assert headline(budget(run).overall).startswith(said)
    report, why = str(Report.of(run)).splitlines(), str(Explanation.of(run)).splitlines()
    assert said in report[1]
    # The last step goes on when the recording ends.
    idle = [use.value for use in IDLE]
    shown = run.budget.filter(~pl.col("use").is_in([use.value for use in HIDDEN]))
    ended = run.step_times.filter(~pl.col("open"))["step"]
    assert ended.len() == run.step_times.height - 1
    shown = shown.filter(pl.col("step").is_in(ended.implode()))
    share = shown.filter(pl.col("use").is_in(idle))["spent_ns"].sum() / shown["spent_ns"].sum()
    assert "Launch-bound" in why[0]
    assert f"in the steps, devices idle {100 * share:.1f} %, of it 94 % the host" in why[0]
    assert "1f1b" not in str(Report.of(run))


def test_one_hole_is_found_with_the_call_that_was_blocked():
    run = load(SHARED / "kineto/no_ranges/tl_sglang_decode.json.gz")
    hole = run.budget.filter(use="untraced").sort("spent_ns").tail(1).to_dicts()[0]
    assert hole["detail"] == "hipMemcpyWithStream"
    assert 463_000_000 < hole["spent_ns"] < 464_000_000
    assert hole["end_ns"] - hole["start_ns"] == hole["spent_ns"]


def test_operations_are_measured_each_and_together():
    run = load(SHARED / RUNS["dlrm"])
    found = run.operations
    sums = found.select(pl.col("exposed_ns", "hidden_ns").sum()).row(0)
    spending = budget(run).overall
    assert sums == (spending.communication_exposed_ns, spending.communication_hidden_ns)
    together = intervals.union_ns(found["start_ns"].to_numpy(), found["end_ns"].to_numpy())
    assert sum(sums) == together
