"""Measures of a client against scikit-learn's metrics."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.calibration import calibration_curve

from idiolect.core.errors import InputError
from idiolect.simulation.measures import MEASURES, check, specs_of, values_of


def drawn(classes: int, present: list[int], samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities with ties and with some sense, and labels of some of the classes."""
    rng = np.random.default_rng(seed)
    y_N = rng.choice(present, samples)
    p_NC = rng.dirichlet(np.ones(classes), samples) + 0.3 * np.eye(classes)[y_N]
    p_NC = np.round(p_NC / p_NC.sum(1, keepdims=True), 2)
    return torch.tensor(p_NC / p_NC.sum(1, keepdims=True)), torch.tensor(y_N)


CASES = [
    (classes, present, samples, seed)
    for classes, present in ((2, [0, 1]), (3, [0, 1, 2]), (5, [1, 3]), (5, [0, 2, 4]), (4, [2]), (2, [1]))
    for samples in (1, 2, 7, 60)
    for seed in range(3)
]


@pytest.mark.parametrize(("classes", "present", "samples", "seed"), CASES)
def test_what_is_always_recorded(classes: int, present: list[int], samples: int, seed: int) -> None:
    p_NC, y_N = drawn(classes, present, samples, seed)
    said_N = p_NC.argmax(1)
    found = values_of((), p_NC, y_N)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that only predictions have
        want = {
            "balanced_accuracy": metrics.balanced_accuracy_score(y_N, said_N),
            "macro_f1": metrics.f1_score(y_N, said_N, average="macro"),
        }
    assert found == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize(("classes", "present", "samples", "seed"), CASES)
def test_what_is_asked_for(classes: int, present: list[int], samples: int, seed: int) -> None:
    """Without a warning, whatever is missing. One against the rest is computed class by class here."""
    p_NC, y_N = drawn(classes, present, samples, seed)
    there, said_N = np.unique(y_N), p_NC.argmax(1)
    found = values_of([m for m in MEASURES if classes == 2 or m not in ("sensitivity", "specificity")], p_NC, y_N)
    del found["balanced_accuracy"], found["macro_f1"]
    found = {k: v for k, v in found.items() if not k.startswith("calibration") and not k.endswith(("_low", "_high"))}
    want = {f"recall[{c}]": float((said_N[y_N == c] == c).double().mean()) for c in there}
    if len(there) > 1:
        for name, score in (("auroc", metrics.roc_auc_score), ("average_precision", metrics.average_precision_score)):
            of = [1] if classes == 2 else there
            want[name] = np.mean([score((y_N == c).int(), p_NC[:, c]) for c in of])
    if classes == 2:
        want |= {name: want[f"recall[{c}]"] for c, name in enumerate(("specificity", "sensitivity")) if c in there}
    assert found == pytest.approx(want, abs=1e-12)


def test_auroc_is_scikit_learns_where_all_classes_are_there() -> None:
    p_NC, y_N = drawn(4, [0, 1, 2, 3], 80, 0)
    assert values_of(["auroc"], p_NC, y_N)["auroc"] == pytest.approx(
        metrics.roc_auc_score(y_N, p_NC, multi_class="ovr", average="macro"), abs=1e-12
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_no_samples(classes: int) -> None:
    names = [m for m in MEASURES if classes == 2 or m not in ("sensitivity", "specificity")]
    assert values_of(names, torch.zeros(0, classes, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)) == {}


def test_names() -> None:
    assert specs_of(["auroc, recall", "auroc"]) == specs_of("auroc,recall") == ("auroc", "recall")
    assert specs_of(()) == specs_of("") == ()
    with pytest.raises(InputError, match=r"unknown measure 'auc'; did you mean 'auroc'\? Known: .* always recorded"):
        specs_of("auc")
    with pytest.raises(InputError, match="unknown measure '3'"):
        specs_of(["auroc", 3])
    for odd in ({"auroc"}, {"auroc": 1}, None, 3):
        with pytest.raises(InputError, match=r"measures=.* is not valid: write names, as auroc,recall"):
            specs_of(odd)
    check(MEASURES, "classification", 2)
    with pytest.raises(InputError, match="measure sensitivity is for two classes, and these data have 10: choose reca"):
        check(["auroc", "sensitivity"], "classification", 10)


def test_scikit_learn_is_imported_only_if_asked_for() -> None:
    code = (
        "import sys, torch\n"
        "from idiolect.simulation.measures import values_of\n"
        "p, y = torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([1, 0])\n"
        "values_of((), p, y); assert 'sklearn' not in sys.modules\n"
        "values_of(['auroc'], p, y); assert 'sklearn' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


THRESHOLDS = ["sensitivity:specificity=0.9", "sensitivity:specificity=0.75", "specificity:sensitivity=0.8",
              "specificity:sensitivity=1"]  # fmt: skip


@pytest.mark.parametrize("name", THRESHOLDS)
@pytest.mark.parametrize(("samples", "seed"), [(7, 0), (60, 1), (61, 2), (400, 3)])
def test_a_rate_at_another_rate_is_on_the_roc_curve(name: str, samples: int, seed: int) -> None:
    """The best point of scikit-learn's curve, ties included; the interval contains it."""
    p_NC, y_N = drawn(2, [0, 1], samples, seed)
    wrong, right, _ = metrics.roc_curve(y_N, p_NC[:, 1], drop_intermediate=False)
    share = float(name.partition("=")[2])
    if name.startswith("sensitivity"):
        want = right[1 - wrong >= share - 1e-9].max()
    else:
        want = (1 - wrong)[right >= share - 1e-9].max()
    found = values_of([name], p_NC, y_N)
    assert found[name] == pytest.approx(want, abs=1e-12)
    assert 0 <= found[f"{name}_low"] <= want + 1e-12
    assert want - 1e-12 <= found[f"{name}_high"] <= 1
    assert values_of([name], p_NC, y_N) == found
    assert set(values_of([name], p_NC[y_N == 1], y_N[y_N == 1])) == {"balanced_accuracy", "macro_f1"}


@pytest.mark.parametrize(("classes", "seed"), [(2, 0), (2, 1), (3, 2), (7, 3)])
def test_bins_are_scikit_learns_calibration_curve(classes: int, seed: int) -> None:
    p_NC, y_N = drawn(classes, list(range(classes)), 300, seed)
    found = values_of(["calibration"], p_NC, y_N)
    p_N = p_NC[:, 1] if classes == 2 else p_NC.max(1).values
    hit_N = y_N if classes == 2 else p_NC.argmax(1) == y_N
    observed, predicted = calibration_curve(hit_N, p_N, n_bins=10)
    bins = [b for b in range(10) if f"calibration_count[{b}]" in found]
    assert [found[f"calibration_observed[{b}]"] for b in bins] == pytest.approx(observed.tolist())
    assert [found[f"calibration_predicted[{b}]"] for b in bins] == pytest.approx(predicted.tolist())
    assert sum(found[f"calibration_count[{b}]"] for b in bins) == 300


def test_specs_with_options() -> None:
    assert specs_of("auroc,sensitivity:specificity=0.90,specificity:sensitivity=8e-1, calibration") == (
        "auroc", "sensitivity:specificity=0.9", "specificity:sensitivity=0.8", "calibration",
    )  # fmt: skip
    for text, said in (
        ("sensitivity:specificity=1.5", "specificity=1.5 is not valid: input should be less than or equal to 1"),
        ("sensitivity:specificity=0", "input should be greater than 0"),
        ("sensitivity:specifity=0.9", "measure sensitivity has no option 'specifity'; did you mean 'specificity'"),
        ("auroc:specificity=0.9", "measure auroc has no option 'specificity'"),
        ("sensitivity:0.9", "write options as name:key=value"),
    ):
        with pytest.raises(InputError, match=said):
            specs_of(text)
    with pytest.raises(InputError, match=r"sensitivity:specificity=0\.9 is for two classes, and these data have 3"):
        check(["sensitivity:specificity=0.9"], "classification", 3)
