"""The loss of a study's task, in which classes may weigh differently."""

from __future__ import annotations

from idiolect.core.errors import InputError
from idiolect.core.objectives import OBJECTIVES, Objective, TaskName
from idiolect.core.option_spec import Spec
from idiolect.data import FederatedData
from idiolect.training.class_weights import Numbers, Unweighted, class_weights_of, weighted, weights_of


def check(class_weights: Spec, task: TaskName, outputs: int) -> None:
    """Check that a task can have these weights.

    Args:
        class_weights: as in a study.
        task: what is learnt of the target.
        outputs: classes, labels or numbers.

    Raises:
        InputError: the target has no classes, or given weights are not one for each class.
    """
    way = class_weights_of(class_weights)
    if task == "regression" and not isinstance(way, Unweighted):
        raise InputError(f"class_weights={class_weights} is for classes, and this target is a number: leave it out")
    if task == "multilabel" and isinstance(way, Numbers):
        raise InputError(
            f"class_weights={class_weights} is for classes, and here a sample can have several labels: take balanced "
            "or effective"
        )
    if task == "classification":
        weights_of(way, [[1] * outputs])


def objective_of(class_weights: Spec, federation: FederatedData) -> Objective:
    """What is learnt of the clients' targets, with the weights that the training samples of all clients give.

    Raises:
        InputError: as ``check``.
    """
    check(class_weights, federation.task, federation.outputs)
    weights = weights_of(class_weights_of(class_weights), federation.class_counts)
    return weighted(OBJECTIVES[federation.task], weights)
