"""The command `bubblescope`, which is also `python -m bubblescope`."""

from __future__ import annotations

import atexit
import os
import sys

from bubblescope.cli import main


def run() -> None:
    """Run the command line as all that this process is for, and end the process at once.

    What was registered to be done at the end is done first. But Python would then take apart all that
    was loaded, piece by piece; that takes as long as a tenth of a small report, and the system takes
    everything back anyway.
    """
    codes: list[int] = []
    atexit.register(_end, codes)  # the first to be registered is the last to be called
    try:
        main()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            codes.append(ended.code or 0)
        raise


def _end(codes: list[int]) -> None:
    """End the process with its exit code, if it has one: a bug leaves none."""
    if not codes:
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # Python says so in its own way
    os._exit(codes[0])


if __name__ == "__main__":
    run()
