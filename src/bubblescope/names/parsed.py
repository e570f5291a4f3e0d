"""What one range name says, whichever framework gave it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from bubblescope.model.kinds import Kind


class ParsedName(msgspec.Struct, frozen=True):
    """What one range name says.

    Attributes:
        kind: The task kind, or None for a step marker.
        microbatch: Micro-batch index within the step, if the name has one.
        chunk: Model chunk on the rank, if the name has one.
        stage: Global virtual stage, if the name has one.
        step: Training step, if the name has one.
        rank: Global rank, if the name has one.
        peer: Other rank of a send or receive, if the name has one.
        pair_stage, pair_microbatch: Of the backward half of an overlapped forward and backward.
        splits: The name is a plain "B", which means the input gradient alone wherever the same
            rank also has weight-gradient tasks, and the fused backward everywhere else.
    """

    kind: Kind | None
    microbatch: int | None = None
    chunk: int | None = None
    stage: int | None = None
    step: int | None = None
    rank: int | None = None
    peer: int | None = None
    pair_stage: int | None = None
    pair_microbatch: int | None = None
    splits: bool = False


class Grammar(Protocol):
    """How one framework names its ranges.

    Another package adds one by declaring an object of this kind as an entry point in the group
    ``bubblescope.names``.
    """

    beginnings: str
    """A regular expression, in the syntax of Rust's regex crate, that matches at the beginning of every
    name of the grammar: names that match none are spared Python."""

    def parse(self, name: str) -> list[ParsedName]:
        """Return what one name stands for.

        That is no operation if it is of another framework, and several if it is fused.
        """
