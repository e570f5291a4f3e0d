"""DeepSeek's DualPipe and DualPipeV.

Both run their two model chunks by `_forward_compute_chunk`, `_backward_compute_chunk` and
`_forward_backward_compute_chunk`, with the `phase` first, which is the chunk; in the second half of
DualPipe's ranks it is the other one. The pipe counts each chunk's micro-batches itself. A backward
with `enable_zb` leaves its weight gradients to `WeightGradStore`, and `pop` computes the oldest. What
is sent and received is queued in `comm_ops`, and `_commit_and_wait_comm` does all of it at once. Read
at commit 3da1bbe of https://github.com/deepseek-ai/DualPipe.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from bubblescope.record.integrations.evaluations import evaluation
from bubblescope.record.integrations.two_chunks import Names, TwoChunks

if TYPE_CHECKING:
    from types import ModuleType

    from bubblescope.record.session import Session

_NAMES: Final = Names(
    "_{}_compute_chunk", "current_{}_chunk_id", ("comm_ops",), "overlapped_forward_backward"
)


def dualpipe(module: ModuleType, session: Session) -> None:
    """Record DualPipe: two copies of the model, half of the micro-batches through each."""
    _record(module, module.DualPipe, session)


def dualpipev(module: ModuleType, session: Session) -> None:
    """Record DualPipeV: one copy of the model, folded."""
    _record(module, module.DualPipeV, session)


def _record(module: ModuleType, pipe: Any, session: Session) -> None:
    def whole(pipe: Any, peer: int) -> int:
        return int(module.dist.distributed_c10d.get_global_rank(pipe.group, peer))

    step = pipe.step
    evaluate = evaluation(step, session)
    chunks = TwoChunks(session, _NAMES, whole)
    chunks.record(pipe, module.WeightGradStore)
    session.used_by(pipe, "dualpipe")

    @functools.wraps(step)
    def begin(self: Any, *inputs: Any, **how: Any) -> Any:
        if not module.torch.is_grad_enabled():
            return evaluate(self, *inputs, **how)
        _introduce(self, how.get("num_chunks", 0), chunks, session)
        session.begin_step()
        return step(self, *inputs, **how)

    pipe.step = begin


def _introduce(pipe: Any, microbatches: int, chunks: TwoChunks, session: Session) -> None:
    """Tell the session what the pipe knows of itself."""
    try:
        both_ways = hasattr(pipe, "is_in_second_half")
        last = (1 if both_ways else 2) * pipe.num_ranks - 1
        stages = [pipe.rank, last - pipe.rank]
        # Those that enter at the last rank are numbered after those that enter at the first.
        chunks.begin(stages, second=microbatches // 2 if both_ways else 0)
        session.about(
            stages=stages,
            schedule=type(pipe).__name__,
            microbatches=microbatches,
            device=next(pipe.parameters()).device.index,
        )
    except Exception as error:  # noqa: BLE001  the job goes on
        session.fail(error)
