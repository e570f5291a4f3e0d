"""`bubblescope schedules`."""

from __future__ import annotations

import click
from rich.text import Text

from bubblescope.cli.console import out, print_json
from bubblescope.schedules import SCHEDULES


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def schedules(as_json: bool) -> None:
    """List the schedules with their formulas and where they were published.

    Bubble: idle time of a device in a step, without transfers. Memory: most activations on device
    i, in micro-batches of a p-th of the model. p devices, m micro-batches, v chunks; f, b, w: times
    of forward, input gradient and weight gradient; fb of an overlapped pair; Mw: share of the
    activations that a weight gradient needs.
    """
    if as_json:
        said = [
            {name: getattr(one, name) for name in one.__struct_fields__ if name != "make"}
            for one in SCHEDULES.values()
        ]
        print_json(said)
        return
    for one in SCHEDULES.values():
        chunks = "" if one.chunks == "1" else f"  {one.chunks} chunks on a device"
        out.print(Text.assemble((one.name, "bold"), f"  {one.title}", (chunks, "dim")))
        if one.bubble:
            exact = {"": "approximate", "True": "exact"}.get(one.exact, f"exact if {one.exact}")
            out.print(
                Text.assemble("  bubble  ", one.bubble, (f"  of the {one.over}, {exact}", "dim"))
            )
        if one.memory:
            out.print(Text.assemble("  memory  ", one.memory))
        out.print(Text(f"  {one.source}", "dim"), soft_wrap=True)
