"""`bubblescope dataset`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click
import msgspec
from rich.text import Text

from bubblescope.cli.console import Bar, err, out
from bubblescope.cli.dataset_levels import is_large, kept_for, make, measure_steps
from bubblescope.cli.help_conventions import example
from bubblescope.cli.option_sections import Sectioned
from bubblescope.cli.option_types import seconds
from bubblescope.cli.reading import paths_argument, reading
from bubblescope.cli.worker_options import chosen
from bubblescope.datasets.batches import BATCH, input_of
from bubblescope.datasets.building import Dataset, DatasetError, Outcome
from bubblescope.model import units
from bubblescope.render.html.page_blocks.block_files import Levels
from bubblescope.sources import find
from bubblescope.sources.dataset.catalogue import BLOCK_STEPS, TASKS
from bubblescope.sources.dataset.store import is_address, store_of

if TYPE_CHECKING:
    from bubblescope.sources import Found
    from bubblescope.sources.dataset.catalogue import Input
    from bubblescope.sources.source import LoadOptions

_OF_READERS: Final = frozenset({"steps", "ranks", "clock"})
"""Options of commands that read: a dataset holds all of a run as it was recorded."""


@click.command(
    cls=Sectioned,
    epilog=example("bubblescope dataset traces -o run", "bubblescope report run --steps 3"),
)
@paths_argument()
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Folder of the dataset: a new one, or one to go on with or to add to; also s3://, gs:// "
    "and az://.",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    metavar="N",
    default=BATCH,
    show_default=True,
    help="Traces that a worker reads together and writes to one file for each block.",
)
@click.option(
    "--block-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Steps in a block, the least that is read at once; {BLOCK_STEPS} in a new dataset.",
)
@click.option("--kernels", is_flag=True, help="With every kernel, copy and fill of the devices.")
@click.option(
    "--levels",
    is_flag=True,
    help="Work out now what `serve` shows, which then begins within seconds. Of a large run, why ranks "
    "are idle is worked out of some steps now, and of others when they are looked at.",
)
@click.option("--explain-all", is_flag=True, help="With --levels: of all steps now, as `why` does.")
@click.option(
    "--overwrite", is_flag=True, help="Remove the dataset that is there, and make it anew."
)
@click.option(
    "--watch",
    type=seconds(0.1),
    metavar="SECONDS",
    help="Look again every so many seconds, until interrupted, and add what is new: traces that have "
    "not grown since the last look.",
)
@reading
def dataset(
    paths: tuple[str, ...],
    output: Path,
    batch: int,
    block_steps: int | None,
    kernels: bool,
    levels: bool,
    explain_all: bool,
    overwrite: bool,
    watch: float | None,
    quiet: bool,
    **how: Any,
) -> None:
    """Write a run of any size as Parquet that can be read in part.

    Every command reads the folder as it reads traces, and with --steps and --ranks only what it needs
    of it. Run again, the command goes on where it was interrupted, and reads only traces that are new
    or have changed.
    """
    if explain_all and not levels:
        raise click.UsageError("--explain-all is about what --levels makes; give that too")
    _refuse_within(paths, output)
    engine = chosen(how)
    how = {**how, "kinds": dict(how.get("kinds") or ()), "activities": kernels}
    seen: set[Input] | None = None
    with engine as workers:
        while True:
            with Bar(quiet=quiet) as progress:
                making = Dataset(
                    store_of(output),
                    cast("LoadOptions", how),
                    workers,
                    batch,
                    block_steps,
                    progress,
                    overwrite,
                )
                found = find(paths, how.get("source"), how.get("attempt"))
                if watch is not None:
                    found, seen = _at_rest(found, seen)
                made = making.make(found) if found.files else None
            if made is not None and (made.read or watch is None):
                _said(output, made)
            measured = made is not None and watch is None and is_large(made.catalogue)
            if made is not None and (measured or levels):
                store, catalogue = making.store, made.catalogue
                with kept_for(catalogue, workers) as kept:
                    given = store, catalogue, workers, kept
                    if measured:
                        measure_steps(*given, quiet=quiet)
                    if levels:
                        make(Levels.of(store, catalogue), *given, quiet=quiet, every=explain_all)
            if watch is None:
                return
            overwrite = False
            time.sleep(watch)


dataset.params = [one for one in dataset.params if one.name not in _OF_READERS]


def _refuse_within(paths: tuple[str, ...], output: Path) -> None:
    """Refuse to write where traces are read: the dataset would be one of them."""
    if is_address(output):
        return
    place = output.resolve()
    for path in map(Path, paths):
        if path.is_dir() and place.is_relative_to(path.resolve()):
            raise DatasetError(
                f"{output}: lies in {path}, where the traces are; name another folder"
            )


def _at_rest(found: Found, seen: set[Input] | None) -> tuple[Found, set[Input]]:
    """Return those of the traces that are as they were at the last look, and how all are now."""
    now = {path: input_of(path) for path in found.files}
    kept = [
        (source, [path for path in those if seen is not None and now[path] in seen])
        for source, those in found.traces
    ]
    return msgspec.structs.replace(
        found, traces=[(source, those) for source, those in kept if those]
    ), {*now.values()}


def _said(output: Path, made: Outcome) -> None:
    """Say what there is now."""
    catalogue = made.catalogue
    tasks = sum(part.count(TASKS) for part in catalogue.parts)
    ranks = sum(len(part.ranks) for part in catalogue.parts)
    kept = f", {made.kept:,} were in it already" if made.kept else ""
    out.print(
        Text(
            f"wrote {store_of(output)}: {units.count(ranks, 'rank')}, "
            f"{units.count(len(catalogue.steps), 'step')}, {tasks:,} tasks in "
            f"{units.count(len(catalogue.parts), 'part')}; {units.count(made.read, 'trace')} read{kept}"
        ),
        soft_wrap=True,
    )
    if made.together is not None:
        err.print(
            Text.assemble(
                ("note     ", "dim"),
                f"only all traces together tell {made.together}, so one worker read them all",
            )
        )
