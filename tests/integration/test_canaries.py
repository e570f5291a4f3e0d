"""Characters that move, colour or turn what stands around them leave bubblescope nowhere as they are.

Each field of text of each format has a canary put into it; what then still can be read goes through
each output. So does a run of which every text that the model holds has one.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pytest
from click.testing import CliRunner

import ascend_maker
import device_exports
import device_maker
import job_trace_maker
import kineto_maker
import nsight_maker
import paddle_maker
import primus_maker
import rocpd_maker
from bubblescope import Timeline, sources
from bubblescope.cli import cli
from bubblescope.facade import Trace, write
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.provenance import Notice, Origin, Run
from bubblescope.record import Recorder
from bubblescope.record.prometheus import _Metrics
from bubblescope.render.artefacts import pipeline_profile
from bubblescope.render.formats import FORMATS
from canaries import CANARY, RAW, SHOWN, Field, fields, put
from full import FULL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SMALL = nsight_maker.Style(stages=2, microbatches=2, steps=1, kernels=1)
COMMANDS = [
    (name, *more)
    for name, jsons in (
        ("info", True),
        ("report", True),
        ("kernels", True),
        ("names", False),
        ("why", True),
        ("whatif", True),
        ("stragglers", True),
    )
    for more in ([(), ("--json",)] if jsons else [()])
]
"""Every command that prints what a run is."""
FEW = [("info",), ("info", "--json"), ("names",), ("report", "--json")]
FILES = [name for name in FORMATS if name != "parquet"]
"""Formats whose files are read by people or by other programs; Parquet keeps the text as it is."""
TEXTLESS = {"paddle", "paddle_dygraph", "primus", "job_trace"}
"""Formats of whose text nothing is shown: it says what is what, or it is no trace of theirs."""


def kineto(folder):
    for trace in kineto_maker.pipeline(SMALL)[0]:
        trace.write(folder / f"rank{trace.rank}.json")
    for rank in range(2, 4):
        group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [2, 3]}
        info = {"backend": "nccl", "rank": rank, "world_size": 4, "pg_config": [group]}
        trace = kineto_maker.Trace(rank=rank, device=rank, header={"distributedInfo": info})
        said = {"Collective name": "send", "Dst Rank": 2, "dtype": "Float", "Group size": 2}
        said |= {"Process Group Name": "0", "Process Group Ranks": "[2, 3]"}
        trace.range("other work", 1000, 1900)
        trace.event("cpu_op", "record_param_comms", 1200, 1300, **said)
        trace.kernel(51_000, 51_800, at=1250, name="ncclDevKernel_SendRecv", **said)
        trace.operator("aten::mm", 1010, 1100, sequence=1)
        trace.memory(1020, 4096, 8192)
        trace.count(1030, "GPU 0 power", {"W": 300})
        trace.write(folder / f"rank{rank}.json")


def kineto_device(folder):
    device_exports.kineto(device_maker.make(device_maker.Mode(), 1), folder)


def nsight(folder):
    for number, export in enumerate(nsight_maker.pipeline(SMALL)[0]):
        export.write(folder / f"node{number}.sqlite")


def nsight_device(folder):
    mode = device_maker.Mode(hosts=device_maker.NSIGHT_HOSTS)
    device_exports.nsight(device_maker.make(mode, 1), folder / "n.sqlite")


def rocpd(folder):
    for number, process in enumerate(rocpd_maker.pipeline(SMALL, "3.0.0")[0]):
        process.copy(90_000_000, 90_000_500, at=80_000_000)
        process.allocate(80_000_100, 4096, 512)
        process.write(folder / f"{number}_results.db")


def ascend(folder):
    for rank in range(2):
        profile = ascend_maker.Profile(rank, device=rank, metadata=ascend_maker.sizes(2))
        profile.range("forward_step", 1000, 2000)
        profile.range("backward_step", 2000, 4000)
        profile.range("my own part", 4000, 5000)
        profile.operation(
            "hcom_send__001" if not rank else "hcom_receive__001", 2000, 2400, (rank, 1 - rank)
        )
        profile.function(ascend_maker.OPERATOR, "aten::mm", 10, 60)
        profile.task("KERNEL_AICORE", 600, 900, issued=(20, 30), named="MatMul")
        profile.write(folder)


def paddle(folder):
    for rank, tasks in nsight_maker.solve(SMALL).items():
        lines = [
            paddle_maker.line(kind.value, microbatch, start / 1000, end / 1000)
            for kind, microbatch, start, end in tasks
        ]
        paddle_maker.write(folder, paddle_maker.window(2), *lines, name=f"workerlog.{rank}")


def paddle_dygraph(folder):
    marks = [("F0", 0, 20), ("B0", 50, 90)]
    for rank in range(2):
        lines = []
        for name, *span in marks:
            for phase, at in zip("BE", span, strict=True):
                mark = {"name": name, "cat": "pipeline timeline", "ph": phase, "pid": 0}
                mark |= {"tid": rank + 1, "ts": paddle_maker.MS + at}
                lines.append(json.dumps(mark) + "\n")
        paddle_maker.write(folder, *lines, name=f"profile_record_tmp_file_for_rank_{rank}")


def primus(folder):
    sizes = {"pp_size": 2, "vp_size": 2, "num_mbs": 2, "dp_size": 1, "model": "own"}
    orders = primus_maker.interleaved(2, 2, 2)
    primus_maker.dump(folder, orders, iterations=2, labels=("minibatch", "chunk"), config=sizes)


def ndtimeline(folder):
    for host in range(2):
        events = []
        for microbatch in range(2):
            at = 1_755_066_160_000_000 + 10 * microbatch
            for name, start in (
                ("forward-compute", at),
                ("backward-compute", at + 60),
                ("own", at + 99),
            ):
                said = {"rank": host, "step": 3, "tp": 0, "pp": host}
                where = {"cat": name, "pid": 0, "tid": 10 * host, "args": said}
                events.append({"ph": "X", "name": name, "ts": start, "dur": 9, **where})
        (folder / f"host{host}").mkdir()
        (folder / f"host{host}" / "trace_step3_4").write_text(json.dumps(events))


def job_trace(folder):
    job_trace_maker.make(folder / "trace.parquet", replicas=2, steps=2, chunks=1, overlapped=False)


MADE = [
    *(kineto, kineto_device, nsight, nsight_device, rocpd, ascend),
    *(paddle, paddle_dygraph, primus, ndtimeline, job_trace),
]


def readable(plain: Path, folder: Path, places: list[Field]) -> list[Field]:
    """Return the fields that may hold a canary: with that, the trace can still be read.

    In the others text is no text of the trace; the command line says so on its console.
    """
    if not places:
        return []
    shutil.copytree(plain, folder)
    put(folder, places)
    try:
        if len(sources.load(folder)):
            return places
    except BubblescopeError:
        pass
    finally:
        shutil.rmtree(folder)
    half = len(places) // 2
    return [
        field
        for part in ((places[:half], places[half:]) if half else ())
        for field in readable(plain, folder, part)
    ]


def printed(commands: list[tuple[str, ...]], *paths: str) -> Iterator[tuple[str, bytes]]:
    """Return what commands print of a run, on both streams."""
    for command in commands:
        done = CliRunner().invoke(cli, [*command, *paths])
        assert done.exception is None or isinstance(
            done.exception, (SystemExit, BubblescopeError)
        ), (
            command,
            done.exception,
        )
        yield " ".join(command), done.output.encode()


def written(timeline: Timeline, folder: Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """Return the files that are made of a run."""
    for name in names:
        kernels = "kernels" in FORMATS[name].options and timeline.activities.height > 0
        options = {"kernels": True} if kernels else {}
        yield (
            name,
            write(timeline, folder / f"run{FORMATS[name].suffix}", to=name, **options).read_bytes(),
        )


def check(outputs: Iterator[tuple[str, bytes]]) -> set[str]:
    """Return which outputs show that the text got there, as none has it raw."""
    shown = set()
    for name, content in outputs:
        assert RAW.search(content) is None, (name, RAW.search(content))
        if SHOWN.search(content) or b"q\\u202ej" in content:
            shown.add(name)
    return shown


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_no_field_of_a_format_reaches_an_output_raw(tmp_path, make):
    plain, folder = tmp_path / "plain", tmp_path / "canaries"
    plain.mkdir()
    make(plain)
    assert sources.load(plain) is not None
    carrying = readable(plain, folder, fields(plain))
    shutil.copytree(plain, folder)
    put(folder, carrying)
    timeline = sources.load(folder, activities=True)
    shown = check(printed(COMMANDS if FULL else FEW, str(folder)))
    shown |= check(written(timeline, tmp_path, FILES if FULL else ["csv", "json", "chrome"]))
    assert shown or make.__name__ in TEXTLESS


def everywhere(value: Any) -> Any:
    """Return plain values with a canary after each text."""
    if isinstance(value, str):
        return value + CANARY
    if isinstance(value, list):
        return [everywhere(one) for one in value]
    if isinstance(value, dict):
        return {key: everywhere(one) for key, one in value.items()}
    return value


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run whose model holds a canary in every text that any run can have."""
    folder = tmp_path_factory.mktemp("whole")
    device_exports.kineto(device_maker.make(device_maker.Mode(), 1), folder)
    plain = sources.load(folder, activities=True)

    def marked(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(pl.col(pl.String) + CANARY)

    tables = {name: marked(table) for name, table in plain.tables.items()}
    tables["counters"] = pl.DataFrame(
        {"rank": [plain.ranks["rank"][0]], "name": ["n" + CANARY], "unit": ["u" + CANARY]}
    ).with_columns(time_ns=pl.lit(plain.start_ns), value=pl.lit(1.0))
    run = everywhere(msgspec.to_builtins(plain.run))
    run |= {"schedule": f"s{CANARY}", "inferred": {f"i{CANARY}": f"j{CANARY}"}}
    found = msgspec.convert(run, Run)
    found = msgspec.structs.replace(
        found,
        origins=(*found.origins, Origin("f" + CANARY, "v" + CANARY, "p" + CANARY, "r" + CANARY)),
        warnings=(*found.warnings, Notice("c" + CANARY, "m" + CANARY)),
    )
    return Timeline(marked(plain.tasks), marked(plain.ranks), found, **tables)


def test_every_text_of_the_model_has_a_canary(whole):
    """A column that is added later is among them by itself."""
    for table in (whole.tasks, whole.ranks, *whole.tables.values()):
        for column in table.select(pl.col(pl.String)):
            texts = column.drop_nulls()
            assert texts.str.contains(CANARY, literal=True).all(), column.name


@pytest.mark.parametrize("name", FILES)
def test_no_text_of_the_model_reaches_a_file_raw(whole, tmp_path, name):
    shown = check(written(whole, tmp_path, [name]))
    assert shown or name in {"pdf", "png"}  # which are packed


@pytest.mark.parametrize("command", [*COMMANDS, ("compare",), ("compare", "--json")], ids=" ".join)
def test_no_text_of_the_model_reaches_a_terminal_raw(whole, tmp_path, command):
    path = str(whole.save(tmp_path / f"run{CANARY[:150]}.bubbles.parquet"))
    other = [str(whole.save(tmp_path / "b.parquet"))] * (command[0] == "compare")
    shown = check(printed([command], path, *other))
    assert shown or command[0] in {"names", "stragglers"}  # of which this run has none


def test_no_text_of_the_model_reaches_a_notebook_or_paddles_files_raw(whole, tmp_path):
    trace = Trace(whole)
    said = {
        "repr": repr(trace),
        "html": trace._repr_html_(),
        "report": trace.report()._repr_html_(),
        "json": trace.report().to_json(),
    }
    check((name, text.encode()) for name, text in said.items())
    ranks = whole.ranks.with_columns(device=pl.col("rank"))
    for path in pipeline_profile.write(whole.described(ranks, whole.run), tmp_path):
        assert check([(path.name, path.read_bytes())])


def test_no_text_of_a_recording_reaches_an_output_or_a_dashboard_raw(tmp_path):
    prometheus = pytest.importorskip("prometheus_client")
    folder, registry = tmp_path / "recorded", prometheus.CollectorRegistry()
    with Recorder(folder, rank=0, host=f"h{CANARY}", schedule=f"s{CANARY}") as recorder:
        recorder.on_step(_Metrics(prometheus, registry, recorder.header).observe)
        for _ in range(3):
            with recorder.step():
                with recorder.task("forward", microbatch=0, name=f"f{CANARY}"):
                    pass
                with recorder.task("other", lane="host", name=f"z{CANARY}"):
                    pass
    exposed = prometheus.generate_latest(registry)
    assert RAW.search(exposed) is None
    assert all(
        f'{label}="{letter}'.encode() in exposed for label, letter in (("host", "h"), ("part", "z"))
    )
    assert check(printed(FEW, str(folder)))
    timeline = sources.load(folder)
    assert check(written(timeline, tmp_path, ["csv", "json", "chrome"]))
