"""Megatron-LM's core, and what its forks share with it.

A step is one call of a `forward_backward_...` function of `pipeline_parallel.schedules`, which calls
`forward_step` and `backward_step`, by those names, for every micro-batch; with experts that overlap,
`combined_1f1b.combined_forward_backward_step` does both at once. Neither says the micro-batch in all
versions, but each model chunk runs its forwards in the order of micro-batches, and a backward is given
the very output that its forward returned. All that stages send each other goes through
`_communicate`, a method of `P2PCommunicator` since 0.14 and a function before. Read in 0.4 to 0.20,
run with 0.16.1.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

from bubblescope.record.rows import LANE_OF_KIND, PAIRED, UNKNOWN, pack_place, place_of
from bubblescope.vocabulary import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import ModuleType

    from bubblescope.record.recorder import Recorder
    from bubblescope.record.session import Session

__all__ = [
    "Pipeline",
    "Work",
    "combined",
    "gradients",
    "neighbour",
    "optimizer",
    "p2p",
    "pipeline_of",
    "replace",
    "schedules",
    "taker",
]

_STATE: Final = "megatron.core.parallel_state"
_STEPS: Final = {
    "forward_backward_no_pipelining": "no pipelining",
    "forward_backward_pipelining_without_interleaving": "1f1b",
    "forward_backward_pipelining_with_interleaving": "interleaved-1f1b",
}
"""Function -> the schedule that it runs."""

_MARK: Final = "_bubblescope"
"""An attribute of schedules that are recorded already: the session that does."""


def schedules(module: ModuleType, session: Session) -> None:
    """Record the steps of all schedules, their forwards and their backwards."""
    pipeline = pipeline_of(session)
    replace(
        module,
        {
            **dict.fromkeys(_STEPS, pipeline.stepping),
            "get_forward_backward_func": pipeline.choosing,
            "forward_step": pipeline.forward,
            "backward_step": pipeline.backward,
        },
    )
    if hasattr(module, "backward_step_multimodule"):
        replace(module, {"backward_step_multimodule": pipeline.backward})


def combined(module: ModuleType, session: Session) -> None:
    """Record forwards overlapped with the backward of another micro-batch."""
    replace(module, {"combined_forward_backward_step": pipeline_of(session).both})


def p2p(module: ModuleType, session: Session) -> None:
    """Record what stages send each other."""
    pipeline = pipeline_of(session)
    owner = getattr(module, "P2PCommunicator", module)
    replace(owner, {"_communicate": pipeline.communicating})


def gradients(module: ModuleType, session: Session) -> None:
    """Record the reductions of gradients at the end of a step."""
    replace(
        module,
        {
            "finalize_model_grads": lambda function: session.timed(
                function, lambda *_, **__: place_of(Kind.COLLECTIVE)
            )
        },
    )


def optimizer(module: ModuleType, session: Session) -> None:
    """Record the steps of Megatron's optimizers, with their norms and gathers.

    The step of PyTorch's optimizer is inside, and is not recorded again.
    """
    known = module.MegatronOptimizer

    def recorded(step: Callable[..., Any]) -> Callable[..., Any]:
        return session.timed(_alone(step, session), lambda *_, **__: place_of(Kind.OPTIMIZER))

    for kind in list(vars(module).values()):
        if isinstance(kind, type) and issubclass(kind, known) and "step" in vars(kind):
            replace(kind, {"step": recorded})


class Work(NamedTuple):
    """A micro-batch on one of this rank's model chunks."""

    chunk: int
    microbatch: int


class Pipeline:
    """What this rank does in its pipeline, as its calls say it. A process runs one step at a time.

    Args:
        session: Records it.

    Attributes:
        stages: Global virtual stages of this rank, by chunk.
        rank: This rank's place in the pipeline.
        ranks: How many ranks the pipeline has.
        given: What the next forward or backward is, and of which kind, if the schedule says so.
        sending: Whether what is sent next is an activation, and of which work; None if its own
            tensor tells.
        receiving: The same of what is received next, with the chunk; None if the order tells.
        busy: Whether a forward or a backward is running.
        folded: Whether the stages form a V, in which directions do not tell activations from
            gradients.
        beside: Identity of what a forward overlapped with a backward sends and receives by -> whether
            that is activations.
        communicates: Whether what passes `_communicate` is of a schedule.
        weights: Backwards whose weight gradients are to come.
        splits: Say whether a backward that begins now leaves its weight gradients for later.
    """

    def __init__(self, session: Session) -> None:
        self.stages: list[int] = []
        self.rank = 0
        self.ranks = 1
        self.given: tuple[Kind, Work] | None = None
        self.sending: tuple[bool, Work] | None = None
        self.receiving: tuple[bool, int] | None = None
        self.busy = False
        self.folded = False
        self.communicates = True
        self.beside: dict[int, bool] = {}
        self.weights: deque[Work] = deque()
        self.splits: list[Callable[[], bool]] = []
        self._session = session
        self._inside = False
        self._training = False
        self._ahead = False
        self._introduced = False
        self._waiting: tuple[bytes, Any] | None = None
        self._reset()

    def _reset(self) -> None:
        self._chunks: dict[int, int] = {}
        self._order: dict[bool, Sequence[Work]] = {True: (), False: ()}
        self._arrivals: dict[bool, Sequence[Work]] = {True: (), False: ()}
        self._begun: Counter[int] = Counter()
        self._ended = 0
        self._received: Counter[Any] = Counter()
        self._open: list[tuple[int, Work]] = []
        self._made: dict[int, tuple[ReferenceType[Any], bool, Work]] = {}
        self._last: dict[bool, Work | None] = {True: None, False: None}
        self.weights.clear()

    @property
    def recorder(self) -> Recorder | None:
        """What records, if there is a step of training now that is to be recorded."""
        recorder = self._session.recorder
        if not self._training or recorder is None or not recorder.recording:
            return None
        return recorder

    def place(self, kind: Kind, work: Work | None, *, chunk: int = 0, peer: Any = None) -> bytes:
        """Return where a task belongs, packed.

        Args:
            kind: What the task does.
            work: Its chunk and micro-batch; None if that is not known.
            chunk: Its chunk, if the work is not known.
            peer: Other rank of a send or receive; what is no number is not known.
        """
        chunk, microbatch = (chunk, None) if work is None else work
        return place_of(
            kind,
            stage=self.stages[chunk],
            chunk=chunk if len(self.stages) > 1 else None,
            microbatch=microbatch,
            peer=peer if isinstance(peer, int) else None,
        )

    # Steps.

    def choosing(self, choose: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that chooses a schedule whose steps are recorded."""

        @functools.wraps(choose)
        def chosen(*args: Any, **kwargs: Any) -> Any:
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
        self,
        run: Callable[..., Any],
        describe: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
    ) -> Callable[..., Any]:
        """Return a schedule of which every call is a step.

        An evaluation is no step, and is not recorded.

        Args:
            run: The schedule; it is called with names.
            describe: Called with the schedule's arguments, returns what is particular of it:
                schedule, stages, microbatches.
        """
        if getattr(run, _MARK, None) is self._session:
            return run

        @functools.wraps(run)
        def step(*args: Any, **said: Any) -> Any:
            if self._inside:
                return run(*args, **said)
            trains = not said.get("forward_only", False)
            if trains:
                self._begin(getattr(run, "__name__", ""), said, describe)
            self._inside, self._training = True, trains
            try:
                return run(*args, **said)
            finally:
                self._inside = self._training = self.busy = False
                self.given = self.sending = self.receiving = None

        setattr(step, _MARK, self._session)
        return step

    def _begin(
        self,
        name: str,
        said: Mapping[str, Any],
        describe: Callable[[Mapping[str, Any]], dict[str, Any]] | None,
    ) -> None:
        # Sail's validation after the step runs the first forwards of the next one, if it can.
        continues, self._ahead = self._ahead, said.get("optimizer") is not None
        if continues and not self._ahead:
            return
        try:
            self._introduce(name, said, describe)
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)
        self._session.begin_step()

    def _introduce(
        self,
        name: str,
        said: Mapping[str, Any],
        describe: Callable[[Mapping[str, Any]], dict[str, Any]] | None,
    ) -> None:
        """Learn what this step is, and tell the session of it the first time."""
        self._reset()
        model = said["model"]
        chunks = list(model) if isinstance(model, list | tuple) else [model]
        self._chunks = {id(chunk): number for number, chunk in enumerate(chunks)}
        rank, ranks = _pipeline_place(said.get("p2p_communicator"))
        self.rank, self.ranks = rank, ranks
        microbatches = int(said["num_microbatches"])
        facts: dict[str, Any] = {
            "stages": [number * ranks + rank for number in range(len(chunks))],
            "schedule": _STEPS.get(name, name.removeprefix("forward_backward_") or None),
            "microbatches": microbatches,
        }
        facts |= {} if describe is None else describe(said)
        self.stages = facts["stages"]
        self._expect(len(chunks), microbatches, rank, ranks, chunks[0])
        if not self._introduced:
            self._introduced = True
            device = next((p.device.index for p in chunks[0].parameters()), None)
            self._session.about(**facts, **_coordinates(said.get("pg_collection")), device=device)

    def _expect(self, chunks: int, microbatches: int, rank: int, ranks: int, model: Any) -> None:
        """Foresee in which order activations and gradients come from other ranks."""
        group = max(_group(model) or ranks, 1)
        order = [
            Work(chunk, microbatch)
            for first in range(0, microbatches, group)
            for chunk in range(chunks)
            for microbatch in range(first, min(first + group, microbatches))
        ]
        back = [Work(chunks - 1 - work.chunk, work.microbatch) for work in order]
        self._order = {True: order, False: back}
        # The first stage of all receives no activation, and the last no gradient.
        self._arrivals = {
            True: [work for work in order if rank or work.chunk],
            False: [work for work in back if rank < ranks - 1 or work.chunk < chunks - 1],
        }

    # Forwards and backwards.

    def forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is recorded as the forward of its `model`."""
        model = taker(function, "model")

        def place(*args: Any, **kwargs: Any) -> bytes:
            kind, work = self.next_forward(model(args, kwargs))
            return self.place(kind, work)

        return self.computing(function, place, self.note_forward)

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is recorded as the backward of its `output_tensor`."""
        output = taker(function, "output_tensor")

        def place(*args: Any, **kwargs: Any) -> bytes:
            kind, work = self.next_backward(output(args, kwargs))
            return self.place(kind, work)

        return self.computing(function, place, self.note_backward)

    def both(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is recorded as a forward and a backward at once.

        They are those of its `f_model` and of its `b_output_tensor`; it may have only one of them.
        """
        forwards, backwards = taker(function, "f_model"), taker(function, "b_model")
        output = taker(function, "b_output_tensor")
        has = {True: False, False: False}

        def place(*args: Any, **kwargs: Any) -> bytes | None:
            model, other = forwards(args, kwargs), backwards(args, kwargs)
            has[True], has[False] = model is not None, other is not None
            ahead = self.next_forward(model)[1] if has[True] else None
            back = self.next_backward(output(args, kwargs))[1] if has[False] else None
            if ahead is not None and back is not None:
                return self.overlapped(ahead, back)
            if ahead is not None:
                return self.place(Kind.FORWARD, ahead)
            return None if back is None else self.place(Kind.BACKWARD, back)

        def note(result: Any) -> None:
            made, _, gradient = result
            if has[True]:
                self.note_forward(made)
            if has[False]:
                self.note_backward(gradient)

        return self.computing(function, place, note)

    def computing(
        self,
        function: Callable[..., Any],
        place: Callable[..., bytes | None],
        note: Callable[[Any], None],
    ) -> Callable[..., Any]:
        """Return a function that is recorded as a task which makes tensors.

        Args:
            function: What to record.
            place: Called with the same arguments, returns where the task belongs.
            note: Called with what the function returned.
        """
        timed = self._session.timed(function, place)

        @functools.wraps(function)
        def compute(*args: Any, **kwargs: Any) -> Any:
            if self.busy or self.recorder is None:
                return function(*args, **kwargs)
            self.end_wait()
            self.busy = True
            try:
                result = timed(*args, **kwargs)
            finally:
                self.busy = False
            try:
                note(result)
            except Exception as error:  # noqa: BLE001  the job goes on
                self._session.fail(error)
            return result

        return compute

    def next_forward(self, model: Any) -> tuple[Kind, Work]:
        """Return what a forward of this model chunk, which begins now, is."""
        if self.given is not None:
            kind, work = self.given
        else:
            chunk = self._chunks.get(id(model), 0)
            kind, work = Kind.FORWARD, Work(chunk, self._begun[chunk])
            self._begun[chunk] += 1
        self._last[True] = work
        return kind, work

    def next_backward(self, output: Any = None, chunk: int | None = None) -> tuple[Kind, Work]:
        """Return what a backward, which begins now, is.

        Args:
            output: What its forward returned.
            chunk: Its chunk, if the output is not known.
        """
        if self.given is not None:
            kind, work = self.given
        else:
            left = any(splits() for splits in self.splits)
            kind = Kind.BACKWARD_INPUT if left else Kind.BACKWARD
            at = self._forward_of(output, chunk)
            work = self._open.pop(at)[1]
        self._ended += 1
        self._last[False] = work
        if kind is Kind.BACKWARD_INPUT:
            self.weights.append(work)
        return kind, work

    def forward_of(self, output: Any) -> Work:
        """Return the forward that made an output, or the next whose backward is due."""
        return self._open[self._forward_of(output, None)][1]

    def _forward_of(self, output: Any, chunk: int | None) -> int:
        """Return which of the open forwards it is.

        Raises:
            LookupError: None is open.
        """
        key = None if output is None else id(_first(output))
        for at, (made, _) in enumerate(self._open):
            if made == key:
                return at
        if chunk is None and self._ended < len(self._order[False]):
            chunk = self._order[False][self._ended].chunk
        for at, (_, work) in enumerate(self._open):
            if work.chunk == chunk:
                return at
        if not self._open:
            raise LookupError("a backward without a forward")
        return 0

    def note_forward(self, result: Any) -> None:
        """Remember what the last forward returned: its backward, and who sends it, will name it."""
        work = self._last[True]
        if work is not None and self.given is None:
            self._open.append((id(_first(result)), work))
        self._note(result, True)

    def note_backward(self, result: Any) -> None:
        """Remember what the last backward returned."""
        self._note(result, False)

    def _note(self, result: Any, activation: bool) -> None:
        tensor, work = _first(result), self._last[activation]
        # Not the tensor itself: it would live longer than without us.
        if work is not None and hasattr(tensor, "__weakref__"):
            self._made[id(tensor)] = ref(tensor), activation, work

    def overlapped(self, ahead: Work, back: Work) -> bytes:
        """Return where a forward overlapped with a backward belongs, packed."""
        several = len(self.stages) > 1
        return pack_place(
            self.stages[ahead.chunk],
            ahead.chunk if several else UNKNOWN,
            ahead.microbatch,
            UNKNOWN,
            self.stages[back.chunk],
            back.chunk if several else UNKNOWN,
            back.microbatch,
            PAIRED,
            LANE_OF_KIND[PAIRED],
        )

    # Transfers.

    def communicating(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `_communicate` whose transfers are recorded.

        Those that it waits for are tasks as long as it does. Otherwise a send is one as long as it
        takes to issue, and a receive as long as it is waited for later.
        """

        @functools.wraps(function)
        def communicate(*args: Any, **said: Any) -> Any:
            recorder = self.recorder
            if recorder is None or not self.communicates:
                return function(*args, **said)
            waits = said.get("wait_on_reqs", True)
            try:
                sends, receives = self._transfers(said, *_neighbours(args))
                now = [*sends, *receives.values()] if waits else sends
                began = [(place, recorder.begin_task(place)) for place in now]
            except Exception as error:  # noqa: BLE001  the job goes on
                self._session.fail(error)
                return function(*args, **said)
            try:
                result = function(*args, **said)
            finally:
                for place, at in reversed(began):
                    recorder.end_task(place, at)
            return result if waits or not receives else _awaited(result, receives, recorder)

        return communicate

    def _transfers(
        self, said: Mapping[str, Any], following: Any, preceding: Any
    ) -> tuple[list[bytes], dict[str, bytes]]:
        """Return what a call of `_communicate` sends, and what it receives by the request's name.

        Args:
            said: Its arguments.
            following: Next rank of the pipeline.
            preceding: The rank before.
        """
        sends = []
        for name, downstream, peer in (
            ("tensor_send_next", True, following),
            ("tensor_send_prev", False, preceding),
        ):
            if said.get(name) is None:
                continue
            sent = self.sending or self.made(said[name])
            if sent is None and not self.folded:
                work = self._last[downstream]
                sent = None if work is None else (downstream, work)
            if sent is not None:
                kind = Kind.SEND_FORWARD if sent[0] else Kind.SEND_BACKWARD
                sends.append(self.place(kind, sent[1], peer=peer))
        receives = {}
        for name, downstream, peer in (
            ("recv_prev", True, preceding),
            ("recv_next", False, following),
        ):
            if not said.get(name):
                continue
            arrives = self._arriving(downstream)
            if arrives is not None:
                kind = Kind.RECV_FORWARD if arrives[0] else Kind.RECV_BACKWARD
                receives[name] = self.place(kind, arrives[1], peer=peer)
        return sends, receives

    def _arriving(self, downstream: bool) -> tuple[bool, Work] | None:
        """Return whether what is received now is an activation, and of which work it is."""
        if self.receiving is not None:
            activation, chunk = self.receiving
            number = self._received[self.receiving]
            self._received[self.receiving] += 1
            return activation, Work(chunk, number)
        arrivals = self._arrivals[downstream]
        number = self._received[downstream]
        self._received[downstream] += 1
        if self.folded or number >= len(arrivals):
            return None
        return downstream, arrivals[number]

    def made(self, tensor: Any) -> tuple[bool, Work] | None:
        """Return whether a tensor is an activation, and of which work.

        None if it is neither that nor a gradient, or was not made in this step.
        """
        made = self._made.get(id(tensor))
        # What was at this place in memory may be gone, and something else there.
        return None if made is None or made[0]() is not tensor else made[1:]

    def last(self, activation: bool) -> Work | None:
        """Return the last forward or backward that began."""
        return self._last[activation]

    def begin_wait(self, place: bytes) -> None:
        """Record from now on, as a receive, what the next forward or backward waits for."""
        recorder = self.recorder
        if recorder is not None:
            self._waiting = place, recorder.begin_task(place)

    def end_wait(self) -> None:
        """End the receive that `begin_wait` began, if there is one."""
        waiting, self._waiting = self._waiting, None
        recorder = self.recorder
        if waiting is not None and recorder is not None:
            recorder.end_task(*waiting)


class _Receipt:
    """Receives that are recorded while their requests are waited for.

    Args:
        places: The receives, packed.
        requests: How many requests there are.
        recorder: Records them.
    """

    def __init__(self, places: Iterable[bytes], requests: int, recorder: Recorder) -> None:
        self._places = list(places)
        self._left = requests
        self._recorder = recorder
        self._began: list[Any] = []

    def wait(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for one of the requests."""
        if not self._began and self._recorder.recording:
            self._began = [self._recorder.begin_task(place) for place in self._places]
        try:
            return request.wait(*args, **kwargs)
        finally:
            self._left -= 1
            if self._left == 0 and self._began:
                for place, at in zip(reversed(self._places), reversed(self._began), strict=True):
                    self._recorder.end_task(place, at)


class _Awaited:
    """A request; waiting for it is recorded."""

    def __init__(self, request: Any, receipt: _Receipt) -> None:
        self._request = request
        self._receipt = receipt

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        return self._receipt.wait(self._request, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


def _awaited(result: Any, receives: Mapping[str, bytes], recorder: Recorder) -> Any:
    """Return what `_communicate` returned, with requests that are recorded when waited for."""
    if not isinstance(result, tuple) or not result:
        return result
    *tensors, requests = result
    if isinstance(requests, dict):
        requests = {
            name: _Awaited(request, _Receipt([receives[name]], 1, recorder))
            if name in receives
            else request
            for name, request in requests.items()
        }
    elif isinstance(requests, list):
        # In older versions they have no names: all of them are waited for together.
        receipt = _Receipt(receives.values(), len(requests), recorder)
        requests = [_Awaited(request, receipt) for request in requests]
    return (*tensors, requests)


_pipelines: WeakKeyDictionary[Session, Pipeline] = WeakKeyDictionary()


def pipeline_of(session: Session) -> Pipeline:
    """Return the pipeline of a session: what several modules of a framework know of it together."""
    if session not in _pipelines:
        _pipelines[session] = Pipeline(session)
    return _pipelines[session]


def replace(
    owner: Any, recorded: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]
) -> None:
    """Replace functions of a module or a class by recorded ones.

    If some are missing, that is one warning, and the others are recorded.

    Args:
        owner: The module or the class.
        recorded: Name of a function -> what makes it record.
    """
    missing = []
    for name, record in recorded.items():
        function = getattr(owner, name, None)
        if function is None:
            missing.append(name)
        else:
            setattr(owner, name, record(function))
    if missing:
        warnings.warn(
            f"bubblescope finds no {', '.join(missing)} in {owner.__name__}: this version is not one "
            "that it knows, and what they do will be missing from the recording",
            RuntimeWarning,
            stacklevel=3,
        )


def taker(function: Callable[..., Any], name: str) -> Callable[[Any, Any], Any]:
    """Return a function that finds a parameter's value, or None, in a call's arguments."""
    parameters = list(inspect.signature(function).parameters)
    position = parameters.index(name) if name in parameters else sys.maxsize

    def take(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return args[position] if position < len(args) else kwargs.get(name)

    return take


def _first(made: Any) -> Any:
    """Return the first tensor of a step's result, however it is wrapped."""
    while isinstance(made, list | tuple) and made:
        made = made[0]
    return made


def _alone(function: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """Return a function inside of which nothing is recorded."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = session.recorder
        if recorder is None or not recorder.recording:
            return function(*args, **kwargs)
        recorder.recording = False
        try:
            return function(*args, **kwargs)
        finally:
            recorder.recording = True

    return call


def _pipeline_place(communicator: Any) -> tuple[int, int]:
    """Return this rank's place in its pipeline, and how many ranks that has."""
    group = getattr(communicator, "pp_group", None)
    if group is not None:
        return group.rank(), group.size()
    state = sys.modules[_STATE]
    return (
        state.get_pipeline_model_parallel_rank(),
        state.get_pipeline_model_parallel_world_size(),
    )


def _coordinates(groups: Any) -> dict[str, int]:
    """Return this rank's place in the other dimensions, as far as it is known."""
    state = sys.modules.get(_STATE)
    found = {}
    for name, usual in (("dp", "data"), ("tp", "tensor_model"), ("cp", "context")):
        group = getattr(groups, name, None)
        ask = getattr(state, f"get_{usual}_parallel_rank", None) if group is None else group.rank
        # Without its group, the state asserts instead of answering.
        with suppress(Exception):
            found[name] = int(ask())  # type: ignore[misc]  # None is suppressed as well
    return found


def neighbour(*, following: bool) -> Any:
    """Return the next rank of the pipeline, or the one before."""
    state = sys.modules[_STATE]
    if following:
        return state.get_pipeline_model_parallel_next_rank()
    return state.get_pipeline_model_parallel_prev_rank()


def _group(model: Any) -> int | None:
    """Return how many micro-batches in a row a chunk runs in an interleaved schedule, if it says so."""
    while not hasattr(model, "config") and hasattr(model, "module"):
        model = model.module
    size = getattr(getattr(model, "config", None), "microbatch_group_size_per_vp_stage", None)
    return size if isinstance(size, int) else None


def _neighbours(args: Sequence[Any]) -> tuple[Any, Any]:
    """Return the next rank of the pipeline and the one before.

    Args:
        args: Of `_communicate`: itself or nothing.
    """
    if args and hasattr(args[0], "next_rank"):
        return args[0].next_rank, args[0].prev_rank
    return neighbour(following=True), neighbour(following=False)
