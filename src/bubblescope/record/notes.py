"""What processes saw of training, for the sentence that says why nothing was recorded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from bubblescope.model import units
from bubblescope.model.decoders import prepared

OPTIMIZER: Final = "optimizer"
FORWARD: Final = "forward"
"""What a training loop is known by: an optimizer is made; a module that holds its parameters runs."""


class Note(msgspec.Struct, frozen=True):
    """What one process saw.

    Attributes:
        steps: Training steps that it began.
        framework: The framework whose schedules it used; None if it used none.
        saw: Which signs of a training loop of its own it saw: `OPTIMIZER`, `FORWARD`.
        failed: Why it stopped recording; None if it did not.
        unfollowed: How many steps, at least, were made in a loop beside the framework's schedules.
        elsewhere: How many were made in other threads than the one that was recorded.
        due: How many of `steps` were to be recorded.
        ended: Whether it ended; if not, it has seen more than it says here.
    """

    steps: int = 0
    framework: str | None = None
    saw: tuple[str, ...] = ()
    failed: str | None = None
    unfollowed: int = 0
    elsewhere: int = 0
    due: int = 0
    ended: bool = True


def leave(folder: str, note: Note) -> None:
    """Write a note for whoever started the job.

    Raises:
        OSError: It cannot be written.
    """
    (Path(folder) / f"{os.getpid()}.json").write_bytes(msgspec.json.encode(note))


def left_in(folder: Path) -> list[Note]:
    """Return the notes of all processes, those that saw most last."""
    notes = [note for path in folder.glob("*.json") if (note := _read(path)) is not None]
    return sorted(notes, key=lambda note: (note.steps, note.framework or "", len(note.saw)))


def _read(path: Path) -> Note | None:
    """Return a note; None if its process was killed as it wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=prepared(Note))
    except (OSError, msgspec.MsgspecError):
        return None


def why_not_all(notes: list[Note]) -> str | None:
    """Return what of the job's training is not in what was recorded, and why; None if all is.

    Args:
        notes: As of `why_nothing`.
    """
    steps = max((note.elsewhere for note in notes), default=0)
    if steps:
        return (
            f"the job trained {units.count(steps, 'step')} in other threads than the one that is "
            "recorded; run each as a job by itself"
        )
    most = max(notes, key=lambda note: note.unfollowed, default=Note())
    steps = most.unfollowed
    if not steps:
        return None
    return (
        f"the job trained at least {units.count(steps, 'step')} in a loop of its own, not by the "
        f"schedules of {most.framework}, which is not recorded; run that loop as a job by itself, or "
        "mark it by hand (docs/recording.md)"
    )


def why_nothing(notes: list[Note], steps: str, known: str, *, begun: bool = False) -> str:
    """Return why nothing was recorded, as far as the processes can tell, and what to do.

    Args:
        notes: What they saw, as `left_in` returns it.
        steps: The steps that were to be recorded, as the user gave them.
        known: The frameworks that are known, listed.
        begun: Whether there is a file, though without tasks.
    """
    most = notes[-1] if notes else Note()
    failed = next((note.failed for note in notes if note.failed), None)
    by_hand = "mark the loop by hand (docs/recording.md)"
    nobody = f"no process of the job imported PyTorch or a framework that is known ({known})"
    unreached = "had another environment than the job (as of env -i, sudo, ssh or a container)"
    mute = 0 if most.steps or most.framework or most.saw else sum(not one.ended for one in notes)
    lost = units.count(mute, "process", "processes")
    silent = (
        f"{lost} that imported PyTorch said nothing more: killed, still running, or out of files"
    )
    outside = f"of the {most.steps} training steps that began, from 0 on, none is in {steps}"
    nothing = f"no process ran a training step of a framework that is known ({known})"
    never = (
        "an optimizer was made, but no module that holds its parameters ran with gradients, unless "
        "inside of a compiled function"
    )
    killed = (
        "each process that began to record was killed before anything was written, which is done four "
        "times a second"
    )
    cut = "a step to record began, but the job ended before any task of it did"
    reasons = (
        (mute and begun, killed),
        (not notes, f"{nobody}, or each that did {unreached}"),
        (failed, f"recording failed ({failed})"),
        (most.due, cut),
        (mute, silent),
        (most.steps, outside),
        (most.framework, f"a pipeline of {most.framework} was made, but took no training step"),
        (OPTIMIZER not in most.saw, f"{nothing} or made an optimizer of PyTorch; {by_hand}"),
        (FORWARD not in most.saw, f"{never}; {by_hand}"),
    )
    otherwise = f"no step was begun by the thread that made the optimizer; {by_hand}"
    return next((reason for holds, reason in reasons if holds), otherwise)
