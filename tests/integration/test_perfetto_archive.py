"""The archive for Perfetto: its manifest has the published shape, and puts every trace on one clock.

No Perfetto that reads manifests can be had here. What one does with them is done here as its reference
says: at a common instant, the source clock reads T when the reference clock reads T + `offset_ns`.
"""

from __future__ import annotations

import gzip
import json
import tarfile

import pytest
from click.testing import CliRunner
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

import bubblescope
import kineto_maker
import nsight_maker
from bubblescope.cli import cli
from bubblescope.facade import write
from bubblescope.model.errors import SourceError
from bubblescope.render.traces.perfetto_archive import MANIFEST, OURS
from places import ROOT, SHARED
from synthetic import one_f_one_b
from trace_processor import opened

CLOCKS = {
    "REALTIME",
    "REALTIME_COARSE",
    "MONOTONIC",
    "MONOTONIC_COARSE",
    "MONOTONIC_RAW",
    "BOOTTIME",
}
AHEAD_NS = {"node0": 0, "node1": 1_234_567_000}
"""By how much the clock of each host of the made run is ahead."""


def a_clock(value):
    assert value in CLOCKS


def a_name(value):
    assert isinstance(value, str)
    assert value


def an_integer(value):
    assert type(value) is int
    assert -(2**63) < value < 2**63


def the_only_version(value):
    assert type(value) is int
    assert value == 1


def of(**fields):
    """Return what checks an object: field -> whether it must be there, and what checks its value."""

    def check(value):
        assert isinstance(value, dict)
        assert {name for name, (needed, _) in fields.items() if needed} <= set(value) <= set(fields)
        for name, one in value.items():
            fields[name][1](one)

    return check


def each(check):
    def every(values):
        assert isinstance(values, list)
        for value in values:
            check(value)

    return every


FILE = of(
    path=(True, a_name),
    machine=(False, of(name=(True, a_name))),
    clocks=(
        False,
        of(
            clock=(False, a_clock),
            machine=(False, a_name),
            sync_to=(
                True,
                of(file=(True, a_name), machine=(False, a_name), clock=(False, a_clock)),
            ),
            offset_ns=(False, an_integer),
        ),
    ),
)
PUBLISHED = of(
    perfetto_manifest=(
        True,
        of(
            version=(True, the_only_version),
            trace_time=(
                False,
                of(clock=(True, a_clock), file=(False, a_name), machine=(False, a_name)),
            ),
            files=(False, each(FILE)),
        ),
    )
)
"""https://perfetto.dev/docs/reference/perfetto-manifest, but for what we do not write: `machines`,
`attributes`."""


def read(path):
    with tarfile.open(path) as archive:
        members = {one.name: archive.extractfile(one).read() for one in archive.getmembers()}
    return json.loads(members[MANIFEST]), members


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two hosts of which one is ahead, and where their traces count from another moment each."""
    folder = tmp_path_factory.mktemp("traces")
    style = nsight_maker.Style(stages=4, microbatches=4, steps=2, kernels=1)
    for trace in kineto_maker.pipeline(style)[0]:
        path = folder / f"rank{trace.rank}.json"
        trace.write(path)
        whole = json.loads(path.read_text())
        whole["baseTimeNanoseconds"] = whole.get("baseTimeNanoseconds", 0) + AHEAD_NS[trace.host]
        later = 1_000_000 * trace.rank  # counts from there, and so says less
        whole["baseTimeNanoseconds"] += later
        for event in whole["traceEvents"]:
            if "ts" in event:
                event["ts"] -= later / 1000
        text = json.dumps(whole)
        if trace.rank % 2:
            path.unlink()
            path.with_suffix(".json.gz").write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)
    return folder


@pytest.fixture(scope="module")
def archive(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "run.perfetto.tar"
    arguments = ["export", str(run), "--clock", "solve", "-o", str(path)]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return path


def test_the_manifest_has_the_published_shape(archive):
    said, members = read(archive)
    PUBLISHED(said)
    for value in (2, "1", True):  # what Perfetto refuses, this refuses too
        with pytest.raises(AssertionError):
            PUBLISHED({"perfetto_manifest": {**said["perfetto_manifest"], "version": value}})
    assert members[MANIFEST].startswith(b'{"perfetto_manifest"')  # by which it is known
    files = [one["path"] for one in said["perfetto_manifest"]["files"]]
    assert {*files, MANIFEST} == {*members}
    assert len(files) == len(set(files))
    listed = {one["clocks"]["sync_to"]["file"] for one in said["perfetto_manifest"]["files"][1:]}
    assert listed | {said["perfetto_manifest"]["trace_time"]["file"]} <= set(files)


def test_the_published_shape_refuses_others():
    for wrong in (
        {"perfetto_manifest": {}},
        {"perfetto_manifest": {"version": 1, "trace_time": {"clock": "BOOT"}}},
        {"perfetto_manifest": {"version": 1, "files": [{"path": "a", "clocks": {"offset_ns": 1}}]}},
        {"perfetto_manifest": {"version": 1, "files": [{"machine": {"name": "a"}}]}},
    ):
        with pytest.raises(AssertionError):
            PUBLISHED(wrong)


def test_raw_traces_are_as_they_were(run, archive):
    _, members = read(archive)
    for path in run.iterdir():
        raw = path.read_bytes()
        plain = gzip.decompress(raw) if path.suffix == ".gz" else raw
        rank = int(path.name[4])
        assert members[f"rank{rank:05d}/rank{rank}.json"] == plain


def test_offsets_put_all_ranks_on_one_clock(run, archive):
    """Kernels of raw traces, moved by the offsets, are where the timeline has them."""
    said, members = read(archive)
    kernels = bubblescope.load(run, clock="solve", activities=True).timeline.activities
    files = {one["path"]: one for one in said["perfetto_manifest"]["files"]}
    offsets = {}
    for name, file in files.items():
        if name == OURS:
            continue
        rank = int(name[4:9])
        events = json.loads(members[name])["traceEvents"]
        offset = file["clocks"]["offset_ns"]
        moved = [round(one["ts"] * 1000) + offset for one in events if one.get("cat") == "kernel"]
        assert sorted(moved) == kernels.filter(rank=rank)["start_ns"].sort().to_list()
        base = json.loads(members[name])["baseTimeNanoseconds"]
        offsets.setdefault(file["machine"]["name"], set()).add(offset - base)
    assert offsets["node0"] == {0}
    (found,) = offsets["node1"]  # what was corrected, and the same for all ranks of the host
    bound = bubblescope.load(run, clock="solve").ranks["clock_error_ns"].max()
    assert abs(found + AHEAD_NS["node1"]) <= bound


def test_our_trace_says_which_clock_it_is_on(run, archive):
    _, members = read(archive)
    trace = proto.Trace.FromString(members[OURS])
    (clock,) = trace.packet[0].clock_snapshot.clocks
    assert clock.clock_id == proto.BUILTIN_CLOCK_BOOTTIME
    assert clock.timestamp == bubblescope.load(run, clock="solve").start_ns
    assert not any(packet.HasField("timestamp_clock_id") for packet in trace.packet)


def test_perfettos_reader_finds_everything_in_it(run, tmp_path):
    """One that passes manifests over: that all slices of a host are read, not where they are."""
    part = bubblescope.load(run, activities=True).slice(ranks=[0, 1])
    kernels = part.timeline.activities.height
    with opened(part.export(tmp_path / "run.perfetto.tar")) as query:
        ((found,),) = query("select count(*) from slice where category = 'kernel'")
        ((ours,),) = query("select count(*) from slice where category in ('forward', 'backward')")
    assert found == kernels
    assert ours == part.tasks["kind"].is_in(["forward", "backward"]).sum()


def test_a_run_without_such_traces_is_there_alone(tmp_path):
    said, members = read(write(one_f_one_b(), tmp_path / "run.perfetto.tar"))
    PUBLISHED(said)
    assert {*members} == {MANIFEST, OURS}


def test_chosen_ranks_bring_their_traces_only(run, tmp_path):
    part = bubblescope.load(run).slice(ranks=[1])
    _, members = read(part.export(tmp_path / "run.perfetto.tar"))
    assert {*members} == {MANIFEST, OURS, "rank00001/rank1.json"}


def test_a_trace_that_is_gone_is_said_in_a_sentence(run, tmp_path):
    saved = bubblescope.load(run).save(tmp_path / "run.bubbles.parquet")
    moved = bubblescope.load(saved)
    contents = tuple(
        one.__class__(f"{one.path}.gone", one.host, one.process, rank=one.rank, offset_ns=0)
        for one in moved.run.contents
    )
    gone = moved.timeline.with_run(moved.run.__class__(contents=contents))
    with pytest.raises(SourceError, match="is no longer there; export --to perfetto writes"):
        write(gone, tmp_path / "run.perfetto.tar")
    assert not (tmp_path / "run.perfetto.tar").exists()


def test_what_can_be_read_of_a_torn_trace_is_in_it(run, tmp_path):
    torn = tmp_path / "rank1.json.gz"
    whole = (run / "rank1.json.gz").read_bytes()
    torn.write_bytes(whole[: len(whole) * 3 // 4])
    _, members = read(bubblescope.load(torn).export(tmp_path / "run.perfetto.tar"))
    assert gzip.decompress(whole).startswith(members["rank00001/rank1.json"])
    assert members["rank00001/rank1.json"]


@pytest.mark.skipif(not SHARED.exists(), reason="real traces are not here")
def test_real_traces_of_a_pipeline_go_in(tmp_path):
    folder = SHARED / "kineto" / "torch-2.13-gloo" / "1F1B"
    said, members = read(bubblescope.load(folder).export(tmp_path / "run.perfetto.tar"))
    PUBLISHED(said)
    assert len(members) == 4 + 2


def test_the_page_says_what_could_not_be_tested():
    page = " ".join((ROOT / "docs" / "exports.md").read_text("utf-8").split())
    assert "no build of Perfetto that reads it could be had for a test" in page
