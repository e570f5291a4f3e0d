"""Damaged PyTorch profiler traces: what can be saved is, and nothing is silently wrong."""

from __future__ import annotations

import gzip
import json
import re

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubblescope
from bubblescope import sources
from bubblescope.model.errors import BubblescopeError, SourceError
from bubblescope.model.progress import SILENT
from bubblescope.render.text.report import Report
from bubblescope.sources.kineto import document
from kineto_maker import BASE, Trace, pipeline
from nsight_maker import Style

STYLE = Style(stages=2, microbatches=4, steps=2)


@pytest.fixture(scope="module")
def sound():
    """The text of a sound trace and its tasks."""
    traces, _, _ = pipeline(STYLE)
    return traces[0].text()


def load(text, tmp_path, name="rank0.json"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return sources.load(path, source="kineto")


def codes(timeline):
    return {notice.code: notice for notice in timeline.run.warnings}


def one_task():
    trace = Trace()
    trace.range("PP:0F0", 100, 200)
    trace.kernel(5000, 5100, at=110)
    return trace


def test_a_torn_trace_is_read_up_to_the_tear(sound, tmp_path):
    whole = load(sound, tmp_path)
    begin = sound.index('"traceEvents"') + 20
    end = sound.rindex('"ph"')
    for cut in range(begin + 400, end, (end - begin) // 40):
        torn = load(sound[:cut], tmp_path)
        notice = codes(torn)["torn-tail"]
        assert notice.total == cut
        assert notice.lost < 400
        kernels = sound[: cut - notice.lost].count('"cat": "kernel"')
        [held] = torn.run.contents
        assert held.counts.get("kernels", 0) == kernels
        # Those the tear did not reach are as they were; it may have cut the last one short.
        kept = torn.tasks.sort("start_ns").select("kind", "microbatch", "start_ns", "end_ns").rows()
        known = whole.tasks.sort("start_ns").select("kind", "microbatch", "start_ns", "end_ns")
        assert kept[:-1] == known.rows()[: max(0, len(kept) - 1)]


def test_a_tear_after_the_events_loses_none(tmp_path):
    text = one_task().text(tail=True)
    cut = text.rindex("]") + 15

    timeline = load(text[:cut], tmp_path)

    assert len(timeline) == 1
    assert set(codes(timeline)) == {"torn-tail", "no-absolute-time"}


def test_a_torn_gzip_is_read_as_far_as_it_unpacks(sound, tmp_path):
    packed = gzip.compress(sound.encode())
    for share in (0.5, 0.8, 0.99):
        torn = load(packed[: int(len(packed) * share)], tmp_path, "rank0.json.gz")
        assert "torn-tail" in codes(torn)
        assert torn.run.contents[0].counts["kernels"] > 0


def test_a_wrong_checksum_is_told(sound, tmp_path):
    packed = bytearray(gzip.compress(sound.encode()))
    packed[-8] ^= 1

    timeline = load(bytes(packed), tmp_path, "rank0.json.gz")

    assert "wrong-checksum" in codes(timeline)


def test_a_gzip_of_several_parts_is_one_trace(sound, tmp_path):
    half = len(sound) // 2
    parts = gzip.compress(sound[:half].encode()) + gzip.compress(sound[half:].encode())

    assert load(parts, tmp_path, "a.json.gz").tasks.equals(load(sound, tmp_path).tasks)


def test_ids_that_a_program_without_integers_has_written_are_mended(sound, tmp_path):
    ids = r'("(?:pid|tid|correlation|device)": \d+)(?=[,}])'
    text, count = re.subn(ids, r"\1.0", sound)
    assert count
    timeline = load(text, tmp_path)
    assert timeline.tasks.equals(load(sound, tmp_path).tasks)
    assert "repaired-events" in codes(timeline)
    # What has been rounded is no id any more.
    long = re.sub(r'("correlation": )\d+', r"\g<1>1152921504606846976.0", sound)
    assert codes(load(long, tmp_path))["unreadable-events"].lost


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "nan", "-nan", "inf"])
def test_numbers_that_json_does_not_know_are_mended(tmp_path, number):
    trace = one_task()
    trace.event("cpu_op", "aten::mean, NaN, or so", 300, 400, bandwidth="@")
    text = trace.text().replace('"@"', number)

    timeline = load(text, tmp_path)

    assert len(timeline) == 1
    assert codes(timeline)["repaired-events"].lost == 1


def test_bad_escapes_and_bytes_in_a_name_are_mended(tmp_path):
    trace = one_task()
    trace.range("C:@users", 300, 400)
    trace.range("caf#", 500, 600)
    data = trace.text().replace("@", "\\").encode().replace(b"#", b"\xe9")

    timeline = load(data, tmp_path)

    assert codes(timeline)["repaired-events"].lost == 2
    assert {shape.shape for shape in timeline.run.contents[0].names} == {
        "PP:#F#",
        "C:\\users",
        "caf�",
    }


def test_one_damaged_event_costs_only_itself(sound, tmp_path):
    begin = sound.index('"cat": "kernel"')
    damaged = sound[: begin - 3] + "!" + sound[begin - 2 :]

    timeline = load(damaged, tmp_path)

    whole = load(sound, tmp_path).run.contents[0].counts
    assert codes(timeline)["unreadable-events"].lost == 1
    assert timeline.run.contents[0].counts == whole | {"kernels": whole["kernels"] - 1}


def test_an_unknown_phase_is_no_damage(tmp_path):
    text = one_task().text().replace("[\n", '[\n  {"ph": "Z", "name": "new"},\n')

    timeline = load(text, tmp_path)

    assert len(timeline) == 1
    assert timeline.run.warnings == ()


@pytest.mark.parametrize(
    ("start", "end"),
    [(5000, 4000), (5000 + 10**18, 5100 + 10**18), (-BASE, -BASE + 5), (5000, 10**18)],
)
def test_events_whose_times_cannot_be_are_dropped_and_counted(tmp_path, start, end):
    trace = one_task()
    trace.kernel(start, end, at=120)

    timeline = load(trace.text(), tmp_path)

    assert timeline.tasks.select("start_ns", "end_ns").rows() == [(BASE + 5000, BASE + 5100)]
    assert codes(timeline)["impossible-times"].lost == 1


def test_a_clock_of_another_century_is_told(tmp_path):
    trace = one_task()
    trace.base = BASE // 1000

    assert "implausible-clock" in codes(load(trace.text(), tmp_path))


def test_without_a_base_times_count_from_an_unknown_moment(tmp_path):
    text = one_task().text().replace("baseTimeNanoseconds", "renamed")

    timeline = load(text, tmp_path)

    assert timeline.start_ns == 5000
    assert "no-absolute-time" in codes(timeline)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ('{"schemaVersion": 1, "deviceProp', "cut short"),
        ('{"schemaVersion": 1, "deviceProperties": []}', 'no "traceEvents"'),
        ('{"schemaVersion": 1, "traceEvents": {}}', 'no "traceEvents"'),
        ('{"baseTimeNanoseconds": "soon", "traceEvents": []}', "an invalid header"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path, text, message):
    with pytest.raises(SourceError, match=message) as caught:
        load(text, tmp_path)
    assert "rank0.json" in str(caught.value)


def test_a_trace_without_events_has_no_tasks_and_says_what_to_do(tmp_path):
    timeline = load('{"schemaVersion": 1, "traceEvents": []}', tmp_path)

    assert not len(timeline)
    assert "record_function" in codes(timeline)["no-pipeline-ranges"].message


def test_a_trace_without_events_among_others_has_no_times_of_the_host(tmp_path):
    one_task().write(tmp_path / "rank0.json")
    nothing = Trace(rank=1)
    nothing.write(tmp_path / "rank1.json")
    found = sources.load(tmp_path, source="kineto")
    assert found.ranks["timed"].to_list() == ["device", None]


def test_calls_of_a_device_that_did_nothing_tell_that_its_work_was_lost(tmp_path):
    trace = Trace()
    for at in range(100, 200, 10):
        trace.event("cuda_runtime", "cudaLaunchKernel", at, at + 5, correlation=at)
    timeline = load(trace.text(), tmp_path)
    assert not len(timeline)
    assert "10 calls of a device's runtime" in codes(timeline)["no-device-work"].message


def test_ranges_without_work_are_no_tasks(tmp_path):
    trace = Trace()
    trace.range("PP:0F0", 100, 200)
    trace.kernel(5000, 5100, at=None)

    timeline = load(trace.text(), tmp_path)

    assert timeline.tasks.select("kind", "name").rows() == [("other", "all device work")]
    assert {"ranges-without-work", "no-device-work"} <= set(codes(timeline))


def test_work_of_unknown_launches_is_in_no_step_though_there_are_some(tmp_path):
    trace = Trace()
    for number, start in enumerate((100, 200)):
        trace.range(f"ProfilerStep#{number}", start, start + 100)
        trace.kernel(start + 10, start + 20, at=None)

    timeline = load(trace.text(), tmp_path)

    assert timeline.tasks["step"].to_list() == [None]
    assert "one task is all that it did" in timeline.run.inferred["kind"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_byte_order_mark_is_no_damage(sound, tmp_path, packed):
    whole = load(sound, tmp_path)
    marked = b"\xef\xbb\xbf" + sound.encode()
    (tmp_path / "marked").mkdir()
    path = tmp_path / "marked" / ("rank0.json.gz" if packed else "rank0.json")
    path.write_bytes(gzip.compress(marked) if packed else marked)
    found = sources.load(path.parent)
    assert found.tasks.equals(whole.tasks)
    assert codes(found).keys() == codes(whole).keys()


def test_where_a_device_seems_idle_in_a_torn_trace_it_may_have_worked(sound, tmp_path):
    said = "where devices seem idle, they may have worked"
    assert said in codes(load(sound[: len(sound) // 2], tmp_path))["torn-tail"].message


def test_kernels_that_are_there_again_count_once(tmp_path):
    trace = one_task()
    trace.kernel(5000, 5100, at=None)  # another one, which has no launch
    events = trace.events
    kernels = [event for event in events if event.get("cat") == "kernel"]
    path = trace.write(tmp_path / "rank0.json")
    trace.events += kernels[:1]
    twice = trace.write(tmp_path / "again.json")

    whole, found = (sources.load(one, activities=True) for one in (path, twice))

    assert found.activities.height == whole.activities.height == 2
    assert found.tasks.equals(whole.tasks)
    assert "are there again (1); one of each" in codes(found)["repeated-rows"].message


def test_two_traces_of_one_rank_are_refused(tmp_path):
    for name in ("a.json", "b.json"):
        one_task().write(tmp_path / name)
    with pytest.raises(SourceError, match=r"rank 0, and so does .*give only one"):
        sources.load(tmp_path)


def test_ranks_without_a_trace_are_named(tmp_path):
    for rank in (0, 2):
        trace = one_task()
        trace.header["distributedInfo"] = {"rank": rank, "world_size": 4}
        trace.write(tmp_path / f"{rank}.json")

    assert (
        "2 of 4 ranks have no trace here (1, 3)"
        in codes(sources.load(tmp_path))["missing-ranks"].message
    )


def test_a_trace_without_rank_among_others_is_refused(tmp_path):
    one_task().write(tmp_path / "a.json")
    stranger = one_task()
    stranger.rank = None
    stranger.write(tmp_path / "b.json")
    with pytest.raises(SourceError, match=r"b\.json: does not state its rank"):
        sources.load(tmp_path)


def test_a_bare_array_of_pytorch_1_8_is_read_whole_and_torn(tmp_path):
    events = [
        {
            "ph": "X",
            "cat": "Operator",
            "name": "aten::mm",
            "pid": 7,
            "tid": "7",
            "ts": 10,
            "dur": 9,
        },
        {
            "ph": "X",
            "cat": "Runtime",
            "name": "cudaLaunchKernel",
            "pid": 7,
            "tid": "7",
            "ts": 12,
            "dur": 2,
            "args": {"correlation": 4},
        },
        {
            "ph": "X",
            "cat": "Kernel",
            "name": "gemm",
            "pid": 0,
            "tid": "stream 7",
            "ts": 20,
            "dur": 5,
            "args": {"device": 0, "stream": 7, "correlation": 4},
        },
        {"ph": "X", "cat": "Trace", "name": "Profiler", "pid": 7, "tid": "7", "ts": 0, "dur": 40},
    ]
    text = " " + json.dumps(events)
    for name, whole in (("whole", text), ("torn", text[:-30])):
        path = tmp_path / f"{name}.json"
        path.write_text(whole)
        timeline = sources.load(path)
        assert timeline.tasks.select("start_ns", "end_ns").rows() == [(20_000, 25_000)]
        assert ("torn-tail" in codes(timeline)) == (name == "torn")
        if name == "torn":
            assert codes(timeline)["torn-tail"].lost == len(json.dumps(events[-1])) - 30 + 1
        [contents] = timeline.run.contents
        assert contents.counts == {"operators": 1, "calls": 1, "kernels": 1}


@pytest.mark.parametrize("order", [sorted, lambda keys: sorted(keys, reverse=True)])
def test_events_may_have_their_keys_in_any_order(sound, tmp_path, monkeypatch, order):
    """Meta's MTIA names its processes name first; programs that rewrite traces may sort all keys."""
    trace = json.loads(sound)
    for event in trace["traceEvents"]:
        event["args"] = event.get("args", {}) | {
            "inner": [{"a": {}}, {"name": "ph"}],
            "b": '{"ph":',
        }
    trace["traceEvents"] = [
        {key: event[key] for key in order(event)} for event in trace["traceEvents"]
    ]
    monkeypatch.setattr(document, "_PIECE", 4096)
    batches = []
    text = json.dumps(trace)
    path = tmp_path / "rank0.json"
    path.write_text(text)
    document.read_document(path, lambda _: lambda batch: batches.append(len(batch)), SILENT)
    assert sum(batches) == len(trace["traceEvents"])
    assert len(batches) > len(text) / 4096 / 2  # in pieces, not all at once

    rewritten = load(text, tmp_path)
    assert rewritten.tasks.equals(load(sound, tmp_path).tasks)
    assert codes(rewritten).keys() == codes(load(sound, tmp_path)).keys()


def test_an_array_of_another_profiler_is_not_taken_for_one(tmp_path):
    """Ascend's `trace_view.json` is a bare array too, and its operators are PyTorch's."""
    path = tmp_path / "trace_view.json"
    path.write_text(
        json.dumps([{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}])
    )
    with pytest.raises(SourceError, match="is a text export of Ascend's profiler"):
        sources.load(path)


@pytest.mark.parametrize("merged", [True, False])
def test_kernels_of_several_processes_are_refused_and_of_several_devices_are_not(tmp_path, merged):
    """TraceLens fuses the kernels of all ranks into one file, with processes of its own numbers."""
    trace = Trace()
    for device in (0, 1):
        trace.device = device
        trace.kernel(100, 200, at=None)
        trace.events[-1]["pid"] = device * (10**8 + 1) if merged else device
    if merged:
        with pytest.raises(
            SourceError, match=r"kernels of 2 processes .* merged of several traces"
        ):
            load(trace.text(), tmp_path)
    else:
        assert load(trace.text(), tmp_path).run.contents[0].devices == (0, 1)


def test_times_of_the_host_are_called_so_in_the_first_lines(tmp_path):
    trace = Trace(header={"deviceProperties": []})
    trace.range("PP:0F0", 1000, 9000)
    trace.operator("aten::mm", 2000, 3000)
    trace.range("PP:0B0", 9000, 20_000)
    trace.operator("aten::mm", 10_000, 19_000)
    trace.event("abacus_events", "pe_exe", 1, 9)
    timeline = load(trace.text(), tmp_path)

    assert timeline.ranks["timed"].to_list() == ["host"]
    assert "1 of abacus_events" in codes(timeline)["events-not-read"].message
    report = bubblescope.report(tmp_path)
    assert report.to_dict()["bubble"]["overall"]["kernel_share"] is None
    assert "times are the host's" in str(report).splitlines()[1]


@pytest.mark.parametrize("names", ["## {} ##", "megatron.core.pipeline_parallel.schedules.{}_step"])
def test_a_rank_that_waits_in_a_collective_of_its_pass_is_not_called_slow(tmp_path, names):
    """DLRM's ranks hold the whole model: the one that comes first waits longest for the others."""
    banners = names.startswith("##")
    for rank, early in ((0, 0), (1, 60_000), (2, 65_000)):
        trace = Trace(rank=rank, host="node0")
        begin = 1000 + early
        trace.range("ProfilerStep#1", 0, 400_000)
        trace.range(names.format("forward"), begin, begin + 200)
        trace.kernel(begin + 100, begin + 1100, at=begin + 10)
        if banners:
            trace.kernel(begin + 1100, 80_000, at=begin + 20, name="ncclDevKernel_SendRecv()")
        trace.range(names.format("backward"), 90_000, 90_200)
        trace.kernel(90_100, 95_000, at=90_010)
        trace.write(tmp_path / f"rank{rank}.json")
    report = bubblescope.report(tmp_path)

    said = str(report)
    assert ("Bubble rate" in said) != banners
    assert "slower than a healthy rank" not in said
    assert ("whole model" in report.to_dict()["run"]["inferred"].get("kind", "")) == banners


def test_kernels_and_copies_of_mtia_are_a_devices(tmp_path):
    trace = Trace(header={"deviceProperties": []})
    trace.range("PP:0F0", 1000, 9000)
    trace.event("mtia_runtime", "runFunction", 1100, 1200, correlation=7)
    trace.event("mtia_ccp_events", "fc-dtype_Float", 2000, 5000, 4, correlation=7, stream=1)
    trace.event("mtia_ccp_events", "dma_request", 4000, 6000, 801)
    trace.event("mtia_ccp_events", "add-dtype_Float", 8000, 9000, 4)
    timeline = load(trace.text(), tmp_path)

    assert timeline.ranks["timed"].to_list() == ["device"]
    spent = bubblescope.report(tmp_path).to_dict()["device"]["capture"]
    assert spent["total_ns"] == 7000
    assert spent["compute_ns"] == 4000
    assert spent["copy_exposed_ns"] == 1000
    assert spent["idle_ns"] == 2000
    [task] = timeline.tasks.filter(kind="forward").to_dicts()
    assert (task["start_ns"], task["end_ns"]) == (BASE + 2000, BASE + 5000)


def test_times_of_a_device_are_not_called_the_hosts(tmp_path):
    assert load(one_task().text(), tmp_path).ranks["timed"].to_list() == ["device"]


def test_a_trace_merged_of_several_processes_is_refused(tmp_path):
    trace = one_task()
    trace.range("PP:1F0", 100, 200)
    trace.events[-1]["pid"] = 78
    with pytest.raises(
        SourceError, match=r"ranges of 2 processes \(77, 78, \.\.\.\): it was merged"
    ):
        load(trace.text(), tmp_path)


def test_renamed_fields_never_give_a_number(tmp_path):
    for field in ("ts", "dur", "args", "correlation", "cat", "ph"):
        text = one_task().text().replace(f'"{field}"', f'"{field}_"')
        timeline = load(text, tmp_path)
        assert timeline.tasks.filter(pl.col("kind") == "forward").height == 0, field
        assert timeline.run.warnings, field


@pytest.mark.parametrize("field", ["ts", "dur"])
@pytest.mark.parametrize("value", ['"soon"', "null", "[]", "1e400", "true"])
def test_times_that_are_no_numbers_cost_the_event(tmp_path, field, value):
    text = re.sub(rf'"{field}": [\d.]+', f'"{field}": {value}', one_task().text(), count=1)

    timeline = load(text, tmp_path)

    assert set(timeline.tasks["kind"]) <= {"other"}
    assert timeline.run.warnings


TEXT = pipeline(STYLE)[0][0].text(tail=True)
EVENTS = json.loads(TEXT)["traceEvents"]


def _facts(timeline):
    return set(timeline.tasks.select("kind", "microbatch", "start_ns", "end_ns").rows())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mutants")


def loads_or_refuses(data, folder):
    """Return a timeline, or None if the data was refused in one sentence."""
    try:
        return load(data, folder)
    except BubblescopeError as error:
        message = str(error)
    assert "\n" not in message
    return None


@given(at=st.integers(0, len(TEXT) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused_but_never_a_traceback(folder, at, byte):
    data = bytearray(TEXT.encode())
    data[at] = byte
    if timeline := loads_or_refuses(bytes(data), folder):
        assert Report.of(timeline).to_dict()


@given(first=st.integers(0, len(TEXT)), second=st.integers(0, len(TEXT)), again=st.booleans())
def test_a_lost_or_doubled_part_is_read_or_refused(folder, first, second, again):
    low, high = sorted((first, second))
    text = TEXT[:high] + TEXT[low:] if again else TEXT[:low] + TEXT[high:]
    if timeline := loads_or_refuses(text, folder):
        assert Report.of(timeline).to_dict()


@given(st.permutations(EVENTS))
def test_the_order_of_events_does_not_matter(folder, events):
    trace = Trace(host="node0")
    trace.events = events
    text = TEXT[: TEXT.index('"traceEvents"')]
    document = text + '"traceEvents": ' + json.dumps(events) + TEXT[TEXT.rindex("]") + 1 :]
    assert _facts(load(document, folder)) == _facts(load(TEXT, folder))


@given(st.lists(st.integers(0, len(EVENTS) - 1), unique=True, max_size=5))
def test_lost_events_only_ever_remove_or_shorten_tasks(folder, lost):
    events = [event for index, event in enumerate(EVENTS) if index not in lost]
    document = json.dumps({**json.loads(TEXT), "traceEvents": events})
    known = {(kind, low, high) for kind, _, low, high in _facts(load(TEXT, folder))}
    for kind, _, low, high in _facts(load(document, folder)):
        assert any(kind == one and start <= low <= high <= end for one, start, end in known)
