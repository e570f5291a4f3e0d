"""`bubblescope info`."""

from __future__ import annotations

from typing import Any, Final

import click

from bubblescope.analysis.info import Size
from bubblescope.cli.console import answer, warn
from bubblescope.cli.help_conventions import example, json_option
from bubblescope.cli.in_pieces import given_dataset
from bubblescope.cli.option_sections import Sectioned
from bubblescope.cli.reading import paths_argument, read, reading
from bubblescope.render.text.info import Info
from bubblescope.sources.dataset.catalogue import TASKS
from bubblescope.sources.dataset.reading import duration_ns, glimpse

_FEW: Final = 200_000
"""Tasks of a dataset that are read anyway: that takes less than a second."""


@click.command(cls=Sectioned, epilog=example("bubblescope info traces"))
@paths_argument()
@json_option
@click.option("--all", "everything", is_flag=True, help="Show every trace, process and rank.")
@reading
def info(paths: tuple[str, ...], as_json: bool, everything: bool, **options: Any) -> None:
    """Describe traces: format, hosts, ranks, steps, what was lost.

    Of a large dataset no more is read than its catalogue and a few tasks; its clocks are as recorded.
    """
    found = _of_dataset(paths, options)
    if found is None:
        found = Info.of(read(paths, **options))
    answer(found, as_json=as_json, everything=everything)
    if not as_json:
        warn(found.timeline, quiet=False)


def _of_dataset(paths: tuple[str, ...], options: dict[str, Any]) -> Info | None:
    """Return what a large dataset is; None if it is none, or is to be read for what is asked."""
    asked = options["steps"], options["ranks"], options["clock"]
    found = given_dataset(paths) if asked == (None, None, "auto") else None
    if found is None:
        return None
    store, catalogue = found
    tasks = sum(part.count(TASKS) for part in catalogue.parts)
    if tasks <= _FEW:
        return None
    return Info.of(glimpse(store), Size(tasks, [*catalogue.steps], duration_ns(catalogue)))
