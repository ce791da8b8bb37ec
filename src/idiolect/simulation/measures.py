"""Measures of a client's test samples beside accuracy: two that are always recorded, and others that a study asks for.

No worker imports scikit-learn unless a study asks for one of its measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.errors import InputError, brief, nearest

# N samples of one client, C classes, P of them present in the labels

Measure = Callable[[Tensor, Tensor], dict[str, float]]
"""From class probabilities (N, C) and labels (N,) to values by metric; one that is not defined is left out."""
_TWO = ("sensitivity", "specificity")  # need two classes


def from_counts(p_NC: Tensor, y_N: Tensor) -> dict[str, float]:
    """The measures that are always recorded; none if there are no samples.

    ``balanced_accuracy``: the mean recall of the classes that the labels have, as scikit-learn's
    ``balanced_accuracy_score``. ``macro_f1``: the mean of 2 right / (true + predicted) over the classes that labels or
    predictions have, as scikit-learn's ``f1_score(average="macro")``. Other classes of the data set do not count.
    """
    if not len(y_N):
        return {}
    truth_N, said_N = _labels(p_NC, y_N)
    right_N = truth_N[said_N == truth_N]
    true_C, said_C, right_C = (np.bincount(c_N, minlength=p_NC.shape[1]) for c_N in (truth_N, said_N, right_N))
    there_C, any_C = true_C > 0, true_C + said_C > 0
    return {
        "balanced_accuracy": float((right_C[there_C] / true_C[there_C]).mean()),
        "macro_f1": float((2 * right_C[any_C] / (true_C + said_C)[any_C]).mean()),
    }


def auroc(p_NC: Tensor, y_N: Tensor) -> dict[str, float]:
    """Area under the ROC curve; for more than two classes, each against the rest, mean over the classes present."""
    from sklearn.metrics import roc_auc_score

    return _against_rest("auroc", roc_auc_score, p_NC, y_N)


def average_precision(p_NC: Tensor, y_N: Tensor) -> dict[str, float]:
    """Average precision of class 1; for more than two classes, each against the rest, mean over the classes present."""
    from sklearn.metrics import average_precision_score

    return _against_rest("average_precision", average_precision_score, p_NC, y_N)


def recall(p_NC: Tensor, y_N: Tensor) -> dict[str, float]:
    """``recall[c]`` of each class c that the labels have."""
    from sklearn.metrics import recall_score

    truth_N, said_N = _labels(p_NC, y_N)
    present_P = np.unique(truth_N)
    if not len(present_P):
        return {}
    each_P = recall_score(truth_N, said_N, labels=present_P, average=None)
    return {f"recall[{c}]": float(v) for c, v in zip(present_P.tolist(), each_P, strict=True)}


def sensitivity(p_NC: Tensor, y_N: Tensor) -> dict[str, float]:
    """Recall of class 1, the second of two."""
    found = recall(p_NC, y_N)
    return {"sensitivity": found["recall[1]"]} if "recall[1]" in found else {}


def specificity(p_NC: Tensor, y_N: Tensor) -> dict[str, float]:
    """Recall of class 0, the first of two."""
    found = recall(p_NC, y_N)
    return {"specificity": found["recall[0]"]} if "recall[0]" in found else {}


MEASURES: dict[str, Measure] = {
    "auroc": auroc,
    "average_precision": average_precision,
    "recall": recall,
    "sensitivity": sensitivity,
    "specificity": specificity,
}
"""The measures that a study can ask for, by name."""


def measured(names: Iterable[str], p_NC: Tensor, y_N: Tensor) -> dict[str, float]:
    """The measures that are always recorded, and those of these names, by metric."""
    found = from_counts(p_NC, y_N)
    for name in names:
        found |= MEASURES[name](p_NC, y_N)
    return found


def named(value: object) -> tuple[str, ...]:
    """Names of measures from a text or texts, joined by commas; each is kept once.

    Raises:
        InputError: there is no such measure.

    >>> named(["auroc,recall", "auroc"])
    ('auroc', 'recall')
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        raise InputError(f"measures={brief(value)} is not valid: write names, as auroc,recall")
    names = [name.strip() for text in texts for name in str(text).split(",") if name.strip()]
    for name in names:
        if name not in MEASURES:
            always = "; accuracy, balanced_accuracy and macro_f1 are always recorded"
            raise InputError(f"unknown measure {brief(name)}; {nearest(name, MEASURES)}{always}")
    return tuple(dict.fromkeys(names))


def check(names: Iterable[str], classes: int) -> None:
    """Check that these measures are defined for so many classes.

    Raises:
        InputError: one needs two classes, and there are more or fewer.
    """
    for name in names:
        if name in _TWO and classes != 2:
            raise InputError(f"measure {name} is for two classes, and these data have {classes}: choose recall")


def _against_rest(name: str, score: Callable[..., float], p_NC: Tensor, y_N: Tensor) -> dict[str, float]:
    """A measure of one class against the rest: of class 1 of two, else the mean over the classes present."""
    truth_N, p = y_N.numpy(), p_NC.numpy()
    present_P = np.unique(truth_N)
    if len(present_P) < 2:
        return {}
    if p.shape[1] == 2:
        return {name: float(score(truth_N, p[:, 1]))}
    return {name: float(score(truth_N[:, None] == present_P, p[:, present_P], average="macro"))}


def _labels(p_NC: Tensor, y_N: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """True and predicted classes."""
    return y_N.numpy(), p_NC.argmax(1).numpy()
