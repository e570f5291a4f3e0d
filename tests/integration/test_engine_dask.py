"""Jobs on a Dask cluster: the traps that Dask has, each tried."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bubblescope.cli import cli
from bubblescope.engine import engine
from bubblescope.model.errors import EngineError, SourceError
from engine_jobs import (
    about,
    count_up,
    die,
    die_once,
    fail_twice,
    large,
    objects,
    refuse,
    return_poison,
    slowly,
    square,
)
from kineto_maker import pipeline
from nsight_maker import Style
from places import ROOT

pytest.importorskip("distributed")

import dask
import msgspec
import yaml
from distributed import Client, LocalCluster, Security
from distributed.scheduler import KilledWorker

from bubblescope import sources
from bubblescope.engine import dask_engine, dask_scheduler, own_cluster

SCALE = ROOT / "docs" / "scale.md"
WANTED = own_cluster.Wanted(workers=2, memory=None, threads=1)

pytestmark = pytest.mark.filterwarnings("ignore")  # Dask's own, of its own calls


@pytest.fixture(scope="module")
def own():
    """A cluster of two processes of our own."""
    with engine("dask", workers=2) as made:
        yield made


@pytest.fixture
def other():
    """A cluster that somebody else runs: here, as threads."""
    with LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, protocol="tcp", dashboard_address=None
    ) as cluster:
        yield cluster


def below(pid):
    """Return the processes that a process has started, and those that these have."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *below(int(child))]
    return found


def listening(pids):
    """Return the addresses of IPv4 and IPv6, as /proc has them, at which processes listen."""
    sockets = {
        str(one.readlink())
        for pid in pids
        for one in Path(f"/proc/{pid}/fd").iterdir()
        if one.is_symlink()
    }
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
    ]
    return {
        line[1].partition(":")[0]
        for line in lines
        if line[3] == "0A" and f"socket:[{line[9]}]" in sockets
    }


def write(folder, microbatches):
    for trace in pipeline(Style(stages=2, microbatches=microbatches, steps=1))[0]:
        trace.write(folder / f"rank{trace.rank}.json")


def test_every_job_is_done_and_known_by_its_index(own):
    assert sorted(own.run(square, range(50))) == [(number, number * number) for number in range(50)]
    assert own.workers == 2


def test_nobody_else_can_reach_it(own):
    list(own.run(square, [1]))
    assert own._client.scheduler.address.startswith("tls://127.0.0.1:")
    assert listening([os.getpid(), *below(os.getpid())]) == {"0100007F"}


def test_workers_have_their_share_of_the_cores(own, monkeypatch):
    cores = len(os.sched_getaffinity(0))
    found = [where for _, where in own.run(about, range(8))]
    assert {threads for _, threads, _ in found} == {max(1, cores // 2)}
    assert {workers for _, _, workers in found} == {1}


def test_workers_of_its_own_seldom_look_for_garbage(own):
    """As those of `LocalEngine` do, by which a dataset takes three quarters of the time."""
    assert {after for _, after in own.run(objects, range(4))} == {200_000}


def test_workers_say_whether_they_see_a_folder(own, tmp_path):
    assert own.see(str(tmp_path))
    assert not own.see(str(tmp_path / "elsewhere"))


def test_equal_jobs_are_done_each(own, tmp_path):
    """Dask would do them once, and give the same value again while anybody holds it."""
    folder = str(tmp_path)
    assert {before for _, before in own.run(count_up, [folder, folder])} == {0, 1}
    assert [before for _, before in own.run(count_up, [folder])] == [2]


def test_a_file_that_changes_between_two_loads_is_read_anew(own, tmp_path):
    write(tmp_path, microbatches=2)
    before = sources.load(tmp_path, engine=own)
    assert before == sources.load(tmp_path)
    write(tmp_path, microbatches=4)
    after = sources.load(tmp_path, engine=own)
    assert len(after) == 2 * len(before)
    assert after == sources.load(tmp_path)


def test_a_killed_worker_costs_what_it_was_doing(own, tmp_path):
    jobs = [(number, tmp_path) for number in range(30)]
    assert sorted(own.run(die_once, jobs)) == [(number, number * number) for number in range(30)]


def test_a_job_that_kills_every_worker_is_named_when_all_others_are_done(own):
    done = []
    results = own.run(die, range(12), name=lambda number: f"rank{number}.json")
    with pytest.raises(EngineError, match=r"^rank5\.json: each worker that tried it died"):
        done.extend(results)
    assert sorted(done) == [(number, number * number) for number in range(12) if number != 5]


def test_a_job_that_fails_anew_while_its_lost_result_is_asked_for_has_failed(own, monkeypatch):
    """Workers took the result with them, and then the work failed on each other one."""
    list(own.run(square, [1]))

    async def gather(futures):
        for future in futures:
            future._state.set_error(KilledWorker("job", None, 2), None)
        raise futures[0]._state.exception

    monkeypatch.setattr(own._client, "_gather", gather)
    with pytest.raises(EngineError, match=r"^4: each worker that tried it died"):
        list(own.run(square, [4]))


def test_a_result_that_is_here_counts_when_its_worker_dies(own, monkeypatch):
    list(own.run(square, [1]))
    asked = own._client._gather

    async def gather(futures):
        results = await asked(futures)
        for future in futures:
            future._state.lose()
        return results

    monkeypatch.setattr(own._client, "_gather", gather)
    assert sorted(own.run(square, range(5)))[4] == (4, 16)


def test_a_result_that_kills_who_sends_it_is_that_of_a_deadly_job(own):
    with pytest.raises(EngineError, match=r"^3: each worker that tried it died"):
        list(own.run(return_poison, [3]))


def test_a_scheduler_that_does_not_tell_of_a_result_is_not_waited_for_without_end(own, monkeypatch):
    list(own.run(square, [1]))
    monkeypatch.setattr(dask_engine, "_LOOK_S", 0.05)
    monkeypatch.setattr(dask_engine, "_SILENT_S", 0.1)
    assert len(list(own.run(slowly, range(20)))) == 20
    monkeypatch.setitem(own._client._stream_handlers, "key-in-memory", lambda **_: None)
    with pytest.raises(
        EngineError, match="the Dask cluster of this run was lost, or gave the work"
    ):
        list(own.run(square, [4]))


def test_workers_that_nobody_restarts_are_replaced():
    with own_cluster._started(WANTED) as cluster, engine("dask", scheduler=cluster) as made:
        list(made.run(square, [1]))
        for watched in list(cluster.workers.values()):
            cluster.sync(watched.close)
        cluster.mend(2)
        assert sorted(made.run(square, range(20))) == [(number, number**2) for number in range(20)]


def test_a_cluster_of_our_own_looks_after_its_workers(own):
    """What watches over them is closed there, as by a death at a bad moment."""
    list(own.run(square, [1]))
    own._client.run_on_scheduler(close_all)
    assert sorted(own.run(square, range(20))) == [(number, number**2) for number in range(20)]


def test_a_cluster_of_our_own_shows_nothing_of_itself_also_once_a_worker_was_replaced(own):
    """Pages ask nobody who he is, and to look what a worker does, or if it answers, takes its time."""
    for _ in range(2):
        assert {shown for _, shown in own.run(shows, range(4))} == {(0, False, "1s")}
        own._client.run_on_scheduler(close_all)


def shows(_):
    pages, watched = "distributed.worker.http.routes", "distributed.worker.profile.enabled"
    asked = dask.config.get("distributed.admin.tick.interval")
    return len(dask.config.get(pages)), dask.config.get(watched), asked


@pytest.mark.skipif(sys.platform != "linux", reason="tells how glibc keeps memory")
def test_a_large_array_lies_where_another_was_in_a_cluster_of_our_own(own):
    """Else the system makes and clears all of its pages anew."""
    assert [new for _, new in own.run(new_pages, range(4))] == [pytest.approx(0, abs=50)] * 4


def new_pages(_):
    import resource

    found = []
    for _turn in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        one = np.ones(50 << 17)  # 50 MiB
        other = one + 1
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        del one, other
    return min(found)  # what else happens may let some be given back once


async def close_all(dask_scheduler):
    from distributed import SpecCluster

    (cluster,) = SpecCluster._instances
    for watched in list(cluster.workers.values()):
        await watched.close()


def test_a_worker_that_is_slow_to_come_back_is_not_given_up(tmp_path):
    """What Dask closes then is in the middle of a job, which is blamed for it."""
    jobs = [(number, tmp_path) for number in range(30)]
    with own_cluster._started(WANTED) as cluster, engine("dask", scheduler=cluster) as made:
        list(made.run(square, [1]))
        before = dict(cluster.workers)
        with dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"}):
            assert sorted(made.run(die_once, jobs)) == [(number, number**2) for number in range(30)]
        assert cluster.workers == before


def test_a_cluster_of_our_own_is_set_as_dask_is_here():
    with dask.config.set({"distributed.worker.memory.pause": 0.5}):
        with engine("dask", workers=1) as made:
            assert list(made.run(paused, [0])) == [(0, 0.5)]


def paused(_):
    return dask.config.get("distributed.worker.memory.pause")


def test_a_script_that_guards_nothing_can_start_a_cluster(tmp_path):
    """Processes that import it again would start clusters of their own."""
    script = tmp_path / "script.py"
    script.write_text(
        "from bubblescope.engine import engine\n"
        "with engine('dask', workers=1) as workers:\n"
        "    print(list(workers.run(abs, [-3])))\n"
    )
    command = [sys.executable, script]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert said == "[(0, 3)]\n"


def test_a_cluster_of_our_own_that_is_killed_is_one_sentence_and_leaves_no_worker():
    with engine("dask", workers=2) as made:
        results = made.run(slowly, range(500))
        next(results)
        workers = [one for one in below(made._cluster.process.pid) if "spawn_main" in command(one)]
        made._cluster.process.kill()
        with pytest.raises(EngineError, match="the Dask cluster of this run was lost"):
            list(results)
        assert len(workers) == 2
        gone(workers)
        assert sorted(made.run(square, [3])) == [(0, 9)]  # of another cluster


def command(pid):
    return Path(f"/proc/{pid}/cmdline").read_text()


def gone(processes):
    until = time.monotonic() + 20
    while any(Path(f"/proc/{one}").exists() for one in processes):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_terminal_that_interrupts_the_client_interrupts_no_worker(own):
    """Each would print where it was."""
    [(_, group)] = own.run(group_of, [0])
    assert group not in {0, os.getpgrp()}


def group_of(_):
    return os.getpgrp()


@pytest.mark.parametrize("asked", [b"", msgspec.json.encode(WANTED) + b"\n"])
def test_a_cluster_whose_client_is_gone_before_it_is_there_ends_without_a_word(asked):
    process = subprocess.Popen(
        [sys.executable, "-m", own_cluster.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    _, said = process.communicate(asked, timeout=120)
    assert (process.returncode, said) == (0, b"")


def test_a_cluster_of_our_own_that_cannot_be_started_is_one_sentence(monkeypatch):
    monkeypatch.setattr(own_cluster.sys, "executable", shutil.which("false"))
    with pytest.raises(
        EngineError, match=r"2 workers cannot be started \(its process ended with 1\)"
    ):
        list(engine("dask", workers=2).run(square, [1]))


def test_what_dask_says_against_a_cluster_of_our_own_is_one_sentence():
    with dask.config.set({"distributed.scheduler.idle-timeout": "no time"}):
        with pytest.raises(EngineError, match="1 workers cannot be started"):
            list(engine("dask", workers=1).run(square, [1]))


def test_what_a_job_raises_is_raised_at_once_and_not_tried_again(own, tmp_path):
    jobs = [(number, tmp_path) for number in range(200)]
    with pytest.raises(SourceError, match=r"two\.json: is damaged"):
        list(own.run(refuse, jobs))
    begun = [one.name.split("-")[0] for one in tmp_path.iterdir()]
    assert begun.count("2") == 1
    assert len(set(begun)) < 50


def test_what_may_pass_is_tried_again(own, tmp_path):
    jobs = [(number, tmp_path) for number in range(4)]
    assert sorted(own.run(fail_twice, jobs)) == [(number, number) for number in range(4)]


def test_what_the_client_holds_does_not_grow_with_the_jobs(own):
    size, most = 1 << 20, 0
    before = resident()
    for _, result in own.run(large, [size] * 80):
        assert len(result) == size
        most = max(most, len(own._client.futures))
    assert most <= 4 * dask_engine._AHEAD  # what is released is gone a little later
    assert resident() - before < 40 * size
    until = time.monotonic() + 10
    while own._client.futures:
        assert time.monotonic() < until
        time.sleep(0.01)


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_workers_of_another_version_are_told(own, monkeypatch):
    list(own.run(square, [1]))
    monkeypatch.setattr(dask_engine, "__version__", "9.9")
    with pytest.raises(
        EngineError, match=r"has bubblescope .*; install bubblescope 9\.9 with Python"
    ):
        dask_engine._need_versions(own._client, "it")


def test_a_cluster_that_runs_is_found_by_its_file_and_left_running(other, tmp_path, monkeypatch):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"type": "Scheduler", "address": other.scheduler_address}))
    by_address = {"scheduler": other.scheduler_address}
    for how in ({"scheduler_file": file}, by_address, {"scheduler": other}, {}):
        if not how:
            monkeypatch.setenv(dask_scheduler.FILE, str(file))
        with engine("dask", **how) as made:
            assert made.workers == 2
            assert sorted(made.run(square, range(5)))[4] == (4, 16)
    with Client(other) as theirs:
        assert theirs.submit(square, 3).result() == 9


def test_commands_read_where_they_are_told_to(other, tmp_path):
    write(tmp_path, microbatches=2)
    asked = ["info", str(tmp_path), "--json"]
    here = CliRunner().invoke(cli, asked)
    there = CliRunner().invoke(
        cli, [*asked, "--mode", "dask", "--scheduler", other.scheduler_address]
    )
    assert here.exit_code == there.exit_code == 0
    assert here.stdout == there.stdout
    assert other.scheduler.transition_counter
    wrong = CliRunner().invoke(cli, [*asked, "--scheduler", other.scheduler_address])
    assert "it needs --mode dask" in str(wrong.exception)


def test_a_cluster_that_is_lost_is_one_sentence(other):
    with engine("dask", scheduler=other.scheduler_address) as made:
        results = made.run(slowly, range(500))
        next(results)
        other.close()
        with pytest.raises(
            EngineError, match=r"the Dask scheduler tcp://.* \(--scheduler\) was lost"
        ):
            list(results)


def test_a_cluster_without_workers_is_one_sentence(monkeypatch):
    monkeypatch.setattr(dask_engine, "_WORKERS_S", 0.2)
    with LocalCluster(
        n_workers=0, processes=False, protocol="tcp", dashboard_address=None
    ) as empty:
        with engine("dask", scheduler=empty.scheduler_address) as made:
            with pytest.raises(EngineError, match="has had no workers for"):
                list(made.run(square, [1]))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("tcp://127.0.0.1:9", "does not answer within"),
        ("tls://127.0.0.1:9", "speaks TLS, and Dask's configuration here names no certificates"),
        ("nonsense://x:9", "has no such address"),
        ("10.0.0.1", "has no such address"),
    ],
)
def test_a_scheduler_that_cannot_be_reached_is_one_sentence(address, said, monkeypatch):
    monkeypatch.setattr(dask_engine, "_CONNECT_S", 0.3)
    with pytest.raises(EngineError, match=rf"the Dask scheduler {address} \(--scheduler\) {said}"):
        list(engine("dask", scheduler=address).run(square, [1]))


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot be read"), ("{", "is no scheduler file"), ("{}", "is no scheduler file")],
)
def test_a_scheduler_file_that_is_none_is_one_sentence(text, said, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_engine, "_CONNECT_S", 0.1)
    file = tmp_path / "scheduler.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv(dask_scheduler.FILE, str(file))
    with pytest.raises(EngineError, match=rf"{file}: {said}.*{dask_scheduler.FILE} names it"):
        list(engine("dask").run(square, [1]))


def test_what_is_asked_for_counts_before_the_environment(monkeypatch):
    monkeypatch.setenv(dask_scheduler.ADDRESS, "tcp://environment:1")
    assert dask_scheduler.meant(None, None).place == "tcp://environment:1"
    monkeypatch.setenv(dask_scheduler.FILE, "environment.json")
    assert dask_scheduler.meant(None, None).place == "environment.json"
    assert dask_scheduler.meant("tcp://asked:1", None).place == "tcp://asked:1"
    assert dask_scheduler.meant(None, "asked.json").place == "asked.json"
    with pytest.raises(EngineError, match="give one of them"):
        dask_scheduler.meant("tcp://asked:1", "asked.json")
    with pytest.raises(EngineError, match=r"\(DASK_SCHEDULER.* has workers of its own|FILE\) has"):
        engine("dask", workers=3)


@pytest.mark.parametrize(
    ("kind", "signs"),
    [
        ("SLURM", ["#SBATCH -p batch", "#SBATCH --cpus-per-task=8", "#SBATCH -t 01:00:00"]),
        (
            "PBS",
            ["#PBS -q batch", "#PBS -l select=1:ncpus=8:mem=60GB", "#PBS -l walltime=01:00:00"],
        ),
        ("LSF", ["#BSUB -q batch", "#BSUB -n 8", "#BSUB -W 01:00"]),
    ],
)
def test_job_queues_are_asked_for_workers_as_the_document_configures_it(kind, signs, tmp_path):
    jobqueue = pytest.importorskip("dask_jobqueue")
    [text] = re.findall(
        r"^```yaml\n(jobqueue:.*?)^```", SCALE.read_text(), re.MULTILINE | re.DOTALL
    )
    with dask.config.set(dask.config.merge(dask.config.config, yaml.safe_load(text))):
        cluster = getattr(jobqueue, f"{kind}Cluster")(
            security=Security.temporary(), protocol="tls", shared_temp_directory=str(tmp_path)
        )
        with cluster:
            script = cluster.job_script()
            assert engine("dask", scheduler=cluster)._scheduler.place.startswith("tls://")
    gc.collect()  # older versions leave a file open, of which other tests would be warned
    for sign in (*signs, "source /shared/venv/bin/activate", "--nworkers 8", "--nthreads 1"):
        assert sign in script
    assert " tls://" in script
    assert f"--tls-cert {tmp_path}" in script


def test_a_client_that_is_killed_leaves_nothing_running():
    code = (
        "from bubblescope.engine import engine\n"
        "import engine_jobs, time\n"
        "if __name__ == '__main__':\n"
        "    made = engine('dask', workers=1)\n"
        "    print(list(made.run(engine_jobs.square, [3])), flush=True)\n"
        "    time.sleep(60)\n"
    )
    helpers = str(Path(__file__).parents[1] / "helpers")
    path = os.pathsep.join([helpers, *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as client:
        assert client.stdout.readline() == b"[(0, 9)]\n"
        started = below(client.pid)
        assert started
        client.send_signal(signal.SIGKILL)
    until = time.monotonic() + 30
    while any(alive(pid) for pid in started):
        assert time.monotonic() < until, "workers outlive who started them"
        time.sleep(0.1)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
