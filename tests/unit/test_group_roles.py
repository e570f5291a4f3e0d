from __future__ import annotations

import pytest

from bubblescope.names.group_roles import ROLES, role_of_group

MEGATRON = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "MODEL_PARALLEL_GROUP": "tp_pp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0": "cp",
    "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_GLOO_L1": "edp",
    "HYBRID_DP_CP_GROUP_4": "dp_cp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_GLOO": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "DATA_PARALLEL_GROUP_WITH_CP_GLOO": "dp_cp",
    "DATA_PARALLEL_GROUP_WITH_CP_AG": "dp_cp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO": "dp_cp",
    "DATA_PARALLEL_GROUP_WITH_GTP_REMAT": "dp_gtp",
    "DATA_PARALLEL_GROUP_WITH_CP_WITH_GTP_REMAT": "dp_gtp_cp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp_dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp_dp_cp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp_cp",
    "EMBEDDING_GROUP": "embedding",
    "POSITION_EMBEDDING_GROUP": "embedding",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "etp_ep",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "etp_ep_pp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "EXPERT_DATA_PARALLEL_GROUP_GLOO": "edp",
    "EXPERT_DATA_PARALLEL_GROUP_AG": "edp",
    "GTP_WEIGHT_REMAT_GROUP": "gtp",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "optimizer",
}
MESH = {
    "mesh_pp": "pp",
    "mesh_dp": "dp",
    "mesh_dp_replicate": "dp",
    "mesh_batch": "dp",
    "mesh_dp_shard": "fsdp",
    "mesh_dp_shard_cp": "fsdp",
    "mesh_fsdp": "fsdp",
    "mesh_efsdp": "efsdp",
    "mesh_dp_shard_mod_ep": "efsdp",
    "mesh_cp": "cp",
    "mesh_tp": "tp",
    "mesh_ep": "ep",
    "mesh_etp": "etp",
    "mesh_loss_mesh": "dp_cp",
    "mesh_dp_cp": "dp_cp",
    "mesh_cp_dp": "dp_cp",
    "mesh_infer_tp": "tp",
    "mesh_world": "world",
}
OTHER = {
    "default_pg": "world",
    "default_group": "world",
    "dp": "dp",
    "tp": "tp",
    "pp": "pp",
    "mp": "tp_pp",
    "dp_cp": "dp_cp",
    "tp_dp_cp": "tp_dp_cp",
    "intra_dp_cp": "dp_cp",
    "inter_ep_dp": "edp",
    "ep_dp": "edp",
    "exp": "ep",
    "tp_exp": "tp_ep",
    "intra_dist_opt_instance": "optimizer",
    "tp:0": "tp",
    "fsdp": "fsdp",
    "data_parallel_group": "dp",
}
NONE = ["undefined", "", "0", "12", "mesh_dim_0", "mesh_", "tp_tp", "topk", "group_tp_like", "a_pp"]


@pytest.mark.parametrize(
    ("description", "role"), [*MEGATRON.items(), *MESH.items(), *OTHER.items()]
)
def test_descriptions_of_frameworks(description, role):
    assert role_of_group(description) == role


@pytest.mark.parametrize("description", [*NONE, "df46b3f6a3e8ff1d0b1c2b8a"])
def test_what_tells_no_role(description):
    assert role_of_group(description) is None


def test_every_role_is_of_the_vocabulary():
    for role in {*MEGATRON.values(), *MESH.values(), *OTHER.values()}:
        assert role in ROLES or set(role.split("_")) <= set(ROLES)
