"""Reading files and nothing else; writing a file wholly or not at all."""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_KEPT: Final = 50
"""Letters of a file's name in that of what is written beside it: no name has more than 255 bytes."""


def read_file(path: Path) -> bytes:
    """Return what a file holds that lies where others do, and so may be anything.

    Raises:
        OSError: It is missing or cannot be read, or is a pipe or a device, which may never end.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is no file", str(path))
    return path.read_bytes()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which takes the place of `path` if all goes well.

    On an error nothing is left behind and what was there before stays; a process that is killed
    leaves that too, and a hidden file beside it. A link stays a link: the file that it leads to is
    replaced, by one of the same permissions. A device or pipe is written to as it is.

    Raises:
        OSError: It cannot be written; the error's `filename` is the path, whatever raised it.
    """
    with _naming(path):
        path = path.resolve()
        if path.exists() and not path.is_file():
            yield path
            return
        partial = _new_beside(path)
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors of the system tell of a path; those that Rust has of it say their number as text."""
    try:
        yield
    except OSError as error:
        number = error.errno or _number(str(error))
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from None


def _number(said: str) -> int | None:
    """Return the number of the system's error that Rust told of."""
    found = re.search(r"\(os error (\d+)\)", said)
    return found and int(found[1])


def _new_beside(path: Path) -> Path:
    """Make an empty file that nobody else has and only those may read who may read what it replaces."""
    partial = path.with_name(f".{path.name[:_KEPT]}.{os.urandom(4).hex()}")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    if path.exists():
        if not os.access(path, os.W_OK):
            partial.unlink()
            raise PermissionError(errno.EACCES, "read-only")
        partial.chmod(stat.S_IMODE(path.stat().st_mode))
    return partial
