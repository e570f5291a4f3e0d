"""All answers have one face."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner

import bubblescope
from bubblescope import Trace
from bubblescope.cli import cli
from places import ROOT
from synthetic import empty, hostile, one_f_one_b

EXAMPLE = ROOT / "examples" / "demo" / "1f1b"
OTHER = ROOT / "examples" / "demo" / "zb-h1"
QUESTIONS = ("info", "report", "why", "whatif", "stragglers", "compare")


def asked(question, run, other=None):
    """Ask a run, by its method."""
    more = [other or run] if question == "compare" else []
    return getattr(run, question)(*more)


@pytest.fixture(scope="module")
def answers():
    run, other = bubblescope.load(EXAMPLE), bubblescope.load(OTHER)
    return {question: asked(question, run, other) for question in QUESTIONS}


def command(question, *options):
    more = [str(OTHER)] if question == "compare" else []
    found = CliRunner().invoke(cli, [question, str(EXAMPLE), *more, *options, "-q"])
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.mark.parametrize("question", QUESTIONS)
def test_it_prints_as_the_command_does(answers, question, monkeypatch):
    monkeypatch.setenv("COLUMNS", "97")  # which a process reads when it starts
    paths = [EXAMPLE, OTHER] if question == "compare" else [EXAMPLE]
    run = [sys.executable, "-m", "bubblescope", question, *map(str, paths), "-q"]
    printed = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert str(answers[question]) == printed


@pytest.mark.parametrize("question", QUESTIONS)
def test_its_json_is_that_of_the_command_and_says_its_version(answers, question):
    said = json.loads(answers[question].to_json())
    assert said["schema"] == f"bubblescope.{question}/1"
    assert said == json.loads(json.dumps(answers[question].to_dict()))
    printed = json.loads(command(question, "--json"))
    assert {key: printed[key] for key in said} == said
    assert set(printed) - set(said) <= {"conditions"}  # which only the command is given


@pytest.mark.parametrize("question", QUESTIONS)
def test_it_is_one_line_in_a_shell(answers, question):
    line = repr(answers[question])
    assert "\n" not in line
    assert line.startswith("<")
    assert 20 < len(line) < 400


@pytest.mark.parametrize("question", QUESTIONS)
def test_in_a_notebook_it_is_a_picture_and_the_text(answers, question):
    page = answers[question]._repr_html_()
    picture = page[: page.index("</svg>") + 6]
    assert ET.fromstring(picture).tag.endswith("svg")
    text = page[len(picture) :].lstrip()
    assert text.startswith("<pre")
    assert "<script" not in page


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_function_asks_what_the_method_asks(answers, question, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    ask = getattr(bubblescope, question)
    paths = [EXAMPLE, OTHER] if question == "compare" else [EXAMPLE]
    assert str(ask(*paths)) == str(answers[question])
    assert str(ask(*map(bubblescope.load, paths))) == str(answers[question])


def test_load_takes_what_one_would_pass():
    run = bubblescope.load(EXAMPLE)
    parts = sorted(EXAMPLE.iterdir())
    assert bubblescope.load([str(EXAMPLE)]) == run
    assert bubblescope.load([str(parts[0]), *parts[1:]]) == run
    assert bubblescope.load(parts[0], parts[1:]) == run
    assert bubblescope.load(str(EXAMPLE / "*.bubbles")) == run


def test_a_trace_is_its_timeline():
    run = Trace(one_f_one_b())
    assert run == Trace(one_f_one_b())
    assert run != one_f_one_b()
    assert len(run) == len(run.timeline) == run.tasks.height
    assert (run.steps, run.duration_ns) == (run.timeline.steps, run.timeline.duration_ns)
    assert (run.start_ns, run.end_ns) == (run.timeline.start_ns, run.timeline.end_ns)
    assert run.slice(steps=[0]).timeline == run.timeline.slice(steps=[0])
    assert repr(run) == repr(run.timeline).replace("Timeline", "Trace")
    assert str(run) == str(run.info())
    with pytest.raises(TypeError, match="unhashable"):
        hash(run)


def test_a_run_without_tasks_has_answers_and_no_picture(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    run = Trace(empty())
    assert "<svg" not in run._repr_html_()
    assert "0 tasks" in repr(run.report())
    assert "0 tasks" in repr(run.info())


@pytest.mark.parametrize("question", ["info", "report"])
def test_names_from_a_trace_are_text_in_a_notebook(question):
    page = asked(question, Trace(hostile()))._repr_html_()
    assert "<script>" not in page
    assert "<img" not in page


def test_a_file_is_of_the_format_that_its_ending_says(tmp_path):
    run = Trace(one_f_one_b())
    assert run.export(tmp_path / "run.svg").read_text().startswith("<svg")
    assert run.export(str(tmp_path / "run.txt"), to="csv").read_text().startswith("rank,")
    assert "<!doctype html>" in run.view(tmp_path / "page.html", title="mine").read_text()
    assert run.save(tmp_path / "run.bubbles.parquet").exists()
    assert bubblescope.load(tmp_path / "run.bubbles.parquet").tasks.equals(run.tasks)
    with pytest.raises(bubblescope.BubblescopeError, match="has the ending of no known format"):
        run.export(tmp_path / "run.txt")
    with pytest.raises(bubblescope.BubblescopeError, match="csv has no option look; it is an op"):
        run.export(tmp_path / "run.csv", look="paper")
    with pytest.raises(bubblescope.BubblescopeError, match="svg cannot show a what-if"):
        bubblescope.export(run, tmp_path / "run.svg", whatif=lambda run: run.schedule("zb-h1"))


def test_a_schedule_is_simulated_as_if_it_had_been_run():
    run = bubblescope.simulate("1f1b", devices=4, microbatches=8)
    assert run.report().bubbles.overall.makespan == pytest.approx(3 / 11)
    assert run.run.schedule == "1f1b"
    with pytest.raises(bubblescope.BubblescopeError, match="give devices and microbatches"):
        bubblescope.simulate("1f1b")
