"""A small trace of every format, made; each function writes one into a folder."""

from __future__ import annotations

import json

import ascend_maker
import device_exports
import device_maker
import job_trace_maker
import kineto_maker
import nsight_maker
import paddle_maker
import primus_maker
import rocpd_maker

SMALL = nsight_maker.Style(stages=2, microbatches=2, steps=1, kernels=1)


def kineto(folder):
    for trace in kineto_maker.pipeline(SMALL)[0]:
        trace.write(folder / f"rank{trace.rank}.json")
    for rank in range(2, 4):
        group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [2, 3]}
        info = {"backend": "nccl", "rank": rank, "world_size": 4, "pg_config": [group]}
        trace = kineto_maker.Trace(rank=rank, device=rank, header={"distributedInfo": info})
        said = {"Collective name": "send", "Dst Rank": 2, "dtype": "Float", "Group size": 2}
        said |= {"Process Group Name": "0", "Process Group Ranks": "[2, 3]"}
        trace.range("other work", 1000, 1900)
        trace.event("cpu_op", "record_param_comms", 1200, 1300, **said)
        trace.kernel(51_000, 51_800, at=1250, name="ncclDevKernel_SendRecv", **said)
        trace.operator("aten::mm", 1010, 1100, sequence=1)
        trace.memory(1020, 4096, 8192)
        trace.count(1030, "GPU 0 power", {"W": 300})
        trace.write(folder / f"rank{rank}.json")


def kineto_device(folder):
    device_exports.kineto(device_maker.make(device_maker.Mode(), 1), folder)


def nsight(folder):
    for number, export in enumerate(nsight_maker.pipeline(SMALL)[0]):
        export.write(folder / f"node{number}.sqlite")


def nsight_parquet(folder):
    for number, export in enumerate(nsight_maker.pipeline(SMALL)[0]):
        export.write_parquet_dir(folder / f"node{number}")


def nsight_device(folder):
    mode = device_maker.Mode(hosts=device_maker.NSIGHT_HOSTS)
    device_exports.nsight(device_maker.make(mode, 1), folder / "n.sqlite")


def rocpd(folder):
    for number, process in enumerate(rocpd_maker.pipeline(SMALL, "3.0.0")[0]):
        process.copy(90_000_000, 90_000_500, at=80_000_000)
        process.allocate(80_000_100, 4096, 512)
        process.write(folder / f"{number}_results.db")


def ascend(folder):
    for rank in range(2):
        profile = ascend_maker.Profile(rank, device=rank, metadata=ascend_maker.sizes(2))
        profile.range("forward_step", 1000, 2000)
        profile.range("backward_step", 2000, 4000)
        profile.range("my own part", 4000, 5000)
        profile.operation(
            "hcom_send__001" if not rank else "hcom_receive__001", 2000, 2400, (rank, 1 - rank)
        )
        profile.function(ascend_maker.OPERATOR, "aten::mm", 10, 60)
        profile.task("KERNEL_AICORE", 600, 900, issued=(20, 30), named="MatMul")
        profile.write(folder)


def paddle(folder):
    for rank, tasks in nsight_maker.solve(SMALL).items():
        lines = [
            paddle_maker.line(kind.value, microbatch, start / 1000, end / 1000)
            for kind, microbatch, start, end in tasks
        ]
        paddle_maker.write(folder, paddle_maker.window(2), *lines, name=f"workerlog.{rank}")


def paddle_dygraph(folder):
    marks = [("F0", 0, 20), ("B0", 50, 90)]
    for rank in range(2):
        lines = []
        for name, *span in marks:
            for phase, at in zip("BE", span, strict=True):
                mark = {"name": name, "cat": "pipeline timeline", "ph": phase, "pid": 0}
                mark |= {"tid": rank + 1, "ts": paddle_maker.MS + at}
                lines.append(json.dumps(mark) + "\n")
        paddle_maker.write(folder, *lines, name=f"profile_record_tmp_file_for_rank_{rank}")


def primus(folder):
    sizes = {"pp_size": 2, "vp_size": 2, "num_mbs": 2, "dp_size": 1, "model": "own"}
    orders = primus_maker.interleaved(2, 2, 2)
    primus_maker.dump(folder, orders, iterations=2, labels=("minibatch", "chunk"), config=sizes)


def ndtimeline(folder):
    for host in range(2):
        events = []
        for microbatch in range(2):
            at = 1_755_066_160_000_000 + 10 * microbatch
            for name, start in (
                ("forward-compute", at),
                ("backward-compute", at + 60),
                ("own", at + 99),
            ):
                said = {"rank": host, "step": 3, "tp": 0, "pp": host}
                where = {"cat": name, "pid": 0, "tid": 10 * host, "args": said}
                events.append({"ph": "X", "name": name, "ts": start, "dur": 9, **where})
        (folder / f"host{host}").mkdir()
        (folder / f"host{host}" / "trace_step3_4").write_text(json.dumps(events))


def job_trace(folder):
    job_trace_maker.make(folder / "trace.parquet", replicas=2, steps=2, chunks=1, overlapped=False)


MADE = [
    *(kineto, kineto_device, nsight, nsight_device, rocpd, ascend),
    *(paddle, paddle_dygraph, primus, ndtimeline, job_trace),
]
"""All but `nsight_parquet`, which holds the same tables as `nsight`."""
