"""MFU and HFU of runs: from a trace's shapes, steps and device, and from what the user says."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import polars as pl
import pytest
from click.testing import CliRunner

import bubblescope
import device_exports
from bubblescope.analysis.efficiency import Workload, utilization
from bubblescope.analysis.mfu import ModelError
from bubblescope.cli import cli
from bubblescope.model.kinds import Kind, Lane
from bubblescope.model.timeline import Timeline
from device_maker import Mode, make
from kineto_maker import Trace
from places import SHARED
from rocpd_maker import Process

MS = 1_000_000
H100 = "NVIDIA H100 80GB HBM3"
PEAK = 989.4e12
MODEL = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 32,
    "tie_word_embeddings": False,
}
EACH = 6 * (8 * 32 + 3 * 8 * 16 + 8 * 32) + 3 * 4 * 16
"""Megatron-LM's FLOPs of a token in sequences of 4: attention, feed-forward and output matrices; then
queries and values of 16 elements."""
TOKENS = 10**9
PRODUCT = 2 * 1000 * 2000 * 4000
REAL = SHARED / "kineto" / "no_ranges" / "tl_h100_qwen.json.gz"


def product(trace, start, dims, name="aten::mm", kind="c10::BFloat16", **args):
    said = {}
    if dims is not None:
        said = {"Input Dims": dims, "Input type": [kind] * len(dims)}
    trace.event("cpu_op", name, start, start + 20, **said, **args)


def made(
    rank=0,
    *,
    device_name: str | None = H100,
    steps=3,
    shapes=True,
    world=None,
    marked=True,
    unknown=0,
    products=2,
    kind="c10::BFloat16",
):
    """Return a trace of steps of 10 ms, of which 4 and 3 ms compute, with two products each."""
    about = {"id": 0} | ({} if device_name is None else {"name": device_name})
    header: dict = {"deviceProperties": [about, {"id": 1, "name": "another"}]}
    if world is not None:
        header["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
    trace = Trace(rank=rank, header=header)
    if steps:  # before the first step: in none
        product(trace, 100, [[10, 10], [10, 10]] if shapes else None)
    for step in range(steps):
        at = 10 * MS * step + 1 * MS
        if marked:
            trace.range(f"ProfilerStep#{step + 5}", at - 500_000, at + 9 * MS)
        for index in range(products):
            dims = [[1000, 2000], [2000, 4000]] if shapes else None
            product(trace, at + 100 * index, dims, kind=kind)
        for index in range(unknown):
            product(trace, at + 1000 + 100 * index, [], name="flash_attn_3::fwd")
        trace.kernel(at + MS, at + 5 * MS, at=at + 10)
        trace.kernel(at + 6 * MS, at + 9 * MS, at=at + 110)
    return trace


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODEL))
    return path


def read(tmp_path, *traces):
    paths = [one.write(tmp_path / f"rank{index}.json") for index, one in enumerate(traces)]
    return bubblescope.load(*paths)


def report(tmp_path, *arguments, traces=None):
    """Return what the command prints as JSON, and as text."""
    folder = tmp_path / "traces"
    folder.mkdir(exist_ok=True)
    for index, trace in enumerate(traces or [made()]):
        trace.write(folder / f"rank{index}.json")
    command = ["report", "-q", str(folder), *map(str, arguments)]
    told = CliRunner().invoke(cli, [*command, "--json"])
    return json.loads(told.output)["utilization"], CliRunner().invoke(cli, command).output


def refusal(tmp_path, *arguments, traces=None):
    """Return the one sentence with which the command refuses."""
    folder = tmp_path / "traces"
    folder.mkdir(exist_ok=True)
    for index, trace in enumerate(traces or [made()]):
        trace.write(folder / f"rank{index}.json")
    done = CliRunner().invoke(cli, ["report", "-q", str(folder), *map(str, arguments)])
    assert isinstance(done.exception, (SystemExit, bubblescope.BubblescopeError)), done.exception
    return str(done.exception) if done.exit_code != 2 else done.output


def test_what_operators_executed_is_summed_by_step(tmp_path):
    run = read(tmp_path, made(unknown=1))
    rows = run.timeline.flops.rows()
    assert rows[0] == (0, None, "aten::mm", "BF16", 2000, 1, 0)
    for step in (5, 6, 7):
        assert (0, step, "aten::mm", "BF16", 2 * PRODUCT, 2, 0) in rows
        assert (0, step, "flash_attn_3::fwd", None, None, 0, 1) in rows
    assert len(rows) == 7
    assert run.ranks["device_name"].to_list() == [H100]
    kept = run.save(tmp_path / "run.parquet")
    assert bubblescope.load(kept).timeline == run.timeline
    assert run.slice(steps=[6]).timeline.flops["step"].unique().to_list() == [6]


def test_times_that_a_float_would_round_and_torn_files_have_shapes_too(tmp_path):
    exact = made()
    exact.base = None  # microseconds since 1970
    run = read(tmp_path, exact)
    assert (0, 6, "aten::mm", "BF16", 2 * PRODUCT, 2, 0) in run.timeline.flops.rows()
    text = made(steps=4).text()
    path = tmp_path / "torn" / "rank0.json"
    path.parent.mkdir()
    path.write_text(text[: text.rindex('"aten::mm"')])
    torn = bubblescope.load(path)
    assert torn.timeline.flops["operators"].sum() == 1 + 2 * 4 - 1
    assert torn.run.warnings[0].code == "torn-tail"


def test_sizes_that_cannot_be_true_are_unknown(tmp_path):
    trace = made()
    huge, large = 2**40, 2**19
    product(trace, 11 * MS + 300, [[huge, huge], [huge, huge]])
    for index in range(40):  # 2^57 each, and more than 64 bits hold together
        product(trace, 21 * MS + 1000 + 30 * index, [[large, large], [large, large]])
    rows = read(tmp_path, trace).timeline.flops.rows()
    assert (0, 6, "aten::mm", "BF16", 2 * PRODUCT, 2, 1) in rows
    assert (0, 7, "aten::mm", "BF16", None, 42, 0) in rows
    found, _ = report(tmp_path, traces=[trace])
    assert found["operators"] == [
        {"name": "aten::mm", "flops": 4 * PRODUCT + 2000, "operators": 5, "unknown": 43}
    ]


def test_devices_are_named_by_all_profilers_of_gpus(tmp_path):
    exported = device_exports.nsight(make(Mode(ranks=2), 0), tmp_path / "run.sqlite")
    ranks = bubblescope.load(exported).ranks
    assert ranks["device_name"].to_list() == [H100] * 2
    with closing(sqlite3.connect(exported)) as database:
        database.execute("UPDATE TARGET_INFO_GPU SET name = 'NVIDIA H200' WHERE id = 1")
        database.commit()
    assert bubblescope.load(exported).ranks["device_name"].to_list() == [H100, "NVIDIA H200"]
    with closing(sqlite3.connect(exported)) as database:  # older versions do not say which is whose
        database.execute("DROP TABLE TARGET_INFO_CUDA_DEVICE")
        database.commit()
    assert bubblescope.load(exported).ranks["device_name"].to_list() == [None, None]
    for name, product_name in (("named", "AMD Instinct MI300X"), ("nameless", None)):
        process = Process(7, product=product_name)
        process.range("F0.0.0", 1000, 1100)
        process.kernel(1200, 1300, at=1010)
        written = process.write(tmp_path / f"{name}.db")
        assert bubblescope.load(written).ranks["device_name"].to_list() == [product_name]


def test_without_a_model_it_is_hfu_alone(tmp_path):
    found, text = report(tmp_path)
    # Two closed steps of 10 ms each; the third is open.
    assert (found["steps"], found["open"], found["step_ns"]) == (2, False, 10 * MS)
    assert found["compute_ns"] == 7 * MS
    assert found["executed_flops"] == 2 * PRODUCT
    assert found["hfu"] == pytest.approx(2 * PRODUCT / (0.01 * PEAK))
    assert found["executed_per_second"] == pytest.approx(2 * PRODUCT / 0.01)
    assert found["compute_share"] == pytest.approx(0.7)
    assert (found["device_name"], found["peak"]) == (H100, PEAK)
    assert found["precision"] == "BF16 and FP16"
    for name in ("mfu", "compute_utilization", "model_flops", "convention", "model", "impossible"):
        assert found[name] is None
    assert found["notes"] == []
    assert found["operators"] == [
        {"name": "aten::mm", "flops": 6 * PRODUCT + 2000, "operators": 7, "unknown": 0}
    ]
    assert "Utilization" in text
    words = " ".join(text.split())
    assert "HFU ≥ 0.32 % executed, by the shapes of operators" in words
    assert "TFLOP/s ≥ 3.2 of a device, executed" in words
    assert "MFU" not in text


def test_a_speed_that_is_at_least_nothing_is_left_out(tmp_path):
    trace = made(products=0)
    product(trace, 2 * MS, [[10, 10], [10, 10]])
    found, text = report(tmp_path, traces=[trace])
    assert 0 < found["executed_per_second"] < 1e9
    assert "executed, by the shapes of operators" in " ".join(text.split())
    assert "of a device, executed" not in text


def test_mfu_is_compute_share_times_speed(tmp_path, model):
    found, text = report(tmp_path, "--model", model, "--tokens", TOKENS, "--seq-length", 4)
    assert found["flops_per_token"] == EACH == 5568
    assert found["model_flops"] == EACH * TOKENS
    assert found["mfu"] == pytest.approx(5.568 / 9.894)
    assert found["compute_share"] == pytest.approx(0.7)
    assert found["compute_utilization"] == pytest.approx(5.568 / 0.7 / 9.894)
    assert found["flops_per_second"] == pytest.approx(556.8e12)
    assert found["executed_ratio"] == pytest.approx(2 * PRODUCT / 5.568e12)
    assert (found["convention"], found["devices"], found["traced_devices"]) == ("megatron", 1, 1)
    assert found["impossible"] is None
    [note] = found["notes"]
    assert note.startswith("operators executed 0.57 % of the model's FLOPs: steps have no backward")
    words = " ".join(text.split())
    factors = ("70.00 % of the step computing", "80.40 % of the peak meanwhile")
    assert "MFU 56.28 % = " + " \N{MULTIPLICATION SIGN} ".join(factors) in words
    assert "Megatron-LM's count" in words
    assert "TFLOP/s 556.8 of a device, by the model" in words
    assert f"2 steps of 10.00 ms · 1 device · {H100} · peak 989.4 TFLOP/s" in words
    assert "llama, 1,000,000,000 tokens a step in sequences of 4" in words


@pytest.mark.parametrize(
    ("convention", "each"),
    # All 1,176 parameters: norms of 24 elements as well; attention in full.
    [("palm", 6 * (896 + 256 + 24) + 6 * 16 * 4), ("torchtitan", 6 * (896 + 24) + 6 * 16 * 4)],
)
def test_the_convention_is_a_choice(tmp_path, model, convention, each):
    chosen = ("--model", model, "--tokens", 1000, "--seq-length", 4, "--convention", convention)
    found, _ = report(tmp_path, *chosen)
    assert (found["convention"], found["flops_per_token"]) == (convention, each)
    assert found["mfu"] == pytest.approx(each * 1000 / (0.01 * PEAK))


def test_in_python_it_is_the_same(tmp_path, model):
    run = read(tmp_path, made())
    said = {"model": model, "tokens": TOKENS, "sequence_length": 4, "peak": 1e15}
    found = run.report(**said).utilization
    assert found.mfu == pytest.approx(0.5568)
    assert bubblescope.report(run, **said).utilization.mfu == found.mfu
    assert "MFU" in str(run.report(**said))


def test_devices_without_a_trace_have_their_share_of_the_model(tmp_path, model):
    said = ("--model", model, "--tokens", TOKENS, "--seq-length", 4)
    traces = [made(0, world=8), made(1, world=8)]
    found, _ = report(tmp_path, *said, traces=traces)
    assert (found["devices"], found["traced_devices"]) == (8, 2)
    assert found["mfu"] == pytest.approx(5.568 / 9.894 / 8)
    assert found["compute_ns"] == 14 * MS
    assert found["compute_share"] == pytest.approx(0.7)
    assert found["executed_flops"] == 4 * PRODUCT
    # What these two executed is of these two.
    assert found["hfu"] == pytest.approx(2 * PRODUCT / (0.01 * PEAK))
    assert found["executed_ratio"] == pytest.approx(2 * PRODUCT / (5.568e12 / 8))
    assert any("2 of 8 devices have usable traces" in note for note in found["notes"])
    more, _ = report(tmp_path, *said, "--devices", 16)
    assert more["mfu"] == pytest.approx(found["mfu"] / 2)
    # One rank of two that were read is not all of the job.
    one, _ = report(tmp_path, *said, "--ranks", 1, traces=[made(0), made(1)])
    assert (one["devices"], one["traced_devices"]) == (2, 1)
    assert one["mfu"] == pytest.approx(5.568 / 9.894 / 2)
    said_less = refusal(tmp_path, *said, "--devices", 1, traces=traces)
    assert "1 device, but the traces are of 2" in said_less


def test_megatron_arguments_tell_tokens_sequences_and_devices(tmp_path):
    arguments = {
        "num_layers": 1,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "group_query_attention": False,
        "num_query_groups": 1,
        "kv_channels": 4,
        "ffn_hidden_size": 16,
        "swiglu": True,
        "padded_vocab_size": 32,
        "seq_length": 4,
        "global_batch_size": 250_000_000,
        "world_size": 2,
    }
    path = tmp_path / "args.json"
    path.write_text(json.dumps(arguments))
    found, _ = report(tmp_path, "--model", path)
    assert (found["tokens"], found["sequence_length"], found["devices"]) == (TOKENS, 4, 2)
    assert found["mfu"] == pytest.approx(5.568 / 9.894 / 2)
    fewer, _ = report(tmp_path, "--model", path, "--tokens", TOKENS // 2)
    assert fewer["mfu"] == pytest.approx(5.568 / 9.894 / 4)
    path.write_text(json.dumps({**arguments, "global_batch_size": None}))
    assert "does not state how many tokens a step has" in refusal(tmp_path, "--model", path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["NVIDIA H100"], "the peak of 'NVIDIA H100' is not known: give the dense"),
        ([""], "the traces do not name the devices, so their peak is not known: give the dense"),
        ([None], "the traces do not name the devices, so their peak is not known: give the dense"),
        ([H100, "NVIDIA H200"], f"different devices ({H100}, NVIDIA H200), so their peak is not"),
        ([H100, None], f"different devices ({H100}, and some that are not named), so"),
    ],
)
def test_a_peak_is_never_guessed(tmp_path, model, names, words):
    said = ("--model", model, "--tokens", TOKENS, "--seq-length", 4)
    traces = [made(rank, device_name=name) for rank, name in enumerate(names)]
    found, text = report(tmp_path, *said, traces=traces)
    assert words in found["notes"][0]
    assert found["mfu"] is found["hfu"] is found["compute_utilization"] is found["peak"] is None
    assert found["flops_per_second"] == pytest.approx(556.8e12 / len(names))
    words = " ".join(text.split())
    assert "MFU –" in words
    assert "HFU –" in words
    assert "--peak 989e12" in words
    given, _ = report(tmp_path, *said, "--peak", "500e12", traces=traces)
    assert given["mfu"] == pytest.approx(5.568 / 5 / len(names))
    assert (given["peak_source"], given["precision"]) == ("given", None)


T4 = "Tesla T4"


@pytest.mark.parametrize(
    ("device", "kind", "tera", "precision", "doubt"),
    [
        (H100, "c10::BFloat16", 989.4, "BF16 and FP16", None),
        (H100, "c10::Half", 989.4, "BF16 and FP16", None),
        (T4, "c10::Half", 65, "FP16", None),
        (T4, "float", 8.1, "FP32", None),
        (H100, "float", 494.7, "TF32", "the peak is 66.9 TFLOP/s (--peak 66.9e12)"),
        (
            T4,
            "c10::BFloat16",
            65,
            "FP16",
            "operators multiply mostly in BF16, whose peak is not known",
        ),
        (
            "AMD Instinct MI355X",
            "float",
            2516.6,
            "BF16 and FP16",
            "mostly in FP32, whose peak is not",
        ),
        (T4, "c10::Float8_e4m3fn", 65, "FP16", None),
    ],
)
def test_flops_are_compared_with_the_peak_of_their_precision(
    tmp_path, device, kind, tera, precision, doubt
):
    found, _ = report(tmp_path, traces=[made(device_name=device, kind=kind)])
    assert (found["peak"], found["precision"]) == (pytest.approx(tera * 1e12), precision)
    assert found["hfu"] == pytest.approx(found["executed_per_second"] / found["peak"])
    doubts = [note for note in found["notes"] if "multiply mostly" in note]
    assert [doubt in note for note in doubts if doubt] == ([True] if doubt else [])


def test_the_precision_is_that_of_most_flops(tmp_path):
    trace = made(device_name=T4, kind="c10::Half")
    product(trace, 11 * MS + 500, [[1000, 20000], [20000, 4000]], kind="float")
    assert report(tmp_path, traces=[trace])[0]["precision"] == "FP32"


def test_shapes_that_were_recorded_are_not_asked_for(tmp_path, model):
    trace = made(shapes=False)
    trace.header["record_shapes"] = 1
    said = ("--model", model, "--tokens", TOKENS, "--seq-length", 4)
    found, _ = report(tmp_path, *said, traces=[trace])
    assert "though shapes were recorded" in found["notes"][0]
    assert "record_shapes" not in found["notes"][0]


def test_operators_of_unknown_size_are_counted(tmp_path):
    found, text = report(tmp_path, traces=[made(unknown=2)])
    assert found["executed_flops"] == 2 * PRODUCT
    unknown = {"name": "flash_attn_3::fwd", "flops": None, "operators": 0, "unknown": 6}
    assert found["operators"][1] == unknown
    assert "6 operators of unknown FLOPs, such as flash_attn_3::fwd" in " ".join(text.split())


def test_without_shapes_there_is_nothing_or_what_to_do(tmp_path, model):
    found, text = report(tmp_path, traces=[made(shapes=False)])
    assert found is None
    assert "Utilization" not in text
    said = ("--model", model, "--tokens", TOKENS, "--seq-length", 4)
    found, _ = report(tmp_path, *said, traces=[made(shapes=False)])
    assert found["mfu"] == pytest.approx(5.568 / 9.894)
    assert found["hfu"] is found["executed_flops"] is found["executed_ratio"] is None
    assert "record_shapes=True" in found["notes"][0]
    # Only products whose size is not told.
    found, _ = report(tmp_path, traces=[made(products=0, unknown=1, steps=1)])
    assert found["hfu"] is None


def test_shapes_alone_are_no_use_of_a_device(tmp_path):
    """Of a job on the CPU, FLOPs are known and no time of a device."""
    trace = Trace(0)
    product(trace, 0, [[1000, 2000], [2000, 4000]])
    assert utilization(read(tmp_path, trace).timeline) is None


def test_ranks_without_shapes_are_left_out_of_hfu(tmp_path):
    found, _ = report(tmp_path, traces=[made(0), made(1, shapes=False)])
    assert found["hfu"] == pytest.approx(2 * PRODUCT / (0.01 * PEAK))
    assert (found["executed_flops"], found["compute_ns"]) == (2 * PRODUCT, 14 * MS)


def test_an_open_step_counts_only_if_there_is_no_other(tmp_path):
    found, text = report(tmp_path, traces=[made(steps=1)])
    # From the first kernel's start to the last one's end.
    assert (found["steps"], found["open"], found["step_ns"]) == (1, True, 8 * MS)
    assert found["hfu"] == pytest.approx(2 * PRODUCT / (0.008 * PEAK))
    assert "the ends of steps were not recorded" in " ".join(text.split())


def test_without_steps_it_is_of_all_that_was_recorded(tmp_path, model):
    said = ("--model", model, "--tokens", TOKENS, "--seq-length", 4)
    found, text = report(tmp_path, *said, traces=[made(steps=1, marked=False)])
    assert (found["steps"], found["step_ns"], found["mfu"]) == (None, 8 * MS, None)
    assert found["hfu"] == pytest.approx((2 * PRODUCT + 2000) / (0.008 * PEAK))
    assert "no step is marked in the traces, so MFU is not known" in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "shapes", "words"),
    [
        # 100 times the tokens, though the shapes tell what was executed.
        (
            ("--tokens", 100 * TOKENS),
            True,
            "MFU of 5,628 % is impossible: operators executed 0.0057 % of the model's FLOPs, so",
        ),
        (
            ("--tokens", 100 * TOKENS),
            False,
            "MFU of 5,628 % is impossible: the peak (9.894e+14 FLOP/s), the tokens of a step (100,",
        ),
        # TFLOP/s in place of FLOP/s.
        (
            ("--tokens", TOKENS, "--peak", "989"),
            True,
            "HFU of 323,559,150,657 % is impossible, and follows from the shapes of operators and the",
        ),
        (
            ("--tokens", TOKENS, "--peak", "700e12"),
            False,
            "computing at 114 % of the peak is impossible: the peak",
        ),
    ],
)
def test_what_cannot_be_is_said_with_the_likely_reason(tmp_path, model, arguments, shapes, words):
    found, text = report(
        tmp_path, "--model", model, "--seq-length", 4, *arguments, traces=[made(shapes=shapes)]
    )
    assert found["impossible"].startswith(words)
    assert "impossible  " in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "this cannot be read as JSON"),
        ("[" * 100_000, "this cannot be read as JSON"),
        ("[]", "a list"),
        (json.dumps({**MODEL, "hidden_size": "wide"}), "'hidden_size' is 'wide', not a whole"),
        (json.dumps({**MODEL, "vocab_size": None}), "'vocab_size'"),
        (json.dumps({**MODEL, "model_type": "mamba"}), "models of type 'mamba' are not known"),
    ],
)
def test_a_malformed_model_is_one_sentence(tmp_path, text, words):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ModelError) as raised:
        Workload.of(model=path, tokens=1000, sequence_length=4)
    said = str(raised.value)
    assert said.startswith(f"{path}: ")
    assert words in said
    assert said.endswith(
        "give the model's config.json of Hugging Face, or Megatron's arguments as JSON"
    )
    assert "\n" not in said
    assert "Traceback" not in refusal(tmp_path, "--model", path)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"tokens": 5}, "tokens alone do not give FLOPs"),
        ({"sequence_length": 5}, "tokens alone do not give FLOPs"),
        ({"peak": float("nan")}, "the peak is nan"),
        ({"peak": float("inf")}, "the peak is inf"),
        ({"peak": 0}, "the peak is 0"),
        ({"devices": 0}, "the number of devices is 0"),
        ({"tokens": 2.5}, "the number of tokens is 2.5"),
        ({"convention": "chinchilla"}, "choose from megatron, palm, torchtitan"),
    ],
)
def test_what_makes_no_sense_is_refused(said, words):
    with pytest.raises(ModelError, match=words):
        Workload.of(**said)


def test_what_is_missing_is_asked_for(model):
    with pytest.raises(ModelError, match=r"how many tokens a step has: give them.*--tokens"):
        Workload.of(model=model)
    with pytest.raises(ModelError, match=r"how long the sequences.*--seq-length"):
        Workload.of(model=model, tokens=1000)
    with pytest.raises(ModelError, match="more than any job"):
        Workload.of(model=model, tokens=10**18, sequence_length=10**9)
    with pytest.raises(ModelError, match="cannot be read"):
        Workload.of(model=model.with_name("none.json"), tokens=1)


def test_tasks_alone_tell_steps_but_not_what_was_computed(model):
    tasks = pl.DataFrame(
        [
            (rank, step, 10 * MS * step + start, 10 * MS * step + start + 2 * MS)
            for rank in range(2)
            for step in range(3)
            for start in (0, 4 * MS)
        ],
        schema=["rank", "step", "start_ns", "end_ns"],
        orient="row",
    ).with_columns(
        kind=pl.lit(Kind.FORWARD.value), lane=pl.lit(Lane.COMPUTE.value), name=pl.lit("F")
    )
    said = Workload.of(model=model, tokens=TOKENS, sequence_length=4, peak=1e15)
    found = utilization(Timeline(tasks), said)
    assert (found.steps, found.open, found.step_ns, found.devices) == (2, False, 10 * MS, 2)
    assert found.mfu == pytest.approx(0.5568 / 2)
    assert found.compute_share is found.compute_utilization is found.compute_ns is None
    assert any("only when tasks ran" in note for note in found.notes)
    nothing = utilization(Timeline(tasks.clear()), said)
    assert nothing.mfu is nothing.step_ns is None
    assert utilization(Timeline(tasks)) is None


@pytest.mark.skipif(not REAL.exists(), reason="needs the shared traces")
def test_a_real_trace():
    found = bubblescope.load(REAL).report().to_dict()["utilization"]
    flops = {one["name"]: one["flops"] for one in found["operators"]}
    assert round((flops["aten::mm"] + flops["aten::addmm"]) / 1e9, 3) == 5514.537
    assert (found["device_name"], found["steps"], found["open"]) == (H100, 1, True)
    assert found["executed_flops"] == sum(flops.values())
    assert found["hfu"] == pytest.approx(found["executed_flops"] / (found["step_ns"] * 1e-9 * PEAK))
