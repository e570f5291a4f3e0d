"""Types that threads decode at once.

msgspec describes a type to itself when it first decodes it. While it describes the types inside, other
threads get the description half made, and the process ends with a segmentation fault (msgspec 0.19 to
0.22). So whoever names a type to msgspec, outside of a decoder that a module keeps, has it prepared.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, Final, TypeVar

import msgspec

_Kind = TypeVar("_Kind", bound=Any)

_PREPARED: Final[set[Any]] = set()
_ONE_AT_A_TIME: Final = Lock()


def prepared(kind: _Kind) -> _Kind:
    """Return a type, once msgspec has described it as a whole.

    Args:
        kind: What msgspec decodes or converts to.
    """
    if kind not in _PREPARED:
        with _ONE_AT_A_TIME:
            msgspec.json.Decoder(kind)
            _PREPARED.add(kind)
    return kind
