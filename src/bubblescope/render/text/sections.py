"""What printed reports are made of: titled sections, tables, and what is said of a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bubblescope.analysis import words
from bubblescope.analysis.schedule.candidates import GIVEN
from bubblescope.analysis.words.english import one
from bubblescope.model import units
from bubblescope.render.wording import whose_times

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rich.console import RenderableType

    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.model.provenance import Notice, Run
    from bubblescope.model.timeline import Timeline


def what_schedule(found: Recognition) -> Text:
    """Say which schedule it was, and what shape of pipeline."""
    said = Text()
    if found.schedule is not None:
        said.append(found.schedule, "bold")
        if found.variant:
            given = found.variant == GIVEN
            said.append(f" ({GIVEN})" if given else f" (variant: {found.variant})")
        if found.equals:
            others = [
                name
                if devices == found.devices
                else f"{name} if there are {units.count(devices, 'device')}"
                for name, devices in zip(found.equals, found.equal_devices, strict=True)
            ]
            said.append(f" (or {' or '.join(others)}: the same order here)")
        said.append(", ")
    backward = "split backward" if found.splits_backward else "whole backward"
    parts = [
        units.count(found.devices, "device"),
        units.count(found.microbatches, "micro-batch", "micro-batches")
        + (f" in each of {found.rounds} rounds" * (found.rounds > 1)),
        _placed(found.placement, found.chunks),
        backward + (", forwards and backwards overlapped" if found.overlaps else ""),
    ]
    if found.replicas > 1:
        parts.append(f"{found.replicas} replicas")
    if found.fused_ranks:
        parts.append(f"whole backwards on {units.listed('rank', found.fused_ranks)}")
    if found.missing_devices:
        parts.append(f"no trace of {units.listed('device', found.missing_devices)}")
    said.append(", ".join(parts))
    if found.schedule is not None:
        said.append(f" · confidence {units.percent(found.confidence)}", "dim")
    return said


def _placed(placement: str, chunks: int) -> str:
    """Say which stages a device holds."""
    if chunks == 1:
        return "two opposite copies" if placement == "mirrored" else "one stage each"
    return {
        "linear": f"one stage each of {chunks} chunks",
        "looped": f"stages in rounds of {chunks} chunks",
        "zigzag": f"stages in a V of {chunks} chunks",
        "mirrored": f"two opposite copies of {chunks} chunks",
    }[placement]


def inventory(timeline: Timeline, most: int | None = None) -> RenderableType:
    """Return what the raw traces hold, a line for each process, or else for each file; nothing of none.

    Args:
        timeline: The run.
        most: How many lines at most; all if None.
    """
    if not timeline.run.contents:
        return Group()
    lines = Table.grid(padding=(0, 2))
    for content in timeline.run.contents[:most]:
        known = content.process is not None
        devices = ", ".join(map(str, content.devices)) or ("none" if known else "")
        where = [content.host or ("unknown host" if known else ""), devices and f"device {devices}"]
        counts = one(", ".join(f"{number:,} {what}" for what, number in content.counts.items()))
        lines.add_row(
            Text(f"process {content.process}" if known else Path(content.path).name, no_wrap=True),
            Text(", ".join(filter(None, where)), "dim"),
            Text(counts or "nothing"),
        )
    return titled("What the traces hold", lines)


def bar_of(rate: float | None, width: int = 8) -> Text:
    """Return a bar of so many characters, of which the idle share is pale."""
    if rate is None:
        return Text()
    idle = round(rate * width)
    return Text.assemble(("█" * (width - idle), "blue"), ("░" * idle, "dim"))


_WORDS: Final = {
    "",
    "devices",
    "host",
    "kind",
    "operation",
    "pattern",
    "rank",
    "replica",
    "slowest type",
    "stage",
    "step",
    "trace",
}
"""Columns of words; those of other names hold numbers."""


def table_of(*names: str, left: Collection[str] = _WORDS) -> Table:
    """Return an empty table with columns of these names: words to the left, numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in names:
        # Where a line is too short, the name of a host gives way, and no number does.
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name != "host")
    return table


def narrow_table(*numbers: str) -> Table:
    """Return an empty table for long words, which may wrap, with columns of numbers before them."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def times_of(timeline: Timeline, language: str = "en") -> list[Text]:
    """Return the line that says that times are the host's, or may be; none if they are of devices."""
    said = whose_times(timeline, language)
    label = words.heading("whose_times", language)
    return [] if said is None else [Text.assemble((f"{label:<8} ", "yellow"), said)]


def warnings_of(notices: Iterable[Notice]) -> RenderableType:
    """Return what the reader must know, a line each."""
    return Group(*(Text.assemble(("warning  ", "yellow"), notice.message) for notice in notices))


def inferred_of(run: Run) -> RenderableType:
    """Return what no trace stated, and how it was inferred, and what else to know, a line each."""
    return Group(
        *(
            Text.assemble(("inferred  ", "cyan"), f"{field}: {how}")
            for field, how in run.inferred.items()
        ),
        *(Text.assemble(("note  ", "cyan"), notice.message) for notice in run.notes),
    )


def titled(title: str, body: RenderableType, about: str = "") -> RenderableType:
    """Put a title above something, and beside the title what that is about."""
    head = Text.assemble((title, "bold"), (f"  {about}" if about else "", "dim"))
    return Group(head, Padding(body, (0, 0, 1, 2)))
