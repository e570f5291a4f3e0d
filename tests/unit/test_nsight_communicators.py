from __future__ import annotations

import sqlite3
import struct
from contextlib import closing

import polars as pl
import pytest

from bubblescope.model.groups import GROUP_SCHEMA
from bubblescope.model.progress import SILENT
from bubblescope.sources.nsight.communicators import CALLS, MEMBERS, communicator_groups, nccl_calls
from bubblescope.sources.nsight.tables import ParquetTables, SqliteExport
from nsight_maker import Export
from places import SHARED

INIT, REDUCE, SEND = (1 << 24) + 11, (1 << 24) + 5, (1 << 24) + 9
INT, UINT64, SIZE, REDOP = 5, 18, 22, (1 << 24) + 16
COMM, BYTES, PEER = "NCCL communicator ID", "Message size [bytes]", "Peer rank"
TP = 0xFEDCBA9876543210
"""A hash beyond what a signed integer holds."""
DP = 0xABC


def blob(schema, payload, domain=1):
    return struct.pack("<QQQQ", domain, schema, len(payload), 32 + len(payload)) + payload


def init(comm, ranks, rank, device):
    return blob(INIT, struct.pack("<Qiiii", comm, ranks, rank, device, 0))


def reduce(comm, size):
    return blob(REDUCE, struct.pack("<QQii", comm, size, 0, 0))


def send(comm, size, peer):
    return blob(SEND, struct.pack("<QQii", comm, size, peer, 0))


def described(export):
    """The layouts of NCCL 2.20, as an exporter writes them: an offset of 0 is null."""
    export.payload_schema(
        INIT,
        {
            COMM: (UINT64, None),
            "No. of ranks": (INT, 8),
            "Rank": (INT, 12),
            "CUDA device": (INT, 16),
        },
    )
    export.payload_schema(
        REDUCE, {COMM: (UINT64, None), BYTES: (SIZE, 8), "Reduction operation": (REDOP, 16)}
    )
    export.payload_schema(SEND, {COMM: (UINT64, None), BYTES: (SIZE, 8), PEER: (INT, 16)})
    return export


def job(*, payloads=True):
    """Two processes: a communicator of both, and one of two ranks that is not all traced."""
    export = described(Export())
    for rank in range(2):
        process = export.process(100 + rank, rank)
        calls = [
            ("ncclCommInitRankConfig", init(TP, 2, rank, rank)),
            ("ncclAllReduce", reduce(TP, 4096)),
            ("ncclGroupStart", None),
            ("ncclSend", send(DP, 64, 1)),
            ("ncclRecv", send(DP, 64, 1)),
            ("ncclGroupEnd", None),
        ]
        if not rank:
            calls.append(("ncclCommDestroy", init(DP, 2, 0, 0)))
        for at, (name, payload) in enumerate(calls):
            process.range(
                name,
                10 * at,
                10 * at + 5,
                registered=True,
                payload=payload if payloads else None,
            )
        process.range("nccl:all_reduce", 0, 5)
        process.range("ncclAllReduce", 0, 5)  # the user's own, in no domain
    return export


def read(path):
    reader = ParquetTables if path.is_dir() else SqliteExport
    tables = reader(path, SILENT)
    return nccl_calls(tables, tables.read("StringIds", ["id", "value"]))


def calls_of(found, process):
    chosen = found.calls.filter(pl.col("process") % (1 << 24) == process)
    return chosen.drop("process", "thread", "end_ns").rows()


@pytest.mark.parametrize("container", ["sqlite", "parquet"])
def test_calls_and_members(tmp_path, container):
    export = job()
    path = (
        export.write(tmp_path / "a.sqlite")
        if container == "sqlite"
        else export.write_parquet_dir(tmp_path / "a")
    )
    found = read(path)
    assert dict(found.calls.schema) == CALLS
    assert dict(found.members.schema) == MEMBERS
    assert found.undecoded == 0
    assert calls_of(found, 101) == [
        (0, "ncclCommInitRankConfig", None, "0xfedcba9876543210", None, None),
        (10, "ncclAllReduce", "allreduce", "0xfedcba9876543210", 4096, None),
        (20, "ncclGroupStart", None, None, None, None),
        (30, "ncclSend", "send", "0xabc", 64, 1),
        (40, "ncclRecv", "recv", "0xabc", 64, 1),
        (50, "ncclGroupEnd", None, None, None, None),
    ]
    assert found.members.drop("process").rows() == [
        ("0xabc", 0, 2, 0),
        ("0xfedcba9876543210", 0, 2, 0),
        ("0xfedcba9876543210", 1, 2, 1),
    ]


def test_fields_are_found_by_name_wherever_they_stand(tmp_path):
    export = Export()
    export.payload_schema(
        77, {"Context": (INT, None), PEER: (INT, 4), BYTES: (SIZE, 8), COMM: (UINT64, 24)}
    )
    process = export.process(1)
    payload = struct.pack("<iiQQQ", 9, 3, 512, 1, DP)
    process.range("ncclPutSignal", 0, 5, registered=True, payload=blob(77, payload))
    # The same number in another domain means something else.
    export.payload_schema(77, {PEER: (INT, None)}, domain=2)
    found = read(export.write(tmp_path / "a.sqlite"))
    assert calls_of(found, 1) == [(0, "ncclPutSignal", "send", "0xabc", 512, 3)]


def test_contradicting_layouts_are_not_trusted(tmp_path):
    export = described(Export())
    export.payload_schema(REDUCE, {COMM: (UINT64, None), BYTES: (SIZE, 16)})
    export.process(1).range("ncclAllReduce", 0, 5, registered=True, payload=reduce(DP, 8))
    found = read(export.write(tmp_path / "a.sqlite"))
    assert calls_of(found, 1) == [(0, "ncclAllReduce", "allreduce", "0xabc", None, None)]


def test_without_payloads_names_tell_operations(tmp_path):
    found = read(job(payloads=False).write(tmp_path / "a.sqlite"))
    assert found.members.is_empty()
    assert found.undecoded == 0
    assert found.calls["communicator"].drop_nulls().is_empty()
    assert found.calls["operation"].drop_nulls().to_list() == ["allreduce", "send", "recv"] * 2


@pytest.mark.parametrize("dropped", ["binaryData", "domainId"])
def test_older_exports_lack_columns(tmp_path, dropped):
    export = job()
    export.dropped["NVTX_EVENTS"] = {dropped, "jsonText"}
    found = read(export.write(tmp_path / "a.sqlite"))
    assert set(found.calls["operation"].drop_nulls()) == {"allreduce", "send", "recv"}
    known = found.calls["communicator"].drop_nulls()
    assert known.is_empty() == (dropped == "binaryData")


def test_damaged_payloads_tell_nothing(tmp_path):
    export = described(Export())
    process = export.process(1)
    whole = reduce(DP, 8)
    damaged = [
        *(whole[:length] for length in (1, 31, 32, 40, len(whole) - 1)),
        whole[:16] + b"\xff" * 8 + whole[24:],
        b"\xff" * 200,
        blob(12345, b"\1" * 24),
    ]
    for at, payload in enumerate([*damaged, whole]):
        process.range("ncclAllReduce", at, at + 1, registered=True, payload=payload)
    found = read(export.write(tmp_path / "a.sqlite"))
    assert found.undecoded == len(damaged)
    assert found.calls["operation"].to_list() == ["allreduce"] * (len(damaged) + 1)
    assert found.calls["bytes"].to_list() == [*[None] * len(damaged), 8]


def test_nonsense_values_are_unknown(tmp_path):
    export = described(Export())
    process = export.process(1)
    payloads = [send(0, 1 << 63, -1), init(DP, 0, -1, 0), init(0, 2, 0, 0)]
    for at, payload in enumerate(payloads):
        process.range("ncclSend", at, None, registered=True, payload=payload)
    found = read(export.write(tmp_path / "a.sqlite"))
    assert found.calls.row(0)[-3:] == (None, None, None)
    assert found.members.is_empty()


def test_payloads_as_text(tmp_path):
    export = Export()
    text = f'{{"{COMM}": {TP}, "{BYTES}":64, "{PEER}": "3", "Rank": 1, "No. of ranks": 4}}'
    process = export.process(1)
    process.range("ncclSend", 0, 5, registered=True, json=text)
    process.range("ncclSend", 10, 15, registered=True, json="{")
    found = read(export.write(tmp_path / "a.sqlite"))
    assert calls_of(found, 1) == [
        (0, "ncclSend", "send", "0xfedcba9876543210", 64, 3),
        (10, "ncclSend", "send", None, None, None),
    ]
    assert found.members.drop("process").rows() == [("0xfedcba9876543210", 1, 4, None)]


def test_an_export_without_nccl(tmp_path):
    found = read(Export().write(tmp_path / "a.sqlite"))
    assert found.calls.is_empty()
    assert found.members.is_empty()
    assert communicator_groups(found.members.with_columns(global_rank=0)).is_empty()


def test_the_first_payload_may_come_late(tmp_path):
    """A column of nulls has no type of its own."""
    export = described(Export())
    process = export.process(1)
    for at in range(300):
        process.range("ncclGroupStart", at, at + 1, registered=True)
    process.range("ncclAllReduce", 1000, 1001, registered=True, payload=reduce(DP, 8))
    path = export.write(tmp_path / "a.sqlite")
    assert read(path).calls["bytes"].drop_nulls().to_list() == [8]
    with closing(sqlite3.connect(path)) as connection:
        [(kind,)] = connection.execute(
            "SELECT DISTINCT typeof(binaryData) FROM NVTX_EVENTS WHERE binaryData IS NOT NULL"
        )
    assert kind == "blob"


def test_communicators_become_groups_once_all_members_are_known():
    rows = [
        ("0xa", 1, 2, 4),
        ("0xa", 0, 2, 8),
        ("0xa", 0, 2, 8),
        ("0xb", 0, 2, 4),
        ("0xc", 0, 2, 4),
        ("0xc", 1, 2, None),
        ("0xd", 0, 2, 4),
        ("0xd", 1, 2, 4),
        ("0xe", 0, 1, 4),
        ("0xf", 0, 2, 4),
        ("0xf", 1, 3, 5),
    ]
    columns = {"communicator": pl.String(), "rank": pl.Int32(), "size": pl.Int32()}
    members = pl.DataFrame(rows, {**columns, "global_rank": pl.Int32()}, orient="row")
    found = communicator_groups(members)
    assert dict(found.schema) == GROUP_SCHEMA
    assert set(found["how"]) == {"communicator"}
    assert found.select("name", "ranks", "size").rows() == [
        ("0xa", [8, 4], 2),
        ("0xb", None, 2),
        ("0xc", None, 2),
        ("0xd", None, 2),
        ("0xe", [4], 1),
        ("0xf", None, None),
    ]


def test_a_real_export_without_payload_bytes():
    path = SHARED / "communication" / "ulysses_fsdp_2rank" / "mfu_2gpu_before.sqlite"
    if not path.exists():
        pytest.skip("the shared traces are not here")
    found = read(path)
    assert found.members.is_empty()
    assert found.undecoded == 0
    assert found.calls["communicator"].null_count() == found.calls.height == 462
    counts = dict(found.calls["operation"].drop_nulls().value_counts().iter_rows())
    assert counts == {"send": 132, "recv": 132}
