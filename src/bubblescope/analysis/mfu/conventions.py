"""Model FLOPs: the floating-point operations that training a model on one token takes.

They are those of the mathematics, whatever was executed: a multiplication and an addition each count
one, a backward takes twice its forward, and nothing counts twice for being recomputed. Beyond that,
people count differently, by up to 10 % on common models, so each way of counting has a name here, which
is always shown with the figure:

* ``megatron``: `num_floating_point_operations` of Megatron-LM (megatron/training/training.py), which
  Megatron prints as throughput per GPU. Attention is causal and counts half. The embedding is looked
  up and counts nothing, the output matrix counts, norms and routers do not.
* ``palm``: 6 N + 12 L H Q T of Chowdhery et al., "PaLM" (arXiv 2204.02311, appendix B): N all
  parameters, L layers, H heads, Q their size, T the length of a sequence. Attention counts in full.
  The paper is about dense models; of experts, N has those that a token goes to, and a head that is
  not of one size counts 6 (query + value size) instead of 12 Q.
* ``torchtitan``: 6 (N - embedding) + 6 L H (query + value size) T of
  `get_dense_model_nparams_and_flops` and `get_moe_model_nparams_and_flops` of torchtitan
  (torchtitan/models/utils.py). N as above; the embedding stays in if the output matrix is tied to it.
  Attention counts in full, L leaves out layers that predict further tokens.

All of them take it that each token of a sequence attends to all others, or all before it. For models
that attend to a window only, that holds as long as sequences are no longer than it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bubblescope.analysis.mfu.architectures import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.analysis.mfu.architectures import Model


def flops_per_token(model: Model, sequence_length: int, convention: str) -> int:
    """Return the model FLOPs of forward and backward for one token.

    Args:
        model: The model.
        sequence_length: Tokens of a sequence.
        convention: One of `CONVENTIONS`.

    Raises:
        ModelError: No such convention, the model's parameters cannot be counted as it wants, or
            sequences are longer than the model's window of attention or its learned positions.
    """
    if convention not in CONVENTIONS:
        raise ModelError(
            f"{convention!r} is not a way to count FLOPs; choose from {', '.join(CONVENTIONS)}"
        )
    if sequence_length < 1:
        raise ModelError(f"a sequence has at least one token, not {sequence_length}")
    if model.window is not None and sequence_length > model.window:
        raise ModelError(
            f"{model.name}: sequences have {sequence_length} tokens, but some layers attend to "
            f"{model.window} only, which no convention counts, so model FLOPs are not known"
        )
    if model.positions and sequence_length > model.positions:
        raise ModelError(
            f"{model.name}: sequences have {sequence_length} tokens, but the model has positions for "
            f"{model.positions} only"
        )
    return _COUNT[convention](model, sequence_length)


def _megatron(model: Model, length: int) -> int:
    """Count as Megatron-LM does.

    6 [A + F + P (2 h^2 + 3 h) + h V (1 + P)] + 3 T (L + P) D with, for a model with hidden size h,
    vocabulary V, L layers and P more that predict further tokens: A and F the elements of the attention
    and feed-forward matrices that a token meets; D the sum over heads of query and value size. Latent
    queries and keys count one more for each of their values, for the norm.
    """
    hidden, further = model.hidden, model.predicted_layers
    layers = model.layers + further
    matrices = (
        layers * (model.attention.weights(hidden) + model.attention.norms)
        + model.feed_forward_weights()
        + further * (2 * hidden**2 + 3 * hidden)
        + hidden * model.vocabulary * (1 + further)
    )
    return 6 * matrices + 3 * length * layers * model.attention.pair_size


def _palm(model: Model, length: int) -> int:
    """Count 6 N + 12 L H Q T."""
    layers = model.layers + model.predicted_layers
    return 6 * model.parameters().active + 6 * layers * model.attention.pair_size * length


def _torchtitan(model: Model, length: int) -> int:
    """Count 6 (N - embedding) + 6 L H (query + value size) T."""
    parameters = model.parameters()
    multiplied = parameters.active - (0 if model.tied else parameters.embedding)
    return 6 * multiplied + 6 * model.layers * model.attention.pair_size * length


_COUNT: Final[dict[str, Callable[[Model, int], int]]] = {
    "megatron": _megatron,
    "palm": _palm,
    "torchtitan": _torchtitan,
}

CONVENTIONS: Final[dict[str, str]] = {
    "megatron": "Megatron-LM's count: matrices without the embedding, causal attention as half",
    "palm": "PaLM's 6 N + 12 L H Q T: all parameters, attention in full",
    "torchtitan": "torchtitan's count: parameters without the embedding, attention in full",
}
"""One line for each, to be printed beside the figure."""
