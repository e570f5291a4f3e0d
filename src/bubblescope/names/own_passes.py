"""Passes as a user writes them: `F3.1@5` is the forward of micro-batch 3 in chunk 1, stage 5."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from bubblescope.model.errors import NamesError
from bubblescope.model.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

PASS_LETTERS: Final = {
    "F": Kind.FORWARD,
    "B": Kind.BACKWARD,
    "I": Kind.BACKWARD_INPUT,
    "W": Kind.BACKWARD_WEIGHT,
    "R": Kind.RECOMPUTE,
}
_PASS: Final = re.compile(r"([FBIWR])(\d{1,9}|\?)(?:\.(\d{1,4}))?(?:@(\d{1,7}))?")
_SHOWN: Final = 40


class OwnPass(NamedTuple):
    """One pass; None is what is not said of it."""

    kind: str
    microbatch: int | None
    chunk: int | None
    stage: int | None


def own_passes(given: Mapping[str, str], where: str) -> dict[int, list[OwnPass]]:
    """Return the passes of each rank, in the order in which they ran.

    Args:
        given: Rank -> its passes, as text.
        where: The file that they are in, for errors.

    Raises:
        NamesError: Something is no pass, or no rank.
    """
    found = {}
    for rank, text in given.items():
        if not (rank.isdecimal() and len(rank) < _SHOWN):
            raise NamesError(
                f"{where}: {rank[:_SHOWN]!r} under [passes] is not a rank; ranks are whole numbers"
            )
        found[int(rank)] = [_pass(word, f"{where}, rank {rank}") for word in text.split()]
    return found


def _pass(word: str, where: str) -> OwnPass:
    said = _PASS.fullmatch(word)
    if said is None:
        raise NamesError(
            f"{where}: {word[:_SHOWN]!r} is not a pass; one is like F3, B3.1 or W3.1@5"
        )
    letter, *numbers = said.groups()
    return OwnPass(
        PASS_LETTERS[letter].value, *(int(one) if one and one != "?" else None for one in numbers)
    )
