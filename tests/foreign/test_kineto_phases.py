"""Phases of PyTorch traces that name no passes: forward, backward, recomputation, optimizer, steps."""

from __future__ import annotations

import gzip
import json
from bisect import bisect
from decimal import Decimal
from operator import itemgetter

import numpy as np
import polars as pl
import pytest

from bubblescope import sources
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.model.device_time import NONE, match_work
from bubblescope.model.progress import SILENT
from bubblescope.names.parser import NameParser
from bubblescope.sources.kineto.reading import _Reader
from bubblescope.sources.nesting import enclosing, outermost
from bubblescope.sources.phase_evidence import BACKWARD
from bubblescope.sources.phases import phase_ranges
from bubblescope.sources.step_marks import step_ranges
from kineto_maker import AUTOGRAD, BASE, MAIN, Trace
from places import SHARED

NAMES = NameParser()
REAL = SHARED / "kineto"
ENGINE = "autograd::engine::evaluate_function: MmBackward0"


class Job:
    """A training loop's trace: the host runs 10 times as far ahead as it should.

    Every launch is an operator of 20 with one kernel of 100 on the device, in the order of launches.

    Args:
        autograd: Thread of autograd's engine.
        on_device: Whether operators launch kernels, or are the work themselves.
    """

    def __init__(self, *, autograd: int = AUTOGRAD, on_device: bool = True) -> None:
        self.trace = Trace() if on_device else Trace(header={"deviceProperties": []})
        self.autograd = autograd
        self.on_device = on_device
        self.host, self.device = 1000, 100_000
        self.sequence = 0
        self.truth: list[tuple[str, int, int]] = []

    def _work(
        self, tid: int, inside: str | None = None, alone: str | None = None
    ) -> tuple[int, int]:
        """Launch something by an operator with a sequence number, or by one `alone` without."""
        begin = self.host
        if inside:
            self.trace.operator(inside, begin, begin + 30, tid, self.sequence)
        if alone:
            self.trace.event("cpu_op", alone, begin + 5, begin + 25, tid)
        else:
            self.trace.operator("aten::mm", begin + 5, begin + 25, tid, self.sequence)
        at = (begin if inside else begin + 5, begin + (30 if inside else 25))
        if self.on_device:
            at = (self.device, self.device + 100)
            self.trace.kernel(*at, at=begin + 7, tid=tid)
            self.device += 110
        self.host += 40
        return at

    def _phase(self, kind: str | None, times: list[tuple[int, int]]) -> None:
        if kind is not None:
            self.truth.append((kind, BASE + times[0][0], BASE + times[-1][1]))

    def forward(
        self, count: int = 3, *, recorded: bool = True, kind: str | None = "forward"
    ) -> Job:
        times = []
        for _ in range(count):
            times.append(self._work(MAIN))
            self.sequence += recorded
        self._phase(kind, times)
        return self

    def unrecorded(self, *names: str, kind: str | None = "other", inside: str | None = None) -> Job:
        """Run operators under `torch.no_grad`, where they have no sequence numbers."""
        self._phase(kind, [self._work(MAIN, inside, name) for name in names])
        return self

    def cast(self) -> Job:
        """Cast a parameter, which is part of whatever it is cast for."""
        begin = self.host
        self.trace.operator("aten::to", begin, begin + 30, MAIN, self.sequence)
        self._work(MAIN, alone="aten::copy_")
        self.sequence += 1
        return self

    def backward(self, count: int = 3) -> Job:
        ahead, times = self.sequence, []
        for _ in range(count):  # the engine visits what was recorded last first
            self.sequence = max(self.sequence - 1, 0)
            times.append(self._work(self.autograd, ENGINE))
        self.sequence = ahead
        self._phase("backward", times)
        return self

    def ranged(self, name: str, kind: str | None, count: int = 2) -> Job:
        begin = self.host
        times = [self._work(MAIN) for _ in range(count)]
        self.trace.range(name, begin, self.host)
        self.host += 10
        self._phase(kind, times)
        return self

    def optimizer(self, name: str = "Adam") -> Job:
        return self.ranged(f"Optimizer.step#{name}.step", "optimizer")

    def step(self, number: int, begin: int) -> Job:
        self.trace.range(f"ProfilerStep#{number}", begin, self.host)
        self.host += 10
        return self

    def load(self, folder):
        return sources.load(self.trace.write(folder / "t.json"))

    def check(self, folder):
        """Load the trace, whose tasks must be those that were made."""
        timeline = self.load(folder)
        found = (
            timeline.tasks.select("kind", "start_ns", "end_ns").sort("start_ns", "end_ns").rows()
        )
        assert found == sorted(self.truth, key=lambda row: row[1:])
        assert recognise(timeline) is None or recognise(timeline).schedule is None
        return timeline


def numbers(timeline, kind):
    found = timeline.tasks.filter(kind=kind).sort("start_ns")
    return list(zip(found["step"], found["microbatch"], strict=True))


@pytest.mark.parametrize("autograd", [AUTOGRAD, MAIN])
@pytest.mark.parametrize("on_device", [True, False])
def test_gradients_are_accumulated_over_micro_batches(tmp_path, autograd, on_device):
    """On the CPU the engine runs on the thread that calls it."""
    job = Job(autograd=autograd, on_device=on_device)
    for _ in range(2):
        for _ in range(3):
            job.forward().backward()
        job.optimizer()

    timeline = job.check(tmp_path)

    assert numbers(timeline, "forward") == [(s, m) for s in range(2) for m in range(3)]
    assert numbers(timeline, "backward") == numbers(timeline, "forward")
    assert set(timeline.tasks["stage"].drop_nulls()) == {0}
    assert "autograd's engine" in timeline.run.inferred["kind"]
    assert "whole model" in timeline.run.inferred["stage"]
    assert "optimizer" in timeline.run.inferred["step"]


def test_several_optimizers_in_a_row_are_of_one_step(tmp_path):
    job = Job()
    for _ in range(3):
        job.forward().backward().optimizer("Adam").optimizer("SGD")
    timeline = job.check(tmp_path)
    assert timeline.steps == [0, 1, 2]
    assert timeline.tasks.filter(kind="optimizer")["step"].to_list() == [0, 0, 1, 1, 2, 2]


def test_without_an_optimizer_passes_are_told_all_the_same(tmp_path):
    job = Job()
    for _ in range(3):
        job.forward().backward()
    timeline = job.check(tmp_path)
    assert timeline.steps == [0]
    assert "no sign" in timeline.run.inferred["step"]


def test_what_is_neither_pass_nor_optimizer_is_other_work(tmp_path):
    job = Job()
    for number in range(2):
        begin = job.host
        job.ranged("enumerate(DataLoader)#_Iter.__next__", "other")
        job.ranged("Optimizer.zero_grad#Adam.zero_grad", "other")
        job.forward().backward()
        job.forward(recorded=False, kind="other")  # clips gradients
        job.optimizer()
        job.forward(1, recorded=False, kind="other")  # writes the loss down
        job.step(7 + number, begin)
    timeline = job.check(tmp_path)
    assert timeline.steps == [7, 8]
    named = timeline.tasks.filter(kind="other")["name"].unique().sort().to_list()
    assert named[:2] == [
        "Optimizer.zero_grad#Adam.zero_grad",
        "enumerate(DataLoader)#_Iter.__next__",
    ]
    assert named[2] == "work outside of passes"
    assert "step" not in timeline.run.inferred


def test_clearing_gradients_between_forward_and_backward_cuts_neither(tmp_path):
    job = Job()
    first = job.device
    job.forward(2, kind=None).ranged("Optimizer.zero_grad#Adam.zero_grad", "other")
    job.forward(1, kind=None)
    job.truth.append(("forward", BASE + first, BASE + job.device - 10))
    job.backward().optimizer().check(tmp_path)


def test_a_step_without_a_backward_evaluates(tmp_path):
    job = Job()
    for number in range(3):
        begin = job.host
        job.forward(recorded=number != 1)
        if number != 1:
            job.backward().optimizer()
        job.step(number, begin)
    timeline = job.check(tmp_path)
    assert numbers(timeline, "forward") == [(0, 0), (1, 0), (2, 0)]
    assert numbers(timeline, "backward") == [(0, 0), (2, 0)]


EVALUATION = ("aten::addmm", "aten::relu", "aten::addmm", "aten::argmax")
ALONE = "forward without autograd"


@pytest.mark.parametrize("on_device", [True, False])
def test_an_evaluation_is_no_part_of_the_forward_after_it(tmp_path, on_device):
    """Nor of its micro-batches: the backward is of the forward that autograd recorded."""
    job = Job(on_device=on_device).forward().backward().optimizer()
    job.unrecorded(*EVALUATION).forward().backward().forward().backward().optimizer()
    job.unrecorded(*EVALUATION)
    timeline = job.check(tmp_path)
    assert timeline.tasks.filter(kind="other")["name"].to_list() == [ALONE] * 2
    assert numbers(timeline, "forward") == [(0, 0), (1, 0), (1, 1)]
    assert numbers(timeline, "backward") == numbers(timeline, "forward")
    assert timeline.tasks.filter(kind="other")["microbatch"].to_list() == [None, None]


def test_an_evaluation_in_a_step_is_no_part_of_its_forward(tmp_path):
    job = Job()
    for number in range(2):
        begin = job.host
        job.unrecorded(*EVALUATION).forward().backward().optimizer().step(number, begin)
    assert job.check(tmp_path).tasks.filter(name=ALONE)["step"].to_list() == [0, 1]


def test_autocast_has_autograd_record_the_casts_of_parameters_where_it_is_off(tmp_path):
    job = Job().forward().backward().optimizer()
    for _ in range(2):
        first = job.device
        for operator in EVALUATION:
            job.cast().unrecorded(operator, kind=None)
        job.truth.append(("other", BASE + first, BASE + job.device - 10))
        job.forward().backward().optimizer()
    job.cast().unrecorded(*EVALUATION, kind=None)
    job.truth.append(("other", job.truth[-1][2] + 10, BASE + job.device - 10))
    job.check(tmp_path)


def test_data_of_an_evaluation_may_be_moved_where_autograd_is_on(tmp_path):
    """Then it has the number that the next operator has which autograd records: there is no advance."""
    job = Job().forward().backward().optimizer()
    first = job.device
    for _ in range(2):
        job.forward(1, recorded=False, kind=None).unrecorded(*EVALUATION, kind=None)
    job.truth.append(("other", BASE + first, BASE + job.device - 10))
    job.forward().backward().check(tmp_path)


def test_what_a_forward_does_without_autograd_is_part_of_it(tmp_path):
    """Buffers that DistributedDataParallel sends before it, products in the midst of it and in
    functions whose backward is written by hand, and a kernel that no operator launched."""
    job = Job().forward().backward().optimizer()
    first = job.device
    job.unrecorded("aten::copy_", "aten::cat", kind=None).forward(kind=None)
    job.unrecorded("aten::mm", kind=None)
    job.unrecorded("aten::mm", kind=None, inside="CheckpointFunction").forward(kind=None)
    job.truth.append(("forward", BASE + first, BASE + job.device - 10))
    job.backward().optimizer()
    first = job.device
    job.unrecorded("aten::mm", "aten::mm", kind=None, inside="CheckpointFunction")
    job.forward(kind=None)
    job.truth.append(("forward", BASE + first, BASE + job.device - 10))
    job.backward().check(tmp_path)


def test_without_any_sequence_number_nothing_tells_an_evaluation(tmp_path):
    job = Job()
    job.unrecorded(*EVALUATION, kind="forward").backward().optimizer().check(tmp_path)


def test_a_trace_that_is_torn_at_both_ends(tmp_path):
    job = Job().backward().optimizer().forward().backward().optimizer().forward()
    timeline = job.check(tmp_path)
    assert numbers(timeline, "backward") == [(0, 0), (1, 0)]
    assert numbers(timeline, "forward") == [(1, 0), (2, 0)]


def test_an_optimizer_may_run_forward_and_backward_itself(tmp_path):
    """`optimizer.step(closure)`, as PyTorch Lightning calls it."""
    job = Job()
    for _ in range(2):
        begin = job.host
        job.forward().backward().forward(2, recorded=False, kind="optimizer")
        job.trace.range("Optimizer.step#Adam.step", begin, job.host)
        job.host += 10
    assert job.check(tmp_path).steps == [0, 1]


def test_an_optimizer_inside_of_the_backward_is_part_of_it(tmp_path):
    job = Job().forward()
    begin = job.host
    job.backward()
    job.trace.range("Optimizer.step#SGD.step", begin + 4, begin + 26, AUTOGRAD)
    job.forward().backward().check(tmp_path)


def test_what_the_engines_thread_launches_after_the_last_operator_is_backward(tmp_path):
    """As DistributedDataParallel does when the last gradients are reduced."""
    job = Job().forward()
    begin = job.device
    for inside in (ENGINE, ENGINE, None):
        job._work(AUTOGRAD, inside)
    job.truth.append(("backward", BASE + begin, BASE + job.device - 10))
    job.optimizer().check(tmp_path)


@pytest.mark.parametrize("nested", [False, True])
def test_recomputation_is_told_inside_of_the_backward(tmp_path, nested):
    """By `recompute_fn` in Python's stack; in its older form by the backward that runs inside."""
    job = Job().forward()
    first, begin = job.device, job.host
    job.host += 20
    job.forward(2, kind="recompute")
    if nested:
        for _ in range(2):
            job._work(AUTOGRAD, ENGINE)
    for event in job.trace.events:
        if event["ts"] >= begin and event["pid"] == 77 and event["tid"] == MAIN:
            event["tid"] = AUTOGRAD
    name = "CheckpointFunctionBackward"
    job.trace.operator(f"autograd::engine::evaluate_function: {name}", begin, job.host, AUTOGRAD)
    job.trace.operator(name, begin + 5, job.host - 5, AUTOGRAD)
    if not nested:
        where = "torch/utils/checkpoint.py(1500): recompute_fn"
        job.trace.event("python_function", where, begin + 10, job.host - 8, AUTOGRAD)
        job.host += 10
        job._work(AUTOGRAD, ENGINE)
    # The backward goes on around what is computed anew: its own work begins after it.
    own = first + 2 * 110
    job.truth.append(("backward", BASE + own, BASE + job.device - 10))

    timeline = job.optimizer().check(tmp_path)

    assert numbers(timeline, "recompute") == numbers(timeline, "backward") == [(0, 0)]


def test_a_pipeline_without_names_is_not_taken_for_phases(tmp_path):
    """Its warm-up has several forwards in a row: they are no one forward."""
    job = Job().forward()
    job.trace.operator("c10d::send", job.host, job.host + 10)
    job.host += 20
    job.forward().backward()
    timeline = job.load(tmp_path)
    assert timeline.tasks.select("kind", "name").rows() == [("other", "all device work")]
    assert "no-pipeline-ranges" in {notice.code for notice in timeline.run.warnings}


def test_with_kernels_that_send_and_receive_the_stage_is_not_taken_for_granted(tmp_path):
    job = Job().forward().backward()
    job.trace.kernel(job.device, job.device + 50, at=job.host, name="ncclDevKernel_SendRecv")
    timeline = job.load(tmp_path)
    assert "whole model" not in timeline.run.inferred.get("stage", "")
    assert set(timeline.tasks.filter(lane="compute")["kind"]) == {"forward", "backward"}


@pytest.mark.parametrize(
    "names",
    [
        ["execute_32_context_0", "execute_8_context_1"],
        ["step[DECODE bs=32]"] * 2,
        ["Warm-up Step 1", "Timed Step 1"],
    ],
)
def test_steps_of_an_inference_are_tasks(tmp_path, names):
    job = Job()
    for name in names:
        begin = job.host
        job.ranged("## sample ##", None).forward(recorded=False, kind=None)
        job.trace.range(name, begin, job.host)
        job.truth.append(("other", BASE + job.device - 5 * 110, BASE + job.device - 10))
        job.host += 10
    timeline = job.check(tmp_path)
    assert timeline.tasks["name"].to_list() == names
    assert timeline.tasks["step"].to_list() == [0, 1]
    assert "execute_*" in timeline.run.inferred["step"]
    assert "outermost ranges" in timeline.run.inferred["kind"]


def test_a_region_that_encloses_all_others_is_cut_up_by_them(tmp_path):
    job = Job()
    begin = job.host
    job.forward(2, kind="other")
    for name in ("prefill", "decode"):
        job.ranged(name, "other")
    job.trace.range("whole", begin, job.host + 1)
    timeline = job.check(tmp_path)
    assert timeline.tasks.sort("start_ns")["name"].to_list() == ["whole", "prefill", "decode"]


def test_modules_are_tasks_where_there_are_no_ranges(tmp_path):
    job = Job()
    for layer in range(2):
        begin = job.host
        job.forward(recorded=False, kind="other")
        job.trace.event("python_function", f"nn.Module: Layer_{layer}", begin, job.host)
        job.trace.event("python_function", "nn.Module: Linear_0", begin + 1, job.host - 1)
        job.host += 10
    timeline = job.check(tmp_path)
    assert timeline.tasks["name"].to_list() == ["nn.Module: Layer_0", "nn.Module: Layer_1"]
    assert "modules" in timeline.run.inferred["kind"]


def test_a_step_is_a_task_where_there_is_nothing_else(tmp_path):
    job = Job()
    for number in range(2):
        begin = job.host
        job.forward(recorded=False, kind="other").step(3 + number, begin)
    timeline = job.check(tmp_path)
    assert timeline.tasks["name"].to_list() == ["ProfilerStep#3", "ProfilerStep#4"]
    assert timeline.tasks["step"].to_list() == [3, 4]


def test_names_of_passes_are_believed_instead(tmp_path):
    job = Job()
    begin = job.host
    job.forward(kind=None).backward(1)
    job.truth.clear()
    job.trace.range("## forward ##", begin, job.host)
    job.truth.append(("forward", BASE + 100_000, BASE + job.device - 10))
    job.forward(kind=None)
    assert job.check(tmp_path).run.inferred["kind"].startswith("passes named")


def events_of(path):
    return _Reader(NAMES)._read(path, SILENT)[2]


def spent(events):
    """Return how long all device operations took by the phase that launched them, in ns.

    `late` is what the engine's own thread launched outside of its operators, also if in a phase.
    """
    phases = phase_ranges(events, step_ranges(events, NAMES), NAMES).ranges
    phases = phases.sort("start_ns", "end_ns", descending=[False, True])
    ranges = phases.select(
        "thread", host_start="start_ns", until_ns="end_ns", lane=pl.lit("compute")
    ).with_columns(range=pl.int_range(pl.len()))
    work, launches = events.capture.work.rechunk(), events.capture.launches
    match = match_work(ranges, launches, work)
    kinds = np.append(phases["kind"].to_numpy(), "none")[match.owner]
    length = pl.col("end_ns") - pl.col("start_ns")
    by_kind = (
        work.with_columns(kind=pl.Series(np.where(match.launched == NONE, "unlinked", kinds)))
        .group_by("kind")
        .agg(length.sum())
    )
    of_late = work.join(launched_late(events), on="correlation", how="semi")
    return dict(by_kind.rows()) | {"late": of_late.select(length.sum()).item()}


def launched_late(events):
    """Return the launches of the engine's own thread outside of its operators."""
    engine = outermost(events.operators.filter(pl.col("role") == BACKWARD))
    threads = engine["thread"].unique().implode()
    return enclosing(events.capture.launches, engine).filter(
        pl.col("until_ns").is_null(), pl.col("thread").is_in(threads)
    )


NCCL = "real/nccl_parser_config_nccl_data.json.gz"
RESOLUTION = "real/ns_resolution_trace_rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
MI300 = "real/mi300_resnet_act_checkpoint.json.gz"


@pytest.mark.parametrize(
    ("path", "golden", "late_ns"),
    [
        (
            "no_ranges/hta_df_index.json.gz",
            {"forward": 19.6, "backward": 76.8, "optimizer": 2.6, "other": 1.0},
            0,
        ),
        (NCCL, {"forward": 24.4, "backward": 74.3, "optimizer": 1.3}, 1_530_634),
        (RESOLUTION, {"forward": 32.4, "backward": 66.4, "optimizer": 1.2}, 2_674_547),
        (
            MI300,
            {
                "forward": 7.4,
                "backward": 60.8,
                "recompute": 4.2,
                "optimizer": 0.1,
                "unlinked": 31.8,
            },
            831_770,
        ),
    ],
)
def test_shares_of_real_runs_are_those_by_launch_stacks(path, golden, late_ns):
    """Golden: phases by the operators above each launch, computed by another program.

    There, what has no operator of the engine above it is a forward by elimination, even if the
    engine's thread launched it: DistributedDataParallel's copies of reduced gradients, and nothing
    else. See `test_the_engine_copies_reduced_gradients_before_the_backward_returns`.
    """
    if not REAL.exists():
        pytest.skip("the real traces are not here")
    found = spent(events_of(REAL / path))
    assert found.pop("late") == late_ns
    total = sum(found.values())
    found["forward"] += late_ns
    found["backward"] += found.get("recompute", 0) - late_ns
    assert {kind: round(100 * ns / total, 1) for kind, ns in found.items()} == golden


@pytest.mark.parametrize(("path", "copies"), [(NCCL, 483), (RESOLUTION, 805), (MI300, 186)])
def test_the_engine_copies_reduced_gradients_before_the_backward_returns(path, copies):
    """Why they are of the backward: who launches them, and when.

    Each is launched in `copy_bucket_to_grad`, which has no sequence number, by the thread that runs the
    engine's operators; after an operator of the engine; and before the thread that called the backward
    does anything else. Golden counts them as forward.
    """
    if not REAL.exists():
        pytest.skip("the real traces are not here")
    events = events_of(REAL / path)
    late = launched_late(events)
    with gzip.open(REAL / path) as file:
        traced = json.load(file, parse_float=Decimal)["traceEvents"]
    own = [event for event in traced if event.get("cat") == "cpu_op"]
    copying = [event for event in own if event["name"].endswith("reducer::copy_bucket_to_grad")]
    copied = events.capture.work.join(late, on="correlation", how="semi")
    assert (len(copying), copied.height) == (copies, copies)
    (thread,) = {event["tid"] for event in copying}
    assert late["thread"].unique().to_list() == [thread]
    assert all("Sequence number" not in event["args"] for event in copying)
    by_start = sorted(own, key=itemgetter("ts"))
    starts = [event["ts"] for event in by_start]
    for event in copying:
        index = bisect(starts, event["ts"]) - 1
        before = [one for one in by_start[:index] if "copy_bucket_to_grad" not in one["name"]]
        engine = next(one for one in reversed(before) if one["name"].startswith("autograd::"))
        caller = next(one for one in reversed(before) if one["tid"] != thread)
        # Since the caller handed over to the engine it has done nothing.
        assert engine["tid"] == thread
        assert caller["ts"] + caller["dur"] < engine["ts"]


@pytest.mark.parametrize(
    ("path", "steps", "how"),
    [
        ("no_ranges/hta_df_index.json.gz", [2, 3, 4, 5, 6], None),
        ("no_ranges/tl_sglang_decode.json.gz", [0], "execute_"),
        ("no_ranges/tl_vllm_decode_graph.json.gz", [0], "execute_"),
        ("no_ranges/hta_alexnet.json.gz", [], None),
    ],
)
def test_steps_of_real_runs(path, steps, how):
    if not REAL.exists():
        pytest.skip("the real traces are not here")
    found = step_ranges(events_of(REAL / path), NAMES)
    assert found.ranges["step"].to_list() == steps
    assert how in found.how if how else found.how is None


def test_steps_end_with_their_optimizers(tmp_path):
    """As many annotations as parameters are one step's, if nothing is launched between them."""
    job = Job()
    for _ in range(3):
        job.forward().backward()
        for name in ("Adam", "SGD", "SGD"):
            job.optimizer(name)
    found = step_ranges(events_of(job.trace.write(tmp_path / "t.json")), NAMES)
    assert found.ranges["step"].to_list() == [0, 1, 2]
    assert found.ranges["start_ns"].to_list()[1:] == found.ranges["end_ns"].to_list()[:-1]
    assert "optimizer" in found.how


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        (MI300, "forward backward recompute optimizer"),
        ("no_ranges/hta_df_index.json.gz", "forward backward optimizer other"),
        ("no_ranges/tl_b200_eager.json.gz", "other"),
        ("no_ranges/tl_h100_qwen.json.gz", "other"),
        ("no_ranges/hta_alexnet.json.gz", "other"),
        ("no_ranges/tl_sglang_decode.json.gz", "other"),
        ("no_ranges/tl_vllm_decode_graph.json.gz", "other"),
        ("../communication/megatron_tp8_8rank", "other"),
        ("../communication/dlrm_ep_dp_rank3", "forward backward optimizer"),
    ],
)
def test_lanes_of_real_runs_show_what_people_know(path, kinds):
    if not REAL.exists():
        pytest.skip("the real traces are not here")
    timeline = sources.load(REAL / path)
    assert set(timeline.tasks.filter(lane="compute")["kind"]) == set(kinds.split())
    assert timeline.tasks["step"].null_count() < len(timeline)
    found = recognise(timeline)
    assert found is None or found.schedule is None
