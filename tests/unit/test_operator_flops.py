"""FLOPs of operators, from the shapes of their arguments."""

from __future__ import annotations

import gzip
import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope import sources
from bubblescope.sources.kineto.operator_flops import (
    _FORMULAS,
    OPERATORS,
    operator_flops,
    sum_flops,
)
from kineto_maker import Trace
from places import SHARED

SDPA = "aten::_scaled_dot_product_"
REAL = SHARED / "kineto" / "no_ranges"


def spread(tensors, count, **flags):
    """Return dims and concrete inputs of `count` arguments: tensors first, then flags by position."""
    dims = [*map(list, tensors)] + [[]] * (count - len(tensors))
    concrete = [""] * count
    for at, text in flags.items():
        concrete[int(at[1:])] = text
    return dims, concrete


@pytest.mark.parametrize(
    ("name", "dims", "flops"),
    [
        ("aten::mm", [[8944, 1024], [1024, 2816]], 2 * 8944 * 1024 * 2816),
        # The bias is no product.
        ("aten::addmm", [[5], [3, 4], [4, 5], [], []], 2 * 3 * 4 * 5),
        ("aten::_addmm_activation", [[5], [3, 4], [4, 5], [], [], []], 2 * 3 * 4 * 5),
        ("aten::bmm", [[7, 3, 4], [7, 4, 5]], 2 * 7 * 3 * 4 * 5),
        ("aten::baddbmm", [[1, 3, 5], [7, 3, 4], [7, 4, 5], [], []], 2 * 7 * 3 * 4 * 5),
        ("aten::_scaled_mm", [[16, 32], [32, 64], [], [], [], [], [], []], 2 * 16 * 32 * 64),
        ("aten::mm", [[0, 4], [4, 5]], 0),
        # Experts: 100 tokens, each in one of 8 groups; then the gradient of the experts' weights.
        ("aten::_grouped_mm", [[100, 16], [8, 16, 32], [8], [], []], 2 * 100 * 16 * 32),
        ("aten::_grouped_mm", [[16, 100], [100, 32], [8], [], []], 2 * 16 * 100 * 32),
        ("aten::_grouped_mm", [[8, 5, 16], [8, 16, 32], [], [], []], 2 * 8 * 5 * 16 * 32),
    ],
)
def test_products(name, dims, flops):
    assert operator_flops(name, dims) == flops


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("c10::BFloat16", 1),
        ("float", 1),
        ("c10::complex<float>", 4),
        ("long int", 0),
        ("c10::Float4_e2m1fn_x2", None),
    ],
)
def test_a_product_of_other_numbers(kind, factor):
    found = operator_flops("aten::mm", [[3, 4], [4, 5]], [kind, kind])
    assert found == (None if factor is None else factor * 120)
    bias = operator_flops("aten::addmm", [[5], [3, 4], [4, 5]], ["float", kind, kind])
    assert bias == found


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("aten::mm", None),
        ("aten::mm", []),
        ("aten::mm", [[3, 4]]),
        ("aten::mm", [[3, 4], []]),
        ("aten::mm", [[3, 4], [5, 6]]),
        ("aten::mm", [[3, 4, 1], [4, 5]]),
        ("aten::mm", [[3, -4], [-4, 5]]),
        ("aten::mm", [[3, 4.0], [4, 5]]),
        ("aten::mm", [[3, True], [True, 5]]),
        ("aten::mm", "[[3, 4], [4, 5]]"),
        ("aten::mm", [[[3, 4]], [[4, 5]]]),
        ("aten::addmm", [[3, 4], [4, 5]]),
        ("aten::bmm", [[7, 3, 4], [6, 4, 5]]),
        ("aten::_grouped_mm", [[100, 16], [8, 15, 32]]),
        ("aten::_grouped_mm", [[100], [8, 15, 32]]),
        # They call those that count.
        ("aten::linear", [[3, 4], [5, 4], [5]]),
        ("aten::matmul", [[3, 4], [4, 5]]),
        ("aten::add", [[3, 4], [3, 4]]),
    ],
)
def test_what_is_not_told_is_unknown(name, dims):
    assert operator_flops(name, dims) is None


# Sizes and flags that a trace of PyTorch 2.13 holds; the FLOPs are those of torch.utils.flop_counter.
IMAGE = spread(
    [(2, 6, 17, 19), (8, 3, 3, 5), (8,)],
    9,
    _3="[2, 3]",
    _4="[1, 0]",
    _5="[1, 2]",
    _6="False",
    _7="[0, 0]",
    _8="2",
)
SPREAD_OUT = spread(
    [(2, 4, 9), (4, 5, 3)], 9, _3="[2]", _4="[1]", _5="[1]", _6="True", _7="[1]", _8="1"
)


def test_convolutions():
    dims, concrete = IMAGE
    output = (17 + 2 - 2 - 1) // 2 + 1, (19 - 8 - 1) // 3 + 1
    forward = operator_flops("aten::convolution", dims, None, concrete)
    assert forward == 2 * 2 * 8 * output[0] * output[1] * 3 * 3 * 5 == 51840
    # One number stands for all dimensions; two are none for one.
    assert operator_flops("aten::convolution", [[1, 1, 5], [1, 1, 3]], None, concrete) is None
    every = ["", "", "", "[1]", "[1]", "[1]", "False", "[0]", "1"]
    assert operator_flops("aten::convolution", [[1, 1, 5, 5], [1, 1, 3, 3]], None, every) == 450

    dims, concrete = SPREAD_OUT
    assert operator_flops("aten::convolution", dims, None, concrete) == 2 * (2 * 4 * 9) * 5 * 3


@pytest.mark.parametrize(
    ("mask", "times"),
    [("[True, True, False]", 2), ("[False, True, True]", 1), ("[False, False, True]", 0)],
)
def test_gradients_of_convolutions(mask, times):
    output = [2, 8, 9, 4]
    dims = [output, *IMAGE[0][:2], [], [], [], [], [], [], [], []]
    concrete = ["", *IMAGE[1][:2], "[8]", *IMAGE[1][3:], mask]
    assert operator_flops("aten::convolution_backward", dims, None, concrete) == times * 51840
    dims = [[2, 5, 18], *SPREAD_OUT[0][:2], [], [], [], [], [], [], [], []]
    concrete = ["", *SPREAD_OUT[1][:2], "[0]", *SPREAD_OUT[1][3:], mask]
    assert operator_flops("aten::convolution_backward", dims, None, concrete) == times * 2160


def test_convolutions_that_do_not_tell_are_unknown():
    dims, concrete = IMAGE
    known = operator_flops("aten::convolution", dims, None, concrete)
    assert operator_flops("aten::convolution", dims) is None
    for at in (3, 4, 5, 6):
        for text in ("", "x", "[1, 2, 3]", None):
            other = [*concrete[:at], text, *concrete[at + 1 :]]
            assert operator_flops("aten::convolution", dims, None, other) is None
        assert operator_flops("aten::convolution", dims, None, concrete[:at]) is None
    # Groups and the bias make no difference: the weights' sizes tell.
    assert operator_flops("aten::convolution", dims[:2], None, concrete[:7]) == known
    assert operator_flops("aten::convolution", [[2, 6], [8, 3]], None, concrete) is None
    tiny = [[2, 6, 1, 1], dims[1]]
    assert operator_flops("aten::convolution", tiny, None, concrete) is None


B, H, S, D, E = 16, 8, 559, 64, 48
HEADS_FIRST = [(B, H, S, D), (B, H, S, D), (B, H, S, E)]
TOKENS_FIRST = [(B, S, H, D), (B, S, H, D), (B, S, H, E)]
FULL = 2 * B * H * S * S * (D + E)
FULL_BACKWARD = 2 * B * H * S * S * (3 * D + 2 * E)


@pytest.mark.parametrize(
    ("name", "count", "at"),
    [
        ("flash_attention", 7, 4),
        ("flash_attention_for_cpu", 7, 4),
        ("fused_attention_overrideable", 8, 5),
        ("efficient_attention", 8, 6),
        ("cudnn_attention", 9, 6),
    ],
)
def test_attention(name, count, at):
    for flag, flops in (("True", FULL // 2), ("False", FULL), ("", None)):
        dims, concrete = spread(HEADS_FIRST, count, **{f"_{at}": flag})
        assert operator_flops(SDPA + name, dims, None, concrete) == flops
        assert operator_flops(SDPA + name, dims) is None


@pytest.mark.parametrize(
    ("name", "count", "at"),
    [
        ("flash_attention_backward", 15, 11),
        ("flash_attention_for_cpu_backward", 10, 7),
        ("fused_attention_overrideable_backward", 17, 13),
        ("efficient_attention_backward", 13, 11),
        ("cudnn_attention_backward", 16, 14),
    ],
)
def test_gradients_of_attention(name, count, at):
    tensors = [(B, H, S, E), *HEADS_FIRST]
    for flag, flops in (("True", FULL_BACKWARD // 2), ("False", FULL_BACKWARD), ("", None)):
        dims, concrete = spread(tensors, count, **{f"_{at}": flag})
        assert operator_flops(SDPA + name, dims, None, concrete) == flops
    # Of heads of one size, a backward takes 2.5 forwards.
    alike = [(B, H, S, D)] * 4
    dims, concrete = spread(alike, count, **{f"_{at}": "False"})
    assert operator_flops(SDPA + name, dims, None, concrete) == 2.5 * 2 * B * H * S * S * 2 * D


@pytest.mark.parametrize("name", [name for name in _FORMULAS if name.startswith("aten::")])
def test_positions_of_flags_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    given = getattr(_FORMULAS[name][1], "keywords", {})
    operator = name.removeprefix("aten::")
    if not hasattr(torch.ops.aten, operator):
        pytest.skip("this PyTorch has no such operator")
    packet = getattr(torch.ops.aten, operator)
    overload = next(one for one in ("default", *packet.overloads()) if hasattr(packet, one))
    names = [one.name for one in getattr(packet, overload)._schema.arguments]
    if "causal" in given:
        assert names[given["causal"]] == "is_causal"
        assert names[given["at"] : given["at"] + 3] == ["query", "key", "value"]
    elif "convolution" in name:
        at = given["at"]
        assert names[at : at + 2] == ["input", "weight"]
        assert names[at + 6] == "transposed"
        assert name != "aten::convolution_backward" or names[at + 9] == "output_mask"
    else:
        assert names[given["at"]] in {"self", "mat1", "batch1"}
        assert names[given["at"] + 1] in {"mat2", "batch2"}


def test_few_keys_for_many_queries():
    tensors = [(2, 32, 128, 64), (2, 4, 128, 64), (2, 4, 128, 64)]
    dims, concrete = spread(tensors, 7, _4="True")
    flops = 2 * 2 * 32 * 128 * 128 * 128 // 2
    assert operator_flops(f"{SDPA}flash_attention", dims, None, concrete) == flops
    for wrong in (
        [(2, 32, 128, 64), (2, 5, 128, 64), (2, 5, 128, 64)],
        [(2, 32, 128, 64), (2, 4, 128, 64), (2, 4, 64, 64)],
        [(2, 32, 128, 64), (2, 4, 128, 32), (2, 4, 128, 64)],
        [(2, 32, 128, 64), (1, 4, 128, 64), (1, 4, 128, 64)],
        [(2, 32, 128, 64), (2, 0, 128, 64), (2, 0, 128, 64)],
    ):
        dims, concrete = spread(wrong, 7, _4="True")
        assert operator_flops(f"{SDPA}flash_attention", dims, None, concrete) is None


@pytest.mark.parametrize(("queries", "keys"), [(40, 40), (40, 100), (100, 40), (1, 100)])
def test_causal_masks_of_unlike_lengths(queries, keys):
    """Pairs counted one by one; on the diagonal, which is half open, each counts half."""

    def pairs(shift):
        return sum(
            1 if key < query + shift else 0.5 if key == query + shift else 0
            for query in range(queries)
            for key in range(keys)
        )

    torch_tensors = [(1, 1, queries, 8), (1, 1, keys, 8), (1, 1, keys, 8)]
    dims, concrete = spread(torch_tensors, 8, _6="True")
    found = operator_flops(f"{SDPA}efficient_attention", dims, None, concrete)
    assert found == 2 * 16 * pairs(0)
    library_tensors = [(1, queries, 1, 8), (1, keys, 1, 8), (1, keys, 1, 8)]
    dims, concrete = spread(library_tensors, 11, _5="True", _6="-1", _7="-1")
    found = operator_flops("flash_attn::_flash_attn_forward", dims, None, concrete)
    assert found == 2 * 16 * pairs(keys - queries)


@pytest.mark.parametrize("library", ["flash_attn::", "flashattn::"])
def test_the_library_of_flash_attention(library):
    for flag, flops in (("True", FULL // 2), ("False", FULL)):
        dims, concrete = spread(TOKENS_FIRST, 11, _5=flag, _6="-1", _7="-1")
        assert operator_flops(f"{library}_flash_attn_forward", dims, None, concrete) == flops
    back = [(B, S, H, E), *TOKENS_FIRST]
    dims, concrete = spread(back, 18, _11="True", _12="-1", _13="0")
    found = operator_flops(f"{library}_flash_attn_backward", dims, None, concrete)
    assert found == FULL_BACKWARD // 2
    # A window leaves pairs out.
    for limits in (("128", "0"), ("-1", "16"), ("-1", ""), ("", "-1")):
        dims, concrete = spread(TOKENS_FIRST, 11, _5="True", _6=limits[0], _7=limits[1])
        assert operator_flops(f"{library}_flash_attn_forward", dims, None, concrete) is None
    dims, concrete = spread(TOKENS_FIRST, 11, _5="False", _6="-1", _7="0")
    assert operator_flops(f"{library}_flash_attn_forward", dims, None, concrete) is None


def test_packed_sequences_are_known_if_all_are_of_one_length():
    packed = [(B * S, H, D), (B * S, H, D), (B * S, H, E)]
    name = "flash_attn::_flash_attn_varlen_"
    flags = {"_9": "True", "_10": "-1", "_11": "-1"}
    lengths = {"_5": str(S), "_6": str(S)}
    dims, concrete = spread([*packed, (B + 1,), (B + 1,)], 18, **flags, **lengths)
    assert operator_flops(f"{name}forward", dims, None, concrete) == FULL // 2
    dims, concrete = spread([*packed, (B + 2,), (B + 2,)], 18, **flags, **lengths)
    assert operator_flops(f"{name}forward", dims, None, concrete) is None
    dims, concrete = spread([*packed, (B + 1,), (B + 1,)], 18, **flags, _5=str(S))
    assert operator_flops(f"{name}forward", dims, None, concrete) is None

    flags = {"_11": str(S), "_12": str(S), "_15": "False", "_16": "-1", "_17": "-1"}
    back = [(B * S, H, E), *packed, *[(1,)] * 5, (B + 1,), (B + 1,)]
    dims, concrete = spread(back, 22, **flags)
    assert operator_flops(f"{name}backward", dims, None, concrete) == FULL_BACKWARD


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | st.sampled_from(["", "True", "[1, 1]", "-1"]),
    lambda inner: st.lists(inner, max_size=5),
)


@given(st.sampled_from(sorted(_FORMULAS)), junk, junk, junk)
def test_nothing_in_a_trace_makes_it_fail(name, dims, types, concrete):
    found = operator_flops(name, dims, types, concrete)
    assert found is None or (type(found) is int and found >= 0)


def text(value):
    return None if value is None else json.dumps(value)


def frame(*rows):
    """Make operators of (thread, start, end, name, dims) or those and their concrete inputs."""
    return pl.DataFrame(
        [
            (thread, start, end, name, text(dims), None, text(concrete[0] if concrete else None))
            for thread, start, end, name, dims, *concrete in rows
        ],
        schema=OPERATORS,
        orient="row",
    )


MM = [[3, 4], [4, 5]]


def test_a_sum_says_what_it_counted_and_what_it_could_not():
    found = sum_flops(
        frame(
            (1, 0, 90, "aten::linear", [[3, 4], [5, 4], [5]]),
            (1, 10, 80, "aten::addmm", [[5], *MM]),
            (1, 100, 110, "aten::mm", MM),
            (1, 110, 120, "aten::mm", MM),
            (1, 120, 130, "aten::mm", None),
            (2, 100, 130, "aten::bmm", [[1, 3, 4], [1, 4, 5]]),
            (2, 200, 300, "_LayerNormLinear", [[3, 4]]),
            (2, 300, 310, "triton_tem_fused_mm_3", [[3, 4]]),
            (2, 400, 410, "aten::add", [[3, 4]]),
        )
    )
    assert found.total == 4 * 120
    assert found.by_name == {"aten::mm": 240, "aten::addmm": 120, "aten::bmm": 120}
    assert found.operators == {"aten::mm": 2, "aten::addmm": 1, "aten::bmm": 1}
    assert found.unknown == {"_LayerNormLinear": 1, "aten::mm": 1, "triton_tem_fused_mm_3": 1}
    assert next(iter(found.by_name)) == "aten::mm"


def test_operators_inside_of_each_other_count_once():
    dims, concrete = spread(HEADS_FIRST, 7, _4="False")
    found = sum_flops(
        frame(
            # What is around a known one, and what is inside, is nothing more.
            (1, 0, 100, "FlashAttnFunc", [[1]]),
            (1, 10, 90, f"{SDPA}flash_attention", dims, concrete),
            (1, 20, 80, "aten::_flash_attention_forward", dims),
        )
    )
    assert (found.total, found.unknown) == (FULL, {})

    # A grouped product that falls back on one product after the other.
    grouped = [[6, 4], [2, 4, 5], [2], [], []]
    rows = [
        (1, 0, 100, "aten::_grouped_mm", grouped),
        (1, 0, 50, "aten::mm", MM),
        (1, 50, 100, "aten::mm", MM),
        (2, 20, 30, "aten::mm", MM),
        (1, 100, 110, "aten::mm", MM),
    ]
    found = sum_flops(frame(*rows))
    assert found.by_name == {"aten::_grouped_mm": 240, "aten::mm": 240}
    # If it does not tell, they do.
    rows[0] = (1, 0, 100, "aten::_grouped_mm", [])
    found = sum_flops(frame(*rows))
    assert found.by_name == {"aten::mm": 480}
    assert found.unknown == {}

    found = sum_flops(
        frame(
            (1, 0, 100, "FlashAttnFunc", None), (1, 10, 90, "aten::_flash_attention_forward", None)
        )
    )
    assert found.unknown == {"FlashAttnFunc": 1}


def test_an_operator_that_hands_on_to_one_of_its_name_does_not_count():
    """As a DTensor's of the whole size does to that of the rank's shard."""
    whole, shard = [[3, 4], [4, 10]], MM
    rows = [
        (1, 0, 100, "aten::linear", [[3, 4], [10, 4], []]),
        (1, 10, 90, "aten::mm", whole),
        (1, 20, 80, "aten::mm", shard),
        (1, 100, 150, "aten::mm", whole),
        (2, 20, 80, "aten::mm", whole),  # of another thread
    ]
    found = sum_flops(frame(*rows))
    assert found.by_name == {"aten::mm": 120 + 240 + 240}


def test_only_what_had_a_device_work_was_executed(tmp_path):
    """An operator may be recorded into a graph, or be asked what shape its result will have."""
    said = {"Input Dims": [[3, 4], [4, 5]], "Input type": ["float", "float"]}
    trace = Trace()
    for at, launched in ((1000, True), (2000, False), (3000, True)):
        trace.event("cpu_op", "aten::mm", at, at + 500, **said)
        if launched:
            trace.kernel(at + 600, at + 700, at=at + 10)
        else:
            trace.event("cuda_runtime", "cudaLaunchKernel", at + 10, at + 15, correlation=1)
    file = trace.write(tmp_path / "rank0.json")
    assert sources.load(file).flops["flops"].sum() == 2 * 120


def test_nothing_to_add_up():
    for rows in ((), ((1, 0, 10, "aten::add", [[3]]),)):
        found = sum_flops(frame(*rows))
        assert (found.total, found.by_name, found.operators, found.unknown) == (0, {}, {}, {})
    broken = frame((1, 0, 10, "aten::mm", MM)).with_columns(dims=pl.lit("[[3, 4], [4"))
    assert sum_flops(broken).unknown == {"aten::mm": 1}


def test_sums_do_not_overflow():
    large = [[2**20, 2**20], [2**20, 2**20]]
    found = sum_flops(frame(*((1, 10 * n, 10 * n + 5, "aten::mm", large) for n in range(64))))
    assert found.total == 64 * 2**61


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.booleans()), max_size=30))
def test_sums_are_those_of_the_operators(drawn):
    """Any number of operators one after the other, on any threads."""
    rows = [
        (thread, 10 * at, 10 * at + 10, "aten::mm", [[size, 4], [4, 5]] if told else [])
        for at, (thread, size, told) in enumerate(drawn)
    ]
    found = sum_flops(frame(*rows))
    assert found.total == sum(40 * size for _, size, told in drawn if told)
    assert sum(found.operators.values()) == sum(told for *_, told in drawn)
    assert sum(found.unknown.values()) == sum(not told for *_, told in drawn)


def read(path):
    """Return the operators of a trace, read plainly."""
    rows = []
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if event.get("cat") == "cpu_op":
            args = event.get("args", {})
            start = round(event["ts"] * 1000)
            end = start + round(event["dur"] * 1000)
            told = (args.get(key) for key in ("Input Dims", "Input type", "Concrete Inputs"))
            rows.append((event["tid"], start, end, event["name"], *map(text, told)))
    return pl.DataFrame(rows, schema=OPERATORS, orient="row")


@pytest.mark.skipif(not REAL.exists(), reason="needs the shared traces")
def test_a_real_trace_has_the_flops_that_tracelens_finds():
    found = sum_flops(read(REAL / "tl_h100_qwen.json.gz"))
    assert (found.operators["aten::mm"], found.operators["aten::addmm"]) == (96, 72)
    products = found.by_name["aten::mm"] + found.by_name["aten::addmm"]
    assert products == 5_514_536_681_472
    golden = (SHARED.parent / "golden" / "flops.csv").read_text().splitlines()[1].split(",")
    assert golden[:3] == ["tl_h100_qwen", "GEMM GFLOP (aten::mm 96 + aten::addmm 72)", "5514.537"]
    assert round(products / 1e9, 3) == 5514.537
    assert round(found.by_name[f"{SDPA}flash_attention"] / 1e9, 3) == 245.745
    assert found.unknown == {}


@pytest.mark.skipif(not REAL.exists(), reason="needs the shared traces")
def test_real_convolutions_have_the_flops_that_tracelens_finds():
    found = sum_flops(read(SHARED / "kineto" / "real" / "mi300_resnet_act_checkpoint.json.gz"))
    assert found.operators["aten::convolution"] == 117
    assert found.by_name["aten::convolution"] == 210_546_524_160
    # TraceLens: 217,627,361,280, with gradients of the images that output_mask says nobody wants.
    assert found.by_name["aten::convolution_backward"] == 210_546_524_160
