"""FedCGS: a round by hand, its options and its traps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import oracle as o
import pytest
import torch
from oracle import close
from scipy.special import log_softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.reduction import reduced
from idiolect.methods.fedcgs import Shared
from idiolect.statistics import covariance
from idiolect.statistics.gaussian import LinearHead
from idiolect.training.class_weights import WeightedLoss

ROWS = o.federation()
BODY = o.weights(2)
TEST = np.random.default_rng(8).normal(size=(7, o.INPUTS))


def state() -> Shared:
    return Shared(o.body_of(BODY), LinearHead(torch.zeros(o.CLASSES, o.WIDTH), torch.zeros(o.CLASSES)), torch.zeros(()))


def pooled(p: o.Params) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of all participants together; they have all classes."""
    x, y = (np.concatenate(parts) for parts in zip(*(ROWS[k] for k in o.IDS), strict=True))
    return o.embed(p, x), y


def log_probability(p: o.Params, shrinkage: float, about: str, logprior: np.ndarray) -> np.ndarray:
    """Of the test samples, by the paper's w_c = S^-1 mu_c and b_c = log pi_c - mu_c' w_c / 2."""
    z, y = pooled(p)
    mean = o.class_means(z, y, np.zeros((o.CLASSES, o.WIDTH)))
    cov = np.cov(z.T) if about == "total" else o.tied_covariance(z, y, mean)
    cov = (1 - shrinkage) * cov + shrinkage * np.trace(cov) / len(cov) * np.eye(len(cov))
    w = np.linalg.solve(cov, mean.T).T
    return log_softmax(o.embed(p, TEST) @ w.T + logprior - 0.5 * (w * mean).sum(1), 1)


def after(options: dict[str, Any], client: int) -> np.ndarray:
    """What a client predicts with after one round."""
    method = methods.build("fedcgs", options, o.task())
    server = o.round_of(method, state(), dict.fromkeys(o.IDS, ()), ROWS)[0]
    down = o.one(method, server, client)
    own = method.personalise(down, (), o.data(*ROWS[client]), o.key())
    return method.predict(down, own, torch.tensor(TEST)).numpy()


def alone(x: np.ndarray, y: np.ndarray) -> torch.Tensor:
    """What a client predicts with after one round in which only these samples were."""
    method = methods.build("fedcgs", {}, o.task())
    sent = method.local(o.one(method, state(), 0), (), o.data(x, y), o.key())[1]
    server, _ = method.aggregate(state(), reduced(method.reduce, tree.stack([sent])), torch.tensor([0]))
    return method.predict(o.one(method, server, 0), (), torch.tensor(TEST))


@pytest.mark.parametrize("client", [0, 2])
@pytest.mark.parametrize("prior", ["everyone", "own"])
@pytest.mark.parametrize("about", ["total", "within"])
@pytest.mark.parametrize("shrinkage", [0.0, 0.2])
def test_head_is_that_of_all_samples_in_one_place(about: str, prior: str, shrinkage: float, client: int) -> None:
    logprior = o.prior(ROWS[client][1] if prior == "own" else pooled(BODY)[1], o.CLASSES)
    want = log_probability(BODY, shrinkage, about, logprior)
    close(after({"covariance": about, "prior": prior, "shrinkage": shrinkage}, client), want)


def test_within_is_scikit_learns_linear_discriminant_analysis() -> None:
    """Its covariance divides by n, and this one by n - 1, which is put right here."""
    z, y = pooled(BODY)
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(z, y)
    change = (len(y) - 1) / len(y)
    w, b = change * theirs.coef_, change * (theirs.intercept_ - np.log(theirs.priors_)) + o.prior(y, o.CLASSES)
    want = log_softmax(o.embed(BODY, TEST) @ w.T + b, 1)
    close(after({"covariance": "within", "shrinkage": 0.0}, 0), want)


def test_what_is_sent() -> None:
    method = methods.build("fedcgs", {}, o.task())
    up = o.round_of(method, state(), dict.fromkeys(o.IDS, ()), ROWS)[2]
    for at, k in enumerate(o.IDS):
        z, y = o.embed(BODY, ROWS[k][0]), ROWS[k][1]
        sent = tree.rows(up, at)
        n = np.bincount(y, minlength=o.CLASSES)
        close(sent.value.mean_Cd, np.stack([z[y == c].sum(0) / max(n[c], 1) for c in range(o.CLASSES)]))
        close(covariance.unpack(sent.value.square, o.WIDTH), z.T @ z / len(y))
        close(sent.weight.n_C, n)
        close(sent.weight.n, len(y))


def test_body_stays_and_rounds_repeat() -> None:
    method = methods.build("fedcgs", {}, o.task())
    first = o.round_of(method, state(), dict.fromkeys(o.IDS, ()), ROWS)[0]
    second = o.round_of(method, first, dict.fromkeys(o.IDS, ()), ROWS)[0]
    for one, other in ((first, second), (first.body, state().body)):
        assert all(torch.equal(a, b) for a, b in zip(tree.leaves(one), tree.leaves(other), strict=True))


def test_a_class_that_nobody_has_is_unlikely_and_breaks_nothing() -> None:
    logp = alone(*(part[ROWS[0][1] > 0] for part in ROWS[0]))
    assert logp.isfinite().all()
    close(logp.exp().sum(1), np.ones(len(TEST)))
    assert (logp.argmax(1) > 0).all()


def test_one_sample_alone_leaves_the_prior() -> None:
    x, y = (part[:1] for part in ROWS[0])
    close(alone(x, y), np.tile(o.prior(y, o.CLASSES), (len(TEST), 1)))  # all classes have the one mean


def test_features_far_from_zero_need_no_more_than_float32() -> None:
    p = BODY | {"b": BODY["b"] + 1000}
    torch.set_default_dtype(torch.float32)
    method = methods.build("fedcgs", {"shrinkage": 0.1}, o.task())
    rows = [(x.astype(np.float32), y) for x, y in ROWS]
    start = method.init_server(o.key())._replace(body={k: a.float() for k, a in o.body_of(p).items()})
    server = o.round_of(method, start, dict.fromkeys(o.IDS, ()), rows)[0]
    logp = method.predict(o.one(method, server, 0), (), torch.tensor(TEST).float())
    want = log_probability(p, 0.1, "total", o.prior(pooled(p)[1], o.CLASSES))
    np.testing.assert_allclose(logp.exp(), np.exp(want), atol=0.01)


def test_rows_that_fill_a_batch_up_do_not_count() -> None:
    method, (x, y) = methods.build("fedcgs", {"prior": "own"}, o.task()), ROWS[0]
    short, long = o.data(x, y), o.data(np.concatenate([x, x[:3] * np.nan]), np.concatenate([y, y[:3]]))
    long = long._replace(real_N=torch.tensor([1.0] * len(y) + [0.0] * 3))
    down = o.one(method, state(), 0)
    for work in (
        lambda data: method.local(down, (), data, o.key())[1],
        lambda data: method.personalise(down, (), data, o.key()),
    ):
        for got, want in zip(*(tree.leaves(work(data)) for data in (long, short)), strict=True):
            close(got, want)


def test_weights_of_classes_are_refused() -> None:
    with pytest.raises(
        InputError, match="method fedcgs trains nothing, so that class_weights would change nothing: leave"
    ):
        methods.build("fedcgs", {}, replace(o.task(), loss=WeightedLoss((1.0,) * o.CLASSES)))
