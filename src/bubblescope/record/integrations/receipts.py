"""Requests of which every wait is recorded, as the receive that it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.record.recorder import Recorder


def awaited(requests: Sequence[Any], receives: Sequence[bytes], recorder: Recorder) -> list[Any]:
    """Return requests that do the same and are recorded, together, from first wait to last.

    Args:
        requests: What is waited for.
        receives: What is received then: tasks' places, packed.
        recorder: Records it.
    """
    receipt = _Receipt(receives, len(requests), recorder)
    return [_Awaited(request, receipt) for request in requests]


class _Receipt:
    """Receives that are recorded while their requests are waited for."""

    def __init__(self, places: Sequence[bytes], requests: int, recorder: Recorder) -> None:
        self._places = places
        self._left = requests
        self._recorder = recorder
        self._began: list[Any] = []

    def wait(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for one of the requests."""
        if not self._began and self._recorder.recording:
            self._began = [self._recorder.begin_task(place) for place in self._places]
        try:
            return request.wait(*args, **kwargs)
        finally:
            self._left -= 1
            if self._left == 0 and self._began:
                for place, at in zip(reversed(self._places), reversed(self._began), strict=True):
                    self._recorder.end_task(place, at)


class _Awaited:
    """A request; waiting for it is recorded."""

    def __init__(self, request: Any, receipt: _Receipt) -> None:
        self._request = request
        self._receipt = receipt

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        return self._receipt.wait(self._request, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)
