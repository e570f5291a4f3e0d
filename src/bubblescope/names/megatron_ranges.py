"""Names of Megatron-Core's `nvtx_decorator` (module path) and timers, of Megatron Bridge and NeMo.

`nvtx_range_push(suffix=...)` names a range after the function that it is called in, and the suffix: so
Megatron Bridge has `megatron.bridge.training.train.train.training_step_7` around each step, and
`...train_step.optimizer_step` (NVIDIA-NeMo/Megatron-Bridge, `training/train.py`). NeMo's optimizer has
`nemo.core.optim.mcore_optim.step.step`, and the same with `.step.closure` around the passes that
Lightning runs in its step, which are none of the optimizer's (NVIDIA/NeMo,
`nemo/core/optim/mcore_optim.py`).
"""

from __future__ import annotations

import re
from typing import Final

from bubblescope.model.kinds import Kind
from bubblescope.names.parsed import ParsedName

_PATH: Final = re.compile(
    r"megatron\.core\.pipeline_parallel\.(?:schedules|combined_1f1b|p2p_communication)\.(\w+)",
)
_BRIDGE: Final = re.compile(r"(?:megatron(?:\.\w+)*\.)?(?:training_step_(\d{1,9})|optimizer_step)")
_NEMO_OPTIMIZER: Final = "nemo.core.optim.mcore_optim.step.step"
_FUNCTIONS: Final = {
    "forward_step": (Kind.FORWARD,),
    "backward_step": (Kind.BACKWARD,),
    "recv_forward": (Kind.RECV_FORWARD,),
    "recv_backward": (Kind.RECV_BACKWARD,),
    "send_forward": (Kind.SEND_FORWARD,),
    "send_backward": (Kind.SEND_BACKWARD,),
    "send_forward_recv_backward": (Kind.SEND_FORWARD, Kind.RECV_BACKWARD),
    "send_backward_recv_forward": (Kind.SEND_BACKWARD, Kind.RECV_FORWARD),
    "send_forward_recv_forward": (Kind.SEND_FORWARD, Kind.RECV_FORWARD),
    "send_backward_recv_backward": (Kind.SEND_BACKWARD, Kind.RECV_BACKWARD),
    "send_forward_backward_recv_forward_backward": (
        Kind.SEND_FORWARD,
        Kind.SEND_BACKWARD,
        Kind.RECV_FORWARD,
        Kind.RECV_BACKWARD,
    ),
}
_TIMERS: Final = {
    "forward-compute": "forward_step",
    "backward-compute": "backward_step",
    "forward-recv": "recv_forward",
    "backward-recv": "recv_backward",
    "forward-send": "send_forward",
    "backward-send": "send_backward",
    "forward-send-backward-recv": "send_forward_recv_backward",
    "backward-send-forward-recv": "send_backward_recv_forward",
    "forward-send-forward-recv": "send_forward_recv_forward",
    "backward-send-backward-recv": "send_backward_recv_backward",
    "forward-backward-send-forward-backward-recv": "send_forward_backward_recv_forward_backward",
}


class _MegatronRanges:
    beginnings = r"megatron\.|nemo\.|training_step_\d|forward-|backward-"

    def parse(self, name: str) -> list[ParsedName]:
        if found := _BRIDGE.fullmatch(name):
            if found[1] is None:
                return [ParsedName(Kind.OPTIMIZER)]
            return [ParsedName(None, step=int(found[1]))]
        if name == _NEMO_OPTIMIZER:
            return [ParsedName(Kind.OPTIMIZER)]
        found = _PATH.fullmatch(name)
        function = found[1] if found else _TIMERS.get(name)
        return [ParsedName(kind) for kind in _FUNCTIONS.get(function or "", ())]


GRAMMAR: Final = _MegatronRanges()
