"""FedCross: rounds by hand, and its traps. Nothing is recorded: the authors' own code is not known to us."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import oracle as o
import pytest
import torch
from oracle import close

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import Down, Method
from idiolect.core.reduction import reduced
from idiolect.methods.fedcross import Server, partners

ROWS = o.federation()
K = len(o.SIZES)
MODELS = {j: o.weights(20 + j) for j in range(7)}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


def vector(p: o.Params) -> np.ndarray:
    return np.concatenate([p[n].ravel() for n in "WbUc"])


def partner_of(j: int, trained: dict[int, o.Params], choice: str, round: int) -> int:
    others = [i for i in trained if i != j]
    if choice == "turn":
        every = sorted(trained)
        return every[(every.index(j) + round % (len(every) - 1) + 1) % len(every)]
    v = {i: vector(p) / np.linalg.norm(vector(p)) for i, p in trained.items()}
    cosine = [v[j] @ v[i] for i in others]
    return others[int(np.argmin(cosine) if choice == "unlike" else np.argmax(cosine))]


def server_of(method: Method, count: int, round: int, used: list[int]) -> Server:
    start = method.init_server(o.key())
    models = tree.stack([o.model_of(MODELS[j]) for j in range(count)])
    mask = torch.tensor([float(j in used) for j in range(count)])
    return start._replace(models=models, used_M=mask, n_K=torch.tensor(o.SIZES).double(), round=torch.tensor(round))


def play(method: Method, server: Server, ids: list[int]) -> tuple[Server, dict[int, list[int]], dict[int, o.Params]]:
    """The server after a round, who had which model, and what each client made of it in numpy."""
    down, ups, whose, ends = method.send(server, torch.tensor(ids)), [], dict[int, list[int]](), {}
    for place, k in enumerate(ids):
        one = Down(down.shared, tree.rows(down.own, place))
        number = int(one.own.number)
        assert tree.same(one.own.model, tree.rows(server.models, number))
        whose.setdefault(number, []).append(k)
        _, up, _ = method.local(one, (), o.data(*ROWS[k]), o.key(k))
        ends[k] = o.descend(MODELS[number], "WbUc", o.batches(o.SIZES[k]), o.whole_gradient(*ROWS[k]))
        same(up.value, ends[k])
        ups.append(up)
    after, info = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
    assert info == {}
    return after, whose, ends


def same(got: Any, p: o.Params) -> None:
    for leaf, name in zip(tree.leaves(got), "WbUc", strict=True):
        close(leaf, p[name])


OPTIONS: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [0, 1, 2, 3, 4]),
    ({"alpha": 0.7, "partner": "like"}, [0, 1, 3, 4]),
    ({"alpha": 0.5, "partner": "turn", "models": 7}, [1, 2, 4]),
    ({"models": 2, "alpha": 0.9}, [0, 1, 2, 3, 4]),
    ({"models": 3, "alpha": 0.6, "partner": "turn"}, [0, 1, 2, 3]),
    ({"alpha": 0.8}, [3]),
]


@pytest.mark.parametrize(("options", "ids"), OPTIONS, ids=str)
@pytest.mark.parametrize("round", [0, 5])
def test_round_by_hand(options: dict[str, Any], ids: list[int], round: int) -> None:
    method = methods.build("fedcross", options, o.task())
    settled, count = methods.settle("fedcross", options), options.get("models", K)
    server = server_of(method, count, round, [1])
    after, whose, ends = play(method, server, ids)
    assert len(whose) == min(len(ids), count), "no two have the same while there are enough"
    back = {j: {n: o.average([ends[k][n] for k in of], [o.SIZES[k] for k in of]) for n in "WbUc"}
            for j, of in whose.items()}  # fmt: skip
    want = {j: MODELS[j] for j in range(count)}
    for j, p in back.items():
        want[j] = p
        if len(back) > 1:
            other = back[partner_of(j, back, settled["partner"], round)]
            want[j] = {n: settled["alpha"] * p[n] + (1 - settled["alpha"]) * other[n] for n in "WbUc"}
    for j in range(count):
        same(tree.rows(after.models, j), want[j])
    used = sorted({1, *whose})
    mean = {n: np.mean([want[j][n] for j in used], 0) for n in "WbUc"}
    for k in (0, 2, 99):
        down = o.one(method, after, k)
        mine = method.personalise(down, (), o.data(*ROWS[0]), o.key())
        close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(mean, TEST))
    assert int(after.round) == round + 1


# --- traps ------------------------------------------------------------------------------------------------------------


def test_each_model_comes_to_each_client() -> None:
    """By draws that differ between rounds."""
    method = methods.build("fedcross", {}, o.task())
    seen: dict[int, set[int]] = {k: set() for k in range(K)}
    for round in range(60):
        numbers = method.send(server_of(method, K, round, []), torch.arange(K)).own.number.tolist()
        assert sorted(numbers) == list(range(K))
        for k, number in enumerate(numbers):
            seen[k].add(int(number))
    assert all(len(numbers) == K for numbers in seen.values())


@pytest.mark.parametrize("turned", [[4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
def test_who_gets_which_model_does_not_depend_on_the_clients_numbers(turned: list[int]) -> None:
    """Client k under the number turned[k] gets what it got before."""
    method = methods.build("fedcross", {}, o.task())
    server = server_of(method, K, 3, [])
    before = method.send(server, torch.arange(K)).own.number
    n_K = torch.empty(K).double()
    n_K[torch.tensor(turned)] = server.n_K
    after = method.send(server._replace(n_K=n_K), torch.arange(K)).own.number
    assert torch.equal(after[torch.tensor(turned)], before)


@pytest.mark.parametrize("ids", [[0, 3], [2], [0, 1, 2, 3, 4]], ids=str)
def test_the_server_remembers_how_many_samples_each_participant_has(ids: list[int]) -> None:
    method = methods.build("fedcross", {}, o.task(epochs=1))
    after = o.round_of(method, method.init_server(o.key()), dict.fromkeys(ids, ()), ROWS)[0]
    close(after.n_K, [o.SIZES[k] if k in ids else 0 for k in range(K)])


def test_before_the_first_round_all_is_the_start() -> None:
    method = methods.build("fedcross", {"models": 3}, o.task())
    server = method.init_server(o.key())
    start = o.task().network.init(o.key())
    down = o.one(method, server, 0)
    for a, b in zip(tree.leaves((down.shared, down.own.model)), tree.leaves((start, start)), strict=True):
        close(a, b)


@pytest.mark.parametrize("choice", ["unlike", "like", "turn"])
@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_partner_is_another_model(choice: str, count: int) -> None:
    equal = tree.stack([o.model_of(MODELS[0])] * count)
    apart = tree.stack([o.model_of(MODELS[j]) for j in range(count)])
    for models in (equal, apart):
        for round in range(7):
            assert (partners(models, choice, round) != torch.arange(count)).all()


@pytest.mark.parametrize("choice", ["unlike", "like"])
@pytest.mark.parametrize("scale", [[1, 1, 1, 1, 1], [9, 1, 0.2, 3, 1], [0.01, 50, 1, 1, 7], [1, 2, 3, 4, 5]], ids=str)
def test_how_long_a_model_is_does_not_choose_partners(choice: str, scale: list[float]) -> None:
    longer = {j: {n: factor * a for n, a in MODELS[j].items()} for j, factor in enumerate(scale)}
    got = partners(tree.stack([o.model_of(p) for p in longer.values()]), choice, 0)
    assert got.tolist() == [partner_of(j, longer, choice, 0) for j in longer]


def test_turns_go_round_all_others() -> None:
    models = tree.stack([o.model_of(MODELS[j]) for j in range(4)])
    seen = {tuple(partners(models, "turn", round).tolist()) for round in range(3)}
    assert len(seen) == 3
    assert {row[0] for row in seen} == {1, 2, 3}


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_other_tasks_are_welcome(kind: Any) -> None:
    methods.build("fedcross", {}, replace(o.task(), kind=kind))


@pytest.mark.parametrize("options", [{"models": 1}, {"alpha": 1.0}, {"alpha": 0.4}, {"partner": "nobody"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fedcross", options)
