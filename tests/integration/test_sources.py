"""Finding traces: files, folders, patterns; and saying clearly why something is none."""

from __future__ import annotations

import gzip
import os
import sqlite3
from contextlib import closing

import polars as pl
import pytest

from bubblescope import SourceError, Timeline, TimelineError, sources
from bubblescope.model.registry import Registry
from bubblescope.record import Recorder
from bubblescope.sources import SOURCES, find
from nsight_maker import Style, pipeline

XLA = b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},\n"traceEvents":['


def record(folder, rank):
    with Recorder(folder, rank=rank) as recorder, recorder.step(), recorder.task("forward"):
        pass
    return recorder.path


def test_files_folders_and_patterns_mean_the_same(tmp_path):
    paths = [record(tmp_path / "run", rank) for rank in range(3)]
    whole = sources.load(*paths)
    assert sources.load(tmp_path) == whole
    assert sources.load(paths[0].parent / "rank*.bubbles") == whole
    assert sources.load(str(tmp_path / "**" / "*.bubbles")) == whole
    assert sources.load(tmp_path / "run", paths[0]) == whole  # named twice, read once


def test_a_path_with_pattern_characters_is_a_path_first(tmp_path):
    path = record(tmp_path / "run[1]", 0)
    assert len(sources.load(path)) == 1


def test_files_that_are_no_trace_are_ignored_in_folders_with_a_warning(tmp_path):
    record(tmp_path / "run", 0)
    (tmp_path / "train.log").write_text("step 1")
    (tmp_path / ".hidden").write_text("")
    [notice] = sources.load(tmp_path).run.warnings
    assert (notice.code, notice.lost, notice.total) == ("ignored-files", 1, 2)
    assert "train.log" in notice.message


def test_pipes_are_never_read(tmp_path):
    """Reading from one that nobody writes to would never end."""
    path = record(tmp_path / "run", 0)
    os.mkfifo(path.with_name("rank1.bubbles"))
    run = sources.load(tmp_path / "run")
    assert run.ranks["rank"].to_list() == [0]
    folder = tmp_path / "saved"
    folder.mkdir()
    run.save(folder / "run.parquet")
    for name in ("rank1.json", "rank1.bubbles", "rank1.sqlite", "workerlog.1", "rank1.parquet"):
        os.mkfifo(folder / name)
    lost = {notice.code: notice.lost for notice in sources.load(folder).run.warnings}
    assert lost["ignored-files"] == 5
    with pytest.raises(SourceError, match=r"rank1.json: is neither a file nor a folder"):
        sources.load(folder / "rank1.json")


def test_links_that_lead_back_are_not_followed_for_ever(tmp_path):
    """Two links to the folder above make as many paths as there are ways to go round."""
    for folder in ("one", "other"):
        (tmp_path / "run" / folder).mkdir(parents=True)
        (tmp_path / "run" / folder / "up").symlink_to("..")
    path = record(tmp_path / "run" / "one", 0)
    (tmp_path / "run" / "other" / "again").symlink_to("../one")
    (tmp_path / "run" / "gone").symlink_to("nowhere")
    assert [one.resolve() for one in find([tmp_path]).files] == [path.resolve()]
    assert len(sources.load(tmp_path)) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "absent.sqlite",
            None,
            "absent.sqlite: no such file or folder, and as a pattern it matches",
        ),
        ("empty.sqlite", b"", "empty.sqlite: is an empty file"),
        (
            "notes.txt",
            b"hello",
            r"notes.txt: is not a trace of a known format; `bubblescope formats` lists",
        ),
        (
            "other.sqlite",
            b"SQLite format 3\0" + bytes(100),
            "other.sqlite: is not a trace of a known",
        ),
        ("table.parquet", b"PAR1 hello PAR1", "table.parquet: is not a trace of a known format"),
        (
            "report.sqlite",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "report.sqlite: is a pointer of Git LFS .* `git lfs pull`",
        ),
        ("trace.json", b"PK\x03\x04 and more", "trace.json: is an archive; unpack it"),
        ("traces.tar.gz", b"\x1f\x8b", "traces.tar.gz: is an archive; unpack it"),
        ("a.sqlite.gz", b"\x1f\x8b", "a.sqlite.gz: is a packed database, .* gunzip"),
        ("trace.json.zst", b"\x28\xb5\x2f\xfd", "is packed by zstd, .* pack it with gzip"),
        ("trace.json.xz", b"\xfd7zXZ\0\0", "is packed by xz"),
        ("trace.json.bz2", b"BZh91AY", "is packed by bzip2"),
        ("gemm.ncu-rep", b"NVR\0", "gemm.ncu-rep: is a report of Nsight Compute"),
        ("host.xplane.pb", b"\n", "host.xplane.pb: is a profile of XLA"),
        (
            "host.trace.json.gz",
            gzip.compress(XLA, mtime=0),
            "host.trace.json.gz: is a profile of XLA",
        ),
        ("results.json", b'{ "rocprofiler-sdk-tool": []}', "is JSON of rocprofv3, .* rocpd"),
        ("et.json", b'{\n "schema": "1.1.1-chakra.0.0.4", "nodes": []}', "is an execution trace"),
        # As mlcommons/chakra writes GlobalMetadata: of a version, or with attributes.
        ("job.0.et", b"\x07\n\x050.0.4\x04\x08\x01\x12\0", "is an execution trace of Chakra"),
        (
            "job",
            b"\x1e\n\x1c\n\x06schema\xea\x01\x111.1.1-chakra.0.0.4",
            r"job: is an execution trace of Chakra, .* \*.pt.trace.json",
        ),
        # The first plane, its number and its name; without a number, which is then 0.
        ("profile", b"\n\x91\x02\x08\x02\x12\x0d/device:TPU:0\x1a", "is a profile of XLA"),
        ("profile.pb", b"\n\x0b\x12\x09/host:CPU", "profile.pb: is a profile of XLA"),
        ("a.speedscope.json", b"{}", "is a profile of call stacks for speedscope"),
        (
            "py.json",
            b'{\n "$schema": "https://www.speedscope.app/file-format-schema.json",',
            "py.json: is a profile of call stacks .* with torch.profiler",
        ),
        ("of.json", b'{"exporter":"speedscope@1.25.0","name":"a"', "is a profile of call stacks"),
        ("perf.data", b"PERFILE2h\0\0\0\0\0\0\0", "perf.data: is a recording of Linux perf"),
        (
            "minddata_pipeline_raw_0.csv",
            b"op_id",
            "is a text export of MindSpore's .*ExportType.Db",
        ),
        ("ascend_timeline_display_0.json", b"[", "is a text export of MindSpore's profiler"),
        ("run.pftrace", b"\n", "run.pftrace: is a trace of Perfetto"),
        ("memory_timeline.raw.json", b"[]", "holds what PyTorch's memory was used for"),
        ("events.out.tfevents.17.host.0", b"\x18", "holds scalars of TensorBoard"),
        ("trace_view.json", b"[]", "trace_view.json: is a text export of Ascend's .* export_type="),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        sources.load(tmp_path / name)


def test_a_database_of_rpd_is_known_by_its_tables(tmp_path):
    path = tmp_path / "trace.db"
    with closing(sqlite3.connect(path)) as file:
        for table in ("rocpd_string", "rocpd_api", "rocpd_op", "rocpd_metadata"):
            file.execute(f"CREATE TABLE {table} (id integer PRIMARY KEY)")
    with pytest.raises(SourceError, match=r"trace.db: is a database of RPD .* `rocprofv3 "):
        sources.load(path)


def test_raw_data_of_ascends_profiler_says_how_to_export_it(tmp_path):
    data = tmp_path / "PROF_000001_20240101_ABC/device_0/data"
    data.mkdir(parents=True)
    (data / "ts_track.data.0.slice_0").write_bytes(b"\1\2")
    (data / "hwts.data.0.slice_0").write_bytes(b"\1\2")
    with pytest.raises(SourceError, match=r"_ABC: is raw data of Ascend's profiler .* --type=db"):
        sources.load(tmp_path)


def test_a_folder_without_traces_is_refused(tmp_path):
    with pytest.raises(SourceError, match="is an empty folder"):
        sources.load(tmp_path)
    (tmp_path / "train.log").write_text("step 1")
    with pytest.raises(SourceError, match="holds 1 file, but no trace of a known format"):
        sources.load(tmp_path)
    with pytest.raises(SourceError, match="no trace of the format 'nsight'; leave out --source"):
        sources.load(tmp_path, source="nsight")
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "kernel_details.csv").write_text("Name")
    with pytest.raises(SourceError, match=r"rank0.kernel_details.csv: is a text export"):
        sources.load(tmp_path)


def test_two_formats_that_claim_one_rank_are_refused_unless_one_is_chosen(tmp_path):
    record(tmp_path / "run", 0)
    [export], _, _ = pipeline(Style(steps=1))
    export.write(tmp_path / "node0.sqlite")
    with pytest.raises(TimelineError, match=r"rank 0 is claimed by two traces: .*node0.sqlite"):
        sources.load(tmp_path)
    assert len(sources.load(tmp_path, source="native")) == 1
    assert len(sources.load(tmp_path, source="nsight")) > 1


def test_what_lies_beside_a_recording_is_read_where_it_is_asked_for(tmp_path):
    record(tmp_path, 0)
    [export], _, _ = pipeline(Style(steps=1))
    export.write(tmp_path / "node0.sqlite")
    recorded = sources.load(tmp_path)
    assert len(recorded) == 1
    [note] = recorded.run.notes
    assert "other files beside the recording were not read (node0.sqlite)" in note.message
    assert len(sources.load(tmp_path, source="nsight")) > 1
    assert len(sources.load(tmp_path / "node0.sqlite")) > 1


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(
        SourceError, match=r"pprof: is not a trace format; the formats .*native, ndtime"
    ):
        sources.load(tmp_path, source="pprof")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission_says_so(tmp_path):
    path = record(tmp_path, 0)
    path.chmod(0)
    with pytest.raises(SourceError, match=r"cannot be opened .* check its rights"):
        sources.load(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("mode", [0, 0o400])
def test_a_folder_that_must_not_be_entered_says_so(tmp_path, mode):
    """As an attempt that somebody else has recorded."""
    attempt = record(tmp_path, 0).parent
    attempt.chmod(mode)
    try:
        for path in (attempt, tmp_path):
            with pytest.raises(SourceError, match=r"attempt-0001: cannot be listed .* its rights"):
                sources.load(path)
    finally:
        attempt.chmod(0o700)


def test_no_path_at_all_is_refused():
    with pytest.raises(SourceError, match="give at least one trace"):
        sources.load()


class ToySource:
    """What another package would add."""

    name = "toy"
    summary = "toy traces (.toy)"

    def detect(self, path):
        return path.suffix == ".toy"

    def read(self, paths, options):
        options.progress.begin("reading", len(paths))
        frame = pl.DataFrame({"rank": range(len(paths)), "start_ns": 0, "end_ns": 1})
        return Timeline(
            frame.with_columns(kind=pl.lit("forward"), lane=pl.lit("compute"), name=pl.lit("F"))
        )


def test_another_package_adds_a_format_through_an_entry_point(tmp_path, monkeypatch):
    said = tmp_path / "site" / "toy-1.0.dist-info"
    said.mkdir(parents=True)
    (said / "METADATA").write_text("Name: toy\nVersion: 1.0\n")
    (said / "entry_points.txt").write_text(f"[bubblescope.sources]\ntoy = {__name__}:ToySource\n")
    monkeypatch.syspath_prepend(said.parent)
    monkeypatch.setattr(sources, "SOURCES", Registry(SOURCES.group, SOURCES.built_in))
    traces = [tmp_path / "a.toy", tmp_path / "b.toy"]
    for trace in traces:
        trace.write_text("x")
    assert len(sources.load(*traces)) == 2
    assert {"native", "nsight", "toy"} <= set(sources.SOURCES)


def test_every_source_introduces_itself():
    assert list(SOURCES) == ["native", *sorted({*SOURCES} - {"native"})]
    for name, source in SOURCES.items():
        assert source.name == name
        assert source.summary


def test_no_source_claims_what_it_cannot_judge(tmp_path):
    (tmp_path / "socket").mkdir()
    for source in SOURCES.all().values():
        assert not source.detect(tmp_path / "absent")
        assert not source.detect(tmp_path / "socket")


def test_finding_does_not_read(tmp_path):
    path = record(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:10])  # damaged, but clearly a recording
    found = find([tmp_path])
    [(source, traces)] = found.traces
    assert (source.name, traces, found.ignored) == ("native", [path], [])
