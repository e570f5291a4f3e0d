"""`bubblescope schedules`."""

from __future__ import annotations

import click
from rich.text import Text

from bubblescope.cli.console import out, print_json
from bubblescope.cli.help_conventions import example, json_option
from bubblescope.cli.option_types import SCHEDULE
from bubblescope.schedules import SCHEDULES


@click.command(epilog=example("bubblescope schedules zb-v 1f1b"))
@click.argument("names", nargs=-1, metavar="[NAME]...", type=SCHEDULE)
@json_option
def schedules(names: tuple[str, ...], as_json: bool) -> None:
    """List the known schedules with their formulas and sources.

    Bubble: idle time of a device in a step, without transfers. Memory: most activations on device
    i, in micro-batches of 1/p of the model. p devices, m micro-batches, v chunks; f, b, w: times
    of forward, input gradient and weight gradient; fb of an overlapped pair; Mw: share of the
    activations that a weight gradient needs.
    """
    listed = [SCHEDULES[name] for name in dict.fromkeys(names or SCHEDULES)]
    if as_json:
        said = [
            {name: getattr(one, name) for name in one.__struct_fields__ if name != "maker"}
            for one in listed
        ]
        print_json(said)
        return
    for one in listed:
        chunks = "" if one.chunks == "1" else f"  {one.chunks} chunks on a device"
        out.print(Text.assemble((one.name, "bold"), f"  {one.title}", (chunks, "dim")))
        if one.bubble:
            exact = {"": "approximate", "True": "exact"}.get(one.exact, f"exact if {one.exact}")
            out.print(
                Text.assemble(
                    ("  bubble  ", "none"),
                    one.bubble,
                    (f"  of the {one.over}", "dim"),
                    (f", {exact}", "dim"),
                )
            )
        if one.memory:
            out.print(Text.assemble(("  memory  ", "none"), one.memory))
        out.print(Text(f"  {one.source}", "dim"), soft_wrap=True)
