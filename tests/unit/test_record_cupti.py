"""Timing tasks by their kernels: against a device whose every kernel is known.

There is no GPU in these tests. `FakeCupti` stands for the module `cupti.cupti` of cupti-python together
with a device behind it: it has the functions, enumerations and record fields that the timer uses, and
behaves as CUPTI's documentation says (https://docs.nvidia.com/cupti/main/main.html):

* only what is enabled is recorded, of calls all but those that were switched off by their number since;
* its clock is not the host's; `get_timestamp` is on the clock of the records;
* a kernel's record is unfinished until it has run; a forced flush delivers it without times;
* records are valid only during the callback, which may come from any thread.

What is used of it is compared with the real package where that is installed.
"""

from __future__ import annotations

import enum
import re
import threading
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubblescope import RecorderError, sources
from bubblescope.analysis.device_budget import budget
from bubblescope.analysis.untold_time import unknowable
from bubblescope.record import Recorder
from bubblescope.record.timers import chosen_timer, cupti
from bubblescope.record.timers.cupti import CuptiTimer
from bubblescope.record.timers.timer import CpuTimer
from bubblescope.recording.reader import SCHEMA, read_stream
from full import examples, module

AHEAD_NS = 1_700_000_000_123_456_789
"""How far CUPTI's clock is ahead of the host's."""
AUTOGRAD = 77
"""Thread that launches backwards."""
GEMM, NCCL = "sm90_gemm", "ncclDevKernel_SendRecv"


class ActivityKind(enum.IntEnum):
    MEMCPY = 1
    MEMSET = 2
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10
    MEMCPY2 = 22
    GRAPH_TRACE = 51


class ActivityThreadIdType(enum.IntEnum):
    DEFAULT = 0
    SYSTEM = 1


RuntimeApiTraceCbid = enum.IntEnum(
    "RuntimeApiTraceCbid",
    {
        "INVALID": 0,
        "cudaMalloc_v3020": 20,
        "cudaMemcpyAsync_v3020": 41,
        "cudaLaunchKernel_v7000": 211,
        "cudaLaunchHostFunc_v10000": 294,
        "cudaMemSetMemPool_v13000": 500,
    },
)
DriverApiTraceCbid = enum.IntEnum(
    "DriverApiTraceCbid", {"INVALID": 0, "cuLaunchKernel": 307, "cuLaunchHostFunc": 527}
)
LAUNCH = RuntimeApiTraceCbid.cudaLaunchKernel_v7000
DOMAINS = {RuntimeApiTraceCbid: ActivityKind.RUNTIME, DriverApiTraceCbid: ActivityKind.DRIVER}


class Kernel(NamedTuple):
    name: str
    thread: int
    call_ns: int
    start_ns: int
    end_ns: int


class FakeCupti:
    """CUPTI and a device with one stream; all times of `ran` are the host's."""

    ActivityKind = ActivityKind
    ActivityThreadIdType = ActivityThreadIdType
    RuntimeApiTraceCbid = RuntimeApiTraceCbid
    DriverApiTraceCbid = DriverApiTraceCbid

    def __init__(self):
        self.now = 1_000_000
        self.free_at = 0
        self.ran = []
        self.on = set()
        self.off = set()
        self.records = []
        self.fail_flush = None

    # What a job does

    def clock(self):
        self.now += 10
        return self.now

    def synchronize(self, device):
        assert device == 3
        self.now = max(self.now, self.free_at)

    def current_device(self):
        return 3

    def launch(self, length_ns, name=GEMM, thread=None, call=LAUNCH):
        thread = threading.get_native_id() if thread is None else thread
        self.now += 2000
        start = max(self.free_at, self.now + 5000)
        self.free_at = start + length_ns
        number = len(self.ran) + 1
        self.ran.append(Kernel(name, thread, self.now, start, self.free_at))
        if self.collects(call):
            self.tell(DOMAINS[type(call)], number, self.now, self.now + 900, thread_id=thread)
        if ActivityKind.CONCURRENT_KERNEL in self.on:
            kind = ActivityKind.CONCURRENT_KERNEL
            self.tell(kind, number, start, self.free_at, name=name, device_id=3)
        self.now += 1000
        return self.ran[-1]

    def tell(self, kind, number, start_ns, end_ns, **fields):
        times = {"start": start_ns + AHEAD_NS, "end": end_ns + AHEAD_NS}
        self.records.append({"kind": int(kind), "correlation_id": number, **times, **fields})

    # What cupti-python does

    def get_timestamp(self):
        return self.now + AHEAD_NS

    def set_thread_id_type(self, kind):
        assert kind is ActivityThreadIdType.SYSTEM

    def activity_register_callbacks(self, requested, completed):
        size, most = requested()
        assert size >= 1 << 20
        assert most == 0
        self.completed = completed

    def activity_enable(self, kind):
        self.on.add(kind)
        self.off -= {call for call in self.off if DOMAINS[type(call)] == kind}

    def activity_disable(self, kind):
        self.on.discard(kind)

    def activity_enable_runtime_api(self, number, enable):
        if not number:
            raise ValueError("CUPTI_ERROR_INVALID_PARAMETER")
        (self.off.discard if enable else self.off.add)(number)

    activity_enable_driver_api = activity_enable_runtime_api

    def collects(self, call):
        return DOMAINS[type(call)] in self.on and call not in self.off

    def activity_flush_all(self, flag):
        assert flag == 1
        if self.fail_flush:
            raise self.fail_flush
        told, self.records = [SimpleNamespace(**record) for record in self.records], []
        for record in told:
            if record.end > self.get_timestamp():
                record.start = record.end = 0
        worker = threading.Thread(target=self.completed, args=(told,))
        worker.start()
        worker.join()
        for record in told:
            vars(record).clear()


@pytest.fixture
def device():
    return FakeCupti()


def recording(folder, device, **options):
    timer = CuptiTimer(device, device, device.clock)
    return Recorder(folder, rank=0, timer=timer, **options)


def read(folder):
    return sources.load(folder).tasks.sort("step", "host_start_ns")


def interval(*kernels):
    return kernels[0].start_ns, kernels[-1].end_ns


def intervals(folder):
    """The recorded intervals, on the fake's host clock."""
    return read(folder).select("start_ns", "end_ns").rows()


@pytest.fixture(autouse=True)
def no_utc(monkeypatch):
    """Let recordings be on the monotonic clock, which is the fake's."""
    monkeypatch.setattr("bubblescope.record.recorder._utc_minus_monotonic", lambda: 0)


def close(ours, truth):
    """The clocks are compared by readings 20 ns apart, so that half of that is what they are off."""
    assert len(ours) == len(truth)
    assert np.abs(np.array(ours) - np.array(truth)).max() <= 10


def test_a_task_is_as_long_as_its_kernels_not_as_its_place_in_the_stream(tmp_path, device):
    with recording(tmp_path, device) as recorder, recorder.step():
        with recorder.task("forward", microbatch=0):
            device.now += 300_000  # the host is slow; the stream has long been idle
            kernels = [device.launch(50_000), device.launch(20_000)]
            device.now += 300_000
    close(intervals(tmp_path), [interval(*kernels)])


def test_kernels_of_another_task_that_still_run_are_not_counted(tmp_path, device):
    with recording(tmp_path, device) as recorder, recorder.step():
        truth = []
        for i in range(4):
            with recorder.task("forward", microbatch=i):
                kernels = [device.launch(1_000_000) for _ in range(3)]
            truth.append(interval(*kernels))
    close(intervals(tmp_path), truth)


def test_what_autograd_launches_from_its_own_thread_belongs_to_the_backward(tmp_path, device):
    with recording(tmp_path, device) as recorder, recorder.step():
        with recorder.task("backward", microbatch=0):
            kernels = [device.launch(9000, thread=AUTOGRAD) for _ in range(5)]
    close(intervals(tmp_path), [interval(*kernels)])


def test_launches_of_the_driver_are_seen_too(tmp_path, device):
    with recording(tmp_path, device) as recorder, recorder.step(), recorder.task("forward"):
        kernels = [device.launch(9000, call=DriverApiTraceCbid.cuLaunchKernel)]
    close(intervals(tmp_path), [interval(*kernels)])


def test_communication_counts_in_communication_only(tmp_path, device):
    with recording(tmp_path, device) as recorder, recorder.step():
        with recorder.task("forward"):
            device.launch(70_000, NCCL)  # tensor parallelism
            compute = device.launch(10_000)
            device.launch(70_000, NCCL)
        with recorder.task("recv_forward"):
            device.launch(3000)  # makes room for what comes
            receive = device.launch(80_000, NCCL)
    close(intervals(tmp_path), [interval(compute), interval(receive)])


def test_how_long_kernels_ran_is_kept_without_the_gaps_between_them(tmp_path, device):
    with recording(tmp_path, device) as recorder, recorder.step():
        with recorder.task("forward"):
            kernels = [device.launch(50_000)]
            device.now += 300_000
            device.launch(70_000, NCCL)
            kernels.append(device.launch(20_000))
        with recorder.task("recv_forward"):
            device.launch(80_000, NCCL)
        with recorder.task("data"):
            device.now += 40_000
    assert kernels[1].start_ns - kernels[0].end_ns > 300_000
    assert read(tmp_path)["busy_ns"].to_list() == [70_000, 80_000, None]
    timeline = sources.load(tmp_path)
    assert budget(timeline) is None
    assert "what ran between tasks" in unknowable(timeline)


def test_a_limit_keeps_how_long_kernels_ran(tmp_path, device):
    with recording(tmp_path, device, max_mb=0.2) as recorder:
        for i in range(3000):
            with recorder.step(), recorder.task("forward", microbatch=i):
                device.launch(1000 + i)
    tasks = read(tmp_path)
    assert 0 < tasks.height < 3000
    assert (tasks["busy_ns"] == 1000 + tasks["microbatch"]).all()


def test_what_sees_no_kernels_records_nothing_of_them(tmp_path):
    with Recorder(tmp_path, rank=0, timer=CpuTimer()) as recorder, recorder.step():
        with recorder.task("forward"):
            pass
    rows, _ = read_stream(recorder.path.read_bytes())
    assert dict(rows.schema) == SCHEMA
    timeline = sources.load(tmp_path)
    assert timeline.tasks["busy_ns"].to_list() == [None]
    assert "--timer cupti" in unknowable(timeline)


def test_a_task_without_device_work_is_timed_on_the_host(tmp_path, device):
    with recording(tmp_path, device) as recorder, recorder.step():
        device.launch(500_000)
        began = device.now
        with recorder.task("data"):
            device.now += 40_000
        ended = device.now
    [[start, end]] = intervals(tmp_path)
    assert abs(start - began) < 100
    assert abs(end - ended) < 100


def test_a_task_inside_another_keeps_its_work(tmp_path, device):
    with recording(tmp_path, device) as recorder, recorder.step():
        with recorder.task("forward"):
            outer = [device.launch(10_000)]
            with recorder.task("recompute"):
                inner = [device.launch(20_000), device.launch(20_000)]
            outer.append(device.launch(10_000))
    close(intervals(tmp_path), [interval(*outer), interval(*inner)])


def test_of_tasks_that_begin_together_the_inner_one_launches(tmp_path, device):
    with recording(tmp_path, device) as recorder, recorder.step():
        with recorder.task("forward"), recorder.task("recompute"):
            inner = device.launch(20_000)
        device.now += 1000
    [_, recompute] = intervals(tmp_path)
    close([recompute], [interval(inner)])


def test_work_that_could_not_be_timed_does_not_count(tmp_path, device):
    with recording(tmp_path, device) as recorder, recorder.step(), recorder.task("forward"):
        kernel = device.launch(20_000)
        device.launch(20_000)
        device.records[-1].update(start=0, end=0)
    close(intervals(tmp_path), [interval(kernel)])


def test_a_task_that_outlives_its_step_keeps_what_it_launched_before(tmp_path, device):
    with recording(tmp_path, device) as recorder:
        with recorder.step(), recorder.task("forward"):
            device.launch(1000)
        with recorder.step():
            late = recorder.task("forward", microbatch=1)
            late.__enter__()
            kernels = [device.launch(10_000)]
            with recorder.task("backward"):
                other = [device.launch(10_000)]
        with recorder.step():
            kernels.append(device.launch(10_000))
            late.__exit__()
    close(intervals(tmp_path)[1:], [interval(*kernels), interval(*other)])


def test_steps_far_apart_stay_on_one_clock(tmp_path, device):
    truth = []
    with recording(tmp_path, device) as recorder:
        for _ in range(20):
            device.now += 3_600_000_000_000
            with recorder.step(), recorder.task("forward"):
                truth.append(interval(device.launch(10_000)))
    close(intervals(tmp_path), truth)


def test_outside_the_window_nothing_is_collected(tmp_path, device):
    collected = []
    with recording(tmp_path, device, start=1, stop=2) as recorder:
        for _ in range(4):
            with recorder.step():
                collected.append(bool(device.on))
                with recorder.task("forward"):
                    device.launch(1000)
            assert not device.records
    assert collected == [False, True, False, False]
    assert read(tmp_path).height == 1


def test_after_the_recording_nothing_is_collected(tmp_path, device):
    with recording(tmp_path, device) as recorder, recorder.step():
        assert device.on
    assert not device.on


CALLS = (*RuntimeApiTraceCbid, *DriverApiTraceCbid)
LAUNCHING = {"cudaMemcpyAsync_v3020", "cudaLaunchKernel_v7000", "cuLaunchKernel"}


def collected(folder, device):
    with recording(folder, device) as recorder, recorder.step():
        return {call.name for call in CALLS if call and device.collects(call)}


def test_only_calls_that_launch_are_collected(tmp_path, device):
    assert collected(tmp_path, device) == LAUNCHING
    assert not device.on


def test_older_packages_spell_the_names_of_calls_otherwise(tmp_path, monkeypatch):
    for name, old in (("Runtime", "runtime"), ("Driver", "driver")):
        calls = getattr(FakeCupti, f"{name}ApiTraceCbid")
        monkeypatch.delattr(FakeCupti, f"{name}ApiTraceCbid")
        monkeypatch.setattr(FakeCupti, f"{old}_api_trace_cbid", calls, raising=False)
    assert collected(tmp_path, FakeCupti()) == LAUNCHING


def test_packages_that_name_no_calls_collect_all(tmp_path, monkeypatch):
    monkeypatch.delattr(FakeCupti, "RuntimeApiTraceCbid")
    monkeypatch.delattr(FakeCupti, "DriverApiTraceCbid")
    assert collected(tmp_path, FakeCupti()) == {call.name for call in CALLS if call}


def test_thousands_of_tasks_in_one_step_are_told_in_between(tmp_path, device):
    truth = []
    with recording(tmp_path, device) as recorder, recorder.step():
        for i in range(5000):
            with recorder.task("forward", microbatch=i):
                truth.append(interval(device.launch(2000)))
    close(intervals(tmp_path), truth)


def test_a_job_that_fails_keeps_what_its_device_did(tmp_path, device):
    def train():
        with recording(tmp_path, device) as recorder, recorder.step():
            with recorder.task("forward"):
                truth.append(interval(device.launch(1_000_000)))
            raise ValueError("loss is NaN")

    truth = []
    with pytest.raises(ValueError, match="loss is NaN"):
        train()
    close(intervals(tmp_path), truth)


def test_a_lost_device_costs_the_recording_and_not_the_job(tmp_path, device):
    with pytest.warns(RuntimeWarning, match="stopped recording .an illegal memory access"):
        with recording(tmp_path, device) as recorder:
            with recorder.step(), recorder.task("forward"):
                device.launch(1000)
            device.fail_flush = RuntimeError("an illegal memory access")
            with recorder.step(), recorder.task("forward"):
                device.launch(1000)
            ran = recorder.recording
    assert not ran
    assert read(tmp_path)["step"].to_list() == [0]


def test_a_record_of_another_form_costs_the_recording_and_not_the_job(tmp_path, device):
    with pytest.warns(
        RuntimeWarning, match="stopped recording .a record of CUPTI could not be read"
    ):
        with recording(tmp_path, device) as recorder, recorder.step(), recorder.task("forward"):
            device.launch(1000)
            del device.records[-1]["name"]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from([1, 2])),
        st.tuples(st.just("end"), st.sampled_from([1, 2])),
        st.tuples(st.just("launch"), st.sampled_from([1, 2, AUTOGRAD])),
        st.tuples(st.just("wait"), st.integers(0, 50_000)),
        st.tuples(st.just("settle"), st.just(0)),
    ),
    max_size=60,
)


class Program:
    """Two threads with tasks inside tasks, a third that helps, and who launched what."""

    def __init__(self):
        self.device = FakeCupti()
        self.timer = CuptiTimer(self.device, self.device, self.device.clock)
        self.anchor = self.timer.anchor()
        self.thread = 1
        self.open = {1: [], 2: []}
        self.tasks = []

    def begin(self, thread):
        self.thread = thread
        task = SimpleNamespace(begin=self.timer.mark(), end=None, kernels=[])
        self.open[thread].append(task)
        self.tasks.append(task)

    def end(self, thread):
        self.thread = thread
        if self.open[thread]:
            self.open[thread].pop().end = self.timer.mark()

    def launch(self, thread):
        kernel = self.device.launch(7000, thread=thread)
        # A thread without a task of its own helps with the one begun last.
        mine = self.open.get(thread) or [task for task in self.tasks if task.end is None]
        for task in mine[-1:]:
            task.kernels.append(kernel)

    def wait(self, time_ns):
        self.device.now += time_ns

    def settle(self, _):
        self.timer.settle()

    def finish(self):
        for thread, tasks in self.open.items():
            while tasks:
                self.end(thread)
        self.timer.settle()


@settings(max_examples=examples(200), deadline=None)
@given(ACTIONS)
def test_every_kernel_is_of_the_task_that_launched_it(actions):
    program = Program()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cupti.threading, "get_native_id", lambda: program.thread)
        for action, value in actions:
            program.device.now += 100
            getattr(program, action)(value)
        program.device.now += 100
        program.finish()
    tasks = program.tasks
    if tasks:
        times = program.timer.resolve(
            [task.begin for task in tasks],
            [task.end for task in tasks],
            program.anchor,
            np.zeros(len(tasks), bool),
        )
        marks = [(task.begin[0] - AHEAD_NS, task.end[0] - AHEAD_NS) for task in tasks]
        assert times[2].tolist() == [
            sum(kernel.end_ns - kernel.start_ns for kernel in task.kernels) or -1 for task in tasks
        ]
        close(
            times[:2].T,
            [
                interval(*task.kernels) if task.kernels else mark
                for task, mark in zip(tasks, marks, strict=True)
            ],
        )


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(cupti.importlib.sys.modules, "cupti", None)
    with pytest.raises(RecorderError, match="pip install cupti-python"):
        CuptiTimer(cuda=FakeCupti())


def test_a_second_tool_in_the_process_is_an_error_that_says_so(device):
    def taken(*_):
        raise OSError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")

    device.activity_register_callbacks = taken
    with pytest.raises(RecorderError, match=r"MULTIPLE_SUBSCRIBERS.*without torch\.profiler"):
        CuptiTimer(device, device)


def test_it_is_never_chosen_unasked_and_needs_a_gpu(monkeypatch):
    monkeypatch.setitem(cupti.importlib.sys.modules, "torch", None)
    with pytest.raises(RecorderError, match="no device for the timer 'cupti'"):
        chosen_timer("cupti")


class TestRealPackage:
    """What the timer uses of cupti-python, in the package itself."""

    @pytest.fixture
    def real(self):
        return module("cupti.cupti")

    def test_the_functions_are_there(self, real):
        used = [name for name in vars(FakeCupti) if name.startswith(("activity_", "get_", "set_"))]
        assert len(used) == 8
        for name in used:
            assert callable(getattr(real, name))

    @pytest.mark.parametrize("fake", [ActivityKind, ActivityThreadIdType])
    def test_the_numbers_are_the_same(self, real, fake):
        theirs = getattr(real, fake.__name__)
        assert {name: int(theirs[name]) for name in fake.__members__} == dict(fake.__members__)

    @pytest.mark.parametrize(
        ("form", "fields"),
        [
            ("API", {"thread_id"}),
            ("Kernel", {"device_id", "name"}),
            ("Memcpy", {"device_id"}),
            ("MemcpyPtoP", {"device_id"}),
            ("Memset", {"device_id"}),
            ("GraphTrace", {"device_id"}),
        ],
    )
    def test_records_have_the_fields(self, real, form, fields):
        versions = [name for name in dir(real) if re.fullmatch(rf"Activity{form}\d*", name)]
        assert versions
        for version in versions:
            found = set(dir(getattr(real, version)))
            assert {"kind", "start", "end", "correlation_id", *fields} <= found

    @pytest.mark.parametrize(
        ("kind", "some"),
        [
            ("RUNTIME", {"cudaLaunchKernel_v7000", "cudaLaunchKernelExC_v11060"}),
            ("DRIVER", {"cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch"}),
        ],
    )
    def test_launching_calls_are_found_by_their_names(self, real, kind, some):
        [calls] = [getattr(real, enum) for enum in cupti._CALLS[kind] if hasattr(real, enum)]
        chosen = {call.name for call in calls if cupti._LAUNCHING.match(call.name)}
        assert some <= chosen
        assert not any("HostFunc" in call or "MemPool" in call for call in chosen)
