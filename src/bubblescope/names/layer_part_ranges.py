"""Names of the parts of a layer in which forwards and backwards overlap: `attn(F)`, `mlp backward`.

The first are in DeepSeek's published training profile (https://github.com/deepseek-ai/profile-data) and
in forks of Megatron-Core, the second are Megatron-Core's own, of the nodes of its overlapped 1F1B
(`ScheduleNode` in `core/pipeline_parallel/utils.py`); they begin with the embedding (`pre_process`) and
end with the loss (`post_process`, both in `core/models/common/utils.py`). There are several for each
micro-batch, one for each layer and part, and none says which it is of. The ranges around them, such as
`layer_3f-layer_4b` (`core/models/common/model_chunk_schedule_plan.py`), hold a forward and a backward
at once, so the parts tell more.
"""

from __future__ import annotations

import re
from typing import Final

from bubblescope.model.kinds import Kind
from bubblescope.names.parsed import ParsedName

_PARTS: Final = r"(?:moe_)?dispatch|(?:moe_)?combine|attn|mlp|(?:mtp_)?post_process|pre_process"
LAYER_PART: Final = rf"^(?:(?i:{_PARTS})\([FBW]\)|(?:{_PARTS}) (?:forward|backward|wgrad))$"
"""Such a name, in the syntax of Python and of Rust's regex crate."""
_PART: Final = re.compile(LAYER_PART)
_KINDS: Final = {
    "(F)": Kind.FORWARD,
    "(B)": Kind.BACKWARD,
    "(W)": Kind.BACKWARD_WEIGHT,
    "forward": Kind.FORWARD,
    "backward": Kind.BACKWARD,
    "wgrad": Kind.BACKWARD_WEIGHT,
}


class _LayerPartRanges:
    beginnings = rf"(?i:{_PARTS})[( ]"

    def parse(self, name: str) -> list[ParsedName]:
        if not _PART.fullmatch(name):
            return []
        part, _, way = name.replace("(", " (").partition(" ")
        if part.lower().endswith(("dispatch", "combine")):
            return [ParsedName(Kind.COLLECTIVE)]
        kind = _KINDS[way]
        return [ParsedName(kind, splits=kind is Kind.BACKWARD)]


GRAMMAR: Final = _LayerPartRanges()
