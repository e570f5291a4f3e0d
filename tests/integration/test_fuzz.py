"""The fuzzer: every reader is a target, a short run finds nothing, and it finds what is there."""

from __future__ import annotations

import copy
import json
import os
import re
import sys
import time
from importlib import import_module
from subprocess import CompletedProcess

import click
import pytest

from bubblescope import cli
from bubblescope.sources import SOURCES, find
from commands import called
from fuzz import inputs, ledger, oracle
from fuzz.campaign import Campaign
from fuzz.inputs import Input
from fuzz.lines_run import LinesRun
from fuzz.mutations import Damage, mutate, neutralise
from fuzz.seeds import TARGETS
from fuzz.trial import READ
from fuzz.worker import Worker
from places import ROOT

INPUTS = 36
"""Of the short run: some of each target."""


def test_every_reader_is_a_target():
    assert set(SOURCES.built_in) <= set(TARGETS)


NOT_ASKED = {
    "--key-file": "is any bytes",
    "mcp": "answers until it is ended, with what the commands answer",
    "--scheduler-file": "names a running cluster",
    "record": "runs a program",
    "serve": "answers until it is ended, and reads as `view` does; test_hostile.py asks it",
}
WRITTEN = {"output", "picture", "inferred", "plan_file", "dictionary"}
"""Parameters that name what is written."""


def readers(command, *name):
    """Yield the commands that are given files, and the options that name files or other runs."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for one in command.list_commands(context):
            yield from readers(command.get_command(context, one), *name, one)
        return
    for one in command.params:
        told = f"{one.metavar} " + ("PATH" if isinstance(one.type, click.Path) else "")
        if one.name in WRITTEN or not any(word in told for word in ("FILE", "PATH")):
            continue
        traces = isinstance(one, click.Argument) or one.name in {"log_dir", "folder"}
        yield " ".join(name) if traces else one.opts[-1]


def test_every_command_and_option_that_reads_a_file_is_asked():
    there = {*readers(cli.cli)}
    assert there > {"report", "ascend pp-chart", "--names", "--model", "--like"}
    assert there - inputs.asked() == {*NOT_ASKED}


@pytest.fixture(scope="module")
def worker():
    made = Worker()
    yield made
    made.close()


def test_a_short_run_finds_nothing(worker):
    campaign = Campaign(TARGETS, worker, seed=0)
    campaign.start([])
    for _, one in zip(range(INPUTS), campaign.inputs(), strict=False):
        campaign.step(one)
    assert campaign.findings == {}
    verdicts = sum(
        (tally.verdicts for tally in campaign.tallies.values()),
        start=type(campaign.tallies["kineto"].verdicts)(),
    )
    assert min(verdicts["refused"], verdicts["salvaged"], verdicts[READ]) > 0
    assert set(campaign.kept) <= set(TARGETS)
    assert any(campaign.kept.values())


def test_seeds_are_read_by_the_reader_whose_target_they_are(tmp_path):
    for name in SOURCES.built_in:
        for seed, write in TARGETS[name].seeds.items():
            folder = tmp_path / name / seed
            folder.mkdir(parents=True)
            write(folder)
            assert [source.name for source, _ in find([folder]).traces] == [name], seed


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("target", ["kineto", "nsight", "jobtrace", "native", "paddle"])
def test_an_input_is_known_by_its_numbers(target, tmp_path):
    [seed, *_] = TARGETS[target].seeds
    sound = tmp_path / "sound"
    sound.mkdir()
    TARGETS[target].seeds[seed](sound)
    for number in range(12):
        one = Input(target, seed, (number, 7))
        assert Input.parse(str(one)) == one
        for where in ("one", "again"):
            one.write(tmp_path / f"{where}{number}", sound)
        made = content(tmp_path / f"one{number}")
        assert made == content(tmp_path / f"again{number}")


def test_damage_damages_and_what_is_neutral_does_not(tmp_path):
    TARGETS["kineto"].seeds["ranges"](tmp_path)
    said = json.loads(called("report", "--json", "-q", tmp_path, cwd=tmp_path).stdout)
    for number in range(8):
        assert neutralise(tmp_path, number)
    again = json.loads(called("report", "--json", "-q", tmp_path, cwd=tmp_path).stdout)
    assert [*oracle.differences(said, again)] == []
    before = content(tmp_path)
    mutate(tmp_path, 3)
    assert content(tmp_path) != before


# What must be found.


def kills(*_command, cwd):
    del cwd
    os.abort()


def sleeps(*_command, cwd):
    del cwd
    time.sleep(60)


def raises(*_command, cwd):
    raise ZeroDivisionError(cwd)


def takes_all(*_command, cwd):
    return [bytes(1 << 30) for _ in range(8)], cwd


def mutters(*command, cwd):
    os.write(2, b"thread panicked")
    return called(*command, cwd=cwd)


def overwrites(*command, cwd):
    done = called(*command, cwd=cwd)
    [path, *_] = sorted((cwd / "given").glob("*.json"))
    path.write_text("{}")
    return done


@pytest.mark.parametrize(
    ("ask", "kind", "where"),
    [
        (kills, "abort", "ends with code -6"),
        (sleeps, "hang", "takes more than"),
        (raises, "traceback", "raises: ZeroDivisionError"),
        (takes_all, "traceback", "MemoryError"),
        (mutters, "wrong", "prints past Python"),
        (overwrites, "wrong", "changes the input"),
    ],
)
def test_what_an_input_does_to_its_process_is_found(ask, kind, where):
    worker = Worker(ask=Only(ask), patience_s=20 if ask is not sleeps else 1)
    try:
        outcome = worker(Input("kineto", "ranges", (1,)))
    finally:
        worker.close()
    assert [(one.kind, where in one.where) for one in outcome.findings] == [(kind, True)]


class Only:
    """Runs the seed's command as it is, and the input's in another way."""

    def __init__(self, other):
        self.other = other
        self.seeds = 1

    def __call__(self, *command, cwd):
        self.seeds -= 1
        return (called if self.seeds >= 0 else self.other)(*command, cwd=cwd)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Sound answers of the commands that have a contract, as JSON."""
    folder = tmp_path_factory.mktemp("sound")
    TARGETS["kineto"].seeds["ranges"](folder)
    commands = {
        "report": ("report", "--json", "-q"),
        "why": ("why", "--json", "--all", "-q"),
    }
    return {
        name: json.loads(called(*command, folder, cwd=folder).stdout)
        for name, command in commands.items()
    }


def complaints(said, tmp_path, *, code=0, stderr=""):
    done = CompletedProcess(["bubblescope", "report", "--json"], code, json.dumps(said), stderr)
    return [*oracle.complaints(done, tmp_path)]


def put(said, value, *keys):
    *path, last = keys
    for key in path:
        said = said[key]
    said[last] = value


@pytest.mark.parametrize(
    ("name", "value", "keys", "complaint"),
    [
        ("report", 1.5, ("bubble", "overall", "span"), "span is 1.5"),
        ("report", -0.5, ("bubble", "per_rank", 0, "over_ideal"), "over_ideal is -0.5"),
        ("report", None, ("bubble", "overall", "excess"), "excess is null for no reason"),
        ("report", 0.9, ("bubble", "overall", "makespan"), "makespan is not idle_ns"),
        ("report", 1, ("bubble", "per_rank", 0, "busy_ns"), "per_rank busy_ns adds up to"),
        ("report", -1, ("bubble", "per_step", 0, "idle_ns"), "idle_ns is -1"),
        ("report", 1, ("devices", 0, "capture", "compute_ns"), "classes do not add up"),
        ("report", 0, ("devices", 0, "capture", "idle", 0, "idle_ns"), "idle classes do not"),
        ("report", 1, ("device", "capture", "total_ns"), "of the devices adds up to"),
        ("report", 0.1, ("why", "causes", 0, "share"), "shares of causes"),
        ("report", [{"code": "x", "lost": 3, "total": 2}], ("warnings",), "x lost 3 of 2"),
        ("why", 1, ("idle_ns",), "causes add up to"),
        ("why", 1, ("per_rank_step", 0, "idle_ns"), "by rank and step"),
        ("why", 1, ("outside_ns",), "outside adds up to"),
        ("why", 0, ("gaps", 0, "start_ns"), "gaps do not add up"),
        ("why", -1, ("losses", 0, "spent_ns"), "a loss is negative"),
        ("why", float("nan"), ("idle_ns",), "is not JSON"),
    ],
)
def test_a_wrong_number_is_found(answers, name, value, keys, complaint, tmp_path):
    said = copy.deepcopy(answers[name])
    assert complaints(said, tmp_path) == []
    put(said, value, *keys)
    assert any(complaint in one for one in complaints(said, tmp_path))


@pytest.mark.parametrize(
    ("code", "said", "complaint"),
    [
        (2, "error  {folder}/a.json: is damaged\nand more", "more than one line"),
        (2, "error  it is damaged", "without the file's name"),
        (2, "error  {folder}/a.json: " + "x" * 2000, "characters"),
        (2, "error  {folder}/a.json: \x1b[31m", "reaches the terminal"),
        (2, "error  {folder}/a.json: ComputeError", "says 'ComputeError'"),
        (1, "", "exit code 1"),
    ],
)
def test_a_wrong_sentence_is_found(code, said, complaint, tmp_path):
    found = complaints({}, tmp_path, code=code, stderr=said.format(folder=tmp_path))
    assert any(complaint in one for one in found)
    assert complaints({}, tmp_path, code=2, stderr=f"error  {tmp_path}/a: is damaged") == []


def test_a_rank_that_is_busier_without_another_is_found(answers):
    said = answers["report"]
    fewer = copy.deepcopy(said)
    assert [*oracle.raised(said, fewer)] == []
    fewer["bubble"]["per_rank"][1]["busy_ns"] += 1
    assert len([*oracle.raised(said, fewer)]) == 1
    fewer["warnings"].append({"code": "repeated-names", "lost": 1, "total": 2})
    assert [*oracle.raised(said, fewer)] == []


def test_the_documentation_says_what_the_ledger_holds():
    held = ledger.read()
    page = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    assert ledger.table(held) in page
    total = sum(int(row["inputs"]) for row in held)
    assert re.search(rf"^\| all \| {total:,} \|", page, re.MULTILINE)


def test_damage_that_shows_and_is_not_told_is_found(tmp_path):
    """A reader that takes a torn recording for a whole one."""
    number = next(number for number in range(1000) if torn(number, tmp_path / str(number)))
    worker = Worker(ask=Silent())
    try:
        outcome = worker(Input("native", "recording", (number,)))
    finally:
        worker.close()
    [found] = outcome.findings
    assert found.where.startswith("native: changes without a word: ")


def torn(number, folder):
    """Say whether an input is a recording that lacks some of its end, of which a report is asked."""
    sound = folder / "sound"
    sound.mkdir(parents=True)
    TARGETS["native"].seeds["recording"](sound)
    one = Input("native", "recording", (number,))
    shows = one.write(folder / "given", sound)
    size = sum(path.stat().st_size for path in (folder / "given").glob("*.bubbles"))
    whole = sum(path.stat().st_size for path in sound.glob("*.bubbles"))
    command = one.command(folder / "given", sound, folder)
    cut = shows == [Damage.SHOWN] and whole / 2 < size < whole - 3000
    return cut and command[:2] == ["report", "--json"]


class Silent:
    """Runs commands, and leaves out what they say of damage."""

    def __call__(self, *command, cwd):
        done = called(*command, cwd=cwd)
        if done.returncode == 0:
            said = json.loads(done.stdout)
            said["warnings"] = said["notes"] = []
            done.stdout = json.dumps(said)
        return done


PROBED = """
'''What documents a module.'''
from __future__ import annotations

outside = 1

def choose(value, *, rows=()):
    '''What documents it.'''
    if value > 1:
        return "large"
    elif value < 0:
        found = "negative"
    else:
        found = "small"
    for row in rows:
        try:
            found = 1 / row
        except ZeroDivisionError:
            def fails():
                return "zero"
            return fails()
        finally:
            value += 1
    return found
"""


def test_lines_count_when_they_run_for_the_first_time(tmp_path, monkeypatch):
    (tmp_path / "probed_room").mkdir()
    (tmp_path / "probed_room" / "module.py").write_text(PROBED)
    (tmp_path / "probed_other.py").write_text(PROBED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    lines = LinesRun()
    lines.watch(["probed_room"])
    module = import_module("probed_room.module")
    other = import_module("probed_other")
    assert (module.__doc__, module.choose.__doc__) == (other.__doc__, other.choose.__doc__)
    assert lines.new() == frozenset()
    for arguments, rows, found in (
        ((7,), (), {9, 10}),
        ((7,), (), set()),
        ((-7,), (), {11, 12, 15, 24}),
        ((0,), (1,), {14, 16, 17, 23}),
        ((0,), (0,), {19, 20, 21}),
    ):
        said = module.choose(*arguments, rows=rows)
        assert said == other.choose(*arguments, rows=rows)
        assert lines.new() == {("probed_room.module", line) for line in found}
    assert not [*tmp_path.rglob("probed_room/__pycache__/*")]


def test_what_is_tried_has_probes(worker):
    campaign = Campaign({"plan": TARGETS["plan"]}, worker)
    campaign.start([])
    plain = campaign.step(Input("plan", "1f1b", (3,)))
    assert {name for name, _ in worker(Input("kineto", "ranges", (3,))).lines} > {
        "bubblescope.sources.kineto.document"
    }
    assert isinstance(plain.lines, frozenset)
