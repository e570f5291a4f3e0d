"""The command line: a thin group of commands, each imported only when it is asked for.

Exit codes: 0 done; 1 a bug in bubblescope, or a condition of `compare --fail-if` holds; 2 the input or
the command cannot be used; 3 the traces were read but hold neither tasks nor work of a device, or
nothing was recorded; 130 interrupted. `record` ends with the exit code of its job.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Final, NoReturn

import click
from click.shell_completion import CompletionItem, get_completion_class

from bubblescope.cli.closed_pipes import Outlet
from bubblescope.cli.help_conventions import example
from bubblescope.cli.help_text import Spoken, lang_option, spoken, summary
from bubblescope.model import language
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.machine import seldom_collect
from bubblescope.model.memory import ALLOCATOR, OF_COMMANDS, allocator_options, reuse
from bubblescope.model.registry import Registry
from bubblescope.model.version import __version__

_OURS: Final = {
    "ascend": ("ascend_chart", "Write what Ascend's own tools make of NPU profiles."),
    "compare": ("compare", "Show what changed between two runs, and whether it is noise."),
    "dataset": ("dataset", "Write a run of any size as Parquet that can be read in part."),
    "demo": ("demo", "Train a small pipeline here, record it, and show the result."),
    "export": ("export", "Write a run for another program, or as a picture or table."),
    "formats": ("formats", "List the formats that can be read and written."),
    "info": ("info", "Describe traces: format, hosts, ranks, steps, what was lost."),
    "kernels": ("kernels", "Print which kernels ran, how long, and what makes a rank slow."),
    "mcp": ("mcp", "Answer AI agents over the Model Context Protocol."),
    "names": ("names", "List the range names in a trace and what each is taken for."),
    "paddle": ("paddle_profile", "Write Paddle's pipeline_profile.json from its worker logs."),
    "record": ("record", "Record a training job as it is, without editing it."),
    "redact": ("redact", "Write a run that can be shared: names and paths replaced."),
    "report": ("report", "Print the bubble rates of a run, each with its definition."),
    "schedules": ("schedules", "List the known schedules with their formulas and sources."),
    "serve": ("serve", "Show the timeline of a run that is too large for one file."),
    "simulate": ("simulate", "Simulate a schedule and report on it as if it had run."),
    "stragglers": ("stragglers", "Measure what slow operations, stages and workers cost a job."),
    "view": ("view", "Write the interactive timeline as one HTML file, and open it."),
    "watch": ("watch", "Watch a job while it records: bubble rate, slowest stage."),
    "whatif": ("whatif", "Predict how long a step would take if something changed."),
    "why": ("why", "Explain why devices are idle, and what to do about it."),
}
"""Each command's module in this package, and the first sentence of its help.

So that what lists commands imports none of them.
"""

_START_JOBS: Final = frozenset({"demo", "record"})
"""Commands whose environment is that of a job, which is none of our business."""

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of a disk that has no more room, or none for one file or for somebody."""

GROUPS: Final = {
    "See what ran": ("view", "report", "kernels", "info", "names", "serve"),
    "Explain it": ("why", "stragglers", "compare"),
    "Improve it": ("whatif", "simulate", "schedules"),
    "Record a job": ("record", "watch", "demo"),
    "Convert and share": ("export", "dataset", "redact", "paddle", "ascend", "formats", "mcp"),
}
"""What people want, and the commands for it, most used first; others stand below, as more commands."""

COMMANDS: Final[Registry[click.Command]] = Registry(
    "bubblescope.commands",
    {name: f"bubblescope.cli.{module}:{name}" for name, (module, _) in _OURS.items()},
)
"""The commands by name; another package adds one by an entry point that is a click command."""


def _set_libraries() -> None:
    """Say how libraries do their work, before they are loaded; what the user says stands."""
    os.environ[ALLOCATOR] = allocator_options(OF_COMMANDS)
    # NumPy would start a thread for each core, and what is multiplied here is too little to gain by it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    reuse()


class _Commands(click.Group):
    """The commands, each imported only to be run: importing takes longer than most of their work."""

    context_class = Spoken

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the alphabet."""
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in _START_JOBS:
            _set_libraries()
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in COMMANDS:
            command = COMMANDS[cmd_name]
        return None if command is None else spoken(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, by what people want."""
        names = self.list_commands(ctx)
        longest = max(map(len, names))
        width = formatter.width - 6 - longest
        grouped = {name for group in GROUPS.values() for name in group}
        more = {"More commands": [name for name in names if name not in grouped]}
        for title, group in (GROUPS | more).items():
            with formatter.section(title):
                rows = [(name.ljust(longest), self._summary(ctx, name, width)) for name in group]
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin so."""
        own = [
            CompletionItem(name, help=self._summary(ctx, name, 80))
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return own + click.Command.shell_complete(self, ctx, incomplete)

    def _summary(self, ctx: click.Context, name: str, width: int) -> str:
        if name in _OURS:
            return summary(click.Command(name, help=_OURS[name][1]), width)
        command = self.get_command(ctx, name)
        return summary(command, width) if command else ""


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=example(
        "bubblescope view traces", "bubblescope why traces", "bubblescope COMMAND --help"
    ),
)
@click.version_option(__version__, "-V", "--version", prog_name="bubblescope")
@lang_option()
def cli() -> None:
    """The profiler for pipeline-parallel training.

    PATH is a trace file, a folder, several of them, or a glob pattern, all of one run; the format
    is detected.
    """


@cli.command(epilog=example('eval "$(bubblescope completion bash)"'))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands and options in a shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(cli, {}, "bubblescope", "_BUBBLESCOPE_COMPLETE").source())


def main() -> NoReturn:
    """Run the command line; the only place that turns errors into exit codes."""
    seldom_collect()
    sys.stdout, sys.stderr = Outlet(sys.stdout), Outlet(sys.stderr)
    language.use(language.of_environment(os.environ))
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
        _fail(" ".join(error.format_message().split()), 2, hint)  # click lists choices in lines
    except click.Abort:
        _fail("interrupted", 130)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        remedy = "; make room, or write to another place" if error.errno in _FULL else ""
        _fail(f"{where}{error.strerror or error}{remedy}", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int, hint: str = "") -> NoReturn:
    from rich.text import Text  # noqa: PLC0415  slow, and seldom needed

    from bubblescope.cli.console import err  # noqa: PLC0415  as above

    said = Text.assemble(("error  ", "bold red"), message, (hint, "none"))
    err.print(said, soft_wrap=True)
    sys.exit(code)
