"""Requests of which every wait is recorded, as what is waited for.

They stay what they are: some look at the class of a request, and do not wait for what is none of
PyTorch's (FSDP does so), or hand it on to code in C++. So it is their class's `wait` that records, for
those requests that are to be recorded.
"""

from __future__ import annotations

import functools
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from bubblescope.record.integrations.torch_common import compiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bubblescope.record.recorder import Recorder

_RECEIPTS: Final[weakref.WeakKeyDictionary[Any, _Receipt]] = weakref.WeakKeyDictionary()
"""What is recorded while a request is waited for."""
_RECORDED: Final[set[Any]] = set()
"""Classes of requests whose waits are recorded."""


def awaited(
    requests: Iterable[Any],
    places: Sequence[bytes],
    recorder: Recorder,
    counts: Callable[[], bool] | None = None,
    name: str | None = None,
) -> None:
    """Let waiting for requests be recorded, together, from first wait to last.

    Args:
        requests: What is waited for; each has a method `wait`.
        places: What is done then: tasks' places, packed.
        recorder: Records it.
        counts: Says, as the first is waited for, whether that is to be recorded; it is if left out.
        name: What to call the tasks; by default what their places say.
    """
    receipt = _Receipt(places, recorder, counts, name)
    for request in requests:
        # A class of another kind may not let itself be changed, or be held, or wait otherwise.
        with suppress(TypeError, AttributeError):
            _record_waits(type(request))
            _RECEIPTS[request] = receipt
            receipt.open += 1


class _Receipt:
    """Tasks that are recorded while their requests are waited for.

    Args:
        places: Of the tasks, packed.
        recorder: Records them.
        counts: As of `awaited`.
        name: As of `awaited`.

    Attributes:
        open: How many of the requests were not waited for yet.
    """

    def __init__(
        self,
        places: Sequence[bytes],
        recorder: Recorder,
        counts: Callable[[], bool] | None,
        name: str | None,
    ) -> None:
        self.open = 0
        self._counts = counts
        self._name = name
        self._places = places
        self._recorder = recorder
        self._began: list[Any] = []

    def wait(self, wait: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Wait for one of the requests."""
        if not self._began and self._recorder.recording and (not self._counts or self._counts()):
            self._began = [self._recorder.begin_task(place) for place in self._places]
        try:
            return wait(*args, **kwargs)
        finally:
            self.open -= 1
            if self.open == 0 and self._began:
                for place, at in zip(reversed(self._places), reversed(self._began), strict=True):
                    self._recorder.end_task(place, at, self._name)


def _record_waits(kind: Any) -> None:
    """Let the waits of a class of requests be recorded."""
    if kind not in _RECORDED:
        kind.wait = recording(kind.wait)
        _RECORDED.add(kind)


def recording(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `wait` that does the same, and is recorded for the requests that are to be."""

    @functools.wraps(theirs)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        receipt = None if compiling() else _RECEIPTS.pop(self, None)
        if receipt is None:
            return theirs(self, *args, **kwargs)
        return receipt.wait(theirs, self, *args, **kwargs)

    return wait
