"""What a trace shows to have been on is not what its reader is asked to turn on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ascend_maker import FUNCTION, OPERATOR, Profile
from bubblescope import sources
from bubblescope.analysis.cannot_answer import unanswered
from bubblescope.analysis.why import Explanation
from bubblescope.analysis.words import sentence
from bubblescope.render.text.report import Report
from kineto_maker import Trace
from nsight_maker import Export
from rocpd_maker import Process

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline

MS = 1_000_000


def asked(timeline: Timeline, use: str) -> list[str]:
    """Return what would tell more of a class of time."""
    undecided = Report.of(timeline).to_dict()["device"]["undecided"]
    return next((row["options"] for row in undecided if row["class"] == use), [])


def advice(timeline: Timeline) -> list[str]:
    found = Explanation.of(timeline).findings
    return [sentence(one, "en") for one in found if one.role == "advice"]


# PyTorch's profiler


def idling(header: dict[str, int] | None = None, *, operators: bool, python: bool = False) -> Trace:
    """Two kernels, and 10 ms between them in which the host is in nothing that is known."""
    trace = Trace(header=header or {})
    for at in (0, 10 * MS):
        trace.kernel(at + 1000, at + MS, at=at + 100)
        if operators:
            trace.operator("aten::mm", at + 50, at + 200)
        if python:
            trace.event("python_function", "train.py(1): forward", at + 10, at + 300)
    return trace


@pytest.mark.parametrize(
    ("trace", "wanted"),
    [
        (idling(operators=False), ["ProfilerActivity.CPU in torch.profiler"]),
        # It was asked for, and records nothing without operators.
        (idling({"with_stack": 1}, operators=False), ["ProfilerActivity.CPU in torch.profiler"]),
        (idling(operators=True), ["with_stack=True in torch.profiler"]),
        (idling({"with_stack": 1}, operators=True), []),
        (idling(operators=True, python=True), []),
    ],
)
def test_of_the_host_pytorch_is_asked_for_what_the_trace_lacks(tmp_path, trace, wanted):
    timeline = sources.load(trace.write(tmp_path / "rank0.json"))
    assert asked(timeline, "host_unknown") == wanted
    told = " ".join(advice(timeline))
    assert all(option in told for option in wanted)
    assert wanted or "Put ranges" in told


def test_operators_on_record_leave_the_warm_up_to_ask_for(tmp_path):
    for operators, wanted in ((True, 1), (False, 2)):
        trace = idling(operators=operators)
        trace.kernel(2 * MS, 3 * MS, at=None)
        found = asked(sources.load(trace.write(tmp_path / "rank0.json")), "unlinked")
        assert len(found) == wanted
        assert "warm-up" in found[-1]


def test_events_of_synchronisation_are_not_asked_for_where_there_are_some(tmp_path):
    trace = idling(operators=True)
    trace.kernel(20 * MS, 21 * MS, at=19 * MS)
    trace.kernel(25 * MS, 26 * MS, at=19 * MS + 100)
    late = sources.load(trace.write(tmp_path / "rank0.json"))
    assert "enable_cuda_sync_events=True" in asked(late, "untraced")[0]
    trace.event("cuda_sync", "Event Sync", 18 * MS, 18 * MS + 10, stream=7)
    assert asked(sources.load(trace.write(tmp_path / "rank0.json")), "untraced") == []


def test_events_of_synchronisation_are_not_asked_for_of_amds_devices(tmp_path):
    """Whose profiler has none; the calls of their runtime are named hip..."""
    for call, wanted in (("cudaDeviceSynchronize", 1), ("hipDeviceSynchronize", 0)):
        trace = idling(operators=True)
        trace.kernel(20 * MS, 21 * MS, at=19 * MS)
        trace.kernel(25 * MS, 26 * MS, at=19 * MS + 100)
        trace.event("cuda_runtime", call, 21 * MS, 25 * MS)
        found = asked(sources.load(trace.write(tmp_path / "rank0.json")), "untraced")
        assert len(found) == wanted


@pytest.mark.parametrize("calls", [True, False])
def test_cuda_is_not_asked_for_where_its_calls_are_on_record(tmp_path, calls):
    trace = Trace()
    trace.range("PP:0F0", 100, 900)
    trace.operator("aten::mm", 150, 850)
    if calls:
        trace.event("cuda_runtime", "cudaLaunchKernel", 300, 305, correlation=1)
    timeline = sources.load(trace.write(tmp_path / "rank0.json"))
    [told] = [one.would_tell for one in unanswered(timeline) if one.about == "device"]
    assert ("ProfilerActivity.CUDA" in told) is not calls
    assert ("recording them was on" in told) is calls


@pytest.mark.parametrize("stated", [True, False])
def test_shapes_are_not_asked_for_where_they_were(tmp_path, stated):
    trace = idling({"record_shapes": 1} if stated else {}, operators=True)
    timeline = sources.load(trace.write(tmp_path / "rank0.json"))
    [told] = [one.would_tell for one in unanswered(timeline) if one.about == "mfu"]
    assert ("record_shapes" in told) is not stated


# Nsight Systems


def gap(*traced: str, ranges: str | None = None) -> Export:
    """Two kernels, and 10 ms between them in which the host is in nothing that is known."""
    export = Export()
    export.traced(*traced)
    process = export.process(7)
    for at in (0, 10 * MS):
        process.kernel(at + 1000, at + MS, at=at + 100)
        if ranges:
            process.range(ranges, at + 50, at + 200)
    return export


@pytest.mark.parametrize(
    ("export", "wanted"),
    [
        (gap(), ["--trace=cuda,nvtx and", "osrt"]),
        (gap("Cuda", "NvtxEvents"), ["more NVTX ranges", "osrt"]),
        (gap(ranges="mine"), ["more NVTX ranges", "osrt"]),
        (gap("OSRuntime", ranges="mine"), ["more NVTX ranges"]),
        (gap(ranges="aten::mm, seq = 3, op_id = 4"), ["osrt"]),
        (gap("OSRuntime", ranges="aten::mm, seq = 3, op_id = 4"), []),
    ],
)
def test_of_the_host_nsys_is_asked_for_what_the_export_lacks(tmp_path, export, wanted):
    timeline = sources.load(export.write(tmp_path / "one.sqlite"))
    found = asked(timeline, "host_unknown")
    assert len(found) == len(wanted)
    assert all(part in option for part, option in zip(wanted, found, strict=True))


@pytest.mark.parametrize("times", [[], [0], [500]])
def test_events_of_the_device_are_not_asked_for_where_their_times_are_known(tmp_path, times):
    export = gap()
    for at in times:
        export._add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", timestamp=at, eventId=1)
    process = export.process(7)
    process.kernel(20 * MS, 21 * MS, at=19 * MS)
    process.kernel(25 * MS, 26 * MS, at=19 * MS + 100)
    found = asked(sources.load(export.write(tmp_path / "one.sqlite")), "untraced")
    assert any("--cuda-event-trace" in option for option in found) is not any(times)


@pytest.mark.parametrize("traced", [("Cuda",), ("NvtxEvents",)])
def test_cuda_that_was_traced_and_did_nothing_is_not_asked_for(tmp_path, traced):
    export = Export()
    export.traced(*traced)
    export.process(7).range("F0.0.0", 0, 50)
    [notice] = sources.load(export.write(tmp_path / "one.sqlite")).run.warnings[-1:]
    assert notice.code == "no-device-work"
    assert ("profile with" in notice.message) is ("Cuda" not in traced)


# rocprofv3 and Ascend


def test_rocprofv3_is_not_asked_for_markers_that_there_are(tmp_path):
    for name in (None, "mine"):
        process = Process(7)
        for at in (0, 10 * MS):
            process.kernel(at + 1000, at + MS, at=at + 100)
            if name:
                process.range(name, at + 50, at + 200)
        found = asked(sources.load(process.write(tmp_path / f"{name}.db")), "host_unknown")
        assert bool(found) is (name is None)


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [
        ([], ["ProfilerActivity.CPU in torch_npu.profiler"]),
        ([OPERATOR], ["with_stack=True in torch_npu.profiler"]),
        ([OPERATOR, FUNCTION], []),
    ],
)
def test_of_the_host_torch_npu_is_asked_for_what_the_profile_lacks(tmp_path, kinds, wanted):
    made = Profile()
    made.range({"name": "forward_step"}, 1000, 11 * MS, host=(0, 9))
    for at in (0, 10 * MS):
        made.task("KERNEL_AICORE", at + 1000, at + MS, issued=(at + 100, at + 105), named="MatMul1")
        for kind in kinds:
            made.function(kind, "aten::mm", at + 50, at + 200)
    made.write(tmp_path)
    assert asked(sources.load(tmp_path), "host_unknown") == wanted
