"""Measures of several labels of a sample against scikit-learn's metrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics

from idiolect.core.errors import InputError
from idiolect.core.objectives import OBJECTIVES
from idiolect.simulation.label_measures import RANKED, of_predictions, ranked, read
from idiolect.simulation.measures import check

NAMES = ("rain", "wind", "snow", "fog")


def drawn(samples: int, seed: int, shares: tuple[float, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities with ties and with some sense, and labels that are so frequent."""
    rng = np.random.default_rng(seed)
    y_NL = (rng.random((samples, len(shares))) < np.array(shares)).astype(float)
    p_NL = np.round(np.clip(0.3 * y_NL + 0.8 * rng.random(y_NL.shape), 0.01, 0.99), 1)
    return torch.tensor(p_NL), torch.tensor(y_NL)


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.6, 0.2), (0.5, 0.0, 1.0, 0.1), (0.02, 0.02, 0.9, 0.0), (0, 0, 0, 0)])
@pytest.mark.parametrize(("samples", "seed"), [(1, 0), (5, 1), (40, 2), (200, 3)])
def test_they_are_scikit_learns(shares: tuple[float, ...], samples: int, seed: int) -> None:
    p_NL, y_NL = drawn(samples, seed, shares)
    said_NL = (p_NL > 0.5).double()
    each = {
        f"f1[{name}]": metrics.f1_score(y_N, said_N, zero_division=1.0)
        for name, y_N, said_N in zip(NAMES, y_NL.T.numpy(), said_NL.T.numpy(), strict=True)
        if y_N.any() or said_N.any()
    }
    want = each | {
        "micro_f1": metrics.f1_score(y_NL, said_NL, average="micro", zero_division=1.0),
        "subset_accuracy": metrics.accuracy_score(y_NL, said_NL),
    }
    if each:
        want["macro_f1"] = np.mean(list(each.values()))
    for name, score in (("auroc", metrics.roc_auc_score), ("average_precision", metrics.average_precision_score)):
        some = [k for k in range(4) if 0 < y_NL[:, k].mean() < 1]
        if some:
            want[name] = score(y_NL[:, some], p_NL[:, some], average="macro")
            want |= {f"{name}[{NAMES[k]}]": score(y_NL[:, k], p_NL[:, k]) for k in some}
    found = of_predictions(p_NL, y_NL, NAMES) | ranked(RANKED, p_NL, y_NL, NAMES)
    assert found == pytest.approx(want, abs=1e-12)


def test_without_samples_there_is_nothing() -> None:
    assert of_predictions(torch.zeros(0, 4), torch.zeros(0, 4), NAMES) == {}
    assert ranked(RANKED, torch.zeros(0, 4), torch.zeros(0, 4), NAMES) == {}


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_probabilities_are_those_of_the_logits(seed: int) -> None:
    """Also far from 0, where a probability of 1 leaves nothing for the other value."""
    rng = np.random.default_rng(seed)
    z_NL, y_NL = rng.normal(scale=60, size=(30, 4)), rng.integers(0, 2, (30, 4)).astype(float)
    how = OBJECTIVES["multilabel"]
    logits, truth = torch.tensor(z_NL), torch.tensor(y_NL)
    p_NL, loss_N = read(how.output(logits), truth)
    np.testing.assert_allclose(p_NL, 1 / (1 + np.exp(-z_NL)), rtol=1e-9)
    exact = np.logaddexp(0, np.where(y_NL > 0, -z_NL, z_NL)).mean(1)
    np.testing.assert_allclose(loss_N, exact, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(how.loss(logits, truth), exact, rtol=1e-9, atol=1e-12)


def test_a_mixture_of_models_is_the_mean_probability() -> None:
    rng = np.random.default_rng(0)
    z_MBL, weight_M = rng.normal(size=(3, 5, 4)), np.array([0.2, 0.5, 0.3])
    how = OBJECTIVES["multilabel"]
    mixed = how.mixture(torch.tensor(weight_M), how.output(torch.tensor(z_MBL)))
    want = np.tensordot(weight_M, 1 / (1 + np.exp(-z_MBL)), 1)
    np.testing.assert_allclose(mixed[..., 1].exp(), want, rtol=1e-9)
    np.testing.assert_allclose(mixed[..., 0].exp(), 1 - want, rtol=1e-9)


@pytest.mark.parametrize(
    ("logp", "said"),
    [
        (torch.zeros(3, 4), r"shape \(3, 4\) for 3 samples of 4 labels: return \(3, 4, 2\)"),
        (torch.zeros(3, 3, 2), r"shape \(3, 3, 2\) for 3 samples of 4 labels"),
        (torch.zeros(3, 4, 2), "a label's two sum to 2"),
        (torch.full((3, 4, 2), -1.0), r"a label's two sum to 0\.736"),
    ],
)
def test_other_predictions_are_refused(logp: torch.Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(logp, torch.zeros(3, 4))


@pytest.mark.parametrize("name", ["recall", "sensitivity", "specificity:sensitivity=0.9", "calibration"])
def test_measures_of_one_class_are_refused(name: str) -> None:
    check(RANKED, "multilabel", 1)
    with pytest.raises(InputError, match=f"measure {name} is for classes, of which a sample has one, and here"):
        check([name], "multilabel", 1)
