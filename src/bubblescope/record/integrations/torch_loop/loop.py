"""Steps and micro-batches of a loop that says neither."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from bubblescope.record.hooks import INTEGRATIONS
from bubblescope.record.integrations.receipts import awaited
from bubblescope.record.integrations.torch_loop.models import models_of, parts_of, replicated
from bubblescope.record.integrations.torch_loop.origins import Work, made, origin
from bubblescope.record.rows import place_of
from bubblescope.vocabulary import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bubblescope.record.session import Begun, Session

    Places = Callable[..., Sequence[bytes]]

__all__ = ["Loop"]

_ANYWHERE: Final = ("torch", "loop")
"""Integrations with modules that every job imports."""
_SCHEDULES: Final = "torch.distributed.pipelining.schedules"


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
        """Models, in the order of their chunks."""
        self._unfollow: list[Callable[[], None]] = []
        self._called = False
        self._stage, self._stages = 0, 1
        """Stage of this rank's first chunk, and how far it is to that of the next."""
        self._between = True
        self._inside = False
        self._forwards: Counter[int] = Counter()
        self._running: list[tuple[int, Work, Begun]] = []

    # The loop's models

    def adopt(self, optimizer: Any) -> None:
        """Follow the models whose parameters an optimizer holds."""
        if _framework():
            return
        try:
            self._thread = self._thread or threading.get_ident()
            groups = optimizer.param_groups
            self._follow(models_of(one for group in groups for one in group["params"]))
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _follow(self, models: Sequence[Any]) -> None:
        known = {id(reference()) for reference in self._models}
        for model in models:
            if id(model) in known:
                continue
            chunk = len(self._models)
            self._models.append(weakref.ref(model))
            if getattr(model, "_compiled_call_impl", None) is not None:
                self._follow_compiled(model, chunk)
                continue
            for handle in (
                model.register_forward_pre_hook(lambda one, _, c=chunk: self._before(one, c)),
                model.register_forward_hook(
                    lambda one, _, output: self._after(one, output), always_call=True
                ),
            ):
                self._unfollow.append(handle.remove)

    def _follow_compiled(self, model: Any, chunk: int) -> None:
        """Follow a model after `model.compile()`, which compiles its hooks too."""
        theirs = model._compiled_call_impl  # noqa: SLF001  the hooks' place

        @functools.wraps(theirs)
        def call(*args: Any, **kwargs: Any) -> Any:
            output = None
            self._before(model, chunk)
            try:
                output = theirs(*args, **kwargs)
            finally:
                self._after(model, output)
            return output

        model._compiled_call_impl = call  # noqa: SLF001
        self._unfollow.append(lambda: setattr(model, "_compiled_call_impl", theirs))

    def _follow_others(self) -> None:
        """Follow other modules, for these are never called.

        They may have been compiled since, or only hold together what the loop calls.
        """
        models = [model for reference in self._models if (model := reference()) is not None]
        self._forget()
        compiled = [one for one in models if getattr(one, "_compiled_call_impl", None) is not None]
        self._follow(compiled or [part for model in models for part in parts_of(model)])

    def _forget(self) -> None:
        for undo in self._unfollow:
            undo()
        self._unfollow.clear()
        self._models.clear()

    # Steps

    def end_step(self) -> None:
        """Note that an optimizer has made its step: what comes next is the next step's."""
        if self._inside or not self._mine():
            return
        if not self._called:
            self._enter()  # it was a step all the same
            self._follow_others()
        self._between = True

    def _mine(self) -> bool:
        return bool(self._models) and threading.get_ident() == self._thread

    def _enter(self) -> bool:
        """Say whether what happens now is to be recorded; begin its step if that has not begun."""
        if self._inside or not self._mine():
            return False
        if self._between:
            if not self._torch.is_grad_enabled():  # validation
                return False
            if _framework():
                self._forget()
                return False
            self._introduce()
            self._between = False
            self._forwards.clear()
            self._session.begin_step()
        recorder = self._session.recorder
        return recorder is not None and recorder.recording

    def _introduce(self) -> None:
        """Tell the session what there is to tell."""
        try:
            models = [model for reference in self._models if (model := reference()) is not None]
            rank, ranks = self._rank()
            if self._session.pipeline is not None:
                self._stage, self._stages = self._session.pipeline
            elif any(map(replicated, models)):
                self._session.about(dp=rank)
                self._stage, self._stages = 0, 1
            else:
                self._stage, self._stages = rank, ranks
            device = next((one.device for model in models for one in model.parameters()), None)
            self._session.about(
                stages=[self._stage_of(chunk) for chunk in range(len(models))],
                device=getattr(device, "index", None),
            )
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _rank(self) -> tuple[int, int]:
        distributed = sys.modules.get("torch.distributed")
        if (
            distributed is None
            or not distributed.is_available()
            or not distributed.is_initialized()
        ):
            return 0, 1
        return distributed.get_rank(), distributed.get_world_size()

    def _stage_of(self, chunk: int) -> int:
        return self._stage + chunk * self._stages

    # Tasks

    def timed(self, function: Any, places: Places) -> Any:
        """Return a function that does the same and is recorded, unless it is part of another task.

        Args:
            function: What to record. A call that ends with StopIteration was none.
            places: Called with the same arguments, returns the tasks, packed.
        """

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._torch.compiler.is_compiling() or not self._enter():
                return function(*args, **kwargs)
            begun = self._session.begin(self._said(places, *args, **kwargs))
            self._inside = True
            try:
                result = function(*args, **kwargs)
            except StopIteration:
                self._session.abandon(begun)
                raise
            except BaseException:
                self._session.end(begun)
                raise
            else:
                self._session.end(begun)
            finally:
                self._inside = False
            return result

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
        if not self._enter():
            return works
        receives = self._said(places, *args, **kwargs)
        recorder = self._session.recorder
        return awaited(works, receives, recorder) if receives and recorder is not None else works

    def _said(self, places: Places, *args: Any, **kwargs: Any) -> Sequence[bytes]:
        try:
            return places(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)
            return ()

    def _before(self, model: Any, chunk: int) -> None:
        if self._torch.compiler.is_compiling():
            return
        self._called = True
        if not self._torch.is_grad_enabled() or not self._enter():
            return
        work = Work(chunk, self._forwards[chunk])
        self._forwards[chunk] += 1
        self._inside = True
        begun = self._session.begin([self._place(Kind.FORWARD, work)])
        self._running.append((id(model), work, begun))

    def _after(self, model: Any, output: Any) -> None:
        # Other models may run inside this one, which are no tasks.
        if not self._running or self._running[-1][0] != id(model):
            return
        _, work, begun = self._running.pop()
        self._inside = False
        self._session.end(begun)
        try:
            made(output, work)
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def backward(self, tensors: Any, *_: Any, **__: Any) -> Sequence[bytes]:
        """Return where a backward belongs."""
        return (self._place(Kind.BACKWARD, origin(tensors)),)

    def send(
        self, tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None
    ) -> Sequence[bytes]:
        """Return where a send belongs. Its micro-batch is known if it is a model's output itself."""
        del tag
        peer = _global(dst, group, group_dst)
        kind = Kind.SEND_FORWARD if self._next(peer) else Kind.SEND_BACKWARD
        return (self._place(kind, origin(tensor, 1), peer),)

    def receive(
        self, tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None
    ) -> Sequence[bytes]:
        """Return where a receive belongs; nowhere if it is from whoever comes first."""
        del tensor, tag
        peer = _global(src, group, group_src)
        if peer is None:
            return ()
        kind = Kind.RECV_BACKWARD if self._next(peer) else Kind.RECV_FORWARD
        return (self._place(kind, None, peer),)

    def _place(self, kind: Kind, work: Work | None, peer: int | None = None) -> bytes:
        if work is None:
            return place_of(kind, peer=peer)
        return place_of(
            kind,
            stage=self._stage_of(work.chunk),
            chunk=work.chunk if len(self._models) > 1 else None,
            microbatch=work.microbatch,
            peer=peer,
        )

    def _next(self, peer: int) -> bool:
        """Say whether a rank is further down the pipeline; the first comes after the last."""
        rank, ranks = self._rank()
        around = ranks > 2 and 2 * abs(peer - rank) > ranks
        return (peer > rank) != around


def _framework() -> bool:
    """Say whether the job uses a framework that has an integration of its own."""
    modules = [
        module for name in INTEGRATIONS if name not in _ANYWHERE for module in INTEGRATIONS[name]
    ]
    return any(module in sys.modules for module in (_SCHEDULES, *modules))


def _global(rank: Any, group: Any, group_rank: Any) -> Any:
    """Return a global rank, which may be given as one of a group."""
    if group_rank is None:
        return rank
    distributed = sys.modules["torch.distributed"]
    return distributed.get_global_rank(group or distributed.group.WORLD, group_rank)
