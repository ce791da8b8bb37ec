"""FedALA: recorded rounds of the authors' released code, rounds by hand, and its traps.

Every array of the record (float32) is compared within 1e-5. The window of samples that the code draws is read from the
file: of some keys, the test takes one that draws it here too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import torch
from oracle import close

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Method, Task
from idiolect.core.network import Model
from idiolect.core.reduction import reduced
from idiolect.methods import fedala as module
from idiolect.methods.fedala import Own, first_row, sample_mask
from idiolect.training import Personal, trained, untrained

ROWS = o.federation()
START = o.weights(1)
OWN = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


# --- the record -------------------------------------------------------------------------------------------------------


def recorded(f: r.Files) -> Method:
    eta, percent, tensors, threshold, epochs, lr = f["options"].tolist()
    task = r.task(f, SGD(lr, 0.0, 0.0), int(epochs), drop_last=True)
    most = max(int(v.max()) for name, v in f.items() if name.endswith("/epochs"))
    options = {
        "mixing_lr": eta, "share": percent / 100, "layers": int(tensors) // 2, "threshold": threshold,
        "most_passes": most + 1,
    }  # fmt: skip
    return methods.build("fedala", {"preset": "official", **options}, task)


def drawing(f: r.Files, at: str, k: int) -> torch.Tensor:
    """A key with which a client's window starts where the record's does."""
    n = len(f[f"data/{k}/y"])
    count = torch.tensor(max(1, int(f["options"][1] / 100 * n)))
    for tried in range(1000):
        key = o.key(at, k, tried)
        if first_row(keys.fold(key, "sample"), torch.tensor(n), count) == f[f"{at}/window_start"][k]:
            return key
    raise AssertionError("no key draws this window")


def test_recorded_rounds() -> None:
    f = r.read("fedala")
    method = recorded(f)
    assert method.stand_by is not None
    server = r.model(f, "init")
    clients = [method.init_client(o.key(), torch.tensor(k)) for k in r.clients(f)]
    clients = [c._replace(value=c.value._replace(model=server)) for c in clients]
    for number in range(r.count(f)):
        at = f"round{number}"
        ids, ups = f[f"{at}/participants"].tolist(), []
        r.same(server, r.model(f, f"{at}/received"))
        for k in r.clients(f):
            down, key, data = o.one(method, server, k), drawing(f, at, k), r.training(f, k)
            begun = method.personalise(down, clients[k], data, key)
            r.same(begun.value.model, r.model(f, f"{at}/start", k))
            r.same(begun.value.weight.head, r.head(f, f"{at}/weights/fc2.", k))
            if k in ids:
                clients[k], up, info = method.local(down, clients[k], data, key)
                ups.append(up)
                close(info["passes"], f[f"{at}/epochs"][k])
                close(info["global_weight"], torch.cat([w.flatten() for w in tree.leaves(begun.value.weight)]).mean())
            else:
                clients[k] = method.stand_by(down, clients[k], data, key)
            r.same(clients[k].value.model, r.model(f, f"{at}/trained", k))
            r.same(clients[k].value.weight.head, r.head(f, f"{at}/weights/fc2.", k))
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        r.same(server, r.model(f, f"{at}/server"))
    r.same(server, r.model(f, "final/received"))
    for k, client in enumerate(clients):
        mine = method.personalise(o.one(method, server, k), client, r.training(f, k), drawing(f, "final", k))
        r.same(mine.value.model, r.model(f, "final/start", k))
        r.same(mine.value.weight.head, r.head(f, "final/weights/fc2.", k))
        logp = method.predict(o.one(method, server, k), mine, torch.tensor(f[f"data/{k}/x_test"]))
        close(logp, torch.log_softmax(torch.tensor(f[f"final/logits/{k}"]), 1), **r.EXACT)


# --- by hand ----------------------------------------------------------------------------------------------------------

NAMES = {1: "Uc", 2: "WbUc", 0: "WbUc"}  # layers: what is mixed


def mixed(
    k: int, rows: np.ndarray, weight: o.Params, layers: int, lr: float, passes: int, size: int = o.BATCH
) -> tuple[o.Params, o.Params, list[float]]:
    """theta, W and the losses of the passes; G is START, L the client's own."""
    x, y = ROWS[k][0][rows], ROWS[k][1][rows]
    names = NAMES[layers]
    weight = {n: weight[n].copy() for n in names}

    def theta() -> o.Params:
        return START | {n: OWN[k][n] + (START[n] - OWN[k][n]) * weight[n] for n in names}

    losses = []
    for _ in range(passes):
        for at in o.batches(len(y), 1, size):
            p = theta()
            losses.append(o.errors(o.embed(p, x[at]) @ p["U"].T + p["c"], y[at]).mean())
            g = o.whole_gradient(x, y)(p, at)
            for n in names:
                weight[n] = np.clip(weight[n] - lr * g[n] * (START[n] - OWN[k][n]), 0, 1)
    steps = len(o.batches(len(y), 1, size))
    return theta(), weight, losses[steps - 1 :: steps]


def used(k: int, share: float, sample: str, key: torch.Tensor) -> np.ndarray:
    keep = sample_mask(torch.ones(o.SIZES[k]), share, sample, keys.fold(key, "sample"))
    return np.flatnonzero(keep.numpy())


def params(model: Any) -> o.Params:
    named = tree.named(model)
    short = {"body/0.weight": "W", "body/0.bias": "b", "head/weight": "U", "head/bias": "c"}
    return {short[path]: leaf.numpy() for path, leaf in named.items()}


def same(got: Any, want: o.Params) -> None:
    assert params(got).keys() == want.keys()
    for name, value in params(got).items():
        close(value, want[name])


def weights_of(k: int, layers: int) -> Model:
    """Weights W that are neither 0 nor 1."""
    draw = np.random.default_rng(40 + k)
    p = {n: draw.uniform(0.1, 0.9, a.shape) for n, a in START.items()}
    body = o.body_of(p) if layers != 1 else {}
    return Model(body, o.head_of(p))


def client(k: int, layers: int, *, settled: bool = True) -> Personal:
    return trained(Own(o.model_of(OWN[k]), weights_of(k, layers), torch.tensor(float(settled))))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"layers": 2, "mixing_lr": 3.0},
    {"layers": 0, "share": 0.5},
    {"sample": "window", "share": 0.6, "mixing_lr": 10.0},
    {"share": 0.01},
    {"initialise": "all", "share": 1.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_round_by_hand(options: dict[str, Any]) -> None:
    method = methods.build("fedala", options, o.task())
    layers, share = options.get("layers", 1), options.get("share", 0.8)
    lr, sample = options.get("mixing_lr", 1.0), options.get("sample", "random")
    server, new, up, _ = o.round_of(method, o.model_of(START), {k: client(k, layers) for k in o.IDS}, ROWS)
    ends = {}
    for at, k in enumerate(o.IDS):
        rows = used(k, share, sample, o.key(k))
        assert len(rows) == max(1, int(share * o.SIZES[k]))
        theta, weight, _ = mixed(k, rows, params(weights_of(k, layers)), layers, lr, 1)
        ends[k] = o.descend(theta, "WbUc", o.batches(o.SIZES[k]), o.whole_gradient(*ROWS[k]))
        same(new[k].value.weight, weight)
        same(new[k].value.model, ends[k])
        same(tree.rows(up.value, at), {n: ends[k][n] - START[n] for n in START})
    close(up.weight, [o.SIZES[k] for k in o.IDS])
    same(server, {n: o.average([p[n] for p in ends.values()], [o.SIZES[k] for k in o.IDS]) for n in START})

    down = o.one(method, o.model_of(START), 2)  # an absent client
    mine = method.personalise(down, client(2, layers), o.data(*ROWS[2]), o.key(2))
    theta, _, _ = mixed(2, used(2, share, sample, o.key(2)), params(weights_of(2, layers)), layers, lr, 1)
    same(mine.value.model, theta)
    close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(theta, TEST))
    assert (method.stand_by is not None) == (options.get("initialise") == "all")
    if method.stand_by:
        stood = method.stand_by(down, client(2, layers), o.data(*ROWS[2]), o.key(2))
        assert tree.same(stood, mine)


def spread_ends_at(k: int, rows: np.ndarray, threshold: float, most: int, lr: float = 1.0) -> int:
    """How many passes the first search makes: by numpy's standard deviation of the last ten losses."""
    losses = mixed(k, rows, params(weights_of(k, 1)), 1, lr, most)[2]
    for made in range(11, most):
        if np.std(losses[made - 10 : made]) < threshold:
            return made
    return most


@pytest.mark.parametrize(("threshold", "most"), [(1.0, 100), (0.01, 100), (2e-3, 60), (0.0, 15), (0.0, 3)])
@pytest.mark.parametrize("k", [0, 3, 4])
def test_the_first_search_goes_on_until_the_loss_is_steady(threshold: float, most: int, k: int) -> None:
    method = methods.build("fedala", {"threshold": threshold, "most_passes": most}, o.task())
    down = o.one(method, o.model_of(START), k)
    rows = used(k, 0.8, "random", o.key(k))
    passes = spread_ends_at(k, rows, threshold, most)
    mine, _, info = method.local(down, client(k, 1, settled=False), o.data(*ROWS[k]), o.key(k))
    assert float(info["passes"]) == passes
    assert float(mine.value.settled) == 1
    same(mine.value.weight, mixed(k, rows, params(weights_of(k, 1)), 1, 1.0, passes)[1])


def test_the_number_of_passes_differs_with_the_threshold() -> None:
    """The test above sees more than the shortest and the longest search."""
    rows = {k: used(k, 0.8, "random", o.key(k)) for k in (0, 3, 4)}
    passes = {spread_ends_at(k, rows[k], t, 60) for k in rows for t in (0.01, 2e-3)}
    assert passes - {11, 60}


# --- traps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("initialise", ["participants", "all"])
@pytest.mark.parametrize("k", [2, 3, 99])
def test_a_client_without_a_model_of_its_own_takes_the_received_one(initialise: str, k: int) -> None:
    method = methods.build("fedala", {"initialise": initialise}, o.task())
    down = o.one(method, o.model_of(START), k)
    new = method.init_client(o.key(), torch.tensor(0))
    mine = method.personalise(down, new, o.data(*ROWS[3]), o.key())
    assert tree.same(mine.value.model, o.model_of(START))
    assert float(mine.value.settled) == 0
    state, _, info = method.local(down, new, o.data(*ROWS[3]), o.key())
    assert float(info["passes"]) == 0
    assert float(state.value.settled) == 0, "the first search is still to come"
    same(state.value.model, o.descend(START, "WbUc", o.batches(o.SIZES[3]), o.whole_gradient(*ROWS[3])))


def test_a_client_that_has_the_received_model_learns_no_weights() -> None:
    method = methods.build("fedala", {}, o.task())
    state = trained(Own(o.model_of(START), weights_of(0, 1), torch.zeros(())))
    mine = method.personalise(o.one(method, o.model_of(START), 0), state, o.data(*ROWS[0]), o.key())
    assert tree.same(mine.value, state.value)


def test_the_weights_of_a_round_are_where_the_next_starts() -> None:
    method = methods.build("fedala", {}, o.task())
    down = o.one(method, o.model_of(START), 0)
    first = method.personalise(down, client(0, 1), o.data(*ROWS[0]), o.key(1))
    again = first._replace(value=first.value._replace(model=o.model_of(OWN[0])))
    second = method.personalise(down, again, o.data(*ROWS[0]), o.key(2))
    rows = [used(0, 0.8, "random", o.key(i)) for i in (1, 2)]
    middle = mixed(0, rows[0], params(weights_of(0, 1)), 1, 1.0, 1)[1]
    same(second.value.weight, mixed(0, rows[1], middle, 1, 1.0, 1)[1])


def test_a_schedule_does_not_move_the_weights_otherwise() -> None:
    from idiolect.core.schedules import Step

    plain = o.task()
    slow = replace(plain, training=replace(plain.training, schedule=Step(every=1, factor=0.1)))
    ends = []
    for task in (plain, slow):
        method = methods.build("fedala", {}, task)
        data = o.data(*ROWS[0])._replace(round=torch.tensor(3), rounds=torch.tensor(5))
        state = method.local(o.one(method, o.model_of(START), 0), client(0, 1), data, o.key())[0]
        ends.append(state.value)
    assert tree.same(ends[0].weight, ends[1].weight)
    assert not tree.same(ends[0].model, ends[1].model)


@pytest.mark.parametrize("k", [0, 1, 3])
def test_each_pass_of_the_first_search_has_an_order_of_its_own(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    orders, honest = [], module.batches

    def noting(*args: Any, **how: Any) -> Any:
        plan = honest(*args, **how)
        orders.append(tuple(torch.cat([b.at_B for b in plan]).tolist()))
        return plan

    monkeypatch.setattr(module, "batches", noting)
    method = methods.build("fedala", {"threshold": 0.0, "most_passes": 6, "share": 1.0}, o.task(shuffle=True))
    down = o.one(method, o.model_of(START), k)
    method.personalise(down, client(k, 1, settled=False), o.data(*ROWS[k]), o.key())
    assert len(orders) == len(set(orders)) == 6
    assert all(sorted(order) == list(range(o.SIZES[k])) for order in orders)


@pytest.mark.parametrize("n", [1, 2, 7, 40])
@pytest.mark.parametrize("sample", ["random", "window"])
def test_samples_of_the_search(n: int, sample: str) -> None:
    """Real ones alone, as many as the share says; neighbours where they are a window; others with another key."""
    real = torch.cat([torch.ones(n), torch.zeros(5)])
    seen = set()
    for tried in range(300):
        at = np.flatnonzero(sample_mask(real, 0.5, sample, o.key(tried)).numpy())
        assert len(at) == max(1, n // 2)
        assert at.max() < n
        assert sample == "random" or (np.diff(at) == 1).all()
        seen |= set(at.tolist())
    assert seen == set(range(n))


def deep(task: Task) -> Task:
    from idiolect.models import build

    return replace(task, network=build("mlp:hidden=3", (5,), 4))


@pytest.mark.parametrize("layers", [3, 4, 100])
def test_more_layers_than_there_are_is_one_sentence(layers: int) -> None:
    with pytest.raises(InputError, match=rf"layers={layers}, and the network has 2 layers .*: choose no more"):
        methods.build("fedala", {"layers": layers}, deep(o.task()))


@pytest.mark.parametrize(
    "options", [{"share": 0.0}, {"share": 1.1}, {"mixing_lr": 0}, {"layers": -1}, {"most_passes": 0}]
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fedala", options)


def test_a_state_keeps_its_form() -> None:
    method = methods.build("fedala", {}, o.task())
    state = untrained(method.init_client(o.key(), torch.tensor(0)).value)
    down = o.one(method, o.model_of(START), 0)
    for _ in range(2):
        after = method.local(down, state, o.data(*ROWS[0]), o.key())[0]
        assert tree.same_form(after, state)
        state = after
