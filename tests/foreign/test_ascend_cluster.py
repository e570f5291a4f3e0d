"""`bubblescope ascend` with the words of msprof-analyze, and jobs marked as its manual says.

Options of `msprof-analyze cluster` 26.2.0 (cli/cluster_cli.py); manual: docs/en/advanced_features/
pp_chart_instruct.md of Ascend/msprof-analyze.
"""

from __future__ import annotations

import ast
import json
import sqlite3
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from ascend_maker import Profile
from bubblescope import sources
from bubblescope.cli import cli
from bubblescope.compat import ascend
from places import SHARED

CLUSTER = ("cluster", "-m", "pp_chart")


def run(*arguments, code=0):
    done = CliRunner().invoke(cli, ["ascend", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def table(path, query):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def charts(folder):
    """Return the names of the chart in each database, and the links of its transfers."""
    return {
        path.name: (
            [name for (name,) in table(path, "SELECT name FROM StepTaskInfo ORDER BY startNs")],
            [link for (link,) in table(path, "SELECT opConnectionId FROM COMMUNICATION_OP")],
        )
        for path in sorted(folder.rglob("ascend_pytorch_profiler_*.db"))
    }


@pytest.fixture
def cluster_data(tmp_path):
    return two_ranks(tmp_path, calls=True)


def two_ranks(tmp_path, *, calls):
    """Two ranks, steps 7 and 8 with a forward, a backward and a transfer each."""
    sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2}
    said = json.dumps(
        {**sizes, "data_parallel_size": 1, "context_parallel_size": 1, "world_size": 2}
    )
    for rank in (0, 1):
        profile = Profile(rank, metadata={"distributed_args": said})
        for step, at in ((7, 0), (8, 10_000)):
            profile.step(step, at, at + 9_999)
            profile.range("forward_step", at + 1000, at + 2000, host=(at + 100, at + 200))
            profile.range("backward_step", at + 3000, at + 4000, host=(at + 300, at + 400))
            way = "send" if rank == 0 else "receive"
            name = f"hcom_{way}__046_{step}_1"
            # On the device, the first begins when the host is in the next step already.
            start = at + 9_500 if calls else at + 2000
            issued = at + 250 if calls else None
            profile.operation(name, start + 1000, start + 1050, (rank, 1 - rank), issued=issued)
        profile.write(tmp_path / "cluster_data")
    return tmp_path / "cluster_data"


BOTH = (["FP", "BP", "FP", "BP"], ["046_0_1_0", "046_0_1_1"])
ONE = (["FP", "BP"], [None, "046_0_1_1"])
FILES = ["ascend_pytorch_profiler_0.db", "ascend_pytorch_profiler_1.db"]


@pytest.mark.parametrize(
    "words",
    [
        ("cluster", "-m", "pp_chart", "-d"),
        ("-m", "pp_chart", "-d"),  # `cluster` may be left out there too
        ("cluster", "--mode", "pp_chart", "--profiling_path"),
        ("pp-chart", "-d"),
    ],
)
def test_the_command_of_the_manual_makes_the_chart(cluster_data, words):
    done = run(*words, cluster_data)
    assert charts(cluster_data.with_name("cluster_data_pp_chart")) == dict.fromkeys(FILES, BOTH)
    assert "wrote 8 rows and 4 links into 2 databases" in done.output.replace("\n", " ")


def test_in_place_as_the_original_does(cluster_data):
    run(*CLUSTER, "-d", cluster_data, "--in-place")
    assert charts(cluster_data) == dict.fromkeys(FILES, BOTH)


def test_output_path_holds_what_the_analysis_made(cluster_data, tmp_path):
    run(*CLUSTER, "-d", cluster_data, "--output_path", tmp_path / "out")
    assert charts(tmp_path / "out" / "cluster_analysis_output") == dict.fromkeys(FILES, BOTH)
    run(*CLUSTER, "-d", cluster_data, "-o", tmp_path / "out", code=2)  # never over an older one


def test_output_within_the_profiles_is_refused(cluster_data):
    """Else the next reading would find every rank twice."""
    said = run(*CLUSTER, "-d", cluster_data, "-o", cluster_data, code=2).stderr
    assert "--in-place" in said
    assert not (cluster_data / "cluster_analysis_output").exists()


def test_rank_list_chooses_databases(cluster_data, tmp_path):
    done = run(*CLUSTER, "-d", cluster_data, "-o", tmp_path / "out", "--rank_list", "1,9")
    assert charts(tmp_path / "out") == {FILES[1]: BOTH}
    assert "no rank 9" in done.stderr
    run(*CLUSTER, "-d", cluster_data, "-o", tmp_path / "all", "--rank_list", "all")
    assert list(charts(tmp_path / "all")) == FILES


def test_step_id_chooses_a_step_of_all_ranges(cluster_data, tmp_path):
    """The original filters weight gradients only: its conditions lack parentheses."""
    run(*CLUSTER, "-d", cluster_data, "-o", tmp_path / "out", "--step_id", "8")
    assert charts(tmp_path / "out") == dict.fromkeys(FILES, ONE)


@pytest.mark.skipif(not (SHARED / "ascend").exists(), reason="no shared traces here")
def test_a_step_of_a_real_profile_has_the_links_that_the_original_found(tmp_path):
    """msprof-analyze 26.2.0 with `--step_id 10` linked 96 of its 192 transfers."""
    run(*CLUSTER, "-d", SHARED / "ascend" / "1f1b", "-o", tmp_path / "out", "--step_id", "10")
    found = charts(tmp_path / "out")
    assert [len(names) for names, _ in found.values()] == [16] * 4
    assert sum(link is not None for _, links in found.values() for link in links) == 96


def test_a_profile_without_calls_keeps_all_links(tmp_path):
    """Level0 does not hold them; the chart is still of one step."""
    two_ranks(tmp_path, calls=False)
    run(*CLUSTER, "-d", tmp_path / "cluster_data", "-o", tmp_path / "out", "--step_id", "8")
    assert charts(tmp_path / "out") == dict.fromkeys(FILES, (ONE[0], BOTH[1]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--force",), "--force changes nothing"),
        (("--parallel_mode", "concurrent"), "--parallel_mode changes nothing"),
        (("--export_type", "db"), "--export_type changes nothing"),
        (("--export_type", "notebook"), "--export_type changes nothing"),
        (("--top_num", "5"), "--top_num 5 changes nothing"),
    ],
)
def test_what_has_no_meaning_is_said_and_not_refused(cluster_data, options, said):
    done = run(*CLUSTER, "-d", cluster_data, *options)
    assert said in done.stderr.replace("\n", " ")
    assert charts(cluster_data.with_name("cluster_data_pp_chart")) == dict.fromkeys(FILES, BOTH)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-m", "all"), "-m all is not made here"),
        (("-m", "pp_chart", "--rank_list", "one"), "is not like 0,1,2,3 or all"),
        (("-m", "pp_chart", "--rank_list", "8,9"), "none of these ranks, but 0, 1"),
        (("-m", "pp_chart", "--step_id", "3"), "no step 3; they have 7, 8"),
        ((), "-m all is not made here"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(cluster_data, options, said):
    done = CliRunner().invoke(cli, ["ascend", "cluster", "-d", str(cluster_data), *options])
    assert done.exit_code == 2
    assert said in done.output


def test_agents_get_one_json_object(cluster_data):
    done = run(*CLUSTER, "-d", cluster_data, "--agent")
    said = json.loads(done.stdout)
    assert (said["status"], said["code"], said["message"]["databases"]) == ("success", 0, 2)
    assert not done.stderr.strip()


# Marks, as the manual has them pasted


@pytest.fixture
def calls(monkeypatch):
    """What a fake torch_npu was asked to do."""
    made = []
    numbers = iter(range(1, 100))
    mstx = SimpleNamespace(
        range_start=lambda message, stream: made.append((message, stream)) or next(numbers),
        range_end=made.append,
    )
    npu = SimpleNamespace(mstx=mstx, current_stream=lambda: "stream")
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(npu=npu))
    ascend._npu.cache_clear()
    yield made
    ascend._npu.cache_clear()


class WeightGradStore:
    """MindSpeed's, as far as the manual's wrapper looks at it."""

    cache: list[str] = []  # noqa: RUF012  as it is there

    @classmethod
    def pop(cls):
        return cls.cache.pop(0) if cls.cache else None


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        # Scenario 1: a classic pipeline.
        ("forward_step", {}, {"name": "forward_step"}),
        ("backward_step", {}, {"name": "backward_step"}),
        # Scenario 2: DualPipeV.
        ("forward_step_no_model_graph", {}, {"name": "forward_step_no_model_graph"}),
        (
            "forward_step_with_model_graph",
            {"current_microbatch": 3},
            {"name": "forward_step_with_model_graph", "current_microbatch": 3},
        ),
        (
            "forward_step_with_model_graph",
            {"extra_block_kwargs": {"bwd": 1}, "current_microbatch": 0},
            {"name": "forward_backward_overlaping", "current_microbatch": 0},
        ),
        (
            "forward_step_with_model_graph",
            {"extra_block_kwargs": None},
            {"name": "forward_step_with_model_graph"},
        ),
        ("backward_step_with_model_graph", {}, {"name": "backward_step_with_model_graph"}),
    ],
)
def test_each_branch_of_the_manuals_wrapper(calls, name, given, message):
    def step(model, *, current_microbatch=None, extra_block_kwargs=None):
        calls.append("runs")
        return model, current_microbatch, extra_block_kwargs

    result = ascend.step_wrapper(step, name)("model", **given)

    assert result[0] == "model"
    [(said, stream), runs, ended] = calls
    assert (ast.literal_eval(said), stream, runs, ended) == (message, "stream", "runs", 1)


@pytest.mark.parametrize("name", ["WeightGradStore.pop", "WeightGradStore_pop"])
def test_an_empty_store_is_not_marked_by_either_name(calls, name):
    """The manual compares with one name and marks with the other, so that its guard never holds."""
    pop = ascend.step_wrapper(WeightGradStore.pop, name)
    assert pop() is None
    assert calls == []
    WeightGradStore.cache[:] = ["gradient"]
    assert pop() == "gradient"
    assert ast.literal_eval(calls[0][0]) == {"name": name}


class Profiler:
    """`torch_npu.profiler.profile`, as far as metadata goes: what it writes into META_DATA."""

    def __init__(self) -> None:
        self.metadata: dict[str, object] = {}

    def add_metadata(self, key: str, value: str) -> None:
        self.metadata[key] = value

    def add_metadata_json(self, key: str, value: str) -> None:
        self.metadata[key] = json.loads(value)

    def rows(self) -> dict[str, str]:
        return {key: json.dumps(value) for key, value in self.metadata.items()}


def mindspeed(prof):
    prof.add_metadata_json("pp_info", json.dumps({"pp_type": "dualpipev", "microbatch_num": 10}))


def mindspeed_llm(prof):
    args = SimpleNamespace(
        schedules_method="dualpipev",
        global_batch_size=80,
        micro_batch_size=4,
        data_parallel_size=2,
    )
    microbatches = args.global_batch_size // args.micro_batch_size // args.data_parallel_size
    prof.add_metadata_json(
        "pp_info",
        json.dumps({"pp_type": args.schedules_method, "microbatch_num": microbatches}),
    )


def older_manual(prof):
    prof.add_metadata("pp_info", json.dumps({"pp_type": "dualpipev", "microbatch_num": 10}))


@pytest.mark.parametrize("declare", [mindspeed, mindspeed_llm, older_manual])
def test_the_manuals_metadata_declares_the_schedule(tmp_path, declare):
    prof = Profiler()
    declare(prof)
    profile = Profile(metadata=prof.rows())
    profile.range({"name": "forward_step_no_model_graph", "current_microbatch": 0}, 1000, 2000)
    profile.write(tmp_path)
    run = sources.load(tmp_path).run
    assert (run.schedule, run.microbatches) == ("dualpipev", 10)
