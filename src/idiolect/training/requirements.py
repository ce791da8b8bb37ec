"""What a method needs of a task, and its refusal in one sentence where that is not there."""

from __future__ import annotations

from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Task
from idiolect.core.objectives import OBJECTIVES


def require_sgd(task: Task, method: str, because: str) -> SGD:
    """The task's optimiser, for a method that is defined for SGD alone.

    Raises:
        InputError: it is another optimiser.
    """
    rule = task.training.optimiser
    if not isinstance(rule, SGD):
        name = type(rule).__name__.lower()
        raise InputError(f"method {method} needs SGD, because {because}: leave out optimiser={name}, or this method")
    return rule


def require_unweighted(
    task: Task, method: str, because: str = "has a loss of its own, which knows no class_weights"
) -> None:
    """Check that the classes of a task weigh alike, for a method to which other weights would mean nothing.

    Raises:
        InputError: they do not.
    """
    if task.loss is not OBJECTIVES[task.kind].loss:
        raise InputError(f"method {method} {because}: leave class_weights out, or this method")


def require_classes(task: Task, method: str, because: str) -> None:
    """Check that a task is a classification, for a method that is defined for classes alone.

    Raises:
        InputError: it is not.
    """
    if task.kind != "classification":
        raise InputError(f"method {method} needs classes, because {because}: leave it out of a {task.kind} study")


def require_linear_head(task: Task, method: str, because: str) -> None:
    """Check that a network's head is one linear layer with a bias, for a method that takes its weights apart.

    Raises:
        InputError: it is another.
    """
    network = task.network
    shapes = {name: tuple(shape) for name, shape in network.weight_shapes.head.items()}
    if shapes != {"weight": (task.classes, network.width), "bias": (task.classes,)}:
        raise InputError(
            f"method {method} needs a head of one linear layer with a bias, because {because}: leave out this method, "
            "or take another network"
        )
