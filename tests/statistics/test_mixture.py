"""Mixtures of heads: shares against scipy, and that no head predicts a sample that it was made from."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp
from torch import Tensor

from idiolect.core import keys
from idiolect.statistics import mixture
from idiolect.statistics.gaussian import LinearHead
from idiolect.statistics.moments import Moments, moments

K, C, D, N = 3, 4, 5, 60
RNG = np.random.default_rng(4)
KEY = keys.key(0, "mixture")


@pytest.mark.parametrize("prior", [0.5, 20.0])
def test_shares_are_the_best_ones(prior: float) -> None:
    logp = np.log(RNG.uniform(0.05, 1, (N, K)))
    weight = RNG.integers(0, 3, N).astype(float)

    def cost(free: np.ndarray) -> float:
        log_a = log_softmax(free)
        return -float(weight @ logsumexp(logp + log_a, axis=1) + prior / K * log_a.sum())

    best = np.exp(log_softmax(minimize(cost, np.zeros(K), tol=1e-12).x))
    found = mixture.shares(torch.tensor(logp), torch.tensor(weight), prior)
    np.testing.assert_allclose(found.numpy(), best, atol=5e-3)
    assert float(found.sum()) == pytest.approx(1)


def test_a_sample_of_weight_0_counts_for_nothing() -> None:
    logp, weight = torch.tensor(np.log(RNG.uniform(0.05, 1, (N, K)))), torch.ones(N)
    weight[7] = 0
    other = logp.clone()
    other[7] = torch.tensor([0.0, -50.0, -50.0])
    assert torch.equal(mixture.shares(logp, weight, 1.0), mixture.shares(other, weight, 1.0))


def test_log_probabilities_are_those_of_the_mixture() -> None:
    heads = LinearHead(torch.tensor(RNG.normal(size=(K, C, D))), torch.tensor(RNG.normal(size=(K, C))))
    share, z = np.array([0.2, 0.5, 0.3]), RNG.normal(size=(6, D))
    p = sum(
        a * np.exp(log_softmax(z @ w.T + b, 1))
        for a, w, b in zip(share, heads.weight_Cd.numpy(), heads.bias_C.numpy(), strict=True)
    )
    found = mixture.log_probabilities(mixture.Mixture(heads, torch.tensor(share)), torch.tensor(z))
    np.testing.assert_allclose(found.numpy(), np.log(p), rtol=1e-10)


def test_heads_that_only_know_their_own_samples_get_no_share() -> None:
    """The first head is right about samples that it has seen and wrong about all others; the second never learns."""
    z, y = torch.eye(N, dtype=torch.float64), torch.tensor(RNG.integers(0, C, N))
    asked: list[Tensor] = []

    def heads_from(sums: Moments, weight_N: Tensor) -> LinearHead:
        assert torch.equal(weight_N.double(), sums.outer_dd.diagonal())  # sample n is the unit vector n
        asked.append(weight_N)
        right_CN = torch.nn.functional.one_hot(y, C).T.double()
        knows_CN = torch.where(weight_N > 0, 50 * right_CN, 50 * right_CN.roll(1, 0))
        return LinearHead(torch.stack([knows_CN, torch.zeros(C, N)]), torch.zeros(2, C, dtype=torch.float64))

    made = mixture.fit(heads_from, z, y, torch.ones(N), KEY, classes=C, folds=5, prior=1.0)
    assert float(made.share_K[1]) > 0.98
    assert len(asked) == 6
    assert torch.equal(sum(1 - weight_N for weight_N in asked), torch.ones(N))  # each sample is left out once
    assert torch.equal(made.heads.weight_Cd, heads_from(moments(z, y, torch.ones(N), C), torch.ones(N)).weight_Cd)


def test_one_head_needs_no_folds() -> None:
    head = LinearHead(torch.zeros(1, C, D), torch.zeros(1, C))
    asked: list[Moments] = []

    def heads_from(sums: Moments, weight_N: Tensor) -> LinearHead:
        asked.append(sums)
        return head

    z, y = torch.ones(N, D), torch.zeros(N).long()
    made = mixture.fit(heads_from, z, y, torch.ones(N), KEY, classes=C, folds=5, prior=1.0)
    assert made.share_K.tolist() == [1.0]
    assert [sums.n_C.tolist() for sums in asked] == [[N, 0, 0, 0]]
