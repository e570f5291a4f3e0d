"""What to record of a job, as it travels to its processes."""

from __future__ import annotations

import os

import msgspec

from bubblescope.model.errors import RecorderError

VARIABLE = "BUBBLESCOPE_RECORD"
"""Environment variable that holds the settings, as JSON. Without it nothing is recorded."""


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to record.

    Attributes:
        out: Folder to write to.
        start: First step to record.
        stop: First step not to record any more; None for all.
        exit_after: Leave the job after the last recorded step.
        timer: Name of the clock; None for the best there is.
        marks: Names of vendor's marks to emit around tasks.
        max_mb: Most megabytes that a rank may have on disk; None for any number.
        profiler_api: Whether to switch the device's profiler on for the recorded steps.
        prometheus: Where to serve metrics, "host:port"; None for nowhere.
        since_ns: When the job was started, by the clock that stamps the folder's files; None for when
            each of its processes was.
        notes: Folder of this machine for what processes saw, if nothing is recorded; None for none.
    """

    out: str
    start: int = 0
    stop: int | None = None
    exit_after: bool = False
    timer: str | None = None
    marks: tuple[str, ...] = ()
    max_mb: float | None = None
    prometheus: str | None = None
    profiler_api: bool = False
    since_ns: int | None = None
    notes: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the variables that tell the job's processes."""
        return {VARIABLE: msgspec.json.encode(self).decode()}

    @classmethod
    def of_environment(cls) -> Settings | None:
        """Return what this process was told, or None if nothing.

        Raises:
            RecorderError: It makes no sense.
        """
        told = os.environ.get(VARIABLE)
        if not told:
            return None
        try:
            return msgspec.json.decode(told, type=cls)
        except msgspec.MsgspecError as error:
            raise RecorderError(f"{VARIABLE} is invalid ({error})") from None
