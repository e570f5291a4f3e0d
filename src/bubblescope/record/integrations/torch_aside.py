"""What a training job does beside its passes: data, checkpoints, clipping, logging, collectives.

All of it is recorded as tasks on the host, whatever framework the passes are of. Nothing is that runs
in other threads, in `torch.compile`, or inside of another such task.

Copies to the device are recorded here where a framework moves whole batches by a function of its own;
those by methods of tensors in `torch_copies`.
"""

from __future__ import annotations

import functools
import logging
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
_LOGGING: Final = "logging"
COPY: Final = "copy to device"
LEAST_NS: Final = 50_000
"""How long a call of these lasts at least to be worth a task: most only put something into a queue."""


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


def logs(module: ModuleType, session: Session) -> None:
    """Record Python's own logging, once a job has PyTorch: what handlers do with a record."""
    del module
    logger = logging.Logger
    logger.handle = session.beside(logger.handle, ASIDE, _LOGGING, LEAST_NS)  # type: ignore[method-assign]


def tensorboard(module: ModuleType, session: Session) -> None:
    """Record what TensorBoard's writer does: `add_scalar` and its like, `flush` and `close`."""
    writer = module.SummaryWriter
    for name in [name for name in vars(writer) if name.startswith("add_")] + ["flush", "close"]:
        setattr(writer, name, session.beside(getattr(writer, name), ASIDE, _LOGGING, LEAST_NS))


def wandb(module: ModuleType, session: Session) -> None:
    """Record `log` of a run of Weights & Biases, which `wandb.log` is too."""
    run = module.Run
    run.log = session.beside(run.log, ASIDE, _LOGGING, LEAST_NS)


def mlflow(module: ModuleType, session: Session) -> None:
    """Record what logs metrics, parameters and files with MLflow; `mlflow` says all of it again."""
    for name in [name for name in vars(module) if name.startswith("log_")]:
        theirs = getattr(module, name)
        if callable(theirs):
            recorded = session.beside(theirs, ASIDE, _LOGGING, LEAST_NS)
            _replace(module, name, recorded, "mlflow")


def batches(module: ModuleType, session: Session) -> None:
    """Record how batches are moved to the device, by Accelerate or Lightning."""
    for name in ("send_to_device", "move_data_to_device"):
        if hasattr(module, name):
            theirs = getattr(module, name)
            setattr(module, name, session.beside(theirs, ASIDE, COPY, LEAST_NS))


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
