"""Damage to lines of text: logs, tables, settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fuzz.hostile import FLOATS, INTEGERS, TEXTS

if TYPE_CHECKING:
    from random import Random

_NUMBER: Final = re.compile(rb"-?\d+(?:\.\d+)?")
_LONGEST: Final = 1_000_000
_WORD: Final = re.compile(rb"[A-Za-z_]+")


def mutated(data: bytes, random: Random) -> bytes:
    """Return another text."""
    return random.choice(_WAYS)(data, random)


def neutral(data: bytes, random: Random) -> bytes:
    """Return the text with a line between two others that tells nothing."""
    lines = data.splitlines(keepends=True)
    said = random.choice((b"\n", b"INFO - loss 2.31\n", b"Traceback (most recent call last):\n"))
    lines.insert(random.randrange(len(lines) + 1), said)
    return b"".join(lines)


def _number(data: bytes, random: Random) -> bytes:
    """Say another number somewhere, or wherever that number stands."""
    found = [*_NUMBER.finditer(data)]
    if not found:
        return data
    one = random.choice(found)
    value = random.choice((*INTEGERS, *FLOATS, "", "-", "1" * 400, "0" * 400 + "1", "1.2.3", "٣"))
    said = str(value).encode()
    if random.random() < 0.2:
        return data.replace(one[0], said)
    return data[: one.start()] + said + data[one.end() :]


def _word(data: bytes, random: Random) -> bytes:
    """Say another word somewhere, or wherever that word stands."""
    found = [*_WORD.finditer(data)]
    if not found:
        return data
    one = random.choice(found)
    other = random.choice((*TEXTS, random.choice(found)[0].decode(), one[0].decode().upper()))
    if random.random() < 0.3:
        return data.replace(one[0], other.encode())
    return data[: one.start()] + other.encode() + data[one.end() :]


def _lines(data: bytes, random: Random) -> bytes:
    """Lose, repeat, exchange or join lines."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    how = random.randrange(5)
    if how == 0:
        del lines[at]
    elif how == 1:
        lines[at:at] = [lines[other]] * random.choice((1, 1, 2, 100))
    elif how == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif how == 3:
        lines[at] = lines[at].rstrip(b"\r\n")
    else:
        random.shuffle(lines)
    return b"".join(lines)


def _long(data: bytes, random: Random) -> bytes:
    """Hold a very long line."""
    lines = data.splitlines(keepends=True) or [b"x"]
    at = random.randrange(len(lines))
    times = random.choice((20, 200))
    lines[at] = (lines[at].rstrip(b"\r\n") * times)[:_LONGEST] + b"\n"
    return b"".join(lines)


def _encoding(data: bytes, random: Random) -> bytes:
    """Be in another encoding than was meant."""
    text = data.decode("latin-1")
    way = random.choice(("utf-16", "utf-8-sig", "utf-32"))
    return text.encode(way)


_WAYS: Final = (_number, _number, _number, _word, _word, _lines, _lines, _long, _encoding)
