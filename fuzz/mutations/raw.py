"""Damage to bytes, whatever they mean: what disks, networks and kills leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

_LONGEST = 64


def cut(data: bytes, random: Random) -> bytes:
    """End early."""
    return data[: random.randrange(len(data))]


def flip(data: bytes, random: Random) -> bytes:
    """Flip a few bits."""
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        made[random.randrange(len(made))] ^= 1 << random.randrange(8)
    return bytes(made)


def remove(data: bytes, random: Random) -> bytes:
    """Lose some in the middle."""
    begin, end = _part(data, random)
    return data[:begin] + data[end:]


def duplicate(data: bytes, random: Random) -> bytes:
    """Hold some twice."""
    begin, end = _part(data, random)
    return data[:end] + data[begin:]


def swap(data: bytes, random: Random) -> bytes:
    """Hold a part in the place of another, and the other in its place."""
    (one, to), (other, until) = sorted((_part(data, random), _part(data, random)))
    other, until = max(other, to), max(until, to)
    return data[:one] + data[other:until] + data[to:other] + data[one:to] + data[until:]


def zeros(data: bytes, random: Random) -> bytes:
    """Hold zeros where a block was not written."""
    begin, end = _part(data, random)
    return data[:begin] + bytes(end - begin) + data[end:]


def insert(data: bytes, random: Random) -> bytes:
    """Hold what does not belong there."""
    at = random.randrange(len(data))
    junk = random.choice(
        (b"\0", b"\xff", b'"', b"}", b"]", b"\r\n", b"\xc3\x28", bytes(8), b"PAR1")
    )
    return data[:at] + junk * random.choice((1, 1, 5, 1000)) + data[at:]


def number(data: bytes, random: Random) -> bytes:
    """Hold another number in some aligned place of 2, 4 or 8 bytes."""
    size = random.choice((2, 4, 8))
    if len(data) < size:
        return data
    at = random.randrange(len(data) // size) * size
    value = random.choice((0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), 2 ** (8 * size - 2)))
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


WAYS = (cut, flip, remove, duplicate, swap, zeros, insert, number)


def _part(data: bytes, random: Random) -> tuple[int, int]:
    begin = random.randrange(len(data))
    return begin, min(len(data), begin + random.randrange(1, _LONGEST))
