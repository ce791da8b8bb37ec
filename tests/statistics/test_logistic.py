"""Logistic regression with a Gaussian prior: the best weights by scipy, and that no step goes down."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from idiolect.statistics import logistic

N, D, C = 40, 5, 4
RNG = np.random.default_rng(3)
Z = RNG.normal(size=(N, D)) * [1, 1, 1, 1, 0] + [0, 0, 0, 0, 1.0]
Y = RNG.integers(0, C, N)
WEIGHT = RNG.integers(0, 3, N).astype(float)
OFFSET = RNG.normal(size=C)
CENTRE = RNG.normal(size=(C, D))
TENSORS = [torch.tensor(a) for a in (Z, Y, WEIGHT, OFFSET)]


def cost(w: np.ndarray, pull: float, pairs: bool = False) -> float:
    """What ``fit`` makes small; with pairs, each label's two classes are normalised together."""
    logit = Z @ w.reshape(C, D).T + OFFSET
    logp = log_softmax(logit.reshape(N, -1, 2), -1).reshape(N, C) if pairs else log_softmax(logit, 1)
    return float(-WEIGHT @ logp[np.arange(N), Y] + pull / 2 * ((w.reshape(C, D) - CENTRE) ** 2).sum())


@pytest.mark.parametrize("pairs", [False, True])
def test_gradient_is_that_of_finite_differences(pairs: bool) -> None:
    slope = logistic.gradient(torch.tensor(CENTRE), *TENSORS, groups=2 if pairs else 1).numpy()
    for c, d in np.ndindex(C, D):
        step = np.zeros((C, D))
        step[c, d] = 1e-6
        change = cost((CENTRE + step).ravel(), 0, pairs) - cost((CENTRE - step).ravel(), 0, pairs)
        np.testing.assert_allclose(-change / 2e-6, slope[c, d], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("pull", [0.5, 15.0])
def test_steps_go_to_the_best_weights_and_never_away(pull: float) -> None:
    best = minimize(cost, CENTRE.ravel(), args=(pull,), tol=1e-12)
    before, weight = cost(CENTRE.ravel(), pull), torch.tensor(CENTRE)
    outer = torch.tensor((WEIGHT[:, None] * Z).T @ Z)
    for _ in range(400):
        up = logistic.gradient(weight, *TENSORS) - pull * (weight - torch.tensor(CENTRE))
        weight = weight + logistic.step(up, outer, pull)
        now = cost(weight.numpy().ravel(), pull)
        assert now <= before + 1e-9
        before = now
    np.testing.assert_allclose(weight.numpy().ravel(), best.x, atol=1e-4)
    fitted = logistic.fit(torch.tensor(CENTRE), *TENSORS, pull=pull).numpy().ravel()
    start = cost(CENTRE.ravel(), pull)
    assert cost(fitted, pull) - best.fun < 0.02 * (start - best.fun)


def test_with_one_is_the_mean_of_the_products_of_longer_samples() -> None:
    z = Z[:, :-1]
    made = logistic.with_one(torch.tensor(z.T @ z / N), torch.tensor(z.mean(0)))
    np.testing.assert_allclose(made.numpy(), Z.T @ Z / N, rtol=1e-12)
