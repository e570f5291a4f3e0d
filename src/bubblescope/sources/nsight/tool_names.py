"""How Nsight Systems names its reports, and the tables of events in an export."""

from __future__ import annotations

from typing import Final

EVENTS: Final = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    "CUDA_GPU_MEMORY_USAGE_EVENTS",
    "GPU_METRICS",
    "NVTX_EVENTS",
    "OSRT_API",
)
REPORTS: Final = (".nsys-rep", ".qdrep")
"""Endings of the reports that `nsys` exports from."""
