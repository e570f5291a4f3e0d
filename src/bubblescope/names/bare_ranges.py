"""Names that many hand-written loops use: a letter, perhaps with a micro-batch; and optimizers."""

from __future__ import annotations

import re
from typing import Final

from bubblescope.model.kinds import Kind
from bubblescope.names.parsed import LETTERS, ParsedName

_BARE: Final = re.compile(r"(F|BW|B|W|R)(\d+)?")
_OPTIMIZER: Final = re.compile(
    r"optimizer(?:[_.# ]?step)?|Optimizer\.step#\w+\.step", re.IGNORECASE
)


class _BareRanges:
    beginnings = r"(?:F|BW|B|W|R)(?:\d|$)|(?i:optimizer)"

    def parse(self, name: str) -> list[ParsedName]:
        if found := _BARE.fullmatch(name):
            microbatch = None if found[2] is None else int(found[2])
            return [ParsedName(LETTERS[found[1]], microbatch, splits=found[1] == "B")]
        if _OPTIMIZER.fullmatch(name):
            return [ParsedName(Kind.OPTIMIZER)]
        return []


GRAMMAR: Final = _BareRanges()
