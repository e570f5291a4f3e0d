"""The step that runs now."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bubblescope.record.integrations.megatron.placement import Layout
    from bubblescope.record.recorder import Recorder
    from bubblescope.record.session import Session


class Step:
    """The step that runs now; only `Pipeline` changes it.

    Args:
        session: Records it.

    Attributes:
        training: Whether a step runs, and is no evaluation.
        layout: What this rank holds in it. There is one whenever there is a recorder.
    """

    layout: Layout

    def __init__(self, session: Session) -> None:
        self.training = False
        self._session = session

    @property
    def recorder(self) -> Recorder | None:
        """What records, if there is a step of training now that is to be recorded."""
        recorder = self._session.recorder
        if not self.training or recorder is None or not recorder.recording:
            return None
        return recorder
