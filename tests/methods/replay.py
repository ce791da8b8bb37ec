"""What replays of recorded rounds share beside ``recorded``: a round and its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import oracle as o
import recorded as r
import torch

from idiolect.core import tree
from idiolect.core.method import Down, Method
from idiolect.core.reduction import reduced


def round_of(
    method: Method, server: Any, clients: list[Any], f: r.Files, ids: Sequence[int], *, number: int = 0, rounds: int = 0
) -> tuple[Any, list[Any], list[Any]]:
    """A round of these clients on their recorded rows: the server after it, all clients, and the uploads."""
    new, ups = list(clients), []
    for k in ids:
        data = at(r.training(f, k), number, rounds)
        new[k], up, _ = method.local(o.one(method, server, k), clients[k], data, o.key(number, k))
        ups.append(up)
    server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(list(ids)))
    return server, new, ups


def at(data: Any, number: int, rounds: int) -> Any:
    """The samples in a round; rounds count from 1."""
    return data._replace(round=torch.tensor(number), rounds=torch.tensor(rounds))


def logits_agree(method: Method, down: Down, client: Any, f: r.Files, k: int, path: str) -> int:
    """Check the predictions for a client's test rows against recorded logits; returns how many are right."""
    x, y = r.rows(f, k, "_test")
    logp = method.predict(down, client, torch.tensor(x))
    want = torch.log_softmax(torch.tensor(f[f"{path}/{k}"]), -1)
    o.close(logp, want, **r.EXACT)
    return int((logp.argmax(1).numpy() == y).sum())
