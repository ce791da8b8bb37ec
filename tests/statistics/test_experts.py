"""Products of Gaussians against densities multiplied on a grid, and KL against torch.distributions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from torch.distributions import Normal, kl_divergence
from torch.func import vmap

from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.statistics.experts import Experts, class_products, kl_diagonal, posterior

N, C, V = 24, 4, 3


def rows(seed=0, absent=3):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, C, N)
    y[y == absent] = 0
    mean, std = rng.normal(size=(N, V)), rng.uniform(0.3, 3.0, (N, V))
    return torch.tensor(mean), torch.tensor(std), torch.tensor(y), torch.tensor(rng.integers(0, 2, N)).double()


@pytest.mark.parametrize("prior_precision", [1.0, 0.25])
def test_posterior_is_the_normalised_product_of_densities(prior_precision):
    mean, std, y, w = rows()
    mu, s = posterior(class_products(mean, std, y, w, C), prior_precision)
    grid = np.linspace(-20, 20, 40001)
    for c in range(C):
        for v in range(V):
            log_density = norm(0, prior_precision**-0.5).logpdf(grid)
            for i in np.flatnonzero((y == c).numpy() & (w > 0).numpy()):
                log_density += norm(mean[i, v].item(), std[i, v].item()).logpdf(grid)
            p = np.exp(log_density - log_density.max())
            p /= p.sum()
            centre = (p * grid).sum()
            assert mu[c, v].item() == pytest.approx(centre, abs=1e-9)
            assert s[c, v].item() == pytest.approx(np.sqrt((p * (grid - centre) ** 2).sum()), rel=1e-9)


def test_without_a_prior_an_absent_class_has_no_distribution():
    mean, std, y, w = rows()
    e = class_products(mean, std, y, w, C)
    mu, _ = posterior(e, 0.0)
    assert mu[3].isnan().all()
    assert mu[:3].isfinite().all()
    assert not e.precision_CV[3].any()
    mu, s = posterior(e)
    assert (mu[3] == 0).all()
    assert (s[3] == 1).all()
    with pytest.raises(InputError, match="prior_precision=-1"):
        posterior(e, -1.0)


@settings(deadline=None, max_examples=25)
@given(order=st.permutations(range(N)), cut=st.integers(0, N), again=st.integers(0, N))
def test_order_and_grouping_do_not_matter(order, cut, again):
    mean, std, y, w = rows()
    whole = class_products(mean, std, y, w, C)
    first, second = sorted((cut, again))
    groups = [order[:first], order[first:second], order[second:]]
    a, b, c = (class_products(mean[g], std[g], y[g], w[g], C) for g in groups)
    for summed in (tree.add(tree.add(a, b), c), tree.add(a, tree.add(b, c)), tree.add(c, tree.add(b, a))):
        torch.testing.assert_close(summed, whole, rtol=1e-12, atol=1e-12)


def test_absent_rows_change_no_bit():
    mean, std, y, w = rows()
    mean2, std2, y2 = mean.clone(), std.clone(), y.clone()
    mean2[w == 0], std2[w == 0], y2[w == 0] = torch.nan, 0.0, -1
    assert (w == 0).any()
    clean, dirty = class_products(mean, std, y, w, C), class_products(mean2, std2, y2, w, C)
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))


def test_float32_rows_are_summed_in_float64():
    mean, std, y, w = rows()
    mean, std = mean.float(), std.float()
    e = class_products(mean, std, y, w, C)
    exact = (std.numpy().astype(float) ** -2 * w.numpy()[:, None])[y.numpy() == 0].sum(0)
    np.testing.assert_allclose(e.precision_CV[0], exact, rtol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kl_against_torch_distributions(dtype):
    mean, std, _, _ = (t.to(dtype) for t in rows())
    p, q = (mean[:12], std[:12]), (mean[12:], std[12:])
    expected = kl_divergence(Normal(*p), Normal(*q)).sum(-1)
    got = kl_diagonal(*p, *q)
    assert got.dtype == dtype
    torch.testing.assert_close(got, expected)
    assert kl_diagonal(*p, *p).abs().max() < 1e-6


def test_kl_against_an_integral():
    x = np.linspace(-30, 30, 200001)
    p, q = norm(0.3, 0.7), norm(-0.5, 1.9)
    integral = (p.pdf(x) * (p.logpdf(x) - q.logpdf(x))).sum() * (x[1] - x[0])
    args = [torch.tensor([a], dtype=torch.float64) for a in (0.3, 0.7, -0.5, 1.9)]
    assert kl_diagonal(*args).item() == pytest.approx(integral, rel=1e-10)


def test_mapped_over_clients():
    many = [torch.stack(t) for t in zip(*(rows(s) for s in range(3)), strict=True)]

    def client(mean, std, y, w):
        e = class_products(mean, std, y, w, C)
        mu, s = posterior(e)
        return e, mu, s, kl_diagonal(mu[y], s[y], mean, std)

    mapped, looped = vmap(client)(*many), tree.stack([client(*t) for t in zip(*many, strict=True)])
    assert isinstance(mapped[0], Experts)
    for a, b in zip(tree.leaves(mapped), tree.leaves(looped), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
