"""Names of torch.distributed.pipelining, of torch.profiler, and of Meta's trainers."""

from __future__ import annotations

import re
from typing import Final

from bubblescope.model.kinds import Kind
from bubblescope.names.parsed import ParsedName

_ACTION: Final = re.compile(r"PP:(\d+)([A-Z_]+?)(\d*)")
_OVERLAP: Final = re.compile(r"PP:\((\d+)F(\d+);(\d+)[BI](\d+)\)OVERLAP_F_B")
_ACTIONS: Final = {
    "F": Kind.FORWARD,
    "B": Kind.BACKWARD,
    "I": Kind.BACKWARD_INPUT,
    "W": Kind.BACKWARD_WEIGHT,
    "SEND_F": Kind.SEND_FORWARD,
    "RECV_F": Kind.RECV_FORWARD,
    "SEND_B": Kind.SEND_BACKWARD,
    "RECV_B": Kind.RECV_BACKWARD,
    "UNSHARD": Kind.COLLECTIVE,
    "RESHARD": Kind.COLLECTIVE,
    "REDUCE_GRAD": Kind.COLLECTIVE,
}
_WORD: Final = re.compile(r"(Forward|Backward) (\d+)")
_STEP: Final = re.compile(r"ProfilerStep#(\d+)")
_BANNER: Final = re.compile(r"## (forward|backward|optimizer) ##")


class _TorchRanges:
    beginnings = r"PP:|Forward |Backward |ProfilerStep#|## (?:forward|backward|optimizer) ##"

    def parse(self, name: str) -> list[ParsedName]:
        if (found := _ACTION.fullmatch(name)) and found[2] in _ACTIONS:
            microbatch = int(found[3]) if found[3] else None
            return [ParsedName(_ACTIONS[found[2]], microbatch, stage=int(found[1]))]
        if found := _OVERLAP.fullmatch(name):
            stage, microbatch, pair_stage, pair_microbatch = map(int, found.groups())
            return [
                ParsedName(
                    Kind.FORWARD_BACKWARD,
                    microbatch,
                    stage=stage,
                    pair_stage=pair_stage,
                    pair_microbatch=pair_microbatch,
                )
            ]
        if found := _WORD.fullmatch(name):
            return [ParsedName(Kind(found[1].lower()), int(found[2]))]
        if found := _STEP.fullmatch(name):
            return [ParsedName(None, step=int(found[1]))]
        if found := _BANNER.fullmatch(name):
            return [ParsedName(Kind(found[1]))]
        return []


GRAMMAR: Final = _TorchRanges()
