"""Damage to the files of a run: missing, doubled, exchanged, renamed, or something else than files."""

from __future__ import annotations

import gzip
import os
import re
import shutil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

_NUMBERS: Final = (0, 1, 3, 7, 64, 1000, 65_536, 10**9, 2 * 10**9, 2**31, 2**63, 10**30)


def mutate(folder: Path, path: Path, random: Random) -> None:
    """Change what is where one of a folder's files is."""
    random.choice(_WAYS)(folder, path, random)


def neutralise(folder: Path, random: Random) -> None:
    """Put something beside the traces that is none."""
    name = random.choice(("notes.md", ".hidden", "train.log", "core.1234", "loss.csv"))
    (folder / name).write_text("step,loss\n1,2.5\n")


def _remove(_folder: Path, path: Path, _random: Random) -> None:
    """Lack a file."""
    path.unlink()


def _empty(_folder: Path, path: Path, _random: Random) -> None:
    """Hold nothing in a file."""
    path.write_bytes(b"")


def _exchange(folder: Path, path: Path, random: Random) -> None:
    """Hold in a file what another holds."""
    others = sorted(one for one in folder.rglob("*") if one.is_file())
    shutil.copyfile(random.choice(others), folder / "other for now")
    (folder / "other for now").replace(path)


def _renumber(_folder: Path, path: Path, random: Random) -> None:
    """Have another number in a name, or the same file under two."""
    numbers = [*re.finditer(r"\d+", path.name)]
    if not numbers:
        return
    one = random.choice(numbers)
    name = f"{path.name[: one.start()]}{random.choice(_NUMBERS)}{path.name[one.end() :]}"
    if not path.with_name(name).exists():
        (shutil.copyfile if random.random() < 0.5 else shutil.move)(path, path.with_name(name))


def _rename(_folder: Path, path: Path, random: Random) -> None:
    """Have a name that says less, or something else."""
    ways = (
        "x",
        path.stem,
        f"{path.name}.gz",
        f"{path.name}.json",
        "a b\u202e.json",
        f"{path.name}~",
    )
    other = path.with_name(random.choice(ways))
    if not other.exists():
        path.rename(other)


def _pack(_folder: Path, path: Path, random: Random) -> None:
    """Be packed, whatever the name says; perhaps twice, or not to the end."""
    data = gzip.compress(path.read_bytes(), mtime=0)
    if random.random() < 0.3:
        data = gzip.compress(data, mtime=0)
    if random.random() < 0.3:
        data = data[: random.randrange(len(data))]
    path.write_bytes(data)


def _no_file(folder: Path, path: Path, random: Random) -> None:
    """Be a folder, a pipe, or a link that leads to nothing, to itself or back."""
    path.unlink()
    how = random.randrange(5)
    if how == 0:
        path.mkdir()
    elif how == 1:
        os.mkfifo(path)
    else:
        path.symlink_to(("nowhere", path.name, folder)[how - 2])


def _links(folder: Path, path: Path, random: Random) -> None:
    """Lead back by several links."""
    for name in ("up", "back", "again")[: random.randrange(1, 4)]:
        if not (path.parent / name).exists():
            (path.parent / name).symlink_to(folder)


_WAYS: Final = (_remove, _empty, _exchange, _renumber, _renumber, _rename, _pack, _no_file, _links)
