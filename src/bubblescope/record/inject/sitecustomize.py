"""Starts the recording of every Python process of a job that `bubblescope record` runs.

The command puts this folder at the front of PYTHONPATH, and Python imports a module of this name when
it starts.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import runpy
import sys


def _next_one() -> None:
    """Run the sitecustomize that this one is in front of, if there is one."""
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_HERE = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("BUBBLESCOPE_RECORD"):
    runpy.run_path(os.path.join(os.path.dirname(_HERE), "start.py"))
_next_one()
