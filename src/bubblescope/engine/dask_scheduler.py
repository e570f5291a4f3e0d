"""Which Dask scheduler is meant.

What was asked for counts, then what the environment says, the more particular first:

1. an address or a scheduler file that is given,
2. ``BUBBLESCOPE_DASK_SCHEDULER_FILE``: the path of a scheduler file, for bubblescope alone,
3. ``DASK_SCHEDULER_ADDRESS``, or ``scheduler-address`` in Dask's configuration (``~/.config/dask``).

If nothing is said, none is meant.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dask
import msgspec

from bubblescope.model.decoders import prepared
from bubblescope.model.errors import EngineError

if TYPE_CHECKING:
    from os import PathLike

FILE: Final = "BUBBLESCOPE_DASK_SCHEDULER_FILE"
ADDRESS: Final = "DASK_SCHEDULER_ADDRESS"

_POLL_S: Final = 0.1


class _Identity(msgspec.Struct):
    """What of a scheduler file matters here."""

    address: str


class Scheduler(msgspec.Struct, frozen=True):
    """A scheduler, by its address or by a file that has it.

    Attributes:
        place: The address, or the path of the file.
        is_file: Which.
        said_by: Who says so, as messages can put it.
        cluster: The cluster of it, a `distributed.deploy.Cluster`, if that is at hand.
    """

    place: str
    is_file: bool
    said_by: str
    cluster: Any = None

    def address(self, patience_s: float) -> str:
        """Return the address.

        Args:
            patience_s: For how long to wait for a file that is not there yet, or not whole: a scheduler
                writes it when it has started.

        Raises:
            EngineError: There is no such file in time, or it is none of a scheduler.
        """
        if not self.is_file:
            return self.place
        until = time.monotonic() + patience_s
        while True:
            try:
                return msgspec.json.decode(
                    Path(self.place).read_bytes(), type=prepared(_Identity)
                ).address
            except OSError as error:
                problem = f"cannot be read ({error.strerror})"
            except msgspec.DecodeError:
                problem = "is no scheduler file"
            if time.monotonic() > until:
                raise EngineError(
                    f"{self.place}: {problem}; {self.said_by} names it: it is to be what `dask "
                    "scheduler --scheduler-file` writes"
                )
            time.sleep(_POLL_S)


def meant(address: Any, file: str | PathLike[str] | None) -> Scheduler | None:
    """Return the scheduler that is meant, or None for none.

    Args:
        address: An address that was asked for, or a cluster.
        file: A scheduler file that was asked for.

    Raises:
        EngineError: Both were asked for.
    """
    if address is not None and file is not None:
        raise EngineError(
            "--scheduler and --scheduler-file each name a scheduler; give one of them"
        )
    if isinstance(address, str):
        return Scheduler(address, is_file=False, said_by="--scheduler")
    if address is not None:
        kind = type(address).__name__
        return Scheduler(address.scheduler_address, is_file=False, said_by=kind, cluster=address)
    if file is not None:
        return Scheduler(os.fspath(file), is_file=True, said_by="--scheduler-file")
    for place, said_by in (
        (os.environ.get(FILE), FILE),
        (os.environ.get(ADDRESS), ADDRESS),
        (dask.config.get("scheduler-address", None), "Dask's configuration (scheduler-address)"),
    ):
        if place:
            return Scheduler(place, is_file=said_by == FILE, said_by=said_by)
    return None
