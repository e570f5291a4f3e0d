"""What a job writes into its mstx marks: Python dictionaries as text, or plain names."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.model.bounds import UNDECODABLE
from bubblescope.model.kinds import Kind
from bubblescope.names.parsed import ParsedName

if TYPE_CHECKING:
    from bubblescope.names.parser import NameParser

_NAMES: Final = ("name", "msg", "message")
_MICROBATCH: Final = ("current_microbatch", "microbatch", "microbatch_id", "mb")
_CHUNK: Final = ("model_chunk_id", "vp_stage", "chunk", "chunk_id")


class Message(msgspec.Struct, frozen=True):
    """One mark's text, understood.

    Attributes:
        name: Its name, without the braces.
        said: The operation that it names, or None.
        output_layer: It is the output layer's own pass, which MindSpeed's DualPipeV runs apart.
    """

    name: str
    said: ParsedName | None
    output_layer: bool = False


def parse_message(text: str, names: NameParser) -> Message:
    """Understand a mark: first by the user's pattern, then by the words of Megatron and MindSpeed.

    Both spellings of overlap(p)ing are in use, and a weight gradient is a `WeightGradStore.pop`.
    """
    fields = _fields(text)
    name = str(next((fields[key] for key in _NAMES if key in fields), text))
    if parsed := names.parse(name):
        return Message(name, parsed[0])
    word = name.lower()
    microbatch, chunk = _number(fields, _MICROBATCH), _number(fields, _CHUNK)
    if microbatch is not None:
        name = f"{name} {microbatch}"
    if "weightgradstore" in word and "pop" in word:
        kind, splits = Kind.BACKWARD_WEIGHT, False
    elif "forward_backward" in word and "overlap" in word:
        kind, splits = Kind.FORWARD_BACKWARD, False
    elif "forward" in word:
        kind, splits = Kind.FORWARD, False
    elif "backward" in word:
        kind, splits = Kind.BACKWARD, True
    else:
        return Message(name, None)
    output_layer = kind is Kind.FORWARD and "no_model_graph" in word
    return Message(name, ParsedName(kind, microbatch, chunk, splits=splits), output_layer)


def _fields(text: str) -> dict[str, Any]:
    """Return the dictionary that a text is, as Python or as JSON; an empty one if it is none."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        try:
            found = msgspec.json.decode(text)
        except UNDECODABLE:
            return {}
    return found if isinstance(found, dict) else {}


def _number(fields: dict[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = fields.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
