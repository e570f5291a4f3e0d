"""Kernels by stage, kind and name, and ranks against their peers, of tables with known answers."""

from __future__ import annotations

import io
import json
import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import bubblescope
from bubblescope import Trace
from bubblescope.analysis.kernels import BY, SCHEMA, Effect
from bubblescope.model.budget import Use
from bubblescope.model.errors import TimelineError
from bubblescope.model.timeline import Timeline
from bubblescope.names.kernel_names import short_name
from bubblescope.names.module_ranges import ModuleRange, module_range
from bubblescope.render.text.kernels import Kernels
from synthetic import one_f_one_b

STEP = 1000


def run(ranks, *, steps=1, stages=None):
    """Return a run of one device a rank, from rank -> what it ran in each step.

    Of each: name, use, length, and what more is known. They run one after the other, and what is left
    of a step is idle after a late launch.
    """
    rows, spent = [], []
    for rank, ran in ranks.items():
        for step in range(steps):
            at = step * STEP
            place = {"rank": rank, "device": 0, "step": step}
            for name, use, length, *more in ran:
                times = {"start_ns": at, "end_ns": at + length}
                said = {"name": name, "full": name, "use": use}
                rows.append({**place, **said, **times, **(more[0] if more else {})})
                spent.append({**place, **times, "use": use, "spent_ns": length})
                at += length
            end = (step + 1) * STEP
            idle = {"start_ns": at, "end_ns": end, "use": Use.HOST_OPERATOR.value}
            spent.append({**place, **idle, "spent_ns": end - at})
    held = {"rank": list(ranks), "host": ["node0"] * len(ranks)}
    if stages is not None:
        held["stages"] = [[stage] for stage in stages]
    nothing = one_f_one_b().tasks.clear()
    return Timeline(
        nothing,
        pl.DataFrame(held, schema_overrides={"rank": pl.Int32}),
        activities=pl.DataFrame(rows, infer_schema_length=None),
        budget=pl.DataFrame(spent),
    )


def test_counts_totals_shares_and_lengths():
    lengths = [10, 20, 30, 40]
    ran = [("gemm", "compute", length, {"kind": "forward"}) for length in lengths]
    found = Kernels.of(run({0: [*ran, ("gelu", "compute", 100, {"kind": "backward"})]}))
    assert found.table.drop("microbatch_spread", "rank_spread", "share").rows() == [
        # the 95th percentile lies 0.85 of the way from 30 to 40
        (None, "forward", "gemm", 4, 100, 25, 25, 38),
        (None, "backward", "gelu", 1, 100, 100, 100, 100),
    ]
    assert found.table["share"].to_list() == [0.5, 0.5]
    assert (found.total_ns, found.device_ns) == (200, STEP)


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        (["kind"], [("forward", 3), ("backward", 1)]),
        (["name"], [("gemm", 3), ("gelu", 1)]),
        (["module"], [("layers.0", 2), (None, 1), ("layers.1", 1)]),
        (["stage", "use"], [(0, "compute", 3), (1, "communication", 1)]),
    ],
)
def test_rows_are_told_apart_by_what_is_asked_for(by, groups):
    places = [
        ("gemm", "compute", 50, {"kind": "forward", "module": "layers.0", "stage": 0}),
        ("gemm", "compute", 40, {"kind": "backward", "module": None, "stage": 0}),
        ("gelu", "communication", 20, {"kind": "forward", "module": "layers.1", "stage": 1}),
        ("gemm", "compute", 10, {"kind": "forward", "module": "layers.0", "stage": 0}),
    ]
    found = Kernels.of(run({0: places}), by=by)
    assert found.table.select(*by, "count").rows() == groups


def test_spreads_are_deviations_over_means():
    def of(microbatch, length):
        return ("gemm", "compute", length, {"kind": "forward", "microbatch": microbatch})

    # Micro-batches take 30 and 50 on rank 0, 70 and 90 on rank 1: a deviation of 10 each.
    found = Kernels.of(run({0: [of(0, 10), of(0, 20), of(1, 50)], 1: [of(0, 70), of(1, 90)]}))
    [row] = found.table.to_dicts()
    assert row["microbatch_spread"] == pytest.approx(10 / 60)
    assert row["rank_spread"] == pytest.approx(40 / 120)
    alone = Kernels.of(run({0: [of(0, 10), of(0, 20)]}))
    assert alone.table.select("microbatch_spread", "rank_spread").row(0) == (None, None)


def test_what_steps_share_is_no_spread_of_ranks():
    twice = run({0: [("gemm", "compute", 10)], 1: [("gemm", "compute", 10)]}, steps=2)
    less = twice.activities.filter(rank=0, step=0)
    other = twice.activities.filter(rank=1)
    both = Timeline(
        twice.tasks, twice.ranks, activities=pl.concat([less, other]), budget=twice.budget
    )
    assert Kernels.of(both).table["rank_spread"].to_list() == [0]


def test_a_slow_rank_is_split_to_the_nanosecond():
    usual = [("gemm", "compute", 100), ("gemm", "compute", 100), ("sum", "communication", 300)]
    slow = [
        *[("gemm", "compute", 150)] * 3,
        ("gelu", "compute", 7),
        ("sum", "communication", 100),
        ("copy", "copy", 11),
    ]
    [one, *others] = Kernels.of(run({0: usual, 1: usual, 2: slow, 3: usual}, steps=2)).against
    assert [(other.rank, other.peer, other.distance_ns) for other in others] == [
        (1, 0, 0),
        (3, 0, 0),
    ]
    assert (one.rank, one.peer, one.steps, one.difference_ns) == (2, 0, (0, 1), 0)
    assert [
        (effect.name, effect.peer_count, effect.count, effect.count_ns, effect.length_ns)
        for effect in one.effects
    ] == [
        ("gemm", 4, 6, 200, 300),
        ("sum", 2, 2, 0, -400),
        ("copy", 0, 2, 22, 0),
        ("gelu", 0, 2, 14, 0),
    ]
    assert (one.compute_ns, one.overlap_ns) == (514, 0)
    assert (one.communication_ns, one.copy_ns) == (-400, 22)
    assert one.idle == {Use.HOST_OPERATOR: -136}


def test_ranks_are_compared_with_those_of_their_stage():
    fast, slow = [("gemm", "compute", 100)], [("gemm", "compute", 400)]
    found = Kernels.of(run({0: fast, 1: slow, 2: fast, 3: slow}, stages=[0, 1, 0, 1])).against
    assert [(one.rank, one.peer, one.stage, one.distance_ns) for one in found] == [
        (2, 0, 0, 0),
        (3, 1, 1, 0),
    ]
    assert Kernels.of(run({0: fast, 1: slow}, stages=[0, 1])).against == ()


def test_without_steps_all_time_counts_and_steps_of_one_rank_do_not():
    timeline = run({0: [("gemm", "compute", 100)], 1: [("gemm", "compute", 150)]}, steps=2)
    tables = {name: getattr(timeline, name) for name in ("activities", "budget")}
    none = {name: table.with_columns(step=None) for name, table in tables.items()}
    [one] = Kernels.of(Timeline(timeline.tasks, timeline.ranks, **none)).against
    assert (one.steps, one.compute_ns) == ((), 100)
    first = (pl.col("rank") == 0) | (pl.col("step") == 1)
    part = {name: table.filter(first) for name, table in tables.items()}
    [one] = Kernels.of(Timeline(timeline.tasks, timeline.ranks, **part)).against
    assert (one.steps, one.compute_ns) == ((1,), 50)


@given(*[st.integers(0, 50)] * 2, *[st.integers(0, 10**12)] * 2)
def test_count_and_length_add_up(count, peer_count, total, peer_total):
    now = (count, total if count else 0)
    was = (peer_count, peer_total if peer_count else 0)
    effect = Effect.of("gemm", "compute", now, was)
    assert effect.count_ns + effect.length_ns == effect.difference_ns == now[1] - was[1]
    if count == peer_count:
        assert effect.count_ns == 0
    elif count and peer_count:
        exact = (count - peer_count) * was[1] / peer_count
        assert math.isclose(effect.count_ns, exact, rel_tol=1e-12, abs_tol=0.51)
    else:
        assert effect.length_ns == 0


def test_two_runs_side_by_side_are_of_a_rank_in_a_step():
    before = run({0: [("gemm", "compute", 100), ("gelu", "compute", 30)]}, steps=2)
    after = run({rank: [("gemm", "compute", 80), ("new", "compute", 5)] for rank in range(2)})
    found = Kernels.of(before, like=after, labels=("old", "young"))
    assert found.by == ("name",)
    assert found.changes.rows() == [
        ("gelu", 1, 0, 30, None, 30, 0, -30),
        ("gemm", 1, 1, 100, 80, 100, 80, -20),
        ("new", 0, 1, None, 5, 0, 5, 5),
    ]
    assert "all together -45 ns" in str(found)
    assert "old" in str(found)


def test_it_has_the_face_of_all_answers(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    timeline = run({0: [("gemm", "compute", 100)], 1: [("gemm", "compute", 150)]})
    found = Trace(timeline).kernels()
    said = json.loads(found.to_json())
    assert said["schema"] == SCHEMA == "bubblescope.kernels/1"
    assert said["by"] == list(BY)
    assert said["changes"] is None
    [rank] = said["ranks"]
    assert (rank["rank"], rank["peer"], rank["compute_ns"]) == (1, 0, 50)
    assert rank["idle"] == [{"class": "host_operator", "idle_ns": -50}]
    assert "\n" not in repr(found)
    assert "Rank 1 against rank 0" in str(found)
    assert "idle: host, in operators" in str(found)
    assert found._repr_html_().startswith("<pre")
    assert str(bubblescope.kernels(Trace(timeline))) == str(found)


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(70, set()), (60, {"p95"}), (54, {"p95", "median"}), (40, {"p95", "median"})],
)
def test_narrow_terminals_leave_out_numbers_and_cut_none(width, left_out):
    console = Console(width=width, file=io.StringIO())
    console.print(Kernels.of(run({0: [("gemm", "compute", 100)]})).shown())
    head, row = console.file.getvalue().partition("Kernels\n")[2].splitlines()[:2]
    assert {"count", "total", "share", "median", "p95", "kernel"} - set(head.split()) == left_out
    assert row.split()[:5] == ["1", "100", "ns", "100.00", "%"]
    assert "gemm" in row


def test_what_cannot_be_asked_is_refused_in_a_sentence():
    with pytest.raises(
        TimelineError, match=r"the kernels of this run were not kept.*activities=True"
    ):
        Trace(one_f_one_b()).kernels()
    with pytest.raises(TimelineError, match="there is no column nmae; kernels can be grouped by"):
        Trace(run({0: [("gemm", "compute", 1)]})).kernels(by=["nmae"])
    with pytest.raises(TimelineError, match="no column is given"):
        Trace(run({0: [("gemm", "compute", 1)]})).kernels(by=[])


def test_activities_are_saved_with_a_run(tmp_path):
    timeline = run({0: [("gemm", "compute", 100, {"kind": "forward", "microbatch": 3})]})
    assert Timeline.load(timeline.save(tmp_path / "run.parquet")) == timeline


ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
    "at::native::(anonymous namespace)::threshold_kernel_impl<float>(at::TensorIteratorBase&, float)"
    "::{lambda(float)#1}>, std::array<char*, 3ul> >(int, at::native::BinaryFunctor<float>)"
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("gemm", "gemm"),
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
        ("ncclDevKernel_AllReduce_Sum_f32(ncclWork*)", "ncclDevKernel_AllReduce_Sum_f32"),
        ("void (anonymous namespace)::store<2048l, (Kind)0>((anonymous namespace)::P)", "store"),
        (
            (
                "std::enable_if<(((8)>(0)))&&vllm::ok<c10::BFloat16>::exists, void>::type "
                "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(long, float)"
            ),
            "fused_add_rms_norm_kernel",
        ),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bEEvPT0_", "add_rmsnorm_quant_kernel"),
        ("Cijk_Ailk_Bljk.kd", "Cijk_Ailk_Bljk"),
        (ELEMENTWISE, "vectorized_elementwise_kernel<threshold_kernel_impl>"),
        ("void cutlass::Kernel2<cutlass_80_gemm_64x64>(P)", "Kernel2<cutlass_80_gemm_64x64>"),
        ("void cut<off", "cut"),
        ("", ""),
        ("(", "("),
    ],
)
def test_short_names(name, short):
    assert short_name(name) == short


@given(st.text("ab <>()::-", max_size=30))
def test_any_name_has_a_short_one(name):
    assert bool(short_name(name)) == bool(name)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nn.Module: Linear_0", ModuleRange("Linear_0")),
        ("FSDP::all_gather (layers.3)", ModuleRange("layers.3")),
        ("FSDP::pre_forward (layers.3)", ModuleRange("layers.3", "begin", "forward")),
        (
            "FSDP::post_forward (blocks.2._checkpoint_wrapped_module), op_id = 990874",
            ModuleRange("blocks.2", "end", "forward"),
        ),
        ("FSDP::post_backward_reduce (norm)", ModuleRange("norm", "end", "backward")),
        ("FSDP::root_pre_forward", None),
        ("LayerNormLinear forward", ModuleRange("LayerNormLinear")),
        ("_Linear_backward", ModuleRange("Linear")),
        ("transformer_engine._LayerNormMLP.forward.gemm", ModuleRange("LayerNormMLP")),
        (
            "megatron.core.transformer.attention.forward.qkv",
            ModuleRange("attention.forward.qkv"),
        ),
        ("megatron.core.pipeline_parallel.schedules.forward_step", None),
        ("## forward ##", None),
        ("aten::linear, seq = 5, op_id = 7", None),
        ("bubblescope:forward step=0 microbatch=1", None),
    ],
)
def test_ranges_about_modules(name, told):
    assert module_range(name) == told


@pytest.mark.parametrize(
    ("gemm", "said"), [(600, "most of it gemm (60.00 %)"), (490, "the largest part gemm (49.00 %)")]
)
def test_only_what_is_more_than_half_is_most(gemm, said):
    names = [(f"small{number}", "compute", 100) for number in range((1000 - gemm) // 100)]
    rest = [("last", "compute", 1000 - gemm - 100 * len(names))]
    ran = run({0: [("gemm", "compute", gemm), *names, *(one for one in rest if one[2])]})
    assert Kernels.of(ran).headline().endswith(said)


def test_a_kernel_that_is_called_other_is_named():
    assert Kernels.of(run({0: [("other", "compute", 900)]})).headline().endswith("other (100.00 %)")
