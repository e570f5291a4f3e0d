"""Refusing, before a task runs, what would make its recording unreadable."""

from __future__ import annotations

import operator
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bubblescope.model.errors import RecorderError
from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import KIND_CODES, LANE_CODES, NO_PAIR, PAIR, PAIRED, pack_identity
from bubblescope.recording.rows import KINDS, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.model.kinds import Lane

_LAST: Final = np.iinfo(np.int32).max
_LAST_CHUNK: Final = np.iinfo(np.int16).max
"""The largest numbers that the columns of a recording hold."""


def checked_identity(
    kind: int,
    lane: int,
    stage: int | None,
    chunk: int | None,
    microbatch: int | None,
    peer: int | None,
    pair: Sequence[int | None] | None,
) -> bytes:
    """Return a task's place, packed.

    Args:
        kind: Code of what it does.
        lane: Code of where it runs.
        stage: Global virtual stage.
        chunk: Model chunk on its rank.
        microbatch: Micro-batch within the step.
        peer: Other rank of a send or receive.
        pair: Stage, chunk and micro-batch of the backward that it is overlapped with.

    Raises:
        RecorderError: A number is not one, or there is a pair that may not be.
    """
    paired = NO_PAIR if pair is None else _checked_pair(kind, pair)
    try:
        # Of numbers joined by "or", the sign is negative if any is.
        joined = (stage or 0) | (chunk or 0) | (microbatch or 0) | (peer or 0)
        if joined >= 0 and (chunk or 0) <= _LAST_CHUNK:
            return pack_identity(
                UNKNOWN if stage is None else stage,
                UNKNOWN if chunk is None else chunk,
                UNKNOWN if microbatch is None else microbatch,
                UNKNOWN if peer is None else peer,
                *paired,
                kind,
                lane,
            )
    except (TypeError, struct.error):
        pass  # one of them is no whole number, or too large: the slow way says which
    numbers = {"stage": stage, "chunk": chunk, "microbatch": microbatch, "peer": peer}
    return pack_identity(
        *(_number(what, value) for what, value in numbers.items()), *paired, kind, lane
    )


def _checked_pair(kind: int, pair: Sequence[int | None]) -> tuple[int, ...]:
    if kind != PAIRED:
        raise RecorderError(
            f"only a forward_backward task has a pair, and this is of the kind {KINDS[kind].value}",
        )
    if len(pair) != len(PAIR):
        raise RecorderError(f"a pair is its stage, chunk and micro-batch, not {pair!r}")
    return tuple(_number(what, value) for what, value in zip(PAIR, pair, strict=True))


def kind_code(kind: Kind | str) -> int:
    """Return the number of a kind.

    Raises:
        RecorderError: There is no such kind.
    """
    try:
        return KIND_CODES[kind]
    except (KeyError, TypeError):
        kinds = ", ".join(known.value for known in Kind)
        raise RecorderError(f"{kind!r} is not a task kind; use one of {kinds}") from None


def lane_code(lane: Lane | str) -> int:
    """Return the number of a lane.

    Raises:
        RecorderError: There is no such lane.
    """
    try:
        return LANE_CODES[lane]
    except (KeyError, TypeError):
        raise RecorderError(f"{lane!r} is not a lane; use compute, comm or host") from None


def _number(what: str, value: Any) -> int:
    """Return a number as it stands in a row; see `whole`."""
    return UNKNOWN if value is None else whole(what, value)


def optional(what: str, value: Any) -> int | None:
    """Return a number as an int, or None; see `whole`."""
    return None if value is None else whole(what, value)


def whole(what: str, value: Any) -> int:
    """Return a number as an int.

    Raises:
        RecorderError: It is not a whole number, negative, or out of the range of its column.
    """
    limit = _LAST_CHUNK if what.endswith("chunk") else _LAST
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number <= limit:
        raise RecorderError(f"{what} must be a whole number from 0 to {limit}, not {value!r}")
    return number
