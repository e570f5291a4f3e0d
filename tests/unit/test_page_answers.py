"""The answers that a page holds ready, beside the commands that it offers for them."""

from __future__ import annotations

import base64
import json
import re
import shlex

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

import bubblescope
from bubblescope.analysis import standard_questions
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.question_text import read, written
from bubblescope.analysis.standard_questions import Questions
from bubblescope.analysis.study import study
from bubblescope.analysis.view import View
from bubblescope.cli import cli
from bubblescope.facade import write
from bubblescope.model.errors import ScheduleError
from bubblescope.render.html import page as html
from bubblescope.render.html import whatif_answers
from bubblescope.render.html.data import PageData
from bubblescope.schedules import generate
from device_exports import kineto
from device_maker import Mode, make
from injected import Fault, Job
from page_tables import columns
from synthetic import empty, one_f_one_b


def slow(**how):
    """A run of two replicas in which one rank is slow and a stage is heavy."""
    made = Job(generate("1f1b", 4, 8), **{"replicas": 2, "steps": 3, **how})
    return made.play(Fault(Cause.SLOW_RANK, slow={(0, 2): 1.4}))


def of_page(text: str) -> tuple[dict, dict[str, np.ndarray]]:
    """Return the head of a page and its ghosts, decoded."""

    def element(name: str) -> str:
        return re.search(rf'<script id="{name}"[^>]*>(.*?)</script>', text, re.DOTALL)[1]

    head = json.loads(element("head"))
    return head, columns(base64.b64decode(element("ghosts")), head["columns"]["ghosts"])


def answered(command: str) -> dict:
    """Run a command as a shell would; return the one prediction it makes."""
    program, *arguments = shlex.split(command)
    assert program == "bubblescope"
    result = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (one,) = json.loads(result.stdout)["predictions"]
    return one


def same(answer: dict, said: dict) -> None:
    for ours, theirs in {
        "change": "change",
        "predicted": "predicted_ns",
        "saved": "saved_ns",
        "best": "best_ns",
        "best_if": "best_if",
        "needs": "needs",
    }.items():
        assert answer[ours] == said[theirs], answer["asked"]
    assert answer["share"] == pytest.approx(said["saved_share"])
    assert answer["error"] == pytest.approx(said["error"])


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (
            "--without 'stage imbalance' --without host_data",
            [("without", "stage imbalance"), ("without", "host_data")],
        ),
        ("--host-never-late", [("host_never_late",)]),
        ("--kernel 'a b=c=0.25'", [("kernels", "a b=c", 0.25)]),
        (
            "--stage 2=0.5 --rank 7=1.25",
            [("scaled", "stage", 2, 0.5), ("scaled", "rank", 7, 1.25)],
        ),
        (
            "--move 1@3:0 --move 2@3:1 --healthy 6 --layers 8,8,8,8",
            [
                ("healthy", 6),
                ("moved", 1, 3, 0, [8, 8, 8, 8]),
                ("moved", 2, 3, 1, [8, 8, 8, 8]),
            ],
        ),
        ("--partition 9,7 --layers 8,8", [("partitioned", [9, 7], [8, 8])]),
        (
            "--microbatches 64 --schedule interleaved-1f1b --chunks 4",
            [("microbatches", 64), ("schedule", "interleaved-1f1b", 4)],
        ),
    ],
)
def test_questions_are_read_as_they_are_written(text, asked):
    assert read(text) == asked
    assert read(shlex.join(written(asked))) == asked
    assert sorted(written(asked)) == sorted(shlex.split(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nothing is asked"),
        ("--layers 8,8", "nothing is asked"),
        ("--stage", "--stage needs a value"),
        ("--stage x", "is not like 2=0.5"),
        ("--stage 2=1e400", "is not like 2=0.5"),
        ("--healthy six", "is not a whole number"),
        ("--each --stage 1=2", "'--each' asks nothing"),
        ("stage", "'stage' asks nothing"),
        ("--move 1@0:1", "--move needs --layers"),
        ("--schedule nonsense", "is not a schedule"),
        ("--without 'slow", "No closing quotation"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(text, words):
    with pytest.raises(ScheduleError, match=re.escape(words)):
        read(text)


@pytest.mark.parametrize("factor", [0.1, 1 / 3, 1e-9, 2.0, 1.0000000001])
def test_factors_are_read_as_the_same_number(factor):
    assert read(shlex.join(written([("scaled", "stage", 0, factor)]))) == [
        ("scaled", "stage", 0, factor)
    ]


def test_each_command_of_a_page_gives_the_number_beside_it(tmp_path):
    run = slow().save(tmp_path / "it's a run.parquet")
    out = tmp_path / "page.html"
    arguments = ["view", str(run), "--no-open", "-o", str(out), "-q", "--steps", "0:2"]
    result = CliRunner().invoke(cli, [*arguments, "--layers", "8,8,8,8"])
    assert result.exit_code == 0, result.output
    head, _ = of_page(out.read_text("utf-8"))
    told = head["whatif"]
    assert shlex.split(told["command"])[-2:] == ["--steps", "0:2"]
    kinds = {shlex.split(answer["asked"])[0] for answer in told["answers"]}
    assert kinds >= {"--without", "--healthy", "--microbatches", "--schedule", "--move", "--stage"}
    by_kind = {shlex.split(answer["asked"])[0]: answer for answer in told["answers"]}
    for (
        answer
    ) in by_kind.values():  # one of each kind: every one is a command that reads the run anew
        same(answer, answered(f"{told['command']} {answer['asked']}"))


def test_a_page_made_in_python_offers_a_command_where_one_reads_the_run(tmp_path):
    path = tmp_path / "run.parquet"
    slow().save(path)
    names = r"(?P<kind>Compute) (?P<microbatch>\d+)"
    run = bubblescope.load(path, clock="raw", kinds={"Compute": "forward"}, names=names)
    head, _ = of_page(run.view(tmp_path / "a.html", layers=[2, 2, 2, 2]).read_text("utf-8"))
    told = head["whatif"]
    assert told["layers"] == [2, 2, 2, 2]
    said = ("whatif", str(path), "--names", names, "--kind", "Compute=forward", "--clock", "raw")
    assert told["command"] == shlex.join(("bubblescope", *said))
    same(told["answers"][0], answered(f"{told['command']} {told['answers'][0]['asked']}"))
    for other in (run.slice(steps=[0]), bubblescope.simulate("1f1b", devices=2, microbatches=4)):
        head, _ = of_page(other.view(tmp_path / "b.html").read_text("utf-8"))
        assert head["whatif"]["command"] is None


def test_answers_are_ranked_and_say_what_the_analysis_says():
    timeline = slow()
    view = View.of(timeline)
    shares = [one.prediction.saved_share for one in view.answers]
    assert shares == sorted(shares, reverse=True)
    asked = [one.asked[0] for one in view.answers]
    assert ("healthy", 2) in asked
    assert ("microbatches", 16) in asked
    assert {("scaled", "stage", stage, factor) for stage in range(4) for factor in (0.9, 1.1)} <= {
        *asked
    }
    schedules = [one for one in asked if one[0] == "schedule"]
    assert 3 <= len(schedules) <= 5
    advice = {
        one.change: one.saved_share
        for one in bubblescope.whatif(bubblescope.facade.Trace(timeline)).predictions
    }
    for one in view.answers:
        if one.prediction.change in advice:
            assert one.prediction.saved_share == pytest.approx(advice[one.prediction.change])
    kept = [one.prediction.change for one in view.answers]
    best = [change for change in advice if generate_name(change)]
    assert {*best[:3]} <= {*kept}


def generate_name(change: str) -> bool:
    return change.partition(",")[0] in bubblescope.schedules.SCHEDULES


def test_ghosts_are_what_the_analysis_would_draw():
    timeline = slow()
    view = View.of(timeline)
    head, ghosts = of_page(html.render(view))
    held = [answer for answer in head["whatif"]["answers"] if answer["rows"]]
    assert len(held) == len(view.answers)
    for answer, truth in zip(held, view.answers, strict=True):
        rows = []
        for row in answer["rows"]:
            assert row["lane"] == "whatif"
            own = {name: column[row["from"] : row["to"]] for name, column in ghosts.items()}
            start = int(head["origin"]) + np.cumsum(own["gap"])
            rows.append(
                pl.DataFrame(
                    {
                        "rank": np.full(len(start), head["ranks"][row["rank"]]["rank"]),
                        "start_ns": start,
                        "end_ns": start + own["length"],
                        "microbatch": own["microbatch"],
                        "stage": own["stage"],
                        "kind": [head["kinds"][kind]["name"] for kind in own["kind"]],
                        "name": [head["names"][name] for name in own["name"]],
                    }
                )
            )
        want = truth.prediction.timeline(timeline).tasks.with_columns(
            pl.col("kind").cast(pl.String)
        )
        found = pl.concat(rows)
        order = ("rank", "start_ns", "end_ns", "kind", "microbatch")
        want = want.select(found.columns)
        assert found.sort(order).rows() == want.sort(order).rows(), answer["asked"]


def test_an_answer_says_how_much_each_rank_would_be_idle():
    timeline = slow(replicas=1)
    view = View.of(timeline, whatif=lambda run: run.schedule("zb-h1"))
    head, _ = of_page(html.render(view))
    order = [rank["rank"] for rank in head["ranks"]]
    answers = {answer["change"]: answer["idle"] for answer in head["whatif"]["answers"]}
    answers["shown"] = next(one["idle"] for one in head["overlays"] if one["lane"] == "whatif")
    truths = {one.prediction.change: one.prediction for one in view.answers}
    for change, idle in answers.items():
        tasks = truths.get(change, view.prediction).timeline(timeline).tasks
        spans = tasks.group_by("step").agg(pl.col("end_ns").max() - pl.col("start_ns").min())
        busy = tasks.group_by("rank").agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        share = {rank: 1 - ns / spans["end_ns"].sum() for rank, ns in busy.iter_rows()}
        assert idle == pytest.approx([share[rank] for rank in order]), change


def test_a_page_holds_no_more_ghosts_than_it_has_room_for(monkeypatch):
    view = View.of(slow())
    size = len(view.study.ledger.counterfactuals.run)
    monkeypatch.setattr(whatif_answers, "_HELD", 2 * size + size // 2)
    data = PageData.of(view)
    assert [bool(answer.rows) for answer in data.told.whatif.answers[:4]] == [
        True,
        True,
        False,
        False,
    ]


def test_of_large_runs_fewer_questions_are_asked(monkeypatch):
    timeline = slow()
    known = study(timeline)
    everything = Questions(timeline, known).standard()
    monkeypatch.setattr(standard_questions, "_PLAYED", 9 * len(timeline))
    assert len(Questions(timeline, known).standard()) <= 9
    monkeypatch.setattr(standard_questions, "LARGE", 10)
    few = Questions(timeline, known)
    found = few.standard()
    assert "run" not in vars(few)  # which takes as long to make as ten answers
    assert {one.asked[0][0] for one in found} == {"without"}
    numbers = {one.prediction.change: one.prediction[:6] for one in everything}
    assert found
    for one in found:
        assert one.prediction[:6] == numbers[one.prediction.change]


def test_a_run_without_a_pipeline_has_answers_without_lanes(tmp_path):
    folder = kineto(make(Mode(ranks=1), 3), tmp_path)
    head, _ = of_page(bubblescope.load(folder).view(tmp_path / "a.html").read_text("utf-8"))
    told = head["whatif"]
    if told["moves"]:
        pytest.fail("a single device is no pipeline")
    assert told["answers"]
    assert not any(answer["rows"] for answer in told["answers"])
    same(told["answers"][0], answered(f"{told['command']} {told['answers'][0]['asked']}"))


def test_a_run_that_can_be_asked_nothing_has_none(tmp_path):
    write(empty(), tmp_path / "a.html")
    head, ghosts = of_page((tmp_path / "a.html").read_text("utf-8"))
    assert head["whatif"] is None
    assert not len(ghosts["gap"])


def test_a_question_with_a_name_the_run_has_none_of_numbers_it_after_those():
    timeline = one_f_one_b()
    told = PageData.of(View.of(timeline)).told
    own = timeline.tasks["name"].n_unique()
    assert len(told.names) > own
    assert "zb-v" in told.names[own:]
