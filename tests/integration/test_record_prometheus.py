"""What a running job tells of its steps: to a function of its own and to Prometheus."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bubblescope import sources
from bubblescope.analysis.rates import bubble_rates
from bubblescope.analysis.study import study
from bubblescope.analysis.wall_clock import wall_clock
from bubblescope.model.kinds import Kind, Lane
from bubblescope.record import Recorder
from bubblescope.record.buffer import identity_of
from bubblescope.record.prometheus import serve
from bubblescope.record.session import Session
from bubblescope.record.settings import Settings, address_of
from bubblescope.record.step_times import step_times
from bubblescope.recording.columns import SPOILED, Header
from bubblescope.recording.file import Sink
from places import ROOT
from recorded_rows import recorded

pytest.importorskip("prometheus_client")


SECOND = 1_000_000_000


def header(rank, **facts):
    told = {"format": 1, "version": "1", "stages": [rank], "host": "here", "process": 7}
    return Header(**told, rank=rank, device=0, boot="boot", utc_ns=0, timer="cpu", **facts)


def free_port():
    """Return a port that was free with the one after it."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def scraped(port, host="127.0.0.1"):
    """Return metric with labels -> value, as Prometheus would read them."""
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        lines = answer.read().decode().splitlines()
    return {
        re.sub(r'dp="3",host="node 7",|,stage="1,6",tp=""', "", name): float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    }


def listening():
    """Return the ports that this process listens on."""
    own = {str(name.readlink()) for name in Path("/proc/self/fd").iterdir() if name.is_symlink()}
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text("ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def work(recorder, optimizer=True):
    """Run a step with idle time, an overlap of two threads and more than one kind."""
    with recorder.step():
        with recorder.task("forward", microbatch=0):
            time.sleep(0.004)
        time.sleep(0.004)

        def beside():
            with recorder.task("backward", microbatch=0):
                time.sleep(0.006)

        thread = threading.Thread(target=beside)
        thread.start()
        with recorder.task("forward", microbatch=1):
            time.sleep(0.004)
        thread.join()
        time.sleep(0.001)
        with recorder.task("forward", microbatch=2):
            time.sleep(0.001)
        if optimizer:
            with recorder.task("optimizer"):
                time.sleep(0.001)


def test_on_step_is_told_once_a_step_what_the_file_says(tmp_path):
    told = []
    with Recorder(tmp_path, rank=0, start=1, stop=4) as recorder:
        recorder.on_step(told.append)
        for _ in range(5):
            work(recorder)
    assert [times.step for times in told] == [1, 2, 3]
    run = sources.load(tmp_path)
    rates = bubble_rates(run).per_step
    table = bubble_rates(run).table
    for times in told:
        [row] = table.filter(step=times.step).to_dicts()
        assert (times.busy_ns, times.span_ns) == (row["busy_ns"], row["span_ns"])
        assert times.bubble == pytest.approx(rates[times.step].span)
        assert 0 < times.bubble < 1
        kinds = run.tasks.filter(step=times.step).group_by(pl.col("kind").cast(pl.String))
        assert times.kinds_ns == dict(
            kinds.agg((pl.col("end_ns") - pl.col("start_ns")).sum()).iter_rows()
        )


def whole(recorder, number, failing=False):
    """Run a step of a job that loads data, fails, writes checkpoints, collects garbage and rests."""
    aside = identity_of(Kind.OTHER, lane=Lane.HOST, microbatch=0)
    with recorder.step():
        if failing:
            with recorder.task("forward", microbatch=0):
                time.sleep(0.002)
            recorder.end_task(aside, recorder.begin_task(aside, SPOILED), SPOILED)
        with recorder.task("data"):
            time.sleep(0.003)
            with recorder.task("gc"):
                time.sleep(0.001)
        with recorder.task("recv_forward", microbatch=0, peer=1):
            time.sleep(0.002)
        with recorder.task("forward", microbatch=0), recorder.task("gc"):
            time.sleep(0.003)
        with recorder.task("other", name=f"log {number}", lane="host"):
            time.sleep(0.001)
        with recorder.task("other", name="loss", microbatch=0):
            time.sleep(0.001)
        with recorder.task("backward", microbatch=0):
            time.sleep(0.004)
        with recorder.task("optimizer"):
            time.sleep(0.001)
        time.sleep(0.002)
    with recorder.task("other", name="checkpoint", lane="host"):  # of no step
        time.sleep(0.002)


def spent_in(folder):
    """Return step -> what the rank was in and for how long, as the report says."""
    run = sources.load(folder)
    told = wall_clock(run, study(run).ledger)
    found = {step: {} for step in told.steps["step"]}
    for step, what, ns in told.table.select("step", "what", "spent_ns").iter_rows():
        found[step][what] = ns
    return found


def test_on_step_is_told_of_the_whole_step_before_as_the_report_has_it(tmp_path):
    told = []
    with Recorder(tmp_path, rank=0, stages=[0]) as recorder:
        recorder.on_step(told.append)
        for number in range(5):
            whole(recorder, number % 2, failing=number == 2)
    assert told[0].before is None
    before = {times.before.step: times.before for times in told[1:]}
    expected = spent_in(tmp_path)
    assert {step: one.spent_ns for step, one in before.items()} == expected
    assert sorted(expected) == [0, 1, 2, 3]
    for one, times in zip(before.values(), told, strict=False):
        assert sum(one.spent_ns.values()) == one.length_ns
        assert one.phase_ns == times.span_ns  # nothing of it ran on into the next
    assert {"garbage collection", "data loading", "log 0", "other tasks", "in no task"} <= {
        *before[0].spent_ns
    }
    assert before[1].spent_ns["forward and backward"] > 8_000_000  # with what failed after it


PASSES = {
    0: [("forward", 0, 3), ("backward", 9, 12)],
    1: [("forward", 3, 6), ("backward", 6, 9)],
}
"""Rank -> what it runs in a round of one micro-batch, by seconds; the next round begins at 20."""


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_report_rates_ranks_between_what_they_can_know_of_rounds(tmp_path, rounds):
    """As the documentation says: of one round the ratio is the rate; of several it is the most."""
    told = {}
    for rank, passes in PASSES.items():
        kinds, starts, ends = zip(*(passes * rounds), strict=True)
        turn_ns = 20 * SECOND * np.repeat(range(rounds), 2)
        rows = recorded(
            len(kinds),
            kind=kinds,
            step=0,
            microbatch=np.repeat(range(rounds), 2),
            start_ns=SECOND * np.array(starts) + turn_ns,
            end_ns=SECOND * np.array(ends) + turn_ns,
        )
        told[rank] = step_times(0, [rows], microbatches=1)
        written = Sink(tmp_path / f"rank{rank:05d}.bubbles", header(rank, microbatches=1))
        written.write(rows)
        written.close(complete=True)
    rates = {
        rank: rate.span for rank, rate in bubble_rates(sources.load(tmp_path)).per_rank.items()
    }
    least = {rank: 1 - one.busy_ns / (one.span_ns - one.between_ns) for rank, one in told.items()}
    most = {rank: one.bubble for rank, one in told.items()}
    if rounds == 1:
        assert rates == least == most == {0: 0.5, 1: 0}
    else:
        assert rates[0] == least[0] == 0.5  # nobody is in a round when it is in none
        assert least[1] == 0 < rates[1] < most[1]
        assert [one.between_ns for one in told.values()] == [16 * SECOND, 28 * SECOND]


def test_the_metrics_are_those_of_the_documentation(tmp_path):
    text = (ROOT / "docs" / "recording.md").read_text("utf-8")
    documented = set(re.findall(r"^\| `(bubblescope_\w+)` \|", text, re.MULTILINE))
    port, seen = free_port(), threading.Semaphore(0)
    with Recorder(tmp_path, rank=0) as recorder:
        stop = serve(recorder, str(port), 0)
        recorder.on_step(lambda _: seen.release())
        for number in range(2):
            whole(recorder, number)
            assert seen.acquire(timeout=120)
        served = {name.partition("{")[0] for name in scraped(port)}
        stop()
    assert {name for name in served if not name.endswith("_created")} == documented


def test_a_step_after_one_that_is_not_recorded_tells_of_no_whole_one(tmp_path):
    told = []
    with Recorder(tmp_path, rank=0) as recorder:
        recorder.on_step(told.append)
        for number in (0, 1, 5, 6):
            with recorder.step(number), recorder.task("forward"):
                pass
    assert [times.before and times.before.step for times in told] == [None, 0, None, 5]


def test_a_step_of_thousands_of_tasks_is_told_of_whole(tmp_path):
    told = []
    with Recorder(tmp_path, rank=0) as recorder:
        recorder.on_step(told.append)
        for _ in range(2):
            with recorder.step():
                for _ in range(10_000):
                    with recorder.task("forward"):
                        pass
    tasks = sources.load(tmp_path).tasks
    lengths = tasks.group_by("step").agg((pl.col("end_ns") - pl.col("start_ns")).sum())
    assert {times.step: times.kinds_ns["forward"] for times in told} == dict(lengths.iter_rows())


def test_a_step_without_forward_or_backward_is_not_told_of(tmp_path):
    told = []
    with Recorder(tmp_path, rank=0) as recorder:
        recorder.on_step(told.append)
        with recorder.step(), recorder.task("optimizer"):
            pass
        with recorder.step():
            pass
    assert told == []


def test_a_callback_that_fails_is_one_warning_and_the_others_are_called_on(tmp_path):
    told = []

    def bad(times):
        raise ZeroDivisionError(f"in step {times.step}")

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with Recorder(tmp_path, rank=0) as recorder:
            recorder.on_step(bad)
            recorder.on_step(told.append)
            for _ in range(3):
                with recorder.step(), recorder.task("forward"):
                    pass
    [warning] = warned
    assert warning.category is RuntimeWarning
    assert "failed (ZeroDivisionError: in step 0)" in str(warning.message)
    assert [times.step for times in told] == [0, 1, 2]
    assert sources.load(tmp_path).tasks["step"].to_list() == [0, 1, 2]


def test_prometheus_reads_what_the_last_step_was(tmp_path):
    port = free_port()
    told, seen = [], threading.Semaphore(0)
    with Recorder(tmp_path, rank=1, host="node 7", stages=[1, 6], dp=3, microbatches=1) as recorder:
        stop = serve(recorder, str(port), 1)
        recorder.on_step(lambda times: (told.append(times), seen.release()))
        try:
            with pytest.raises(urllib.error.URLError):
                scraped(port)  # that is rank 0's
            assert scraped(port + 1)['bubblescope_steps_total{rank="1"}'] == 0
            work(recorder)
            assert seen.acquire(timeout=120)
            first = scraped(port + 1)
            work(recorder, optimizer=False)
            assert seen.acquire(timeout=120)
            second = scraped(port + 1)
        finally:
            stop()
    for metrics, times in zip((first, second), told, strict=True):
        assert metrics['bubblescope_step{rank="1"}'] == times.step
        assert metrics['bubblescope_steps_total{rank="1"}'] == times.step + 1
        assert metrics['bubblescope_step_span_seconds{rank="1"}'] == times.span_ns / 1e9
        assert metrics['bubblescope_step_busy_seconds{rank="1"}'] == times.busy_ns / 1e9
        assert metrics['bubblescope_bubble_ratio{rank="1"}'] == pytest.approx(times.bubble)
        between_s = metrics['bubblescope_step_between_rounds_seconds{rank="1"}']
        assert between_s == times.between_ns / 1e9 > 0
        for kind in ("forward", "backward", "optimizer"):
            assert (
                metrics[f'bubblescope_step_task_seconds{{kind="{kind}",rank="1"}}']
                == times.kinds_ns.get(kind, 0) / 1e9
            )  # and nothing of an earlier step
    with pytest.raises(urllib.error.URLError):
        scraped(port + 1)  # stopped


def test_prometheus_reads_what_whole_steps_were(tmp_path):
    """Of twelve steps, each with a task of a name of its own."""
    port, seen, scrapes = free_port(), threading.Semaphore(0), []
    with Recorder(tmp_path, rank=1, host="node 7", stages=[1, 6], dp=3) as recorder:
        stop = serve(recorder, str(port), 0)
        recorder.on_step(lambda _: seen.release())
        try:
            for number in range(12):
                whole(recorder, number)
                assert seen.acquire(timeout=120)
                scrapes.append(scraped(port))
        finally:
            stop()
    expected = spent_in(tmp_path)
    metric = "bubblescope_whole_steps_seconds_total"
    for step, metrics in enumerate(scrapes):
        assert metrics['bubblescope_whole_steps_total{rank="1"}'] == step
        so_far = [expected[number] for number in range(step)]
        for what in ("forward and backward", "data loading", "in no task", "checkpoint"):
            total = sum(spent.get(what, 0) for spent in so_far)
            name = f'{metric}{{part="{what}",rank="1"}}'
            assert metrics.get(name, 0) == pytest.approx(total / 1e9, abs=1e-12)
        parts = [value for name, value in metrics.items() if name.startswith(metric)]
        assert sum(parts) == pytest.approx(sum(sum(one.values()) for one in so_far) / 1e9)
        if step:
            last = 'bubblescope_whole_step_seconds{part="%s",rank="1"}'
            assert metrics['bubblescope_whole_step{rank="1"}'] == step - 1
            assert metrics[last % "optimizer"] == expected[step - 1]["optimizer"] / 1e9
            if step > 1:
                assert metrics[last % "log 0"] == 0  # nothing of an earlier step
            phase_s = metrics['bubblescope_whole_step_phase_seconds{rank="1"}']
            assert 0 < phase_s < sum(expected[step - 1].values()) / 1e9
    names = {name for name in scrapes[-1] if name.startswith(metric)}
    assert sum("log" in name for name in names) == 7  # with checkpoints, eight names
    named = {name for name in names if "log" in name or "other tasks" in name}
    assert len(named) == 8  # what is beyond these is among the other tasks
    expected_s = sum(
        ns
        for step in range(11)
        for what, ns in expected[step].items()
        if "log" in what or what == "other tasks"
    )
    assert sum(scrapes[-1][name] for name in named) == pytest.approx(expected_s / 1e9)


def trained(folder, **settings):
    """Train three steps with a session of its own; return what it warned of, and where it listened."""
    session = Session(Settings(out=str(folder), timer="cpu", **settings))
    step = session.timed(time.sleep, lambda *_: identity_of(Kind.FORWARD))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            session.begin_step()
            step(0.001)
        ports = listening()
        session.close()
    assert sources.load(folder).tasks["step"].to_list() == [0, 1, 2]
    return [str(warning.message) for warning in warned], ports


def test_nothing_listens_unless_asked(tmp_path):
    before = listening()
    assert trained(tmp_path) == ([], before)


def test_this_machine_only_may_ask_unless_another_address_is_given(tmp_path):
    port = free_port()
    assert trained(tmp_path, prometheus=str(port)) == ([], listening() | {port})
    with Recorder(tmp_path / "other", rank=0) as recorder:
        stop = serve(recorder, str(port), 0)
        with socket.socket() as other:  # the port is free at every other address
            other.bind(("127.0.0.2", port))
        stop()
    assert port not in listening()


@pytest.mark.parametrize("address", ["taken", "65535", "203.0.113.7:19400"])
def test_where_nothing_can_listen_is_one_warning_and_the_recording_goes_on(
    tmp_path, monkeypatch, address
):
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("LOCAL_RANK", "1")  # which alone counts for the port
    with socket.socket() as other:
        if address == "taken":
            address = str(free_port())
            other.bind(("127.0.0.1", int(address) + 1))
            other.listen()
        [message] = trained(tmp_path, prometheus=address)[0]
    assert re.search(r"serves no metrics of rank 9 \(.*\); recording goes on", message)


def test_without_prometheus_client_recording_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    [message] = trained(tmp_path, prometheus="19400")[0]
    assert "pip install 'bubblescope[prometheus]'" in message


@pytest.mark.parametrize("text", ["", "host:", "0", "65536", "host:x", "²", ":-1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="is neither a port"):
        address_of(text)


def test_addresses_with_and_without_a_host():
    assert address_of("19400") == ("127.0.0.1", 19400)
    assert address_of("0.0.0.0:19400") == ("0.0.0.0", 19400)
    assert address_of("[::1]:19400") == ("::1", 19400)


def test_recording_alone_does_not_import_prometheus():
    code = "import sys, bubblescope.record; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
