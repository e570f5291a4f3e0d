"""`bubblescope serve`."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any

import click

from bubblescope.cli.console import Bar, out, warn, warned
from bubblescope.cli.dataset_levels import levels_for
from bubblescope.cli.help_conventions import example
from bubblescope.cli.output_files import open_page, redirect
from bubblescope.cli.page_options import Wanted, asks_for_a_run_alone, paged
from bubblescope.cli.source_arguments import Repeatable
from bubblescope.render.html.data import PageData
from bubblescope.render.html.page_blocks.served import Blocks
from bubblescope.render.html.serve.server import Server


@click.command(cls=Repeatable, epilog=example("bubblescope serve traces --port 8000 --no-open"))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=0,
    help="Port; any free one if 0.",
)
@click.option("--open/--no-open", "show", default=True, help="Open it in a browser (default).")
@paged
def serve(paths: tuple[str, ...], port: int, show: bool, **options: Any) -> None:
    """Show the timeline of a run that is too large for one file.

    The page loads what is in sight from this process, which listens on this machine only, at an
    address that nobody can guess. Ends with Ctrl+C. With --kernels, it loads the kernels of ranks that
    are unfolded. With --against, it shows what differs in another run, as `bubblescope view` does.
    """
    quiet = options["quiet"]
    with contextlib.ExitStack() as while_serving:
        large = None
        if asks_for_a_run_alone(options):
            large = levels_for(paths, options, while_serving)
        run: PageData | Blocks
        if large is not None:
            run = Blocks(
                large.levels,
                title=options["title"],
                dataset=large.dataset,
                explain=large.explain,
            )
            warned(run.warnings, quiet=quiet)
        else:
            wanted = Wanted.of(paths, options)
            with Bar(quiet=quiet) as bar:
                shown = wanted.view(bar, kept=True)
                bar.begin("packing the page")
                run = PageData.of(shown, title=wanted.title, kernels=wanted.kernels)
            warn(wanted.timeline, quiet=quiet)
        _serve(run, port, while_serving, show=show)


def _serve(
    run: PageData | Blocks, port: int, meanwhile: contextlib.ExitStack, *, show: bool
) -> None:
    """Answer until told to end."""
    try:
        server = Server(run, port)
    except OSError as error:
        raise click.UsageError(
            f"port {port} cannot be listened on: {error.strerror}; leave --port out for a free one"
        ) from None
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # Ctrl+C too: the handler that Polars installs for it lets a wait go on.
        signal.signal(signal.SIGINT, lambda *_: ended.set())
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    # Written for programs too, which wait for it: not wrapped, and at once.
    click.echo(server.url)
    if show and not open_page(meanwhile.enter_context(redirect(server.url))):
        out.print("no browser here: open the address in one on this machine; Ctrl+C ends")
    ended.wait()
    server.stop()
