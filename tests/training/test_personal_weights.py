"""Weights that stay at a client: the bits of FedPer and LG-FedAvg, rounds in numpy and torch, and who can keep them."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy
sys.path.insert(0, str(Path(__file__).parents[1] / "methods"))  # oracle
sys.path.insert(0, str(Path(__file__).parents[1]))  # tiny_backbones
sys.path.insert(0, str(Path(__file__).parent))  # tiny_bn

import oracle as o
import tiny_bn
import toy
from oracle import close

from idiolect import methods, models
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.method import SGD, Adam, Data, Down, Method, Model, Task, Training, Up, reduce
from idiolect.core.network import Network
from idiolect.core.reduction import reduced
from idiolect.engines import Sequential
from idiolect.simulation import Job, State, begin, fit
from idiolect.simulation.records import Record
from idiolect.training import add, batches, sgd, stateless
from idiolect.training.personal_weights import WithWeights, names_of, with_personal_weights
from idiolect.training.server_optimisers import ServerAdam
from idiolect.training.sharing import same_training

KEPT = ("fedavg", "fedavg_ft", "fedprox", "ditto", "fedrep", "fedper", "fedpac", "pfedfda", "fedshrink", "fedlda",
        "fedcr", "apfl", "pfedme", "fedbabu", "fedrod", "fedsr", "knnper")  # fmt: skip
"""The methods that average one body."""


def build(name: str, pattern: str | None = None, task: Task | None = None, **options: Any) -> Method:
    return methods.build(name, options, task or toy.task(), personal_weights=pattern)


# --- the bits of methods that keep a part themselves


def run(name: str, options: dict[str, Any], training: Training, **more: Any) -> tuple[State, list[Record]]:
    """Three rounds of one client each, so that some are never drawn; two clients are new."""
    task, whole = replace(toy.task(), clients=4, training=training), toy.data()
    data = replace(whole, conditions=("", ""))
    job = Job("x", partial(methods.build, name, options, task, **more), data, 1)
    records: list[Record] = []
    with Sequential() as engine:
        end = fit(
            job, engine, rounds=3, participation=0.25, state=begin(job.build(), 4, 1),
            protocol=Protocol(full_last_round=False),
            on_round=lambda state, new, seconds: records.extend(new),
        )  # fmt: skip
    return end, records


@pytest.mark.parametrize(
    ("theirs", "name", "pattern", "options", "part"),
    [
        ("fedper", "fedavg", "head", {}, "head"),
        ("fedper", "fedavg", "head.weight + head.b*", {}, "head"),
        ("fedper:tuning_epochs=2", "fedavg_ft", "head", {"part": "head", "epochs": 2}, "head"),
        ("lg_fedavg", "fedavg", "body", {}, "body"),
    ],
)
@pytest.mark.parametrize(
    "training",
    [Training(2, 8, SGD(0.05)), Training(3, 5, SGD(0.2, 0.9, clip=0.5)), Training(2, 8, Adam(0.01))],
    ids=["sgd", "clipped", "adam"],
)
@pytest.mark.parametrize("server", [{}, {"server": ServerAdam()}], ids=["average", "server's adam"])
def test_averaging_with_a_part_kept_has_the_bits_of_the_method_that_keeps_it(
    theirs: str, name: str, pattern: str, options: dict[str, Any], part: str, training: Training, server: dict[str, Any]
) -> None:
    """States, accuracies, losses and bytes: of clients that train, that wait for their first round, that are new."""
    spec = methods.settle("fedper", {"tuning_epochs": 2}) if ":" in theirs else {}
    want, records = run(theirs.partition(":")[0], spec, training, **server)
    got, others = run(name, options, training, personal_weights=pattern, **server)
    assert records == others
    assert len([r for r in records if r.stage == "new"]) > 0
    flags = [float(client.trained) for client in want.clients]
    assert 0 < sum(flags) < len(flags)
    for mine, client in zip(want.clients, got.clients, strict=True):
        assert tree.same(mine.value, getattr(client.weights, part))
        assert float(mine.trained) == float(client.trained)


def test_an_increment_that_is_rounded_loses_no_bit() -> None:
    """From 1 to 0.001 the increment has no room for the last bits of the end, which training reaches in two steps."""
    start, end = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.001, 1e-9, 0.123456789])
    assert not torch.equal(start + (end - start), end)
    task = o.task(epochs=1, optimiser=SGD(1.0, 0.0, 0.0))

    def local(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        def loss(weights: Any, batch: Any) -> Any:
            return (weights.body["w"] - end).square().sum() / 2, ()

        new, _ = sgd(loss, down.shared, batches(data, task.training, key)[:2], task.training.optimiser)
        return client, Up(tree.sub(new, down.shared), torch.ones(())), {}

    method = Method(
        lambda key: Model({"w": start}, {"u": torch.zeros(1)}), stateless, lambda server, ids: Down(server), local,
        reduce.increment(), add, lambda down, client, data, key: client, lambda down, client, x: x,
    )  # fmt: skip
    kept = with_personal_weights(method, "x", "body.w", replace(task, network=Network(_line, (1,))))
    client, up, _ = kept.local(
        Down(Model({}, {"u": torch.zeros(1)})), kept.init_client(o.key(), torch.tensor(0)), o.data(*o.federation()[0]),
        o.key(),
    )  # fmt: skip
    assert torch.equal(client.weights.body["w"], end)  # the first step comes close, and the second is exact
    assert not up.value.body


class _Weights(nn.Module):
    def __init__(self, name: str, count: int) -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.ones(count)))


def _line() -> tuple[nn.Module, nn.Module]:
    return _Weights("w", 3), _Weights("u", 1)


# --- rounds by hand

NAMES = {"body.0.weight": "W", "body.0.bias": "b", "head.weight": "U", "head.bias": "c"}
ROWS = o.federation()
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


def train(p: o.Params, k: int, pull: float = 0.0, towards: o.Params | None = None) -> o.Params:
    x, y = ROWS[k]
    plain, anchor = o.whole_gradient(x, y), towards or p

    def gradient(at: o.Params, rows: np.ndarray) -> o.Params:
        return {n: g + pull * (at[n] - anchor[n]) for n, g in plain(at, rows).items()}

    return o.descend(p, "WbUc", o.batches(len(y)), gradient)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "pattern", ["body.0.bias", "*.weight", "head.bias+body.0.weight", "*[!s].?.bias + head.weight"]
)
@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_rounds_by_hand(name: str, pattern: str) -> None:
    """Two rounds; client 2 stays away, and 99 is new and has the samples of client 3."""
    own = {
        "body.0.bias": "b", "*.weight": "WU", "head.bias+body.0.weight": "Wc", "*[!s].?.bias + head.weight": "bU",
    }[pattern]  # fmt: skip
    pull = 0.3 if name == "fedprox" else 0.0
    method = build(name, pattern, o.task(), **({"mu": pull} if pull else {}))
    server = o.model_of(START := o.weights(1))
    clients = {k: method.init_client(o.key(), torch.tensor(k)) for k in (*range(5), 99)}
    first = o.task().network.init(o.key())
    initial = {n: getattr(first, f[:4])[f[5:]].numpy() for f, n in NAMES.items()}
    kept = {k: {n: initial[n] for n in own} for k in clients}
    w = START
    for _ in range(2):
        ends = {k: train(w | kept[k], k, pull) for k in o.IDS}
        server, new, up, _ = o.round_of(method, server, {k: clients[k] for k in o.IDS}, ROWS)
        clients |= new
        weight = [o.SIZES[k] for k in o.IDS]
        w = w | {n: o.average([p[n] for p in ends.values()], weight) for n in set("WbUc") - set(own)}
        kept |= {k: {n: ends[k][n] for n in own} for k in o.IDS}
        sent = {f"{part}.{n}" for part, names in up.value._asdict().items() for n in names}
        assert sent == {full for full, n in NAMES.items() if n not in own}
    assert {float(clients[k].trained) for k in o.IDS} == {1.0}
    for k, client in clients.items():
        rows = 3 if k == 99 else k
        at = w | kept[k]
        if k in (2, 99):
            close(method.predict(o.one(method, server, k), client, torch.tensor(TEST)), o.log_probability(at, TEST))
            at = w | {n: train(at, rows, pull)[n] for n in own}
        mine = method.personalise(o.one(method, server, k), client, o.data(*ROWS[rows]), o.key())
        for full, n in NAMES.items():
            if n in own:
                close(getattr(mine.weights, full[:4])[full[5:]], at[n])
        close(method.predict(o.one(method, server, k), mine, torch.tensor(TEST)), o.log_probability(at, TEST))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("pattern", ["body.0.bias", "head", "*weight"])
def test_ditto_keeps_weights_of_its_shared_model_and_pulls_towards_them(pattern: str) -> None:
    own = {"body.0.bias": "b", "head": "Uc", "*weight": "WU"}[pattern]
    method = build("ditto", pattern, o.task(), pull=0.7)
    server, w = o.model_of(o.weights(1)), o.weights(1)
    mine, other = ({n: o.weights(seed)[n] for n in own} for seed in (2, 3))
    v = o.weights(4)
    start = method.init_client(o.key(), torch.tensor(0))
    held = {f: torch.tensor(mine[n]) for f, n in NAMES.items() if n in own}
    weights = Model(*({f[5:]: a for f, a in held.items() if f.startswith(part)} for part in ("body", "head")))
    client = WithWeights(start.method._replace(value=o.model_of(v)), weights, torch.ones(()))
    after, _, _ = method.local(o.one(method, server, 0), client, o.data(*ROWS[0]), o.key())
    received = w | mine
    u, personal = train(received, 0), train(v, 0, 0.7, received)
    for full, n in NAMES.items():
        if n in own:
            close(getattr(after.weights, full[:4])[full[5:]], u[n])
        close(getattr(after.method.value, full[:4])[full[5:]], personal[n])
    assert not any(np.allclose(mine[n], other[n]) for n in own)


# --- a loop of torch over modules of which some parameters stay: FedBN and FedSA-LoRA

RULE = SGD(0.1, 0.5, 1e-3)


class Whole(nn.Module):
    """A network as one module, with its own layers."""

    def __init__(self, network: Network, start: Model) -> None:
        super().__init__()
        self.body, self.head = network.make()
        named = {f"{part}.{n}": a for part, weights in start._asdict().items() for n, a in weights.items()}
        self.load_state_dict(named, strict=False)
        self.trained = {n: p for n, p in self.named_parameters() if p.requires_grad}

    def train_on(self, x: Tensor, y: Tensor) -> None:
        """Two steps on all samples."""
        optimiser = torch.optim.SGD(self.trained.values(), RULE.lr, RULE.momentum, weight_decay=RULE.weight_decay)
        for _ in range(2):
            optimiser.zero_grad()
            cross_entropy(self.head(self.body(x)), y).backward()
            optimiser.step()


def same_as_the_loop(network: Network, pattern: str, own: set[str], **tolerance: float) -> None:
    """Three rounds of averaging, of the clients of the toy that have more than one sample."""
    whole = toy.data()
    some = [k for k in range(len(toy.SIZES)) if k != toy.SINGLE]  # torch refuses to normalise a single sample
    data = replace(
        whole, train=tuple(whole.train[k] for k in some), test=tuple(whole.test[k] for k in some),
        shifts=("",) * len(some),
    )  # fmt: skip
    task = replace(toy.task(), network=network, clients=len(some), training=Training(2, 64, RULE, shuffle=False))
    job = Job("x", partial(methods.build, "fedavg", {}, task, personal_weights=pattern), data, 3)
    start = begin(job.build(), len(some), 3)
    sites = [Whole(network, start.server) for _ in some]
    with Sequential() as engine:
        end = fit(job, engine, rounds=3, state=start)
    share = torch.tensor([float(len(rows)) for rows in data.train])
    for _ in range(3):
        for site, rows in zip(sites, data.train, strict=True):
            site.train_on(task.inputs(data.x_R[rows]), data.y_R[rows])
        with torch.no_grad():
            for n in sites[0].trained.keys() - own:
                mean = torch.tensordot(share / share.sum(), torch.stack([site.trained[n] for site in sites]), 1)
                for site in sites:
                    site.trained[n].copy_(mean)
    for client, site in zip(end.clients, sites, strict=True):
        assert {f"{part}.{n}" for part, names in client.weights._asdict().items() for n in names} == own
        for n, p in site.trained.items():
            part, _, name = n.partition(".")
            got = getattr(client.weights if n in own else end.server, part)[name]
            torch.testing.assert_close(got, p.detach(), **tolerance)
    assert all(not torch.equal(sites[0].trained[n], sites[1].trained[n]) for n in own)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("pattern", "more"),
    [("normalisation", {"head.0.weight", "head.0.bias"}), ("body.2.*", set()),
     ("normalisation+head", {"head.0.weight", "head.0.bias", "head.1.weight", "head.1.bias"})],
)  # fmt: skip
def test_fedbn_is_a_loop_over_modules_whose_normalisation_stays(pattern: str, more: set[str]) -> None:
    own = {"body.2.weight", "body.2.bias"} | more
    same_as_the_loop(tiny_bn.network("local"), pattern, own, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("factor", "more"), [("B", ""), ("A", ""), ("B", "+head")])
def test_fedsa_lora_is_a_loop_over_modules_one_of_whose_factors_stays(tmp_path: Path, factor: str, more: str) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    from tiny_backbones import write_vit

    network = models.build(f"hf:{write_vit(tmp_path / 'vit')},adapt=lora(r=2)", (1, 4, 4), toy.CLASSES)
    own = {f"body.{n}" for n in network.weight_shapes.body if f"lora_{factor}" in n}
    assert len(own) == 4  # queries and values of two layers
    own |= {"head.weight", "head.bias"} if more else set()
    same_as_the_loop(network, f"*lora_{factor}*{more}", own, rtol=1e-4, atol=1e-6)


# --- what travels, and who shares a training


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("pattern", ["body.1.bias", "*body*weight", "body.?.*as"])
def test_what_stays_is_in_no_message_and_moves_by_what_the_method_trained(name: str, pattern: str) -> None:
    """The method alone, given the same weights, would have sent the same, and the increment of what stays."""
    plain, method = build(name), build(name, pattern)
    server = plain.init_server(toy.key("server"))
    down = method.send(server, torch.tensor([0]))
    down = Down(down.shared, tree.rows(down.own, 0))
    client, data = method.init_client(toy.key("server"), torch.tensor(0)), toy.rows(toy.data(), 0)
    after, up, _ = method.local(down, client, data, toy.key())
    own = names_of(pattern, toy.task().network)[pattern]
    for message in (down, up):
        assert not [path for path in tree.named(message) for n in own if path.endswith(n.removeprefix("body."))
                    and "body" in path]  # fmt: skip
    whole = plain.send(server, torch.tensor([0]))
    whole = Down(whole.shared, tree.rows(whole.own, 0))
    _, want, _ = plain.local(whole, plain.init_client(toy.key("server"), torch.tensor(0)), data, toy.key())
    sent, expected = tree.named(up.value), tree.named(want.value)
    assert sent.keys() < expected.keys()
    assert all(torch.equal(a, expected[path]) for path, a in sent.items())
    kept = {path: a for path, a in expected.items() if path not in sent}
    assert len(kept) == len(own)
    for path, change in kept.items():
        n = path.rpartition("/")[2]
        torch.testing.assert_close(after.weights.body[n] - client.weights.body[n], change)
    end, _ = method.aggregate(server, reduced(method.reduce, tree.stack([up])), torch.tensor([0]))
    theirs, _ = plain.aggregate(server, reduced(plain.reduce, tree.stack([want])), torch.tensor([0]))
    for (path, a), b, first in zip(tree.named(end).items(), tree.leaves(theirs), tree.leaves(server), strict=True):
        stays = any(path.endswith(f"body/{n.removeprefix('body.')}") for n in own)
        assert torch.equal(a, first if stays else b)


def test_uses_that_keep_the_same_train_once() -> None:
    averaging, tuned, other = build("fedavg", "head"), build("fedavg_ft", "head"), build("fedavg", "body.1.bias")
    assert same_training(averaging, tuned)
    assert not same_training(averaging, other)
    assert not same_training(averaging, build("fedavg"))


def test_a_method_without_a_rule_or_without_a_server_stays_as_it_is() -> None:
    method, alone = build("fedavg"), build("local")
    assert with_personal_weights(method, "fedavg", None, toy.task()) is method
    assert with_personal_weights(alone, "local", "head", toy.task()) is alone


# --- what is refused


@pytest.mark.parametrize(
    ("name", "pattern", "said"),
    [
        ("fedavg", "body+head", "nothing would be left to learn together: name fewer weights"),
        ("fedper", "body", "nothing would be left"),
        ("fedpac", "body.*", "nothing would be left"),
        ("lg_fedavg", "*.bias+*.weight", "nothing would be left"),
        (
            "fedper",
            "head",
            "head names no weights of one model that its server averages: leave out this method, or give it",
        ),
        ("fedbabu", "head.weight", "head.weight names no weights of one model"),
        ("fedper", "body.1.bias+head", "head names no weights of one model"),
        ("fedem", "*bias", r"\*bias names no weights of one model"),
        ("hypcluster", "head", "head names no weights of one model"),
        ("fedfomo", "head", "head names no weights of one model"),
        ("fedproto", "body", "body names no weights of one model"),
        ("pfedfda", "head", "head names no weights of one model"),
        ("fedpac", "*weight", "its server makes a head for each client"),
        ("pfedhn", "body.1.bias", "its server makes a body for each client"),
        ("scaffold", "head", r"it shares several sets of the head's weights \(model/head and control/head\)"),
        ("fedrod:hypernetwork", "head", "it shares several sets of the head's weights"),
    ],
)
def test_a_method_that_cannot_keep_them_says_why(name: str, pattern: str, said: str) -> None:
    name, _, options = name.partition(":")
    with pytest.raises(InputError, match=rf"^method {name} cannot take personal=.*, because {said}"):
        build(name, pattern, **({"personal_head": options} if options else {}))


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("lora_B", "personal=lora_B matches no weight of the network; it has body.1.weight, body.1.bias, head.weight"),
        ("1.bias", r"matches no weight of the network; did you mean 'body.1.bias'\? It has"),
        (
            "*bias+weight",
            r"personal=\*bias\+weight: weight matches no weight of the network; did you mean 'head.weight'",
        ),
        ("heads", r"did you mean 'head'\?"),
        ("Head", r"did you mean 'head'\?"),
        ("head++body.1.bias", "an empty name matches no weight"),
        ("normalisation", "personal=normalisation is not possible, because the network has no normalisation layer"),
        ("head+normalization", r"did you mean 'normalisation'\?"),
    ],
)
@pytest.mark.parametrize("name", ["fedavg", "local"])
def test_a_pattern_that_matches_nothing(name: str, pattern: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        build(name, pattern)


def test_a_method_of_ones_own_whose_upload_has_another_form() -> None:
    """It receives a model and sends the increment of its body alone, which is declared as if it were the model's."""
    usual = build("fedavg")

    def local(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        client, up, info = usual.local(down, client, data, key)
        return client, up._replace(value=up.value.body), info

    method = with_personal_weights(usual._replace(local=local), "mine", "body.1.bias", toy.task())
    client = method.init_client(toy.key(), torch.tensor(0))
    with pytest.raises(InputError, match="the upload has no increment of the body at body"):
        method.local(o.one(method, method.init_server(toy.key()), 0), client, toy.rows(toy.data(), 0), toy.key())


def test_a_body_and_a_head_of_one_form_are_told_apart_by_their_place() -> None:
    task = replace(toy.task(), network=Network(_twins, (4,)), inputs=copy.copy)
    kept = build("fedavg", "head.bias", task).init_client(toy.key(), torch.tensor(0)).weights
    assert (list(kept.body), list(kept.head)) == ([], ["bias"])
    with pytest.raises(InputError, match=r"body\.bias names no weights of one model"):
        build("lg_fedavg", "body.bias", task)


def _twins() -> tuple[nn.Module, nn.Module]:
    return nn.Linear(4, 4), nn.Linear(4, 4)
