"""Values that were worked out come back from their bytes as they were, or not at all."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl
import pytest

from bubblescope.model.stored_values import DamagedError, decoded, encoded


class Pair(NamedTuple):
    one: object
    other: object


class Record(msgspec.Struct, frozen=True):
    name: str
    held: object = None


class Other(NamedTuple):
    one: object


KINDS = (Pair, Record)
FRAME = pl.DataFrame(
    {
        "rank": pl.Series([1, None], dtype=pl.Int32),
        "kind": pl.Series(["forward", "b"], dtype=pl.Enum(["forward", "b"])),
        "stages": [[1, 2], []],
        "host": ["ü", None],
    }
)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [True, 1, -(2**62), 1.5, "ü", (), []],
        {(1, 2): frozenset({(3, 4)}), None: {"a": [1]}},
        Pair(Record("a", (Pair(1, None),)), Record("b")),
    ],
)
def test_plain_values_come_back(value):
    again = decoded(encoded(value, KINDS), KINDS)
    assert again == value
    assert type(again) is type(value)


def test_tables_columns_and_arrays_come_back_with_their_types():
    array = np.array([[True, False]])
    value = Pair([FRAME, FRAME.clear()], (FRAME["kind"], array, np.float64(2.5), np.int64(3)))
    [whole, nothing], (column, again, number, count) = decoded(encoded(value, KINDS), KINDS)
    for frame, other in ((whole, FRAME), (nothing, FRAME.clear())):
        assert frame.equals(other, null_equal=True)
        assert frame.schema == other.schema
    assert column.equals(FRAME["kind"])
    assert (column.name, column.dtype) == ("kind", FRAME["kind"].dtype)
    assert (again == array).all()
    assert again.dtype == array.dtype
    assert (number, count) == (2.5, 3)


@pytest.mark.parametrize("value", [object(), {1, 2}, Other(1), Pair(object(), 1), pl.lit(1)])
def test_what_cannot_be_stored_is_refused(value):
    with pytest.raises(TypeError, match="cannot be stored"):
        encoded(value, KINDS)


def test_damaged_bytes_are_refused_wherever_the_damage_is():
    content = encoded(Pair(FRAME, "a" * 100), KINDS)
    assert decoded(content, KINDS).other == "a" * 100
    for at in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[at] ^= 1
        with pytest.raises(DamagedError, match="damaged"):
            decoded(bytes(damaged), KINDS)
    for short in (b"", content[:10], content[:-1]):
        with pytest.raises(DamagedError, match="damaged"):
            decoded(short, KINDS)


def test_records_of_another_version_are_refused():
    class Record(msgspec.Struct, frozen=True):
        name: str
        added: object = None

    content = encoded(Record("a"), [Record])
    assert decoded(content, [Record]) == Record("a")
    for kinds in (KINDS, ()):
        with pytest.raises(DamagedError, match="another version"):
            decoded(content, kinds)
