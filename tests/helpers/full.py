"""What only `./check --full` runs: what needs PyTorch or a framework, and more of many cases.

All cases are tried with `BUBBLESCOPE_FULL=all ./check --full`.
"""

from __future__ import annotations

import importlib
import os
import re
from importlib.util import find_spec
from zlib import crc32

import pytest

FULL = bool(os.environ.get("BUBBLESCOPE_FULL"))
"""Whether everything is to run. What is needed for it is then installed, or the test fails."""

ALL_CASES = os.environ.get("BUBBLESCOPE_FULL") == "all"
"""Whether all cases of all tests are tried, and more examples of properties."""

TURN = int(os.environ.get("BUBBLESCOPE_TURN", "0"))
"""Which cases are tried where not all are: `./check` gives each day its own."""

NOT_PUBLISHED = {"dualpipe"}
"""Packages that no index has: tested where somebody has installed them."""


def needs(package):
    """Skip the test, or the module, that needs a large package, unless everything is to run.

    It is not imported here: most tests use it in processes of their own.
    """
    if not FULL:
        pytest.skip("./check --full runs it", allow_module_level=True)
    if find_spec(package) is None:
        if package in NOT_PUBLISHED:
            pytest.skip(f"{package} is not installed", allow_module_level=True)
        pytest.fail(f"{package} is not installed: pip install 'bubblescope[full]'")


def module(name):
    """Return a module of a large package, or skip the test that needs it."""
    needs(name.partition(".")[0])
    return importlib.import_module(name)


def examples(most):
    """Return how many examples of a property to try, of so many at most."""
    if ALL_CASES:
        return most
    return max(10, most // 3) if FULL else max(5, most // 10)


LONG = re.compile(
    "test_(view_.*|pages|hostile|demo|dataset|recordings|fuzz|kineto_damage|compare_device"
    "|exports_chrome|exports_kernels)"
)
"""Modules that only `./check --full` runs: the page in browsers but for `test_view`, the viewers
of others, random damage, the commands of every guide, and jobs that take their time."""

COSTLY = re.compile(
    "test_(view_.*|record_.*|dataset|hostile|exports_chrome|bounds|markless|recorded_jobs|engine_.*)"
)
"""Modules whose cases take seconds each, for they start jobs or open pages: fewer of them are run."""

WHOLE = re.compile("test_(pages|language)")
"""Modules of which `./check --full` runs every case: each is a text or a block of code for people."""

MOST = 5 if FULL else 2
"""Of a test with more cases than this so many are run."""

FEW = 1
"""The same in the modules of `COSTLY`."""


def sampled(items, most=MOST, turn=TURN, *, long=FULL):
    """Return the tests that `./check` runs, as a set.

    Which cases of a test they are depends on its name and the turn alone: every process of a run has to
    choose the same, and each format, which many tests share, has its turn in one test or another.

    Args:
        items: All tests.
        most: How many cases of a test, but for those of `COSTLY` modules.
        turn: Which of them.
        long: Whether those of `LONG` modules are among them.
    """
    cases = {}
    for item in items:
        if long or not LONG.fullmatch(item.path.stem):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = set()
    for name, of in cases.items():
        first = crc32(name.encode()) + turn
        some = min(most, FEW) if COSTLY.fullmatch(of[0].path.stem) else most
        if long and WHOLE.fullmatch(of[0].path.stem):
            some = len(of)
        kept.update(of[(first + len(of) * nth // some) % len(of)] for nth in range(some))
    return kept
