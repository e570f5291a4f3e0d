"""What a training job does beside its passes: loading data, checkpoints, clipping, its own collectives.

All of it is recorded as tasks on the host, whatever framework the passes are of. Nothing is that runs
in other threads, in `torch.compile`, or inside of another such task.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.kinds import Kind, Lane
from bubblescope.record.buffer import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from bubblescope.record.session import Session

ASIDE: Final = identity_of(Kind.OTHER, lane=Lane.HOST)
_DATA: Final = identity_of(Kind.DATA)
_COLLECTIVE: Final = identity_of(Kind.COLLECTIVE)


def data(module: ModuleType, session: Session) -> None:
    """Record waiting for data under a framework's schedules; loops of a job's own do it themselves."""
    iterator = module._BaseDataLoaderIter  # noqa: SLF001  it has no other name
    theirs = iterator.__next__
    recorded = session.beside(theirs, _DATA)

    def fetch(self: Any) -> Any:
        return (theirs if session.framework is None else recorded)(self)

    iterator.__next__ = fetch


def checkpoints(module: ModuleType, session: Session) -> None:
    """Record `torch.save`."""
    _replace(module, "save", session.beside(module.save, ASIDE, "checkpoint"), "torch")


def distributed_checkpoints(module: ModuleType, session: Session) -> None:
    """Record `torch.distributed.checkpoint.save`, and how long `async_save` keeps the job."""
    for name in ("save", "async_save"):
        if hasattr(module, name):
            recorded = session.beside(getattr(module, name), ASIDE, "checkpoint")
            _replace(module, name, recorded, "torch.distributed.checkpoint")


def clipping(module: ModuleType, session: Session) -> None:
    """Record clipping of gradients."""
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        recorded = session.beside(getattr(module, name), ASIDE, "gradient clipping")
        _replace(module, name, recorded, "torch.nn.utils")


def collectives(module: ModuleType, session: Session) -> None:
    """Record collectives that a job calls itself beside torch's schedules, which call none of these."""
    for name in (
        "barrier",
        "all_reduce",
        "broadcast",
        "all_gather_object",
        "broadcast_object_list",
    ):
        theirs = getattr(module, name)
        recorded = session.beside(theirs, _COLLECTIVE)
        _replace(module, name, _under_torch(theirs, recorded, session), "torch.distributed")


def _under_torch(
    theirs: Callable[..., Any], recorded: Callable[..., Any], session: Session
) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (recorded if session.framework == "torch" else theirs)(*args, **kwargs)

    return call


def _replace(module: ModuleType, name: str, recorded: Callable[..., Any], home: str) -> None:
    """Put a function in the place of another, also where a package has taken that from its module."""
    theirs = getattr(module, name)
    for place in (module, sys.modules.get(home)):
        if getattr(place, name, None) is theirs:
            setattr(place, name, recorded)
