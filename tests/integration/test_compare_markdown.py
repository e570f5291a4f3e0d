"""`compare --to markdown`, read by a Markdown parser, and the workflow that the documents show, run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt

from bubblescope.cli import cli
from bubblescope.render.text.compare import Comparison
from bubblescope.render.text.compare_markdown import markdown, plain
from places import ROOT
from synthetic import HOSTILE, hostile
from two_runs import MS, made, noisy
from workflows import shell_steps

EXAMPLES = ROOT / "examples" / "demo"
PAGE = ROOT / "docs" / "compare.md"
WORKFLOW = re.compile(r"^```yaml\n(name: pipeline\n.*?)^```", re.MULTILINE | re.DOTALL)


def parsed(text):
    """Return the tables, each a list of rows of cells, and all other text."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    tables, rest, row = [], [], None
    for token in tokens:
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            row = []
            tables[-1].append(row)
        elif token.type == "inline":
            shown = "".join(
                child.content for child in token.children if child.type in {"text", "code_inline"}
            )
            assert not {"html_inline", "link_open", "image"} & {one.type for one in token.children}
            (rest if row is None else row).append(shown)
        elif token.type == "tr_close":
            row = None
        elif token.type == "html_block":
            rest.append(token.content)
    return tables, rest


def run(*arguments):
    done = CliRunner().invoke(cli, ["compare", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_tables_say_what_the_comparison_does():
    comparison = Comparison.of(noisy(1), noisy(2, 15 * MS), labels=("a/", "b/"))
    tables, rest = parsed(markdown(comparison))
    assert comparison.headline() in rest
    by_head = {table[0][0]: table[1:] for table in tables}
    assert [row[1] for row in by_head["run"]] == ["a/", "b/"]
    for group in ("cause", "kind", "stage", "rank"):
        changes = comparison.group(group)
        assert [row[0] for row in by_head[group]] == [one.name for one in changes[:8]]
    step = next(row for row in by_head[""] if row[0] == "step")
    found = comparison.find("overall", "step")
    assert float(step[1].split()[0]) == pytest.approx(found.before / 1e6, rel=1e-3)
    assert float(step[3].split()[0]) == pytest.approx(found.difference / 1e6, rel=1e-2)


def test_only_the_first_table_is_not_folded_unless_everything_is_asked_for():
    comparison = Comparison.of(made(ranks=12), made(12 * MS, ranks=12))
    text = markdown(comparison)
    assert text.count("<details>") == text.count("</details>") == 4
    assert ", the 8 largest of 12</summary>" in text
    whole = markdown(comparison, everything=True)
    assert "<details>" not in whole
    assert len(parsed(whole)[0][-1]) == 13


def test_conditions_stand_first_and_decide_the_exit_code():
    limits = ["--fail-if", "step > +0%", "--fail-if", "span > 5%", "--fail-if", "bubble > 20%"]
    done = run(EXAMPLES / "1f1b", EXAMPLES / "zb-h1", "--to", "markdown", *limits)
    assert done.exit_code == 1
    rows = parsed(done.stdout)[0][0][1:]
    assert [(row[0], row[1].split(" ", 1)[1]) for row in rows] == [
        ("step > +0%", "passed"),
        ("span > 5%", "failed"),
        ("bubble > 20%", "not certain"),
    ]
    assert "failed  span > 5%" in done.stderr


def test_json_and_markdown_exclude_each_other():
    done = run(EXAMPLES / "1f1b", EXAMPLES / "zb-h1", "--to", "markdown", "--json")
    assert done.exit_code == 2
    assert "choose one" in done.output


@pytest.mark.parametrize(
    "text",
    [
        *("a | b", "`x`", "<script>alert(1)</script>", "[x](http://y)", "![i](u)", "*b* _c_ ~~d~~"),
        *("a\nb", "back\\slash |", "&amp; <b>", "$x$", "# h", "- l", "1. n", "> q", "http://e.com"),
        *("@somebody", "www.example.com", "fixes #12"),
    ],
)
def test_text_of_traces_is_shown_as_it_is(text):
    cell = f"| a |\n| --- |\n| {plain(text)} |\n"
    [[_, [shown]]], _ = parsed(cell)
    assert shown == " ".join(text.split())
    assert not re.search(
        r"(?<![&\w])@\w|https?:/|www\.|(?<!&)#\d", plain(text)
    )  # which GitHub links


def test_hostile_names_make_no_markup():
    text = markdown(Comparison.of(hostile(), hostile(), labels=(HOSTILE, HOSTILE)))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
    parsed(text)


def steps():
    """Return the shell steps of the documents' workflow by name."""
    block = WORKFLOW.search(PAGE.read_text("utf-8"))[1]
    return {step.name: step.script for step in shell_steps(block)}


@pytest.fixture
def job(tmp_path):
    """Run steps as GitHub's runner does; pip installs nothing, and torchrun records what it is told."""
    tools = tmp_path / "tools"
    tools.mkdir()
    ours = f'exec {shlex.quote(sys.executable)} -m bubblescope "$@"'
    recorded = f'cp -r "{tmp_path}/$RECORDED" traces'
    for name, script in (("pip", "exit 0"), ("torchrun", recorded), ("bubblescope", ours)):
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    for name, forward in (("before", 10 * MS), ("after", 13 * MS)):
        (tmp_path / name).mkdir()
        made(forward).save(tmp_path / name / "run.bubbles.parquet")
    summary = tmp_path / "summary.md"

    def step(name, recorded=""):
        environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "GITHUB_STEP_SUMMARY": str(summary),
            "RECORDED": recorded,
        }
        done = subprocess.run(
            ["bash", "-e", "-c", steps()[name]],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    return step, work, summary


def test_the_workflow_of_the_documents_runs(job):
    step, work, summary = job
    assert {"Install", "Record", "Compare", "New baseline"} == {*steps()}
    for name in ("Install", "Record", "Compare", "New baseline"):
        assert step(name, "before") == (0, ""), name
    assert "There is no baseline yet" in summary.read_text("utf-8")
    assert not (work / "traces").exists()

    summary.unlink()
    assert step("Record", "after")[0] == 0
    code, said = step("Compare")
    assert code == 1
    assert "failed  step > +2%" in said
    tables, _ = parsed(summary.read_text("utf-8"))
    assert ["step > +2%", "❌ failed"] in [row[:2] for row in tables[0]]
    assert (work / "both.html").stat().st_size > 100_000
