"""Steps as Prometheus metrics, for a dashboard that watches a running job.

Every metric has the labels of its rank: `rank`, `host`, `stage` (several are "0,7"), `dp` and `tp`,
empty where they are not known. Each rank of a machine listens at a port of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.errors import RecorderError
from bubblescope.model.plain_text import cut, visible
from bubblescope.model.whole_steps import NAMES, ORDER, OTHER, UNRECORDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.record.recorder import Recorder
    from bubblescope.record.step_times import StepTimes, WholeStep
    from bubblescope.recording.columns import Header

_HOST = "127.0.0.1"
_PORTS = 65536


def address_of(text: str) -> tuple[str, int]:
    """Read "19400" or "0.0.0.0:19400"; without a host, only this machine may ask.

    Raises:
        RecorderError: It is neither.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < _PORTS:
        raise RecorderError(
            f"{text!r} is neither a port, such as 19400, nor an address, such as 0.0.0.0:19400"
        )
    return host.strip("[]") or _HOST, int(port)


def serve(recorder: Recorder, address: str, local_rank: int) -> Callable[[], None]:
    """Serve what each step of a recorder was.

    Args:
        recorder: The recorder.
        address: As `address_of` reads it: of the first rank of the machine.
        local_rank: How many ranks of the machine come before: so much further is the port.

    Returns:
        A function that stops serving.

    Raises:
        RecorderError: The address is none, prometheus-client is not installed, or the port cannot
            be listened on.
    """
    try:
        import prometheus_client as prometheus  # noqa: PLC0415  an extra
    except ImportError:
        raise RecorderError(
            "metrics need prometheus-client: pip install 'bubblescope[prometheus]'"
        ) from None
    host, port = address_of(address)
    port += local_rank
    if port >= _PORTS:
        raise RecorderError(
            f"there is no port {port}, which is {local_rank} after that of {address}"
        )
    registry = prometheus.CollectorRegistry()
    metrics = _Metrics(prometheus, registry, recorder.header)
    try:
        server, thread = prometheus.start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise RecorderError(
            f"port {port} of {host} cannot be listened on: {error.strerror or error}"
        ) from None
    recorder.on_step(metrics.observe)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


_LABEL: Final = 200
"""Letters of a task's name in a label."""

_PARTS: Final = frozenset({*ORDER, OTHER, UNRECORDED})
"""Parts of a step that are not names of tasks."""


class _Metrics:
    """The metrics of one rank."""

    def __init__(self, prometheus: Any, registry: Any, header: Header) -> None:
        def gauge(name: str, meaning: str, *labels: str) -> Any:
            made = prometheus.Gauge(
                f"bubblescope_{name}", meaning, [*self._labels, *labels], registry=registry
            )
            return made if labels else made.labels(**self._labels)

        def counter(name: str, meaning: str, *labels: str) -> Any:
            made = prometheus.Counter(
                f"bubblescope_{name}", meaning, [*self._labels, *labels], registry=registry
            )
            return made if labels else made.labels(**self._labels)

        self._labels = {
            "rank": str(header.rank),
            "host": visible(header.host),
            "stage": ",".join(map(str, header.stages or ())),
            "dp": _known(header.dp),
            "tp": _known(header.tp),
        }
        self._seen: set[str] = set()
        self._step = gauge("step", "Last recorded step.")
        self._span = gauge(
            "step_span_seconds", "First forward or backward of the step to its last."
        )
        self._busy = gauge("step_busy_seconds", "Time in it in which a forward or backward ran.")
        self._bubble = gauge("bubble_ratio", "Share of it in which none ran.")
        self._between = gauge(
            "step_between_rounds_seconds",
            "Time in it between the rank's rounds, if it has several.",
        )
        self._kinds = gauge("step_task_seconds", "Time of the step's tasks, by kind.", "kind")
        self._steps = counter("steps", "Steps recorded.")
        self._parts: set[str] = set()
        self._whole = gauge("whole_step", "Last step of which the next has begun.")
        self._whole_parts = gauge(
            "whole_step_seconds",
            "That step, from its start to the start of the next, by what the rank was in.",
            "part",
        )
        self._whole_phase = gauge(
            "whole_step_phase_seconds", "First forward or backward of that step to its last."
        )
        self._wholes = counter("whole_steps", "Steps of which the next has begun.")
        self._wholes_parts = counter(
            "whole_steps_seconds", "All these steps, by what the rank was in.", "part"
        )
        self._wholes_phase = counter(
            "whole_steps_phase_seconds",
            "First forward or backward to the last, of all these steps.",
        )

    def observe(self, times: StepTimes) -> None:
        """Show another step."""
        self._step.set(times.step)
        self._span.set(times.span_ns / 1e9)
        self._busy.set(times.busy_ns / 1e9)
        self._bubble.set(times.bubble)
        self._between.set(times.between_ns / 1e9)
        # A kind that this step did not have must not show what an earlier one took.
        self._seen.update(times.kinds_ns)
        for kind in self._seen:
            self._kinds.labels(**self._labels, kind=kind).set(times.kinds_ns.get(kind, 0) / 1e9)
        self._steps.inc()
        if times.before is not None:
            self._observe_whole(times.before)

    def _observe_whole(self, whole: WholeStep) -> None:
        """Show another whole step. Its parts are few: a job may name tasks as it likes."""
        spent_ns = dict.fromkeys(self._parts, 0)
        for name, ns in whole.spent_ns.items():
            part = cut(visible(name), _LABEL)
            known = part in _PARTS or part in self._parts or len(self._parts - _PARTS) < NAMES
            shown = part if known else OTHER
            self._parts.add(shown)
            spent_ns[shown] = spent_ns.get(shown, 0) + ns
        for part, ns in spent_ns.items():
            self._whole_parts.labels(**self._labels, part=part).set(ns / 1e9)
            self._wholes_parts.labels(**self._labels, part=part).inc(ns / 1e9)
        self._whole.set(whole.step)
        self._whole_phase.set(whole.phase_ns / 1e9)
        self._wholes_phase.inc(whole.phase_ns / 1e9)
        self._wholes.inc()


def _known(number: int | None) -> str:
    return "" if number is None else str(number)
