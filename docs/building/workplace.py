"""Runs the code blocks of a page, top to bottom, in a folder of their own, as a reader would."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from docs.building.pages import Block

WIDTH: Final = 88
"""Characters of a line that commands print on."""


class Workplace:
    """A folder in which blocks are run one after the other.

    Args:
        folder: An empty folder, or one with what the blocks need.
        root: The project, whose `bubblescope` runs; `examples` of it are linked into the folder.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder.resolve()
        tools = self.folder.parent / f"{self.folder.name}-tools"
        tools.mkdir(parents=True, exist_ok=True)
        command = tools / "bubblescope"
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m bubblescope "$@"\n')
        command.chmod(0o755)
        for name in ("python", "python3"):
            link = tools / name
            link.unlink(missing_ok=True)
            link.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
            link.chmod(0o755)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "examples").exists():
            shutil.copytree(root / "examples", self.folder / "examples")
        path = os.pathsep.join(filter(None, [str(root / "src"), os.environ.get("PYTHONPATH")]))
        self._environment = {
            **{key: value for key, value in os.environ.items() if key not in _SCREEN},
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": path,
            "COLUMNS": str(WIDTH),
            "LC_ALL": "C.UTF-8",
        }

    def run(self, block: Block) -> str:
        """Run a block; return what it prints.

        Raises:
            AssertionError: It fails.
        """
        program = ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else ["python", "-c"]
        done = subprocess.run(
            [*program, block.text],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(
                f"line {block.line}: exit code {done.returncode}\n{block.text}\n{done.stdout}"
            )
        return done.stdout


_SCREEN: Final = ("DISPLAY", "WAYLAND_DISPLAY")


def unprinted(shown: str, printed: str) -> str | None:
    r"""Return the first line that a page shows as output and that was not printed in this order.

    A line `...` stands for any lines; blanks at the ends of lines do not count.

    >>> unprinted("a\n...\nc\n", "a \nb\nc\n")
    >>> unprinted("a\nc\n", "a\nb\nc\n")
    'c'
    """
    lines = [line.rstrip() for line in printed.splitlines()]
    at, anywhere = 0, True
    for line in map(str.rstrip, shown.splitlines()):
        if line.strip() == "...":
            anywhere = True
            continue
        reach = len(lines) if anywhere else at + 1
        found = next(
            (place for place in range(at, min(reach, len(lines))) if lines[place] == line), None
        )
        if found is None:
            return line
        at, anywhere = found + 1, False
    return None
