"""Where commands have their work done: options that say which workers, and the engine they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from bubblescope.cli.option_sections import WORKERS, in_section
from bubblescope.cli.option_types import Parsed
from bubblescope.engine import MODES, engine
from bubblescope.engine.sizes import byte_count

if TYPE_CHECKING:
    from bubblescope.engine import Engine

_OPTION: Final = in_section(WORKERS)


def with_workers(command: Any) -> Any:
    """Add the options that say where work is done; the command should be `Sectioned`."""
    for option in reversed(
        (
            click.option(
                "--mode",
                cls=_OPTION,
                type=click.Choice(MODES),
                default=MODES[0],
                show_default=True,
                help="Work in processes of this machine, or on a Dask cluster.",
            ),
            click.option(
                "--workers",
                cls=_OPTION,
                type=click.IntRange(min=1),
                metavar="N",
                help="How many processes to start; one for each core by default.",
            ),
            click.option(
                "--worker-memory",
                cls=_OPTION,
                type=Parsed("size", byte_count),
                metavar="SIZE",
                help="Memory that each of them may have, such as 8GB.",
            ),
            click.option(
                "--scheduler",
                cls=_OPTION,
                metavar="ADDRESS",
                help="Dask cluster that runs already, such as tcp://10.0.0.1:8786.",
            ),
            click.option(
                "--scheduler-file",
                cls=_OPTION,
                type=click.Path(),
                metavar="FILE",
                help="The same, as a file that its scheduler wrote.",
            ),
        )
    ):
        command = option(command)
    return command


def chosen(options: dict[str, Any]) -> Engine:
    """Take the options of `with_workers` out of those of a command, and return what they mean."""
    names = ("mode", "workers", "worker_memory", "scheduler", "scheduler_file")
    return engine(**{name: options.pop(name) for name in names if name in options})
