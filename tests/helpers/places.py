"""Where things are that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The project."""

PICTURES = ROOT / "tests" / "pictures"

SHARED = ROOT.parent / "shared" / "data"
"""Real traces that nobody here wrote; tests that read them are skipped without."""
