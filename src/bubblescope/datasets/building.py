"""Making a dataset, going on with one that was left unfinished, and adding traces to one."""

from __future__ import annotations

import hashlib
import io
import os
import re
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.datasets.batches import (
    BATCH,
    Batch,
    as_one,
    batches,
    input_of,
    together,
    with_shared_ranks,
)
from bubblescope.datasets.writing import Job, make_part
from bubblescope.model import parquet
from bubblescope.model.errors import BubblescopeError, SourceError
from bubblescope.model.groups import merged
from bubblescope.model.progress import SILENT
from bubblescope.model.provenance import Run, clocks_unchecked
from bubblescope.model.timeline_tables import TABLES
from bubblescope.sources.dataset.catalogue import (
    BLOCK_STEPS,
    CATALOGUE,
    MANIFESTS,
    RANKS,
    SCHEMA,
    TASKS,
    Catalogue,
    Manifest,
    catalogue_of,
    manifest_of,
    table_file,
)
from bubblescope.sources.dataset.levels_folder import FOLDER as LEVELS
from bubblescope.sources.dataset.levels_folder import folder_of
from bubblescope.sources.dataset.measures_folder import FOLDER as MEASURES
from bubblescope.sources.dataset.measures_folder import folder_of as measures_of
from bubblescope.sources.rank_grid import groups_of_grid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bubblescope.engine import Engine
    from bubblescope.model.progress import Progress
    from bubblescope.sources import Found
    from bubblescope.sources.dataset.store import Store
    from bubblescope.sources.source import LoadOptions

_FOLDERS: Final = (MANIFESTS, RANKS, TASKS, *TABLES)
_ASIDE: Final = re.compile(r"\.(dataset\.json|groups-[0-9a-f]+\.parquet)\.[0-9a-f]{8}")
"""What a killed writer leaves of files that lie in the dataset's own folder."""
_GROUPS: Final = "groups"
_BY_COORDINATES: Final = "coordinates"
_NATIVE: Final = "native"
_RECORDING: Final = ".bubbles"
"""Of these, where ranks stand tells their groups if they do not tell themselves."""


class DatasetError(BubblescopeError):
    """A dataset cannot be made there, or not of that."""


class Outcome(NamedTuple):
    """What came of making a dataset.

    Attributes:
        catalogue: The dataset.
        read: How many traces were read now.
        kept: How many had been read before and have not changed since.
        together: Why all traces were read as one; None if they were not.
    """

    catalogue: Catalogue
    read: int
    kept: int
    together: str | None


class Dataset(NamedTuple):
    """A dataset to be made, or added to.

    Attributes:
        store: Where it lies, or will.
        how: How traces are read; steps and ranks are all.
        engine: Where they are read.
        batch: Traces of a part.
        block_steps: Steps of a block; if None, as many as in the dataset that is there.
        progress: Is told of traces.
        anew: Whether to begin with nothing, and remove what is in it now.
    """

    store: Store
    how: LoadOptions
    engine: Engine
    batch: int = BATCH
    block_steps: int | None = None
    progress: Progress = SILENT
    anew: bool = False

    def make(self, found: Found) -> Outcome:
        """Read what is not in the dataset yet, and publish it all.

        Traces that are in it and have not changed are not read again, and stay in it if they are not
        given any more.

        Args:
            found: The traces.

        Raises:
            DatasetError: The folder holds something else, or a dataset that was made otherwise.
            SourceError: As `bubblescope.load`, and so its other errors.
            EngineError: Workers died of a batch, or cannot be reached.
            OSError: It cannot be written.
        """
        with self._locked():
            steps = self.block_steps
            if steps is None and not self.anew and self._exists():
                steps = catalogue_of(self.store).block_steps
            alike = self._replace(block_steps=steps or BLOCK_STEPS)
            return alike._all_of(found)  # noqa: SLF001  its own class

    def _all_of(self, found: Found) -> Outcome:
        options = self._options()
        if self.anew:
            self._clear(found)
        before = self._present(options)
        kept = _unchanged(before, found)
        todo = batches(_without(found, kept), self.batch)
        kept, todo = _kept_apart(kept, todo, found, self.batch)
        self._begin(found)
        self.progress.begin("reading traces", sum(len(batch.inputs) for batch in todo))
        made = self._made(todo, options)
        manifests = {**_not_replaced(kept, made), **made}
        again = self._again(manifests)
        if again:
            self.progress.begin("reading traces together", sum(len(one.inputs) for one in again))
            made |= self._made(again, options)
            gone = {one for batch in again for one in batch.inputs}
            manifests = {
                name: one
                for name, one in {**manifests, **made}.items()
                if not gone & set(one.inputs) or name in {b.name(options) for b in again}
            }
        catalogue = self._publish(list(manifests.values()), found)
        whole = next((one.needs_all for one in manifests.values() if one.needs_all), None)
        return Outcome(
            catalogue,
            sum(len(one.inputs) for name, one in manifests.items() if name in made),
            sum(len(one.inputs) for name, one in manifests.items() if name not in made),
            whole if len(manifests) == 1 and len(found.files) > 1 else None,
        )

    def _made(self, todo: Sequence[Batch], options: dict[str, str]) -> dict[str, Manifest]:
        """Read batches, and return the manifests of their parts."""
        jobs = [Job(self.store, batch, self.how, options, self._steps) for batch in todo]
        made = {}
        for index, name in self.engine.run(make_part, jobs):
            made[name] = manifest_of(self.store, name)
            self.progress.advance(len(todo[index].inputs))
        return made

    def _again(self, manifests: dict[str, Manifest]) -> list[Batch]:
        """Return what has to be read once more in other batches, for what it turned out to hold."""
        those = list(manifests.values())
        parts = [Batch(one.source, one.inputs) for one in those]
        if len(parts) > 1 and any(one.needs_all for one in those):
            whole = as_one(parts)
            return whole if len(whole) < len(parts) else []
        joined = with_shared_ranks(parts, [one.part.ranks for one in those])
        return [batch for batch in joined if batch not in parts]

    def _options(self) -> dict[str, str]:
        """Return what decides, beside the traces, what the dataset holds."""
        names = self.how.get("names") or ()
        given = [names] if isinstance(names, (str, os.PathLike)) else names
        held = {
            "names": [_content(one) for one in given],
            "kinds": dict(self.how.get("kinds") or {}),
            **{key: self.how.get(key) for key in ("source", "run", "attempt")},
            "activities": bool(self.how.get("activities")),
            "block_steps": self._steps,
        }
        return {key: repr(value) for key, value in held.items()}

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the place of the dataset against others who would write there."""
        try:
            with self.store.held():
                names = self.store.names()
                if names and CATALOGUE not in names:
                    raise DatasetError(
                        f"{self.store}: is no dataset and holds other files ({names[0]}); name a new "
                        "folder"
                    )
                yield
        except BlockingIOError:
            raise DatasetError(
                f"{self.store}: is being written by another process; wait until it is done"
            ) from None
        except (FileExistsError, NotADirectoryError):
            raise DatasetError(f"{self.store}: is a file; name a folder") from None

    @property
    def _steps(self) -> int:
        return self.block_steps or BLOCK_STEPS

    def _exists(self) -> bool:
        try:
            self.store.read(CATALOGUE)
        except FileNotFoundError:
            return False
        return True

    def _present(self, options: dict[str, str]) -> dict[str, Manifest]:
        """Return the parts that are there, by name; those of the catalogue first."""
        if not self._exists():
            return {}
        listed = [part.name for part in catalogue_of(self.store).parts]
        lying = [PurePosixPath(name).stem for name in self.store.names(MANIFESTS)]
        found: dict[str, Manifest] = {}
        for name in dict.fromkeys([*listed, *lying]):
            try:
                one = manifest_of(self.store, name)
            except SourceError:
                if name in listed:
                    raise
                continue
            if one.options != options:
                odd = next(key for key in options if one.options.get(key) != options[key])
                raise DatasetError(
                    f"{self.store}: was made with {odd} {one.options.get(odd)} and not "
                    f"{options[odd]}; give the same options, or name another folder"
                )
            found[name] = one
        return found

    def _begin(self, found: Found) -> None:
        """Make it a dataset, if it is none yet, which says that it is not finished."""
        if not self._exists():
            self._write(Catalogue(SCHEMA, False, self._steps, inputs=len(found.files)))

    def _clear(self, found: Found) -> None:
        """Make it a dataset of nothing; what else lies in its folder stays."""
        self._write(Catalogue(SCHEMA, False, self._steps, inputs=len(found.files)))
        self._sweep(Catalogue(SCHEMA, False, self._steps))

    def _publish(self, manifests: list[Manifest], found: Found) -> Catalogue:
        """Make these parts the dataset, and remove what is of none of them."""
        manifests.sort(key=lambda one: (one.source, one.inputs))
        parts = tuple(one.part for one in manifests)
        spans = [span for part in parts for held in part.blocks.values() for span in held.steps]
        timed = [span for span in spans if span.start_ns is not None]
        steps = {span.step for span in timed or spans}
        run = found.described(Run())
        hosts = {host for one in manifests if not _saved(one) for host in one.part.hosts}
        if len(hosts) > 1:
            run = run.warned(clocks_unchecked(len(hosts)))
        catalogue = Catalogue(
            SCHEMA,
            True,
            self._steps,
            parts,
            tuple(sorted(steps)),
            sum(len(one.inputs) for one in manifests),
            run,
            self._groups(manifests),
        )
        self._write(catalogue)
        self._sweep(catalogue)
        return catalogue

    def _groups(self, manifests: Sequence[Manifest]) -> str | None:
        """Write the groups that all ranks together tell of; return the file's name, None if none."""
        told = [
            self._table(_GROUPS, one.part.name) for one in manifests if one.part.rows.get(_GROUPS)
        ]
        said = pl.concat(told) if told else None
        if said is None or (said["how"] == _BY_COORDINATES).all():
            inputs = [held.path for one in manifests for held in one.inputs]
            if not any(path.endswith(_RECORDING) for path in inputs):
                return None
            ranks = pl.concat(self._table(RANKS, one.part.name) for one in manifests)
            said = groups_of_grid(ranks)
        elif len(told) > 1:
            said = merged(said)
        if not said.height:
            return None
        known = hashlib.blake2b(said.write_json().encode(), digest_size=8).hexdigest()
        name = f"{_GROUPS}-{known}.parquet"
        whole = io.BytesIO()
        said.write_parquet(whole)
        with whole.getbuffer() as content:
            self.store.write(name, content)
        return name

    def _table(self, table: str, name: str) -> pl.DataFrame:
        return parquet.read(self.store.read(table_file(table, name)))

    def _write(self, catalogue: Catalogue) -> None:
        self.store.write(CATALOGUE, msgspec.json.format(msgspec.json.encode(catalogue), indent=1))

    def _sweep(self, catalogue: Catalogue) -> None:
        """Remove what is of parts that are not in the catalogue, and what killed workers left."""
        kept = {part.name for part in catalogue.parts}
        for name in self.store.names():
            path = PurePosixPath(name)
            of_part = path.parts[0] in _FOLDERS and path.stem not in kept
            levels = path.parts[0] == LEVELS and not path.is_relative_to(folder_of(catalogue))
            measures = path.parts[0] == MEASURES and not path.is_relative_to(measures_of(catalogue))
            groups = len(path.parts) == 1 and path.match(f"{_GROUPS}-*.parquet")
            if (
                of_part
                or levels
                or measures
                or (groups and name != catalogue.groups)
                or _ASIDE.fullmatch(name)
            ):
                self.store.remove(name)


def _unchanged(before: dict[str, Manifest], found: Found) -> dict[str, Manifest]:
    """Return the parts of which no trace has changed; of several of one trace, the largest."""
    now = {str(path.absolute()): path for path in found.files}
    kept: dict[str, Manifest] = {}
    taken: set[str] = set()
    for name, one in sorted(before.items(), key=lambda held: -len(held[1].inputs)):
        paths = {held.path for held in one.inputs}
        same = all(held.path not in now or input_of(now[held.path]) == held for held in one.inputs)
        if same and not paths & taken:
            kept[name] = one
            taken |= paths
    return kept


def _without(found: Found, kept: dict[str, Manifest]) -> Found:
    """Return the traces that no part holds yet."""
    there = {held.path for one in kept.values() for held in one.inputs}
    left = [
        (source, [path for path in paths if str(path.absolute()) not in there])
        for source, paths in found.traces
    ]
    return msgspec.structs.replace(
        found, traces=[(source, paths) for source, paths in left if paths]
    )


def _kept_apart(
    kept: dict[str, Manifest], todo: list[Batch], found: Found, size: int
) -> tuple[dict[str, Manifest], list[Batch]]:
    """Return the parts to keep and the batches to read, where nothing kept belongs to what is read.

    A trace may have to be read together with ones that were read before.
    """
    if not kept or not todo:
        return kept, todo
    groups = [group for source, paths in found.traces for group in together(source, paths)]
    fresh = {Path(held.path) for batch in todo for held in batch.inputs}
    torn = {
        str(path.absolute())
        for group in groups
        if fresh & {path.absolute() for path in group}
        for path in group
    }
    stale = [name for name, one in kept.items() if torn & {held.path for held in one.inputs}]
    if not stale:
        return kept, todo
    left = {name: one for name, one in kept.items() if name not in stale}
    return left, batches(_without(found, left), size)


def _not_replaced(kept: dict[str, Manifest], made: dict[str, Manifest]) -> dict[str, Manifest]:
    """Return the parts to keep without those of which the traces are gone and all ranks were read anew.

    Their traces were renamed or moved.
    """
    anew = {rank for one in made.values() for rank in one.part.ranks}
    return {
        name: one
        for name, one in kept.items()
        if not anew.issuperset(one.part.ranks)
        or any(Path(held.path).exists() for held in one.inputs)
    }


def _saved(part: Manifest) -> bool:
    """Say whether a part was read from saved timelines, whose clocks have been looked at."""
    return part.source == _NATIVE and not any(one.path.endswith(_RECORDING) for one in part.inputs)


def _content(names: Any) -> str:
    """Return what a pattern, or a file of them, says."""
    path = Path(names)
    try:
        return path.read_text("utf-8") if path.suffix == ".toml" else str(names)
    except OSError:
        return str(names)
