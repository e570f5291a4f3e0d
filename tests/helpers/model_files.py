"""What the files that describe models hold, small."""

from __future__ import annotations

from typing import Any, Final

LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
}
"""A config.json of Hugging Face."""

MEGATRON: Final[dict[str, Any]] = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "kv_channels": 16,
    "ffn_hidden_size": 256,
    "seq_length": 128,
    "padded_vocab_size": 1000,
    "swiglu": True,
    "group_query_attention": True,
    "num_query_groups": 2,
    "num_experts": 4,
    "moe_layer_freq": 2,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 64,
    "mtp_num_layers": None,
    "normalization": "RMSNorm",
    "global_batch_size": 4,
    "world_size": 2,
}
"""Arguments of Megatron-LM, as JSON."""
