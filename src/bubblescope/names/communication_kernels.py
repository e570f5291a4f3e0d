"""Kernels that move data between devices, or wait for other devices, told by their names.

A name may be demangled (Kineto, Nsight's `demangledName`), mangled (`_ZN7deep_ep...`), or a bare
function name (Nsight's `shortName`). Only the name of the function counts: its template arguments and
the types of its parameters often name a communication library that it merely borrows a type from. Where
a library is told by its namespace, as DeepEP, a bare `dispatch` says nothing and does not match.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec


class CommunicationKernel(msgspec.Struct, frozen=True):
    """What a kernel's name says about it.

    Attributes:
        library: Who wrote it.
        operation: "allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather",
            "scatter", "alltoall", "sendrecv", "send", "recv", "barrier" or "wait". None where the
            name does not tell. It is what the kernel does on the wire: NCCL carries out an
            all-to-all with a "sendrecv" kernel.
        pure_wait: Whether it moves no data: its time is waiting, neither work nor communication.
    """

    library: str
    operation: str | None
    pure_wait: bool = False


class _Family(msgspec.Struct, frozen=True):
    """Kernels of one library that are named alike.

    Attributes:
        library: Who wrote them.
        pattern: Finds the function's name; its group "op", or else the whole match, may tell the
            operation.
        operation: What all of them do; None if that stands in the name.
        pure_wait: Whether they only wait.
    """

    library: str
    pattern: re.Pattern[str]
    operation: str | None = None
    pure_wait: bool = False


_COLLECTIVE: Final = r"(?P<op>AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)"

_FAMILIES: Final = tuple(
    _Family(library, re.compile(pattern), operation, pure_wait)
    for library, pattern, operation, pure_wait in (
        # Waiting comes first: other families would claim some of it. NVSHMEM's src/host/stream,
        # TransformerEngine's nvshmem_waitkernel.cu and userbuffers.cu, PyTorch's
        # CUDASymmetricMemory.cu and Sleep.cu.
        (
            "nvshmem",
            r"\b(?:_wait_until\w*|nvshmemi_signal_wait_until)\w*on_stream\w*",
            "wait",
            True,
        ),
        ("transformer engine", r"\bwait_until_on_stream_and_reset", "wait", True),
        ("torch symmetric memory", r"\bwait_signal_kernel\b", "wait", True),
        ("torch symmetric memory", r"\bbarrier_kernel\b", "barrier", True),
        ("transformer engine", r"\bconsumer_(?:batch_)?kernel\b|\btiny_delay_kern\b", "wait", True),
        ("torch.cuda._sleep", r"\bspin_kernel\b", "wait", True),
        # NCCL: src/device/generate.py and src/device/symmetric/generate.py; before 2.19 without "Dev".
        ("nccl", rf"ncclDevKernel_{_COLLECTIVE}", None, False),
        ("nccl", rf"ncclKernel_{_COLLECTIVE}", None, False),
        ("nccl", rf"ncclSymk?DevKernel_{_COLLECTIVE}", None, False),
        # One kernel for every operation (src/device/common.cu); all that RCCL has.
        ("nccl or rccl", r"(?P<op>)ncclDevKernel(?:Debug)?_Generic(?:_[124])?", None, False),
        ("msccl", r"(?P<op>)mscclKernel_\w+", None, False),
        (
            "mscclpp",
            (
                r"\ballreduce(?:RsAg\w*|Packet|Nvls\w*|Fullmesh|AllPairs)\b"
                r"|\ballgatherFullmesh2?\b|mscclpp::.*"
            ),
            None,
            False,
        ),
        # DeepEP's csrc/kernels, also under the name of DeepSeek's own build. `layout` and
        # `get_dispatch_layout` are computation.
        (
            "deep_ep",
            (
                r"\b(?:deep_ep|dpsk::ep)::(?:\w+::)*(?:internode|intranode|internode_ll|elastic)::"
                r"(?:cached_|hybrid_)?(?P<op>dispatch|combine|notify\w*|barrier\w*"
                r"|pp_(?:send|recv)\w*|engram_fetch\w*)"
            ),
            None,
            False,
        ),
        (
            "hybrid_ep",
            (
                r"\bhybrid_ep::(?:dispatch_kernel|combine_kernel|device_sync_kernel|rdma_sync_kernel"
                r"|ag_nvl_kernel)"
            ),
            "alltoall",
            False,
        ),
        # All-reduce of the serving engines: vLLM's and AITER's custom_all_reduce.cuh, quick_all_reduce,
        # FlashInfer's and TensorRT-LLM's all-reduce that also normalises.
        (
            "custom all-reduce",
            r"\bcross_device_reduce_(?:1stage|2stage|half_butterfly)\w*",
            "allreduce",
            False,
        ),
        (
            "aiter",
            (
                r"\baiter::(?:\w+::)*"
                r"(?P<op>reduce_scatter_\w+|allgather_\w+|(?:qknorm_)?allreduce_\w+)"
            ),
            None,
            False,
        ),
        (
            "quickreduce",
            r"\ballreduce(?:_rmsnorm)?_prototype_(?:one|two)shot",
            "allreduce",
            False,
        ),
        (
            "fused all-reduce",
            r"\ballreduce_fusion_kernel_(?:oneshot|twoshot|[12]stage)\w*",
            "allreduce",
            False,
        ),
        # PyTorch's CUDASymmetricMemoryOps.cu and nvshmem_extension.cu.
        (
            "torch symmetric memory",
            r"\bmultimem_(?:one_shot_|two_shot_)?(?P<op>all_reduce|all_gather|reduce)\w*",
            None,
            False,
        ),
        (
            "torch symmetric memory",
            r"\b(?:one|two)_shot_all_reduce_\w*kernel\w*",
            "allreduce",
            False,
        ),
        (
            "torch symmetric memory",
            r"\bexchangeSplitAndOffset\w*|\ballToAllV\w*",
            "alltoall",
            False,
        ),
        # TransformerEngine's userbuffers.cu: push and pull are the steps of a ring.
        (
            "transformer engine",
            r"\bk?userbuffers_fp16\w*?_(?P<op>ag|rs)(?![a-z])\w*",
            None,
            False,
        ),
        ("transformer engine", r"\bk?userbuffers_fp16\w*", "allreduce", False),
        ("transformer engine", r"\bk?userbuffers_(?:push|pull)\w*", "sendrecv", False),
        (
            "nvshmem",
            (
                r"\bnvshmemi?_\w*"
                r"|\b(?:barrier|sync|fcollect|alltoall|broadcast|reducescatter|rdxn)_on_stream_kernel\w*"
            ),
            None,
            False,
        ),
        ("flux", r"\bCudaIpcBarrierAll(?:RingMode)?Kernel", "barrier", False),
        (
            "flux",
            (
                r"\b(?:pre|post)_attn_all2all\w*|\bpre_attn_qkv_pack_a2a_kernel"
                r"|\ba2a_single_kernel\w*|\ball2all(?:_v2)?\b|\bag_a2a_mode_kernel"
            ),
            "alltoall",
            False,
        ),
        ("oneccl", r"\boneccl_\w+", None, False),
        # Ascend: hcom_<operation>__<group>_<k>_<n>.
        ("hccl", r"^hcom_(?P<op>[A-Za-z]+)", None, False),
        # Whatever else carries a library's name. The boundary keeps out "syncClear".
        ("nccl", r"(?<![A-Za-z])(?:nccl|Nccl|NCCL)\w*", None, False),
        ("rccl", r"(?<![A-Za-z])(?:rccl|Rccl|RCCL)\w*", None, False),
        ("hccl", r"(?<![A-Za-z])(?:hccl|Hccl|HCCL)\w*", None, False),
        ("msccl", r"(?<![A-Za-z])(?:msccl|Msccl|MSCCL)\w*", None, False),
        ("nvshmem", r"(?<![A-Za-z])(?:nvshmem|rocshmem|NVSHMEM)\w*", None, False),
    )
)
"""All families, in the order in which they are tried."""

_OPERATIONS: Final = tuple(
    (re.compile(pattern), operation)
    for pattern, operation in (
        ("allreduce|rdxn", "allreduce"),
        ("allgather|fcollect|^ag$", "allgather"),
        ("reducescatter|^rs$", "reducescatter"),
        ("alltoall|all2all|a2a|dispatch|combine|notify|engramfetch", "alltoall"),
        ("broadcast", "broadcast"),
        ("sendrecv", "sendrecv"),
        ("barrier|synconstream", "barrier"),
        ("send", "send"),
        ("recv|receive", "recv"),
        ("reduce", "reduce"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("wait", "wait"),
    )
)
"""What the words of a name mean, in the order in which they are tried: the longer ones first. They are
compared in lower case without underscores."""

_STEMS: Final = (
    *("ccl", "hcom_", "shmem", "allreduce", "all_reduce", "allgather", "all_gather", "alltoall"),
    *("all2all", "_a2a_", "a2a_single", "exchangesplit", "cudaipcbarrier", "multimem_"),
    *("cross_device_reduce", "userbuffers_", "deep_ep", "dpsk", "hybrid_ep", "aiter"),
    *("on_stream", "signal_kernel", "barrier_kernel", "consumer_", "tiny_delay", "spin_kernel"),
)
"""What every name of a family contains, one or another, in lower case. Most names stop here: testing
for them one by one is faster than one regular expression for all."""

_IDENTIFIER: Final = re.compile(r"L?(\d+)")
_OPENING: Final = re.compile(r"_Z(?P<nested>N[rVKRO]*)?")
_ANONYMOUS: Final = "_GLOBAL__N_"
_TEMPLATE: Final = re.compile(r"<[^<>]*>")


def communication_kernel(name: str) -> CommunicationKernel | None:
    """Say what a kernel's name tells about communication; None for all other kernels.

    Args:
        name: The kernel's name, demangled or mangled, with or without its parameters.
    """
    lower = name.lower()
    if not any(stem in lower for stem in _STEMS):
        return None
    function = function_of(name)
    for family in _FAMILIES:
        if found := family.pattern.search(function):
            words = found["op"] if "op" in family.pattern.groupindex else found[0]
            operation = family.operation or operation_in(words)
            return CommunicationKernel(family.library, operation, family.pure_wait)
    return None


def is_communication_kernel(name: str) -> bool:
    """Say whether a kernel moves data between devices or waits for them, judged by its name."""
    return communication_kernel(name) is not None


def operation_in(words: str) -> str | None:
    """Return the operation that words name, as `CommunicationKernel` has it; None if they name none.

    Args:
        words: Part of a kernel's name, or what a library calls an operation ("_allgather_base").
    """
    plain = words.replace("_", "").lower()
    return next((operation for pattern, operation in _OPERATIONS if pattern.search(plain)), None)


def function_of(name: str) -> str:
    """Return the qualified name of a function, without template arguments and parameters."""
    if name.startswith("_Z"):
        return _unmangled(name)
    name = name.replace("(anonymous namespace)::", "")
    while (shorter := _TEMPLATE.sub("", name)) != name:
        name = shorter
    return re.split(r"[<(]", name, maxsplit=1)[0]  # a name that was cut short leaves a "<" open


def _unmangled(name: str) -> str:
    """Return the qualified function name of a symbol of the Itanium C++ ABI, section 5.1.

    That is one identifier after its length, or, after an "N", several; an "L" marks a static one.
    """
    opening = _OPENING.match(name)
    parts: list[str] = []
    at = opening.end() if opening else 0
    while opening and (length := _IDENTIFIER.match(name, at)):
        begin, at = length.end(), length.end() + int(length[1])
        if not name.startswith(_ANONYMOUS, begin):
            parts.append(name[begin:at])
        if not opening["nested"]:
            break
    return "::".join(parts)
