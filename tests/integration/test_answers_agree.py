"""All answers about a run tell the same: idle time, steps, causes, the slow rank, what saves most.

They are asked as a user asks: the JSON and the text that the commands print, what the page is given,
and the slices of a Perfetto trace.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pytest
from click.testing import CliRunner
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

import bubblescope
import job_trace_maker
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.view import View
from bubblescope.cli import cli
from bubblescope.facade import Trace
from bubblescope.model import intervals, units
from bubblescope.model.errors import TimelineError
from bubblescope.model.timeline import Timeline
from bubblescope.render.html.data import PageData
from bubblescope.schedules import generate
from device_exports import kineto
from device_maker import Mode, make
from full import FULL
from injected import Fault, Job
from kineto_maker import pipeline
from nsight_maker import Style
from random_runs import made

if TYPE_CHECKING:
    from pathlib import Path

BETWEEN_NS = 18_000_000
"""Time between the rounds of a step, where there are rounds."""
SLACK_NS = 1
"""What means may differ by, for they are rounded."""


class Answers:
    """What each command says about one run.

    Attributes:
        what: The run in words.
        slow: The rank that was made slow, if that is to be found.
        run: The run, as it is read.
        texts: Command -> what it prints.
        said: Command -> its JSON; without `stragglers` where no step can be replayed.
        page: What the page knows.
        steps: What the steps of a Perfetto trace are: name -> start and end.
    """

    def __init__(self, what: str, run: Trace, slow: int | None, folder: Path) -> None:
        self.what, self.run, self.slow = what, run, slow
        answers = {"report": run.report(), "why": run.why(), "whatif": run.whatif()}
        answers["compare"] = run.compare(run)
        with suppress(TimelineError):  # no step of it is whole
            answers["stragglers"] = run.stragglers()
        self.texts = {name: str(answer) for name, answer in {**answers, "info": run.info()}.items()}
        self.said = {name: json.loads(answer.to_json()) for name, answer in answers.items()}
        self.gaps = answers["why"].to_dict(gaps=True)["gaps"]
        self.page = PageData.of(View.of(run.timeline))
        self.steps = steps_of(run.export(folder / "run.pftrace"))

    @property
    def lengths(self) -> dict[int | None, float]:
        """The pipeline phase of each step that is compared across ranks, as the report has it."""
        rows = [row for row in self.rows if row["makespan_ns"] is not None]
        lengths: dict[int | None, list[int]] = {}
        for row in rows:
            lengths.setdefault(row["step"], []).append(row["makespan_ns"])
        return {step: sum(each) / len(each) for step, each in lengths.items()}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rates of each rank in each step, as the report has them."""
        rows: list[dict[str, Any]] = self.said["report"]["bubble"]["per_rank_step"]
        return rows


def steps_of(path: Path) -> dict[str, tuple[int, int]]:
    """Return the slices on the tracks of steps of a Perfetto trace."""
    packets = proto.Trace.FromString(path.read_bytes()).packet
    tracks = {
        packet.track_descriptor.uuid
        for packet in packets
        if packet.track_descriptor.name.startswith("steps")
    }
    found, begun = {}, {}
    for packet in packets:
        event = packet.track_event
        if not packet.HasField("track_event") or event.track_uuid not in tracks:
            continue
        if event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
            begun[event.track_uuid] = (event.name, packet.timestamp)
        else:
            name, start = begun[event.track_uuid]
            found[name] = (start, packet.timestamp)
    return found


def with_kernels(folder: Path) -> Trace:
    """Read traces of PyTorch of a pipeline, with kernels; one rank lacks the marker of a step."""
    traces, _, _ = pipeline(Style(stages=3, microbatches=4, steps=4))
    lost = traces[1].events
    lost[:] = [event for event in lost if event["name"] != "ProfilerStep#2"]
    for trace in traces:
        trace.write(folder / f"rank{trace.rank}.json")
    return bubblescope.load(folder)


def of_a_job(folder: Path) -> Trace:
    """Read a job trace: with messages, collectives and an optimizer."""
    path = job_trace_maker.make(
        folder / "job.parquet", replicas=2, steps=3, chunks=1, overlapped=False
    )
    return bubblescope.load(path)


def in_rounds(folder: Path) -> Trace:
    """Read a run that accumulates gradients in three rounds, with data loaded between them."""
    plan = generate("1f1b", 3, 4).repeated(3)
    played = Job(plan, replicas=1, steps=4, jitter=0.05, seed=3).play(
        Fault(Cause.SLOW_RANK, slow={(0, 1): 1.4})
    )
    late = pl.col("microbatch").fill_null(99) // 4 * (BETWEEN_NS // 2)
    times = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")
    step = pl.col("step") * 30_000_000
    tasks = played.tasks.with_columns(pl.col(times) + late.clip(upper_bound=BETWEEN_NS) + step)
    said = msgspec.structs.replace(played.run, microbatches=4)
    run = Timeline(tasks, played.ranks, said)
    return bubblescope.load(run.save(folder / "run.parquet"))


READ = {"kernels": with_kernels, "job trace": of_a_job, "rounds": in_rounds}
"""Runs that are not made of random faults."""


@pytest.fixture(scope="module", params=[*READ, *range(20 if FULL else 5)])
def answers(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    if request.param in READ:
        (folder / "traces").mkdir()
        return Answers(request.param, READ[request.param](folder / "traces"), None, folder)
    what, timeline, slow = made(request.param)
    run = bubblescope.load(timeline.save(folder / "run.parquet"))
    return Answers(what, run, slow, folder)


def summed(rows: list[dict[str, Any]], *by: str) -> dict[Any, int]:
    """Return the sums of idle_ns of what is not unknown, by some columns; none for 0."""
    sums: dict[Any, int] = {}
    for row in rows:
        if row["idle_ns"]:
            key = tuple(row[name] for name in by)
            sums[key] = sums.get(key, 0) + row["idle_ns"]
    return sums


def test_idle_time_is_the_same_everywhere(answers):
    """Of the run, each rank, and each rank in each step: rates, causes, gaps, the page."""
    report, why = answers.said["report"], answers.said["why"]
    bubble = report["bubble"]
    rated = any(row["idle_ns"] is not None for row in answers.rows)
    if rated:
        assert bubble["overall"]["idle_ns"] == why["idle_ns"], answers.what
        ranks = {(row["rank"],): row["idle_ns"] for row in bubble["per_rank"] if row["idle_ns"]}
        assert ranks == summed(why["per_rank_step"], "rank"), answers.what
        cells = summed(answers.rows, "rank", "step")
        assert cells == summed(why["per_rank_step"], "rank", "step"), answers.what
    for causes in (why["causes"], why["per_rank_step"], report["why"]["causes"]):
        assert sum(row["idle_ns"] for row in causes) == why["idle_ns"], answers.what
    assert sum(gap["end_ns"] - gap["start_ns"] for gap in answers.gaps) == why["idle_ns"]
    # The page draws a moment that is idle in two steps once.
    drawn = answers.page.gaps.select(length=pl.col("end_ns") - pl.col("start_ns"))["length"].sum()
    gaps = pl.DataFrame(answers.gaps, schema_overrides={"task": pl.Int64}, infer_schema_length=None)
    once = gaps.partition_by("rank") if gaps.height else []
    starts_and_ends = ([rank[name].to_numpy() for name in ("start_ns", "end_ns")] for rank in once)
    assert drawn == sum(intervals.union_ns(*both) for both in starts_and_ends), answers.what


def test_rates_are_the_same_on_the_page(answers):
    head, bubble = msgspec.to_builtins(answers.page.told), answers.said["report"]["bubble"]
    assert head["overall"] == {name: bubble["overall"][name] for name in head["overall"]}
    ranks = {row["rank"]: row for row in bubble["per_rank"]}
    for row in head["ranks"]:
        expected = ranks.get(row["rank"])
        assert (row["rates"] is None) == (expected is None)
        if expected is not None:
            assert {name: row["rates"][name] for name in head["overall"]} == {
                name: expected[name] for name in head["overall"]
            }
    steps = {row["step"]: row["makespan"] for row in bubble["per_step"]}
    assert {row["step"]: row["makespan"] for row in head["steps"]} == {
        step: rate for step, rate in steps.items() if step is not None
    }


def test_causes_have_one_order_and_one_share(answers):
    report, why = answers.said["report"]["why"], answers.said["why"]
    names = ("cause", "idle_ns", "share")
    causes = [tuple(row[name] for name in names) for row in why["causes"]]
    assert causes == [tuple(row[name] for name in names) for row in report["causes"]], answers.what
    assert (report["steps"], report["replay_error"]) == (why["steps"], why["replay_error"])
    shares = {cause: share for cause, _, share in causes}
    for row in answers.page.told.causes:
        assert row.share == shares.get(row.name, 0.0)
    told = [row["values"]["cause"] for row in why["findings"] if "cause" in row["values"]]
    # What would save most is spoken of first.
    saved = {row["cause"]: row["last_ns"] for row in why["causes"]}
    order = [cause for cause, _, _ in causes if cause in told]
    order.sort(key=lambda cause: -max(saved[cause], 0))
    if told[-1:] == ["slow rank"]:  # it is named in any case, last where it is no large one
        order = [cause for cause in order if cause != "slow rank"] + ["slow rank"]
    assert told == order, answers.what


def test_steps_are_the_same_everywhere(answers):
    """One number of steps and one length: of the pipeline phase, and from first to last task."""
    report, why, whatif = (answers.said[name] for name in ("report", "why", "whatif"))
    lengths = answers.lengths
    if lengths:
        mean = sum(lengths.values()) / len(lengths)
        assert why["steps"] == len(lengths), answers.what
        assert why["step_ns"] == whatif["step_ns"] == pytest.approx(mean, abs=SLACK_NS), (
            answers.what
        )
    assert why["step_ns"] == whatif["step_ns"]
    costs = sum(row["cost_ns"] or 0 for row in why["causes"])
    assert why["bare_ns"] + costs == why["replayed_ns"] == why["step_ns"], answers.what
    compare = answers.said["compare"]
    kept = [lengths[step] for step in compare["before"]["steps"] if step in lengths]
    [step] = [one for one in compare["changes"]["overall"] if one["name"] == "step"]
    if kept:
        assert step["before"] == pytest.approx(sum(kept) / len(kept), abs=SLACK_NS), answers.what
    assert step["difference"] in (0, None)
    left_out = {*compare["before"]["left_out"]}
    assert {*compare["before"]["steps"]} == {row["step"] for row in answers.rows} - left_out
    whole = {row["step"]: (row["start_ns"], row["end_ns"]) for row in report["steps"]}
    origin = int(answers.page.told.origin)
    assert {
        row.step: (row.start + origin, row.end + origin) for row in answers.page.told.steps
    } == whole
    assert answers.steps == {f"step {step}": span for step, span in whole.items()}


def test_steps_that_are_left_out_are_named_by_all(answers):
    told = {row["message"] for row in answers.said["report"]["warnings"]}
    for name in ("why", "whatif"):
        assert {row["message"] for row in answers.said[name]["warnings"]} == told, answers.what
    assert {*answers.page.told.warnings} == told, answers.what
    rated = {row["step"] for row in answers.rows if row["makespan_ns"] is not None}
    if rated and len(rated) < len({row["step"] for row in answers.rows}):
        for name in ("report", "why", "whatif"):
            assert "not compared across ranks" in " ".join(answers.texts[name].split())


def test_stragglers_have_the_same_steps(answers):
    """Theirs last from the first operation to the last one: of job traces, messages are such, too."""
    found = answers.said.get("stragglers")
    if found is None:
        pytest.skip("no step is whole")
    computed = answers.run.tasks
    if found["model"] == "compute":
        computed = computed.filter(lane="compute")
    apart = "steps-apart" in {row["code"] for row in answers.said["report"]["warnings"]}
    span = pl.col("end_ns").max() - pl.col("start_ns").min()
    for row in found["steps"]:
        own = computed.filter(pl.col("step").eq_missing(row["step"]))
        lengths = [part.select(span).item() for part in _replicas(answers, own, apart=apart)]
        between = BETWEEN_NS if answers.what == "rounds" else 0
        assert row["base_ns"] == max(lengths) - between, answers.what
    mean = sum(row["base_ns"] for row in found["steps"]) / len(found["steps"])
    assert found["base_ns"] == pytest.approx(mean, abs=SLACK_NS)
    assert {row["step"] for row in found["steps"]} <= {row["step"] for row in answers.rows}


def _replicas(answers: Answers, tasks: pl.DataFrame, *, apart: bool) -> list[pl.DataFrame]:
    if not apart:
        return [tasks]
    return tasks.join(answers.run.ranks.select("rank", "dp"), on="rank").partition_by("dp")


def test_the_slow_rank_is_the_same_everywhere(answers):
    named = slow_ranks(answers)
    assert len({*named.values()}) < 2, f"{answers.what}: {named}"
    report, stragglers = "report" in named, "stragglers" in named
    if "stragglers" in answers.said:
        assert report == stragglers, answers.what
    if report:
        assert {"why", "compare"} <= named.keys(), answers.what
    if answers.slow is not None:
        assert {*named.values()} == {answers.slow}, answers.what
        saved = [one["change"] for one in answers.said["whatif"]["predictions"]]
        healthy = [change for change in saved if re.fullmatch(r"rank \d+ healthy", change)]
        assert healthy[:1] in ([f"rank {answers.slow} healthy"], []), answers.what


def slow_ranks(answers: Answers) -> dict[str, int]:
    """Return the rank that each text says is slow."""
    patterns = {
        "report": r"^slow +rank (\d+) is",
        "why": r"^evidence +Rank (\d+) is \S+ % slower",
        "stragglers": r"^ *slowest +\S+ +rank (\d+) is",
        "compare": r"^note +A: rank (\d+) is",
    }
    found = {}
    for name, pattern in patterns.items():
        match = re.search(pattern, answers.texts.get(name, ""), re.MULTILINE)
        if match:
            found[name] = int(match[1])
    return found


def test_what_is_saved_is_the_same_in_why_and_whatif(answers):
    """Of each cause and each rank, and which is first."""
    last = {
        row["cause"]: row["last_ns"]
        for row in answers.said["why"]["causes"]
        if row["last_ns"] is not None
    }
    advice = answers.said["whatif"]["predictions"]
    saved = {
        one["change"].removeprefix("without "): one["saved_ns"]
        for one in advice
        if one["change"].startswith("without ")
    }
    assert saved == {cause: last[cause] for cause in saved}, answers.what
    order = sorted(saved, key=lambda cause: -last[cause])
    assert [saved[cause] for cause in order] == [*saved.values()], answers.what
    ranks = [one for one in advice if re.fullmatch(r"rank \d+ healthy", one["change"])]
    if ranks:
        numbers = [int(one["change"].split()[1]) for one in ranks]
        asked = answers.run.whatif(*(methodcaller("healthy", rank) for rank in numbers))
        assert [one.saved_ns for one in asked.predictions] == [one["saved_ns"] for one in ranks]


def test_what_is_inherent_is_a_part_of_what_is_idle_without_waiting(answers):
    for row in answers.said["why"]["findings"]:
        if row["key"] == "no_wait":
            overall = answers.said["report"]["bubble"]["overall"]
            assert row["values"]["no_wait_share"] == overall["no_wait"] == overall["ideal"]
            # A rank that departs from the order delays tasks for which others wait as they must.
            off = 0.005 if "order departure" in answers.what else 1e-9
            assert row["values"]["inherent_share"] <= overall["no_wait"] + off, answers.what


def test_texts_have_the_numbers_of_the_json(answers):
    report, why = answers.said["report"], answers.said["why"]
    rate = report["bubble"]["overall"]["makespan"]
    text = {name: " ".join(said.split()) for name, said in answers.texts.items()}
    if rate is not None:
        assert (
            f"makespan {units.percent(rate)}" in text["report"].replace(" ±", "±")
            or (report["bubble"]["overall"]["makespan_error"])
        )
        assert f"Ranks are idle {units.percent(rate)} of the time" in text["why"], answers.what
    assert f"now {units.duration(why['step_ns'])} a step" in text["whatif"], answers.what
    for row in report["why"]["causes"][:1]:
        assert units.percent(row["share"]) in text["why"]


NEVER = re.compile(r"(?<![\w-])(?:nan|None|null|inf|-0(?:\.0+)?)(?![\w.])")
"""What no text says: not a number, a value of Python, minus nought."""

NEGATIVE = re.compile(r"(?<![\w.])-\d[\d.]* %")
"""A share below nought, which is none; but for changes of times, which have a sign."""

SENTENCE = re.compile(r"(?:[A-Za-z]+,? ){3}")
"""A line of a text that is words, and no row of a table."""


def test_sentences_hold_numbers_and_no_signs_for_missing_ones(answers):
    for name, text in answers.texts.items():
        for line in text.splitlines():
            assert not NEVER.search(line), f"{answers.what}: {name}: {line}"
            if name not in ("whatif", "compare"):
                assert not NEGATIVE.search(line), f"{answers.what}: {name}: {line}"
            if SENTENCE.search(line) and not re.search(r"–  |  –", line):
                assert "–" not in line, f"{answers.what}: {name}: {line}"
    for row in answers.said["why"]["findings"]:
        for wrong in (re.compile("–"), NEVER, NEGATIVE):
            assert not wrong.search(row["text"]), f"{answers.what}: {row['text']}"


@pytest.mark.parametrize("seed", range(3))
def test_devices_without_a_pipeline_have_one_length_of_steps(tmp_path, seed):
    """Of those whose ends were recorded: in what-if of the slowest rank, in compare the mean of all."""
    run = bubblescope.load(kineto(make(Mode(pairs=True, ranks=2), seed), tmp_path))
    report, why = (json.loads(ask().to_json()) for ask in (run.report, run.why))
    whatif, compare = (json.loads(ask.to_json()) for ask in (run.whatif(), run.compare(run)))
    closed: dict[int, list[int]] = {}
    for device in report["devices"]:
        for step in device["steps"]:
            if not step["open"]:
                closed.setdefault(step["step"], []).append(step["total_ns"])
    slowest = sum(max(each) for each in closed.values()) / len(closed)
    assert whatif["step_ns"] == pytest.approx(slowest, abs=SLACK_NS)
    mean = sum(sum(each) / len(each) for each in closed.values()) / len(closed)
    [step] = [one for one in compare["changes"]["device"] if one["name"] == "step"]
    assert step["before"] == pytest.approx(mean, abs=SLACK_NS)
    assert "on the rank that takes longest" in " ".join(str(run.whatif()).split())
    assert why["device"] == report["device"]
    texts = [str(ask) for ask in (run.report(), run.why(), run.whatif(), run.compare(run))]
    for text in texts:
        assert not NEVER.search(text)
    for row in why["findings"]:
        assert "–" not in row["text"]


def test_a_run_of_many_tasks_is_explained_as_a_whole_by_all():
    """Of more than 30,000 tasks, which are replayed a depth at a time."""
    slow = Fault(Cause.SLOW_RANK, slow={(1, 3): 1.2})
    job = Job(generate("1f1b", 8, 32), replicas=4, steps=16, jitter=0.03)
    run = Trace(job.play(slow))
    assert len(run) > 30_000
    report, why = run.report().to_dict(), run.why().to_dict()
    assert report["why"]["steps"] == why["steps"] == 16
    causes = [row["cause"] for row in report["why"]["causes"]]
    assert causes == [row["cause"] for row in why["causes"]]
    assert report["bubble"]["overall"]["idle_ns"] == why["idle_ns"]


def test_the_command_prints_what_the_library_says(tmp_path):
    _, timeline, _ = made(2)
    path = str(timeline.save(tmp_path / "run.parquet"))
    run = bubblescope.load(path)
    questions = {"report": run.report, "why": run.why, "whatif": run.whatif}
    for name, ask in {**questions, "stragglers": run.stragglers}.items():
        printed = CliRunner().invoke(cli, [name, path, "-q", "--json"])
        assert json.loads(printed.stdout) == json.loads(ask().to_json())
    printed = CliRunner().invoke(cli, ["compare", path, path, "-q", "--json"])
    assert (
        json.loads(printed.stdout)["changes"] == json.loads(run.compare(run).to_json())["changes"]
    )
