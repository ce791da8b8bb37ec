"""The LDA head against Bayes' rule on scipy's Gaussian densities."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import multivariate_normal
from torch.func import vmap

from idiolect.core import tree
from idiolect.statistics.gaussian import Gaussian, interpolate, lda_head

C, D = 4, 6


def gaussian(seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(D, D, generator=g, dtype=torch.float64)
    return Gaussian(
        torch.randn(C, D, generator=g, dtype=torch.float64).to(dtype), (root @ root.T + 0.1 * torch.eye(D)).to(dtype)
    )


def prior(seed=0):
    return torch.tensor(np.log(np.random.default_rng(seed).dirichlet(np.ones(C))))


@pytest.mark.parametrize("shrink", [0.0, 1e-4, 0.3, 1.0])
def test_lda_head_is_bayes_rule(shrink):
    g, logprior = gaussian(), prior()
    z = np.random.default_rng(2).normal(size=(30, D)) * 2
    cov = (1 - shrink) * g.cov_dd.numpy() + shrink * np.trace(g.cov_dd) / D * np.eye(D)
    joint = np.stack([multivariate_normal(m, cov).logpdf(z) for m in g.mean_Cd.numpy()], 1) + logprior.numpy()
    head = lda_head(g, logprior, shrink=shrink)
    logits = z @ head.weight_Cd.numpy().T + head.bias_C.numpy()
    np.testing.assert_allclose(log_softmax(logits, 1), log_softmax(joint, 1), atol=1e-9)


@pytest.mark.parametrize("several", [1, 3, 6])
def test_several_means_with_one_covariance_make_several_heads(several):
    g, logprior = gaussian(), prior()
    mean_KCd = torch.tensor(np.random.default_rng(4).normal(size=(several, C, D)))
    heads = lda_head(g._replace(mean_Cd=mean_KCd), logprior, shrink=0.2)
    cov = 0.8 * g.cov_dd.numpy() + 0.2 * np.trace(g.cov_dd) / D * np.eye(D)
    for k, mean in enumerate(mean_KCd.numpy()):
        weight = np.linalg.solve(cov, mean.T).T
        np.testing.assert_allclose(heads.weight_Cd[k], weight, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            heads.bias_C[k], logprior.numpy() - (weight * mean).sum(1) / 2, rtol=1e-9, atol=1e-12
        )


def test_lda_head_computes_in_float64():
    g = gaussian(dtype=torch.float32)
    exact = np.linalg.solve(g.cov_dd.numpy().astype(float), g.mean_Cd.numpy().astype(float).T).T
    head = lda_head(g, prior(), shrink=0.0)
    np.testing.assert_allclose(head.weight_Cd, exact, rtol=1e-10)
    assert head.weight_Cd.dtype == head.bias_C.dtype == torch.float64


@pytest.mark.parametrize("cov", [-np.eye(D), np.diag([1.0] * (D - 1) + [-5.0]), np.full((D, D), np.nan)])
def test_lda_head_is_nan_where_the_covariance_is_not_positive_definite(cov):
    head = lda_head(gaussian()._replace(cov_dd=torch.tensor(cov)), prior())
    assert head.weight_Cd.isnan().all()
    assert head.bias_C.isnan().all()


def test_interpolate_weighs_the_local_estimate():
    local, other = gaussian(0), gaussian(1)
    assert all(torch.equal(a, b) for a, b in zip(interpolate(local, other, 1.0), local, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(interpolate(local, other, 0.0), other, strict=True))
    mean = 0.25 * local.mean_Cd.numpy() + 0.75 * other.mean_Cd.numpy()
    cov = 0.875 * local.cov_dd.numpy() + 0.125 * other.cov_dd.numpy()
    for weight in ((0.25, 0.875), torch.tensor([0.25, 0.875])):
        between = interpolate(local, other, weight)
        np.testing.assert_allclose(between.mean_Cd, mean, rtol=1e-14)
        np.testing.assert_allclose(between.cov_dd, cov, rtol=1e-14)
    between = interpolate(local, other, torch.tensor(0.25))
    np.testing.assert_allclose(between.mean_Cd, mean, rtol=1e-14)


def test_mapped_over_clients():
    many = tree.stack([gaussian(s) for s in range(3)])
    many.cov_dd[1] = -many.cov_dd[1]  # one client fails, and only that one
    other, logprior, weight = gaussian(7), torch.stack([prior(s) for s in range(3)]), torch.tensor([0.0, 0.4, 1.0])
    pair = torch.stack([weight, 1 - weight], 1)

    def client(g, logprior_C, weight, pair):
        return lda_head(g, logprior_C), interpolate(g, other, weight), interpolate(g, other, pair)

    mapped = vmap(client)(many, logprior, weight, pair)
    looped = tree.stack([client(tree.rows(many, k), logprior[k], weight[k], pair[k]) for k in range(3)])
    for a, b in zip(tree.leaves(mapped), tree.leaves(looped), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, equal_nan=True)
    assert mapped[0].weight_Cd.isnan().any((1, 2)).tolist() == [False, True, False]
