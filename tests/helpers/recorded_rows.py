"""Tasks as a recording's writer has them, from columns."""

from __future__ import annotations

import re
import zlib

import numpy as np

from bubblescope.model.kinds import Kind, Lane
from bubblescope.recording.arrow import END, message_length
from bubblescope.recording.rows import FIELDS, KINDS, LANES, TIMES, UNKNOWN, Rows


def recorded(count, *, kind="forward", lane="compute", name=None, **columns):
    """Return so many tasks; each column is a number for all of them, or one for each.

    Kind, lane and name are one for all of them, or one for each. What is left out is null; the host's
    times are the device's.
    """

    def each(value):
        return [value] * count if value is None or isinstance(value, str) else list(value)

    def column(field, default):
        values = columns.get(field)
        return np.broadcast_to(default if values is None else np.asarray(values), count)

    times = [column(field, column(field.removeprefix("host_"), 0)) for field in TIMES]
    return Rows(
        fields=np.array([column(field, UNKNOWN) for field in FIELDS], np.int32),
        kind=np.array([KINDS.index(Kind(one)) for one in each(kind)], np.int32),
        lane=np.array([LANES.index(Lane(one)) for one in each(lane)], np.int32),
        times=np.array(times, np.int64),
        names=each(name),
    )


def batches(data):
    """Return where the record batches of a stream begin and end."""
    begin = message_length(data, 0)
    found = []
    while begin < len(data) and data[begin : begin + len(END)] != END:
        end = begin + message_length(data, begin)
        found.append((begin, end))
        begin = end
    return found


def sealed(data):
    """Return a stream with the checksums of what it now holds, as if that had been written."""
    made = bytearray(data)
    for begin, end in batches(data):
        key = data.index(b"crc32", begin, end)
        found = re.compile(rb"[0-9a-f]{8}").search(data, key - 40, key + 40)
        made[slice(*found.span())] = b"00000000"
        made[slice(*found.span())] = b"%08x" % zlib.crc32(made[begin:end])
    return bytes(made)
