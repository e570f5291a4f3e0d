"""Builds the documentation site, with warnings and dead links as errors."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from docs.building import figures, links, pictures, reference
from docs.building.translations import original

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
GENERATED: Final = ("made", "reference", "project")
"""Folders of the sources that are made anew each time."""


def main() -> int:
    """Build the site; return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m docs.building", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="where to build")
    parser.add_argument(
        "--external",
        action="store_true",
        help="also ask the network for what other sites' links lead to",
    )
    parser.add_argument("--keep-pictures", action="store_true", help="do not make pictures anew")
    given = parser.parse_args()
    from sphinx.cmd.build import build_main  # noqa: PLC0415  so that --help needs no Sphinx

    began = time.monotonic()
    fresh = [DOCS / name for name in GENERATED if name != "made" or not given.keep_pictures]
    for folder in fresh:
        shutil.rmtree(folder, ignore_errors=True)
    reference.write(DOCS, ROOT)
    if DOCS / "made" in fresh:
        figures.draw(DOCS / "made" / "figures")
        pages = [page for page in sorted(DOCS.rglob("*.md")) if original(page, DOCS) is None]
        pictures.make(pages, DOCS / "made", ROOT)
    shutil.rmtree(given.out, ignore_errors=True)
    doctrees = str(given.out.with_name(f"{given.out.name}-doctrees"))
    strictly = ["-q", "-W", "--keep-going", "-E", "-d", doctrees, str(DOCS)]
    if build_main(["-b", "html", *strictly, str(given.out)]):
        return 1
    dead = list(links.broken(given.out))
    print(*dead, sep="\n", end="\n" * bool(dead), file=sys.stderr)
    if not dead and given.external:
        return int(
            build_main(["-b", "linkcheck", *strictly, str(given.out.with_name("linkcheck"))])
        )
    if not dead:
        print(f"built {given.out / 'index.html'} in {time.monotonic() - began:.0f} s")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
