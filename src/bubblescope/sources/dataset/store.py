"""Where the files of a dataset lie: in a folder, or under a prefix of object storage.

Both write a file wholly or not at all. Object storage is what [obstore](https://developmentseed.org/obstore)
reaches: s3://, gs:// and az:// addresses, with the endpoint and the credentials that its environment
variables name (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID ...).
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from bubblescope.model.errors import SourceError, reason
from bubblescope.model.files import read_file, replacing

if TYPE_CHECKING:
    from collections.abc import Iterator

_ADDRESS: Final = re.compile(r"(s3|s3a|gs|az|abfs|abfss|adl):/+(?P<rest>.+)")
_LOCK: Final = ".lock"


class Store(Protocol):
    """The files of a dataset, by their names: "tasks/block=0/5d41402abc4b2a76.parquet"."""

    def __str__(self) -> str: ...

    def place(self, name: str) -> str:
        """Return where a file is, as messages say it."""

    def anywhere(self) -> Store:
        """Return the same store as workers find it, who may work in another folder."""

    def read(self, name: str) -> bytes:
        """Return what a file holds.

        Raises:
            FileNotFoundError: There is none.
            OSError: It cannot be read.
        """

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Write a file; what was there is replaced when all of the new one is.

        Raises:
            OSError: It cannot be written.
        """

    def remove(self, name: str) -> None:
        """Remove a file."""

    def names(self, folder: str = "") -> list[str]:
        """Return the files in a folder and all below, or all; also what a killed writer left."""

    def held(self) -> Any:
        """Return a context in which no other process writes, as far as that can be known.

        Raises:
            BlockingIOError: Another one does.
        """


def is_address(path: str | Path) -> bool:
    """Say whether a path is an address in object storage."""
    return _ADDRESS.fullmatch(str(path)) is not None


def store_of(path: str | Path) -> Store:
    """Return the store at a path or an address.

    Raises:
        SourceError: It is an address, and the package is not installed that reads those.
    """
    found = _ADDRESS.fullmatch(str(path))
    # A `Path` of an address has one slash where it had two.
    return Folder(Path(path)) if found is None else Bucket(f"{found[1]}://{found['rest']}")


class Folder:
    """A folder of this machine's file systems.

    Args:
        root: The folder; it is made when something is written to it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return str(self.root)

    def place(self, name: str) -> str:
        """Return where a file is."""
        return str(self.root / name)

    def anywhere(self) -> Folder:
        """Return the folder by its whole path."""
        return Folder(self.root.absolute())

    def read(self, name: str) -> bytes:
        """Return what a file holds."""
        return read_file(self.root / name)

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Write a file beside its place, and rename it."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_bytes(content)

    def remove(self, name: str) -> None:
        """Remove a file, and the folders that it leaves empty."""
        path = self.root / name
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == self.root or any(folder.iterdir()):
                return
            folder.rmdir()

    def names(self, folder: str = "") -> list[str]:
        """Return the files in a folder and all below."""
        found = (self.root / folder).rglob("*")
        files = (path.relative_to(self.root).as_posix() for path in found if path.is_file())
        return sorted(name for name in files if name != _LOCK)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold a lock on the folder."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / _LOCK).open("w") as lock:
            _claim(lock.fileno())
            yield


class Bucket:
    """A prefix of object storage.

    Args:
        address: Such as "s3://bucket/run".

    Raises:
        SourceError: obstore is not installed, or the address is not one.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        try:
            import obstore  # noqa: PLC0415  an extra
            from obstore.exceptions import BaseError  # noqa: PLC0415
            from obstore.store import from_url  # noqa: PLC0415
        except ImportError:
            raise SourceError(
                address, "is in object storage, which needs: pip install 'bubblescope[s3]'"
            ) from None
        self._obstore, self._error = obstore, BaseError
        try:
            self._store = from_url(self.address)
        except (BaseError, ValueError) as error:
            raise SourceError(address, f"cannot be reached ({reason(error)})") from None

    def __str__(self) -> str:
        return self.address

    def __getstate__(self) -> str:
        return self.address

    def __setstate__(self, state: str) -> None:
        Bucket.__init__(self, state)

    def place(self, name: str) -> str:
        """Return where a file is."""
        return f"{self.address}/{name}"

    def anywhere(self) -> Bucket:
        """Return itself."""
        return self

    def read(self, name: str) -> bytes:
        """Return what a file holds."""
        with self._failing(name):
            return bytes(self._obstore.get(self._store, name).bytes())

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Put a file, which is there when all of it is."""
        with self._failing(name):
            self._obstore.put(self._store, name, bytes(content))

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self._failing(name):
            self._obstore.delete(self._store, name)

    def names(self, folder: str = "") -> list[str]:
        """Return the files under a prefix."""
        with self._failing(folder):
            found = self._obstore.list(self._store, folder or None)
            return sorted(one["path"] for some in found for one in some)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold nothing: object storage has no locks."""
        yield

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        """Raise what obstore raises as what files raise."""
        try:
            yield
        except FileNotFoundError:
            raise
        except self._error as error:
            raise OSError(0, reason(error), self.place(name)) from None


def _claim(descriptor: int) -> None:
    """Lock a file for as long as it is open; where there are no such locks, do nothing."""
    try:
        import fcntl  # noqa: PLC0415  not on every system
    except ImportError:
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
