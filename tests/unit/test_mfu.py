"""MFU: peaks of devices, FLOPs of models in each convention, and how they make a utilization."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope.analysis.mfu import (
    CONVENTIONS,
    ModelError,
    Utilization,
    flops_per_token,
    from_huggingface,
    from_megatron,
    mfu,
    peak_flops,
    read_model,
)
from bubblescope.analysis.mfu.peaks import _PEAKS

LLAMA = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
SMALL = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}
LATENT = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_layer_freq": 1,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3 = {
    **LATENT,
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "vocab_size": 129280,
    "num_nextn_predict_layers": 0,
}
CONFIGS = {
    "Llama-3-70B": LLAMA,
    "Llama-2-7B": {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 32000,
    },
    "a Llama with biases": {
        "model_type": "llama",
        "hidden_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 700,
        "vocab_size": 1000,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "Mistral-7B": {
        **SMALL,
        "model_type": "mistral",
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "sliding_window": 4096,
    },
    "Qwen2-7B": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
        "use_sliding_window": False,
        "sliding_window": 2048,
    },
    "Qwen2-0.5B": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "Qwen3-8B": {
        **SMALL,
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
    },
    "Mixtral-8x7B": {
        **SMALL,
        "model_type": "mixtral",
        "sliding_window": None,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "Qwen3-30B-A3B": QWEN3_MOE,
    "Qwen1.5-MoE-A2.7B": {
        "model_type": "qwen2_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 5632,
        "vocab_size": 151936,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "decoder_sparse_step": 1,
    },
    "a Qwen3 with dense layers": QWEN3_MOE
    | {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "GPT-2": {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 4096,
        "vocab_size": 50257,
    },
    "GPT-NeoX-20B": {
        "model_type": "gpt_neox",
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "vocab_size": 50432,
    },
    "Gemma-2B": {
        "model_type": "gemma",
        "hidden_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "intermediate_size": 16384,
        "vocab_size": 256000,
    },
    "Gemma-2-9B": {
        "model_type": "gemma2",
        "hidden_size": 3584,
        "num_hidden_layers": 42,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "intermediate_size": 14336,
        "vocab_size": 256000,
        "sliding_window": 4096,
    },
    "Gemma-3-1B": {
        "model_type": "gemma3_text",
        "hidden_size": 1152,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "intermediate_size": 6912,
        "vocab_size": 262144,
        "sliding_window": 512,
    },
    "DeepSeek-V3": DEEPSEEK_V3,
    "DeepSeek-V2-Lite": {
        **LATENT,
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "q_lora_rank": None,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "vocab_size": 102400,
    },
}
# Parameters that transformers 5.23 makes of each, and FLOPs per token that torchtitan's own functions
# (b5bcd76) make of those parameters, with sequences of 4096 tokens, of Gemma-3 512.
COUNTED = {
    "Llama-3-70B": (70553706496, 449230454784),
    "Llama-2-7B": (6738415616, 46086512640),
    "a Llama with biases": (2172008, 31906416),
    "Mistral-7B": (7241732096, 49106411520),
    "Qwen2-7B": (7615616512, 47356216320),
    "Qwen2-0.5B": (494032768, 4021161216),
    "Qwen3-8B": (8190735360, 52658190336),
    "Mixtral-8x7B": (46702792704, 82935570432),
    "Qwen3-30B-A3B": (30532122624, 27914883072),
    "Qwen1.5-MoE-A2.7B": (14315784192, 16683970560),
    "a Qwen3 with dense layers": (2095083008, 5116695552),
    "GPT-NeoX-20B": (20554567680, 134755835904),
    "Gemma-2B": (2506172416, 16848973824),
    "Gemma-2-9B": (9241705984, 63905952768),
    "Gemma-3-1B": (999885952, 6162893568),
    "DeepSeek-V3": (671026404352, 281158232064),
    "DeepSeek-V2-Lite": (15706484224, 18105996288),
}

MEGATRON = {
    "num_layers": 96,
    "hidden_size": 12288,
    "num_attention_heads": 96,
    "kv_channels": 128,
    "ffn_hidden_size": 49152,
    "seq_length": 2048,
    "padded_vocab_size": 51200,
    "swiglu": False,
    "group_query_attention": False,
    "num_query_groups": 1,
    "num_experts": None,
    "mtp_num_layers": None,
}
MEGATRON_LLAMA = MEGATRON | {
    "num_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "ffn_hidden_size": 28672,
    "seq_length": 8192,
    "padded_vocab_size": 128256,
    "swiglu": True,
    "group_query_attention": True,
    "num_query_groups": 8,
}
MEGATRON_LATENT_EXPERTS = MEGATRON | {
    "num_layers": 7,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "kv_channels": 96,
    "ffn_hidden_size": 2816,
    "seq_length": 4096,
    "padded_vocab_size": 32000,
    "swiglu": True,
    "group_query_attention": True,
    "num_query_groups": 2,
    "attention_output_gate": True,
    "num_experts": 16,
    "moe_layer_freq": 2,
    "moe_router_topk": 4,
    "moe_ffn_hidden_size": 768,
    "moe_latent_size": 256,
    "moe_shared_expert_intermediate_size": 1536,
}
MEGATRON_DEEPSEEK = MEGATRON | {
    "num_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "ffn_hidden_size": 18432,
    "seq_length": 4096,
    "padded_vocab_size": 129280,
    "swiglu": True,
    "multi_latent_attention": True,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 256,
    "moe_layer_freq": [0] * 3 + [1] * 58,
    "moe_router_topk": 8,
    "moe_ffn_hidden_size": 2048,
    "moe_shared_expert_intermediate_size": 2048,
    "mtp_num_layers": 1,
}
TOLD = {
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "add_qkv_bias": False,
    "qk_layernorm": False,
    "untie_embeddings_and_output_weights": True,
    "position_embedding_type": "rope",
}


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H20", 148),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362.05),
        ("Tesla V100-SXM2-32GB", 125),
        ("AMD Instinct MI300X", 1307.4),
        ("AMD Instinct MI355X", 2516.6),
        ("AMD Instinct MI250X", 191.5),
    ],
)
def test_a_device_is_known_by_its_name(name, tera):
    peak = peak_flops(name)
    assert peak.flops == pytest.approx(tera * 1e12)
    assert peak.source
    assert peak.precision == ("FP16" if "V100" in name else "BF16 and FP16")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "H100",
        "NVIDIA H100",
        "nvidia h100 80gb hbm3",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-PG509-200",
        "AMD Instinct MI250X / MI250",
        "AMD Radeon Graphics",
    ],
)
def test_a_device_that_is_not_listed_is_unknown(name):
    assert peak_flops(name) is None


@pytest.mark.parametrize(
    ("name", "units", "giga", "each"),
    [  # multiprocessors or compute units, boost clock, dense FP16 operations of one in a cycle
        ("NVIDIA H100 80GB HBM3", 132, 1.83, 4096),
        ("NVIDIA H100 PCIe", 114, 1.62, 4096),
        ("NVIDIA A100-SXM4-80GB", 108, 1.41, 2048),
        ("Tesla V100-SXM2-16GB", 80, 1.53, 1024),
        ("AMD Instinct MI300X", 304, 2.1, 2048),
        ("AMD Instinct MI300A", 228, 2.1, 2048),
        ("AMD Instinct MI350X", 256, 2.2, 4096),
        ("AMD Instinct MI355X", 256, 2.4, 4096),
        ("AMD Instinct MI250X", 110, 1.7, 1024),
        ("AMD Instinct MI210", 104, 1.7, 1024),
    ],
)
def test_peaks_are_dense_rates_of_the_hardware(name, units, giga, each):
    assert peak_flops(name).flops == pytest.approx(units * giga * 1e9 * each, rel=3e-3)


@pytest.mark.parametrize(
    ("name", "units", "giga", "each"),
    [  # multiprocessors, boost clock, FP32 operations of one in a cycle
        ("NVIDIA H100 80GB HBM3", 132, 1.98, 256),
        ("NVIDIA A100-SXM4-80GB", 108, 1.41, 128),
        ("NVIDIA H100 NVL", 132, 1.785, 256),
        ("NVIDIA L4", 58, 2.04, 256),
        ("NVIDIA A10", 72, 1.695, 256),
        ("NVIDIA L40S", 142, 2.52, 256),
        ("NVIDIA L40", 142, 2.49, 256),
        ("NVIDIA A40", 84, 1.74, 256),
        ("Tesla V100-SXM2-32GB", 80, 1.53, 128),
        ("Tesla V100-PCIE-32GB", 80, 1.38, 128),
        ("Tesla T4", 40, 1.59, 128),
        ("AMD Instinct MI300X", 304, 2.1, 256),
        ("AMD Instinct MI250X", 110, 1.7, 256),
        ("AMD Instinct MI210", 104, 1.7, 256),
    ],
)
def test_peaks_of_fp32_are_rates_of_the_hardware(name, units, giga, each):
    found = peak_flops(name, "FP32")
    assert (found.exact or found.flops) == pytest.approx(units * giga * 1e9 * each, rel=1e-2)
    # TF32 has half the rate of BF16.
    if found.exact is not None:
        assert found.precision == "TF32"
        assert peak_flops(name).flops / found.flops == pytest.approx(2, rel=2e-2)


def test_a_peak_of_another_precision_is_none():
    assert peak_flops("Tesla T4", "BF16") is None
    assert peak_flops("Tesla T4", "FP16") == peak_flops("Tesla T4")
    assert peak_flops("AMD Instinct MI355X", "FP32") is None
    assert peak_flops("NVIDIA GB200", "FP32").exact == 80e12
    assert peak_flops("H100", "FP32") is None


def test_no_peak_is_out_of_place():
    assert all(50e12 < peak.flops < 3e15 and peak.source for peak in _PEAKS.values())
    assert all(name == name.strip() for name in _PEAKS)


@pytest.mark.parametrize(
    ("convention", "giga"), [("palm", 487.7), ("torchtitan", 481.4), ("megatron", 449.2)]
)
@pytest.mark.parametrize("described", ["config.json", "Megatron"])
def test_llama_70b_in_every_convention(convention, giga, described):
    if described == "Megatron":
        model = from_megatron(MEGATRON_LLAMA | TOLD)
        assert model.sequence_length == 8192
    else:
        model = from_huggingface(LLAMA)
    assert round(flops_per_token(model, 8192, convention) / 1e9, 1) == giga


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_and_flops_are_those_of_transformers_and_torchtitan(name):
    parameters, flops = COUNTED[name]
    model = from_huggingface(CONFIGS[name])
    assert model.parameters().total == parameters
    assert flops_per_token(model, min(4096, model.window or 4096), "torchtitan") == flops


def test_gpt2_has_learned_positions():
    config = CONFIGS["GPT-2"] | {"n_positions": 1024}
    model = from_huggingface(config)
    assert model.parameters().total == 124439808
    assert from_huggingface(config | {"n_inner": 3072}) == model
    with pytest.raises(ModelError, match="4096 tokens, but the model has positions for 1024 only"):
        flops_per_token(model, 4096, "megatron")


@pytest.mark.parametrize(
    ("arguments", "flops"),
    [  # of num_floating_point_operations of Megatron-LM (d98e8a6), for a batch of one
        (MEGATRON, 2174868359479296),
        (MEGATRON_LLAMA, 3680031058427904),
        (MEGATRON_LATENT_EXPERTS, 3205119344640),
        (MEGATRON_DEEPSEEK, 1064931126411264),
    ],
)
def test_megatron_counts_as_megatron_does(arguments, flops):
    model = from_megatron(arguments)
    length = arguments["seq_length"]
    assert flops_per_token(model, length, "megatron") * length == flops


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        (LLAMA, MEGATRON_LLAMA | TOLD),
        (
            DEEPSEEK_V3 | {"num_nextn_predict_layers": 1},
            MEGATRON_DEEPSEEK | TOLD | {"qk_layernorm": True},
        ),
        (
            CONFIGS["GPT-2"],
            MEGATRON
            | TOLD
            | {
                "num_layers": 12,
                "hidden_size": 768,
                "num_attention_heads": 12,
                "kv_channels": 64,
                "ffn_hidden_size": 3072,
                "padded_vocab_size": 50257,
                "normalization": "LayerNorm",
                "add_bias_linear": True,
                "untie_embeddings_and_output_weights": False,
                "position_embedding_type": "learned_absolute",
                "max_position_embeddings": 4096,
            },
        ),
    ],
)
def test_a_model_is_the_same_however_it_is_described(config, arguments, convention):
    one, two = from_huggingface(config), from_megatron(arguments)
    assert flops_per_token(one, 2048, convention) == flops_per_token(two, 2048, convention)


def test_groups_count_if_the_flag_is_set_or_there_is_none():
    plain = {key: value for key, value in MEGATRON_LLAMA.items() if "group" not in key}
    assert from_megatron(MEGATRON_LLAMA | {"group_query_attention": False}).attention.groups == 64
    assert from_megatron(plain | {"num_query_groups": 4}).attention.groups == 4
    assert from_megatron(plain | {"num_query_groups": None}).attention.groups == 64
    with pytest.raises(ModelError, match="'group_query_attention' is missing"):
        from_megatron(plain)


def test_parameters_need_to_be_told():
    model = from_megatron(MEGATRON)
    assert flops_per_token(model, 2048, "megatron") > 0
    with pytest.raises(ModelError, match="parameters cannot be counted"):
        flops_per_token(model, 2048, "palm")


def test_attention_in_a_window_is_not_counted_as_if_it_were_full():
    model = from_huggingface(CONFIGS["Mistral-7B"])
    assert flops_per_token(model, 4096, "megatron") > 0
    for convention in CONVENTIONS:
        with pytest.raises(ModelError, match="8192 tokens, but some layers attend to 4096 only"):
            flops_per_token(model, 8192, convention)
    assert from_huggingface(CONFIGS["Qwen2-7B"]).window is None
    assert from_megatron(MEGATRON | {"window_size": [127, 0]}).window == 128
    assert from_megatron(MEGATRON | {"window_size": (-1, -1)}).window is None


MAY_BE_LEFT_OUT = {
    "attention_bias",
    "mlp_bias",
    "mlp_only_layers",
    "moe_layer_freq",
    "num_nextn_predict_layers",
    "sliding_window",  # where nothing switches it on
    "tie_word_embeddings",
    "use_sliding_window",
}

OF_FAMILY = {
    "llama": {"head_dim", "num_key_value_heads"},
    "qwen3_moe": {"intermediate_size"},  # if no layer is dense
    "qwen2_moe": {"intermediate_size"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_key_that_is_missing_is_named(name):
    config = CONFIGS[name]
    family = config["model_type"]
    windowed = {"sliding_window"} if family in {"mistral", "mixtral", "gemma2"} else set()
    for key in config:
        left = {other: value for other, value in config.items() if other != key}
        if key in (MAY_BE_LEFT_OUT | OF_FAMILY.get(family, set())) - windowed:
            continue
        with pytest.raises(ModelError, match=f"^config.json: the key '{key}' is missing$"):
            from_huggingface(left)


@pytest.mark.parametrize("key", sorted(set(MEGATRON) - {"seq_length", "num_query_groups"}))
def test_an_argument_that_is_missing_is_named(key):
    left = {other: value for other, value in MEGATRON.items() if other != key}
    if MEGATRON[key] is None or key == "group_query_attention":
        from_megatron(left)
        return
    with pytest.raises(ModelError, match=f"Megatron's arguments: the key '{key}' is missing"):
        from_megatron(left)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mamba2"}, "models of type 'mamba2' are not known; known are deepseek_v2"),
        ({"model_type": ["llama"]}, "models of type"),
        ({"hidden_size": "8192"}, "'hidden_size' is '8192', not a whole number"),
        ({"hidden_size": True}, "'hidden_size' is True, not a whole number"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0, not a whole number from 1 on"),
        ({"num_attention_heads": 7}, "'hidden_size' 8192 is not a multiple of"),
        ({"tie_word_embeddings": "no"}, "neither true nor false"),
        (QWEN3_MOE | {"mlp_only_layers": 3}, "'mlp_only_layers' is 3, not a list"),
        (DEEPSEEK_V3 | {"attention_bias": True}, "'attention_bias' is true"),
    ],
)
def test_what_makes_no_sense_is_refused(change, words):
    with pytest.raises(ModelError, match=words):
        from_huggingface(LLAMA | change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hybrid_layer_pattern": "M*M-"}, "'hybrid_layer_pattern' is 'M\\*M-'"),
        ({"experimental_attention_variant": "gdn2"}, "such models are not supported"),
        (
            {"num_experts": 8, "moe_layer_freq": "([1]*96)"},
            "neither a whole number nor a list of 96",
        ),
        (
            {"num_experts": 8, "moe_layer_freq": [[]] * 96},
            "neither a whole number nor a list of 96",
        ),
        ({"num_experts": 8, "moe_layer_freq": [1]}, "neither a whole number nor a list of 96"),
        ({"num_experts": 8, "moe_layer_freq": 1}, "'moe_router_topk' is missing"),
        ({"window_size": 4096}, "not two whole numbers"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(change, words):
    with pytest.raises(ModelError, match=words):
        from_megatron(MEGATRON | change)


def test_conventions_and_lengths_are_checked():
    model = from_huggingface(LLAMA)
    with pytest.raises(
        ModelError, match="'chinchilla' is not a way to count FLOPs; choose from mega"
    ):
        flops_per_token(model, 8192, "chinchilla")
    with pytest.raises(ModelError, match="at least one token, not 0"):
        flops_per_token(model, 0, "palm")


def test_files_are_told_apart(tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(LLAMA))
    assert read_model(path) == from_huggingface(LLAMA)
    path.write_text(json.dumps(MEGATRON))
    assert read_model(path) == from_megatron(MEGATRON)
    for text, words in (("{", "cannot be read as JSON"), ("[]", "a list"), ("{}", "'model_type'")):
        path.write_text(text)
        with pytest.raises(ModelError, match=words) as raised:
            read_model(path)
        assert str(raised.value).startswith(str(path))
    with pytest.raises(ModelError, match="cannot be read"):
        read_model(tmp_path / "none.json")


def test_utilization_of_a_step():
    # 4 devices of 1 PFLOP/s and 10 s could do 40 PFLOP: 16 were wanted, 20 were done in 30 s.
    found = mfu(
        step_ns=10 * 10**9,
        devices=4,
        model_flops=16 * 10**15,
        convention="palm",
        executed_flops=20 * 10**15,
        peak=1e15,
        compute_ns=30 * 10**9,
    )
    assert found == Utilization(
        convention="palm",
        model_flops=16 * 10**15,
        executed_flops=20 * 10**15,
        step_ns=10 * 10**9,
        devices=4,
        peak=1e15,
        compute_ns=30 * 10**9,
        mfu=0.4,
        hfu=0.5,
        compute_share=0.75,
        compute_utilization=16 / 30,
        executed_ratio=1.25,
        flops_per_second=4e14,
    )
    assert json.loads(msgspec.json.encode(found))["mfu"] == 0.4


@given(
    st.integers(1, 10**12),
    st.integers(1, 10**5),
    st.integers(1, 10**22),
    st.floats(1e12, 1e16),
    st.integers(1, 10**15),
)
def test_the_factors_make_the_whole(step_ns, devices, flops, peak, compute_ns):
    found = mfu(
        step_ns=step_ns, devices=devices, model_flops=flops, peak=peak, compute_ns=compute_ns
    )
    assert found.mfu == pytest.approx(found.compute_share * found.compute_utilization)
    assert found.mfu * peak == pytest.approx(found.flops_per_second)


def test_what_is_not_known_is_null():
    bare = mfu(step_ns=10, devices=2)
    assert {name for name in bare.__struct_fields__ if getattr(bare, name) is not None} == {
        "step_ns",
        "devices",
    }
    without_peak = mfu(step_ns=10, devices=2, model_flops=100, executed_flops=150, compute_ns=5)
    assert (without_peak.mfu, without_peak.hfu) == (None, None)
    assert without_peak.compute_utilization is None
    assert (without_peak.compute_share, without_peak.executed_ratio) == (0.25, 1.5)
    assert mfu(step_ns=10, devices=2, executed_flops=100, peak=1e9).hfu == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"step_ns": 0}, "the step's time is 0"),
        ({"devices": -1}, "the number of devices is -1"),
        ({"peak": 0.0}, "the peak is 0.0"),
        ({"peak": float("nan")}, "the peak is nan"),
        ({"model_flops": 0}, "the number of model FLOPs is 0"),
    ],
)
def test_what_cannot_be_divided_by_is_refused(given, words):
    with pytest.raises(ModelError, match=words):
        mfu(**{"step_ns": 10, "devices": 1} | given)
