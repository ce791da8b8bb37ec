"""The weights of a site's models, and the interval of a difference."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import torch

from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.deploy import harm
from idiolect.statistics.intervals import wilson


def experts(seed: int, count: int = 40, classes: int = 4) -> tuple[dict, torch.Tensor]:
    """Log-probabilities of three models, of which the second is the best, and labels."""
    rng = np.random.default_rng(seed)
    y_N = rng.integers(0, classes, count)
    found = {}
    for name, skill in (("global", 0.5), ("personal", 2.0), ("local", 1.0)):
        logit_NC = rng.normal(size=(count, classes)) * 1.5 + skill * np.eye(classes)[y_N]
        found[name] = torch.from_numpy(scipy.special.log_softmax(logit_NC, axis=1))
    return found, torch.from_numpy(y_N)


@pytest.mark.parametrize("seed", range(5))
def test_the_weights_are_those_that_predict_best(seed: int) -> None:
    logp, y_N = experts(seed)
    first = np.array([0.2, 0.5, 0.3])

    def loss(w: np.ndarray) -> float:
        if (w < 0).any() or (w > 3).any():
            return np.inf
        p = np.ones((40, 4))
        for weight, name in zip(w, ("global", "personal", "local"), strict=True):
            p = p * (0.85 * np.exp(logp[name].numpy()) + 0.15 / 4) ** weight
        p = p / p.sum(1, keepdims=True)
        return float(-np.log(p[np.arange(40), y_N.numpy()]).sum() + 2 * ((w - first) ** 2).sum())

    best = scipy.optimize.minimize(loss, first, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10}).x
    found = harm.weights(logp, y_N)
    mine = [found.get(name, 0.0) for name in ("global", "personal", "local")]
    np.testing.assert_allclose(mine, np.where(best < 0.02, 0, best), atol=1e-3)
    assert max(found, key=lambda name: found[name]) == "personal"


def test_a_model_that_is_surely_wrong_is_left_out() -> None:
    logp, y_N = experts(0)
    wrong = torch.full((40, 4), 0.97)
    wrong[torch.arange(40), y_N] = 0.001
    assert "local" not in harm.weights(logp | {"local": wrong.log()}, y_N)


def test_the_product_of_experts() -> None:
    logp, _ = experts(1)
    q = {name: 0.85 * p.exp() + 0.15 / 4 for name, p in logp.items()}
    p_NC = q["global"] ** 0.4 * q["local"] ** 1.3
    found = harm.blend({"global": 0.4, "local": 1.3}, logp).exp()
    torch.testing.assert_close(found, p_NC / p_NC.sum(1, keepdim=True))
    assert harm.blend({"personal": 1.0}, logp) is logp["personal"]


def test_the_interval_of_a_difference_covers_the_truth() -> None:
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(1000):
        both = rng.choice(4, size=60, p=[0.6, 0.15, 0.1, 0.15])  # both right, one, other, none
        found = harm.paired(torch.from_numpy(np.isin(both, (0, 1))), torch.from_numpy(np.isin(both, (0, 2))))
        inside.append(found.low <= 0.05 <= found.high)
    assert 0.93 < np.mean(inside) < 0.98


@pytest.mark.parametrize(("right", "count"), [(0, 5), (3, 10), (10, 10), (57, 60)])
def test_the_interval_of_an_accuracy(right: int, count: int) -> None:
    wanted = scipy.stats.binomtest(right, count).proportion_ci(method="wilson")
    found = [float(end) for end in wilson(np.array(right / count), np.array(count))]
    assert found == pytest.approx([wanted.low, wanted.high], abs=1e-6)


def test_folds_hold_about_as_many_of_each_class() -> None:
    y_N = torch.tensor([0] * 31 + [1] * 12 + [2] * 3)
    fold_N = harm.fold_numbers(y_N, 5, keys.key(3))
    for c in range(3):
        counts = torch.bincount(fold_N[y_N == c], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert torch.equal(fold_N, harm.fold_numbers(y_N, 5, keys.key(3)))
    assert not torch.equal(fold_N, harm.fold_numbers(y_N, 5, keys.key(4)))


def test_no_sample_is_predicted_by_a_model_or_weights_made_with_it() -> None:
    y_N = torch.arange(60) % 2
    seen: list[set[int]] = []

    def knows(right: float):
        """A model that is sure of the samples that it has seen, and else right with this probability."""

        def fit(rows: torch.Tensor):
            seen.append(set(rows.tolist()))

            def predict(held: torch.Tensor) -> torch.Tensor:
                assert not set(held.tolist()) & set(rows.tolist())
                p = torch.full((len(held), 2), 1 - right)
                p[torch.arange(len(held)), y_N[held]] = right
                return p.log()

            return predict

        return fit

    found = harm.compare({"global": knows(0.6), "personal": knows(0.8)}, y_N, keys.key(0))
    assert len(seen) == 20, "ten folds of each model"
    assert all(len(rows) == 54 for rows in seen)
    assert set(found.outputs) == {"global", "personal", "blend"}
    assert found.weights["personal"] > found.weights["global"]


def test_a_model_that_diverges_is_left_out() -> None:
    y_N = torch.arange(20) % 2

    def fit(value: float):
        return lambda rows: lambda held: torch.full((len(held), 2), value).log()

    found = harm.compare({"global": fit(0.5), "personal": fit(float("nan"))}, y_N, keys.key(0))
    assert set(found.weights) == {"global"}
    with pytest.raises(Exception, match="the global model's probabilities of these samples are not numbers"):
        harm.compare({"global": fit(float("nan"))}, y_N, keys.key(0))


@pytest.mark.parametrize(("groups", "folds"), [(12, 5), (3, 10), (2, 5), (80, 10)])
def test_the_samples_of_a_group_are_in_one_fold(groups, folds):
    rng = np.random.default_rng(groups)
    group_N = torch.from_numpy(rng.integers(0, groups, 200) * 7 - 3)
    y_N = torch.from_numpy(rng.integers(0, 3, 200))
    fold_N = harm.fold_numbers(y_N, folds, keys.key(0), group_N)
    for group in group_N.unique():
        assert len(fold_N[group_N == group].unique()) == 1
    count = torch.bincount(torch.stack([fold_N[group_N == g][0] for g in group_N.unique()]))
    assert len(count) == min(folds, groups)
    assert count.max() - count.min() <= 1
    with pytest.raises(InputError, match="all 200 samples are of one group"):
        harm.fold_numbers(y_N, folds, keys.key(0), torch.zeros(200, dtype=torch.int64))


def test_the_interval_of_a_difference_allows_for_groups():
    """Samples that are copies say no more than one: the interval is that of the groups, by a bootstrap of these."""
    rng = np.random.default_rng(0)
    right_G, other_G = rng.random(60) < 0.8, rng.random(60) < 0.6
    copies = 9
    right_N, other_N = (torch.from_numpy(np.repeat(of, copies)) for of in (right_G, other_G))
    group_N = torch.arange(60).repeat_interleave(copies)
    alone, together = harm.paired(right_N, other_N), harm.paired(right_N, other_N, group_N)
    step_G = right_G.astype(float) - other_G
    means = [rng.choice(step_G, 60).mean() for _ in range(4000)]
    low, high = np.percentile(means, [2.5, 97.5])
    assert together.high - together.low == pytest.approx(high - low, rel=0.06)
    assert alone.high - alone.low < 0.5 * (high - low)
    single = harm.paired(right_N, other_N, torch.arange(len(right_N)))
    assert single.low == pytest.approx(alone.low, abs=0.01)
