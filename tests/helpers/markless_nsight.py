"""Makes Nsight Systems exports of pipelines without marks, and what was true.

    python markless_nsight.py CORPUS

The job is PyTorch's as `torch.autograd.profiler.emit_nvtx` and the CUDA tracer see it: operators have
ranges such as `aten::linear, seq = 12, op_id = 34`, backwards run in a thread of autograd's, and
activations go from stage to stage by NCCL. Schedules, the host and the devices are played here; of the
product only the layout of exports is used, by `nsight_maker.Export`.
"""

from __future__ import annotations

import contextlib
import json
import random
import struct
import sys
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsight_maker import UTC, Export, Process

if TYPE_CHECKING:
    from collections.abc import Iterator

MAIN, AUTOGRAD = 0, 1
"""Threads of a process."""

CALL, LAUNCH, LATENCY, GAP, TRANSFER, PAUSE = 1_500, 4_000, 6_000, 1_000, 45_000, 400_000
"""Times in ns: to enter or leave an operator, to launch a kernel, from a launch to its kernel where the
device is idle, from one kernel to the next, for a message on its way, and between two steps."""

SEND_RECEIVE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
NCCL_SEND, COMMUNICATOR, BYTES = (1 << 24) + 9, 0x5EED_C0DE, 4 * 4096 * 4096

_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 3ul>>"
)
_ADD = _ELEMENTWISE.format("CUDAFunctor_add<c10::BFloat16>")
_REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, 4>>"
_NORM = "void at::native::(anonymous namespace)::{}<c10::BFloat16, float>"
_FLASH = "void pytorch_flash::{}<pytorch_flash::Flash_{}_kernel_traits<128, 64>>"


@dataclass(frozen=True)
class Operator:
    """An operator of a model: its node in autograd's graph, and its kernels with their lengths in µs.

    `weight` are the kernels of its parameters' gradients, of which there are `parameters`.
    """

    name: str
    inner: str
    node: str
    forward: tuple[tuple[str, int], ...]
    input: tuple[tuple[str, int], ...]
    weight: tuple[tuple[str, int], ...] = ()
    parameters: int = 0


def _linear(length: int) -> Operator:
    return Operator(
        "aten::linear",
        "aten::addmm",
        "AddmmBackward0",
        ((f"nvjet_tst_{length}x128_64x4_2x1_v_bz_coopA_bias_TNT", length),),
        ((f"nvjet_tst_{length}x256_64x4_1x2_h_bz_coopB_NNT", length),),
        ((f"nvjet_tst_{length}x192_64x4_2x1_v_bz_coopA_NTT", length), (_REDUCE, 6)),
        parameters=2,
    )


_NORMALISE = Operator(
    "aten::layer_norm",
    "aten::native_layer_norm",
    "NativeLayerNormBackward0",
    ((_NORM.format("vectorized_layer_norm_kernel"), 9),),
    ((_NORM.format("layer_norm_grad_input_kernel_vectorized"), 12),),
    ((_NORM.format("GammaBetaBackwardCUDAKernelTemplate"), 10),),
    parameters=2,
)
_ATTEND = Operator(
    "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_flash_attention",
    "ScaledDotProductFlashAttentionBackward0",
    ((_FLASH.format("flash_fwd_kernel", "fwd"), 60),),
    (
        (_FLASH.format("flash_bwd_dot_do_o_kernel", "bwd"), 6),
        (_FLASH.format("flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "bwd"), 110),
        (_FLASH.format("flash_bwd_convert_dq_kernel", "bwd"), 5),
    ),
)
_GELU = Operator(
    "aten::gelu",
    "aten::gelu",
    "GeluBackward0",
    ((_ELEMENTWISE.format("GeluCUDAKernelImpl"), 8),),
    ((_ELEMENTWISE.format("GeluBackwardCUDAKernelImpl"), 10),),
)
_SUM = Operator("aten::add", "aten::add", "AddBackward0", ((_ADD, 7),), ())
_EMBED = Operator(
    "aten::embedding",
    "aten::index_select",
    "EmbeddingBackward0",
    (("void at::native::vectorized_gather_kernel<16, long>", 11),),
    (),
    (("void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16>", 25),),
    parameters=1,
)
_LOSS = Operator(
    "aten::cross_entropy_loss",
    "aten::log_softmax",
    "LogSoftmaxBackward0",
    (("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16>", 30),),
    (("void at::native::(anonymous namespace)::cunn_SoftMaxBackward<8, c10::BFloat16>", 35),),
)
_LAYER = (
    *(_NORMALISE, _linear(96), _ATTEND, _linear(64), _SUM),
    *(_NORMALISE, _linear(128), _GELU, _linear(128), _SUM),
)
_UPDATE = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
    "at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>>"
)


@dataclass(frozen=True)
class Job:
    """A made job: its schedule is "1F1B", "Interleaved1F1B" or "ZB-H1", by the names of papers.

    Attributes:
        chunks: Stages on a device.
        ranges: Whether operators have ranges; else there are only calls of CUDA's runtime and kernels.
        calls: Whether NCCL's own ranges are there, which name the peer of each message.
        uneven: How much kernels differ from their usual length, as a standard deviation.
    """

    schedule: str
    devices: int = 4
    microbatches: int = 8
    chunks: int = 1
    steps: int = 3
    layers: int = 2
    ranges: bool = True
    calls: bool = False
    uneven: float = 0.03
    seed: int = 0


@dataclass
class Pass:
    """A pass of a micro-batch through a stage, as the host issued it; then as the device ran it."""

    kind: str
    stage: int
    microbatch: int
    kernels: list[tuple[int, int, str, int]] = field(default_factory=list)
    """When and in which thread it was launched, its name, and how long it runs."""
    receives: Message | None = None
    sends: Message | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Message:
    """A message, with when each side's call was, and from when to when each side's kernel ran."""

    way: str
    sent_by: int
    received_by: int
    calls: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    end: int | None = None


def order(job: Job, device: int) -> list[tuple[str, int, int]]:
    """Return the passes of a step on a device: kind, chunk and micro-batch."""
    many, turns = job.microbatches * job.chunks, job.devices * job.chunks
    if job.chunks > 1:
        early = (job.devices - device - 1) * 2 + (job.chunks - 1) * job.devices
    else:
        early = job.devices - device - 1
    early = min(early, many)

    def numbered(i: int, *, back: bool) -> tuple[int, int]:
        chunk = i % turns // job.devices
        return (
            job.chunks - 1 - chunk if back else chunk
        ), i // turns * job.devices + i % job.devices

    forwards = [("forward", *numbered(i, back=False)) for i in range(many)]
    splits = job.schedule == "ZB-H1"
    backwards = [
        ("backward_input" if splits else "backward", *numbered(i, back=True)) for i in range(many)
    ]
    found = forwards[:early]
    for i, backward in enumerate(backwards):
        if early + i < many:
            found.append(forwards[early + i])
        found.append(backward)
        if splits and i >= device:
            found.append(("backward_weight", *backwards[i - device][1:]))
    if splits:
        found += [("backward_weight", *each[1:]) for each in backwards[many - min(device, many) :]]
    return found


class Host:
    """The processes' side of a rank: what it calls, when, and in which thread."""

    def __init__(self, job: Job, process: Process, rank: int) -> None:
        self.job, self.process, self.rank = job, process, rank
        self.dice = random.Random(f"{job.seed} {rank}")
        self.now = 10_000_000 + self.dice.randrange(300_000)
        self.operators = 0
        self.sequence = 100
        self.nodes: dict[tuple[int, int], list[tuple[Operator, int]]] = {}

    @contextlib.contextmanager
    def range(self, name: str, thread: int = MAIN, sequence: int | None = None) -> Iterator[None]:
        """Do something in the range that PyTorch makes of an operator."""
        self.operators += 1
        seq = "" if sequence is None else f", seq = {sequence}"
        text, start = f"{name}{seq}, op_id = {self.operators}", self.now
        self.now += CALL
        yield
        self.now += CALL
        if self.job.ranges:
            self.process.range(text, start, self.now, thread=thread)

    def launch(self, into: Pass, kernels: tuple[tuple[str, int], ...], thread: int = MAIN) -> None:
        for name, length in kernels:
            ns = int(1000 * length * max(0.5, self.dice.gauss(1, self.job.uneven)))
            into.kernels.append((self.now, thread, name, ns))
            self.now += LAUNCH

    def model(self, stage: int) -> list[Operator]:
        last = stage == self.job.devices * self.job.chunks - 1
        layers = _LAYER * self.job.layers
        return [
            *([_EMBED] if stage == 0 else []),
            *layers,
            *([_linear(160), _LOSS] if last else []),
        ]

    def runs(self, each: Pass) -> None:
        """Issue a pass."""
        if each.receives is not None:
            self.communicates(each.receives, "recv")
        if each.kind == "forward":
            self.goes_forward(each)
        else:
            self.goes_backward(each)
        if each.sends is not None:
            self.communicates(each.sends, "send")

    def goes_forward(self, each: Pass) -> None:
        nodes = self.nodes[each.stage, each.microbatch] = []
        for operator in self.model(each.stage):
            with self.range(operator.name, sequence=self.sequence):
                with self.range(operator.inner, sequence=self.sequence):
                    self.launch(each, operator.forward)
                nodes.append((operator, self.sequence))
                self.sequence += 1

    def goes_backward(self, each: Pass) -> None:
        wants_input, wants_weight = (
            each.kind in ("backward", one) for one in ("backward_input", "backward_weight")
        )
        for operator, sequence in reversed(self.nodes[each.stage, each.microbatch]):
            if not wants_input and not operator.weight:
                continue
            name = f"autograd::engine::evaluate_function: {operator.node}"
            with (
                self.range(name, AUTOGRAD, sequence),
                self.range(operator.node, AUTOGRAD, sequence),
            ):
                wanted = operator.input if wants_input else ()
                wanted += operator.weight if wants_weight else ()
                for kernel in wanted:
                    with self.range("aten::mm" if "nvjet" in kernel[0] else "aten::sum", AUTOGRAD):
                        self.launch(each, (kernel,), AUTOGRAD)
            name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            for _ in range(operator.parameters if wants_weight else 0):
                if wants_input:
                    with self.range(name, AUTOGRAD), self.range("aten::add_", AUTOGRAD):
                        self.launch(each, ((_ADD, 5),), AUTOGRAD)
                else:  # the caller of a backward for weights adds what it gets
                    with self.range("aten::add_"):
                        self.launch(each, ((_ADD, 5),))

    def communicates(self, message: Message, side: str) -> None:
        with self.range(f"c10d::{side}_" if side == "recv" else "c10d::send"):
            self.now += CALL
            if self.job.calls:
                peer = message.sent_by if side == "recv" else message.received_by
                said = struct.pack("<QQii", COMMUNICATOR, BYTES, peer, 0)
                head = struct.pack("<QQQQ", 1, NCCL_SEND, len(said), 32 + len(said))
                name = "ncclRecv" if side == "recv" else "ncclSend"
                self.process.range(
                    name, self.now, self.now + CALL, registered=True, payload=head + said
                )
                self.now += CALL
            message.calls[side] = self.now
            self.now += LAUNCH

    def updates(self, each: Pass) -> None:
        with self.range("Optimizer.step#AdamW.step"), self.range("aten::_fused_adamw_"):
            self.launch(each, ((_UPDATE, 90),) * (2 * self.job.layers * self.job.chunks))


def play(job: Job) -> tuple[Export, list[dict[str, Any]]]:
    """Return the export of a job, all of whose devices are of one machine, and its true passes."""
    export = Export("node0")
    if job.calls and job.ranges:
        entries = {"NCCL communicator ID": (18, None), "Message size [bytes]": (22, 8)}
        export.payload_schema(NCCL_SEND, {**entries, "Peer rank": (5, 16)})
    hosts = [Host(job, export.process(3000 + 11 * i, i), i) for i in range(job.devices)]
    for host in hosts:
        host.process.calls_thread(MAIN, "python3")
        host.process.calls_thread(AUTOGRAD, "pt_autograd_0")
    truth: list[dict[str, Any]] = []
    free = dict.fromkeys(range(job.devices), 0)
    for step in range(job.steps):
        passes = issued(job, hosts)
        Devices(passes, free).run()
        for host, mine in zip(hosts, passes, strict=True):
            write(host.process, mine)
            truth += [_told(host.rank, step, each) for each in mine]
            host.now = max(host.now, free[host.rank]) + PAUSE  # it waits for the loss
            host.nodes.clear()
    return export, truth


def _told(rank: int, step: int, each: Pass) -> dict[str, Any]:
    first, last = UTC + each.spans[0][0], UTC + each.spans[-1][1]
    return {
        "rank": rank,
        "step": step,
        "stage": each.stage,
        "microbatch": each.microbatch,
        "kind": each.kind,
        "start_ns": first,
        "end_ns": last,
        "operators": len(each.kernels),
        "first_ns": first,
        "last_ns": last,
        "pair": None,
    }


def issued(job: Job, hosts: list[Host]) -> list[list[Pass]]:
    """Let every host issue a step. None of them waits for a device before its end."""
    last = job.devices * job.chunks - 1
    messages: dict[Any, Message] = {}
    passes = []
    for host in hosts:
        mine = []
        for kind, chunk, microbatch in order(job, host.rank):
            stage = chunk * job.devices + host.rank
            each = Pass(kind, stage, microbatch)
            way = {"forward": 1, "backward": -1, "backward_input": -1}.get(kind, 0)
            for number, role in ((stage, "receives"), (stage + way, "sends")):
                source = number - way
                if way and 0 <= source <= last and 0 <= number <= last:
                    message = messages.setdefault(
                        (way, source, microbatch),
                        Message(str(way), source % job.devices, number % job.devices),
                    )
                    setattr(each, role, message)
            host.runs(each)
            mine.append(each)
        update = Pass("optimizer", 0, 0)
        host.updates(update)
        passes.append([*mine, update])
    return passes


class Devices:
    """The devices in a step: each pass and message as early as streams, inputs and launches allow.

    A device has a stream that computes and, for each way, one that sends and one that receives.
    """

    def __init__(self, passes: list[list[Pass]], free: dict[int, int]) -> None:
        self.waiting = [deque(mine) for mine in passes]
        self.free = free
        self.streams: dict[tuple[int, str, str], deque[tuple[Message, Pass]]] = {}
        self.since: dict[tuple[int, str, str], int] = {}
        for rank, mine in enumerate(passes):
            for each in mine:
                for side, message in (("recv", each.receives), ("send", each.sends)):
                    if message is not None:
                        name = (rank, message.way, side)
                        self.streams.setdefault(name, deque()).append((message, each))

    def run(self) -> None:
        while any(self.waiting) or any(self.streams.values()):
            moved = [self.exchange(name) for name in self.streams]
            moved += [self.compute(rank) for rank in range(len(self.waiting))]
            if not any(moved):
                raise RuntimeError("the schedule deadlocks")

    def exchange(self, name: tuple[int, str, str]) -> bool:
        """Run the messages of a stream as far as they can be, and return whether any could."""
        queue, side, moved = self.streams[name], name[2], False
        while queue:
            message, each = queue[0]
            if side not in message.starts:
                if side == "send" and not each.spans:
                    break
                ready = each.spans[-1][1] if side == "send" else 0
                earliest = max(message.calls[side] + LATENCY, ready)
                message.starts[side] = max(earliest, self.since.get(name, 0))
                moved = True
            if len(message.starts) < len(("send", "recv")):
                break
            message.end = self.since[name] = max(message.starts.values()) + TRANSFER
            queue.popleft()
            moved = True
        return moved

    def compute(self, rank: int) -> bool:
        """Run the passes of a device as far as they can be, and return whether any could."""
        queue, moved = self.waiting[rank], False
        while queue and (queue[0].receives is None or queue[0].receives.end is not None):
            each = queue.popleft()
            now = self.free[rank]
            if each.receives is not None:
                now = max(now, each.receives.end or 0)
            for launched, _, _, length in each.kernels:
                start = max(now + GAP, launched + LATENCY)
                now = start + length
                each.spans.append((start, now))
            self.free[rank] = now
            moved = True
        return moved


def write(process: Process, passes: list[Pass]) -> None:
    """Write what a rank's device ran in a step."""
    streams = {("1", "recv"): 20, ("1", "send"): 24, ("-1", "recv"): 28, ("-1", "send"): 32}
    for each in passes:
        for (at, thread, name, _), (start, end) in zip(each.kernels, each.spans, strict=True):
            process.kernel(start, end, at=at, thread=thread, name=name)
        for side, message in (("recv", each.receives), ("send", each.sends)):
            if message is not None:
                process.kernel(
                    message.starts[side],
                    message.end,
                    at=message.calls[side],
                    name=SEND_RECEIVE,
                    stream=streams[message.way, side],
                )


JOBS = {
    "1f1b-autograd": Job("1F1B"),
    "1f1b-autograd-calls": Job("1F1B", microbatches=6, calls=True, seed=1),
    "1f1b-kernels": Job("1F1B", ranges=False, seed=2),
    "interleaved-autograd": Job("Interleaved1F1B", chunks=2, layers=1, seed=3),
    "interleaved-autograd-calls": Job("Interleaved1F1B", chunks=2, layers=1, calls=True, seed=4),
    "interleaved-kernels": Job("Interleaved1F1B", chunks=2, layers=1, ranges=False, seed=5),
    "zero-bubble-autograd": Job("ZB-H1", seed=6),
    "zero-bubble-autograd-calls": Job("ZB-H1", devices=3, calls=True, seed=7),
    "zero-bubble-kernels": Job("ZB-H1", ranges=False, seed=8),
}
"""The made cases, by name."""


def others() -> dict[str, Job]:
    """Return cases of other sizes, by name: no factor of certainty was chosen by them."""
    return {
        f"{name}-other": replace(
            job,
            devices=2 + index % 3,
            microbatches=12,
            steps=4,
            layers=3 - job.layers,
            uneven=0.08,
            seed=100 + index,
        )
        for index, (name, job) in enumerate(JOBS.items())
    }


def make_exports(folder: Path, other: bool = False) -> None:
    """Write every case, or case of other sizes, that is not there yet into `nsight/` of a corpus."""
    for name, job in (others() if other else JOBS).items():
        made = folder / "nsight" / name
        if (made / "truth.json").exists():
            continue
        (made / "stripped").mkdir(parents=True, exist_ok=True)
        export, actions = play(job)
        export.write(made / "stripped" / "node0.sqlite")
        case = {"schedule": job.schedule, "shape": name, "ranks": job.devices, "steps": job.steps}
        case |= {"chunks": job.chunks, "microbatches": job.microbatches, "pipeline": True}
        (made / "truth.json").write_text(json.dumps({**case, "actions": actions}))
        sys.stdout.write(f"nsight/{name}\n")


if __name__ == "__main__":
    make_exports(Path(sys.argv[1]))
