"""Questions about datasets that do not fit into memory: workers look at their parts."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.cli.console import Bar, compressed
from bubblescope.cli.reading import ENOUGH
from bubblescope.cli.worker_options import chosen
from bubblescope.model.provenance import Notice
from bubblescope.sources.dataset.catalogue import CATALOGUE, TASKS, Catalogue, catalogue_of
from bubblescope.sources.dataset.measures_folder import Measures
from bubblescope.sources.dataset.store import is_address, store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bubblescope.analysis.kernels import Counted
    from bubblescope.analysis.pieces.study_of_pieces import Found
    from bubblescope.analysis.stragglers.replayed import Slowed
    from bubblescope.cli.console import Said
    from bubblescope.engine import Engine
    from bubblescope.engine.remote_results import Held
    from bubblescope.model.progress import Progress
    from bubblescope.schedules.plan import Plan
    from bubblescope.sources.dataset.store import Store


def in_pieces(
    paths: tuple[str, ...],
    options: dict[str, Any],
    then: Callable[[Found], Said],
    *,
    also: Sequence[Plan] = (),
    explained: bool,
) -> Said | None:
    """Look at a dataset in parts, if that is what was given and it does not fit into memory.

    Args:
        paths: What was given.
        options: Those of `bubblescope.cli.reading.reading`; those about workers are taken out if it is
            looked at in parts.
        then: What is said of it, worked out by a worker.
        also: Schedules to recognise besides the known ones.
        explained: As of `bubblescope.analysis.pieces.study_of_pieces.study_of`.

    Returns:
        What is said of it; None if it can be read, as traces are.
    """
    with _pieces_of(paths, options) as given:
        if given is None:
            return None
        from bubblescope.analysis.pieces.study_of_pieces import study_of  # noqa: PLC0415  slow, and seldom needed

        if not explained and given.executes:
            then = partial(_uncounted, then)
        return study_of(
            given.pieces,
            given.run,
            folder=given.folder,
            also=also,
            explained=explained,
            replayed=None if explained else REPLAYED,
            measures=given.measures,
            then=partial(_sent, then),
        )


REPLAYED: Final = 6_000_000
"""Tasks of which a report or a page replays whole steps, about, of a run with several times as many."""


def _sent(then: Callable[[Any], Said], found: Any) -> Said:
    """Say something where it is worked out, small enough to be sent to who asked."""
    return compressed(then(found))


def _uncounted(then: Callable[[Found], Said], found: Found) -> Said:
    return then(found._replace(drawn=found.drawn.with_notices(_UNCOUNTED)))


_UNCOUNTED: Final = Notice(
    "hfu-left-out",
    "what operators executed (HFU) is not counted in a dataset that is looked at in parts; --peak or "
    "--model shows it of some steps, and --steps says of which",
)
"""Said where a report leaves out what it has of smaller runs."""


def stragglers_in_pieces(
    paths: tuple[str, ...], options: dict[str, Any], then: Callable[[Slowed], Said]
) -> Said | None:
    """Look for stragglers in a dataset in parts, if that is what was given.

    Args:
        paths: What was given.
        options: As of `in_pieces`.
        then: Likewise.

    Returns:
        What is said of it; None if it can be read, as traces are, or its steps are not alike.
    """
    kept = dict(options)
    with _pieces_of(paths, kept) as given:
        if given is None:
            return None
        from bubblescope.analysis.pieces.stragglers_of_pieces import stragglers_of  # noqa: PLC0415

        return stragglers_of(
            given.pieces, given.run, folder=given.folder, then=partial(_sent, then)
        )


def kernels_in_pieces(
    paths: tuple[str, ...],
    options: dict[str, Any],
    then: Callable[[Counted], Said],
    by: Sequence[str] | None,
) -> Said | None:
    """Sum up the kernels of a dataset some ranks at a time, if that is what was given.

    Args:
        paths: What was given.
        options: As of `in_pieces`.
        then: Likewise.
        by: What rows are told apart by.

    Returns:
        What is said of them; None if they can be read, as traces are, or there are none.
    """
    with _pieces_of(paths, options, "activities") as given:
        if given is None:
            return None
        from bubblescope.analysis.pieces.kernels_of_pieces import kernels_of  # noqa: PLC0415

        return kernels_of(
            given.pieces, given.run, by=by, folder=given.folder, then=partial(_sent, then)
        )


class _Given(msgspec.Struct, frozen=True):
    """A large dataset.

    Attributes:
        pieces: It, in pieces.
        run: Who looks at them.
        folder: Where what they find is held; None if it is sent back and forth.
        executes: Whether it holds what operators executed.
        measures: What was measured of all of it when it was made; None if a part of it is asked about,
            or other clocks.
    """

    pieces: Held[Any]
    run: Watched
    folder: Path | None
    executes: bool
    measures: Measures | None


@contextmanager
def _pieces_of(
    paths: tuple[str, ...], options: dict[str, Any], table: str = TASKS
) -> Iterator[_Given | None]:
    """Give a large dataset in pieces, and who looks at them; None if it is to be read as traces are."""
    found = None if options["ranks"] is not None else given_dataset(paths)
    if found is None or not _to_workers(found[1], table, options):
        yield None
        return
    store, catalogue = found
    from bubblescope.datasets.dataset_pieces import pieces_of  # noqa: PLC0415  slow, and seldom needed
    from bubblescope.datasets.prepared_parts import keeping  # noqa: PLC0415

    with (
        Bar(quiet=options["quiet"]) as bar,
        chosen(options) as workers,
        keeping(catalogue, workers) as kept,
    ):
        asked = (options["steps"], options["clock"])
        measures = Measures.of(store, catalogue) if asked == (None, "auto") else None
        pieces = pieces_of(
            store,
            workers,
            steps=options["steps"],
            clock=options["clock"],
            kept=kept,
            measures=measures,
        )
        folder = None if kept is None else kept.folder
        yield _Given(pieces, Watched(workers, bar), folder, _executes(catalogue), measures)


def _to_workers(catalogue: Catalogue, table: str, options: dict[str, Any]) -> bool:
    """Say whether workers look at a dataset in parts: it is large, or they were asked for.

    Of a small one which says what operators executed, parts would say less than all of it.
    """
    rows = _rows(catalogue, table, options["steps"])
    asked_for = (options.get("workers") or 1) > 1 or options.get("mode") == "dask"
    return rows > ENOUGH or (rows > 0 and asked_for and not _executes(catalogue))


def _executes(catalogue: Catalogue) -> bool:
    return any(part.count("flops") for part in catalogue.parts)


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


def _rows(catalogue: Catalogue, table: str, steps: Sequence[range] | None) -> int:
    """Return about how many rows of a table some steps of a dataset have."""
    rows = sum(part.count(table) for part in catalogue.parts)
    if steps is None or not catalogue.steps:
        return rows
    wanted = sum(any(step in some for some in steps) for step in catalogue.steps)
    return rows * wanted // len(catalogue.steps)


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
        """Do work on jobs; see `bubblescope.analysis.pieces.run_in_pieces.Runs`."""
        self._progress.begin("looking at the parts", len(jobs))
        for done in self._workers.run(work, jobs, apart=True):
            self._progress.advance()
            yield done
