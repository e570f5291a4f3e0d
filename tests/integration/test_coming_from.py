"""Each command that docs/coming-from.md puts in the place of another is run on such traces."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from click.testing import CliRunner

from ascend_maker import Profile
from bubblescope.cli import cli
from nsight_maker import Style, pipeline
from paddle_maker import line, window, write
from places import ROOT

PAGE = (ROOT / "docs/coming-from.md").read_text("utf-8")
ROWS = [row for row in PAGE.splitlines() if row.startswith("| ")]
COMMANDS = [
    command
    for row in ROWS
    for command in re.findall(r"`(bubblescope [^`]+)`", row.split(" | ", 1)[1])
]
FILES = re.compile(r"(?:-o|--picture) (\S+)")


def zero_bubble(folder, **style):
    exports, _, _ = pipeline(Style(schedule="zb-h1", hosts=2, comm=True, **style))
    folder.mkdir()
    for index, export in enumerate(exports):
        export.write(folder / f"node{index}.sqlite")


def paddle(folder, workers):
    for worker in workers:
        lines = [window(10, 15)]
        for step in range(3):
            at = 1000 * step + 10 * worker
            lines += [line("forward", mb, at + 100 * mb, at + 100 * mb + 90) for mb in range(2)]
            lines += [
                line("backward", mb, at + 300 + 150 * mb, at + 440 + 150 * mb) for mb in range(2)
            ]
            lines.append(line("optimizer", 0, at + 610, at + 630))
        write(folder, *lines, name=f"workerlog.{worker}")


def dygraph(folder):
    folder.mkdir()
    marks = [("F0", 0, 10), ("F1", 10, 20), ("B0", 20, 40), ("B1", 40, 60)]
    events = [
        {
            "name": name,
            "cat": "pipeline timeline",
            "ph": phase,
            "pid": 0,
            "tid": 1,
            "ts": 1.7e12 + at,
        }
        for name, start, end in marks
        for phase, at in (("B", start), ("E", end))
    ]
    text = "".join(json.dumps({**event, "ts": int(event["ts"])}) + "\n" for event in events)
    (folder / "profile_record_tmp_file_for_rank_0").write_text(text)


def ascend(folder):
    for rank in (0, 1):
        said = json.dumps(
            {
                "tensor_model_parallel_size": 1,
                "pipeline_model_parallel_size": 2,
                "data_parallel_size": 1,
                "context_parallel_size": 1,
                "world_size": 2,
            }
        )
        profile = Profile(rank, metadata={"distributed_args": said})
        for step, at in ((7, 0), (8, 10_000)):
            profile.step(step, at, at + 9_999)
            profile.range("forward_step", at + 1000, at + 2000, host=(at + 100, at + 200))
            profile.range("backward_step", at + 3000, at + 4000, host=(at + 300, at + 400))
        profile.write(folder)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """All that users of the three have on disk."""
    folder = tmp_path_factory.mktemp("traces")
    zero_bubble(folder / "traces")
    zero_bubble(folder / "other", microbatches=6)
    paddle(folder / "log_dir", range(4))
    for machine in (0, 1):
        paddle(folder / "multi_machine_logs" / f"machine{machine}", range(2))
    dygraph(folder / "dygraph")
    ascend(folder / "cluster_data")
    return folder


def test_the_page_is_about_each_of_the_three():
    assert len(re.findall("^## ", PAGE, re.MULTILINE)) == 3
    assert len(COMMANDS) > 25


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_does_what_the_others_did(traces, monkeypatch, command):
    monkeypatch.chdir(traces)
    _, *words = shlex.split(command)
    if words[0] == "record":  # what it starts is not here: its options are
        context = cli.get_command(None, "record").make_context("record", words[1:])
        assert context.params["command"][0] in {"python", "torchrun"}
        return
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for name in FILES.findall(command):
        written = traces / name
        assert any(written.rglob("*.db")) if written.is_dir() else written.stat().st_size > 200
    if words[0] == "paddle":
        folder = traces / words[words.index("--log_dir") + 1]
        for name in ("pipeline_profile.json", "pipeline_profile_perfetto.json"):
            assert json.loads((folder / name).read_text())["traceEvents"]


def test_the_options_of_the_originals_are_all_there():
    """As their own parsers have them."""
    for option in ("--devices", "--log_dir", "--multi_machine"):
        assert any(option in one.opts for one in cli.get_command(None, "paddle").params)
    cluster = cli.get_command(None, "ascend").get_command(None, "cluster")
    known = {option for one in cluster.params for option in one.opts}
    assert known >= {
        *("-d", "--profiling_path", "-m", "--mode", "-o", "--output_path", "--force"),
        *("--parallel_mode", "--export_type", "--rank_list", "--step_id", "--agent"),
    }
