"""Characters that move, colour or turn what stands around them leave bubblescope nowhere as they are.

Each field of text of each format has a canary put into it; what then still can be read goes through
each output. So does a run of which every text that the model holds has one.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pytest
from click.testing import CliRunner

import device_exports
import device_maker
from bubblescope import Timeline, sources
from bubblescope.cli import cli
from bubblescope.facade import Trace, write
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.provenance import Notice, Origin, Run
from bubblescope.record import Recorder
from bubblescope.record.prometheus import _Metrics
from bubblescope.render.artefacts import pipeline_profile
from bubblescope.render.formats import FORMATS
from canaries import CANARY, RAW, SHOWN, fields, put, readable
from every_format import MADE
from full import FULL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
FILES = [name for name in FORMATS if name not in {"parquet", "perfetto-tar"}]
"""Formats whose files are read by people or by other programs; Parquet keeps the text as it is, and the
profiler's own traces in an archive do."""
COMPRESSED = re.compile(rb"IDAT.*?(?=....IEND|....IDAT)|(?<=stream\n)x.*?(?=endstream)", re.DOTALL)
"""Pixels of PNG and zlib's streams in PDF, in which any bytes may stand by chance."""
TEXTLESS = {"paddle", "paddle_dygraph", "primus", "job_trace"}
"""Formats of whose text nothing is shown: it says what is what, or it is no trace of theirs."""


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
    for name, made in outputs:
        content = COMPRESSED.sub(b"", made)
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
