"""FedLDA: a round by hand, its options and its traps."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import torch
from oracle import close
from scipy.special import log_softmax

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.methods.fedlda import Own, Shared
from idiolect.statistics import covariance

ROWS = o.federation()
BODY = o.weights(2)
RNG = np.random.default_rng(8)
MEAN = RNG.uniform(-0.5, 1, size=(o.CLASSES, o.WIDTH))
ROOT = RNG.normal(size=(o.WIDTH, o.WIDTH))
COV = ROOT @ ROOT.T / o.WIDTH + 0.5 * np.eye(o.WIDTH)
RIDGE = methods.settle("fedlda", {})["ridge"]  # a stabiliser that the paper has not: its default is ours to choose
TEST = RNG.normal(size=(7, o.INPUTS))


def state() -> Shared:
    return Shared(o.body_of(BODY), torch.tensor(MEAN), covariance.pack(torch.tensor(COV)))


def penalty_back(z: np.ndarray, y: np.ndarray, weight: float, within: bool) -> np.ndarray:
    """The gradient in z of weight / d * sum_{a != b} |S[a, b]|, S the covariance of the batch.

    dS = (dZ' Z + Z' dZ) / (B - 1) of centred Z, so it is 2 Z G / (B - 1), G = weight / d sign(S) off the diagonal; the
    centring falls out, for the columns of Z G sum to zero over each group that was centred.
    """
    group = y if within else np.zeros_like(y)
    centred = z - np.array([z[group == g].mean(0) for g in group])
    S = centred.T @ centred / max(len(z) - 1, 1)
    G = weight / z.shape[1] * np.sign(S) * (1 - np.eye(z.shape[1]))
    return 2 * centred @ G / max(len(z) - 1, 1)


def local(k: int, *, global_weight: float = 0.5, decorrelation: float = 0.1, decorrelate: str = "within",
          ridge: float = RIDGE, centre: str = "local") -> dict[str, Any]:  # fmt: skip
    x, y = ROWS[k]
    w, b = o.lda(MEAN, COV, o.prior(y, o.CLASSES))
    losses: list[float] = []

    def gradient(p: o.Params, rows: np.ndarray) -> o.Params:
        z = o.embed(p, x[rows])
        losses.extend(o.errors(z @ w.T + b, y[rows]))
        dz = o.error_back(z @ w.T + b, y[rows]) @ w
        dz += penalty_back(z, y[rows], decorrelation, decorrelate == "within")
        return o.embed_back(p, x[rows], dz)

    p = o.descend(BODY, "Wb", o.batches(len(y)), gradient)
    z = o.embed(p, x)
    own = o.class_means(z, y, MEAN)
    mean = global_weight * MEAN + (1 - global_weight) * own
    scatter = o.tied_covariance(z, y, mean if centre == "interpolated" else own) + ridge * np.eye(o.WIDTH)
    return {"p": p, "mean": mean, "cov": global_weight * COV + (1 - global_weight) * scatter,
            "loss": np.mean(losses)}  # fmt: skip


OPTIONS: list[dict[str, Any]] = [
    {},
    {"global_weight": 0.8},
    {"global_weight": 0.0},
    {"decorrelation": 0.0},
    {"decorrelation": 2.0},
    {"decorrelation": 2.0, "decorrelate": "batch"},
    {"ridge": 0.5},
    {"centre": "interpolated", "global_weight": 0.3},
    {"centre": "interpolated", "ridge": 0.0},  # the preset "paper"
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_round(options: dict[str, Any]) -> None:
    method = methods.build("fedlda", options, o.task())
    server, _, up, _ = o.round_of(method, state(), dict.fromkeys(o.IDS, ()), ROWS)
    want = [local(k, **options) for k in o.IDS]
    for at, w in enumerate(want):
        k, sent = o.IDS[at], tree.rows(up, at)
        train_loss = method.local(o.one(method, state(), k), (), o.data(*ROWS[k]), o.key(k))[2]["train_loss"]
        close(train_loss, w["loss"])  # without the penalty
        close(sent.value.body["0.weight"], w["p"]["W"] - BODY["W"])
        close(sent.value.body["0.bias"], w["p"]["b"] - BODY["b"])
        close(sent.value.mean_Cd, w["mean"] - MEAN)
        close(covariance.unpack(sent.value.cov, o.WIDTH), w["cov"] - COV)
        close(sent.weight, o.SIZES[o.IDS[at]])
    n = [o.SIZES[k] for k in o.IDS]
    close(server.body["0.weight"], o.average([w["p"]["W"] for w in want], n))
    close(server.body["0.bias"], o.average([w["p"]["b"] for w in want], n))
    close(server.mean_Cd, o.average([w["mean"] for w in want], n))
    close(covariance.unpack(server.cov, o.WIDTH), o.average([w["cov"] for w in want], n))


def test_paper_preset() -> None:
    settled = methods.settle("fedlda", {"preset": "paper"})
    assert (settled["ridge"], settled["centre"]) == (0.0, "interpolated")
    assert (settled["global_weight"], settled["decorrelation"]) == (0.5, 0.1)


def test_penalties_differ() -> None:
    one, two = (local(0, decorrelation=2.0, decorrelate=d)["p"]["W"] for d in ("within", "batch"))
    assert min(np.abs(a - local(0, decorrelation=0.0)["p"]["W"]).max() for a in (one, two)) > 1e-3
    assert np.abs(one - two).max() > 1e-3


def test_all_weight_on_the_global_estimate_leaves_it() -> None:
    method = methods.build("fedlda", {"global_weight": 1.0}, o.task())
    server = o.round_of(method, state(), dict.fromkeys(o.IDS, ()), ROWS)[0]
    close(server.mean_Cd, MEAN)
    close(covariance.unpack(server.cov, o.WIDTH), COV)
    assert (server.body["0.weight"].numpy() != BODY["W"]).all()


@pytest.mark.parametrize("tune", [False, True])
def test_personal_predictions(tune: bool) -> None:
    """Global statistics and body with the client's own prior; with ``tune_body`` the body after local training."""
    method = methods.build("fedlda", {"tune_body": tune}, o.task())
    for k in range(len(o.SIZES)):
        x, y = ROWS[k]
        w, b = o.lda(MEAN, COV, o.prior(y, o.CLASSES))
        p = local(k)["p"] if tune else BODY
        down = o.one(method, state(), k)
        client = method.personalise(down, (), o.data(x, y), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), log_softmax(o.embed(p, TEST) @ w.T + b, 1))


def recent(k: int, global_weight: float, head_ridge: float) -> np.ndarray:
    """What a client with ``head=recent`` predicts after a round that began with ``BODY``, all participants' samples."""
    x, y = (np.concatenate(parts) for parts in zip(*(ROWS[i] for i in o.IDS), strict=True))
    z = o.embed(BODY, x)
    everyone = o.class_means(z, y, MEAN)  # no class is absent
    own_z = o.embed(BODY, ROWS[k][0])
    own = o.class_means(own_z, ROWS[k][1], everyone)
    mean = global_weight * everyone + (1 - global_weight) * own
    cov = global_weight * o.tied_covariance(z, y, everyone)
    cov += (1 - global_weight) * o.tied_covariance(own_z, ROWS[k][1], own)
    cov += head_ridge * np.trace(cov) / o.WIDTH * np.eye(o.WIDTH)
    w, b = o.lda(mean, cov, o.prior(ROWS[k][1], o.CLASSES))
    return log_softmax(o.embed(BODY, TEST) @ w.T + b, 1)


@pytest.mark.parametrize(("global_weight", "head_ridge"), [(0.5, 0.02), (0.25, 0.3), (1.0, 0.0)])
def test_a_recent_head_is_of_the_bodys_own_statistics(global_weight: float, head_ridge: float) -> None:
    method = methods.build("fedlda", {
        "head": "recent", "head_ridge": head_ridge, "global_weight": global_weight,
    }, o.task())  # fmt: skip
    old = Own(o.body_of(o.weights(5)), torch.tensor(MEAN + 1), covariance.pack(torch.tensor(COV)))
    carried = o.round_of(
        methods.build("fedlda", {"global_weight": global_weight}, o.task()), state(), dict.fromkeys(o.IDS, ()), ROWS
    )[0]
    server = o.round_of(method, state()._replace(before=old), dict.fromkeys(o.IDS, ()), ROWS)[0]
    for mine, theirs in zip(server[:3], carried[:3], strict=True):  # the rounds are the same
        tree.map(lambda a, b: np.testing.assert_array_equal(a, b), mine, theirs)
    for k in range(len(o.SIZES)):
        down = o.one(method, server, k)
        client = method.personalise(down, (), o.data(*ROWS[k]), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), recent(k, global_weight, head_ridge))


def test_a_recent_head_is_refused_where_the_body_is_the_clients_own() -> None:
    with pytest.raises(InputError, match="head=recent is of the body that the server sent: use tune_body=false"):
        methods.build("fedlda", {"head": "recent", "tune_body": True}, o.task())


def test_without_adapting_the_prior_is_even() -> None:
    method = methods.build("fedlda", {}, o.task())
    w, b = o.lda(MEAN, COV, np.full(o.CLASSES, -np.log(o.CLASSES)))
    logp = log_softmax(o.embed(BODY, TEST) @ w.T + b, 1)
    close(method.predict(o.one(method, state(), 0), (), torch.tensor(TEST)), logp)


def test_start() -> None:
    start = methods.build("fedlda", {}, o.task()).init_server(o.key("init"))
    assert 0.05 < start.mean_Cd.abs().max() <= 0.1
    assert start.mean_Cd.min() < 0 < start.mean_Cd.max()
    close(covariance.unpack(start.cov, o.WIDTH), np.eye(o.WIDTH))


def test_an_absent_class_keeps_the_global_mean() -> None:
    method = methods.build("fedlda", {"global_weight": 0.0}, o.task())
    for k, c in o.LACKS.items():
        sent = method.local(o.one(method, state(), k), (), o.data(*ROWS[k]), o.key(k))[1]
        close(sent.value.mean_Cd[c], np.zeros(o.WIDTH))
