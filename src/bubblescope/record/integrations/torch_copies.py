"""Copies to the device that a job makes itself: `tensor.to`, `cuda`, `copy_` and `pin_memory`.

These are methods of `torch.Tensor`, which models call as well, mostly to change types. PyTorch hands
them on to subclasses of tensors, some of which know them by identity, and Dynamo reads what lies in the
class. So what we put there

* is PyTorch's own method for whoever asks the class, and one that takes the time for a tensor only;
* is PyTorch's own for tensors too while a pass of the job's loop runs, of which a copy is a part;
* is there while steps are recorded, if the job uses a device, but not while Dynamo follows code.

Whether a call has copied to a device is told by what it was given and what it returned, and only if it
took long enough to be a task. That is time of the host: the device may copy later.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from types import MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from bubblescope.record.integrations.torch_aside import ASIDE, COPY, LEAST_NS
from bubblescope.record.integrations.torch_common import leave_out, leave_out_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType

    from bubblescope.record.session import Session

_PINS: Final = "pin_memory"
_INTO: Final = "copy_"
_METHODS: Final = ("to", "cuda", "npu", "xpu", _INTO, _PINS)
_HIDINGS: Final = 200
"""How often the class is changed for Dynamo: after a thousand changes, Python looks it up slowly."""
_FREE: Final = SimpleNamespace(inside=None, outside=None)
"""In the place of a loop, where none is followed."""
_NONE: Final = object()
_now: Final = time.monotonic_ns


class Copies:
    """Puts what takes the time of copies into `torch.Tensor`, and takes it out again.

    Args:
        session: Records them.

    Attributes:
        loop: What says whether a pass of the job's loop runs: its `inside` is not its `outside` then.
    """

    def __init__(self, session: Session) -> None:
        self.loop: Any = _FREE
        self._session = session
        self._torch = sys.modules["torch"]
        self._put: dict[str, Any] = {}
        """What is in the class, or will be again when Dynamo is done."""
        self._before: dict[str, Any] = {}
        """What was there."""
        self._hidings = 0
        self._hides = True
        """Whether Dynamo leaves our functions out, and the class may be changed for it again."""
        self._until = 0
        """When the last copy ended that was recorded."""
        self._tasks: set[CodeType] = set()
        """The code of functions within which a task runs."""
        session.when_recording(self._heed)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave)

    def hidden(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same, and finds the class as PyTorch made it."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._put:
                return function(*args, **kwargs)
            self._hidings += 1
            self._take_out()
            try:
                return function(*args, **kwargs)
            finally:
                self._hides = self._hides and self._hidings < _HIDINGS
                if self._hides:
                    self._put_in()
                else:
                    self._put = {}

        return call

    def compiled(self, eval_frame: Any) -> None:
        """Let Dynamo, whose module of that name this is, compile nothing of ours."""
        self._hides = leave_out_whole(eval_frame, Copies._note)
        method = type(_timed(self, self._torch.Tensor.copy_, _INTO))
        leave_out(eval_frame, method.__get__, method.record)  # all of these have the same codes

    def _heed(self, recording: bool) -> None:
        if not recording:
            self._leave()
        elif not self._put and self._hides and _uses_device(self._torch):
            self._enter()

    def _enter(self) -> None:
        tensor = self._torch.Tensor
        self._tasks = {
            self._session.timed(_nothing, b"").__code__,
            self._torch.optim.Optimizer.profile_hook_step(_nothing).__code__,
        }
        there = [name for name in _METHODS if hasattr(tensor, name)]
        self._before = {name: vars(tensor).get(name, _NONE) for name in there}
        self._put = {name: _timed(self, getattr(tensor, name), name) for name in there}
        self._put_in()

    def _leave(self) -> None:
        self._take_out()
        self._put = {}

    def _put_in(self) -> None:
        tensor = self._torch.Tensor
        for name, method in self._put.items():
            if vars(tensor).get(name, _NONE) is self._before[name]:
                setattr(tensor, name, method)

    def _take_out(self) -> None:
        tensor = self._torch.Tensor
        for name, method in self._put.items():
            if vars(tensor).get(name) is not method:
                continue  # the job has put something else there
            if self._before[name] is _NONE:
                delattr(tensor, name)
            else:
                setattr(tensor, name, self._before[name])

    def _note(self, name: str, given: Any, result: Any, begin: int, end: int) -> None:
        """Record a call that took long, if it was a copy to a device and is part of nothing else."""
        try:
            if threading.get_ident() != self._session.thread.ident:
                return
            if self.loop.inside is not self.loop.outside or begin < self._until:
                return
            if self._copies(name, given, result) and not self._within_task():
                self._until = end
                self._session.was_beside(ASIDE, COPY, begin, end)
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

    def _copies(self, name: str, given: Any, result: Any) -> bool:
        with self._torch._C.DisableTorchFunction():  # noqa: SLF001  subclasses and modes are not asked
            if not isinstance(given, self._torch.Tensor) or given.device.type != "cpu":
                return False
            return result is not given if name == _PINS else result.device.type != "cpu"

    def _within_task(self) -> bool:
        frame: Any = sys._getframe(1)  # noqa: SLF001
        while frame is not None and frame.f_code not in self._tasks:
            frame = frame.f_back
        return frame is not None


def _timed(copies: Copies, theirs: Any, name: str) -> Any:
    """Return a method of tensors that is timed, in the place of PyTorch's own.

    Args:
        copies: Told of what takes long.
        theirs: PyTorch's own.
        name: Its name.
    """
    into, loop, bound, own = name == _INTO, copies.loop, MethodType, theirs.__get__

    @functools.wraps(theirs)
    def timed(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        begin = _now()
        result = theirs(tensor, *args, **kwargs)
        end = _now()
        if end - begin >= LEAST_NS:
            given = (args[0] if args else kwargs.get("other")) if into else tensor
            copies._note(name, given, result, begin, end)  # noqa: SLF001  both are of this module
        return result

    class Timed:
        record = staticmethod(timed)

        # Models ask for these methods often, and what a closure holds is found soonest.
        def __get__(self, tensor: Any, kind: Any = None) -> Any:
            if loop.inside is loop.outside and tensor is not None:
                return bound(timed, tensor)
            return own(tensor, kind)

    return Timed()


def copies(module: ModuleType, session: Session) -> None:
    """Record copies while steps are recorded."""
    del module
    session.shared(Copies)


def translated(module: ModuleType, session: Session) -> None:
    """Let Dynamo find tensors as PyTorch made them wherever it follows code."""
    translator = module.InstructionTranslator
    translator.run = session.shared(Copies).hidden(translator.run)


def compiled(module: ModuleType, session: Session) -> None:
    """Let Dynamo compile nothing of ours."""
    session.shared(Copies).compiled(module)


def _uses_device(torch: Any) -> bool:
    """Say whether this process uses a device that PyTorch knows, without making it do so."""
    own = torch._C._get_privateuse1_backend_name()  # noqa: SLF001  as Ascend's
    for name in ("cuda", "xpu", "mtia", own):
        asked = getattr(getattr(torch, name, None), "is_initialized", None)
        if asked is not None and asked():
            return True
    return False


def _nothing() -> None:
    """Be wrapped."""
