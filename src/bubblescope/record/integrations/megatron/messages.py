"""What stages send each other: which activation or gradient it is, and recording it."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

from bubblescope.model.kinds import Kind
from bubblescope.record.integrations.megatron.placement import Work, neighbours
from bubblescope.record.integrations.receipts import awaited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bubblescope.record.integrations.megatron.placement import Step
    from bubblescope.record.integrations.megatron.turns import Origins, Progress
    from bubblescope.record.recorder import Recorder
    from bubblescope.record.session import Session


class Messages:
    """What is sent and received next.

    Args:
        step: That it belongs to.
        progress: Knows what was computed last.
        origins: Knows what made a tensor.

    Attributes:
        sending: Whether what is sent next is an activation, and of which work; None if its own
            tensor tells.
        receiving: The same of what is received next, with the chunk; None if the order tells.
        folded: Whether the stages form a V, in which directions do not tell activations from
            gradients.
        scheduled: Whether what passes `_communicate` is of a schedule.
    """

    def __init__(self, step: Step, progress: Progress, origins: Origins) -> None:
        self.sending: tuple[bool, Work] | None = None
        self.receiving: tuple[bool, int] | None = None
        self.folded = False
        self.scheduled = True
        self._step = step
        self._progress = progress
        self._origins = origins
        self.begin({True: (), False: ()})

    def begin(self, arrivals: Mapping[bool, Sequence[Work]]) -> None:
        """Begin a step.

        Args:
            arrivals: Whether it is an activation, and no gradient -> what comes from other ranks, in
                the order that is expected.
        """
        self._arrivals = arrivals
        self._received: Counter[Any] = Counter()

    def of(
        self, said: Mapping[str, Any], following: Any, preceding: Any
    ) -> tuple[list[bytes], dict[str, bytes]]:
        """Return where the messages of a call of `_communicate` belong, packed.

        Args:
            said: Its arguments.
            following: Next rank of the pipeline.
            preceding: The rank before.

        Returns:
            What it sends, and what it receives by the request's name.
        """
        place = self._step.layout.place
        sends = []
        for name, downstream, peer in (
            ("tensor_send_next", True, following),
            ("tensor_send_prev", False, preceding),
        ):
            if said.get(name) is None:
                continue
            sent = self.sending or self._origins.of(said[name])
            if sent is None and not self.folded:
                work = self._progress.last(forward=downstream)
                sent = None if work is None else (downstream, work)
            if sent is not None:
                kind = Kind.SEND_FORWARD if sent[0] else Kind.SEND_BACKWARD
                sends.append(place(kind, sent[1], peer=peer))
        receives = {}
        for name, downstream, peer in (
            ("recv_prev", True, preceding),
            ("recv_next", False, following),
        ):
            if not said.get(name):
                continue
            arrives = self._arriving(downstream)
            if arrives is not None:
                kind = Kind.RECV_FORWARD if arrives[0] else Kind.RECV_BACKWARD
                receives[name] = place(kind, arrives[1], peer=peer)
        return sends, receives

    def _arriving(self, downstream: bool) -> tuple[bool, Work] | None:
        """Return whether what is received now is an activation, and of which work it is."""
        if self.receiving is not None:
            activation, chunk = self.receiving
            number = self._received[self.receiving]
            self._received[self.receiving] += 1
            return activation, Work(chunk, number)
        arrivals = self._arrivals[downstream]
        number = self._received[downstream]
        self._received[downstream] += 1
        if self.folded or number >= len(arrivals):
            return None
        return downstream, arrivals[number]


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
        except Exception as error:  # noqa: BLE001  the job goes on
            session.fail(error)
            return function(*args, **said)
        begun = session.begin([*sends, *receives.values()] if waits else sends)
        try:
            result = function(*args, **said)
        finally:
            session.end(begun)
        if receives and not waits:
            _await(result, receives, recorder)
        return result

    return communicate


def _await(result: Any, receives: Mapping[str, bytes], recorder: Recorder) -> None:
    """Let waiting for the requests that `_communicate` returned be recorded.

    `receives` has the name of a request -> where the receive belongs, packed.
    """
    if not isinstance(result, tuple) or not result:
        return
    requests = result[-1]
    if isinstance(requests, dict):
        for name in requests.keys() & receives.keys():
            awaited([requests[name]], [receives[name]], recorder)
    elif isinstance(requests, list):
        # In older versions they have no names: all of them are waited for together.
        awaited(requests, list(receives.values()), recorder)
