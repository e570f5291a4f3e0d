"""PyTorch profiler traces: what a timeline says of them, against made truth and real files."""

from __future__ import annotations

import csv
import re

import polars as pl
import pytest

from bubblescope import SourceError, sources
from bubblescope.analysis.rates import bubble_rates
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.sources.kineto import document
from kineto_maker import AUTOGRAD, BASE, Trace, pipeline
from nsight_maker import Style
from places import SHARED

DATA = SHARED / "kineto"
real = pytest.mark.skipif(not DATA.exists(), reason="the real traces are not here")


def write_all(traces, folder, **how):
    for trace in traces:
        trace.write(folder / f"rank{trace.rank}.json", **how)
    return sources.load(folder)


def compute(timeline):
    return timeline.tasks.filter(lane="compute")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("how", [{}, {"tail": True}, {"sort_keys": True}])
def test_every_interval_and_the_bubble_rate_are_exact(tmp_path, schedule, how):
    traces, truth, rate = pipeline(Style(schedule=schedule))

    timeline = write_all(traces, tmp_path, **how)

    found = compute(timeline).select(truth.columns)
    expected = truth.with_columns(pl.col("start_ns", "end_ns") + BASE)
    assert found.sort("rank", "start_ns").rows() == expected.sort("rank", "start_ns").rows()
    assert bubble_rates(timeline).overall.makespan == pytest.approx(rate, abs=1e-12)
    assert timeline.steps == [0, 1, 2]
    assert compute(timeline)["stage"].to_list() == compute(timeline)["rank"].to_list()


@pytest.mark.parametrize("base", [BASE, None])
def test_microseconds_become_nanoseconds_without_loss(tmp_path, base):
    """Since 2024 times count from a base; before that, from 1970, too large for a float64."""
    trace = Trace(base=base)
    odd = 123_456_789_123
    trace.range("PP:0F0", odd, odd + 999)
    trace.kernel(odd + 1, odd + 997, at=odd + 3)

    [task] = sources.load(trace.write(tmp_path / "t.json")).tasks.to_dicts()

    assert (task["start_ns"], task["end_ns"]) == (BASE + odd + 1, BASE + odd + 997)
    assert (task["host_start_ns"], task["host_end_ns"]) == (BASE + odd, BASE + odd + 999)


def test_a_backward_is_what_autograds_thread_launches_meanwhile(tmp_path):
    trace = Trace()
    trace.range("## backward ##", 1000, 2000)
    trace.kernel(5000, 5100, at=1010)
    trace.kernel(6000, 9000, at=1500, tid=AUTOGRAD)
    trace.kernel(9500, 9600, at=2500, tid=AUTOGRAD)

    timeline = sources.load(trace.write(tmp_path / "t.json"))

    [task] = timeline.tasks.to_dicts()
    assert (task["kind"], task["start_ns"], task["end_ns"], task["busy_ns"]) == (
        "backward",
        BASE + 5000,
        BASE + 9000,
        3100,
    )
    [notice] = timeline.run.warnings
    assert (notice.code, notice.lost, notice.total) == ("kernels-outside-ranges", 1, 3)


def test_an_overlapped_pair_is_one_task_with_both_halves(tmp_path):
    trace = Trace()
    trace.range("PP:1F5", 500, 600)
    trace.kernel(4000, 4500, at=510)
    trace.range("PP:(1F6;6B2)OVERLAP_F_B", 1000, 2000)
    trace.kernel(5000, 5100, at=1010)
    trace.range("PP:6W2", 3000, 4000)
    trace.kernel(6000, 6100, at=3010)

    tasks = sources.load(trace.write(tmp_path / "t.json")).tasks

    places = ["stage", "chunk", "microbatch", "pair_stage", "pair_chunk", "pair_microbatch"]
    assert tasks.select("kind", *places).rows() == [
        ("forward", 1, 0, 5, None, None, None),
        ("forward_backward", 1, 0, 6, 6, 1, 2),
        ("backward_weight", 6, 1, 2, None, None, None),
    ]


def test_sends_and_receives_know_their_peer_where_the_trace_does(tmp_path):
    trace = Trace(rank=1)
    trace.range("PP:1F0", 100, 200)
    trace.kernel(5000, 5100, at=110)
    trace.range("PP:1SEND_F0", 300, 400)
    kernel = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    trace.kernel(5100, 5400, at=310, name=kernel, **{"Collective name": "send", "Dst Rank": 2})
    trace.kernel(5500, 5600, at=500, name=kernel, **{"Collective name": "recv", "Src Rank": 0})
    trace.kernel(5700, 5800, at=600, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")

    comm = sources.load(trace.write(tmp_path / "t.json")).tasks.filter(lane="comm")

    assert comm.select("kind", "peer", "start_ns").rows() == [
        ("send_forward", 2, BASE + 5100),
        ("other", 0, BASE + 5500),
        ("collective", None, BASE + 5700),
    ]


def test_without_a_device_operators_are_the_work_and_waiting_is_left_out(tmp_path):
    trace = Trace(header={"deviceProperties": []})
    trace.range("PP:0RECV_F0", 900, 990)
    trace.operator("c10d::recv_", 910, 950)
    trace.range("gloo:recv", 920, 4000)
    trace.range("PP:0F0", 1000, 9000)
    trace.operator("aten::linear", 4500, 6000)
    trace.operator("aten::addmm", 4600, 5900)
    trace.operator("aten::relu", 7000, 8000)

    timeline = sources.load(trace.write(tmp_path / "t.json"))

    columns = ["kind", "start_ns", "end_ns", "busy_ns"]
    assert timeline.tasks.select(columns).rows() == [
        ("forward", BASE + 4500, BASE + 8000, None),  # no kernels are known to have run
        ("recv_forward", BASE + 920, BASE + 4000, None),
    ]
    assert timeline.ranks["device"].to_list() == [None]


def unnamed(rank, stages=2, microbatches=3):
    """A 1F1B step as torch's Schedule1F1B leaves it: operators and transfers, no names."""
    trace = Trace(rank=rank, header={"deviceProperties": []})
    clock, sequence = 1000 + rank * 400, 10
    truth, graphs = [], []

    def operators(kind):
        nonlocal clock, sequence
        start = clock
        if kind == "forward":
            graphs.append(sequence)
        else:
            first = graphs.pop(0)
        for index in range(3):
            if kind == "forward":
                trace.operator("aten::linear", clock, clock + 80, sequence=sequence)
                sequence += 1
            else:
                name = "autograd::engine::evaluate_function: AddmmBackward0"
                trace.operator(name, clock, clock + 80, AUTOGRAD, sequence=first + 2 - index)
                trace.operator("aten::mm", clock + 10, clock + 70, AUTOGRAD)
            clock += 100
        truth.append((kind, BASE + start, BASE + clock - 20))

    def transfer(way):
        nonlocal clock
        trace.operator(f"c10d::{way}", clock, clock + 20, sequence=sequence)
        trace.range(f"gloo:{way.rstrip('_')}", clock + 5, clock + 40)
        clock += 50

    warmup = stages - rank - 1
    order = ["F"] * warmup + ["F", "B"] * (microbatches - warmup) + ["B"] * warmup
    trace.range("ProfilerStep#4", 900, 90_000)
    trace.operator("aten::tensor_split", 905, 950, sequence=sequence)
    for kind in order:
        forward = kind == "F"
        if rank > 0 if forward else rank < stages - 1:
            transfer("recv_")
        operators("forward" if forward else "backward")
        if rank < stages - 1 if forward else rank > 0:
            transfer("send")
    for _ in range(5):  # scaling the gradients is recorded by nobody
        trace.operator("aten::div_", clock, clock + 10, sequence=sequence)
        clock += 20
    trace.range("optimizer", clock, clock + 500)
    trace.operator("aten::add_", clock + 10, clock + 400, sequence=sequence)
    return trace, truth


def test_a_schedule_that_names_nothing_is_told_by_its_operators(tmp_path):
    made = [unnamed(rank) for rank in range(2)]

    timeline = write_all([trace for trace, _ in made], tmp_path)

    for rank, (_, truth) in enumerate(made):
        passes = timeline.tasks.filter(pl.col("kind").is_in(["forward", "backward"]), rank=rank)
        assert passes.select("kind", "start_ns", "end_ns").rows() == truth
        assert sorted(passes.filter(kind="backward")["microbatch"]) == [0, 1, 2]
    ways = timeline.tasks.filter(lane="comm").group_by("rank", "kind").len().sort("rank", "kind")
    assert ways.rows() == [
        (0, "send_forward", 3),
        (0, "recv_backward", 3),
        (1, "recv_forward", 3),
        (1, "send_backward", 3),
    ]
    assert timeline.steps == [4]
    assert "autograd" in timeline.run.inferred["kind"]


def test_without_transfers_nothing_is_taken_for_a_pipeline(tmp_path):
    trace, _ = unnamed(0, stages=1)

    timeline = sources.load(trace.write(tmp_path / "t.json"))

    assert set(timeline.tasks["kind"]) == {"forward", "backward", "other", "optimizer"}
    assert set(timeline.tasks.filter(lane="compute")["stage"]) == {0, None}
    assert recognise(timeline).schedule is None
    assert timeline.steps == [4]


def test_a_job_may_declare_its_schedule(tmp_path):
    """Through `prof.add_metadata_json("pp_info", ...)`, which older versions encode twice."""
    for text in ('{"schedule": "ZB", "n_microbatches": 8}', {"pp_type": "ZB", "microbatch_num": 8}):
        trace = Trace(header={"pp_info": text})
        trace.range("PP:0F0", 100, 200)
        trace.kernel(5000, 5100, at=110)
        run = sources.load(trace.write(tmp_path / "t.json")).run
        assert (run.schedule, run.microbatches) == ("ZB", 8)


def test_a_rank_knows_its_place_in_its_groups(tmp_path):
    groups = [
        {"pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
        {"pg_desc": "DATA_PARALLEL_GROUP", "ranks": [1, 3]},
        {"pg_desc": "mesh_tp", "ranks": [3]},
    ]
    trace = Trace(header={"distributedInfo": {"rank": 3, "pg_config": groups}})
    trace.range("PP:0F0", 100, 200)
    trace.kernel(5000, 5100, at=110)

    [rank] = sources.load(trace.write(tmp_path / "t.json")).ranks.to_dicts()

    assert (rank["rank"], rank["dp"], rank["tp"], rank["cp"]) == (3, 1, 0, None)


@pytest.mark.parametrize(
    ("names", "ranks", "hosts"),
    [
        (["rank3.json", "trace_rank-11.json.gz"], [3, 11], {"unknown"}),
        (["b_20.pt.trace.json", "a_77.1712.pt.trace.json"], [0, 1], {"a", "b"}),
    ],
)
def test_ranks_and_hosts_come_from_file_names_if_need_be(tmp_path, names, ranks, hosts):
    for index, name in enumerate(names):
        trace = Trace(rank=None, host=None)
        trace.range("PP:0F0", 100 + index, 200)
        trace.kernel(5000, 5100, at=110)
        for event in trace.events:
            event["pid"] = 20 if name.startswith("b_") else event["pid"]
        trace.write(tmp_path / name)

    timeline = sources.load(tmp_path)

    assert timeline.ranks["rank"].to_list() == ranks
    assert set(timeline.ranks["host"]) == hosts


def test_a_file_name_that_ends_in_another_number_than_the_process_names_no_host(tmp_path):
    """DLRM's eight ranks are `worker0_step_12.1694128201545.pt.trace.json` and so on."""
    for rank in range(2):
        trace = Trace(rank=rank, host=None)
        trace.range("PP:0F0", 100, 200)
        trace.kernel(5000, 5100, at=110)
        trace.write(tmp_path / f"worker{rank}_step_12.1694.pt.trace.json")
    assert set(sources.load(tmp_path).ranks["host"]) == {"unknown"}


def test_several_windows_of_one_rank_are_one_rank(tmp_path):
    for window in range(2):
        trace = Trace(rank=0)
        at = window * 100_000
        trace.range(f"ProfilerStep#{10 * window}", at, at + 50_000)
        trace.range("PP:0F0", at + 100, at + 200)
        trace.kernel(at + 5000, at + 5100, at=at + 110)
        trace.write(tmp_path / f"window{window}.json")

    timeline = sources.load(tmp_path)

    assert timeline.ranks["rank"].to_list() == [0]
    assert timeline.tasks["step"].to_list() == [0, 10]


def of_process(folder, name, at):
    """Write what a process recorded that states no rank."""
    trace = Trace(rank=None, host=None)
    trace.range("PP:0F0", at, at + 200)
    trace.kernel(at + 5000, at + 5100, at=at + 10)
    trace.write(folder / name)


def test_traces_at_once_of_one_process_number_are_of_two_processes(tmp_path):
    """As of containers, each of which has a process 1."""
    for index, name in enumerate(("a.json", "b.json")):
        of_process(tmp_path, name, 100 + index)
    assert sources.load(tmp_path).ranks["rank"].to_list() == [0, 1]


def test_a_trace_given_twice_is_refused(tmp_path):
    for name in ("a.json", "copy of a.json"):
        of_process(tmp_path, name, 100)
    with pytest.raises(SourceError, match=r"begins with .*a\.json.* give only one of them"):
        sources.load(tmp_path)


def test_windows_of_one_stated_rank_that_overlap_are_refused(tmp_path):
    for index, begin in enumerate((100, 200)):
        trace = Trace(rank=3)
        trace.range("PP:0F0", begin, begin + 200)
        trace.kernel(begin + 5000, begin + 5100, at=begin + 10)
        trace.write(tmp_path / f"window{index}.json")
    with pytest.raises(SourceError, match=r"holds rank 3, and so does .*window0\.json"):
        sources.load(tmp_path)


def test_names_of_ones_own_are_described_by_a_pattern(tmp_path):
    trace = Trace()
    trace.range("stage2/fwd/mb7", 100, 200)
    trace.kernel(5000, 5100, at=110)
    path = trace.write(tmp_path / "t.json")

    [unknown] = sources.load(path).tasks.to_dicts()
    pattern = r"stage(?P<stage>\d+)/(?P<kind>\w+)/mb(?P<mb>\d+)"
    [task] = sources.load(path, names=pattern).tasks.to_dicts()

    assert (unknown["kind"], unknown["name"]) == ("other", "stage2/fwd/mb7")
    assert (task["kind"], task["stage"], task["microbatch"]) == ("forward", 2, 7)


def test_the_categories_of_2021_are_read(tmp_path):
    trace = Trace()
    trace.range("PP:0F0", 100, 200)
    trace.operator("aten::mm", 105, 120)
    trace.kernel(5000, 5100, at=110)
    names = {"user_annotation": "Operator", "cpu_op": "Operator", "cuda_runtime": "Runtime"}
    for event in trace.events:
        event["cat"] = names.get(event["cat"], event["cat"].capitalize())

    [task] = sources.load(trace.write(tmp_path / "t.json")).tasks.to_dicts()

    assert (task["kind"], task["start_ns"]) == ("forward", BASE + 5000)


def test_ranges_are_no_operators_in_the_categories_of_2021(tmp_path):
    """So the host is known to be where it is in a trace of today."""
    trace = Trace()
    trace.range("ProfilerStep#2", 0, 3_000_000)
    trace.range("Optimizer.step#SGD.step", 2_000_000, 2_400_000)
    trace.operator("aten::mm", 200_000, 1_200_000)
    for at in (100, 1_000_000, 1_900_000, 2_300_000):
        trace.kernel(at + 5000, at + 9000, at=at)
    now = sources.load(trace.write(tmp_path / "now.json")).budget
    names = {"user_annotation": "Operator", "cpu_op": "Operator", "cuda_runtime": "Runtime"}
    for event in trace.events:
        event["cat"] = names.get(event["cat"], event["cat"].capitalize())

    then = sources.load(trace.write(tmp_path / "then.json")).budget

    assert {"host_unknown", "host_operator", "host_optimizer"} <= set(now["use"])
    assert then.equals(now)


def test_a_large_file_is_read_in_pieces_and_gives_the_same(tmp_path, monkeypatch):
    traces, _, _ = pipeline(Style(steps=2))
    whole = write_all(traces, tmp_path)
    for piece in (64, 1000, 4096):
        monkeypatch.setattr(document, "_PIECE", piece)
        assert sources.load(tmp_path) == whole


def test_large_runs_are_read_by_processes(tmp_path, monkeypatch):
    from bubblescope.engine import local

    traces, _, _ = pipeline(Style())
    whole = write_all(traces, tmp_path)
    monkeypatch.setattr(local, "_WORTHWHILE_BYTES", 0)
    assert sources.load(tmp_path) == whole


# Real traces.


@real
def test_a_real_backward_takes_its_hundred_milliseconds():
    """Kineto's own gpu_user_annotation says 0.63 ms: it sees the main thread's kernels only."""
    timeline = sources.load(DATA / "real" / "nccl_parser_config_nccl_data.json.gz")

    lengths = timeline.tasks.filter(kind="backward").select(pl.col("end_ns") - pl.col("start_ns"))

    assert [round(ns / 1e6, 1) for (ns,) in lengths.rows()] == [102.4, 100.6, 105.9]
    assert timeline.steps == [4, 5, 6]


@real
def test_kernels_without_a_launch_are_counted():
    timeline = sources.load(DATA / "real" / "mi300_resnet_act_checkpoint.json.gz")

    [notice] = [one for one in timeline.run.warnings if one.code == "kernels-without-launch"]

    assert notice.lost == 963


@real
@pytest.mark.parametrize("schedule", ["1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"])
def test_torch_schedules_run_in_the_order_that_torch_planned(schedule):
    """Against the order that the schedule itself wrote out, rank by rank, in each of three steps."""
    folder = DATA / "torch-2.13-gloo" / schedule
    timeline = sources.load(*folder.glob("rank*.json.gz"))
    with (folder / "schedule_compute_only.csv").open() as file:
        plan = {rank: [cell for cell in row if cell] for rank, row in enumerate(csv.reader(file))}
    if schedule == "1F1B":
        plan = {rank: [_corrected(cell, rank) for cell in row] for rank, row in plan.items()}
    assert timeline.steps == [1, 2, 3]
    for rank, expected in plan.items():
        for step in timeline.steps:
            tasks = compute(timeline).filter(pl.col("kind") != "optimizer", rank=rank, step=step)
            order = [_action(task) for task in tasks.sort("host_start_ns").to_dicts()]
            # The first stage has no input to find a gradient for: its "I" runs nothing.
            planned = [cell for cell in expected if not re.match("0I|.*(SHARD|REDUCE_GRAD)", cell)]
            assert order == planned, (rank, step)


def _corrected(cell, rank):
    """Undo the off-by-one of the plan of torch 2.13's 1F1B on its last rank."""
    stage, kind, number = re.fullmatch(r"(\d+)([A-Z_]+)(\d*)", cell).groups()
    return f"{stage}{kind}{int(number) - 1}" if rank == 3 and kind == "F" else cell


def _action(task):
    letter = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
    if task["kind"] == "forward_backward":
        return (
            f"({task['stage']}F{task['microbatch']};"
            f"{task['pair_stage']}B{task['pair_microbatch']})OVERLAP_F_B"
        )
    return f"{task['stage']}{letter[task['kind']]}{task['microbatch']}"


@real
@pytest.mark.parametrize(
    ("name", "kernels", "version"),
    [
        ("mi300_resnet_act_checkpoint.json.gz", 2995, "1"),
        ("nccl_parser_config_nccl_data.json.gz", 2700, "1"),
        ("ns_resolution_trace_rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", 4350, "1"),
        ("trace_filter_sampled_rank-1.json.gz", 1104, "1"),
    ],
)
def test_real_traces_are_counted_in_full(name, kernels, version):
    run = sources.load(DATA / "real" / name).run

    assert run.contents[0].counts["kernels"] == kernels
    assert run.origins[0].version == version


def test_a_trace_without_annotations_is_read(tmp_path):
    trace = Trace()
    trace.operator("aten::gelu", 100, 200)
    trace.kernel(5000, 5100, at=110, name="ncclDevKernel_AllReduce_Sum_f32")
    timeline = sources.load(trace.write(tmp_path / "t.json"))
    assert (len(timeline), timeline.budget["spent_ns"].to_list()) == (1, [100])
