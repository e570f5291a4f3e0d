"""Reading and viewing ask for nothing that only POSIX systems have; recording may.

They are tested on Linux alone. That modules can be imported, and a run be read and written, without
what other systems lack, is all that is known of those.
"""

from __future__ import annotations

import subprocess
import sys

from places import ROOT

PROGRAM = """
import importlib, os, pkgutil, signal, sys

def ours():
    return [name for name in sys.modules if name.partition(".")[0] == "bubblescope"]

def everything():
    import bubblescope
    skipped = tuple(
        "bubblescope." + name for name in ("record", "demo", "cli.record", "cli.demo", "__main__")
    )
    def walk(package):
        for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if found.name.startswith(skipped) and not found.name.startswith("bubblescope.recording"):
                continue
            try:
                module = importlib.import_module(found.name)
            except Exception as error:
                extra = getattr(error, "name", None) in {"dask", "distributed"}
                if extra or "pip install 'bubblescope[" in str(error):
                    continue
                raise
            yield found.name
            if found.ispkg:
                yield from walk(module)
    return list(walk(bubblescope))

def work():
    import bubblescope
    run = bubblescope.load(sys.argv[1])
    str(run.report()), str(run.why()), run.view(sys.argv[2])

# What other packages ask of this system is their business, and they have asked now.
everything()
work()
for name in ours():
    del sys.modules[name]

for name in "fcntl resource pwd grp termios tty pty readline syslog curses".split():
    sys.modules[name] = None
for name in (
    "sched_getaffinity getpgrp getpgid getuid geteuid sysconf fork mkfifo statvfs killpg setsid uname"
).split():
    delattr(os, name)
for name in "SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGALRM pthread_sigmask setitimer alarm".split():
    delattr(signal, name)
modules = everything()
work()
print(len(modules))
"""


def test_reading_and_viewing_ask_for_nothing_that_other_systems_lack(tmp_path):
    run = ROOT / "examples" / "demo" / "1f1b"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(run), str(tmp_path / "page.html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 200
    assert (tmp_path / "page.html").stat().st_size > 100_000
