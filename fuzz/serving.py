"""What runs in a process that tries inputs."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Any, Final

from fuzz.lines_run import LinesRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

READY: Final = "ready"
PRINTED: Final = "printed"
"""The file, in the folder of a process, that stands in place of its outputs."""
_MEMORY: Final = 3 << 30
"""Bytes of addresses that it may have: the libraries reserve about one of these three GiB."""


def serve(
    connection: Connection[Any, Any],
    folder: Path,
    data: Path | None,
    ask: Callable[..., Any] | None,
) -> None:
    """Try what is sent, until nobody sends any more; the arguments are those of `Worker`."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    printed = folder / PRINTED
    with printed.open("ab") as file:
        for output in (1, 2):
            os.dup2(file.fileno(), output)
    lines = LinesRun()
    lines.watch()  # before what is tried is imported
    from fuzz.seeds import all_targets  # noqa: PLC0415
    from fuzz.trial import Trial  # noqa: PLC0415

    how = {} if ask is None else {"ask": ask}
    trial = Trial(all_targets(data), folder, printed, lines, **how)
    connection.send(READY)
    while True:
        try:
            one = connection.recv()
        except EOFError:
            return
        connection.send(trial(one))
