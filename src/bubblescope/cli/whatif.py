"""`bubblescope whatif`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bubblescope.cli.console import Bar, answer, warn
from bubblescope.cli.help_conventions import example, json_option
from bubblescope.cli.option_sections import Sectioned
from bubblescope.cli.reading import need_tasks, paths_argument, planned, read, reading
from bubblescope.cli.whatif_options import asking, questions
from bubblescope.cli.whatif_options import each as one_by_one
from bubblescope.render.text.whatif import Predictions

if TYPE_CHECKING:
    from bubblescope.schedules.plan import Plan


@click.command(
    cls=Sectioned,
    epilog=example(
        "bubblescope whatif traces", "bubblescope whatif traces --schedule zb-h1 --microbatches 32"
    ),
)
@paths_argument()
@asking
@one_by_one
@click.option(
    "--memory",
    type=float,
    metavar="X",
    help="Activations a device may hold, in micro-batches of 1/p of the model; for advice.",
)
@json_option
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
    """Predict how long a step would take if something changed.

    All changes are made at once, or with --each one at a time. Without any: what would make a step
    shorter, best first. In runs without a pipeline, what devices spend time on can change: --without a
    class of it, --host-never-late, --kernel.
    """
    asked = questions(options, also, one_by_one=each)
    timeline = read(paths, **options)
    if not timeline.budget.height:
        need_tasks(timeline)
    with Bar(quiet=options["quiet"]) as bar:
        found = Predictions.of(timeline, asked, memory=memory, also=also, progress=bar)
    answer(found, as_json=as_json)
    if not as_json:
        warn(timeline, quiet=options["quiet"])
