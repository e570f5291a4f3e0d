"""Datasets: the traces of a run as partitioned Parquet, of which commands read only what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubblescope.model.timeline import concat
from bubblescope.sources.dataset.catalogue import CATALOGUE
from bubblescope.sources.dataset.store import store_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.source import ReadOptions


class DatasetSource:
    """Reads what `bubblescope dataset` writes."""

    name = "dataset"
    summary = "bubblescope datasets (folders with a dataset.json, also s3://, gs:// and az://)"

    def detect(self, path: Path) -> bool:
        """Claim every folder that holds a catalogue."""
        return (path / CATALOGUE).is_file() if path.is_dir() else False

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read datasets of different ranks of one run.

        Raises:
            SourceError: One is not finished or damaged.
        """
        from bubblescope.sources.dataset.reading import read_dataset  # noqa: PLC0415  slow

        return concat([read_dataset(store_of(path), options) for path in paths])
