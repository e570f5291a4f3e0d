"""`./check` runs some cases of each test, the same in all of its processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from full import sampled


class Item(SimpleNamespace):
    __hash__ = object.__hash__


def items(module, *tests):
    """Return what pytest collects of a module: tests by name and number of cases (0: no parameter)."""
    return [
        Item(
            nodeid=f"tests/{module}.py::{name}" + (f"[{case}]" if cases else ""),
            path=Path(f"{module}.py"),
        )
        for name, cases in tests
        for case in range(cases or 1)
    ]


def test_every_test_has_its_turn_and_two_cases_at_most():
    kept = sampled(items("test_rates", ("test_alone", 0), ("test_pair", 2), ("test_many", 9)))
    names = [item.nodeid.partition("[")[0].rpartition("::")[2] for item in kept]
    assert sorted(names) == ["test_alone"] + ["test_many"] * 2 + ["test_pair"] * 2


def test_the_cases_are_the_same_in_every_process():
    collected = [items("test_rates", ("test_many", 9)) for _ in range(2)]
    first, second = ({item.nodeid for item in sampled(of)} for of in collected)
    assert first == second


def test_long_modules_are_left_out():
    assert not sampled(items("test_view_area", ("test_pixels", 3)))
    assert sampled(items("test_view", ("test_pixels", 3)))
