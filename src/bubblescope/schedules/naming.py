"""What schedules are called elsewhere: in papers, PyTorch, Megatron-LM, PaddlePaddle and nanotron.

A name is understood in any case, with or without dashes, with PyTorch's `Schedule` before it, and
with "zero bubble" in place of "zb".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALSO: Final = {
    # PaddlePaddle's pass and nanotron's engine
    "fthenb": "gpipe",
    "afab": "gpipe",
    "allforwardallbackward": "gpipe",
    # papers (PipeDream-2BW's flush, Fan et al.), nanotron, and Megatron-LM's function
    "pipedreamflush": "1f1b",
    "dapple": "1f1b",
    "oneforwardonebackward": "1f1b",
    "forwardbackwardpipeliningwithoutinterleaving": "1f1b",
    # Megatron-LM's words and function; 1F1B-I is the Zero Bubble paper's
    "interleaved": "interleaved-1f1b",
    "1f1bi": "interleaved-1f1b",
    "1f1binterleaved": "interleaved-1f1b",
    "vpp": "interleaved-1f1b",
    "virtualpipeline": "interleaved-1f1b",
    "forwardbackwardpipeliningwithinterleaving": "interleaved-1f1b",
    "bfs": "looped-bfs",
    "breadthfirst": "looped-bfs",
    # PyTorch's ScheduleZBVZeroBubble
    "zbvzb": "zb-v",
}
"""Names without case and punctuation, and what they are here."""

_NEAR: Final = 0.6


def meant(name: str, known: Iterable[str]) -> str | None:
    """Return which of the known schedules a name stands for, or None.

    Args:
        name: As somebody wrote it.
        known: Names of schedules.

    >>> meant("ScheduleZBVZeroBubble", ["1f1b", "zb-v"]), meant("ZB H1", ["zb-h1"])
    ('zb-v', 'zb-h1')
    """
    plain = _plain(name)
    own = {_plain(one): one for one in known}
    other = _ALSO.get(plain, "")
    return own.get(plain) or own.get(_plain(other))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known schedule whose name looks most like another, or None if none does.

    >>> nearest("zb-h3", ["1f1b", "zb-h2", "zb-v"]), nearest("nonsense", ["1f1b"])
    ('zb-h2', None)
    """
    own = {_plain(one): one for one in known}
    words = own | {word: one for word, one in _ALSO.items() if one in own.values()}
    from difflib import get_close_matches  # noqa: PLC0415  slow, and only mistakes need it

    found = get_close_matches(_plain(name), words, n=1, cutoff=_NEAR)
    return words[found[0]] if found else None


def _plain(name: str) -> str:
    """Return a name without case, punctuation and what says no more than that it is a schedule."""
    plain = "".join(filter(str.isalnum, name.casefold()))
    plain = plain.removeprefix("schedule").removesuffix("schedule")
    return plain.replace("zerobubble", "zb")
