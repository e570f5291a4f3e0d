"""Files made from a timeline, one module per format. None of them analyses anything."""

from __future__ import annotations
