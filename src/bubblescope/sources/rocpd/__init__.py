"""rocpd files: what AMD's rocprofv3 writes for each process, and such files merged into one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bubblescope.sources.rocpd.table_suffixes import suffixes
from bubblescope.sources.sqlite_head import head_of, table_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.source import ReadOptions

_SIGN: Final = b"rocpd_kernel_dispatch"


class RocpdSource:
    """Reads rocpd files, one or many, of one or many machines."""

    name = "rocpd"
    summary = "AMD's rocpd files (.db of rocprofv3)"

    def detect(self, path: Path) -> bool:
        """Recognise a file by its tables or, where it is damaged, by their names in its beginning."""
        head = head_of(path)
        return bool(head and suffixes(path)) or (_SIGN in head and not table_names(path))

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read all files of one run.

        Raises:
            SourceError: A file is damaged, or two are of one process.
        """
        from bubblescope.sources.rocpd.reading import read_files  # noqa: PLC0415  slow

        return read_files(paths, options)
