"""Files that are no traces, but stand where one was meant to be: what they are, and what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from bubblescope.sources.packed_head import read_head
from bubblescope.sources.sqlite_head import cut_short, is_sqlite, table_names

if TYPE_CHECKING:
    from pathlib import Path

_ARCHIVE: Final = "is an archive; unpack it, and give what is in it"

_XLA: Final = (
    "is a profile of XLA (JAX, TensorFlow), which bubblescope does not read; on NVIDIA's GPUs profile "
    "the job with `nsys profile --trace=cuda,nvtx` instead, on AMD's with "
    "`rocprofv3 --output-format rocpd`"
)

_EXECUTION_TRACE: Final = (
    "is an execution trace (ExecutionTraceObserver, Chakra), which holds operators without the "
    "device's times; torch.profiler's own traces are the *.pt.trace.json files"
)

_CHAKRA: Final = (
    "is an execution trace of Chakra, which simulators run and which does not say when devices worked; "
    "give the traces of torch.profiler that it was made from, the *.pt.trace.json files"
)

_STACKS: Final = (
    "is a profile of call stacks for speedscope, which does not say when devices worked; profile the "
    "job with torch.profiler, or record it with `bubblescope record`"
)

_PERF: Final = (
    "is a recording of Linux perf, which does not say when devices worked; on NVIDIA's GPUs profile "
    "the job with `nsys profile --trace=cuda,nvtx` instead, on AMD's with "
    "`rocprofv3 --output-format rocpd`"
)

_RPD: Final = (
    "is a database of RPD (rocmProfileData), which bubblescope does not read; profile the job with "
    "`rocprofv3 --output-format rocpd` instead"
)
_RPD_TABLES: Final = {"rocpd_api", "rocpd_op", "rocpd_string"}
"""Tables of RPD; the names of rocprofv3's end with an identifier."""

_PACKED_BY: Final = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
}
"""What files begin with that other programs have packed."""

_BY_HEAD: Final = {
    b"versionhttps://git-lfs.github.com/spec/": (
        "is a pointer of Git LFS in place of the file; fetch the file with `git lfs pull`"
    ),
    **{
        sign: f"is packed by {program}, which is not read; unpack it, or pack it with gzip"
        for sign, program in _PACKED_BY.items()
    },
    b"PK\x03\x04": _ARCHIVE,
    b"7z\xbc\xaf\x27\x1c": _ARCHIVE,
    b'{"rocprofiler-sdk-tool"': (
        "is JSON of rocprofv3, of which bubblescope reads the databases; profile with "
        "`rocprofv3 --output-format rocpd`"
    ),
    b'{"schema":"1.': _EXECUTION_TRACE,
    b'{"displayTimeUnit":"ns","metadata":{"highres-ticks"': _XLA,
    b'{"exporter":"speedscope@': _STACKS,
    b"PERFILE2": _PERF,
    b"PERFFILE": _PERF,
}
"""What files begin with, without spaces."""

_NUMBER: Final = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
"""A number in a protocol buffer, such as the length of what follows."""

_BY_PATTERN: Final = {
    rb'.*"\$schema"\s*:\s*"https?://www\.speedscope\.app/': _STACKS,
    # XSpace.planes, XPlane.id and XPlane.name of tsl's xplane.proto.
    rb"\n%b(?:\x08%b)?\x12[\x01-\x7f](?:/(?:host|device|task):|Task Environment)"
    % (_NUMBER, _NUMBER): _XLA,
    # The length of GlobalMetadata of et_def.proto, and its version or its first attribute's name.
    rb"%b\n(?:[\x03-\x0c]\d+\.\d+\.\d|%b\n(?:\x06schema|\ninput_file))"
    % (_NUMBER, _NUMBER): _CHAKRA,
}
"""What files match from their beginning."""

_BY_NAME: Final = {
    r".*\.speedscope\.json(\.gz)?": _STACKS,
    r".*\.(tar|tgz|tar\.\w+)": _ARCHIVE,
    r".*\.ncu-rep": (
        "is a report of Nsight Compute, which runs kernels one by one; profile the job with "
        "`nsys profile --trace=cuda,nvtx` instead"
    ),
    r".*\.xplane\.pb": _XLA,
    r".*\.pftrace|.*\.perfetto-trace": (
        "is a trace of Perfetto, which bubblescope writes and does not read; give the traces that it "
        "was made from, or profile with `rocprofv3 --output-format rocpd`"
    ),
    r".*memory_timeline.*\.(raw|html|json)(\.gz)?|.*snapshot.*\.pickle": (
        "holds what PyTorch's memory was used for, and not when work ran; torch.profiler's traces are "
        "the *.pt.trace.json files"
    ),
    r"events\.out\.tfevents\..*": (
        "holds scalars of TensorBoard; torch.profiler's traces are the *.pt.trace.json files"
    ),
    r"trace_view\.json|(kernel|operator)_details\.csv|step_trace_time\.csv|msprof_\d+\.json": (
        "is a text export of Ascend's profiler, of which bubblescope reads the databases; profile with "
        "export_type=[ExportType.Db], or export it with `msprof --export=on --type=db`"
    ),
    r"(ascend|gpu)_timeline_(display|summary)_\d+\.json|minddata_pipeline_\w+\.(csv|json)": (
        "is a text export of MindSpore's profiler, of which bubblescope reads the databases; profile "
        "with export_type=[ExportType.Db] in mindspore.profiler._ExperimentalConfig"
    ),
    r".*\.(sqlite|sqlite3|db)\.gz": (
        "is a packed database, which can only be read unpacked; unpack it with gunzip"
    ),
}
_RAW_FOLDER: Final = re.compile(r"host|device_\d+")
_RAW: Final = (
    "is raw data of Ascend's profiler (msprof); export it with `msprof --export=on --type=db "
    "--output=` and its folder, where CANN's toolkit is installed"
)
_HEAD_BYTES: Final = 4096  # packed, the first 64 may be no text yet


def near_miss(path: Path) -> tuple[Path, str] | None:
    """Say what a file is that is no trace, and what to do.

    Returns:
        The file, or the folder of a profiler that it is of, and the rest of a sentence about it; None
        if it is nothing that is known here.
    """
    for folder in path.parents:
        if _RAW_FOLDER.fullmatch(folder.name) and folder.parent.name.startswith("PROF_"):
            return folder.parent, _RAW
    for pattern, said in _BY_NAME.items():
        if re.fullmatch(pattern, path.name):
            return path, said
    try:
        head = read_head(path, _HEAD_BYTES)
        if is_sqlite(head):  # which tables it has may be in what it lacks
            said_of = cut_short(path) or (_RPD if table_names(path) >= _RPD_TABLES else None)
            return (path, said_of) if said_of else None
    except OSError:
        return None
    for beginning, said in _BY_PATTERN.items():
        if re.match(beginning, head, re.DOTALL):
            return path, said
    head = head.translate(None, b" \t\r\n")
    return next(((path, said) for sign, said in _BY_HEAD.items() if head.startswith(sign)), None)
