"""The command line: a thin group of commands, each imported only when it is asked for.

Exit codes: 0 done; 1 a bug in bubblescope, or a condition of `compare --fail-if` holds; 2 the input or
the command cannot be used; 3 the traces were read but hold no pipeline tasks, or nothing was
recorded; 130 interrupted. `record` ends with the exit code of its job.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Final, NoReturn

import click
from click.shell_completion import get_completion_class
from rich.text import Text

import bubblescope
from bubblescope.console import err
from bubblescope.errors import BubblescopeError

_MODULES: Final = {
    "ascend": "ascend",
    "compare": "compare",
    "demo": "demo",
    "export": "view",
    "formats": "info",
    "info": "info",
    "names": "info",
    "paddle": "paddle",
    "record": "record",
    "report": "report",
    "schedules": "simulate",
    "serve": "serve",
    "simulate": "simulate",
    "stragglers": "stragglers",
    "view": "view",
    "watch": "watch",
    "whatif": "whatif",
    "why": "why",
}
"""Command -> module of `bubblescope.commands` that has it."""


class _Commands(click.Group):
    """The commands, imported one by one: all of them take longer than most of their work."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the alphabet."""
        return sorted({*super().list_commands(ctx), *_MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in _MODULES:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"bubblescope.commands.{_MODULES[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(bubblescope.__version__, prog_name="bubblescope")
def cli() -> None:
    """The profiler for pipeline-parallel training.

    PATH is a trace file, a folder, several of them, or a glob pattern, all of one run; the format
    is detected.
    """


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script: eval "$(bubblescope completion bash)"."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(cli, {}, "bubblescope", "_BUBBLESCOPE_COMPLETE").source())


def main() -> NoReturn:
    """Run the command line; the only place that turns errors into exit codes."""
    try:
        code = cli.main(
            prog_name="bubblescope", complete_var="_BUBBLESCOPE_COMPLETE", standalone_mode=False
        )
    except BubblescopeError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context else ""
        _fail(error.format_message() + hint, 2)
    except click.Abort:
        _fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    err.print(Text.assemble(("error  ", "bold red"), message), soft_wrap=True)
    sys.exit(code)
