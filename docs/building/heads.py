"""The words at the heads of the pages that are written from the code."""

from __future__ import annotations

from typing import Final

COMMANDS: Final = """# Commands

`PATH` is a trace file, a folder, several of them, or a glob pattern, all of one run; the format
is detected. `-h` or `--help` shows the same as here; `bubblescope -V` shows the version. [Exit
codes](../report.md#exit-codes) are the same everywhere.
"""

SCHEDULES: Final = """# Schedules

What `bubblescope schedules` lists: p devices, m micro-batches, v chunks on a device; `f`, `b`,
`w` the lengths of a forward, an input gradient and a weight gradient; `fb` that of an overlapped
pair; `i` the device, from 0; `Mw` the share of the activations that a weight gradient needs.
*bubble* is the idle time of a device in a step, *memory* the most activations, in micro-batches
of a p-th of the model. How to use them is in [schedules](../schedules.md).

"""

READ: Final = """# Formats

## Read

The format of a file is detected; `--source` names it. Each has a page among the guides.

"""

WRITTEN: Final = """
## Written

By `bubblescope export` ([exports](../exports.md)), `simulate` and `Trace.export`. The formats
that bubblescope itself defines are described in [files](files.md).

"""

FILES: Final = """# Files

The formats that bubblescope defines itself. Times are integer nanoseconds; `null` is what is not
known. Columns and keys may be added; none is renamed or given another meaning while the version
stays.

## Recording: `rankNNNNN.bubbles`

"""

TIMELINE: Final = """
## Timeline: `.bubbles.parquet`

A Parquet file with the table of tasks; the other tables and what is known of the run are in its
metadata. `bubblescope.load` gives an equal timeline back. The columns are those of [the
model](../model.md):

### `tasks`

"""

OTHER_FILES: Final = """
## Timeline: `.json` and `.csv`

`bubblescope.timeline/1`: `schema`, `run`, `ranks[]`, `tasks[]`, and with `--kernels`
`activities[]`, with the columns above. The CSV has the columns of `tasks`, or with `--kernels`
those of `activities`.

## Names: `.toml`

Tables `[[names]]` with a `pattern` and `kinds` ([names of your
own](../nsight.md#names-of-your-own)), and `[passes]` ([correcting by
hand](../unmarked.md#correcting-by-hand)).

## Plan: `.csv`

A line for each device, a cell for each operation, as PyTorch's `_PipelineScheduleRuntime` reads
and writes it ([schedules](../schedules.md)).
"""

PYTHON: Final = """# Python

[In Python](../python.md) says how it is used.
"""

JSON: Final = """# JSON

What commands print with `--json`, and `to_json()` in Python. `schema` names its version: keys may
be added while it stays, and none is renamed, removed or given another meaning. Times are integer
nanoseconds; those since the Unix epoch exceed 2⁵³, so read them with a parser that keeps
integers. The types here are those of the answers to the project's example traces, and each is
also a JSON Schema. What the keys mean is in the guide of the command.
"""
