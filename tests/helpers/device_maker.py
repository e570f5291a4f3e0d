"""Makes traces of devices whose every nanosecond is known, because its cause was put in on purpose.

`make` simulates hosts and devices event by event. A rank is threads that launch operations and streams
that run them in order. Its life is bursts and gaps: in a burst the host launches ahead and the device
runs without a hole, over all its streams; then it is left to run dry, and before it has work again
goes by, in this order and each of a known length,

- what a late host does before it launches the next operation (`HOSTS`),
- what of the launching call comes after the device has run dry,
- what an operation that is launched needs to start (`LATE`): less than 10 us; or the time until an
  event fires that its stream was told to wait for; or what the trace holds nothing of.

Where no launch of the operation is in the trace, all of it is `unlinked`. These lengths are noted with
the operation that ends the gap as it is launched (`Operation.idle`), and the truth is the sum of the
notes. Nothing here looks for causes in what was made, and gaps that nobody put in fail an assertion.

What must change nothing is made too: ranges that end as the gap begins, or lie in it for a shorter time
than its cause; other threads that synchronise or load data; waits of other streams and of earlier
operations; launches later than that of an operation that starts with them; GPU copies of annotations.

This is a specification: it shares no code with bubblescope. Times are integer nanoseconds.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from device_truth import account, record

HOSTS = ("after_sync", "data", "optimizer", "gc", "operator", "python", "unknown", "ranks")
"""What a late host may be at."""
NSIGHT_HOSTS = ("after_sync", "data", "optimizer", "operator", "unknown", "ranks")
"""Those in Nsight exports, whose ranges are NVTX as emit_nvtx writes them (csrc/profiler/util.cpp):
operators have `op_id`. They hold neither Python's calls nor its garbage collections."""
HOST_CLASSES = {host: f"host_{host}" for host in HOSTS} | {"ranks": "rank_wait"}
LATE = ("latency", "event_wait", "untraced")
SPECIAL = {
    "data": ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
    "optimizer": ("user_annotation", "Optimizer.step#AdamW.step"),
    "gc": ("python_function", "Python GC"),
}
SYNCS = {
    "cudaStreamSynchronize": ("Stream Sync", 3),
    "cudaDeviceSynchronize": ("Context Sync", 4),
    "cudaEventSynchronize": ("Event Sync", 1),
}
"""Blocking calls -> their name in Kineto's cuda_sync, and CUPTI's syncType."""
HIP = {
    "cudaMemcpy": "hipMemcpyWithStream",
    "cudaLaunchKernelExC": "hipModuleLaunchKernel",
    "cuLaunchKernelEx": "hipExtModuleLaunchKernel",
}
"""Calls that AMD's runtime has no namesakes of."""
COMPUTE = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>(Params)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
)
COMMUNICATION = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "void deep_ep::internode::dispatch<false, 8, true, 8>(int4*)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
    "wait_until_on_stream_and_reset(unsigned long*, unsigned long, unsigned long)",
    "at::cuda::(anonymous namespace)::spin_kernel(long)",
)
COPIES = {
    "Memcpy HtoD (Pinned -> Device)": (1, 1, 2),
    "Memcpy DtoD (Device -> Device)": (8, 2, 2),
    (PAGEABLE := "Memcpy DtoH (Device -> Pageable)"): (2, 2, 0),
}
"""Copies as Kineto names them -> CUPTI's copyKind, srcKind and dstKind."""
MAIN, ENGINE, WATCHDOG, GLOO = 4100, 4177, 4190, 4195
"""Threads: the script's, autograd's, one that launches nothing, and one that gloo works in."""
BEGIN = 1_000_000_000_123


@dataclass(frozen=True)
class Mode:
    """What to make: gaps of each class, and besides them

    Attributes:
        pairs: Gaps of two causes.
        streams: More streams than one.
        jitter: Durations that vary by 5 %.
        cut: A profiler that starts and ends in the middle of the work.
        lost: A share of the launches whose row is lost.
        ranks: More ranks than one.
        engine: A second thread that launches, while the first waits for it.
        hip: AMD's runtime, whose records do not say which stream waits for an event.
        graphs: A share of the kernels that are graphs, recorded as a whole each.
        hosts: What late hosts are at.
    """

    pairs: bool = False
    streams: int = 1
    jitter: bool = False
    cut: bool = False
    lost: float = 0.0
    ranks: int = 1
    engine: bool = False
    hip: bool = False
    graphs: float = 0.0
    hosts: tuple[str, ...] = HOSTS


@dataclass
class Range:
    """What a thread is in for a while."""

    thread: int
    cat: str
    name: str
    start: int
    end: int


@dataclass
class Call(Range):
    """A call of the runtime; `stream` is that which it makes wait."""

    correlation: int = 0
    stream: int | None = None
    lost: bool = False


@dataclass
class Operation:
    """Work of a device: `sort` is compute, communication or copy."""

    sort: str
    cat: str
    name: str
    stream: int
    start: int
    end: int
    call: Call
    step: int | None
    idle: dict[str, int] | None = None  # why the device had nothing to do until it started


@dataclass
class Rank:
    """One rank: first its simulation, then what was recorded of it, and the truth about that."""

    mode: Mode
    number: int
    rng: random.Random
    calls: list[Call] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    now: dict[int, int] = field(default_factory=lambda: dict.fromkeys((MAIN, ENGINE), BEGIN))
    free: dict[int, int] = field(default_factory=dict)  # when each stream has run all it has
    active: int = MAIN
    away: int = BEGIN  # since when the script waits for autograd
    step: int | None = None
    owed: int | None = None  # a stream that waits and has not been given its operation yet
    moments: list[tuple[int, bool]] = field(default_factory=list)  # where to cut; first of a step?
    truth: dict[str, Any] = field(default_factory=dict)

    @property
    def drained(self) -> int:
        """When the device has run all that was launched so far."""
        return max(self.free.values())

    def lasts(self, low: int, high: int) -> int:
        """Draw a duration."""
        length = self.rng.randint(low, high)
        return round(length * self.rng.uniform(0.95, 1.05)) if self.mode.jitter else length

    def often(self, share: float) -> bool:
        """Toss a coin."""
        return self.rng.random() < share

    # What is recorded.

    def range(self, thread: int, cat: str, name: str, start: int, end: int) -> None:
        """Have a thread be in a range."""
        self.ranges.append(Range(thread, cat, name, start, end))

    def call(self, thread: int, name: str, start: int, end: int, stream: int | None = None) -> Call:
        """Have a thread call the runtime."""
        if self.mode.hip:
            name = HIP.get(name, name.replace("cuda", "hip"))
        cat = "cuda_driver" if name.startswith("cuLaunch") else "cuda_runtime"
        made = Call(thread, cat, name, start, end, 900 + len(self.calls), stream)
        self.calls.append(made)
        return made

    def wait(self, thread: int, at: int, stream: int) -> None:
        """Make a stream wait for an event."""
        if not self.mode.hip:
            self.call(thread, "cudaStreamWaitEvent", at, at + 800, stream)

    def launch(
        self,
        thread: int,
        called: tuple[int, int],
        stream: int,
        start: int,
        length: int,
        *,
        idle: dict[str, int] | None = None,
        lost: bool | None = None,
    ) -> None:
        """Launch an operation of any sort.

        Args:
            thread: Which calls.
            called: Start and end of the call.
            stream: Where the operation runs.
            start: When it starts.
            length: How long it runs.
            idle: What the device waited for, if it had nothing to do until then.
            lost: Whether the call's row is lost; None leaves that to chance.
        """
        dice = self.rng.random()
        launcher = self.rng.choice(("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx"))
        sort, cat, name = "compute", "kernel", self.rng.choice(COMPUTE)
        if dice < 0.25:
            sort, name = "communication", self.rng.choice(COMMUNICATION)
        elif dice < 0.40:
            sort, cat, launcher = "copy", "gpu_memcpy", "cudaMemcpyAsync"
            name = self.rng.choice(list(COPIES)[:2])
        elif dice < 0.48:
            cat, name, launcher = "gpu_memset", "Memset (Device)", "cudaMemsetAsync"
        elif dice < 0.54 and self.mode.hip:
            sort, name = "copy", "__amd_rocclr_copyBuffer"  # as old ROCm records copies
        call, end = self.call(thread, launcher, *called), start + length
        call.lost = self.often(self.mode.lost) if lost is None else lost
        assert start >= max(call.start, self.free[stream])
        self.free[stream] = end
        self.operations.append(
            Operation(sort, cat, name, stream, start, end, call, self.step, idle)
        )

    # Bursts.

    def burst(self, thread: int, *, first: bool) -> None:
        """Launch ahead while the device is busy with the last operation launched."""
        self.now[thread] = max(self.now[thread], self.operations[-1].start + 500)
        for _ in range(self.rng.randint(1, 4)):
            self.follow(thread)
        self.moments.append((self.now[thread], first))

    def follow(self, thread: int) -> None:
        """Launch an operation that is ready before the device has run dry."""
        begin, length = self.now[thread] + self.lasts(1000, 4000), self.lasts(3000, 9000)
        stream = self.rng.choice(list(self.free)) if self.owed is None else self.owed
        ready, lost = begin + 1500 + length + self.rng.randint(0, 2000), None
        if self.owed is not None:
            self.owed, lost = None, False
        elif self.mode.streams > 1 and self.often(0.3):  # for what another stream runs
            self.wait(thread, begin, stream)
            ready, lost = max(ready, self.free[self.rng.choice(list(self.free))]), False
        begin += 1500
        self.range(thread, "cpu_op", "aten::mm", begin - 300, begin + length + 300)
        start = max(ready, self.free[stream])
        called = (begin, begin + length)
        self.launch(thread, called, stream, start, self.lasts(2000, 60_000), lost=lost)
        self.now[thread] = begin + length + 500

    # Gaps.

    def gap(self, thread: int, host: str | None, late: str | None, *, first: bool) -> None:
        """Let the device run dry and give it work again.

        Args:
            thread: Which launches that.
            host: What it is at before; "call": only in the call; None: it has launched in time.
            late: What the operation then waits for; None: nothing; "unlinked": its launch is lost.
            first: Whether this is a step's first.
        """
        copy = host == "after_sync" and self.often(0.5) and self.copy_back(thread)
        empty, length = self.drained, self.lasts(4000, 12_000)
        idle: Counter[str] = Counter()
        if host in HOSTS:
            begin = empty + self.lasts(30_000, 400_000)
            idle[HOST_CLASSES[host]] = begin - empty
            self.dawdle(thread, host, empty, begin, begin + length, copy or None)
        else:
            before = self.rng.randrange(length) if host else length + self.rng.randrange(5000)
            begin = empty - before
        end, stream = begin + length, self.rng.choice(list(self.free))
        remains = end - max(begin, empty)  # of the call, when the device has nothing to do
        if late in LATE:
            enough = self.rng.choice((10_000, self.lasts(11_000, 300_000)))
            short = self.rng.choice((1, 9_999, self.rng.randint(500, 9_999)))
            idle[late] = short if late == "latency" else enough
            idle["launch_call"] = max(0, remains)
        else:
            # It starts while it is being launched, or as that ends.
            idle["launch_call"] = self.rng.randint(1, remains)
        start = empty + idle.total()
        lost = True if late == "unlinked" else None
        if late == "event_wait" or (late == "latency" and self.often(0.3)):
            self.wait(thread, begin - 2500, stream)
            lost = False  # or the wait might seem to be the next operation's
        elif late == "untraced":
            if self.often(0.5):  # a function of the host, which the device waits for
                self.call(thread, "cudaLaunchHostFunc", begin - 2500, begin - 2000)
            if self.mode.streams > 1 and self.often(0.5):
                self.owed = self.rng.choice([other for other in self.free if other != stream])
                self.wait(thread, begin - 1800, self.owed)
        if host not in {"operator", "python", "unknown"} and self.often(0.7):
            self.range(thread, "cpu_op", "aten::mm", begin - 700, end + 300)
        both = late == "event_wait" and idle[late] > 15_000 and self.mode.streams > 1
        run = self.lasts(250_000, 400_000)
        self.launch(thread, (begin, end), stream, start, run, idle=dict(idle), lost=lost)
        self.now[thread] = end + 1000
        if both and self.often(0.5):  # another stream waits for the same event, and starts with it
            other = self.rng.choice([other for other in self.free if other != stream])
            self.wait(thread, end + 1500, other)
            called = (end + 2500, end + 7000)
            self.launch(thread, called, other, start, self.lasts(2000, 60_000), lost=False)
            self.now[thread] = end + 8000
        self.burst(thread, first=first)

    def copy_back(self, thread: int) -> Call:
        """Copy something to pageable memory after all else, by a call that `dawdle` says the end of."""
        begin, stream = self.now[thread] + 1000, self.rng.choice(list(self.free))
        name = self.rng.choice(("cudaMemcpy", "cudaMemcpy" if self.mode.hip else "cudaMemcpyAsync"))
        call, start = self.call(thread, name, begin, begin), self.drained
        end = self.free[stream] = start + self.lasts(200_000, 500_000)
        copy = Operation("copy", "gpu_memcpy", PAGEABLE, stream, start, end, call, self.step)
        self.operations.append(copy)
        return call

    def dawdle(
        self, thread: int, host: str, empty: int, begin: int, end: int, copy: Call | None
    ) -> None:
        """Be late: be at `host` from before the device runs dry, at `empty`, until a call begins."""
        since = empty - self.rng.randint(1000, 10_000)
        if self.often(0.4):  # what other threads do is no reason
            if self.often(0.3):
                self.range(WATCHDOG, "cpu_op", "c10d::recv_", since - 300, since - 100)
                self.range(WATCHDOG, "user_annotation", "gloo:recv", since, end)
            elif self.often(0.5):
                self.call(WATCHDOG, self.rng.choice(list(SYNCS)), since, begin - 1000)
            else:
                self.range(WATCHDOG, *self.other(host), since, end)
        if host == "after_sync":
            back = empty + self.rng.randint(1, 5000)
            call = copy or self.call(thread, self.rng.choice(list(SYNCS)), since, back)
            call.end = back
            self.range(thread, "cpu_op", "aten::item", call.start - 200, back + 200)
            if self.often(0.5):  # the device has run dry for the synchronisation, whatever follows
                self.range(thread, *self.other(host), back + 500, begin - 1000)
        elif host == "ranks":
            self.await_ranks(thread, (since, empty, begin, end))
        elif host in SPECIAL:
            self.be_at(thread, host, (since, empty, begin, end))
        else:
            if self.often(0.4):  # something ends as the gap begins
                self.range(thread, *self.other(host), since, empty)
                since = empty
            self.run_code(thread, host, (since, empty, begin, end))

    def other(self, host: str) -> tuple[str, str]:
        """Return a special range that is no cause."""
        return SPECIAL[self.rng.choice([name for name in SPECIAL if name != host])]

    def be_at(self, thread: int, host: str, times: tuple[int, int, int, int]) -> None:
        """Be in a special range for three fifths of the time or more, in another for one at most."""
        since, empty, begin, end = times
        rng, fifth = self.rng, (begin - empty) // 5
        begun = rng.choice((since, empty, empty + rng.randint(2, fifth)))
        until = rng.choice((end + 600, begin - rng.randint(1000, fifth)))
        self.range(thread, *SPECIAL[host], begun, until)
        self.range(thread, "cpu_op", "aten::stack", begun + 1, min(begin, until) - fifth)
        if begun > empty and self.often(0.5):
            self.range(thread, *self.other(host), self.now[thread] + 1000, begun)
        elif self.often(0.3):
            inner = max(begun, empty) + rng.randint(2, fifth)
            self.range(thread, *self.other(host), inner, inner + fifth)

    def await_ranks(self, thread: int, times: tuple[int, int, int, int]) -> None:
        """Wait for other ranks for three fifths of the time or more, maybe after a synchronisation."""
        since, empty, begin, end = times
        rng, fifth = self.rng, (begin - empty) // 5
        begun, until = max(since, self.now[thread]) + 400, begin - rng.randint(1000, fifth)
        if self.often(0.5):
            back = empty + rng.randint(1, 4000)
            self.call(thread, rng.choice(list(SYNCS)), since, back)
            begun = back + 500
        how = rng.choice(("gloo:recv", "mpi:recv", "MPI_Recv", "gloo:all_reduce"))
        if how == "gloo:all_reduce":  # another thread does it
            self.range(thread, "cpu_op", "c10d::allreduce_", begun - 300, begun - 100)
        self.range(
            GLOO if how == "gloo:all_reduce" else thread, "user_annotation", how, begun, until
        )
        if "python" in self.mode.hosts and self.often(0.5):
            waits = rng.choice(("PyCapsule object at 0x7f", "pybind11_builtins.pybind11_detail"))
            self.range(thread, "python_function", "train.py(12): step", since, end + 900)
            name = f"<built-in method wait of {waits}>"
            self.range(thread, "python_function", name, begun - 50, until + 50)

    def run_code(self, thread: int, host: str, times: tuple[int, int, int, int]) -> None:
        """Run an operator, Python, or what nothing is recorded of but that it is a batch."""
        since, empty, begin, end = times
        fifth = (begin - empty) // 5
        if host == "python" or (host == "operator" and self.often(0.5)):
            self.range(thread, "python_function", "train.py(12): step", since, end + 900)
            self.range(thread, "python_function", "train.py(9): loss", empty + 2, begin - 900)
            if self.often(0.4):  # what is received in the background keeps nobody
                self.range(thread, "user_annotation", "gloo:recv", since + 5, end + 100)
        if host == "operator":
            self.range(thread, "cpu_op", "aten::linear", since, end + 800)
            self.range(thread, "cpu_op", "aten::to", empty + fifth, empty + 2 * fifth)
            self.range(thread, "cpu_op", "aten::addmm", begin - 500, end + 300)
        elif host == "unknown":
            self.range(thread, "user_annotation", "train_batch", since, end + 800)

    # A life.

    def live(self, first_step: int) -> None:
        """Simulate three steps."""
        rng, mode, main = self.rng, self.mode, MAIN
        self.free = {7 + 13 * index: 0 for index in range(mode.streams)}
        late = [name for name in LATE if name != "event_wait" or not mode.hip]
        plan: list[tuple[str | None, str | None]] = [(host, None) for host in (*mode.hosts, "call")]
        plan += [(None, name) for name in late] + [(rng.choice(mode.hosts), "unlinked")]
        if mode.pairs:
            plan += rng.sample([(host, name) for host in (*mode.hosts, "call") for name in late], 8)
        rng.shuffle(plan)
        size = -(-len(plan) // 3)
        outside = self.often(0.5)  # whether the first burst is launched before all steps
        self.step = None if outside else first_step
        self.launch(main, (BEGIN, BEGIN + 6500), 7, BEGIN + 7400, self.lasts(250_000, 400_000))
        self.burst(main, first=True)
        began = self.now[main] if outside else BEGIN
        for number in range(3):
            self.step = first_step + number
            for index, (host, name) in enumerate(plan[number * size : (number + 1) * size]):
                self.hand_over(ENGINE if mode.engine and self.often(0.5) else MAIN)
                self.gap(self.active, host, name, first=index == 0)
            self.hand_over(MAIN)
            self.range(main, "user_annotation", f"ProfilerStep#{self.step}", began, self.now[main])
            self.step = None
            if self.often(0.3):
                self.follow(main)
            began = self.now[main]

    def hand_over(self, thread: int) -> None:
        """Have autograd's thread launch, while the script's waits for it; or end that."""
        if thread == self.active:
            return
        self.now[thread] = self.now[self.active] + self.rng.randint(500, 3000)
        if thread == MAIN:
            name = "torch/autograd/graph.py(825): _engine_run_backward"
            self.range(MAIN, "python_function", name, self.away, self.now[MAIN])
        else:
            self.away = self.now[MAIN]
        self.active = thread


def make(mode: Mode, seed: int) -> list[Rank]:
    """Make the ranks of a job, each with its records and, in `truth`, what a report has to say."""
    first_step = random.Random(seed).randrange(1000)
    ranks = [Rank(mode, rank, random.Random(f"{seed}/{rank}")) for rank in range(mode.ranks)]
    for rank in ranks:
        rank.live(first_step)
        record(rank)
        rank.truth = account(rank)
    return ranks
