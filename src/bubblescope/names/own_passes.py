"""Passes as a user writes them: `F3.1@5` is the forward of micro-batch 3 in chunk 1, stage 5."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bubblescope.model.bounds import RANKS
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


class OwnPasses(msgspec.Struct, frozen=True):
    """The passes of a rank, in the order in which they ran.

    Attributes:
        where: The file and rank, for errors.
        passes: They.
    """

    where: str
    passes: list[OwnPass]


def own_passes(given: Mapping[str, str], where: str) -> dict[int, OwnPasses]:
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
        place = f"{where}, rank {rank}"
        found[int(rank)] = OwnPasses(place, [_pass(word, place) for word in text.split()])
    return found


def _pass(word: str, where: str) -> OwnPass:
    said = _PASS.fullmatch(word)
    if said is None:
        raise NamesError(
            f"{where}: {word[:_SHOWN]!r} is not a pass; one is like F3, B3.1 or W3.1@5"
        )
    letter, *texts = said.groups()
    numbers = [int(one) if one and one != "?" else None for one in texts]
    if any(number is not None and number >= RANKS for number in numbers):
        raise NamesError(f"{where}: {word[:_SHOWN]!r} has a number that no job has")
    return OwnPass(PASS_LETTERS[letter].value, *numbers)
