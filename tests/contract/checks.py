"""What every method must satisfy. A check raises AssertionError; ``specimens.py`` has a broken method that trips it."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import toy
from torch.nn.functional import nll_loss

from idiolect.core import keys, tree
from idiolect.core.errors import InputError, RunError
from idiolect.core.method import Data, Down, Method, Model, Task, Up, Weights
from idiolect.core.reduce import Increment, needs_each, spread
from idiolect.core.reduction import Reduction, reduced
from idiolect.data import FederatedData
from idiolect.engines import Processes, Sequential
from idiolect.runs.checkpoint import load, save
from idiolect.simulation import Job, State, begin, fit

CLOSE = 1e-9  # between two orders of the same float64 sums
JOLT = 1e-6  # relative, to all numbers at the start: a few roundings of float32
POINTS, NATS = 0.5, 1e-3  # that a jolt may move the mean accuracy and any client's loss by


def _same(a: Any, b: Any, what: str) -> None:
    for (path, u), v in zip(tree.named(a).items(), tree.leaves(b), strict=True):
        assert torch.equal(u, v), f"{what}: {path} differs by {(u - v).abs().max():.1e}"


def _close(a: Any, b: Any, what: str, tolerance: float = CLOSE) -> None:
    for (path, u), v in zip(tree.named(a).items(), tree.leaves(b), strict=True):
        gap = (u.double() - v.double()).abs().max() if u.numel() else torch.zeros(())
        assert u.shape == v.shape, f"{what}: {path} has shape {tuple(u.shape)} and {tuple(v.shape)}"
        assert gap <= tolerance * max(1.0, float(u.double().abs().max())), f"{what}: {path} differs by {gap:.1e}"


def _job(build: toy.Build, data: FederatedData | None = None) -> Job:
    return Job("toy", partial(build, toy.task()), data or toy.data(), 3)


def _run(
    build: toy.Build, makes: Any, rounds: int, state: State | None = None, data: FederatedData | None = None, **how: Any
) -> tuple[State, list[Any]]:
    records: list[Any] = []
    with makes as engine:
        end = fit(
            _job(build, data), engine, rounds=rounds, participation=0.7, state=state,
            on_round=lambda state, new, seconds: records.extend(new), **how,
        )  # fmt: skip
    return end, records


def _received(method: Method, server: Any, client: int) -> Down:
    down = method.send(server, torch.tensor([client]))
    return Down(down.shared, tree.rows(down.own, 0))


@cache
def _after_a_round(build: bytes, dtype: torch.dtype) -> State:
    return _run(pickle.loads(build), Sequential(), 1)[0]


def _states(build: toy.Build) -> tuple[Method, State]:
    """A method after one round, so that nothing is at its start any more: a copy for each check."""
    state = _after_a_round(pickle.dumps(build), torch.get_default_dtype())
    server, clients = tree.copy((state.server, list(state.clients)))
    return build(toy.task()), State(server, clients, state.round)


def engines_agree(
    build: toy.Build, workers: Callable[[], AbstractContextManager[Processes]] = lambda: Processes(2)
) -> None:
    """The same bits from the loop and from two worker processes."""
    end, records = _run(build, Sequential(), 2, data=toy.shared())
    other, others = _run(build, workers(), 2, data=toy.shared())
    _same((end.server, list(end.clients)), (other.server, list(other.clients)), "sequential and two workers")
    assert records == others, "records of sequential and two workers differ"


def _afresh(folder: Path) -> None:
    subprocess.run([sys.executable, __file__, str(folder)], check=True, cwd=Path(__file__).parent)


def resumes_exactly(build: toy.Build, folder: Path, afresh: Callable[[Path], None] = _afresh) -> None:
    """Two rounds, a checkpoint and another round in a new process give the bits of three rounds."""

    def keep(state: State, *_: Any) -> None:
        if state.round == 2:
            save(state, folder / "half")

    with Sequential() as engine:
        end = fit(_job(build), engine, rounds=3, participation=0.7, evaluate_every=2, on_round=keep)
    (folder / "build").write_bytes(pickle.dumps(build))
    afresh(folder)
    resumed = load(folder / "end", end)
    _same((end.server, list(end.clients)), (resumed.server, list(resumed.clients)), "resumed in a fresh process")


def _resume(folder: Path) -> None:
    build = pickle.loads((folder / "build").read_bytes())
    half = load(folder / "half", begin(build(toy.task()), len(toy.SIZES), 3))
    save(_run(build, Sequential(), 3, half, evaluate_every=2)[0], folder / "end")


def _serve() -> None:
    """Resume in a fork of this process for each folder that it reads: everything is imported, and nothing has run."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _resume(Path(line.removesuffix("\n")))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def inputs_unchanged(build: toy.Build) -> None:
    """No function changes its arguments."""
    method, state = _states(build)
    federation = toy.data()
    down, client, data = _received(method, state.server, 0), state.clients[0], toy.rows(federation, 0)
    before = tree.copy((state.server, down, client, data))
    _, up, _ = method.local(down, client, data, toy.key())
    sent = tree.copy(up)
    method.aggregate(state.server, reduced(method.reduce, tree.stack([up])), torch.tensor([0]))
    personalised = method.personalise(down, client, data, toy.key())
    kept = tree.copy(personalised)
    method.predict(down, personalised, federation.x_R[:5])
    _same((state.server, down, client, data), before, "input after the calls")
    _same(up, sent, "upload after aggregate")
    _same(personalised, kept, "client after predict")


def padding_invisible(build: toy.Build) -> None:
    """Samples that are marked as padding change nothing, whatever they are."""
    method, state = _states(build)
    federation = toy.data()
    for client in range(len(toy.SIZES)):
        down, mine = _received(method, state.server, client), state.clients[client]
        plain, padded = (toy.rows(federation, client, padding=p) for p in (0, 7))
        _close(method.local(down, mine, plain, toy.key()), method.local(down, mine, padded, toy.key()), "local, padded")
        # what personalise makes may be as long as the rows that it was given; what it predicts may not show it
        models = [method.personalise(down, mine, data, toy.key()) for data in (plain, padded)]
        a, b = (method.predict(down, model, federation.x_R[:9]) for model in models)
        _close(a, b, f"predictions of client {client}, personalised to padded rows")


def _renumbered(server: Any, new: dict[int, int]) -> Any:
    """The server with its clients renumbered: an axis as long as there are clients is theirs.

    It matters where a server starts with rows that are drawn, as pFedHN's embeddings are; no other axis of the toy
    task is as long.
    """
    old = torch.tensor(sorted(new, key=lambda i: new[i]))

    def turn(a: torch.Tensor) -> torch.Tensor:
        for axis, length in enumerate(a.shape):
            a = a.index_select(axis, old) if length == len(new) else a
        return a

    return tree.map(turn, server)


def relabelling_invisible(build: toy.Build) -> None:
    """Other numbers for the clients give the same results, under these numbers."""
    method, state = _states(build)
    federation = toy.data()
    ids = [0, 1, 2, 4, 5]
    ups = {
        i: method.local(_received(method, state.server, i), state.clients[i], toy.rows(federation, i), toy.key(i))[1]
        for i in ids
    }
    new = {i: len(toy.SIZES) - 1 - i for i in range(len(toy.SIZES))}
    start = method.init_server(toy.key("init"))
    mine = reduced(method.reduce, tree.stack([ups[i] for i in ids]))
    server, info = method.aggregate(start, mine, torch.tensor(ids))
    turned = sorted(ids, key=lambda i: new[i])
    other_ups = reduced(method.reduce, tree.stack([ups[i] for i in turned]))
    other, _ = method.aggregate(_renumbered(start, new), other_ups, torch.tensor([new[i] for i in turned]))
    x = federation.x_R[:9]
    for i in ids:
        a, b = _received(method, server, i), _received(method, other, new[i])
        _close(a, b, f"what client {i} gets", 1e-6)
        mine = method.personalise(a, state.clients[i], toy.rows(federation, i), toy.key())
        _close(method.predict(a, mine, x), method.predict(b, mine, x), f"predictions of client {i}", 1e-6)
    for name, value in info.items():
        assert len(value) == len(ids), f"info {name} has no row per participant"


def maps_over_clients(build: toy.Build) -> None:
    """``local``, ``personalise`` and ``predict`` under ``vmap``, over clients of unequal size, agree with the loop."""
    method, state = _states(build)
    federation = toy.data()
    ids = list(range(len(toy.SIZES)))
    data = [toy.rows(federation, i, padding=max(toy.SIZES) - toy.SIZES[i]) for i in ids]
    down = method.send(state.server, torch.tensor(ids))
    many = Data(
        federation.x_R, federation.y_R, torch.stack([d.row_N for d in data]), torch.stack([d.real_N for d in data])
    )
    clients, key = tree.stack(list(state.clients)), torch.stack([toy.key(i) for i in ids])
    axes = (Down(None, 0), 0, Data(None, None, 0, 0, None, None, None), 0)

    def mapped(function: Any, axes: Any) -> Any:
        return torch.func.vmap(lambda *a: function(*a), in_dims=axes)

    got = mapped(method.local, axes)(down, clients, many, key)
    personalised = mapped(method.personalise, axes)(down, clients, many, key)
    x = federation.x_R[:9]
    logp = mapped(method.predict, (Down(None, 0), 0, 0))(down, personalised, x.expand(len(ids), *x.shape))
    for i in ids:
        one = Down(down.shared, tree.rows(down.own, i))
        _close(method.local(one, state.clients[i], data[i], key[i]), tree.rows(got, i), f"local of client {i}", 1e-7)
        mine = method.personalise(one, state.clients[i], data[i], key[i])
        _close(mine, tree.rows(personalised, i), f"personalise of client {i}", 1e-7)
        _close(method.predict(one, mine, x), logp[i], f"predict of client {i}", 1e-7)


def hard_clients(build: toy.Build) -> None:
    """Clients without a class, with one sample, with less than a batch: all train, and all numbers stay finite."""
    try:
        method, state = _states(build)
    except RunError as error:
        raise AssertionError(str(error)) from error
    federation = toy.data()
    for client in (toy.LACKS, toy.SINGLE, toy.SMALL):
        down, mine = _received(method, state.server, client), state.clients[client]
        new, up, info = method.local(down, mine, toy.rows(federation, client), toy.key())
        path = tree.not_finite((new, up, info))
        assert path is None, f"client {client}: {path} is not finite"
        moved = sum(float((a - b).abs().sum()) for a, b in zip(tree.leaves(new), tree.leaves(mine), strict=True))
        received = tree.leaves((down.shared, down.own))
        for a in tree.leaves(getattr(up.value, "body", getattr(up.value, "encoder", up.value))):
            moved += min(float((a - b).abs().sum()) for b in [torch.zeros_like(a), *received] if b.shape == a.shape)
        assert moved > 0, f"client {client} did not train"
        personalised = method.personalise(down, mine, toy.rows(federation, client), toy.key())
        assert torch.isfinite(method.predict(down, personalised, federation.x_R)).all(), f"client {client} predicts NaN"


def one_participant(build: toy.Build) -> None:
    """A round in which a single client takes part works, whichever it is."""
    method, state = _states(build)
    federation = toy.data()
    for client in range(len(toy.SIZES)):
        down = _received(method, state.server, client)
        up = method.local(down, state.clients[client], toy.rows(federation, client), toy.key())[1]
        server, _ = method.aggregate(state.server, reduced(method.reduce, tree.stack([up])), torch.tensor([client]))
        path = tree.not_finite(server)
        assert path is None, f"after client {client} alone, {path} of the server is not finite"
        tree.flatten(server)


def _uploads(method: Method, state: State) -> list[Up]:
    """The uploads of all clients, the hard ones too."""
    federation = toy.data()
    return [
        method.local(_received(method, state.server, i), state.clients[i], toy.rows(federation, i), toy.key())[1]
        for i in range(len(toy.SIZES))
    ]


def declaration_fits(build: toy.Build) -> None:
    """``reduce`` fits the upload of every client, whose weights are not negative, and of which the server gets no more.

    The server that gets means and sums reports nothing of single participants. A federation's server believes no weight
    above a site's number of samples, unless ``reduce`` says that it is measured. Counts and flags are weights, because
    noise would make a flag neither 0 nor 1, and clipping makes values small that are sent beside large counts.
    """
    try:
        method, state = _states(build)
        ups = _uploads(method, state)
        measured = Reduction(method.reduce, ups[0]).measured
        ones = [reduced(method.reduce, tree.map(lambda a: a[None], up)) for up in ups]
        up_m = tree.stack(ups)
        _, info = method.aggregate(state.server, reduced(method.reduce, up_m), torch.arange(len(ups)))
    except (RunError, InputError, ValueError) as error:
        raise AssertionError(str(error)) from error
    forms = {tuple((path, a.shape, a.dtype) for path, a in tree.named(one.value).items()) for one in ones}
    assert len(forms) == 1, "uploads of different clients have different forms"
    for size, up in zip(toy.SIZES, ups, strict=True):
        for k, (path, w) in enumerate(tree.named(up.weight).items()):
            assert bool((w >= 0).all()), f"the weight {path} is negative"
            most = torch.inf if k in measured else size * (1 + CLOSE)
            assert float(w.sum()) <= most, f"the weight {path} is more than the client's samples"
    for path, a_m in tree.named(up_m.value).items():
        counts = bool(a_m.any()) and bool((a_m == a_m.round()).all())
        assert not counts, f"{path} of the value holds whole numbers: counts and flags belong to the weight"
    assert needs_each(method.reduce) or not info, f"{list(info)} of participants, of which the server gets sums alone"


def increments_are_steps(build: toy.Build) -> None:
    """What ``reduce`` calls an increment is one: the server stays where it is at 0, and else moves along it."""
    method, state = _states(build)
    ups = _uploads(method, state)
    up, ids = reduced(method.reduce, tree.stack(ups)), torch.arange(len(ups))
    steps = [isinstance(rule, Increment) for rule in spread(method.reduce, up.value)]

    def moved(times: float) -> list[torch.Tensor]:
        flat, make = tree.flatten(up.value)
        flat = [a * times if step else a for a, step in zip(flat, steps, strict=True)]
        return tree.leaves(method.aggregate(state.server, up._replace(value=make(flat)), ids)[0])

    before, still, once, twice = tree.leaves(state.server), moved(0), moved(1), moved(2)
    for (path, delta), step in zip(tree.named(up.value).items(), steps, strict=True):
        if not step or not bool(delta.any()):
            continue
        along = delta / delta.norm()
        for old, at, one, two in zip(before, still, once, twice, strict=True):
            same_shape = old.shape == delta.shape and torch.equal(old, at)
            if same_shape and torch.allclose(two - at, 2 * (one - at)) and bool(((one - at) * along).sum() > 0):
                far = ((one - at) * along).sum() * along
                if torch.allclose(one - at, far, atol=CLOSE):
                    break
        else:
            raise AssertionError(f"{path} is declared an increment, and no part of the server moves along it from 0")


def newcomers_join(build: toy.Build) -> None:
    """A client that the server has never seen personalises, and is better than chance on its own samples."""
    method = build(toy.task())
    state, _ = _run(build, Sequential(), 3, evaluate_every=3)
    federation = toy.data()
    rows = federation.train[0]
    try:
        down = _received(method, state.server, 1000)
        client = method.personalise(
            down, method.init_client(toy.key("new"), torch.tensor(0)), toy.rows(federation, 0), toy.key()
        )
        logp = method.predict(down, client, federation.x_R)
    except (IndexError, RunError) as error:
        raise AssertionError(f"an unknown client is refused: {error}") from error
    assert torch.isfinite(logp).all(), "an unknown client predicts NaN"
    loss = nll_loss(logp[rows], federation.y_R[rows])
    assert loss < 0.97 * math.log(toy.CLASSES), f"an unknown client's model is no better than chance: {loss:.3f} nats"


def predicts_probabilities(build: toy.Build) -> None:
    """Predictions are probabilities, the same each time, and do not depend on the other samples of the batch."""
    try:
        method, state = _states(build)
    except RunError as error:  # the engine has seen it
        raise AssertionError(str(error)) from error
    federation = toy.data()
    down = _received(method, state.server, 0)
    client = method.personalise(down, state.clients[0], toy.rows(federation, 0), toy.key())
    logp = method.predict(down, client, federation.x_R)
    assert logp.shape == (len(federation.x_R), toy.CLASSES)
    _close(logp.exp().sum(1), torch.ones(len(logp)), "sum of the probabilities", 1e-6)
    _same(method.predict(down, client, federation.x_R), logp, "a second prediction")
    _close(method.predict(down, client, federation.x_R[3:4]), logp[3:4], "a row by itself", 1e-6)


def _jolted(build: toy.Build, task: Task) -> Method:
    """The method from a start that differs in the seventh digit."""
    method = build(task)

    def jolt(start: Any) -> Any:
        draw = torch.Generator().manual_seed(0)
        return tree.map(
            lambda a: a * (1 + JOLT * torch.randn(a.shape, generator=draw)) if a.is_floating_point() else a, start
        )

    return method._replace(
        init_server=lambda key: jolt(method.init_server(key)),
        init_client=lambda key, id: jolt(method.init_client(key, id)),
    )


def _measured(build: Callable[..., Method]) -> dict[str, torch.Tensor]:
    """By metric, what the clients of the digits end with, in the order of their numbers."""
    records: list[Any] = []
    with Sequential() as engine:
        fit(
            Job("digits", build, toy.digits(), 3), engine, rounds=5, evaluate_every=5,
            on_round=lambda state, new, seconds: records.extend(new),
        )  # fmt: skip
    return {m: torch.tensor([r.value for r in records if r.metric == m]) for m in ("accuracy", "loss")}


def rounding_stays_small(build: toy.Build) -> None:
    """A start that differs by a millionth changes little after five rounds on digits at a high learning rate.

    The mean accuracy by at most ``POINTS``, each client's loss by at most ``NATS``.

    Other processors, and other orders of the same sums, differ by as much after a few steps. In float64, so that the
    outcome of the check is itself the same on every processor.
    """
    task = toy.digits_task()
    try:
        plain, jolted = (_measured(partial(start, task)) for start in (build, partial(_jolted, build)))
    except RunError as error:
        raise AssertionError(str(error)) from error
    points = 100 * float((plain["accuracy"].mean() - jolted["accuracy"].mean()).abs())
    nats = float((plain["loss"] - jolted["loss"]).abs().max())
    assert points <= POINTS, f"a start that differs by {JOLT} ends {points:.1f} points of accuracy away"
    assert nats <= NATS, f"a start that differs by {JOLT} ends {nats:.1e} nats away at a client"


def _models(state: Any, start: Model) -> dict[str, Weights]:
    """The bodies and heads in a state, by path: weights with the names and shapes of the network's, perhaps several."""
    named, models = tree.named(state), dict[str, Weights]()
    for part in start:
        first = next(iter(part))
        for prefix in [path.removesuffix(first) for path in named if path.endswith(f"/{first}")]:
            same = {name: named[prefix + name] for name in part if prefix + name in named}
            if {n: a.shape[a.ndim - part[n].ndim :] for n, a in same.items()} == {n: w.shape for n, w in part.items()}:
                models[prefix.rstrip("/")] = same
    return models


def starts_alike(build: toy.Build) -> None:
    """Under one seed, a method's model starts as every other method's, at the server and at the clients.

    Of several models the first does, and no two are alike unless each is a client's. Parts of one number are no model.
    """
    task = toy.task()
    start, method = task.network.init(keys.start(3)), build(task)
    if not method.own_start:
        one, other = (method.init_client(keys.start(3), torch.tensor(id)) for id in (0, 4))
        assert tree.same(one, other), "init_client depends on the client's number: set own_start"
    state = begin(method, len(toy.SIZES), 3)
    for place, found in _models({"server": state.server, "client": state.clients[0]}, start).items():
        part = start.body if found.keys() == start.body.keys() else start.head
        if all(bool((a == a.flatten()[0]).all()) for a in found.values()):
            continue
        for name, want in part.items():
            copies = found[name].reshape(-1, *want.shape)
            assert torch.equal(copies[0], want), f"{place}/{name} starts otherwise than the model of other methods"
            distinct = {tuple(copy.flatten().tolist()) for copy in copies}
            assert len(distinct) in (1, len(copies)), f"some of the models in {place} start alike"
            assert len(distinct) == len(copies) or len(copies) == len(toy.SIZES), f"the models in {place} start alike"


if __name__ == "__main__":
    _resume(Path(sys.argv[1])) if len(sys.argv) > 1 else _serve()
