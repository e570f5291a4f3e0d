"""Runs the command line: as a process of its own, as a user does, or in the test's."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from bubblescope import cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def started(*arguments: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a process. That takes a second; one test of each command does it."""
    command = [sys.executable, "-m", "bubblescope", *map(str, arguments)]
    environment = _environment(env)
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, env=environment
    )


def called(*arguments: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process: what `main` does with these arguments, in this folder."""
    command = ["bubblescope", *map(str, arguments)]
    printed, said = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    code: object = None
    with (
        _in(cwd),
        patch.dict(os.environ, _environment(env), clear=True),
        patch.multiple(sys, argv=command, stdout=printed, stderr=said),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        texts = []
        for stream in (printed, said):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    assert isinstance(code, int)
    return subprocess.CompletedProcess(command, code, *texts)


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    """Work in a folder."""
    before = os.getcwd()  # noqa: PTH109
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _environment(env: dict[str, str]) -> dict[str, str]:
    """Return the environment of a machine without a screen."""
    return {key: value for key, value in os.environ.items() if key != "DISPLAY"} | env
