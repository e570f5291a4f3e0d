"""`python -m bubblescope`."""

from __future__ import annotations

from bubblescope.cli import main

main()
