"""The loss of a study's task, in which classes may weigh differently."""

from __future__ import annotations

from idiolect.core.errors import InputError
from idiolect.core.objectives import OBJECTIVES, Objective
from idiolect.core.option_spec import Spec
from idiolect.data import FederatedData
from idiolect.training.class_weights import Numbers, Unweighted, class_weights_of, weighted, weights_of


def objective_of(class_weights: Spec, federation: FederatedData) -> Objective:
    """What is learnt of the clients' targets, with the weights that the training samples of all clients give.

    Raises:
        InputError: the target has no classes, or given weights are not one for each class.
    """
    task, way = federation.task, class_weights_of(class_weights)
    if isinstance(way, Unweighted):  # nothing is counted for it
        return OBJECTIVES[task]
    if task == "regression":
        raise InputError(f"class_weights={class_weights} is for classes, and this target is a number: leave it out")
    if task == "multilabel" and isinstance(way, Numbers):
        raise InputError(
            f"class_weights={class_weights} is for classes, and here a sample can have several labels: take balanced "
            "or effective"
        )
    return weighted(OBJECTIVES[task], weights_of(way, federation.class_counts))
