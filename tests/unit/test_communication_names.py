from __future__ import annotations

import re

import pytest

from bubblescope.names.communication_kernels import (
    CommunicationKernel,
    communication_kernel,
    is_communication_kernel,
)
from places import ROOT

TABLE = ROOT.parent / "shared" / "formats" / "comm_names.tsv"

KNOWN = [
    (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "nccl",
        "allreduce",
    ),
    ("ncclDevKernel_ReduceScatter_Sum_f32_RING_SIMPLE", "nccl", "reducescatter"),
    ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "nccl", "reduce"),
    (
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "nccl",
        "sendrecv",
    ),
    ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", "nccl", "broadcast"),
    (
        "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC(ncclSymkDevWorkArgs4K)",
        "nccl",
        "allreduce",
    ),
    ("ncclSymDevKernel_AllGather_LL(ncclSymDevArgs)", "nccl", "allgather"),
    ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "nccl or rccl", None),
    ("ncclDevKernelDebug_Generic(ncclDevKernelArgsStorage<4096ul>)", "nccl or rccl", None),
    ("mscclKernel_Sum_half_LL_false(ncclDevComm*, mscclAlgo*, mscclWork*)", "msccl", None),
    ("void mscclpp::collective::allreduceNvlsPacket<__half>(void*)", "mscclpp", "allreduce"),
    ("allgatherFullmesh2(void*, void*)", "mscclpp", "allgather"),
    ("void deep_ep::internode::dispatch<false, 8, true, 8>(int4*)", "deep_ep", "alltoall"),
    ("void dpsk::ep::intranode::combine<__nv_bfloat16, 8>(int4*)", "deep_ep", "alltoall"),
    ("deep_ep::internode::cached_notify<false>(int)", "deep_ep", "alltoall"),
    ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "deep_ep", "alltoall"),
    ("deep_ep::intranode::barrier<8>(int**, int)", "deep_ep", "barrier"),
    ("void deep_ep::elastic::pp_send_impl<8>(void*)", "deep_ep", "send"),
    ("void hybrid_ep::dispatch_kernel<uint16_t>(dispatch_kernel_param_t)", "hybrid_ep", "alltoall"),
    (
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, int)",
        "custom all-reduce",
        "allreduce",
    ),
    (
        "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)",
        "aiter",
        "reducescatter",
    ),
    ("void aiter::qknorm_allreduce_fusion<8>(void*)", "aiter", "allreduce"),
    ("void quickreduce::allreduce_prototype_twoshot<Codec, half>(int)", "quickreduce", "allreduce"),
    (
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<int>(T)",
        "fused all-reduce",
        "allreduce",
    ),
    (
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "torch symmetric memory",
        "allreduce",
    ),
    ("multimem_one_shot_reduce_out_kernel<float>", "torch symmetric memory", "reduce"),
    ("multimem_all_gather_kernel", "torch symmetric memory", "allgather"),
    ("one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>", "torch symmetric memory", "allreduce"),
    ("exchangeSplitAndOffset(long*, int, int)", "torch symmetric memory", "alltoall"),
    ("allToAllV(void*, void*, long*, int, int)", "torch symmetric memory", "alltoall"),
    ("userbuffers_fp16_sum_inplace_gpu_mc_rs_oop<8>", "transformer engine", "reducescatter"),
    ("userbuffers_fp16_sum_inplace_gpu_rw_ag<8>", "transformer engine", "allgather"),
    ("userbuffers_fp16_sum_inplace_gpu_rw<8>", "transformer engine", "allreduce"),
    ("kuserbuffers_pushsendrecv(int, int)", "transformer engine", "sendrecv"),
    ("alltoall_on_stream_kernel<long>", "nvshmem", "alltoall"),
    ("void rdxn_on_stream_kernel<float>(int)", "nvshmem", "allreduce"),
    ("sync_on_stream_kernel(int)", "nvshmem", "barrier"),
    ("nvshmemi_init_array_kernel<int>(int*, int, int)", "nvshmem", None),
    ("CudaIpcBarrierAllKernel(int, int)", "flux", "barrier"),
    ("post_attn_all2all_kernel<half>(half*)", "flux", "alltoall"),
    ("oneccl_reduce_base<float, 2, 16, 1, 1, 2>", "oneccl", "reduce"),
    ("hcom_allReduce__101_0_1", "hccl", "allreduce"),
    ("hcom_reduceScatter__101_0_1", "hccl", "reducescatter"),
    ("hcom_batchSendRecv__101_0_1", "hccl", "sendrecv"),
    ("hcom_receive__101_0_1", "hccl", "recv"),
    ("ncclSendKernel", "nccl", "send"),
    ("_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE", "nccl", "sendrecv"),
    ("_ZN7deep_ep9internode8dispatchILb0ELi8EEEvP4int4", "deep_ep", "alltoall"),
    (
        "_ZN4vllmL26cross_device_reduce_1stageI13__nv_bfloat16Li8EEEvPNS_8RankDataE",
        "custom all-reduce",
        "allreduce",
    ),
    (
        "_ZN12_GLOBAL__N_126multimem_all_reduce_kernelIN3c108BFloat16ELi16EEEvPT_",
        "torch symmetric memory",
        "allreduce",
    ),
    ("ncclDevKernel_Generic_1(ncclDevKernelArgs) [clone .kd]", "nccl or rccl", None),
]

WAITS = [
    ("wait_until_on_stream_and_reset(unsigned long*, unsigned long)", "transformer engine", "wait"),
    ("nvshmemi_signal_wait_until_on_stream_kernel(unsigned long*)", "nvshmem", "wait"),
    ("barrier_kernel(unsigned int**, int, int, int, unsigned long)", None, "barrier"),
    ("void c10d::symmetric_memory::wait_signal_kernel(unsigned int**, int)", None, "wait"),
    ("consumer_kernel(void*, int)", "transformer engine", "wait"),
    ("consumer_batch_kernel(void*, int, int)", "transformer engine", "wait"),
    ("tiny_delay_kern()", "transformer engine", "wait"),
    ("at::cuda::(anonymous namespace)::spin_kernel(long)", "torch.cuda._sleep", "wait"),
]

OTHERS = [
    "void (anonymous namespace)::groupnorm_kernel_dispatch_up<__hip_bfloat16, 1024u>(unsigned int)",
    "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, long*",
    "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
    "_ZN7deep_ep6layout19get_dispatch_layoutILi256ELi32ELi8EEEvPKl",
    "_combined_routing_compute",
    "void moe::dev::finalize::finalizeKernelVecLoad<int>",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>",
    "void cuda::reduce_fused_impl<__nv_bfloat16, false, false>(int4 const*)",
    "ampere_bf16_s16816gemm_bf16_128x256",
    # Bare function names of libraries that only a namespace tells.
    "dispatch",
    "combine",
    "notify_dispatch",
    "dispatch_kernel",
    # What contains a library's letters, or takes its types.
    "asyncClearKernel",
    "syncClusterBarrier",
    "void flash::fwd_kernel<Traits<deep_ep::internode::dispatch>>(float*)",
    "void scale(ncclDevComm*, float)",
    "void cross_entropy_spin_kernels(float*)",
    "_Z5scaleP11ncclDevComm",
    "_Z",
    "_ZN",
    "",
    "<(",
]


@pytest.mark.parametrize(("name", "library", "operation"), KNOWN)
def test_each_library_is_known(name, library, operation):
    assert communication_kernel(name) == CommunicationKernel(library, operation)
    assert is_communication_kernel(name)


@pytest.mark.parametrize(("name", "library", "operation"), WAITS)
def test_kernels_that_only_wait_are_told_apart(name, library, operation):
    library = library or "torch symmetric memory"
    assert communication_kernel(name) == CommunicationKernel(library, operation, pure_wait=True)


@pytest.mark.parametrize("name", OTHERS)
def test_false_friends_do_not_match(name):
    assert communication_kernel(name) is None
    assert not is_communication_kernel(name)


def test_the_collected_examples():
    """Every example of the table that was collected from libraries' sources and real traces."""
    if not TABLE.exists():
        pytest.skip("the table of names is not here")
    lines = TABLE.read_text().splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    assert len(rows) > 30
    for pattern, _, operation, waits, name, _ in rows:
        found = communication_kernel(name)
        if pattern == "!":
            assert found is None, name
            continue
        assert found, name
        assert found.pure_wait == (waits == "pure"), name
        if operation == r"\1":
            told = re.search(pattern, name)[1]
            assert found.operation == told.lower().replace("_", ""), name
