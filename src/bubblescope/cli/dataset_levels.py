"""Levels of datasets: what `serve` shows of one that is too large to be read, worked out once."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from bubblescope.cli.console import Bar, err
from bubblescope.cli.in_pieces import Watched, given_dataset
from bubblescope.cli.reading import ENOUGH
from bubblescope.cli.worker_options import chosen
from bubblescope.model.errors import BubblescopeError
from bubblescope.render.html.page_blocks.block_files import Levels
from bubblescope.sources.dataset.catalogue import TASKS
from bubblescope.sources.dataset.measures_folder import Measures
from bubblescope.sources.dataset.store import Folder

if TYPE_CHECKING:
    from contextlib import ExitStack

    from bubblescope.engine import Engine
    from bubblescope.engine.remote_results import Held
    from bubblescope.sources.dataset.catalogue import Catalogue
    from bubblescope.sources.dataset.store import Store

_PROBE: Final = "writing"
"""File of the levels by which it is seen whether they can be written."""


def levels_for(
    paths: tuple[str, ...], options: dict[str, Any], meanwhile: ExitStack
) -> tuple[Levels, tuple[Store, Catalogue]] | None:
    """Return the levels of a dataset, and it; they are made now if it is large and has none.

    Where it cannot be written to, they are kept in a temporary folder.

    Args:
        paths: What was given.
        options: Those of `bubblescope.cli.reading.reading`; those about workers are taken out if levels
            are made.
        meanwhile: Is entered for as long as they are needed.

    Returns:
        None if that is no dataset, or one of which another part is asked for, or which fits into
        memory.
    """
    asked = (options["steps"], options["ranks"])
    found = given_dataset(paths)
    if found is None or asked != (None, None) or options["clock"] != "auto":
        return None
    store, catalogue = found
    levels = Levels.of(store, catalogue)
    if levels.there:
        return levels, found
    if sum(part.count(TASKS) for part in catalogue.parts) <= ENOUGH:
        return None
    where = "which keeps them"
    try:
        store.write(levels.name(_PROBE), b"")
        store.remove(levels.name(_PROBE))
    except OSError:
        folder = meanwhile.enter_context(TemporaryDirectory(prefix="bubblescope-"))
        levels = Levels(Folder(Path(folder)), levels.folder)
        where = "which cannot be written to, so they are kept until this ends"
    if not options["quiet"]:
        text = (
            f"working out the levels of {store}, {where}; `bubblescope dataset --levels` does that"
        )
        err.print(Text.assemble(("note     ", "dim"), f"{text} beforehand"), soft_wrap=True)
    with chosen(options) as workers:
        make(levels, store, catalogue, workers, quiet=options["quiet"])
    return levels, found


def make(
    levels: Levels, store: Store, catalogue: Catalogue, workers: Engine, *, quiet: bool
) -> None:
    """Make the levels of a dataset, if there are none.

    Raises:
        SourceError: It is damaged.
        EngineError: Workers died, or cannot be reached.
        OSError: They cannot be written.
    """
    if levels.there or not any(part.count(TASKS) for part in catalogue.parts):
        return
    from bubblescope.datasets.dataset_pieces import pieces_of  # noqa: PLC0415  slow, and seldom needed
    from bubblescope.datasets.prepared_parts import keeping  # noqa: PLC0415
    from bubblescope.render.html.page_blocks.page_facts import make_levels  # noqa: PLC0415

    measures = Measures.of(store, catalogue)
    with Bar(quiet=quiet) as bar, keeping(catalogue, workers) as kept:
        pieces = pieces_of(store, workers, kept=kept, measures=measures).got()
        levels = Levels(levels.store.anywhere(), levels.folder)
        folder = kept.folder if kept else None
        make_levels(
            levels,
            pieces,
            Watched(workers, bar),
            pieces.counters(),
            folder=folder,
            measures=measures,
        )


def measure_steps(store: Store, catalogue: Catalogue, workers: Engine, *, quiet: bool) -> None:
    """Measure all steps of a dataset that is looked at in parts, if that has not been done.

    Where it cannot be done, such as where ranks do not agree on what a step is, that is said: the
    dataset is whole without.

    Raises:
        OSError: They cannot be written.
    """
    if sum(part.count(TASKS) for part in catalogue.parts) <= ENOUGH:
        return
    from bubblescope.analysis.pieces.study_of_pieces import measure  # noqa: PLC0415  slow, and seldom needed
    from bubblescope.datasets.dataset_pieces import pieces_of  # noqa: PLC0415
    from bubblescope.datasets.prepared_parts import keeping  # noqa: PLC0415

    measures = Measures.of(store, catalogue, kept=True)
    try:
        with Bar(quiet=quiet) as bar, keeping(catalogue, workers) as kept:
            pieces: Held[Any] = pieces_of(store, workers, kept=kept, measures=measures)
            folder = kept.folder if kept else None
            measure(pieces, Watched(workers, bar), measures, folder=folder)
    except BubblescopeError as error:
        text = f"the steps of {store} were not measured, so every question does that: {error}"
        err.print(Text.assemble(("note     ", "dim"), text), soft_wrap=True)
