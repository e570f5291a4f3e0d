"""Questions about datasets that do not fit into memory: workers look at their parts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bubblescope.cli.console import Bar
from bubblescope.cli.reading import ENOUGH
from bubblescope.cli.workers import chosen
from bubblescope.sources.dataset.catalogue import CATALOGUE, TASKS, Catalogue, catalogue_of
from bubblescope.sources.dataset.store import is_address, store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bubblescope.analysis.pieces.study_of_pieces import Found
    from bubblescope.engine import Engine
    from bubblescope.model.progress import Progress
    from bubblescope.schedules.plan import Plan
    from bubblescope.sources.dataset.store import Store


def in_pieces(
    paths: tuple[str, ...],
    options: dict[str, Any],
    *,
    also: Sequence[Plan] = (),
    explained: bool,
) -> Found | None:
    """Look at a dataset in parts, if that is what was given and it does not fit into memory.

    Args:
        paths: What was given.
        options: Those of `bubblescope.cli.reading.reading`; those about workers are taken out if it is
            looked at in parts.
        also: Schedules to recognise besides the known ones.
        explained: As of `bubblescope.analysis.pieces.study_of_pieces.study_of`.

    Returns:
        What is known of it; None if it can be read, as traces are.
    """
    found = None if options["ranks"] is not None else given_dataset(paths)
    if found is None:
        return None
    store, catalogue = found
    if _tasks(catalogue, options["steps"]) <= ENOUGH:
        return None
    from bubblescope.analysis.pieces.study_of_pieces import study_of  # noqa: PLC0415  slow, and seldom needed
    from bubblescope.datasets.dataset_pieces import pieces_of  # noqa: PLC0415

    with Bar(quiet=options["quiet"]) as bar, chosen(options) as workers:
        pieces = pieces_of(store, workers, steps=options["steps"], clock=options["clock"])
        return study_of(pieces, Watched(workers, bar), also=also, explained=explained)


def given_dataset(paths: tuple[str, ...]) -> tuple[Store, Catalogue] | None:
    """Return the one dataset that was given, if it is finished; None if it is another source."""
    if len(paths) != 1:
        return None
    place = Path(paths[0]).expanduser()
    if not (is_address(place) or (place / CATALOGUE).is_file()):
        return None
    store = store_of(place)
    catalogue = catalogue_of(store)
    return (store, catalogue) if catalogue.finished else None


def _tasks(catalogue: Catalogue, steps: Sequence[range] | None) -> int:
    """Return about how many tasks some steps of a dataset have."""
    tasks = sum(part.count(TASKS) for part in catalogue.parts)
    if steps is None or not catalogue.steps:
        return tasks
    wanted = sum(any(step in some for some in steps) for step in catalogue.steps)
    return tasks * wanted // len(catalogue.steps)


class Watched:
    """Has work done by workers, and tells how far they are.

    Args:
        workers: The workers.
        progress: Is told.
    """

    def __init__(self, workers: Engine, progress: Progress) -> None:
        self._workers = workers
        self._progress = progress

    def __call__(
        self, work: Callable[[Any], Any], jobs: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """Do work on jobs; see `bubblescope.analysis.pieces.given.Runs`."""
        self._progress.begin("looking at the parts", len(jobs))
        for done in self._workers.run(work, jobs, apart=True):
            self._progress.advance()
            yield done
