"""The tools as a server of the Model Context Protocol, on standard input and output."""

from __future__ import annotations

import inspect
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bubblescope.agents.runs import Runs
from bubblescope.agents.tools import Tools
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp.server.mcpserver import MCPServer


def skill() -> str:
    """Return how to use the tools, step by step: an Agent Skill."""
    return Path(__file__).with_name("SKILL.md").read_text("utf-8")


def serve(allowed: Sequence[Path] = ()) -> None:
    """Serve until the client goes away.

    Args:
        allowed: Folders below which traces may lie; without any, all that the user may read.

    Raises:
        BubblescopeError: The package `mcp` is not installed.
    """
    made(allowed).run("stdio")


def made(allowed: Sequence[Path] = ()) -> MCPServer[Any]:
    """Return the server; see `serve`."""
    try:
        from mcp.server.mcpserver import MCPServer  # noqa: PLC0415  nothing else needs it
        from mcp_types import ToolAnnotations  # noqa: PLC0415
    except ImportError:
        raise BubblescopeError(
            "the package mcp is not installed, or older than version 2; pip install 'bubblescope[mcp]'"
        ) from None
    server: MCPServer[Any] = MCPServer(
        "bubblescope",
        instructions=_without_front_matter(skill()),
        version=__version__,
        log_level="WARNING",
    )
    reads = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    for tool in Tools(Runs(allowed)).all():
        server.add_tool(_told(tool), annotations=reads)
    return server


def _told(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return a tool whose refusals reach the model as the sentences that they are."""
    from mcp.server.mcpserver.exceptions import ToolError  # noqa: PLC0415  as above

    @wraps(tool)
    def asked(**arguments: Any) -> dict[str, Any]:
        try:
            return tool(**arguments)
        except (BubblescopeError, ValueError) as error:
            raise ToolError(str(error)) from None

    asked.__signature__ = inspect.signature(tool, eval_str=True)  # type: ignore[attr-defined]
    asked.__doc__ = inspect.getdoc(tool)
    return asked


def _without_front_matter(text: str) -> str:
    return text.split("---\n", 2)[2].lstrip()
