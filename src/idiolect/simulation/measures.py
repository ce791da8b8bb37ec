"""Measures of a client's test samples beside accuracy: two that are always recorded, and others that a study asks for.

No worker imports scikit-learn unless a study asks for one of its measures. A measure whose interval needs the scores of
samples also gives its ends, as ``auroc_low`` and ``auroc_high``: scores are nowhere else, and leave no site.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from idiolect.core import option_spec
from idiolect.core.errors import InputError, brief, nearest
from idiolect.core.objectives import TaskName
from idiolect.core.option_spec import Spec
from idiolect.simulation import label_measures
from idiolect.simulation.thresholds import HALF
from idiolect.statistics import intervals

# N samples of one client, C classes, P of them present in the labels

Measure = Callable[[Tensor, Tensor], dict[str, float]]
"""From class probabilities (N, C) and labels (N,) to values by metric; one that is not defined is left out."""
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
BINS = 10
"""Bins of probability of the measure ``calibration``."""
_CONFIDENCE_BINS = 15  # as in the literature
_TWO = ("sensitivity", "specificity")  # need two classes
_OF_LABELS = ("recall", *_TWO)  # of predicted classes; with an option they have a threshold of their own


def from_counts(p_NC: Tensor, y_N: Tensor) -> dict[str, float]:
    """The measures that are always recorded; none if there are no samples.

    ``balanced_accuracy``: the mean recall of the classes that the labels have, as scikit-learn's
    ``balanced_accuracy_score``. ``macro_f1``: the mean of 2 right / (true + predicted) over the classes that labels or
    predictions have, as scikit-learn's ``f1_score(average="macro")``. Other classes of the data set do not count.
    """
    if not len(y_N):
        return {}
    truth_N, prediction_N = _labels(p_NC, y_N)
    right_N = truth_N[prediction_N == truth_N]
    true_C, prediction_C, right_C = (
        np.bincount(c_N, minlength=p_NC.shape[1]) for c_N in (truth_N, prediction_N, right_N)
    )
    present_C, any_C = true_C > 0, true_C + prediction_C > 0
    return {
        "balanced_accuracy": float((right_C[present_C] / true_C[present_C]).mean()),
        "macro_f1": float((2 * right_C[any_C] / (true_C + prediction_C)[any_C]).mean()),
    }


def auroc(p_NC: Tensor, y_N: Tensor) -> dict[str, float]:
    """Area under the ROC curve; for more than two classes, each against the rest, mean over the classes present."""
    from sklearn.metrics import roc_auc_score

    values = _against_rest("auroc", roc_auc_score, p_NC, y_N)
    if values and (ends := intervals.auroc(p_NC.numpy(), y_N.numpy())) is not None:
        values |= {"auroc_low": ends[0], "auroc_high": ends[1]}
    return values


def average_precision(p_NC: Tensor, y_N: Tensor) -> dict[str, float]:
    """Average precision of class 1; for more than two classes, each against the rest, mean over the classes present."""
    from sklearn.metrics import average_precision_score

    return _against_rest("average_precision", average_precision_score, p_NC, y_N)


def recall(p_NC: Tensor, y_N: Tensor) -> dict[str, float]:
    """``recall[c]`` of each class c that the labels have."""
    from sklearn.metrics import recall_score

    truth_N, prediction_N = _labels(p_NC, y_N)
    present_P = np.unique(truth_N)
    if not len(present_P):
        return {}
    each_P = recall_score(truth_N, prediction_N, labels=present_P, average=None)
    return {f"recall[{c}]": float(v) for c, v in zip(present_P.tolist(), each_P, strict=True)}


def sensitivity(p_NC: Tensor, y_N: Tensor, *, specificity: Share | None = None) -> dict[str, float]:
    """Recall of class 1, the second of two; or the largest that a threshold gives with at least this specificity."""
    if specificity is not None:
        return _rate(p_NC, y_N, 1, f"sensitivity:specificity={specificity:g}", specificity)
    recall_of = recall(p_NC, y_N)
    return {"sensitivity": recall_of["recall[1]"]} if "recall[1]" in recall_of else {}


def specificity(p_NC: Tensor, y_N: Tensor, *, sensitivity: Share | None = None) -> dict[str, float]:
    """Recall of class 0, the first of two; or the largest that a threshold gives with at least this sensitivity."""
    if sensitivity is not None:
        return _rate(p_NC, y_N, 0, f"specificity:sensitivity={sensitivity:g}", sensitivity)
    recall_of = recall(p_NC, y_N)
    return {"specificity": recall_of["recall[0]"]} if "recall[0]" in recall_of else {}


def _rate(p_NC: Tensor, y_N: Tensor, of: int, name: str, share: float) -> dict[str, float]:
    """The recall of one of two classes at a threshold that keeps at least a share of the other, with its interval."""
    score_N, case_N = p_NC[:, of].numpy(), y_N.numpy() == of
    if case_N.all() or not case_N.any():
        return {}
    value, (low, high) = intervals.rate_at(score_N[case_N], score_N[~case_N], share)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def calibration(p_NC: Tensor, y_N: Tensor) -> dict[str, float]:
    """A reliability diagram: in each of ten bins of probability that has samples, their number and two means.

    For two classes the probability is that of class 1, and ``calibration_observed[b]`` the share of samples of class 1.
    For more it is the highest one, and the share is that of right predictions. ``calibration_predicted[b]`` is the mean
    probability. Bin b has the probabilities in (b / 10, (b + 1) / 10], the first one also 0.
    """
    two = p_NC.shape[1] == 2
    p_N = (p_NC[:, 1] if two else p_NC.amax(1)).numpy()
    hit_N = (y_N if two else p_NC.argmax(1) == y_N).numpy().astype(float)
    bin_N = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], p_N)
    values: dict[str, float] = {}
    for b in np.unique(bin_N).tolist():
        member_N = bin_N == b
        values |= {
            f"calibration_count[{b}]": float(member_N.sum()),
            f"calibration_predicted[{b}]": float(p_N[member_N].mean()),
            f"calibration_observed[{b}]": float(hit_N[member_N].mean()),
        }
    return values


MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "auroc": auroc,
    "average_precision": average_precision,
    "recall": recall,
    "sensitivity": sensitivity,
    "specificity": specificity,
    "calibration": calibration,
}
"""The measures that a study can ask for, by name."""


def values_of(names: Iterable[str], p_NC: Tensor, y_N: Tensor, threshold: float = HALF) -> dict[str, float]:
    """The measures that are always recorded, and those of these specs, by metric.

    Those of predicted classes are at a ``threshold`` of the probability of the second of two classes.
    """
    said_NC = p_NC if threshold == HALF else at(threshold, p_NC)
    values = from_counts(said_NC, y_N)
    for name in names:
        values |= _measure(name)(said_NC if name in _OF_LABELS else p_NC, y_N)
    return values


def at(threshold: float, p_NC: Tensor) -> Tensor:
    """The predicted ones of two classes (N, 2), 1 and else 0: the second where its probability is above a threshold."""
    second_N = p_NC[:, 1] > threshold
    return torch.stack((~second_N, second_N), 1).to(p_NC.dtype)


def check_sums(logp_NC: Tensor) -> None:
    """Check that log-probabilities are some.

    Raises:
        ValueError: probabilities do not sum to 1.
    """
    if len(logp_NC) and bool(((total_N := logp_NC.exp().sum(1)) - 1).abs().amax() > 1e-3):
        what = f"a sample's probabilities sum to {float(total_N[(total_N - 1).abs().argmax()]):.3g}"
        raise ValueError(f"predict does not return log-probabilities ({what}): end it with log_softmax")


@lru_cache
def _measure(text: str) -> Measure:
    spec = Spec.parse(text)
    if spec.name not in MEASURES:
        always = "; accuracy, balanced_accuracy and macro_f1 are always recorded"
        raise InputError(f"unknown measure {brief(spec.name)}; {nearest(spec.name, MEASURES)}{always}")
    make = MEASURES[spec.name]
    return partial(make, **option_spec.check(make, spec.options, f"measure {spec.name}"))


def specs_of(value: object) -> tuple[str, ...]:
    """Specs of measures from a text or texts, joined by commas; each is kept once.

    Raises:
        InputError: there is no such measure or option, or a value is out of range.

    >>> specs_of(["auroc,sensitivity:specificity=0.90", "auroc"])
    ('auroc', 'sensitivity:specificity=0.9')
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        raise InputError(f"measures={brief(value)} is not valid: write names, as auroc,recall")
    names = [name for text in texts for name in option_spec.split_list(str(text))]
    return tuple(dict.fromkeys(_canonical(name) for name in names))


def _canonical(text: str) -> str:
    """A spec as it is recorded; the value of an option is a number."""
    _measure(text)
    spec = Spec.parse(text)
    options = ((k, f"{float(v):g}") for k, v in spec.options.items() if v is not None)
    return str(Spec(name=spec.name, options=dict(options)))


def check(names: Iterable[str], task: TaskName, classes: int) -> None:
    """Check that these measures are defined for a task, and for so many classes.

    Raises:
        InputError: one is for classes and the target is numbers or several labels, or it needs two, and there are more
            or fewer.
    """
    for name in names:
        if task == "regression":
            raise InputError(
                f"measure {name} is for classes, and this target is numbers: leave measures out; the mean squared and "
                "absolute errors and R2 are always recorded"
            )
        if task == "multilabel" and name not in label_measures.RANKED:
            raise InputError(
                f"measure {name} is for classes, of which a sample has one, and here it can have several labels: "
                f"choose {' or '.join(label_measures.RANKED)}, or leave it out; F1 is always recorded"
            )
        if task == "classification" and Spec.parse(name).name in _TWO and classes != 2:
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


def calibration_error(p_NC: Tensor, y_N: Tensor) -> float:
    """Expected calibration error of class probabilities: sum_b n_b / N |accuracy_b - confidence_b|.

    Samples are divided by their highest probability into 15 bins of equal width, (k / 15, (k + 1) / 15]. NaN if there
    are no samples.

    Source: Guo et al., On Calibration of Modern Neural Networks, ICML 2017, Eq. 3.
    """
    confidence_N, prediction_N = p_NC.max(1)
    bin_N = (confidence_N * _CONFIDENCE_BINS).ceil().long().clamp(1, _CONFIDENCE_BINS) - 1
    gap_N = (prediction_N == y_N).to(p_NC.dtype) - confidence_N
    gap_B = torch.zeros(_CONFIDENCE_BINS, dtype=p_NC.dtype).index_add_(0, bin_N, gap_N)
    return float(gap_B.abs().sum() / len(y_N)) if len(y_N) else math.nan
