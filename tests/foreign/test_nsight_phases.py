"""Phases and steps of Nsight Systems' exports that name no passes, and what is shown without any."""

from __future__ import annotations

import sqlite3

import numpy as np
import polars as pl
import pytest

from bubblescope import sources
from bubblescope.analysis.report import Report
from bubblescope.model.kinds import Kind
from bubblescope.names.phase_words import forward_edge, phase_word
from bubblescope.sources.kernel_period import steps_of_kernels
from kineto_maker import MAIN, Trace
from nsight_maker import UTC, Export
from places import SHARED

AUTOGRAD = 1
ENGINE = "autograd::engine::evaluate_function: AddmmBackward0, seq = {}, op_id = {}"


class Job:
    """A process whose device is far behind its host: every launch is one kernel of 100, in order.

    `truth` has the kind or name, start and end of what was made, in the times of the device.
    """

    def __init__(self, export: Export | None = None, *, pid: int = 7, device: int = 0) -> None:
        self.export = export or Export()
        self.process = self.export.process(pid, device)
        self.host, self.device = 1000, 10_000_000
        self.number = 0
        self.truth: list[tuple[str, int, int]] = []

    def work(
        self, name: str = "gemm", thread: int = 0, inside: str | None = None, device: int = 0
    ) -> None:
        """Launch one kernel, in a range of its own if it is named."""
        if inside is not None:
            self.number += 1
            text = inside.format(self.number, self.number)
            self.process.range(text, self.host, self.host + 30, thread=thread)
        begin, self.device = self.device, self.device + 110
        how = {"at": self.host + 5, "thread": thread, "device": device}
        self.process.kernel(begin, begin + 100, name=name, **how)
        self.host += 40

    def phase(self, kind: str | None, count: int = 3, **how) -> Job:
        begin = self.device
        for _ in range(count):
            self.work(**how)
        if kind is not None:
            self.truth.append((kind, UTC + begin, UTC + self.device - 10))
        return self

    def operators(self, kind: str = "forward", count: int = 3) -> Job:
        """Launch from operators, as emit_nvtx shows them."""
        return self.phase(kind, count, inside="aten::addmm, seq = {}, op_id = {}, sizes = [[2]]")

    def engine(self, count: int = 3) -> Job:
        return self.phase("backward", count, thread=AUTOGRAD, inside=ENGINE)

    def ranged(self, name: str, kind: str | None, count: int = 2, **how) -> Job:
        begin = self.host
        self.phase(kind, count, **how)
        self.process.range(name, begin, self.host)
        self.host += 10
        return self

    def load(self, folder):
        return sources.load(self.export.write(folder / "t.sqlite"))

    def check(self, folder, column: str = "kind"):
        """Load the export, whose tasks must be those that were made."""
        timeline = self.load(folder)
        found = timeline.tasks.select(pl.col(column).cast(pl.String), "start_ns", "end_ns")
        assert sorted(found.rows(), key=lambda row: row[1:]) == sorted(
            self.truth, key=lambda row: row[1:]
        )
        return timeline


def codes(timeline):
    return {notice.code for notice in timeline.run.warnings}


def steps(timeline, kind):
    return timeline.tasks.filter(kind=kind).sort("start_ns")["step"].to_list()


# Passes


def test_operators_of_emit_nvtx_tell_passes_and_an_optimizer(tmp_path):
    job = Job()
    for _ in range(2):
        for _ in range(2):
            job.operators().engine()
        job.ranged("Optimizer.step#AdamW.step, op_id = 99", "optimizer")
    timeline = job.check(tmp_path)
    assert steps(timeline, "backward") == [0, 0, 1, 1]
    assert timeline.tasks.filter(kind="forward")["microbatch"].to_list() == [0, 1, 0, 1]
    assert "autograd's engine" in timeline.run.inferred["kind"]
    assert "optimizer" in timeline.run.inferred["step"]
    assert not codes(timeline)
    names = {shape.shape for shape in timeline.run.contents[0].names}
    assert "aten::addmm" in names  # without the numbers behind it


def test_operators_of_emit_nvtx_tell_an_evaluation_from_the_forward_after_it(tmp_path):
    job = Job()
    for _ in range(2):
        job.operators().engine().ranged("Optimizer.step#AdamW.step, op_id = 99", "optimizer")
        job.phase("other", inside="aten::addmm, op_id = {}, sizes = [[2]]")
    timeline = job.check(tmp_path)
    assert set(timeline.tasks.filter(kind="other")["name"]) == {"forward without autograd"}
    assert timeline.tasks.filter(kind="forward")["microbatch"].to_list() == [0, 0]


def test_what_fsdp_computes_anew_is_told_inside_of_the_backward(tmp_path):
    job = Job().operators()
    begin, first = job.host, job.device
    job.host += 10
    for edge in ("pre", "post"):
        name = f"FSDP::{edge}_forward (blocks.3), op_id = 5"
        job.process.range(name, job.host, job.host + 5, thread=AUTOGRAD)
        job.host += 6
        if edge == "pre":
            job.phase("recompute", 2, thread=AUTOGRAD, inside="aten::addmm, seq = {}, op_id = {}")
    own = job.device
    job.phase(None, 2, thread=AUTOGRAD)
    name = "autograd::engine::evaluate_function: CheckpointBackward, seq = 1, op_id = 4"
    job.process.range(name, begin, job.host, thread=AUTOGRAD)
    job.truth.append(("backward", UTC + own, UTC + job.device - 10))
    job.ranged("optimizer", "optimizer")
    assert first < own
    job.check(tmp_path)


@pytest.mark.parametrize("optimizer", [True, False])
def test_names_of_autograds_threads_tell_backwards(tmp_path, optimizer):
    """A plain profile without NVTX: forwards can be told only where kernels name an optimizer."""
    job = Job()
    job.process.calls_thread(AUTOGRAD, "pt_autograd_0")
    adam = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>(T)"
    for _ in range(3):
        job.phase("forward" if optimizer else "other")
        job.phase("backward", 5, thread=AUTOGRAD)
        if optimizer:
            job.phase("optimizer", 2, name=adam)
    timeline = job.check(tmp_path)
    assert steps(timeline, "backward") == ([0, 1, 2] if optimizer else [0, 0, 0])
    assert "threads of autograd" in timeline.run.inferred["kind"]


def test_a_pipeline_without_marks_is_told_by_turns_and_not_taken_for_phases(tmp_path):
    """Its warm-up has several forwards in a row: they are no one forward."""
    job = Job()
    job.process.calls_thread(AUTOGRAD, "pt_autograd_0")
    for _ in range(2):
        job.phase(None).phase(None, 1, name="ncclDevKernel_SendRecv").phase(None)
        job.phase(None, thread=AUTOGRAD)
    timeline = job.load(tmp_path)
    found = timeline.tasks.filter(lane="compute")
    assert found["kind"].to_list() == ["forward", "forward", "backward"] * 2
    assert found["certainty"].max() <= 0.5
    assert found["microbatch"].null_count() == found["stage"].null_count() == found.height
    assert timeline.tasks.filter(lane="comm").height == 2
    assert "inferred-passes" in {notice.code for notice in timeline.run.notes}


@pytest.mark.parametrize(
    "label", ["transformer_engine._Linear.backward.dgrad_gemm", "_LayerNormMLP_backward"]
)
def test_names_of_modules_backwards_tell_backwards(tmp_path, label):
    job = Job()
    for _ in range(2):
        job.phase("forward", 3, inside="Linear forward")
        job.phase("backward", 3, thread=AUTOGRAD, inside=label)
        job.ranged("optimizer", "optimizer")
    assert "module's backward" in job.check(tmp_path).run.inferred["kind"]


@pytest.mark.parametrize(
    ("forward", "backward", "optimizer"),
    [
        ("forward", "backward", "opt.step()"),
        ("DeepSpeedEngine.forward", "DeepSpeedEngine.backward", "DeepSpeedEngine.step"),
        ("Forward pass", "loss.backward()", "optimizer_step"),
    ],
)
def test_ranges_named_as_whole_phases_are_believed(tmp_path, forward, backward, optimizer):
    job = Job()
    for number in range(3):
        begin = job.host
        job.phase("other", 1)  # copies a batch
        job.ranged(forward, "forward")
        start = job.host
        job.phase("backward", 3, thread=AUTOGRAD)
        job.process.range(backward, start, job.host)
        job.host += 10
        job.ranged(optimizer, "optimizer")
        job.process.range(f"iteration {number + 40}", begin, job.host)
        job.host += 10
    timeline = job.check(tmp_path)
    assert steps(timeline, "forward") == steps(timeline, "backward") == [40, 41, 42]
    assert "named forward, backward" in timeline.run.inferred["kind"]
    assert "iteration N" in timeline.run.inferred["step"]


def test_a_forward_named_inside_of_a_backward_is_computed_anew(tmp_path):
    job = Job().ranged("forward", "forward")
    begin = job.host
    job.ranged("forward", "recompute")
    job.phase("backward", 2)
    job.process.range("backward", begin - 1, job.host)
    job.check(tmp_path)


@pytest.mark.parametrize("root", [True, False])
def test_ranges_of_fsdp_tell_forwards_of_an_inference(tmp_path, root):
    job = Job()
    for index in range(3):
        if root:
            job.process.range("FSDP::root_pre_forward, op_id = 1", job.host, job.host + 5)
            job.host += 6
        begin = job.device
        for layer in range(4) if index else range(2, 4):
            for edge in ("pre", "post"):
                name = f"FSDP::{edge}_forward (blocks.{layer}), op_id = 7"
                job.process.range(name, job.host, job.host + 4)
                job.host += 5
                if edge == "pre":
                    job.phase(None, 2, inside="aten::mm, op_id = {}")
        if root:
            job.truth.append(("forward", UTC + begin, UTC + job.device - 10))
            job.phase("other", 1)
    timeline = job.check(tmp_path) if root else job.load(tmp_path)
    assert "FSDP" in timeline.run.inferred["kind"]
    assert timeline.tasks.filter(kind="forward").height == 3


def test_words_are_of_whole_phases_alone():
    said = {name: phase_word(name) for name in ("fwd", "## forward ##", "bwd_step", "Opt", "Optim")}
    assert list(said.values()) == [
        Kind.FORWARD,
        Kind.FORWARD,
        Kind.BACKWARD,
        Kind.OPTIMIZER,
        Kind.OPTIMIZER,
    ]
    for optimizer in ("DeepSpeedZeroOptimizer_Stage3.step", "DeepSpeedEngine.step"):
        assert phase_word(optimizer) is Kind.OPTIMIZER
    inner = "DeepSpeedZeroOptimizer_Stage3.partition_grads"  # runs in the backward
    for other in ("forward_backward", "feedforward", "forward 3x", "backwards compatible", "step"):
        assert phase_word(other) is phase_word(inner) is None
    assert forward_edge("FSDP::all_gather (a)") is None
    assert forward_edge("FSDP::pre_forward").module == ""


def test_optimizers_that_kernels_name_end_steps(tmp_path):
    job = Job()
    for _ in range(3):
        job.phase("work outside of ranges", 30)
        begin = job.device
        for name in ("void FusedAdam<float>(T)", "add", "void FusedAdam<float>(T)"):
            job.work(name)
        job.truth.append(("optimizer", UTC + begin, UTC + job.device - 10))
    timeline = job.check(tmp_path, "name")
    assert steps(timeline, "other") == steps(timeline, "optimizer") == [0, 1, 2]
    assert "optimizers and what is between them" in timeline.run.inferred["kind"]


# Regions and steps


def test_outermost_ranges_are_tasks_and_what_is_beside_them_too(tmp_path):
    job = Job()
    for name in ("encoder", "decoder"):
        job.phase("work outside of ranges", 1)
        begin = job.host
        job.ranged("nested", None)
        job.phase(None, 1)
        job.process.range(name, begin - 1, job.host)
        job.truth.append((name, UTC + job.device - 330, UTC + job.device - 10))
        job.host += 10
    timeline = job.check(tmp_path, "name")
    assert set(timeline.tasks["kind"]) == {"other"}
    assert "outermost ranges" in timeline.run.inferred["kind"]
    assert codes(timeline) == {"no-pipeline-ranges"}


def test_a_range_around_everything_is_cut_up_by_those_inside(tmp_path):
    job = Job()
    begin = job.host
    job.phase("main", 1)
    for name in ("encoder", "decoder", "encoder"):
        job.ranged(name, name)
    job.process.range("main", begin - 1, job.host)
    job.check(tmp_path, "name")


def test_ranges_of_libraries_are_no_tasks(tmp_path):
    job = Job()
    for name in ("ncclAllReduce", "cublasGemmEx", "MPI_Send"):
        job.ranged(name, None)
    job.truth.append(("all device work", UTC + 10_000_000, UTC + job.device - 10))
    assert "one task is all that it did" in job.check(tmp_path, "name").run.inferred["kind"]


@pytest.mark.parametrize("name", ["iteration {}", "Train Step: {}", "batch #{}", "execute_{}_ctx"])
def test_named_steps_are_tasks_where_there_is_nothing_else(tmp_path, name):
    job = Job()
    for number in range(5, 9):
        job.ranged(name.format(number), name.format(number))
    timeline = job.check(tmp_path, "name")
    stated = "execute" not in name
    assert steps(timeline, "other") == ([5, 6, 7, 8] if stated else [0, 1, 2, 3])
    assert "how" not in timeline.run.inferred
    assert "iteration N" in timeline.run.inferred["step"]


def test_repeated_steps_inside_of_a_range_of_the_same_shape(tmp_path):
    """A step that encloses all others is the training, and steps may be marked twice."""
    job = Job()
    begin = job.host
    for number in range(3):
        start = job.host
        job.ranged(f"step {number}", f"step {number}")
        job.process.range(f"step {number}", start + 1, job.host - 11)
    job.process.range("training step", begin - 1, job.host)
    assert steps(job.check(tmp_path, "name"), "other") == [0, 1, 2]


def test_steps_that_never_end_end_with_the_next(tmp_path):
    job = Job()
    for number in range(3):
        job.process.range(f"iteration {number}", job.host, None)
        job.ranged("forward", "forward", 2)
        job.ranged("backward", "backward", 2)
    assert steps(job.check(tmp_path), "forward") == [0, 1, 2]


def test_one_step_and_no_end_of_anything(tmp_path):
    job = Job()
    job.process.range("main", job.host, None)
    job.process.range("aten::mm, seq = 1, op_id = 1", job.host, None)
    job.phase("all device work", 3)
    timeline = job.check(tmp_path, "name")
    assert steps(timeline, "other") == [0]
    assert codes(timeline) == {"no-pipeline-ranges"}


# Steps by kernels


def a_step(layers: int = 4, *, layer: int = 6) -> list[str]:
    """Return the names of a step's kernels: an embedding, layers, and a head."""
    return ["embed", *[f"part_{i}" for i in range(layer)] * layers, "head", "sample"]


def run(job: Job, names: list[str]) -> None:
    for name in names:
        job.work(name)


def test_kernels_that_repeat_tell_steps_and_say_that_it_is_a_guess(tmp_path):
    job = Job()
    for _ in range(4):
        begin = job.device
        run(job, a_step())
        job.truth.append((f"step {len(job.truth)}", UTC + begin, UTC + job.device - 10))
    timeline = job.check(tmp_path, "name")
    assert steps(timeline, "other") == [0, 1, 2, 3]
    assert "a guess" in timeline.run.inferred["step"]
    assert "4 times 27 kernels, 100.0 % of them alike" in timeline.run.inferred["step"]
    assert codes(timeline) == {"no-pipeline-ranges"}


def test_a_capture_that_begins_and_ends_within_a_step(tmp_path):
    """A step then begins where the host usually waits longest."""
    job = Job()
    run(job, a_step()[20:])
    for _ in range(5):
        job.host += 500
        run(job, a_step())
    job.host += 500
    run(job, a_step()[:10])
    timeline = job.load(tmp_path)
    tasks = timeline.tasks.sort("start_ns")
    assert tasks["name"].to_list() == ["work outside of steps", *(f"step {i}" for i in range(6))]
    begin = UTC + 10_000_000 + 7 * 110
    assert tasks["start_ns"].to_list()[1:] == [begin + 27 * 110 * i for i in range(6)]
    assert timeline.step_times["open"].to_list() == [False] * 5 + [True]


def test_an_evaluation_breaks_no_period(tmp_path):
    job = Job()
    for number in range(8):
        run(job, a_step())
        if number == 4:
            run(job, ["evaluate", *a_step()[1:15]])
    timeline = job.load(tmp_path)
    assert timeline.steps == list(range(8))
    begins = timeline.step_times["start_ns"].diff().drop_nulls().to_list()
    assert begins == [27 * 110] * 4 + [42 * 110] + [27 * 110] * 2


@pytest.mark.parametrize(
    "names",
    [
        [f"part_{i}" for i in range(15)] * 28,  # layers of a capture shorter than a step
        a_step() * 2,
        a_step(),
        ["gemm"] * 500,
        ["a", "b"] * 100,
    ],
    ids=["layers", "twice", "once", "alike", "in turn"],
)
def test_what_may_be_no_steps_is_none(tmp_path, names):
    job = Job()
    begin = job.device
    run(job, names)
    job.truth.append(("all device work", UTC + begin, UTC + job.device - 10))
    timeline = job.check(tmp_path, "name")
    assert timeline.steps == [0]
    assert "no sign of a step" in timeline.run.inferred["step"]


def test_no_step_is_shorter_than_a_pass(tmp_path):
    """What repeats inside of a forward is no step, whatever it looks like."""
    job = Job()
    job.process.range("FSDP::root_pre_forward", job.host, job.host + 1)
    job.host += 5
    for _ in range(5):
        run(job, a_step())
    job.process.range("FSDP::post_forward (head)", job.host, job.host + 1)
    job.host += 5
    timeline = job.load(tmp_path)
    assert timeline.tasks["kind"].to_list() == ["forward"]
    assert timeline.steps == [0]


def test_steps_of_kernels_hold_passes_that_are_told(tmp_path):
    job = Job()
    job.process.calls_thread(AUTOGRAD, "pt_autograd_0")
    for _ in range(4):
        for name in a_step():
            job.work(name)
        for _ in range(4):
            for index in range(8):
                job.work(f"grad_{index}", thread=AUTOGRAD)
        job.host += 1000
    timeline = job.load(tmp_path)
    assert steps(timeline, "backward") == [0, 1, 2, 3]
    assert "a guess" in timeline.run.inferred["step"]


def test_steps_of_ranks_that_were_captured_together_are_numbered_alike(tmp_path):
    """One rank's capture begins two steps later than the other's."""
    export = Export()
    jobs = [Job(export, pid=7), Job(export, pid=8, device=1)]
    for index, job in enumerate(jobs):
        job.host += 3000 * index
        for _ in range(6 - 2 * index):
            job.host += 500
            run(job, a_step())
    period = 27 * 40 + 500
    timeline = jobs[0].load(tmp_path)
    begins = timeline.tasks.filter(pl.col("step").is_not_null())
    by_rank = {
        rank: dict(of.select("step", "host_start_ns").rows())
        for (rank,), of in begins.group_by("rank")
    }
    assert set(by_rank[0]) == set(range(6))
    assert set(by_rank[1]) == set(range(2, 6))
    for step, at in by_rank[1].items():
        assert abs(at - by_rank[0][step]) < period


def test_the_period_is_the_longest_and_its_figures_are_said():
    rng = np.random.default_rng(5)
    step = np.concatenate([[90], np.tile(np.arange(8), 6), [91, 92]])
    noisy = []
    for index in range(10):
        noisy += [*step[:20], 80 + index % 3, *step[20:]] if index % 3 == 0 else [*step]
    names = np.array(noisy)
    gaps = np.where(names == 90, 50, rng.integers(1, 5, len(names)))
    found = steps_of_kernels(names, np.zeros(len(names), bool), gaps)
    assert (found.kernels, found.whole, len(found.starts)) == (51, 10, 10)
    assert 0.98 < found.alike < 1
    assert steps_of_kernels(rng.permutation(names), np.zeros(len(names), bool), gaps) is None


def test_a_step_begins_after_its_optimizer():
    step = np.array([*range(20), 50, 51])
    names = np.concatenate([step[9:], *[step] * 4, step[:5]])
    found = steps_of_kernels(names, np.isin(names, [50, 51]), np.ones(len(names), np.int64))
    assert found.starts.tolist() == [13 + 22 * i for i in range(5)]


# Devices


def test_two_devices_of_one_process_with_a_thread_each(tmp_path):
    job = Job()
    job.phase("all device work", 4, device=0)
    job.phase("all device work", 4, device=1, thread=2)
    timeline = job.check(tmp_path, "name")
    assert timeline.ranks["device"].sort().to_list() == [0, 1]


def test_two_devices_of_one_process_with_a_thread_each_have_their_own_ranges(tmp_path):
    job = Job()
    for device, name in ((0, "encoder"), (1, "decoder")):
        begin = job.host
        job.phase(name, 4, device=device, thread=3 * device)
        job.process.range(name, begin, job.host, thread=3 * device)
        job.host += 10
    timeline = job.check(tmp_path, "name")
    placed = timeline.tasks.join(timeline.ranks, on="rank").sort("device")
    assert placed["name"].to_list() == ["encoder", "decoder"]


def test_two_devices_of_one_thread_are_both_seen(tmp_path):
    """A range is of the device that does most of its work; the other one shows what it did."""
    job = Job()
    begin = job.host
    job.phase("encoder", 4, device=0)
    job.phase("all device work", 2, device=1)
    job.process.range("encoder", begin, job.host)
    timeline = job.check(tmp_path, "name")
    assert timeline.ranks["device"].sort().to_list() == [0, 1]
    assert codes(timeline) == {"no-pipeline-ranges"}


def test_communication_is_a_lane_of_its_own(tmp_path):
    job = Job().phase("gemm", 2)
    job.phase(None, 1, name="ncclDevKernel_AllReduce_Sum_bf16").phase(None, 2)
    timeline = job.load(tmp_path)
    assert timeline.tasks.sort("start_ns").select("name", "lane").rows() == [
        ("all device work", "compute"),
        ("ncclDevKernel_AllReduce_Sum_bf16", "comm"),
    ]


def test_work_without_launching_calls_is_seen(tmp_path):
    job = Job()
    for index in range(3):
        job.process.kernel(1000 + 100 * index, 1050 + 100 * index)
    timeline = job.load(tmp_path)
    assert timeline.tasks.select(
        "name", "start_ns", "end_ns", "busy_ns", "host_start_ns"
    ).rows() == [("all device work", UTC + 1000, UTC + 1250, 150, None)]


def test_without_kernels_there_are_no_tasks(tmp_path):
    job = Job()
    job.process.range("iteration 3", 0, 100)
    assert not len(job.load(tmp_path))


def test_names_that_are_no_utf8_are_kept_from_harm(tmp_path):
    job = Job().ranged("caf", None)
    run(job, ["gemm"] * 3)
    path = job.export.write(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE NVTX_EVENTS SET text = CAST(X'636166E9' AS TEXT)")
        connection.execute(
            "UPDATE StringIds SET value = CAST(X'67E96D' AS TEXT) WHERE value = 'gemm'"
        )
    connection.close()
    timeline = sources.load(path)
    assert timeline.tasks.sort("start_ns")["name"].to_list() == [
        "caf\ufffd",
        "work outside of ranges",
    ]


@pytest.mark.parametrize("first", [True, False])
def test_names_of_passes_in_one_export_are_believed_for_the_whole_run(tmp_path, first):
    named, plain = Job(Export("node0")), Job(Export("node1"))
    named.ranged("F0.0.0", None).ranged("B0.0.0", None)
    plain.ranged("encoder", None).phase(None)
    for job, at in ((named, 1 - first), (plain, int(first))):
        job.export.write(tmp_path / f"{at}.sqlite")
    timeline = sources.load(tmp_path, clock="raw")
    assert timeline.tasks.sort("start_ns")["name"].to_list() == ["F0.0.0", "B0.0.0"]
    assert timeline.ranks["host"].to_list() == ["node0"]


def test_budgets_and_reports_go_with_such_tasks(tmp_path):
    job = Job()
    for _ in range(4):
        run(job, a_step())
    timeline = job.load(tmp_path)
    report = Report.of(timeline)
    assert report.budget is not None
    assert timeline.budget["step"].unique().sort().to_list() == [0, 1, 2, 3]


def test_every_kernel_is_of_its_task(tmp_path):
    job = Job()
    for _ in range(4):
        run(job, a_step())
    path = job.export.write(tmp_path / "t.sqlite")
    activities = sources.load(path, activities=True).activities
    assert activities.group_by("step").len().sort("step").rows() == [(i, 27) for i in range(4)]


# PyTorch's traces share the last resort


def test_kernels_of_pytorchs_traces_tell_steps_too(tmp_path):
    trace = Trace()
    host, device = 1000, 100_000
    for name in a_step() * 4:
        trace.kernel(device, device + 100, at=host, tid=MAIN, name=name)
        host, device = host + 20, device + 110
    timeline = sources.load(trace.write(tmp_path / "t.json"))
    assert timeline.tasks.sort("start_ns")["name"].to_list() == [f"step {i}" for i in range(4)]
    assert "a guess" in timeline.run.inferred["step"]
    assert "no-pipeline-ranges" in codes(timeline)


def test_real_captures_of_layers_are_given_no_steps():
    """Windows of 0.3 and 1 s inside of one forward: blocks repeat, steps do not."""
    paths = [
        SHARED / "communication" / "ulysses_fsdp_2rank" / "mfu_2gpu_before.sqlite",
        SHARED / "nsight" / "real" / "h100_2gpu_1s.sqlite",
    ]
    if not all(path.exists() for path in paths):
        pytest.skip("the real traces are not here")
    for path in paths:
        timeline = sources.load(path)
        assert timeline.steps == [0]
        assert set(timeline.tasks.filter(lane="compute")["kind"]) <= {"forward", "other"}
        assert timeline.tasks.filter(kind="forward").height == (2 if "mfu" in path.name else 4)
