"""The run and the traces that it was read from in one archive, all on one clock, for Perfetto's UI.

A TAR of our Perfetto trace, of the profiler's own traces as they are, and of a manifest that says how
far the clock of each is from the run's. Format: https://perfetto.dev/docs/reference/perfetto-manifest,
of which Perfetto reads version 1 since v58; older ones merge the files, with their clocks as they are.

Our trace gets a snapshot of a clock, so that it has one which others can be set against. That clock is
called BOOTTIME, the one that Perfetto takes events without a clock to be on; what it shows are the
run's nanoseconds since the epoch.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from bubblescope.model.errors import SourceError
from bubblescope.model.files import replacing
from bubblescope.model.plain_text import visible
from bubblescope.render.traces import perfetto

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bubblescope.model.provenance import Contents
    from bubblescope.model.timeline import Timeline

OURS: Final = "bubblescope.pftrace"
MANIFEST: Final = "perfetto_manifest.json"
VERSION: Final = 1
"""Of the manifest's format."""
_MACHINE: Final = "bubblescope"
_CLOCK: Final = "BOOTTIME"
_BLOCK: Final = 1 << 20
_GZIP: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31
"""What zlib calls the format of gzip."""
_RIGHTS: Final = 0o644


def write(timeline: Timeline, path: Path, *, kernels: bool = False) -> Path:
    """Write the timeline and the raw traces of its ranks that Perfetto reads.

    Packed traces are unpacked, for Perfetto takes a packed file for an archive, which has no clock. Of
    one whose end is missing, what there is.

    Raises:
        SourceError: A trace that the run was read from is no longer there.
    """
    raw = _named(_raw(timeline))
    with replacing(path) as partial, tarfile.open(partial, "w|") as archive:
        _add(archive, MANIFEST, io.BytesIO(msgspec.json.encode(manifest(timeline, raw))))
        with tempfile.TemporaryDirectory() as folder:
            own = perfetto.write(timeline, Path(folder) / OURS, kernels=kernels)
            with own.open("rb") as file:
                _add(archive, OURS, file, before=_snapshot(timeline))
        for name, trace in raw.items():
            with _unpacked(Path(trace.path)) as file:
                _add(archive, name, file)
    return path


def manifest(timeline: Timeline, raw: dict[str, Contents]) -> dict[str, Any]:
    """Return the manifest, as plain values.

    Args:
        timeline: The run.
        raw: Name in the archive -> what the trace of that name is.
    """
    moved = dict(timeline.ranks.select("rank", "clock_offset_ns").drop_nulls().iter_rows())
    ours = {"path": OURS, "machine": {"name": _MACHINE}}
    others = [
        {
            "path": name,
            "machine": {"name": visible(trace.host or "") or "unknown"},
            "clocks": {
                "sync_to": {"file": OURS, "clock": _CLOCK},
                "offset_ns": (trace.offset_ns or 0) + moved.get(trace.rank, 0),
            },
        }
        for name, trace in raw.items()
    ]
    return {
        "perfetto_manifest": {
            "version": VERSION,
            "trace_time": {"clock": _CLOCK, "file": OURS},
            "files": [ours, *others],
        }
    }


def _raw(timeline: Timeline) -> list[Contents]:
    """Return the traces of the run's ranks whose times others read as they stand, each once."""
    ranks = set(timeline.ranks["rank"])
    known = {
        one.path: one
        for one in timeline.run.contents
        if one.offset_ns is not None and one.rank in ranks
    }
    return sorted(known.values(), key=lambda one: (one.rank or 0, one.path))


def _named(raw: Sequence[Contents]) -> dict[str, Contents]:
    """Return the traces by the names that they have in the archive, which are of one rank each."""
    named: dict[str, Contents] = {}
    for trace in raw:
        stem = visible(Path(trace.path).name).removesuffix(".gz")
        name = f"rank{trace.rank:05d}/{stem}"
        named[name if name not in named else f"rank{trace.rank:05d}/{len(named)}-{stem}"] = trace
    return named


def _snapshot(timeline: Timeline) -> bytes:
    """Return a packet that says which clock our times are on."""
    trace = proto.Trace()
    clock = trace.packet.add().clock_snapshot.clocks.add()
    clock.clock_id = proto.BUILTIN_CLOCK_BOOTTIME
    clock.timestamp = max(timeline.start_ns, 0)
    return bytes(trace.SerializeToString())


@contextmanager
def _unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Yield a trace as a file that is not packed."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise SourceError(
            path, "is no longer there; export --to perfetto writes the run without its traces"
        ) from None
    with file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if not packed:
            yield file
            return
        with tempfile.TemporaryFile() as plain:
            _unpack(file, plain)
            plain.seek(0)
            yield plain


def _unpack(source: IO[bytes], target: IO[bytes]) -> None:
    """Write what is packed, as far as it can be read: one member after the other."""
    unpacking = zlib.decompressobj(wbits=_GZIP_WINDOW)
    with suppress(zlib.error):
        while block := unpacking.unused_data or source.read(_BLOCK):
            if unpacking.eof:
                unpacking = zlib.decompressobj(wbits=_GZIP_WINDOW)
            target.write(unpacking.decompress(block))


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes], before: bytes = b"") -> None:
    """Add what is left of a file, behind some bytes."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(before) + size, _RIGHTS
    archive.addfile(member, _After(before, file))


class _After(io.RawIOBase):
    """A file that begins with some bytes."""

    def __init__(self, before: bytes, file: IO[bytes]) -> None:
        self._before = io.BytesIO(before)
        self._file = file

    def read(self, size: int = -1) -> bytes:
        begun = self._before.read(size)
        return begun + self._file.read(size if size < 0 else size - len(begun))
