"""What NPUs spent their time on, of profiles in which every nanosecond is known."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import polars as pl
import pytest

from ascend_maker import FUNCTION, OPERATOR, QUEUE, Profile
from bubblescope import sources
from bubblescope.analysis.device_budget import budget
from bubblescope.analysis.untold_time import unknowable
from places import SHARED

US = 1000
TYPES = {"forward": "forward_step", "backward": "backward_step"}
GROUPS = {"a": {"group_name": "tp", "group_rank": 0, "global_ranks": [0, 1]}}
REAL = SHARED / "ascend" / "1f1b"


class Made(Profile):
    """A profile in microseconds."""

    def task(self, kind, start, end, *, issued=None, **more):
        issued = issued and tuple(US * at for at in issued)
        return super().task(kind, US * start, US * end, issued=issued, **more)

    def call(self, name, start, end, **more):
        scale = 1 if "connection" in more else US
        super().call(name, scale * start, scale * end, **more)

    def function(self, kind, name, start, end, **more):
        super().function(kind, name, US * start, US * end, **more)

    def kernel(self, start, end, issued=None, **more):
        return self.task("KERNEL_AICORE", start, end, issued=issued, named="MatMul1", **more)


def everything(dropped=()):
    """Return a profile of 212 microseconds with something of each class."""
    made = Made(dropped=dropped, metadata={"parallel_group_info": json.dumps(GROUPS)})
    made.step(5, -50 * US, 55 * US)
    made.step(6, 55 * US, 300 * US)
    for at, message in enumerate(TYPES.values()):
        low, high = ((0, 110), (110, 212))[at]
        made.range({"name": message}, US * low, US * high, host=(at * 60 * US, at * 60 * US + 9))
    # 0 to 50: compute, with communication beneath and between
    made.kernel(0, 20, (-30, -25))
    made.operation("hcom_allReduce__210_0_1", 10 * US, 40 * US, None, "a", issued=-20 * US)
    made.task("AI_CORE", 9, 41, stream=4, connection=1)
    made.task("Notify Wait", 12, 39, stream=4, connection=1)
    made.task("SDMA", 39, 40, stream=4, connection=1)
    made.kernel(30, 50, (-10, -5))
    # 50 to 58: the host launches late, then the launch takes its time
    made.function(OPERATOR, "aten::mm", 45, 53)
    made.kernel(58, 70, (52, 54))
    # 65 to 80: a copy, in part beneath the kernel
    copy = made.task("MEMCPY_ASYNC", 65, 80, issued=(40, 41), stream=3, call="aclrtMemcpyAsync")
    made.add("MEMCPY_INFO", globalTaskId=copy, size=1, memcpyOperation=6)
    # 80 to 110: what is launched waits for an event
    made.task("EVENT_WAIT", 81, 109, issued=(56, 57), call="aclrtStreamWaitEvent")
    made.kernel(110, 120, (60, 61))
    # 120 to 200: the host was blocked, and what looks like work is none
    made.call("aclrtSynchronizeStreamWithTimeout", 100, 150)
    made.task("Notify Wait", 150, 160, stream=9)
    made.task("EVENT_RECORD", 160, 161, issued=(30, 31), stream=9)
    made.kernel(200, 210, (190, 195))
    made.task("AI_CORE", 199, 215)
    made.task("KERNEL_AIVEC", 210, 212, issued=(196, 197))
    made.task("EVENT_WAIT", 220, 230, issued=(201, 202), call="aclrtStreamWaitEvent")
    return made


def of(folder):
    return budget(sources.load(folder))


def in_us(spending):
    return {use.value: time / US for use, time in spending.idle.items()}


def test_every_nanosecond_has_its_class(tmp_path):
    everything().write(tmp_path)
    found = of(tmp_path)
    whole = found.overall
    assert whole.total_ns == 212 * US
    assert whole.compute_ns == (20 + 20 + 12 + 10 + 10 + 2) * US
    assert (whole.communication_exposed_ns, whole.communication_hidden_ns) == (10 * US, 20 * US)
    assert (whole.copy_exposed_ns, whole.copy_hidden_ns) == (10 * US, 5 * US)
    assert in_us(whole) == {
        "host_after_sync": 70,
        "host_operator": 2,
        "launch_call": 2 + 5,
        "latency": 4 + 5,
        "event_wait": 30,
    }
    details = {(use, detail, role) for use, detail, role, *_ in found.details.iter_rows()}
    assert details >= {
        ("communication", "allreduce", "tp"),
        ("communication_hidden", "allreduce", "tp"),
        ("copy", "HtoD", None),
        ("host_after_sync", "aclrtSynchronizeStreamWithTimeout", None),
        ("host_operator", "aten::mm", None),
    }


@pytest.mark.parametrize("tables", [["TASK"], ["TASK", "COMPUTE_TASK_INFO"]])
def test_work_that_is_there_again_counts_once(tmp_path, tables):
    everything().write(tmp_path)
    whole = sources.load(tmp_path, activities=True)
    [path] = tmp_path.rglob("ascend_pytorch_profiler*.db")
    with closing(sqlite3.connect(path)) as database, database:
        for table in tables:
            database.execute(f"INSERT INTO {table} SELECT * FROM {table}")
    found = sources.load(tmp_path, activities=True)
    assert found.budget.equals(whole.budget)
    # A kernel whose launch is not known may well be another one.
    linked = [one.activities.drop_nulls("launch_ns") for one in (found, whole)]
    assert linked[0].equals(linked[1])
    assert "are there again" in next(
        one.message for one in found.run.warnings + found.run.notes if one.code == "repeated-rows"
    )


def test_work_whose_end_is_not_there_is_counted(tmp_path):
    everything().write(tmp_path)
    [path] = tmp_path.rglob("ascend_pytorch_profiler*.db")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "UPDATE TASK SET endNs = NULL WHERE globalTaskId IN "
            "(SELECT globalTaskId FROM COMPUTE_TASK_INFO LIMIT 2)"
        )
    [notice] = [one for one in sources.load(tmp_path).run.warnings if "tasks of the" in one.message]
    assert (notice.code, notice.lost) == ("impossible-times", 2)


def test_steps_begin_with_what_is_launched_in_them(tmp_path):
    everything().write(tmp_path)
    found = of(tmp_path)
    sums = {
        key: (spent.total_ns / US, spent.idle_ns / US) for key, spent in found.per_rank_step.items()
    }
    assert sums == {(0, 5): (110, 38), (0, 6): (102, 80)}
    assert found.open_steps == {(0, 6)}
    assert found.outside_steps_ns == 0


def test_time_is_of_the_task_that_the_marks_enclose(tmp_path):
    everything().write(tmp_path)
    table = sources.load(tmp_path).budget
    sums = table.filter(use="compute").group_by("inside").agg(pl.col("spent_ns").sum() / US)
    time = dict(sums.iter_rows())
    assert time == {"forward": 20 + 20 + 12, "backward": 10 + 10 + 2}


def test_operations_say_group_and_what_was_exposed(tmp_path):
    everything().write(tmp_path)
    [row] = sources.load(tmp_path).operations.to_dicts()
    assert (row["name"], row["operation"], row["library"]) == (
        "hcom_allReduce",
        "allreduce",
        "hccl",
    )
    assert (row["group"], row["role"], row["stream"]) == ("a", "tp", 4)
    assert (row["exposed_ns"], row["hidden_ns"]) == (10 * US, 20 * US)


def test_kernels_copies_and_operators_are_kept_if_asked_for(tmp_path):
    everything().write(tmp_path)
    assert not sources.load(tmp_path).activities.height
    kept = sources.load(tmp_path, activities=True)
    first = kept.tasks["start_ns"].min()
    said = kept.activities.select(
        "name", "use", "kind", (pl.col("start_ns") - first) // US, (pl.col("end_ns") - first) // US
    )
    assert said.rows() == [
        ("MatMul1", "compute", "forward", 0, 20),
        ("hcom_allReduce", "communication", "forward", 10, 40),
        ("MatMul1", "compute", "forward", 30, 50),
        ("MatMul1", "compute", "forward", 58, 70),
        ("Memcpy HtoD", "copy", "forward", 65, 80),
        ("MatMul1", "compute", "backward", 110, 120),
        ("MatMul1", "compute", "backward", 200, 210),
        ("unknown", "compute", "backward", 210, 212),
    ]
    delays = (kept.activities["start_ns"] - kept.activities["launch_ns"]) // US
    assert delays.to_list()[::2] == [30, 40, 25, 10]


def test_without_calls_it_is_not_known_why(tmp_path):
    everything(dropped=("CANN_API",)).write(tmp_path)
    whole = of(tmp_path).overall
    assert in_us(whole) == {"unlinked": 118}
    assert whole.total_ns == 212 * US


@pytest.mark.parametrize("table", ["PYTORCH_API", "CONNECTION_IDS", "MEMCPY_INFO", "STEP_TIME"])
def test_any_other_table_may_be_missing(tmp_path, table):
    everything(dropped=(table,)).write(tmp_path)
    whole = of(tmp_path).overall
    assert whole.idle_ns == 118 * US
    assert whole.total_ns == 212 * US


def test_without_names_kernels_are_told_by_their_type(tmp_path):
    made = Made(dropped=("COMPUTE_TASK_INFO",))
    made.task("AI_CPU", 0, 10, issued=(-5, -4))
    made.kernel(20, 30, (-3, -2))
    made.task("EVENT_RECORD", 30, 40)
    made.write(tmp_path)
    whole = of(tmp_path).overall
    assert (whole.compute_ns, in_us(whole)) == (20 * US, {"untraced": 10})


def test_kernels_that_carry_out_communication_are_no_computation(tmp_path):
    made = Made()
    made.kernel(0, 10, (-5, -4))
    made.task("KERNEL_AICPU", 20, 90, issued=(-3, -2), named="hcom_allReduceAicpuKernel")
    made.operation("hcom_allReduce__210_0_1", 30 * US, 80 * US, None, "a", issued=-4 * US)
    made.write(tmp_path)
    whole = of(tmp_path).overall
    assert (whole.compute_ns, whole.communication_exposed_ns) == (10 * US, 50 * US)
    assert whole.total_ns == 80 * US


def test_without_kernels_there_is_no_budget(tmp_path):
    made = Made()
    made.range({"name": "forward_step"}, 0, 100 * US)
    made.operation("hcom_send__210_0_1", 110 * US, 120 * US, (0, 1))
    made.write(tmp_path)
    timeline = sources.load(tmp_path)
    assert budget(timeline) is None
    assert "ProfilerActivity.NPU" in unknowable(timeline)


def test_with_a_budget_nothing_is_missing(tmp_path):
    everything().write(tmp_path)
    assert unknowable(sources.load(tmp_path)) is None


def queued(given, taken):
    """Return a profile in which the second kernel goes through the queue of operators.

    Args:
        given: When the main thread put it there.
        taken: When the other thread worked on the operators before it and on it, and when it launched.
    """
    made = Made()
    busy, (start, end), launch = taken
    made.kernel(0, 10, (-9, -8), thread=2)
    made.function(QUEUE, "Enqueue", -20, -19, item=1)
    made.function(QUEUE, "Dequeue@aclnnMul", *busy, thread=2, item=1)
    made.function(QUEUE, "Enqueue", *given, item=2)
    made.function(QUEUE, "Dequeue@aclnnMm", start, end, thread=2, item=2)
    made.kernel(100, 110, launch, thread=2)
    return made


def test_an_operator_that_comes_late_is_the_main_threads_doing(tmp_path):
    made = queued(given=(80, 81), taken=((-10, -7), (82, 95), (90, 94)))
    made.call("aclrtSynchronizeDevice", -5, 70)
    made.write(tmp_path)
    found = of(tmp_path)
    assert in_us(found.overall) == {"host_after_sync": 80, "launch_call": 4, "latency": 6}


def test_a_queue_that_is_full_is_the_launching_threads_doing(tmp_path):
    made = queued(given=(-6, -5), taken=((-10, 30), (30, 95), (90, 94)))
    made.call("aclrtSynchronizeDevice", -5, 70)
    made.write(tmp_path)
    found = of(tmp_path)
    assert in_us(found.overall) == {"host_operator": 80, "launch_call": 4, "latency": 6}
    assert "aclnnMm" in found.details["detail"].to_list()


@pytest.mark.parametrize(
    ("kind", "name", "use"),
    [
        (OPERATOR, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "host_data"),
        (OPERATOR, "Optimizer.step#AdamW.step", "host_optimizer"),
        (OPERATOR, "aclnnMatmul", "host_operator"),
        (OPERATOR, "ProfilerStep#5", "host_unknown"),
        (FUNCTION, "train.py(12): step", "host_python"),
        (FUNCTION, "<built-in function collect>", "host_gc"),
    ],
)
def test_what_the_host_did_meanwhile(tmp_path, kind, name, use):
    made = Made()
    made.kernel(0, 10, (-9, -8))
    made.function(kind, name, 5, 95)
    made.kernel(100, 110, (90, 94))
    made.write(tmp_path)
    assert in_us(of(tmp_path).overall) == {use: 80, "launch_call": 4, "latency": 6}


def test_a_time_that_cannot_be_is_left_out_and_said(tmp_path):
    made = everything()
    made.kernel(300, 290, (0, 1))
    made.write(tmp_path)
    timeline = sources.load(tmp_path)
    assert budget(timeline).overall.total_ns == 212 * US
    [notice] = [one for one in timeline.run.warnings if one.code == "impossible-times"]
    assert "tasks of the device" in notice.message


def union(intervals):
    """Return how long any of some intervals lasts."""
    total, reached = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


@pytest.mark.skipif(not REAL.exists(), reason="the reference data is not here")
def test_sums_of_the_reference_profiles():
    found = of(REAL)
    for path in REAL.rglob("ascend_pytorch_profiler_*.db"):
        rank = int(path.stem.rpartition("_")[2])
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            kernels = connection.execute(
                "SELECT startNs, endNs FROM TASK JOIN COMPUTE_TASK_INFO USING (globalTaskId)"
            ).fetchall()
            operators = connection.execute("SELECT startNs, endNs FROM COMMUNICATION_OP").fetchall()
        every = kernels + operators
        spent = found.per_rank[rank]
        assert spent.compute_ns == union(kernels)
        assert spent.communication_exposed_ns == union(every) - union(kernels)
        assert spent.total_ns == max(end for _, end in every) - min(start for start, _ in every)
        assert spent.idle_ns == spent.total_ns - union(every)
