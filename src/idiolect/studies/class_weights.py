"""The loss of a study's task, in which classes may weigh differently."""

from __future__ import annotations

import numpy as np
import torch

from idiolect.core.errors import InputError
from idiolect.core.objectives import OBJECTIVES, Objective
from idiolect.core.option_spec import Spec
from idiolect.data import FederatedData
from idiolect.training.class_weights import Numbers, Unweighted, class_weights_of, weighted_loss


def objective_of(class_weights: Spec, federation: FederatedData) -> Objective:
    """What is learnt of the clients' targets, with the weights that the training samples of all clients give.

    Raises:
        InputError: the target has no classes, or given weights are not one for each class.
    """
    how, way = OBJECTIVES[federation.task], class_weights_of(class_weights)
    if isinstance(way, Unweighted):
        return how
    if federation.task == "regression":
        raise InputError(f"class_weights={class_weights} is for classes, and this target is a number: leave it out")
    if isinstance(way, Numbers) and federation.task == "multilabel":
        raise InputError(
            f"class_weights={class_weights} is for classes, and here a sample can have several labels: take balanced "
            "or effective"
        )
    rows = torch.cat([*federation.train[: federation.trained]])
    if federation.targets is None:
        count_LC = torch.bincount(federation.y_R[rows], minlength=federation.classes).numpy()[None]
    else:
        having_L = federation.targets.value_RD[rows].sum(0).long().numpy()
        count_LC = np.stack([len(rows) - having_L, having_L], 1)
    return how._replace(loss=weighted_loss(way, count_LC, federation.task == "multilabel"))
