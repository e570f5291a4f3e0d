"""Errors that the job's own handlers of signals raised while the recorder ran."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


def of_the_job(error: BaseException) -> bool:
    """Say whether a handler of a signal raised an error, which happened to come in our code.

    It is for the job, which may wait for it: a time that is up, or the end that its launcher asks for.
    """
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {_code_of(handler) for handler in handlers if callable(handler)}
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: object) -> object:
    """Return the code of a function, a method or an object that is called; None of what has none."""
    called = handler if hasattr(handler, "__code__") else type(handler).__call__
    return getattr(called, "__code__", None)
