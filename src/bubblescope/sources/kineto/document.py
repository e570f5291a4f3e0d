"""The JSON document of a PyTorch profiler trace, decoded piece by piece, whole or torn.

The format is Chrome's trace events with Kineto's own keys around them (pytorch/kineto,
`libkineto/src/output_json.cpp`). A file is one object whose `traceEvents` array may hold millions of
events (until PyTorch 1.8 it was that array alone), so it is cut at event boundaries into batches:
memory stays bounded, and a damaged event or a torn end costs no more than itself.
"""

from __future__ import annotations

import gc
import re
import zlib
from codecs import BOM_UTF8
from collections import deque
from contextlib import contextmanager, suppress
from functools import reduce
from itertools import chain, islice
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.model.bounds import UNDECODABLE, Device, Int32, Int64, Time
from bubblescope.model.errors import SourceError, reason
from bubblescope.sources.packed_head import GZIP, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from bubblescope.model.progress import Progress

_PIECE: Final = 1 << 19
"""Bytes decoded at once: with their events they fit in a processor's cache."""
_PACKED_PIECE: Final = 1 << 16
_ARRAY: Final = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[')
_BEFORE_PHASE: Final = re.compile(rb"\}\s*(,)\s*(\{)\s*\Z")
_BEFORE_BRACE: Final = re.compile(rb"\}\s*(,)\s*\Z")
_TRIES: Final = 64
"""Among how many phases, and braces, a boundary is looked for: odd text must not be searched all over
again."""
_REACH: Final = 1 << 16
"""How far before its phase an event may begin."""
_BOUNDARY: Final = re.compile(rb'\}(\s*,\s*)(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)"\s*:)')
_ARRAY_END: Final = re.compile(rb"\}\s*\](?=\s*[,}])")
_NO_VALUE: Final = re.compile(rb"-?\b(?:NaN|nan|Infinity|inf)\b|(?<=:)\s*(?=[,}])")
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_BROKEN_TIME: Final = re.compile(rb'"ts"\s*:\s*\d+\.\d')
_BAD_ESCAPE: Final = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_WHOLE: Final = re.compile(
    rb'("(?:pid|tid|correlation|device|Sequence number)"\s*:\s*-?\d{1,15})\.0+(?=\s*[,}])'
)
"""A number that is an id, as programs write it that know no integers; longer ones they have rounded."""
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_OPENING: Final = b'{"traceEvents":['
_BEFORE_EVENTS: Final = 1 << 28
"""Bytes that may stand before the events: thousands of groups of thousands of ranks take a tenth."""
_ONE_EVENT: Final = 1 << 28
"""Bytes that one event may have."""
_SPLIT: Final = 256
"""Bytes of a piece in which what is looked for may have begun that ends in the next."""
_MENDABLE: Final = 1 << 22
"""Bytes of JSON that are mended: of longer texts it would take fifty times the memory."""
_PACKED_WELL: Final = 200
_UNPACKED: Final = 1 << 30
"""No profiler's trace is larger than this and packed that well: its text repeats, but not like this."""
_SHAPES: Final = re.compile(rb'"Input Dims"')
_SEARCHED: Final = 1 << 25
"""Bytes of events in which shapes are looked for. PyTorch records those of all operators or of none,
and writes operators first."""
_PHASES: Final = "BEMIstfbneNODPRcVvSTpF(),"
_READ_PHASES: Final = "XiC"
_EXACT_US: Final = 2.0**43
"""Below this a float64 of microseconds with three decimals still tells nanoseconds apart."""


class Arguments(msgspec.Struct, gc=False):
    """What is used of an event's `args`."""

    correlation: Int64 | None = None
    device: Device | None = None
    stream: Any = None
    sequence: Int64 | None = msgspec.field(default=None, name="Sequence number")
    # Of communication, whatever their types: none of them is worth losing an event.
    collective: Any = msgspec.field(default=None, name="Collective name")
    source: Any = msgspec.field(default=None, name="Src Rank")
    destination: Any = msgspec.field(default=None, name="Dst Rank")
    peer: Any = msgspec.field(default=None, name="Rank")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    description: Any = msgspec.field(default=None, name="Process Group Description")
    members: Any = msgspec.field(default=None, name="Process Group Ranks")
    size: Any = msgspec.field(default=None, name="Group size")
    first: Any = msgspec.field(default=None, name="Global rank start")
    stride: Any = msgspec.field(default=None, name="Global rank stride")
    inputs: Any = msgspec.field(default=None, name="Concrete Inputs")


class ShapedArguments(Arguments, gc=False):
    """The same where `record_shapes=True` left what operators were called with.

    That is kept as JSON: it is long, and matters for few operators. So it lies in the text that was
    decoded, for as long as the arguments are kept.
    """

    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="Input type")


class Slice(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event; times are microseconds."""

    ts: float
    cat: str = ""
    name: str = ""
    pid: Int64 | str | None = None
    tid: Int64 | str | None = None
    dur: float = 0.0
    args: Arguments | None = None


class ExactSlice(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A `Slice` whose times are kept as text, for a float64 would round them."""

    ts: msgspec.Raw
    cat: str = ""
    name: str = ""
    pid: Int64 | str | None = None
    tid: Int64 | str | None = None
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: Arguments | None = None


class ShapedSlice(Slice, gc=False, tag_field="ph", tag="X"):
    """A `Slice` among operators that have shapes."""

    args: ShapedArguments | None = None


class ExactShapedSlice(ExactSlice, gc=False, tag_field="ph", tag="X"):
    """An `ExactSlice` among operators that have shapes."""

    args: ShapedArguments | None = None


class Memory(msgspec.Struct, gc=False):
    """What is used of the `args` of PyTorch's `[memory]` events; sizes are bytes."""

    # What the allocator does not know is -1, of 64 bits with or without a sign.
    allocated: float | None = msgspec.field(default=None, name="Total Allocated")
    reserved: float | None = msgspec.field(default=None, name="Total Reserved")
    sort: Int32 | None = msgspec.field(default=None, name="Device Type")
    device: Int32 | None = msgspec.field(default=None, name="Device Id")


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """An event without length; its time is microseconds."""

    ts: float | None = None
    name: str = ""
    args: Memory | str | None = None


class ExactInstant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """An `Instant` whose time is kept as text."""

    ts: msgspec.Raw = msgspec.Raw(b"null")
    name: str = ""
    args: Memory | str | None = None


class Count(msgspec.Struct, tag_field="ph", tag="C"):
    """A sample of a counter, of one series or several; its time is microseconds.

    Counters of one name are told apart by their id, and by their process.
    """

    ts: float | None = None
    name: str = ""
    pid: Int64 | str | None = None
    id: Int64 | str | None = None
    args: dict[str, Any] | str | None = None


class ExactCount(msgspec.Struct, tag_field="ph", tag="C"):
    """A `Count` whose time is kept as text."""

    ts: msgspec.Raw = msgspec.Raw(b"null")
    name: str = ""
    pid: Int64 | str | None = None
    id: Int64 | str | None = None
    args: dict[str, Any] | str | None = None


class Losses(msgspec.Struct):
    """What could not be read.

    Attributes:
        events: Events that make no sense even by themselves.
        repaired: Events read only after their JSON was mended (bare NaN, bad escapes or bytes, ids as
            fractions).
        torn_bytes: Bytes after the last complete event of a file that ends too early.
        torn: Whether the file ends too early.
        checksum: Whether the gzip checksum of a complete file is wrong.
        size: Bytes of JSON read.
    """

    events: int = 0
    repaired: int = 0
    torn_bytes: int = 0
    torn: bool = False
    checksum: bool = False
    size: int = 0


def _skipped(phase: str) -> type[msgspec.Struct]:
    """Return a type for events of a phase that is skipped: an empty one, quick to decode."""
    return msgspec.defstruct(f"Phase{ord(phase)}", [], tag_field="ph", tag=phase, gc=False)


_SKIPPED: Final = [_skipped(phase) for phase in _PHASES]
_EVENTS: Final[Any] = list[reduce(or_, _SKIPPED, Slice | Instant | Count)]  # type: ignore[misc]
_EXACT_EVENTS: Final[Any] = list[  # type: ignore[misc]
    reduce(or_, _SKIPPED, ExactSlice | ExactInstant | ExactCount)
]
_SHAPED_EVENTS: Final[Any] = list[  # type: ignore[misc]
    reduce(or_, _SKIPPED, ShapedSlice | Instant | Count)
]
_EXACT_SHAPED_EVENTS: Final[Any] = list[  # type: ignore[misc]
    reduce(or_, _SKIPPED, ExactShapedSlice | ExactInstant | ExactCount)
]


class Header(msgspec.Struct, kw_only=True):
    """What is said around the events, before or after them."""

    events: _EVENTS = msgspec.field(default_factory=list, name="traceEvents")
    base_ns: Time | None = msgspec.field(default=None, name="baseTimeNanoseconds")
    schema: Int64 | str | None = msgspec.field(default=None, name="schemaVersion")
    devices: list[Any] | None = msgspec.field(default=None, name="deviceProperties")
    distributed: dict[str, Any] | None = msgspec.field(default=None, name="distributedInfo")
    host: str | None = msgspec.field(default=None, name="host_name")
    declared: Any = msgspec.field(default=None, name="pp_info")
    # 1 where it was asked for; else the key is missing.
    with_stack: Any = None
    record_shapes: Any = None


class _Ending(msgspec.Struct):
    """The last events once more, as text."""

    events: msgspec.Raw = msgspec.field(name="traceEvents")


class _AnyPhase(msgspec.Struct):
    ph: str


_HEADER_DECODER: Final = msgspec.json.Decoder(Header)
_ENDING_DECODER: Final = msgspec.json.Decoder(_Ending)
_DECODER: Final = msgspec.json.Decoder(_EVENTS)
_EXACT_DECODER: Final = msgspec.json.Decoder(_EXACT_EVENTS)
_SHAPED_DECODER: Final = msgspec.json.Decoder(_SHAPED_EVENTS)
_EXACT_SHAPED_DECODER: Final = msgspec.json.Decoder(_EXACT_SHAPED_EVENTS)
_ANY_PHASE_DECODER: Final = msgspec.json.Decoder(_AnyPhase)


def read_document(
    path: Path,
    begin: Callable[[Header], Callable[[list[Any]], None]],
    progress: Progress,
    *,
    unlimited: bool = False,
) -> tuple[Header, Losses]:
    """Decode a trace and hand its events over in batches.

    Args:
        path: A `.json` or `.json.gz` file.
        begin: Called with what is said before the events; returns what is called with each batch,
            in the file's order: `Slice`, `Instant` and `Count`, or `ExactSlice` and so on, among
            events of other kinds.
        progress: Is told of the file's bytes as they are read.
        unlimited: Whether to read a packed file however much it unpacks to.

    Returns:
        What is said around the events (its `events` are empty), and what was lost.

    Raises:
        SourceError: The file is no such document, or ends before its events begin, or unpacks to more
            than a trace can.
    """
    losses = Losses()
    pieces = _pieces(path, losses, progress)
    if not unlimited and packed(path):
        pieces = _limited(path, pieces)
    buffer = bytearray()
    for piece in pieces:
        searched = max(0, len(buffer) - _SPLIT)
        buffer += piece if buffer else piece.removeprefix(BOM_UTF8)  # as editors on Windows add
        if found := _ARRAY.search(buffer, searched):
            break
        if len(buffer) > _BEFORE_EVENTS:
            raise SourceError(
                path,
                f"has no events in its first {len(buffer):,} bytes: it is not a PyTorch profiler trace",
            )
    else:
        raise _no_events(path, bytes(buffer), losses)
    bare = found[0].lstrip() == b"["
    try:
        header = Header() if bare else _header(bytes(buffer[: found.end()]) + b"]}")
    except UNDECODABLE as error:
        raise SourceError(path, f"has an invalid header ({reason(error)})") from None
    take = begin(header)
    with _collector_paused():
        rest = chain([bytes(buffer[found.end() :])], pieces, [b"}"] if bare else [])
        tail = _read_events(path, rest, take, losses)
    losses.torn_bytes -= bare and losses.torn
    for field in header.__struct_fields__:
        if field != "events" and getattr(header, field) is None:
            setattr(header, field, getattr(tail, field))
    return header, losses


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep Python's cycle collector from looking at a million new events again and again.

    They hold no cycles; it would take a fifth of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_events(
    path: Path, pieces: Iterable[bytes], take: Callable[[list[Any]], None], losses: Losses
) -> Header:
    """Hand over all events, and return what is said after them.

    The text lies in one buffer, used again and again, that begins with the bracket of an array. A
    batch ends where a comma is turned into the other bracket, so that it is decoded where it lies.
    """
    buffer, used = bytearray(b"[") + bytes(2 * _PIECE), 1
    decoder = _Decoder(losses)
    for piece in pieces:
        searched, size = max(0, used - _SPLIT), used + len(piece)
        if size > len(buffer):  # twice as much each time, or a long event would be copied for each
            buffer.extend(bytes(max(size - len(buffer), min(len(buffer), _ONE_EVENT))))
        buffer[used:size] = piece
        used = size
        if used > _ONE_EVENT:
            raise SourceError(
                path,
                f"has an event of over {_ONE_EVENT:,} bytes; profile again, without what fills it",
            )
        if cut := _last_boundary(buffer, used, searched):
            comma, following = cut
            buffer[comma] = ord("]")
            take(_batch(buffer, comma + 1, decoder))
            size = 1 + used - following
            buffer[1:size] = buffer[following:used]
            used = size
    text = bytes(memoryview(buffer)[1:used])
    del buffer
    events, tail = _ending(text, decoder)
    take(events)
    return tail


def _limited(path: Path, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield pieces of text as long as there are no more than a trace's file can be unpacked to."""
    size = 0
    most = max(_UNPACKED, _PACKED_WELL * path.stat().st_size)
    for piece in pieces:
        size += len(piece)
        if size > most:
            raise SourceError(
                path,
                f"unpacks to over {most:,} bytes, {_PACKED_WELL} times its size, as no trace does; if "
                "it is one, --unlimited reads it",
            )
        yield piece


def _pieces(path: Path, losses: Losses, progress: Progress) -> Iterator[bytes]:
    """Yield the JSON text in large pieces, unpacking it if it is packed."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP
            file.seek(0)
            unpack = zlib.decompressobj(wbits=31) if packed else None
            while piece := file.read(_PIECE if unpack is None else _PACKED_PIECE):
                progress.advance(len(piece))
                while unpack is not None and piece:
                    before = unpack.copy()
                    try:
                        text, failed = unpack.decompress(piece, _PIECE), False
                    except zlib.error as error:
                        text, failed = _unpacked_until_error(before, piece), True
                        # Only the checksum at the very end follows all of the text.
                        losses.checksum = "incorrect data check" in str(error)
                        losses.torn = not losses.checksum
                    losses.size += len(text)
                    if text:
                        yield text
                    if failed:
                        return
                    piece = unpack.unconsumed_tail
                    if unpack.eof:
                        piece = unpack.unused_data
                        if not piece.startswith(GZIP):
                            return
                        unpack = zlib.decompressobj(wbits=31)
                if unpack is None:
                    losses.size += len(piece)
                    yield piece
            losses.torn = unpack is not None
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror})") from None


def _unpacked_until_error(unpack: zlib._Decompress, piece: bytes) -> bytes:
    """Return what the longest sound beginning of damaged data unpacks to."""
    sound, damaged = 0, len(piece)
    while damaged - sound > 1:
        middle = (sound + damaged) // 2
        try:
            unpack.copy().decompress(piece[:middle])
        except zlib.error:
            damaged = middle
        else:
            sound = middle
    return unpack.decompress(piece[:sound])


def _no_events(path: Path, text: bytes, losses: Losses) -> SourceError:
    if not text:
        what = "is empty" if not losses.torn else "holds no readable gzip data"
        return SourceError(path, f"{what}: the profiler had not written it yet; profile again")
    try:
        msgspec.json.decode(_mended(text))
    except UNDECODABLE:
        return SourceError(
            path,
            f"is cut short: its {len(text)} bytes of JSON end before the events begin; the job "
            "stopped while the profiler wrote it",
        )
    return SourceError(
        path, 'is JSON, but has no "traceEvents" array: not a PyTorch profiler trace'
    )


def _header(text: bytes) -> Header:
    try:
        return _HEADER_DECODER.decode(text)
    except UNDECODABLE:
        return _HEADER_DECODER.decode(_mended(text))


def _last_boundary(text: bytes | bytearray, end: int, searched: int = 0) -> tuple[int, int] | None:
    """Return where the last comma between two events stands before `end`, and the second begins.

    The second's phase stands after `searched`: before that there is no such comma.

    In JSON an unescaped `{"ph":` can stand nowhere but at the start of an object. So PyTorch writes its
    events; other writers, and programs that rewrite its traces, put other keys first.
    """
    braces = _TRIES
    for _ in range(_TRIES):
        end = text.rfind(b'"ph"', searched, end)
        if end <= 0:
            break
        if found := _BEFORE_PHASE.search(text, max(0, end - _SPLIT), end):
            return found.start(1), found.start(2)
        opening, braces = _opening(text, end, braces)
        if opening:
            return opening
    return None


def _opening(text: bytes | bytearray, phase: int, tries: int) -> tuple[tuple[int, int] | None, int]:
    """Return where the comma before an event stands and where it begins, by where its phase stands.

    Args:
        text: The text.
        phase: Where the phase stands.
        tries: How many braces may be tried.

    Returns:
        The two places, or None, and how many more braces may be tried.
    """
    brace, least = phase, max(0, phase - _REACH)
    while tries and (brace := text.rfind(b"{", least, brace)) > 0:
        if found := _BEFORE_BRACE.search(text, max(0, brace - _SPLIT), brace):
            tries -= 1
            with suppress(*UNDECODABLE):
                # That it is an object with one more key shows that "ph" is a key of it itself.
                msgspec.json.decode(bytes(text[brace:phase]) + b'"ph":0}')
                return (found.start(1), brace), tries
    return None, tries


class _Decoder:
    """Decodes arrays of events, and takes note of what is lost.

    Attributes:
        losses: What could not be read.
    """

    def __init__(self, losses: Losses) -> None:
        self.losses = losses
        self._shaped = False
        self._searched = 0

    def __call__(self, array: bytes | memoryview) -> list[Any]:
        """Decode an array; `Slice` and the like, `ShapedSlice` where operators have shapes."""
        if not self._shaped and self._searched < _SEARCHED:
            self._shaped = _SHAPES.search(array) is not None
            self._searched += len(array)
        # Raw text refers to its buffer, which is reused: it needs one of its own.
        text = bytes(array) if self._shaped else array
        events: list[Any] = (_SHAPED_DECODER if self._shaped else _DECODER).decode(text)
        if _rounded(events, text):
            exact = _EXACT_SHAPED_DECODER if self._shaped else _EXACT_DECODER
            events = exact.decode(bytes(text))
        return events


def _batch(text: bytes | bytearray, size: int, decoder: _Decoder) -> list[Any]:
    """Decode the array of events that the first `size` bytes are."""
    try:
        with memoryview(text) as whole, whole[:size] as array:
            return decoder(array)
    except UNDECODABLE:
        return _one_by_one(bytes(text[1 : size - 1]), decoder)


def _rounded(events: list[Any], text: bytes | memoryview) -> bool:
    """Say whether times are such that a float64 has rounded them."""
    times = (event.ts for event in events[:400] if type(event) in _WITH_FLOATS)
    return any(ts and ts >= _EXACT_US for ts in times) and _BROKEN_TIME.search(text) is not None


_WITH_FLOATS: Final = frozenset({Slice, ShapedSlice, Instant, Count})


def _one_by_one(text: bytes, decoder: _Decoder) -> list[Any]:
    """Decode what can be decoded of damaged events."""
    return [event for part in _separate(text) for event in _alone(part, decoder)]


def _alone(text: bytes, decoder: _Decoder) -> list[Any]:
    """Decode one event, mended if need be: a list of it, or of nothing if it is beyond repair."""
    try:
        return decoder(b"[" + text + b"]")
    except UNDECODABLE:
        mended = _mended(text)
    try:
        events = decoder(b"[" + mended + b"]")
    except UNDECODABLE:
        decoder.losses.events += not _is_of_no_interest(mended)
        return []
    decoder.losses.repaired += 1
    return events


def _is_of_no_interest(event: bytes) -> bool:
    """Say whether an event is well formed and of a phase that no specification knows."""
    try:
        phase = _ANY_PHASE_DECODER.decode(event).ph
    except UNDECODABLE:
        return False
    return phase not in _READ_PHASES and phase not in _PHASES


def _separate(text: bytes) -> Iterator[bytes]:
    begin = 0
    for found in _BOUNDARY.finditer(text):
        yield text[begin : found.start() + 1]
        begin = found.end()
    yield text[begin:].rstrip().removesuffix(b",")


def _ending(text: bytes, decoder: _Decoder) -> tuple[list[Any], Header]:
    """Decode the last events and what follows them, complete or not."""
    comma, following = _last_boundary(text, len(text)) or (0, 0)
    before = _batch(b"[" + text[:comma] + b"]", comma + 2, decoder)
    last = text[following:]
    try:
        tail = _HEADER_DECODER.decode(_OPENING + last)
    except UNDECODABLE:
        events, tail = _damaged_ending(last, decoder)
    else:
        events = decoder(bytes(_ENDING_DECODER.decode(_OPENING + last).events))
    tail.events = []
    return before + events, tail


def _damaged_ending(text: bytes, decoder: _Decoder) -> tuple[list[Any], Header]:
    """Decode what can be decoded of an event that should be the last, and what follows it."""
    found = _ARRAY_END.finditer(text)
    ends = [*islice(found, _TRIES), *deque(found, _TRIES)]
    for end in ends:  # a bad event before a sound ending
        try:
            tail = _header(_OPENING + text[end.end() - 1 :])
        except UNDECODABLE:
            continue
        return _one_by_one(text[: end.start() + 1], decoder), tail
    decoder.losses.torn = True
    for end in ends:  # sound events before a bad ending
        try:
            events = decoder(b"[" + text[: end.start() + 1] + b"]")
        except UNDECODABLE:
            continue
        decoder.losses.torn_bytes = len(text) - end.end()
        return events, Header()
    cut = max((found.start() + 1 for found in _BOUNDARY.finditer(text)), default=0)
    decoder.losses.torn_bytes = len(text) - cut
    return (_one_by_one(text[:cut], decoder) if cut else []), Header()


def _mended(text: bytes) -> bytes:
    """Turn what profilers have written as JSON, though it is not, into JSON.

    Bare NaN and Infinity, and values that are missing, become null, invalid escapes literal
    backslashes, and bytes that are no UTF-8 or may not stand in a string the replacement character;
    ids that are fractions become whole. A text longer than any profiler has written with such faults
    stays as it is.
    """
    if len(text) > _MENDABLE:
        return text
    # Every second quotation mark ends a string. (One pattern for strings would need memory for each of
    # their letters.)
    parts, begin = [], 0
    for count, part in enumerate(_ESCAPE.sub(b"__", text).split(b'"')):
        end = begin + len(part)
        parts.append(text[begin:end] if count % 2 else _NO_VALUE.sub(b"null", text[begin:end]))
        begin = end + 1
    text = _WHOLE.sub(rb"\1", b'"'.join(parts))
    text = _BAD_ESCAPE.sub(lambda found: found[0] if found[1] else rb"\\", text)
    text = _CONTROL.sub("�".encode(), text)
    return text.decode("utf-8", "replace").encode()
