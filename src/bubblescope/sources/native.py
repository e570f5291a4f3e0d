"""bubblescope's own files: recordings (`.bubbles`) and saved timelines (`.parquet`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.errors import SourceError, TimelineError
from bubblescope.record.sink import COLUMNS, FORMAT, Header, Torn, read_stream
from bubblescope.timeline import UNREADABLE, Notice, Origin, Run, Timeline, clocks_unchecked, concat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.sources import ReadOptions

__all__ = ["NativeSource"]

_RECORDING: Final = ".bubbles"
_PARQUET_MAGIC: Final = b"PAR1"


class NativeSource:
    """Reads recordings and saved timelines."""

    name = "native"
    summary = "bubblescope recordings (.bubbles) and saved timelines (.parquet)"

    def detect(self, path: Path) -> bool:
        """Claim every `.bubbles` file, and Parquet that bubblescope saved."""
        if not path.is_file():
            return False
        if path.suffix == _RECORDING:
            return True
        try:
            with path.open("rb") as file:
                if file.read(4) != _PARQUET_MAGIC:
                    return False
            return "bubblescope.run" in pl.read_parquet_metadata(path)
        except UNREADABLE:
            return path.name.endswith(".bubbles.parquet")

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read the files of one run onto one clock.

        Raises:
            SourceError: A file holds nothing that can be used.
            TimelineError: Two files hold the same rank.
        """
        options.progress.begin("reading recordings", len(paths))
        recordings, timelines = [], []
        for path in paths:
            if path.suffix == _RECORDING:
                recordings.append(_Recording(path))
            else:
                timelines.append(Timeline.load(path))
            options.progress.advance()
        # Processes of one boot share a monotonic clock; one anchor for all keeps them exact.
        anchors: dict[tuple[str, str], int] = {}
        for recording in recordings:
            anchors.setdefault(recording.clock, recording.header.utc_ns)
        timelines += [recording.timeline(anchors[recording.clock]) for recording in recordings]
        joined = concat(timelines)
        # Hosts may share a name; boots never share a clock.
        if len(anchors) > 1:
            joined = joined.with_notices(
                clocks_unchecked(len(anchors)),
            )
        return joined


class _Recording:
    """One rank's file, decoded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SourceError(path, f"cannot be read ({error.strerror})") from None
        if not data:
            raise SourceError(path, "is empty: the job stopped before it recorded anything")
        try:
            rows, self.torn = read_stream(data)
        except ValueError as error:
            raise SourceError(path, f"is not a recording or is damaged ({error})") from None
        if rows is None or not rows.height:
            raise SourceError(path, f"is cut short: its {len(data)} bytes hold no complete record")
        if dict(rows.schema) != COLUMNS or rows["kind"][0] != "header":
            raise SourceError(path, "is an Arrow stream, but not one that bubblescope recorded")
        try:
            self.header = msgspec.json.decode(rows["name"][0] or "", type=Header)
        except msgspec.MsgspecError as error:
            raise SourceError(path, f"has a header that makes no sense ({error})") from None
        if self.header.format > FORMAT:
            raise SourceError(
                path, f"was recorded by bubblescope {self.header.version}; update to read it"
            )
        self._tasks = rows[1:]

    @property
    def clock(self) -> tuple[str, str]:
        """What identifies the monotonic clock."""
        return (self.header.host, self.header.boot)

    def timeline(self, utc_ns: int) -> Timeline:
        """Return the rank's tasks, with `utc_ns` added to its monotonic times."""
        header = self.header
        times = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")
        tasks = self._tasks.with_columns(
            pl.col(times) + utc_ns,
            rank=pl.lit(header.rank, pl.Int32),
            stage=pl.coalesce("stage", _stage_of_chunk(header.stages)),
            name=pl.coalesce("name", "kind"),
        )
        ranks = pl.DataFrame(
            {
                "rank": [header.rank],
                "host": [header.host],
                "process": [header.process],
                "device": [header.device],
                "stages": [header.stages],
                "dp": [header.dp],
                "tp": [header.tp],
                "cp": [header.cp],
            },
            schema_overrides={"stages": pl.List(pl.Int32)},
        )
        run = Run(
            origins=(Origin("native", header.version, str(self.path)),),
            schedule=header.schedule,
            microbatches=header.microbatches,
            warnings=_ending(self.path, self.torn),
        )
        try:
            return Timeline(tasks, ranks, run)
        except TimelineError as error:
            raise SourceError(self.path, f"is damaged ({error})") from None


def _stage_of_chunk(stages: list[int] | None) -> pl.Expr:
    """Return a task's stage by its chunk; a rank with one stage needs no chunk."""
    if not stages:
        return pl.lit(None, pl.Int32)
    chunk = pl.col("chunk") if len(stages) > 1 else pl.lit(0)
    return chunk.replace_strict(range(len(stages)), stages, default=None, return_dtype=pl.Int32)


def _ending(path: Path, torn: Torn) -> tuple[Notice, ...]:
    if torn.closed:
        return ()
    if torn.lost:
        return (
            Notice(
                "torn-tail",
                f"{path.name} ends in the middle of a record: its last {torn.lost} of {torn.size} "
                "bytes were dropped, and with them tasks of the last step",
                torn.lost,
                torn.size,
            ),
        )
    return (
        Notice(
            "unclosed",
            f"{path.name} was not closed: the job was still running or was killed, and tasks of its "
            "last step may be missing",
        ),
    )
