"""`bubblescope redact`: nothing private can be read in what it writes, and all answers are the same.

The dictionary, which only the owner keeps, undoes it: with what each pseudonym stands for, the answers
of what was written are those of the traces, to the letter.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
import polars as pl
import pytest
from click.testing import CliRunner

import bubblescope
from answers import QUESTIONS, answered, ordered, restored
from bubblescope import Timeline, sources
from bubblescope.analysis.redaction import Pseudonyms, redacted
from bubblescope.analysis.redaction.vocabulary import own_texts, own_words, public_words
from bubblescope.cli import cli
from bubblescope.model.provenance import Run
from bubblescope.model.timeline_tables import TABLES
from bubblescope.record import Recorder
from canaries import fields, put, readable
from every_format import MADE, kineto_device, nsight, nsight_parquet
from places import SHARED

if TYPE_CHECKING:
    from pathlib import Path

CANARY = "Zyqvx"
"""A word that no library and no person has, made of letters that a name may have."""


def run(*arguments):
    done = CliRunner().invoke(cli, ["redact", "-q", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def redact(source, folder, *more):
    """Return what `redact` writes, and the dictionary."""
    folder.mkdir(exist_ok=True)
    output, dictionary = folder / "shared.bubbles.parquet", folder / "private.json"
    dictionary.unlink(missing_ok=True)
    assert run(source, "-o", output, "--dictionary", dictionary, *more).exit_code == 0
    return output, json.loads(dictionary.read_text())


def texts(timeline: Timeline) -> str:
    """Return every text of a run."""
    tables = {"tasks": timeline.tasks, "ranks": timeline.ranks, **timeline.tables}
    said = [column.to_list() for one in tables.values() for column in one.select(pl.col(pl.String))]
    return json.dumps([said, msgspec.to_builtins(timeline.run)], ensure_ascii=False)


def with_canaries(make, tmp_path) -> Path:
    """Return a trace with a canary in its path and in each field that may hold one."""
    plain, folder = tmp_path / "plain", tmp_path / f"folder{CANARY}"
    plain.mkdir()
    make(plain)
    carrying = readable(plain, folder, fields(plain), CANARY)
    shutil.copytree(plain, folder)
    put(folder, carrying, CANARY)
    return folder


@pytest.mark.parametrize("make", [*MADE, nsight_parquet], ids=lambda make: make.__name__)
def test_no_field_of_a_format_can_be_read(tmp_path, make):
    folder = with_canaries(make, tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert CANARY in texts(sources.load(folder, activities=True))
    output, dictionary = redact(folder, tmp_path)
    assert CANARY.lower() not in texts(Timeline.load(output)).lower()
    assert CANARY.lower().encode() not in output.read_bytes().lower()
    assert any(CANARY in text for text in dictionary.values())
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("make", [*MADE, nsight_parquet], ids=lambda make: make.__name__)
def test_every_answer_of_a_format_is_the_same(tmp_path, make):
    same_answers(made(make, tmp_path), tmp_path, QUESTIONS)


def made(make, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    make(folder)
    return folder


def same_answers(source, tmp_path, questions):
    output, dictionary = redact(source, tmp_path)
    was = answered(bubblescope.load(source, activities=True), questions)
    now = answered(bubblescope.load(output), questions)
    assert ordered(restored(now, dictionary)) == ordered(was)
    assert any(isinstance(answer, dict) for answer in was.values())


def test_nothing_of_a_recording_can_be_read(tmp_path):
    folder = tmp_path / f"recorded{CANARY}"
    for rank in range(2):
        header = {"host": f"node{CANARY}", "schedule": f"own{CANARY}", "stages": [rank]}
        with Recorder(folder, rank=rank, **header) as recorder:
            for _ in range(2):
                with recorder.step():
                    with recorder.task("forward", microbatch=0, name=f"f{CANARY}"):
                        pass
                    with recorder.task("other", lane="host", name=f"part {CANARY}"):
                        pass
    assert CANARY in texts(sources.load(folder))
    output, _ = redact(folder, tmp_path)
    assert CANARY not in texts(Timeline.load(output))
    same_answers(folder, tmp_path / "again", QUESTIONS)
    once_more, _ = redact(output, tmp_path / "again")  # of a file that holds pseudonyms already
    assert (
        Timeline.load(once_more).tasks.drop("name").equals(Timeline.load(output).tasks.drop("name"))
    )


def shared_traces():
    if not SHARED.exists():
        return []
    found = [
        *SHARED.glob("ascend/*"),
        *SHARED.glob("communication/*"),
        *SHARED.glob("jobtrace/trace-*.parquet"),
        *SHARED.glob("kineto/no_ranges/*.gz"),
        *SHARED.glob("kineto/real/*.gz"),
        *SHARED.glob("kineto/torch-*/*"),
        *SHARED.glob("nsight/made/*"),
        *SHARED.glob("nsight/real/*.sqlite"),
        *SHARED.glob("paddle/1f1b"),
        *SHARED.glob("paddle/edge/*"),
        *SHARED.glob("primus/pp8"),
    ]
    none = {"peer_output", "fsdp4_jax_4proc"}  # which are no traces
    return sorted(
        path
        for path in found
        if path.suffix not in {".md", ".csv", ".py"} and path.name not in none
    )


@pytest.mark.parametrize(
    "source", shared_traces(), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_answer_of_a_shared_trace_is_the_same(tmp_path, source):
    same_answers(source, tmp_path, QUESTIONS[:-1])  # the last takes most of the time


def test_what_packages_say_by_themselves_is_ours_as_what_their_modules_say():
    codes_of_warnings = {"clocks-aligned", "ignored-files"}  # which answers ask for
    assert codes_of_warnings <= own_texts()


def test_no_text_of_the_model_can_be_read():
    """Whatever a trace of tomorrow puts into the model: each column and field of text has its rule."""
    frame = pl.DataFrame({"rank": [0]})
    tables = {}
    times = {
        "rank": 0,
        "step": 0,
        "start_ns": 0,
        "end_ns": 9,
        "time_ns": 0,
        "launch_ns": 0,
        "value": 1.0,
        "spent_ns": 9,
    }
    times |= {"exposed_ns": 9, "hidden_ns": 0, "operators": 1, "unknown": 0, "use": "compute"}
    for name, table in TABLES.items():
        filled = {
            column: CANARY if dtype == pl.String() else times.get(column)
            for column, dtype in table.schema.items()
        }
        tables[name] = pl.DataFrame([filled], schema=table.schema)
    tasks = frame.with_columns(
        kind=pl.lit("forward"), lane=pl.lit("compute"), name=pl.lit(CANARY), start_ns=0, end_ns=9
    )
    ranks = frame.with_columns(host=pl.lit(CANARY), device_name=pl.lit(CANARY))
    said = {"format": CANARY, "version": CANARY, "path": CANARY, "recorded_by": CANARY}
    notice = {"code": CANARY, "message": f"a rank {CANARY} of {CANARY}s was lost"}
    shape = {"shape": CANARY, "example": CANARY, "count": 1, "kind": CANARY}
    contents = {
        "path": CANARY,
        "host": CANARY,
        "process": 1,
        "counts": {CANARY: 1},
        "names": [shape],
    }
    clock = {"method": CANARY, "constraints": 1, "violations_before": 0, "violations_after": 0}
    clock |= {"groups": 1, "tightest": [CANARY], "drift_ppm": {CANARY: 1.0}}
    start = {"attempt": 1, "path": CANARY, "read": True, "began_utc_ns": 1, "restart": 0}
    known = {
        "origins": [said],
        "schedule": CANARY,
        "inferred": {CANARY: CANARY},
        "warnings": [notice],
        "notes": [notice],
        "contents": [contents],
        "clock": clock,
        "attempts": [{**start, "ranks": 1, "ended": True}],
    }
    numbers = {"microbatches", "common_clock", "host_clocks", "world", "resumed"}
    assert {*known, *numbers} == {*Run.__struct_fields__}
    timeline = Timeline(tasks, ranks, msgspec.convert(known, Run), **tables)
    names = Pseudonyms()
    shown = redacted(timeline, names)
    assert CANARY not in texts(shown)
    told, was = (json.loads(msgspec.json.encode(one.run)) for one in (shown, timeline))
    assert restored(told, names.given) == was


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("task", ["forward", "F3", "forward-compute", "backward_step", "work outside of passes"]),
        (
            "task",
            ["bubblescope:forward step=2 microbatch=5", "## backward ##", "RECV_FORWARD.5.0.0"],
        ),
        (
            "kernel",
            ["ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"],
        ),
        ("kernel", ["ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "MatMulV2"]),
        ("kernel", ["Memcpy HtoD pinned", "reduce_kernel<MeanOps>", "flash_fwd_kernel"]),
        ("call", ["aten::mm", "aten::_to_copy", "cudaStreamSynchronize_v3020", "DtoH pinned"]),
        ("call", ["DtoH pinned and HtoD pinned", "DtoD and HtoD pageable"]),
        (
            "call",
            ["autograd::engine::evaluate_function: AddmmBackward0", "c10d::allreduce_", "send"],
        ),
        ("call", ["ProfilerStep#12", "aten::mm, seq = 12"]),
        ("group", ["0", "17", "8 ranks"]),
        ("role", ["tp", "dp_cp", "etp_ep_pp"]),
        ("described", ["default_pg", "PIPELINE_MODEL_PARALLEL_GROUP", "mesh_dp"]),
        ("device", ["NVIDIA H100 80GB HBM3"]),
        ("schedule", ["1f1b", "ScheduleInterleaved1F1B"]),
        ("version", ["2026.2.1.210"]),
        ("host", ["unknown"]),
    ],
)
def test_what_libraries_and_frameworks_name_stays(rule, kept):
    names = Pseudonyms()
    assert [getattr(names, rule)(text) for text in kept] == kept


@pytest.mark.parametrize(
    ("rule", "hidden"),
    [
        ("task", ["llama block", "my forward", "train acme-7b", "layer.3.mlp", "F3 of acme"]),
        ("task", ["nn.Module: AcmeDecoderLayer_3", "attention", "forward\u202e"]),
        ("kernel", ["acme_fused_mlp", "gemm_4096x11008", "void acme::kernel<float>(float*)"]),
        (
            "call",
            ["/srv/alice/train.py(31): forward", "train.py(3): load", "acme::mm", "attention"],
        ),
        ("call", ["<built-in method view of Tensor object at 0x7f1bafe38dd0>"]),
        ("group", ["10.20.30.40%eth0_60000_0_1736410538306028", "acme"]),
        ("role", ["acme", "tp_acme", ""]),
        ("described", ["tp\x1c", "acme_group"]),
        ("device", ["NVIDIA H100 of Acme", "Acme X1"]),
        ("schedule", ["acme-1f1b"]),
        ("version", ["2.7.0a0+acme.git1234567"]),
        ("host", ["node17", "gpu-042.acme.internal"]),
        ("path", ["/data/acme/rank0.json", "rank0.json"]),
        ("module", ["layers.3.attention", "Linear_0"]),
        ("own", ["acme"]),
    ],
)
def test_what_people_name_does_not(rule, hidden):
    names = Pseudonyms()
    for text in hidden:
        shown = getattr(names, rule)(text)
        assert shown != text
        assert names.given[shown] == text


def test_shapes_behind_a_name_go_and_its_number_stays():
    names = Pseudonyms()
    shown = names.call("aten::mm, seq = 12, op_id = 9, sizes = [[4096, 11008], []]")
    assert shown.startswith("aten::mm, seq = 12 more-")
    assert "4096" not in shown


def test_sentences_keep_their_numbers_and_the_words_that_are_ours():
    names = Pseudonyms()
    names.learn(["/data/acme/rank0.json"], ["node17"])
    said = "2276 of 4368 kernels of rank0.json on node17 (alice, 12.5%) are in no task"
    shown = names.sentence(said)
    assert shown.startswith("2276 of 4368 kernels of trace-")
    assert shown.endswith("12.5%) are in no task")
    assert not any(word in shown for word in ("rank0", "node17", "alice"))
    assert restored(shown, names.given) == said


def test_names_of_models_and_companies_are_no_words_of_libraries():
    models = {"llama", "qwen", "deepseek", "mixtral", "gpt", "gemini", "gemma", "bert", "claude"}
    assert not models & (public_words() | own_words())


def test_runs_of_one_key_can_be_compared_and_of_others_not(tmp_path):
    (tmp_path / "key").write_bytes(b"only we know")
    folder = made(nsight, tmp_path)
    outputs = [tmp_path / f"{name}.parquet" for name in "abc"]
    for output in outputs[:2]:
        run(folder, "-o", output, "--key-file", tmp_path / "key")
    run(folder, "-o", outputs[2])
    first, second, other = map(Timeline.load, outputs)
    assert first == second
    assert not set(first.ranks["host"]) & set(other.ranks["host"])


def test_names_of_ones_own_mean_afterwards_what_they_meant(tmp_path):
    """What `--names` says of names that nobody else knows is known of the file without it."""
    folder = made(nsight, tmp_path)
    for path in folder.iterdir():
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE NVTX_EVENTS SET text = 'acme ahead ' || text")
            connection.commit()
    pattern = r"acme (?P<kind>\w+) [FBW](?P<microbatch>\d+).*"
    output, _ = redact(folder, tmp_path, "--names", pattern, "--kind", "ahead=forward")
    was = bubblescope.load(folder, names=pattern, kinds={"ahead": "forward"}).tasks
    now = bubblescope.load(output).tasks
    assert (was["kind"] == "forward").any()
    assert now.drop("name").equals(was.drop("name"))
    assert "acme" not in " ".join(now["name"])


def test_nothing_of_its_owners_is_written_over(tmp_path):
    folder = made(kineto_device, tmp_path)
    trace = next(folder.iterdir())
    output, dictionary = tmp_path / "o.bubbles.parquet", tmp_path / "d.json"
    assert run(folder, "-o", trace).exit_code == 2
    with pytest.raises(bubblescope.BubblescopeError, match="name it o"):
        run(folder, "-o", tmp_path / "o.json")
    assert run(folder, "-o", output, "--dictionary", output).exit_code == 2
    assert run(folder, "-o", output, "--dictionary", trace).exit_code == 2
    assert not output.exists()
    assert run(folder, "-o", output, "--dictionary", dictionary).exit_code == 0
    assert dictionary.stat().st_mode & 0o077 == 0
    kept = dictionary.read_text()
    done = run(folder, "-o", output, "--dictionary", dictionary)
    assert done.exit_code == 2
    assert "name another file" in done.output
    assert dictionary.read_text() == kept


def test_an_empty_key_is_refused(tmp_path):
    folder = made(kineto_device, tmp_path)
    (tmp_path / "key").write_bytes(b"\n")
    done = run(folder, "-o", tmp_path / "o.parquet", "--key-file", tmp_path / "key")
    assert done.exit_code == 2
    assert "is no key" in done.output


def test_the_library_does_what_the_command_does(tmp_path):
    folder = made(kineto_device, tmp_path)
    (tmp_path / "key").write_bytes(b"k")
    run(folder, "-o", tmp_path / "a.parquet", "--key-file", tmp_path / "key")
    bubblescope.load(folder).redact(tmp_path / "b.parquet", key=b"k")
    assert Timeline.load(tmp_path / "a.parquet") == Timeline.load(tmp_path / "b.parquet")
