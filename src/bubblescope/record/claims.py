"""Where a rank records: in the attempt of its own start of the job, together with the others.

Ranks agree without talking to each other. One makes the attempt; another joins the newest that is of
its job, in which nobody has its rank, and that was made after the job was started: processes of one
start are all there before they can have taken a step together, and those of an earlier start made
theirs before. Launchers' restart counts do not serve for that: torchrun counts on the node that
failed, and not on the others that it restarts too.
"""

from __future__ import annotations

import errno
import os
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bubblescope.recording.attempts import (
    MANIFEST,
    Attempt,
    Start,
    attempts_in,
    folder_name,
    is_attempt,
    number_of,
)
from bubblescope.recording.file import recording_to

if TYPE_CHECKING:
    from collections.abc import Callable

_JOB: Final = (
    *("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    *(
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "PADDLE_JOB_ID",
        "PMIX_NAMESPACE",
        "OMPI_MCA_ess_base_jobid",
    ),
)
"""Variables of launchers that are the same for all ranks of a job (docs.pytorch.org, "torchrun";
slurm.schedmd.com, "srun"; Paddle's launch controller; docs.open-mpi.org)."""
_ADDRESS: Final = "MASTER_ADDR"
_THIS_MACHINE: Final = {"localhost", "127.0.0.1", "::1"}
"""What Kubeflow's PyTorchJob tells the master of its own address, and to workers it tells its name."""
_RESTARTS: Final = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_RESTARTED_BY: Final = "TORCHELASTIC_RUN_ID"
"""Says that the launcher starts processes anew in place of those that failed."""
_LOADED_NS: Final = time.monotonic_ns()
_SECOND_NS: Final = 1_000_000_000
_ASKED: Final = 8
"""Files of an attempt that are asked for whether somebody records to them: there may be thousands."""
_LATELY_NS: Final = 60 * _SECOND_NS
"""How long ago a file has grown at most that is recorded to: of machines that died, servers may keep
locks."""


def claim(
    folder: Path,
    name: str,
    since_ns: int | None = None,
    put: Callable[[Path], None] | None = None,
) -> Path:
    """Return the file that this process records to, alone.

    Args:
        folder: The recording's; or an attempt's, which is then the one.
        name: What to call the file, such as "rank00000.bubbles"; a folder may come before.
        since_ns: When the job was started, by the clock of the folder's file system; None for when
            this process was, or its group's first.
        put: Makes the file, and raises FileExistsError if it is there; by default an empty one.

    Raises:
        OSError: The folder cannot be made or written to.
    """

    def put_in(attempt: Path) -> Path:
        path = attempt / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (put or _empty)(path)
        return path

    folder.mkdir(parents=True, exist_ok=True)
    if is_attempt(folder):
        return put_in(folder)
    job = {name: os.environ[name] for name in _JOB if os.environ.get(name)}
    own_ns = _age_ns(os.getpid())
    if _RESTARTED_BY in job:
        since_ns = file_system_ns(folder) - own_ns
    elif since_ns is None:
        # Processes that a script starts one by one may record before the last has begun.
        since_ns = file_system_ns(folder) - max(own_ns, _age_ns(os.getpgrp()))
    after = 0
    while True:
        # First: what somebody makes from here on is either seen, or is of this number.
        number = _next(folder)
        joined = _joinable(attempts_in(folder), job, since_ns, after)
        try:
            return put_in((joined or make(folder, job, number)).folder)
        except FileExistsError:
            # Somebody has this rank there: that is another start, and so are all before it.
            after = joined.number if joined else after


def make(folder: Path, job: dict[str, str] | None = None, number: int | None = None) -> Attempt:
    """Begin an attempt; another process sees it complete or not at all.

    Args:
        folder: The recording's, which is there.
        job: What its launcher calls the job.
        number: Its number; by default the next.

    Raises:
        OSError: The folder cannot be written to.
        FileExistsError: Another process began one of this number.
    """
    number = _next(folder) if number is None else number
    told = next((os.environ[name] for name in _RESTARTS if os.environ.get(name)), "")
    start = Start(
        host=socket.gethostname(),
        began_utc_ns=time.time_ns(),
        job=job or {},
        restart=int(told) if told.isdigit() else None,
        beside=_recorded_to(folder),
    )
    hidden = folder / f".attempt-{uuid.uuid4().hex}"
    hidden.mkdir()
    try:
        (hidden / MANIFEST).write_bytes(msgspec.json.encode(start))
        place = folder / folder_name(number)
        try:
            hidden.rename(place)  # which fails if that is there and not empty
        except OSError as error:
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                raise
            raise FileExistsError(f"{place} was made meanwhile") from error
        return Attempt(number, place)
    finally:
        with suppress(OSError):
            (hidden / MANIFEST).unlink(missing_ok=True)
            hidden.rmdir()


def file_system_ns(folder: Path) -> int:
    """Return the time by the clock that stamps a folder's files, which may be another machine's.

    Where stamps are whole seconds, one less: what was made before then is certain to be older.

    Raises:
        OSError: The folder cannot be written to.
    """
    stamp = folder / f".stamp-{uuid.uuid4().hex}"
    try:
        stamp.touch(exist_ok=False)
        now_ns = stamp.stat().st_mtime_ns
        return now_ns if now_ns % _SECOND_NS else now_ns - _SECOND_NS
    finally:
        stamp.unlink(missing_ok=True)


def _next(folder: Path) -> int:
    """Return the number after those of all folders named as attempts are, whatever is in them."""
    return max(map(number_of, folder.iterdir()), default=0) + 1


def _joinable(
    attempts: list[Attempt], job: dict[str, str], since_ns: int, after: int
) -> Attempt | None:
    """Return the newest attempt of this job, if it was made since then and has a higher number."""
    for attempt in reversed(attempts):
        start = attempt.start()
        if attempt.number > after and start is not None and _same(start, job):
            return attempt if attempt.made_ns() >= since_ns else None
    return None


def _same(start: Start, job: dict[str, str]) -> bool:
    """Say whether this process is of the job that began an attempt, by what launchers call it."""
    one, other = start.job, job
    masters = {one.get(_ADDRESS), other.get(_ADDRESS)}
    if masters <= _THIS_MACHINE and start.host != socket.gethostname():
        return False  # each machine has a master of its own
    if not _THIS_MACHINE.isdisjoint(masters):
        one, other = ({**told, _ADDRESS: ""} for told in (one, other))
    return one == other


def _recorded_to(folder: Path) -> tuple[int, ...]:
    """Return the numbers of the attempts that processes record to now, as far as can be seen."""
    now_ns = file_system_ns(folder)
    return tuple(
        attempt.number
        for attempt in attempts_in(folder)
        if any(_in_use(path, now_ns) for path in attempt.files()[:_ASKED])
    )


def _in_use(path: Path, now_ns: int) -> bool:
    """Say whether a process records to a file, or is about to begin it."""
    with suppress(OSError):  # it is gone, or another user's
        found = path.stat()
        if now_ns - found.st_mtime_ns < _LATELY_NS:
            # Who asks for a lock has it for a moment, which must not be when the owner asks for it.
            return not found.st_size or recording_to(path)
    return False


def _empty(path: Path) -> None:
    path.touch(exist_ok=False)


def _age_ns(process: int) -> int:
    """Return how long ago a process began, or, if the system does not say, this module was loaded."""
    try:
        # Field 22, counted behind the name, which may hold anything (man 5 proc_pid_stat).
        told = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
        ticks = int(told.rpartition(")")[2].split()[19])
        began_ns = ticks * _SECOND_NS // os.sysconf("SC_CLK_TCK")
        return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began_ns)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic_ns() - _LOADED_NS
