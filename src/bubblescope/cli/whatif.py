"""`bubblescope whatif`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bubblescope.cli.console import answer, warn
from bubblescope.cli.questions import asking, questions
from bubblescope.cli.questions import each as one_by_one
from bubblescope.cli.reading import need_tasks, paths_argument, planned, read, reading
from bubblescope.cli.workers import Sectioned
from bubblescope.render.text.whatif import Predictions

if TYPE_CHECKING:
    from bubblescope.schedules.plan import Plan


@click.command(cls=Sectioned)
@paths_argument()
@asking
@one_by_one
@click.option(
    "--memory",
    type=float,
    metavar="X",
    help="Activations a device may hold, in micro-batches of a p-th of the model; for advice.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/why.md).")
@planned
@reading
def whatif(
    paths: tuple[str, ...],
    as_json: bool,
    memory: float | None,
    also: tuple[Plan, ...],
    each: bool,
    **options: Any,
) -> None:
    """Predict what a run would take if something were different.

    Changes are asked about all at once; with --each, one by one. Without a question: what would make
    it faster, best first. Runs without a pipeline are asked about
    what their devices spend time on: --without a class of it, --host-never-late, --kernel.
    """
    asked = questions(options, also, one_by_one=each)
    timeline = read(paths, **options)
    if not timeline.budget.height:
        need_tasks(timeline)
    answer(Predictions.of(timeline, asked, memory=memory, also=also), as_json=as_json)
    if not as_json:
        warn(timeline, quiet=options["quiet"])
