"""Kernels of traces: made ones whose every kernel is known, and figures of real ones."""

from __future__ import annotations

import json

import polars as pl
import pytest
from click.testing import CliRunner

import bubblescope
import kineto_maker
import nsight_maker
import rocpd_maker
from bubblescope import sources
from bubblescope.analysis.kernels import Kernels
from bubblescope.analysis.report import Report
from bubblescope.cli import cli
from kineto_maker import AUTOGRAD, BASE, Trace
from nsight_maker import UTC, Export, Style
from places import ROOT, SHARED

KINETO = SHARED / "kineto"
NSIGHT = SHARED / "nsight"
real = pytest.mark.skipif(not KINETO.exists(), reason="the real traces are not here")
GEMM = "void cutlass::Kernel<cutlass_80_gemm_64x64>(cutlass_80_gemm_64x64::Params)"
SHORT = "Kernel<cutlass_80_gemm_64x64>"


def kernels_of(path):
    return sources.load(path, activities=True).activities


def test_every_kernel_of_a_pytorch_trace(tmp_path):
    trace = Trace(rank=1, device=1)
    trace.range("ProfilerStep#4", 0, 900)
    trace.range("PP:1F0", 100, 200)
    trace.kernel(5000, 5100, at=110, name=GEMM)
    trace.kernel(5100, 5200, at=120, name="Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy")
    trace.kernel(5200, 5210, at=130, name="Memset (Device)", cat="gpu_memset")
    trace.range("PP:1B0", 300, 400)
    trace.kernel(6000, 6200, at=310, tid=AUTOGRAD, name="ncclDevKernel_AllReduce_Sum_f32(int)")
    trace.kernel(6000, 6100, at=320, tid=AUTOGRAD, name="gelu")
    trace.kernel(7000, 7100, at=500, name="gelu")
    trace.kernel(8000, 8100, at=None, name="gelu")

    found = kernels_of(trace.write(tmp_path / "t.json"))

    said = ["step", "use", "name", "kind", "stage", "microbatch", "start_ns", "end_ns", "launch_ns"]
    shifted = [pl.col("start_ns", "end_ns", "launch_ns") - BASE]
    assert found.with_columns(shifted).select(said).rows() == [
        (4, "compute", SHORT, "forward", 1, 0, 5000, 5100, 110),
        (4, "copy", "Memcpy HtoD pinned", "forward", 1, 0, 5100, 5200, 120),
        (4, "compute", "Memset", "forward", 1, 0, 5200, 5210, 130),
        (4, "compute", "gelu", "backward", 1, 0, 6000, 6100, 320),
        (4, "communication", "ncclDevKernel_AllReduce_Sum_f32", "backward", 1, 0, 6000, 6200, 310),
        (4, "compute", "gelu", None, None, None, 7000, 7100, 500),
        (4, "compute", "gelu", None, None, None, 8000, 8100, None),
    ]
    assert found["full"][:2].to_list() == [GEMM, "Memcpy HtoD (Pinned -> Device)"]
    assert set(found.select("rank", "device", "stream").rows()) == {(1, 1, 7)}
    assert found["module"].null_count() == found.height


def test_nothing_is_kept_that_was_not_asked_for(tmp_path):
    trace = Trace()
    trace.range("PP:0F0", 100, 200)
    trace.kernel(5000, 5100, at=110)
    path = trace.write(tmp_path / "t.json")
    without, with_kernels = sources.load(path), sources.load(path, activities=True)
    assert (without.activities.height, with_kernels.activities.height) == (0, 1)
    assert without.tasks.equals(with_kernels.tasks)
    assert without.budget.equals(with_kernels.budget)


def test_the_innermost_module_and_that_of_the_forward_of_a_backward(tmp_path):
    trace = Trace()
    trace.event("python_function", "nn.Module: Block_0", 100, 190)
    trace.event("python_function", "nn.Module: Linear_0", 120, 150)
    trace.event("python_function", "torch/nn/functional.py(1): linear", 121, 149)
    trace.operator("aten::linear", 122, 148, sequence=5)
    trace.operator("aten::gelu", 160, 170, sequence=6)
    trace.kernel(1000, 1100, at=125)  # in Linear_0
    trace.kernel(1100, 1200, at=165)  # in Block_0
    trace.kernel(1200, 1300, at=195)  # in none
    engine = "autograd::engine::evaluate_function: "
    trace.operator(f"{engine}GeluBackward0", 200, 220, AUTOGRAD, sequence=6)
    trace.operator("GeluBackward0", 205, 215, AUTOGRAD, sequence=6)
    trace.kernel(1300, 1400, at=210, tid=AUTOGRAD)
    trace.operator(f"{engine}AddmmBackward0", 230, 240, AUTOGRAD, sequence=5)
    trace.kernel(1400, 1500, at=235, tid=AUTOGRAD)
    trace.operator(f"{engine}UnknownBackward0", 250, 260, AUTOGRAD, sequence=9)
    trace.kernel(1500, 1600, at=255, tid=AUTOGRAD)
    assert kernels_of(trace.write(tmp_path / "t.json"))["module"].to_list() == [
        "Linear_0",
        "Block_0",
        None,
        "Block_0",
        "Linear_0",
        None,
    ]


def test_a_method_is_one_whichever_object_it_is_of(tmp_path):
    """Addresses differ from call to call and from rank to rank: nothing could be summed up by them."""
    trace = Trace()
    trace.kernel(10_000, 20_000, at=1_000)
    for turn, address in enumerate(("0x7f1bafe38dd0", "0x7f1bafe38e40"), 1):
        begin = turn * 100_000
        method = f"<built-in method tolist of Tensor object at {address}>"
        trace.event("python_function", method, begin - 70_000, begin - 1_000)
        trace.kernel(begin, begin + 10_000, at=begin - 500)
    device = Report.of(sources.load(trace.write(tmp_path / "t.json"))).to_dict()["device"]
    [method] = [row for row in device["details"] if row["class"] == "host_python"]
    assert method["detail"] == "<built-in method tolist of Tensor object>"


def test_sequence_numbers_of_several_threads_tell_no_module(tmp_path):
    trace = Trace()
    for thread in (kineto_maker.MAIN, 5):
        trace.event("python_function", f"nn.Module: Of_{thread}", 100, 190, thread)
        trace.operator("aten::gelu", 160, 170, thread, sequence=6)
    trace.operator("autograd::engine::evaluate_function: B", 200, 220, AUTOGRAD, sequence=6)
    trace.kernel(1300, 1400, at=210, tid=AUTOGRAD)
    assert kernels_of(trace.write(tmp_path / "t.json"))["module"].to_list() == [None]


def test_every_kernel_of_an_nsight_export(tmp_path):
    export = Export()
    process = export.process(2000, 3)
    process.range("F0.0.0", 100, 200)
    process.range("FSDP::pre_forward (layers.0), op_id = 1", 105, 110)
    process.range("FSDP::post_forward (layers.0), op_id = 2", 150, 160)
    process.kernel(5000, 5100, at=120, name=GEMM)
    process.work("MEMCPY", 5100, 5200, at=130, copyKind=1)
    process.work("MEMSET", 5200, 5210, at=170)
    process.range("B0.0.0", 300, 400)
    process.range("aten::mul, seq = 7, op_id = 3", 140, 145)
    process.range(
        "autograd::engine::evaluate_function: MulBackward0, seq = 7, op_id = 4", 310, 330, thread=1
    )
    process.kernel(6000, 6100, at=320, thread=1, name="gelu")
    process.kernel(6100, 6200, at=340, thread=1, name="ncclDevKernel_AllReduce_Sum_f32")
    process.work("GRAPH_TRACE", 7000, 7100, at=500)
    process.kernel(8000, 8100, name="gelu")

    found = kernels_of(export.write(tmp_path / "e.sqlite"))

    said = ["use", "name", "module", "kind", "microbatch", "start_ns", "end_ns", "launch_ns"]
    shifted = [pl.col("start_ns", "end_ns", "launch_ns") - UTC]
    assert found.with_columns(shifted).select(said).rows() == [
        ("compute", SHORT, "layers.0", "forward", 0, 5000, 5100, 120),
        ("copy", "Memcpy HtoD", "layers.0", "forward", 0, 5100, 5200, 130),
        ("compute", "Memset", None, "forward", 0, 5200, 5210, 170),
        ("compute", "gelu", "layers.0", "backward", 0, 6000, 6100, 320),
        (
            "communication",
            "ncclDevKernel_AllReduce_Sum_f32",
            None,
            "backward",
            0,
            6100,
            6200,
            340,
        ),
        ("compute", "CUDA graph", None, None, None, 7000, 7100, 500),
        ("compute", "gelu", None, None, None, 8000, 8100, None),
    ]
    assert found["full"][0] == GEMM
    assert set(found.select("rank", "device", "stream").rows()) == {(0, 3, 7)}


@pytest.mark.parametrize("version", ["3.0.0", "4.0.0"])
def test_every_kernel_of_a_rocpd_file(tmp_path, version):
    process = rocpd_maker.Process(2000, 1, version=version)
    process.range("F0.0.0", 100, 200)
    process.kernel(5000, 5100, at=110, name="void ck::gemm<(int)4>")
    process.copy(5100, 5200, at=120, to=1)
    process.kernel(6000, 6100, at=500, name="gelu")

    found = kernels_of(process.write(tmp_path / "p.db"))

    assert found.select("use", "name", "kind", "start_ns", "launch_ns").rows() == [
        ("compute", "gemm", "forward", 5000, 110),
        ("copy", "Memcpy HtoD", "forward", 5100, 120),
        ("compute", "gelu", None, 6000, 500),
    ]
    assert found["full"][0].startswith("void ck::gemm<(int)4>(")
    streams = [0, None, 0] if version.startswith("3") else [None] * 3
    assert found["stream"].to_list() == streams


@pytest.mark.parametrize("maker", [kineto_maker, nsight_maker])
def test_a_pipelines_kernels_are_those_of_its_tasks(tmp_path, maker):
    style = Style(schedule="zb-h1", stages=2, microbatches=4)
    parts, truth, _ = maker.pipeline(style)
    for index, part in enumerate(parts):
        ending = "json" if maker is kineto_maker else "sqlite"
        part.write(tmp_path / f"rank{index}.{ending}")
    run = bubblescope.load(tmp_path, activities=True)
    found = run.timeline.activities
    assert found.height == style.kernels * truth.height
    table = run.kernels(by=["stage", "kind"]).table.sort("stage", "kind")
    tasks = run.tasks.filter(lane="compute")
    counted = tasks.group_by("stage", "kind").agg(
        count=pl.len() * style.kernels, total_ns=pl.col("busy_ns").sum()
    )
    assert table.select("stage", "kind", "count", "total_ns").rows() == (
        counted.sort("stage", "kind").with_columns(pl.col("count").cast(pl.UInt32)).rows()
    )
    work = table.filter(pl.col("kind") != "optimizer")
    assert work["microbatch_spread"].to_list() == pytest.approx([0] * work.height, abs=1e-9)
    assert found.drop_nulls("microbatch")["step"].null_count() == 0


def made(folder, *, length=100):
    """Write a run of two replicas, of which the second computes longer."""
    folder.mkdir()
    for rank in range(2):
        trace = Trace(rank=rank, device=rank)
        trace.range("ProfilerStep#0", 0, 900)
        trace.range("## forward ##", 100, 200)
        trace.kernel(5000, 5000 + length + 50 * rank, at=110, name="gemm")
        trace.kernel(6000, 6100, at=120, name="ncclDevKernel_AllReduce_Sum_f32")
        trace.write(folder / f"rank{rank}.json")
    return folder


def invoked(*words):
    return CliRunner().invoke(cli, ["kernels", *map(str, words)])


def test_the_command_says_what_the_function_says(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    one, other = made(tmp_path / "one"), made(tmp_path / "other", length=300)
    done = invoked(one, "-q")
    assert done.exit_code == 0, done.output
    assert done.stdout.split()[:20] == str(bubblescope.kernels(one)).split()[:20]
    assert "Rank 1 against rank 0" in done.stdout
    said = json.loads(invoked(one, "--json", "--by", "name").stdout)
    assert [(row["name"], row["count"]) for row in said["rows"]] == [
        ("gemm", 2),
        ("ncclDevKernel_AllReduce_Sum_f32", 2),
    ]
    [rank] = said["ranks"]
    parts = [effect for effect in rank["effects"] if effect["use"] == "compute"]
    assert rank["difference_ns"] == (
        sum(effect["count_ns"] + effect["length_ns"] for effect in parts)
        + rank["overlap_ns"]
        + rank["communication_ns"]
        + rank["copy_ns"]
        + sum(one["idle_ns"] for one in rank["idle"])
    )
    beside = json.loads(invoked(one, "--like", other, "--json").stdout)
    assert [(row["name"], row["difference_ns"]) for row in beside["changes"]] == [
        ("gemm", 200),
        ("ncclDevKernel_AllReduce_Sum_f32", 0),
    ]
    assert beside["labels"] == [str(one), str(other)]
    assert "Two runs side by side" in invoked(one, "--like", other).stdout


def test_the_command_refuses_what_it_cannot_answer(tmp_path):
    done = invoked(ROOT / "examples" / "demo" / "1f1b", "-q")
    assert done.exit_code == 3
    assert "holds no kernels" in done.stderr
    done = invoked(made(tmp_path / "one"), "--by", "colour")
    assert done.exit_code == 2
    assert "'colour' is none of stage, kind, module, use, rank, name, full" in done.stderr


def test_a_run_that_was_read_without_kernels_is_read_once_more(tmp_path):
    run = bubblescope.load(made(tmp_path / "one"))
    assert not run.timeline.activities.height
    assert run.kernels().table["count"].sum() == 4
    assert run.kernels(like=run).changes["difference_ns"].to_list() == [0, 0]
    with pytest.raises(bubblescope.TimelineError, match="they are only if asked for"):
        run.slice(ranks=[0]).kernels()
    both = bubblescope.load(tmp_path / "one", activities=True)
    assert both.slice(ranks=[0]).kernels().table["count"].sum() == 2


@real
def test_a_slow_rank_of_a_recommendation_model():
    """Embeddings of rank 1 are larger; it comes late to the exchange, and so waits least in it."""
    timeline = sources.load(str(KINETO / "real" / "trace_filter*"), activities=True)
    [one] = Kernels.of(timeline).against
    assert (one.rank, one.peer, one.steps) == (1, 0, (551, 552))
    effects = {effect.name: effect for effect in one.effects}
    backward = [
        effect
        for name, effect in effects.items()
        if name.startswith("split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel")
    ]
    assert sum(effect.length_ns for effect in backward) == 53_652_000
    assert [effect.count_ns for effect in backward] == [0, 0]
    assert sum(effect.count for effect in backward) == 4
    copies = effects["Memcpy HtoD pinned"]
    assert (copies.peer_total_ns, copies.total_ns) == (812_000, 12_082_000)
    exchange = effects["ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"]
    assert (exchange.count_ns, exchange.length_ns) == (0, -17_146_000)
    compute = [effect for effect in one.effects if effect.use == "compute"]
    assert one.difference_ns == (
        sum(effect.count_ns + effect.length_ns for effect in compute)
        + one.overlap_ns
        + one.communication_ns
        + one.copy_ns
        + sum(one.idle.values())
    )


@real
@pytest.mark.parametrize(
    ("name", "shares", "outside"),
    [
        ("nccl_parser_config_nccl_data.json.gz", (24.4, 74.3, 1.3), 0.96),
        (
            "ns_resolution_trace_rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
            (32.4, 66.4, 1.2),
            0.59,
        ),
    ],
)
def test_shares_of_phases(name, shares, outside):
    """Golden shares take for a backward what autograd's engine launched.

    The trace's own range `## backward ##` also holds the loss and what DDP copies after the engine is
    done (`copy_bucket_to_grad`): that share is `outside`.
    """
    table = Kernels.of(sources.load(KINETO / "real" / name, activities=True), by=["kind"]).table
    share = {kind: 100 * part for kind, part in table.select("kind", "share").iter_rows()}
    assert share["forward"] + outside == pytest.approx(shares[0], abs=0.06)
    assert share["backward"] - outside == pytest.approx(shares[1], abs=0.06)
    assert share["optimizer"] == pytest.approx(shares[2], abs=0.06)


@real
@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("no_ranges/tl_b200_eager.json.gz", 99.7),
        ("no_ranges/tl_sglang_decode.json.gz", 0.6),
    ],
)
def test_share_of_time_under_a_module(name, share):
    found = kernels_of(KINETO / name).with_columns(length=pl.col("end_ns") - pl.col("start_ns"))
    within = found.drop_nulls("module")["length"].sum() / found["length"].sum()
    assert 100 * within == pytest.approx(share, abs=0.06)


@real
def test_layers_of_fsdp_need_no_stack():
    found = kernels_of(NSIGHT / "real" / "h100_2gpu_1s.sqlite")
    assert {"shared", "encoder.block.14.layer.1"} < set(found["module"].drop_nulls())
    assert found.drop_nulls("launch_ns")["module"].null_count() < found.height // 5
