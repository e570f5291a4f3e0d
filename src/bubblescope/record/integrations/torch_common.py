"""What every job with PyTorch has: optimizers, and meshes that say where a rank stands.

`torch.optim.optimizer.register_optimizer_step_pre_hook` and `..._post_hook` are called around every
optimizer's step. `init_device_mesh` names the dimensions of a job's ranks.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of

if TYPE_CHECKING:
    from types import ModuleType

    from bubblescope.record.session import Session

_DIMENSIONS: Final = {
    "dp": ("dp", "data", "data_parallel", "dp_replicate", "ddp", "dp_shard", "fsdp"),
    "tp": ("tp", "tensor", "tensor_parallel"),
    "cp": ("cp", "context", "context_parallel"),
}
"""Coordinate -> what the dimensions of a mesh are usually called; the first that there is counts."""
_PIPELINE: Final = ("pp", "pipe", "pipeline", "pipeline_parallel")


def optimizer(module: ModuleType, session: Session) -> None:
    """Record the steps of all optimizers."""
    what = identity_of(Kind.OPTIMIZER)
    begun: list[Any] = []

    def compiling() -> bool:
        # A step that is compiled is compiled with its hooks, which would break its graph.
        return bool(sys.modules["torch"].compiler.is_compiling())

    def before(*_: Any) -> None:
        if not compiling():
            begun.append(session.begin([what]))

    def after(*_: Any) -> None:
        if compiling():
            return
        session.optimized()
        if begun:
            session.end(begun.pop())

    theirs = module.Optimizer.__init__

    @functools.wraps(theirs)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        session.made_optimizer()
        theirs(self, *args, **kwargs)

    zero = module.Optimizer.zero_grad

    @functools.wraps(zero)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        # Some jobs measure passes alone: gradients that are thrown away end a step as well.
        if not compiling():
            session.optimized()
        zero(self, *args, **kwargs)

    module.Optimizer.__init__ = init
    module.Optimizer.zero_grad = zero_grad
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def device_mesh(module: ModuleType, session: Session) -> None:
    """Learn this rank's place among replicas, tensor-parallel and context-parallel ranks."""
    make = module.init_device_mesh

    @functools.wraps(make)
    def init_device_mesh(*args: Any, **kwargs: Any) -> Any:
        mesh = make(*args, **kwargs)
        try:
            names = mesh.mesh_dim_names or ()
            for coordinate, usual in _DIMENSIONS.items():
                named = next((name for name in usual if name in names), None)
                if named is not None:
                    session.about(**{coordinate: mesh.get_local_rank(named)})
            named = next((name for name in _PIPELINE if name in names), None)
            if named is not None:
                session.pipeline = mesh.get_local_rank(named), mesh.size(names.index(named))
        except Exception as error:  # noqa: BLE001  the job goes on
            session.fail(error)
        return mesh

    module.init_device_mesh = init_device_mesh  # type: ignore[attr-defined]
