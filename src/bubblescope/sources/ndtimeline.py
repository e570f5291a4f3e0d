"""Timelines of veScale's ndtimeline: Chrome traces with a process for each data-parallel replica.

Files are named `trace_step{first}_{last}`, hold a bare array, and know no micro-batches
(volcengine/veScale, `legacy/vescale/ndtimeline/handlers/local_timeline_handler.py`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.model.bounds import UNDECODABLE, Int32, Place
from bubblescope.model.decoders import prepared
from bubblescope.model.errors import SourceError, reason
from bubblescope.model.provenance import Notice
from bubblescope.model.timing import DEVICE
from bubblescope.sources import numbering
from bubblescope.sources.assembly import assembled
from bubblescope.sources.operation_names import (
    contents,
    one_place_each,
    operations,
    peers,
    together,
)
from bubblescope.sources.parallel import read_each
from bubblescope.sources.plausibility import implausible_clock, impossible_times, possible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.source import ReadOptions

_NAME: Final = re.compile(r"trace_step-?\d+_-?\d+(?:\.json)?")
_EVENT: Final = re.compile(rb'^\s*\[\s*\{[^{}]*"args"\s*:\s*\{[^{}]*"rank"\s*:[^{}]*"step"\s*:')
_HEAD: Final = 4096
_COLUMNS: Final = {
    "name": pl.String,
    "dp": pl.Int32,
    "rank": pl.Int32,
    "step": pl.Int32,
    "tp": pl.Int32,
    "device": pl.Int32,
    "start_us": pl.Float64,
    "length_us": pl.Float64,
}


class _Arguments(msgspec.Struct, gc=False):
    rank: Place
    step: Int32
    tp: Place | None = None
    pp: Place | None = None


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0
    args: Any = None


_DECODER: Final = msgspec.json.Decoder(list[_Event])


class NdtimelineSource:
    """Reads the Chrome traces of veScale's ndtimeline, a file for each host and few steps."""

    name = "ndtimeline"
    summary = "timelines of veScale's ndtimeline (trace_step*_*)"

    def detect(self, path: Path) -> bool:
        """Recognise a file by its name, or by the arguments of its first event."""
        if not path.is_file():
            return False
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD)
        except OSError:
            return False
        if not head.lstrip().startswith(b"["):
            return False
        return _NAME.fullmatch(path.name) is not None or _EVENT.match(head) is not None

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read the files of one run.

        Raises:
            SourceError: A file is damaged, or two hold the same operations.
        """
        tables, notices = together(read_each(_read, paths, options, what="reading timelines"))
        table = pl.concat(tables)
        if twice := table.height - table.n_unique():
            raise SourceError(
                ", ".join(map(str, paths)),
                f"hold {twice} operations twice; give each file once",
            )
        ranks = _ranks(paths, table)
        tasks = table.join(operations(table["name"], options.names), on="name").with_columns(
            pl.lit(None, dtype).alias(name)
            for name, dtype in {
                "chunk": pl.Int16,
                "microbatch": pl.Int32,
                "host_end_ns": pl.Int64,
            }.items()
        )
        # Events on the device stand in the order in which they were issued, stream by stream.
        tasks = tasks.with_columns(
            host_start_ns=pl.col("start_ns"), stage=pl.col("device"), splits=pl.lit(value=False)
        )
        tasks, inferred, more = numbering.number(tasks, numbering.NO_MARKERS)
        inferred["peer"] = "data-parallel replica and neighbouring stage"
        tasks = peers(tasks.with_columns(host_start_ns=pl.lit(None, pl.Int64)), ranks)
        return assembled(
            "ndtimeline",
            [(None, path) for path in paths],
            tasks,
            ranks,
            notices=(*notices, *more, *_clock(paths, tables)),
            contents=contents(paths, tables, options.names),
            inferred=inferred,
            timed=DEVICE,  # events on it, as ByteDance's job traces
        )


def _read(path: Path, _: Progress) -> tuple[pl.DataFrame, list[Notice]]:
    try:
        events = _DECODER.decode(path.read_bytes())
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror})") from None
    except UNDECODABLE as error:
        raise SourceError(
            path, f"is not an ndtimeline trace, or is damaged ({reason(error)}); write it again"
        ) from None
    slices = [event for event in events if event.ph == "X"]
    rows = []
    for event in slices:
        try:
            said = msgspec.convert(event.args, prepared(_Arguments))
        except msgspec.MsgspecError:
            continue
        replica = event.pid if isinstance(event.pid, int) else None
        rows.append(
            (event.name, replica, said.rank, said.step, said.tp, said.pp, event.ts, event.dur)
        )
    notices = []
    if lost := len(slices) - len(rows):
        text = f"{lost} of {len(slices)} events of {path} do not state their rank and step"
        notices.append(Notice("unreadable-events", text, lost, len(slices)))
    try:
        frame = pl.DataFrame(rows, schema=_COLUMNS, orient="row")
    except (pl.exceptions.PolarsError, OverflowError, TypeError):
        raise SourceError(path, "holds a rank or step that is not a small whole number") from None
    table = frame.filter(pl.col("start_us").abs() < 2**53, pl.col("length_us").abs() < 2**53)
    table = table.with_columns(
        start_ns=_nanoseconds(pl.col("start_us")),
        end_ns=_nanoseconds(pl.col("start_us")) + _nanoseconds(pl.col("length_us")),
    ).drop("start_us", "length_us")
    if table.height:
        table = table.filter(
            possible(int(table["start_ns"].median())),  # type: ignore[arg-type]
            pl.col("rank") >= 0,
            (pl.col("device") >= 0).fill_null(value=True),
        )
    return table, notices + impossible_times(
        frame.height - table.height, frame.height, "operations", str(path)
    )


def _nanoseconds(us: pl.Expr) -> pl.Expr:
    whole = us.floor()
    return whole.cast(pl.Int64) * 1000 + ((us - whole) * 1000).round().cast(pl.Int64)


def _ranks(paths: Sequence[Path], table: pl.DataFrame) -> pl.DataFrame:
    stage = pl.when(pl.col("device").is_not_null()).then(pl.concat_list("device"))
    found = one_place_each(paths, table, tp=pl.col("tp").first())
    return found.select("rank", "dp", "tp", host=pl.lit("unknown"), stages=stage)


def _clock(paths: Sequence[Path], tables: Sequence[pl.DataFrame]) -> list[Notice]:
    starts = {
        str(path): int(table["start_ns"].min())  # type: ignore[arg-type]  # integers
        for path, table in zip(paths, tables, strict=True)
        if table.height
    }
    text = (
        "ndtimeline measures each rank against its own host's clock, which no one compared; "
        "between hosts, times are only as good as their synchronisation"
    )
    return [Notice("clocks-unchecked", text), *implausible_clock(starts)]
