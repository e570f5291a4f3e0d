"""Times of the host are never passed off as those of a device: every reader says which they are, and
every answer repeats it."""

from __future__ import annotations

import json

import msgspec
import polars as pl
import pytest
from click.testing import CliRunner

import bubblescope
from bubblescope import sources
from bubblescope.analysis.overview import Overview
from bubblescope.analysis.view import View
from bubblescope.cli import cli
from bubblescope.model.kinds import SHORT, Kind
from bubblescope.model.provenance import Origin
from bubblescope.model.timeline import Timeline
from bubblescope.model.timing import timed
from bubblescope.record.recorder import Recorder
from bubblescope.record.timers.timer import CpuTimer
from bubblescope.render.html.summary import summary
from bubblescope.render.wording import facts, whose_times
from job_trace_maker import make
from kineto_maker import Trace, pipeline
from nsight_maker import Export, Style
from nsight_maker import pipeline as nsight
from paddle_maker import line, write
from places import SHARED
from primus_maker import dump, interleaved
from synthetic import one_f_one_b


def on_cpu(rank: int = 0, *, microbatches: int = 4) -> Trace:
    """A trace of the CPU alone: forwards and backwards of a stage with an operator in each."""
    trace = Trace(rank=rank, header={"deviceProperties": []})
    trace.range("ProfilerStep#0", 500, 1000 * (2 * microbatches + 2))
    for index, (way, micro) in enumerate((way, k) for way in "FB" for k in range(microbatches)):
        start = 1000 * (index + 1)
        trace.range(f"PP:{rank}{way}{micro}", start, start + 900)
        trace.operator("aten::linear", start + 10, start + 890)
    return trace


def named(whose: list[str | None], origin: str = "native") -> Timeline:
    """A 1F1B run of four ranks with times of devices, of the host, or of nobody knows."""
    made = one_f_one_b()
    run = msgspec.structs.replace(made.run, origins=(Origin(origin, None, "run"),))
    ranks = made.ranks.with_columns(timed=pl.Series(whose, dtype=pl.String))
    return Timeline(made.tasks, ranks, run)


def head(run: Timeline) -> dict:
    """What the page's head is made of."""
    ranks = run.ranks.with_row_index("position")
    return summary(View.of(run), Overview.of(run), ranks, run.start_ns)


def test_readers_say_what_timed_their_tasks(tmp_path):
    (tmp_path / "nsight").mkdir()
    exported, _, _ = nsight(Style())
    for index, export in enumerate(exported):
        export.write(tmp_path / "nsight" / f"host{index}.sqlite")
    (tmp_path / "kineto").mkdir()
    for index, trace in enumerate(pipeline(Style())[0]):
        trace.write(tmp_path / "kineto" / f"rank{index}.json")
    on_cpu().write(tmp_path / "cpu.json")
    write(tmp_path / "logs", line("forward", 0, 1, 2), line("backward", 0, 3, 4))
    records = [
        f'{{"name": "F0", "cat": "v", "ph": "{phase}", "pid": 0, "tid": 1, "ts": {ms}}}\n'
        for phase, ms in (("B", 1_700_000_000_000), ("E", 1_700_000_000_005))
    ]
    write(tmp_path / "records", *records, name="profile_record_tmp_file_for_rank_0")
    dump(tmp_path / "primus", interleaved(2, 4, 2))
    make(tmp_path / "job.parquet", replicas=1, steps=1, chunks=1, overlapped=False)
    for place, whose in {
        "nsight": "device",
        "kineto": "device",
        "cpu.json": "host",
        "logs": "device",
        "records": "host",
        "primus": "device",
        "job.parquet": "device",
    }.items():
        assert timed(sources.load(tmp_path / place).ranks) == whose, place


def test_a_recording_says_it_by_its_timer(tmp_path):
    recorder = Recorder(tmp_path, rank=0, stages=[0], timer=CpuTimer())
    with recorder, recorder.step(0):
        with recorder.task("forward", microbatch=0):
            pass
        with recorder.task("backward", microbatch=0):
            pass
    run = sources.load(tmp_path)
    assert timed(run.ranks) == "host"
    assert timed(sources.load(run.save(tmp_path / "saved.bubbles.parquet")).ranks) == "host"


def test_operators_of_the_cpu_are_no_kernels(tmp_path):
    run = bubblescope.load(on_cpu().write(tmp_path / "rank0.json"))
    assert run.tasks["busy_ns"].null_count() == len(run)
    overall = run.report().bubbles.overall
    assert overall.kernel_share is None
    assert overall.unknown["kernel_share"] == "the trace does not show when kernels ran"


def test_ranks_that_differ_are_told_apart(tmp_path):
    """Rank 0 profiled the CPU alone, as where CUPTI failed on one machine; rank 1 its device too."""
    on_cpu().write(tmp_path / "rank0.json")
    other = Trace(rank=1)
    other.range("ProfilerStep#0", 500, 9_000)
    for index, (way, micro) in enumerate((way, k) for way in "FB" for k in range(4)):
        start = 1000 * (index + 1)
        other.range(f"PP:1{way}{micro}", start, start + 100)
        other.kernel(start + 300, start + 900, at=start + 10)
    other.write(tmp_path / "rank1.json")
    run = bubblescope.load(tmp_path)
    assert timed(run.ranks) == "mixed"
    assert run.report().to_dict()["run"]["timed"] == "mixed"
    top = " ".join(str(run.report()).splitlines()[:4])
    assert "host times on rank 0" in top
    assert "times of rank 0 are the host's, those of others a device's" in top
    # What is known of kernels is that of the device alone.
    assert run.report().bubbles.overall.kernel_share == 1.0


@pytest.mark.parametrize(
    ("whose", "word", "fact"),
    [
        (["host"] * 4, "host", "host times"),
        (["device", "host", "host", "device"], "mixed", "host times on ranks 1, 2"),
    ],
)
def test_every_answer_says_it_first(tmp_path, whose, word, fact):
    run = named(whose)
    path = str(run.save(tmp_path / "run.bubbles.parquet"))
    said = whose_times(run)
    assert said is not None
    assert "the host's" in said

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 0, result.output
        return result.output

    for command in ("report", "why", "whatif", "stragglers"):
        top = " ".join(" ".join(invoke(command, path).splitlines()[:5]).split())
        assert said in top, command
        plain = json.loads(invoke(command, path, "--json"))
        assert (plain["run"] if command == "report" else plain)["timed"] == word
    assert said in " ".join(invoke("info", path).split())
    assert json.loads(invoke("info", path, "--json"))["timed"] == word
    assert fact in facts(run)
    assert fact in repr(bubblescope.load(path).report())
    compared = json.loads(invoke("compare", path, path, "--json", "-q"))
    assert (compared["before"]["timed"], compared["after"]["timed"]) == (word, word)
    assert [note["code"] for note in compared["notes"]][:2] == ["host-times"] * 2
    assert f"A has {fact}" in " ".join(invoke("compare", path, path).split())
    assert "主机" in "".join(invoke("why", path, "--lang", "zh").splitlines()[:3])


def test_the_page_says_it_in_its_heading():
    shown = head(named(["host"] * 4))
    assert "host times" in shown["facts"]
    assert shown["warnings"][0].startswith("times are the host's, not a device's")
    unknown = head(named([None] * 4))  # which is no reason to worry
    assert any("do not state whether times" in note for note in unknown["notes"])
    assert not any("times" in warning for warning in unknown["warnings"])
    assert "host times" not in head(named(["device"] * 4))["facts"]


def test_traces_without_tasks_have_no_times_to_speak_of(tmp_path):
    export = Export()
    export.process(7).range("launcher", 0, 9000)
    export.write(tmp_path / "run.sqlite")
    trace = Trace(rank=0, header={"deviceProperties": []})
    trace.range("something", 0, 9000)
    trace.write(tmp_path / "rank0.json")
    for name in ("run.sqlite", "rank0.json"):
        result = CliRunner().invoke(cli, ["report", str(tmp_path / name)])
        assert result.exit_code == 3, result.output
        assert "host times" not in result.output
        assert "the host's" not in result.output


def test_runs_of_different_clocks_are_compared_with_a_word_on_it():
    one, other = (bubblescope.Trace(named([whose] * 4)) for whose in ("host", "device"))
    found = one.compare(other)
    assert ("times are those of", "host", "device") in found.differs
    assert str(found).startswith(
        "Which run is faster is not known: the times of one are the host's"
    )
    assert not one.compare(one).differs
    assert str(one.compare(one)).startswith("B is as fast as A")


def test_what_is_not_known_is_said_and_what_is_of_devices_is_not():
    assert whose_times(named(["device"] * 4)) is None
    unknown = named([None] * 4)
    assert "do not state whether times of ranks 0, 1, 2, 3" in str(whose_times(unknown))
    assert timed(unknown.ranks) is None
    assert timed(named(["host", "host", "host", None]).ranks) is None
    assert "of rank 0 are the host's" in str(whose_times(named(["host", None, None, None])))
    simulated = bubblescope.simulate("1f1b", devices=2, microbatches=2)
    assert whose_times(simulated.timeline) is None
    made = one_f_one_b()  # of which no trace could say it
    assert whose_times(Timeline(made.tasks, made.ranks)) is None


@pytest.mark.skipif(not SHARED.exists(), reason="needs the real traces")
def test_real_traces_of_the_cpu_and_of_devices():
    cpu = bubblescope.load(SHARED / "kineto" / "torch-2.13-gloo" / "1F1B")
    assert timed(cpu.ranks) == "host"
    assert cpu.report().bubbles.overall.kernel_share is None
    for place in (
        "primus/pp8",
        "paddle/1f1b",
        "ascend/1f1b",
        "kineto/no_ranges/hta_alexnet.json.gz",
    ):
        assert timed(sources.load(SHARED / place).ranks) == "device", place


def marked(folder, ranks: list[int]):
    """Traces of the CPU alone of some of four ranks of a pipeline, whose ranges tell no stage."""
    folder.mkdir()
    made = one_f_one_b(comm=False)
    for rank in ranks:
        trace = Trace(rank=rank, header={"deviceProperties": []})
        trace.header["distributedInfo"] = {"rank": rank, "world_size": 4, "backend": "gloo"}
        for step in made.tasks.filter(rank=rank, lane="compute").partition_by("step"):
            first, last = step["start_ns"].min(), step["end_ns"].max()
            trace.range(f"ProfilerStep#{step['step'][0]}", first, last + 1)
            for task in step.sort("start_ns").to_dicts():
                short = SHORT[Kind(task["kind"])]
                number = "" if task["microbatch"] is None else task["microbatch"]
                trace.range(f"{short}{number}", task["start_ns"], task["end_ns"])
                trace.operator("aten::linear", task["start_ns"], task["end_ns"])
        trace.write(folder / f"rank{rank}.json")
    return folder


def causes(run) -> set[str]:
    return {row["cause"] for row in run.why().to_dict()["causes"] if row["idle_ns"]}


@pytest.mark.parametrize("ranks", [[1], [0], [0, 1, 3]])
def test_ranks_that_are_not_all_of_a_pipeline_tell_no_stages(tmp_path, ranks):
    """What is waiting for the others is not put down to the host."""
    run = bubblescope.load(marked(tmp_path / "some", ranks))
    assert run.tasks["stage"].is_null().all()
    assert run.report().study.recognition is None
    assert causes(run) == {"unexplained"}


def test_all_ranks_of_a_pipeline_tell_their_stages(tmp_path):
    run = bubblescope.load(marked(tmp_path / "all", [0, 1, 2, 3]))
    assert run.report().study.recognition.schedule == "1f1b"
    assert "unexplained" not in causes(run)
