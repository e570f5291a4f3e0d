"""`bubblescope watch`."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Final

import click
from rich.live import Live
from rich.text import Text

from bubblescope.analysis.live import RunningJob
from bubblescope.cli.closed_pipes import unread
from bubblescope.cli.console import err, out
from bubblescope.cli.help_conventions import example
from bubblescope.cli.option_types import seconds
from bubblescope.cli.reading import NO_TASKS
from bubblescope.recording.follow import Tail
from bubblescope.render.text.watch import (
    heading,
    lines_above,
    picture,
    problems,
    rates_line,
    whole_line,
)

_FEWEST: Final = 4
"""Ranks that are shown however little room there is."""


@click.command(epilog=example("bubblescope watch recording"))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--interval",
    type=seconds(0.1),
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="Time between updates.",
)
@click.option("--once", is_flag=True, help="Print the current state and exit.")
def watch(folder: Path, interval: float, *, once: bool) -> None:
    """Watch a job while it records: bubble rate, slowest stage.

    Reads only what is new. Ends when all recordings have ended, or with Ctrl+C. Where the output is
    not a terminal, the first lines are printed for every new step.
    """
    tail, progress = Tail(folder), RunningJob()
    if once:
        progress.update(tail.news(), tail)
        figures = progress.figures()
        out.print(picture(folder, figures))
        raise SystemExit(0 if figures.steps else NO_TASKS)
    if not folder.exists():
        err.print(
            Text(f"{folder}: the folder does not exist yet; waiting for a job that records to it")
        )
    live: Any = Live(console=out, auto_refresh=False) if out.is_terminal else None
    with contextlib.suppress(KeyboardInterrupt), live or contextlib.nullcontext():
        ended, told = False, None
        complaints: set[str] = set()
        while True:
            began = time.monotonic()
            news = tail.news()
            progress.update(news, tail)
            figures = progress.figures()
            if live is not None:
                room = max(_FEWEST, out.height - lines_above(figures))
                live.update(picture(folder, figures, room), refresh=True)
            else:
                for line in problems(figures):
                    if line not in complaints:
                        complaints.add(line)
                        err.print(Text(line, "yellow"), soft_wrap=True)
                if figures.steps and figures.last_step != told:
                    told = figures.last_step
                    said = [heading(folder, figures), rates_line(figures)]
                    said += [whole_line(figures.whole)] if figures.whole is not None else []
                    out.print(*said, sep="\n", soft_wrap=True)
            # Once more after all have ended: ranks may appear late.
            if (ended and not news) or unread():
                break
            ended = bool(tail.recordings) and all(one.closed for one in tail.recordings.values())
            time.sleep(max(0.0, interval - (time.monotonic() - began)))
