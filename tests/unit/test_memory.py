"""How Polars' allocator is set: as we say, unless a user says otherwise, whoever asked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bubblescope.model.memory import ALLOCATOR, OF_COMMANDS, OF_WORKERS, allocator_options

POLARS = "dirty_decay_ms:500,muzzy_decay_ms:1000"  # what Polars 1.38 writes when it is imported


@pytest.mark.parametrize("ours", [OF_COMMANDS, OF_WORKERS])
@pytest.mark.parametrize("user", ["", "narenas:3"])
@pytest.mark.parametrize(
    "before",
    ["", POLARS, f"{POLARS},{POLARS}", OF_COMMANDS, f"{POLARS},{OF_COMMANDS}", OF_WORKERS],
)
def test_the_last_word_is_the_users(monkeypatch, ours, user, before):
    """Not that of a process which started this one, be it ours or another with Polars."""
    monkeypatch.setenv(ALLOCATOR, f"{before},{user}")
    assert allocator_options(ours) == ",".join(filter(None, [ours, user]))


@pytest.mark.parametrize("started_by", ["import ", "import polars, "])
def test_a_command_sets_it_alike_where_its_parent_has_polars(started_by):
    """Polars writes its own options into the environment, which processes inherit."""
    command = (
        "from bubblescope.cli import cli; cli.get_command(None, 'report');"
        f"import os; print(os.environ[{ALLOCATOR!r}])"
    )
    parent = f"{started_by}subprocess, sys; subprocess.run([sys.executable, '-c', {command!r}])"
    variables = {name: value for name, value in os.environ.items() if name != ALLOCATOR}
    printed = subprocess.run(
        [sys.executable, "-c", parent], env=variables, capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == f"{POLARS},{OF_COMMANDS}"
