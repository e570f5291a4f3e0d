"""MFU and HFU as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from bubblescope.analysis.mfu import CONVENTIONS
from bubblescope.model import units
from bubblescope.render.text.sections import titled

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bubblescope.analysis.efficiency import Efficiency


_TIMES: Final = " \N{MULTIPLICATION SIGN} "


def utilization_section(found: Efficiency | None) -> RenderableType:
    """Return MFU with its factors, HFU, and FLOPs per second; nothing if nothing tells FLOPs."""
    if found is None:
        return Group()
    grid = Table.grid(padding=(0, 2))
    if found.workload.flops is not None:
        grid.add_row(
            Text("MFU", "bold"), Text(units.percent(found.mfu).rjust(10), "bold"), _factors(found)
        )
        grid.add_row("", "", Text(CONVENTIONS[found.workload.convention or ""], "dim"))
    if found.executed_flops is not None:
        grid.add_row(
            "HFU", _least(units.percent(found.hfu), found.hfu), Text(_executed(found), "dim")
        )
    for speed, label, bound in (
        (found.flops_per_second, "of a device, by the model", False),
        (found.executed_per_second, "of a device, executed", True),
    ):
        shown = f"{(speed or 0) / 1e12:,.1f}"
        if speed is not None and not (bound and shown == "0.0"):  # at least nothing tells nothing
            grid.add_row("TFLOP/s", _least(shown, speed if bound else None), Text(label, "dim"))
    notes = [Text.assemble(("note  ", "yellow"), note) for note in found.notes]
    if found.impossible is not None:
        notes.insert(0, Text.assemble(("impossible  ", "bold red"), found.impossible))
    return titled("Utilization", Group(grid, Text(_of_what(found), "dim"), *notes), "")


def _least(shown: str, bound: float | None) -> str:
    """Write a number; one that is given as a lower bound with the sign for that."""
    return (f"≥ {shown}" if bound is not None else shown).rjust(10)


def _factors(found: Efficiency) -> Text:
    parts = []
    if found.compute_share is not None:
        parts.append(f"{units.percent(found.compute_share)} of the step computing")
    if found.compute_utilization is not None:
        parts.append(f"{units.percent(found.compute_utilization)} of the peak meanwhile")
    return Text("= " * (len(parts) > 1) + _TIMES.join(parts))


def _executed(found: Efficiency) -> str:
    said = "executed, by the shapes of operators: recomputation counts"
    if found.executed_ratio is not None:
        said += f"; {found.executed_ratio:.2f} times the model's"
    if count := found.unknown_operators:
        largest = found.operators.sort("unknown", "name", descending=[True, False])["name"][0]
        said += f"; {units.count(count, 'operator')} of unknown FLOPs, such as {largest}"
    return said


def _of_what(found: Efficiency) -> str:
    """Say what the figures are of: steps, devices, peak, model."""
    length = units.duration(found.step_ns)
    if found.steps is None:
        parts = [f"all of {length}"]
    else:
        parts = [f"{units.count(found.steps, 'step')} of {length}"]
    parts.append(units.count(found.devices, "device"))
    peak = found.peak
    if peak.device:
        parts.append(peak.device)
    if peak.flops is not None:
        how = "as given" if peak.precision is None else f"{peak.precision}, dense"
        parts.append(f"peak {peak.flops / 1e12:,.4g} TFLOP/s ({how})")
    said = found.workload
    if said.tokens is not None:
        parts.append(
            f"{said.model}, {said.tokens:,} tokens a step in sequences of {said.sequence_length:,}"
        )
    return " · ".join(parts)
