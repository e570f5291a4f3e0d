"""The schemas of what commands print as JSON, from what they print of the project's example traces."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from click.testing import CliRunner

from bubblescope.cli import cli

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_TRACES: Final = ("traces/nsight", "traces/paddle", "traces/ascend", "demo/zb-h1")
_ASKED: Final = {
    "report": [[f"examples/{one}"] for one in _TRACES],
    "info": [[f"examples/{one}"] for one in _TRACES],
    "why": [[f"examples/{one}"] for one in _TRACES] + [["examples/demo/1f1b", "--all"]],
    "whatif": [[f"examples/{one}"] for one in _TRACES],
    "stragglers": [[f"examples/{one}"] for one in _TRACES],
    "kernels": [
        ["examples/traces/nsight"],
        ["examples/traces/nsight", "--like", "examples/traces/nsight"],
    ],
    "compare": [
        ["examples/demo/1f1b", "examples/demo/zb-h1", "--fail-if", "step > +500%"],
        ["examples/traces/nsight", "examples/traces/nsight"],
    ],
    "simulate": [
        ["--compare", "1f1b,zb-h1", "--stages", "4", "--microbatches", "8", "-o", os.devnull]
    ],
}
"""The questions whose answers are looked at, by command."""

GUIDES: Final = {
    "report": "report.md#the-json-bubblescopereport1",
    "info": "report.md",
    "why": "why.md",
    "whatif": "why.md#what-if",
    "stragglers": "stragglers.md",
    "kernels": "kernels.md",
    "compare": "compare.md",
    "simulate": "schedules.md",
}
"""The page that says what the keys mean."""

_KEYED: Final = frozenset({"inferred", "definitions", "unknown", "values", "order"})
"""Objects whose keys are data."""

_UNSEEN: Final = {
    "backend": "string",
    "certainty": "number",
    "collectives": "array",
    "description": "string",
    "device_name": "string",
    "edp": "integer",
    "ep": "integer",
    "etp": "integer",
    "late_ranks": "array",
    "late_together": "object",
    "late_together_unknown": "string",
    "lost": "integer",
    "name": "string",
    "offset_ns": "integer",
    "order.*": "string",
    "pair_chunk": "integer",
    "pair_microbatch": "integer",
    "pair_stage": "integer",
    "pattern": "string",
    "peer": "integer",
    "persistence": "number",
    "pp": "integer",
    "problem": "string",
    "rank": "integer",
    "reason": "string",
    "recorded_by": "string",
    "replayed_steps": "array",
    "replicas": "array",
    "role": "string",
    "sequence_length_correlation": "number",
    "slow_rank": "object",
    "slow_share": "number",
    "span": "string",
    "step_ns": "integer",
    "then": "string",
    "total": "integer",
    "utilization": "object",
}
"""Types of keys that are null in the answers about all examples, such as the names of real devices."""


def answers(root: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what each command prints of the example traces.

    Args:
        root: The project.
    """
    for command, questions in _ASKED.items():
        for question in questions:
            words = [
                str(root / word) if word.startswith("examples/") else word for word in question
            ]
            done = CliRunner().invoke(cli, [command, *words, "--json"], catch_exceptions=False)
            yield command, json.loads(done.stdout)


def of_examples(root: Path) -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of each command's answers."""
    found: dict[str, list[Any]] = {}
    for command, answer in answers(root):
        found.setdefault(command, []).append(answer)
    schemas = {}
    for command, values in found.items():
        schema = _schema(values)
        schema["properties"]["schema"] = {"const": values[0]["schema"]}
        schemas[command] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return schemas


def _schema(values: list[Any], key: str = "") -> dict[str, Any]:
    """Return a schema that all of some values meet."""
    kinds = {_kind(value) for value in values}
    if kinds <= {"null"} and key in _UNSEEN:
        kinds.add(_UNSEEN[key])
    if "integer" in kinds and "number" in kinds:
        kinds.remove("integer")
    schema: dict[str, Any] = {}
    if kinds:
        schema["type"] = min(kinds) if len(kinds) == 1 else sorted(kinds)
    objects = [value for value in values if isinstance(value, dict)]
    lists = [one for value in values if isinstance(value, list) for one in value]
    if objects and key in _KEYED:
        schema["additionalProperties"] = _schema(
            [one for value in objects for one in value.values()], f"{key}.*"
        )
    elif objects:
        names = list(dict.fromkeys(name for value in objects for name in value))
        schema["properties"] = {
            name: _schema([value[name] for value in objects if name in value], name)
            for name in names
        }
        schema["required"] = [name for name in names if all(name in value for value in objects)]
    if lists:
        schema["items"] = _schema(lists)
    return schema


def _kind(value: Any) -> str:
    for kind, name in (
        (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"),
        (list, "array"), (dict, "object"),
    ):  # fmt: skip
        if isinstance(value, kind):
            return name
    return "null"


def paths(schema: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Yield every key below a schema with its type, written like `ranks[].rank`."""
    for name, below in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield path, _written(below)
        yield from _below(below, path)


def _below(schema: dict[str, Any], path: str) -> Iterable[tuple[str, str]]:
    if "properties" in schema:
        yield from paths(schema, f"{path}.")
    if "additionalProperties" in schema:
        yield f"{path}.*", _written(schema["additionalProperties"])
    if "items" in schema:
        yield from _below(schema["items"], f"{path}[]")


def _written(schema: dict[str, Any]) -> str:
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "null")
    kinds = [kind] if isinstance(kind, str) else kind
    inner = _written(schema["items"]) if "items" in schema else ""
    return " or ".join(f"array of {inner}" if one == "array" and inner else one for one in kinds)
