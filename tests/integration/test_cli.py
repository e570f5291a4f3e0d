"""The command line, run as a user runs it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from bubblescope import sources
from bubblescope.cli import COMMANDS, cli
from bubblescope.render import formats as exports
from bubblescope.render.text.report import Report
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from commands import called, started
from nsight_maker import Export, Style, pipeline
from places import ROOT

if TYPE_CHECKING:
    import subprocess


def run(
    *arguments: object, cwd: Path, code: int = 0, process: bool = False, **env: str
) -> subprocess.CompletedProcess:
    """Run a command and check how it ends.

    Args:
        arguments: Of the command line.
        cwd: Where.
        code: What it ends with.
        process: Whether in a process of its own.
        env: What else the environment holds.
    """
    done = (started if process else called)(*arguments, cwd=cwd, **env)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.fixture
def trace(tmp_path):
    exported, _, _ = pipeline(Style(hosts=2))
    folder = tmp_path / "traces"
    folder.mkdir()
    for index, export in enumerate(exported):
        export.write(folder / f"node{index}.sqlite")
    return folder


@pytest.fixture
def foreign(tmp_path):
    """A trace whose names bubblescope does not know."""
    export = Export()
    process = export.process(7)
    for index, name in enumerate(["stage0/fwd:0", "stage0/bwd:0"]):
        process.range(name, 100 * index, 100 * index + 50)
        process.kernel(1000 + 100 * index, 1050 + 100 * index, at=100 * index + 1)
    return export.write(tmp_path / "foreign.sqlite")


def test_report_prints_every_rate_with_its_definition(trace, tmp_path):
    shown = squeezed(run("report", trace, cwd=tmp_path, process=True).stdout)
    for name, definition in (
        ("makespan 27.27 %", "idle share of the step's span over all ranks"),
        ("span 15.79 %", "idle share of each rank's own span"),
        ("longest span 27.27 %", "the Zero Bubble paper's bubble rate"),
        ("over ideal 37.50 %", "as a share of busy time"),
        ("no wait 27.27 %", "makespan rate of the same tasks replayed without waiting"),
        ("excess 0.00 %", "idle time beyond that replay"),
    ):
        assert f"{name} {definition}" in shown or definition in shown
        assert name in shown
    assert "the clocks of 2 hosts agree with" in shown


def test_report_as_json_follows_its_schema(trace, tmp_path):
    data = json.loads(run("report", trace, "--json", cwd=tmp_path, process=True).stdout)
    assert data["schema"] == "bubblescope.report/1"
    assert data["run"]["sources"][0]["format"] == "nsight"
    assert [rank["rank"] for rank in data["ranks"]] == [0, 1, 2, 3]
    assert [step["step"] for step in data["steps"]] == [0, 1, 2]
    names = {"span", "longest_span", "makespan", "over_ideal", "no_wait", "excess", "ideal"}
    bubble = data["bubble"]
    assert set(bubble["definitions"]) == names
    assert bubble["overall"]["makespan"] == pytest.approx(3 / 11)
    for rates in (
        bubble["overall"],
        *bubble["per_rank"],
        *bubble["per_step"],
        *bubble["per_rank_step"],
    ):
        assert names <= set(rates)
        assert rates["ideal"] == rates["no_wait"]
        assert rates["excess"] == pytest.approx(0, abs=1e-6)
    assert len(bubble["per_rank_step"]) == 4 * 3
    assert [notice["code"] for notice in data["notes"]] == ["clocks-checked"]
    assert not data["warnings"]


def test_the_documented_json_keys_are_the_ones_printed(trace, tmp_path):
    documented = (ROOT / "docs" / "report.md").read_text()
    data = json.loads(run("report", trace, "--json", cwd=tmp_path).stdout)
    for key in (
        *data,
        *data["run"],
        *data["ranks"][0],
        *data["steps"][0],
        *data["kinds"][0],
        *data["bubble"],
        *data["schedule"],
        *data["bubble"]["overall"],
        *data["notes"][0],
    ):
        assert re.search(rf"\b{key}\b", documented), key


def test_names_in_a_trace_are_never_taken_for_markup(tmp_path):
    for index, host in enumerate(["[/red]", "[bold]x"]):
        export = Export(host)
        process = export.process(7)
        process.range(f"F{index}.0.0", 0, 50)
        process.range("[link=x]layer[/]", 60, 70)
        process.kernel(100, 110, at=1)
        export.write(tmp_path / f"[{index}].sqlite")
    for command in ("report", "info", "names"):
        shown = run(command, tmp_path, cwd=tmp_path).stdout
        assert ("[link=x]layer[/]" if command == "names" else "[/red]") in shown
    assert "[/red]" in str(Report.of(sources.load(tmp_path)))


def test_a_run_can_be_cut_to_steps_and_ranks(trace, tmp_path):
    done = run("report", trace, "--json", "--steps", "1:3", "--ranks", "0,2", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert [step["step"] for step in data["steps"]] == [1, 2]
    assert [rank["rank"] for rank in data["ranks"]] == [0, 2]
    beyond = run("report", trace, "--json", "--steps", "1:9", cwd=tmp_path)
    assert [step["step"] for step in json.loads(beyond.stdout)["steps"]] == [1, 2]
    refused = run("report", trace, "--steps", "7", cwd=tmp_path, code=2)
    assert "step 7 is not in the timeline, which holds 0..2" in refused.stderr
    for text in ("x", "5:3", ""):
        refused = run("report", trace, "--steps", text, cwd=tmp_path, code=2)
        assert "is not like 3 or 2:5" in refused.stderr


def test_view_writes_one_page_named_after_the_trace(trace, tmp_path):
    done = run("view", trace, cwd=tmp_path, process=True)
    assert "wrote traces.html" in done.stdout
    assert "no browser here" in done.stdout
    assert (tmp_path / "traces.html").read_text().startswith("<!doctype html>")
    run("view", trace, "--no-open", "-o", "other.html", "--title", "My run", cwd=tmp_path)
    assert "<title>My run</title>" in (tmp_path / "other.html").read_text()


@pytest.mark.parametrize("name", sorted(exports.FORMATS))
def test_export_writes_every_format(trace, tmp_path, name):
    done = run("export", trace, "--to", name, cwd=tmp_path)
    path = tmp_path / f"traces{exports.FORMATS[name].suffix}"
    assert f"wrote {path.name}" in done.stdout
    assert path.stat().st_size > 0


def test_an_exported_parquet_is_a_trace_again(trace, tmp_path):
    run("export", trace, "--to", "parquet", "-o", "run.parquet", cwd=tmp_path, process=True)
    assert sources.load(tmp_path / "run.parquet") == sources.load(trace)


def test_outputs_never_overwrite_traces_or_land_nowhere(trace, tmp_path):
    for output, message in (
        (trace / "node0.sqlite", "has the ending of a sqlite file"),
        (trace, "is a folder"),
        (tmp_path / "absent" / "x.html", "does not exist"),
    ):
        done = run("view", trace, "-o", output, cwd=tmp_path, code=2)
        assert message in squeezed(done.stderr)
    own = tmp_path / "own"
    run("export", trace, "--to", "parquet", "-o", "run.parquet", cwd=tmp_path)
    own.mkdir()
    (tmp_path / "run.parquet").rename(own / "run.parquet")
    before = (own / "run.parquet").read_bytes()
    done = run("export", own, "--to", "parquet", "-o", own / "run.parquet", cwd=tmp_path, code=2)
    assert "is one of the traces" in squeezed(done.stderr)
    assert (own / "run.parquet").read_bytes() == before


def test_info_says_what_a_trace_is(trace, tmp_path):
    shown = squeezed(run("info", trace, cwd=tmp_path, process=True).stdout)
    assert "nsight 2026.2.1.210" in shown
    assert "steps 0 to 2 (3)" in shown
    assert "process 2000" in shown
    data = json.loads(run("info", trace, "--json", cwd=tmp_path).stdout)
    assert data["tasks"] == 204
    assert data["contents"][0]["counts"]["kernels"] > 0


def test_a_trace_without_known_names_shows_its_own_ranges_and_says_so(foreign, tmp_path):
    done = run("report", foreign, cwd=tmp_path)
    assert "none of its 2 NVTX ranges (2 different names)" in squeezed(done.stdout)
    assert "tasks are the job's outermost ranges" in squeezed(done.stdout)
    for command in (["view", "--no-open"], ["export", "--to", "svg"]):
        done = run(*command, foreign, cwd=tmp_path)
        assert "no pipeline tasks were found" in squeezed(done.stderr)
    run("compare", foreign, foreign, cwd=tmp_path, process=True)
    run("info", foreign, cwd=tmp_path)


def test_a_trace_without_device_work_is_code_3_and_shows_what_it_holds(tmp_path):
    export = Export()
    export.process(7).range("stage0/fwd:0", 0, 50)
    trace = export.write(tmp_path / "host.sqlite")
    done = run("report", trace, cwd=tmp_path, code=3, process=True)
    assert "1 range warning" in squeezed(done.stdout)
    assert "hold no kernels, copies or fills of any device; profile" in squeezed(done.stdout)
    needing = (
        ["view"],
        ["export", "--to", "svg"],
        ["why"],
        ["stragglers"],
        ["whatif"],
        ["compare", trace],
    )
    for command in needing:
        done = run(*command, trace, cwd=tmp_path, code=3)
        assert "hold no kernels, copies or fills of any device" in squeezed(done.stderr)
        assert f"{trace}: nothing to show\n" in done.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["host.sqlite"]
    run("info", trace, cwd=tmp_path)


def test_names_lists_the_ranges_and_a_pattern_makes_them_tasks(foreign, tmp_path):
    shown = squeezed(run("names", foreign, cwd=tmp_path, process=True).stdout)
    assert "stage#/bwd:# stage0/bwd:0 –" in shown
    pattern = r"stage(?P<stage>\d+)/(?P<kind>fwd|bwd):(?P<mb>\d+)"
    shown = squeezed(run("names", foreign, "--names", pattern, cwd=tmp_path).stdout)
    assert "stage#/bwd:# stage0/bwd:0 backward" in shown
    data = json.loads(run("report", foreign, "--names", pattern, "--json", cwd=tmp_path).stdout)
    assert [kind["kind"] for kind in data["kinds"]] == ["forward", "backward"]
    refused = run("report", foreign, "--names", "(fwd", cwd=tmp_path, code=2)
    assert "is not a regular expression" in refused.stderr


def test_words_of_names_may_be_given_in_the_command_or_a_file(foreign, tmp_path):
    pattern = r"stage(?P<stage>\d+)/(?P<kind>fw|bw)d:(?P<mb>\d+)"
    refused = run("report", foreign, "--names", pattern, cwd=tmp_path, code=2)
    assert "--kind fw=forward" in refused.stderr
    assert "'stage#/bwd:#' (1), 'stage#/fwd:#' (1)" in squeezed(refused.stderr)
    words = ["--kind", "fw=forward", "--kind", "bw=backward"]
    shown = squeezed(run("names", foreign, "--names", pattern, *words, cwd=tmp_path).stdout)
    assert "stage#/fwd:# stage0/fwd:0 forward" in shown
    (tmp_path / "ours.toml").write_text(
        f"[[names]]\npattern = '{pattern}'\nkinds = {{ fw = 'forward', bw = 'backward' }}\n"
    )
    data = json.loads(run("report", foreign, "--names", "ours.toml", "--json", cwd=tmp_path).stdout)
    assert [kind["kind"] for kind in data["kinds"]] == ["forward", "backward"]
    refused = run("report", foreign, "--names", pattern, "--kind", "fw", cwd=tmp_path, code=2)
    assert "'fw' is not like Compute=forward" in refused.stderr
    missed = run("report", foreign, "--names", "(?P<forward>Compute)", cwd=tmp_path)
    assert "--names matches none of the range names" in squeezed(missed.stdout + missed.stderr)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such file or folder"),
        (lambda path: path.write_bytes(b""), "is an empty file"),
        (lambda path: path.write_text("hello"), "is not a trace of a known format"),
        (lambda path: path.mkdir(), "is an empty folder"),
    ],
)
@pytest.mark.parametrize(
    "command", [["report"], ["view"], ["export", "--to", "csv"], ["info"], ["names"]]
)
def test_bad_input_is_one_line_and_code_2_and_leaves_nothing(tmp_path, make, message, command):
    bad = tmp_path / "in" / "bad.sqlite"
    bad.parent.mkdir()
    make(bad)
    (tmp_path / "out").mkdir()
    alone = message == "is an empty file"
    done = run(*command, bad, cwd=tmp_path / "out", code=2, process=alone)
    assert done.stdout == ""
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("error  ")
    assert str(bad) in line
    assert message in line
    assert list((tmp_path / "out").iterdir()) == []


def test_an_output_that_cannot_be_written_is_code_2(trace, tmp_path):
    if os.geteuid() == 0 and not Path("/dev/full").exists():
        pytest.skip("root may write anywhere")
    (tmp_path / "locked").mkdir(mode=0o500)
    if os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("this user may write anywhere")
    done = run("view", trace, "-o", tmp_path / "locked" / "x.html", cwd=tmp_path, code=2)
    assert "Permission denied" in done.stderr


def test_demo_trains_records_and_shows(tmp_path):
    done = run(
        "demo",
        "--stages",
        "2",
        "--microbatches",
        "3",
        "--steps",
        "2",
        "--sleep-compute",
        "2",
        "-q",
        "--schedule",
        "zb-h1",
        cwd=tmp_path,
        process=True,
    )
    shown = squeezed(done.stdout)
    assert "zb-h1 · 2 ranks" in shown
    assert re.search(r"trained 2 steps in [\d.]+ s; loss [\d.]+ to [\d.]+", shown)
    assert (tmp_path / "bubblescope-demo" / "timeline.html").exists()
    assert len(sources.load(tmp_path / "bubblescope-demo").steps) == 2
    refused = run("demo", "--stages", "0", cwd=tmp_path, code=2)
    assert refused.stderr.strip() == "error  the demo needs at least 1 for stages, not 0"


def test_demo_admits_contention(tmp_path):
    done = run(
        "demo",
        "--stages",
        "9",
        "--microbatches",
        "1",
        "--steps",
        "1",
        "-q",
        cwd=tmp_path,
        process=True,
    )
    cores = len(os.sched_getaffinity(0))
    expected = f"9 stages shared {cores} cores" in squeezed(done.stdout)
    assert expected == (cores < 9)


def test_usage_errors_are_code_2_with_a_hint(tmp_path):
    assert "No such command" in run("reprot", cwd=tmp_path, code=2, process=True).stderr
    assert "see `bubblescope" in run("report", cwd=tmp_path, code=2).stderr
    assert "More commands:" in run(cwd=tmp_path, code=2, process=True).stdout


def test_help_version_formats_and_completion(tmp_path):
    assert "bubblescope, version" in run("--version", cwd=tmp_path, process=True).stdout
    formats = run("formats", cwd=tmp_path, process=True).stdout
    for name in (*exports.FORMATS, "nsight", "native"):
        assert name in formats
    assert "_BUBBLESCOPE_COMPLETE" in run("completion", "bash", cwd=tmp_path, process=True).stdout
    done = run(
        cwd=tmp_path,
        _BUBBLESCOPE_COMPLETE="bash_complete",
        COMP_WORDS="bubblescope re",
        COMP_CWORD="1",
        process=True,
    )
    assert "report" in done.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_commands_that_read_say_where_in_a_section_of_their_help(name):
    said = CliRunner().invoke(cli, [name, "--help"]).output
    about = ["--mode", "--workers", "--worker-memory", "--scheduler ", "--scheduler-file"]
    options, _, workers = said.partition("\nWorkers (docs/scale.md):\n")
    assert ("--attempt N" in options) == bool(workers)
    assert all(one in workers for one in about if workers)
    assert not any(f"{one}" in options for one in about[2:])


def test_every_format_is_in_the_docs():
    documented = (ROOT / "docs" / "exports.md").read_text()
    for name, known in exports.FORMATS.items():
        assert f"| `{name}` | `{known.suffix}`" in documented


@pytest.mark.parametrize(
    "example",
    [
        "torch-pipelining/1F1B",
        "torch-pipelining/ZBVZeroBubble",
        "demo/gpipe",
        "demo/1f1b",
        "demo/zb-h1",
    ],
)
def test_the_examples_open_at_once(tmp_path, example):
    run("view", ROOT / "examples" / example, "--no-open", cwd=tmp_path)
    timeline = sources.load(ROOT / "examples" / example)
    assert timeline.run.warnings == ()
    assert (timeline.ranks.height, len(timeline.steps)) == (4, 3)


def test_info_of_many_ranks_lists_some_and_all_if_asked(tmp_path):
    run = simulate(generate("1f1b", 70, 70), Costs(1000, 1000, 1000))
    run.save(tmp_path / "run.parquet")
    few = called("info", tmp_path / "run.parquet", cwd=tmp_path).stdout
    assert "and 6 more ranks; --all shows them" in few
    everything = called("info", tmp_path / "run.parquet", "--all", cwd=tmp_path).stdout
    assert "--all" not in everything
    assert len(everything.splitlines()) == len(few.splitlines()) + 5
