"""What the recorder tells people, in the language that the job's environment asks for."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress

from bubblescope.model import language


def told(text: str) -> str:
    """Return an English text in the language of this process's environment."""
    return language.translated(text, language.of_environment(os.environ))


def warn(text: str, *, stacklevel: int = 2) -> None:
    """Warn of something; the job goes on, also one in which warnings are errors.

    Args:
        text: What to say.
        stacklevel: Whose line is named, as `warnings.warn` counts for whoever calls this.
    """
    said = told(text)
    try:
        warnings.warn(said, RuntimeWarning, stacklevel=stacklevel + 1)
    except RuntimeWarning:
        _print(said)


def _print(said: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # it is closed, or there is none
        sys.stderr.write(f"{said}\n")
