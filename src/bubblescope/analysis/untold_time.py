"""What traces do not tell of the devices' time, and what would tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.budget import Use

if TYPE_CHECKING:
    import polars as pl

    from bubblescope.analysis.spending import Spending
    from bubblescope.model.provenance import Run
    from bubblescope.model.timeline import Timeline

_WHY: Final = {
    Use.COMPUTE: "what ran in CUDA graphs, and whether devices idled or waited for others in them, is "
    "not in the trace",
    Use.UNTRACED: "what launched work waited for is not in the trace",
    Use.HOST_UNKNOWN: "what the host did is not in the trace",
    Use.UNLINKED: "what launched the work is not in the trace",
}
_OPTIONS: Final[dict[str, dict[Use, dict[str | None, str]]]] = {
    "kineto": {
        Use.UNTRACED: {
            "enable_cuda_sync_events": (
                "enable_cuda_sync_events=True in torch.profiler's experimental_config (NVIDIA's GPUs)"
            ),
        },
        Use.HOST_UNKNOWN: {
            "ProfilerActivity.CPU": "ProfilerActivity.CPU in torch.profiler",
            "with_stack": "with_stack=True in torch.profiler",
        },
        Use.UNLINKED: {
            "ProfilerActivity.CPU": "ProfilerActivity.CPU in torch.profiler",
            None: "a warm-up step in torch.profiler's schedule",
        },
    },
    "nsight": {
        Use.COMPUTE: {None: "nsys profile --cuda-graph-trace=node"},
        Use.UNTRACED: {
            "cuda-event-trace": "nsys profile --cuda-event-trace=true",
            None: "nsys profile --cuda-graph-trace=node",
        },
        Use.HOST_UNKNOWN: {
            "nvtx": (
                "nsys profile --trace=cuda,nvtx and NVTX ranges in the job "
                "(torch.autograd.profiler.emit_nvtx() in PyTorch)"
            ),
            "emit_nvtx": (
                "more NVTX ranges in the job (torch.autograd.profiler.emit_nvtx() in PyTorch)"
            ),
            "osrt": "nsys profile --trace=cuda,nvtx,osrt (if it waits)",
        },
        Use.UNLINKED: {None: "an nsys capture that begins before the first launch"},
    },
    "rocpd": {
        Use.HOST_UNKNOWN: {
            "marker-trace": (
                "rocprofv3 --marker-trace and ROCTX ranges in the job "
                "(torch.autograd.profiler.emit_nvtx() in PyTorch)"
            ),
        },
        Use.UNTRACED: {"memory-copy-trace": "rocprofv3 --memory-copy-trace (for copies)"},
        Use.UNLINKED: {"hip-runtime-trace": "rocprofv3 --hip-runtime-trace"},
    },
    "ascend": {
        Use.HOST_UNKNOWN: {
            "ProfilerActivity.CPU": "ProfilerActivity.CPU in torch_npu.profiler",
            "with_stack": "with_stack=True in torch_npu.profiler",
        },
        Use.UNLINKED: {
            "ProfilerActivity.CPU": "ProfilerActivity.CPU in torch_npu.profiler",
            None: "a warm-up step in torch_npu.profiler's schedule",
        },
    },
}
"""What a user of each profiler can ask for, to know more, by the option (see `Contents.options`) that
is on where it was asked for; None where no trace shows that."""
_NVIDIAS: Final = frozenset({"enable_cuda_sync_events"})
"""Options that other devices than NVIDIA's lack."""
_OF_HIP: Final = "hip"
"""What the names of calls of AMD's runtime begin with."""
_NEEDS: Final = {"with_stack": "ProfilerActivity.CPU", "emit_nvtx": "nvtx"}
"""Options that record nothing without another."""


def undecided(spending: Spending, run: Run, called: pl.Series) -> list[dict[str, Any]]:
    """Return time of which the traces do not tell what it was spent on, and the options that would.

    Args:
        spending: What time was spent on.
        run: The run. What its traces show to have been on is not asked for.
        called: Names of what hosts were in, by which AMD's devices are told from NVIDIA's.
    """
    lacks = _NVIDIAS if called.str.starts_with(_OF_HIP).any() else frozenset[str]()
    times_ns = {Use.COMPUTE: spending.graphs_ns, **spending.idle}
    return [
        {
            "class": use.value,
            "spent_ns": times_ns[use],
            "idle_ns": spending.idle.get(use),
            "why": why,
            "options": _options(use, run, lacks),
        }
        for use, why in _WHY.items()
        if times_ns.get(use)
    ]


def _options(use: Use, run: Run, lacks: frozenset[str]) -> list[str]:
    """Return what the user can ask for, to know more of a class of time, but for what devices lack."""
    on = run.options | lacks
    return [
        text
        for name in sorted({origin.format for origin in run.origins})
        for option, text in _OPTIONS.get(name, {}).get(use, {}).items()
        if option not in on and (option not in _NEEDS or _NEEDS[option] in on)
    ]


_PROFILERS: Final = "a trace of torch.profiler or Nsight Systems"
_TELLING: Final = {
    "native": (
        f"{_PROFILERS} (`bubblescope record --marks torch` or `--marks nvtx` shows the same tasks in "
        "it) would show"
    ),
    "kineto": "torch.profiler records them with ProfilerActivity.CUDA",
    "nsight": "nsys profile records them with --trace=cuda,nvtx",
    "rocpd": "rocprofv3 records them with --kernel-trace",
    "ascend": "torch_npu.profiler records them with ProfilerActivity.NPU, from Level0 on",
}
"""What tells of kernels, by format of traces without."""
_RECORD_KERNELS: Final = {"ProfilerActivity.CUDA", "cuda"}
"""Options that record kernels and, where these were lost, the calls that launched them."""
_RECORDED_NONE: Final = (
    "recording them was on, so that none were launched, or the profiler lost them: a trace without "
    "another tool that traces the device may hold them"
)
_TELLING_ELSE: Final = (
    "a trace of the device's own profiler (torch.profiler, Nsight Systems, rocprofv3, torch_npu) would "
    "show it"
)


def unknowable(timeline: Timeline) -> str | None:
    """Say in one sentence what traces without kernels do not tell, and what would.

    Returns:
        None if they hold device work, so that there is a budget, or no tasks either, or if the run was
        simulated.
    """
    if timeline.budget.height or not len(timeline):
        return None
    return untold(timeline.run, some=bool(timeline.tasks["busy_ns"].is_not_null().any()))


def untold(run: Run, *, some: bool) -> str | None:
    """Say what `unknowable` does of traces without device work; None if the run was simulated.

    Args:
        run: The run.
        some: Whether they say how long kernels ran in any tasks.
    """
    formats = {origin.format for origin in run.origins}
    if "simulation" in formats:
        return None
    tells = _TELLING.get(formats.pop(), _TELLING_ELSE) if len(formats) == 1 else _TELLING_ELSE
    if some:
        return (
            "the traces show how long kernels ran in tasks, but not which kernels, nor what ran "
            f"between tasks; {tells}"
        )
    if run.options & _RECORD_KERNELS:
        tells = _RECORDED_NONE
    if tells == _TELLING["native"]:
        tells = (
            "`bubblescope record --timer cupti` measures how long kernels run in tasks, on NVIDIA's "
            f"GPUs, and {tells} all of it"
        )
    return (
        "the traces hold no kernels, so all time inside tasks counts as busy, though the device may "
        f"idle in it, and waiting for the network cannot be distinguished from work; {tells}"
    )
