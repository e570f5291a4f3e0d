"""What a trace declares is a claim: what cannot be costs neither memory nor time, and no traceback."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import re
import socket
import sqlite3
from contextlib import closing, nullcontext

import polars as pl
import pytest

import bubblescope
import kineto_maker
import nsight_maker
import paddle_maker
import primus_maker
import synthetic
from bounded import bounded, size_of
from bubblescope import SourceError, Timeline, sources
from bubblescope.model import parquet
from bubblescope.model.bounds import RANKS
from bubblescope.model.column_types import UnfitError, typed
from bubblescope.model.errors import BubblescopeError, quoted
from bubblescope.record import Recorder
from bubblescope.sources.kineto import document
from job_trace_maker import make as make_job

STYLE = nsight_maker.Style(stages=2, microbatches=2, steps=2)
NESTED = "[" * 200_000 + "]" * 200_000
LONGEST = 1100
"""Letters of a message: what is wrong, and the path."""


def refused(*paths):
    """Return the sentence that paths are refused with."""
    with pytest.raises(SourceError) as error:
        sources.load(*paths)
    said = str(error.value)
    assert "\n" not in said
    assert len(said) < LONGEST
    return said


# Sizes.


def worker_of_a_world(folder):
    paddle_maker.write(folder, paddle_maker.line("forward", 0, 0, 1), name="workerlog.2000000000")


def machines_without_end(folder):
    line = paddle_maker.line("forward", 0, 0, 1)
    paddle_maker.write(folder, line, name="machine0/workerlog.0")
    paddle_maker.write(folder, line, name="machine2000000000/workerlog.7")


def pipeline_of_many(folder):
    primus_maker.dump(
        folder, primus_maker.interleaved(2, 1, 2), chunks=1, config={"pp_size": 32767}
    )


def primus_rank(folder):
    primus_maker.dump(folder, primus_maker.interleaved(2, 1, 2), chunks=1)
    (folder / "pp_rank_1.json").rename(folder / "pp_rank_2000000000.json")


def job_of_many_microbatches(folder):
    path = make_job(folder / "trace-a.parquet", replicas=1, steps=1, chunks=1, overlapped=False)
    pl.read_parquet(path).with_columns(mb_id=pl.lit(10**9, pl.Int32)).write_parquet(path)


def kineto_with(**header):
    def write(folder):
        for rank, trace in enumerate(kineto_maker.pipeline(STYLE)[0]):
            said = {"rank": rank, "world_size": 2, "pg_config": []}
            trace.header = {"distributedInfo": said | header.get("distributed", {})}
            trace.header |= header.get("more", {})
            for event in trace.events:
                event.update(header.get("event", {}))
            trace.write(folder / f"rank{rank}.json")

    return write


def nsight_row_ids(folder):
    [*_, last] = [
        export.write(folder / f"{at}.sqlite")
        for at, export in enumerate(nsight_maker.pipeline(STYLE)[0])
    ]
    with closing(sqlite3.connect(last)) as connection:
        connection.execute(
            "UPDATE NVTX_EVENTS SET rowid = 9000000000000000000 "
            "WHERE rowid = (SELECT max(rowid) FROM NVTX_EVENTS)"
        )
        connection.commit()


def recorded_with(**said):
    """Write a recording whose header says something else."""

    def write(folder):
        with Recorder(folder, rank=0, host="here", stages=[0]) as job, job.step():
            for kind in ("forward", "backward"):
                with job.task(kind, microbatch=0):
                    pass
        frame = pl.read_ipc_stream(io.BytesIO(job.path.read_bytes()))
        header = json.dumps(json.loads(frame["name"][0]) | said)
        names = pl.Series("name", [header, *frame["name"][1:]])
        frame.with_columns(names).write_ipc_stream(job.path)

    return write


SIZES = {
    "a worker's number": worker_of_a_world,
    "a machine's number": machines_without_end,
    "pp_size": pipeline_of_many,
    "a dump's rank": primus_rank,
    "mb_id": job_of_many_microbatches,
    "world_size": kineto_with(
        distributed={"world_size": 10**9, "pg_config": [{"pg_name": "0", "ranks": []}]}
    ),
    "group size": kineto_with(
        distributed={"pg_config": [{"pg_name": "0", "pg_size": 2**31 - 1, "ranks": []}]}
    ),
    "n_microbatches": kineto_with(
        more={"pp_info": json.dumps({"schedule": "1f1b", "n_microbatches": 10**9})}
    ),
    "tid": kineto_with(event={"tid": 10**9}),
    "row ids": nsight_row_ids,
    "a group's ranks": recorded_with(groups=[{"runs": [[0, 1, 10**9]]}]),
    "groups' ranks": recorded_with(groups=[{"runs": [[0, 0, RANKS - 1]] * 500}]),
    "stages": recorded_with(stages=[10**9]),
    "microbatches": recorded_with(microbatches=10**9),
}


@pytest.mark.parametrize("claim", SIZES)
def test_a_declared_size_costs_nothing(tmp_path, claim):
    """It is not believed, or refused in one sentence."""
    SIZES[claim](tmp_path)
    ran = bounded("report", tmp_path, mib=3000, seconds=20)
    assert ran.code in {0, 2}, ran.said
    assert ran.mib < 600
    if ran.code == 2:
        assert ran.said.strip().count("\n") == 0
        assert str(tmp_path) in ran.said


def test_a_size_that_is_not_believed_is_said(tmp_path):
    SIZES["n_microbatches"](tmp_path)
    timeline = sources.load(tmp_path)
    assert timeline.run.microbatches is None
    assert "unbelievable-size" in {notice.code for notice in timeline.run.warnings}


# Types.


@pytest.mark.parametrize(
    ("values", "dtype", "found"),
    [
        (pl.Series("a", [1, 2], dtype=pl.UInt64), pl.Int32, [1, 2]),
        (pl.Series("a", [1.0, None]), pl.Int64, [1, None]),
        (pl.Series("a", ["7"]), pl.Int32, [7]),
        (pl.Series("a", ["f"]).cast(pl.Categorical), pl.String, ["f"]),
        (pl.Series("a", [None]), pl.List(pl.Int32), [None]),
        (pl.Series("a", [1, 2**40]), pl.Int32, "row 1: a must be Int32, not 1099511627776"),
        (pl.Series("a", [1.0, 2.5]), pl.Int64, "row 1: a must be Int64, not 2.5"),
        (pl.Series("a", [float("nan")]), pl.Int64, "row 0: a must be Int64, not nan"),
        (pl.Series("a", [2**64 - 1], dtype=pl.UInt64), pl.Int64, "row 0: a must be Int64"),
        (pl.Series("a", [[1]]), pl.Int32, "column a must be Int32, not List(Int64)"),
        (pl.Series("a", [{"b": 1}]), pl.String, "column a must be String, not Struct"),
        (pl.Series("a", [True]), pl.Int32, "column a must be Int32, not Boolean"),
        (pl.Series("a", [b"\xff"]), pl.String, "column a must be String"),
        (pl.Series("a", [[2**40]]), pl.List(pl.Int32), "column a must be List(Int32)"),
        (pl.Series("a", [0]).cast(pl.Datetime), pl.Int64, "column a must be Int64, not Datetime"),
        (pl.Series("a", ["x" * 5000]), pl.Int64, "row 0: a must be Int64, not 'xxx"),
    ],
)
def test_a_column_is_of_its_type_exactly_or_refused(values, dtype, found):
    if isinstance(found, list):
        assert typed(values, dtype).to_list() == found
        assert typed(values, dtype).dtype == dtype
    else:
        with pytest.raises(UnfitError, match=re.escape(found)) as error:
            typed(values, dtype)
        assert len(str(error.value)) < 200


WRONG = {
    "list": [[1]],
    "struct": [{"a": 1}],
    "text": ["x" * 5000],
    "large": [2**40],
    "boolean": [True],
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("column", ["step", "stage", "mb_id"])
def test_a_column_of_a_job_trace_that_is_of_another_type_is_named(tmp_path, column, wrong):
    path = make_job(tmp_path / "trace-a.parquet", replicas=1, steps=1, chunks=1, overlapped=False)
    frame = pl.read_parquet(path)
    frame.with_columns(pl.Series(column, WRONG[wrong] * frame.height)).write_parquet(path)
    assert re.match(rf"{re.escape(str(path))}: .*{column} must be Int32", refused(path))


def test_parquet_is_ours_by_what_its_head_says(tmp_path):
    """Not by what its rows say; and of a file that is cut off, by its name."""
    native = sources.SOURCES["native"]
    ours, other, cut = (tmp_path / name for name in ("a.parquet", "b.parquet", "c.parquet"))
    synthetic.one_f_one_b(2, 2, 1).save(ours)
    text = pl.DataFrame({"name": ["bubblescope.run"] * 2})
    text.write_parquet(other, statistics=False, compression="uncompressed")
    cut.write_bytes(ours.read_bytes()[:-1])
    assert [native.detect(path) for path in (ours, other, cut)] == [True, False, False]
    named = cut.rename(tmp_path / "c.bubbles.parquet")
    assert native.detect(named)
    assert "cannot be read as Parquet" in refused(named)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_column_of_a_saved_run_that_is_of_another_type_is_named(tmp_path, wrong):
    path = tmp_path / "run.bubbles.parquet"
    synthetic.one_f_one_b(2, 2, 1).save(path)
    frame, said = pl.read_parquet(path), pl.read_parquet_metadata(path)
    frame = frame.with_columns(pl.Series("stage", WRONG[wrong] * frame.height))
    frame.write_parquet(path, metadata={key: said[key] for key in said if "bubble" in key})
    assert "stage must be Int32" in refused(path)


@pytest.mark.parametrize(
    "ranks",
    [
        "5",
        "[5]",
        '[{"rank": 1e400}]',
        '[{"rank": -1}]',
        '[{"rank": 0, "stages": [1e18]}]',
        '[{"rank": 0, "host": "x", "dp": 1000000000000000000000000000000}]',
        NESTED,
    ],
    ids=range(7),
)
def test_damaged_ranks_of_a_saved_run_are_one_sentence(tmp_path, ranks):
    path = tmp_path / "run.bubbles.parquet"
    synthetic.one_f_one_b(2, 2, 1).save(path)
    frame, said = pl.read_parquet(path), pl.read_parquet_metadata(path)
    kept = {key: said[key] for key in said if "bubble" in key}
    frame.write_parquet(path, metadata=kept | {"bubblescope.ranks": ranks})
    assert refused(path).startswith(str(path))


@pytest.mark.parametrize("device", [-1, 2**31 - 1, 2**40])
@pytest.mark.parametrize("container", ["sqlite", "parquetdir"])
def test_a_device_that_no_machine_has_is_refused_by_table_and_column(tmp_path, device, container):
    export = nsight_maker.pipeline(nsight_maker.Style(stages=1, microbatches=2))[0][0]
    kernels = export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]
    kernels[len(kernels) // 2]["deviceId"] = device
    if container == "sqlite":
        path = export.write(tmp_path / "r.sqlite")
    else:
        export.rows["CUPTI_ACTIVITY_KIND_KERNEL"] = kernels
        path = tmp_path / "r"
        path.mkdir()
        for table, frame in export.frames().items():
            frame.write_parquet(path / f"{table}.parquet")
    said = refused(path)
    assert "CUPTI_ACTIVITY_KIND_KERNEL" in said
    assert f"deviceId is {device}" in said


@pytest.mark.parametrize(
    ("header", "field"),
    [
        ({"rank": 2**64}, "rank"),
        ({"rank": -1}, "rank"),
        ({"device": 2**31}, "device"),
        ({"utc_ns": 10**30}, "utc_ns"),
        ({"stages": [10**30]}, "stages"),
        ({"groups": [{"runs": [[0, 1, 2**40]]}]}, "runs"),
        ({"dropped_steps": [10**30, 0]}, "dropped_steps"),
    ],
)
def test_a_damaged_header_of_a_recording_names_its_field(tmp_path, header, field):
    recorded_with(**header)(tmp_path)
    assert re.search(rf"has an invalid header \(.*{field}", refused(tmp_path))


@pytest.mark.parametrize(
    "said",
    [
        {"distributed": {"pg_config": 5}},
        {"distributed": {"pg_config": [{"pg_name": [], "ranks": {"a": 10**30}}, 7]}},
        {"distributed": {"rank": [], "world_size": "many"}},
        {"event": {"tid": 10**400}},
        {"event": {"pid": "p" * 100_000}},
    ],
    ids=range(5),
)
def test_what_kineto_says_around_its_events_may_be_of_any_type(tmp_path, said):
    kineto_with(**said)(tmp_path)
    try:
        timeline = sources.load(tmp_path)
    except SourceError as error:
        assert len(str(error)) < LONGEST  # noqa: PT017  either outcome is right
    else:
        assert timeline.ranks.height == 2


@pytest.mark.parametrize("format_", ["kineto", "primus", "ndtimeline"])
def test_json_nested_without_end_is_one_sentence(tmp_path, format_):
    if format_ == "kineto":
        path = tmp_path / "rank0.json"
        path.write_text(f'{{"schemaVersion": 1, "x": {NESTED}, "traceEvents": []}}')
    elif format_ == "primus":
        path = tmp_path / "pp_rank_0.json"
        path.write_text(f'{{"1": {{"memory": {NESTED}}}}}')
    else:
        path = tmp_path / "trace_step0_1"
        path.write_text(f'[{{"ph": "X", "tid": {NESTED}}}]')
    assert refused(path).startswith(str(path))


def test_a_damaged_event_costs_itself_only(tmp_path):
    [trace, *_], _, _ = kineto_maker.pipeline(STYLE)
    whole = sources.load(trace.write(tmp_path / "rank0.json")).tasks
    kernels = [event for event in trace.events if event["cat"] == "kernel"]
    kernels[0]["args"]["correlation"] = 2**64
    kernels[1]["tid"] = 2**64
    timeline = sources.load(trace.write(tmp_path / "rank0.json"))
    assert timeline.tasks.height == whole.height
    assert max(notice.lost or 0 for notice in timeline.run.warnings) == 2


def test_long_numbers_in_dygraph_lines_are_damage(tmp_path):
    lines = [
        json.dumps(
            {"name": f"F{9 * 10**18 if at else 0}", "ph": phase, "tid": 1, "ts": 10**12 + at}
        )
        for at in (0, 5)
        for phase in "BE"
    ]
    paddle_maker.write(tmp_path, "\n".join(lines), name="profile_record_tmp_file_for_rank_0")
    timeline = sources.load(tmp_path)
    assert timeline.tasks.height == 1
    assert {"broken-lines"} <= {notice.code for notice in timeline.run.warnings}


# Messages.


def test_a_message_quotes_no_more_than_a_line():
    assert len(quoted("x" * 10**6)) < 100
    assert "\n" not in quoted("a\nb\n")
    error = SourceError("p", "x" * 10**6 + "; do this")
    assert len(str(error)) < LONGEST
    assert str(error).endswith("; do this")
    assert isinstance(error, BubblescopeError)


def test_an_error_of_a_worker_reaches_who_waits_for_it():
    error = pickle.loads(pickle.dumps(SourceError("trace.json", "is damaged")))
    assert (str(error), error.path) == ("trace.json: is damaged", "trace.json")


def test_what_rust_prints_of_a_panic_is_not_shown_and_all_else_is(capfd):
    def panic():
        with parquet.panics_unprinted():
            os.write(2, b"thread panicked")
            raise pl.exceptions.PanicException("unwrap")

    with pytest.raises(pl.exceptions.ComputeError):
        panic()
    with parquet.panics_unprinted(), parquet.panics_unprinted():
        os.write(2, b"a warning")
    assert capfd.readouterr().err == "a warning"


def test_a_table_of_equal_rows_does_not_fill_the_memory(tmp_path):
    path = tmp_path / "trace-a.parquet"
    make_job(path, replicas=1, steps=1, chunks=1, overlapped=False)
    row = pl.read_parquet(path).head(1)
    pl.concat([row] * 10).lazy().select(
        pl.all().first().repeat_by(2_000_000).explode()
    ).collect().write_parquet(path)
    assert "rows in" in refused(path)


# Kineto: memory and time.


def packed(folder, pieces):
    path = folder / "rank0.json.gz"
    with gzip.open(path, "wb", 1) as file:
        file.writelines(pieces)
    return path


@pytest.mark.parametrize("begun", [b'{"schemaVersion":1,', b'{"schemaVersion":1,"traceEvents":['])
def test_a_trace_that_unpacks_without_end_is_refused_unless_told_otherwise(
    tmp_path, monkeypatch, begun
):
    monkeypatch.setattr(document, "_UNPACKED", 1 << 22)
    path = packed(tmp_path, [begun, *[b" " * (1 << 20)] * 8])
    assert "--unlimited" in refused(path)
    headless = pytest.raises(SourceError, match="cut short")
    with headless if b"Events" not in begun else nullcontext():
        sources.load(path, unlimited=True)


def test_a_trace_that_is_packed_well_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(document, "_UNPACKED", 1 << 16)
    [trace, *_], _, _ = kineto_maker.pipeline(
        nsight_maker.Style(stages=1, microbatches=64, steps=4)
    )
    assert sources.load(trace.write(tmp_path / "rank0.json.gz")).tasks.height == 512


@pytest.fixture(scope="module")
def text():
    """A trace that everything else is put into."""
    return kineto_maker.pipeline(STYLE)[0][0].text()


@pytest.mark.parametrize(
    "where", ["before the events", "in an event", "damaged, in an event", "after the events"]
)
def test_a_long_text_takes_memory_and_time_by_its_length(tmp_path, text, where):
    long = "n" * (16 << 20)
    whole = {
        "before the events": '{"schemaVersion": 1, "x": "' + long + '", ' + text[1:],
        "in an event": text.replace('"name": "', f'"name": "{long}', 1),
        "damaged, in an event": text.replace('"name": "', f'"name": "\\q{long}\\n', 1),
        "after the events": text.rstrip().removesuffix("}") + f', "x": "{long}"}}',
    }[where]
    path = tmp_path / "rank0.json"
    path.write_text(whole)
    ran = bounded("report", "--quiet", path, mib=3000, seconds=20)
    assert ran.code == 0, ran.said
    # A name that long is held once by each table that names are in.
    assert ran.mib < 150 + 20 * size_of(path) / (1 << 20)


# Folders.


def test_what_is_no_file_is_never_waited_for_and_circles_end(tmp_path, monkeypatch):
    folder = tmp_path / "x"
    folder.mkdir()
    for name in ("rank0.json", "a.sqlite", "rank1.bubbles", "config.json", "trace_step0_1"):
        os.mkfifo(folder / name)
    for name in ("up", "again"):
        (folder / name).symlink_to("..")
    (folder / "self").symlink_to("self")
    (folder / "zero.bubbles").symlink_to("/dev/zero")
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        monkeypatch.chdir(folder)  # the name of a socket is short
        listening.bind("s.json")
    assert "no trace of a known format" in refused(tmp_path)
    synthetic.one_f_one_b(2, 2, 1).save(folder / "run.bubbles.parquet")
    for path in (tmp_path, str(tmp_path / "**"), str(tmp_path / "**" / "*.parquet")):
        assert len(sources.load(path)) == 12


def test_a_table_that_is_a_pipe_is_not_waited_for(tmp_path):
    export = nsight_maker.pipeline(nsight_maker.Style(stages=1, microbatches=2))[0][0]
    folder = export.write_parquet_dir(tmp_path / "r")
    (folder / "NVTX_EVENTS.parquet").unlink()
    os.mkfifo(folder / "NVTX_EVENTS.parquet")
    assert isinstance(bubblescope.load(folder).timeline, Timeline)


def test_a_file_that_goes_while_it_is_read_is_one_sentence(tmp_path, monkeypatch):
    path = paddle_maker.write(tmp_path, paddle_maker.line("forward", 0, 0, 1))
    monkeypatch.setattr(
        "bubblescope.sources.paddle_logs._places",
        lambda paths: paths[0].unlink() or paths[0].stat(),
    )
    assert refused(path) == f"{path}: cannot be read (No such file or directory)"
