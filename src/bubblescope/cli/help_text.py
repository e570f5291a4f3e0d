"""The help of commands, in the language of who reads them, and the option that chooses it."""
# ruff: noqa: RUF001  Chinese punctuation is what is meant

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from bubblescope.model import language

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_Command = TypeVar("_Command", bound="Callable[..., Any] | click.Command")

_ASKED: Final = "bubblescope.language"
_HELP: Final = "Language of reports, messages and help; by default the environment's (LANG)."
_WHOLE: Final = 10_000
"""Letters of a command's summary, which is not to be cut before it is translated."""
_EXTRA: Final = re.compile(r"(.*?)(?:  \[(.*)\])?", re.DOTALL)
"""What an option means, and what click adds to that."""


def asked() -> str | None:
    """Return the language that `--lang` names; None without it."""
    known: str | None = click.get_current_context().meta.get(_ASKED)
    return known


def _speak(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[_ASKED] = value
        language.use(value)


def lang_option() -> Callable[[_Command], _Command]:
    """Return the option that names the language of all that people are to read."""
    return click.option(
        "--lang",
        type=click.Choice(language.LANGUAGES),
        is_eager=True,
        expose_value=False,
        callback=_speak,
        help=_HELP,
    )


class HelpText(click.HelpFormatter):
    """Writes help; what is not English as wide as its letters are."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write how a command is called."""
        if prefix is None and language.current() != language.ENGLISH:
            prefix = language.translated("Usage:")
        super().write_usage(prog, args, prefix)

    def write_heading(self, heading: str) -> None:
        """Write what stands above a section."""
        if language.current() == language.ENGLISH:
            super().write_heading(heading)
        else:
            self.write(f"{' ' * self.current_indent}{language.translated(f'{heading}:')}\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs; the lines of one that begins with a backspace stay as they are."""
        if language.current() == language.ENGLISH:
            super().write_text(text)
            return
        said = []
        for paragraph in text.split("\n\n"):
            if paragraph.lstrip().startswith("\b"):
                lines = [language.translated(line) for line in paragraph.split("\n")[1:]]
            else:
                whole = language.translated(" ".join(paragraph.split()))
                lines = wrapped(whole, self.width - self.current_indent)
            said.append("".join(f"{' ' * self.current_indent}{line}\n" for line in lines))
        self.write("\n".join(said))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write names and what they mean, in two columns."""
        if language.current() == language.ENGLISH:
            super().write_dl(rows, col_max, col_spacing)
            return
        rows = list(rows)
        indent = " " * self.current_indent
        first = min(max(len(name) for name, _ in rows), col_max) + col_spacing
        room = max(self.width - first - self.current_indent - 2, 10)
        for name, meaning in rows:
            head, *more = wrapped(_meaning(meaning), room) or [""]
            if len(name) <= first - col_spacing:
                self.write(f"{indent}{name.ljust(first)}{head}\n")
            else:
                self.write(f"{indent}{name}\n{indent}{' ' * first}{head}\n")
            for line in more:
                self.write(f"{indent}{' ' * first}{line}\n")


class Spoken(click.Context):
    """What a command runs in whose help can be read in any language."""

    formatter_class = HelpText


class SpokenGroup(click.Group):
    """A command of several others."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, those that are not in English whole."""
        if language.current() == language.ENGLISH:
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, summary(one, _WHOLE)) for name, one in sorted(self.commands.items())]
            )


def spoken(command: click.Command) -> click.Command:
    """Return a command that takes `--lang`, wherever it stands on the line."""
    command.context_class = Spoken
    for one in command.commands.values() if isinstance(command, click.Group) else ():
        spoken(one)
    if not any("--lang" in one.opts for one in command.params):
        lang_option()(command)
    return command


def summary(command: click.Command, width: int) -> str:
    """Return what a command does, in one line of so many letters, or whole to be translated."""
    return command.get_short_help_str(width if language.current() == language.ENGLISH else _WHOLE)


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text, none of which takes more columns of a terminal than that."""
    from bubblescope.render.text.wide_letters import breaks  # noqa: PLC0415  slow, and English needs none

    ends = [0, *breaks(text, width), len(text)]
    return [text[start:end].strip() for start, end in pairwise(ends)]


def _meaning(text: str) -> str:
    found = _EXTRA.fullmatch(text)
    if found is None or found[2] is None:
        return language.translated(text)
    extra = "；".join(language.translated(part) for part in found[2].split("; "))
    return f"{language.translated(found[1])}  [{extra}]"
