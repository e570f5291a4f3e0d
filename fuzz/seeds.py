"""Sound inputs to mutate: for each target a few small ones that between them hold what it reads.

All but the real traces are made by the makers of the tests, so that they are the same everywhere.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ascend_maker
import device_exports
import device_maker
import job_trace_maker
import kineto_maker
import nsight_maker
import paddle_maker
import primus_maker
import rocpd_maker
from bubblescope.model.kinds import Kind
from bubblescope.model.version import __version__
from bubblescope.recording.columns import FORMAT, Header, Membership
from bubblescope.recording.file import Sink
from commands import called
from model_files import LLAMA, MEGATRON
from nsight_maker import Style
from places import ROOT
from recorded_rows import recorded
from synthetic import one_f_one_b

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SMALL: Final = Style(stages=2, microbatches=2, steps=2, kernels=1)
_LARGEST: Final = 500_000
"""Bytes of a real trace that is worth its time."""


class Target(NamedTuple):
    """What is fuzzed.

    Attributes:
        seeds: Name -> what writes a sound input into an empty folder.
        option: The options of commands of which the last names the input, if it is none of the traces;
            it is then the only file beside the folder `trace`, which is left as it is.
        real: Where real traces of the kind may lie under the folder of real data.
    """

    seeds: Mapping[str, Callable[[Path], None]]
    option: tuple[str, ...] = ()
    real: tuple[str, ...] = ()

    def with_real(self, data: Path) -> Target:
        """Return the target with the real traces that are there as further seeds."""
        found = [data / name for name in self.real if (data / name).exists()]
        small = [path for path in found if _size(path) <= _LARGEST]
        return self._replace(
            seeds={**self.seeds, **{f"real-{one.name}": _copy(one) for one in small}}
        )


def _copy(path: Path) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        if path.is_dir():
            shutil.copytree(path, folder, dirs_exist_ok=True)
        else:
            shutil.copy(path, folder)

    return write


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


# PyTorch's profiler.


def _kineto_ranges(folder: Path) -> None:
    for trace in kineto_maker.pipeline(SMALL)[0]:
        trace.write(folder / f"rank{trace.rank}.json")


def _kineto_packed(folder: Path) -> None:
    """Groups, collectives, messages, memory, counters and operators; gzip, with its head at the end."""
    for rank in range(2):
        group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}
        info = {"backend": "nccl", "rank": rank, "world_size": 2, "pg_config": [group]}
        trace = kineto_maker.Trace(rank=rank, device=rank, header={"distributedInfo": info})
        for microbatch in range(2):
            at = 1000 + 2000 * microbatch
            trace.range(f"PP:{rank}F{microbatch}", at, at + 900)
            trace.operator("aten::mm", at + 10, at + 100, sequence=microbatch)
            trace.kernel(at + 50_000, at + 50_800, at=at + 50)
            way = ("send", "Dst Rank") if rank == 0 else ("recv", "Src Rank")
            said = {
                "Collective name": way[0],
                way[1]: 1 - rank,
                "In msg nelems": 1024,
                "dtype": "Float",
            }
            said |= {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}
            trace.event("cpu_op", "record_param_comms", at + 200, at + 300, **said)
            trace.kernel(
                at + 50_900, at + 51_300, at=at + 250, name="ncclDevKernel_SendRecv", **said
            )
            trace.memory(at + 20, 4096 * microbatch, 8192)
            trace.count(at + 30, "GPU 0 power", {"W": 300 + microbatch})
        trace.range("ProfilerStep#3", 900, 5000)
        trace.write(folder / f"rank{rank}.json.gz", tail=True)


def _kineto_unmarked(folder: Path) -> None:
    """No ranges: forwards and backwards are told by the operators of autograd, and the messages."""
    for rank, tasks in nsight_maker.solve(SMALL).items():
        trace = kineto_maker.Trace(rank=rank, device=rank)
        for step in range(2):
            for kind, microbatch, start, _ in tasks:
                at = 40_000 * step + start
                forward = kind is Kind.FORWARD
                moved = {"Dst Rank": 1 - rank} if forward == (rank == 0) else {"Src Rank": 1 - rank}
                way = "send" if "Dst Rank" in moved else "recv"
                said = {"Collective name": way, **moved, "Process Group Ranks": "[0, 1]"}
                layers = [100 * step + 10 * microbatch + layer for layer in range(4)]
                for place, number in enumerate(layers if forward else layers[::-1]):
                    begin = at + 200 * place
                    tid = kineto_maker.MAIN if forward else kineto_maker.AUTOGRAD
                    if not forward:
                        name = "autograd::engine::evaluate_function: MmBackward0"
                        trace.operator(name, begin, begin + 180, tid, number)
                        trace.operator("MmBackward0", begin + 10, begin + 170, tid, number)
                    trace.operator(
                        "aten::mm", begin + 20, begin + 150, tid, number if forward else -1
                    )
                    trace.kernel(begin + 500, begin + 650, at=begin + 30, tid=tid)
                end = at + 900 if way == "send" else at - 100
                trace.event("cpu_op", "record_param_comms", end, end + 50, **said)
            trace.range(f"ProfilerStep#{step}", 40_000 * step - 200, 40_000 * step + 39_000)
        trace.write(folder / f"rank{rank}.json")


def _kineto_device(folder: Path) -> None:
    device_exports.kineto(device_maker.make(device_maker.Mode(cut=True), 1), folder)


# Nsight Systems.


def _nsight_ranges(folder: Path) -> None:
    [export], _, _ = nsight_maker.pipeline(SMALL)
    export.write(folder / "node0.sqlite")


def _nsight_hosts(folder: Path) -> None:
    style = Style(stages=2, microbatches=2, steps=1, hosts=2, comm=True, registered=True)
    for number, export in enumerate(nsight_maker.pipeline(style)[0]):
        export.write(folder / f"node{number}.sqlite", empty_tables=True)


def _nsight_parquet(folder: Path) -> None:
    [export], _, _ = nsight_maker.pipeline(SMALL)
    export.write_parquet_dir(folder / "node0_pqtdir")


def _nsight_more(folder: Path) -> None:
    """Metrics, memory, graphs, copies, names of threads, types of events and payloads."""
    export = nsight_maker.Export()
    export.says_types({59: "NvtxPushPopRange", 60: "NvtxStartEndRange"})
    export.gpu(0, {1: "SM Active [Throughput %]"})
    export.payload_schema(
        7, {"NCCL communicator ID": (18, None), "No. of ranks": (5, 8), "Rank": (5, 12)}
    )
    process = export.process(300)
    process.uses(0)
    process.calls_thread(0, "python")
    for step in range(2):
        at = 10_000 * step
        process.range(f"F{step}.0.0", at + 10, at + 500, registered=True)
        process.kernel(at + 1000, at + 2000, at=at + 20)
        process.work("MEMCPY", at + 2000, at + 2500, at=at + 30, bytes=4096, copyKind=1)
        process.work("GRAPH_TRACE", at + 2600, at + 3000, at=at + 40, graphId=3)
        process.allocate(at + 50, 4096)
        export.sample(at + 60, 0, 1, 50)
        process.range("ncclAllReduce", at + 60, at + 70, registered=True, payload=bytes(range(40)))
        process.kernel(at + 3100, at + 3300, at=at + 65, name="ncclDevKernel_AllReduce_Sum_f32")
    export.write(folder / "node0.sqlite")


def _nsight_device(folder: Path) -> None:
    device_exports.nsight(
        device_maker.make(device_maker.Mode(hosts=device_maker.NSIGHT_HOSTS), 1),
        folder / "n.sqlite",
    )


# rocprofv3.


def _rocpd(version: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for number, process in enumerate(rocpd_maker.pipeline(SMALL, version)[0]):
            process.copy(90_000_000, 90_000_500, at=80_000_000)
            process.allocate(80_000_100, 4096, 512)
            process.write(folder / f"{number}_results.db")

    return write


def _rocpd_merged(folder: Path) -> None:
    _rocpd("3.0.0")(folder)
    parts = sorted(folder.glob("*.db"))
    rocpd_maker.merge(parts, folder / "merged.db")
    for part in parts:
        part.unlink()


# Ascend.


def _ascend_profile(rank: int, metadata: dict[str, str]) -> ascend_maker.Profile:
    profile = ascend_maker.Profile(rank, device=rank, metadata=metadata)
    plan = nsight_maker.solve(SMALL)[rank]
    words = {Kind.FORWARD: "forward_step", Kind.BACKWARD: "backward_step"}
    for step in range(2):
        origin, host = 40_000 * step, 1000 * step
        profile.step(10 + step, host, host + 999)
        for index, (kind, microbatch, start, end) in enumerate(plan):
            at = host + 10 + 5 * index
            message = {"name": words[kind], "current_microbatch": microbatch}
            profile.range(message, origin + start, origin + end, host=(at, at + 4))
    return profile


def _ascend_ranges(folder: Path) -> None:
    for rank in range(2):
        metadata = {**ascend_maker.sizes(2), **ascend_maker.declared("1f1b", 2)}
        profile = _ascend_profile(rank, metadata)
        profile.operation(
            "hcom_send__001" if rank == 0 else "hcom_receive__001", 3000, 3400, (rank, 1 - rank)
        )
        profile.write(folder)


def _ascend_device(folder: Path) -> None:
    """What the device ran and what the host was at, too."""
    profile = _ascend_profile(0, ascend_maker.sizes(1))
    for number in range(4):
        at = 500 * number
        item = 10 + number
        profile.function(ascend_maker.OPERATOR, "aten::mm", at, at + 50)
        profile.function(ascend_maker.QUEUE, "Enqueue@mm", at + 10, at + 20, item=item)
        profile.function(ascend_maker.FUNCTION, "train.py(1): step", at, at + 400)
        profile.task("KERNEL_AICORE", at + 600, at + 900, issued=(at + 20, at + 30), named="MatMul")
    profile.task("MEMCPY_ASYNC", 3000, 3100, issued=(2900, 2910), stream=3)
    profile.write(folder)


# PaddlePaddle.


def _paddle_jobs(folder: Path) -> None:
    plan = nsight_maker.solve(SMALL)
    for rank, tasks in plan.items():
        lines = [paddle_maker.window(2)]
        for step in range(2):
            at = 100 * step
            for kind, microbatch, start, end in tasks:
                lines.append(
                    paddle_maker.line(kind.value, microbatch, at + start / 1000, at + end / 1000)
                )
            lines.append(paddle_maker.line("optimizer", 0, at + 40, at + 45))
        paddle_maker.write(folder, *lines, name=f"workerlog.{rank}")


def _paddle_steps(folder: Path) -> None:
    for machine in range(2):
        pid = 22317 + machine
        head = f"I1101 16:02:11.845734 {pid} cuda_profiler.cc:55] NVTX range "
        lines = []
        for step in range(2):
            at = 500 * step
            lines += [
                f"{head}push: {step}, time: {paddle_maker.MS + at:.6f}\n",
                paddle_maker.line("forward(chunk0)", 0, at + 10, at + 100, pid=pid),
                paddle_maker.line("backward(chunk0)", 0, at + 100, at + 480, pid=pid),
                f"{head}pop, time: {paddle_maker.MS + at + 495:.6f}\n",
            ]
        paddle_maker.write(folder, *lines, name=f"machine{machine}/workerlog.0")


def _paddle_dygraph(folder: Path) -> None:
    marks = [("F0", 0, 20), ("F1", 20, 40), ("B0", 50, 90), ("B1", 90, 130)]
    for rank in range(2):
        lines = []
        for step in range(2):
            for name, start, end in marks:
                for phase, at in (("B", start), ("E", end)):
                    ms = paddle_maker.MS + 200 * step + at
                    mark = {"name": name, "cat": "pipeline timeline", "ph": phase, "pid": 0}
                    lines.append(json.dumps(mark | {"tid": rank + 1, "ts": ms}) + "\n")
        paddle_maker.write(folder, *lines, name=f"profile_record_tmp_file_for_rank_{rank}")


# Job traces.


def _primus_chunks(folder: Path) -> None:
    orders = primus_maker.interleaved(2, 2, 2)
    sizes = {"pp_size": 2, "vp_size": 2, "num_mbs": 2, "dp_size": 1}
    labels = ("minibatch", "chunk")
    primus_maker.dump(folder, orders, iterations=2, labels=labels, config=sizes)


def _primus_bare(folder: Path) -> None:
    primus_maker.dump(folder, primus_maker.interleaved(2, 1, 2), chunks=1, iterations=2)


def _ndtimeline(folder: Path) -> None:
    for host in range(2):
        events: list[dict[str, Any]] = []
        for step in (3, 4):
            for microbatch in range(2):
                at = 1_755_066_160_000_000 + 1000 * step + 10 * microbatch
                passes = [("forward-compute", at), ("backward-compute", at + 60 + 10 * microbatch)]
                if host == 0:
                    passes.append(("forward-send-backward-recv", at + 25))
                for name, start in passes:
                    said = {"rank": host, "step": step, "tp": 0, "pp": host}
                    where = {"cat": name, "pid": 0, "tid": 10 * host, "args": said}
                    events.append({"ph": "X", "name": name, "ts": start, "dur": 9, **where})
        (folder / f"host{host}").mkdir()
        (folder / f"host{host}" / "trace_step3_4").write_text(json.dumps(events))


def _job_trace(*, chunks: int, overlapped: bool) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        how: Any = {"chunks": chunks, "overlapped": overlapped}
        job_trace_maker.make(folder / "trace.parquet", replicas=2, steps=2, **how)

    return write


# bubblescope's own.


def _recording(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for path in sorted((ROOT / "examples" / name).glob("*.bubbles")):
            shutil.copy(path, folder)

    return write


def _checked(folder: Path) -> None:
    """With checksums, in several batches, and with most of what a header can say."""
    for rank, tasks in nsight_maker.solve(SMALL).items():
        header = Header(
            format=FORMAT,
            version=__version__,
            rank=rank,
            stages=[rank],
            host="node0",
            process=100 + rank,
            device=rank,
            boot="one",
            utc_ns=10**18,
            timer="cuda",
            schedule="1f1b",
            microbatches=2,
            pp=rank,
            dp=0,
            groups=(Membership(runs=((0, 1, 2),), role="pp", how="declared"),),
        )
        sink = Sink(folder / f"rank{rank:05}.bubbles", header)
        for step in range(2):
            for kind, microbatch, start, end in tasks:
                at = 100_000_000 + 1000 * (40_000 * step + start)
                told = {"step": step, "stage": rank, "microbatch": microbatch}
                times = {"start_ns": at, "end_ns": at + 1000 * (end - start)}
                sink.write(recorded(1, kind=kind.value, **told, **times))
        sink.close(complete=True)


def _attempts(folder: Path) -> None:
    for number in (1, 2):
        attempt = folder / f"attempt-{number:04d}"
        attempt.mkdir()
        said = {"host": "vm", "began_utc_ns": 10**18 + number, "job": {}, "restart": number - 1}
        (attempt / "attempt.json").write_text(json.dumps(said))
        for path in sorted((ROOT / "examples" / "demo" / "1f1b").glob("*.bubbles"))[:2]:
            shutil.copy(path, attempt)


def _saved(folder: Path) -> None:
    one_f_one_b(2, 2, 2).save(folder / "run.bubbles.parquet")


def _dataset(*options: str) -> Callable[[Path], None]:
    """Tasks of three steps in two blocks, of two parts, with whatever tables there are."""

    def write(folder: Path) -> None:
        style = Style(stages=2, microbatches=2, steps=3, kernels=1)
        how = ("--block-steps", 2, "--batch", 1, "--workers", 1, *options)
        with TemporaryDirectory() as traces:
            for trace in kineto_maker.pipeline(style)[0]:
                trace.write(Path(traces) / f"rank{trace.rank}.json")
            done = called("dataset", "--quiet", traces, "--output", folder, *how, cwd=folder)
        if done.returncode:
            raise RuntimeError(done.stderr)
        _without_origin(folder, traces)

    return write


def _without_origin(folder: Path, traces: str) -> None:
    """Let a dataset say nothing of where and when it was made, so that it is always the same."""
    parts = [part["name"] for part in json.loads((folder / "dataset.json").read_text())["parts"]]
    others = {traces: "/traces", **{name: f"{at:016x}" for at, name in enumerate(parts)}}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".json":
            text = re.sub(r'("changed_ns":) *\d+', r"\1 0", path.read_text())
            for one, other in others.items():
                text = text.replace(one, other)
            path.write_text(text)
        if path.stem in others:
            path.rename(path.with_stem(others[path.stem]))


# What commands take besides traces.


def _beside_a_trace(
    name: str, text: str, trace: Callable[[Path], None] = _kineto_ranges
) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "trace").mkdir()
        trace(folder / "trace")
        (folder / name).write_text(text)

    return write


_NAMES: Final = r"""
[[names]]
pattern = 'PP:(?P<stage>\d+)(?P<kind>[FB])(?P<microbatch>\d+)'
[names.kinds]
F = "forward"
B = "backward"
"""
_PASSES: Final = """
[passes]
0 = "F0 F1.0 B0@0 B1.0@0"
1 = "F0 B0 F? B?@1 F0 B0 F1 B1"
"""
_PLAN: Final = "0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n"
_SPLIT: Final = "0F0,1F0,0F1,1I0,1F1,1W0,0I0,1B1,0W0,0B1\n,,,,,,,,,\n"
_OVERLAPPED: Final = "0F0,0F1,,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n,1F0,1B0,1F1,1B1,1F2,1B2\n"
TARGETS: Final[Mapping[str, Target]] = {
    "dataset": Target({"plain": _dataset(), "kernels": _dataset("--kernels")}),
    "ascend": Target({"ranges": _ascend_ranges, "device": _ascend_device}, real=("ascend/1f1b",)),
    "jobtrace": Target(
        {
            "plain": _job_trace(chunks=1, overlapped=False),
            "chunks": _job_trace(chunks=2, overlapped=True),
        },
        real=("jobtrace/trace-ST.parquet",),
    ),
    "kineto": Target(
        {
            "ranges": _kineto_ranges,
            "packed": _kineto_packed,
            "unmarked": _kineto_unmarked,
            "device": _kineto_device,
        },
        real=("kineto/no_ranges/hta_alexnet.json.gz",),
    ),
    "native": Target(
        {
            "checked": _checked,
            "recording": _recording("torch-pipelining/1F1B"),
            "attempts": _attempts,
            "saved": _saved,
        },
    ),
    "ndtimeline": Target({"hosts": _ndtimeline}),
    "nsight": Target(
        {
            "ranges": _nsight_ranges,
            "hosts": _nsight_hosts,
            "parquet": _nsight_parquet,
            "more": _nsight_more,
            "device": _nsight_device,
        },
        real=("nsight/real/mock.sqlite",),
    ),
    "paddle": Target(
        {"jobs": _paddle_jobs, "steps": _paddle_steps, "dygraph": _paddle_dygraph},
        real=("paddle/1f1b", "paddle/edge/vpp_zero_times"),
    ),
    "primus": Target({"chunks": _primus_chunks, "bare": _primus_bare}, real=("primus/pp8",)),
    "rocpd": Target(
        {
            "3": _rocpd("3.0.0"),
            "4.0": _rocpd("4.0.0"),
            "4.1": _rocpd("4.1.0"),
            "merged": _rocpd_merged,
        },
    ),
    "names": Target(
        {
            "patterns": _beside_a_trace("own.toml", _NAMES),
            "passes": _beside_a_trace("own.toml", _PASSES, _kineto_unmarked),
        },
        ("--names",),
    ),
    "plan": Target(
        {
            "1f1b": _beside_a_trace("own.csv", _PLAN),
            "split": _beside_a_trace("own.csv", _SPLIT),
            "overlapped": _beside_a_trace("own.csv", _OVERLAPPED),
        },
        ("--plan",),
    ),
    "model": Target(
        {
            "huggingface": _beside_a_trace("config.json", json.dumps(LLAMA)),
            "megatron": _beside_a_trace("arguments.json", json.dumps(MEGATRON)),
        },
        ("--tokens", "1024", "--seq-length", "128", "--peak", "1e12", "--model"),
    ),
}
"""Every trace format by the name of its source, and what else commands read."""


def all_targets(data: Path | None) -> Mapping[str, Target]:
    """Return the targets, with real traces as seeds where there are any."""
    if data is None:
        return TARGETS
    return {name: target.with_real(data) for name, target in TARGETS.items()}
