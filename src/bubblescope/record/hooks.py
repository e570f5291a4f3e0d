"""Running something once a module has been imported, whoever imports it.

This module is loaded at the start of every Python process of a recorded job, so it imports nothing but
the standard library, and does nothing until one of the modules it waits for is imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader, MetaPathFinder
    from importlib.machinery import ModuleSpec
    from types import ModuleType
else:  # Python asks for their methods alone, and importing them takes as long as starting Python
    Loader = MetaPathFinder = object

ASIDE = "aside"
"""The integration that records what ranks do beside passes, whatever framework they use."""

LOOP = "loop"
"""What a training loop written by hand is called among frameworks."""

INTEGRATIONS: dict[str, dict[str, str]] = {
    "torch": {
        "torch.distributed.pipelining.schedules": "torch_pipelining:schedules",
        "torch.distributed.device_mesh": "torch_groups:device_mesh",
        "torch.optim.optimizer": "torch_common:optimizer",
        "torch._dynamo.eval_frame": "torch_common:compiled",
    },
    ASIDE: {
        "torch.utils.data.dataloader": "torch_aside:data",
        "torch.serialization": "torch_aside:checkpoints",
        "torch.distributed.checkpoint.state_dict_saver": "torch_aside:distributed_checkpoints",
        "torch.nn.utils.clip_grad": "torch_aside:clipping",
        "torch.distributed.distributed_c10d": "torch_aside:collectives",
        "torch.nn.modules.module": "torch_copies:copies",
        "torch._dynamo.eval_frame": "torch_copies:compiled",
        "torch._dynamo.symbolic_convert": "torch_copies:translated",
        "torch.optim.optimizer": "torch_aside:logs",
        "torch.utils.tensorboard.writer": "torch_aside:tensorboard",
        "tensorboardX.writer": "torch_aside:tensorboard",
        "wandb.sdk.wandb_run": "torch_aside:wandb",
        "mlflow.tracking.fluent": "torch_aside:mlflow",
        "accelerate.data_loader": "torch_aside:batches",
        "lightning.pytorch.core.hooks": "torch_aside:batches",
        "pytorch_lightning.core.hooks": "torch_aside:batches",
    },
    LOOP: {
        "torch.autograd": "torch_loop:backwards",
        "torch.optim.optimizer": "torch_loop:optimizers",
        "torch.nn.modules.module": "torch_loop:modules",
        "torch._dynamo.eval_frame": "torch_loop:compiled",
        "torch._dynamo.symbolic_convert": "torch_loop:translated",
        "torch.amp.grad_scaler": "torch_loop:scalers",
        "torch.utils.data.dataloader": "torch_loop:data",
        "torch.distributed.distributed_c10d": "torch_loop:transfers",
        "torch.distributed._functional_collectives": "torch_loop:functional",
    },
    "deepspeed": {"deepspeed.runtime.pipe.engine": "deepspeed:engine"},
    "dualpipe": {
        "dualpipe.dualpipe": "deepseek_dualpipe:dualpipe",
        "dualpipe.dualpipev": "deepseek_dualpipe:dualpipev",
    },
    "paddle": {
        "paddle.distributed.fleet.meta_parallel.pipeline_parallel": "paddle_pipelines:pipelines",
        "paddle.distributed.fleet.meta_parallel.dualpipev": "paddle_pipelines:dualpipev",
        "paddle.distributed.fleet.meta_parallel.pp_utils.p2p_communication": (
            "paddle_pipelines:transfers"
        ),
        "paddle.distributed.fleet.meta_parallel.pp_utils.four_directions_p2p_communication": (
            "paddle_pipelines:transfers"
        ),
        "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.hybrid_parallel_optimizer": (
            "paddle_pipelines:optimizer"
        ),
        "paddle.base.executor": "paddle_pipelines:executor",
    },
    "megatron": {
        "megatron.core.pipeline_parallel.schedules": "megatron:schedules",
        "megatron.core.pipeline_parallel.combined_1f1b": "megatron:combined",
        "megatron.core.pipeline_parallel.p2p_communication": "megatron:p2p",
        "megatron.core.distributed.finalize_model_grads": "megatron:gradients",
        "megatron.core.optimizer.optimizer": "megatron:optimizer",
    },
    "sail": {"megatron.core.pipeline_parallel.zerobubble.runtime": "megatron.sail:runtime"},
    "mindspeed": {
        "mindspeed.core.pipeline_parallel.dualpipev.dualpipev_schedules": (
            "megatron.mindspeed:dualpipev"
        ),
        "mindspeed.core.pipeline_parallel.flexible_schedules": "megatron.mindspeed:steps",
        "mindspeed.core.pipeline_parallel.multiparameter_schedules": "megatron.mindspeed:steps",
        "mindspeed.core.pipeline_parallel.ripipe_schedules": "megatron.mindspeed:steps",
        "mindspeed.core.pipeline_parallel.schedules": "megatron.mindspeed:steps",
        "mindspeed.core.transformer.moe.moe_feature.fb_overlap.no_pipelining_schedules": (
            "megatron.mindspeed:steps"
        ),
        "mindspeed.core.transformer.moe.moe_feature.fb_overlap.vpp_schedules": (
            "megatron.mindspeed:overlap"
        ),
        "mindspeed.core.transformer.moe.moe_feature.fb_overlap.modules.utils": (
            "megatron.mindspeed:transfers"
        ),
        "mindspeed.core.transformer.moe.moe_feature.fb_overlap.modules.weight_grad_store": (
            "megatron.mindspeed:weights"
        ),
        "mindspeed.core.weight_grad_store": "megatron.mindspeed:weights_at_once",
    },
}
"""Framework -> module to wait for -> module and function of `bubblescope.record.integrations` that
makes it record; the function is called with the imported module and the session."""

_waiting: dict[str, list[Callable[[ModuleType], None]]] = {}


def install(*names: str) -> None:
    """Make frameworks record as soon as they are imported; all of them if none is named."""
    for name in (*names, ASIDE) if names else INTEGRATIONS:
        for module, target in INTEGRATIONS[name].items():
            when_imported(module, _applying(target))


def known() -> str:
    """Return the frameworks that are known, listed."""
    return ", ".join(name for name in INTEGRATIONS if name not in {ASIDE, LOOP})


def _applying(target: str) -> Callable[[ModuleType], None]:
    def apply(module: ModuleType) -> None:
        try:
            # Only now: a process that imports no framework need not pay for them.
            from bubblescope.model.registry import resolve  # noqa: PLC0415

            session = resolve("bubblescope.record.session:current")(known())
            if session is None:
                return
            resolve(f"bubblescope.record.integrations.{target}")(module, session)
        except Exception as error:  # noqa: BLE001  the user's program must go on, whatever it is
            from bubblescope.record.job_log import warn  # noqa: PLC0415  as above

            warn(
                f"bubblescope cannot record {module.__name__} ({type(error).__name__}: {error}); "
                "the job goes on without",
                stacklevel=2,
            )

    return apply


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call a function with a module once it has been imported; at once if it has been already."""
    module = sys.modules.get(name)
    # A module that is being imported right now is not complete yet.
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        then(module)
        return
    _waiting.setdefault(name, []).append(then)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds what the other finders find, with a loader that tells when it is done."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """A module's own loader, and what was to be done after it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # As if we had never been here: some programs look at a module's loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for then in _waiting.pop(module.__name__, []):
            then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
