"""Amounts of memory as people write them."""

from __future__ import annotations

import re
from typing import Final

from bubblescope.model.errors import EngineError

_AMOUNT: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(?:([kKMGT])(i?))?B?")
_POWERS: Final = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def byte_count(amount: int | str | None) -> int | None:
    """Read an amount of memory, in bytes or with its unit; None stays None.

    >>> byte_count("8GB"), byte_count("1.5 GiB"), byte_count("4096"), byte_count(4096)
    (8000000000, 1610612736, 4096, 4096)

    Raises:
        EngineError: It is none, or none at all.
    """
    if amount is None:
        return None
    found = _AMOUNT.fullmatch(str(amount).strip())
    size = 0
    if found:
        number, power, binary = found.groups()
        size = round(float(number) * (1024 if binary else 1000) ** _POWERS.get(power, 0))
    if size < 1:
        raise EngineError(f"{str(amount)!r} is no amount of memory; write it as 8GB or 600MiB")
    return size


def gigabytes(size: int) -> str:
    """Write an amount of memory.

    >>> gigabytes(8_000_000_000), gigabytes(600_000_000)
    ('8 GB', '0.6 GB')
    """
    return f"{size / 1e9:.3g} GB"
