"""`bubblescope record`."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from bubblescope.cli.console import err, out
from bubblescope.cli.help_conventions import example
from bubblescope.cli.option_types import Parsed
from bubblescope.cli.reading import NO_TASKS
from bubblescope.model import units
from bubblescope.model.errors import BubblescopeError
from bubblescope.record.claims import file_system_ns
from bubblescope.record.hooks import known
from bubblescope.record.notes import left_in, why_not_all, why_nothing
from bubblescope.record.settings import MARKS, TIMERS, Settings, address, megabytes, window
from bubblescope.record.settings import folder as named
from bubblescope.recording.attempts import MANIFEST, Attempt, at_once, attempts_in, is_attempt
from bubblescope.recording.file import recording_to
from bubblescope.render.wording import recorder
from bubblescope.sources import load

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Folder(click.Path):
    """A folder that is named: "" would be the current one."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            named(os.fspath(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)


@click.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        # --out is what --output was called first.
        "token_normalize_func": lambda name: "output" if name == "out" else name,
    },
    epilog=example("bubblescope record --steps 10:15 --exit-after -- torchrun train.py"),
)
@click.argument("command", nargs=-1, required=True, metavar="[--] COMMAND...")
@click.option(
    "--steps",
    type=Parsed("steps", window),
    default=":",
    help="Steps to record: 10:15 is 10 to 14.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=_Folder(path_type=Path),
    default=Path("recording"),
    show_default=True,
    help="Folder to write to.",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Delete what was recorded to the folder before; without it, each start of a job adds an "
    "attempt.",
)
@click.option("--exit-after", is_flag=True, help="Leave the job after the last of these steps.")
@click.option(
    "--timer",
    type=click.Choice(TIMERS),
    help="Clock; by default that of the device that the job uses.",
)
@click.option(
    "--marks",
    multiple=True,
    type=click.Choice(MARKS),
    help="Also show the tasks to a vendor's profiler that runs at the same time.",
)
@click.option(
    "--profiler-api",
    is_flag=True,
    help="Switch the device's profiler on for these steps: cudaProfilerStart and cudaProfilerStop, for "
    "nsys profile --capture-range=cudaProfilerApi; on Ascend, torch_npu's profiler.",
)
@click.option(
    "--max-mb",
    type=Parsed("number", megabytes),
    help="At most so many megabytes on disk for each rank.",
)
@click.option(
    "--prometheus",
    type=Parsed("address", address),
    metavar="[HOST:]PORT",
    help="Serve metrics of each step, such as at 19400; local rank R at PORT + R; only to this machine "
    "unless HOST is given.",
)
def record(
    command: tuple[str, ...],
    steps: tuple[int, int | None],
    folder: Path,
    *,
    overwrite: bool,
    exit_after: bool,
    timer: str | None,
    marks: tuple[str, ...],
    profiler_api: bool,
    max_mb: float | None,
    prometheus: str | None,
) -> None:
    """Record a training job as it is, without editing it.

    Every Python process that the command starts records its forwards, backwards, optimizer steps and
    transfers, if it trains with PyTorch or a supported framework (docs/recording.md).
    """
    if exit_after and steps[1] is None:
        raise click.UsageError("--exit-after needs the last step: --steps 10:15")
    if command[0].startswith("-"):
        raise click.NoSuchOption(command[0])
    if shutil.which(command[0]) is None:  # before anything is deleted
        if Path(command[0]).is_file():
            raise BubblescopeError(
                f"{command[0]} is a file that cannot be run as a program; write before it what runs "
                f"it, such as python {command[0]}"
            )
        raise BubblescopeError(f"{command[0]} cannot be run: no such program was found")
    folder = folder.expanduser().resolve()  # shells leave `--output=~/recording` as it is
    since_ns = _prepared(folder, overwrite=overwrite)
    settings = Settings(
        out=str(folder),
        start=steps[0],
        stop=steps[1],
        exit_after=exit_after,
        timer=timer,
        marks=marks,
        profiler_api=profiler_api,
        max_mb=max_mb,
        prometheus=prometheus,
        since_ns=since_ns,
    )
    # Processes of the job that still run may leave notes while it is deleted.
    with tempfile.TemporaryDirectory(prefix="bubblescope-", ignore_cleanup_errors=True) as notes:
        code = _run(command, settings._replace(notes=notes))
        attempts = _attempts(folder, since_ns)
        recorded = _said(folder, attempts)
        seen = left_in(Path(notes))
        if recorded is None:
            begun = any(_recorded(attempt.folder) for attempt in attempts)
            why = why_nothing(seen, settings.window, known(), begun=begun)
            err.print(Text(f"nothing was recorded: {why}", "yellow"))
            if running := _running(notes):
                left = units.count(running, "process", "processes")
                text = f"the job goes on in {left}; what it records from here on goes to {folder}"
                err.print(Text(text, "yellow"))
        if (left_out := why_not_all(seen)) is not None:
            err.print(Text(left_out, "yellow"))
    sys.exit(code or (0 if recorded else NO_TASKS))


def _prepared(folder: Path, *, overwrite: bool) -> int:
    """Make the folder; return the time by the clock of its file system.

    Args:
        folder: Where to record to.
        overwrite: Whether to delete what was recorded there before.

    Raises:
        BubblescopeError: It cannot be written to, or what is to be deleted is in use.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if overwrite:
            _delete(folder)
        return file_system_ns(folder)
    except OSError as error:
        raise BubblescopeError(f"{folder} cannot be written to ({error.strerror})") from None


def _delete(folder: Path) -> None:
    """Delete what was recorded to a folder, and nothing else that lies there.

    Raises:
        BubblescopeError: A job still records to it.
        OSError: It cannot be deleted.
    """
    attempts = attempts_in(folder)
    places = {folder, *(attempt.folder for attempt in attempts)}
    recorded = [path for place in places for path in _recorded(place)]
    for path in recorded:
        if not path.is_symlink() and recording_to(path):
            raise BubblescopeError(
                f"{path} is being recorded to by a running job; end that job first, or record to "
                "another folder with --output"
            )
    for path in recorded:
        path.unlink()
    for place in places - {folder}:
        (place / MANIFEST).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something else is in it, such as a profiler's trace
            place.rmdir()


def _recorded(folder: Path) -> list[Path]:
    """Return what there is of an attempt: our files, and links to logs of Paddle's own profiler."""
    logs = (*folder.glob("workerlog.*"), *folder.glob("machine*/workerlog.*"))
    return [*folder.glob("rank*.bubbles"), *(log for log in logs if log.is_symlink())]


def _run(command: tuple[str, ...], settings: Settings) -> int:
    """Run the job with the hooks in its way; return its exit code."""
    inject = str(resources.files("bubblescope.record") / "inject")
    path = [inject, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        **settings.environment(),
        "PYTHONPATH": os.pathsep.join(path),
    }
    try:
        job = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise BubblescopeError(f"{command[0]} cannot be run ({error.strerror})") from None
    # The job has Ctrl+C too, from the terminal; other signals are passed on.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: job.terminate())
    code = job.wait()
    # As a shell would say that it was killed.
    return code if code >= 0 else 128 - code


def _running(notes: str) -> int:
    """Return how many processes of the job run though it has ended, as far as the system says.

    It may have made a daemon of itself, or its launcher was killed and its ranks were not.

    Args:
        notes: Where they were told to leave notes: others know nothing of it.
    """
    count = 0
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            count += notes.encode() in (place / "environ").read_bytes()
    return count


def _attempts(folder: Path, since_ns: int) -> list[Attempt]:
    """Return the attempts that were made since a moment and in which a rank could write."""
    return [
        attempt
        for attempt in attempts_in(folder)
        if attempt.number and attempt.made_ns() >= since_ns and attempt.holds_something()
    ] or ([Attempt(0, folder)] if is_attempt(folder) else [])


def _said(folder: Path, attempts: Sequence[Attempt]) -> int | None:
    """Say what was recorded to some of a folder's attempts.

    Returns:
        How many tasks that is, of those that can be read; None if there are none, and all can be.
    """
    if not attempts:
        return None
    counts = [_told(attempt, alone=len(attempts) == 1) for attempt in attempts]
    last = attempts[-1]
    if counts[-1]:
        out.print(Text(f"bubblescope report {shlex.quote(str(folder))}"))
    starts = ((attempt.number, attempt.start()) for attempt in attempts)
    overlap = at_once([number for number, start in starts if start is not None and start.beside])
    if overlap is not None:
        err.print(Text(overlap, "yellow"))
    elif len(attempts) > 1:
        earlier = attempts[-2].number
        out.print(
            Text(
                f"the job was started {len(attempts)} times; the last start, attempt {last.number}, is "
                f"read by default; --attempt {earlier} or --attempt all reads others"
            )
        )
    readable = sum(filter(None, counts))
    return None if not readable and None not in counts else readable


def _told(attempt: Attempt, *, alone: bool) -> int | None:
    """Say in a line what an attempt recorded; return how many tasks, None if it cannot be read."""
    try:
        run = load(attempt.folder, clock="raw")
    except BubblescopeError as error:
        err.print(Text(f"what was recorded cannot be read: {error}", "red"))
        return None
    if not len(run):
        return 0
    steps = run.steps
    named = f"steps {steps[0]} to {steps[-1]}" if steps else "no steps"
    recorders = dict.fromkeys(map(recorder, (one.recorded_by for one in run.run.origins)))
    by = f", by {' and '.join(filter(None, recorders))}" if any(recorders) else ""
    ended = "" if alone or attempt.ended() else _unended(attempt)
    out.print(
        Text(
            f"recorded {units.count(run.ranks.height, 'rank')}, {named}, {len(run):,} tasks{by} in "
            f"{attempt.folder}{ended}"
        )
    )
    return len(run)


def _unended(attempt: Attempt) -> str:
    """Say what is with an attempt of which some rank has not ended its file."""
    with contextlib.suppress(OSError):  # another user's job may record to it
        if any(map(recording_to, attempt.files())):
            return ", still being recorded"
    return ", ended early"
