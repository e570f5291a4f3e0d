"""What to record of a job, as it travels to its processes: in an environment variable.

    BUBBLESCOPE_RECORD="steps=10:15,out=/shared/recording,exit-after"

`bubblescope record` sets it for the job that it starts, and so may a person or a template. Settings are
named as the command's options are. This module is loaded, by its place, at the start of every Python
process of such a job, so it imports nothing but the standard library, and of that little.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

VARIABLE: Final = "BUBBLESCOPE_RECORD"
"""Environment variable that holds the settings. Without it nothing is recorded."""
TIMERS: Final = ("cuda", "hip", "npu", "cupti", "cpu")
"""Names of clocks, as `timers.chosen_timer` takes them."""
MARKS: Final = ("nvtx", "mstx", "torch")
"""Names of vendors' marks, as `vendor_marks.chosen_marks` takes them."""
PORTS: Final = 1 << 16
"""Ports are below this."""
LEAST_MB: Final = 0.08
"""Least that a rank may have on disk: halves of less have no room for a few messages each."""
_THIS_MACHINE: Final = "127.0.0.1"


class Settings(NamedTuple):
    """What to record.

    Attributes:
        out: Folder to write to.
        start: First step to record.
        stop: First step not to record any more; None for all.
        exit_after: Leave the job after the last recorded step.
        timer: Name of the clock; None for the best there is.
        marks: Names of vendor's marks to emit around tasks.
        max_mb: Most megabytes that a rank may have on disk; None for any number.
        prometheus: Where to serve metrics, "host:port"; None for nowhere.
        profiler_api: Whether to switch the device's profiler on for the recorded steps.
        since_ns: When the job was started, by the clock that stamps the folder's files; None for when
            each of its processes was.
        notes: Folder of this machine for what processes saw, if nothing is recorded; None for none.
    """

    out: str = "recording"
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

    @property
    def window(self) -> str:
        """The steps to record as people write them, such as "10:15", "10:" or ":5"."""
        return f"{self.start or ''}:{'' if self.stop is None else self.stop}"

    def as_text(self) -> str:
        """Return what `from_text` reads."""
        of_one = {
            "out": self.out,
            "steps": self.window,
            "timer": self.timer,
            "max-mb": self.max_mb,
            "prometheus": self.prometheus,
            "since-ns": self.since_ns,
            "notes": self.notes,
        }
        parts = [
            f"{name}={_quoted(str(value))}" for name, value in of_one.items() if value is not None
        ]
        parts += [f"marks={name}" for name in self.marks]
        parts += [name for name in _SWITCHES if getattr(self, name.replace("-", "_"))]
        return ",".join(parts)

    @classmethod
    def from_text(cls, text: str) -> Settings:
        """Read settings such as "steps=10:15,out=DIR,exit-after".

        A value with a comma or a double quote in it stands in double quotes, in which that quote is
        written twice. Underscores are as good as hyphens.

        Raises:
            ValueError: There is no such setting, or it makes no sense; the message says which and why.
        """
        given: dict[str, Any] = {}
        for name, value in _parts(text):
            field = name.replace("-", "_")
            if name in _SWITCHES:
                given[field] = value is None or _truth(name, value)
            elif name == "steps":
                given["start"], given["stop"] = window(value or "")
            elif name == "marks":
                given["marks"] = (*given.get("marks", ()), _one_of(MARKS)(value or ""))
            elif name in _VALUES:
                given[field] = _VALUES[name](value or "")
            else:
                raise ValueError(_unknown(name))
        settings = cls(**given)
        if settings.exit_after and settings.stop is None:
            raise ValueError("exit-after needs the last step, such as steps=10:15")
        return settings

    def environment(self) -> dict[str, str]:
        """Return the variables that tell the job's processes."""
        return {VARIABLE: self.as_text()}

    @classmethod
    def of_environment(cls) -> Settings | None:
        """Return what this process was told, or None if nothing.

        Raises:
            ValueError: It makes no sense; the message says why.
        """
        told = os.environ.get(VARIABLE)
        return cls.from_text(told) if told else None


def window(text: str) -> tuple[int, int | None]:
    """Read which steps: the first, and the first that is none any more, of "10:15", "10:" or ":5".

    Raises:
        ValueError: It is none of these, or there is no step in it.
    """
    found = re.fullmatch(r"([0-9]{0,18}):([0-9]{0,18})", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not like 10:15 (steps 10 to 14), 10: or :5")
    start, stop = int(found[1] or 0), int(found[2]) if found[2] else None
    if stop is not None and stop <= start:
        raise ValueError(f"there is no step in {text!r}")
    return start, stop


def megabytes(text: str) -> float:
    """Read how much a rank may have on disk.

    Raises:
        ValueError: It is no number, or too small for any recording.
    """
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"max-mb is a number of megabytes, not {text!r}") from None
    if not LEAST_MB <= number < float("inf"):
        raise ValueError(f"max-mb must be at least {LEAST_MB}, not {text}")
    return number


def address_of(text: str) -> tuple[str, int]:
    """Read "19400" or "0.0.0.0:19400"; without a host, only this machine may ask.

    Raises:
        ValueError: It is neither.
    """
    host, _, port = text.rpartition(":")
    if not (port.isdecimal() and len(port) < 6 and 0 < int(port) < PORTS):
        raise ValueError(
            f"{text!r} is neither a port, such as 19400, nor an address, such as 0.0.0.0:19400"
        )
    return host.strip("[]") or _THIS_MACHINE, int(port)


def _truth(name: str, text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError(f"{name} is true or false, not {text!r}")
    return text == "true"


def folder(text: str) -> str:
    """Return the name of a folder, which must be one: of an empty one, Python makes the current.

    Raises:
        ValueError: It is empty, as where a script's variable is not set.
    """
    if not text:
        raise ValueError("no folder is named to write to; the current one is .")
    return text


def address(text: str) -> str:
    """Return a text that `address_of` reads.

    Raises:
        ValueError: It does not.
    """
    address_of(text)
    return text


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is none of {', '.join(names)}")
        return text

    return read


_VALUES: Final[dict[str, Callable[[str], Any]]] = {
    "out": folder,
    "timer": _one_of(TIMERS),
    "max-mb": megabytes,
    "prometheus": address,
    "since-ns": int,
    "notes": str,
}
"""Settings with one value, and how each is read."""
_SWITCHES: Final = ("exit-after", "profiler-api")
_PART: Final = re.compile(
    r'(?P<name>[^=,"]*)(?:=\s*(?P<value>"(?:[^"]|"")*"|[^",]*))?\s*(?:,|$)', re.DOTALL
)
_KNOWN: Final = (
    "steps",
    "out",
    "exit-after",
    "timer",
    "marks",
    "profiler-api",
    "max-mb",
    "prometheus",
)
"""What people set; the others are between `bubblescope record` and its job."""


def _parts(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield what stands between commas: names, and their values, if they have one."""
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise ValueError(
                f"it cannot be taken apart from {text[at : at + 40]!r} on; what has a comma or a quote "
                'in it stands in double quotes, as in out="a,b"'
            )
        name, value = part["name"].strip().replace("_", "-"), part["value"]
        if name:
            quoted = value is not None and value.startswith('"')
            yield name, value[1:-1].replace('""', '"') if quoted else value and value.strip()
        at = part.end()


def _quoted(value: str) -> str:
    if '"' not in value and "," not in value and value == value.strip():
        return value
    doubled = value.replace('"', '""')
    return f'"{doubled}"'


def _unknown(name: str) -> str:
    """Say that there is no setting of that name, and which one may be meant."""
    import difflib  # noqa: PLC0415  as above

    if name == "overwrite":
        return "overwrite is of `bubblescope record` alone; each start of a job adds an attempt"
    near = difflib.get_close_matches(name, _KNOWN, 1)
    meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_KNOWN)}"
    return f"there is no setting {name!r}; {meant}"
