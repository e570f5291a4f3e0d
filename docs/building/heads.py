"""The words at the heads of the pages that are written from the code."""

from __future__ import annotations

from typing import Final

COMMANDS: Final = """# Commands

`PATH` is a trace file, a folder, several of them, or a glob pattern, all of one run. The format
is detected. `-h` or `--help` shows the same text as this page, and `bubblescope -V` shows the
version. [Exit codes](../report.md#exit-codes) are the same for all commands.
"""

COMMON_OPTIONS: Final = """
## Common options

Commands that read traces take these. Their helps list them in sections of their own.
"""

SCHEDULES: Final = """# Schedules

These are the schedules that `bubblescope schedules` lists. The letters mean: p devices, m
micro-batches, v chunks on a device; `f`, `b`, `w` the lengths of a forward, an input gradient and
a weight gradient; `fb` the length of an overlapped pair; `i` the device, from 0; `Mw` the share of
the activations that a weight gradient needs. *bubble* is the idle time of a device in a step.
*memory* is the most activations that a device holds, in micro-batches of a p-th of the model.
[Schedules](../schedules.md) explains how to use them.

"""

READ: Final = """# Formats

## Read

The format of a file is detected; `--source` states it. Each format has a page among the guides.

"""

WRITTEN: Final = """
## Written

`bubblescope export` ([exports](../exports.md)), `simulate` and `Trace.export` write these formats.
[Files](files.md) describes the formats that bubblescope itself defines.

"""

FILES: Final = """# Files

These are the formats that bubblescope defines itself. Times are integer nanoseconds; `null` means
"not known". Columns and keys may be added; none is renamed or given another meaning while the
version stays.

## Recording: `rankNNNNN.bubbles`

"""

TIMELINE: Final = """
## Timeline: `.bubbles.parquet`

A Parquet file with the table of tasks. The other tables and the facts about the run are in its
metadata. `bubblescope.load` returns an equal timeline. The columns are those of [the
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

There is a line for each device and a cell for each operation, as PyTorch's
`_PipelineScheduleRuntime` reads and writes it ([schedules](../schedules.md)).
"""

PYTHON: Final = """# Python

[In Python](../python.md) explains how to use these functions.
"""

JSON: Final = """# JSON

Commands print this JSON with `--json`; in Python, `to_json()` returns it. `schema` names its
version: while it stays, keys may be added, and none is renamed, removed or given another meaning.
Times are integer nanoseconds. Times since the Unix epoch exceed 2⁵³, so read them with a parser
that keeps integers. The types on this page are those of the answers to the project's example
traces; each is also available as a JSON Schema. The guide of each command explains its keys.
"""
