"""`python -m catalogues`: bring each language's catalogue up to date with the code."""

from __future__ import annotations

import sys

from bubblescope.model.language import ENGLISH, LANGUAGES
from catalogues.catalogue import as_mo, as_po, path_of, problems, updated


def main() -> int:
    """Write the catalogues, and print what is wrong with them."""
    wrong = 0
    for language in LANGUAGES:
        if language == ENGLISH:
            continue
        catalogue, path = updated(language), path_of(language)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(as_po(catalogue))
        path.with_suffix(".mo").write_bytes(as_mo(catalogue))
        for problem in problems(catalogue):
            print(problem)  # noqa: T201  what it is run for
            wrong += 1
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
