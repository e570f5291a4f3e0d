"""`bubblescope redact`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
import msgspec

from bubblescope.analysis.redaction import Pseudonyms, redacted
from bubblescope.cli.console import warn, writing, wrote
from bubblescope.cli.help_conventions import example
from bubblescope.cli.option_sections import Sectioned
from bubblescope.cli.output_files import output_path
from bubblescope.cli.reading import paths_argument, read, reading
from bubblescope.model.files import replacing
from bubblescope.render.formats import FORMATS, agree

_OWNER_ONLY: Final = 0o600


@click.command(
    cls=Sectioned,
    epilog=example("bubblescope redact traces/ -o shared.bubbles.parquet --dictionary ours.json"),
)
@paths_argument()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar=f"FILE{FORMATS['parquet'].suffix}",
    help="File to write.",
)
@click.option(
    "--key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="File with the key of the pseudonyms, any bytes: runs redacted with the same key can be "
    "compared. By default a random key, which is not kept.",
)
@click.option(
    "--dictionary",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="Also write what each pseudonym stands for; keep this file to yourself.",
)
@click.option("--no-kernels", is_flag=True, help="Without single kernels: a smaller file.")
@reading
def redact(
    paths: tuple[str, ...],
    output: Path,
    key_file: Path | None,
    dictionary: Path | None,
    no_kernels: bool,
    **options: Any,
) -> None:
    """Write a run that can be shared: names and paths replaced.

    Hosts and shapes are replaced too, every number is kept, and all commands give the same answers
    for the file as for the traces.
    """
    agree(output_path(paths, output, ""), "parquet")
    if dictionary is not None:
        _new(output_path(paths, dictionary, ""), output)
    names = Pseudonyms(None if key_file is None else _key(key_file))
    timeline = read(paths, activities=not no_kernels, **options)
    with writing(output, quiet=options["quiet"]):
        redacted(timeline, names).save(output)
    warn(timeline, quiet=options["quiet"])
    wrote(output)
    if dictionary is not None:
        with replacing(dictionary) as partial:
            partial.chmod(_OWNER_ONLY)
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(names.given)))
        wrote(dictionary)


def _new(dictionary: Path, output: Path) -> None:
    """Refuse a dictionary that would take the place of another, which may be the only way back."""
    if dictionary.exists() or dictionary.resolve() == output.resolve():
        raise click.UsageError(f"{dictionary} is there or to be written; name another file")


def _key(path: Path) -> bytes:
    key = path.read_bytes()
    if not key.strip():
        raise click.UsageError(f"{path} is empty, and so is no key; put something secret into it")
    return key
