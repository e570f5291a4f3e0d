"""Runs the pages that show pictures of their own, and keeps what they draw.

A page `tutorials/paddle.md` that shows `../made/paddle/run.svg` is run top to bottom in an empty
folder, and the file `run.svg` that its commands write there is kept. `run.html.png` is a
screenshot of `run.html`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from docs.building.pages import RUNNABLE, blocks
from docs.building.workplace import Workplace, unprinted

if TYPE_CHECKING:
    from collections.abc import Iterator

_PICTURE: Final = re.compile(r"\]\((?:\.\./)*made/([\w-]+)/([\w.-]+)\)")
_AT_ONCE: Final = 2
_VIEWPORT: Final = {"width": 1280, "height": 760}
_BROWSERS: Final = ("chromium", "google-chrome")


def pictures_of(page: Path) -> list[str]:
    """Return the files that a page shows of those that its own commands draw."""
    found = _PICTURE.findall(page.read_text("utf-8"))
    return list(dict.fromkeys(name for folder, name in found if folder == page.stem))


def run(page: Path, folder: Path, root: Path) -> None:
    """Run the blocks of a page in a folder, and look whether they print what the page shows.

    Raises:
        AssertionError: A block fails, or the page shows what was not printed.
    """
    place = Workplace(folder, root)
    printed = ""
    for block in blocks(page):
        if block.reason is not None:
            continue
        if block.language in RUNNABLE:
            printed = place.run(block)
        elif block.language == "text" and (line := unprinted(block.text, printed)) is not None:
            raise AssertionError(f"{page}, line {block.line}: not printed: {line!r}\n{printed}")


def make(pages: list[Path], made: Path, root: Path) -> None:
    """Run pages that show pictures of their own, and keep these.

    Args:
        pages: All pages.
        made: Folder for the pictures, in a folder for each page.
        root: The project.
    """
    drawing = [page for page in pages if pictures_of(page)]
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / page.stem for page in drawing]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(run, drawing, folders, [root] * len(drawing)))
        with _browser() as browser:
            for page, folder in zip(drawing, folders, strict=True):
                (made / page.stem).mkdir(parents=True)
                for name in pictures_of(page):
                    kept = made / page.stem / name
                    if name.endswith(".html.png"):
                        _photograph(browser, folder / name.removesuffix(".png"), kept)
                    else:
                        shutil.copyfile(folder / name, kept)


def photographs(pages: list[Path]) -> None:
    """Write a picture `X.html.png` beside each page `X.html`, as it opens.

    Raises:
        RuntimeError: There is no Chromium on this machine.
    """
    with _browser() as browser:
        for page in pages:
            _photograph(browser, page, page.with_name(f"{page.name}.png"))


@contextmanager
def _browser() -> Iterator[Any]:
    """Yield a headless Chromium.

    Raises:
        RuntimeError: There is none on this machine.
    """
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  tests of pages need none

    path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        raise RuntimeError("pictures of pages need Chromium; install it (apt install chromium)")
    with sync_playwright() as driver:
        launched = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield launched
        launched.close()


def _photograph(browser: Any, page: Path, picture: Path) -> None:
    tab = browser.new_page(viewport=_VIEWPORT, color_scheme="light")
    tab.goto(page.resolve().as_uri())
    tab.wait_for_selector("canvas", state="attached")  # the page's policy forbids scripts of others
    tab.wait_for_timeout(600)  # for what moves when the page opens
    tab.screenshot(path=picture)
    tab.close()
