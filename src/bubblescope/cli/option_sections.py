"""Helps in sections: what a command alone takes comes first, then what many commands take."""

from __future__ import annotations

from typing import Final

import click

READING: Final = "Reading the traces"
WORKERS: Final = "Workers (docs/scale.md)"
SECTIONS: Final = (READING, WORKERS)
"""Titles, in the order of the help."""


class SectionOption(click.Option):
    """An option that stands in a section of its own of the help.

    Attributes:
        section: The title of that section.
    """

    section: str

    def get_help_record(self, ctx: click.Context) -> None:
        """Return nothing for the section of all options."""

    def record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return how it is written and what it means."""
        return super().get_help_record(ctx)


class Sectioned(click.Command):
    """A command whose help has sections for the options that many commands take."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, and then those of each section, in the order in which they are added."""
        super().format_options(ctx, formatter)
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if isinstance(option, SectionOption) and (record := option.record(ctx)) is not None:
                sections.setdefault(option.section, []).append(record)
        for title in sorted(sections, key=SECTIONS.index):
            with formatter.section(title):
                formatter.write_dl(sections[title])


def in_section(title: str) -> type[SectionOption]:
    """Return the options of a section, as `click.option` takes them by `cls`.

    Args:
        title: One of those above.
    """
    return type("_Option", (SectionOption,), {"section": title})
