"""Colours that trace viewers can be brought to draw, the nearest to those of the palette.

Neither trace format can state a colour. Catapult (chrome://tracing) knows some by name. Perfetto's UI
takes one from a hash of a slice's correlation id, in ui/src/components/colorizer.ts and
ui/src/base/hash.ts of https://github.com/google/perfetto (the same from v52 to v58.2): so a slice's
correlation id is a text with a number for which that hash comes out right.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bubblescope.model.kinds import Kind
from bubblescope.render.palette import UNKNOWN_GROUND
from bubblescope.render.traces.slices import PHASES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

STEPS: Final = "steps"
"""The category of steps."""
_OTHERS: Final = {
    STEPS: "#d2c4f2",
    **dict(zip(PHASES, ("#a9c8ee", "#b9dfb4", "#eec79a"), strict=True)),
}
"""What has a colour beside the kinds: pale ones, for what stands around tasks."""
_KEPT: Final = 0.6
"""How much of the difference between two colours of the palette is to be left..."""
_ENOUGH: Final = 0.12
"""... unless it is so much in Oklab,..."""
_WEIGHT: Final = 10.0
"""... and how much worse a lack of it is than a colour that is as far from the palette's."""

_CATAPULT: Final = {
    "background_memory_dump": (0, 180, 180),
    "bad": (180, 125, 0),
    "black": (0, 0, 0),
    "cq_build_abandoned": (187, 187, 187),
    "cq_build_attempt_failed": (197, 81, 81),
    "cq_build_attempt_passed": (103, 218, 35),
    "cq_build_attempt_runnig": (222, 222, 75),
    "cq_build_failed": (238, 136, 136),
    "cq_build_passed": (153, 238, 102),
    "cq_build_running": (255, 255, 119),
    "detailed_memory_dump": (180, 0, 180),
    "generic_work": (125, 125, 125),
    "good": (0, 125, 0),
    "grey": (221, 221, 221),
    "heap_dump_child_node_arrow": (204, 102, 0),
    "heap_dump_object_type": (0, 0, 255),
    "light_memory_dump": (0, 0, 180),
    "olive": (100, 100, 0),
    "rail_animation": (244, 74, 63),
    "rail_idle": (238, 142, 0),
    "rail_load": (13, 168, 97),
    "rail_response": (67, 135, 253),
    "startup": (230, 230, 0),
    "terrible": (180, 0, 0),
    "thread_state_iowait": (255, 140, 0),
    "thread_state_runnable": (133, 160, 210),
    "thread_state_running": (126, 200, 148),
    "thread_state_uninterruptible": (182, 125, 143),
    "thread_state_unknown": (199, 155, 125),
    "yellow": (255, 255, 0),
}
"""Names that Catapult's viewer knows, as red, green and blue (its tracing/base/color_scheme.html)."""

_TEXT: Final = "colour {:04}"
_TRIED: Final = 10_000
_SATURATION: Final = 80
_HUES, _LIGHTEST = 360, 40
_DARKEST: Final = 40


@cache
def catapult() -> dict[str, str]:
    """Return for each kind, each phase and `STEPS` the name of its colour in Catapult."""
    names = list(_CATAPULT)
    return _assigned(np.array(list(_CATAPULT.values())) / 255, names.__getitem__)


@cache
def perfetto() -> dict[str, str]:
    """Return for each kind, each phase and `STEPS` the correlation id with its colour in Perfetto."""
    return _assigned(perfetto_colours(), _TEXT.format)


def perfetto_colours() -> Floats:
    """Return what that UI makes of each text that is tried: red, green and blue from 0 to 1."""
    texts = np.array([list(_TEXT.format(number).encode()) for number in range(_TRIED)])
    longer = np.column_stack([texts, np.full(_TRIED, ord("x"))])
    return _hsluv(_hashed(texts) % _HUES, _DARKEST + _hashed(longer) % _LIGHTEST)


def _assigned(offered: Floats, named: Callable[[int], str]) -> dict[str, str]:
    """Give each kind the nearest of the colours on offer that differs enough from those given before.

    Args:
        offered: A row for each colour.
        named: What the colour of a row is called.
    """
    wanted = {**{kind.value: UNKNOWN_GROUND[kind] for kind in Kind}, **_OTHERS}
    places = _oklab(offered)
    taken: dict[str, tuple[int, Floats]] = {}
    for colour in dict.fromkeys(wanted.values()):
        ideal = _oklab(np.array([[int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]]))[0]
        cost = _apart(places, ideal)
        for row, other in taken.values():
            needed = min(_ENOUGH, _KEPT * _apart(ideal, other))
            cost += _WEIGHT * np.clip(needed - _apart(places, places[row]), 0, None)
            cost[row] = np.inf
        taken[colour] = int(np.argmin(cost)), ideal
    return {name: named(taken[colour][0]) for name, colour in wanted.items()}


def _apart(one: Floats, other: Floats) -> Any:
    """Return how different colours in Oklab are: their distance."""
    return np.linalg.norm(one - other, axis=-1)


def _hashed(texts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the hash of texts, a row of character codes each, before it is reduced to a range.

    It is FNV-1a but for two things: the offset has 28 bits, and JavaScript multiplies in doubles, of
    which products of 55 bits lose the lowest.
    """
    found = np.full(len(texts), 0x811C9DC5 & 0xFFFFFFF, np.int64)
    for column in texts.T:
        product = (found ^ column).astype(np.float64) * 16777619.0
        found = (product.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
        found = found.astype(np.int64)
    return np.abs(found)


_RGB_OF_XYZ: Final = np.array(
    [
        [3.240969941904521, -1.537383177570093, -0.498610760293],
        [-0.96924363628087, 1.87596750150772, 0.041555057407175],
        [0.055630079696993, -0.20397695888897, 1.056971514242878],
    ]
)
_WHITE_UV: Final = (0.19783000664283, 0.46831999493879)
_KAPPA: Final = 903.2962962


def _hsluv(hue: NDArray[np.int64], lightness: NDArray[np.int64]) -> Floats:
    """Return colours of HSLuv (https://www.hsluv.org/math) with `_SATURATION`, all lighter than 8 %.

    Saturation is a share of the most chroma that a hue has at a lightness: up to the first of the six
    planes that bound sRGB, which are lines in CIELUV at that lightness.
    """
    angle, light = np.radians(hue), lightness.astype(np.float64)
    relative = ((light + 16) / 116) ** 3
    most = np.full(len(light), np.inf)
    for m1, m2, m3 in _RGB_OF_XYZ:
        for bound in (0, 1):
            slope = (284517 * m1 - 94839 * m3) * relative
            offset = (838422 * m3 + 769860 * m2 + 731718 * m1) * light * relative
            offset -= 769860 * bound * light
            bottom = (632260 * m3 - 126452 * m2) * relative + 126452 * bound
            reach = (offset / bottom) / (np.sin(angle) - slope / bottom * np.cos(angle))
            most = np.minimum(most, np.where(reach >= 0, reach, np.inf))
    chroma = most * _SATURATION / 100
    u = np.cos(angle) * chroma / (13 * light) + _WHITE_UV[0]
    v = np.sin(angle) * chroma / (13 * light) + _WHITE_UV[1]
    x, z = relative * 9 * u / (4 * v), relative * (12 - 3 * u - 20 * v) / (4 * v)
    linear = np.clip(np.column_stack([x, relative, z]) @ _RGB_OF_XYZ.T, 0, 1)
    colours: Floats = np.where(
        linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055
    )
    return colours


_LMS: Final = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_OKLAB: Final = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def _oklab(colours: Floats) -> Floats:
    """Return sRGB colours in Oklab (https://bottosson.github.io/posts/oklab)."""
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    oklab: Floats = np.cbrt(linear @ _LMS.T) @ _OKLAB.T
    return oklab
