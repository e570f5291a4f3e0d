"""Catalogues as gettext has them: what stands in them, and what is wrong with them."""

from __future__ import annotations

import ast
import errno
import io
import os
import re
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Final

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from catalogues.texts import Text, texts
from catalogues.words import WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "src" / "bubblescope"

_HEAD: Final = """\
# What bubblescope says. `python -m catalogues` brings the texts up to date with the code, keeps the
# translations, and names what is left to do. Terms are those of docs/zh/glossary.md."""
_NAMED_LOOKS: Final = frozenset({"command_path", "counted", "listed", "numbers"})
"""Names of values that tell what these look like (`bubblescope.model.language`)."""
_MADE: Final = datetime(2026, 11, 23, tzinfo=timezone.utc)
"""When catalogues were made, which gettext wants to know: no two differ for their dates alone."""
_ERRORS: Final = (
    errno.EACCES, errno.EEXIST, errno.EFBIG, errno.EIO, errno.EISDIR, errno.EMFILE, errno.ENAMETOOLONG,
    errno.ENOENT, errno.ENOMEM, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EPIPE, errno.EROFS,
    errno.ESTALE, errno.EDQUOT, errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.ECONNREFUSED,
    errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ELOOP,
)  # fmt: skip
"""What the system says of files and networks: in English, as long as nobody asks otherwise."""


def path_of(language: str) -> Path:
    """Return the catalogue of a language, as people edit it."""
    return PACKAGE / "locale" / language / "LC_MESSAGES" / "bubblescope.po"


def read(language: str) -> Catalog:
    """Return the catalogue of a language as it is."""
    path = path_of(language)
    if not path.exists():
        return Catalog(locale=language)
    with path.open("rb") as file:
        return read_po(file, locale=language)


def wanted() -> dict[str, Text]:
    """Return all texts that a catalogue should have: bubblescope's own, click's and the system's."""
    found = texts(PACKAGE)
    for word in WORDS:
        found.setdefault(word, Text(word, frozenset(), "words", 0))
    for text in _of_click():
        found.setdefault(text, Text(text, frozenset(), "click", 0))
    for number in _ERRORS:
        found.setdefault(os.strerror(number), Text(os.strerror(number), frozenset(), "system", 0))
    return found


def updated(language: str) -> Catalog:
    """Return the catalogue of a language with the texts that there are now, and no others."""
    before = read(language)
    after = Catalog(
        locale=language,
        header_comment=_HEAD,
        project="bubblescope",
        version="",
        msgid_bugs_address="",
        last_translator="",
        language_team="",
        creation_date=_MADE,
        revision_date=_MADE,
        fuzzy=False,
    )
    for text in wanted().values():
        known = before.get(text.template)
        said = known.string if known is not None else ""
        after.add(text.template, said, locations=[(text.path, 0)])
    return after


def as_po(catalogue: Catalog) -> bytes:
    """Return a catalogue as people edit it."""
    out = io.BytesIO()
    write_po(out, catalogue, width=0, include_lineno=False, omit_header=False)
    return out.getvalue()


def as_mo(catalogue: Catalog) -> bytes:
    """Return a catalogue as programs read it."""
    out = io.BytesIO()
    write_mo(out, catalogue)
    return out.getvalue()


def problems(catalogue: Catalog) -> Iterator[str]:
    """Yield what is wrong with a catalogue: texts that it lacks, values that a translation lacks."""
    code = wanted()
    there = {str(message.id): str(message.string) for message in catalogue if message.id}
    for template, text in code.items():
        said = there.get(template)
        if not said:
            yield f"{text.path}:{text.line}: not translated: {template!r}"
            continue
        values, given = fields(template), fields(said)
        if given - values or (values - given) - text.optional:
            yield f"{text.path}:{text.line}: {template!r} has other values than {said!r}"
    for template in there.keys() - code.keys():
        yield f"no code says {template!r}"
    yield from ambiguous(there)


def ambiguous(said: Mapping[str, str]) -> Iterator[str]:
    """Yield the texts that look like another and have a translation that says something else."""
    read_as: dict[tuple[object, ...], tuple[str, str]] = {}
    for template, said_so in said.items():
        shape = _shape(template)
        other, means = read_as.setdefault(shape, (template, _by_place(template, said_so)))
        if "{" in template and means != _by_place(template, said_so):
            yield f"{template!r} and {other!r} look the same and say different things"


def _shape(template: str) -> tuple[object, ...]:
    """Return what a text is recognised by: all but the names of its values."""
    return tuple(
        (literal, spec, how, field if field in _NAMED_LOOKS else None)
        for literal, field, spec, how in Formatter().parse(template)
    )


def _by_place(template: str, said: str) -> str:
    """Return a translation whose values have the numbers of their places in the text."""
    names = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    unnamed = iter(range(len(names)))
    return "".join(
        literal
        if field is None
        else f"{literal}{{{names.index(field) if field else next(unnamed)}}}"
        for literal, field, _, _ in Formatter().parse(said)
    )


def fields(text: str) -> set[str]:
    """Return the names of the values in a text."""
    return {field for _, field, _, _ in Formatter().parse(text) if field is not None}


def _of_click() -> Iterator[str]:
    """Yield what click says by itself, in errors and helps."""
    spec = find_spec("click")
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    several = {"_": 1, "ngettext": 2}.get(node.func.id, 0)
                    for text in node.args[:several]:
                        if isinstance(text, ast.Constant) and len(str(text.value)) > 1:
                            yield re.sub(r"\s+", " ", str(text.value)).strip()
