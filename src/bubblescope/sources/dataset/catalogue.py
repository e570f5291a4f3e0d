"""What a dataset is on disk: its folders, its catalogue and the manifests of its parts.

    RUN/dataset.json                            the catalogue: which parts there are, and of what
    RUN/parts/00003-5d41402a.json               a part's manifest: what it was read from, and the run
    RUN/ranks/00003-5d41402a.parquet            its ranks
    RUN/tasks/block=2/00003-5d41402a.parquet    its tasks of steps 20 to 29, if blocks have ten steps
    RUN/counters/00003-5d41402a.parquet         a table that does not tell steps apart, whole

A part is what a few files of the traces hold, of some ranks and all steps; a block is some steps of all
ranks. Files are written beside and renamed, a part's manifest after its tables and the catalogue after
the manifests, so that whatever is killed leaves a dataset as it was before, or as it is after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from bubblescope.model.bounds import UNDECODABLE, Amount, Int32, Int64, Place, Time
from bubblescope.model.decoders import prepared
from bubblescope.model.errors import SourceError, reason
from bubblescope.model.provenance import Run
from bubblescope.model.timeline_tables import TABLES

if TYPE_CHECKING:
    from bubblescope.sources.dataset.store import Store

SCHEMA: Final = "bubblescope.dataset/1"
"""Name and version of the layout, described in docs/dataset.md."""

CATALOGUE: Final = "dataset.json"
"""File that makes a folder a dataset."""
MANIFESTS: Final = "parts"
RANKS: Final = "ranks"
TASKS: Final = "tasks"
BLOCK_STEPS: Final = 10
"""Steps of a block, if nobody says."""
NO_STEP: Final = -1
"""Block of rows of ranks without steps."""

BY_BLOCK: Final = frozenset(
    {TASKS, *(name for name, table in TABLES.items() if "step" in table.schema)}
)
"""Tables that tell steps apart; the others of a part are one file each."""


Name = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
"""Of a part: it depends on what the part was read from, and how."""


class Input(msgspec.Struct, frozen=True, order=True):
    """A file or folder that a part was read from, and how to see whether it has changed since.

    Attributes:
        path: Where it is.
        size: Bytes of it, or of all files in it.
        changed_ns: When it, or the latest of these, was changed last, by the clock of its disk.
    """

    path: str
    size: Amount
    changed_ns: Int64


class Span(NamedTuple):
    """When some ranks were in a step, by their own clocks.

    Attributes:
        step: The step.
        start_ns: First start of a task; None if there are none, as `end_ns`.
        end_ns: Last end.
    """

    step: Int32
    start_ns: Time | None
    end_ns: Time | None


class Held(msgspec.Struct, frozen=True):
    """What a part holds of one block.

    Attributes:
        rows: Table -> number of rows, of those that have any.
        steps: Its steps, ascending.
        start_ns: First start of any row, by the clocks of its ranks; None if none has a time.
        end_ns: Last end, likewise.
        stepless: Whether some rows have no step, or may have none for all that is known.
    """

    rows: dict[str, Amount]
    steps: tuple[Span, ...] = ()
    start_ns: Time | None = None
    end_ns: Time | None = None
    stepless: bool = True


class Part(msgspec.Struct, frozen=True):
    """A part, as the catalogue knows it.

    Attributes:
        name: Of its files, without their endings.
        ranks: Its ranks, ascending.
        hosts: Machines of its ranks.
        blocks: Block -> what it has of it.
        rows: Table -> number of rows, of tables that do not tell steps apart.
    """

    name: Name
    ranks: tuple[Place, ...]
    hosts: tuple[str, ...]
    blocks: dict[int, Held]
    rows: dict[str, Amount] = {}

    def count(self, table: str) -> int:
        """Return how many rows of a table it has."""
        by_block = sum(held.rows.get(table, 0) for held in self.blocks.values())
        return by_block + self.rows.get(table, 0)


class Manifest(msgspec.Struct, frozen=True):
    """A part, and where it came from.

    Attributes:
        part: The part.
        source: Name of the format of what it was read from.
        inputs: What it was read from.
        options: What else decided what it holds; parts of one dataset have the same.
        run: What was learnt of the run from these inputs alone.
        needs_all: What of it only all ranks together tell, in words; None if there is nothing.
        written_by: Version of bubblescope.
    """

    part: Part
    source: str
    inputs: tuple[Input, ...]
    options: dict[str, str]
    run: Run
    needs_all: str | None
    written_by: str


class Catalogue(msgspec.Struct, frozen=True):
    """A dataset.

    Attributes:
        schema: `SCHEMA`.
        finished: Whether all that was to be read is in it.
        block_steps: Steps of a block: step s is in block s // block_steps.
        parts: Its parts, in the order of what they were read from.
        steps: All steps that have tasks, ascending; without tasks, those of the devices.
        inputs: How many files or folders were to be read.
        run: What is known of all of the run that its parts do not tell: what was not read.
        groups: File of the communication groups of all ranks; None if none are known.
    """

    schema: str
    finished: bool
    block_steps: Amount
    parts: tuple[Part, ...] = ()
    steps: tuple[Int32, ...] = ()
    inputs: Amount = 0
    run: Run = Run()
    groups: Annotated[str, Meta(pattern=r"^groups-[0-9a-f]{16}\.parquet$")] | None = None


def catalogue_of(store: Store) -> Catalogue:
    """Read a dataset's catalogue.

    Raises:
        SourceError: It is missing, damaged, or of another version.
    """
    path = store.place(CATALOGUE)
    try:
        found = msgspec.json.decode(store.read(CATALOGUE), type=prepared(Catalogue))
    except FileNotFoundError:
        raise SourceError(str(store), f"is no dataset: it holds no {CATALOGUE}") from None
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror})") from None
    except UNDECODABLE as error:
        raise SourceError(path, f"is no catalogue of a dataset ({reason(error)})") from None
    if found.schema != SCHEMA:
        raise SourceError(
            path,
            f"is of the layout {found.schema!r}, and this version reads {SCHEMA!r}; make it anew",
        )
    if not found.block_steps:
        raise SourceError(path, "is damaged: its blocks have no steps; make it anew")
    return found


def manifest_of(store: Store, name: str) -> Manifest:
    """Read the manifest of a part.

    Raises:
        SourceError: It is missing or damaged.
    """
    file = f"{MANIFESTS}/{name}.json"
    path = store.place(file)
    try:
        return msgspec.json.decode(store.read(file), type=prepared(Manifest))
    except OSError as error:
        raise SourceError(
            path,
            f"is in the catalogue and cannot be read ({error.strerror}); make the dataset anew",
        ) from None
    except UNDECODABLE as error:
        raise SourceError(
            path, f"is no manifest of a dataset's part ({reason(error)}); make the dataset anew"
        ) from None


def table_file(table: str, name: str, block: int | None = None) -> str:
    """Return the file of a part's table, or of what it has of it in one block."""
    return f"{table}/{name}.parquet" if block is None else f"{table}/block={block}/{name}.parquet"
