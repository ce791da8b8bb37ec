"""FedFomo: a round by hand with every option, who is sent whose model, and four recorded rounds of the authors' code.

Parity: every array of parity/fedfomo.npz within 1e-5 (float32 there): the trained models, the gains (``deltas``), the
weights, the personalised models, the affinity (``client_weights``, which starts at 0.1 on its diagonal there and at 0
here, where the own model is always a candidate), and loss and accuracy on the test rows at the end. Taken from the
file, as quirks left out: the order of the candidates, which the released code draws, and the averages of the groups of
its spectral clustering with the global average made of them (``cluster``, ``cluster_model``, ``global``), which are
candidates here as there. The file's validation rows are the first quarter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as rec
import torch
from oracle import close, data, key
from torch import Tensor

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Down, Task, Up
from idiolect.core.network import Model
from idiolect.core.reduction import reduced
from idiolect.methods import fedfomo as module

EXACT = {"rtol": 0, "atol": 1e-5}
ROWS = o.federation()
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
SENT = [o.weights(s) for s in range(10, 15)]  # the last uploads; client 2 has not sent one
N = np.array([16.0, 12.0, 0.0, 11.0, 4.0])
BASE, OWN = ([o.weights(s) for s in range(at, at + 5)] for at in (20, 30))
SPLIT = key("validation")


def server_of(round: int = 9) -> module.Server:
    affinity = torch.tensor(np.random.default_rng(1).normal(size=(5, 5)))
    models = tree.stack([o.model_of(p) for p in SENT])
    return module.Server(models, torch.tensor(N), affinity, key("choice"), torch.tensor(round))


def client_of(k: int) -> module.Client:
    return module.Client(o.model_of(BASE[k]), o.model_of(OWN[k]), SPLIT)


def parted(n: int, share: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation positions."""
    order = keys.order(SPLIT, torch.ones(n)).numpy()
    held = np.sort(order[: max(1, int(share * n))])
    return (np.setdiff1d(np.arange(n), held) if n > 1 else held), held


def far(a: o.Params, b: o.Params, distance: str) -> float:
    gap = np.concatenate([(a[n] - b[n]).ravel() for n in a])
    return {"l1": np.abs(gap).sum(), "l2": np.linalg.norm(gap), "squared_l2": (gap**2).sum()}[distance]


def update(k: int, candidates: list[o.Params], distance: str, share: float = 0.2) -> Any:
    """theta, gains and weights, from the equations."""
    x, y = (a[parted(o.SIZES[k], share)[1]] for a in ROWS[k])

    def risk(p: o.Params) -> float:
        return -o.log_probability(p, x)[np.arange(len(y)), y].mean()

    gain = np.array([(risk(BASE[k]) - risk(c)) / far(c, BASE[k], distance) for c in candidates])
    better = gain.clip(min=0)
    weight = better / better.sum() if better.any() else better
    theta = {n: b + sum(w * (c[n] - b) for w, c in zip(weight, candidates, strict=True)) for n, b in BASE[k].items()}
    return theta, gain, weight


def same(model: Model, p: o.Params) -> None:
    for got, want in zip(tree.leaves(model), tree.leaves(o.model_of(p)), strict=True):
        close(got, want)


def received(k: int, places: int = 4) -> list[int]:
    """The best by affinity of all there is, the largest first."""
    there = sorted({0, 1, 3, 4} - {k}, key=lambda j: -float(server_of().affinity_KK[k, j]))[:places]
    return sorted(there, key=lambda j: -N[j])


@pytest.mark.parametrize(
    "options",
    [
        {}, {"distance": "l1"}, {"distance": "squared_l2"}, {"average_candidate": True}, {"preset": "official"},
        {"validation": 0.35}, {"models": 3, "exploration": 0},
    ],
)  # fmt: skip
def test_round(options: dict[str, Any]) -> None:
    settled = methods.settle("fedfomo", options)
    distance, share, average = (settled[n] for n in ("distance", "validation", "average_candidate"))
    places = settled["models"] - 1
    method, server = methods.build("fedfomo", options, o.task()), server_of()
    new, clients, up, info = o.round_of(method, server, {k: client_of(k) for k in o.IDS}, ROWS)
    everyone = {n: o.average([SENT[j][n] for j in (0, 1, 3, 4)], N[[0, 1, 3, 4]]) for n in SENT[0]}
    affinity, moved = server.affinity_KK.numpy().copy(), 0
    for at, k in enumerate(o.IDS):
        candidates = [OWN[k], *(SENT[j] for j in received(k, places)), *([everyone] if average else [])]
        theta, gain, weight = update(k, candidates, distance, share)
        same(clients[k].base, theta)
        train, held = parted(o.SIZES[k], share)
        x, y = (a[train] for a in ROWS[k])
        trained = o.descend(theta, "WbUc", o.batches(len(y)), o.whole_gradient(x, y))
        same(clients[k].model, trained)
        same(tree.rows(up.value.model, at), trained)
        same(tree.rows(new.models, k), trained)
        close(new.n_K[k], o.SIZES[k] - len(held))
        for who, credit in zip([k, *received(k, places)], gain / abs(gain.sum()), strict=False):
            affinity[k, who] += credit
        moved += 0 < (weight > 0).sum() < len(weight)
    assert moved, "nobody had to choose"
    close(new.affinity_KK, affinity)
    close(info["affinity"], affinity[np.ix_(o.IDS, o.IDS)])
    assert int(new.round) == 10
    assert float(new.n_K[2]) == 0
    same(tree.rows(new.models, 2), SENT[2])


def test_personal_model_is_the_update_before_training() -> None:
    method, server = methods.build("fedfomo", {}, o.task()), server_of()
    for k in range(5):
        down = o.one(method, server, k)
        client = method.personalise(down, client_of(k), data(*ROWS[k]), key())
        theta = update(k, [OWN[k], *(SENT[j] for j in received(k))], "l2")[0]
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(theta, TEST))


def test_without_a_better_candidate_the_client_goes_back_and_loses_its_training() -> None:
    k = 0
    x, y = ROWS[k]
    fitted = o.descend(BASE[k], "WbUc", o.batches(len(y), 40), o.whole_gradient(x, y))
    client = client_of(k)._replace(base=o.model_of(fitted), model=o.model_of(OWN[k]))
    method = methods.build("fedfomo", {}, o.task())
    down = o.one(method, server_of(), k)
    same(method.personalise(down, client, data(*ROWS[k]), key()).model, fitted)
    new, _, info = method.local(down, client, data(*ROWS[k]), key())
    same(new.base, fitted)
    assert int(info["used"]) == 0


def test_first_round_trains_from_the_start_and_divides_by_no_distance() -> None:
    method = methods.build("fedfomo", {"preset": "official"}, o.task())
    server, client = method.init_server(key("init")), method.init_client(key("init"), torch.tensor(0))
    down = o.one(method, server, 0)
    assert not down.own.usable.any()
    assert not down.shared.usable.any()
    new, up, _ = method.local(down, client, data(*ROWS[0]), key())
    assert tree.not_finite((new, up, down)) is None
    assert not up.value.credit_C.any()
    for a, b, c in zip(*map(tree.leaves, (new.base, client.base, new.model)), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c), "the model of before the training is a copy of its own"


def test_a_new_client_mixes_what_beats_its_untrained_model() -> None:
    method = methods.build("fedfomo", {}, o.task())
    down = o.one(method, server_of(), 1000)
    assert down.own.usable.tolist() == [1, 1, 1, 1]
    start = module.Client(o.model_of(BASE[1]), o.model_of(BASE[1]), SPLIT)
    client = method.personalise(down, start, data(*ROWS[1]), key())
    same(client.model, update(1, [SENT[j] for j in (0, 1, 3, 4)], "l2")[0])


# --- validation rows ------------------------------------------------------------------------------------------------


def test_validation_rows_are_the_same_in_all_rounds_and_never_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[int]] = []
    real = module.train_model

    def watched(task: Task, model: Model, data: Any, key: Tensor) -> Any:
        seen.append(set(data.row_N.tolist()))
        return real(task, model, data, key)

    monkeypatch.setattr(module, "train_model", watched)
    method = methods.build("fedfomo", {}, o.task(shuffle=True))
    server, client, n = method.init_server(key()), method.init_client(key(), torch.tensor(0)), o.SIZES[0]
    for r in range(3):
        client, up, _ = method.local(o.one(method, server, 0), client, data(*ROWS[0]), key(r))
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack([up])), torch.tensor([0]))
    assert seen[0] == seen[1] == seen[2]
    train, held = module.split(data(*ROWS[0]), client.split, 0.2)
    assert set(train.row_N.tolist()) == seen[0]
    assert len(held.row_N) == 4
    assert set(held.row_N.tolist()) | seen[0] == set(range(n))
    assert not set(held.row_N.tolist()) & seen[0]


@pytest.mark.parametrize(("n", "held"), [(1, 1), (2, 1), (4, 1), (9, 1), (10, 2), (20, 4)])
def test_at_least_one_row_validates_and_one_trains(n: int, held: int) -> None:
    whole = data(np.zeros((n, 2)), np.zeros(n, int))
    train, test = module.split(whole, SPLIT, 0.2)
    assert len(test.row_N) == held
    assert len(train.row_N) == max(1, n - held)


# --- whose models ---------------------------------------------------------------------------------------------------


def federation_of(clients: int, seed: int = 0) -> module.Server:
    """Clients 0 and 5 have sent nothing; all others are of one size."""
    n_K = torch.ones(clients)
    n_K[[0, 5]] = 0
    affinity = torch.tensor(np.random.default_rng(seed).normal(size=(clients, clients)))
    return module.Server(Model({}, {}), n_K, affinity, key("choice"), torch.tensor(0))


def test_the_best_by_affinity_are_sent() -> None:
    server = federation_of(12)
    at_mS, usable_mS = module.choose(server, torch.arange(12), 4, 0.0)
    assert usable_mS.all()
    for i in range(12):
        there = [j for j in range(12) if j not in (0, 5, i)]
        assert at_mS[i].tolist() == sorted(there, key=lambda j: -server.affinity_KK[i, j])[:4]


def test_a_new_client_gets_what_others_gained_from() -> None:
    server = federation_of(12)
    server.affinity_KK[7, 7] = 1e6  # what a model is worth to its own client says nothing
    mean = (server.affinity_KK - server.affinity_KK.diag().diag()).mean(0)
    mean[[0, 5]] = -torch.inf
    assert (
        module.choose(server, torch.tensor([99]), 4, 0.0)[0][0].tolist() == mean.argsort(descending=True)[:4].tolist()
    )


def test_exploration_is_a_random_order_of_the_others() -> None:
    count = np.zeros((12, 12), int)
    for r in range(300):
        server = federation_of(12)._replace(round=torch.tensor(r))
        at_mS, usable_mS = module.choose(server, torch.arange(12), 4, 1.0)
        assert usable_mS.all()
        for i, at in enumerate(at_mS.tolist()):
            assert len(set(at)) == 4
            count[i, at] += 1
    assert not count[:, [0, 5]].any()
    assert not count.diagonal().any()
    free = [(i, j) for i in range(12) for j in range(12) if j not in (0, 5, i)]
    expected = np.array([300 * 4 / (10 - (i not in (0, 5))) for i, _ in free])
    assert np.abs(np.array([count[f] for f in free]) / expected - 1).max() < 0.3  # 3.5 standard deviations


def test_exploration_falls_from_round_to_round() -> None:
    """The share of clients that get exactly the best four: (1 - chance)^4 and the accidents of a random order."""
    method = methods.build("fedfomo", {"exploration": 0.9, "exploration_step": 0.3}, replace(o.task(), clients=200))
    affinity_KK = torch.tensor(np.random.default_rng(2).normal(size=(200, 200)))
    start = method.init_server(key())._replace(n_K=torch.ones(200), affinity_KK=affinity_KK)
    codes = torch.arange(200.0)
    start = start._replace(models=tree.map(lambda w: w * 0 + codes.view(-1, *[1] * (w.ndim - 1)), start.models))
    share = []
    for r in range(4):
        down = method.send(start._replace(round=torch.tensor(r)), torch.arange(200))
        sent = down.own.models.head["bias"][..., 0].long()
        best = (start.affinity_KK - 1e9 * torch.eye(200)).argsort(1, descending=True)[:, :4]
        share.append(float((sent == best).all(1).double().mean()))
    np.testing.assert_allclose(share, [0.1**4, 0.4**4, 0.7**4, 1], atol=0.08)
    assert share[3] == 1


def test_a_choice_hangs_on_nobody_else_and_is_made_once_a_round() -> None:
    server = federation_of(12)
    everyone = module.choose(server, torch.arange(12), 4, 0.5)[0]
    for ids in ([3], [11, 3, 99], [3, 7]):
        some = module.choose(server, torch.tensor(ids), 4, 0.5)[0]
        assert torch.equal(some[ids.index(3)], everyone[3])
    later = module.choose(server._replace(round=torch.tensor(1)), torch.arange(12), 4, 0.5)[0]
    assert not torch.equal(later, everyone)


def test_ties_are_drawn() -> None:
    server = federation_of(12)._replace(affinity_KK=torch.zeros(12, 12))
    at_mS = module.choose(server, torch.arange(12), 4, 0.0)[0]
    assert len(set(at_mS.flatten().tolist())) > 7


def test_places_without_a_model_are_marked_and_the_largest_stands_first() -> None:
    server = federation_of(12)._replace(n_K=torch.tensor([0.0, 3, 5] + [0] * 9))
    server.affinity_KK[0, 1] = 1e6
    at_mS, usable_mS = module.choose(server, torch.arange(3), 4, 0.0)
    assert usable_mS.tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert at_mS[0, :2].tolist() == [2, 1]


def test_an_empty_place_earns_no_credit() -> None:
    method = methods.build("fedfomo", {}, o.task())
    start = method.init_server(key())
    up = Up(module.Report(tree.rows(start.models, slice(0, 2)), torch.ones(2, 5)), torch.ones(2))
    server, _ = method.aggregate(start, reduced(method.reduce, up), torch.tensor([1, 3]))
    close(server.affinity_KK, np.diag([0, 1, 0, 1, 0]))


@pytest.mark.parametrize("options", [{"models": 1}, {"validation": 0}, {"validation": 1}, {"distance": "cosine"}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        methods.settle("fedfomo", options)


# --- recorded rounds ------------------------------------------------------------------------------------------------


def test_recorded_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    quotients: list[Tensor] = []

    def noted(above: Tensor, below: Tensor) -> Tensor:
        quotients.append(real(above, below))
        return quotients[-1]

    real = module.ratio
    monkeypatch.setattr(module, "ratio", noted)
    monkeypatch.setattr(keys, "order", lambda key, real_N: torch.arange(len(real_N)))
    f = rec.read("fedfomo")
    everybody, last, start = rec.clients(f), rec.count(f) - 1, rec.model(f, "init")
    rows = [
        data(*(np.concatenate(pair) for pair in zip(rec.rows(f, k, "_val"), rec.rows(f, k), strict=True)))
        for k in everybody
    ]
    states = [module.Client(start, start, key()) for _ in everybody]
    server: Any = None
    for r in range(last + 1):
        at, before, others = f"round{r}", f"round{r - 1}", len(everybody) - 1
        task = rec.task(f, SGD(0.1 * 0.99**r, 0, 1e-4), 2, 0.01)
        method = methods.build("fedfomo", {"preset": "official", "validation": 0.25}, task)
        server = server or method.init_server(key())
        order, shared = torch.zeros(len(everybody), others, dtype=torch.int64), tree.stack([start])
        if r:
            names = np.stack([f[f"{at}/candidates/{k}"] for k in everybody])
            order = torch.tensor(names[:, 1 : 1 + others].astype(int))
            assert names[:, 0].astype(int).tolist() == everybody, "the own model first"
            paths = {
                " ".join(map(str, np.flatnonzero(f[f"{before}/cluster"] == c))): f"{before}/cluster_model/{c}"
                for c in rec.below(f, f"{before}/cluster_model")
            }
            listed = names[0, 1 + others : -1].tolist()
            assert sorted(listed) == sorted(paths)
            shared = tree.stack([rec.model(f, path) for path in (*(paths[m] for m in listed), f"{before}/global")])
        there, common = torch.ones(order.shape) * (r > 0), torch.ones(len(tree.leaves(shared)[0])) * (r > 0)
        monkeypatch.setattr(module, "choose", lambda *_, c=(order, there): c)
        ups = []
        for k in everybody:
            own = module.Candidates(tree.rows(server.models, order[k]), there[k])
            down = Down(module.Candidates(shared, common), own)
            if r == last:
                tested = method.personalise(down, states[k], rows[k], key())
                x, y = rec.rows(f, k, "_test")
                logp = method.predict(down, tested, torch.tensor(x)).numpy()
                close(-logp[np.arange(len(y)), y].mean(), f["final/test_loss"][k], **EXACT)
                close((logp.argmax(1) == y).mean(), f["final/test_accuracy"][k], rtol=1e-6)
            quotients.clear()
            states[k], up, info = method.local(down, states[k], rows[k], key(r, k))
            ups.append(up)
            if r:
                candidates = names.shape[1]
                close(torch.stack(quotients[:candidates]), f[f"{at}/deltas/{k}"], **EXACT)
                close(quotients[candidates], f[f"{at}/weights/{k}"], **EXACT)
                close(info["own_weight"], f[f"{at}/weights/{k}"][0], **EXACT)
                rec.same(states[k].base, rec.model(f, f"{at}/personalised", k))
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(everybody))
        if r:
            close(server.affinity_KK + 0.1 * torch.eye(len(everybody)), f[f"{at}/client_weights"], **EXACT)
        if r < last:
            rec.same(server.models, rec.model(f, f"{at}/trained"))
