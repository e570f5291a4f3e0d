"""Makes PyTorch profiler traces of jobs whose ranks wait for each other inside of their passes.

A collective begins on each rank when it gets there and ends on all of them at the same moment, so the
kernels of ranks that come early are long: they wait. Passes of all ranks are then about as long,
whichever computes more slowly. It shares nothing with what reads the traces.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from pathlib import Path

_US: Final = 1_000
_LAYERS: Final = 6
_FORWARD_NS: Final = 1_000 * _US
_TRANSFER_NS: Final = 100 * _US
_MICROBATCHES: Final = 4
_COMPUTE, _GATHER, _REDUCE = 7, 20, 24
"""Streams of a device: for computation, and for what is sharded; tensor parallelism uses the first."""
_HOST, _AUTOGRAD = 1000, 1001
_BASE: Final = 1_750_000_000_000_000_000


@dataclass
class _Device:
    """One rank: what its trace has, and until when each of its streams is busy."""

    rank: int
    times: float
    late_ns: int
    random: random.Random
    ends: dict[int, int] = field(default_factory=dict)
    host_ns: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 0

    def event(self, cat: str, name: str, start: int, end: int, tid: int, **args: Any) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 0 if cat == "kernel" else 77,
                "tid": tid,
                "ts": (_BASE + start) / _US,
                "dur": (end - start) / _US,
                "args": args,
            }
        )

    def launch(self, operator: str, tid: int, **args: Any) -> int:
        """Let the host launch a kernel from an operator; return its correlation id."""
        at = self.host_ns
        self.correlation += 1
        self.event("cpu_op", operator, at, at + 8 * _US, tid, **args)
        self.event(
            "cuda_runtime", "cudaLaunchKernel", at + 2 * _US, at + 5 * _US, tid,
            correlation=self.correlation,
        )  # fmt: skip
        self.host_ns += 10 * _US
        return self.correlation

    def kernel(self, name: str, stream: int, start: int, end: int, **args: Any) -> None:
        self.event("kernel", name, start, end, stream, device=0, stream=stream, **args)
        self.ends[stream] = end

    def free(self, stream: int) -> int:
        """Return when a kernel that is launched now may begin on a stream."""
        return max(self.ends.get(stream, 0), self.host_ns)


@dataclass
class _Job:
    kind: Literal["fsdp", "tp"]
    devices: list[_Device]
    described: bool
    backward: str = "autograd::engine::evaluate_function: AddmmBackward0"

    def compute(self, name: str, usual_ns: int, operator: str, tid: int, after: list[int]) -> None:
        """Let each device compute, once what it needs is there."""
        for device, ready in zip(self.devices, after, strict=True):
            correlation = device.launch(operator, tid)
            start = max(device.free(_COMPUTE), ready)
            took = int(usual_ns * device.times * device.random.uniform(0.99, 1.01))
            device.kernel(name, _COMPUTE, start, start + took, correlation=correlation)

    def meet(self, name: str, stream: int, tid: int, after: list[int]) -> list[int]:
        """Let all devices communicate: nobody is done before the last of them has begun."""
        starts, correlations = [], []
        for device, ready in zip(self.devices, after, strict=True):
            correlations.append(device.launch(f"c10d::{name}", tid))
            starts.append(max(device.free(stream), ready))
        end = max(starts) + _TRANSFER_NS
        said: dict[str, Any] = {"Collective name": name, "Group size": len(self.devices)}
        if self.described:
            said["Process Group Name"] = "1"
            said["Process Group Ranks"] = str([device.rank for device in self.devices])
            description = {"fsdp": "mesh_fsdp", "tp": "TENSOR_MODEL_PARALLEL_GROUP"}[self.kind]
            said["Process Group Description"] = description
        for device, start, correlation in zip(self.devices, starts, correlations, strict=True):
            kernel = f"ncclDevKernel_{name.title().replace('_', '')}_RING_LL"
            device.kernel(kernel, stream, start, end, correlation=correlation, **said)
        return [end] * len(self.devices)

    def ends(self, stream: int) -> list[int]:
        return [device.ends.get(stream, 0) for device in self.devices]

    def layers(
        self, name: str, operator: str, usual_ns: int, tid: int, *, reduces: bool, since: int = 0
    ) -> None:
        """Run all layers of a model, or of a stage, forwards or backwards."""
        nothing = [since] * len(self.devices)
        before = [nothing, nothing]
        for _ in range(_LAYERS):
            if self.kind == "fsdp":
                # Weights of one layer ahead are gathered; the memory of older ones is needed.
                ready = self.meet("all_gather", _GATHER, tid, before[-2])
                self.compute(name, usual_ns, operator, tid, ready)
                if reduces:
                    self.meet("reduce_scatter", _REDUCE, tid, self.ends(_COMPUTE))
            else:
                self.compute(name, usual_ns, operator, tid, nothing)
                self.meet("all_reduce", _COMPUTE, tid, self.ends(_COMPUTE))
            before.append(self.ends(_COMPUTE))

    def step(self, number: int) -> None:
        """Run a step, and have the host wait for its end."""
        begun = self.begin()
        self.layers("gemm", "aten::linear", _FORWARD_NS, _HOST, reduces=False)
        self.layers("gemm", self.backward, 2 * _FORWARD_NS, _AUTOGRAD, reduces=True)
        self.close(number, begun)

    def begin(self) -> list[int]:
        """Begin a step, by each device's host; return when."""
        begun = [device.host_ns for device in self.devices]
        for device in self.devices:
            device.host_ns += 20 * _US + device.late_ns
        return begun

    def passes(self, stage: int, letter: str, microbatch: int, since: int) -> int:
        """Run a pass of a stage whose input is there at a moment; return when its result is."""
        begun = [device.host_ns for device in self.devices]
        usual = _FORWARD_NS if letter == "F" else 2 * _FORWARD_NS
        self.layers("gemm", "aten::linear", usual, _HOST, reduces=letter == "B", since=since)
        for device, start in zip(self.devices, begun, strict=True):
            name = f"PP:{stage}{letter}{microbatch}"
            device.event("user_annotation", name, start, device.host_ns, _HOST)
        return max(self.ends(_COMPUTE)) + _TRANSFER_NS

    def close(self, number: int, begun: list[int]) -> None:
        """Run the optimizer, and have the host wait for the end of the step."""
        after = [max(device.ends.values()) for device in self.devices]
        optimizer = [device.host_ns for device in self.devices]
        self.compute("adam", _FORWARD_NS, "aten::_foreach_add_", _HOST, after)
        for device, start, stepping in zip(self.devices, begun, optimizer, strict=True):
            name = "Optimizer.step#AdamW.step"
            device.event("user_annotation", name, stepping, device.host_ns, _HOST)
            device.host_ns = max(*device.ends.values(), device.host_ns) + 50 * _US
            device.event("user_annotation", f"ProfilerStep#{number}", start, device.host_ns, _HOST)


def _pipeline_step(held: list[_Job], number: int) -> None:
    """Run a step of GPipe: all forwards, and then all backwards."""
    begun = [job.begin() for job in held]
    for letter, order in (("F", [*enumerate(held)]), ("B", [*enumerate(held)][::-1])):
        for microbatch in range(_MICROBATCHES):
            there = 0
            for stage, job in order:
                there = job.passes(stage, letter, microbatch, there)
    for job, start in zip(held, begun, strict=True):
        job.close(number, start)
    ready = max(device.host_ns for job in held for device in job.devices)
    for job in held:
        for device in job.devices:
            device.host_ns = ready


def make_waiting_job(
    folder: Path,
    kind: Literal["fsdp", "tp"],
    *,
    ranks: int = 4,
    stages: int = 1,
    steps: int = 4,
    slow: dict[int, float] | None = None,
    late: dict[int, int] | None = None,
    described: bool = True,
    seed: int = 0,
) -> None:
    """Write a trace of each rank of a job.

    Args:
        folder: Where to.
        kind: Whether parameters are sharded, and gathered on a stream of their own, or tensors are, and
            reduced on that of the computation.
        ranks: How many; those of a stage follow one another.
        stages: How many; of several, passes are ranges that name stage and micro-batch.
        steps: How many.
        slow: How many times as long each slow rank computes.
        late: By how many nanoseconds the hosts of late ranks begin each step later.
        described: Whether kernels say which process group they are of, and what it is for.
        seed: Of the scatter of computations, a hundredth.
    """
    devices = [
        _Device(
            rank,
            (slow or {}).get(rank, 1.0),
            (late or {}).get(rank, 0),
            random.Random(seed * 1000 + rank),
        )
        for rank in range(ranks)
    ]
    each = ranks // stages
    held = [_Job(kind, devices[at * each :][:each], described) for at in range(stages)]
    for number in range(1, steps + 1):
        if stages == 1:
            held[0].step(number)
        else:
            _pipeline_step(held, number)
    folder.mkdir(parents=True, exist_ok=True)
    for device in devices:
        said = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "a device"}],
            "distributedInfo": {"backend": "nccl", "rank": device.rank, "world_size": ranks},
            "host_name": "node0",
            "traceEvents": device.events,
        }
        packed = gzip.compress(json.dumps(said).encode(), mtime=0)
        (folder / f"rank{device.rank}.json.gz").write_bytes(packed)
