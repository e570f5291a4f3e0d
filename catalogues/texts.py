"""The texts that bubblescope shows to people, as they stand in its code.

A text is what a string, an f-string or a sum of them says, with a placeholder for each value in it. All
that reads like English is a text, wherever it stands: a new module needs no entry anywhere. What is no
text although it reads like one is told by what is done with it (a pattern, a query), or stands in
`NOT_SHOWN`, with the reason.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOT_SHOWN: Final = {
    "agents/": "agents read English, and JSON",
    "analysis/mfu/peaks.py": "titles of data sheets",
    "analysis/redaction/": "names to be replaced; only its errors are shown",
    "compat/": "the interfaces of other programs",
    "demo/": "what a job of the demonstration prints",
    "engine/local.py": "words of loky, which are not shown",
    "names/": "range names as frameworks write them",
    "record/integrations/torch_aside.py": "names of what a job does beside its passes",
    "record/prometheus.py": "descriptions of metrics, which other programs show",
    "render/artefacts/": "files of other programs",
    "render/html/": "the page, which has a catalogue of its own",
    "render/traces/": "files of other programs",
    "sources/kineto/document.py": "names as PyTorch writes them",
    "sources/kineto/operator_flops.py": "names as PyTorch writes them",
    "sources/nsight/communicators.py": "names as NCCL writes them",
}
"""Where only errors are shown to people who run commands, and why."""

_PROSE: Final = re.compile(
    r"[A-Za-z][a-z'-]+[,:;.)]* \(?(?:a|[a-z][a-z'-]+) ?"
    r"|\0[,:;%)]* \(?[a-z][a-z'-]+"
    r"|[a-z][a-z'-]+[,:;]* [(`]?\0"
)
"""Two words one after the other, or a word beside a value, for which NUL stands."""
_CODE: Final = re.compile(
    r"\s*(?:SELECT|WITH|INSERT|CREATE|PRAGMA|ATTACH|FROM|JOIN|WHERE|CASE)\b"
    r"|Schedule Profiler |Helvetica, |.*<path "
    r"|\s*(?:<|@|\(\?|\^|--[a-z-]+$|\.\w|# |bold )"
    r"|.*(?:\(\[|==|, arXiv \d|, https:)"
)
"""How SQL, lines of other programs' logs, fonts, HTML, patterns, options, files and styles begin; what
formulas and titles of papers have."""
_NO_TEXT: Final = frozenset(
    {"compile", "contains", "example", "extract", "fullmatch", "match", "search", "source", "sub"}
)
"""Functions and values whose words are patterns, what is typed, or titles of papers."""
_NOUNS: Final = frozenset({"count", "listed"})
"""Functions of `model.units` that write a noun with its number."""
_LOOKS: Final = {
    "change": ":ns",
    "count": ":counted",
    "duration": ":ns",
    "fixed": ":,",
    "gigabytes": ":ns",
    "len": ":,",
    "listed": ":listed",
    "percent": ":ns",
    "signed": ":ns",
    "uncertain": ":ns",
}
"""How the values look that functions write."""
_ALL_LABELS: Final = frozenset({"assemble", "narrow_table", "table_of", "titled"})
"""Functions all of whose words are shown as they are, single ones too."""
_LABELS: Final = _ALL_LABELS | {"Text", "add_column", "append", "begin"}
"""The same, and those of which the first is."""
_ALL_WORDS: Final = "analysis/words/english.py"
"""The module that consists of what is shown."""
_WORD: Final = re.compile(r"[A-Za-z]{2}")


class Text(NamedTuple):
    """A text.

    Attributes:
        template: What it says, with a placeholder for each value.
        optional: Placeholders of words that stand there only sometimes, such as the "s" of a plural.
        path, line: Where it stands first.
    """

    template: str
    optional: frozenset[str]
    path: str
    line: int


def texts(package: Path) -> dict[str, Text]:
    """Return all texts of a package, by template, in the order of its files."""
    found: dict[str, Text] = {}
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package).as_posix()
        for text in _Module(ast.parse(path.read_text("utf-8")), place).texts():
            found.setdefault(text.template, text)
    return found


class _Module:
    def __init__(self, tree: ast.Module, path: str) -> None:
        self._tree, self._path = tree, path
        self._errors_only = any(path.startswith(place) for place in NOT_SHOWN)
        self._above = {
            id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }
        self._constants = {
            node.target.id: node.value
            for node in tree.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value
        }
        self._described = {id(node) for node in _descriptions(tree)}

    def texts(self) -> Iterator[Text]:
        """Yield the texts of a module."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef) and any(map(_is_command, node.decorator_list)):
                yield from self._help(node)
            elif isinstance(node, ast.Call) and _of_units(node) and _called(node) in _NOUNS:
                yield from self._nouns(node)
            elif _is_text(node) and not self._is_part(node) and self._is_shown(node):
                yield from self._text(node, alone=self._is_label(node))

    def _text(self, node: ast.AST, *, alone: bool) -> Iterator[Text]:
        names = _Names()
        template = "".join(_parts(node, names))
        bare = re.sub(r"\{[^{}]*\}", "\0", template)
        prose = _PROSE.search(bare) or (alone and _WORD.search(bare.replace("\0", "")))
        if prose and not _CODE.match(template):
            yield Text(template.strip(), frozenset(names.optional), self._path, node.lineno)  # type: ignore[attr-defined]

    def _help(self, node: ast.FunctionDef) -> Iterator[Text]:
        for paragraph in (ast.get_docstring(node) or "").partition("\f")[0].split("\n\n"):
            yield Text(" ".join(paragraph.split()), frozenset(), self._path, node.lineno)

    def _nouns(self, node: ast.Call) -> Iterator[Text]:
        words = [word for word in map(self._constant, node.args) if word is not None]
        if not words or self._errors_only:
            return
        if len(words) == 1:
            words.append(f"{words[0]}s")
        for word in words:
            template = f"{{count:,}} {word}" if _called(node) == "count" else f"{word} {{numbers}}"
            yield Text(template, frozenset(), self._path, node.lineno)

    def _constant(self, node: ast.AST) -> str | None:
        """Return the words that stand in a place, or in the constant that stands there."""
        if isinstance(node, ast.Name):
            node = self._constants.get(node.id, node)
        return (
            node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
        )

    def _is_part(self, node: ast.AST) -> bool:
        """Say whether a text goes on beyond a node."""
        above = self._above.get(id(node))
        return isinstance(above, ast.JoinedStr) or (
            isinstance(above, ast.BinOp) and isinstance(above.op, ast.Add) and _is_text(above)
        )

    def _is_label(self, node: ast.AST) -> bool:
        """Say whether a text is shown however short it is."""
        inner, above = node, self._above.get(id(node))
        if self._path == _ALL_WORDS:
            return not self._is_key(node)
        while isinstance(above, (ast.Tuple, ast.Starred, ast.IfExp, ast.List)):
            if isinstance(above, ast.Tuple) and above.elts[1:] and inner is not above.elts[0]:
                return False  # the style of a word
            inner, above = above, self._above.get(id(above))
        if isinstance(above, ast.keyword):
            return above.arg in {"help", "title", "summary"}
        shown = self._path.startswith(("render/text/", "cli/"))
        if not shown or not isinstance(above, ast.Call) or inner not in above.args:
            return False
        return _called(above) in (_LABELS if inner is above.args[0] else _ALL_LABELS)

    def _is_style(self, node: ast.AST, call: ast.Call) -> bool:
        """Say whether a node is how a word is to look."""
        above = self._above[id(node)]
        if isinstance(above, ast.Tuple) and self._above.get(id(above)) is call:
            return node is not above.elts[0]
        return _called(call) in {"Text", "append"} and node in call.args[1:]

    def _is_key(self, node: ast.AST) -> bool:
        """Say whether a node is a key of a table, or a part of one."""
        inner, above = node, self._above.get(id(node))
        while isinstance(above, ast.Tuple):
            inner, above = above, self._above.get(id(above))
        if isinstance(above, ast.DictComp):
            return inner is above.key
        return isinstance(above, ast.Dict) and inner in above.keys

    def _is_shown(self, node: ast.AST) -> bool:
        if id(node) in self._described:
            return False
        above: ast.AST | None = self._above.get(id(node))
        raised = False
        while above is not None:
            if isinstance(above, ast.Call) and _called(above) in _NO_TEXT:
                return False
            if isinstance(above, (ast.Subscript, ast.Assert)) and above is self._above.get(
                id(node)
            ):
                return False
            if (
                isinstance(above, ast.Call)
                and _called(above) in _LABELS
                and self._is_style(node, above)
            ):
                return False
            if isinstance(above, ast.keyword) and above.arg in _NO_TEXT:
                return False
            raised |= isinstance(above, ast.Raise)
            above = self._above.get(id(above))
        return raised or not self._errors_only


class _Names:
    """Names for the values of a template: the last word of what computes them."""

    def __init__(self) -> None:
        self.optional: list[str] = []
        self._used: dict[str, int] = {}

    def placeholder(self, node: ast.AST, look: str) -> str:
        name = _name_of(node)
        self._used[name] = count = self._used.get(name, 0) + 1
        name = name if count == 1 else f"{name}_{count}"
        if _is_wording(node):
            self.optional.append(name)
        return f"{{{name}{look}}}"


def _name_of(node: ast.AST) -> str:  # noqa: PLR0911  one for each kind of expression
    if isinstance(node, ast.Call):
        called = _called(node)
        if called in {"listed", "count"}:
            nouns = [one.value for one in node.args if isinstance(one, ast.Constant)]
            return re.sub(r"\W+", "_", str(nouns[0])) + "s" if nouns else "count"
        if called == "len" and node.args:
            return f"{_name_of(node.args[0])}_count".replace("value_count", "count")
        inner = [_name_of(one) for one in node.args[:1]]
        return inner[0] if inner and inner[0] != "value" else called.strip("_") or "value"
    if isinstance(node, ast.Attribute):
        return node.attr.strip("_")
    if isinstance(node, ast.Name):
        return node.id.strip("_").lower()
    if isinstance(node, ast.Subscript):
        key = node.slice
        if (
            isinstance(key, ast.Constant)
            and isinstance(key.value, str)
            and key.value.isidentifier()
        ):
            return key.value
        return _name_of(node.value)
    if isinstance(node, ast.BinOp):
        left = _name_of(node.left)
        return left if left != "value" else _name_of(node.right)
    if isinstance(node, ast.Starred):
        return _name_of(node.value)
    return "wording" if _is_wording(node) else "value"


def _parts(node: ast.AST, names: _Names) -> Iterator[str]:
    """Yield what a text consists of; two values side by side are one to whoever reads it."""
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield from _parts(part, names)
    elif isinstance(node, ast.FormattedValue) and not _is_text(node.value):
        yield names.placeholder(node.value, _look(node))
    elif isinstance(node, ast.FormattedValue):
        yield from _parts(node.value, names)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and _is_text(node):
        yield from _parts(node.left, names)
        yield from _parts(node.right, names)
    else:
        yield names.placeholder(node, _look_of(node))


def _look(node: ast.FormattedValue) -> str:
    """Return how a value looks, in the words of `bubblescope.model.language`."""
    if node.conversion == ord("r"):
        return "!r"
    if node.format_spec is not None:
        spec = "".join(
            str(one.value) for one in ast.walk(node.format_spec) if isinstance(one, ast.Constant)
        )
        return ":," if re.search(r"[,dfgx%]$", spec) else ""
    return _look_of(node.value)


def _look_of(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    if _called(node) == "quoted":
        return "!r"
    return _LOOKS.get(_called(node), "")


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr)


def _is_wording(node: ast.AST) -> bool:
    """Say whether a value is one of some words that stand in the code, or none."""
    if isinstance(node, ast.IfExp):
        return all(map(_is_wording, (node.body, node.orelse)))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _is_text(node.left) or _is_text(node.right)
    return _is_text(node)


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _of_units(node: ast.Call) -> bool:
    where = node.func.value if isinstance(node.func, ast.Attribute) else None
    return where is None or (isinstance(where, ast.Name) and where.id == "units")


def _is_command(decorator: ast.AST) -> bool:
    return isinstance(decorator, ast.Call) and _called(decorator) in {"command", "group"}


def _descriptions(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield strings that describe code."""
    for node in ast.walk(tree):
        body: Any = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.value
