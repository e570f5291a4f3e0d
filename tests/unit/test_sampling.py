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
    kept = sampled(items("test_rates", ("test_alone", 0), ("test_pair", 2), ("test_many", 9)), 2)
    names = [item.nodeid.partition("[")[0].rpartition("::")[2] for item in kept]
    assert sorted(names) == ["test_alone"] + ["test_many"] * 2 + ["test_pair"] * 2


def test_the_cases_are_the_same_in_every_process():
    collected = [items("test_rates", ("test_many", 9)) for _ in range(2)]
    first, second = ({item.nodeid for item in sampled(of)} for of in collected)
    assert first == second


def test_in_as_many_turns_as_a_test_has_cases_all_are_run():
    collected = items("test_rates", ("test_many", 9), ("test_two", 2))
    seen = [{item.nodeid for item in sampled(collected, 2, turn)} for turn in range(9)]
    assert {len(of) for of in seen} == {4}
    assert set().union(*seen) == {item.nodeid for item in collected}


def test_long_modules_are_left_out():
    assert not sampled(items("test_view_area", ("test_pixels", 3)), long=False)
    assert sampled(items("test_view_area", ("test_pixels", 3)), long=True)
    assert sampled(items("test_view", ("test_pixels", 3)), long=False)


def test_of_jobs_and_pages_fewer_cases_are_run():
    cases = ("test_many", 9)
    assert len(sampled(items("test_record_loop", cases), 5, long=True)) == 1
    assert len(sampled(items("test_rates", cases), 5, long=True)) == 5


def test_every_block_of_the_guides_is_run_where_long_tests_are():
    assert len(sampled(items("test_pages", ("test_blocks", 30)), 2, long=True)) == 30
