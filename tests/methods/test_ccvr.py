"""CCVR: recorded rounds within 1e-5, a round by hand, its traps.

Its authors released no code. The file was computed by KarhouTam/FL-bench (float32), whose covariances are biased, and
``definition/covariances`` from the definition: every array is compared. The recorded draw is given to the method, and
the recorded exchange after the last round is a round of all clients here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import torch
from oracle import close
from scipy.special import log_softmax

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Up
from idiolect.core.reduction import reduced
from idiolect.methods import ccvr
from idiolect.methods.ccvr import Report, Server
from idiolect.statistics.covariance import unpack

ROWS = o.federation()
START, OLD = o.weights(1), o.weights(2)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


# --- recorded rounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", ["biased", "unbiased"])
def test_recorded_rounds(covariance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = r.read("ccvr")
    options = {"per_class": int(f["options/per_class"]), "calibration_lr": float(f["options/calibration_lr"]),
               "covariance": covariance}  # fmt: skip
    method = methods.build("ccvr", options, r.task(f, SGD(float(f["options/lr"]), 0.0, 0.0), int(f["options/epochs"])))
    drawn: list[Any] = []

    def draw(*args: Any) -> Any:
        drawn[:] = args
        return torch.tensor(f["calibration/features"]), torch.tensor(f["calibration/labels"])

    monkeypatch.setattr(ccvr, "draw", draw)
    server = Server(r.model(f, "init"), r.model(f, "init"), o.key())
    for number, ids in enumerate(r.drawn(f)):
        ups = [method.local(o.one(method, server, k), (), r.training(f, k), o.key(k))[1] for k in ids]
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        r.same(server.model, r.model(f, f"round{number}/server"))
    ups = [method.local(o.one(method, server, k), (), r.training(f, k), o.key(k))[1] for k in r.clients(f)]
    n_KC, mean_KCd, cov_KCdd = (f[f"clients/{name}"] for name in ("counts", "means", "covariances"))
    for k, up in enumerate(ups):
        close(up.weight.n_C, n_KC[k])
        close(up.value.mean_Cd, mean_KCd[k], **r.EXACT)
        if covariance == "biased":
            for c in range(4):
                want = (n_KC[k, c] - 1) * cov_KCdd[k, c] + n_KC[k, c] * np.outer(mean_KCd[k, c], mean_KCd[k, c])
                close(n_KC[k, c] * unpack(up.value.square_C[c], 8), want if n_KC[k, c] else 0 * want, rtol=0, atol=1e-4)
    server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(r.clients(f)))
    mean_Cd, cov_Cdd, classes, count, _ = drawn
    assert count == options["per_class"]
    assert set(classes.tolist()) == set(f["calibration/labels"].tolist())
    close(mean_Cd, f["calibration/means"], **r.EXACT)
    close(cov_Cdd, f["calibration/covariances" if covariance == "biased" else "definition/covariances"], **r.EXACT)
    r.same(server.calibrated, r.model(f, "final"))  # the draw is given, so it does not show the covariance
    for k in r.clients(f):
        logp = method.predict(o.one(method, server, k), (), torch.tensor(r.rows(f, k, "_test")[0])).numpy()
        close(np.exp(logp), np.exp(log_softmax(f[f"final/logits/{k}"], 1)), **r.EXACT)


# --- a round by hand --------------------------------------------------------------------------------------------------


def same(model: Any, p: o.Params) -> None:
    for got, name in zip(tree.leaves(model), ("W", "b", "U", "c"), strict=True):
        close(got, p[name])


@pytest.mark.parametrize(
    "options", [{}, {"per_class": 7, "calibration_lr": 0.3}, {"per_class": 20, "calibration_epochs": 3}]
)
def test_a_round_by_hand(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    method, calls = methods.build("ccvr", options, o.task()), []
    original = ccvr.draw
    monkeypatch.setattr(ccvr, "draw", lambda *args: calls.append((args, original(*args))) or calls[-1][1])
    start = Server(o.model_of(START), o.model_of(OLD), o.key("draws"))
    server, _, up, _ = o.round_of(method, start, dict.fromkeys(o.IDS, ()), ROWS)
    ends = {k: o.descend(START, "WbUc", o.batches(o.SIZES[k]), o.whole_gradient(*ROWS[k])) for k in o.IDS}
    for at, k in enumerate(o.IDS):
        same(tree.rows(up.value.model, at), {n: ends[k][n] - START[n] for n in START})
    average = {n: o.average([p[n] for p in ends.values()], [o.SIZES[k] for k in o.IDS]) for n in START}
    same(server.model, average)

    [((mean_Cd, cov_Cdd, classes, count, _), (virtual, label))] = calls
    z = np.concatenate([o.embed(START, ROWS[k][0]) for k in o.IDS])  # of the model that the round began with
    y = np.concatenate([ROWS[k][1] for k in o.IDS])
    assert classes.tolist() == [0, 1, 2, 3]
    assert count == options.get("per_class", 200)
    for c in range(o.CLASSES):
        close(mean_Cd[c], z[y == c].mean(0))
        close(cov_Cdd[c], np.cov(z[y == c].T), rtol=1e-9, atol=1e-9)

    v, t = virtual.numpy(), label.numpy()

    def head_gradient(p: o.Params, rows: np.ndarray) -> o.Params:
        dl = o.error_back(v[rows] @ p["U"].T + p["c"], t[rows])
        return {"U": dl.T @ v[rows], "c": dl.sum(0)}

    plan = o.batches(len(t), options.get("calibration_epochs", 1))
    head = o.descend(START, "Uc", plan, head_gradient, lr=options.get("calibration_lr", o.RULE.lr))
    same(server.calibrated, head)  # the body of the round's start
    for k in (0, 2, 99):  # who took part, who stayed away, who is new
        down = o.one(method, server, k)
        client = method.personalise(down, (), o.data(*ROWS[2]), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(head, TEST))


@pytest.mark.parametrize("rank", [0, 1, 3, 5])
def test_draws_have_the_mean_and_the_covariance_that_they_are_asked_for(rank: int) -> None:
    """Singular ones too: with n samples a covariance has rank n - 1."""
    rng = np.random.default_rng(rank)
    factor = rng.normal(size=(2, 5, rank)) if rank else np.zeros((2, 5, 1))
    mean, cov = torch.tensor(rng.normal(size=(2, 5))), torch.tensor(factor @ factor.transpose(0, 2, 1))
    z, y = ccvr.draw(mean, cov, torch.tensor([0, 1]), 9000, o.key())
    for c in range(2):
        own = z[y == c].numpy()
        assert len(own) == 9000
        close(own.mean(0), mean[c], rtol=0, atol=0.1)
        close(np.cov(own.T), cov[c], rtol=0, atol=0.5)
        close(
            np.linalg.svd(own - mean[c].numpy(), full_matrices=False)[1][rank:] if rank < 5 else 0, 0, rtol=0, atol=1e-5
        )
    assert len(np.unique(y[:100])) == 2  # in a random order


@pytest.mark.parametrize("values", [(-1.0, -0.5, -1e-12), (2.0, -3.0, 0.0), (0.0, 0.0, 0.0)])
def test_a_covariance_that_noise_has_made_indefinite_is_no_nan(values: tuple[float, ...]) -> None:
    cov = torch.diag(torch.tensor(values))[None]
    z, _ = ccvr.draw(torch.ones(1, 3), cov, torch.tensor([0]), 50, o.key())
    assert bool(torch.isfinite(z).all())
    for at, value in enumerate(values):
        assert bool((z[:, at] == 1).all()) == (value <= 0)


# --- traps ------------------------------------------------------------------------------------------------------------


def report(x: np.ndarray, y: np.ndarray) -> Up:
    method = methods.build("ccvr", {}, o.task())
    start = Server(o.model_of(START), o.model_of(OLD), o.key())
    return method.local(o.one(method, start, 0), (), o.data(x, y), o.key())[1]


@pytest.mark.parametrize("at", [1, 7, 19])
def test_the_covariance_is_of_all_samples_wherever_they_are(at: int) -> None:
    """Divided among two clients in any way, and with one of them, the same statistics."""
    x, y = ROWS[0]
    rules = methods.build("ccvr", {}, o.task()).reduce
    halves = reduced(rules, tree.stack([report(x[:at], y[:at]), report(x[at:], y[at:])]))
    together = report(x, y)
    close(halves.weight.n_C, together.weight.n_C)
    for name in ("mean_Cd", "square_C"):
        close(getattr(halves.value, name), getattr(together.value, name), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("counts", [(0, 1, 5, 5), (1, 1, 1, 1), (0, 0, 0, 2)])
def test_classes_of_less_than_two_samples_are_left_out(counts: tuple[int, ...]) -> None:
    y = np.repeat(np.arange(4), counts)
    x = np.random.default_rng(0).normal(size=(len(y), o.INPUTS))
    method = methods.build("ccvr", {"per_class": 3}, o.task())
    start = Server(o.model_of(START), o.model_of(OLD), o.key())
    server, _ = method.aggregate(start, reduced(method.reduce, tree.stack([report(x, y)])), torch.tensor([0]))
    assert tree.not_finite(server) is None
    for c in range(4):
        moved = float((server.calibrated.head["bias"] - start.model.head["bias"]).abs().max())
        assert (moved > 0) == any(n > 1 for n in counts), c


def test_each_round_draws_anew_and_the_same_key_draws_the_same() -> None:
    method = methods.build("ccvr", {"per_class": 3}, o.task())
    start, up = method.init_server(o.key()), report(*ROWS[0])
    once, again = (method.aggregate(start, reduced(method.reduce, tree.stack([up])), torch.tensor([0]))[0]
                   for _ in range(2))  # fmt: skip
    assert tree.same(once, again)
    assert int(once.key) != int(start.key)


def test_rounds_are_those_of_federated_averaging() -> None:
    method, plain = methods.build("ccvr", {}, o.task()), methods.build("fedavg", {}, o.task())
    server, other = method.init_server(o.key()), plain.init_server(o.key())
    for ids in ((0, 1), (3, 4, 2)):
        server = o.round_of(method, server, dict.fromkeys(ids, ()), ROWS)[0]
        other = o.round_of(plain, other, dict.fromkeys(ids, ()), ROWS)[0]
    assert tree.same(server.model, other)
    assert isinstance(method.reduce, Report)


@pytest.mark.parametrize("options", [{"per_class": 0}, {"calibration_lr": 0}, {"covariance": "diagonal"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("ccvr", options)
