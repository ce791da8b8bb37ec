"""Rounds of FedAvg and its tuning as FedRep's authors ran them (float32), reproduced within 1e-5.

Compared: every array of the file. The record averages uniformly, which is FedAvg with weights of one. Its accuracy by
round is that of each client's last local model, rounds old for some, and of the averaged model for clients never drawn:
reproduced beside the number that ``predict`` gives, the averaged model's. Its tuning was announced as of the head
alone, and tunes both layers.
"""

from __future__ import annotations

import recorded as r
import torch
from oracle import close, key, one

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import SGD, Up
from idiolect.core.reduction import reduced

RULE = SGD(0.05, 0.5, 1e-4, decay_biases=False)


def test_fedavg() -> None:
    f = r.read("fedavg")
    method = methods.build("fedavg", {}, r.task(f, RULE, 5))
    server, last, everybody = r.model(f, "init"), {}, r.clients(f)
    for number, ids in enumerate(r.drawn(f)):
        ups = [method.local(one(method, server, k), (), r.training(f, k), key(k))[1] for k in ids]
        last |= {k: tree.add(server, up.value) for k, up in zip(ids, ups, strict=True)}
        stacked = tree.stack(ups)
        by_n = method.aggregate(server, reduced(method.reduce, stacked), torch.tensor(ids))[0]
        server, _ = method.aggregate(
            server, reduced(method.reduce, Up(stacked.value, torch.ones(len(ids)))), torch.tensor(ids)
        )
        at = f"round{number}/"
        want = r.Model(r.body(f, f"{at}body/fc1"), r.head(f, f"{at}head/fc2."))
        r.same(server, want)
        assert r.apart(by_n, want) > r.APART, "weights do not matter here"
        close(r.by_rows(f, [last.get(k, server) for k in everybody]), f[at + "accuracy"], rtol=1e-6)
        assert r.hits(method, server, f, [() for _ in everybody]) == sum(r.right(f, k, want) for k in everybody)


def test_tuning() -> None:
    f = r.read("fedavg")
    last, everybody = f"round{r.count(f) - 1}", r.clients(f)
    server = r.Model(r.body(f, f"{last}/body/fc1"), r.head(f, f"{last}/head/fc2."))
    tuned = []
    for part in ("model", "head"):
        method = methods.build("fedavg_ft", {"epochs": 10, "part": part}, r.task(f, RULE, 5))
        tuned.append([method.personalise(one(method, server, k), (), r.training(f, k), key(k)) for k in everybody])
    for k in everybody:
        r.same(tuned[0][k], r.model(f, "final/clients", k))
    assert max(r.apart(tuned[1][k], r.model(f, "final/clients", k)) for k in everybody) > r.APART
    close(r.by_rows(f, tuned[0]), f["final/accuracy"], rtol=1e-6)
