"""PyTorch profiler traces (Kineto): `torch.profiler`'s `.json` and `.json.gz`, a file for each rank."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from bubblescope.sources.packed_head import read_head

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.source import ReadOptions

_HEAD: Final = 1 << 16
_SUFFIXES: Final = (".json", ".gz")
_SIGN: Final = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:'
    rb'|"cat"\s*:\s*"(?:cpu_op|user_annotation|kernel|cuda_runtime|Operator|Kernel|Runtime)"',
)
_BARE_SIGN: Final = re.compile(rb'"cat"\s*:\s*"(?:Operator|Kernel|Runtime)"')
"""What PyTorch 1.8 wrote in a bare array of events; other profilers' arrays have categories as well."""


class KinetoSource:
    """Reads PyTorch profiler traces, of GPUs or of the CPU alone."""

    name = "kineto"
    summary = "PyTorch profiler traces (.json, .json.gz)"

    def detect(self, path: Path) -> bool:
        """Recognise a trace by its name and by Kineto's own keys in its first bytes."""
        if path.suffix not in _SUFFIXES or not path.is_file():
            return False
        try:
            head = read_head(path, _HEAD)
        except OSError:
            return False
        sign = {b"{": _SIGN, b"[": _BARE_SIGN}.get(head.lstrip()[:1])
        return sign is not None and sign.search(head) is not None

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read the traces of one run, one or several for each rank.

        Raises:
            SourceError: A trace is damaged beyond use, or two traces of one rank contradict.
        """
        from bubblescope.sources.kineto.reading import read_traces  # noqa: PLC0415  slow

        return read_traces(paths, options)

    def together(self, paths: Sequence[Path]) -> list[list[Path]]:
        """Return each trace by itself: it says its rank and when it began."""
        return [[path] for path in paths]
