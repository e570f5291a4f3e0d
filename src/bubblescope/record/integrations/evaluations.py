"""Evaluations that a framework's schedule runs: no steps, but tasks of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from bubblescope.record.integrations.torch_aside import ASIDE

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.record.session import Session

    Function = TypeVar("Function", bound=Callable[..., Any])

EVALUATION: Final = "evaluation"
"""What such a task is called, whoever runs it."""


def evaluation(run: Function, session: Session) -> Function:
    """Return a function that does the same and is recorded as one evaluation.

    What it runs inside, passes and transfers, is no task, for it is of no step. It lasts until it
    returns or fails. One before the first step is recorded as well, if that comes.

    Args:
        run: Evaluates.
        session: Records it.
    """
    return session.beside(session.alone(run), ASIDE, EVALUATION, early=True)
