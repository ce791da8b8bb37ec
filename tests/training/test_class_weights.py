"""Weights of classes against scikit-learn, and losses with them against torch's own."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from idiolect.core.errors import InputError
from idiolect.core.objectives import OBJECTIVES
from idiolect.core.option_spec import Spec
from idiolect.training.class_weights import WeightedLabelLoss, WeightedLoss, class_weights_of, weighted, weights_of

COUNTS = [(90, 10), (50, 50), (1, 999), (70, 20, 10), (5, 5, 5, 985)]


@pytest.mark.parametrize("counts", COUNTS)
def test_balanced_is_scikit_learns(counts: tuple[int, ...]) -> None:
    y_N = np.repeat(np.arange(len(counts)), counts)
    want = compute_class_weight("balanced", classes=np.arange(len(counts)), y=y_N)
    np.testing.assert_allclose(class_weights_of(Spec.parse("balanced")).of(np.array(counts)), want)


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.999, 0.99999])
@pytest.mark.parametrize("counts", COUNTS)
def test_effective_numbers_are_the_papers_up_to_a_factor(counts: tuple[int, ...], beta: float) -> None:
    """The paper sums beta^k over the samples of a class; here a sample weighs 1 on average."""
    effective_C = np.array([sum(beta**k for k in range(n)) for n in counts])
    found_C = class_weights_of(Spec.parse(f"effective:beta={beta}")).of(np.array(counts))
    np.testing.assert_allclose(found_C * effective_C, (found_C * effective_C)[0], rtol=1e-6)
    assert (found_C * counts).sum() == pytest.approx(sum(counts))


@pytest.mark.parametrize("text", ["balanced", "effective", "effective:beta=0.5"])
def test_a_class_without_samples_changes_nothing(text: str) -> None:
    how = class_weights_of(Spec.parse(text))
    with_gap = how.of(np.array([30, 0, 10]))
    np.testing.assert_allclose(
        with_gap[[0, 2]] / with_gap[0], how.of(np.array([30, 10])) / how.of(np.array([30, 10]))[0]
    )
    assert (with_gap[[0, 2]] * [30, 10]).sum() == pytest.approx(40)
    assert np.isfinite(with_gap).all()


@pytest.mark.parametrize("seed", range(3))
def test_losses_are_torchs_weighted_ones(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logit_BC, y_B = torch.randn(9, 3, generator=draw), torch.randint(3, (9,), generator=draw)
    how = class_weights_of(Spec.parse("numbers:weights=1+0.5+4"))
    loss = weighted(OBJECTIVES["classification"], weights_of(how, [[5, 5, 5]])).loss
    want = torch.nn.functional.cross_entropy(logit_BC, y_B, weight=torch.tensor([1, 0.5, 4]), reduction="none")
    torch.testing.assert_close(loss(logit_BC, y_B), want)
    assert pickle.loads(pickle.dumps(loss)) == loss == WeightedLoss((1.0, 0.5, 4.0))


@pytest.mark.parametrize("seed", range(3))
def test_losses_of_labels_are_torchs_weighted_ones(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logit_BL, y_BL = torch.randn(9, 2, generator=draw), torch.randint(2, (9, 2), generator=draw).float()
    how = class_weights_of(Spec.parse("balanced"))
    loss = weighted(OBJECTIVES["multilabel"], weights_of(how, [[90, 10], [40, 60]])).loss
    assert isinstance(loss, WeightedLabelLoss)
    want_BL = torch.nn.functional.binary_cross_entropy_with_logits(
        logit_BL, y_BL, pos_weight=torch.tensor([9.0, 40 / 60]), reduction="none"
    ) * torch.tensor([100 / 180, 100 / 80])  # fmt: skip
    torch.testing.assert_close(loss(logit_BL, y_BL), want_BL.mean(1))
    assert pickle.loads(pickle.dumps(loss)) == loss


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("balance", "unknown class_weights 'balance'; did you mean 'balanced'"),
        ("effective:beta=1", "beta=1 is not valid: input should be less than 1"),
        ("effective:betta=0.9", "has no option 'betta'; did you mean 'beta'"),
        ("numbers:weights=1+x", r"weights=1\+x is not valid: give numbers above 0, joined by \+"),
        ("numbers:weights=1+-2", r"weights=1\+-2 is not valid: give numbers above 0"),
        ("numbers:weights=1+inf", r"weights=1\+inf is not valid: give numbers above 0"),
        ("numbers:weights=1+2", r"weights=1\+2 has 2 numbers for 3 classes: give each its own"),
    ],
)
def test_what_is_no_weight(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        class_weights_of(Spec.parse(text)).of(np.array([1, 2, 3]))


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_without_weights_the_loss_is_as_it_was(task: str) -> None:
    assert weights_of(class_weights_of(Spec.parse("none")), [[3, 4]]) == ()
    assert weighted(OBJECTIVES[task], ()) is OBJECTIVES[task]
