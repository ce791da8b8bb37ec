"""Whether what a protocol records besides the numbers is there for a task."""

from __future__ import annotations

from idiolect.core.errors import InputError
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.objectives import TaskName


def check_observed(protocol: Protocol, task: TaskName) -> None:
    """Check that what is observed, which is all by class, can be of a task.

    Raises:
        InputError: the target has no classes, or a sample can have several labels.
    """
    if protocol.observe and task != "classification":
        has = "this target is numbers" if task == "regression" else "here it can have several"
        raise InputError(
            f"protocol observe={'+'.join(protocol.observe)} is for classes, of which a sample has one, and {has}: "
            "leave observe out"
        )
