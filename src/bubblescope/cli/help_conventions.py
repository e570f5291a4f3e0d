"""What commands have in common in their help: options spelt alike, and an example at the end."""

from __future__ import annotations

import click

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, whose schema is versioned."
)
"""The option that prints an answer as JSON."""


def example(*lines: str) -> str:
    """Return what stands at the end of a command's help: how the command is used.

    Args:
        lines: Commands, as one types them.
    """
    title = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join(["\b", title, *(f"  {line}" for line in lines)])
