"""How Polars' allocator is set: as we say, unless a user says otherwise, whoever asked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bubblescope.model.memory import ALLOCATOR, allocator_options

POLARS = "dirty_decay_ms:500,muzzy_decay_ms:1000"  # what Polars 1.38 writes when it is imported


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("", "narenas:1,muzzy_decay_ms:0"),
        (POLARS, "narenas:1,muzzy_decay_ms:0"),
        (f"{POLARS},{POLARS},", "narenas:1,muzzy_decay_ms:0"),
        ("narenas:3", "narenas:1,muzzy_decay_ms:0,narenas:3"),
        (f"{POLARS},narenas:3", "narenas:1,muzzy_decay_ms:0,narenas:3"),
        (f"{POLARS},narenas:1,muzzy_decay_ms:0", "narenas:1,muzzy_decay_ms:0"),
    ],
)
def test_the_last_word_is_the_users(monkeypatch, said, options):
    monkeypatch.setenv(ALLOCATOR, said)
    assert allocator_options("narenas:1,muzzy_decay_ms:0") == options


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
    assert printed.stdout.strip() == f"{POLARS},narenas:1,dirty_decay_ms:100,muzzy_decay_ms:0"
