"""Writes src/schema.ts: the page's data as TypeScript knows it, made of the Python that writes it.

Run `python viewer/schema.py` after a change of `bubblescope.render.html.schema`; a test tells when it
was forgotten.
"""

from __future__ import annotations

import builtins
import inspect
import types
import typing
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from bubblescope.render.html import schema

TARGET: Final = Path(__file__).parent / "src" / "schema.ts"

_WIDTH: Final = 118
_PLAIN: Final = {int: "number", float: "number", str: "string", bool: "boolean", type(None): "null"}


def typescript() -> str:
    """Return the text of schema.ts."""
    named = {name: value for name, value in vars(schema).items() if get_origin(value) is Literal}
    parts = [
        "// Made by viewer/schema.py of src/bubblescope/render/html/schema.py: change that, not this.",
        *(_alias(name, value) for name, value in named.items()),
        _table("COLUMNS", "Columns of each table, as they travel.", schema.TABLES),
    ]
    known = {value: name for name, value in named.items()}
    structs = [
        value
        for value in vars(schema).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct)
    ]
    return "\n\n".join([*parts, *(_interface(struct, known) for struct in structs)]) + "\n"


def _alias(name: str, value: Any) -> str:
    begin, members = f"export type {name} =", f" {_type(value, {})};"
    for line in (begin + members, f"{begin}\n {members}"):
        if len(line.splitlines()[-1]) <= _WIDTH:
            return line
    parts = "\n".join(f"  | {_quoted(one)}" for one in get_args(value))
    return f"{begin}\n{parts};"


def _table(name: str, meaning: str, columns: dict[str, tuple[str, ...]]) -> str:
    lines = []
    for table, of in columns.items():
        line = f"  {table}: [{', '.join(map(_quoted, of))}],"
        if len(line) > _WIDTH:
            line = "\n".join((f"  {table}: [", *(f"    {_quoted(one)}," for one in of), "  ],"))
        lines.append(line)
    return "\n".join((f"/** {meaning} */", f"export const {name} = {{", *lines, "} as const;"))


def _interface(struct: type[msgspec.Struct], known: dict[Any, str]) -> str:
    base = struct.__mro__[1]
    inherited = (
        {field.name for field in msgspec.structs.fields(base)}
        if base is not msgspec.Struct
        else set()
    )
    said, meanings = _documented(struct)
    hints = get_type_hints(struct)
    lines = []
    for field in msgspec.structs.fields(struct):
        if field.name in inherited:
            continue
        if field.name in meanings:
            lines.append(f"  /** {meanings[field.name]} */")
        optional = "" if field.required else "?"
        lines.append(f"  {field.encode_name}{optional}: {_type(hints[field.name], known)};")
    above = "" if base is msgspec.Struct else f" extends {base.__name__}"
    return "\n".join(
        (f"/** {said} */", f"export interface {struct.__name__}{above} {{", *lines, "}")
    )


def _documented(struct: type) -> tuple[str, dict[str, str]]:
    """Return what a docstring says of a struct, and of each of its attributes."""
    text, _, attributes = inspect.cleandoc(struct.__doc__ or "").partition("\n\nAttributes:\n")
    meanings: dict[str, str] = {}
    name = ""
    for line in attributes.splitlines():
        if line.startswith("        "):
            meanings[name] += f" {line.strip()}"
        elif line.strip():
            name, _, meaning = line.strip().partition(": ")
            meanings[name] = meaning
    return " ".join(text.split()), meanings


def _type(hint: Any, known: dict[Any, str]) -> str:
    of = [_type(one, known) for one in get_args(hint) if not isinstance(one, str)]
    match get_origin(hint):
        case _ if hint in known:
            return known[hint]
        case typing.Literal:
            text = " | ".join(map(_quoted, get_args(hint)))
        case typing.Union | types.UnionType:
            text = " | ".join(of)
        case builtins.list:
            text = f"({of[0]})[]" if " | " in of[0] else f"{of[0]}[]"
        case builtins.tuple:
            text = f"[{', '.join(of)}]"
        case builtins.dict:
            text = f"Record<{', '.join(of)}>"
        case _ if hint in _PLAIN:
            text = _PLAIN[hint]
        case _ if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            text = hint.__name__
        case _:
            raise TypeError(f"the viewer has no type for {hint}")
    return text


def _quoted(text: str) -> str:
    return f'"{text}"'


if __name__ == "__main__":
    TARGET.write_text(typescript(), encoding="utf-8")
