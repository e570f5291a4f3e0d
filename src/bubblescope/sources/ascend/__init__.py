"""Ascend profiler databases of torch_npu, MindSpore, msprof and msMonitor, one for each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubblescope.sources.ascend.file_names import DATABASE, FOLDER_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.source import ReadOptions


class AscendSource:
    """Reads the profiles of Ascend NPUs."""

    name = "ascend"
    summary = "Ascend profiles (*_ascend_pt, *_ascend_ms folders, profiler .db files)"

    def detect(self, path: Path) -> bool:
        """Recognise a profile's folder by its ending, a database by its name."""
        if path.is_dir():
            return path.name.endswith(FOLDER_SUFFIXES)
        return DATABASE.fullmatch(path.name) is not None

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read the profiles of one run.

        Raises:
            SourceError: A database is damaged, or a folder holds none.
        """
        from bubblescope.sources.ascend.reading import assemble, read_profiles  # noqa: PLC0415  slow

        profiles, notices = read_profiles(paths, options)
        return assemble(profiles, notices, options)

    def together(self, paths: Sequence[Path]) -> list[list[Path]]:
        """Return each profile by itself: it says its rank, and how large the job is."""
        return [[path] for path in paths]
