"""What a communication group is for, told by the description that its framework gives it."""

from __future__ import annotations

import re
from typing import Final

ROLES: Final[dict[str, str]] = {
    "world": "all ranks of the job",
    "pp": "pipeline parallel",
    "tp": "tensor parallel",
    "cp": "context parallel",
    "sp": "sequence parallel (Ulysses)",
    "dp": "data parallel: replicas of the parameters",
    "dp_cp": "data and context parallel together: who reduces gradients, or the loss",
    "fsdp": "fully sharded data parallel: shards of the parameters",
    "ep": "expert parallel",
    "etp": "tensor parallel within an expert",
    "edp": "data parallel of the experts: replicas of an expert",
    "efsdp": "fully sharded data parallel of the experts",
    "gtp": "shards of weights that are gathered when needed (Megatron's GTP)",
    "egtp": "the same of the experts",
    "embedding": "the pipeline's first and last stages, which share the embedding",
    "optimizer": "one instance of the distributed optimizer",
}
"""What `role_of_group` may return, and what it means. A group that spans several axes is named by all
of them, in the order of `_AXES`: "tp_pp", "tp_dp", "etp_ep_pp". That follows Megatron's abbreviations
(`get_nccl_options` in megatron/core/parallel_state.py)."""

_AXES: Final = ("etp", "tp", "sp", "ep", "edp", "dp", "gtp", "cp", "pp")

_NAMES: Final[dict[str, str]] = {
    # torch.distributed (`default_pg`), torch_npu's parallel_group_info, MindSpore, DeviceMesh.
    **dict.fromkeys(("default_pg", "default_group", "hccl_world_group", "world"), "world"),
    # Megatron's descriptions (`group_desc` in parallel_state.py), without what _AROUND takes off.
    "tensor_model_parallel_group": "tp",
    "tp_bootstrap_group_mpi": "tp",
    "pipeline_model_parallel_group": "pp",
    "model_parallel_group": "tp_pp",
    "context_parallel_group": "cp",
    "data_parallel_group": "dp",
    "data_parallel_group_with_cp": "dp_cp",
    "data_parallel_group_with_gtp_remat": "dp_gtp",
    "data_parallel_group_with_cp_with_gtp_remat": "dp_gtp_cp",
    "hybrid_dp_cp_group": "dp_cp",
    "tensor_and_data_parallel_group": "tp_dp",
    "tensor_and_data_parallel_group_with_cp": "tp_dp_cp",
    "tensor_and_context_parallel_group": "tp_cp",
    "embedding_group": "embedding",
    "position_embedding_group": "embedding",
    "expert_model_parallel_group": "ep",
    "expert_tensor_parallel_group": "etp",
    "expert_tensor_and_model_parallel_group": "etp_ep",
    "expert_tensor_model_pipeline_parallel_group": "etp_ep_pp",
    "expert_tensor_model_pipeline_parallel_group_with_egtp": "etp_ep_egtp_pp",
    "expert_data_parallel_group": "edp",
    "expert_data_parallel_group_with_gtp_remat": "edp_egtp",
    "gtp_weight_remat_group": "gtp",
    "expert_gtp_weight_remat_group": "egtp",
    "distributed_optimizer_instance_group": "optimizer",
    # Megatron's short names (`get_nccl_options`), which MindSpeed gives to HCCL as the group's name.
    "mp": "tp_pp",
    "hcp": "cp",
    "embd": "embedding",
    "pos_embd": "embedding",
    "exp": "ep",
    "tp_exp": "tp_ep",
    "mp_exp": "tp_ep_pp",
    "dp_modulo_exp": "edp",
    "ep_dp": "edp",
    "ep_tp": "etp",
    "tp_ep_mp": "etp_ep",
    "tp_ep_pp": "etp_ep_pp",
    "tp_ep_gtp_remat_pp": "etp_ep_egtp_pp",
    "gtp_remat": "gtp",
    "expt_gtp_remat": "egtp",
    "gtp_remat_dp": "dp_gtp",
    "gtp_remat_dp_cp": "dp_gtp_cp",
    "ep_gtp_remat_dp": "edp_egtp",
    "dist_opt_instance": "optimizer",
    "expert_dp": "edp",
    # Dimensions of a DeviceMesh: torchtitan's (distributed/parallel_dims.py), of today and before, and
    # those of PyTorch's own examples. What shards parameters over context-parallel ranks too is "fsdp".
    **dict.fromkeys(("dp_replicate", "replicate", "ddp", "batch"), "dp"),
    **dict.fromkeys(("fsdp", "dp_shard", "dp_shard_cp", "shard"), "fsdp"),
    **dict.fromkeys(("efsdp", "dp_shard_mod_ep"), "efsdp"),
    **dict.fromkeys(("loss", "loss_mesh"), "dp_cp"),
    **dict.fromkeys(("ulysses", "sequence_parallel"), "sp"),
    **dict.fromkeys(("data", "data_parallel"), "dp"),
    **dict.fromkeys(("tensor", "tensor_parallel"), "tp"),
    **dict.fromkeys(("pipe", "pipeline", "pipeline_parallel"), "pp"),
    **dict.fromkeys(("context", "context_parallel"), "cp"),
    **dict.fromkeys(("expert", "expert_parallel"), "ep"),
}
"""Descriptions in lower case, and their roles."""

_AROUND: Final = (
    re.compile(r"^(?:mesh_|hierarchical_)"),
    # Part of a group's ranks, within or between instances of the distributed optimizer.
    re.compile(r"^(?:intra_partial_|inter_partial_|intra_|inter_)"),
    re.compile(r"^infer_"),  # the inference half of a reinforcement-learning job
    re.compile(r":\d+$"),  # vLLM numbers its groups
    re.compile(r"_l\d+$"),  # levels of a hierarchical group
    re.compile(r"_(?:gloo|ag)$"),  # twins for the CPU and for overlapping all-gathers
    re.compile(r"(?<=^hybrid_dp_cp_group)_\d+$"),
)
"""What may stand around a description without changing its role, taken off in this order."""


def role_of_group(description: str) -> str | None:
    """Return the role of a group, in the vocabulary of `ROLES`; None where the description tells none.

    Args:
        description: What the framework calls the group: `group_desc` in PyTorch (Megatron's
            constants, "mesh_" and a dimension's name for a DeviceMesh), `group_name` in Ascend's
            parallel_group_info. A group's name in PyTorch is a number or a hash and tells nothing.
    """
    name = description.strip().lower()
    if role := _role(name):
        return role
    for around in _AROUND:
        name = around.sub("", name)
        if role := _role(name):
            return role
    return None


def _role(name: str) -> str | None:
    if name in _NAMES:
        return _NAMES[name]
    axes = name.split("_")
    if len(set(axes)) == len(axes) and all(axis in _AXES for axis in axes):
        return "_".join(sorted(axes, key=_AXES.index))
    return None
