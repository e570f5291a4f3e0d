"""The most floating-point operations that a device can do in a second, by the name it reports.

Figures are of the matrix units (tensor cores), for BF16 and FP16 inputs with FP32 accumulation, and, of
some devices, for FP32 inputs: by TF32 where the matrix units have it, and by FP32 itself. All are
dense: where a data sheet prints only the rate with 2:4 sparsity, as NVIDIA's do since Hopper, it is
halved. They are peaks of the data sheet, not what a kernel can reach.

A device is found by its whole name alone, as CUDA and ROCm report it (`torch.cuda.get_device_name()`,
`deviceProperties` of a Kineto trace, `TARGET_INFO_GPU` of an Nsight export). The figures of devices
with nearly the same name differ by up to 30 %, so whatever is not listed is unknown and never guessed.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Peak(msgspec.Struct, frozen=True):
    """How fast a device can multiply matrices at best.

    Attributes:
        flops: Floating-point operations per second, dense.
        precision: What it holds for, such as "BF16 and FP16".
        source: Where the figure is from.
        exact: The peak without TF32, of what may be computed by TF32; None of other precisions.
    """

    flops: float
    precision: str
    source: str
    exact: float | None = None


def peak_flops(device_name: str, precision: str | None = None) -> Peak | None:
    """Return the dense peak of a device, or None if its name is not known to the letter.

    Args:
        device_name: What the device calls itself.
        precision: That of the inputs: "FP32", "BF16" or "FP16"; by default the shortest that is listed.

    >>> peak_flops("NVIDIA H100 80GB HBM3").flops / 1e12
    989.4
    >>> peak_flops("H100") is None
    True
    """
    if precision == "FP32":
        return _SINGLE_PEAKS.get(device_name)
    found = _PEAKS.get(device_name)
    if found is None or precision is None or precision in found.precision.split(" and "):
        return found
    return None


_BOTH: Final = "BF16 and FP16"
_HALF: Final = "FP16"
_NVL: Final = "NVIDIA H100 and H200 data sheets, column NVL: {} TFLOPS with sparsity"
_MI250X: Final = "AMD Instinct MI250X data sheet: {} TFLOPS of two dies, each a device of its own"
_MI210: Final = "AMD Instinct MI210 data sheet"
_HOPPER: Final = "NVIDIA H100 Tensor Core GPU Architecture white paper, table of SXM5 and PCIe"
_MI300: Final = "AMD Instinct MI300X, MI325X and MI300A data sheets, peak FP16 and bfloat16 matrix"
_MI350: Final = "AMD Instinct MI350X and MI355X data sheets, peak FP16 and bfloat16 matrix"

_LISTED: Final[tuple[tuple[float, str, str, tuple[str, ...]], ...]] = (
    (989.4e12, _BOTH, _HOPPER, ("NVIDIA H100 80GB HBM3",)),
    (756e12, _BOTH, _HOPPER, ("NVIDIA H100 PCIe",)),
    (
        835.5e12,
        _BOTH,
        _NVL.format("1,671"),
        ("NVIDIA H100 NVL", "NVIDIA H200 NVL"),
    ),
    (
        989.4e12,
        _BOTH,
        "NVIDIA H200, H800 and GH200 data sheets: 1,979 TFLOPS with sparsity, the die of the H100 SXM",
        ("NVIDIA H200", "NVIDIA H800", "NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e"),
    ),
    (
        148e12,
        _BOTH,
        "Tom's Hardware, as torchtitan uses it: NVIDIA publishes no data sheet of the H20",
        ("NVIDIA H20", "NVIDIA H20-3e"),
    ),
    (
        2250e12,
        _BOTH,
        "NVIDIA HGX B200 and B300 data sheets: 36 PFLOPS of eight with sparsity",
        ("NVIDIA B200", "NVIDIA B300 SXM6 AC"),
    ),
    (
        2500e12,
        _BOTH,
        "NVIDIA GB200 NVL72 and GB300 NVL72 data sheets: 360 PFLOPS of 72 with sparsity",
        ("NVIDIA GB200", "NVIDIA GB300"),
    ),
    (
        312e12,
        _BOTH,
        "NVIDIA A100 and A800 data sheets",
        (
            "NVIDIA A100-SXM4-40GB",
            "NVIDIA A100-SXM4-80GB",
            "NVIDIA A100-PCIE-40GB",
            "NVIDIA A100 80GB PCIe",
            "NVIDIA A800-SXM4-80GB",
            "NVIDIA A800 80GB PCIe",
            # Before CUDA 11.3 names did not begin with the maker's.
            "A100-SXM4-40GB",
            "A100-SXM4-80GB",
            "A100-PCIE-40GB",
        ),
    ),
    (362.05e12, _BOTH, "NVIDIA L40S data sheet", ("NVIDIA L40S",)),
    (181.05e12, _BOTH, "NVIDIA L40 data sheet", ("NVIDIA L40",)),
    (121e12, _BOTH, "NVIDIA L4 data sheet: 242 TFLOPS with sparsity", ("NVIDIA L4",)),
    (165e12, _BOTH, "NVIDIA A30 data sheet", ("NVIDIA A30",)),
    (149.7e12, _BOTH, "NVIDIA A40 data sheet", ("NVIDIA A40",)),
    (125e12, _BOTH, "NVIDIA A10 data sheet", ("NVIDIA A10",)),
    (
        154.85e12,
        _BOTH,
        "NVIDIA RTX A6000 data sheet: 309.7 TFLOPS with sparsity",
        ("NVIDIA RTX A6000", "RTX A6000"),
    ),
    (
        125e12,
        _HALF,
        "NVIDIA V100 data sheet, column SXM2",
        ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"),
    ),
    (
        112e12,
        _HALF,
        "NVIDIA V100 data sheet, column PCIe",
        ("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"),
    ),
    (130e12, _HALF, "NVIDIA V100 data sheet, column V100S", ("Tesla V100S-PCIE-32GB",)),
    (65e12, _HALF, "NVIDIA T4 data sheet", ("Tesla T4",)),
    (1307.4e12, _BOTH, _MI300, ("AMD Instinct MI300X", "AMD Instinct MI325X")),
    (980.6e12, _BOTH, _MI300, ("AMD Instinct MI300A",)),
    (2306.9e12, _BOTH, _MI350, ("AMD Instinct MI350X",)),
    (2516.6e12, _BOTH, _MI350, ("AMD Instinct MI355X",)),
    (
        191.5e12,
        _BOTH,
        _MI250X.format("383"),
        ("AMD Instinct MI250X",),
    ),
    (181e12, _BOTH, _MI210, ("AMD Instinct MI210",)),
)

_PEAKS: Final = {
    name: Peak(flops, precision, source)
    for flops, precision, source, names in _LISTED
    for name in names
}

_SINGLE: Final[tuple[tuple[float | None, float, str, tuple[str, ...]], ...]] = (
    (
        494.7e12,
        66.9e12,
        _HOPPER,
        ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e"),
    ),
    (417.5e12, 60e12, _NVL.format("835"), ("NVIDIA H100 NVL", "NVIDIA H200 NVL")),
    (
        1100e12,
        75e12,
        "NVIDIA HGX B200 data sheet, a single GPU: 2.2 PFLOPS with sparsity",
        ("NVIDIA B200",),
    ),
    (
        1250e12,
        80e12,
        "NVIDIA GB200 NVL72 data sheet, a single GPU: 2.5 PFLOPS with sparsity",
        ("NVIDIA GB200",),
    ),
    (
        156e12,
        19.5e12,
        "NVIDIA A100 and A800 data sheets",
        tuple(name for name in _PEAKS if "A100" in name or "A800" in name),
    ),
    (183e12, 91.6e12, "NVIDIA L40S data sheet", ("NVIDIA L40S",)),
    (90.5e12, 90.5e12, "NVIDIA L40 data sheet", ("NVIDIA L40",)),
    (60e12, 30.3e12, "NVIDIA L4 data sheet: 120 TFLOPS with sparsity", ("NVIDIA L4",)),
    (74.8e12, 37.4e12, "NVIDIA A40 data sheet", ("NVIDIA A40",)),
    (62.5e12, 31.2e12, "NVIDIA A10 data sheet", ("NVIDIA A10",)),
    (
        None,
        15.7e12,
        "NVIDIA V100 data sheet, column SXM2",
        ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"),
    ),
    (
        None,
        14e12,
        "NVIDIA V100 data sheet, column PCIe",
        ("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"),
    ),
    (None, 8.1e12, "NVIDIA T4 data sheet", ("Tesla T4",)),
    (
        653.7e12,
        163.4e12,
        "AMD Instinct MI300X data sheet, peak TF32 matrix and FP32 matrix",
        ("AMD Instinct MI300X",),
    ),
    (None, 47.85e12, _MI250X.format("95.7"), ("AMD Instinct MI250X",)),
    (None, 45.3e12, _MI210, ("AMD Instinct MI210",)),
)
"""Peaks for FP32 inputs: by TF32, if there is that, and by FP32; their source; the devices."""

_SINGLE_PEAKS: Final = {
    name: Peak(single, "FP32", source) if tf32 is None else Peak(tf32, "TF32", source, single)
    for tf32, single, source, names in _SINGLE
    for name in names
}
