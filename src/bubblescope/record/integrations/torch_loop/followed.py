"""The models of a training loop that are followed, and which chunks of their rank they are."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from bubblescope.record.integrations.torch_loop.called import Called, Part
from bubblescope.record.integrations.torch_loop.graph_origins import Chunk
from bubblescope.record.integrations.torch_loop.models import (
    Modules,
    called_of,
    frozen,
    parts_of,
    wrapped_in,
)
from bubblescope.record.integrations.torch_loop.reductions import Reducing
from bubblescope.record.integrations.torch_loop.untrained import UntrainedModules, beside, leave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bubblescope.record.session import Session


class Followed:
    """The models that hold what optimizers train, and what else a loop runs beside them.

    Args:
        loop: The `Loop` that is told when they are called.
        session: Records what is not trained.

    Attributes:
        modules: All modules that were made.
        chunks: Those of the models that have been called, by number.
        reducing: Tells when their backwards wait for other ranks; None if they never do.
    """

    def __init__(self, loop: Any, session: Session) -> None:
        self.modules = Modules()
        self.chunks: list[Chunk] = []
        self.reducing: Reducing | None = None
        self._loop = loop
        self._models: list[weakref.ref[Any]] = []
        self._parts: list[weakref.ref[Any]] = []
        """Parts of the models that are waited for until one of these is called."""
        self._others = UntrainedModules(loop, session)

    def __bool__(self) -> bool:
        return bool(self._models)

    def there(self) -> list[Any]:
        """Return the models, but for those that are gone."""
        return [model for reference in self._models if (model := reference()) is not None]

    def parameters(self) -> set[int]:
        """Return the identities of their parameters."""
        return {id(one) for model in self.there() for one in model.parameters()}

    def in_training(self) -> bool:
        """Say whether any part of them is in training mode."""
        # Some wrappers stay as they are when what they wrap is put in training, or in evaluation.
        parts = (part for model in self.there() for part in model.modules())
        return any(part.training for part in parts if next(part.children(), None) is None)

    def gone(self) -> bool:
        """Say whether the step has called models, and all that it has called are gone."""
        ran = [chunk for chunk in self.chunks if chunk.forwards]
        taken = self._taken()
        return bool(ran) and not any(chunk in taken for chunk in ran)

    # Which they are

    def adopt(self, parameters: list[Any], *, early: bool) -> None:
        """Follow the models that hold parameters.

        Args:
            parameters: They.
            early: Whether no step has begun, so that frozen modules are looked for too.
        """
        wanted = set(map(id, parameters))
        self._follow(called_of(self.modules.models_of(parameters), wanted))
        self._wait_for_parts()
        if early and self.modules.complete:  # else to look for them takes long
            self._others.follow(filter(frozen, self.modules.outermost()), set())

    def look_further(self, trained: set[int]) -> None:
        """Follow other modules too, for these are never called.

        They may be part of others now, or only hold together what the loop calls.

        Args:
            trained: Identities of the parameters that optimizers hold.
        """
        self.forget_parts()
        models = self.there()
        held = [one for model in models for one in model.parameters()]
        if not self._follow(self.modules.models_of(held)):
            parts = [part for model in models for part in parts_of(model, trained)]
            self._follow(called_of(parts, trained))
            self._others.follow([part for model in models for part in model.children()], trained)

    def follow_wrappers(self) -> None:
        """Follow what a model has been wrapped in since its optimizer was made.

        As in `DistributedDataParallel`, whose own work is part of the forward. It is the chunk that the
        model is; the model is still followed, for a job may call it alone in an evaluation.
        """
        models = self.there()
        held = [one for model in models for one in model.parameters()]
        outermost = called_of(self.modules.models_of(held), set(map(id, held)))
        for wrapper in outermost:
            within = [model for model in models if any(one is model for one in wrapper.modules())]
            if len(within) == 1 and within[0] is not wrapper and self._follows(within[0]):
                self._follow([wrapper])
                inner, outer = (one._compiled_call_impl for one in (within[0], wrapper))  # noqa: SLF001
                outer.chunk = inner.chunk = inner.chunk or self._free_chunk()
        self.reducing = Reducing.of(self.there())  # parts may be wrapped too

    def follow_untrained(self, trained: Callable[[], set[int]], *, early: bool) -> None:
        """Follow what is not trained too, as soon as there is any.

        Args:
            trained: Returns what `look_further` takes; asked only if modules were made.
            early: Whether this is before the first step.
        """
        if not early:
            self._others.begin_step()
        if self.modules.grown():
            self._others.follow(self.modules.outermost(), self.parameters() | trained())

    def compiled(self, model: Any, made: Any) -> None:
        """Follow what a model that is followed has been compiled to.

        Args:
            model: The model.
            made: What is called in its place; itself if it was compiled in place.
        """
        if any(one is model for root in self.there() for one in (root, *wrapped_in(root))):
            self._follow([made])
        elif made in self._others:
            self._others.hook(made)

    def forget_parts(self) -> None:
        """Wait for no parts of the models any more."""
        for reference in self._parts:
            leave(reference())
        self._parts.clear()

    def leave(self) -> None:
        """Follow nothing any more."""
        for root in self.there():
            for model in (root, *wrapped_in(root)):
                if isinstance(called := model._compiled_call_impl, Called):  # noqa: SLF001
                    called.leave()
        self._models.clear()
        self.forget_parts()
        self._others.leave()

    def _follow(self, models: Iterable[Any]) -> bool:
        """Follow models; say whether any of them was not followed yet."""
        # Those that have been compiled since are not any more.
        new = [one for one in models if not self._follows(one)]
        for model in new:
            leave(model)
            Called(model, self._loop)
            for inner in wrapped_in(model):
                if not self._follows(inner):
                    leave(inner)
                    Called(inner, self._loop, wrapper=model)
        there = {id(model): model for model in (*self.there(), *new)}
        self._models = list(map(weakref.ref, there.values()))
        self.reducing = Reducing.of(there.values())
        return bool(new)

    def _follows(self, model: Any) -> bool:
        call = model._compiled_call_impl  # noqa: SLF001
        return type(call) is Called and call.loop is self._loop

    def _wait_for_parts(self) -> None:
        """Notice if the loop calls parts of its models before it calls one of these."""
        self.forget_parts()
        for model in self.there():
            for part in beside(model.children(), set()):
                if part._compiled_call_impl is None:  # noqa: SLF001
                    Part(part, self._loop)
                    self._parts.append(weakref.ref(part))

    # Their chunks

    def chunk_of(self, called: Called) -> Chunk:
        """Return the chunk of a model that has none yet: that of its wrapper, or one of its own."""
        wrapper: Any = called.wrapper()
        outer = None if wrapper is None else wrapper._compiled_call_impl  # noqa: SLF001
        if not isinstance(outer, Called):
            return self._free_chunk()
        chunk: Chunk = outer.chunk or self._free_chunk()
        outer.chunk = chunk
        return chunk

    def _free_chunk(self) -> Chunk:
        """Return the first chunk that is no model's; a job may train one after the other."""
        taken = self._taken()
        for chunk in self.chunks:
            if chunk not in taken:
                return chunk
        self.chunks.append(Chunk(len(self.chunks)))
        return self.chunks[-1]

    def _taken(self) -> list[Any]:
        """Return the chunks of the models, None for those that have none yet."""
        calls = [model._compiled_call_impl for model in self.there()]  # noqa: SLF001
        return [call.chunk for call in calls if isinstance(call, Called)]
