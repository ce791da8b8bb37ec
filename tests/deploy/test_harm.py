"""The weights of a site's models, and the interval of a difference."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch

from idiolect.core import keys
from idiolect.deploy import harm
from idiolect.deploy.page import interval


def likely(seed: int, count: int = 40) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.beta([1, 3, 2], [2, 1, 2], (count, 3)))


@pytest.mark.parametrize("seed", range(5))
def test_the_weights_maximise_the_likelihood_and_the_trust_before(seed: int) -> None:
    p_NM = likely(seed).numpy()
    first = np.array([0.25, 0.5, 0.25])

    def loss(free: np.ndarray) -> float:
        w = np.exp(free - free.max())
        w /= w.sum()
        return float(-np.log(p_NM @ w).sum() - 2 * (first * np.log(w)).sum())

    best = scipy.optimize.minimize(loss, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    wanted = np.exp(best.x - best.x.max())
    wanted /= wanted.sum()
    wanted[wanted < 0.05] = 0
    wanted /= wanted.sum()
    found = harm.weights(["global", "personal", "local"], torch.from_numpy(p_NM))
    mine = np.array([found.get(name, 0) for name in ("global", "personal", "local")])
    np.testing.assert_allclose(mine, wanted, atol=2e-3)


def test_a_model_that_is_never_right_is_left_out() -> None:
    p_NM = torch.tensor([[0.9, 0.01, 0.5]] * 60)
    assert "personal" not in harm.weights(["global", "personal", "local"], p_NM)


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
    assert interval(right, count) == pytest.approx((wanted.low, wanted.high), abs=1e-6)


def test_folds_hold_about_as_many_of_each_class() -> None:
    y_N = torch.tensor([0] * 31 + [1] * 12 + [2] * 3)
    fold_N = harm.divided(y_N, 5, keys.key(3))
    for c in range(3):
        counts = torch.bincount(fold_N[y_N == c], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert torch.equal(fold_N, harm.divided(y_N, 5, keys.key(3)))
    assert not torch.equal(fold_N, harm.divided(y_N, 5, keys.key(4)))


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

    found = harm.compare({"global": knows(0.6), "personal": knows(0.8)}, y_N, keys.key(0), folds=6)
    assert len(seen) == 12
    assert all(len(rows) == 50 for rows in seen)
    assert set(found.logp_NC) == {"global", "personal", "blend"}
    assert found.weights["personal"] > 0.9


def test_a_model_that_diverges_is_left_out() -> None:
    y_N = torch.arange(20) % 2

    def fit(value: float):
        return lambda rows: lambda held: torch.full((len(held), 2), value).log()

    found = harm.compare({"global": fit(0.5), "personal": fit(float("nan"))}, y_N, keys.key(0))
    assert found.weights == {"global": 1.0}
    with pytest.raises(Exception, match="the global model's probabilities of these samples are not numbers"):
        harm.compare({"global": fit(float("nan"))}, y_N, keys.key(0))
