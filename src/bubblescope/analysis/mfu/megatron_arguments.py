"""Models as the arguments of Megatron-LM describe them.

The names are those of `megatron/training/arguments.py`, with what `validate_args` makes of them: a
namespace of a running job has them all (`vars(get_args())`), and so does a checkpoint (`args`).
"""

from __future__ import annotations

from typing import Any, Final

from bubblescope.analysis.mfu.architectures import (
    Attention,
    Description,
    Experts,
    LatentAttention,
    Model,
    shown,
)

_UNLIKE: Final = (
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "experimental_attention_variant",
    "heterogeneous_layers_config_path",
)
"""Arguments of models whose layers are not all Transformer layers of one shape."""


def from_megatron(arguments: dict[str, Any], where: str = "Megatron's arguments") -> Model:
    """Read a model from Megatron's arguments.

    What versions that do not know an argument leave out is taken for not used (`mtp_num_layers`,
    `moe_latent_size`, `attention_output_gate`, `multi_latent_attention`, `num_experts`).

    Args:
        arguments: Name -> value.
        where: What they are called in messages.

    Raises:
        ModelError: An argument is missing or makes no sense, or the layers are not of one shape.
    """
    told = Description(arguments, where)
    for key in _UNLIKE:
        if told.get(key) is not None:
            raise told.error(f"{key!r} is {told.get(key)!r}: such models are not supported")
    layers = told.layers("num_layers")
    attention = (
        _latent(told) if told.flag("multi_latent_attention", missing=False) else _attention(told)
    )
    predicted = told.maybe("mtp_num_layers", 0) or 0
    learned = told.get("position_embedding_type") == "learned_absolute"
    window = told.get("window_size")
    if window is not None and not (
        isinstance(window, list | tuple) and len(window) == 2 and type(window[0]) is int
    ):
        raise told.error(f"'window_size' is {window!r}, not two whole numbers")
    untied = "untie_embeddings_and_output_weights"
    return Model(
        name="Megatron model",
        hidden=told.whole("hidden_size"),
        layers=layers,
        vocabulary=told.whole("padded_vocab_size"),
        attention=attention,
        feed_forward=told.whole("ffn_hidden_size"),
        matrices=3 if told.flag("swiglu") else 2,
        experts=_experts(told, layers),
        predicted_layers=predicted,
        tied=None if not told.has(untied) else not told.flag(untied),
        positions=told.whole("max_position_embeddings") if learned else 0,
        vectors=_vectors(told, attention, layers, predicted),
        # A token sees so many before it, and itself; -1 is all of them.
        window=None if window is None or window[0] < 0 else window[0] + 1,
        sequence_length=told.maybe("seq_length"),
        sequences=told.maybe("global_batch_size"),
        devices=told.maybe("world_size"),
    )


def _attention(told: Description) -> Attention:
    """Read plain attention.

    `num_query_groups` counts if `group_query_attention` is set, or if that argument is not there at
    all, as in a TransformerConfig; otherwise each head has its own key.
    """
    heads = told.whole("num_attention_heads")
    if "group_query_attention" not in told and "num_query_groups" not in told:
        raise told.error("the key 'group_query_attention' is missing")
    grouped = told.flag("group_query_attention", missing=told.has("num_query_groups"))
    return Attention(
        heads=heads,
        groups=told.whole("num_query_groups") if grouped else heads,
        head_size=told.whole("kv_channels"),
        gated=told.flag("attention_output_gate", missing=False),
    )


def _latent(told: Description) -> LatentAttention:
    return LatentAttention(
        heads=told.whole("num_attention_heads"),
        query_rank=told.maybe("q_lora_rank"),
        key_rank=told.whole("kv_lora_rank"),
        plain_size=told.whole("qk_head_dim"),
        rotary_size=told.whole("qk_pos_emb_head_dim"),
        value_size=told.whole("v_head_dim"),
    )


def _experts(told: Description, layers: int) -> Experts | None:
    if not told.has("num_experts"):
        return None
    every = told.get("moe_layer_freq")
    if type(every) is int and every > 0:
        having = [layer % every == 0 for layer in range(layers)]
    elif isinstance(every, list) and len(every) == layers and all(one in (0, 1) for one in every):
        having = [one == 1 for one in every]
    else:
        raise told.error(
            f"'moe_layer_freq' is {shown(every)}, neither a whole number nor a list of {layers} zeros "
            "and ones"
        )
    if told.has("moe_ffn_hidden_size"):
        size = told.whole("moe_ffn_hidden_size")
    else:
        size = told.whole("ffn_hidden_size")
    return Experts(
        layers=sum(having),
        last=having[-1],
        count=told.whole("num_experts"),
        active=told.whole("moe_router_topk"),
        size=size,
        shared_size=told.maybe("moe_shared_expert_intermediate_size", 0) or 0,
        shared_gate=told.flag("moe_shared_expert_gate", missing=False),
        latent=told.maybe("moe_latent_size"),
    )


def _vectors(
    told: Description, attention: Attention | LatentAttention, layers: int, predicted: int
) -> int | None:
    """Return the elements of norms and biases, or None if the arguments do not tell them."""
    keys = ("normalization", "add_bias_linear", "add_qkv_bias", "qk_layernorm")
    if not told.has(*keys) or told.get("normalization") not in ("LayerNorm", "RMSNorm"):
        return None
    bias = told.flag("add_bias_linear")
    if bias and (told.has("num_experts") or isinstance(attention, LatentAttention)):
        return None
    hidden = told.whole("hidden_size")
    norm = 2 if told.get("normalization") == "LayerNorm" else 1  # a weight, or a bias as well
    found = 2 * norm * hidden
    if told.flag("qk_layernorm"):
        heads = attention.norms if isinstance(attention, LatentAttention) else 0
        found += norm * (heads or 2 * getattr(attention, "head_size", 0))
    if isinstance(attention, Attention) and (bias or told.flag("add_qkv_bias")):
        found += attention.weights(1) - attention.heads * attention.head_size
    if bias:
        gates = 2 if told.flag("swiglu") else 1
        found += 2 * hidden + gates * told.whole("ffn_hidden_size")
    return (layers + predicted) * found + norm * hidden + predicted * 3 * norm * hidden
