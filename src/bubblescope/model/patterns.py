"""Regular expressions that users write."""

from __future__ import annotations

import re
import warnings


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a regular expression.

    Raises:
        ValueError: It is none; the message says why.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # what later Pythons may read otherwise
            return re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
