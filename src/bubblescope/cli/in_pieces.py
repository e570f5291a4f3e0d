"""Questions about datasets that do not fit into memory: workers look at their parts."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bubblescope.cli.console import Bar
from bubblescope.cli.reading import ENOUGH
from bubblescope.cli.workers import chosen
from bubblescope.model.provenance import Notice
from bubblescope.sources.dataset.catalogue import CATALOGUE, TASKS, Catalogue, catalogue_of
from bubblescope.sources.dataset.store import is_address, store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bubblescope.analysis.kernels import Counted
    from bubblescope.analysis.pieces.study_of_pieces import Found
    from bubblescope.analysis.stragglers.replayed import Slowed
    from bubblescope.datasets.dataset_pieces import DatasetPieces
    from bubblescope.engine import Engine
    from bubblescope.model.progress import Progress
    from bubblescope.schedules.plan import Plan


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
    with _pieces_of(paths, options) as given:
        if given is None:
            return None
        from bubblescope.analysis.pieces.study_of_pieces import study_of  # noqa: PLC0415  slow, and seldom needed

        pieces, run = given
        found = study_of(pieces, run, also=also, explained=explained)
    if not explained and pieces.executes:
        found = found._replace(drawn=found.drawn.with_notices(_UNCOUNTED))
    return found


_UNCOUNTED: Final = Notice(
    "hfu-left-out",
    "what operators executed (HFU) is not counted in a dataset that is looked at in parts; --peak or "
    "--model shows it of some steps, and --steps says of which",
)
"""Said where a report leaves out what it has of smaller runs."""


def stragglers_in_pieces(paths: tuple[str, ...], options: dict[str, Any]) -> Slowed | None:
    """Look for stragglers in a dataset in parts, if that is what was given.

    Args:
        paths: As of `in_pieces`.
        options: Likewise.

    Returns:
        What is known of it; None if it can be read, as traces are, or its steps are not alike.
    """
    kept = dict(options)
    with _pieces_of(paths, kept) as given:
        if given is None:
            return None
        from bubblescope.analysis.pieces.stragglers_of_pieces import stragglers_of  # noqa: PLC0415

        return stragglers_of(*given)


def kernels_in_pieces(
    paths: tuple[str, ...], options: dict[str, Any], by: Sequence[str] | None
) -> Counted | None:
    """Sum up the kernels of a dataset some ranks at a time, if that is what was given.

    Args:
        paths: As of `in_pieces`.
        options: Likewise.
        by: What rows are told apart by.

    Returns:
        What is known of them; None if they can be read, as traces are, or there are none.
    """
    with _pieces_of(paths, options, "activities") as given:
        if given is None:
            return None
        from bubblescope.analysis.pieces.kernels_of_pieces import kernels_of  # noqa: PLC0415

        return kernels_of(*given, by=by)


@contextmanager
def _pieces_of(
    paths: tuple[str, ...], options: dict[str, Any], table: str = TASKS
) -> Iterator[tuple[DatasetPieces, _Watched] | None]:
    """Give a large dataset in pieces, and who looks at them; None if it is not one."""
    if len(paths) != 1 or options["ranks"] is not None:
        yield None
        return
    place = Path(paths[0]).expanduser()
    if not (is_address(place) or (place / CATALOGUE).is_file()):
        yield None
        return
    store = store_of(place)
    catalogue = catalogue_of(store)
    if not catalogue.finished or _rows(catalogue, table, options["steps"]) <= ENOUGH:
        yield None
        return
    from bubblescope.datasets.dataset_pieces import pieces_of  # noqa: PLC0415  slow, and seldom needed
    from bubblescope.datasets.kept import keeping  # noqa: PLC0415

    with (
        Bar(quiet=options["quiet"]) as bar,
        chosen(options) as workers,
        keeping(catalogue) as kept,
    ):
        pieces = pieces_of(
            store, workers, steps=options["steps"], clock=options["clock"], kept=kept
        )
        yield pieces, _Watched(workers, bar)


def _rows(catalogue: Catalogue, table: str, steps: Sequence[range] | None) -> int:
    """Return about how many rows of a table some steps of a dataset have."""
    rows = sum(part.count(table) for part in catalogue.parts)
    if steps is None or not catalogue.steps:
        return rows
    wanted = sum(any(step in some for some in steps) for step in catalogue.steps)
    return rows * wanted // len(catalogue.steps)


class _Watched:
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
