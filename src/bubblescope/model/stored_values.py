"""Values that were worked out, as bytes: numbers, texts, tables, and records of these.

They are for the version of bubblescope that wrote them, which would else work them out again. Reading
them runs nothing: records are of the types that the reader names.
"""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAGIC: Final = b"bubblescope.values/1\n"
_DIGEST: Final = 32
_UNREADABLE: Final = (
    msgspec.MsgspecError, pl.exceptions.PolarsError, pl.exceptions.PanicException,
    OSError, ValueError, TypeError, KeyError, IndexError, RecursionError,
)  # fmt: skip
_TABLE, _COLUMN, _ARRAY, _RECORD, _LIST, _TUPLE, _MAP, _SET = range(8)


class DamagedError(ValueError):
    """Bytes are not what `encoded` returned, or of other types."""


def encoded(value: Any, kinds: Sequence[type]) -> bytes:
    """Return a value as bytes.

    Args:
        value: None, a number, a text, a Polars table or column, a NumPy array, or lists, tuples, dicts,
            frozen sets, named tuples and `msgspec.Struct` of such.
        kinds: The named tuples and structs that may be in it, each with a name of its own.

    Raises:
        TypeError: Something else is in it.
    """
    payload = msgspec.msgpack.encode(_plain(value, {kind: kind.__name__ for kind in kinds}))
    return _MAGIC + hashlib.blake2b(payload, digest_size=_DIGEST).digest() + payload


def decoded(content: bytes, kinds: Sequence[type]) -> Any:
    """Return the value that was encoded.

    Args:
        content: As `encoded` returned it.
        kinds: As of `encoded`.

    Raises:
        DamagedError: It is damaged, or of another version.
    """
    payload = memoryview(content)[len(_MAGIC) + _DIGEST :]
    head = _MAGIC + hashlib.blake2b(payload, digest_size=_DIGEST).digest()
    if content[: len(head)] != head:
        raise DamagedError("it is no encoded value, or damaged")
    try:
        return _made(msgspec.msgpack.decode(payload), {kind.__name__: kind for kind in kinds})
    except _UNREADABLE as error:
        raise DamagedError(f"it is a value of another version ({error})") from None


def _plain(value: Any, names: dict[type, str]) -> Any:
    """Return a value as what MessagePack has; what that has not is a list that begins with its sort."""
    if value is None or type(value) in {bool, int, float, str}:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, pl.DataFrame | pl.Series | np.ndarray):
        return _columns(value)
    if (name := names.get(type(value))) is not None:
        fields = _fields(type(value))
        held = [_plain(getattr(value, field), names) for field in fields]
        return [_RECORD, name, dict(zip(fields, held, strict=True))]
    if type(value) is dict:
        return [_MAP, [[_plain(key, names), _plain(one, names)] for key, one in value.items()]]
    for sort, kind in ((_LIST, list), (_TUPLE, tuple), (_SET, frozenset)):
        if type(value) is kind:
            return [sort, [_plain(one, names) for one in value]]
    raise TypeError(f"cannot be stored: {type(value).__name__}")


def _columns(value: pl.DataFrame | pl.Series | np.ndarray[Any, Any]) -> list[Any]:
    """Return columns as `_plain` does."""
    if isinstance(value, pl.DataFrame):
        return [_TABLE, _ipc(value)]
    if isinstance(value, pl.Series):
        return [_COLUMN, _ipc(value.to_frame())]
    whole = io.BytesIO()
    np.save(whole, value, allow_pickle=False)
    return [_ARRAY, whole.getvalue()]


def _made(plain: Any, kinds: dict[str, type]) -> Any:
    """Return the value that `_plain` was given."""
    if not isinstance(plain, list):
        return plain
    sort, held = plain[0], plain[1]
    if sort in {_TABLE, _COLUMN}:
        table = pl.read_ipc(io.BytesIO(held))
        return table if sort == _TABLE else table.to_series()
    if sort == _ARRAY:
        return np.load(io.BytesIO(held), allow_pickle=False)
    if sort == _RECORD:
        kind, fields = kinds[held], plain[2]
        if [*fields] != [*_fields(kind)]:
            raise ValueError(f"{held} has other fields")
        return kind(*(_made(one, kinds) for one in fields.values()))
    if sort == _MAP:
        return {_made(key, kinds): _made(one, kinds) for key, one in held}
    return {_LIST: list, _TUPLE: tuple, _SET: frozenset}[sort](_made(one, kinds) for one in held)


def _fields(kind: Any) -> tuple[str, ...]:
    """Return the names of what a record holds, in the order of its constructor."""
    found: tuple[str, ...] = getattr(kind, "__struct_fields__", None) or kind._fields
    return found


def _ipc(table: pl.DataFrame) -> bytes:
    whole = io.BytesIO()
    table.write_ipc(whole, compression="zstd")
    return whole.getvalue()
