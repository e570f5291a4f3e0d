"""A host that is late in a call of the device's runtime is told to be in that call.

Such calls launch nothing and are no wait of the job's: they allocate, free, load code or set up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

import bubblescope
from bubblescope import sources
from bubblescope.names.runtime_calls import Call, is_of_memory, what_for
from kineto_maker import Trace
from nsight_maker import Export

if TYPE_CHECKING:
    from pathlib import Path

US = 1000


def late_of(place: Path) -> list[tuple[str, str | None, int]]:
    budget = sources.load(place).budget
    late = budget.filter(pl.col("use").cast(pl.String).str.starts_with("host"))
    return late.select("use", "detail", "spent_ns").rows()


def kineto(place: Path, call: str, length: int, around: str) -> Path:
    """A kernel, then an operator in which a call is made, then the next kernel."""
    trace = Trace()
    trace.kernel(100 * US, 200 * US, at=50 * US)
    trace.operator(around, 201 * US, 900 * US)
    trace.event("cuda_runtime", call, 210 * US, 210 * US + length)
    trace.operator("aten::add", 990 * US, 1010 * US)
    trace.kernel(1010 * US, 1100 * US, at=1000 * US)
    return trace.write(place / "rank0.json")


def nsight(place: Path, call: str, length: int, around: str) -> Path:
    """The same, as Nsight Systems exports it."""
    export = Export()
    process = export.process(7)
    process.kernel(100 * US, 200 * US, at=50 * US)
    process.range(around, 201 * US, 900 * US)
    process.call(call, 210 * US, 210 * US + length)
    process.kernel(1010 * US, 1100 * US, at=1000 * US)
    return export.write(place / "rank0.sqlite")


def test_copies_that_run_at_once_share_the_time(tmp_path):
    trace = Trace()
    for start, end, name in (
        (100, 200, "Memcpy DtoH (Device -> Pinned)"),
        (110, 400, "Memcpy HtoD (Pinned -> Device)"),
        (300, 350, "Memcpy HtoD (Pinned -> Device)"),
        (380, 500, "Memcpy DtoD (Device -> Device)"),
    ):
        trace.kernel(start * US, end * US, at=50 * US, name=name, cat="gpu_memcpy")
    trace.kernel(450 * US, 600 * US, at=50 * US)
    budget = sources.load(trace.write(tmp_path / "rank0.json")).budget
    rows = budget.filter(pl.col("detail").is_not_null()).select("use", "detail", "spent_ns").rows()
    assert sorted(rows) == [
        ("copy", "DtoD", 50 * US),
        ("copy", "DtoD and HtoD pinned", 20 * US),
        ("copy", "DtoH pinned", 10 * US),
        ("copy", "DtoH pinned and HtoD pinned", 90 * US),
        ("copy", "HtoD pinned", 180 * US),
        ("copy_hidden", "DtoD", 50 * US),
    ]


WAITED = ("cudaStreamSynchronize", 151 * US, 201 * US)
"""A call that returns a microsecond after the first kernel ends."""


def kineto_synchronised(place: Path, around: str | None) -> Path:
    """A kernel that is waited for, perhaps an operator, then the next kernel."""
    trace = Trace()
    trace.kernel(100 * US, 200 * US, at=50 * US)
    trace.event("cuda_runtime", *WAITED)
    if around:
        trace.operator(around, 202 * US, 900 * US)
    trace.kernel(1010 * US, 1100 * US, at=1000 * US)
    return trace.write(place / "rank0.json")


def nsight_synchronised(place: Path, around: str | None) -> Path:
    """The same, as Nsight Systems exports it."""
    export = Export()
    process = export.process(7)
    process.kernel(100 * US, 200 * US, at=50 * US)
    process.call(*WAITED)
    if around:
        process.range(around, 202 * US, 900 * US)
    process.kernel(1010 * US, 1100 * US, at=1000 * US)
    return export.write(place / "rank0.sqlite")


@pytest.mark.parametrize("export", [kineto, nsight])
def test_the_call_is_named_if_it_takes_most_of_the_time(tmp_path, export):
    file = export(tmp_path, "cudaFree", 600 * US, "aten::convolution_backward")
    assert late_of(file) == [("host_call", "cudaFree", 800 * US)]
    said = " ".join(str(bubblescope.why(file)).split())
    assert "Held up in calls of the device's runtime" in said
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in said


@pytest.mark.parametrize("export", [kineto, nsight])
@pytest.mark.parametrize(
    ("call", "length"),
    [("cudaFree", 100 * US), ("cudaLaunchKernel", 600 * US), ("cudaMemsetAsync", 600 * US)],
    ids=["short", "a launch of what was lost", "a fill"],
)
def test_other_calls_say_nothing(tmp_path, export, call, length):
    file = export(tmp_path, call, length, "aten::convolution_backward")
    assert late_of(file) == [("host_operator", "aten::convolution_backward", 800 * US)]


def test_calls_of_microseconds_say_nothing_however_many(tmp_path):
    trace = Trace()
    trace.kernel(100 * US, 200 * US, at=50 * US)
    trace.operator("aten::nonzero", 201 * US, 900 * US)
    for at in range(210, 890, 10):
        trace.event("cuda_runtime", "cudaEventQuery", at * US, at * US + 9999)
    trace.kernel(1010 * US, 1100 * US, at=1000 * US)
    found = late_of(trace.write(tmp_path / "rank0.json"))
    assert found == [("host_operator", "aten::nonzero", 800 * US)]


def test_calls_that_set_up_are_advised_about_as_first_use(tmp_path):
    file = kineto(tmp_path, "cudaStreamCreateWithFlags", 600 * US, "aten::convolution_backward")
    said = " ".join(str(bubblescope.why(file)).split())
    assert "take long on first use only" in said
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" not in said


@pytest.mark.parametrize(
    ("around", "then"),
    [("aten::convolution_backward", "host_operator"), (None, "host_unknown")],
)
@pytest.mark.parametrize("synchronised", [kineto_synchronised, nsight_synchronised])
def test_a_blocking_call_costs_no_more_than_it_took(tmp_path, synchronised, around, then):
    """It is 50 us long; the next launch comes 800 us after the device fell idle."""
    file = synchronised(tmp_path, around)
    budget = sources.load(file).budget.filter(pl.col("use") == "host_after_sync")
    rows = budget.select("detail", "then", "spent_ns").sort("spent_ns").rows()
    assert rows == [("cudaStreamSynchronize", None, 50 * US), (around, then, 750 * US)]
    asked = (lambda run: run.without("host_after_sync"), lambda run: run.without(then))
    saved = [one.saved_ns for one in bubblescope.whatif(file, *asked).predictions]
    assert saved == [50 * US, 750 * US]
    said = " ".join(str(bubblescope.why(file)).split())
    assert "93.75 % of this time would be lost without blocking calls too" in said
    assert "Take the blocking calls out of the step" not in said


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cudaLaunchKernel_v7000", Call.NOTHING),
        ("hipExtModuleLaunchKernel", Call.NOTHING),
        ("hipGraphLaunch", Call.NOTHING),
        ("cudaMemsetAsync", Call.NOTHING),
        ("cublasSgemm_v2", Call.NOTHING),
        ("cutlass_80_wmma", Call.NOTHING),
        ("aten::cudnn_convolution", Call.NOTHING),
        ("cudaDeviceSynchronize_v3020", Call.WAITS),
        ("aclrtSynchronizeStream", Call.WAITS),
        ("cudaMemcpy_v3020", Call.WAITS),
        ("hipMemcpyAsync", Call.COPIES),
        ("cudaFree", Call.WORKS),
        ("hipFree", Call.WORKS),
        ("aclrtMalloc", Call.WORKS),
        ("cuModuleLoadData", Call.WORKS),
        ("cudaEventCreateWithFlags", Call.WORKS),
    ],
)
def test_what_a_call_is_for(name, call):
    assert what_for(name) is call


def test_calls_of_memory_are_told_from_others():
    memory = ("cudaMalloc", "hipFree", "cudaHostAlloc", "cudaMallocAsync", "cudaHostRegister")
    assert all(map(is_of_memory, memory))
    assert not any(map(is_of_memory, ("cudaStreamCreate", "cuModuleLoadData", "cudaMemcpy")))
