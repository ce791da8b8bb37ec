"""Floco: recorded rounds, a round by hand, its options and its traps.

The record is of the authors' released code, its set "plus" of Floco+. Every array of both is compared, within 1e-5.
What is drawn there is taken from the file here. The clients' regions are found within its round 1; here that is a round
of its own. The copies of Floco+ start at the initial model there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import replay
import torch
from oracle import close
from scipy.optimize import minimize
from torch import Tensor

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Data, Down
from idiolect.core.reduction import reduced
from idiolect.methods import floco
from idiolect.methods.floco import Region, Simplex
from idiolect.training import trained, untrained

ROWS = o.federation()
START = o.weights(1)
ENDS = np.array([o.weights(10 + j)["U"] for j in range(3)])
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What is drawn next, in place of random draws."""
    rows: list[Tensor] = []

    def draw(key: Tensor, region: Region, radius: float) -> Tensor:
        return rows.pop(0)

    monkeypatch.setattr(floco, "draw", draw)
    return rows


def simplex(f: r.Files, at: str) -> Simplex:
    ends, rest = torch.tensor(f[f"{at}/endpoints"]), torch.tensor(f[f"{at}/fc2.bias"])
    return Simplex(r.body(f, f"{at}/fc1"), {"weight": ends}, {"bias": rest})


def same(got: Simplex, want: Simplex) -> None:
    for a, b in zip(got, want, strict=True):
        r.same(a, b)


def region_round(f: r.Files, part: str) -> int:
    """The round within which the clients' regions are found."""
    [number] = [n for n in range(r.count(f, part)) if f"{part}/round{n}/projection/beta" in f]
    return number


class Replay:
    """Rounds of a record's set, with its draws."""

    def __init__(self, f: r.Files, part: str, points: list[Tensor]) -> None:
        self.f, self.part, self.points, self.number = f, part, points, 0
        options: dict[str, Any] = {
            "endpoints": len(f["init/endpoints"]), "start_round": region_round(f, part), "radius": 0.3,
            "preset": "official", "pull": 0.5,
        }  # fmt: skip
        task = r.task(f, SGD(0.05, 0.0, 0.0), 2)
        self.plain = methods.build("floco", options, task)
        self.method = methods.build("floco", options | {"personal_epochs": int(part == "plus")}, task)
        start = simplex(f, "init")
        self.server = self.plain.init_server(o.key())._replace(model=start)
        self.clients = [trained(start) if part == "plus" else ()] * len(r.clients(f))

    def round(self, ids: Sequence[int], at: str) -> list[Any]:
        self.number += 1
        ups = []
        for k in ids:
            self.points[:] = [torch.tensor(a) for a in self.f[f"{at}/alphas/{k}"]]
            self.points += [torch.tensor(a) for a in self.f.get(f"{at}/alphas_personal/{k}", ())]
            data = replay.at(r.training(self.f, k), self.number, 0)
            down = o.one(self.method, self.server, k)
            self.clients[k], up, _ = self.method.local(down, self.clients[k], data, o.key())
            assert not self.points
            ups.append(up)
        up_m = reduced(self.method.reduce, tree.stack(ups))
        self.server, _ = self.method.aggregate(self.server, up_m, torch.tensor(list(ids)))
        return ups


@pytest.mark.parametrize("part", ["floco", "plus"])
def test_recorded_rounds(part: str, points: list[Tensor]) -> None:
    f = r.read("floco")
    run = Replay(f, part, points)
    for number in range(r.count(f, part)):
        at = f"{part}/round{number}"
        if number == region_round(f, part):
            before = run.server
            ups = run.round(r.clients(f), f"{at}/projection")
            same(run.server.model, before.model)
            flat_mP = torch.stack([up.value.ends["weight"].flatten() for up in ups])
            close(floco.components(flat_mP, len(f["init/endpoints"])), f[f"{at}/projection/kappas"], **r.EXACT)
            close(floco.regions(torch.tensor(f[f"{at}/projection/kappas"])), f[f"{at}/projection/beta"], **r.EXACT)
            close(run.server.beta_KM, f[f"{at}/projection/beta"], **r.EXACT)
        ids, before = r.below(f, f"{at}/client"), run.server
        for k, up in zip(ids, run.round(ids, at), strict=True):
            same(tree.add(before.model, up.value), simplex(f, f"{at}/client/{k}"))
            if part == "plus":
                same(run.clients[k].value, simplex(f, f"{at}/personal/{k}"))
        same(run.server.model, simplex(f, f"{at}/server"))
    for k in r.clients(f):
        down = o.one(run.plain, run.server, k)
        replay.logits_agree(run.plain, down, (), f, k, f"{part}/final/logits")
        if part == "plus":
            mine = run.method.personalise(down, run.clients[k], r.training(f, k), o.key())
            replay.logits_agree(run.method, down, mine, f, k, "plus/final/logits_personal")


# --- by hand --------------------------------------------------------------------------------------------------------

Params = dict[str, np.ndarray]


def at_point(p: Params, a: np.ndarray) -> o.Params:
    return {"W": p["W"], "b": p["b"], "U": np.tensordot(a, p["ends"], 1), "c": p["c"]}


def by_hand(
    k: int, p: Params, drawn: list[np.ndarray], epochs: int, anchor: Params | None = None, pull: float = 0.0,
    brackets: bool = True,
) -> Params:  # fmt: skip
    x, y = ROWS[k]
    speed: dict[str, Any] = dict.fromkeys(p, 0.0)
    for rows, a in zip(o.batches(len(y), epochs), drawn, strict=True):
        g = o.whole_gradient(x, y)(at_point(p, a), rows)
        g = {"W": g["W"], "b": g["b"], "c": g["c"], "ends": a[:, None, None] * g["U"]}
        for n in p:
            if anchor is not None:
                g[n] = g[n] + (pull * (p[n] - anchor[n]) if brackets else pull * p[n] - anchor[n])
            speed[n] = o.RULE.momentum * speed[n] + g[n] + o.RULE.weight_decay * p[n]
        p = {n: p[n] - o.RULE.lr * speed[n] for n in p}
    return p


def params(seed: int = 0) -> Params:
    rng = np.random.default_rng(seed)
    start = {"W": START["W"], "b": START["b"], "c": START["c"], "ends": ENDS}
    return {n: a + (0.3 * rng.normal(size=a.shape) if seed else 0) for n, a in start.items()}


def of(p: Params) -> Simplex:
    return Simplex(o.body_of(p), {"weight": torch.tensor(p["ends"])}, {"bias": torch.tensor(p["c"])})


def near(got: Simplex, p: Params) -> None:
    for a, n in ((got.body["0.weight"], "W"), (got.body["0.bias"], "b"), (got.rest["bias"], "c")):
        close(a, p[n])
    close(got.ends["weight"], p["ends"])


def draws(k: int, epochs: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng([k, seed])
    return [rng.dirichlet(np.ones(3)) for _ in o.batches(o.SIZES[k], epochs)]


BETA = np.random.default_rng(8).dirichlet(np.ones(3), size=len(o.SIZES))


def test_a_region_that_is_not_known_is_the_whole_simplex() -> None:
    """Also beside regions of a run with fewer clients and endpoints, which have no share in the new endpoint."""
    method = methods.build("floco", {}, replace(o.task(), clients=5))
    server = method.init_server(o.key())
    server.beta_KM[:4, :4] = 0.25
    server = server._replace(known_K=torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]))
    beta_mM = method.send(server, torch.arange(6)).own.beta_M
    close(beta_mM, [[0.25] * 4 + [0]] * 4 + [[0.2] * 5] * 2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"personal_epochs": 3, "pull": 0.4},
        {"personal_epochs": 1, "pull": 0.4, "pull_form": "released", "personal_region": "whole"},
    ],
)
def test_round_by_hand(options: dict[str, Any], points: list[Tensor]) -> None:
    method, epochs = methods.build("floco", {"endpoints": 3} | options, o.task()), options.get("personal_epochs", 0)
    server = method.init_server(o.key())._replace(
        model=of(params()), beta_KM=torch.tensor(BETA), known_K=torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0])
    )
    new, ups = {}, []
    for k in o.IDS:
        drawn, own = draws(k, o.EPOCHS, 0), draws(k, epochs, 1)
        points[:] = [torch.tensor(a) for a in drawn + own]
        state = trained(of(params(k + 1))) if epochs else ()
        client, up, _ = method.local(o.one(method, server, k), state, o.data(*ROWS[k]), o.key())
        ups.append(up)
        new[k] = by_hand(k, params(), drawn, o.EPOCHS)
        near(tree.add(server.model, up.value), new[k])
        down = o.one(method, server, k)
        if epochs:
            copy = by_hand(k, params(k + 1), own, epochs, params(), 0.4, options.get("pull_form") != "released")
            near(client.value, copy)
            centre = options.get("personal_region") == "whole"
            want = at_point(copy, np.ones(3) / 3 if centre else BETA[k])
        else:
            want = at_point(params(), BETA[k])
        mine = method.personalise(down, client, o.data(*ROWS[k]), o.key())
        close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(want, TEST))
    after, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(o.IDS))
    near(after.model, {n: o.average([new[k][n] for k in o.IDS], [o.SIZES[k] for k in o.IDS]) for n in params()})
    close(after.beta_KM, BETA)


# --- regions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1.0, 0.3, 0.001])
@pytest.mark.parametrize("point", [[0.2, 0.5, 0.3], [-1.0, 0.4, 0.1], [5.0, 4.9, -2.0], [0.0, 0.0, 0.0]])
def test_projection_on_the_simplex_is_the_nearest_point(point: list[float], size: float) -> None:
    got = floco.onto_simplex(torch.tensor([point]), size)[0].numpy()
    sums = {"type": "eq", "fun": lambda b: b.sum() - size}
    best = minimize(lambda b: ((b - point) ** 2).sum(), np.full(3, size / 3), bounds=[(0, None)] * 3, constraints=sums)
    close(got, best.x, atol=1e-6)
    close(got.sum(), size)


def test_principal_components_are_numpy_s_with_the_sign_of_the_largest_entry() -> None:
    flat = np.random.default_rng(3).normal(size=(6, 40))
    value, vector = np.linalg.eigh(np.cov(flat.T))
    want = []
    for v in vector[:, np.argsort(value)[::-1][:4]].T:
        v = v * np.sign(v[np.abs(v).argmax()])
        want.append((flat - flat.mean(0)) @ v)
    close(floco.components(torch.tensor(flat), 4), np.array(want).T, atol=1e-9)
    assert floco.components(torch.tensor(flat[:2]), 4).shape == (2, 4)  # two clients differ in one direction


def test_regions_are_as_far_apart_as_one_of_the_projections_puts_them() -> None:
    kappa = np.array([[0.3, 0.1, 0.0], [-0.2, 0.2, 0.1], [0.0, -0.4, 0.2]])
    energies, betas = [], []
    for z in np.linspace(1e-4, 1, 1000):
        b = floco.onto_simplex(torch.tensor(kappa), z).numpy() / z
        apart = [max(np.linalg.norm(b[i] - b[j]), 1e-4) for i in range(3) for j in range(i)]
        energies.append(np.log(np.mean([1 / a**2 for a in apart])))
        betas.append(b)
    close(floco.regions(torch.tensor(kappa)), betas[int(np.argmin(energies))])


@pytest.mark.parametrize("equal", [np.zeros((4, 3)), np.ones((4, 3)), np.array([[1.0, 2.0, 3.0]])])
def test_equal_clients_and_one_alone_get_points_of_the_simplex(equal: np.ndarray) -> None:
    beta = floco.regions(torch.tensor(equal)).numpy()
    assert np.isfinite(beta).all()
    close(beta.sum(1), np.ones(len(equal)))


def test_everybody_takes_part_when_regions_are_found_and_no_mean_is_taken() -> None:
    method = methods.build("floco", {"endpoints": 3, "start_round": 2, "personal_epochs": 1}, o.task())
    assert method.full_rounds == (3,)
    server = method.init_server(o.key())
    state = untrained(server.model)
    models = []
    for number in range(4):
        ups = []
        for k in o.IDS:
            data = replay.at(o.data(*ROWS[k]), number + 1, 9)
            client, up, _ = method.local(o.one(method, server, k), state, data, o.key(number, k))
            assert bool(client.trained) == (number != 2)  # the copies wait too
            ups.append(up)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(o.IDS))
        models.append(server.model)
        assert server.known_K.tolist() == ([1, 1, 0, 1, 1] if number >= 2 else [0] * 5)
    assert tree.same(models[1], models[2])
    assert not tree.same(models[2], models[3])
    for k in (2, 50):  # away in that round, and new
        close(o.one(method, server, k).own.beta_M, np.ones(3) / 3)
        assert o.one(method, server, k).own.known == 0
    assert float((server.beta_KM[0] - 1 / 3).abs().max()) > 0.01


# --- draws ----------------------------------------------------------------------------------------------------------


def drawn(region: Region, radius: float, count: int = 4000) -> np.ndarray:
    each = keys.fold(o.key(), torch.arange(count))
    return torch.func.vmap(lambda key: floco.draw(key, region, radius))(each).numpy()


def test_points_are_uniform_on_the_simplex_until_a_region_is_known() -> None:
    a = drawn(Region(torch.tensor([0.7, 0.2, 0.1]), torch.tensor(0.0), torch.tensor(0.0)), 0.3)
    close(a.sum(1), np.ones(len(a)))
    assert a.min() >= 0
    close(a.mean(0), np.ones(3) / 3, atol=0.02)
    close(np.cov(a.T), (np.eye(3) - 1 / 3) / 12, atol=0.01)  # of Dirichlet(1, 1, 1)


@pytest.mark.parametrize("radius", [0.0, 0.1, 0.7])
def test_points_of_a_region_lie_within_its_radius_and_are_not_clipped(radius: float) -> None:
    beta = np.array([0.7, 0.3, 0.0])
    a = drawn(Region(torch.tensor(beta), torch.tensor(1.0), torch.tensor(0.0)), radius)
    apart = np.abs(a - beta).sum(1)
    assert apart.max() <= radius + 1e-12
    close(np.sort(apart)[::400], radius * np.arange(0, 1, 0.1), atol=0.06 * max(radius, 1e-9))  # uniform in length
    close(a.mean(0), beta, atol=0.02)
    assert (a.min() < 0) == (radius > 0)


# --- traps ----------------------------------------------------------------------------------------------------------


def test_endpoints_start_apart_and_the_first_as_every_model() -> None:
    task = o.task()
    server = methods.build("floco", {"endpoints": 3}, task).init_server(o.key())
    for j, key in enumerate(keys.members(o.key(), 3)):
        close(server.model.ends["weight"][j], task.network.init(key).head["weight"])
    r.same(server.model.body, task.network.init(o.key()).body)
    r.same(server.model.rest, {"bias": task.network.init(o.key()).head["bias"]})


def test_padding_changes_no_draw() -> None:
    """Mapped with a longer client, a short one draws what it draws alone."""
    method, ids = methods.build("floco", {"endpoints": 3}, o.task()), (4, 0)
    n = max(o.SIZES[k] for k in ids)
    x, y = (torch.cat([torch.tensor(ROWS[k][part]) for k in ids]) for part in (0, 1))
    row = torch.stack([torch.arange(n) % o.SIZES[4], torch.arange(n) + o.SIZES[4]])
    real = torch.stack([(torch.arange(n) < o.SIZES[k]).double() for k in ids])
    server = method.init_server(o.key())
    down = method.send(server, torch.tensor(ids))
    axes = (Down(None, 0), None, Data(None, None, 0, 0, None, None, None), 0)
    _, up, _ = torch.func.vmap(method.local, in_dims=axes)(
        down, (), Data(x, y, row, real), torch.stack([o.key(k) for k in ids])
    )
    for at, k in enumerate(ids):
        _, alone, _ = method.local(o.one(method, server, k), (), o.data(*ROWS[k]), o.key(k))
        for a, b in zip(tree.leaves(tree.rows(up.value, at)), tree.leaves(alone.value), strict=True):
            close(a, b)


def test_more_endpoints_than_clients_are_one_sentence() -> None:
    with pytest.raises(InputError, match=r"endpoints=6 are more than the 5 clients.*choose at most 5"):
        methods.build("floco", {"endpoints": 6}, o.task())
    assert len(methods.build("floco", {}, o.task()).init_server(o.key()).beta_KM[0]) == 5
    assert len(methods.build("floco", {}, replace(o.task(), clients=30)).init_server(o.key()).beta_KM[0]) == 10
