"""What Sphinx has to know of us: where the project's other documents are, and what types are called."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from docs.building.elsewhere import relinked
from docs.building.reference import PUBLIC
from docs.building.translations import LANGUAGES

if TYPE_CHECKING:
    from types import ModuleType


def setup(app: Any) -> dict[str, bool]:
    """Let links to the project's other documents lead to their pages."""
    app.connect("source-read", _relink)
    app.connect("builder-inited", _name_types)
    app.connect("html-page-context", _name_language)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _relink(_: Any, docname: str, source: list[str]) -> None:
    """Change the links of a page."""
    source[0] = relinked(source[0], f"docs/{docname}", docname)


def _name_language(
    _app: Any, page: str, _template: str, context: dict[str, Any], _tree: Any
) -> None:
    """Let a translated page say in which language it is, as readers aloud and fonts go by that."""
    folder = page.partition("/")[0]
    context["language"] = LANGUAGES.get(folder, context.get("language"))


def _name_types(_: Any) -> None:
    """Import what our modules import for types alone, so that signatures can be written out."""
    for name in PUBLIC:
        importlib.import_module(name)
    ours = [
        module for name, module in sys.modules.items() if name.partition(".")[0] == "bubblescope"
    ]
    for _again in range(_DEEP):  # what one module imports, another may define for types alone
        for module in ours:
            with suppress(ImportError):
                _define_types(module)


_DEEP: Final = 3


def _define_types(module: ModuleType) -> None:
    """Run what stands in a module below `if TYPE_CHECKING`."""
    if module.__file__ is not None:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                types = compile(ast.Module(node.body, []), module.__file__, "exec")
                exec(types, module.__dict__)  # noqa: S102  it is ours
