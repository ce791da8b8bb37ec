"""Statistics measured after training: against numpy, and under every policy the contract of methods."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import nll_loss

sys.path.insert(0, str(Path(__file__).parent))  # tiny_bn and toy travel to other processes by name
sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))

import checks
import tiny_bn
import toy

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import Data, Down, Method, Task
from idiolect.core.network import Model, Network
from idiolect.core.reduction import reduced
from idiolect.training import batchnorm, train_model

NAMES = ("fedavg_ft", "ditto", "pfedfda", "fedem")
POLICIES = ("local", "aggregate", "frozen")


pytestmark = pytest.mark.usefixtures("float64")


def task(policy: str) -> Task:
    return replace(toy.task(), network=tiny_bn.network(policy))


def method(name: str, policy: str) -> Method:
    return methods.build(name, {}, task(policy))


def down_to(m: Method, server: Any, client: int = 0) -> Down:
    down = m.send(server, torch.tensor([client]))
    return Down(down.shared, tree.rows(down.own, 0))


def inputs(rows: torch.Tensor) -> np.ndarray[Any, Any]:
    return ((toy.data().x_R[rows].double() / 255 - 0.5) / 0.3).flatten(1).numpy()


class Oracle:
    """The tiny network in numpy, from the definition."""

    def __init__(self, model: Model) -> None:
        w = {f"{part}.{k}": v.numpy() for part, ws in model._asdict().items() for k, v in ws.items()}
        self.first = lambda x: x @ w["body.1.weight"].T + w["body.1.bias"]
        self.second = lambda a: np.tanh(a) @ w["body.4.weight"].T + w["body.4.bias"]
        self.last = lambda b: b @ w["head.1.weight"].T + w["head.1.bias"]
        self.scale = {k: (w[f"{k}.weight"], w[f"{k}.bias"]) for k in ("body.2", "head.0")}

    def norm(self, name: str, a: Any, mean: Any, var: Any) -> Any:
        weight, bias = self.scale[name]
        return (a - mean) / np.sqrt(var + {"body.2": 1e-5, "head.0": 1e-3}[name]) * weight + bias

    def statistics(self, chunks: list[Any]) -> dict[str, tuple[Any, Any]]:
        """Mean and mean square over all rows, each chunk normalised by itself."""
        firsts, seconds = [], []
        for x in chunks:
            a = self.first(x)
            b = self.second(self.norm("body.2", a, a.mean(0), a.var(0)))
            firsts.append(a)
            seconds.append(b)
        both = {"body.2": np.concatenate(firsts), "head.0": np.concatenate(seconds)}
        return {k: (v.mean(0), (v**2).mean(0)) for k, v in both.items()}

    def logp(self, x: Any, statistics: dict[str, tuple[Any, Any]]) -> Any:
        (m1, s1), (m2, s2) = statistics["body.2"], statistics["head.0"]
        b = self.second(self.norm("body.2", self.first(x), m1, s1 - m1**2))
        logit = self.last(self.norm("head.0", b, m2, s2 - m2**2))
        return logit - np.log(np.exp(logit).sum(1, keepdims=True))


def assert_statistics(got: Any, want: dict[str, tuple[Any, Any]], row: int = 0) -> None:
    assert set(got) == set(want)
    for name, (mean, square) in want.items():
        np.testing.assert_allclose(got[name].mean_MC[row], mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(got[name].square_MC[row], square, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("most", "sizes"), [(256, [16]), (7, [6, 5, 5])])
def test_local_statistics_and_predictions(most: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchnorm, "_CHUNK", most)
    m, data = method("fedavg", "local"), toy.rows(toy.data(), 0, padding=3)
    server = m.init_server(toy.key())
    client = m.personalise(down_to(m, server), m.init_client(toy.key(), torch.tensor(0)), data, toy.key())
    oracle, x = Oracle(server), inputs(toy.data().train[0])
    want = oracle.statistics(np.split(x, np.cumsum(sizes)[:-1]))
    assert_statistics(client.statistics, want)
    test = toy.data().test[0]
    got = m.predict(down_to(m, server), client, toy.data().x_R[test])
    np.testing.assert_allclose(got, oracle.logp(inputs(test), want), rtol=1e-7, atol=1e-9)


def test_local_measures_the_personal_model_and_sends_nothing() -> None:
    m, plain = method("fedavg_ft", "local"), method("fedavg_ft", "frozen")
    data, server = toy.rows(toy.data(), 0), m.init_server(toy.key())
    down = down_to(m, server)
    client = m.personalise(down, (), data, toy.key())
    assert_statistics(client.statistics, Oracle(client.method).statistics([inputs(toy.data().train[0])]))
    assert tree.nbytes(m.local(down, (), data, toy.key())[1]) == tree.nbytes(plain.local(down, (), data, toy.key())[1])


def test_aggregate_takes_the_mean_by_rows() -> None:
    m, federation = method("fedavg", "aggregate"), toy.data()
    server = m.init_server(toy.key())
    down = down_to(m, server)
    ups = [m.local(down, (), toy.rows(federation, i), toy.key(i))[1] for i in (0, 1, 4)]
    after, _ = m.aggregate(server, reduced(m.reduce, tree.stack(ups)), torch.tensor([0, 1, 4]))
    each = [Oracle(server.method).statistics([inputs(federation.train[i])]) for i in (0, 1, 4)]
    rows = np.array([toy.SIZES[i] for i in (0, 1, 4)]) / sum(toy.SIZES[i] for i in (0, 1, 4))
    want = {
        name: tuple(sum(r * one[name][k] for r, one in zip(rows, each, strict=True)) for k in (0, 1))
        for name in each[0]
    }
    assert_statistics(after.statistics, want)
    got = m.predict(down_to(m, after), (), federation.x_R[:9])
    np.testing.assert_allclose(got, Oracle(after.method).logp(inputs(torch.arange(9)), want), rtol=1e-7, atol=1e-9)


def test_aggregate_shows_in_what_travels() -> None:
    plain, m = method("fedavg", "local"), method("fedavg", "aggregate")
    server, other = plain.init_server(toy.key()), m.init_server(toy.key())
    numbers = 2 * (5 + 5)  # mean and mean square of two layers of five channels
    down, more = down_to(plain, server), down_to(m, other)
    assert tree.nbytes(more) - tree.nbytes(down) == 8 * numbers
    data = toy.rows(toy.data(), 0)
    up, larger = (a.local(d, (), data, toy.key())[1] for a, d in ((plain, down), (m, more)))
    assert tree.nbytes(larger) - tree.nbytes(up) == 8 * (numbers + 1)  # and the number of rows
    for k, w in up.value.body.items():
        assert torch.equal(w, larger.value.method.body[k]), "training depends on the policy"


def test_aggregate_starts_from_mean_0_and_variance_1() -> None:
    m = method("fedavg", "aggregate")
    server = m.init_server(toy.key())
    one = {k: (np.zeros(5), np.ones(5)) for k in ("body.2", "head.0")}
    assert_statistics(server.statistics, one)
    got = m.predict(down_to(m, server), (), toy.data().x_R[:9])
    np.testing.assert_allclose(got, Oracle(server.method).logp(inputs(torch.arange(9)), one), rtol=1e-7, atol=1e-9)


def test_aggregate_estimates_under_the_statistics_that_it_predicts_by() -> None:
    m = method("knnper", "aggregate")
    server = m.init_server(toy.key())
    statistics = tree.map(lambda a: a + 0.5, server.statistics)
    server = server._replace(statistics=statistics)
    memory = m.personalise(down_to(m, server), (), toy.rows(toy.data(), 0), toy.key())
    mean, square = (a[0].numpy() for a in statistics["body.2"])
    oracle, x = Oracle(server.method), inputs(toy.data().train[0])
    want = oracle.second(oracle.norm("body.2", oracle.first(x), mean, square - mean**2))
    np.testing.assert_allclose(memory.z_Nd, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("policy", ["local", "aggregate"])
def test_every_call_of_a_layer_has_its_statistics(policy: str) -> None:
    m, data, x = method("fedem", policy), toy.rows(toy.data(), 0), inputs(toy.data().train[0])
    server = m.init_server(toy.key())
    down, start = down_to(m, server), m.init_client(toy.key(), torch.tensor(0))
    if policy == "local":
        got, models = m.personalise(down, start, data, toy.key()).statistics, server.models
    else:
        got, models = m.local(down, start, data, toy.key())[1].value.statistics, server.method.models
    wanted = [Oracle(tree.rows(models, k)).statistics([x]) for k in range(3)]
    for k, want in enumerate(wanted):
        assert_statistics(got, want, k)
    assert not np.allclose(wanted[0]["body.2"][0], wanted[1]["body.2"][0])


def test_frozen_is_torch_in_evaluation() -> None:
    data, some = toy.rows(toy.data(), 0), task("frozen")
    some = replace(some, training=replace(some.training, shuffle=False))
    start, modules, rule = some.network.init(toy.key()), [p.eval() for p in tiny_bn.make()], some.training.optimiser
    for module, part in zip(modules, start, strict=True):
        module.load_state_dict(part, strict=False)
    weights = [p for module in modules for p in module.parameters()]
    optimiser = torch.optim.SGD(weights, rule.lr, rule.momentum, weight_decay=rule.weight_decay)
    x, y = torch.from_numpy(inputs(data.row_N)), data.y_R[data.row_N]
    for at in (slice(0, 8), slice(8, 16)) * 2:  # 16 rows, two epochs
        optimiser.zero_grad()
        nll_loss(torch.log_softmax(modules[1](modules[0](x[at])), 1), y[at]).backward()
        optimiser.step()
    got, _ = train_model(some, start, data, toy.key())
    for module, part in zip(modules, got, strict=True):
        for name, w in module.named_parameters():
            torch.testing.assert_close(part[name], w.detach())


@pytest.mark.parametrize("policy", POLICIES)
def test_running_statistics_never_move(policy: str) -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(tiny_bn.make())
        return made[-1]

    network = Network(make, (1, 4, 4), policy)  # type: ignore[arg-type]
    m = methods.build("fedavg_ft", {}, replace(toy.task(), network=network))
    server = m.init_server(toy.key())
    down, data = down_to(m, server), toy.rows(toy.data(), 1)
    m.local(down, (), data, toy.key())
    m.predict(down, m.personalise(down, (), data, toy.key()), toy.data().x_R[:9])
    want = dict(tiny_bn.make()[0].named_buffers())
    assert len(made) > 1
    for body, _ in made:
        for name, buffer in body.named_buffers():
            assert torch.equal(buffer, want[name])


@pytest.mark.parametrize("policy", ["local", "aggregate"])
def test_a_single_row_has_variance_1(policy: str) -> None:
    m, data = method("fedavg", policy), toy.rows(toy.data(), toy.SINGLE)
    server = m.init_server(toy.key())
    down = down_to(m, server)
    model = server.method if policy == "aggregate" else server
    if policy == "local":
        got = m.personalise(down, (), data, toy.key()).statistics
    else:
        got = m.local(down, (), data, toy.key())[1].value.statistics
    a = Oracle(model).first(inputs(data.row_N))[0]
    np.testing.assert_allclose(got["body.2"].mean_MC[0], a)
    np.testing.assert_allclose(got["body.2"].square_MC[0], a**2 + 1)


@pytest.mark.parametrize("stage", ["local", "personalise"])
@pytest.mark.parametrize("policy", ["local", "aggregate"])
def test_mapped_clients_are_refused(policy: str, stage: str) -> None:
    m = method("fedavg_ft", policy)
    down, data = down_to(m, m.init_server(toy.key())), toy.rows(toy.data(), 0)
    data = data._replace(row_N=data.row_N.expand(2, -1), real_N=data.real_N.expand(2, -1))
    run = torch.func.vmap(
        lambda d: getattr(m, stage)(down, (), d, toy.key()), in_dims=(Data(None, None, 0, 0, None, None, None),)
    )
    with pytest.raises(InputError, match=r"one client at a time.*another engine than vectorised.*buffers=frozen"):
        run(data)


@pytest.mark.parametrize("name", NAMES)
def test_frozen_maps_over_clients(name: str) -> None:
    checks.maps_over_clients(partial(tiny_bn.build, name, methods.settle(name, {}), "frozen"))


CHECKS = ("inputs_unchanged", "hard_clients", "one_participant", "predicts_probabilities", "relabelling_invisible")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str, policy: str, check: str) -> None:
    getattr(checks, check)(partial(tiny_bn.build, name, methods.settle(name, {}), policy))


@pytest.mark.parametrize(("name", "policy"), [("fedem", "aggregate"), ("fedavg_ft", "local")])
def test_engines_agree(name: str, policy: str) -> None:
    torch.set_default_dtype(torch.float32)
    checks.engines_agree(partial(tiny_bn.build, name, methods.settle(name, {}), policy))


def test_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    checks.resumes_exactly(partial(tiny_bn.build, "ditto", methods.settle("ditto", {}), "aggregate"), tmp_path)


def test_what_needs_no_statistics_is_left_as_it_is() -> None:
    for some in (toy.task(), task("frozen")):
        plain = methods.get("fedavg").build(some)
        assert batchnorm.with_statistics(plain, some) is plain


def test_data_of_one_client_only() -> None:
    """Padding rows enter no statistics, whatever they hold."""
    m, federation = method("fedavg", "local"), toy.data()
    server = m.init_server(toy.key())
    plain = toy.rows(federation, 0)
    wild = Data(federation.x_R, federation.y_R, torch.cat([plain.row_N, torch.arange(20, 25)]),
                torch.cat([plain.real_N, torch.zeros(5)]))  # fmt: skip
    a, b = (m.personalise(down_to(m, server), (), d, toy.key()).statistics for d in (plain, wild))
    for u, v in zip(tree.leaves(a), tree.leaves(b), strict=True):
        assert torch.equal(u, v)
