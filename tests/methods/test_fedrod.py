"""Fed-RoD: recorded rounds, a round by hand with both personal heads, and its traps.

The record (float32) is of the definition as others implement it: the authors released no code. Every array is compared,
within 1e-5. Its personal heads start at recorded draws, where the method's start at zero, so the clients' states are
built here.
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
from idiolect.core.method import SGD, Data, Down
from idiolect.core.reduction import reduced
from idiolect.methods.fedrod import Hypernetwork, Shared
from idiolect.training import Personal, trained, untrained

ROWS = o.federation()
START = o.weights(1)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
HIDDEN = 3


def test_recorded_rounds() -> None:
    f = r.read("fedrod")
    method = methods.build("fedrod", {}, r.task(f, SGD(0.05, 0.0, 0.0), 2))
    server = Shared(r.model(f, "init"), ())
    clients = [trained(r.head(f, "init/personal/", k)) for k in r.clients(f)]
    for number in range(r.count(f)):
        old = f[f"round{number - 1}/personal/weight" if number else "init/personal/weight"]
        ids, ups = r.changed(f[f"round{number}/personal/weight"], old), []
        for k in ids:
            clients[k], up, _ = method.local(o.one(method, server, k), clients[k], r.training(f, k), o.key(number, k))
            ups.append(up)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        r.same(server.model, r.model(f, f"round{number}"))
        for k in r.clients(f):
            r.same(clients[k].value, r.head(f, f"round{number}/personal/", k))
    for k in r.clients(f):
        down = o.one(method, server, k)
        mine = method.personalise(down, clients[k], r.training(f, k), o.key())
        logp = method.predict(down, mine, torch.tensor(r.rows(f, k, "_test")[0]))
        close(logp, log_softmax(f[f"final/logits/{k}"], 1), **r.EXACT)


# --- by hand --------------------------------------------------------------------------------------------------------

Params = o.Params


def personal(k: int) -> Params:
    rng = np.random.default_rng(20 + k)
    return {"P": 0.4 * rng.normal(size=(o.CLASSES, o.WIDTH)), "q": 0.4 * rng.normal(size=o.CLASSES)}


def hyper() -> Params:
    rng = np.random.default_rng(7)
    shapes = {"V": (HIDDEN, o.CLASSES), "v": (HIDDEN,), "S": (o.CLASSES, o.WIDTH, HIDDEN), "s": (o.CLASSES, HIDDEN)}
    shapes |= {"B": (o.CLASSES, o.WIDTH), "e": (o.CLASSES,)}
    return {name: 0.5 * rng.normal(size=shape) for name, shape in shapes.items()}


def hyper_of(p: Params) -> Hypernetwork:
    t = {name: torch.tensor(p[name]) for name in "VvSsBe"}
    return Hypernetwork(
        {"weight": t["V"], "bias": t["v"]}, {"weight": t["S"], "bias": t["s"]}, {"weight": t["B"], "bias": t["e"]}
    )


def layer(p: Params) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor(p["P"]), "bias": torch.tensor(p["q"])}


def made(p: Params, y: np.ndarray) -> tuple[Params, np.ndarray, np.ndarray]:
    """The personal layer from class shares; also the shares and the hidden units."""
    share = np.bincount(y, minlength=o.CLASSES) / len(y)
    unit = np.maximum(p["V"] @ share + p["v"], 0)
    return {"P": p["B"] + p["S"] @ unit, "q": p["e"] + p["s"] @ unit}, share, unit


def gradient(x: np.ndarray, y: np.ndarray, losses: list[tuple[float, float, int]]) -> Any:
    """Of balanced risk in body and generic head; of the personal risk in what makes the personal layer."""
    with np.errstate(divide="ignore"):
        shift = np.log(np.bincount(y, minlength=o.CLASSES))

    def of(p: Params, rows: np.ndarray) -> Params:
        z = o.embed(p, x[rows])
        logit = z @ p["U"].T + p["c"]
        generic = o.error_back(logit + shift, y[rows])
        out = {"U": generic.T @ z, "c": generic.sum(0)} | o.embed_back(p, x[rows], generic @ p["U"])
        own, share, unit = made(p, y) if "V" in p else (p, None, None)
        both = logit + z @ own["P"].T + own["q"]
        losses.append((o.errors(both, y[rows]).mean(), o.errors(logit + shift, y[rows]).mean(), len(rows)))
        dl = o.error_back(both, y[rows])
        P, q = dl.T @ z, dl.sum(0)
        if "V" not in p:
            return out | {"P": P, "q": q}
        back = ((P[:, :, None] * p["S"]).sum((0, 1)) + (q[:, None] * p["s"]).sum(0)) * (unit > 0)
        out |= {"B": P, "e": q, "S": P[:, :, None] * unit, "s": q[:, None] * unit}
        return out | {"V": np.outer(back, share), "v": back}

    return of


def train(rows: tuple[np.ndarray, np.ndarray], extra: Params) -> tuple[Params, float, float]:
    losses: list[tuple[float, float, int]] = []
    p = o.descend(START | extra, "WbUc" + "".join(extra), o.batches(len(rows[1])), gradient(*rows, losses))
    mine, generic, n = (np.array(part) for part in zip(*losses, strict=True))
    return p, (mine * n).sum() / n.sum(), (generic * n).sum() / n.sum()


def same_model(model: Any, p: Params) -> None:
    close(model.body["0.weight"], p["W"])
    close(model.body["0.bias"], p["b"])
    close(model.head["weight"], p["U"])
    close(model.head["bias"], p["c"])


def same_layer(got: Any, p: Params) -> None:
    close(got["weight"], p["P"])
    close(got["bias"], p["q"])


def predicted(p: Params, own: Params) -> np.ndarray:
    z = o.embed(p, TEST)
    return log_softmax(z @ (p["U"] + own["P"]).T + p["c"] + own["q"], 1)


def test_round() -> None:
    """Two of the participants lack a class; client 2 stays away, client 3 has not trained before."""
    method = methods.build("fedrod", {}, o.task())
    server = Shared(o.model_of(START), ())
    clients = {k: (untrained if k == 3 else trained)(layer(personal(k))) for k in range(5)}
    want = {k: train(ROWS[k], personal(k)) for k in o.IDS}
    after, new, up, _ = o.round_of(method, server, {k: clients[k] for k in o.IDS}, ROWS)
    close(up.weight, [o.SIZES[k] for k in o.IDS])
    assert up.value.hyper == ()
    for at, k in enumerate(o.IDS):
        p, loss, generic = want[k]
        same_layer(new[k].value, p)
        assert float(new[k].trained) == 1
        same_model(tree.rows(up.value.model, at), {name: p[name] - START[name] for name in START})
        info = method.local(o.one(method, server, k), clients[k], o.data(*ROWS[k]), o.key(k))[2]
        close(info["train_loss"], loss)
        close(info["generic_loss"], generic)
    mean = {n: o.average([want[k][0][n] for k in o.IDS], [o.SIZES[k] for k in o.IDS]) for n in START}
    same_model(after.model, mean)

    for k, client in (clients | new).items():
        down = o.one(method, after, k)
        mine = method.personalise(down, client, o.data(*ROWS[k]), o.key())
        own = want[k][0] if k in o.IDS else personal(k)
        same_layer(mine.value, own)
        close(method.predict(down, mine, torch.tensor(TEST)), predicted(mean, own))


def test_newcomer_trains_one_round() -> None:
    method = methods.build("fedrod", {}, o.task())
    down = o.one(method, Shared(o.model_of(START), ()), 99)
    client = method.init_client(o.key(), torch.tensor(0))
    mine = method.personalise(down, client, o.data(*ROWS[4]), o.key())
    zero = {name: np.zeros_like(a) for name, a in personal(0).items()}
    want = train(ROWS[4], zero)[0]
    same_layer(mine.value, want)
    close(method.predict(down, mine, torch.tensor(TEST)), predicted(START, want))  # on the received model


def test_round_with_a_hypernetwork() -> None:
    method = methods.build("fedrod", {"personal_head": "hypernetwork", "hidden": HIDDEN}, o.task())
    server = Shared(o.model_of(START), hyper_of(hyper()))
    start = method.init_client(o.key(), torch.tensor(0))
    assert start.value == ()
    after, new, up, _ = o.round_of(method, server, dict.fromkeys(o.IDS, start), ROWS)
    want = {k: train(ROWS[k], hyper())[0] for k in o.IDS}
    for at, k in enumerate(o.IDS):
        assert new[k].value == (), "nothing stays at the client"
        sent = hyper_of({name: want[k][name] - hyper()[name] for name in hyper()})
        for a, b in zip(tree.leaves(tree.rows(up.value.hyper, at)), tree.leaves(sent), strict=True):
            close(a, b)
    mean = {n: o.average([want[k][n] for k in o.IDS], [o.SIZES[k] for k in o.IDS]) for n in START | hyper()}
    same_model(after.model, mean)
    for a, b in zip(tree.leaves(after.hyper), tree.leaves(hyper_of(mean)), strict=True):
        close(a, b)
    for k in (*range(5), 99):  # participants, the absent client and a new one with client 1's rows alike
        of = 1 if k == 99 else k
        down = o.one(method, after, k)
        with torch.no_grad():
            mine = method.personalise(down, start, o.data(*ROWS[of]), o.key())
        own = made(mean, ROWS[of][1])[0]
        same_layer(mine.value, own)
        close(method.predict(down, mine, torch.tensor(TEST)), predicted(mean, own))


# --- traps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("personal_head", ["linear", "hypernetwork"])
def test_the_first_personal_prediction_is_the_generic_one(personal_head: str) -> None:
    method = methods.build("fedrod", {"personal_head": personal_head}, o.task())
    server = method.init_server(o.key("init"))._replace(model=o.model_of(START))
    down = o.one(method, server, 0)
    client = method.init_client(o.key(), torch.tensor(0))
    close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(START, TEST))
    if personal_head == "hypernetwork":
        mine = method.personalise(down, client, o.data(*ROWS[0]), o.key())
        close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(START, TEST))
        after = o.round_of(method, server, dict.fromkeys(o.IDS, client), ROWS)[0]
        after = o.round_of(method, after, dict.fromkeys(o.IDS, client), ROWS)[0]  # then every layer has moved
        for name, a in tree.named(tree.sub(after.hyper, server.hyper)).items():
            assert a.abs().max() > 0, f"{name} does not train"


def local(extra: Params, k: int = 1, **rule: float) -> Any:
    task = o.task(optimiser=SGD(**({"lr": 0.07, "momentum": 0.6, "weight_decay": 0.0} | rule)))
    method = methods.build("fedrod", {}, task)
    down = o.one(method, Shared(o.model_of(START), ()), k)
    return method.local(down, trained(layer(extra)), o.data(*ROWS[k]), o.key())


def test_the_personal_loss_does_not_reach_body_and_generic_head() -> None:
    one, other = (local(personal(k)) for k in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(one[1]), tree.leaves(other[1]), strict=True))
    assert (one[0].value["weight"] - other[0].value["weight"]).abs().max() > 0.1


def test_an_absent_class_is_left_out_exactly() -> None:
    """Its row of the generic head keeps its bits; with a count of 1 in place of 0 it would move."""
    absent = o.LACKS[1]
    head = local(personal(1))[1].value.model.head
    moved = head["weight"].abs().amax(1) + head["bias"].abs()
    assert moved[absent] == 0
    assert (np.delete(moved.numpy(), absent) > 1e-3).all()


@pytest.mark.parametrize("personal_head", ["linear", "hypernetwork"])
def test_padding_of_an_absent_class_under_vmap(personal_head: str) -> None:
    """A padding row may be of a class that the client lacks: its loss is beyond all numbers, and weighs nothing."""
    method = methods.build("fedrod", {"personal_head": personal_head}, o.task())
    server = method.init_server(o.key("init"))._replace(model=o.model_of(START))
    x, y = ROWS[1]
    stranger = int(np.flatnonzero(ROWS[0][1] == o.LACKS[1])[0])
    x_R, y_R = torch.tensor(np.concatenate([x, ROWS[0][0]])), torch.tensor(np.concatenate([y, ROWS[0][1]]))
    row_N = torch.cat([torch.arange(len(y)), torch.full((7,), len(y) + stranger)])
    real_N = torch.cat([torch.ones(len(y)), torch.zeros(7)])
    down, client = o.one(method, server, 1), method.init_client(o.key(), torch.tensor(0))
    want = method.local(down, client, o.data(x, y), o.key())

    def mapped(row_N: torch.Tensor, real_N: torch.Tensor) -> Any:
        return method.local(down, client, Data(x_R, y_R, row_N, real_N), o.key())

    got = torch.func.vmap(mapped)(row_N[None], real_N[None])
    for (name, a), b in zip(tree.named(want).items(), tree.leaves(got), strict=True):
        assert torch.isfinite(b).all(), name
        close(b[0], a)


def test_class_counts_are_of_all_rows() -> None:
    """A class whose only row stands in the short last batch is there, with a count of 1."""
    x, y = ROWS[3]
    last, lone = len(y) - 1, o.LACKS[1]
    assert last % o.BATCH == 0, "the last row should be alone in its batch"
    y = np.where(np.arange(len(y)) == last, lone, np.where(y == lone, 0, y))
    method = methods.build("fedrod", {}, o.task())
    down = o.one(method, Shared(o.model_of(START), ()), 3)
    client, up, _ = method.local(down, trained(layer(personal(3))), o.data(x, y), o.key())
    want = train((x, y), personal(3))[0]
    same_layer(client.value, want)
    same_model(up.value.model, {name: want[name] - START[name] for name in START})


def test_predict_adds_logits_of_both_heads() -> None:
    """The personal head is a residual: alone it would predict something else."""
    own = personal(0)
    method = methods.build("fedrod", {}, o.task())
    down = Down(Shared(o.model_of(START), ()))
    logp = method.predict(down, Personal(layer(own), torch.ones(())), torch.tensor(TEST))
    close(logp, predicted(START, own))
    alone = log_softmax(o.embed(START, TEST) @ own["P"].T + own["q"], 1)
    assert np.abs(logp.numpy() - alone).max() > 0.1


def test_bad_options() -> None:
    with pytest.raises(InputError, match="personal_head='mlp' is not valid"):
        methods.build("fedrod", {"personal_head": "mlp"}, o.task())
