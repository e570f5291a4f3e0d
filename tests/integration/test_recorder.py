"""The recorder: what it times, what it leaves out, and what survives a crash."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from itertools import chain, repeat
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubblescope import Lane, RecorderError, sources
from bubblescope.model.kinds import LANE_OF, Kind
from bubblescope.record import CudaTimer, Recorder, recorder, session
from bubblescope.record.settings import Settings
from bubblescope.recording import file as sink
from full import examples
from ticking import Ticks

COUNT = st.none() | st.integers(0, 30_000)


def read(folder):
    return sources.load(folder).tasks


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(
        st.lists(
            st.fixed_dictionaries(
                {
                    "kind": st.sampled_from(list(Kind)),
                    "microbatch": COUNT,
                    "chunk": COUNT,
                    "stage": COUNT,
                    "peer": COUNT,
                    "name": st.none()
                    | st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
                }
            ),
            max_size=5,
        ),
        max_size=4,
    )
)
def test_every_task_recorded_is_read_back(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("recording")
    with Recorder(folder, rank=3, timer=Ticks()) as recorder:
        for tasks in steps:
            with recorder.step():
                for task in tasks:
                    with recorder.task(**task):
                        pass
    columns = ["step", "kind", "microbatch", "chunk", "stage", "peer", "name", "lane"]
    found = read(folder).sort("start_ns").select(columns).rows()
    assert found == [
        (
            step,
            task["kind"].value,
            task["microbatch"],
            task["chunk"],
            task["stage"],
            task["peer"],
            task["name"] or task["kind"].value,
            LANE_OF[task["kind"]].value,
        )
        for step, tasks in enumerate(steps)
        for task in tasks
    ]


def test_intervals_are_the_timers(tmp_path):
    with Recorder(tmp_path, rank=0, timer=Ticks()) as recorder, recorder.step():
        with recorder.task("forward"):
            with recorder.task("recv_forward"):
                pass
    tasks = read(tmp_path).sort("start_ns")
    first = tasks["start_ns"][0]
    assert [(s - first, e - first) for s, e in tasks.select("start_ns", "end_ns").rows()] == [
        (0, 30),
        (10, 20),
    ]


def test_a_rank_describes_itself(tmp_path):
    with (
        Recorder(
            tmp_path,
            rank=5,
            stages=[1, 6],
            host="node7",
            device=2,
            schedule="zb-v",
            microbatches=4,
            dp=1,
        ) as recorder,
        recorder.step(),
    ):
        for chunk in (0, 1):
            with recorder.task("forward", chunk=chunk, microbatch=0):
                pass
    timeline = sources.load(tmp_path)
    [rank] = timeline.ranks.to_dicts()
    assert {
        key: rank[key] for key in ("rank", "host", "process", "device", "stages", "dp", "tp")
    } == {
        "rank": 5,
        "host": "node7",
        "process": os.getpid(),
        "device": 2,
        "stages": [1, 6],
        "dp": 1,
        "tp": None,
    }
    assert (timeline.run.schedule, timeline.run.microbatches) == ("zb-v", 4)
    assert timeline.tasks["stage"].to_list() == [1, 6]  # by chunk
    assert timeline.run.warnings == ()


def test_only_the_steps_of_the_window_are_recorded(tmp_path):
    with Recorder(tmp_path, rank=0, start=2, stop=4) as recorder:
        for _ in range(6):
            with recorder.step(), recorder.task("forward"):
                pass
            with recorder.task("gc"):  # between steps
                pass
    tasks = read(tmp_path).sort("start_ns")
    assert tasks.select("step", "kind").rows() == [
        (2, "forward"),
        (None, "gc"),
        (3, "forward"),
    ]


def test_exit_after_leaves_once_the_last_step_is_on_disk(tmp_path):
    def train():
        with Recorder(tmp_path, rank=0, stop=2, exit_after=True) as recorder:
            for _ in range(5):
                with recorder.step(), recorder.task("forward"):
                    pass

    with pytest.raises(SystemExit) as left:
        train()
    assert left.value.code == 0
    assert read(tmp_path)["step"].to_list() == [0, 1]


def test_an_exception_in_the_last_step_is_not_turned_into_an_exit(tmp_path):
    def train():
        with Recorder(tmp_path, rank=0, stop=1, exit_after=True) as recorder, recorder.step():
            with recorder.task("forward"):
                pass
            with recorder.task("backward"):
                raise FloatingPointError("loss is NaN")

    with pytest.raises(FloatingPointError, match="loss is NaN"):
        train()
    assert read(tmp_path)["kind"].to_list() == ["forward", "backward"]


def test_a_step_that_raises_is_on_disk_and_the_job_may_go_on(tmp_path):
    with Recorder(tmp_path, rank=0) as recorder:
        for step in range(3):
            with suppress(FloatingPointError), recorder.step(), recorder.task("forward"):
                if step == 1:
                    raise FloatingPointError
    assert read(tmp_path)["step"].to_list() == [0, 1, 2]


def test_a_task_that_outlives_its_step_belongs_to_the_step_it_began_in(tmp_path):
    with Recorder(tmp_path, rank=0) as recorder:
        task = recorder.task("backward")
        with recorder.step():
            task.__enter__()
        task.__exit__()
    assert read(tmp_path)["step"].to_list() == [0]


def test_a_lane_and_an_overlapped_pair_are_kept(tmp_path):
    with Recorder(tmp_path, rank=0) as recorder, recorder.step():
        with recorder.task("optimizer", lane="host"):
            pass
        with recorder.task("forward_backward", microbatch=4, pair=(1, None, 2), lane=Lane.COMPUTE):
            pass
    assert read(tmp_path).sort("start_ns").select(
        "lane", "pair_stage", "pair_chunk", "pair_microbatch"
    ).rows() == [("host", None, None, None), ("compute", 1, None, 2)]


def test_a_function_can_be_recorded_by_decorating_it(tmp_path):
    with Recorder(tmp_path, rank=0) as recorder:

        @recorder.wrap("forward", microbatch="i", chunk=1, peer="to")
        def run(x, i, *, to=None):
            return x + i

        with recorder.step():
            assert run(1, 2) == 3
            assert run(1, i=5, to=7) == 6
    assert read(tmp_path).sort("start_ns").select("microbatch", "chunk", "peer").rows() == [
        (2, 1, None),
        (5, 1, 7),
    ]
    with pytest.raises(RecorderError, match="has no parameter 'batch' to take a number from"):
        recorder.wrap("forward", microbatch="batch")(run)


def test_a_decorated_function_is_called_as_it_is_written(tmp_path):
    with Recorder(tmp_path, rank=0) as recorder:

        @recorder.wrap("forward", microbatch="i", chunk=np.int64(2))
        def run(x, i=9):
            return x, i

        with recorder.step():
            assert run(1) == (1, 9)
            with pytest.raises(TypeError, match="missing 1 required positional argument"):
                run()
    assert read(tmp_path).select("microbatch", "chunk").rows() == [(9, 2), (9, 2)]


def test_tasks_may_come_from_several_threads(tmp_path):
    with Recorder(tmp_path, rank=0) as recorder, recorder.step():

        def work(thread):
            for i in range(3000):
                with recorder.task("backward", microbatch=i, chunk=thread):
                    pass

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    tasks = read(tmp_path)
    assert sorted(tasks.select("chunk", "microbatch").rows()) == [
        (thread, i) for thread in range(4) for i in range(3000)
    ]


def test_a_task_that_ends_while_the_clocks_are_tied_is_kept(tmp_path):
    late = []

    class Slow(Ticks):
        def anchor(self):
            for task in late:  # as another thread would, while this one waits for the device
                task.__exit__()
            late.clear()

    with Recorder(tmp_path, rank=0, timer=Slow()) as recorder:
        with recorder.step():
            task = recorder.task("backward")
            task.__enter__()
            late.append(task)
        with recorder.step():
            pass
    assert read(tmp_path).select("step", "kind").rows() == [(0, "backward")]


def test_thousands_of_tasks_without_a_step_are_written_as_they_come(tmp_path):
    with Recorder(tmp_path, rank=0) as recorder:
        for i in range(10_000):
            with recorder.task("forward", microbatch=i):
                pass
        for _ in range(200):
            if (written := len(sources.load(tmp_path))) >= 8192:
                break
            time.sleep(0.05)
        assert written >= 8192
    assert read(tmp_path).sort("start_ns")["microbatch"].to_list() == list(range(10_000))


def test_vendor_marks_carry_names_that_are_read_back(tmp_path):
    class Marks:
        said: ClassVar[list[str]] = []

        def push(self, name):
            self.said.append(name)

        def pop(self):
            self.said.append("pop")

    with Recorder(tmp_path, rank=0, marks=Marks()) as recorder, recorder.step(7):
        with recorder.task("send_forward", microbatch=3, peer=1):
            pass
    assert Marks.said == ["bubblescope:send_forward step=7 microbatch=3 peer=1", "pop"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": -1}, "rank must be a whole number from 0 to 2147483647, not -1"),
        ({"rank": None}, "rank must be a whole number .* not None"),
        ({"rank": 0, "stop": 2.5}, "stop must be a whole number"),
        ({"rank": 0, "stages": [0, 1.5]}, "stage must be a whole number .* not 1.5"),
        ({"rank": 0, "start": -1}, "start must be a whole number"),
        (
            {"rank": 0, "start": 3, "stop": 3},
            r"no step to record: stop \(3\) must be after start \(3\)",
        ),
        ({"rank": 0, "exit_after": True}, "exit_after needs stop"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(tmp_path, arguments, message):
    with pytest.raises(RecorderError, match=message):
        Recorder(tmp_path, **arguments)


def test_misuse_is_refused(tmp_path):
    recorder = Recorder(tmp_path, rank=0)
    with pytest.raises(RecorderError, match="the recorder is not open"), recorder.step():
        pass
    with recorder:
        with pytest.raises(
            RecorderError, match="'sideways' is not a task kind; use one of forward"
        ):
            recorder.task("sideways")
        with pytest.raises(RecorderError, match="'gpu' is not a lane"):
            recorder.task("forward", lane="gpu")
        with recorder.step(4), pytest.raises(RecorderError, match="step 5 begins inside step 4"):
            recorder.step(5).__enter__()
        with pytest.raises(RecorderError, match="step must be a whole number"):
            recorder.step(-1)
    recorder.close()  # twice is fine


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"microbatch": -1}, "microbatch must be a whole number from 0 to 2147483647, not -1"),
        ({"microbatch": 1.0}, "not 1.0"),
        ({"peer": "next"}, "peer must be a whole number .* not 'next'"),
        ({"stage": 2**31}, "stage must be a whole number"),
        ({"chunk": 2**15}, "chunk must be a whole number from 0 to 32767, not 32768"),
        ({"name": 7}, "the name of a task must be text, not 7"),
        ({"pair": (1, 0, 2)}, "only a forward_backward task has a pair"),
        (
            {"kind": "forward_backward", "pair": (1, 0)},
            "a pair is its stage, chunk and micro-batch",
        ),
        ({"kind": "forward_backward", "pair": (1, -1, 0)}, "pair_chunk must be a whole number"),
    ],
)
def test_what_could_not_be_read_back_is_refused_before_the_task_runs(tmp_path, task, message):
    ran = False
    with Recorder(tmp_path, rank=0) as recorder, recorder.step():
        with pytest.raises(RecorderError, match=message):
            with recorder.task(**({"kind": "forward"} | task)):
                ran = True
        with recorder.task("forward"):
            pass
    assert not ran
    assert len(read(tmp_path)) == 1


def test_a_finished_recorder_is_not_opened_again(tmp_path):
    with Recorder(tmp_path, rank=0) as recorder, recorder.step(), recorder.task("forward"):
        pass
    with pytest.raises(RecorderError, match="is finished; make another recorder"):
        recorder.__enter__()
    assert len(read(tmp_path)) == 1


def test_a_task_before_the_recorder_is_open_just_runs(tmp_path):
    recorder = Recorder(tmp_path, rank=0)
    with recorder.task("forward"):
        pass
    with recorder:
        pass
    assert len(read(tmp_path)) == 0


def test_two_recorders_of_one_process_do_not_share_a_file(tmp_path):
    with Recorder(tmp_path, rank=0) as recorder, recorder.step(), recorder.task("forward"):
        with Recorder(tmp_path, rank=0) as rival:
            pass
    assert len(sources.load(recorder.path)) == 1
    assert len(sources.load(rival.path)) == 0


def test_a_recorder_that_cannot_write_warns_once_and_lets_the_job_run(tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = 0
    with pytest.warns(RuntimeWarning, match="bubblescope stopped recording") as warned:
        with Recorder(tmp_path / "file", rank=0) as recorder:
            for _ in range(3):
                with recorder.step(), recorder.task("forward"):
                    done += 1
    assert done == 3
    assert len(warned) == 1


def test_a_full_disk_costs_the_recording_but_not_the_steps_already_in_it(tmp_path, monkeypatch):
    room, used, queued = 1 << 20, None, threading.Event()
    write = os.write

    def full(file, data):
        nonlocal room, used
        used = file
        if not room:
            queued.wait()
            room = (
                1 << 20
            )  # somebody tidies up: what follows half a record must stay out all the same
            raise OSError(28, "No space left on device")
        room -= len(part := data[:room])
        return write(file, part)

    monkeypatch.setattr(sink.os, "write", full)
    with pytest.warns(RuntimeWarning, match=r"stopped recording \(No space left") as warned:
        with Recorder(tmp_path, rank=0) as recorder:
            for step in range(4):
                with recorder.step(), recorder.task("forward"):
                    pass
                if step == 1:
                    while len(sources.load(tmp_path)) < 2:  # another thread writes
                        time.sleep(0.01)
                    room = 100  # the next record is torn
            queued.set()
    assert len(warned) == 1
    with pytest.raises(OSError, match="Bad file descriptor"):  # it was closed
        os.fstat(used)
    timeline = sources.load(tmp_path)
    assert timeline.tasks["step"].to_list() == [0, 1]
    [notice] = timeline.run.warnings
    assert (notice.code, notice.lost) == ("torn-tail", 100)


class LostDevice(Ticks):
    """A timer that gives a number of marks and then fails, as all calls do on a lost device."""

    def __init__(self, marks):
        super().__init__()
        self.left = marks

    def mark(self):
        if not self.left:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.left -= 1
        return super().mark()


@pytest.mark.parametrize("marks", [2, 3])
def test_a_lost_device_ends_the_job_with_the_jobs_own_exception(tmp_path, marks):
    def train():
        with Recorder(tmp_path, rank=0, timer=LostDevice(marks)) as recorder:
            for step in range(2):
                with recorder.step(), recorder.task("forward"):
                    if step == 1:
                        raise FloatingPointError("loss is NaN")

    with pytest.warns(RuntimeWarning, match="illegal memory access") as warned:
        with pytest.raises(FloatingPointError, match="loss is NaN"):
            train()
    assert len(warned) == 1
    timeline = sources.load(tmp_path)
    assert timeline.tasks["step"].to_list() == [0]
    assert [notice.code for notice in timeline.run.warnings] == ["unclosed"]


def test_a_job_that_fails_does_not_wait_for_a_device_that_hangs(tmp_path, monkeypatch):
    hang = threading.Event()

    class Hung(Ticks):
        def settle(self):
            hang.wait()

        def resolve(self, *tasks):
            hang.wait()
            return super().resolve(*tasks)

    monkeypatch.setattr(recorder, "_PATIENCE_S", 0.05)

    def train():
        with Recorder(tmp_path, rank=0, timer=Hung()) as job, job.step(), job.task("collective"):
            raise TimeoutError("all-reduce timed out")

    try:
        with pytest.warns(RuntimeWarning, match="the device did not finish the last tasks"):
            with pytest.raises(TimeoutError, match="all-reduce timed out"):
                train()
    finally:
        hang.set()


RIVAL = """
import sys
from bubblescope.record import Recorder
with Recorder(sys.argv[1], rank=0) as recorder:
    pass
print(recorder.path)
"""


def test_two_processes_do_not_share_a_file(tmp_path):
    with Recorder(tmp_path, rank=0) as recorder, recorder.step(), recorder.task("forward"):
        rival = subprocess.run(
            [sys.executable, "-c", RIVAL, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert rival.stdout.strip() != str(recorder.path)
    assert len(sources.load(recorder.path)) == 1


KILLED = """
import os, signal, sys
from bubblescope.record import Recorder
with Recorder(sys.argv[1], rank=0) as recorder:
    for step in range(3):
        with recorder.step():
            for i in range(4):
                with recorder.task("forward", microbatch=i):
                    pass
                if step == 2 and i == 1:
                    print("now", flush=True)
                    sys.stdin.readline()
"""


def test_a_job_killed_in_mid_step_keeps_what_was_done_long_before(tmp_path):
    job = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with job:
        assert job.stdout.readline() == "now\n"
        for _ in range(200):  # another thread writes
            running = sources.load(tmp_path)  # readable while it is being written
            if len(running) == 8 + 2:
                break
            time.sleep(0.05)
        job.send_signal(signal.SIGKILL)
    killed = sources.load(tmp_path)
    for timeline in (running, killed):
        per_step = timeline.tasks.group_by("step").len().sort("step").rows()
        assert per_step == [(0, 4), (1, 4), (2, 2)]
        assert [notice.code for notice in timeline.run.warnings] == ["unclosed"]


class FakeCuda:
    """A device whose clock runs 5 % fast and 1 s ahead, and finishes work long after its launch."""

    DRIFT, AHEAD, LAG = 1.05, 1_000_000_000, 40_000

    def __init__(self):
        self.host = 0
        self.events = 0
        fake = self

        class Event:
            def __init__(self, *, enable_timing):
                assert enable_timing
                fake.events += 1

            def record(self):
                self.at = fake.host + fake.lag

            def synchronize(self):
                fake.host = max(fake.host, self.at)

            def elapsed_time(self, other):
                return (other.at - self.at) * fake.DRIFT / 1e6

        self.Event = Event
        self.lag = 0

    def synchronize(self):
        self.host += 10
        self.lag = 0

    def clock(self):
        return self.host


def test_cuda_events_time_the_device_and_not_the_launch():
    cuda = FakeCuda()
    timer = CudaTimer(cuda, cuda.clock)
    anchor = timer.anchor()
    anchored = cuda.host
    cuda.lag = cuda.LAG  # the device is busy: what is launched now runs later
    marks = []
    for _ in range(4):
        cuda.host += 100
        marks.append(timer.mark())
    times = timer.resolve(marks[::2], marks[1::2], anchor, np.zeros(2, bool))
    ran = [anchored + round((100 * k + cuda.LAG) * cuda.DRIFT) for k in (1, 2, 3, 4)]
    assert times.tolist() == [ran[::2], ran[1::2]]


def test_anchoring_every_step_keeps_the_clocks_drift_from_adding_up():
    cuda = FakeCuda()
    timer = CudaTimer(cuda, cuda.clock)
    errors = []
    for _ in range(50):
        cuda.host += 1_000_000  # a step
        anchor = timer.anchor()
        cuda.host += 1000
        begin = timer.mark()
        cuda.host += 10
        [[_], [end]] = timer.resolve([begin], [timer.mark()], anchor, np.zeros(1, bool)).tolist()
        errors.append(abs(end - cuda.host))
    assert max(errors) <= 51  # 5 % of the 1010 ns since the anchor, not of the whole run
    assert cuda.events <= 50 + 4 + 2  # one for each anchor; those of other readings are used again


def test_a_host_held_up_while_it_reads_the_clock_does_not_shift_the_step():
    cuda = FakeCuda()
    held = chain([0, 0, 0, 500_000, 0, 0, 300_000], repeat(0))

    def clock():
        cuda.host += next(held)
        return cuda.host

    timer = CudaTimer(cuda, clock)
    anchor = timer.anchor()
    cuda.host += 1000
    begin = timer.mark()
    [[_], [end]] = timer.resolve([begin], [timer.mark()], anchor, np.zeros(1, bool)).tolist()
    # Of what the device's clock is fast, 5 % of the time since the reading that was not held up.
    assert anchor.error_ns == 0
    assert abs(end - cuda.host) <= 0.05 * (cuda.host - anchor.time_ns)


def test_garbage_collected_while_the_job_waits_for_the_recorder_is_none_of_the_jobs(
    tmp_path, monkeypatch
):
    class Settling(Ticks):
        def settle(self):
            gc.collect()

    monkeypatch.setattr(session, "chosen_timer", lambda _: Settling())
    job = session.Session(Settings(out=str(tmp_path)))
    for collects in (True, False, True):
        job.begin_step()
        if collects:
            gc.collect()
    job.close()
    assert read(tmp_path).select("step", "kind").rows() == [(0, "gc"), (2, "gc")]


def test_threads_that_race_for_the_last_spare_event_both_get_one():
    cuda = FakeCuda()
    timer = CudaTimer(cuda, cuda.clock)
    anchor = timer.anchor()
    timer.resolve([timer.mark()], [timer.mark()], anchor, np.zeros(1, bool))  # now spare

    class Raced(list):
        """Looks as it did just before another thread took the last one."""

        def __len__(self):
            return 1

    timer._free = Raced(timer._free[:1])
    assert timer.mark() is not timer.mark()


def test_a_recorder_with_cuda_events_keeps_host_and_device_times(tmp_path):
    cuda = FakeCuda()
    timer = CudaTimer(cuda, cuda.clock)
    with Recorder(tmp_path, rank=0, timer=timer) as recorder, recorder.step():
        cuda.lag = cuda.LAG
        with recorder.task("forward"):
            cuda.host += 500
    [task] = read(tmp_path).to_dicts()
    assert task["end_ns"] - task["start_ns"] == round(500 * cuda.DRIFT)
    assert task["host_start_ns"] is not None


def test_the_file_is_a_plain_arrow_stream(tmp_path):
    ipc = pytest.importorskip("pyarrow.ipc")
    with Recorder(tmp_path, rank=0) as recorder:
        for _ in range(3):
            with recorder.step(), recorder.task("forward"):
                pass
        recorder.close()
        path = recorder.path
    assert ipc.open_stream(path).read_all().num_rows == 1 + 3


def test_a_file_that_was_not_closed_is_a_plain_arrow_stream_too(tmp_path):
    ipc = pytest.importorskip("pyarrow.ipc")
    with Recorder(tmp_path, rank=0) as recorder:
        for _ in range(3):
            with recorder.step(), recorder.task("forward"):
                pass
    whole = recorder.path.read_bytes()
    with ipc.open_stream(whole.removesuffix(b"\xff\xff\xff\xff\0\0\0\0")) as stream:
        header, *tasks = [batch.num_rows for batch in stream]
    assert (header, sum(tasks)) == (1, 3)


def test_processes_of_one_host_are_on_one_clock(tmp_path):
    for rank in (0, 1):
        with Recorder(tmp_path, rank=rank) as recorder, recorder.step(), recorder.task("forward"):
            pass
    tasks = read(tmp_path)
    assert (
        tasks.filter(pl.col("rank") == 0)["end_ns"][0]
        < tasks.filter(pl.col("rank") == 1)["start_ns"][0]
    )


BEGIN = "session.begin(Settings(out={folder!r}, timer='cpu'))"


@pytest.mark.parametrize(
    ("method", "before"),
    [("fork", "None"), ("forkserver", "None"), ("spawn", "None"), ("fork", BEGIN)],
    ids=["fork", "forkserver", "spawn", "fork of a process that has what is recorded"],
)
def test_a_process_of_multiprocessing_ends_its_last_step(tmp_path, method, before):
    """Those that are forked leave without what is registered with atexit.

    What is recorded, such as PyTorch, may have been imported before they are forked.
    """
    folder = str(tmp_path / "out")
    program = tmp_path / "job.py"
    program.write_text(
        textwrap.dedent(f"""
            import multiprocessing
            from bubblescope.model.kinds import Kind
            from bubblescope.record import session
            from bubblescope.record.buffer import identity_of
            from bubblescope.record.settings import Settings

            def train(job):
                job = job or {BEGIN.format(folder=folder)}
                for _ in range(2):
                    job.begin_step()
                    job.end(job.begin([identity_of(Kind.FORWARD, stage=0, microbatch=0)]))

            if __name__ == "__main__":
                job = {before.format(folder=folder)}
                process = multiprocessing.get_context({method!r}).Process(target=train, args=(job,))
                process.start()
                process.join()
        """)
    )
    subprocess.run([sys.executable, program], check=True, timeout=60)
    timeline = sources.load(tmp_path / "out")
    assert timeline.run.warnings == ()
    assert timeline.tasks.filter(kind="forward")["step"].to_list() == [0, 1]


FORKS = """
import os, sys
from bubblescope.record import Recorder
children = []
def child(recorder, how):
    for _ in range(2):
        with recorder.step(), recorder.task("backward", microbatch=9):
            pass
    if how == "exit":
        os._exit(0)
    sys.exit(0)  # through the `with` around it, and `atexit`
with Recorder(sys.argv[1], rank=0, stages=[0]) as recorder:
    for step in range(20):
        with recorder.step(), recorder.task("forward", microbatch=0):
            pid = os.fork()
            if not pid:
                child(recorder, "exit" if step % 2 else "leave")
            os.waitpid(pid, 0)
"""


def test_processes_that_are_forked_meanwhile_leave_the_recording_alone(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    run = sources.load(tmp_path)
    assert run.run.warnings == ()
    assert run.tasks["step"].to_list() == list(range(20))
    assert set(run.tasks["kind"]) == {"forward"}
