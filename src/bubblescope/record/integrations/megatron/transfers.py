"""Recording what stages send each other."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from bubblescope.record.integrations.megatron.groups import neighbours
from bubblescope.record.integrations.receipts import awaited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bubblescope.record.integrations.megatron.messages import Messages
    from bubblescope.record.integrations.megatron.step import Step
    from bubblescope.record.recorder import Recorder
    from bubblescope.record.session import Session


def communicating(
    function: Callable[..., Any], session: Session, step: Step, messages: Messages
) -> Callable[..., Any]:
    """Return a `_communicate` whose transfers are recorded.

    Those that it waits for are tasks as long as it does. Otherwise a send is one as long as it
    takes to issue, and a receive as long as it is waited for later.
    """

    @functools.wraps(function)
    def communicate(*args: Any, **said: Any) -> Any:
        recorder = step.recorder
        if recorder is None or not messages.scheduled:
            return function(*args, **said)
        waits = said.get("wait_on_reqs", True)
        try:
            # As a method, it is given its communicator first; all else has names.
            sends, receives = messages.of(said, *neighbours(args[0] if args else None))
            now = [*sends, *receives.values()] if waits else sends
            began = [(place, recorder.begin_task(place)) for place in now]
        except Exception as error:  # noqa: BLE001  the job goes on
            session.fail(error)
            return function(*args, **said)
        try:
            result = function(*args, **said)
        finally:
            for place, at in reversed(began):
                recorder.end_task(place, at)
        return result if waits or not receives else _awaited(result, receives, recorder)

    return communicate


def _awaited(result: Any, receives: Mapping[str, bytes], recorder: Recorder) -> Any:
    """Return what `_communicate` returned, with requests that are recorded when waited for.

    Args:
        result: What it returned: tensors, and its requests last.
        receives: Name of a request -> where the receive belongs, packed.
        recorder: Records it.
    """
    if not isinstance(result, tuple) or not result:
        return result
    *tensors, requests = result
    if isinstance(requests, dict):
        requests = {
            name: awaited([request], [receives[name]], recorder)[0] if name in receives else request
            for name, request in requests.items()
        }
    elif isinstance(requests, list):
        # In older versions they have no names: all of them are waited for together.
        requests = awaited(requests, list(receives.values()), recorder)
    return (*tensors, requests)
