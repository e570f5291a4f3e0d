"""Job traces of whole clusters: ByteDance's Parquet, veScale's ndtimeline and AMD's Primus."""

from __future__ import annotations

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope import sources
from bubblescope.analysis.rates import bubble_rates
from bubblescope.model.errors import BubblescopeError, SourceError
from bubblescope.render.text.report import Report
from places import SHARED

DATA = SHARED
real = pytest.mark.skipif(not DATA.exists(), reason="the real traces are not here")
NOW_US = 1_755_066_160_000_000


def codes(timeline):
    return {notice.code: notice for notice in timeline.run.warnings}


# Parquet.


def rows(steps=(16, 20), replicas=2):
    """A two-stage pipeline: one micro-batch forward and backward, sent and received."""
    plan = {
        0: [
            ("params-all-gather", 0.0, 0.1, -1),
            ("forward-compute", 0.1, 0.4, 0),
            ("forward-send", 0.5, 0.1, -1),
            ("backward-recv", 0.5, 0.9, -1),
            ("backward-compute", 1.5, 0.5, 0),
            ("gc", 2.0, 0.0, 0),
            ("optimizer-clip-main-grad", 2.1, 0.1, -1),
            ("optimizer", 2.2, 0.1, -1),
        ],
        1: [
            ("forward-recv", 0.1, 0.5, -1),
            ("forward-compute", 0.6, 0.3, 0),
            ("backward-compute", 0.9, 0.5, 0),
            ("backward-send", 1.4, 0.1, -1),
            ("grads-reduce-scatter", 2.0, 0.1, -1),
        ],
    }
    return [
        {
            "dp_rank": replica,
            "stage": stage,
            "rank": 2 * (stage * replicas + replica),
            "step": step,
            "optype": name,
            "start_ts": start,
            "duration": length,
            "seq_id": 0,
            "mc": 0 if "compute" in name else -1,
            "mb_id": number,
            "gmc": stage if "compute" in name else -1,
        }
        for step in steps
        for replica in range(replicas)
        for stage, operations in plan.items()
        for name, start, length, number in operations
    ]


def write(path, made=None, **changes):
    frame = pl.DataFrame(rows() if made is None else made)
    frame = frame.with_columns(pl.col("start_ts", "duration").cast(pl.Float32))
    frame.with_columns(**changes).write_parquet(path)
    return path


def test_operations_have_their_place(tmp_path):
    timeline = sources.load(write(tmp_path / "job.parquet"))

    tasks = timeline.tasks.filter(rank=2, step=16)
    assert tasks.filter(lane="compute").select("kind", "stage", "chunk", "microbatch").rows() == [
        ("forward", 0, 0, 0),
        ("backward", 0, 0, 0),
        ("optimizer", None, None, None),
        ("optimizer", None, None, None),
    ]
    assert tasks.filter(lane="comm").select("kind", "peer", "microbatch").rows() == [
        ("collective", None, None),
        ("send_forward", 6, 0),
        ("recv_backward", 6, 0),
    ]
    assert tasks.filter(lane="host")["kind"].to_list() == ["gc"]
    assert timeline.ranks.select("rank", "dp", "stages").rows() == [
        (0, 0, [0]),
        (2, 1, [0]),
        (4, 0, [1]),
        (6, 1, [1]),
    ]
    assert timeline.run.microbatches == 1


def test_seconds_become_nanoseconds_and_steps_follow_each_other(tmp_path):
    timeline = sources.load(write(tmp_path / "job.parquet"))

    forward = timeline.tasks.filter(kind="forward", rank=0).select("step", "start_ns", "end_ns")
    assert forward.rows() == [
        (16, pytest.approx(100_000_000, abs=10), pytest.approx(500_000_000, abs=20)),
        (20, pytest.approx(2_400_000_000, abs=200), pytest.approx(2_800_000_000, abs=200)),
    ]
    assert "resolve 137 ns" in codes(timeline)["steps-laid-out"].message
    # Idle are 0.1 and 1.0 s of the first stage's 1.9 s, and 1.1 s of the second's.
    assert bubble_rates(timeline).overall.makespan == pytest.approx(1 - 1.7 / 3.8, abs=1e-6)


@pytest.mark.parametrize("column", ["rank", "seq_id", "mc", "mb_id", "gmc"])
def test_columns_that_may_be_missing(tmp_path, column):
    made = [{key: value for key, value in row.items() if key != column} for row in rows()]

    timeline = sources.load(write(tmp_path / "job.parquet", made))

    assert len(timeline) == len(made)
    assert timeline.ranks.height == 4


@pytest.mark.parametrize("column", ["dp_rank", "stage", "step"])
def test_a_missing_column_is_named(tmp_path, column):
    made = [{key: value for key, value in row.items() if key != column} for row in rows()]
    with pytest.raises(SourceError, match=f"has no column {column}; a job trace has"):
        sources.load(write(tmp_path / "job.parquet", made))


def test_a_column_of_another_type_is_named(tmp_path):
    path = write(tmp_path / "job.parquet", step=pl.lit("soon"))
    with pytest.raises(SourceError, match="row 0: step must be Int32, not 'soon'"):
        sources.load(path)


@pytest.mark.parametrize("value", [float("nan"), -1.0, 1e9, None])
def test_impossible_times_are_dropped_and_counted(tmp_path, value):
    made = rows()
    made[1]["duration"] = value

    timeline = sources.load(write(tmp_path / "job.parquet", made))

    assert len(timeline) == len(made) - 1
    assert codes(timeline)["impossible-times"].lost == 1


def test_times_in_another_unit_are_refused(tmp_path):
    path = write(tmp_path / "job.parquet", start_ts=pl.lit(1.7e9))
    with pytest.raises(SourceError, match="of another unit or since 1970"):
        sources.load(path)


def test_rows_that_are_there_twice_count_once(tmp_path):
    made = rows()

    timeline = sources.load(write(tmp_path / "job.parquet", [*made, *made[:3]]))

    assert len(timeline) == len(made)
    assert codes(timeline)["repeated-rows"].lost == 3


def test_a_rank_in_two_places_is_refused(tmp_path):
    made = rows()
    made[0]["stage"] = 1
    with pytest.raises(SourceError, match=r"job\.parquet: rank 0 has several places"):
        sources.load(write(tmp_path / "job.parquet", made))


def test_a_torn_table_is_refused(tmp_path):
    path = write(tmp_path / "trace-x.parquet")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SourceError, match="cannot be read as Parquet"):
        sources.load(path)


@real
@pytest.mark.parametrize(
    ("name", "ranks", "steps", "total"), [("ST", 8, 32, 6784), ("SE", 64, 43, 107_328)]
)
def test_real_jobs_are_read_in_full(name, ranks, steps, total):
    timeline = sources.load(DATA / "jobtrace" / f"trace-{name}.parquet")

    assert (timeline.ranks.height, len(timeline.steps), len(timeline)) == (ranks, steps, total)
    sends = timeline.tasks.filter(kind="send_forward")
    assert sends["peer"].null_count() == 0
    raw = pl.read_parquet(DATA / "jobtrace" / f"trace-{name}.parquet")
    busy = raw.filter(pl.col("optype").cast(pl.String).str.ends_with("compute"))["duration"].sum()
    found = timeline.tasks.filter(pl.col("kind").is_in(["forward", "backward"]))
    total_ns = found.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
    assert total_ns / 1e9 == pytest.approx(busy, rel=1e-5)


# ndtimeline.


def event(name, rank, step, start, end, *, replica=0, device=0, **more):
    said = {"rank": rank, "step": step, "tp": 0, "pp": device, **more}
    return {
        "ph": "X",
        "name": name,
        "cat": name,
        "pid": replica,
        "tid": rank * 10,
        "ts": NOW_US + start,
        "dur": end - start,
        "args": said,
    }


def timeline_of(tmp_path, events, name="trace_step3_4"):
    path = tmp_path / name
    path.write_text(json.dumps(events))
    return sources.load(path)


def pipeline_events():
    events = []
    for step in (3, 4):
        at = 1000 * step
        for index in range(2):
            events += [
                event("forward-compute", 0, step, at + 10 * index, at + 10 * index + 9),
                event(
                    "forward-compute", 1, step, at + 10 * index + 10, at + 10 * index + 19, device=1
                ),
                event(
                    "backward-compute",
                    1,
                    step,
                    at + 40 + 20 * index,
                    at + 59 + 20 * index,
                    device=1,
                ),
                event("backward-compute", 0, step, at + 60 + 20 * index, at + 79 + 20 * index),
            ]
        events.append(event("forward-send-backward-recv", 0, step, at + 20, at + 60))
        events.append(event("tp-allreduce", 0, step, at + 3, at + 5))
        events.append({"ph": "M", "name": "thread_name", "pid": 0, "args": {"name": "x"}})
    return events


def test_ndtimeline_tasks_are_numbered_by_their_order(tmp_path):
    timeline = timeline_of(tmp_path, pipeline_events())

    assert timeline.steps == [3, 4]
    assert timeline.ranks["stages"].to_list() == [[0], [1]]
    passes = timeline.tasks.filter(lane="compute", rank=0, step=3)
    assert passes.select("kind", "microbatch", "start_ns").rows() == [
        ("forward", 0, (NOW_US + 3000) * 1000),
        ("forward", 1, (NOW_US + 3010) * 1000),
        ("backward", 0, (NOW_US + 3060) * 1000),
        ("backward", 1, (NOW_US + 3080) * 1000),
    ]
    moved = timeline.tasks.filter(lane="comm", step=3).select("kind", "peer").rows()
    assert sorted(moved) == [("collective", None), ("recv_backward", 1), ("send_forward", 1)]
    assert "clocks-unchecked" in codes(timeline)


def test_events_that_do_not_say_their_rank_are_counted(tmp_path):
    timeline = timeline_of(tmp_path, [*pipeline_events(), {"ph": "X", "name": "forward-compute"}])

    assert codes(timeline)["unreadable-events"].lost == 1


def test_a_damaged_timeline_is_refused(tmp_path):
    path = tmp_path / "trace_step0_1"
    path.write_text(json.dumps(pipeline_events())[:-40])
    with pytest.raises(SourceError, match="is not an ndtimeline trace, or is damaged"):
        sources.load(path)


def test_a_timeline_given_twice_is_refused(tmp_path):
    for name in ("trace_step3_4", "trace_step3_4.json"):
        (tmp_path / name).write_text(json.dumps(pipeline_events()))
    with pytest.raises(SourceError, match="operations twice"):
        sources.load(tmp_path)


# Primus.


def dump(folder, ranks=3, microbatches=4, iterations=2, config=True, change=None):
    """Dumps of a pipeline in which every forward and backward takes 10 ms."""
    folder.mkdir(exist_ok=True)
    for rank in range(ranks):
        said = {}
        for iteration in range(1, iterations + 1):
            starts = [10.0 * index for index in range(microbatches)]
            backs = [100.0 + start for start in starts]
            said[str(iteration)] = {
                "total": 150.0,
                "memory": 10.0,
                "fwd_start": starts,
                "fwd_end": [start + 10 for start in starts],
                "bwd_start": backs,
                "bwd_end": [start + 10 for start in backs],
            }
        if change:
            change(rank, said)
        (folder / f"pp_rank_{rank}.json").write_text(json.dumps(said))
    if config:
        sizes = {"pp_size": 3, "vp_size": 1, "num_mbs": microbatches, "dp_size": 1}
        (folder / "config.json").write_text(json.dumps(sizes))
    return folder


def test_ranks_of_a_dump_share_no_clock_and_say_so(tmp_path):
    timeline = sources.load(dump(tmp_path / "d"))

    assert not timeline.run.common_clock
    assert "must not be compared" in codes(timeline)["no-common-clock"].message
    rates = bubble_rates(timeline).overall
    assert (rates.makespan, rates.over_ideal, rates.idle_ns) == (None, None, None)
    assert rates.span == pytest.approx(1 - 80 / 140)
    assert timeline.run.microbatches == 4


def test_iterations_of_a_dump_follow_each_other(tmp_path):
    tasks = sources.load(dump(tmp_path / "d")).tasks.filter(rank=1, kind="forward")

    assert tasks.select("step", "stage", "microbatch", "start_ns").rows()[3:5] == [
        (1, 1, 3, 30_000_000),
        (2, 1, 0, 150_000_000),
    ]


def test_weight_gradients_chunks_and_combined_passes(tmp_path):
    def change(_, said):
        for one in said.values():
            one["wgrad_start"], one["wgrad_end"] = [145.0], [149.0]
            one["wgrad_minibatch"], one["wgrad_chunk"] = [3], [1]
            one["fwd_minibatch"], one["fwd_chunk"] = [0, 1, 2, 3], [0, 0, 0, 1]
            one["bwd_minibatch"], one["bwd_chunk"] = [0, 1, 2, 3], [1, 1, 1, 0]
            one["fwd_start"][3], one["fwd_end"][3] = one["bwd_start"][0], one["bwd_end"][0]

    tasks = sources.load(dump(tmp_path / "d", change=change)).tasks.filter(rank=0, step=1)

    assert tasks.filter(kind="backward_weight")["microbatch"].to_list() == [3]
    assert tasks.filter(kind="backward_input").height == 3
    pair = tasks.filter(kind="forward_backward").to_dicts()[0]
    assert (pair["microbatch"], pair["chunk"], pair["pair_microbatch"], pair["pair_chunk"]) == (
        3,
        1,
        0,
        1,
    )


def test_what_a_dump_lacks_is_said(tmp_path):
    folder = dump(tmp_path / "d")
    (folder / "pp_rank_1.json").unlink()
    assert "missing-ranks" in codes(sources.load(folder))
    (folder / "config.json").unlink()
    assert "no-config" in codes(sources.load(folder))


def test_lists_of_unequal_length_lose_no_more_than_the_difference(tmp_path):
    def change(rank, said):
        if rank == 0:
            said["1"]["fwd_end"].pop()
            said["2"]["bwd_end"][0] = -5.0

    timeline = sources.load(dump(tmp_path / "d", change=change))

    assert len(timeline) == 3 * 2 * 8 - 2
    assert codes(timeline)["impossible-times"].lost == 2
    assert "unexpected-microbatches" in codes(timeline)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"one": {}}', '{"1": {"fwd_start": "soon"}}', '{"1": []}']
)
def test_a_damaged_dump_is_refused(tmp_path, text):
    folder = dump(tmp_path / "d")
    (folder / "pp_rank_2.json").write_text(text)
    with pytest.raises(SourceError, match=r"pp_rank_2\.json"):
        sources.load(folder)


@real
def test_a_real_dump_is_read_in_full():
    timeline = sources.load(DATA / "primus" / "pp8", clock="raw")

    assert (timeline.ranks.height, len(timeline.steps), len(timeline)) == (8, 20, 8 * 20 * 32)
    assert set(codes(timeline)) == {"no-common-clock"}


# Damage to any of them.


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    write(folder / "trace-a.parquet")
    (folder / "trace_step3_4").write_text(json.dumps(pipeline_events()))
    dump(folder / "primus", config=False)
    names = ["trace-a.parquet", "trace_step3_4", "primus/pp_rank_0.json"]
    return folder, {name: (folder / name).read_bytes() for name in names}


@given(
    which=st.sampled_from(["trace-a.parquet", "trace_step3_4", "primus/pp_rank_0.json"]),
    at=st.floats(0, 1, exclude_max=True),
    byte=st.integers(0, 255),
    cut=st.booleans(),
)
def test_damage_is_read_or_refused_but_never_a_traceback(sound, which, at, byte, cut):
    folder, texts = sound
    data = bytearray(texts[which])
    place = int(at * len(data))
    if cut:
        data = data[:place]
    else:
        data[place] = byte
    (folder / which).write_bytes(data)
    formats = {"trace-a.parquet": "jobtrace", "trace_step3_4": "ndtimeline"}
    try:
        timeline = sources.load(folder / which, source=formats.get(which, "primus"))
    except BubblescopeError as error:
        message = str(error)
    else:
        message = ""
        assert Report.of(timeline).to_dict()
    finally:
        (folder / which).write_bytes(texts[which])
    assert "\n" not in message
