"""Jobs in processes of this machine: all done, whatever dies, and nothing held back."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from loky import process_executor

from bubblescope.engine import engine, job
from bubblescope.engine.local import RESTARTED
from bubblescope.engine.sizes import byte_count
from bubblescope.model.errors import EngineError, SourceError
from engine_jobs import about, die, die_once, hoard, refuse, square, whoever

CORES = len(os.sched_getaffinity(0))


@pytest.fixture(params=[1, 2], ids=["here", "processes"])
def either(request):
    with engine(workers=request.param) as made:
        yield made


def test_every_job_is_done_once_and_known_by_its_index(either):
    done = list(either.run(square, range(30)))
    assert sorted(done) == [(number, number * number) for number in range(30)]


def test_nothing_to_do_is_done(either):
    assert list(either.run(square, [])) == []


def test_jobs_begin_as_results_are_taken():
    """Who stops taking them stops the work: no more than a few are ahead."""
    with engine(workers=1) as here:
        begun = []
        results = here.run(begun.append, range(100))
        next(results)
        assert begun == [0]


def test_what_a_job_raises_is_raised_and_the_others_are_given_up(either, tmp_path):
    jobs = [(number, tmp_path) for number in range(60)]
    with pytest.raises(SourceError, match=r"two\.json: is damaged"):
        list(either.run(refuse, jobs))
    assert len({one.name.split("-")[0] for one in tmp_path.iterdir()}) < 20


def test_processes_share_the_cores(monkeypatch):
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    with engine(workers=2) as two:
        found = [where for _, where in two.run(about, range(8))]
    assert os.getpid() not in {process for process, _, _ in found}
    assert {threads for _, threads, _ in found} == {max(1, CORES // 2)}


@pytest.mark.parametrize("said", ["", "dirty_decay_ms:7", "narenas:3"])
def test_workers_keep_memory_for_a_while_unless_the_user_says_otherwise(monkeypatch, said):
    """Of an option of the allocator that is said twice, the last counts."""
    monkeypatch.setenv("_RJEM_MALLOC_CONF", f"dirty_decay_ms:500,muzzy_decay_ms:1000,{said}")
    options = job.settings(1)["_RJEM_MALLOC_CONF"].split(",")
    read = dict(option.split(":") for option in options)
    assert read == {
        "narenas": "1",
        "muzzy_decay_ms": "0",
        "dirty_decay_ms": "10000",
        "oversize_threshold": "0",
        **dict(one.split(":") for one in [said] if one),
    }


def test_a_job_starts_no_workers_of_its_own():
    with engine(workers=2) as two:
        assert {workers for _, (_, _, workers) in two.run(about, range(4))} == {1}


def test_a_killed_process_costs_what_it_was_doing(tmp_path):
    jobs = [(number, tmp_path) for number in range(30)]
    with engine(workers=2) as two:
        done = sorted(two.run(die_once, jobs))
    assert done == [(number, number * number) for number in range(30)]


def test_a_job_that_kills_every_process_is_named_when_all_others_are_done():
    done = []
    with engine(workers=2) as two:
        results = two.run(die, range(12), name=lambda number: f"rank{number}.json")
        with pytest.raises(EngineError, match=r"^rank5\.json: each worker that tried it died"):
            done.extend(results)
    assert sorted(done) == [(number, number * number) for number in range(12) if number != 5]


def test_memory_of_a_process_is_bounded():
    with engine(workers=1, worker_memory="1GB") as bounded:
        assert list(bounded.run(hoard, [1 << 20])) == [(0, 1 << 20)]
        with pytest.raises(EngineError, match=r"^big: .* than the 1 GB of a worker"):
            list(bounded.run(hoard, [3 << 30], name=lambda _: "big"))


def test_dask_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "bubblescope.engine.dask_engine", raising=False)
    with pytest.raises(
        EngineError, match=r"Dask cannot be loaded .*pip install 'bubblescope\[dask\]'"
    ):
        engine("dask")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"mode": "slurm"}, "the ways are local and dask"),
        ({"workers": 0}, "at least 1"),
        ({"worker_memory": "much"}, "no amount of memory; write it as 8GB"),
        ({"worker_memory": 0}, "no amount of memory"),
        ({"scheduler": "tcp://x:1"}, "needs --mode dask"),
        ({"scheduler_file": "x.json"}, "needs --mode dask"),
    ],
)
def test_what_cannot_be_is_one_sentence(asked, said):
    with pytest.raises(EngineError, match=said):
        engine(**asked)


def test_amounts_of_memory_have_units_of_either_kind():
    assert byte_count("2kB") == 2000
    assert byte_count("2KiB") == byte_count("2kiB") == 2048
    assert byte_count("1.5GB") == 1_500_000_000


def test_workers_stay_where_there_is_less_to_do_for_a_while():
    """To start one takes a second, and with it ends what it had read and remembers."""
    with engine(workers=2) as workers:
        both = {pid for _, pid in workers.run(whoever, range(8))}
        assert len(both) == 2
        assert {pid for _, pid in workers.run(whoever, [0], apart=True)} < both
        assert {pid for _, pid in workers.run(whoever, range(8))} == both


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_who_started_them(tmp_path, how):
    """Also those that have found more than fits into a pipe, which nobody reads any more."""
    asks = (
        "from pathlib import Path\nfrom bubblescope.engine import engine\n"
        "from engine_jobs import find_much\n"
        f"list(engine(workers=2).run(find_much, [Path({str(tmp_path)!r})] * 4))"
    )
    with subprocess.Popen([sys.executable, "-c", asks], env=_WITH_HELPERS) as client:
        workers = _until(lambda: len(found := [*tmp_path.iterdir()]) == 2 and found)
        client.send_signal(how)
    assert _until(lambda: not any(Path(f"/proc/{worker.name}").exists() for worker in workers))


def _until(true, patience_s=60):
    """Return what comes true at last."""
    end = time.monotonic() + patience_s
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


_WITH_HELPERS = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}


def test_a_worker_that_is_replaced_is_not_told_of():
    """Loky warns of it, and on the terminal that says nothing to anybody."""
    source = re.sub(r'"\s+"', "", inspect.getsource(process_executor))
    [said, *_] = re.finditer(RESTARTED, source)
    with warnings.catch_warnings(record=True) as told:
        list(engine(workers=2).run(square, [1, 2], apart=True))
        warnings.warn(f"{said[0]}: a leak", UserWarning, stacklevel=1)
    assert told == []
