"""`BUBBLESCOPE_RECORD`: a job is recorded because its environment says so, whatever starts it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import textwrap
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from bubblescope import sources
from bubblescope.record.settings import LEAST_MB, MARKS, TIMERS, VARIABLE, Settings
from full import FULL, needs
from places import ROOT

PTH = ROOT / "src" / "bubblescope-record.pth"
READY = "import sys; print('_bubblescope_hooks' in sys.modules)"


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> str:
    """A Python in which bubblescope is installed, as the wheel does it: with its file for the start."""
    home = tmp_path_factory.mktemp("installed")
    venv.EnvBuilder(symlinks=True, with_pip=False).create(home)
    [packages] = home.glob("lib/python*/site-packages")
    # Folders that are named in such a file are not looked through for more of them.
    (packages / "_folders.pth").write_text(f"{ROOT / 'src'}\n{Path(np.__file__).parents[1]}\n")
    shutil.copy(PTH, packages)
    return str(home / "bin" / "python")


def run(command: list[str], told: str | None, **how) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"} | how.pop("env", {})
    environment.pop(VARIABLE, None)
    if told is not None:
        environment[VARIABLE] = told
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment, **how
    )


# The start of Python.


@pytest.mark.parametrize(
    ("flags", "ready"),
    [
        ([], True),
        (["-I"], True),  # neither the user's packages nor PYTHONPATH: ours is in site-packages
        (["-E"], True),  # no variables of Python's: ours is none of them
        (["-S"], False),  # no site-packages at all, so nothing that is installed can be imported
        (["-s"], True),
    ],
)
def test_every_python_gets_ready_that_looks_for_installed_packages(python, tmp_path, flags, ready):
    done = run([python, *flags, "-c", READY], f"out={tmp_path}")
    assert (done.stdout, done.stderr) == (f"{ready}\n", "")


def test_nothing_happens_without_the_variable(python):
    program = "import sys; print(*sys.modules)"
    without = run([python, "-c", program], None).stdout.split()
    assert not {name for name in without if "bubblescope" in name} | {"runpy", "csv"} & {*without}
    [installed] = Path(python).parents[1].glob(f"lib/python*/site-packages/{PTH.name}")
    aside = installed.rename(installed.with_suffix(".off"))
    try:
        assert run([python, "-c", program], None).stdout.split() == without
    finally:
        aside.rename(installed)


def test_the_file_is_installed():
    """Also where the package is editable; `./check` installs it so."""
    if not FULL:
        pytest.skip("./check --full runs it")
    try:
        files = distribution("bubblescope").files or []
    except PackageNotFoundError:
        pytest.fail("bubblescope is not installed here")
    [installed] = [file for file in files if file.name == PTH.name]
    assert Path(installed.locate()).read_text() == PTH.read_text()
    assert Path(installed.locate()).parent == Path(np.__file__).parents[1]


def test_both_ways_at_once_are_one(python, tmp_path):
    program = (
        "import sys; waiting = sys.modules['_bubblescope_hooks']._waiting; "
        "print(sum(map(len, waiting.values())))"
    )
    one = run([python, "-c", program], f"out={tmp_path}")
    both = run(
        [
            *(python, "-m", "bubblescope", "record", "-o", str(tmp_path / "out"), "--"),
            *(python, "-c", program),
        ],
        None,
    )
    assert one.stdout.split()[0] == both.stdout.split()[0]
    assert int(one.stdout) > 9


def test_record_reaches_an_isolated_python_in_which_it_is_installed(python, tmp_path):
    record = [python, "-m", "bubblescope", "record", "-o", str(tmp_path / "out"), "--"]
    assert run([*record, python, "-I", "-c", READY], None).stdout.startswith("True")


def test_processes_that_go_elsewhere_record_to_the_same_folder(python, tmp_path):
    program = (
        "import os, subprocess, sys; os.makedirs('elsewhere'); "
        f"told = 'import os; print(os.environ[\"{VARIABLE}\"])'; "
        "subprocess.run([sys.executable, '-c', told], cwd='elsewhere')"
    )
    done = run([python, "-c", program], "steps=2:3,out=here", cwd=tmp_path)
    assert Settings.from_text(done.stdout.strip()) == Settings(
        out=str(tmp_path / "here"), start=2, stop=3
    )


# What is written wrong.

WRONG = [
    ("step=10:15", "no setting 'step'; did you mean 'steps'?"),
    ("10:15", "no setting '10:15'; there are steps, out"),
    ("1", "no setting '1'; there are steps, out"),
    ("steps=10-15", "'10-15' is not like 10:15 (steps 10 to 14), 10: or :5"),
    ("steps=5:5", "there is no step in '5:5'"),
    ("steps", "'' is not like 10:15"),
    ("exit-after", "exit-after needs the last step, such as steps=10:15"),
    ("exit-after=yes,steps=:3", "exit-after is true or false, not 'yes'"),
    ("out=", "no folder is named to write to"),
    ("timer=sundial", "'sundial' is none of cuda, hip, npu, cupti, cpu"),
    ("marks=nvtx+torch", "'nvtx+torch' is none of nvtx, mstx, torch"),
    ("max-mb=much", "max-mb is a number of megabytes, not 'much'"),
    ("max-mb=0.01", "max-mb must be at least 0.08, not 0.01"),
    ("max-mb=nan", "max-mb must be at least 0.08, not nan"),
    ("prometheus=here", "'here' is neither a port"),
    ("overwrite", "overwrite is of `bubblescope record` alone"),
    ('out="x', "cannot be taken apart from 'out=\"x' on"),
    ('{"out": "x"}', "cannot be taken apart from"),
]


@pytest.mark.parametrize(("told", "said"), WRONG)
def test_what_makes_no_sense_is_refused_in_a_sentence(told, said):
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        Settings.from_text(told)
    assert "\n" not in str(error.value)


def test_a_typo_is_one_line_for_a_job_of_many_processes(python):
    program = """
        import subprocess, sys
        for _ in range(3):
            subprocess.run([sys.executable, "-c", "print('worked')"], check=True)
        sys.exit(7)
    """
    done = run([python, "-c", textwrap.dedent(program)], "step=10:15")
    assert (done.returncode, done.stdout) == (7, "worked\n" * 3)
    assert done.stderr == (
        "bubblescope: BUBBLESCOPE_RECORD=step=10:15 is not understood: there is no setting 'step'; did "
        "you mean 'steps'?; nothing will be recorded, and the job goes on\n"
    )


@pytest.mark.parametrize(
    "told",
    [Settings(), Settings(start=3), Settings(out='a,"b', stop=9, exit_after=True, marks=MARKS)],
)
def test_what_is_told_is_read_back(told):
    assert Settings.from_text(told.as_text()) == told


PLACES = some.text(some.characters(exclude_characters="\0"), min_size=1)


@given(
    some.builds(
        Settings,
        out=PLACES,
        start=some.integers(0, 9),
        stop=some.none() | some.integers(10, 10**9),
        timer=some.none() | some.sampled_from(TIMERS),
        marks=some.lists(some.sampled_from(MARKS)).map(tuple),
        max_mb=some.none() | some.floats(LEAST_MB, 1e9),
        profiler_api=some.booleans(),
        exit_after=some.just(value=False),
        prometheus=some.none() | some.sampled_from(["19400", "[::1]:80"]),
        notes=some.none() | PLACES,
        since_ns=some.none() | some.integers(0, 2**62),
    )
)
def test_whatever_is_told_is_read_back(told):
    assert Settings.from_text(told.as_text()) == told


def test_templates_may_write_it_on_several_lines_and_with_underscores():
    told = "steps=10:15, exit_after=true,\n  max_mb=100,profiler-api=false,"
    assert Settings.from_text(told) == Settings(start=10, stop=15, exit_after=True, max_mb=100)


# Jobs.

TRAIN = """
import os, sys, torch
from torch import distributed, nn

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, index): return torch.full((4,), float(index))

def train(rank, ranks, loaders):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", rank=rank, world_size=ranks, init_method=os.environ.get("MEET", "env://")
    )
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    how = {"num_workers": 1, "multiprocessing_context": loaders} if loaders else {}
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=4, **how):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    total = sum(parameter.sum().item() for parameter in model.parameters())
    print(f"rank {rank} {total!r}\\n", end="", flush=True)
    distributed.destroy_process_group()

if __name__ == "__main__":
    how, loaders = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    if how == "spawn":
        torch.multiprocessing.spawn(train, (2, loaders), nprocs=2)
    else:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), loaders)
"""


@pytest.fixture
def script(tmp_path) -> str:
    needs("torch")
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return str(path)


def passes(folder: Path) -> list[tuple]:
    """Return which forwards, backwards and optimizer's steps a recording holds."""
    tasks = sources.load(folder).tasks
    kinds = ["forward", "backward", "optimizer"]
    wanted = tasks.filter(tasks["kind"].cast(str).is_in(kinds))
    return sorted(wanted.select("rank", "step", wanted["kind"].cast(str), "microbatch").rows())


def spawned(python: str, script: str, meet: Path, *loaders: str) -> tuple[list[str], dict]:
    return [python, script, "spawn", *loaders], {"MEET": f"file://{meet}"}


@pytest.mark.parametrize("loaders", ["fork", "spawn"])
def test_it_does_what_the_command_does(python, script, tmp_path, loaders):
    """Of a job whose ranks, and the workers that load data, are processes that Python starts."""
    command, env = spawned(python, script, tmp_path / "meet-1", loaders)
    variable = run(command, f"out={tmp_path / 'variable'},steps=1:3", env=env)
    assert variable.returncode == 0, variable.stderr
    command, env = spawned(python, script, tmp_path / "meet-2", loaders)
    record = ["-m", "bubblescope", "record", "--steps", "1:3", "-o", str(tmp_path / "command")]
    recorded = run([python, *record, "--", *command], None, env=env)
    assert recorded.returncode == 0, recorded.stderr
    assert passes(tmp_path / "variable") == passes(tmp_path / "command")
    assert len(passes(tmp_path / "variable")) == 2 * 2 * 3
    assert sorted(path.name for path in tmp_path.glob("variable/*/*")) == sorted(
        path.name for path in tmp_path.glob("command/*/*")
    )
    assert variable.stderr == "" == recorded.stderr
    results = [sorted(done.stdout.splitlines())[-2:] for done in (variable, recorded)]
    assert results[0][0].startswith("rank 0 ")
    assert set(results[0]) <= set(recorded.stdout.splitlines())


def test_two_nodes_record_one_attempt(python, script, tmp_path):
    """Each node has a launcher of its own, and a folder of its own to start in."""
    nodes = []
    port = str(20_000 + os.getpid() % 20_000)
    for node in (0, 1):
        home = tmp_path / f"node{node}"
        home.mkdir()
        launcher = [
            *(python, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--nnodes", "2"),
            *("--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", port),
            *(script, "torchrun"),
        ]
        environment = {**os.environ, VARIABLE: f"out={tmp_path / 'out'}", "OMP_NUM_THREADS": "1"}
        nodes.append(subprocess.Popen(launcher, cwd=home, env=environment))
    assert [node.wait(timeout=300) for node in nodes] == [0, 0]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["attempt-0001"]
    assert {rank for rank, *_ in passes(tmp_path / "out")} == {0, 1}


def test_kubeflows_master_and_workers_record_one_attempt(python, script, tmp_path):
    """PyTorchJob tells the master that its address is localhost, and workers its name."""
    pods = []
    for rank, address in enumerate(["localhost", "job-master-0"]):
        environment = {
            **os.environ,
            VARIABLE: f"out={tmp_path / 'out'}",
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MEET": f"file://{tmp_path / 'meet'}",
            "MASTER_ADDR": address,
            "MASTER_PORT": "23456",
        }
        pods.append(subprocess.Popen([python, script, "pod"], env=environment))
    assert [pod.wait(timeout=300) for pod in pods] == [0, 0]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["attempt-0001"]
    assert {rank for rank, *_ in passes(tmp_path / "out")} == {0, 1}


def test_a_job_of_which_nothing_was_recorded_says_why(python, script, tmp_path):
    environment = {"RANK": "0", "WORLD_SIZE": "1", "MEET": f"file://{tmp_path / 'meet'}"}
    done = run([python, script, "alone"], f"out={tmp_path / 'out'},steps=100:", env=environment)
    assert done.returncode == 0
    assert re.fullmatch(
        "bubblescope: nothing was recorded: "
        r"of the \d training steps that began, from 0 on, none is in 100:\n",
        done.stderr,
    )


def test_a_process_that_does_not_train_says_nothing(python, tmp_path):
    needs("torch")
    done = run([python, "-c", "import torch, torch.optim"], f"out={tmp_path / 'out'}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
