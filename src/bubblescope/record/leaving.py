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

_ENDS: Final = ("_exit", "execv", "execve")
"""What leaves at once; the others of `os` call these."""
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

    def ending(theirs: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        @functools.wraps(theirs)
        def leave(*args: Any, **kwargs: Any) -> NoReturn:
            if os.getpid() == process:
                with suppress(RuntimeError):  # there can be no more threads
                    thread = threading.Thread(target=end, daemon=True)
                    thread.start()
                    thread.join(_PATIENCE_S)
            theirs(*args, **kwargs)

        return leave

    for name in _ENDS:
        setattr(os, name, ending(getattr(os, name)))
