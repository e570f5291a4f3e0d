"""What workflows of GitHub run in a shell."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

VALUE = re.compile(r"\$\{\{ *([\w.]+) *\}\}")


class Step(NamedTuple):
    """A step that is a script.

    Attributes:
        job: The job that it is of.
        name: Its name; its script, if it has none.
        script: What the shell gets.
    """

    job: str
    name: str
    script: str


def shell_steps(workflow: str, values: Mapping[str, str] | None = None) -> list[Step]:
    """Return the steps of a workflow that are scripts, in order.

    Args:
        workflow: Its text.
        values: What stands for `${{ name }}`, by name.

    Raises:
        KeyError: A script asks for a value that is not there.
    """
    known = values or {}
    return [
        Step(job, step.get("name", step["run"]), VALUE.sub(lambda at: known[at[1]], step["run"]))
        for job, said in yaml.safe_load(workflow)["jobs"].items()
        for step in said["steps"]
        if "run" in step
    ]
