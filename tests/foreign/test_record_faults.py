"""Faults put into recorded jobs of torch.distributed.pipelining: each is what `why` says first."""

from __future__ import annotations

import pytest

import faults
from full import needs

needs("torch")


@pytest.mark.parametrize("kind", faults.FAULTS)
def test_a_fault_is_named_first_on_its_rank_with_its_size(kind, tmp_path):
    fault = faults.Fault.drawn(kind, 1)
    faults.run(fault, tmp_path / "job")
    found = faults.judged(fault, tmp_path / "job")
    assert found.right, f"{fault}: {found}"
