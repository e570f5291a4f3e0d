"""Models as the `config.json` of Hugging Face transformers describes them.

A family of models is known by `model_type`. Where a file leaves out a key, the value is the default of
the family's configuration class if that is one that files do leave out (`tie_word_embeddings`, biases,
`num_key_value_heads` of Llama); any other key must be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from bubblescope.analysis.mfu.architectures import (
    Attention,
    Description,
    Experts,
    LatentAttention,
    Model,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def from_huggingface(config: dict[str, Any], where: str = "config.json") -> Model:
    """Read a model's configuration.

    Layers that predict further tokens (`num_nextn_predict_layers` of DeepSeek-V3) belong to the model
    as it is described; set the number to 0 for a job that trains without them.

    Args:
        config: The parsed file.
        where: What it is called in messages.

    Raises:
        ModelError: A key is missing or makes no sense, or the family is not known.
    """
    told = Description(config, where)
    family = told.get("model_type")
    if family is None:
        raise told.error("the key 'model_type' is missing")
    if not isinstance(family, str) or family not in _FAMILIES:
        raise told.error(
            f"models of type {family!r} are not known; known are {', '.join(sorted(_FAMILIES))}"
        )
    return _FAMILIES[family](told, family)


def _gated(
    told: Description,
    family: str,
    *,
    norms: int = 2,
    query_key_norms: bool = False,
    query_bias: bool = False,
    tied: bool = False,
    head_size: bool = False,
    window: Literal["none", "said", "switched"] = "none",
    experts: Callable[[Description, int], Experts] | None = None,
) -> Model:
    """Read a model of the shape of Llama: RMS norms, rotary positions, gated feed-forward networks.

    Args:
        told: The configuration.
        family: Its model_type.
        norms: Norms of a layer.
        query_key_norms: Whether queries and keys of a head are normalised besides.
        query_bias: Whether queries, keys and values always have biases.
        tied: What a missing `tie_word_embeddings` means.
        head_size: Whether `head_dim` must be there, because the default is not hidden size by heads.
        window: Whether attention may be limited to `sliding_window` tokens, and whether
            `use_sliding_window` switches that on.
        experts: Reads the experts; None for dense models.
    """
    hidden, layers = told.whole("hidden_size"), told.layers("num_hidden_layers")
    heads = told.whole("num_attention_heads")
    if family == "llama" and not told.has("num_key_value_heads"):
        groups = heads
    else:
        groups = told.whole("num_key_value_heads")
    if head_size or told.has("head_dim"):
        size = told.whole("head_dim")
    else:
        size = told.share("hidden_size", "num_attention_heads")
    feed_forward = told.whole("intermediate_size") if told.has("intermediate_size") else 0
    found = None if experts is None else experts(told, layers)
    if not feed_forward and (found is None or found.layers < layers):
        feed_forward = told.whole("intermediate_size")
    bias = told.flag("attention_bias", missing=False)
    vectors = norms * hidden
    if query_bias or bias:
        vectors += (heads + 2 * groups) * size
    if bias:
        vectors += hidden
    if told.flag("mlp_bias", missing=False):
        vectors += 2 * feed_forward + hidden
    if query_key_norms:
        vectors += 2 * size
    return Model(
        name=family,
        hidden=hidden,
        layers=layers,
        vocabulary=told.whole("vocab_size"),
        attention=Attention(heads=heads, groups=groups, head_size=size),
        feed_forward=feed_forward,
        matrices=3,
        experts=found,
        tied=told.flag("tie_word_embeddings", missing=tied),
        vectors=layers * vectors + hidden,
        window=_window(told, window),
    )


def _window(told: Description, window: str) -> int | None:
    """Return how many tokens some layer attends to at most."""
    if window == "none" or (
        window == "switched" and not told.flag("use_sliding_window", missing=False)
    ):
        return None
    return told.optional("sliding_window")


def _mistral(told: Description, family: str) -> Model:
    return _gated(told, family, window="said")


def _qwen2(told: Description, family: str) -> Model:
    return _gated(told, family, query_bias=True, window="switched")


def _qwen3(told: Description, family: str) -> Model:
    return _gated(told, family, query_key_norms=True, head_size=True, window="switched")


def _gemma(told: Description, family: str) -> Model:
    return _gated(told, family, tied=True, head_size=True)


def _gemma2(told: Description, family: str) -> Model:
    return _gated(told, family, norms=4, tied=True, head_size=True, window="said")


def _gemma3(told: Description, family: str) -> Model:
    return _gated(
        told, family, norms=4, query_key_norms=True, tied=True, head_size=True, window="said"
    )


def _mixtral(told: Description, family: str) -> Model:
    def experts(told: Description, layers: int) -> Experts:
        return Experts(
            layers=layers,
            last=True,
            count=told.whole("num_local_experts"),
            active=told.whole("num_experts_per_tok"),
            size=told.whole("intermediate_size"),
        )

    return _gated(told, family, window="said", experts=experts)


def _qwen_experts(told: Description, layers: int) -> Experts:
    """Read the experts of Qwen2-MoE and Qwen3-MoE; some layers may be dense."""
    step = told.whole("decoder_sparse_step")
    dense = told.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise told.error(f"'mlp_only_layers' is {dense!r}, not a list")
    having = [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]
    shared = told.maybe("shared_expert_intermediate_size", 0) or 0  # of Qwen2-MoE alone
    return Experts(
        layers=sum(having),
        last=having[-1],
        count=told.whole("num_experts"),
        active=told.whole("num_experts_per_tok"),
        size=told.whole("moe_intermediate_size"),
        shared_size=shared,
        shared_gate=shared > 0,
    )


def _qwen2_moe(told: Description, family: str) -> Model:
    told.whole("shared_expert_intermediate_size", 0)
    bias = told.flag("qkv_bias", missing=True)
    return _gated(told, family, query_bias=bias, window="switched", experts=_qwen_experts)


def _qwen3_moe(told: Description, family: str) -> Model:
    return _gated(
        told,
        family,
        query_key_norms=True,
        head_size=True,
        window="switched",
        experts=_qwen_experts,
    )


def _deepseek(told: Description, family: str) -> Model:
    """Read DeepSeek-V2 or V3: latent attention, the first layers dense, the others of experts."""
    hidden, layers = told.whole("hidden_size"), told.layers("num_hidden_layers")
    if told.flag("attention_bias", missing=False):
        raise told.error("'attention_bias' is true, which no published model of its type has")
    attention = LatentAttention(
        heads=told.whole("num_attention_heads"),
        query_rank=told.optional("q_lora_rank"),
        key_rank=told.whole("kv_lora_rank"),
        plain_size=told.whole("qk_nope_head_dim"),
        rotary_size=told.whole("qk_rope_head_dim"),
        value_size=told.whole("v_head_dim"),
    )
    first, step = told.whole("first_k_dense_replace", 0), told.maybe("moe_layer_freq") or 1
    having = [layer >= first and layer % step == 0 for layer in range(layers)]
    size = told.whole("moe_intermediate_size")
    predicted = told.maybe("num_nextn_predict_layers", 0) or 0
    vectors = 2 * hidden + attention.norms
    return Model(
        name=family,
        hidden=hidden,
        layers=layers,
        vocabulary=told.whole("vocab_size"),
        attention=attention,
        feed_forward=told.whole("intermediate_size"),
        matrices=3,
        experts=Experts(
            layers=sum(having),
            last=having[-1],
            count=told.whole("n_routed_experts"),
            active=told.whole("num_experts_per_tok"),
            size=size,
            shared_size=size * (told.optional("n_shared_experts", 0) or 0),
        ),
        predicted_layers=predicted,
        tied=told.flag("tie_word_embeddings", missing=False),
        # A layer that predicts a further token normalises both its inputs and its output.
        vectors=(layers + predicted) * vectors + hidden + predicted * 3 * hidden,
    )


def _ungated(
    told: Description, family: str, keys: dict[str, str], *, positions: bool, tied: bool
) -> Model:
    """Read a model of the shape of GPT-2: layer norms and biases everywhere, no gates.

    Args:
        told: The configuration.
        family: Its model_type.
        keys: What the family calls hidden, layers, heads and feed_forward.
        positions: Whether positions are learned.
        tied: What a missing `tie_word_embeddings` means.
    """
    hidden, layers = told.whole(keys["hidden"]), told.layers(keys["layers"])
    heads = told.whole(keys["heads"])
    if family == "gpt2" and not told.has(keys["feed_forward"]):
        feed_forward = 4 * hidden
    else:
        feed_forward = told.whole(keys["feed_forward"])
    # Two norms with a weight and a bias; biases of queries, keys, values, output and both matrices.
    vectors = 4 * hidden + feed_forward + hidden
    if told.flag("attention_bias", missing=True):
        vectors += 4 * hidden
    return Model(
        name=family,
        hidden=hidden,
        layers=layers,
        vocabulary=told.whole("vocab_size"),
        attention=Attention(
            heads=heads, groups=heads, head_size=told.share(keys["hidden"], keys["heads"])
        ),
        feed_forward=feed_forward,
        matrices=2,
        tied=told.flag("tie_word_embeddings", missing=tied),
        positions=told.whole("n_positions") if positions else 0,
        vectors=layers * vectors + 2 * hidden,
    )


def _gpt2(told: Description, family: str) -> Model:
    keys = {"hidden": "n_embd", "layers": "n_layer", "heads": "n_head", "feed_forward": "n_inner"}
    return _ungated(told, family, keys, positions=True, tied=True)


def _gpt_neox(told: Description, family: str) -> Model:
    keys = {
        "hidden": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "feed_forward": "intermediate_size",
    }
    return _ungated(told, family, keys, positions=False, tied=False)


_FAMILIES: Final[dict[str, Callable[[Description, str], Model]]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": _gated,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
