"""Steps and micro-batches of a loop that says neither."""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of, place_of
from bubblescope.record.integrations.receipts import awaited
from bubblescope.record.integrations.torch_aside import ASIDE
from bubblescope.record.integrations.torch_groups import groups_of
from bubblescope.record.integrations.torch_loop.graph_origins import Chunk, Origin, Origins, Work
from bubblescope.record.integrations.torch_loop.models import Called, called_of, models_of, parts_of
from bubblescope.record.integrations.torch_loop.ranks import Standing, comes_next, global_rank
from bubblescope.record.notes import FORWARD, OPTIMIZER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bubblescope.record.session import Session

    Places = Callable[..., Sequence[bytes]]

_TRIES: Final = 3
"""Times to look for the modules that a loop calls, if those found first are never called."""

_DATA: Final = (identity_of(Kind.DATA),)
_SOME_BACKWARD: Final = identity_of(Kind.BACKWARD)
"""Where a backward belongs of which is not known what made its tensors."""
_now: Final = time.monotonic_ns
_thread: Final = threading.get_ident


def _called(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


class Loop:
    """Follows a training loop.

    Only the thread that made the first optimizer counts: others fetch data or compute gradients.

    Args:
        session: Records what is found.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._torch = sys.modules["torch"]
        self._thread = 0
        self._models: list[weakref.ref[Any]] = []
        self._called, self._tries = False, _TRIES
        self._standing: Standing | None = None
        self._step = -1
        self._between = True
        self._empty = False
        """Whether a step has begun that nothing is part of yet, so that it may not come at all."""
        self._recording = False
        """Whether that step is to be recorded."""
        self._chunks: list[Chunk] = []
        """Those of the models that have been called, by number."""
        self._origin: Origin | None = None
        """What the last forward was."""
        self._intake = session.intake
        # Until there is an optimizer, PyTorch may not have been imported as a whole.
        self._origins: Origins
        self._tensor: Any
        self._has_gradients: Callable[[], bool]
        self._inside: Any = None
        """The function that is a task now."""
        self._backward: Any = None
        self._started: Origin | None = None
        """What the last backward started from."""
        self._failed: Origin | None = None
        """What a backward started from that failed, as long as it has not been tried again."""
        self._evaluated = session.beside(_called, ASIDE, "evaluation", early=True)

    # The loop's models

    def adopt(self, optimizer: Any) -> None:
        """Follow the models whose parameters an optimizer holds."""
        if self._session.framework is not None:
            return
        self._session.saw.add(OPTIMIZER)
        try:
            if not self._thread:
                self._thread = _thread()
                self._tensor = self._torch.Tensor
                self._origins = Origins(self._tensor)
                self._has_gradients = self._torch.is_grad_enabled
            wanted = [one for group in optimizer.param_groups for one in group["params"]]
            known = {id(one) for model in self._there() for one in model.parameters()}
            if not known.issuperset(map(id, wanted)):  # some have an optimizer for each parameter
                self._follow(called_of(models_of(wanted)))
                self._called, self._tries = False, _TRIES
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def compiled(self, model: Any, made: Any) -> None:
        """Follow what a model that is followed has been compiled to.

        Args:
            model: The model.
            made: What is called in its place; itself if it was compiled in place.
        """
        try:
            if any(one is model for one in self._there()):
                self._follow([made])
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _there(self) -> list[Any]:
        return [model for reference in self._models if (model := reference()) is not None]

    def _follow(self, models: Iterable[Any]) -> bool:
        """Follow models; say whether any of them was not followed yet."""
        # Those that have been compiled since are not any more.
        new = [one for one in models if not self._follows(one)]
        for model in new:
            Called(model, self._forward)
        there = {id(model): model for model in (*self._there(), *new)}
        self._models = list(map(weakref.ref, there.values()))
        return bool(new)

    def _follows(self, model: Any) -> bool:
        call = model._compiled_call_impl  # noqa: SLF001
        return isinstance(call, Called) and call.notice == self._forward

    def _follow_others(self) -> None:
        """Follow other modules too, for these are never called.

        They may be part of others now, or only hold together what the loop calls.
        """
        try:
            self._tries -= 1
            models = self._there()
            outermost = models_of(one for model in models for one in model.parameters())
            if not self._follow(outermost):
                self._follow(part for model in models for part in parts_of(model))
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    # Steps

    def end_step(self) -> None:
        """Note that an optimizer has made its step: what comes next is the next step's."""
        # Some make it within the backward, in autograd's thread; those inside a model do not count.
        in_backward = self._inside is not None and self._inside is self._backward
        if self._between or not (in_backward or self._free()):
            return
        if not self._called and self._tries > 0:
            self._follow_others()
        self._between = True

    def _free(self) -> bool:
        """Say whether this is the loop itself, in no task."""
        if self._session.framework is not None:
            self._leave()
        return (
            self._inside is None and threading.get_ident() == self._thread and len(self._models) > 0
        )

    def _leave(self) -> None:
        """Follow nothing any more: the job turned out to use a framework's schedules."""
        for model in self._there():
            if isinstance(called := model._compiled_call_impl, Called):  # noqa: SLF001
                called.leave()
        self._models.clear()

    def _enter(self, begins: Callable[[], bool] | None = None) -> bool:
        """Say whether what happens now is to be recorded.

        Args:
            begins: Says whether it begins a step if none has begun. If not, it is not recorded then.
        """
        if not self._free():
            return False
        if self._between:
            # Without gradients it is a validation.
            if begins is None or not self._torch.is_grad_enabled() or not begins():
                return False
            self._begin()
        recorder = self._session.recorder
        return recorder is not None and recorder.recording and not self._between

    def _begin(self) -> None:
        """Begin a step."""
        self._between = False
        recorder = self._session.recorder
        if self._empty:
            self._empty = False
            if recorder is not None:
                recorder.recording = self._recording
            return
        if self._step < 0:
            self._introduce()
        self._step += 1
        for chunk in self._chunks:
            chunk.forwards = 0
        self._session.begin_step()

    def _take_back(self) -> None:
        """Let nothing be recorded until something else begins the step."""
        self._between = self._empty = True
        recorder = self._session.recorder
        if recorder is not None:
            self._recording, recorder.recording = recorder.recording, False

    def _introduce(self) -> None:
        """Tell the session what there is to tell."""
        try:
            models = self._there()
            self._standing = self._standing or self._stands(receives=False)
            device = next((one.device for model in models for one in model.parameters()), None)
            groups = groups_of(self._session)
            for model in models:
                groups.used_in(model)
            self._session.about(
                # Several models may be parts of one stage; that shows when they are called.
                stages=[self._standing.stage] if len(models) == 1 else None,
                dp=groups.coordinates().get("dp", self._standing.replica),
                device=getattr(device, "index", None),
            )
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _stands(self, *, receives: bool) -> Standing:
        return Standing.found(self._session.pipeline, self._there(), receives=receives)

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
        # Some wrappers stay as they are when what they wrap is put in training.
        return any(part.training for model in self._there() for part in model.modules())

    # Tasks

    def backwards(self, function: Any) -> Any:
        """Return a function that runs backwards and is recorded."""
        self._backward = function
        otherwise = self.timed(function, self._backs, self._always)
        torch, intake, now = self._torch, self._intake, _now

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            items = intake.items
            if (
                items is None
                or self._between
                or self._inside is not None
                or self._session.framework is not None
                or _thread() != self._thread
                or not args
            ):
                return otherwise(*args, **kwargs)
            what, origin = _SOME_BACKWARD, None
            try:
                origin = self._origins.of(args[0])
                if origin is not None and origin[0] == self._step:
                    what = origin[1].backward
            except Exception as error:  # noqa: BLE001  the job goes on
                self._session.fail(error)
            self._inside = function
            step, begin = intake.step, now()
            try:
                result = function(*args, **kwargs)
            except BaseException:
                self._failed = origin
                raise
            finally:
                end = now()
                self._inside = None
            self._failed = None
            if intake.items is not None:
                items += (step, what, begin, end, begin, end, None)
                if len(items) >= intake.most:
                    intake.relieve()
            return result

        return call

    def fetching(self, function: Any) -> Any:
        """Return a function that waits for data and is recorded; the end of the data is no task.

        Between steps, what is fetched while the model is not in training is part of an evaluation.
        """
        training = self.timed(function, lambda _: _DATA, self._trains)
        evaluating = self._session.beside(function, ASIDE, "evaluation", early=True)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            aside = False
            try:
                if self._between and self._free():
                    # Before the first step, some may fetch labels only: what trains is in training.
                    aside = not (self._trains() if self._step >= 0 else self._in_training())
            except Exception as error:  # noqa: BLE001  the job goes on
                self._session.fail(error)
            return (evaluating if aside else training)(*args, **kwargs)

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

        return call

    def awaited(
        self, works: Sequence[Any], places: Places, *args: Any, **kwargs: Any
    ) -> Sequence[Any]:
        """Return requests such that waiting for them is recorded.

        Args:
            works: Requests; they are returned as they are if nothing is recorded now.
            places: Returns the receives, packed.
            *args: What to call it with.
            **kwargs: The same by name.
        """
        said = self._said(places, self.receives, args, kwargs)
        recorder = self._session.recorder
        return awaited(works, said, recorder) if said and recorder is not None else works

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
        self, function: Any, args: Any, kwargs: Any, places: Sequence[bytes], *, first: bool
    ) -> Any:
        """Call a function, and record it as tasks, whose places are packed.

        If it was the `first` of its step and fails, the step has not begun.
        """
        begun = self._session.begin(places)
        self._inside = function
        try:
            result = function(*args, **kwargs)
        except BaseException:
            self._inside = None
            self._session.abandon(begun)
            if first:
                self._take_back()
            elif function is self._backward:
                self._failed = self._started
            raise
        if function is self._backward:
            self._failed = None
        self._inside = None
        self._session.end(begun)
        return result

    def _give_up(self) -> None:
        """Let a micro-batch whose backward failed, and those after it, be of no step.

        A forward comes instead of another backward: it takes the place, be it the same again or not.
        """
        origin, self._failed = self._failed, None
        if origin is None or origin[0] != self._step:
            return
        first = origin[1].microbatch
        self._session.spoil(first)
        for chunk in self._chunks:
            chunk.forwards = min(chunk.forwards, first)

    def _forward(self, called: Called, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a model, and record it."""
        items = self._intake.items
        if (
            items is None
            or self._between
            or self._inside is not None
            or self._session.framework is not None
            or _thread() != self._thread
            or not self._called
        ):
            return self._forward_otherwise(called, function, args, kwargs)
        if not self._has_gradients():
            return self._evaluated(function, *args, **kwargs)
        try:
            origin = self._goes(called, args, kwargs)
            what = origin[1].forward
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)
            return function(*args, **kwargs)
        self._inside = function
        step, begin = self._intake.step, _now()
        try:
            output = function(*args, **kwargs) if kwargs else function(*args)
        finally:
            end = _now()
            self._inside = None
        if self._intake.items is not None:
            items += (step, what, begin, end, begin, end, None)
            if len(items) >= self._intake.most:
                self._intake.relieve()
        self._note(output, origin)
        return output

    def _forward_otherwise(self, called: Called, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a model, and record it, though a step may begin with it, or marks have to be made."""
        self._called = True
        if not self._has_gradients():
            if self._free():
                return self._evaluated(function, *args, **kwargs)
            return function(*args, **kwargs)
        self._session.saw.add(FORWARD)
        first = self._between
        origin: Origin | None = None

        def places() -> Sequence[bytes]:
            nonlocal origin
            origin = self._goes(called, args, kwargs)
            return (origin[1].forward,)

        said = self._said(places, self._always, (), {})
        if said is None:
            return function(*args, **kwargs)
        output = self._run(function, args, kwargs, said, first=first)
        self._note(output, origin)
        return output

    def _note(self, output: Any, origin: Any) -> None:
        """Note what a forward has returned."""
        try:
            work = origin[1]
            chunk = self._chunks[work.chunk]
            if chunk.forwards <= work.microbatch:
                chunk.forwards = work.microbatch + 1
            self._origins.note(output, origin)
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _goes(self, called: Called, args: Any, kwargs: Any) -> Origin:
        """Return what a forward is."""
        given = (*args, *kwargs.values()) if kwargs else args
        for one in given:
            if type(one) is not self._tensor or one.grad_fn is not None:
                earlier = self._origins.of(given)
                if (
                    earlier is not None
                    and earlier[0] == self._step
                    and earlier[1].chunk is not None
                ):
                    # Its gradients will run on into what made its input, so they are one stage.
                    return earlier
                break
        if self._failed is not None:
            self._give_up()
        chunk = called.chunk
        if chunk is None:
            chunk = called.chunk = self._free_chunk()
        number = chunk.forwards
        if number >= len(chunk.works):
            standing = self._standing
            stage = None if standing is None else standing.stage + chunk.number * standing.stages
            chunk.works.append(Work(chunk.number, number, stage))
        return self._step, chunk.works[number]

    def _free_chunk(self) -> Chunk:
        """Return the first chunk that is no model's; a job may train one after the other."""
        calls = [model._compiled_call_impl for model in self._there()]  # noqa: SLF001
        taken = [call.chunk for call in calls if isinstance(call, Called)]
        for chunk in self._chunks:
            if chunk not in taken:
                return chunk
        self._chunks.append(Chunk(len(self._chunks)))
        return self._chunks[-1]

    def _backs(self, tensors: Any, *_: Any, **__: Any) -> Sequence[bytes]:
        origin = self._started = self._origins.of(tensors)
        known = origin is not None and origin[0] == self._step
        return (origin[1].backward if origin is not None and known else _SOME_BACKWARD,)

    def send(
        self, tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None
    ) -> Sequence[bytes]:
        """Return where a send belongs. Its micro-batch is known if it is a model's output itself."""
        del tag
        peer = global_rank(dst, group, group_dst)
        origin = self._origins.of(tensor, 1)
        onward = origin is not None or comes_next(peer)
        kind = Kind.SEND_FORWARD if onward else Kind.SEND_BACKWARD
        return (self._transfer(kind, origin, peer),)

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

    def _transfer(self, kind: Kind, origin: Origin | None, peer: int | None) -> bytes:
        if origin is None or origin[0] != self._step:
            return identity_of(kind, peer=peer)
        place = place_of(origin[1].forward)
        where = {name: place.get(name) for name in ("stage", "chunk", "microbatch")}
        return identity_of(kind, **where, peer=peer)
