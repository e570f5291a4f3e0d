"""One Ascend profiler database: ranges on the device, communication, and what it says of itself.

The schema is that of Ascend's msprof (`msprof_db.cpp`) and torch_npu. A range that a job marks on a
stream leaves a row of MSTX_EVENTS for the host and one of TASK for the device, with one connection id;
the second is the interval between the two marks as the stream passed them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.model.bounds import UNDECODABLE
from bubblescope.model.errors import SourceError
from bubblescope.model.progress import SILENT
from bubblescope.sources.ascend.file_names import DATABASE
from bubblescope.sources.assembly import rank_in_name
from bubblescope.sources.plausibility import possible
from bubblescope.sources.sqlite import SqliteTables

if TYPE_CHECKING:
    from bubblescope.model.progress import Progress

_OUTPUT: Final = "ASCEND_PROFILER_OUTPUT"
_LARGE: Final = (
    "TASK",
    "MSTX_EVENTS",
    "COMMUNICATION_OP",
    "COMMUNICATION_TASK_INFO",
    "PYTORCH_API",
)
_NUMBERS: Final = (0, 2**31 - 1)
"""What a step may have as its number."""
_SMALL: Final = ("STRING_IDS", "META_DATA", "HOST_INFO", "RANK_DEVICE_MAP", "STEP_TIME")
RANGE_TYPES: Final = [1, 2]  # ENUM_MSTX_EVENT_TYPE: push/pop and start/end; the others are moments
_NOTIFY: Final = ["Notify_Record", "Notify_Wait"]
_PEER_TO_PEER: Final = r"^hcom_([Ss]end|[Rr](?:ecv|eceive))__(\d+)_\d+_\d+$"


class Profile(msgspec.Struct, frozen=True):
    """What one database holds.

    Attributes:
        path: The database.
        rank: Global rank that the file name, or else the database, states.
        host: Machine name.
        host_uid: What identifies the machine.
        device: Device ordinal.
        version: Version of the schema.
        metadata: Name -> value of META_DATA.
        steps: Frame with step, start_ns and end_ns, in host time.
        ranges: Frame with message, host_start_ns, host_end_ns, start_ns and end_ns, by start.
        operations: Frame of communication by start: name, start_ns, end_ns, op_id, connection
            (that of the call that issued it), group, source and target (its own rank and the
            other's within the group, null if the database does not say), way ("s" for a send,
            "r" for a receive) and domain.
        marks: Number of ranges on the host.
        unmatched: How many of them the device has no interval of.
        impossible: How many intervals were dropped because of their times.
        counts: Number of rows of each kind.
        options: As of `Contents`.
    """

    path: str
    rank: int | None
    host: str | None
    host_uid: str | None
    device: int | None
    version: str | None
    metadata: dict[str, str]
    steps: pl.DataFrame
    ranges: pl.DataFrame
    operations: pl.DataFrame
    marks: int
    unmatched: int
    impossible: int
    counts: dict[str, int]
    options: tuple[str, ...]

    def said(self, key: str) -> Any:
        """Return a value of META_DATA, decoded; `add_metadata` leaves JSON inside JSON.

        None if it is not there or is no JSON.
        """
        value: Any = self.metadata.get(key)
        for _ in range(3):
            if not isinstance(value, str):
                break
            try:
                value = msgspec.json.decode(value)
            except UNDECODABLE:
                return None
        return value


def database_of(path: Path) -> Path:
    """Return the database of a profile's folder, or the path itself if it is a database.

    Raises:
        SourceError: The folder holds no database.
    """
    if path.is_file():
        return path
    for folder in (path / _OUTPUT, path):
        if folder.is_dir():
            found = sorted(
                one for one in folder.iterdir() if DATABASE.fullmatch(one.name) and one.is_file()
            )
            if found:
                return found[0]
    raise SourceError(
        path,
        "holds no profiler database; profile with export_type=[ExportType.Db], or export it with "
        "`msprof --export=on --type=db`",
    )


def read_profile(path: Path, progress: Progress) -> Profile:
    """Read one database.

    Raises:
        SourceError: It is damaged or lacks the tables that a pipeline is read from.
    """
    tables = SqliteTables(path, progress, _LARGE, _SMALL)
    strings = tables.read("STRING_IDS", ["id", "value"]).unique("id", keep="first")
    metadata = dict(tables.read("META_DATA", ["name", "value"]).iter_rows())
    host = tables.read("HOST_INFO", ["hostUid", "hostName"])
    devices = tables.read("RANK_DEVICE_MAP", ["rankId", "deviceId"])
    marks = tables.read(
        "MSTX_EVENTS", ["startNs", "endNs", "eventType", "message", "connectionId"]
    ).filter(pl.col("eventType").is_in(RANGE_TYPES))
    lowest = marks["connectionId"].min()
    tasks = tables.read(
        "TASK",
        ["startNs", "endNs", "connectionId"],
        lambda piece: (
            piece.clear() if lowest is None else piece.filter(pl.col("connectionId") >= lowest)
        ),
    )
    ranges = (
        marks.join(
            tasks.rename({"startNs": "start_ns", "endNs": "end_ns"}),
            on="connectionId",
        )
        .join(strings.rename({"id": "message", "value": "text"}), on="message", how="left")
        .select(
            message=pl.col("text").fill_null(""),
            host_start_ns="startNs",
            host_end_ns="endNs",
            start_ns="start_ns",
            end_ns="end_ns",
        )
        .sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    )
    steps = tables.read("STEP_TIME", ["id", "startNs", "endNs"]).rename(
        {"id": "step", "startNs": "start_ns", "endNs": "end_ns"}
    )
    operations = _operations(tables, strings)
    kept = _possible(ranges)
    operated = _possible(operations)
    begun = steps.drop_nulls().filter(pl.col("step").is_between(*_NUMBERS))
    said = DATABASE.fullmatch(path.name)
    named = said and (said["rank"] or said["monitored"])
    known = devices.row(0) if devices.height == 1 else (None, None)
    return Profile(
        path=str(path),
        rank=rank_in_name(path, named) if named else _stated_rank(path, known[0]),
        host=host["hostName"][0] if host.height else None,
        host_uid=None if not host.height else str(host["hostUid"][0]),
        device=known[1],
        version=metadata.get("SCHEMA_VERSION"),
        metadata=metadata,
        steps=begun,
        ranges=kept,
        operations=operated,
        marks=marks.height,
        unmatched=marks.join(tasks, on="connectionId", how="anti").height,
        impossible=sum(
            everything.height - left.height
            for everything, left in ((ranges, kept), (operations, operated), (steps, begun))
        ),
        counts={
            what: total
            for what, total in (
                ("ranges", marks.height),
                ("communication operators", operations.height),
                ("steps", steps.height),
            )
            if total
        },
        options=_options(tables),
    )


OPERATORS, QUEUE, FUNCTIONS = 50001, 50002, 50003
"""Types of rows of PYTORCH_API, as ENUM_API_TYPE numbers them."""
_SHOWS: Final = {OPERATORS: "ProfilerActivity.CPU", FUNCTIONS: "with_stack"}


def _options(tables: SqliteTables) -> tuple[str, ...]:
    """Return the options of torch_npu.profiler that what PyTorch did shows to have been on."""
    types = tables.read("PYTORCH_API", ["type"], pl.DataFrame.unique)["type"].unique()
    return tuple(name for kind, name in _SHOWS.items() if kind in types)


def issued_within(profile: Profile, step: int) -> pl.DataFrame:
    """Return the communication operators that the host issued in one of the profiler's steps.

    Returns:
        Frame with op_id. All operators, where the profile does not hold the step or the calls.

    Raises:
        SourceError: A table is damaged.
    """
    span = profile.steps.filter(step=step)
    tables = SqliteTables(Path(profile.path), SILENT, ("COMMUNICATION_OP", "CANN_API"), ())
    operators = tables.read("COMMUNICATION_OP", ["opId", "connectionId"])
    issued = operators.select("connectionId").drop_nulls().to_series()
    calls = tables.read(
        "CANN_API",
        ["connectionId", "startNs"],
        lambda piece: piece.filter(pl.col("connectionId").is_in(issued.implode())),
    )
    if span.height and calls.height:
        within = pl.col("startNs").is_between(span["start_ns"].min(), span["end_ns"].max())
        operators = operators.join(calls.filter(within), on="connectionId", how="semi")
    return operators.select(op_id="opId")


def _possible(frame: pl.DataFrame) -> pl.DataFrame:
    """Leave out what cannot be: times that are missing, out of order or far from the others."""
    middle: Any = frame["start_ns"].median()
    return frame.clear() if middle is None else frame.filter(possible(int(middle)))


def _stated_rank(path: Path, mapped: int | None) -> int | None:
    """Return the rank that profiler_info_N.json beside the database states, or its own map."""
    for folder in (path.parent, path.parent.parent):
        for one in sorted(folder.glob("profiler_info_*.json")):
            number = one.stem.removeprefix("profiler_info_")
            if number.isdecimal():
                return rank_in_name(one, number)
    return mapped if mapped is not None and mapped >= 0 else None


def _operations(tables: SqliteTables, strings: pl.DataFrame) -> pl.DataFrame:
    """Return the communication operators, with both ends of those between two ranks."""
    words = strings.rename({"value": "word"})
    found = tables.read(
        "COMMUNICATION_OP", ["opId", "opName", "groupName", "startNs", "endNs", "connectionId"]
    )
    parts = tables.read(
        "COMMUNICATION_TASK_INFO", ["opId", "taskType", "groupName", "srcRank", "dstRank"]
    )
    notify = words.filter(pl.col("word").is_in(_NOTIFY))["id"]
    ends = (
        parts.filter(pl.col("taskType").is_in(notify.implode()))
        .join(found.select("opId", "groupName"), on=["opId", "groupName"])
        .group_by("opId")
        .agg(
            source=pl.col("srcRank").unique(),
            target=pl.col("dstRank").unique(),
        )
        .filter(pl.col("source").list.len() == 1, pl.col("target").list.len() == 1)
        .with_columns(pl.col("source", "target").list.first())
    )
    return (
        found.join(words, left_on="opName", right_on="id", how="left")
        .rename({"word": "name"})
        .join(words, left_on="groupName", right_on="id", how="left")
        .rename({"word": "group"})
        .join(ends, on="opId", how="left")
        .select(
            name=pl.col("name").fill_null(""),
            start_ns="startNs",
            end_ns="endNs",
            op_id="opId",
            connection="connectionId",
            group=pl.col("group").fill_null(""),
            source="source",
            target="target",
            way=pl.col("name").str.extract(_PEER_TO_PEER, 1).str.to_lowercase().str.head(1),
            domain=pl.col("name").str.extract(_PEER_TO_PEER, 2),
        )
        .sort("start_ns", "end_ns", maintain_order=True)
    )
