"""Writing a file wholly or not at all."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which takes the place of `path` if all goes well.

    On an error nothing is left behind and what was there before stays. A link stays a link: the file
    that it leads to is replaced. A device or pipe is written to as it is.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        yield path
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
