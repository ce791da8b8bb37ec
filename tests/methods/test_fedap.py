"""FedAP: recorded rounds, a round by hand, its options and its traps.

The record is of the authors' released code. Every array of it is compared, within 1e-5, but the running statistics,
which the method does not have: the record's logits and accuracies are met with the recorded statistics in their place,
as a normalisation would use them. Its statistics are measured with a network that is pretrained, here as there.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import oracle as o
import pytest
import recorded as r
import replay
import torch
from oracle import close
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import SGD, Method, Task, Training
from idiolect.core.network import BatchMoments, Model, Network
from idiolect.core.reduction import reduced
from idiolect.methods import fedap
from idiolect.training import trained, untrained
from idiolect.training.batchnorm import WithStatistics

ROWS = o.federation()
START = o.weights(1)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


def make() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 4)


def recorded(f: r.Files) -> Method:
    task = Task(Network(make, (6,), "local"), 4, len(r.clients(f)), Training(2, 7, SGD(0.05, 0.0, 0.0), shuffle=False))
    return methods.build("fedap", {"momentum": 0.5, "preset": "official"}, task)


def shared(f: r.Files, at: str, row: Any = ...) -> Model:
    return r.model(f, at, row)


def kept(f: r.Files, at: str, row: Any = ...) -> Model:
    return Model({f"1.{n}": torch.tensor(f[f"{at}/bn1.{n}"][row]) for n in ("weight", "bias")}, {})


def statistics(f: r.Files, at: str, row: Any) -> dict[str, BatchMoments]:
    mean, var = (torch.tensor(f[f"{at}/bn1.running_{n}"][row])[None] for n in ("mean", "var"))
    return {"body.1": BatchMoments(mean, var + mean.square())}


def test_recorded_rounds() -> None:
    f = r.read("fedap")
    method = recorded(f)
    pretrained = shared(f, "init")._replace(body=r.body(f, "pretrained/fc1"))
    server = start_of(method, pretrained, len(r.clients(f)))
    ups = []
    for k in r.clients(f):  # the statistics alone are of the pretrained network
        down, client = o.one(method, server, k), untrained(kept(f, "init"))
        up = method.local(down, client, r.training(f, k), o.key())[1]
        [moments] = up.value.statistics.values()
        close(moments.mean_C, f["statistics/mean"][k], **r.EXACT)
        close(moments.var_C, f["statistics/variance"][k], **r.EXACT)
        ups.append(up)
    server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(r.clients(f)))
    close(server.weight_KK, f["weights"], **r.EXACT)

    server = server._replace(models=start_of(method, shared(f, "init"), len(r.clients(f))).models)
    clients: list[Any] = [untrained(kept(f, "init"))] * len(r.clients(f))
    for number in range(r.count(f)):
        at = f"round{number}"
        server, clients, ups = replay.round_of(method, server, clients, f, r.clients(f))
        for k in r.clients(f):
            r.same(ups[k].value.model, shared(f, f"{at}/trained", k))
            r.same(clients[k].value.body, kept(f, f"{at}/trained", k).body)
            r.same(o.one(method, server, k).own.model, shared(f, f"{at}/clients", k))
            r.same(clients[k].value.body, kept(f, f"{at}/clients", k).body)
            for n in ("mean", "var"):  # what stays, stays
                close(f[f"{at}/clients/bn1.running_{n}"][k], f[f"{at}/trained/bn1.running_{n}"][k])
            x, y = r.rows(f, k, "_test")
            mine = WithStatistics(clients[k], statistics(f, f"{at}/clients", k))
            logp = method.predict(o.one(method, server, k), mine, torch.tensor(x))
            close((logp.argmax(1).numpy() == y).mean(), f[f"{at}/accuracy"][k], rtol=1e-6)
    for k in r.clients(f):
        mine = WithStatistics(clients[k], statistics(f, f"{at}/clients", k))
        replay.logits_agree(method, o.one(method, server, k), mine, f, k, "final/logits")


def start_of(method: Method, model: Model, count: int) -> Any:
    models = tree.map(lambda w: w.expand(count, *w.shape).clone(), model)
    return method.init_server(o.key())._replace(models=models)


# --- by hand: a network without normalisation, compared by its features -----------------------------------------------


def moments_of(z: np.ndarray, unbiased: bool) -> np.ndarray:
    """Mean and standard deviation, side by side."""
    mean, var = z.mean(0), np.zeros(z.shape[1])
    for at in o.batches(len(z), 1):
        inner = z[at].var(0, ddof=1) if unbiased and len(at) > 1 else z[at].var(0)
        var += len(at) / len(z) * (inner + (z[at].mean(0) - mean) ** 2)
    return np.concatenate([mean, np.sqrt(var)])


def weights_of(stats: dict[int, np.ndarray], momentum: float) -> dict[int, dict[int, float]]:
    out = {}
    for i in stats:
        near = {j: 1 / np.linalg.norm(stats[i] - stats[j]) for j in stats if j != i}
        total = sum(near.values())
        out[i] = {j: (1 - momentum) * v / total for j, v in near.items()} | {i: momentum}
    return out


def same(model: Model, p: o.Params) -> None:
    for got, want in zip(tree.leaves(model), (p["W"], p["b"], p["U"], p["c"]), strict=True):
        close(got, want)


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.2, "unbiased": True}, {"momentum": 0.9, "statistics_round": 2}, {"statistics_round": 3}],
)
def test_rounds_by_hand(options: dict[str, Any]) -> None:
    """Client 2 is away when the others measure: it gets the mean, and they do without it."""
    method = methods.build("fedap", options, o.task())
    assert method.full_rounds == (options.get("statistics_round", 1),)
    server = start_of(method, o.model_of(START), len(o.SIZES))
    kept_none = untrained(Model({}, {}))
    last: dict[int, o.Params] = {}
    received = dict.fromkeys(range(5), START)
    mix: dict[int, dict[int, float]] = {}
    for number, ids in enumerate([o.IDS, o.IDS, o.IDS, (1, 2, 4)]):
        if number + 1 == options.get("statistics_round", 1):
            stats = {k: moments_of(o.embed(received[k], ROWS[k][0]), options.get("unbiased", False)) for k in ids}
            mix = weights_of(stats, options.get("momentum", 0.5))
        server, _, _, info = o.round_of(method, server, dict.fromkeys(ids, kept_none), ROWS)
        for k in ids:
            x, y = ROWS[k]
            last[k] = o.descend(received[k], "WbUc", o.batches(len(y)), o.whole_gradient(x, y))
        everyone = {n: np.mean([p[n] for p in last.values()], 0) for n in START}
        for k in range(5):
            received[k] = everyone
            if k in mix:
                received[k] = {n: sum(w * last[j][n] for j, w in mix[k].items()) for n in START}
            same(o.one(method, server, k).own.model, received[k])
        same(o.one(method, server, 60).own.model, everyone)
        if set(ids) == set(mix):
            close(info["mixture"], [[mix[i][j] for j in ids] for i in ids])
    down = o.one(method, server, 60)
    new = method.personalise(down, kept_none, o.data(*ROWS[2]), o.key())
    x, y = ROWS[2]
    same(new, o.descend(everyone, "WbUc", o.batches(len(y)), o.whole_gradient(x, y)))
    down = o.one(method, server, 4)
    mine = method.personalise(down, trained(Model({}, {})), o.data(*ROWS[4]), o.key())
    close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(received[4], TEST))


# --- traps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.3, 1.0])
def test_equal_clients_share_all_and_rows_sum_to_1(momentum: float) -> None:
    apart = torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, 2.0], [2.0, 2.0, 0.0]], dtype=torch.float64)
    got = fedap.mixtures(apart, momentum)
    close(got.sum(1), np.ones(3))
    close(got.diagonal(), np.full(3, momentum))
    close(got[0, 1], 1 - momentum, rtol=1e-10)
    close(fedap.mixtures(apart[:1, :1], momentum), [[1.0]])


def test_distances_are_of_deviations_and_add_up_over_layers() -> None:
    rng = np.random.default_rng(4)
    means, variances = ([rng.uniform(0.1, 2, size=(4, d)) for d in (3, 5)] for _ in range(2))
    layers = {
        str(at): fedap.Moments(torch.tensor(m), torch.tensor(v))
        for at, (m, v) in enumerate(zip(means, variances, strict=True))
    }
    want = np.zeros((4, 4))
    for m, v in zip(means, variances, strict=True):
        for i in range(4):
            for j in range(4):
                want[i, j] += np.sqrt(((m[i] - m[j]) ** 2).sum() + ((np.sqrt(v[i]) - np.sqrt(v[j])) ** 2).sum())
    close(fedap.distances(layers), want)


def test_a_variance_below_0_is_none_and_brings_nobody_near() -> None:
    """As noise and hostile uploads can make it."""
    mean_mC, var_mC = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[4.0], [4.0], [-1e-4]])
    apart_mm = fedap.distances({"features": fedap.Moments(mean_mC, var_mC)})
    close(apart_mm, [[0, 1, np.sqrt(13)], [1, 0, np.sqrt(8)], [np.sqrt(13), np.sqrt(8), 0]])


def deep() -> tuple[nn.Module, nn.Module]:
    body = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5)
    )
    return body, nn.Linear(5, 4)


@pytest.mark.parametrize("buffers", ["local", "aggregate"])
def test_every_batch_normalisation_is_measured_and_stays(buffers: Literal["local", "aggregate"]) -> None:
    task = Task(Network(deep, (1, 4, 4), buffers), 4, 3, Training(1, 6, SGD(0.1, 0.0, 0.0), shuffle=False))
    method = methods.build("fedap", {}, task)
    x, y = np.random.default_rng(2).normal(size=(12, 1, 4, 4)), np.arange(12) % 4
    client = method.init_client(o.key(), torch.tensor(0))
    down, data = o.one(method, method.init_server(o.key()), 0), o.data(x, y)
    new, up, _ = method.local(down, client, data, o.key())
    sent = up.value.method if buffers == "aggregate" else up.value
    assert {n: len(m.mean_C) for n, m in sent.statistics.items()} == {"body.1": 3, "body.5": 5}
    assert set(new.value.body) == {"1.weight", "1.bias", "5.weight", "5.bias"}
    assert not set(new.value.body) & set(sent.model.body)
    weight, bias = down.own.model.body["0.weight"], down.own.model.body["0.bias"]
    first = nn.functional.conv2d(torch.tensor(x), weight, bias).transpose(0, 1).reshape(3, -1).numpy()
    close(sent.statistics["body.1"].mean_C, first.mean(1))
    close(sent.statistics["body.1"].var_C, first.var(1))


def test_statistics_travel_in_one_round_alone() -> None:
    method = methods.build("fedap", {"statistics_round": 2}, o.task())
    server, client = method.init_server(o.key()), untrained(Model({}, {}))
    sizes: list[Tensor] = []
    for _ in range(3):
        server, _, ups, _ = o.round_of(method, server, dict.fromkeys(o.IDS, client), ROWS)
        sizes.append(ups.value.statistics["features"].var_C.abs().sum())
    assert [bool(a > 0) for a in sizes] == [False, True, False]
