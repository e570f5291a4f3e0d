"""Public traces as anybody has them: fetched, with their row of `docs/traces.md` and their page.

    python benchmarks/gallery.py                       # all of the index
    python benchmarks/gallery.py "MTIA training"       # one trace
    python benchmarks/gallery.py ByteDance-Seed/StragglerAnalysis

Files come with git from the repository and the commit that the index names, and only those that a trace
consists of. What lies in the folder already is not fetched again, and without a network that is enough.
Each trace gets what `bubblescope view` makes of it, and `index.html` has the table with a link to each
page: a folder to look through, or to put on a web server. `--pictures` adds a picture of each page.
"""

from __future__ import annotations

import argparse
import difflib
import html
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from public_files import FetchError, fetched
from traces import Origin, Trace, origins, row, tomllib

if TYPE_CHECKING:
    from collections.abc import Iterable

INDEX = Path(__file__).with_name("traces.toml")
HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Public traces</title>
<meta name="viewport" content="width=device-width">
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em }
table { border-collapse: collapse; width: 100% }
td, th { padding: .35em .6em; text-align: left; vertical-align: top }
tr + tr { border-top: 1px solid #8884 }
</style>
<h1>Public traces</h1>
"""


class Shown(NamedTuple):
    """A trace of the gallery.

    Attributes:
        cells: Its row of the table.
        page: Its page, relative to the gallery; None where there is nothing to show.
    """

    cells: list[str]
    page: str | None


def chosen(index: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return what an index has of some traces, by their names or their repositories'.

    Raises:
        FetchError: It has nothing of a name.
    """
    every = [(origin, trace) for origin in index["origin"] for trace in origin["trace"]]
    known = {name for origin, trace in every for name in (origin["name"], trace["name"])}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            raise FetchError(
                f"the index has no trace and no repository '{name}'"
                + (f"; did you mean '{near[0]}'?" if near else "")
            )
    kept = []
    for origin in index["origin"]:
        whole = not names or origin["name"] in names
        traces = [one for one in origin["trace"] if whole or one["name"] in names]
        if traces:
            kept.append({**origin, "trace": traces})
    return {"origin": kept}


def written(origin: Origin, trace: Trace, out: Path) -> Shown:
    """Return the row of a trace; writes its page."""
    page = f"{origin.name.replace('/', '+')}/{slug(trace.name)}.html"
    (out / page).parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bubblescope", "view", "--quiet", "--no-open"),
            *("-o", out / page, *trace.paths),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return Shown(row(trace), page if done.returncode == 0 else None)


def slug(name: str) -> str:
    """Return a name as a file has it.

    >>> slug("autograd API, 4 loaders")
    'autograd-api-4-loaders'
    """
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def overview(sections: Iterable[tuple[Origin, list[Shown]]]) -> str:
    """Return the HTML of the gallery's first page."""
    parts = [HEAD]
    for origin, shown in sections:
        place = f"https://github.com/{origin.name}/tree/{origin.commit}"
        name, licence = html.escape(origin.name), html.escape(origin.licence)
        parts.append(
            f'<h2><a href="{html.escape(place)}">{name}</a> at {origin.commit[:12]}, {licence}</h2>\n'
            "<table><tr><th>trace<th>what it holds<th>read as<th>what bubblescope tells<th>checked\n"
        )
        for cells, page in shown:
            title, holds, size, told, _, checked = map(html.escape, cells)
            if page is not None:
                title = f'<a href="{html.escape(page)}">{title}</a>'
            parts.append(f"<tr><td>{title}<td>{holds}<td>{size}<td>{told}<td>{checked}\n")
        parts.append("</table>\n")
    return "".join(parts)


def main() -> None:
    """Fetch, write the pages and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a trace or a repository")
    parser.add_argument("--folder", type=Path, default=Path("build/traces"), help="for the traces")
    parser.add_argument("--out", type=Path, default=Path("build/gallery"), help="for the pages")
    parser.add_argument("--index", type=Path, default=INDEX)
    parser.add_argument(
        "--from",
        dest="place",
        default="https://github.com/{name}",
        help="where repositories are, with {name} (owner/name) or {folder} (owner+name)",
    )
    parser.add_argument("--pictures", action="store_true", help="also of each page, with Chromium")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    try:
        index = chosen(tomllib.loads(given.index.read_text("utf-8")), given.names)
    except FetchError as error:
        parser.error(str(error))
    asked, had, sections = 0, 0, []
    for told in index["origin"]:
        asked += len(told["trace"])
        told["trace"] = [one for one in told["trace"] if _had(told, one, given.folder, given.place)]
        had += len(told["trace"])
    for origin in origins(given.folder, index):
        shown = []
        for trace in origin.traces:
            shown.append(written(origin, trace, given.out))
            cells, page = shown[-1]
            print(f"{trace.name}, {origin.name} at {origin.commit[:12]}")
            print(f"  read as  {cells[2]}\n  verdict  {cells[3]}\n  checked  {cells[5]}")
            print(f"  page     {given.out / page if page else '–'}", flush=True)
        sections.append((origin, shown))
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "index.html").write_text(overview(sections), "utf-8")
    print(f"wrote {given.out / 'index.html'}")
    if given.pictures:
        sys.path.append(str(INDEX.parents[1]))
        from docs.building.pictures import photographs  # noqa: PLC0415  needs playwright

        photographs([given.out / one.page for _, shown in sections for one in shown if one.page])
    sys.exit(0 if had == asked else 1)


def _had(origin: dict[str, Any], trace: dict[str, Any], folder: Path, place: str) -> bool:
    """Fetch a trace; say why, and return false, if that cannot be done."""
    try:
        fetched(origin, trace, folder, place)
    except FetchError as error:
        print(f"{trace['name']}: {error}", file=sys.stderr, flush=True)
        return False
    return True


if __name__ == "__main__":
    main()
