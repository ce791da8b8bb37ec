"""FedRep: recorded rounds, a round by hand, its options and its traps.

The record (float32) is of the authors' released code, preset "official", 3 head and 2 body epochs. Every array of its
set "strict" is compared, within 1e-5: there a frozen part stands still. Its set "coast" is what the versions of torch
that the authors name compute, where the head keeps moving by its momentum and decay while the body trains. That is left
out: here it is rebuilt outside the method, and the two sets are shown apart. Biases are exempt from decay in the
record, which is the task's rule. Accuracies of the rounds are of the heads as they stand, a head of the participants'
mean standing in for a client that has never trained.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import torch
from oracle import close
from torch.nn.functional import cross_entropy

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.method import SGD, Method
from idiolect.core.network import Model
from idiolect.training import batches, rows, sgd_from, trained, untrained

ROWS = o.federation()
START = o.weights(1)
HEADS = [o.weights(10 + k) for k in range(len(o.SIZES))]
AVERAGE = o.weights(3)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
RULE = SGD(0.05, 0.5, 1e-4, decay_biases=False)


def recorded(f: r.Files, **options: Any) -> Method:
    return methods.build(
        "fedrep", {"preset": "official", "head_epochs": 3, "body_epochs": 2} | options, r.task(f, RULE, 1)
    )


def test_recorded_rounds() -> None:
    f = r.read("fedrep")
    tuned, plain = recorded(f), recorded(f, tuning_epochs=0)
    for number, (server, clients) in enumerate(r.rounds(f, tuned, r.model(f, "init"), "strict")):
        at = f"strict/round{number}/"
        r.same(server.body, r.body(f, f"{at}body/fc1"))
        for k, client in enumerate(clients):
            mine = plain.personalise(o.one(plain, server, k), client, r.training(f, k), o.key())
            r.same(mine.value, r.head(f, f"{at}heads/", k))
        close(100 * r.hits(plain, server, f, clients) / r.test_rows(f), f[at + "accuracy"], rtol=1e-6)
    for k, client in enumerate(clients):
        mine = tuned.personalise(o.one(tuned, server, k), client, r.training(f, k), o.key())
        r.same(mine.value, r.head(f, "strict/final/heads/", k))
    close(100 * r.hits(tuned, server, f, clients) / r.test_rows(f), f["strict/final/accuracy"], rtol=1e-6)


def coasting(f: r.Files, k: int, model: Model) -> Model:
    """A client's round in which the head's gradient is zero, not absent, while the body trains."""
    data, task = r.training(f, k), r.task(f, RULE, 1)

    def loss(weights: Model, batch: Any, part: str) -> tuple[torch.Tensor, tuple[()]]:
        held = weights._replace(**{p: tree.detach(getattr(weights, p)) for p in ("body", "head") if p != part})
        x_B, y_B = rows(task, data, batch)
        return cross_entropy(task.network(held, x_B), y_B), ()

    def head_loss(head: Any, batch: Any) -> Any:
        return loss(model._replace(head=head), batch, "head")

    plan = batches(data, task.training, o.key(), epochs=3)
    head, speed, _ = sgd_from(head_loss, model.head, tree.zeros(model.head), plan, RULE)
    plan = batches(data, task.training, o.key(), epochs=2)
    start, speeds = model._replace(head=head), Model(tree.zeros(model.body), speed)
    return sgd_from(lambda w, b: loss(w, b, "body"), start, speeds, plan, RULE)[0]


def test_a_frozen_head_does_not_coast() -> None:
    """The record's other set is the same algorithm with a head that coasts, and it is another set of numbers."""
    f = r.read("fedrep")
    ids = r.drawn(f, "strict")[0]
    trained = {k: coasting(f, k, r.model(f, "init")) for k in ids}
    ours, clients = next(r.rounds(f, recorded(f), r.model(f, "init"), "strict"))
    for k in ids:
        r.same(trained[k].head, r.head(f, "coast/round0/heads/", k))
        r.same(clients[k].value, r.head(f, "strict/round0/heads/", k))
        assert r.apart(clients[k].value, r.head(f, "coast/round0/heads/", k)) > r.APART
    mean = tree.mean(tree.stack(list(trained.values())), torch.ones(len(ids)))
    r.same(mean.body, r.body(f, "coast/round0/body/fc1"))
    r.same(ours.body, r.body(f, "strict/round0/body/fc1"))
    assert r.apart(ours.body, mean.body) > r.APART


def test_recorded_rounds_with_heads_of_their_own() -> None:
    """By the default a client that was never drawn holds its initial head; the record has the others' mean."""
    f = r.read("fedrep")
    method = recorded(f, newcomer_head="own")
    server, clients = next(r.rounds(f, method, r.model(f, "init")._replace(head={}), "strict"))
    r.same(server.body, r.body(f, "strict/round0/body/fc1"))
    assert not server.head
    for k in set(r.clients(f)) - set(r.drawn(f, "strict")[0]):
        r.same(clients[k].value, r.head(f, "init/fc2."))
        assert r.apart(clients[k].value, r.head(f, "strict/round0/heads/", k)) > r.APART


# --- by hand --------------------------------------------------------------------------------------------------------


def part_of(p: o.Params, k: int, part: str, epochs: int) -> o.Params:
    x, y = ROWS[k]
    return o.descend(p, part, o.batches(len(y), epochs), o.whole_gradient(x, y))


def together(body: o.Params, head: o.Params) -> o.Params:
    return {"W": body["W"], "b": body["b"], "U": head["U"], "c": head["c"]}


def same_body(got: Any, p: o.Params) -> None:
    close(got["0.weight"], p["W"])
    close(got["0.bias"], p["b"])


def same_head(got: Any, p: o.Params) -> None:
    close(got["weight"], p["U"])
    close(got["bias"], p["c"])


def received(p: o.Params) -> Any:
    return methods.build("fedrep", {}, o.task()).send(Model(o.body_of(p), {}), torch.tensor([4]))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"weighting": "samples"},
    {"head_epochs": 3, "body_epochs": 1, "tuning_epochs": 2},
    {"newcomer_head": "average"},
    {"newcomer_head": "average", "weighting": "samples", "tuning_epochs": 0},
    {"tuning_epochs": 0, "head_epochs": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_round(options: dict[str, Any]) -> None:
    """Clients 0, 1 and 2 have trained before, 3 and 4 have not, and 2 stays away; 99 is new, with client 3's rows."""
    method = methods.build("fedrep", options, o.task())
    heads, bodies = options.get("head_epochs", 5), options.get("body_epochs", o.EPOCHS)
    average = options.get("newcomer_head") == "average"
    server = Model(o.body_of(START), o.head_of(AVERAGE) if average else {})
    clients = {k: (trained if k < 3 else untrained)(o.head_of(HEADS[k])) for k in range(5)}
    want = {}
    for k in o.IDS:
        p = together(START, AVERAGE if average and k >= 3 else HEADS[k])
        want[k] = part_of(part_of(p, k, "Uc", heads), k, "Wb", bodies)

    after, new, up, _ = o.round_of(method, server, {k: clients[k] for k in o.IDS}, ROWS)
    weight = [o.SIZES[k] for k in o.IDS] if options.get("weighting") == "samples" else [1.0] * len(o.IDS)
    close(up.weight, weight)
    for at, k in enumerate(o.IDS):
        same_head(new[k].value, want[k])
        assert float(new[k].trained) == 1
        same_body(tree.rows(up.value.body, at), {n: want[k][n] - START[n] for n in "Wb"})
    mean = {n: o.average([p[n] for p in want.values()], weight) for n in "WbUc"}
    same_body(after.body, mean)
    if average:
        same_head(after.head, mean)
    else:
        assert not tree.leaves((up.value.head, after.head)), "a head of one's own travels"

    clients |= new
    same_head(clients[2].value, HEADS[2])
    clients[99] = untrained(o.head_of(HEADS[3]))
    epochs = options.get("tuning_epochs", 10)
    for k, client in clients.items():
        of = 3 if k == 99 else k
        down = o.one(method, after, k)
        mine = method.personalise(down, client, o.data(*ROWS[of]), o.key())
        head = want[k] if k in o.IDS else mean if average and k == 99 else HEADS[of]
        joins = heads if k == 99 and not epochs and not average else epochs
        final = part_of(together(mean, head), of, "Uc", joins)
        same_head(mine.value, final)
        close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(final, TEST))


def test_losses_are_those_of_the_two_phases() -> None:
    method = methods.build("fedrep", {"head_epochs": 1, "body_epochs": 1}, o.task())
    x, y = ROWS[4]  # one batch: both losses are before their only step
    start = together(START, HEADS[4])
    info = method.local(received(START), trained(o.head_of(HEADS[4])), o.data(x, y), o.key())[2]
    at = np.arange(len(y))
    close(info["head_loss"], -o.log_probability(start, x)[at, y].mean())
    close(info["train_loss"], -o.log_probability(part_of(start, 4, "Uc", 1), x)[at, y].mean())


def test_the_phases_are_shuffled_apart() -> None:
    """Each sees the rows in an order of its own."""
    task = o.task(shuffle=True)
    method = methods.build("fedrep", {"head_epochs": 1, "body_epochs": 1}, task)
    data = o.data(*ROWS[0])
    new, up, _ = method.local(received(START), trained(o.head_of(HEADS[0])), data, o.key())
    p = together(START, HEADS[0])
    orders = []
    for purpose, part in (("head", "Uc"), ("body", "Wb")):
        plan = [b.at_B.numpy() for b in batches(data, task.training, keys.fold(o.key(), purpose), epochs=1)]
        p = o.descend(p, part, plan, o.whole_gradient(*ROWS[0]))
        orders.append(np.concatenate(plan).tolist())
    assert orders[0] != orders[1]
    same_head(new.value, p)
    same_body(up.value.body, {n: p[n] - START[n] for n in "Wb"})


# --- traps ----------------------------------------------------------------------------------------------------------


def test_a_head_stands_still_while_the_body_trains() -> None:
    """Momentum and decay included: more body epochs leave the head's bits as they were."""
    short, long = (methods.build("fedrep", {"body_epochs": e}, o.task()) for e in (1, 7))
    heads, bodies = [], []
    for method in (short, long):
        client, up, _ = method.local(received(START), trained(o.head_of(HEADS[0])), o.data(*ROWS[0]), o.key())
        heads.append(client.value)
        bodies.append(up.value.body)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(heads[0]), tree.leaves(heads[1]), strict=True))
    assert (bodies[0]["0.weight"] - bodies[1]["0.weight"]).abs().max() > 1e-3


def test_tuning_leaves_the_body_and_the_record_of_training() -> None:
    method = methods.build("fedrep", {}, o.task())
    for start in (trained, untrained):
        down, client = received(START), start(o.head_of(HEADS[0]))
        mine = method.personalise(down, client, o.data(*ROWS[0]), o.key())
        head = part_of(together(START, HEADS[0]), 0, "Uc", 10)
        close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(head, TEST))
        assert float(mine.trained) == float(client.trained)


def test_a_client_never_drawn_holds_no_part_of_the_server() -> None:
    """The released code's heads of such clients follow the server's; here they are the start until the first round."""
    method = methods.build("fedrep", {"tuning_epochs": 0}, o.task())
    server = Model(o.body_of(START), {})
    client = untrained(o.head_of(HEADS[2]))
    for _ in range(2):
        server = o.round_of(method, server, {k: untrained(o.head_of(HEADS[k])) for k in o.IDS}, ROWS)[0]
    same_head(client.value, HEADS[2])
    assert (server.body["0.weight"] - o.body_of(START)["0.weight"]).abs().max() > 1e-3
    body = {"W": server.body["0.weight"].numpy(), "b": server.body["0.bias"].numpy()}
    first = part_of(together(body, HEADS[2]), 2, "Uc", 5)
    mine = method.personalise(o.one(method, server, 2), client, o.data(*ROWS[2]), o.key())
    same_head(mine.value, first)
