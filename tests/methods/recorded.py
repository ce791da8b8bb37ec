"""Recorded rounds of a few clients with a network of one hidden layer: reading them, and what their replays share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oracle import close, data, key, one
from torch import Tensor, nn

from idiolect.core import tree
from idiolect.core.method import SGD, Data, Method, Task, Training
from idiolect.core.network import Model, Network
from idiolect.core.reduction import reduced
from idiolect.training import untrained

DRAWN = ((0, 1, 2), (1, 3, 4), (0, 2, 4), (0, 3, 4))  # who takes part, where the file does not show it
EXACT = {"rtol": 0, "atol": 1e-5}
APART = 10 * EXACT["atol"]  # what differs by more is not the same
Files = dict[str, np.ndarray]


def read(name: str) -> Files:
    with np.load(Path(__file__).parent / "parity" / f"{name}.npz") as file:
        return {k: file[k].astype(np.float64) if file[k].dtype == np.float32 else file[k] for k in file}


def below(f: Files, path: str) -> list[int]:
    """The numbers of the clients that have entries right below a path."""
    return sorted({int(name[len(path) :].split("/")[1]) for name in f if name.startswith(f"{path}/")})


def clients(f: Files) -> list[int]:
    return below(f, "data")


def count(f: Files, path: str = "") -> int:
    """How many rounds there are below a path."""
    start = f"{path}/round".lstrip("/")
    numbers = {name[len(start) :].split("/")[0] for name in f if name.startswith(start)}
    assert numbers, f"no round below {path!r}"
    return len(numbers)


def drawn(f: Files, path: str = "") -> tuple[tuple[int, ...], ...]:
    """Who takes part in each of the rounds below a path, where the file does not show it."""
    rounds = count(f, path)
    assert rounds <= len(DRAWN)
    return DRAWN[:rounds]


def changed(new: np.ndarray, old: np.ndarray) -> list[int]:
    """Who takes part, where the file shows it: the rows that are not as before the round."""
    return np.flatnonzero((new != old).reshape(len(new), -1).any(1)).tolist()


def make(slope: float = 0.0) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(slope) if slope else nn.ReLU()), nn.Linear(8, 4)


def task(f: Files, rule: SGD, epochs: int, slope: float = 0.0, **training: Any) -> Task:
    how: dict[str, Any] = {"batch_size": 7, "shuffle": False} | training
    return Task(Network(partial(make, slope), (6,)), 4, len(clients(f)), Training(epochs, optimiser=rule, **how))


def rows(f: Files, client: int, part: str = "") -> tuple[np.ndarray, np.ndarray]:
    return f[f"data/{client}/x{part}"], f[f"data/{client}/y{part}"].astype(np.int64)


def training(f: Files, client: int) -> Data:
    return data(*rows(f, client))


def body(f: Files, path: str, row: Any = ...) -> dict[str, Tensor]:
    return {f"0.{p}": torch.tensor(f[f"{path}.{p}"][row]) for p in ("weight", "bias")}


def head(f: Files, path: str, row: Any = ...) -> dict[str, Tensor]:
    return {p: torch.tensor(f[f"{path}{p}"][row]) for p in ("weight", "bias")}


def model(f: Files, at: str, row: Any = ...) -> Model:
    """fc1 and fc2 below a path; ``row`` picks one of stacked clients."""
    return Model(body(f, f"{at}/fc1", row), head(f, f"{at}/fc2.", row))


def same(got: Any, want: Any, **tolerance: float) -> None:
    """Equal trees of a body, a head or both, to the precision of the record."""
    for a, b in zip(_leaves(got), _leaves(want), strict=True):
        close(a, b, **(tolerance or EXACT))


def apart(a: Any, b: Any) -> float:
    """The largest difference."""
    return max(float((u - v).abs().max()) for u, v in zip(_leaves(a), _leaves(b), strict=True))


def _leaves(parts: Any) -> list[Tensor]:
    if isinstance(parts, Model):
        return _leaves(parts.body) + _leaves(parts.head)
    return [parts[name] for name in sorted(parts)]


def rounds(f: Files, method: Method, server: Any, path: str = "") -> Iterator[tuple[Any, list[Any]]]:
    """(server, clients) after each recorded round, of clients that start with the common head."""
    states = [untrained(head(f, "init/fc2.")) for _ in clients(f)]
    for ids in drawn(f, path):
        ups = []
        for k in ids:
            states[k], up, _ = method.local(one(method, server, k), states[k], training(f, k), key(k))
            ups.append(up)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        yield server, list(states)


def right(f: Files, client: int, m: Model, slope: float = 0.0) -> int:
    """Test rows of a client that a model has right, in numpy."""
    x, y = rows(f, client, "_test")
    a = x @ m.body["0.weight"].numpy().T + m.body["0.bias"].numpy()
    z = np.where(a > 0, a, slope * a)
    logit = z @ m.head["weight"].numpy().T + m.head["bias"].numpy()
    return int((logit.argmax(1) == y).sum())


def test_rows(f: Files) -> int:
    """Test rows of all clients."""
    return sum(len(rows(f, k, "_test")[1]) for k in clients(f))


def by_rows(f: Files, models: Sequence[Model]) -> float:
    """Percent of all test rows that each client's model has right."""
    return 100 * sum(right(f, k, m) for k, m in enumerate(models)) / test_rows(f)


def hits(method: Method, server: Any, f: Files, states: Sequence[Any], *, personalise: bool = True) -> int:
    """Test rows that the method's models have right; without ``personalise`` the clients are as they stand."""
    total = 0
    for k, client in enumerate(states):
        x, y = rows(f, k, "_test")
        down = one(method, server, k)
        mine = method.personalise(down, client, training(f, k), key(k)) if personalise else client
        total += int((method.predict(down, mine, torch.tensor(x)).argmax(1).numpy() == y).sum())
    return total
