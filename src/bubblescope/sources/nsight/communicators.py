"""Calls to NCCL and the communicators they are of, from the NVTX ranges that NCCL marks itself.

Each call is a range of the domain "NCCL" with a payload: a C struct whose layout the export describes
(NVIDIA/nccl, src/include/nvtx_payload_schemas.h). Its fields moved between versions, so they are found
by name. The communicator's id is its hash, which is equal on all of its ranks, and which NCCL's own log
prints as commId.

The bytes are only in exports made with `nsys export --include-blobs=true`, in NVTX_EVENTS.binaryData,
or with `--include-json=true` as text in jsonText. Without them a call's name still tells its operation.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.groups import GROUP_SCHEMA, Group, merged, tabled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from bubblescope.sources.nsight.tables import Tables

CALLS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int64(),
    "thread": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "call": pl.String(),
    "operation": pl.String(),
    "communicator": pl.String(),
    "bytes": pl.Int64(),
    "peer": pl.Int32(),
}
"""Columns of calls: where and when on the host, the function ("ncclAllReduce"), its operation in the
words of `CommunicationKernel` (null for calls that move nothing), the communicator's hash in
hexadecimal, the message size as NCCL gives it (count times size of an element, of one rank), and the
other rank, within the communicator, of a send or receive."""

MEMBERS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int64(),
    "communicator": pl.String(),
    "rank": pl.Int32(),
    "size": pl.Int32(),
    "device": pl.Int32(),
}
"""Columns of members: which rank of a communicator of how many ranks a process is, and on which of its
CUDA devices. Told when a communicator is made, split, or destroyed."""

FUNCTION: Final = r"^nccl[A-Z][A-Za-z]*$"
"""Names of NCCL's functions."""
_OPERATIONS: Final = {
    "ncclAllReduce": "allreduce",
    "ncclAllGather": "allgather",
    "ncclReduceScatter": "reducescatter",
    "ncclBroadcast": "broadcast",
    "ncclBcast": "broadcast",
    "ncclReduce": "reduce",
    "ncclAlltoAll": "alltoall",
    "ncclGather": "gather",
    "ncclScatter": "scatter",
    "ncclSend": "send",
    "ncclRecv": "recv",
    "ncclPutSignal": "send",
    "ncclWaitSignal": "wait",
}
_PAYLOAD: Final = ("binaryData", "jsonText", "jsonTextId")
_FIELDS: Final = {
    "NCCL communicator ID": "communicator",
    "Message size [bytes]": "bytes",
    "Peer rank": "peer",
    "No. of ranks": "size",
    "No. of devices": "size",
    "Rank": "rank",
    "CUDA device": "device",
}
_NAMES: Final = tuple(dict.fromkeys(_FIELDS.values()))
_INTEGERS: Final = {
    **dict.fromkeys((5, 15), "<i4"),
    **dict.fromkeys((6, 16), "<u4"),
    **dict.fromkeys((8, 10, 18, 22), "<u8"),
    **dict.fromkeys((7, 9, 17), "<i8"),
}
"""Types of entries (NVTX_PAYLOAD_ENTRY_TYPE_* in nvToolsExtPayload.h), as Linux on 64 bits has them."""

# Before the payload stand its domain, its schema, its size, and one more number, of 8 bytes each.
_HEADER: Final = 32
_SCHEMA_AT: Final = 8
_SIZE_AT: Final = 16
_SCHEMA_NUMBER: Final = (1 << 32) - 1
"""What counts of a schema's number: libraries use numbers below 2^32."""

_LARGEST: Final = (1 << 31) - 1


class Communication(msgspec.Struct, frozen=True):
    """What an export says of NCCL.

    Attributes:
        calls: Frame with the columns of `CALLS`, by process, thread and start.
        members: Frame with the columns of `MEMBERS`, each row once.
        undecoded: How many calls have a payload that could not be read.
    """

    calls: pl.DataFrame
    members: pl.DataFrame
    undecoded: int


NO_CALLS: Final = Communication(pl.DataFrame(schema=CALLS), pl.DataFrame(schema=MEMBERS), 0)
"""What an export says that has no such ranges."""


def nccl_calls(tables: Tables, strings: pl.DataFrame) -> Communication:
    """Read the calls to NCCL of an export. Times are the export's own.

    Args:
        tables: The export's.
        strings: Frame with id and value, the table StringIds.

    Raises:
        SourceError: A table cannot be read.
    """
    functions = strings.filter(pl.col("value").str.contains(FUNCTION))
    named = pl.col("textId").is_in(functions["id"].implode())
    events = tables.read(
        "NVTX_EVENTS",
        ["start", "end", "globalTid", "domainId", "textId", "text", *_PAYLOAD],
        lambda piece: piece.drop_nulls(["start", "globalTid"]).filter(
            pl.col("domainId").fill_null(1) != 0, named | pl.col("text").str.contains(FUNCTION)
        ),
    )
    events = (
        events.join(functions, left_on="textId", right_on="id", how="left")
        .join(strings.select(jsonTextId="id", json="value"), on="jsonTextId", how="left")
        .with_columns(
            process=pl.col("globalTid") // (1 << 24),
            thread="globalTid",
            start_ns="start",
            end_ns=pl.when(pl.col("end") >= pl.col("start")).then("end"),
            call=pl.coalesce("value", "text"),
            json=pl.coalesce("json", "jsonText"),
        )
        .sort("process", "thread", "start_ns", maintain_order=True)
    )
    fields, undecoded = _fields(events, _entries(tables))
    known = events.hstack(fields).with_columns(
        operation=pl.col("call").replace_strict(_OPERATIONS, default=None, return_dtype=pl.String)
    )
    members = known.filter(pl.col("communicator").is_not_null(), pl.col("size") > 0)
    return Communication(
        calls=known.select(pl.col(name).cast(dtype) for name, dtype in CALLS.items()),
        members=members.select(pl.col(name).cast(dtype) for name, dtype in MEMBERS.items())
        .unique(maintain_order=True)
        .sort("process", "communicator", "rank", nulls_last=True),
        undecoded=undecoded,
    )


def communicator_groups(members: pl.DataFrame) -> pl.DataFrame:
    """Return communicators as a frame with the columns of `GROUP_SCHEMA`.

    Args:
        members: Frame with communicator, rank and size as in `MEMBERS`, of all exports of a job, and
            `global_rank`, null where it is not known.

    Returns:
        One row for each communicator; its ranks are null unless all of its members are known.
    """
    found = []
    told = members.drop_nulls(["rank", "global_rank"]).unique(
        ["communicator", "rank", "global_rank"]
    )
    places = told.sort("rank").group_by("communicator").agg("rank", "global_rank")
    sizes = members.group_by("communicator", maintain_order=True).agg(
        size=pl.col("size").min(), sizes=pl.col("size").n_unique()
    )
    for name, size, variants, places_of, ranks in sizes.join(
        places, on="communicator", how="left", maintain_order="left"
    ).iter_rows():
        whole = variants == 1 and places_of == list(range(size)) and len(set(ranks)) == size
        found.append(
            Group(
                name=name,
                ranks=tuple(ranks) if whole else None,
                size=size if variants == 1 else None,
                how="communicator",
                backend="nccl",
            )
        )
    return merged(tabled(found)).select(*GROUP_SCHEMA)


def _entries(tables: Tables) -> pl.DataFrame:
    """Return where in a payload the known fields stand: domain, schema, field, layout and offset.

    An offset of 0 is exported as null. A field that two schemas of one number put at different places
    is left out, for nothing tells which of them a payload has.
    """
    place = ["domainId", "schemaId", "field"]
    return (
        tables.read(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES", ["domainId", "schemaId", "idx", "type", "name", "offset"]
        )
        .select(
            "domainId",
            "schemaId",
            field=pl.col("name").replace_strict(_FIELDS, default=None, return_dtype=pl.String),
            layout=pl.col("type").replace_strict(_INTEGERS, default=None, return_dtype=pl.String),
            offset=pl.when(pl.col("idx") == 0)
            .then(pl.col("offset").fill_null(0))
            .otherwise("offset"),
        )
        .drop_nulls("field")
        .unique(maintain_order=True)
        .filter(pl.len().over(place) == 1)
        .drop_nulls()
        .filter(pl.col("offset") >= 0)
    )


def _fields(events: pl.DataFrame, entries: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the known fields of each event, null where they are not told, and how many are damaged."""
    payloads = _Payloads(events)
    fields = dict(payloads.fields(entries))
    decoded = pl.DataFrame(
        [fields.get(name, pl.Series(name, [None] * events.height, pl.UInt64)) for name in _NAMES]
    )
    texts = pl.DataFrame([_from_json(events["json"], name) for name in _NAMES])
    both = decoded.with_columns(pl.coalesce(pl.col(name), texts[name]) for name in _NAMES)
    hashes = both["communicator"].unique().drop_nulls()
    hexadecimal = {value: f"{value:#x}" if value else None for value in hashes}
    undecoded = payloads.count - int(
        decoded.select(~pl.all_horizontal(pl.all().is_null())).sum().item()
    )
    return both.with_columns(
        pl.col("communicator").replace_strict(hexadecimal, default=None, return_dtype=pl.String),
        pl.when(pl.col("bytes") < 1 << 63).then(pl.col("bytes")).cast(pl.Int64),
        *(
            pl.when(pl.col(name) <= _LARGEST).then(pl.col(name)).cast(pl.Int32)
            for name in ("peer", "size", "rank", "device")
        ),
    ), undecoded


def _from_json(texts: pl.Series, field: str) -> pl.Series:
    """Return a field of payloads that are told as text: a flat JSON object."""
    names = "|".join(re.escape(name) for name, own in _FIELDS.items() if own == field)
    return (
        texts.str.extract(rf'"(?:{names})"\s*:\s*"?(\d+)\b')
        .cast(pl.UInt64, strict=False)
        .alias(field)
    )


class _Payloads:
    """The binary payloads of events, side by side in one buffer.

    Args:
        events: Frame with domainId and binaryData, which is empty where there is none.
    """

    def __init__(self, events: pl.DataFrame) -> None:
        blobs = events["binaryData"]
        lengths = blobs.bin.size().cast(pl.Int64).to_numpy()
        starts = np.cumsum(lengths) - lengths
        self.count = int((lengths > 0).sum())
        self._height = events.height
        self._buffer = np.frombuffer(b"".join(blobs.to_list()), np.uint8)
        whole = np.flatnonzero(lengths >= _HEADER)
        sizes = self._integers(starts[whole] + _SIZE_AT, "<u8")
        # A payload that was cut short tells nothing: what is left of it may be of another version.
        fits = sizes <= (lengths[whole] - _HEADER).astype(np.uint64)
        self._rows = whole[fits]
        self._sizes = sizes[fits].astype(np.int64)
        self._starts = starts[self._rows]
        self._schemas = self._integers(self._starts + _SCHEMA_AT, "<u4")
        domains = events["domainId"].fill_null(-1).to_numpy()[self._rows]
        self._domains = np.where(domains < 0, self._integers(self._starts, "<u4"), domains)

    def _integers(self, starts: NDArray[np.int64], layout: str) -> NDArray[Any]:
        dtype = np.dtype(layout)
        index = starts[:, None] + np.arange(dtype.itemsize)
        return np.ascontiguousarray(self._buffer[index]).view(dtype).reshape(-1)

    def fields(self, entries: pl.DataFrame) -> Iterator[tuple[str, pl.Series]]:
        """Yield each field that some payload has, with its value per event, unsigned; else null."""
        for (field,), places in entries.group_by("field", maintain_order=True):
            values = np.zeros(self._height, np.uint64)
            known = np.zeros(self._height, np.bool_)
            for domain, schema, _, layout, offset in places.iter_rows():
                width = np.dtype(layout).itemsize
                chosen = (
                    (self._domains == domain)
                    & (self._schemas == schema & _SCHEMA_NUMBER)
                    & (self._sizes >= offset + width)
                )
                rows = self._rows[chosen]
                found = self._integers(self._starts[chosen] + _HEADER + offset, layout)
                values[rows] = found.astype(np.uint64)
                known[rows] = found >= 0  # -1 stands for none
            yield str(field), pl.Series(str(field), values).set(pl.Series(~known), None)
