"""FedLDA, pFedFDA and FedShrink under the noise of privacy: their server's covariance stays one."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import torch

from idiolect import methods
from idiolect.core import tree
from idiolect.core.reduction import Reduced
from idiolect.methods.fedshrink import SCALE
from idiolect.statistics import covariance


def aggregated(name: str, ridge: float, increment_dd: np.ndarray) -> np.ndarray:
    """The server's covariance after a round that changes it by so much; it was the identity."""
    method = methods.build(name, {"ridge": ridge}, o.task())
    server = method.init_server(o.key())
    value = tree.zeros(server)._replace(cov=covariance.pack(torch.tensor(increment_dd)))
    new, _ = method.aggregate(server, Reduced(value), torch.arange(len(o.IDS)))
    return covariance.unpack(new.cov, o.WIDTH).numpy()


@pytest.mark.parametrize("ridge", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("name", ["fedlda", "pfedfda"])
def test_what_noise_pushes_below_the_ridge_is_lifted(name: str, ridge: float) -> None:
    noise_dd = np.random.default_rng(0).normal(0, 2, (o.WIDTH, o.WIDTH))
    value_d, vector_dd = np.linalg.eigh(np.eye(o.WIDTH) + noise_dd + noise_dd.T)
    least = min(1, ridge) / 2
    assert value_d[0] < 0 < least < value_d[-1]
    np.testing.assert_allclose(
        aggregated(name, ridge, noise_dd + noise_dd.T),
        (vector_dd * np.maximum(value_d, least)) @ vector_dd.T,
        rtol=1e-6,
    )


@pytest.mark.parametrize("name", ["fedlda", "pfedfda"])
def test_without_a_ridge_it_keeps_its_trace_and_has_an_inverse(name: str) -> None:
    draw_dd = np.random.default_rng(3).normal(0, 0.4, (o.WIDTH, o.WIDTH))
    noise_dd = np.tril(draw_dd) + np.tril(draw_dd, -1).T
    assert np.linalg.eigvalsh(np.eye(o.WIDTH) + noise_dd)[0] < 0
    cov_dd = aggregated(name, 0.0, noise_dd)
    assert np.linalg.eigvalsh(cov_dd)[0] > 0
    np.testing.assert_allclose(np.trace(cov_dd), o.WIDTH + np.trace(noise_dd))


@pytest.mark.parametrize("name", ["fedlda", "pfedfda"])
def test_any_other_is_the_mean_of_the_clients_to_the_bit(name: str) -> None:
    root_dd = np.random.default_rng(1).normal(size=(o.WIDTH, 2))
    increment_dd = root_dd @ root_dd.T - 0.4 * np.eye(o.WIDTH)
    np.testing.assert_array_equal(aggregated(name, 1.0, increment_dd), np.eye(o.WIDTH) + increment_dd)


def fedshrink_after(increment_dd: np.ndarray) -> Any:
    """The server after a second round that changes its covariance by so much; it was the identity."""
    method = methods.build("fedshrink", {}, o.task())
    server = method.init_server(o.key())._replace(known=torch.ones(()))
    sent = method.local(o.one(method, server, 0), (), o.data(*o.federation()[0]), o.key())[1].value
    value = tree.zeros(sent)._replace(cov=SCALE.cov * covariance.pack(torch.tensor(increment_dd)) / o.WIDTH)  # tr S = d
    value = value._replace(square=SCALE.square * torch.tensor(1.0))
    return method.aggregate(server, Reduced(value), torch.arange(len(o.IDS)))[0]


def test_fedshrink_keeps_the_trace_of_what_noise_has_made_no_covariance() -> None:
    draw_dd = np.random.default_rng(2).normal(0, 0.4, (o.WIDTH, o.WIDTH))
    noise_dd = np.tril(draw_dd) + np.tril(draw_dd, -1).T
    new = fedshrink_after(noise_dd)
    given_d, got_d = (
        np.linalg.eigvalsh(a) for a in (np.eye(o.WIDTH) + noise_dd, covariance.unpack(new.cov, o.WIDTH).numpy())
    )
    assert given_d[0] < 0
    assert got_d[0] > 0
    np.testing.assert_allclose(got_d.sum(), given_d.sum())


@pytest.mark.parametrize("variance", [0.0, 1e-9])
def test_a_covariance_that_noise_has_left_without_a_size_gives_no_endless_spread(variance: float) -> None:
    """It would stay in the mean over rounds that ``memory`` takes."""
    assert abs(fedshrink_after((variance - 1) * np.eye(o.WIDTH)).spread) <= 100


def test_more_participants_than_privacy_counts_on_leave_fedshrink_a_covariance() -> None:
    """It divides their sum by the number of those that it expects; the identity of the start is far above samples'."""
    method = methods.build("fedshrink", {}, o.task())
    server, ids = method.init_server(o.key()), torch.arange(len(o.IDS))
    rows = [(0.01 * x, y) for x, y in o.federation()]
    each = [method.local(o.one(method, server, k), (), o.data(*rows[k]), o.key(k))[1].value for k in o.IDS]
    mean = tree.map(lambda a: a.mean(0), tree.stack(each))
    covs = []
    for times in (1.0, 1.3):
        new, _ = method.aggregate(server, Reduced(tree.map(lambda a, by=times: by * a, mean)), ids)
        covs.append(covariance.unpack(new.cov, o.WIDTH).numpy())
    assert np.linalg.eigvalsh(covs[0])[0] > 0
    assert np.linalg.eigvalsh(covs[1])[0] > 0
    assert 1 < np.trace(covs[1]) / np.trace(covs[0]) < 3
