"""FedBN: rounds of the authors' released code (med-air/FedBN, float32) within 1e-5, rounds by torch, its traps.

Every array of the file is compared, the running averages excepted, which idiolect does not have: they are taken from
the file, and what a model predicts with them is compared. The mean of the clients' normalisation for new clients is the
definition's; the method trains and measures instead.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import torch
from oracle import close
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import idiolect as idl
from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Model, Task, Training
from idiolect.core.network import BatchMoments, Network
from idiolect.core.reduction import reduced
from idiolect.methods import profile
from idiolect.training.personal_weights import WithWeights

ROWS = [(x, y) for x, y in o.federation() if len(y) % o.BATCH != 1]  # torch refuses a batch of one row
TEST = torch.tensor(np.random.default_rng(5).normal(size=(7, o.INPUTS)))


def batch_norm() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 4)


def two_norms() -> tuple[nn.Module, nn.Module]:
    body = nn.Sequential(nn.Linear(o.INPUTS, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6), nn.LayerNorm(6))
    return body, nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, o.CLASSES))


def group_norm() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(o.INPUTS, 8), nn.GroupNorm(2, 8), nn.Tanh()), nn.Linear(8, o.CLASSES)


def task(make: Any, shape: int, buffers: Any, **training: Any) -> Task:
    how = {"epochs": 2, "batch_size": o.BATCH, "optimiser": o.RULE, "shuffle": False} | training
    return Task(Network(make, (shape,), buffers), 4, 5, Training(**how))


# --- recorded rounds --------------------------------------------------------------------------------------------------


def parts(f: r.Files, at: str, row: Any = ...) -> tuple[Model, dict[str, Tensor]]:
    """What is shared, and a client's normalisation."""
    norm = {f"1.{p}": torch.tensor(f[f"{at}/bn1.{p}"][row]) for p in ("weight", "bias")}
    return r.model(f, at, row), norm


def logits(f: r.Files, network: Network, shared: Model, at: str, row: Any, x: np.ndarray) -> np.ndarray:
    """With the recorded normalisation, its running averages included, of one client or as the mean of all."""
    pick = (lambda a: a.mean(0)) if row is None else (lambda a: a[row])
    scale, shift, mean, var = (
        torch.tensor(pick(f[f"{at}/bn1.{p}"])) for p in ("weight", "bias", "running_mean", "running_var")
    )
    model = shared._replace(body={**shared.body, "1.weight": scale, "1.bias": shift})
    with torch.no_grad(), network.normalising({"body.1": BatchMoments(mean[None], (var + mean**2)[None])}):
        return network(model, torch.tensor(x)).numpy()


def test_recorded_rounds() -> None:
    f = r.read("fedbn")
    how = task(batch_norm, 6, "local", epochs=int(f["options/epochs"]), batch_size=7,
               optimiser=SGD(float(f["options/lr"]), 0.0, 0.0))  # fmt: skip
    method = methods.build("fedbn", {}, how)
    shared, norm = parts(f, "init")
    server = Model({"0.weight": shared.body["0.weight"], "0.bias": shared.body["0.bias"], **norm}, shared.head)
    clients = [WithWeights((), Model(norm, {}), torch.zeros(()))] * len(r.clients(f))
    for number in range(r.count(f)):
        ups = []
        for k in r.clients(f):
            clients[k], up, _ = method.local(o.one(method, server, k), clients[k], r.training(f, k), o.key(k))
            model, norm = parts(f, f"round{number}/trained", k)
            r.same({n: server.body[n] + up.value.body[n] for n in up.value.body}, model.body)
            r.same(tree.add(server.head, up.value.head), model.head)
            r.same(clients[k].weights.body, norm)
            ups.append(up)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(r.clients(f)))
        model, norm = parts(f, f"round{number}/server")
        r.same({n: w for n, w in server.body.items() if n not in norm}, model.body)
        r.same({n: server.body[n] for n in norm}, norm)  # as it was at the start
        r.same(server.head, model.head)
    last = f"round{r.count(f) - 1}"
    end = Model({n: w for n, w in server.body.items() if n not in norm}, server.head)
    for k in r.clients(f):
        x, y = r.rows(f, k, "_test")
        logit = logits(f, how.network, end, f"{last}/trained", k, x)
        close(logit, f[f"final/logits/{k}"], **r.EXACT)
        close((logit.argmax(1) == y).mean(), f["final/accuracy"][k], **r.EXACT)
    close(logits(f, how.network, end, f"{last}/trained", None, f["new/x"]), f["new/logits"], **r.EXACT)


# --- rounds by torch --------------------------------------------------------------------------------------------------


class Oracle:
    """Modules and an optimiser of torch, from the names of weights that a client keeps."""

    def __init__(self, make: Any, kept: set[str]) -> None:
        self.make, self.kept = make, kept

    def module(self, weights: dict[str, Tensor]) -> nn.Module:
        module = nn.Sequential(*self.make()).double()
        module.load_state_dict(weights, strict=False)
        return module

    def trained(self, weights: dict[str, Tensor], x: np.ndarray, y: np.ndarray) -> dict[str, Tensor]:
        module = self.module(weights).train()
        step = torch.optim.SGD(module.parameters(), o.RULE.lr, o.RULE.momentum, weight_decay=o.RULE.weight_decay)
        for rows in o.batches(len(y)):
            step.zero_grad()
            cross_entropy(module(torch.tensor(x[rows])), torch.tensor(y[rows])).backward()
            step.step()
        return {n: p.detach() for n, p in module.named_parameters()}

    def predicted(self, weights: dict[str, Tensor], x: np.ndarray) -> Tensor:
        """By statistics of all of a client's samples, which a pass in training mode with a momentum of 1 leaves."""
        module = self.module(weights)
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm1d):
                layer.momentum = 1.0
        with torch.no_grad():
            module.train()(torch.tensor(x))
            for layer in module.modules():
                if isinstance(layer, nn.BatchNorm1d):
                    layer.running_var *= (len(x) - 1) / len(x)  # torch keeps the unbiased one
            logp: Tensor = module.eval()(TEST).log_softmax(1)
        return logp


def whole(model: Model) -> dict[str, Tensor]:
    return {f"{at}.{n}": w for at, part in enumerate(model) for n, w in part.items()}


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize(
    ("make", "buffers", "kept"),
    [
        (two_norms, "local", {"0.1.weight", "0.1.bias", "0.4.weight", "0.4.bias", "1.0.weight", "1.0.bias"}),
        (group_norm, None, {"0.1.weight", "0.1.bias"}),
    ],
)
def test_three_rounds_of_some_clients(make: Any, buffers: Any, kept: set[str], weighting: str) -> None:
    method = methods.build("fedbn", {"weighting": weighting}, task(make, o.INPUTS, buffers))
    oracle, server = Oracle(make, kept), method.init_server(o.key())
    start = whole(server)
    shared, own = {n: w for n, w in start.items() if n not in kept}, {}
    clients = {k: method.init_client(o.key(), torch.tensor(k)) for k in range(len(ROWS))}
    for ids in ((0, 2), (1, 2), (0,)):
        server, new, up, _ = o.round_of(method, server, {k: clients[k] for k in ids}, ROWS)
        clients |= new
        ends = {k: oracle.trained(shared | own.get(k, {n: start[n] for n in kept}), *ROWS[k]) for k in ids}
        own |= {k: {n: ends[k][n] for n in kept} for k in ids}
        weight = torch.tensor([len(ROWS[k][1]) if weighting == "samples" else 1.0 for k in ids]).double()
        shared = {n: torch.tensordot(weight / weight.sum(), torch.stack([e[n] for e in ends.values()]), 1)
                  for n in shared}  # fmt: skip
        sent = whole(method.send(server, torch.tensor([0])).shared)
        assert {*sent} == {*whole(up.value)} == {*shared}
        for n in shared:
            close(sent[n], shared[n])
        for k in own:
            for n, w in whole(clients[k].weights).items():
                close(w, own[k][n])
    for k in range(len(ROWS)):  # the last was never drawn: it trains for a round, and sends nothing
        mine = own.get(k) or oracle.trained(shared | {n: start[n] for n in kept}, *ROWS[k])
        mine = {n: mine[n] for n in kept}
        down = o.one(method, server, k)
        client = method.personalise(down, clients[k], o.data(*ROWS[k]), o.key())
        close(method.predict(down, client, TEST), oracle.predicted(shared | mine, ROWS[k][0]), rtol=1e-7, atol=1e-8)


# --- networks that have nothing to keep, or average it ----------------------------------------------------------------


def test_without_normalisation_it_is_fedavg_to_the_bit() -> None:
    plain = methods.build("fedavg", {}, o.task())
    method = methods.build("fedbn", {"weighting": "samples"}, o.task())
    start = plain.init_server(o.key())
    rows = o.federation()
    ends = [o.round_of(m, start, dict.fromkeys(o.IDS, ()), rows)[0] for m in (plain, method)]
    assert tree.same(*ends)
    assert not plain.note


def test_a_run_says_once_that_a_network_has_nothing_to_keep(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.set_default_dtype(torch.float32)
    how: dict[str, Any] = {"dataset": "digits", "clients": 3, "keep": 12, "rounds": 1, "local_epochs": 1}
    with caplog.at_level(logging.WARNING):
        study = idl.Study(methods="fedbn", model="mlp:hidden=4", seeds=(0, 1), **how)
        idl.run(study, tmp_path / "run", engine="sequential")
    [said] = [record.message for record in caplog.records if "fedbn" in record.message]
    assert said.startswith("method fedbn: the network has no normalisation layer")
    assert "norm=" in said


@pytest.mark.parametrize("make", [batch_norm, two_norms])
def test_statistics_that_are_averaged_are_refused(make: Any) -> None:
    with pytest.raises(InputError, match=r"method fedbn keeps the statistics.*buffers=local"):
        methods.build("fedbn", {}, task(make, 6 if make is batch_norm else o.INPUTS, "aggregate"))


def test_a_head_can_stay_too() -> None:
    method = methods.build("fedbn", {}, task(group_norm, o.INPUTS, None), personal_weights="head")
    down = method.send(method.init_server(o.key()), torch.tensor([0]))
    assert [*whole(down.shared)] == ["0.0.weight", "0.0.bias"]
    state, up, _ = method.local(
        o.one(method, method.init_server(o.key()), 0), method.init_client(o.key(), torch.tensor(0)),
        o.data(*ROWS[0]), o.key(),
    )  # fmt: skip
    assert {*whole(up.value)} == {*whole(down.shared)}
    kept = len(tree.leaves(state))
    assert kept == 2 + 2 + 2  # head, norm, and two flags


@pytest.mark.parametrize(("make", "kept"), [(group_norm, {"weights/body": "some of body"}), (o.make, {})])
def test_what_the_lists_say_is_of_the_network_asked_about(make: Any, kept: dict[str, str]) -> None:
    about = profile.of("fedbn", {}, Network(make, (o.INPUTS,)), o.CLASSES, 5)
    assert about.client.parts == kept
    assert bool(about.note) == (not kept)
    assert about.joins_by == ("training" if kept else "what it receives")
