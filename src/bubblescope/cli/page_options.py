"""What `view` and `serve` show of a run: the options that they share, and what these ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from bubblescope.analysis.compare import Comparison
from bubblescope.analysis.view import View
from bubblescope.cli.reading import (
    has_kernels,
    need_tasks,
    paths_argument,
    planned,
    read,
    reading,
    with_kernels,
)
from bubblescope.cli.source_arguments import read_again
from bubblescope.cli.whatif_options import asking, beside, one_question

if TYPE_CHECKING:
    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline

_titled = click.option("--title", help="Heading of the page.")
_against = click.option(
    "--against",
    "other",
    type=click.Path(),
    metavar="B",
    help="Another run, whose ranks stand below those of the first: what each task gained or lost.",
)


def paged(command: Any) -> Any:
    """Add the argument and the options that say what a page shows, for `Wanted.of`."""
    for option in (reading, planned, beside, asking, with_kernels, _against, _titled):
        command = option(command)
    return paths_argument()(command)


def asks_for_a_run_alone(options: dict[str, Any]) -> bool:
    """Say whether the options of `paged` ask for a run, and for nothing to be set against it."""
    mine = dict(options)
    more = [mine[name] for name in ("other", "unfolding", "set_beside", "also", "layers")]
    return not (any(more) or one_question(mine, mine["also"]))


class Wanted(NamedTuple):
    """What a page is to show.

    Attributes:
        timeline: The run.
        after: Another that stands below it; None for one run.
        kernels: Whether tasks unfold into their kernels.
        title: Heading; None for the names of the traces.
        labels: What the two runs are called.
        given: Arguments of `View.of`.
    """

    timeline: Timeline
    after: Timeline | None
    kernels: bool
    title: str | None
    labels: tuple[str, str]
    given: dict[str, Any]

    @classmethod
    def of(cls, paths: tuple[str, ...], options: dict[str, Any], **how: Any) -> Wanted:
        """Read what the options of `paged` ask for; leave, saying why, if there is nothing to show.

        Args:
            paths: The traces.
            options: Those that the command was given; what is left are those of `reading`.
            how: Further options of `read`, for the run itself.
        """
        title, other, unfolding, set_beside, also = map(
            options.pop, ("title", "other", "unfolding", "set_beside", "also")
        )
        layers = options["layers"]  # a question takes it out
        question = one_question(options, also)
        options["activities"] |= unfolding
        timeline = read(paths, **how, **options)
        need_tasks(timeline)
        after = None if other is None else read((other,), **{**options, "activities": False})
        if after is not None:
            need_tasks(after)
        return cls(
            timeline=timeline,
            after=after,
            kernels=unfolding and has_kernels(timeline, paths),
            title=title,
            labels=(", ".join(paths), other or ""),
            given={
                "also": also,
                "whatif": question,
                "beside": set_beside,
                "layers": layers,
                "read_again": read_again(),
            },
        )

    def view(self, progress: Progress, *, kept: bool) -> View:
        """Work out all that the page shows; `kept` as of `View.of`."""
        against = None
        if self.after is not None:
            against = Comparison.of(
                self.timeline,
                self.after,
                labels=self.labels,
                also=self.given["also"],
                progress=progress,
            )
        return View.of(self.timeline, against=against, kept=kept, progress=progress, **self.given)
