"""Ends of processes at which Python calls nothing: by `os._exit`, and by `os.exec` and its kin.

Jobs leave by the former from handlers of signals, from threads that watch over others, and where the
usual end would hang; by the latter they start themselves anew.
"""

from __future__ import annotations

import functools
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_S: Final = 1.0
"""How long such an end is held up at most."""


def before_leaving_at_once(end: Callable[[], None]) -> None:
    """Have something called before this process leaves like that; not in those forked of it.

    It runs in a thread of its own, which is not waited for long: a job may leave like that because
    another of its threads hangs, which may hold what is needed.

    Args:
        end: What to call.
    """
    process = os.getpid()

    def ending(
        theirs: Callable[..., NoReturn], leaves: Callable[..., bool]
    ) -> Callable[..., NoReturn]:
        @functools.wraps(theirs)
        def leave(*args: Any, **kwargs: Any) -> NoReturn:
            if os.getpid() == process and leaves(*args, **kwargs):
                with suppress(RuntimeError):  # there can be no more threads
                    thread = threading.Thread(target=end, daemon=True)
                    thread.start()
                    thread.join(_PATIENCE_S)
            theirs(*args, **kwargs)

        return leave

    for name, leaves in _ENDS.items():
        setattr(os, name, ending(getattr(os, name), leaves))


def _exits(_: Any) -> bool:
    return True


def _starts(path: Any, *_: Any, **__: Any) -> bool:
    """Say whether there is a program to start; if not, the job gets an error, and goes on."""
    with suppress(TypeError, ValueError):  # it is none, or an open file's number
        return os.access(path, os.X_OK)
    return isinstance(path, int)


_ENDS: Final[dict[str, Callable[..., bool]]] = {
    "_exit": _exits,
    "execv": _starts,
    "execve": _starts,
}
"""What leaves at once, and what says whether it will; the others of `os` call these."""
