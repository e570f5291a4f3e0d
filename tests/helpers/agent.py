"""An agent without a mind: it follows the steps of the skill, and knows nothing but what tools return.

Each question is taken by its words to a step of `SKILL.md`; the answer is read off the JSON that the
tools of that step return. Of what cannot be known it says so, in the words of `cannot_answer`.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path


class RefusedError(Exception):
    """The sentence of an error that a tool returned."""


class Unknown(NamedTuple):
    """An answer that there is none."""

    reason: str
    would_tell: str | None


class Session:
    """What an agent sees of the server."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def tools(self) -> list[Any]:
        return (await self._client.list_tools()).tools

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self._client.call_tool(tool, arguments)
        if result.is_error:
            raise RefusedError(result.content[0].text)
        return result.structured_content


@asynccontextmanager
async def session(*folders: Path) -> AsyncIterator[Session]:
    """Start `bubblescope mcp` as a program does, and talk to it over its standard streams."""
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    arguments = ["-m", "bubblescope", "mcp", *map(str, folders)]
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    server = StdioServerParameters(command=sys.executable, args=arguments, env=kept)
    async with Client(stdio_client(server)) as client:
        yield Session(client)


class Agent:
    """Answers questions about runs.

    Args:
        session: The tools.
    """

    def __init__(self, session: Session) -> None:
        self._ask = session.call

    async def answer(self, question: str, *paths: Path) -> Any:
        """Answer a question about the traces at some paths, each of a run."""
        how = next(how for words, how in _STEPS.items() if re.search(words, question))
        runs = [(await self._ask("load", paths=[str(path)]))["run"] for path in paths]
        return await how(self, question, *runs)

    async def first_cause(self, _question: str, run: str) -> Any:
        """Step 3."""
        found = await self._ask("why", run=run)
        first = _first(found)
        return first["values"]["cause"] if first else _unknown(found)

    async def evidence(self, _question: str, run: str) -> Any:
        """Step 3: where, as the evidence after the first cause says."""
        found = await self._ask("why", run=run)
        at = found["findings"].index(_first(found))
        values = [one["values"] for one in found["findings"][at + 1 :]]
        return next(one for one in values if "rank" in one)

    async def which_host(self, question: str, run: str) -> Any:
        return (await self.evidence(question, run))["rank"]

    async def how_much_slower(self, question: str, run: str) -> Any:
        return (await self.slow_rank(question, run))["slow_share"]

    async def slow_rank(self, _question: str, run: str) -> Any:
        """Step 4, of slow ranks."""
        found = await self._ask("stragglers", run=run)
        return found["slow_rank"] or _unknown(found)

    async def which_rank(self, question: str, run: str) -> Any:
        return (await self.slow_rank(question, run))["rank"]

    async def device_or_layers(self, question: str, run: str) -> Any:
        found = await self.slow_rank(question, run)
        return found if isinstance(found, Unknown) else "device"

    async def _stages(self, run: str) -> list[dict[str, Any]]:
        """Step 4, of imbalance."""
        asked = {"where": {"kind": ["forward"]}, "group_by": ["stage"], "sort_by": "mean_ns"}
        return (await self._ask("tasks", run=run, **asked))["rows"]

    async def which_stage(self, _question: str, run: str) -> Any:
        return (await self._stages(run))[0]["stage"]

    async def stage_factor(self, _question: str, run: str) -> Any:
        rows = await self._stages(run)
        return rows[0]["mean_ns"] / rows[-1]["mean_ns"]

    async def schedule(self, _question: str, run: str) -> Any:
        """Step 2."""
        return (await self._ask("report", run=run))["schedule"]["schedule"]

    async def bubble(self, _question: str, run: str) -> Any:
        return (await self._ask("report", run=run))["bubble"]["overall"]["makespan"]

    async def longest_step(self, _question: str, run: str) -> Any:
        steps = (await self._ask("report", run=run))["bubble"]["per_step"]
        return max(steps, key=lambda one: one["makespan_ns"])["step"]

    async def longest_task(self, _question: str, run: str) -> Any:
        found = await self._ask("tasks", run=run, sort_by="length_ns", rows=1)
        return found["rows"][0]["microbatch"]

    async def predicted(self, question: str, run: str) -> Any:
        """Step 5."""
        changes = re.search(r"`(.*)`", question)[1]
        found = await self._ask("whatif", run=run, changes=changes)
        return found["predictions"][0]["predicted_ns"]

    async def advice(self, _question: str, run: str) -> Any:
        found = await self._ask("whatif", run=run)
        return found["predictions"][0]["change"]

    async def kernel(self, _question: str, run: str) -> Any:
        """Step 6."""
        found = await self._ask("kernels", run=run)
        return found["rows"][0]["name"] if "rows" in found else _unknown(found)

    async def changed(self, _question: str, before: str, after: str) -> Any:
        """Step 7."""
        found = await self._ask("compare", before=before, after=after)
        if "cannot_answer" in found:
            return _unknown(found)
        step = next(one for one in found["changes"]["overall"] if one["name"] == "step")
        if not step["certain"]:
            return "not certain"
        return "slower" if step["difference"] > 0 else "faster"

    async def grown_stage(self, _question: str, before: str, after: str) -> Any:
        found = await self._ask("compare", before=before, after=after)
        stages = [one for one in found["changes"]["stage"] if one["certain"]]
        return max(stages, key=lambda one: one["difference"])["name"]

    async def gate(self, question: str, before: str, after: str) -> Any:
        condition = re.search(r"`(.*)`", question)[1]
        found = await self._ask("compare", before=before, after=after, conditions=[condition])
        return found["conditions"][0]["outcome"]


def _first(found: dict[str, Any]) -> dict[str, Any] | None:
    findings = found.get("findings", ())
    return next((one for one in findings if one["key"] in {"first", "first_hidden"}), None)


def _unknown(found: dict[str, Any]) -> Unknown:
    first = found["cannot_answer"][0]
    return Unknown(first["reason"], first["would_tell"])


_STEPS: dict[str, Callable[..., Awaitable[Any]]] = {
    "first cause": Agent.first_cause,
    "On which rank does the host": Agent.which_host,
    "Which rank is slow": Agent.which_rank,
    "How much slower": Agent.how_much_slower,
    "device or its layers": Agent.device_or_layers,
    "Which stage takes longest": Agent.which_stage,
    "How many times as long": Agent.stage_factor,
    "Which schedule": Agent.schedule,
    "What is the bubble rate": Agent.bubble,
    "Which step": Agent.longest_step,
    "Which micro-batch": Agent.longest_task,
    "What would a step take": Agent.predicted,
    "What would help most": Agent.advice,
    "Which kernel": Agent.kernel,
    "faster or slower": Agent.changed,
    "Which stage has grown": Agent.grown_stage,
    "Does the gate": Agent.gate,
}
"""What a question asks for, by its words, and the step of the skill that answers it."""
