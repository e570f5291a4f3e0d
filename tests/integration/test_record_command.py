"""`bubblescope record`: jobs that know nothing of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

import bubblescope
from bubblescope import sources
from bubblescope.model.errors import RecorderError
from bubblescope.model.kinds import Kind
from bubblescope.record import Recorder, hooks, instrument, session
from bubblescope.record.buffer import identity_of
from bubblescope.record.settings import VARIABLE, Settings
from bubblescope.render.text.report import Report
from full import needs
from jobs import forked

TRAIN = '''
"""An ordinary training script."""
import hashlib, sys, torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

steps, microbatches, names = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank, ranks = distributed.get_rank(), distributed.get_world_size()

def train(name):
    schedule_class = get_schedule_class(name)
    single = issubclass(schedule_class, PipelineScheduleSingle)
    v = name in ("ZBVZeroBubble", "DualPipeV")
    count = ranks if single else 2 * ranks
    places = [rank] if single else [rank, count - 1 - rank] if v else [rank, rank + ranks]
    models = []
    for place in places:
        torch.manual_seed(place)
        models.append(nn.Sequential(nn.Linear(16, 16), nn.Tanh()))
    stages = [PipelineStage(m, p, count, torch.device("cpu")) for m, p in zip(models, places)]
    loss_fn = nn.functional.mse_loss
    schedule = schedule_class(stages[0] if single else stages, microbatches, loss_fn=loss_fn)
    optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1)
    torch.manual_seed(7)
    x = torch.randn(4 * microbatches, 16)
    digest = hashlib.sha256()
    for _ in range(steps):
        losses = []
        target = torch.tanh(x) if count - 1 in places else None
        schedule.step(*((x,) if 0 in places else ()), target=target, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        for loss in losses:
            digest.update(loss.detach().numpy().tobytes())
    for model in models:
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
    print(f"{name} rank {rank} {digest.hexdigest()}\\n", end="", flush=True)

for name in names:
    train(name)
distributed.destroy_process_group()
'''

SCHEDULES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved-1f1b",
    "LoopedBFS": "looped-bfs",
    "InterleavedZeroBubble": "interleaved-zb",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipev",
}
RANKS, MICROBATCHES, STEPS = 4, 8, 3
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=ENVIRONMENT | environment,
    )


def recorded(folder: Path, *command: str, options: tuple[str, ...] = (), **environment: str):
    return run(
        [
            *(sys.executable, "-m", "bubblescope", "record", "--output", str(folder)),
            *options,
            "--",
            *command,
        ],
        **environment,
    )


def python(tmp_path: Path, program: str) -> tuple[str, str]:
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(program))
    return sys.executable, str(script)


def kinds(timeline) -> dict[str, int]:
    return dict(timeline.tasks.group_by("kind").len().iter_rows())


def launch(script: Path, *names: str) -> list[str]:
    """Return the command that trains with each of these schedules, one after the other."""
    script.write_text(TRAIN)
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)),
        *("--standalone", str(script), str(STEPS), str(MICROBATCHES), *names),
    ]


def results(done: subprocess.CompletedProcess, name: str) -> list[str]:
    """Return what the ranks print of a schedule's losses and weights."""
    found = sorted(line for line in done.stdout.splitlines() if line.startswith(f"{name} rank "))
    assert len(found) == RANKS, done.stderr[-2000:]
    return found


@pytest.fixture(scope="module")
def unrecorded(tmp_path_factory) -> subprocess.CompletedProcess:
    """A job that trains with one schedule after the other: starting PyTorch takes longer than that."""
    needs("torch")
    script = tmp_path_factory.mktemp("unrecorded") / "train.py"
    script.write_text(TRAIN)
    module = "torch.distributed.pipelining"
    return run(forked(RANKS, module, script, str(STEPS), str(MICROBATCHES), *SCHEDULES))


@pytest.fixture(scope="module")
def together(tmp_path_factory, unrecorded):
    """The same job, recorded: with the same losses and weights to the bit."""
    folder = tmp_path_factory.mktemp("together")
    done = recorded(folder / "recording", *launch(folder / "train.py", *SCHEDULES))
    assert done.returncode == 0, done.stderr[-2000:]
    for name in SCHEDULES:
        assert results(done, name) == results(unrecorded, name)
    timeline = sources.load(folder / "recording")
    assert timeline.steps == list(range(len(SCHEDULES) * STEPS))
    return timeline


def check(timeline, name: str) -> None:
    """Check that every F, B and W is there once, and the schedule recognised."""
    stages = RANKS if name in {"GPipe", "1F1B"} else 2 * RANKS
    counts = kinds(timeline)
    expected = MICROBATCHES * stages * STEPS
    assert counts["forward"] == expected
    assert counts.get("backward", 0) + counts.get("backward_input", 0) == expected
    assert counts.get("backward_weight", 0) == counts.get("backward_input", 0)
    passes = timeline.tasks.filter(timeline.tasks["lane"] == "compute").drop_nulls("microbatch")
    assert not passes.select("step", "stage", "microbatch", "kind").is_duplicated().any()
    assert counts["optimizer"] == RANKS * STEPS
    assert counts["send_forward"] == counts["recv_forward"] > 0
    assert counts["send_backward"] == counts["recv_backward"] > 0
    found = Report.of(timeline).to_dict()["schedule"]
    assert found["schedule"] == SCHEDULES[name]
    assert timeline.run.microbatches == MICROBATCHES


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_of_torch_is_recorded_as_it_ran(together, name):
    first = list(SCHEDULES).index(name) * STEPS
    timeline = together.slice(steps=range(first, first + STEPS))
    check(timeline, name)
    assert len(timeline.steps) == STEPS


@pytest.mark.parametrize("name", ["1F1B", "ZBVZeroBubble"])
def test_a_job_with_one_schedule_is_recorded_as_it_ran(tmp_path, unrecorded, name):
    done = recorded(tmp_path / "recording", *launch(tmp_path / "train.py", name))
    assert done.returncode == 0, done.stderr[-2000:]
    assert results(done, name) == results(unrecorded, name)
    timeline = sources.load(tmp_path / "recording")
    check(timeline, name)
    assert timeline.steps == list(range(STEPS))


BEGINS = """
import os, sys, threading
from bubblescope.model.kinds import Kind
from bubblescope.record import session
from bubblescope.record.buffer import identity_of
job = session.current()
job.begin_step()
"""


class TestTheJobComesFirst:
    """Whatever happens to us, the user's program runs as it would without."""

    def test_its_output_and_exit_code_are_its_own(self, tmp_path):
        done = recorded(
            tmp_path / "out", *python(tmp_path, "import sys; print('hello'); sys.exit(7)")
        )
        assert done.returncode == 7
        assert done.stdout.splitlines()[0] == "hello"

    def test_a_job_that_trains_nothing_is_told_so(self, tmp_path):
        done = recorded(tmp_path / "out", *python(tmp_path, "print('hello')"))
        assert done.returncode == 3
        assert "nothing was recorded" in done.stderr
        assert list((tmp_path / "out").iterdir()) == []

    def test_a_killed_job_says_by_what(self, tmp_path):
        program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        assert recorded(tmp_path / "out", *python(tmp_path, program)).returncode == 128 + 9

    @pytest.mark.parametrize(
        ("ends", "said"),
        [
            ("os.kill(os.getpid(), 9)", "was killed before anything was written"),
            ("sys.exit(1)", "but the job ended before any task of it did"),
        ],
    )
    def test_a_job_that_ends_as_it_begins_is_told_so(self, tmp_path, ends, said):
        done = recorded(tmp_path / "out", *python(tmp_path, BEGINS + ends))
        assert said in " ".join(done.stderr.split())

    @pytest.mark.parametrize(
        ("before", "said"),
        [
            ((), "1 process that imported PyTorch said nothing more: killed"),
            (("env", "-i", f"PYTHONPATH={os.pathsep.join(sys.path)}"), "had another environment"),
        ],
    )
    def test_a_job_of_which_no_word_comes_is_told_why_that_may_be(self, tmp_path, before, said):
        killed = """
            import os
            from bubblescope.record import session
            session.current()
            os.kill(os.getpid(), 9)
        """
        done = recorded(tmp_path / "out", *before, *python(tmp_path, killed))
        assert said in " ".join(done.stderr.split())

    def test_a_job_that_goes_on_as_another_program_loses_nothing(self, tmp_path):
        task = "job.end(job.begin([identity_of(Kind.FORWARD)]))"
        ends = f"""
try:
    os.execv("/no such program", ["it"])  # and goes on itself
except OSError:
    {task}
os.execvp("echo", ["echo", "goes on"])"""
        done = recorded(tmp_path / "out", *python(tmp_path, f"{BEGINS}{task}{ends}"))
        assert (done.returncode, done.stdout.splitlines()[0]) == (0, "goes on")
        timeline = sources.load(tmp_path / "out")
        assert timeline.run.warnings == ()
        assert len(timeline) == 2

    def test_a_job_that_makes_a_daemon_of_itself_is_said_to_go_on(self, tmp_path):
        go_on, gone = tmp_path / "go on", tmp_path / "gone"
        waits = f"""
            import os, time
            if not os.fork():
                os.setsid()
                while not os.path.exists({str(go_on)!r}):
                    time.sleep(0.01)
                open({str(gone)!r}, "w").close()
        """
        job = python(tmp_path, textwrap.dedent(waits))
        # What runs on holds the streams of the job, for whose end `recorded` would wait.
        done = recorded(tmp_path / "out", "sh", "-c", f'"{job[0]}" "{job[1]}" > /dev/null 2>&1')
        go_on.touch()
        assert done.returncode == 3
        assert "the job goes on in 1 process; what it records from here on goes to" in " ".join(
            done.stderr.split()
        )

    @pytest.mark.parametrize("hangs", [False, True])
    def test_a_job_that_leaves_at_once_loses_nothing_and_does_not_wait_for_long(
        self, tmp_path, hangs
    ):
        """By `os._exit`, as from a handler of a signal, or as another thread hangs within a hook."""
        held = "job.recorder._lock.acquire(); threading.Thread(target=os._exit, args=(5,)).start()"
        ends = f"{held}; threading.Event().wait()" if hangs else "os._exit(5)"
        program = f"{BEGINS}job.end(job.begin([identity_of(Kind.FORWARD)]))\n{ends}"
        home = tmp_path / "a b"
        home.mkdir()
        done = recorded(Path("~/out"), *python(tmp_path, program), HOME=str(home), COLUMNS="300")
        assert done.returncode == 5
        if not hangs:
            assert done.stdout.splitlines()[-1] == f"bubblescope report '{home / 'out'}'"
            assert sources.load(home / "out").run.warnings == ()

    def test_a_command_that_is_not_there(self, tmp_path):
        done = recorded(tmp_path / "out", "no-such-command")
        assert done.returncode == 2
        assert "no-such-command cannot be run" in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_job_in_which_warnings_are_errors(self, tmp_path):
        program = BEGINS + "job.fail(ValueError('ours'))\nprint('goes on')"
        interpreter, script = python(tmp_path, program)
        done = recorded(tmp_path / "out", interpreter, "-W", "error::RuntimeWarning", script)
        assert done.stdout.startswith("goes on"), done.stderr
        assert done.stderr.startswith("bubblescope stopped recording (ValueError: ours)")

    def test_a_script_that_is_no_program(self, tmp_path):
        _, script = python(tmp_path, "print(1)")
        done = recorded(tmp_path / "out", script, COLUMNS="300")
        assert done.returncode == 2
        assert f"such as python {script}" in done.stderr

    def test_a_sitecustomize_of_the_users_still_runs(self, tmp_path):
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "sitecustomize.py").write_text("import builtins; builtins.mine = 1")
        environment = {**ENVIRONMENT, "PYTHONPATH": str(tmp_path / "site")}
        done = subprocess.run(
            [
                *(sys.executable, "-m", "bubblescope", "record", "--output", str(tmp_path / "out")),
                *("--", *python(tmp_path, "print(mine)")),
            ],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.stdout.splitlines()[0] == "1"

    def test_nothing_of_ours_is_imported_before_a_framework_is(self, tmp_path):
        program = """
            import sys
            ours = ("bubblescope", "polars", "numpy")
            print([name for name in sys.modules if name.split(".")[0] in ours])
        """
        assert recorded(tmp_path / "out", *python(tmp_path, program)).stdout.startswith("[]")

    def test_without_the_command_the_hooks_do_nothing(self):
        program = (
            "import sys; sys.path.insert(0, sys.argv[1]); import sitecustomize; "
            "print('_bubblescope_hooks' in sys.modules)"
        )
        inject = Path(bubblescope.__file__).parent / "record" / "inject"
        clean = {key: value for key, value in ENVIRONMENT.items() if "BUBBLESCOPE" not in key}
        done = subprocess.run(
            [sys.executable, "-S", "-c", program, str(inject)],
            capture_output=True,
            text=True,
            env=clean,
            check=True,
        )
        assert done.stdout.strip() == "False"

    @pytest.mark.parametrize(
        "sabotage",
        [
            # A folder that cannot be written, settings that make no sense, a failure within a step.
            "import os; os.environ['BUBBLESCOPE_RECORD'] = 'out=/proc/nowhere'",
            "import os; os.environ['BUBBLESCOPE_RECORD'] = 'nonsense'",
            "import bubblescope.record.session as s; s.identity_of = None; s.Session.chunk_of = None",
        ],
    )
    def test_a_failure_of_ours_is_a_warning_and_training_goes_on(self, tmp_path, sabotage):
        needs("torch")
        script = tmp_path / "train.py"
        script.write_text(f"{sabotage}\n{TRAIN}")
        done = recorded(
            tmp_path / "out",
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--standalone", str(script), "2", "4", "1F1B"),
        )
        assert done.stdout.count("rank ") >= 2, done.stderr[-3000:]
        assert "bubblescope" in done.stderr


def test_a_framework_without_what_is_hooked_is_a_warning(monkeypatch):
    monkeypatch.setenv(VARIABLE, "out=nowhere")
    monkeypatch.setattr(session, "_session", None)
    strange = ModuleType("torch.distributed.pipelining.schedules")
    monkeypatch.setitem(sys.modules, strange.__name__, strange)
    hooked = hooks._applying("torch_pipelining:schedules")
    with pytest.warns(
        RuntimeWarning, match=r"cannot record torch.*PipelineScheduleSingle.*goes on"
    ):
        hooks.when_imported(strange.__name__, hooked)


class TestTheWindow:
    @pytest.fixture(autouse=True)
    def torch(self):
        needs("torch")

    def train(self, tmp_path, *options: str, steps: int = 6):
        script = tmp_path / "train.py"
        script.write_text(TRAIN)
        return recorded(
            tmp_path / "out",
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--standalone", str(script), str(steps), "4", "1F1B"),
            options=options,
        )

    def test_only_the_steps_asked_for_are_recorded(self, tmp_path):
        done = self.train(tmp_path, "--steps", "2:4")
        assert done.returncode == 0
        assert sources.load(tmp_path / "out").steps == [2, 3]
        assert done.stdout.count("rank ") >= 2  # the job went on to its end

    def test_the_job_can_leave_after_them(self, tmp_path):
        done = self.train(tmp_path, "--steps", "1:3", "--exit-after", steps=1000)
        assert sources.load(tmp_path / "out").steps == [1, 2]
        assert "rank 0" not in done.stdout  # it did not reach its end

    def test_each_start_is_an_attempt_and_what_was_recorded_before_stays(self, tmp_path):
        for steps in (1, 2):
            done = self.train(tmp_path, steps=steps)
            assert f"attempt-000{steps}" in done.stdout.replace("\n", "")  # a long path is folded
        assert sources.load(tmp_path / "out").steps == [0, 1]
        assert sources.load(tmp_path / "out", attempt=1).steps == [0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--steps", "5"), "10:15"),
        (("--steps", "5:5"), "no step"),
        (("--exit-after",), "--steps"),
        (("--max-mb", "0.01"), "at least 0.08"),
        (("--output", ""), "no folder is named to write to"),
        (("--prometheus", "here"), "port"),
        (("--timer", "sundial"), "sundial"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, options, said):
    done = recorded(tmp_path / "out", "true", options=options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_by_hand_only_known_frameworks_are_recorded():
    with pytest.raises(RecorderError, match="torch"):
        instrument("tensorflow")


def test_by_hand(tmp_path):
    needs("torch")
    script = tmp_path / "train.py"
    script.write_text(
        TRAIN.replace(
            "torch.set_num_threads(1)",
            "import bubblescope.record\n"
            "seen = []\n"
            f"bubblescope.record.instrument('torch', folder={str(tmp_path / 'out')!r}, start=1, "
            "on_step=lambda times: seen.append(times.step))\n"
            "import atexit; atexit.register(lambda: print('seen', seen))\n",
        )
    )
    done = run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--standalone", str(script), "3", "4", "1F1B"),
        ]
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert sources.load(tmp_path / "out").steps == [1, 2]
    assert "seen [1" in done.stdout


def test_what_was_recorded_before_a_failure_is_kept_and_said_to_be_part(tmp_path):
    job = session.begin(Settings(out=str(tmp_path), timer="cpu"))
    job.begin_step()
    task = job.timed(lambda: None, lambda: identity_of(Kind.FORWARD))
    task()
    with pytest.warns(RuntimeWarning, match="stopped recording .ValueError: no such stage"):
        job.fail(ValueError("no such stage"))
    task()
    job.close()
    timeline = sources.load(tmp_path)
    assert kinds(timeline) == {"forward": 1}
    assert [notice.code for notice in timeline.run.warnings] == ["unclosed"]


def test_a_session_that_was_closed_writes_no_more(tmp_path):
    job = session.begin(Settings(out=str(tmp_path / "one"), timer="cpu"))
    job.begin_step()
    job.timed(lambda: None, lambda: identity_of(Kind.FORWARD))()
    session.begin(Settings(out=str(tmp_path / "two"), timer="cpu")).close()
    [file] = (tmp_path / "one").rglob("rank00000.bubbles")
    written = file.read_bytes()
    job.begin_step()
    assert job.recorder is None
    assert file.read_bytes() == written


LOOP = """
import torch
from torch import distributed
distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
distributed.destroy_process_group()
"""


def test_two_nodes_that_share_the_folder_agree_on_the_attempt(tmp_path):
    """Each node has its own `bubblescope record`; torchrun counts a restart on one of them only."""
    needs("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    job, out = python(tmp_path, LOOP), tmp_path / "out"
    for counts in (("0", "0"), ("1", "0")):
        nodes = [
            subprocess.Popen(
                [sys.executable, "-m", "bubblescope", "record", "--output", str(out), "--", *job],
                env=ENVIRONMENT
                | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
                | {"MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none"}
                | {"TORCHELASTIC_RESTART_COUNT": count},
                stdout=subprocess.DEVNULL,
            )
            for rank, count in enumerate(counts)
        ]
        assert [node.wait(timeout=300) for node in nodes] == [0, 0]
    for attempt in (1, 2):
        run = bubblescope.load(out, attempt=attempt)
        assert run.ranks["rank"].to_list() == [0, 1]
        assert run.steps == [0, 1]


def write(folder, number):
    """Record a task as a job does that is done with it."""
    with Recorder(folder, rank=0, stages=[0]) as recorder, recorder.step(number):
        with recorder.task("forward", microbatch=0):
            pass
    return recorder.path


def test_a_typing_error_or_a_running_job_deletes_nothing(tmp_path):
    out = tmp_path / "out"
    kept = write(out, 7)
    done = recorded(out, "pythn", "train.py", options=("--overwrite",))
    assert done.returncode == 2
    assert "pythn cannot be run: no such program was found" in " ".join(done.stderr.split())
    assert sources.load(kept).steps == [7]
    with Recorder(out, rank=0) as recorder, recorder.step(8), recorder.task("forward"):
        done = recorded(out, "true", options=("--overwrite",))
        assert done.returncode == 2
        assert "is being recorded to by a running job" in " ".join(done.stderr.split())
    assert sources.load(kept).steps == [7]
    assert sources.load(recorder.path).steps == [8]


def test_overwrite_deletes_what_was_recorded_and_nothing_else(tmp_path):
    out = tmp_path / "out"
    attempt = write(out, 7).parent
    (out / "notes.txt").write_text("mine")
    (attempt / "trace.json").write_text("a profiler's")
    write(out, 8)
    assert recorded(out, "true", options=("--overwrite",)).returncode == 3
    assert sorted(path.name for path in out.rglob("*")) == [
        "attempt-0001",
        "notes.txt",
        "trace.json",
    ]


EVALUATES = """
import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
stage = PipelineStage(nn.Linear(4, 4), 0, 1, torch.device("cpu"))
schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
x = torch.ones(8, 4)
schedule.eval(x, target=x)
for _ in range(3):
    schedule.step(x, target=x)
    optimizer.step()
    schedule.eval(x, target=x)
distributed.destroy_process_group()
"""


def test_an_evaluation_is_no_training_step(tmp_path):
    needs("torch")
    done = recorded(tmp_path / "out", *python(tmp_path, "import gc; gc.disable()" + EVALUATES))
    assert done.returncode == 0, done.stderr
    run = sources.load(tmp_path / "out")
    assert run.steps == [0, 1, 2]
    assert kinds(run) == {
        **dict.fromkeys(("forward", "backward"), 12),
        **dict.fromkeys(("optimizer", "collective"), 3),
        "other": 12 + 4,  # losses, and evaluations
    }
    beside = run.tasks.filter(name="evaluation")
    assert beside["step"].to_list() == [None, 0, 1, 2]  # one before the first step
    assert beside["lane"].unique().to_list() == ["host"]


OWN_LOOP_AFTER = """
import sys, torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
model = nn.Linear(4, 4)
stage = PipelineStage(model, 0, 1, torch.device("cpu"))
schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
one, other = (torch.optim.SGD([p], lr=0.1) for p in model.parameters())
x = torch.ones(8, 4)
for _ in range(3):
    schedule.step(x, target=x)
    one.step()
    other.step()
for _ in range(int(sys.argv[1])):
    model(x).sum().backward()
    one.step()
distributed.destroy_process_group()
"""


@pytest.mark.parametrize("steps", [0, 4])
def test_a_loop_of_its_own_after_a_frameworks_schedules_is_not_left_out_in_silence(tmp_path, steps):
    """Two optimizers that step once each are none: it takes the same one twice."""
    needs("torch")
    done = recorded(tmp_path / "out", *python(tmp_path, OWN_LOOP_AFTER), f"{steps}")
    assert done.returncode == 0, done.stderr
    assert sources.load(tmp_path / "out").steps == [0, 1, 2]
    said = " ".join(done.stderr.split())
    assert ("trains in a loop of its own now, not by the schedules of torch" in said) == (steps > 0)
    assert (f"the job trained at least {steps} steps in a loop of its own" in said) == (steps > 0)


STEPS_WITHIN = """
import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
model, balance = nn.Linear(4, 4), nn.Parameter(torch.zeros(4))
balancing, training = torch.optim.SGD([balance], lr=0.1), torch.optim.SGD(model.parameters(), lr=0.1)
def loss(output, target):
    balance.grad = output.detach().mean(0)
    balancing.step()
    return nn.functional.mse_loss(output, target)
schedule = Schedule1F1B(PipelineStage(model, 0, 1, torch.device("cpu")), 4, loss_fn=loss)
x = torch.ones(8, 4)
for _ in range(3):
    schedule.step(x, target=x)
    training.step()
distributed.destroy_process_group()
"""


def test_an_optimizer_that_steps_within_a_schedule_is_no_loop_of_the_jobs_own(tmp_path):
    """It steps for each micro-batch, as what balances experts may."""
    needs("torch")
    done = recorded(tmp_path / "out", *python(tmp_path, STEPS_WITHIN))
    assert done.returncode == 0, done.stderr
    assert sources.load(tmp_path / "out").steps == [0, 1, 2]
    assert "loop of its own" not in done.stderr


ACCUMULATES = """
import gc, sys, torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
gc.disable()
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
stage = PipelineStage(nn.Linear(4, 4), 0, 1, torch.device("cpu"))
schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
mode = sys.argv[1]
made = mode not in ("none", "own")
optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1) if made else None
x, wrong = torch.ones(8, 4), torch.ones(8, 3)
for step in range(3):
    for turn in range(3):
        if mode == "fails" and (step, turn) in ((1, 0), (1, 2), (2, 1)):
            try:
                schedule.step(wrong, target=x)
            except (RuntimeError, ValueError):
                pass
        schedule.step(x, target=x)
        if mode == "zero":
            optimizer.zero_grad()
    if mode in ("steps", "fails"):
        optimizer.step()
    if mode in ("own", "unused"):  # an optimizer that PyTorch does not know
        with torch.no_grad():
            for weight in stage.submod.parameters():
                weight -= 0.1 * weight.grad
    if mode == "own":
        stage.submod.zero_grad()
distributed.destroy_process_group()
"""


@pytest.mark.parametrize("mode", ["steps", "fails"])
def test_calls_that_accumulate_are_rounds_of_one_step(tmp_path, mode):
    """Whatever fails is tried again, and shifts nothing."""
    needs("torch")
    done = recorded(tmp_path / "out", *python(tmp_path, ACCUMULATES), mode)
    assert done.returncode == 0, done.stderr
    run = sources.load(tmp_path / "out")
    assert run.steps == [0, 1, 2]
    for step in run.steps:
        own = run.tasks.filter(step=step)
        for kind in ("forward", "backward"):
            assert own.filter(kind=kind)["microbatch"].to_list() == list(range(12))
        assert own.filter(kind="optimizer").height == 1
    told = [one for one in run.run.warnings if one.code == "failed-steps"]
    assert [one.lost for one in told] == [3] * (mode == "fails")


def test_an_optimizer_that_torch_does_not_know_ends_steps(tmp_path):
    """Weights that change show it. Before, only an optimizer that PyTorch knows tells of rounds."""
    needs("torch")
    for mode, first in (("unused", [12]), ("own", [4, 4, 4])):
        done = recorded(tmp_path / mode, *python(tmp_path, ACCUMULATES), mode)
        assert done.returncode == 0, done.stderr
        forwards = sources.load(tmp_path / mode).tasks.filter(kind="forward")
        counts = forwards.group_by("step").len().sort("step")
        assert counts["step"].to_list() == list(range(len(first) + 2))
        assert counts["len"].to_list() == [*first, 12, 12]


@pytest.mark.parametrize("mode", ["none", "zero"])
def test_without_steps_of_an_optimizer_each_call_is_a_step(tmp_path, mode):
    needs("torch")
    assert recorded(tmp_path / "out", *python(tmp_path, ACCUMULATES), mode).returncode == 0
    run = sources.load(tmp_path / "out")
    assert run.steps == list(range(9))
    assert run.tasks.filter(kind="forward")["microbatch"].max() == 3
