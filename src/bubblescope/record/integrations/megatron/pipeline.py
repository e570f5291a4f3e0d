"""A rank's pipeline: where its steps begin, and the parts that record what is in them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from bubblescope.record.integrations.evaluations import evaluation
from bubblescope.record.integrations.megatron.compute import Compute
from bubblescope.record.integrations.megatron.messages import Messages, communicating
from bubblescope.record.integrations.megatron.placement import (
    Layout,
    Step,
    coordinates,
    pipeline_place,
)
from bubblescope.record.integrations.megatron.turns import Origins, Progress
from bubblescope.record.integrations.torch_groups import groups_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bubblescope.record.session import Session

    Describe = Callable[[Mapping[str, Any], int, int], dict[str, Any]]
    """Called with a schedule's arguments, this rank's place in the pipeline and how many ranks that
    has, returns what is particular of the step: schedule, stages, microbatches."""

SCHEDULES: Final = {
    "forward_backward_no_pipelining": "no pipelining",
    "forward_backward_pipelining_without_interleaving": "1f1b",
    "forward_backward_pipelining_with_interleaving": "interleaved-1f1b",
}
"""Function -> the schedule that it runs."""

_MARK: Final = "_bubblescope"
"""An attribute of schedules that are recorded already: the session that does."""


class Pipeline:
    """Records what this rank does in its pipeline. A process runs one step at a time.

    Args:
        session: Records it.

    Attributes:
        step: The step that runs now.
        origins: What made the tensors that are sent.
        progress: Which forward or backward is next.
        messages: What is sent and received next.
        compute: Records forwards and backwards.
    """

    def __init__(self, session: Session) -> None:
        self.step = Step(session)
        self.origins = Origins()
        self.progress = Progress(self.origins)
        self.messages = Messages(self.step, self.progress, self.origins)
        self.compute = Compute(session, self.step, self.progress)
        self._session = session
        self._inside = False
        self._ahead = False
        self._introduced = False
        self._laid_out: tuple[Any, ...] = ()

    def communicating(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `_communicate` whose transfers are recorded."""
        return communicating(function, self._session, self.step, self.messages)

    def choosing(self, choose: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that chooses a schedule whose steps are recorded."""

        @functools.wraps(choose)
        def chosen(*args: Any, **kwargs: Any) -> Any:
            self._session.use("megatron")
            return self.stepping(choose(*args, **kwargs))

        return chosen

    def leave(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a schedule that is not to be recorded here, because it is elsewhere."""

        @functools.wraps(run)
        def step(*args: Any, **said: Any) -> Any:
            return run(*args, **said)

        setattr(step, _MARK, self._session)
        return step

    def stepping(
        self, run: Callable[..., Any], describe: Describe | None = None
    ) -> Callable[..., Any]:
        """Return a schedule of which every call is a step, or an evaluation if it runs forwards only.

        Args:
            run: The schedule; it is called with names.
            describe: Says what is particular of a step.
        """
        if getattr(run, _MARK, None) is self._session:
            return run

        evaluate = evaluation(run, self._session)

        @functools.wraps(run)
        def step(*args: Any, **said: Any) -> Any:
            if self._inside:
                return run(*args, **said)
            self._session.use("megatron")
            trains = not said.get("forward_only", False)
            if trains:
                self._begin(getattr(run, "__name__", ""), said, describe)
            self._inside, self.step.training = True, trains
            try:
                return (run if trains else evaluate)(*args, **said)
            finally:
                self._inside = self.step.training = False

        setattr(step, _MARK, self._session)
        return step

    def _begin(self, name: str, said: Mapping[str, Any], describe: Describe | None) -> None:
        # Sail's validation after the step runs the first forwards of the next one, if it can.
        continues, self._ahead = self._ahead, said.get("optimizer") is not None
        if continues and not self._ahead:
            self._session.go_on()
            return
        try:
            self._introduce(name, said, describe)
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)
        self._session.begin_step()

    def _introduce(self, name: str, said: Mapping[str, Any], describe: Describe | None) -> None:
        """Learn what this step is, and tell the session of it the first time."""
        model = said["model"]
        models = list(model) if isinstance(model, list | tuple) else [model]
        rank, ranks = pipeline_place(said.get("p2p_communicator"))
        microbatches = int(said["num_microbatches"])
        facts: dict[str, Any] = {
            "stages": [number * ranks + rank for number in range(len(models))],
            "schedule": SCHEDULES.get(name, name.removeprefix("forward_backward_") or None),
            "microbatches": microbatches,
        }
        facts |= {} if describe is None else describe(said, rank, ranks)
        layout = self._layout(models, facts["stages"], rank, ranks, microbatches)
        self.step.layout = layout
        self.origins.clear()
        self.progress.begin(layout.chunks, layout.passes, layout.backwards)
        self.messages.begin(layout.arrivals)
        if not self._introduced:
            self._introduced = True
            device = next((p.device.index for p in models[0].parameters()), None)
            place = coordinates(said.get("pg_collection"), groups_of(self._session))
            self._session.about(**facts, **place, device=device)

    def _layout(
        self, models: list[Any], stages: list[int], rank: int, ranks: int, microbatches: int
    ) -> Layout:
        """Return the step's layout, which is mostly that of the last step."""
        key = [id(model) for model in models], stages, rank, ranks, microbatches
        if key != self._laid_out:
            self._laid_out = key
            return Layout(models, stages, rank, ranks, microbatches)
        return self.step.layout


def pipeline_of(session: Session) -> Pipeline:
    """Return the pipeline of a session: what several modules of a framework know of it together."""
    return session.shared(Pipeline)
