"""What the recorder tells people, in the language that the job's environment asks for."""

from __future__ import annotations

import os
import warnings

from bubblescope.model import language


def told(text: str) -> str:
    """Return an English text in the language of this process's environment."""
    return language.translated(text, language.of_environment(os.environ))


def warn(text: str, *, stacklevel: int = 2) -> None:
    """Warn of something; the job goes on.

    Args:
        text: What to say.
        stacklevel: Whose line is named, as `warnings.warn` counts for whoever calls this.
    """
    warnings.warn(told(text), RuntimeWarning, stacklevel=stacklevel + 1)
