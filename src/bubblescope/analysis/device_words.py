"""What devices spent their time on, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bubblescope.model.budget import HOST, Use

if TYPE_CHECKING:
    from bubblescope.analysis.spending import Spending

LABELS: Final[dict[Use, str]] = {
    Use.COMPUTE: "compute",
    Use.COMMUNICATION: "exposed communication",
    Use.COPY: "exposed copies",
    Use.HOST_AFTER_SYNC: "host late: after a blocking call",
    Use.HOST_DATA: "host late: loading data",
    Use.HOST_OPTIMIZER: "host late: in the optimizer",
    Use.HOST_GC: "host late: collecting garbage",
    Use.HOST_OPERATOR: "host late: in operators",
    Use.HOST_PYTHON: "host late: in Python",
    Use.HOST_CALL: "host late: in calls of the device's runtime",
    Use.HOST_SYSTEM: "host late: in system calls",
    Use.HOST_UNKNOWN: "host late: the trace does not say why",
    Use.RANK_WAIT: "host waiting for other ranks",
    Use.LAUNCH_CALL: "launch calls on their way",
    Use.LATENCY: "starts of launched work",
    Use.EVENT_WAIT: "waiting for events of other streams",
    Use.PAGES: "until pages of unified memory moved",
    Use.UNTRACED: "waiting for what is not in the trace",
    Use.SILENT: "host silent, or not recorded",
    Use.UNLINKED: "launch is not in the trace",
}
"""What each class of time is called in print."""

BRIEF: Final[dict[Use, str]] = {
    Use.HOST_AFTER_SYNC: "host, after a blocking call",
    Use.HOST_DATA: "host, loading data",
    Use.HOST_OPTIMIZER: "host, in the optimizer",
    Use.HOST_GC: "host, collecting garbage",
    Use.HOST_OPERATOR: "host, in operators",
    Use.HOST_PYTHON: "host, in Python",
    Use.HOST_CALL: "host, in runtime calls",
    Use.HOST_SYSTEM: "host, in system calls",
    Use.HOST_UNKNOWN: "host, unknown",
    Use.RANK_WAIT: "host, waiting for other ranks",
    Use.LAUNCH_CALL: "launch calls",
    Use.LATENCY: "starts of launched work",
    Use.EVENT_WAIT: "events of other streams",
    Use.PAGES: "pages of unified memory",
    Use.UNTRACED: "not in the trace",
    Use.SILENT: "host silent or not recorded",
    Use.UNLINKED: "launch not in the trace",
}
"""The classes of idle time in a few words, where they stand beside the word idle."""

REASONS: Final[dict[str, tuple[tuple[Use, ...], str]]] = {
    "host": (HOST, "the host launched late"),
    "ranks": ((Use.RANK_WAIT,), "hosts waited for other ranks"),
    "call": ((Use.LAUNCH_CALL,), "launch calls were on their way"),
    "latency": ((Use.LATENCY,), "launched work was starting"),
    "event": ((Use.EVENT_WAIT,), "streams waited for events"),
    "pages": ((Use.PAGES,), "pages of unified memory were to be moved"),
    "untraced": ((Use.UNTRACED,), "work waited for what is not in the trace"),
    "silent": ((Use.SILENT,), "the host was silent, or was not recorded"),
    "unlinked": ((Use.UNLINKED,), "it is not known what launched the work"),
}
"""Why devices are idle, in the fewest words: the classes, and a clause."""


def main_reason(spending: Spending) -> tuple[str, int]:
    """Return the key of what makes most idle time in `REASONS`, and how much it makes."""
    sums = {
        key: sum(spending.idle.get(use, 0) for use in uses) for key, (uses, _) in REASONS.items()
    }
    key = max(sums, key=lambda one: sums[one])
    return key, sums[key]


_ELSEWHERE: Final = (Use.HOST_DATA, Use.HOST_GC, Use.HOST_CALL, Use.HOST_SYSTEM)
"""What keeps a host from launching that is no work of the job's own code."""
_LAUNCHING: Final = (*(use for use in HOST if use not in _ELSEWHERE),)
_WAITING: Final = (Use.EVENT_WAIT, Use.UNTRACED, Use.SILENT, Use.UNLINKED)
_COMPUTE_BOUND: Final = 0.8
"""Share of compute from which on nothing else is to blame."""


def bound(spending: Spending) -> str:
    """Return what a run is bound by.

    It is compute, launch, data, gc, runtime, system, communication, copy or waiting; "graph" where
    graphs of which the traces do not tell what ran in them decide about compute.
    """
    if (spending.share(spending.compute_ns) or 0) >= _COMPUTE_BOUND:
        told = spending.share(spending.compute_ns - spending.graphs_ns) or 0
        return "compute" if told >= _COMPUTE_BOUND else "graph"
    idle = spending.idle
    lost = {
        "launch": sum(idle.get(use, 0) for use in (*_LAUNCHING, Use.LAUNCH_CALL, Use.LATENCY)),
        "data": idle.get(Use.HOST_DATA, 0),
        "gc": idle.get(Use.HOST_GC, 0),
        "runtime": idle.get(Use.HOST_CALL, 0),
        "system": idle.get(Use.HOST_SYSTEM, 0),
        "communication": spending.communication_exposed_ns + idle.get(Use.RANK_WAIT, 0),
        "copy": spending.copy_exposed_ns + idle.get(Use.PAGES, 0),
        "waiting": sum(idle.get(use, 0) for use in _WAITING),
    }
    return max(lost, key=lambda key: lost[key])


def headline(spending: Spending) -> str:
    """Say what time was spent on, in one line: idle first, with its main reason."""
    idle = f"idle {_tenths(spending.share(spending.idle_ns))}"
    if spending.idle_ns:
        key, time = main_reason(spending)
        idle += f", of it {100 * time / spending.idle_ns:.0f} % {REASONS[key][1]}"
    busy = (
        ("compute", spending.compute_ns),
        ("of it in graphs that may hide idle time", spending.graphs_ns),
        ("exposed communication", spending.communication_exposed_ns),
        ("exposed copies", spending.copy_exposed_ns),
    )
    shares = [(name, spending.share(time) or 0) for name, time in busy]
    parts = [f"{name} {_tenths(share)}" for name, share in shares if share >= _LEAST_SHOWN]
    return f"{idle}; {', '.join(parts)}" if parts else idle


_LEAST_SHOWN: Final = 0.0005


def _tenths(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
