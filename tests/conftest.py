"""Settings of all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from bubblescope.model import language
from bubblescope.record import job_log
from full import ALL_CASES, examples, sampled
from viewing import browser, opened

__all__ = ["browser", "opened"]

# Programs that tests run on a GPU.
collect_ignore = [
    "helpers/gpu",
    "helpers/stamped_jobs",
    "helpers/markless_job.py",
    "helpers/markless_megatron.py",
]

# Machines that run tests are busy: an example that takes long is no failure.
settings.register_profile(
    "tests",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(100),
)
settings.load_profile("tests")


@pytest.fixture(autouse=True)
def _english():
    """Forget the language that a command of a test before was asked for."""
    language.use(language.ENGLISH)


@pytest.fixture(autouse=True)
def _warnings_are_errors(monkeypatch):
    """Let a recorder's warning that no test expects be an error, which it is in no job."""

    def fail(said):
        raise RuntimeWarning(said)

    monkeypatch.setattr(job_log, "_print", fail)


def pytest_collection_modifyitems(config, items):
    """Choose some cases of tests that have many. Whoever names tests gets all that they name."""
    if ALL_CASES or config.option.keyword or config.args != config.getini("testpaths"):
        return
    kept = sampled(items)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
