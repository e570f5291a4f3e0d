"""Text of a trace stays text in everything that is made of it, whatever it holds and however long."""

from __future__ import annotations

import csv
import html as markup
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import polars as pl
import pytest
from click.testing import CliRunner

import bubblescope
from bubblescope import Timeline, sources
from bubblescope.cli import cli
from bubblescope.facade import Trace, write
from bubblescope.model.provenance import Notice, Origin, Run
from bubblescope.render.artefacts import pipeline_profile as paddle_json
from bubblescope.render.artefacts import step_task_info
from bubblescope.render.formats import FORMATS
from bubblescope.render.text.report import Report
from bubblescope.render.traces.slices import LONGEST_TITLE
from catapult import viewing
from synthetic import HOSTILE, hostile, one_f_one_b
from trace_processor import AROUND, opened, perfetto_ui, seen_tracks
from viewing import context_of, until

LONG = "N" * 1_000_000
SCRIPT = "<script>window.hacked=1</script>"
"""Short enough to be shown whole in a picture, and well-formed."""
FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-1+1", "@SUM(1)", "\t=1+1", " =1", '=HYPERLINK("x")']
UNSEEN = re.compile(
    "[\0-\b\v-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""What must not reach a terminal: all that moves, colours, turns or ends what is written there."""

LONGEST_SHOWN = """
    Math.max(...[...document.querySelectorAll("title, body *:not(script)")].flatMap((one) =>
        [one.title, ...[...one.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE)]
            .map((text) => (text.data ?? text ?? "").length)))
"""


@pytest.fixture
def visited(browser):
    """Open a file as a document of its own; its dialogs and its requests are complaints."""
    complaints = []
    context = context_of(browser, viewport={"width": 1280, "height": 720})

    def visit(path, *, complain=True):
        page = context.new_page()
        if complain:
            page.on("dialog", lambda dialog: (complaints.append("dialog"), dialog.dismiss()))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on(
                "request",
                lambda request: (
                    None if request.url == path.as_uri() else complaints.append(request.url)
                ),
            )
        page.goto(path.as_uri())
        return page

    yield visit
    context.close()
    assert complaints == []


def ready(page):
    until(page, "window.bubblescope !== undefined")
    return page


@pytest.mark.browser
def test_nothing_runs_in_the_page_and_all_of_the_text_is_there(visited, tmp_path):
    page = ready(visited(write(hostile(), tmp_path / "run.html", to="html")))
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, iframe, object, [onerror], [href^='javascript:']").count() == 0
    whole = page.evaluate("document.body.textContent")
    assert SCRIPT in whole
    assert "[bold]no[/bold]" in whole


@pytest.mark.browser
def test_what_the_page_guards_against_would_run(visited, tmp_path):
    """The test above proves nothing unless its page, without escaping and policy, is taken over."""
    text = write(hostile(), tmp_path / "run.html", to="html").read_text(encoding="utf-8")
    policy = re.compile('<meta http-equiv="Content-Security-Policy"[^>]*>')
    assert len(policy.findall(text)) == 1
    open_ = policy.sub("", text).replace("\\u003c", "<")
    assert open_.count(SCRIPT) > 0
    (tmp_path / "open.html").write_text(open_, encoding="utf-8")
    page = visited(tmp_path / "open.html", complain=False)
    assert page.evaluate("window.hacked") == 1


@pytest.mark.browser
def test_nothing_runs_in_a_picture_and_it_would_unescaped(visited, tmp_path):
    timeline = one_f_one_b(ranks=2, microbatches=2, steps=1)
    named = Timeline(
        timeline.tasks.with_columns(name=pl.lit(SCRIPT)),
        timeline.ranks.with_columns(host=pl.format("{}{}", pl.lit(SCRIPT), "rank")),
        Run(origins=(Origin("made", SCRIPT, SCRIPT),), schedule=SCRIPT),
    )
    path = write(named, tmp_path / "run.svg", to="svg")
    page = visited(path)
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.textContent").count(SCRIPT) >= 2
    (tmp_path / "open.svg").write_text(markup.unescape(path.read_text(encoding="utf-8")))
    assert visited(tmp_path / "open.svg", complain=False).evaluate("window.hacked") == 1


@pytest.mark.browser
def test_a_picture_of_any_text_is_a_document(visited, tmp_path):
    page = visited(write(hostile(), tmp_path / "run.svg", to="svg"))
    assert page.evaluate("document.documentElement.localName") == "svg"
    assert page.evaluate("document.querySelector('parsererror')") is None
    assert page.evaluate("window.hacked") is None


@pytest.mark.browser
def test_long_text_leaves_the_page_usable(visited, tmp_path):
    path = write(hostile(LONG), tmp_path / "run.html", to="html")
    began = time.monotonic()
    page = ready(visited(path))
    assert time.monotonic() - began < 15
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.querySelector('main').clientHeight") > 200  # for the lanes
    assert page.evaluate(LONGEST_SHOWN) < 20_000


def test_long_text_makes_no_large_picture(tmp_path):
    assert write(hostile(LONG), tmp_path / "run.svg", to="svg").stat().st_size < 50_000


@pytest.fixture
def bundles(tmp_path):
    """Two saved runs, whose texts are hostile in two ways; the second is slower."""
    first, second = tmp_path / "a.bubbles.parquet", tmp_path / "b.bubbles.parquet"
    hostile().save(first)
    hostile(f"{HOSTILE}again").save(second)
    return str(first), str(second)


def said(*arguments: str) -> str:
    """Run a command; return all that it prints."""
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    return done.output


COMMANDS = [
    ("report",),
    ("report", "--all"),
    ("info",),
    ("why",),
    ("why", "--all"),
    ("why", "--lang", "zh"),
    ("whatif",),
    ("stragglers",),
    ("compare",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_escape_sequence_reaches_the_terminal(bundles, command):
    """Nor a mark of direction; and what looks like rich's own markup is shown, not obeyed."""
    printed = said(*command, *(bundles if command == ("compare",) else bundles[:1]))
    assert UNSEEN.findall(printed) == []
    if command != ("compare",):
        assert "[bold]no[/bold]" in re.sub(r"\s", "", printed)  # the text itself got there


def test_a_name_of_a_file_reaches_no_terminal_either(tmp_path):
    path = tmp_path / "\x1b[2J\u202e.parquet"
    with pytest.raises(bubblescope.model.errors.BubblescopeError) as refused:
        cli.main(["report", str(path)], standalone_mode=False)
    assert "[2J" in str(refused.value)
    done = subprocess.run(
        [sys.executable, "-m", "bubblescope", "report", path],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"FORCE_COLOR": "1", "TERM": "xterm-256color"},
    )
    assert done.returncode == 2
    assert "[2J" in done.stderr
    assert (
        UNSEEN.findall(re.sub("\x1b\\[[\\d;]*m", "", done.stderr)) == []
    )  # beside its own colours
    hostile().save(path)
    assert UNSEEN.findall(said("report", str(path))) == []


@pytest.mark.parametrize("command", [("report",), ("why",), ("whatif",), ("stragglers",)])
def test_json_is_json_whatever_the_text(bundles, command):
    done = CliRunner().invoke(cli, [*command, "--json", "--quiet", bundles[0]])
    assert done.exit_code == 0
    json.loads(done.stdout)
    assert UNSEEN.findall(done.stdout) == []


@pytest.mark.parametrize("command", ["report", "info", "why", "whatif", "stragglers"])
def test_long_text_leaves_reports_readable(tmp_path, command):
    hostile(LONG).save(tmp_path / "run.bubbles.parquet")
    printed = said(command, str(tmp_path / "run.bubbles.parquet"))
    assert len(printed) < 50_000


def test_perfetto_shows_the_text(tmp_path):
    with opened(write(hostile(), tmp_path / "run.pftrace", to="perfetto")) as query:
        titles = [group for group, _ in seen_tracks(query) if group != "steps"]
        [(name,)] = query("select distinct string_value from args where key = 'debug.name'")
        [(counter,)] = query("select name from counter_track")
    for text in (*titles, name, counter):
        assert UNSEEN.findall(text) == []
        assert SCRIPT in text
    assert name == UNSEEN.sub("\ufffd", HOSTILE)  # to its end: no NUL cuts it
    assert all(len(title) < LONGEST_TITLE + 30 for title in titles)


@pytest.mark.browser
def test_nothing_runs_in_perfettos_ui(browser, tmp_path):
    with perfetto_ui(browser, write(hostile(), tmp_path / "run.pftrace", to="perfetto")) as page:
        page.get_by_text("pipeline").first.wait_for(timeout=300_000)
        assert page.evaluate("window.hacked") is None


@pytest.mark.browser
def test_catapult_shows_the_text_and_runs_nothing(browser, tmp_path):
    with viewing(browser) as show:
        shown = show(write(hostile(), tmp_path / "run.json", to="chrome"))
        assert shown.page.evaluate("window.hacked") is None
    assert shown.warnings == []
    assert all(SCRIPT in group for group, _ in shown.tracks if group != "steps")
    assert {row["name"] for row in shown.arguments if row.get("kind")} == {
        UNSEEN.sub("\ufffd", HOSTILE)
    }


@pytest.mark.parametrize("name", ["perfetto", "chrome"])
def test_long_text_makes_no_large_trace(tmp_path, name):
    path = write(hostile(LONG), tmp_path / "run", to=name)
    assert path.stat().st_size < 1_000_000
    with opened(path) as query:
        [(count,)] = query(f"select count(*) from slice where category not in {AROUND}")
        [(name,)] = query("select distinct string_value from args where key glob '*.name' "
                          "and string_value glob 'NN*'")  # fmt: skip
    assert count == len(hostile())
    assert name == "N" * 10_000 + "… (1000000 characters)"


def test_a_spreadsheet_takes_no_name_for_a_formula(tmp_path):
    timeline = one_f_one_b(ranks=1, microbatches=4, steps=1)
    names = [*FORMULAS, 'a,"b"\nc', "plain"]
    tasks = timeline.tasks.with_columns(name=pl.Series(names)[: len(timeline)])
    tasks = tasks.with_columns(name=pl.Series((names * len(tasks))[: len(tasks)]))
    made = Timeline(tasks, timeline.ranks)
    assert set(names) == set(made.tasks["name"])
    with write(made, tmp_path / "run.csv", to="csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [
        f"'{name}" if name in FORMULAS else name for name in made.tasks["name"]
    ]
    written = json.loads(write(made, tmp_path / "run.json", to="json").read_text(encoding="utf-8"))
    assert [task["name"] for task in written["tasks"]] == made.tasks["name"].to_list()


def test_tables_keep_every_row_and_text(tmp_path):
    timeline = hostile()
    with write(timeline, tmp_path / "run.csv", to="csv").open(newline="", encoding="utf-8") as file:
        assert [row["name"] for row in csv.DictReader(file)] == [
            UNSEEN.sub("\ufffd", HOSTILE)
        ] * len(timeline)
    assert sources.load(write(timeline, tmp_path / "run.parquet", to="parquet")) == timeline
    written = json.loads(
        write(timeline, tmp_path / "run.json", to="json").read_text(encoding="utf-8")
    )
    assert {task["name"] for task in written["tasks"]} == {HOSTILE}
    assert written["run"]["warnings"][0]["message"] == HOSTILE


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_half_a_character_is_no_obstacle(tmp_path, name):
    """A file's name that is not valid UTF-8 has them; they are what no file of ours can hold."""
    broken = "a\udcffz"
    timeline = one_f_one_b(ranks=2, microbatches=2, steps=1)
    run = Run(
        origins=(Origin("made", "1", broken),),
        schedule=broken,
        warnings=(Notice("x", broken),),
        inferred={broken: broken},
    )
    path = write(Timeline(timeline.tasks, timeline.ranks, run), tmp_path / "run", to=name)
    if name not in {"perfetto", "perfetto-tar", "pdf", "png", "parquet"}:
        path.read_text(encoding="utf-8")


def test_paddles_files_keep_the_text(tmp_path):
    timeline = hostile()
    ranks = timeline.ranks.with_columns(device=pl.col("rank"))
    for path in paddle_json.write(Timeline(timeline.tasks, ranks, timeline.run), tmp_path):
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        named = {event["name"] for event in events if event["ph"] in "BE"}
        assert named == {HOSTILE, "step0"}


def test_names_are_no_sql(tmp_path):
    nasty = "x'); DROP TABLE COMMUNICATION_OP; --\"\0\x1b"
    shown = UNSEEN.sub("\ufffd", nasty)
    path = tmp_path / "ascend.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE COMMUNICATION_OP (opId INTEGER)")
        connection.executemany("INSERT INTO COMMUNICATION_OP VALUES (?)", [(1,), (2,)])
        connection.commit()
    operations = pl.DataFrame(
        {"op_id": [1, 2], "start_ns": [0, 1], "way": ["s", "r"], "source": [0, 1], "target": [1, 0]}
    ).with_columns(domain=pl.lit(nasty))
    named = pl.DataFrame({"name": [nasty], "startNs": [0], "endNs": [1], "type": [0]})
    step_task_info.write({path: (named, step_task_info.links(operations))})
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM StepTaskInfo").fetchall() == [(shown,)]
        links = connection.execute("SELECT opConnectionId FROM COMMUNICATION_OP").fetchall()
    assert links == [(f"{shown}_0_1_0",), (f"{shown}_0_1_1",)]


def test_a_report_in_a_notebook_is_text():
    assert SCRIPT not in Report.of(hostile())._repr_html_()
    assert SCRIPT not in Trace(hostile())._repr_html_()
