"""The viewer's script and style, built from the TypeScript in `viewer/` of the source tree."""

from __future__ import annotations
