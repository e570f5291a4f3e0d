"""The table of public traces: what the script says of a folder, and that its own count can disagree."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

from kineto_maker import Trace
from nsight_maker import Export
from places import ROOT

SCRIPT = ROOT / "benchmarks" / "traces.py"
INDEX = """
[[origin]]
name = "someone/traces"
commit = "0123456789abcdef"
licence = "MIT"
folder = "someone+traces"

[[origin.trace]]
name = "two ranks"
paths = ["run/rank*.json"]
holds = "two kernels | on each rank"
checked = "By hand."

[[origin.trace]]
name = "not fetched"
paths = ["elsewhere/*"]
"""


@pytest.fixture(scope="module")
def script():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("traces", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trace(rank):
    made = Trace(rank=rank, device=rank)
    made.range("PP:0F0", 100, 200)
    made.kernel(5000, 6000, at=110)
    made.kernel(5500, 7000, at=120)  # of which 500 ns overlap
    return made


def test_a_folder_becomes_rows_with_what_was_counted_again(tmp_path):
    run = tmp_path / "someone+traces" / "run"
    run.mkdir(parents=True)
    for rank in (0, 1):
        trace(rank).write(run / f"rank{rank}.json")
    (tmp_path / "notes.json").write_text('{"no": "trace"}')
    index = tmp_path.with_suffix(".toml")
    index.write_text(INDEX, "utf-8")

    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, "--index", index],
        capture_output=True,
        text=True,
        check=True,
    )

    first, second = done.stdout.split("### ")[1:]
    title = "[someone/traces](https://github.com/someone/traces) at `0123456789ab`, MIT"
    assert first.splitlines()[0] == title
    [row] = [line for line in first.splitlines() if line.startswith("| two ranks")]
    name, holds, size, told, code, checked = row.strip("| ").replace("\\|", "/").split(" | ")
    assert (name, holds, code) == ("two ranks", "two kernels / on each rank", "0")
    assert size == "kineto, 2 ranks, 1 step, 2 tasks"
    assert "compute 100.0%" in told
    assert checked == "busy by 4 operations in the files: 0.004 ms, the same. By hand."
    assert "not fetched" not in done.stdout
    assert second.splitlines()[0] == "not in the index"
    assert "| notes.json |  | – | refused: is not a trace of a known format | 2 | – |" in second


def test_what_is_no_folder_is_refused_in_one_sentence(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "none"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("none is no folder")


def told(idle_ns):
    return {
        "run": {"sources": [{"format": "kineto"}], "tasks": 1},
        "device": {"capture": {"total_ns": 2000, "idle_ns": idle_ns}},
    }


@pytest.mark.parametrize(("idle_ns", "same"), [(0, "the same"), (100, "NOT THE SAME")])
def test_a_report_that_says_something_else_than_the_file_is_found_out(
    script, tmp_path, idle_ns, same
):
    path = trace(0).write(tmp_path / "rank0.json.gz")
    assert script.again(script.Trace("", [path]), told(idle_ns)).endswith(f"0.002 ms, {same}.")


def test_the_verdict_is_on_idle_time(script):
    findings = [
        {"role": "verdict", "key": "whole_step"},
        {"role": "evidence", "key": "outside"},
        {"role": "verdict", "key": "causes"},
    ]
    assert [script.is_of_idle_time(one) for one in findings] == [False, False, True]


def test_times_since_1970_are_counted_to_the_nanosecond(script, tmp_path):
    event = '{"ph": "X", "cat": "kernel", "pid": 0, "ts": %s, "dur": %s}'
    since = "1750000000000000"
    events = [event % (f"{since}.001", "0.250"), event % (f"{since}.200", "1")]
    path = tmp_path / "rank0.json"
    path.write_text(f'{{"traceEvents": [{", ".join(events)}]}}')
    [(_, first, _), (_, start, end)] = script.kineto(path)
    assert (start - first, end - start) == (199, 1000)
    assert script.union([(first, first + 250), (start, end)]) == 1199


def test_devices_of_nsights_processes_are_told_apart(script, tmp_path):
    export = Export()
    for process in (export.process(7, device=0), export.process(8, device=0)):
        process.kernel(100, 150, at=10)
        process.kernel(120, 180, at=20)
    path = export.write(tmp_path / "node0.sqlite")
    found = script.nsight(path)
    assert len({place for place, _, _ in found}) == 2
    assert sorted(end - start for _, start, end in found) == [50, 50, 60, 60]


def test_every_trace_of_the_index_says_where_it_is_from(script):
    index = script.tomllib.loads((ROOT / "benchmarks" / "traces.toml").read_text("utf-8"))
    for origin in index["origin"]:
        assert len(origin["commit"]) == 40
        assert origin["licence"]
        assert origin["folder"] == origin["name"].replace("/", "+")
        assert all(trace["name"] and trace["paths"] for trace in origin["trace"])


def test_the_page_has_a_row_of_every_trace_of_the_index_at_its_commit(script):
    index = script.tomllib.loads((ROOT / "benchmarks" / "traces.toml").read_text("utf-8"))
    page = (ROOT / "docs" / "traces.md").read_text("utf-8")
    rows = set()
    for section in page.split("\n### ")[1:]:
        title, *lines = section.splitlines()
        name, commit = re.match(r"\[(.+?)\]\(.*\) at `(\w{12})`", title).groups()
        rows |= {(name, commit, line.split(" | ")[0][2:]) for line in lines if line[:2] == "| "}
    rows = {row for row in rows if row[2] != "trace"}
    indexed = [
        (one["name"], one["commit"][:12], trace)
        for one in index["origin"]
        for trace in one["trace"]
    ]
    assert rows == {(name, commit, trace["name"]) for name, commit, trace in indexed}
    assert f"The table has {len(rows)} rows." in page
    assert f"{page.count('| refused: ')} traces are refused" in page
    assert f"For {page.count(', the same.')} rows the script counted" in page
    # A page of the gallery is named after its trace: no two of a repository may have one name.
    assert len({(name, trace["name"].lower()) for name, _, trace in indexed}) == len(indexed)
