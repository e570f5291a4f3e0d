"""Nsight Systems exports: `.sqlite`, `parquetdir`, and `.nsys-rep` where `nsys` is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bubblescope.sources.nsight.tool_names import EVENTS, REPORTS
from bubblescope.sources.sqlite_head import head_of, table_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.source import ReadOptions

_ABOUT: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""Tables that every export has, of this and of earlier versions."""
_SIGNS: Final = (*map(str.encode, _ABOUT), b"CUPTI_ACTIVITY_KIND", b"NVTX_EVENTS")


class NsightSource:
    """Reads Nsight Systems exports, one or many, of one or many hosts."""

    name = "nsight"
    summary = "Nsight Systems exports (.sqlite, parquetdir folders, .nsys-rep)"

    def detect(self, path: Path) -> bool:
        """Recognise an export by its first bytes, a folder by its table of metadata."""
        if path.is_dir():
            return (path / "META_DATA_EXPORT.parquet").exists() or (
                path / "StringIds.parquet"
            ).exists()
        if path.suffix in REPORTS:
            return True
        head = head_of(path)
        # The names of its tables usually lie in the first pages; SQLite knows where else.
        return any(sign in head for sign in _SIGNS) or bool(
            head and table_names(path) & {*EVENTS, *_ABOUT}
        )

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read all exports of one run onto one clock.

        Raises:
            SourceError: An export is damaged, or a report cannot be exported.
        """
        from bubblescope.sources.nsight.reading import read_exports  # noqa: PLC0415  slow

        return read_exports(paths, options)

    def together(self, paths: Sequence[Path]) -> list[list[Path]]:
        """Return the exports of each host together: its monotonic clock aligns them."""
        from bubblescope.sources.nsight.reading import by_host  # noqa: PLC0415  slow

        return by_host(paths)
