"""Ascend profiles: tasks read from them, and the chart written back."""

from __future__ import annotations

import csv
import shutil
import sqlite3
from contextlib import closing

import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ascend_maker import BASE, Profile, declared, sizes
from bubblescope import sources
from bubblescope.cli import cli
from bubblescope.model.errors import BubblescopeError, SourceError
from bubblescope.model.kinds import Kind
from bubblescope.render.text.report import Report
from bubblescope.schedules import mindspeed_dualpipev as mindspeed
from bubblescope.sources.ascend.dualpipev_order import position_name
from nsight_maker import Style, solve
from places import SHARED

DATA = SHARED / "ascend"
real = pytest.mark.skipif(not DATA.exists(), reason="the reference data is not here")
MARKS = {
    Kind.FORWARD: "forward_step_with_model_graph",
    Kind.BACKWARD: "backward_step_with_model_graph",
    Kind.BACKWARD_INPUT: "backward_step_with_model_graph",
    Kind.BACKWARD_WEIGHT: "WeightGradStore.pop",
    Kind.FORWARD_BACKWARD: "forward_backward_overlaping",
    Kind.OTHER: "forward_step_no_model_graph",
}


def codes(timeline):
    return {notice.code: notice for notice in timeline.run.warnings}


def classic(folder, style):
    """Write the profiles of a made pipeline; return its true tasks."""
    plan = solve(style)
    makespan = max(tasks[-1][3] for tasks in plan.values())
    words = {Kind.FORWARD: "forward_step", Kind.BACKWARD: "backward_step"}
    truth = []
    for rank, tasks in plan.items():
        profile = Profile(rank, device=rank, metadata=sizes(style.stages))
        for step in range(style.steps):
            origin, host = step * (makespan + 50), 1000 * step
            profile.step(10 + step, host, host + 999)
            for index, (kind, microbatch, start, end) in enumerate(tasks):
                low, high = origin + start, origin + end
                at = host + 10 + 5 * index
                profile.range({"name": words[kind]}, low, high, host=(at, at + 4))
                truth.append((rank, 10 + step, kind.value, microbatch, BASE + low, BASE + high))
        profile.write(folder)
    schema = ["rank", "step", "kind", "microbatch", "start_ns", "end_ns"]
    return pl.DataFrame(truth, schema=schema, orient="row")


def dualpipe(folder, lost=(), devices=2, microbatches=5, device=0, steps=(7,)):
    """Write one rank of a DualPipeV whose tasks are a microsecond each, with some left out."""
    metadata = {**sizes(devices), **declared("dualpipev", microbatches)}
    profile = Profile(device, metadata=metadata)
    planned = mindspeed.order(devices, device, microbatches)
    for at, step in enumerate(steps):
        host, begin = 100_000 * at, 1_000_000 * at
        profile.step(step, host, host + 99_999)
        for index, operation in enumerate(planned):
            if index not in lost:
                low = begin + 1000 * index
                spot = host + 10 * index
                message = {"name": MARKS[operation.kind]}
                profile.range(message, low, low + 900, host=(spot, spot + 5))
    profile.write(folder)
    return planned


def test_every_range_of_a_pipeline_is_read_exactly(tmp_path):
    truth = classic(tmp_path, Style())

    timeline = sources.load(tmp_path)

    found = timeline.tasks.select(truth.columns)
    assert found.sort("rank", "start_ns").rows() == truth.sort("rank", "start_ns").rows()
    assert timeline.ranks["stages"].to_list() == [[0], [1], [2], [3]]
    assert timeline.ranks["device"].to_list() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("message", "kind", "microbatch"),
    [
        ({"name": "forward_step"}, "forward", 0),
        ({"name": "forward_step", "current_microbatch": 3}, "forward", 3),
        ('{"name": "forward_step", "current_microbatch": 3}', "forward", 3),
        ("backward_step", "backward", 0),
        ({"name": "WeightGradStore.pop"}, "backward_weight", 0),
        ("WeightGradStore_pop", "backward_weight", 0),
        ({"name": "forward_backward_overlaping"}, "forward_backward", 0),
        ({"name": "forward_backward_overlapping"}, "forward_backward", 0),
        ("bubblescope:forward step=7 microbatch=2", "forward", 2),
        ("{'name': 'forward_step', 'oops': ", "forward", 0),
    ],
)
def test_every_form_of_message_is_understood(tmp_path, message, kind, microbatch):
    profile = Profile()
    profile.step(7, 0, 10_000)
    profile.range(message, 1000, 2000)
    profile.write(tmp_path)

    [task] = sources.load(tmp_path).tasks.to_dicts()

    assert (task["kind"], task["microbatch"], task["step"]) == (kind, microbatch, 7)


@pytest.mark.parametrize("encoded", [1, 2, 3])
def test_a_declared_schedule_is_read_however_often_it_was_encoded(tmp_path, encoded):
    profile = Profile(metadata=declared("1f1b", 8, encoded=encoded))
    profile.range("forward_step", 1000, 2000)
    profile.write(tmp_path)

    run = sources.load(tmp_path).run

    assert (run.schedule, run.microbatches) == ("1f1b", 8)


@pytest.mark.parametrize("device", [0, 1])
def test_dualpipev_is_named_by_its_order(tmp_path, device):
    planned = dualpipe(tmp_path, device=device, steps=(7, 8))

    timeline = sources.load(tmp_path)

    for step in (7, 8):
        tasks = timeline.tasks.filter(step=step).sort("start_ns")
        assert tasks["name"].to_list() == [position_name(one, 5) for one in planned]
        assert tasks["microbatch"].to_list() == [one.microbatch for one in planned]
        assert tasks["kind"].to_list() == [one.kind.value for one in planned]
    assert timeline.ranks["stages"].to_list() == [[device, 3 - device]]
    assert set(codes(timeline)) == {"missing-ranks"}


def test_dualpipev_without_the_profilers_steps_is_several_in_a_row(tmp_path):
    planned = dualpipe(tmp_path, steps=(7, 8, 9))
    [path] = tmp_path.rglob("ascend_pytorch_profiler_0.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE STEP_TIME")

    tasks = sources.load(tmp_path).tasks.sort("start_ns")

    assert tasks["step"].to_list() == [step for step in range(3) for _ in planned]
    assert tasks["name"].to_list() == [position_name(one, 5) for one in planned] * 3


def test_what_is_missing_is_named_and_the_rest_is_still_certain(tmp_path):
    planned = mindspeed.order(2, 0, 5)
    weight = next(i for i, one in enumerate(planned) if one.kind is Kind.BACKWARD_WEIGHT)
    dualpipe(tmp_path, lost=(weight,))

    timeline = sources.load(tmp_path)

    names = [position_name(one, 5) for i, one in enumerate(planned) if i != weight]
    assert timeline.tasks.sort("start_ns")["name"].to_list() == names
    message = codes(timeline)["schedule-misfit"].message
    assert f"1 are missing ({position_name(planned[weight], 5)})" in message


def test_what_could_be_one_or_another_is_not_named(tmp_path):
    """Of two equal neighbours one is missing: which one, the marks do not tell."""
    planned = mindspeed.order(2, 0, 5)
    dualpipe(tmp_path, lost=(0,))

    timeline = sources.load(tmp_path)

    first = timeline.tasks.sort("start_ns").head(1).to_dicts()[0]
    assert (first["kind"], first["microbatch"]) == ("forward", None)
    assert "among 0, 1" in codes(timeline)["schedule-misfit"].message
    tail = timeline.tasks.sort("start_ns")["name"].to_list()[-3:]
    assert tail == [position_name(one, 5) for one in planned[-3:]]


@given(st.sets(st.integers(0, 26), max_size=6))
def test_no_name_given_is_ever_wrong(lost):
    planned = mindspeed.order(2, 0, 5)
    kinds = [MARKS[one.kind] for one in planned]
    ran = [index for index in range(len(planned)) if index not in lost]

    found = mindspeed.align([kinds[index] for index in ran], kinds)

    assert found.missing == len(planned) - len(ran)
    assert all(place in {-1, index} for place, index in zip(found.places, ran, strict=True))


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 4), (2, 9), (4, 10), (8, 16), (8, 40)])
def test_dualpipev_runs_every_operation_once_and_in_turn(devices, microbatches):
    halves: dict[tuple, int] = {}
    orders = [mindspeed.order(devices, device, microbatches) for device in range(devices)]
    for device, planned in enumerate(orders):
        seen = []
        for one in planned:
            if one.kind in {Kind.FORWARD, Kind.FORWARD_BACKWARD}:
                seen.append(("F", one.chunk, one.microbatch))
            if one.kind in {Kind.BACKWARD, Kind.BACKWARD_INPUT}:
                seen.append(("B", one.chunk, one.microbatch))
            if one.kind is Kind.FORWARD_BACKWARD:
                seen.append(("B", one.pair_chunk, one.pair_microbatch))
        assert len(seen) == len(set(seen)) == 4 * microbatches
        for kind in "FB":
            for chunk in (0, 1):
                numbers = [number for one, c, number in seen if (one, c) == (kind, chunk)]
                assert numbers == list(range(microbatches))
                halves[device, kind, chunk] = len(numbers)
    with pytest.raises(ValueError, match="at least"):
        mindspeed.order(devices, 0, 2 * devices - 1)


def test_ranges_within_others_are_left_out_and_counted(tmp_path):
    profile = Profile()
    profile.step(7, 0, 10_000)
    profile.range("forward_backward_overlaping", 1000, 2000)
    profile.range("forward_step", 1100, 1500)
    profile.write(tmp_path)

    timeline = sources.load(tmp_path)

    assert timeline.tasks["kind"].to_list() == ["forward_backward"]
    assert codes(timeline)["overlapping-ranges"].lost == 1


def test_ranges_without_the_device_and_moments_are_no_tasks(tmp_path):
    profile = Profile()
    profile.range("forward_step", 1000, 2000)
    profile.range("forward_step", 3000, 4000, device=False)
    profile.range("forward_step", 5000, 5000, kind=0)
    profile.write(tmp_path)

    timeline = sources.load(tmp_path)

    assert len(timeline) == 1
    notice = codes(timeline)["ranges-without-work"]
    assert (notice.lost, notice.total) == (1, 2)


def test_transfers_have_their_peer_and_direction(tmp_path):
    for rank in (0, 1):
        profile = Profile(rank, metadata=sizes(2))
        profile.step(7, 0, 10_000)
        profile.range("forward_step", 1000, 2000)
        way = "send" if rank == 0 else "receive"
        profile.operation(f"hcom_{way}__046_0_1", 2000, 2500, (rank, 1 - rank))
        profile.operation("hcom_allReduce__046_1_1", 3000, 3500, None)
        profile.operation("hcom_batchSendRecv__046_2_1", 4000, 4500, None)
        profile.write(tmp_path)

    comm = sources.load(tmp_path).tasks.filter(lane="comm")

    assert comm.select("rank", "kind", "peer", "step").rows() == [
        (0, "send_forward", 1, 7),
        (0, "collective", None, 7),
        (0, "other", None, 7),
        (1, "recv_forward", 0, 7),
        (1, "collective", None, 7),
        (1, "other", None, 7),
    ]


def test_ranks_have_their_place_with_context_parallelism(tmp_path):
    """The original's rank // (tp * dp) leaves the context out."""
    for rank in (0, 3, 4, 7):
        profile = Profile(rank, metadata=sizes(2, tensor=2, data=1, context=2))
        profile.range("forward_step", 1000, 2000)
        profile.write(tmp_path)

    ranks = sources.load(tmp_path).ranks

    assert ranks["stages"].to_list() == [[0], [0], [1], [1]]
    assert ranks.select("tp", "cp", "dp").rows() == [(0, 0, 0), (1, 1, 0), (0, 0, 0), (1, 1, 0)]


def test_a_profile_given_as_two_ranks_is_refused(tmp_path):
    profile = Profile(3)
    profile.range("forward_step", 1000, 2000)
    folder = profile.write(tmp_path).parents[1]
    copied = tmp_path / f"{folder.name[:-9]}x_ascend_pt"
    shutil.copytree(folder, copied)
    [database] = copied.rglob("ascend_pytorch_profiler_3.db")
    database.rename(database.with_name("ascend_pytorch_profiler_4.db"))
    with pytest.raises(
        SourceError, match=r"profiler_4\.db: is a copy of .*profiler_3\.db.*give only"
    ):
        sources.load(tmp_path)


def test_of_two_profiles_of_a_rank_the_newer_is_read(tmp_path):
    for stamp, kind in (
        ("20250101000000000", "backward_step"),
        ("20250202000000000", "forward_step"),
    ):
        profile = Profile(3, stamp=stamp)
        profile.range(kind, 1000, 2000)
        profile.write(tmp_path)

    timeline = sources.load(tmp_path)

    assert timeline.tasks["kind"].to_list() == ["forward"]
    assert "are of the same rank" in codes(timeline)["older-profile"].message


def test_hosts_are_told_apart(tmp_path):
    for rank in (0, 1):
        profile = Profile(rank, host=f"node{rank}")
        profile.range("forward_step", 1000, 2000)
        profile.write(tmp_path)

    timeline = sources.load(tmp_path)

    assert timeline.ranks["host"].to_list() == ["node0", "node1"]
    assert "clocks-unchecked" in codes(timeline)


def test_ranks_without_a_profile_are_named(tmp_path):
    for rank in (0, 2):
        profile = Profile(rank, metadata=sizes(4))
        profile.range("forward_step", 1000, 2000)
        profile.write(tmp_path)

    assert (
        "2 of 4 ranks have no trace here (1, 3)"
        in codes(sources.load(tmp_path))["missing-ranks"].message
    )


def test_mindspore_and_single_databases_are_read(tmp_path):
    profile = Profile(2)
    profile.range("forward_step", 1000, 2000)
    path = profile.write(tmp_path, "ms")

    assert sources.load(tmp_path).ranks["rank"].to_list() == [2]
    assert sources.load(path).tasks.equals(sources.load(tmp_path).tasks)


@pytest.mark.parametrize("table", ["STEP_TIME", "COMMUNICATION_OP", "COMMUNICATION_TASK_INFO"])
def test_tables_that_a_profile_level_leaves_out_are_not_needed(tmp_path, table):
    profile = Profile(dropped=(table,))
    profile.range("forward_step", 1000, 2000)
    profile.operation("hcom_send__046_0_1", 2000, 2500, (0, 1))
    profile.write(tmp_path)

    assert sources.load(tmp_path).tasks.filter(lane="compute").height == 1


@pytest.mark.parametrize("table", ["MSTX_EVENTS", "TASK"])
def test_a_profile_without_marks_says_how_to_get_them(tmp_path, table):
    profile = Profile(dropped=(table,))
    profile.range("forward_step", 1000, 2000)
    profile.write(tmp_path)

    timeline = sources.load(tmp_path)

    assert not len(timeline)
    assert timeline.run.warnings


def test_marks_that_nothing_on_the_device_is_connected_to_are_as_good_as_none(tmp_path):
    profile = Profile()
    profile.range("forward_step", 1000, 2000)
    path = profile.write(tmp_path)
    with closing(sqlite3.connect(path)) as tables, tables:
        tables.execute("UPDATE MSTX_EVENTS SET connectionId = NULL")

    timeline = sources.load(tmp_path)  # of which a warning would be an error here

    assert not len(timeline)
    assert timeline.run.warnings


def test_impossible_times_are_dropped(tmp_path):
    profile = Profile()
    for start, end in ((1000, 2000), (3000, 2500), (10**17, 10**17 + 5)):
        profile.range("forward_step", start, end)
    profile.write(tmp_path)

    timeline = sources.load(tmp_path)

    assert len(timeline) == 1
    assert codes(timeline)["impossible-times"].lost == 2


def test_a_folder_without_database_is_refused(tmp_path):
    (tmp_path / "x_1_20250101000000000_ascend_pt").mkdir()
    with pytest.raises(SourceError, match="holds no profiler database; profile with export_type"):
        sources.load(tmp_path)


@given(at=st.integers(0, 40_000), byte=st.integers(0, 255), cut=st.booleans())
def test_damage_is_refused_or_read_but_never_a_traceback(tmp_path_factory, at, byte, cut):
    folder = tmp_path_factory.mktemp("damaged")
    profile = Profile(metadata=sizes(1))
    profile.step(7, 0, 10_000)
    profile.range("forward_step", 1000, 2000)
    profile.operation("hcom_send__046_0_1", 2000, 2500, (0, 1))
    path = profile.write(folder)
    data = bytearray(path.read_bytes())
    at %= len(data)
    if cut:
        data = data[:at]
    else:
        data[at] = byte
    path.write_bytes(data)
    try:
        timeline = sources.load(folder)
    except BubblescopeError as error:
        message = str(error)
    else:
        message = ""
        assert Report.of(timeline).to_dict()
    assert "\n" not in message


# The chart.


def run(*arguments):
    given_arguments = ["ascend", "pp-chart", *map(str, arguments)]
    return CliRunner().invoke(cli, given_arguments, catch_exceptions=False)


def table(path, query="SELECT name, startNs, endNs, type FROM StepTaskInfo"):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def reference(kind, name, rank):
    with (DATA / "peer_output" / kind / f"{name}_rank{rank}.csv").open() as file:
        return [tuple(row) for row in csv.reader(file)][1:]


@real
@pytest.mark.parametrize("kind", ["1f1b", "dualpipev"])
def test_the_chart_equals_that_of_ascends_own_tool(tmp_path, kind):
    assert run("-d", DATA / kind, "-o", tmp_path / "out").exit_code == 0
    for rank in range(4):
        [path] = (tmp_path / "out").rglob(f"ascend_pytorch_profiler_{rank}.db")
        rows = [tuple(map(str, row)) for row in table(path)]
        assert rows == reference(kind, "StepTaskInfo", rank)
        # Of transfers that begin in the same nanosecond the original sorts either one first.
        found = table(path, "SELECT startNs, endNs, opConnectionId FROM COMMUNICATION_OP")
        expected = [row[1:] for row in reference(kind, "COMMUNICATION_OP", rank)]
        assert sorted(tuple(map(str, row)) for row in found) == sorted(expected)
        [(schema,)] = table(path, "SELECT sql FROM sqlite_master WHERE name = 'StepTaskInfo'")
        assert '("name" TEXT, "startNs" INTEGER, "endNs" INTEGER, "type" INTEGER)' in schema


def linked_pair(folder):
    for rank in (0, 1):
        profile = Profile(rank, metadata=sizes(2))
        profile.step(7, 0, 10_000)
        profile.range("forward_step", 1000, 2000)
        profile.range("backward_step", 3000, 4000)
        profile.range("WeightGradStore.pop", 5000, 6000)
        way, back = ("send", "receive") if rank == 0 else ("receive", "send")
        for number, at in ((0, 2000), (1, 2200)):
            profile.operation(f"hcom_{way}__046_{number}_1", at, at + 50, (rank, 1 - rank))
        profile.operation(f"hcom_{back}__046_2_1", 2400, 2500, (rank, 1 - rank))
        profile.operation("hcom_batchSendRecv__046_3_1", 2600, 2700, None)
        profile.write(folder)


def databases(folder):
    return sorted(folder.rglob("ascend_pytorch_profiler_*.db"))


def test_both_ends_of_a_transfer_have_the_same_link(tmp_path):
    linked_pair(tmp_path / "in")

    result = run("-d", tmp_path / "in", "-o", tmp_path / "out")

    query = "SELECT opConnectionId FROM COMMUNICATION_OP ORDER BY startNs"
    for path in databases(tmp_path / "out"):
        links = [link for (link,) in table(path, query)]
        assert links == ["046_0_1_0", "046_0_1_1", "046_1_0_0", None]
    assert "batched sends and receives" in result.stderr


def test_the_chart_goes_into_a_copy_and_leaves_the_profile_as_it_was(tmp_path):
    linked_pair(tmp_path / "in")
    before = {path: path.read_bytes() for path in databases(tmp_path / "in")}

    assert run("-d", tmp_path / "in").exit_code == 0

    assert {path: path.read_bytes() for path in databases(tmp_path / "in")} == before
    [first, _] = databases(tmp_path / "in_pp_chart")
    assert [row[0] for row in table(first)] == ["FP", "BP", "BP"]
    assert (first.parent / "analysis.db").exists()
    assert run("-d", tmp_path / "in").exit_code == 2  # never over an older chart


def test_the_chart_may_go_into_the_profile_itself_again_and_again(tmp_path):
    linked_pair(tmp_path)
    for _ in range(2):
        assert run("-d", tmp_path, "--in-place").exit_code == 0
        for path in databases(tmp_path):
            assert [row[3] for row in table(path)] == [0, 1, 1]


def test_each_rank_gets_its_own_rows_whatever_the_order_of_the_folders(tmp_path):
    for rank, name in ((2, "a"), (10, "b"), (0, "c")):
        profile = Profile(rank)
        profile.range("forward_step", 1000 * (rank + 1), 1000 * (rank + 1) + 500)
        profile.write(tmp_path / name)

    run("-d", tmp_path, "--in-place")

    for rank in (0, 2, 10):
        [path] = tmp_path.rglob(f"ascend_pytorch_profiler_{rank}.db")
        assert table(path) == [("FP", BASE + 1000 * (rank + 1), BASE + 1000 * rank + 1500, 0)]


def test_details_tell_micro_batches_and_weight_gradients(tmp_path):
    linked_pair(tmp_path)

    run("-d", tmp_path, "--in-place", "--detailed")

    rows = [(name, kind) for name, _, _, kind in table(databases(tmp_path)[0])]
    assert rows == [("F0", 0), ("B0", 1), ("W0", 2)]


def test_uncertain_rows_of_a_dualpipev_are_named_by_their_kind(tmp_path):
    dualpipe(tmp_path, lost=(0,))

    run("-d", tmp_path, "--in-place")

    rows = table(databases(tmp_path)[0])
    assert (rows[0][0], rows[0][3]) == ("F", len(mindspeed.PHASES))
    assert rows[-1][0] == "4B"


def test_if_one_database_cannot_be_written_none_is(tmp_path):
    linked_pair(tmp_path)
    first, second = databases(tmp_path)
    before = first.read_bytes()
    with closing(sqlite3.connect(second)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(SourceError, match="could not be written, and is as it was"):
            run("-d", tmp_path, "--in-place")
    assert first.read_bytes() == before
    assert sources.load(tmp_path).tasks.height


def test_a_failed_copy_leaves_nothing_behind(tmp_path, monkeypatch):
    linked_pair(tmp_path / "in")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", fail)
    with pytest.raises(OSError, match="No space"):
        run("-d", tmp_path / "in", "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rows_still_in_a_write_ahead_log_are_read_and_copied(tmp_path):
    linked_pair(tmp_path / "in")
    path = databases(tmp_path / "in")[0]
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("DELETE FROM COMMUNICATION_OP WHERE opId = 4")
        writer.commit()
        assert run("-d", tmp_path / "in", "-o", tmp_path / "out").exit_code == 0
    copy = databases(tmp_path / "out")[0]
    assert table(copy, "SELECT count(*) FROM COMMUNICATION_OP") == [(3,)]


def test_a_profile_without_pipeline_is_code_3(tmp_path):
    Profile().write(tmp_path)
    assert run("-d", tmp_path).exit_code == 3
