"""The files of a public trace: from a repository at a commit, with git, and no more than these."""

from __future__ import annotations

import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any


class FetchError(Exception):
    """The sentence that says why files could not be had."""


def fetched(origin: dict[str, Any], trace: dict[str, Any], folder: Path, place: str) -> None:
    """Put the files of a trace into the folder of its repository, unless they are there.

    Args:
        origin: What the index says of the repository.
        trace: What it says of the trace: `paths` are globs, and `unpack` is an archive whose members
            belong beside it, if the files are packed in the repository.
        folder: Has a folder for each repository.
        place: Address of a repository, with `{name}` or `{folder}`.

    Raises:
        FetchError: git cannot have them, or the commit does not hold them.
    """
    home = folder / origin["folder"]
    if all(any(home.glob(path)) for path in trace["paths"]):
        return
    home.mkdir(parents=True, exist_ok=True)
    packed = trace.get("unpack")
    address = place.format(name=origin["name"], folder=origin["folder"])
    _checked_out(address, origin["commit"], [packed] if packed else trace["paths"], home)
    if packed:
        _unpacked(home / packed)


def _checked_out(address: str, commit: str, globs: list[str], home: Path) -> None:
    """Take files out of a commit: its trees come first, then the contents of these files alone.

    They are put in their place once all of them are here: half a trace would pass for a whole one.
    """
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        tree = Path(scratch, "tree")
        tree.mkdir()
        repository = ["--git-dir", f"{scratch}/git"]
        _git(*repository, "init", "--quiet", "--bare")
        _git(*repository, "remote", "add", "origin", address)
        _git(*repository, "fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin", commit)
        names = _git(*repository, "ls-tree", "-r", "-z", "--name-only", commit).split("\0")
        wanted = []
        for glob in globs:
            found = [name for name in names if _pattern(glob).fullmatch(name)]
            if not found:
                raise FetchError(f"{commit[:12]} of {address} holds no '{glob}'")
            wanted += found
        wanted = list(dict.fromkeys(wanted))
        work = [*repository, "--work-tree", str(tree.resolve()), "--literal-pathspecs"]
        _git(*work, "checkout", "--quiet", commit, "--", *wanted)
        for name in wanted:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).replace(home / name)


def _pattern(glob: str) -> re.Pattern[str]:
    """Return what the files match that a glob names, or that lie in a folder that it names.

    >>> bool(_pattern("a/*.json").fullmatch("a/b.json"))
    True
    >>> bool(_pattern("a/*").fullmatch("a/folder/b.json"))
    True
    >>> bool(_pattern("a/*.json").fullmatch("a/folder/b.json"))
    False
    """
    parts = (
        re.escape(one).replace(r"\*", "[^/]*").replace(r"\?", "[^/]") for one in glob.split("/")
    )
    return re.compile("/".join(parts) + "(/.*)?", re.DOTALL)


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        raise FetchError("git, which fetches it, is not installed") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").splitlines()
        fatal = next((line for line in said if "fatal: " in line), f"exit {done.returncode}")
        raise FetchError(f"git: {fatal.partition('fatal: ')[2] or fatal}")
    return done.stdout.decode("utf-8", "surrogateescape")


def _unpacked(archive: Path) -> None:
    """Unpack regular files beside an archive, and none that would lie elsewhere."""
    beside = archive.parent.resolve()
    with tarfile.open(archive) as packed:
        for member in packed:
            target = (beside / member.name).resolve()
            if member.isfile() and target.is_relative_to(beside):
                target.parent.mkdir(parents=True, exist_ok=True)
                source = packed.extractfile(member)
                if source is not None:
                    target.write_bytes(source.read())
