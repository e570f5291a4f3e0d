"""Names of sail-sg/zero-bubble-pipeline-parallelism, `zerobubble/runtime.py`."""

from __future__ import annotations

import re
from typing import Final

from bubblescope.model.kinds import Kind
from bubblescope.names.parsed import LETTERS, ParsedName

_DIRECTIONS: Final = {
    ("SEND", "FORWARD"): Kind.SEND_FORWARD,
    ("RECV", "FORWARD"): Kind.RECV_FORWARD,
    ("SEND", "BACKWARD"): Kind.SEND_BACKWARD,
    ("RECV", "BACKWARD"): Kind.RECV_BACKWARD,
}
_ONE_MESSAGE: Final = r"(SEND|RECV)_(FORWARD|BACKWARD|POST_VALIDATION)\.(\d+)\.(\d+)\.(\d+)"
_MESSAGE: Final = re.compile(_ONE_MESSAGE)
_MESSAGES: Final = re.compile(rf"{_ONE_MESSAGE}(?:_{_ONE_MESSAGE})*")
_OPERATION: Final = re.compile(r"(F|BW|B|W|R)(\d+)\.(\d+)\.(\d+)")
_FLUSH: Final = re.compile(r"W_clear\.(\d+)\.(\d+)")
_STEP: Final = re.compile(r"iter_(\d+)_(\d+)")


class _ZeroBubbleRanges:
    beginnings = r"(?:F|BW|B|W|R)\d|W_clear\.|(?:SEND|RECV)_|iter_"

    def parse(self, name: str) -> list[ParsedName]:
        if found := _OPERATION.fullmatch(name):
            kind = LETTERS[found[1]]
            return [ParsedName(kind, int(found[2]), int(found[3]), splits=found[1] == "B")]
        if found := _FLUSH.fullmatch(name):  # all pending weight gradients at once: no micro-batch
            return [ParsedName(Kind.BACKWARD_WEIGHT, None, int(found[1]))]
        if _MESSAGES.fullmatch(name):
            return [
                ParsedName(_DIRECTIONS[way, what], int(microbatch), int(chunk))
                if (way, what) in _DIRECTIONS
                # POST_VALIDATION carries optimizer state, not tensors
                else ParsedName(Kind.COLLECTIVE)
                for way, what, microbatch, chunk, _ in _MESSAGE.findall(name)
            ]
        if found := _STEP.fullmatch(name):
            return [ParsedName(None, step=int(found[2]), rank=int(found[1]))]
        return []


GRAMMAR: Final = _ZeroBubbleRanges()
