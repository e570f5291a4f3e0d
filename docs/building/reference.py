"""Writes down the commands, the JSON, the files and the Python interface, from the code itself."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from typing import TYPE_CHECKING, Any, Final

import click

from bubblescope.cli import COMMANDS, GROUPS, cli
from bubblescope.cli.option_sections import SECTIONS, SectionOption
from bubblescope.model import timeline, timeline_tables
from bubblescope.recording import columns as recording
from bubblescope.render.formats import FORMATS
from bubblescope.schedules import SCHEDULES
from bubblescope.sources import SOURCES
from docs.building import heads, json_schemas
from docs.building.elsewhere import ELSEWHERE, relinked

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_HEAD: Final = (
    "<!-- Written by docs/building/reference.py: change the code that it describes. -->\n\n"
)
PUBLIC: Final = {
    "bubblescope": "What `load` returns, and a function for each question",
    "bubblescope.record": "Recording, from within a job",
    "bubblescope.schedules": "Schedules",
    "bubblescope.schedules.plan": "Plans",
    "bubblescope.schedules.simulate": "Simulation",
    "bubblescope.analysis.whatif": "What-if questions",
    "bubblescope.analysis.predictions": "Their answers",
    "bubblescope.analysis.whatif_device": "What-if questions of runs without a pipeline",
    "bubblescope.sources.source": "Trace formats of your own",
    "bubblescope.names.parsed": "Range names of your own",
    "bubblescope.render.formats": "Output formats of your own",
    "bubblescope.compat.paddle": "In place of Paddle's helpers",
    "bubblescope.compat.ascend": "In place of Ascend's helpers",
}
"""Public modules, and what they are for."""


def write(docs: Path, root: Path) -> None:
    """Write the pages of `reference/` and `project/`.

    Args:
        docs: The sources of the site.
        root: The project.
    """
    pages = {
        "reference/commands": commands(),
        "reference/schedules": schedules(),
        "reference/formats": formats(),
        "reference/files": files(),
        "reference/python": python(),
    }
    schemas = json_schemas.of_examples(root)
    pages["reference/json"] = json_page(schemas)
    for path, page in ELSEWHERE.items():
        if page.startswith("project/"):
            name = page.removesuffix(".md")
            pages[name] = relinked((root / path).read_text("utf-8"), path, name)
    for name, text in pages.items():
        (docs / name).parent.mkdir(exist_ok=True)
        (docs / f"{name}.md").write_text(_HEAD + text, encoding="utf-8")
    for name, schema in schemas.items():
        text = json.dumps(schema, indent=1, ensure_ascii=False)
        (docs / "reference" / f"{name}.schema.json").write_text(text, encoding="utf-8")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join("| " + " | ".join(_cell(cell) for cell in line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# --- commands ------------------------------------------------------------


def walk(
    command: click.Command = cli, path: tuple[str, ...] = ("bubblescope",)
) -> Iterable[tuple[tuple[str, ...], click.Command]]:
    """Yield every command below one, with the words that call it."""
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1])
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None  # noqa: S101  it is listed
            yield (*path, name), below
            yield from walk(below, (*path, name))


def commands() -> str:
    """Return the page of all commands."""
    known = dict(walk())
    ours = {("bubblescope", name) for name in COMMANDS} | {("bubblescope", "completion")}
    parts = [heads.COMMANDS]
    grouped = [name for group in GROUPS.values() for name in group]
    rest = sorted(name for _, name in ours if name not in grouped)
    for title, names in [*GROUPS.items(), ("More commands", rest)]:
        parts.append(f"\n## {title}\n")
        for name in names:
            paths = [path for path in known if path[1] == name]
            parts += [_command(path, known[path]) for path in sorted(paths, key=len)]
    return "".join([*parts, heads.COMMON_OPTIONS, *_common_options(known.values())])


def _common_options(commands: Iterable[click.Command]) -> Iterable[str]:
    """Yield a table for each section of options that many commands take."""
    sections: dict[str, dict[str, tuple[str, str]]] = {}
    for command in commands:
        context = click.Context(command)
        for option in command.params:
            if isinstance(option, SectionOption) and not option.hidden:
                row = _option(option, context)
                known = sections.setdefault(option.section, {}).setdefault(str(option.name), row)
                assert known == row  # noqa: S101  one table tells of all commands
    for title in SECTIONS:
        yield f"\n### {title.partition(' (')[0]}\n\n"
        yield _table(("option", "meaning"), sections[title].values())


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    """Return the row of an option."""
    return (
        ", ".join(f"`{flag}`" for flag in _flags(option)) + _value(option, context),
        _quoted(" ".join(filter(None, [option.help or "", _default(option, context)]))),
    )


def _command(path: tuple[str, ...], command: click.Command) -> str:
    """Return the section of a command."""
    context = click.Context(command, info_name=" ".join(path))
    usage = " ".join(command.collect_usage_pieces(context))
    help_text = _quoted(inspect.cleandoc(command.help or ""))
    options = [
        param for param in command.params if isinstance(param, click.Option) and not param.hidden
    ]
    rows = [_option(one, context) for one in options if not isinstance(one, SectionOption)]
    common = [f"`{one.opts[-1]}`" for one in options if isinstance(one, SectionOption)]
    example = "\n".join(line.strip() for line in (command.epilog or "").splitlines()[2:])
    parts = [
        f"\n### {' '.join(path)}\n\n{help_text}\n\n",
        f"```text\n{' '.join(path)} {usage}\n```\n\n",
        _table(("option", "meaning"), rows) if rows else "",
        f"\nAnd these [common options](#common-options): {', '.join(common)}.\n" if common else "",
        f"\n```sh\n{example}\n```\n" if example else "",
    ]
    return "".join(parts)


def _flags(option: click.Option) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _value(option: click.Option, context: click.Context) -> str:
    return "" if option.is_flag else f" {_code(option.make_metavar(context))}"


def _default(option: click.Option, context: click.Context) -> str:
    default = option.get_default(context)
    return f"[default: {default}]" if option.show_default and default is not None else ""


_GROUP: Final = re.compile(r"\(\?P<[^)]*\)")
_NAMED: Final = re.compile(r"(?<![`\w-])(--?[a-z][\w-]*)(?![`\w])")


def _quoted(text: str) -> str:
    """Return a text in which options and groups of patterns stand as code."""
    return _NAMED.sub(r"`\1`", _GROUP.sub(r"`\g<0>`", text))


def _code(text: str) -> str:
    return f"`{text}`"


# --- what is read and written ------------------------------------------------------------


def schedules() -> str:
    """Return the page of the schedules."""
    rows = [
        (
            _code(one.name),
            one.title,
            one.chunks,
            _code(one.bubble) if one.bubble else "by simulation",
            _code(one.memory) if one.memory else "by counting",
            one.source,
        )
        for one in SCHEDULES.values()
    ]
    head = ("name", "title", "chunks", "bubble", "memory", "published in")
    return heads.SCHEDULES + _table(head, rows)


def formats() -> str:
    """Return the page of formats that are read and written."""
    read = [(_code(name), source.summary) for name, source in sorted(SOURCES.items())]
    written = [
        (_code(name), _code(one.suffix), one.summary, ", ".join(map(_code, one.options)) or "–")
        for name, one in FORMATS.items()
    ]
    return (
        heads.READ
        + _table(("name", "traces"), read)
        + heads.WRITTEN
        + _table(("name", "ending", "for", "options"), written)
    )


def files() -> str:
    """Return the page of the files that bubblescope defines."""
    header = recording.Header.__annotations__
    columns = recording.WITH_BUSY
    parts = [
        heads.FILES,
        inspect.cleandoc(importlib.import_module("bubblescope.recording").__doc__ or ""),
        f"\n\nVersion {recording.FORMAT}. The columns, as Arrow types:\n\n",
        _table(("column", "type"), ((_code(name), kind) for name, kind in columns.items())),
        "\nThe header, JSON in `name` of the first row (its `kind` is `header`):\n\n",
        _table(("key", "type"), ((_code(name), str(kind)) for name, kind in header.items())),
        "\n",
        _attributes(recording.Header),
        heads.TIMELINE,
        _schema(timeline.TASK_SCHEMA),
        "\n### `ranks`\n\n",
        _schema(timeline_tables.RANK_SCHEMA),
    ]
    for name, table in timeline_tables.TABLES.items():
        sorted_by = ", ".join(table.order)
        parts.append(f"\n### `{name}`\n\nSorted by {sorted_by}.\n\n{_schema(table.schema)}")
    return "".join([*parts, heads.OTHER_FILES])


def _schema(schema: dict[str, Any]) -> str:
    return _table(
        ("column", "type"), ((_code(name), _code(str(kind))) for name, kind in schema.items())
    )


def _attributes(of: type) -> str:
    """Return the attributes that a class describes, as a list."""
    text = inspect.cleandoc(of.__doc__ or "").partition("Attributes:\n")[2]
    entries: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        if line[:1].isspace():
            entries[-1] += f" {line.strip()}"
        elif line:
            entries.append(line)
    return "".join(
        f"- `{name}`:{said}\n" for name, _, said in (one.partition(":") for one in entries)
    )


# --- Python and JSON ------------------------------------------------------------


def python() -> str:
    """Return the page of the public interface, whose text is that of the docstrings."""
    parts = [heads.PYTHON]
    for module, title in PUBLIC.items():
        loaded = importlib.import_module(module)
        parts.append(
            f"\n## {title}\n\n`{module}`\n\n```{{eval-rst}}\n.. py:currentmodule:: {module}\n\n"
        )
        for name in public(loaded):
            thing = getattr(loaded, name)
            if inspect.isclass(thing):
                # The fields of a tuple are among what its text says of it.
                fields = getattr(thing, "_fields", ())
                without = f"   :exclude-members: {', '.join(fields)}\n" if fields else ""
                parts.append(f".. autoclass:: {module}.{name}\n   :members:\n{without}\n")
            elif callable(thing):
                parts.append(f".. autofunction:: {module}.{name}\n\n")
        parts.append("```\n")
    return "".join(parts)


def public(module: Any) -> list[str]:
    """Return the names that a module is for: those it lists, or those it defines."""
    if hasattr(module, "__all__"):
        return sorted(name for name in module.__all__ if not name.startswith("_"))
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]


def json_page(schemas: dict[str, dict[str, Any]]) -> str:
    """Return the page of what commands print with `--json`."""
    parts = [heads.JSON]
    for name, schema in schemas.items():
        version = schema["properties"]["schema"]["const"]
        rows = ((_code(path), kind) for path, kind in json_schemas.paths(schema))
        parts.append(
            f"\n## {name}\n\n`{version}`: [guide](../{json_schemas.GUIDES[name]}), "
            f"{{download}}`JSON Schema <{name}.schema.json>`\n\n{_table(('key', 'type'), rows)}"
        )
    return "".join(parts)
