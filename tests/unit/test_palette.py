"""Colours are grouped by everyone, on light grounds and on dark ones.

Contrast is WCAG 2.2's; colour blindness is simulated as Machado, Oliveira and Fernandes, "A
Physiologically-based Model for Simulation of Color Vision Deficiency" (IEEE TVCG, 2009), have it at
severity 1; distances are in OKLab (Ottosson 2020). None of it is the palette's own arithmetic.
"""

from __future__ import annotations

import re
from itertools import combinations, product

import numpy as np
import pytest

from bubblescope.analysis.idle.causes import INHERENT, Cause
from bubblescope.model.budget import BUSY
from bubblescope.model.kinds import LANE_OF, TRANSFERS, Kind, Lane
from bubblescope.render import palette
from places import ROOT

VISIONS = {
    "as most see": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
GROUNDS = {
    "light": (palette.COLOURS, palette.BUBBLE, 1),
    "dark": (palette.DARK_COLOURS, palette.DARK_BUBBLE, 2),
}
vision = pytest.mark.parametrize("seen", VISIONS)
ground = pytest.mark.parametrize("on", GROUNDS)
STYLE = (ROOT / "viewer/src/style.css").read_text()


def light(colour: str, seen: str = "as most see") -> np.ndarray:
    share = np.array(list(bytes.fromhex(colour[1:]))) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return np.clip(VISIONS[seen] @ linear, 0, 1)


def contrast(one: str, other: str, seen: str = "as most see") -> float:
    low, high = sorted(light(colour, seen) @ (0.2126, 0.7152, 0.0722) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def distance(one: str, other: str, seen: str) -> float:
    """Return 100 times the distance in OKLab."""
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    first, second = (lab @ np.cbrt(cones @ light(colour, seen)) for colour in (one, other))
    return 100 * float(np.linalg.norm(first - second))


def grounds(on: str) -> dict[str, str]:
    """The colours of idle lanes in the page's style sheet: steady, in warm-up and in cool-down."""
    found = {name: re.findall(rf"--{name}: (#\w{{6}})", STYLE) for name in ("idle", "warm", "cool")}
    # First the light theme, then the dark one, as chosen and as the system has it.
    for light_one, *dark_ones in found.values():
        assert light_one not in dark_ones
        assert len(set(dark_ones)) == 1
    return {name: colours[0 if on == "light" else 1] for name, colours in found.items()}


@ground
def test_the_page_has_the_palettes_ground(on):
    assert grounds(on)["idle"] == GROUNDS[on][1]


@vision
@ground
@pytest.mark.parametrize("backward", [Kind.BACKWARD, Kind.BACKWARD_INPUT])
def test_forward_backward_and_idle_time_differ_in_luminance(on, seen, backward):
    fills, _, _ = GROUNDS[on]
    assert contrast(fills[Kind.FORWARD], fills[backward], seen) >= 3
    for idle in grounds(on).values():
        assert contrast(fills[Kind.FORWARD], idle, seen) >= 3
        assert contrast(fills[backward], idle, seen) >= 3


@vision
@ground
def test_whatever_follows_on_a_lane_differs_by_its_fill_or_has_a_line_that_does(on, seen):
    fills, idle, _ = GROUNDS[on]
    computing = [kind for kind in Kind if LANE_OF[kind] == Lane.COMPUTE]
    for before, after in product([None, *computing], computing):
        fill = fills[after]
        by_fill = contrast(idle if before is None else fills[before], fill, seen)
        # The line at the start of a block lies on its own fill.
        by_line = contrast(palette.outline_of(fill), fill, seen)
        assert max(by_fill, by_line) >= 3, (before, after)


@vision
@ground
def test_lines_all_around_are_seen_on_the_ground(on, seen):
    """A kind whose fill the ground nearly swallows is told from it by its line."""
    fills, idle, _ = GROUNDS[on]
    swallowed = [kind for kind in Kind if contrast(fills[kind], idle) < 3]
    assert Kind.BACKWARD_WEIGHT in swallowed
    for kind in swallowed:
        assert contrast(palette.outline_of(fills[kind]), idle, seen) >= 3, kind
        assert contrast(palette.outline_of(fills[kind]), fills[kind], seen) >= 3, kind


@vision
@ground
def test_kinds_of_compute_look_different(on, seen):
    fills, idle, _ = GROUNDS[on]
    kinds = (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_WEIGHT, Kind.RECOMPUTE, Kind.OPTIMIZER)
    for one, other in combinations([idle, *(fills[kind] for kind in kinds)], 2):
        assert distance(one, other, seen) > 9


@vision
@ground
def test_backwards_that_are_split_look_different_from_those_that_are_not(on, seen):
    _, idle, at = GROUNDS[on]
    shown = [Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT]
    fills = palette.colours_beside([kind.value for kind in shown], dark=at == 2)
    for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_WEIGHT, Kind.RECOMPUTE, Kind.OPTIMIZER):
        assert distance(fills[Kind.BACKWARD_INPUT], fills[kind], seen) > 18
    assert contrast(fills[Kind.BACKWARD_INPUT], fills[Kind.BACKWARD]) > 2  # in print
    assert contrast(fills[Kind.BACKWARD_INPUT], idle, seen) > 3


@ground
def test_without_fused_backwards_those_of_inputs_are_as_strong(on):
    fills, _, at = GROUNDS[on]
    alone = palette.colours_beside(["backward_input", "backward_weight"], dark=at == 2)
    assert alone == fills
    beside = palette.colours_beside(["forward_backward", "backward_input"], dark=at == 2)
    assert {kind for kind in Kind if beside[kind] != fills[kind]} == {Kind.BACKWARD_INPUT}


@ground
def test_transfers_never_outshine_compute(on):
    fills, idle, _ = GROUNDS[on]
    computing = min(contrast(fills[kind], idle) for kind in (Kind.FORWARD, Kind.BACKWARD))
    for kind in (*TRANSFERS, Kind.COLLECTIVE):
        assert contrast(fills[kind], idle) < computing


@vision
@ground
def test_causes_are_seen_and_differ_in_pattern_or_look(on, seen):
    _, idle, at = GROUNDS[on]
    looks = palette.CAUSE_LOOKS
    assert set(looks) == set(Cause)
    for look in looks.values():
        assert contrast(look[at], idle, seen) >= 3
    for one, other in combinations(set(looks.values()), 2):
        if one[0] == other[0]:
            assert distance(one[at], other[at], seen) > 9, (one, other)


def test_only_what_is_the_same_looks_alike():
    alike = {}
    for cause, look in palette.CAUSE_LOOKS.items():
        alike.setdefault(look, set()).add(cause)
    shared = [causes for causes in alike.values() if len(causes) > 1]
    assert shared == [
        set(INHERENT),
        {Cause.TRANSFER, Cause.SEND},
        {Cause.LAUNCH, Cause.CODE},
    ]


def test_without_patterns_causes_of_one_hue_are_one_line_or_two():
    for (one, look), (other, another) in combinations(palette.CAUSE_LOOKS.items(), 2):
        if look[1:] == another[1:] and look != another:
            assert (one in palette.STRIPED) != (other in palette.STRIPED), (one, other)


@ground
def test_what_is_written_on_a_fill_can_be_read(on):
    for fill in GROUNDS[on][0].values():
        assert contrast(palette.ink_on(fill), fill) >= 4.5


def test_every_kind_and_use_has_a_colour_on_every_ground():
    for colours in (palette.COLOURS, palette.DARK_COLOURS, palette.UNKNOWN_GROUND):
        assert set(colours) == set(Kind)
    for uses in (palette.USE_COLOURS, palette.DARK_USE_COLOURS):
        assert set(uses) == set(BUSY)


def test_where_the_ground_is_unknown_forward_and_backward_are_seen_on_white_and_on_black():
    for kind, end in product((Kind.FORWARD, Kind.BACKWARD), ("#ffffff", "#000000")):
        assert contrast(palette.UNKNOWN_GROUND[kind], end) > 2
