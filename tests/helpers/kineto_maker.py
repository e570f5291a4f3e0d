"""Makes PyTorch profiler traces whose true tasks are known."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from bubblescope.model.kinds import Kind
from nsight_maker import solve

if TYPE_CHECKING:
    from pathlib import Path

    from nsight_maker import Style

BASE = 1_750_000_000_000_000_000
MAIN, AUTOGRAD = 1000, 1001
ACTION = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "B",
    Kind.BACKWARD_INPUT: "I",
    Kind.BACKWARD_WEIGHT: "W",
}


@dataclass
class Trace:
    """One file, in the terms of its format; times are nanoseconds after `BASE`."""

    rank: int | None = 0
    base: int | None = BASE
    host: str | None = "node0"
    device: int = 0
    header: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    next_correlation: int = 100

    def event(
        self, cat: str, name: str, start: int, end: int, tid: Any = MAIN, **args: Any
    ) -> None:
        """Add a complete event."""
        shift = 0 if self.base is not None else BASE
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 77 if cat not in {"kernel", "gpu_memcpy"} else self.device,
                "tid": tid,
                "ts": start + shift,
                "dur": end - start,
                "args": args,
            }
        )

    def range(self, name: str, start: int, end: int, tid: Any = MAIN) -> None:
        """Add what `record_function` leaves."""
        self.event("user_annotation", name, start, end, tid)

    def kernel(
        self,
        start: int,
        end: int,
        *,
        at: int | None,
        tid: Any = MAIN,
        name: str = "gemm",
        cat: str = "kernel",
        **args: Any,
    ) -> None:
        """Add device work launched at `at`; None leaves it without a launch."""
        self.next_correlation += 1
        if at is not None:
            launch = {"correlation": self.next_correlation}
            self.event("cuda_runtime", "cudaLaunchKernel", at, at + 5, tid, **launch)
        self.event(
            cat,
            name,
            start,
            end,
            7,
            device=self.device,
            stream=7,
            correlation=self.next_correlation,
            **args,
        )

    def operator(self, name: str, start: int, end: int, tid: Any = MAIN, sequence: int = 0) -> None:
        """Add a CPU operator."""
        self.event("cpu_op", name, start, end, tid, **{"Sequence number": sequence})

    def memory(
        self,
        at: int,
        allocated: int,
        reserved: int = 0,
        *,
        sort: int = 1,
        device: int | None = None,
    ) -> None:
        """Add what `profile_memory=True` leaves of an allocation; on the CPU (sort 0) or a device."""
        here = -1 if sort == 0 else self.device
        self._add(
            "i",
            at,
            cat="cpu_instant_event",
            s="t",
            name="[memory]",
            tid=MAIN,
            args={
                "Total Reserved": reserved,
                "Total Allocated": allocated,
                "Bytes": 512,
                "Device Id": here if device is None else device,
                "Device Type": sort,
                "Addr": 94399111560448,
            },
        )

    def count(self, at: int, name: str, series: Any, **more: Any) -> None:
        """Add a sample of a counter, as Chrome's format has them."""
        self._add("C", at, name=name, args=series, **more)

    def _add(self, phase: str, at: int, **event: Any) -> None:
        shift = 0 if self.base is not None else BASE
        self.events.append({"ph": phase, "pid": 77, "ts": at + shift, **event})

    def text(self, *, sort_keys: bool = False, tail: bool = False) -> str:
        """Return the JSON as Kineto writes it, or as a program does that reads and writes it again."""
        said: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": self.device}]}
        if self.rank is not None:
            said["distributedInfo"] = {"backend": "nccl", "rank": self.rank, "pg_config": []}
        if self.host is not None:
            said["host_name"] = self.host
        if self.base is not None:
            said["baseTimeNanoseconds"] = self.base
        said |= self.header
        late = {key: said.pop(key) for key in ("baseTimeNanoseconds", "host_name") if key in said}
        head, end = (said, late) if tail else (said | late, {"traceName": "t.json"})
        if sort_keys:
            document = said | late | {"traceEvents": self.events}
            return _us(json.dumps(document, sort_keys=True))
        events = ",\n  ".join(_us(json.dumps(event)) for event in self.events)
        opening = json.dumps(head)[:-1] + ', "traceEvents": [\n  '
        return f"{opening}{events}\n  ], {json.dumps(end)[1:]}"

    def write(self, path: Path, **how: Any) -> Path:
        """Write the file; a name that ends in .gz is packed."""
        data = self.text(**how).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def _us(text: str) -> str:
    """Write the times as microseconds with three decimals, exactly."""
    for key in ("ts", "dur"):
        parts = text.split(f'"{key}": ')
        for index, part in enumerate(parts[1:], 1):
            number = part.split(",")[0].split("}")[0]
            if number.lstrip("-").isdigit():
                ns = int(number)
                parts[index] = f"{ns // 1000}.{ns % 1000:03d}" + part[len(number) :]
        text = f'"{key}": '.join(parts)
    return text


def pipeline(style: Style) -> tuple[list[Trace], pl.DataFrame, float]:
    """Return a trace per rank, the true compute tasks, and the true makespan bubble rate.

    Backwards are launched by autograd's own thread; the host runs far ahead of the device.
    """
    plan = solve(style)
    makespan = max(tasks[-1][3] for tasks in plan.values())
    busy = sum(end - start for tasks in plan.values() for _, _, start, end in tasks)
    traces, truth = [], []
    for stage, tasks in plan.items():
        trace = Trace(rank=stage, device=stage % 2, host=f"node{stage // 2}")
        host = 1000
        for step in range(style.steps):
            first, begin, origin = len(trace.events), host, 1_000_000 + step * (makespan + 50_000)
            for kind, microbatch, start, end in tasks:
                trace.range(f"PP:{stage}{ACTION[kind]}{microbatch}", host, host + 100)
                backward = kind in {Kind.BACKWARD, Kind.BACKWARD_INPUT}
                length = (end - start) // style.kernels
                for index in range(style.kernels):
                    low = origin + start + index * length
                    high = origin + end if index == style.kernels - 1 else low + length - 7
                    trace.kernel(
                        low, high, at=host + 10 + index, tid=AUTOGRAD if backward else MAIN
                    )
                truth.append((stage, step, kind.value, microbatch, origin + start, origin + end))
                host += 150
            trace.range(f"ProfilerStep#{step}", begin, host)
            trace.events.insert(first, trace.events.pop())  # in the order of their starts
            host += 50
        traces.append(trace)
    schema = ["rank", "step", "kind", "microbatch", "start_ns", "end_ns"]
    return (
        traces,
        pl.DataFrame(truth, schema=schema, orient="row"),
        1 - busy / (makespan * style.stages),
    )
