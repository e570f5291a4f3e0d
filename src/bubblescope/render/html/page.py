"""The interactive timeline: one HTML file with everything in it, which opens offline.

Tasks travel as compressed binary columns, so that a million of them make a small page that opens
quickly. The page may load nothing from anywhere: its policy allows just its own script and style.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.model import language
from bubblescope.model.files import replacing
from bubblescope.model.memory import give_back
from bubblescope.model.plain_text import inert_json, visible
from bubblescope.model.progress import SILENT
from bubblescope.render.html.data import Outline
from bubblescope.render.html.kernels import need_room
from bubblescope.render.html.packing import packed
from bubblescope.render.html.page_language import in_chinese

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bubblescope.analysis.view import View
    from bubblescope.model.progress import Progress
    from bubblescope.render.html.data import PageData
    from bubblescope.render.html.packing import Packed
    from bubblescope.render.html.schema import Head, TableName

_TAGS: Final = {"en": "en", "zh": "zh-CN"}
"""What HTML calls the languages that there are."""

_BEFORE: Final = """<!doctype html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="generator" content="bubblescope">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<script id="head" type="application/json">{head}</script>
<script id="chinese" type="application/json">{chinese}</script>
<script>{script}</script>
"""
_TABLE: Final = '<script id="{name}" type="application/octet-stream">'
_TABLE_END: Final = "</script>\n"
_AFTER: Final = """</body>
</html>
"""


def write(
    view: View,
    path: Path,
    *,
    title: str | None = None,
    kernels: bool = False,
    progress: Progress = SILENT,
) -> Path:
    """Write the page; the arguments are those of `render`, and `progress` is told that it is written.

    Of a large run the view is larger than the page, so it is let go once it is not needed: a caller
    that does not keep it takes less memory.
    """
    progress.begin(f"writing {path.name}")
    outline = _outline(view, title, kernels=kernels)
    del view
    give_back()
    held = [outline.with_tasks()]
    del outline
    give_back()
    with replacing(path) as partial, partial.open("wb") as file:
        for part in _parts(*_packed(held.pop())):  # which is then nobody else's
            file.write(part.encode())
    return path


def render(view: View, *, title: str | None = None, kernels: bool = False) -> str:
    """Return the page.

    Args:
        view: What to show.
        title: Heading; by default the names of the traces.
        kernels: Whether to show the kernels too, if the timeline has them.

    Raises:
        BubblescopeError: There are more kernels than a page can hold.
    """
    return page(*_packed(_outline(view, title, kernels=kernels).with_tasks()))


def _outline(view: View, title: str | None, *, kernels: bool) -> Outline:
    if kernels:
        need_room(view.timeline)
    return Outline.of(view, title, kernels=kernels)


def _packed(data: PageData) -> tuple[Head, dict[TableName, Packed]]:
    """Return the head of a page that holds all of a run, and its tables.

    Tasks are let go of once they are packed, unless they are somebody else's too.
    """
    places = data.places()
    tables: dict[TableName, Packed] = {"tasks": packed(data.task_columns())}
    data = data.without_tasks()
    give_back()
    tables |= {name: packed(frame) for name, frame in data.tables_beside()}
    columns = {name: table.columns for name, table in tables.items()}
    return data.head(columns, places), tables


def page(head: Head, tables: Mapping[TableName, Packed], *, connect: bool = False) -> str:
    """Return the page with this head and these tables in it.

    Args:
        head: What is known of the run, and of which columns each table is.
        tables: By name.
        connect: Whether it may load from where it came.
    """
    return "".join(_parts(head, tables, connect=connect))


def _parts(
    head: Head, tables: Mapping[TableName, Packed], *, connect: bool = False
) -> Iterator[str]:
    """Yield the page's text in parts, so that a large one need not be there as a whole."""
    script, style = _asset("bundle.js"), _asset("bundle.css")
    yield _BEFORE.format(
        lang=_TAGS[language.current()],
        policy=policy(connect=connect),
        title=_inert(head.title),
        style=style,
        head=_json(head),
        chinese=_json(in_chinese(head)),
        script=script,
    )
    for name, table in tables.items():
        yield _TABLE.format(name=name)
        yield from table.text()
        yield _TABLE_END
    yield _AFTER


@cache
def policy(*, connect: bool) -> str:
    """Return the content-security policy of a page; it may load from where it came, or nothing."""
    script, style = _asset("bundle.js"), _asset("bundle.css")
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
        + ("; connect-src 'self'" if connect else "")
    )


@cache
def _asset(name: str) -> str:
    return (resources.files("bubblescope.render.html") / "bundle" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: Any) -> str:
    """Encode so that no text in it can end the script element that holds it."""
    return inert_json(msgspec.json.encode(value).decode()).replace("<", "\\u003c")


def _inert(text: str) -> str:
    return visible(text).replace("&", "&amp;").replace("<", "&lt;")
