"""From device work to the call that launched it, against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope.model.device_time import NONE, lookup

DENSE, SPARSE = st.integers(-5, 20), st.integers(-(2**63), 2**63 - 1)
LAST = st.lists(st.integers(2**63 - 5, 2**63 - 1)) | st.lists(st.integers(-(2**63), -(2**63) + 5))


@given(
    st.lists(DENSE) | st.lists(SPARSE) | st.lists(st.sampled_from([0, 7, 10**9, 2**62])) | LAST,
    st.lists(DENSE | SPARSE),
    st.randoms(),
)
def test_an_id_is_found_where_it_was_used_last_in_any_order(keys, others, chance):
    wanted = [*keys, *others]
    chance.shuffle(wanted)
    last = {key: place for place, key in enumerate(keys)}
    found = lookup(np.array(keys, np.int64), np.array(wanted, np.int64))
    assert found.tolist() == [last.get(key, NONE) for key in wanted]


@pytest.mark.parametrize("keys", [[3, 1, 2], [10**12, 5, 10**9, 7]], ids=["dense", "sparse"])
def test_ids_need_not_be_in_order(keys):
    assert lookup(np.array(keys), np.array(keys[::-1])).tolist() == [*range(len(keys))][::-1]


@pytest.mark.parametrize("far", [0, 2**40], ids=["dense", "sparse"])
def test_of_an_id_used_twice_the_last_is_found(far):
    keys = np.array([1, 2, 1, far])
    assert lookup(keys, np.array([1, 2, 3])).tolist() == [2, 1, NONE]
