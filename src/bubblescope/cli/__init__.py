"""The command line: a thin group of commands, each imported only when it is asked for.

Exit codes: 0 done; 1 a bug in bubblescope, or a condition of `compare --fail-if` holds; 2 the input or
the command cannot be used; 3 the traces were read but hold neither tasks nor work of a device, or
nothing was recorded; 130 interrupted. `record` ends with the exit code of its job.
"""

from __future__ import annotations

import sys
from typing import Final, NoReturn

import click
from click.shell_completion import get_completion_class
from rich.text import Text

from bubblescope.cli.console import Outlet, err
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.registry import Registry
from bubblescope.model.version import __version__

COMMANDS: Final[Registry[click.Command]] = Registry(
    "bubblescope.commands",
    {
        name: f"bubblescope.cli.{module}:{name}"
        for name, module in {
            "ascend": "ascend_chart",
            "compare": "compare",
            "demo": "demo",
            "export": "export",
            "formats": "formats",
            "info": "info",
            "kernels": "kernels",
            "names": "names",
            "paddle": "paddle_profile",
            "record": "record",
            "report": "report",
            "schedules": "schedules",
            "serve": "serve",
            "simulate": "simulate",
            "stragglers": "stragglers",
            "view": "view",
            "watch": "watch",
            "whatif": "whatif",
            "why": "why",
        }.items()
    },
)
"""The commands by name; another package adds one by an entry point that is a click command."""


class _Commands(click.Group):
    """The commands, imported one by one: all of them take longer than most of their work."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the alphabet."""
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        own = super().get_command(ctx, cmd_name)
        return own if own is not None or cmd_name not in COMMANDS else COMMANDS[cmd_name]


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="bubblescope")
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
    sys.stdout, sys.stderr = Outlet(sys.stdout), Outlet(sys.stderr)
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
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    err.print(Text.assemble(("error  ", "bold red"), message), soft_wrap=True)
    sys.exit(code)
