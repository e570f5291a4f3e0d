"""The SVG picture as a PDF page, for papers: its shapes and text stay shapes and text."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model import language
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.files import replacing
from bubblescope.render.picture import svg
from bubblescope.render.picture.letters import beyond_ascii, refuse
from bubblescope.render.picture.sheet import FAMILIES, PRINT, SCREEN, page
from bubblescope.render.picture.size import POINT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.picture_data import Pictured

_BUILT_IN: Final = "helvetica"
"""A font that every reader of PDF has, for the letters of western Europe."""
_ENCODING: Final = "latin-1"
_PLAINER: Final = str.maketrans(
    {"–": "-", "—": "-", "…": "...", "‘": "'", "’": "'", "“": "&quot;", "”": "&quot;"}  # noqa: RUF001  what people type
)
"""Of what pictures and their titles commonly say, what that font lacks."""
_UNLIKE: Final = ("bold", "italic", "oblique", "mono", "serif", "math", "condensed", "light")
"""Parts of the names of fonts that look less like Helvetica than others do."""
_OWN: Final = "picture"
_NO_DATE: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FONTS: Final = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.fonts", "~/.local/share/fonts")


def write(
    pictured: Pictured | Sequence[Pictured],
    path: Path,
    *,
    width: float | str | None = None,
    look: str = "full",
    title: str = "",
) -> Path:
    """Write the picture; the arguments are those of `render`."""
    data = render(pictured, width=width, look=look, title=title)
    with replacing(path) as partial:
        partial.write_bytes(data)
    return path


def render(
    pictured: Pictured | Sequence[Pictured],
    *,
    width: float | str | None = None,
    look: str = "full",
    title: str = "",
) -> bytes:
    """Return the picture as PDF data.

    Args:
        pictured: What to draw: the compute lanes of a run, or of several, as `svg.draw` has them.
        width: As of an SVG picture, of which a pixel is 1/96 inch; 1600 of them by default, 7 inches
            in the look of papers.
        look: One of `svg.LOOKS`.
        title: What stands above it.

    Raises:
        BubblescopeError: The renderer is not installed; names need a font, and there is none that has
            their letters; the width is none, or leaves no room for the lanes; there is no such look.
    """
    fpdf = _renderer()
    size = svg.size_of(width, look)
    with language.spoken(_writable()):
        drawing = svg.draw(pictured, size, look, PRINT if size.printed else SCREEN, title)
    points = size.pixels / POINT, drawing.height / POINT
    document = fpdf.FPDF(unit="pt", format=points)
    document.set_creator("bubblescope")
    document.set_creation_date(_NO_DATE)  # else the same run would never give the same file
    document.set_auto_page_break(auto=False)
    document.add_page()
    text = page(drawing, size, (f"{points[0]:.3f}pt", f"{points[1]:.3f}pt"))
    family, plainer = _BUILT_IN, text.translate(_PLAINER)
    if _encodable(plainer):
        text = plainer
    else:
        family, font = _OWN, _font_for(text)
        refuse(set(beyond_ascii(text)) - _letters(font))
        for style in ("", "B"):
            document.add_font(family, style=style, fname=font)
    fpdf.svg.SVGObject(text.replace(FAMILIES, family)).draw_to_page(document)
    return bytes(document.output())


def _renderer() -> Any:
    try:
        import fpdf  # noqa: PLC0415  an extra, and slow to import
        import fpdf.svg  # noqa: PLC0415
    except ImportError:
        raise BubblescopeError(
            "PDF pictures need fpdf2: pip install 'bubblescope[pdf]'; SVG ones need nothing"
        ) from None
    return fpdf


def _writable() -> str:
    """Return the current language; English where no font of this machine has its letters."""
    needed = language.translated("forward") + language.translated("backward")
    if _encodable(needed):
        return language.current()
    font, has = _best_font(needed)
    return language.ENGLISH if font is None or has < len(set(needed)) else language.current()


def _encodable(text: str) -> bool:
    try:
        text.encode(_ENCODING)
    except UnicodeEncodeError:
        return False
    return True


def _font_for(text: str) -> Path:
    """Return the TrueType font of this machine that has most letters of a text.

    Raises:
        BubblescopeError: There is none.
    """
    best, _ = _best_font(text)
    if best is None:
        raise BubblescopeError(
            "the names in the picture have letters that only a TrueType font has, and there is none on "
            "this machine; put one (a .ttf file) under ~/.fonts, or export an SVG picture"
        )
    return best


def _letters(font: Path) -> set[str]:
    from fontTools.ttLib import TTFont  # noqa: PLC0415  as below

    with TTFont(font, lazy=True) as opened:
        return {chr(code) for code in opened.getBestCmap()}


def _best_font(text: str) -> tuple[Path | None, int]:
    """Return the TrueType font of this machine that has most letters of a text, and how many.

    Of those that have as many, it is the one that looks most like Helvetica, by its name.
    """
    from fontTools.ttLib import TTFont, TTLibError  # noqa: PLC0415  comes with fpdf2

    needed = {ord(letter) for letter in text if letter.isprintable()}
    best, most = None, (-1, 0)
    folders = [Path(folder).expanduser() for folder in _FONTS]
    for path in sorted(path for folder in folders for path in folder.rglob("*.ttf")):
        with suppress(TTLibError, OSError), TTFont(path, lazy=True) as font:
            unlike = sum(word in path.stem.lower() for word in _UNLIKE)
            has = len(needed & set(font.getBestCmap() or ())), -unlike
            if has > most:
                best, most = path, has
    return best, most[0]
