"""`python -m bubblescope`."""

from __future__ import annotations

from bubblescope.cli import main

if __name__ == "__main__":
    main()
