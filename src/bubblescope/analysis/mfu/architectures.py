"""What of a language model decides its floating-point operations: the sizes of its matrices."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bubblescope.model.errors import BubblescopeError


class ModelError(BubblescopeError):
    """The description of a model cannot be used; the message names the key at fault."""


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Attention with one key for each head, or for each group of heads.

    Attributes:
        heads: Heads of the queries.
        groups: Heads of the keys and of the values.
        head_size: Length of a query, a key and a value of one head.
        gated: The output is multiplied by another projection of the input (Qwen3-Next).
    """

    heads: int
    groups: int
    head_size: int
    gated: bool = False

    @property
    def pair_size(self) -> int:
        """Return, over all heads, how many multiplications a pair of tokens takes."""
        return 2 * self.heads * self.head_size

    @property
    def norms(self) -> int:
        """Return how many latent values a layer normalises before it uses them."""
        return 0

    def weights(self, hidden: int) -> int:
        """Return the elements of a layer's matrices."""
        queries, keys = self.heads * self.head_size, self.groups * self.head_size
        return hidden * ((3 if self.gated else 2) * queries + 2 * keys)


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: keys and values come from a short vector (DeepSeek-V2, section 2.1).

    Attributes:
        heads: Heads.
        query_rank: Length of the latent query, or None if queries are projected at once.
        key_rank: Length of the latent vector of keys and values.
        plain_size: Length of a head's query without the part that is rotated by position.
        rotary_size: Length of that part, which all heads' keys share.
        value_size: Length of a head's value.
    """

    heads: int
    query_rank: int | None
    key_rank: int
    plain_size: int
    rotary_size: int
    value_size: int

    @property
    def pair_size(self) -> int:
        """Return, over all heads, how many multiplications a pair of tokens takes."""
        return self.heads * (self.plain_size + self.rotary_size + self.value_size)

    @property
    def norms(self) -> int:
        """Return how many latent values a layer normalises before it uses them."""
        return (self.query_rank or 0) + self.key_rank

    def weights(self, hidden: int) -> int:
        """Return the elements of a layer's matrices."""
        queries = self.heads * (self.plain_size + self.rotary_size)
        rank = self.query_rank
        return (
            (hidden * queries if rank is None else rank * (hidden + queries))
            + self.key_rank * (hidden + self.heads * (self.plain_size + self.value_size))
            + hidden * self.rotary_size
            + self.heads * self.value_size * hidden
        )


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """Layers whose feed-forward network is one of many for each token.

    Attributes:
        layers: How many layers have experts, without those that predict further tokens.
        last: Whether the last layer has; layers that predict further tokens are made like it.
        count: Routed experts of a layer.
        active: How many of them a token goes to.
        size: Width of a routed expert.
        shared_size: Width of the shared experts together; 0 if there are none.
        shared_gate: A vector weighs the shared experts (Qwen2-MoE).
        latent: Routed experts work on a projection of this length; None for the hidden state itself.
    """

    layers: int
    last: bool
    count: int
    active: int
    size: int
    shared_size: int = 0
    shared_gate: bool = False
    latent: int | None = None


class Parameters(msgspec.Struct, frozen=True):
    """How many parameters a model has.

    Attributes:
        total: All of them; tied matrices once.
        active: Those that a token meets: of routed experts, the share that it goes to.
        embedding: Those that are looked up, tokens and learned positions.
    """

    total: int
    active: int
    embedding: int


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only Transformer.

    Attributes:
        name: What it calls itself.
        hidden: Length of the hidden state.
        layers: Transformer layers, without those that predict further tokens.
        vocabulary: Rows of the output matrix, with padding where it is known.
        attention: Of every layer.
        feed_forward: Width of the dense feed-forward network.
        matrices: Of a feed-forward network: 3 if it is gated (SwiGLU, GeGLU), 2 if not.
        experts: None for a dense model.
        predicted_layers: Layers that predict further tokens (multi-token prediction).
        tied: The output matrix is that of the embedding; None if unknown.
        positions: Rows of the learned position embedding.
        vectors: Elements of all norms and biases; None if unknown.
        window: How many tokens some layer attends to at most; None if all.
        sequence_length: Of the training, where the description tells.
        sequences: Of a step of it over all devices, where the description tells.
        devices: Of the training, where the description tells.
    """

    name: str
    hidden: int
    layers: int
    vocabulary: int
    attention: Attention | LatentAttention
    feed_forward: int
    matrices: int
    experts: Experts | None = None
    predicted_layers: int = 0
    tied: bool | None = None
    positions: int = 0
    vectors: int | None = None
    window: int | None = None
    sequence_length: int | None = None
    sequences: int | None = None
    devices: int | None = None

    @property
    def expert_layers(self) -> int:
        """Return how many layers have experts, with those that predict further tokens."""
        if self.experts is None:
            return 0
        return self.experts.layers + self.experts.last * self.predicted_layers

    @property
    def dense_layers(self) -> int:
        """Return how many layers have a dense network, with those that predict further tokens."""
        return self.layers + self.predicted_layers - self.expert_layers

    def feed_forward_weights(self) -> int:
        """Return the elements of the feed-forward matrices that a token meets, without routers."""
        found = self.dense_layers * self.matrices * self.hidden * self.feed_forward
        if self.experts is not None:
            found += self.expert_layers * (
                self.experts.active * self._routed(self.experts) + self._always(self.experts)
            )
        return found

    def parameters(self) -> Parameters:
        """Count the parameters.

        Raises:
            ModelError: The description leaves out what is needed for it.
        """
        if self.vectors is None or self.tied is None:
            raise ModelError(
                f"{self.name}: the parameters cannot be counted, because it does not state whether "
                "there are biases, what the norms are and whether the output matrix is tied to "
                "the embedding"
            )
        embedding = self.hidden * (self.vocabulary + self.positions)
        shared = (
            embedding
            + (0 if self.tied else self.hidden * self.vocabulary)
            + (self.layers + self.predicted_layers) * self.attention.weights(self.hidden)
            + self.predicted_layers * 2 * self.hidden**2
            + self.dense_layers * self.matrices * self.hidden * self.feed_forward
            + self.vectors
        )
        if self.experts is None:
            return Parameters(shared, shared, embedding)
        experts, layers = self.experts, self.expert_layers
        gates = self.hidden * (experts.count + experts.shared_gate)
        shared += layers * (self._always(experts) + gates)
        routed = layers * experts.count * self._routed(experts)
        return Parameters(
            shared + routed, shared + routed * experts.active // experts.count, embedding
        )

    def _routed(self, experts: Experts) -> int:
        """Return the elements of the matrices of one routed expert."""
        return self.matrices * experts.size * (experts.latent or self.hidden)

    def _always(self, experts: Experts) -> int:
        """Return those that all tokens meet in a layer of experts: shared ones and projections."""
        return self.hidden * (self.matrices * experts.shared_size + 2 * (experts.latent or 0))


_LARGEST: Final = 10**15
"""More than any number is that describes a model, a batch or a job."""
_MOST_LAYERS: Final = 1_000_000


class Description:
    """A mapping that describes a model, read with clear errors.

    Args:
        values: Key -> value, as parsed from JSON or taken from an argparse namespace.
        where: What it is called in messages, such as the path of a file.
    """

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise ModelError(f"{where}: this is not a description of a model but {_kind(values)}")
        self._values = values
        self.where = where

    def error(self, problem: str) -> ModelError:
        """Return the error that says what is wrong with the description."""
        return ModelError(f"{self.where}: {problem}")

    def has(self, *keys: str) -> bool:
        """Say whether all of some keys are there and not null."""
        return all(self._values.get(key) is not None for key in keys)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> Any:
        """Return a value, or None if the key is missing or null."""
        return self._values.get(key)

    def whole(self, key: str, least: int = 1, most: int = _LARGEST) -> int:
        """Return a whole number that must be there."""
        if key not in self._values:
            raise self.error(f"the key {key!r} is missing")
        value = self._values[key]
        if type(value) is not int or value < least:
            raise self.error(f"{key!r} is {shown(value)}, not a whole number from {least} on")
        if value > most:
            raise self.error(f"{key!r} is {shown(value)}, more than any model has")
        return value

    def layers(self, key: str) -> int:
        """Return a number of layers, of which each is looked at."""
        return self.whole(key, most=_MOST_LAYERS)

    def maybe(self, key: str, least: int = 1) -> int | None:
        """Return a whole number, or None if the key is missing or null."""
        return self.whole(key, least) if self.has(key) else None

    def optional(self, key: str, least: int = 1) -> int | None:
        """Return a whole number, or None if the key is null; it must be there."""
        if key not in self:
            raise self.error(f"the key {key!r} is missing")
        return self.maybe(key, least)

    def flag(self, key: str, *, missing: bool | None = None) -> bool:
        """Return a truth value; `missing` is what a missing or null key means, if it may be."""
        value = self._values.get(key)
        if value is None and missing is not None:
            return missing
        if key not in self._values:
            raise self.error(f"the key {key!r} is missing")
        if type(value) is not bool:
            raise self.error(f"{key!r} is {shown(value)}, neither true nor false")
        return value

    def share(self, whole: str, parts: str) -> int:
        """Return how much of one number goes to each of another."""
        size, count = self.whole(whole), self.whole(parts)
        if size % count:
            raise self.error(f"{whole!r} {size} is not a multiple of {parts!r} {count}")
        return size // count


def shown(value: object) -> str:
    """Return a value for a message, which is no place for all of a long one."""
    if type(value) is int and abs(value) > _LARGEST:
        return f"a number of {value.bit_length()} bits"  # which may be too many to be written out
    return f"{value!r:.40}"


def _kind(value: object) -> str:
    return "a list" if isinstance(value, list) else shown(value)
