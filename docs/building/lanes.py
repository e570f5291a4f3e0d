"""Draws the lanes of a few tasks with marked stretches: the small pictures of the explanations."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from bubblescope.model.kinds import COMPUTE_KINDS, Kind
from bubblescope.render.palette import BUBBLE, COLOURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

_MARK: Final = "#c2185b"
_INK: Final = "#333333"
_WIDTH, _LEFT, _LANE, _GAP, _TOP = 640, 84, 20, 6, 8
_BESIDE: Final = 5
"""How high what ran beside the passes is drawn."""
_FONT: Final = "Helvetica,Arial,DejaVu Sans,sans-serif"
_HATCH: Final = (
    '<defs><pattern id="marked" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#fbe3ec"/>'
    f'<rect width="2" height="6" fill="{_MARK}"/></pattern></defs>'
)


class Stretch(NamedTuple):
    """A stretch of time of a rank."""

    rank: int
    start_ns: int
    end_ns: int


class _Scale(NamedTuple):
    """Where moments are."""

    first_ns: int
    last_ns: int

    def x(self, at_ns: float) -> float:
        """Return where a moment is."""
        share = (at_ns - self.first_ns) / (self.last_ns - self.first_ns)
        return _LEFT + share * (_WIDTH - _LEFT - 8)

    def place(self, of: Stretch, height: int = _LANE) -> str:
        """Return the place of a stretch, as attributes of a rectangle."""
        x, width = self.x(of.start_ns), self.x(of.end_ns) - self.x(of.start_ns)
        return f'x="{x:.1f}" y="{_top(of.rank)}" width="{width:.1f}" height="{height}"'


def svg(
    tasks: pl.DataFrame,
    marked: Sequence[Stretch],
    about: str,
    *,
    windows: Sequence[Stretch] = (),
    lanes: Sequence[str],
) -> str:
    """Return a picture of tasks.

    Args:
        tasks: Frame with rank, kind, microbatch, start_ns and end_ns. Ranks are numbered from 0.
        marked: Idle time that is marked.
        about: What the picture shows, for those who cannot see it.
        windows: Stretches that are framed.
        lanes: Titles of the ranks' lanes.
    """
    drawn = [Stretch(*row) for row in tasks.select("rank", "start_ns", "end_ns").iter_rows()]
    everything = [*drawn, *marked, *windows]
    scale = _Scale(min(one.start_ns for one in everything), max(one.end_ns for one in everything))
    parts = [_title(rank, name, scale) for rank, name in enumerate(lanes)]
    parts += [f'<rect {scale.place(one)} fill="url(#marked)" stroke="{_MARK}"/>' for one in marked]
    about_tasks = tasks.select("kind", "microbatch").iter_rows()
    for one, (kind, microbatch) in zip(drawn, about_tasks, strict=True):
        parts.append(_task(one, Kind(kind), microbatch, scale))
    frame = f'fill="none" stroke="{_INK}" stroke-width="1.5" stroke-dasharray="4 2"'
    parts += [f"<rect {scale.place(one)} {frame}/>" for one in windows]
    height = _top(len(lanes)) - _GAP + _TOP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" font-family="{_FONT}" font-size="12" fill="{_INK}">'
        f"<title>{escape(about)}</title>"
        f'<rect width="100%" height="100%" fill="#ffffff"/>{_HATCH}{"".join(parts)}</svg>\n'
    )


def _top(rank: int) -> int:
    return _TOP + rank * (_LANE + _GAP)


def _baseline(rank: int) -> float:
    return _top(rank) + _LANE * 0.7


def _title(rank: int, name: str, scale: _Scale) -> str:
    """Return the title of a lane, and its ground."""
    ground = scale.place(Stretch(rank, scale.first_ns, scale.last_ns))
    return (
        f'<text x="{_LEFT - 8}" y="{_baseline(rank):.1f}" text-anchor="end">{escape(name)}</text>'
        f'<rect {ground} fill="{BUBBLE}"/>'
    )


def _task(of: Stretch, kind: Kind, microbatch: int | None, scale: _Scale) -> str:
    """Return a block with the number of its micro-batch, or a thin bar for what is no pass."""
    if kind not in COMPUTE_KINDS:
        return f'<rect {scale.place(of, _BESIDE)} fill="{_INK}"><title>{kind.value}</title></rect>'
    block = f'<rect {scale.place(of)} fill="{COLOURS[kind]}" stroke="#ffffff" stroke-width="0.6"/>'
    left, right = scale.x(of.start_ns), scale.x(of.end_ns)
    if microbatch is None or right - left < _LANE / 2:
        return block
    ink = _INK if kind is Kind.BACKWARD_WEIGHT else "#ffffff"
    return (
        f'{block}<text x="{(left + right) / 2:.1f}" y="{_baseline(of.rank):.1f}" fill="{ink}" '
        f'text-anchor="middle">{microbatch}</text>'
    )
