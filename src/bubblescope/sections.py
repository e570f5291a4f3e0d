"""What printed reports are made of: titled sections, tables, and what is said of a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bubblescope import units

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bubblescope.analysis.recognition import Recognition
    from bubblescope.timeline import Timeline

__all__ = ["bar_of", "facts", "inventory", "table_of", "titled", "what_schedule"]

_BAR: Final = 8


def what_schedule(found: Recognition) -> Text:
    """Say which schedule it was, and what shape of pipeline."""
    said = Text()
    if found.schedule is not None:
        said.append(found.schedule, "bold")
        if found.variant:
            said.append(f" ({found.variant})")
        if found.equals:
            said.append(f" (or {' or '.join(found.equals)}: the same order here)")
        said.append(", ")
    backward = "split backward" if found.splits_backward else "whole backward"
    parts = [
        units.count(found.devices, "device"),
        units.count(found.microbatches, "micro-batch", "micro-batches"),
        f"{_PLACEMENTS[found.placement]}" + (f" of {found.chunks} chunks" * (found.chunks > 1)),
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


_PLACEMENTS: Final = {
    "linear": "one stage each",
    "looped": "stages in rounds",
    "zigzag": "stages in a V",
    "mirrored": "two opposite copies",
}


def facts(timeline: Timeline) -> list[str]:
    """Return what a heading says of a timeline: schedule, ranks, steps, tasks and length."""
    hosts = timeline.ranks["host"].n_unique()
    counted = [
        units.count(timeline.ranks.height, "rank")
        + (f" on {units.count(hosts, 'host')}" if hosts > 1 else ""),
        units.count(len(timeline.steps), "step"),
        units.count(len(timeline), "task"),
        units.duration(timeline.duration_ns),
    ]
    return [timeline.run.schedule, *counted] if timeline.run.schedule else counted


def inventory(timeline: Timeline) -> RenderableType:
    """Return what the raw traces hold, a line for each process, or else for each file."""
    lines = Table.grid(padding=(0, 2))
    for content in timeline.run.contents:
        known = content.process is not None
        devices = ", ".join(map(str, content.devices)) or ("none" if known else "")
        where = [content.host or ("unknown host" if known else ""), devices and f"device {devices}"]
        counts = ", ".join(f"{number:,} {what}" for what, number in content.counts.items())
        lines.add_row(
            Text(f"process {content.process}" if known else Path(content.path).name, no_wrap=True),
            Text(", ".join(filter(None, where)), "dim"),
            Text(counts or "nothing"),
        )
    return titled("What the traces hold", lines)


def bar_of(rate: float | None) -> Text:
    """Return a bar of which the idle share is pale."""
    if rate is None:
        return Text()
    filled = round(rate * _BAR)
    return Text.assemble(("█" * (_BAR - filled), "blue"), ("░" * filled, "dim"))


def table_of(*names: str) -> Table:
    """Return an empty table with columns of these names: words to the left, numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    words = {"rank", "stage", "host", "trace", "kind", "devices", "", "step"}
    for name in names:
        table.add_column(name, justify="left" if name in words else "right", no_wrap=True)
    return table


def titled(
    title: str, table: RenderableType, total: int = 0, shown: int = 0, what: str = ""
) -> RenderableType:
    """Put a title above something, which says so if that is `shown` of `total` rows."""
    more = f"  the {shown} with the largest bubble of {total} {what}" if shown < total else ""
    head = Text.assemble((title, "bold"), (more, "dim"))
    return Group(head, Padding(table, (0, 0, 1, 2)))
