"""The SVG picture as pixels, for slides, documents and messages.

The renderer is resvg, which draws only what it is told: that lanes with more tasks than pixels show
samples at the pixels' centres is worked out for the pixels of this very file.
"""

from __future__ import annotations

import struct
import zlib
from html import escape
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model import language
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.files import replacing
from bubblescope.render.picture import svg
from bubblescope.render.picture.letters import beyond_ascii, refuse
from bubblescope.render.picture.sheet import FAMILIES, PRINT, SCREEN, page
from bubblescope.render.picture.size import INCH, Size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.analysis.picture_data import Pictured

_MOST: Final = 200_000_000
"""Pixels of a picture, each of which takes the renderer four bytes."""
_NOBODYS: Final = "\U0010fffd"
"""A letter that Unicode gives no meaning, so no font has it: it is drawn as all that is lacking."""
_HEAD: Final = 33
"""Bytes of a PNG file up to the end of its first chunk."""


def write(
    pictured: Pictured | Sequence[Pictured],
    path: Path,
    *,
    width: float | str | None = None,
    look: str = "full",
    title: str = "",
    dpi: float = 300,
) -> Path:
    """Write the picture; the arguments are those of `render`."""
    data = render(pictured, width=width, look=look, title=title, dpi=dpi)
    with replacing(path) as partial:
        partial.write_bytes(data)
    return path


def render(
    pictured: Pictured | Sequence[Pictured],
    *,
    width: float | str | None = None,
    look: str = "full",
    title: str = "",
    dpi: float = 300,
) -> bytes:
    """Return the picture as PNG data.

    Args:
        pictured: What to draw: the compute lanes of a run, or of several, as `svg.draw` has them.
        width: As of an SVG picture, of which a pixel is 1/96 inch; 1600 of them by default, 7 inches
            in the look of papers.
        look: One of `svg.LOOKS`.
        title: What stands above it.
        dpi: Pixels of the file per inch.

    Raises:
        BubblescopeError: The renderer is not installed, or knows no font, or none that has the letters
            of names; the width is none, or leaves no room for the lanes; there is no such look; the
            picture would be too large.
    """
    if not 10 <= dpi <= 2400:
        raise BubblescopeError(f"a picture has 10 to 2400 dots per inch, not {dpi:g}")
    resvg = _renderer()
    size = svg.size_of(width, look)
    density = dpi / INCH
    across = round(size.pixels * density)
    # As wide as whole pixels are, so that samples lie on them.
    size = Size(across / density, size.unit)
    style = PRINT if size.printed else SCREEN
    style = style._replace(density=density, sample="each pixel's centre")
    with language.spoken(_writable(resvg)):
        drawing = svg.draw(pictured, size, look, style, title)
    high = ceil(drawing.height * density)
    if across * high > _MOST:
        raise BubblescopeError(
            f"the picture would have {across} x {high} pixels; lower --dpi or --width, or select "
            "--ranks"
        )
    drawing = drawing._replace(height=high / density)
    text = page(drawing, size, (str(across), str(high)))
    box = _drawn(resvg, _NOBODYS)
    refuse(one for one in beyond_ascii(text) if _drawn(resvg, escape(one)) == box)
    return _with_density(resvg.svg_to_bytes(svg_string=text, dpi=INCH), dpi)


def _renderer() -> Any:
    try:
        import resvg_py  # noqa: PLC0415  an extra, and slow to import
    except ImportError:
        raise BubblescopeError(
            "PNG pictures need resvg-py: pip install 'bubblescope[png]'; SVG ones need nothing"
        ) from None
    if not _draws_text(resvg_py):
        raise BubblescopeError(
            "no font for the text of the picture is installed on this machine; install one, such as "
            "DejaVu Sans (fonts-dejavu-core), or export an SVG picture"
        )
    return resvg_py


def _draws_text(resvg: Any) -> bool:
    """Say whether the renderer finds a font. Without one, it leaves text out and says nothing."""
    return _drawn(resvg, "") != _drawn(resvg, "F")


def _writable(resvg: Any) -> str:
    """Return the current language; English where no font of this machine has its letters."""
    # What a font lacks is left out, or is the same box whatever it is.
    one, other = map(language.translated, ("forward", "backward"))
    return language.current() if _drawn(resvg, one) != _drawn(resvg, other) else language.ENGLISH


def _drawn(resvg: Any, said: str) -> bytes:
    drawn: bytes = resvg.svg_to_bytes(
        svg_string='<svg xmlns="http://www.w3.org/2000/svg" width="48" height="16">'
        f'<text y="12" font-family="{FAMILIES}" font-size="12">{said}</text></svg>',
        dpi=INCH,
    )
    return drawn


def _with_density(png: bytes, dpi: float) -> bytes:
    """Add the chunk that says how large the picture is in print (PNG specification, 11.3.4.3)."""
    per_metre = round(dpi / 0.0254)
    body = b"pHYs" + struct.pack(">IIB", per_metre, per_metre, 1)
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return png[:_HEAD] + chunk + png[_HEAD:]
