"""Levels of datasets: what `serve` shows of one that is too large to be read, worked out once."""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.text import Text

from bubblescope.cli.console import Bar, err
from bubblescope.cli.in_pieces import REPLAYED, Watched, given_dataset
from bubblescope.cli.reading import ENOUGH
from bubblescope.cli.worker_options import chosen
from bubblescope.engine.remote_results import Held
from bubblescope.model.errors import BubblescopeError
from bubblescope.render.html.page_blocks.block_files import Levels
from bubblescope.sources.dataset.catalogue import TASKS
from bubblescope.sources.dataset.measures_folder import Measures
from bubblescope.sources.dataset.store import Folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager, ExitStack

    from bubblescope.datasets.prepared_parts import Kept
    from bubblescope.engine import Engine
    from bubblescope.sources.dataset.catalogue import Catalogue
    from bubblescope.sources.dataset.store import Store

_PROBE: Final = "writing"
"""File of the levels by which it is seen whether they can be written."""


class Served(NamedTuple):
    """A large dataset that is served block by block.

    Attributes:
        levels: Its levels.
        dataset: It.
        explain: Works out why ranks are idle in a part of it, and writes that among its levels; None
            if these cannot be written to.
    """

    levels: Levels
    dataset: tuple[Store, Catalogue]
    explain: Callable[[int], None] | None


def levels_for(
    paths: tuple[str, ...], options: dict[str, Any], meanwhile: ExitStack
) -> Served | None:
    """Return the levels of a dataset, and it; they are made now if it is large and has none.

    Where it cannot be written to, they are kept in a temporary folder.

    Args:
        paths: What was given.
        options: Those of `bubblescope.cli.reading.reading`; those about workers are taken out if there
            are levels.
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
    there = levels.there
    if not there and not is_large(catalogue):
        return None
    writable = _is_writable(levels)
    if there and not writable:
        return Served(levels, found, None)
    where = "which keeps them"
    if not writable:
        folder = meanwhile.enter_context(TemporaryDirectory(prefix="bubblescope-"))
        levels = Levels(Folder(Path(folder)), levels.folder)
        where = "which cannot be written to, so they are kept until this ends"
    # A part at a time is explained, so that one process has all cores; a cluster is as it is.
    alone = {**options, "workers": 1} if options["mode"] == "local" else None
    workers = meanwhile.enter_context(chosen(options))
    if not there:
        if not options["quiet"]:
            text = (
                f"working out the levels of {store}, {where}; `bubblescope dataset --levels` does "
                "that beforehand"
            )
            err.print(Text.assemble(("note     ", "dim"), text), soft_wrap=True)
        with kept_for(catalogue, workers) as kept:
            make(levels, store, catalogue, workers, kept, quiet=options["quiet"])
    explaining = workers if alone is None else meanwhile.enter_context(chosen(alone))
    return Served(levels, found, _Explainer(levels, store, catalogue, explaining, meanwhile))


def _is_writable(levels: Levels) -> bool:
    try:
        levels.store.write(levels.name(_PROBE), b"")
        levels.store.remove(levels.name(_PROBE))
    except OSError:
        return False
    return True


class _Explainer:
    """Has workers look at parts of a dataset that is served; what they need is made ready at first.

    Args:
        levels: Where what they find is written.
        store: Where the dataset lies.
        catalogue: It.
        workers: The workers.
        meanwhile: Is entered for as long as it is served.
    """

    def __init__(
        self,
        levels: Levels,
        store: Store,
        catalogue: Catalogue,
        workers: Engine,
        meanwhile: ExitStack,
    ) -> None:
        self._levels, self._store, self._catalogue = levels, store, catalogue
        self._workers, self._meanwhile = workers, meanwhile

    def __call__(self, number: int) -> None:
        """Work out why ranks are idle in a part, and write that."""
        from bubblescope.render.html.page_blocks.page_facts import explain_part  # noqa: PLC0415  slow, and seldom needed

        levels, (pieces, kept) = self._levels, self._made_ready
        explain_part(
            Levels(levels.store.anywhere(), levels.folder),
            Held(levels.index()),
            pieces,
            partial(self._workers.run, apart=True),
            number,
            folder=kept and kept.folder,
            measures=Measures.of(self._store, self._catalogue),
        )

    @cached_property
    def _made_ready(self) -> tuple[Held[Any], Kept | None]:
        from bubblescope.datasets.dataset_pieces import pieces_of  # noqa: PLC0415  as above

        store, catalogue, workers = self._store, self._catalogue, self._workers
        kept = self._meanwhile.enter_context(kept_for(catalogue, workers))
        measures = Measures.of(store, catalogue)
        return pieces_of(store, workers, kept=kept, measures=measures), kept


def kept_for(catalogue: Catalogue, workers: Engine) -> AbstractContextManager[Kept | None]:
    """Give a folder in which workers keep parts of a dataset that they made ready; see `keeping`."""
    from bubblescope.datasets.prepared_parts import keeping  # noqa: PLC0415  slow, and seldom needed

    return keeping(catalogue, workers)


def make(
    levels: Levels,
    store: Store,
    catalogue: Catalogue,
    workers: Engine,
    kept: Kept | None,
    *,
    quiet: bool,
    every: bool = False,
) -> None:
    """Make the levels of a dataset, if there are none.

    Args:
        levels: Where.
        store: Where the dataset lies.
        catalogue: It.
        workers: Who make them.
        kept: Where they keep its parts.
        quiet: Whether nobody is told how far they are.
        every: Whether it is worked out of all parts why ranks are idle in them, however many there are.

    Raises:
        SourceError: It is damaged.
        EngineError: Workers died, or cannot be reached.
        OSError: They cannot be written.
    """
    if not any(part.count(TASKS) for part in catalogue.parts):
        return
    if levels.there and (not every or _explains_all(levels)):
        return
    from bubblescope.datasets.dataset_pieces import pieces_of  # noqa: PLC0415  slow, and seldom needed
    from bubblescope.render.html.page_blocks.page_facts import make_levels  # noqa: PLC0415

    measures = Measures.of(store, catalogue)
    with Bar(quiet=quiet) as bar:
        pieces: Held[Any] = pieces_of(store, workers, kept=kept, measures=measures)
        make_levels(
            Levels(levels.store.anywhere(), levels.folder),
            pieces,
            Watched(workers, bar),
            replayed=None if every else REPLAYED,
            folder=kept and kept.folder,
            measures=measures,
        )


def _explains_all(levels: Levels) -> bool:
    index = levels.index()
    return all(levels.explained(number, index) for number in range(len(index.parts)))


def is_large(catalogue: Catalogue) -> bool:
    """Say whether a dataset is looked at in parts."""
    return sum(part.count(TASKS) for part in catalogue.parts) > ENOUGH


def measure_steps(
    store: Store, catalogue: Catalogue, workers: Engine, kept: Kept | None, *, quiet: bool
) -> None:
    """Measure all steps of a dataset that is looked at in parts, if that has not been done.

    Where it cannot be done, such as where ranks do not agree on what a step is, that is said: the
    dataset is whole without.

    Args:
        store: Where it lies.
        catalogue: It.
        workers: Who do that.
        kept: Where they keep its parts.
        quiet: Whether nobody is told how far they are.

    Raises:
        OSError: They cannot be written.
    """
    from bubblescope.analysis.pieces.study_of_pieces import measure  # noqa: PLC0415  slow, and seldom needed
    from bubblescope.datasets.dataset_pieces import pieces_of  # noqa: PLC0415

    measures = Measures.of(store, catalogue, kept=True)
    try:
        with Bar(quiet=quiet) as bar:
            pieces: Held[Any] = pieces_of(store, workers, kept=kept, measures=measures)
            measure(pieces, Watched(workers, bar), measures, folder=kept and kept.folder)
    except BubblescopeError as error:
        text = f"the steps of {store} were not measured, so every question does that: {error}"
        err.print(Text.assemble(("note     ", "dim"), text), soft_wrap=True)
