"""What one range name says, whichever framework gave it."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from bubblescope.model.bounds import RANKS
from bubblescope.model.kinds import Kind

LETTERS: Final = {
    "F": Kind.FORWARD,
    "B": Kind.BACKWARD,
    "BW": Kind.BACKWARD,
    "W": Kind.BACKWARD_WEIGHT,
    "R": Kind.RECOMPUTE,
}
"""What the letters of the zero-bubble papers stand for. A plain "B" may be the input gradient alone:
see `ParsedName.splits`."""
_CHUNKS: Final = 1 << 15
_STEPS: Final = 1 << 31
"""What the columns of a timeline hold."""


class ParsedName(msgspec.Struct, frozen=True):
    """What one range name says.

    Attributes:
        kind: The task kind, or None for a step marker.
        microbatch, chunk, stage, step, rank, peer, pair_stage, pair_microbatch: As in
            `Timeline.tasks`, where the name has them.
        graph: Number of the autograd graph that the pass built or went through, unique in its process,
            where its operators and not its name told it.
        received: How many receives the process posted for the pass, as far as its place tells.
        sent_to: Rank that the process sent its result to, where that is known of such a pass.
        certainty: Probability that kind and graph are right, where they were told so.
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
    graph: int | None = None
    received: int | None = None
    sent_to: int | None = None
    certainty: float | None = None
    splits: bool = False

    @property
    def possible(self) -> bool:
        """Whether its numbers can be those of a job (`bubblescope.model.bounds`)."""
        places = (
            *(self.microbatch, self.stage, self.rank, self.peer),
            *(self.pair_stage, self.pair_microbatch),
        )
        return (
            all(place is None or place < RANKS for place in places)
            and (self.chunk is None or self.chunk < _CHUNKS)
            and (self.step is None or self.step < _STEPS)
        )


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
