"""Steps and micro-batches of a loop that says neither."""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of, place_of
from bubblescope.record.integrations.evaluations import EVALUATION
from bubblescope.record.integrations.receipts import awaited, recording
from bubblescope.record.integrations.torch_aside import ASIDE
from bubblescope.record.integrations.torch_common import Steps, leave_out, leave_out_whole
from bubblescope.record.integrations.torch_copies import Copies
from bubblescope.record.integrations.torch_groups import groups_of
from bubblescope.record.integrations.torch_loop.called import Called
from bubblescope.record.integrations.torch_loop.compiling import Compiler
from bubblescope.record.integrations.torch_loop.followed import Followed
from bubblescope.record.integrations.torch_loop.graph_origins import Origins, Work, apart
from bubblescope.record.integrations.torch_loop.in_passes import names, transfers
from bubblescope.record.integrations.torch_loop.models import Modules, in_checkpoint, in_function
from bubblescope.record.integrations.torch_loop.ranks import Standing, comes_next, global_rank
from bubblescope.record.integrations.torch_loop.skipping import Skipping
from bubblescope.record.notes import FORWARD, OPTIMIZER
from bubblescope.recording.columns import UNTIMED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bubblescope.record.session import Session

    Places = Callable[..., Sequence[bytes]]

_TRIES: Final = 3
"""Times to look for the modules that a loop calls, if those found first are never called."""

_DATA: Final = (identity_of(Kind.DATA),)
_COLLECTIVE: Final = (identity_of(Kind.COLLECTIVE),)
_SOME_BACKWARD: Final = identity_of(Kind.BACKWARD)
"""Where a backward belongs of which is not known what made its tensors."""
_OUTSIDE: Final = object()
"""In the place of a task that runs: none does, but what comes next has to be thought about."""
_now: Final = time.monotonic_ns
_thread: Final = threading.get_ident


def _collects(*_: Any, **__: Any) -> tuple[bytes, ...]:
    return _COLLECTIVE


def _called(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _held_by(optimizer: Any) -> list[Any]:
    return [one for group in optimizer.param_groups for one in group["params"]]


class Loop:
    """Follows a training loop.

    Only one thread counts, for others fetch data or compute gradients, or train models of their own:
    the one that made the first optimizer, until it ends, or another turns out to make the steps.

    Args:
        session: Records what is found.

    Attributes:
        thread: That thread; 0 before.
        inside: The function that is a task now; None if none is and the next one is as usual: in a
            step, of models that are known, after nothing failed.
        outside: What `inside` is where no task is; not None if the next one is not as usual.
        intake: Where tasks are put.
        origins: Which forward made what.
        number: Returns the number of the next node that this thread makes.
        models: Those that are followed.
        compiler: Says whether what runs is compiled.
        passing: Functions that only pass on what is called within what was compiled.
        recording: Functions that record it there too.
    """

    # Until there is an optimizer, PyTorch may not have been imported as a whole.
    origins: Origins
    number: Callable[[], int]
    _tensor: Any
    _has_gradients: Callable[[], bool]

    def __init__(self, session: Session) -> None:
        self._session = session
        self._torch = sys.modules["torch"]
        self.thread = 0
        self._adopting = threading.Lock()
        self._stepped = False
        """Whether that thread has made a step since it is followed."""
        self._other = 0
        """The thread that made the last step, if that was another."""
        self.compiler = Compiler()
        self.passing: list[Any] = []
        self.recording: list[Any] = []
        self.inside: Any = _OUTSIDE
        self.outside: Any = _OUTSIDE
        self.intake = session.intake
        self._called, self._tries = False, _TRIES
        self._standing: Standing | None = None
        self._step = -1
        self._between = True
        self._empty = False
        """Whether a step has begun that nothing is part of yet, so that it may not come at all."""
        self._recording = False
        """Whether that step is to be recorded."""
        self._backward: Any = None
        self._gradient: Any = None
        """What computes gradients otherwise, `torch.autograd.grad`."""
        self._started: Work | None = None
        """What the last backward started from."""
        self._failed: Work | None = None
        """What a backward of this step started from that failed, as long as it was not tried again."""
        self._fed_by: weakref.WeakSet[Any] = weakref.WeakSet()
        """Iterators of data that the training has fetched from."""
        self._feeds = False
        """Whether data is fetched from one of these now."""
        self._untimed: set[str] = set()
        """What has been said to be done in forwards, though it is not recorded."""
        session.when_used(self._heed)
        session.shared(Copies).loop = self
        self._skipping = Skipping()
        self._evaluated = session.beside(_called, ASIDE, EVALUATION, early=True)
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those of all threads."""
        self.models = Followed(self, session)

    # The loop's models

    def adopt(self, optimizer: Any) -> None:
        """Follow the models whose parameters an optimizer holds."""
        if self._session.framework is not None:
            return
        self._session.saw.add(OPTIMIZER)
        try:
            self._optimizers.add(optimizer)
            with self._adopting:
                here = self._in_thread()
            if not here:
                self._session.shared(Steps).leave(optimizer)
                return
            wanted = _held_by(optimizer)
            known = self.models.parameters()
            if not known.issuperset(map(id, wanted)):  # some have one for each parameter
                if not self._between and self.models.gone():  # as where a training failed
                    self._begin_anew(0)
                self.models.adopt(wanted, early=self._step < 0)
                self._called, self._tries = False, _TRIES
                self._skipping = Skipping()
                self._heed()
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _in_thread(self) -> bool:
        """Say whether this is the thread that is followed: the first, until that has ended."""
        if self._session.thread is threading.current_thread() and self.thread:
            return True
        if not self.thread:
            self._tensor = self._torch.Tensor
            self.origins = Origins(self._tensor)
            self.number = self._torch.autograd._get_sequence_nr  # noqa: SLF001  it has no other name
            self.compiler.bind(self._torch)
            self._has_gradients = self._torch.is_grad_enabled
        elif self._session.thread.is_alive():
            return False
        self._follow_thread()
        return True

    def _follow_thread(self) -> None:
        """Follow this thread from now on."""
        with suppress(Exception):  # older versions may not tell who looks on
            apart(self._torch)
        self.origins.clear()
        self._session.thread = threading.current_thread()
        self.thread, self._stepped, self._other = _thread(), False, 0

    def _succeed(self) -> None:
        """Follow this thread, which trains, if the one that was followed has ended.

        It may have the very identity of that one: the system gives it again.
        """
        if self.thread and not self._session.thread.is_alive():
            self._take_over()

    def _take_over(self) -> None:
        """Follow this thread, if it is not the one that is followed."""
        with self._adopting:
            if self._session.thread is not threading.current_thread():
                self._follow_thread()

    def _trains_first(self) -> bool:
        """Say whether a forward here is the first of all: the thread that is followed may not train."""
        try:
            leaves = self._session.shared(Steps).leaves
            alone = self._step < 0 and not any(map(leaves, self._optimizers))
            return alone and self._in_training()
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)
            return False

    def stepped_elsewhere(self, optimizer: Any) -> None:
        """Note a step of another thread than the one that is followed, or of an optimizer of its own.

        If it shows that the thread is the one that trains, that is followed from now on.
        """
        try:
            with self._adopting:
                steps = 1 + (self._other == _thread())
                trains = self.thread == _thread() or self._takes_over(optimizer, steps)
                self._other = _thread()
                if trains and self.thread != _thread():
                    # One of them may have been begun by the thread that was followed.
                    self._session.skip_steps(steps if self._between else steps - 1)
                    # What trained beside one that has ended is left out until now; else nothing is.
                    beside = self._step >= 0 and self._session.shared(Steps).leaves(optimizer)
                    self._session.count_elsewhere(1 if beside else 1 - steps)
                    self._follow_thread()
                    self.inside, self._between, self._stepped = _OUTSIDE, True, True
            if not trains:
                self._session.optimized_elsewhere()
                return
            self._session.shared(Steps).join(optimizer)
            self.adopt(optimizer)
            self._heed()
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _takes_over(self, optimizer: Any, steps: int) -> bool:
        """Say whether a thread that has made so many steps in a row trains in the followed one's place.

        That may be in the midst of its first step, or slower than others. So where it has stepped, it
        has to rest between two steps; and one with optimizers of its own trains beside it.
        """
        if not self._session.thread.is_alive():
            return True
        if self._session.shared(Steps).leaves(optimizer):
            return steps > 1 and self._step < 0
        return not self._stepped or (steps > 1 and self._between)

    def compiled(self, model: Any, made: Any) -> None:
        """Follow what a model that is followed has been compiled to; see `Followed.compiled`."""
        try:
            self.models.compiled(model, made)
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def call_part(self) -> None:
        """Follow the parts of the models from now on, for one is called by itself."""
        if not self._called and _thread() == self.thread and self._has_gradients():
            self._look_further()

    def _look_further(self) -> None:
        """Follow other modules too, for those that are followed are never called."""
        try:
            self._tries -= 1
            self.models.look_further(self._trained())
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _follow_untrained(self) -> None:
        try:
            self.models.follow_untrained(self._trained, early=self._step < 0)
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _held(self) -> Iterator[Any]:
        """Yield the parameters that optimizers hold."""
        return (one for optimizer in self._optimizers for one in _held_by(optimizer))

    def _trained(self) -> set[int]:
        """Return their identities."""
        return set(map(id, self._held()))

    def within_compiled(self, eval_frame: Any) -> None:
        """Record what is called between the graphs of what was compiled, if that can be."""
        session = type(self._session)
        ours = (
            *(Loop._said, Loop._fails, Loop._take_back, Modules.add),
            *(Loop._in_pass, Loop._note_untimed, Loop._said_in_pass, Loop._await_collective),
            recording(_called),
            *(session.begin, session.end, session.abandon),
        )
        if leave_out_whole(eval_frame, *ours):
            leave_out(eval_frame, Loop._run, Loop._collect_in_pass, *self.recording)

    # Steps

    def _heed(self) -> None:
        """Let `outside`, and `inside` where no task is, say whether what comes next is as usual."""
        usual = self._called and not self._between and self._failed is None
        usual = usual and self._session.framework is None
        free = self.inside is None or self.inside is _OUTSIDE
        self.outside = None if usual else _OUTSIDE
        if free:
            self.inside = self.outside

    def end_step(self) -> None:
        """Note that an optimizer has made its step: what comes next is the next step's."""
        # Some make it within the backward, in autograd's thread; those inside a model do not count.
        in_backward = self.inside is not None and self.inside is self._backward
        if self._between or not (in_backward or self._free()):
            return
        if not self._called and self._tries > 0:
            self._look_further()
        self._between = self._stepped = True
        self._other = 0
        self._skipping.end_step()
        self._heed()

    def clear(self, owner: Any) -> None:
        """Note that an optimizer or a module has cleared gradients: the batch may have been skipped."""
        if self._torch.compiler.is_compiling() or self._between:
            return
        try:
            if self._free() and not self._session.shared(Steps).computing:
                cleared = _held_by(owner) if hasattr(owner, "param_groups") else owner.parameters()
                if self._skipping.ends(cleared, self._held(), self.origins):
                    self.end_step()
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _free(self) -> bool:
        """Say whether this is the loop itself, in no task."""
        if self._session.framework is not None:
            self.models.leave()  # the job turned out to use a framework's schedules
        nothing = self.inside is None or self.inside is _OUTSIDE
        return nothing and _thread() == self.thread and bool(self.models)

    def _enter(self, begins: Callable[[], bool] | None = None) -> bool:
        """Say whether what happens now is to be recorded.

        Args:
            begins: Says whether it begins a step if none has begun. If not, it is not recorded then.
        """
        if not self._free():
            return False
        if self._between:
            if begins is None or self._validates() or not begins():
                return False
            self._begin()
        recorder = self._session.recorder
        return recorder is not None and recorder.recording and not self._between

    def _validates(self) -> bool:
        """Say whether what happens between steps is of a validation: the loop runs without gradients.

        Functions of autograd do so too, such as one that receives what a model in training is given.
        """
        if self._torch.is_grad_enabled():
            return False
        return not (in_function() and self._in_training())

    def _begin(self) -> None:
        """Begin a step."""
        self._between = False
        self._heed()
        recorder = self._session.recorder
        if self._empty:
            self._empty = False
            if recorder is not None:
                recorder.recording = self._recording
            return
        if self._step < 0:
            self._introduce()
        self._follow_untrained()
        self._step += 1
        self._failed = None
        self.origins.begin_step()
        for chunk in self.models.chunks:
            chunk.go_on(0)
        self._heed()
        self._session.begin_step()

    def _take_back(self) -> None:
        """Let nothing be recorded until something else begins the step."""
        self._between = self._empty = True
        self._heed()
        recorder = self._session.recorder
        if recorder is not None:
            self._recording, recorder.recording = recorder.recording, False

    def _introduce(self) -> None:
        """Tell the session what there is to tell."""
        try:
            count = len(self.models.there())
            self.models.follow_wrappers()
            models = self.models.there()
            self._standing = self._standing or self._stands(receives=False)
            device = next((one.device for model in models for one in model.parameters()), None)
            groups = groups_of(self._session)
            for model in models:
                groups.used_in(model)
            replica = self._standing.replica
            if replica is not None:  # a guess, which groups may know better
                replica = groups.coordinates().get("dp", groups.replica(replica))
            self._session.about(
                # Several models may be parts of one stage; that shows when they are called.
                stages=[self._standing.stage] if count == 1 else None,
                dp=replica,
                device=getattr(device, "index", None),
            )
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _stands(self, *, receives: bool) -> Standing:
        return Standing.found(self._session.pipeline, self.models.there(), receives=receives)

    # What begins a step

    def _always(self) -> bool:
        return True

    def receives(self) -> bool:
        """Say whether this is a later stage: only these begin a step with a receive."""
        standing = self._standing or self._stands(receives=True)
        if standing.stage > 0:
            self._standing = standing
        return standing.stage > 0

    def _trains(self) -> bool:
        """Say whether data is for training, not for a validation.

        Before the first step of what may be a later stage, nobody knows: it may fetch labels, but what
        it begins with is what tells that it is one.
        """
        known = self._standing or self._session.pipeline
        if known is None and self._stands(receives=True).stage > 0:
            return False
        return self._in_training()

    def _in_training(self) -> bool:
        return self._feeds or self.models.in_training()

    # Tasks

    def backwards(self, function: Any) -> Any:
        """Return a function that runs backwards and is recorded."""
        self._backward = function
        otherwise = self.timed(function, self._backs, self._always)
        intake, compiler, now, thread = self.intake, self.compiler, _now, _thread
        models = self.models

        # As in `Called.__call__`: the usual case in one piece. Arguments have the places and names that
        # they have in PyTorch, for to pack them takes as long as all else.
        @functools.wraps(function)
        def call(
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: Any = None,
            create_graph: Any = False,
            grad_variables: Any = None,
            inputs: Any = None,
        ) -> Any:
            if compiler.used and compiler.traces():
                return function(
                    tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs
                )
            items = intake.items
            if (
                self.inside is not None
                or items is None
                or thread() != self.thread
                or (compiler.used and compiler.compiles())
            ):
                return otherwise(
                    tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs
                )
            origins, work, reduction = self.origins, None, None
            try:
                root = tensors.grad_fn if type(tensors) is self._tensor else None
                reducing = models.reducing
                reduction = None if reducing is None else reducing.within(root)
                if root is not None and origins.open == 1 and not (retain_graph or create_graph):
                    far = root._sequence_nr() - origins.bounds[-1]  # noqa: SLF001  it has no other name
                    if far == origins.far and type(root) is origins.kind:
                        work = origins.last
                del root  # it must not outlive the graph's own time
                if work is None:
                    work = origins.backs(tensors, frees=not (retain_graph or create_graph))
                else:
                    origins.open = 0
            except Exception as error:  # noqa: BLE001  the job goes on
                self._session.fail(error)
            what = _SOME_BACKWARD if work is None else work.backward
            try:  # as in `Called.__call__`
                self.inside = function
                step, begin = intake.step, now()
                result = function(
                    tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs
                )
            except BaseException:
                self._fails(work)
                raise
            finally:
                self.inside = self.outside
                end = now()
            end = end if reduction is None else reduction.ended(items, step, end)
            items += (step, what, begin, end, begin, end, None)
            if len(items) >= intake.most:
                intake.relieve()
            return result

        self.recording.append(call)
        return call

    def gradients(self, function: Any) -> Any:
        """Return a function that computes gradients and is recorded, within a step, as a backward."""
        self._gradient = function
        recorded, compiler = self.timed(function, self._computes), self.compiler

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            inside = compiler.used and (compiler.traces() or compiler.compiles())
            # Before there is an optimizer, nothing is recorded, and not all of PyTorch may be there.
            return (function if inside or not self.thread else recorded)(*args, **kwargs)

        self.passing.append(call)
        return call

    def _fails(self, work: Work | None) -> None:
        """Note what a backward that failed started from."""
        self._failed = work
        if work is not None:
            self.origins.spoil()
        self._heed()

    def fetching(self, function: Any) -> Any:
        """Return a function that waits for data and is recorded; the end of the data is no task.

        Between steps, what is fetched while the model is not in training is part of an evaluation,
        unless the training has fetched from there before: some do, and then put the model back.
        """
        training = self.timed(function, lambda _: _DATA, self._trains)
        evaluating = self._session.beside(function, ASIDE, EVALUATION, early=True)

        @functools.wraps(function)
        def call(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            aside = False
            try:
                if self.thread != _thread() and self._in_training():
                    self._succeed()
                if self._free():
                    self._feeds = iterator in self._fed_by
                    if self._between:
                        # Before the first step, some may fetch labels only: what trains is in training.
                        aside = not (self._trains() if self._step >= 0 else self._in_training())
                    if not (aside or self._feeds) and self._in_training():
                        self._fed_by.add(iterator)
            except Exception as error:  # noqa: BLE001  the job goes on
                self._session.fail(error)
            try:
                return (evaluating if aside else training)(iterator, *args, **kwargs)
            finally:
                self._feeds = False

        return call

    def timed(self, function: Any, places: Places, begins: Callable[[], bool] | None = None) -> Any:
        """Return a function that does the same and is recorded, unless it is part of another task.

        Args:
            function: What to record. A call that fails was none.
            places: Called with the same arguments, returns the tasks, packed.
            begins: Says whether it begins a step if none has begun; if not, it is no task then.
        """

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._torch.compiler.is_compiling():
                return function(*args, **kwargs)
            first = self._between
            said = self._said(places, begins, args, kwargs)
            if said is None:
                return function(*args, **kwargs)
            return self._run(function, args, kwargs, said, first=first)

        self.recording.append(call)
        return call

    def collective(self, function: Any) -> Any:
        """Return a collective that is recorded: one that returns at once, while it is waited for.

        In a pass that is timed on the host too: there ranks wait for each other, as FSDP's do. A device
        does not wait where its host calls it, and other threads' collectives keep no pass waiting.
        """
        alone = self.timed(function, _collects)

        @functools.wraps(function)
        def collect(*args: Any, **kwargs: Any) -> Any:
            if self._torch.compiler.is_compiling():
                return function(*args, **kwargs)
            if kwargs.get("async_op"):
                work = function(*args, **kwargs)
                if work is not None:
                    self._await_collective(work)
                return work
            if self._in_pass():
                return self._collect_in_pass(function, args, kwargs)
            return alone(*args, **kwargs)

        self.passing.append(collect)
        return collect

    def transfer(self, function: Any, otherwise: Any) -> Any:
        """Return a transfer that is recorded in passes as collectives are: ranks of a stage wait there.

        Those of ring attention do. What a request is for is waited for later. Only all ranks together
        show whether they are stages that do so; for that, who is at the other end is recorded as well.

        Args:
            function: Sends or receives.
            otherwise: Does the same, and is recorded as what goes on between stages.
        """

        @functools.wraps(function)
        def transfer(*args: Any, **kwargs: Any) -> Any:
            if self._torch.compiler.is_compiling():
                return otherwise(*args, **kwargs)
            if not self._in_pass():
                self._note_untimed(function, args, kwargs)
                return otherwise(*args, **kwargs)
            if function.__name__ in ("send", "recv"):
                return self._collect_in_pass(function, args, kwargs, transfers)
            requests = function(*args, **kwargs)
            each = requests if isinstance(requests, list) else [requests]
            said = self._said_in_pass(transfers, function, args, kwargs, len(each))
            for request, (places, name) in zip(each, said, strict=True):
                if request is not None:
                    self._await_collective(request, places, name)
            return requests

        self.passing.append(transfer)
        return transfer

    def _in_pass(self) -> bool:
        """Say whether a pass is recorded now that this thread runs and the host's clock times."""
        what = self.inside
        if what is None or self.intake.items is None or _thread() != self.thread:
            return False
        return type(what) is Called or what is self._backward or what is self._gradient

    def _note_untimed(self, function: Any, args: Any, kwargs: Any) -> None:
        """Say once that a forward sends or receives, if that is not recorded, for no host times it."""
        recorder, timed = self._session.recorder, self.intake.items is not None
        if type(self.inside) is not Called or timed or recorder is None or _thread() != self.thread:
            return
        try:
            for name in names(function, args, kwargs) - self._untimed if recorder.recording else ():
                self._untimed.add(name)
                recorder.add_task(*_COLLECTIVE, _now(), _now(), UNTIMED + name)
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _said_in_pass(
        self, said: Any, function: Any, args: Any, kwargs: Any, requests: int = 1
    ) -> list[tuple[Sequence[bytes], str | None]]:
        """Return where what a call within a pass asks for belongs, packed, and what it is called."""
        try:
            if said is not None:
                found: list[Any] = said(function, args, kwargs, requests)
                return found
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)
        return [(_COLLECTIVE, None)] * requests

    def _collect_in_pass(self, function: Any, args: Any, kwargs: Any, said: Any = None) -> Any:
        ((places, name),) = self._said_in_pass(said, function, args, kwargs)
        outer, begun = self.inside, self._session.begin(places)
        self.inside = function  # what it calls itself is part of it
        try:
            result = function(*args, **kwargs)
        except BaseException:
            self._session.abandon(begun)
            raise
        finally:
            self.inside = outer
        self._session.end(begun, name)
        return result

    def _await_collective(
        self, work: Any, places: Sequence[bytes] = _COLLECTIVE, name: str | None = None
    ) -> None:
        """Let waiting for it be recorded, in whatever step and task that will be."""
        if (recorder := self._session.recorder) is not None:
            awaited([work], places, recorder, self._waits, name)

    def _waits(self) -> bool:
        """Say whether a wait for a collective is to be recorded now."""
        return self._in_pass() or self._said(_collects, None, (), {}) is not None

    def await_(
        self,
        works: Sequence[Any],
        places: Places,
        begins: Callable[[], bool] | None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Let waiting for requests be recorded, if anything is recorded now.

        Args:
            works: The requests.
            places: Returns what is waited for, packed.
            begins: As of `timed`.
            *args: What to call it with.
            **kwargs: The same by name.
        """
        said = self._said(places, begins, args, kwargs)
        recorder = self._session.recorder
        if said and recorder is not None:
            awaited(works, said, recorder)

    def _said(
        self, places: Places, begins: Callable[[], bool] | None, args: Any, kwargs: Any
    ) -> Sequence[bytes] | None:
        """Return the tasks that a call is, packed; None if it is not to be recorded."""
        try:
            return places(*args, **kwargs) if self._enter(begins) else None
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)
            return None

    def _run(
        self,
        function: Any,
        args: Any,
        kwargs: Any,
        places: Sequence[bytes],
        *,
        first: bool,
        called: Called | None = None,
    ) -> Any:
        """Call a function, and record it as tasks, whose places are packed.

        If it was the `first` of its step and fails, the step has not begun. Of a forward, `called` is
        what was called in the model's place.
        """
        begun = self._session.begin(places)
        try:
            self.inside = called or function
            result = function(*args, **kwargs)
        except BaseException:
            self.inside = self.outside
            self._session.abandon(begun)
            if first:
                self._take_back()
            elif function is self._backward:
                self._fails(self._started)
            raise
        self.inside = self.outside
        if function is self._backward:
            self._fails(None)
        self._session.end(begun)
        return result

    def _begin_anew(self, first: int) -> None:
        """Let what the step has done of micro-batches, from this one on, be of no step."""
        self._fails(None)
        self._session.spoil(first)
        for chunk in self.models.chunks:
            chunk.go_on(min(chunk.forwards, first))

    def forward(self, called: Called, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a model, and record it, though a step may begin with it, or marks have to be made.

        Args:
            called: What was called in the model's place.
            function: What to call.
            args: Arguments by place.
            kwargs: Arguments by name.
        """
        if not self._called:
            self._called = True
            self.models.forget_parts()
            self._heed()
        if not self._has_gradients():
            if self._free() and not in_checkpoint():
                return self._evaluated(function, *args, **kwargs)
            return function(*args, **kwargs)
        self._session.saw.add(FORWARD)
        first = self._between
        if first or self.thread != _thread():
            self._succeed()
            if self._trains_first():
                self._take_over()
        work: Work | None = None
        again = False

        def places() -> Sequence[bytes]:
            nonlocal work, again
            work, again = self._goes(called, args, kwargs)
            return (work.forward,)

        said = self._said(places, self._always, (), {})
        if said is None:
            return function(*args, **kwargs)
        before = self.number()
        output = self._run(function, args, kwargs, said, first=first, called=called)
        self._note(work, before, again=again)
        return output

    def evaluated(self, begin: int) -> bool:
        """Say whether a forward that made no graph was part of an evaluation; record it as that then.

        Args:
            begin: When it began.
        """
        if self._has_gradients():
            return False
        try:
            if in_checkpoint():
                return True
            self._session.was_beside(ASIDE, EVALUATION, begin)
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)
        return True

    def untrained(self, recorded: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a module that no optimizer holds, and record it.

        Between steps, while the models are not in training, it is part of an evaluation.

        Args:
            recorded: Calls a function with its arguments, and records it under the module's name.
            function: What to call.
            args: Arguments by place.
            kwargs: Arguments by name.
        """
        call = _called
        try:
            if self._free():
                evaluates = self._between and not self._in_training()
                call = self._evaluated if evaluates else recorded
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)
        return call(function, *args, **kwargs)

    def _note(self, work: Any, before: int, *, again: bool) -> None:
        """Note a forward, before which the thread had come to a number; see `Origins.note`."""
        try:
            chunk = self.models.chunks[work.chunk]
            if chunk.forwards <= work.microbatch:
                chunk.go_on(work.microbatch + 1)
            self.origins.note(work, before, self.number(), again=again)
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _goes(self, called: Called, args: Any, kwargs: Any) -> tuple[Work, bool]:
        """Return what a forward is, and whether an earlier one was the same."""
        given = (*args, *kwargs.values()) if kwargs else args
        for one in given:
            if type(one) is not self._tensor or one.grad_fn is not None:
                earlier = self.origins.of(given)
                if earlier is not None and earlier.chunk is not None:
                    # Its gradients will run on into what made its input, so they are one stage.
                    return earlier, True
                break
        if self._failed is not None:
            # It comes instead of another backward, and takes the place, be it the same again or not.
            self._begin_anew(self._failed.microbatch)
        chunk = called.chunk
        if chunk is None:
            chunk = called.chunk = self.models.chunk_of(called)
        standing = self._standing
        stage = None if standing is None else standing.stage + chunk.number * standing.stages
        return chunk.due(stage), False

    def _backs(
        self, tensors: Any, _: Any, retain_graph: Any, create_graph: Any, *__: Any
    ) -> Sequence[bytes]:
        frees = not (retain_graph or create_graph)
        work = self._started = self.origins.backs(tensors, frees=frees)
        return (_SOME_BACKWARD if work is None else work.backward,)

    def _computes(
        self,
        outputs: Any,
        inputs: Any = None,
        grad_outputs: Any = None,
        retain_graph: Any = None,
        create_graph: Any = False,
        *_: Any,
        **__: Any,
    ) -> Sequence[bytes]:
        del inputs, grad_outputs
        work = self.origins.backs(outputs, frees=not (retain_graph or create_graph))
        return (_SOME_BACKWARD if work is None else work.backward,)

    def send(
        self, tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None
    ) -> Sequence[bytes]:
        """Return where a send belongs. Its micro-batch is known if it is a model's output itself."""
        del tag
        peer = global_rank(dst, group, group_dst)
        work = self.origins.of(tensor, 1)
        onward = work is not None or comes_next(peer)
        kind = Kind.SEND_FORWARD if onward else Kind.SEND_BACKWARD
        return (self._transfer(kind, work, peer),)

    def receive(
        self, tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None
    ) -> Sequence[bytes]:
        """Return where a receive belongs; nowhere if it is from whoever comes first."""
        del tensor, tag
        peer = global_rank(src, group, group_src)
        if peer is None:
            return ()
        kind = Kind.RECV_BACKWARD if comes_next(peer) else Kind.RECV_FORWARD
        return (identity_of(kind, peer=peer),)

    def _transfer(self, kind: Kind, work: Work | None, peer: int | None) -> bytes:
        if work is None:
            return identity_of(kind, peer=peer)
        place = place_of(work.forward)
        where = {name: place.get(name) for name in ("stage", "chunk", "microbatch")}
        return identity_of(kind, **where, peer=peer)
