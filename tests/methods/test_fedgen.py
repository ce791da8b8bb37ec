"""FedGen: rounds of the authors' released code (zhuangdizhu/FedGen, float32) within 1e-5, by hand, and its traps.

Every array of the file is compared. The recorded draws, batches and rates of the clients are given to the method: there
a client's batches go on from round to round, and its rate falls when it takes part. The generator learns from the
teacher alone, as the method's does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import torch
from oracle import close
from scipy.special import log_softmax
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Training
from idiolect.core.reduction import reduced
from idiolect.methods import fedgen
from idiolect.methods.fedgen import Generator, Server
from idiolect.training import Batch, optimiser_state

ROWS = o.federation()
START = o.weights(1)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
LAYERS = ("fc", "bn", "out")
SMALL: dict[str, Any] = {"noise": 3, "hidden": 5, "generator_steps": 4, "generator_lr": 0.01}


# --- recorded rounds --------------------------------------------------------------------------------------------------


def generator(f: r.Files, at: str) -> Generator:
    weights = {
        f"{name}.{part}": torch.tensor(f[f"{at}/{name}.{part}"]) for name in LAYERS for part in ("weight", "bias")
    }
    return Generator(weights, *(torch.tensor(f[f"{at}/bn.running_{part}"]) for part in ("mean", "var")))


def test_recorded_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    f = r.read("fedgen")
    names = ("alpha", "beta", "diversity", "generator_lr", "generator_weight_decay", "generator_steps",
             "generated_batch")  # fmt: skip
    options = {name: f[f"options/{name}"].item() for name in names}
    first = generator(f, "init/generator")
    wide = {"hidden": len(first.mean_H), "noise": first.weights["fc.weight"].shape[1] - 4}
    lr, steps = float(f["options/lr"]), int(f["options/local_steps"])
    task = r.task(f, SGD(lr, 0.0, 0.0), 1)
    method = methods.build("fedgen", options | wide | {"teacher": "product", "steps": steps}, task)
    server = method.init_server(o.key())._replace(model=r.model(f, "init"), generator=first)
    everybody = r.clients(f)
    cursor, rate, at, number, client = [0 for _ in everybody], [lr for _ in everybody], "", 0, 0

    def batches(data: Any, training: Training, key: Any, steps: int) -> list[Batch]:
        whole = len(data.row_N) // training.batch_size
        starts = [(cursor[client] + step) % whole * training.batch_size for step in range(steps)]
        cursor[client] += steps
        return [Batch(torch.arange(s, s + training.batch_size), torch.ones(training.batch_size), step,
                      rate=rate[client] / lr) for step, s in enumerate(starts)]  # fmt: skip

    def client_draws(key: Any, batch: Batch, *sizes: int) -> Any:
        parts = ("labels_sampled", "noise_sampled", "noise_own")
        if not number:  # which has no generated samples
            return torch.zeros(sizes[1]).long(), torch.zeros(sizes[1], sizes[2]), torch.zeros(len(batch.at_B), sizes[2])
        return tuple(torch.tensor(f[f"{at}/client/{client}/{part}"][int(batch.step)]) for part in parts)

    def server_draws(key: Any, batch: Batch, known: Tensor, noise: int) -> Any:
        assert known.tolist() == f[f"{at}/qualified"].tolist()
        return tuple(torch.tensor(f[f"{at}/server_{part}"][int(batch.step)]) for part in ("labels", "noise"))

    monkeypatch.setattr(fedgen, "batches", batches)
    monkeypatch.setattr(fedgen, "client_draws", client_draws)
    monkeypatch.setattr(fedgen, "server_draws", server_draws)
    for number in range(r.count(f)):
        at, ups, hits = f"round{number}", [], []
        for k in r.clients(f):
            x, y = r.rows(f, k, "_test")
            hits.extend(method.predict(o.one(method, server, k), (), torch.tensor(x)).argmax(1).numpy() == y)
        close(np.mean(hits), f["accuracy"][number], **r.EXACT)
        ids = [k for k in r.clients(f) if f"{at}/client/{k}/next_lr" in f]
        for place, client in enumerate(ids):
            data = r.training(f, client)._replace(round=torch.tensor(number + 1))
            ups.append(method.local(o.one(method, server, client), (), data, o.key(client))[1])
            r.same(tree.add(server.model, ups[-1].value.increment), r.model(f, f"{at}/clients", place))
            rate[client] = float(f[f"{at}/client/{client}/next_lr"])
        seen_mC = torch.stack([up.weight.seen_C for up in ups]) * steps * task.training.batch_size
        close(((1 + seen_mC) / (1 + seen_mC).sum(0)).T, f[f"{at}/label_weights"], **r.EXACT)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        r.same(server.model, r.model(f, f"{at}/server"))
        want = generator(f, f"{at}/generator")
        for a, b in zip(tree.leaves(server.generator), tree.leaves(want), strict=True):
            close(a, b, **r.EXACT)
    for k in r.clients(f):
        logp = method.predict(o.one(method, server, k), (), torch.tensor(r.rows(f, k, "_test")[0])).numpy()
        close(np.exp(logp), np.exp(log_softmax(f[f"final/logits/{k}"], 1)), **r.EXACT)


# --- a round by torch's own modules -----------------------------------------------------------------------------------


class Net(nn.Module):
    """The generator as torch's layers."""

    def __init__(self, made: Generator, inputs: int) -> None:
        super().__init__()
        self.fc, self.bn = nn.Linear(inputs, len(made.mean_H)), nn.BatchNorm1d(len(made.mean_H))
        self.out = nn.Linear(len(made.mean_H), o.WIDTH)
        state = dict(made.weights) | {"bn.running_mean": made.mean_H, "bn.running_var": made.var_H}
        self.load_state_dict(state, strict=False)

    def forward(self, y: Tensor, e: Tensor) -> Tensor:
        out: Tensor = self.out(self.bn(self.fc(torch.cat([e, torch.eye(o.CLASSES)[y]], 1))).clamp(min=0))
        return out


def started(method: Any) -> Server:
    """A server after some rounds: nothing of it is at its start."""
    server, rng = method.init_server(o.key()), torch.Generator().manual_seed(3)
    made = server.generator
    moved = tree.map(lambda a: a + 0.3 * torch.randn(a.shape, generator=rng, dtype=a.dtype), made.weights)
    made = Generator(moved, torch.randn(made.mean_H.shape, generator=rng), made.var_H + 0.4)
    return Server(o.model_of(START), made, optimiser_state(fedgen.Adam(), moved), torch.tensor(4.0), server.key)


@pytest.mark.parametrize("number", [1, 2, 9])
@pytest.mark.parametrize("options", [{}, {"alpha": 0.6, "beta": 2.0, "generated_batch": 4}, {"alpha": 0.0, "beta": 1.0},
                                     {"alpha": 3.0, "decay": 0.5, "steps": 5}])  # fmt: skip
def test_a_client_by_hand(options: dict[str, Any], number: int) -> None:
    method = methods.build("fedgen", SMALL | options, o.task())
    server, k = started(method), 1
    data = o.data(*ROWS[k])._replace(round=torch.tensor(number))
    _, up, _ = method.local(o.one(method, server, k), (), data, o.key(k))
    made = Net(server.generator, 3 + o.CLASSES).eval()
    x, y = ROWS[k]
    plan = o.batches(len(y), 9)[: options["steps"]] if "steps" in options else o.batches(len(y))
    fall = options.get("decay", 0.98) ** (number - 1)
    alpha, beta = (max(1e-4, start * fall) if start and number > 1 else 0.0
                   for start in (options.get("alpha", 10.0), options.get("beta", 0.0)))  # fmt: skip
    several = options.get("generated_batch", o.BATCH)
    every = iter(enumerate(plan))

    def gradient(p: o.Params, rows: np.ndarray) -> o.Params:
        step, _ = next(every)
        number_of_step = step % len(o.batches(len(y), 1)) + step // len(o.batches(len(y), 1)) * 2**20
        batch = Batch(torch.tensor(rows), torch.ones(len(rows)), number_of_step)
        label, noise, own = fedgen.client_draws(o.key(k), batch, o.CLASSES, several, 3)
        with torch.no_grad():
            z_G, z_B = made(label, noise).numpy(), made(torch.tensor(y[rows]), own).numpy()
        z = o.embed(p, x[rows])
        logit, fake = z @ p["U"].T + p["c"], z_B @ p["U"].T + p["c"]
        dl = o.error_back(logit, y[rows])
        dl += beta * (np.exp(log_softmax(logit, 1)) - np.exp(log_softmax(fake, 1))) / len(rows)
        dg = alpha * several / o.BATCH * o.error_back(z_G @ p["U"].T + p["c"], label.numpy())
        head = {"U": dl.T @ z + dg.T @ z_G, "c": dl.sum(0) + dg.sum(0)}
        return head | o.embed_back(p, x[rows], dl @ p["U"])

    end = o.descend(START, "WbUc", plan, gradient)
    for got, name in zip(tree.leaves(up.value.increment), ("W", "b", "U", "c"), strict=True):
        close(got, end[name] - START[name])
    close(up.value.head["weight"], end["U"])
    passes = options["steps"] * o.BATCH if "steps" in options else o.EPOCHS
    close(up.weight.seen_C * passes, np.bincount(np.concatenate([y[rows] for rows in plan]), minlength=o.CLASSES))


@pytest.mark.parametrize("teacher", ["logits", "losses", "product"])
@pytest.mark.parametrize("options", [{}, {"diversity": 0.0, "generator_weight_decay": 0.2}, {"decay": 0.7}])
def test_the_server_by_hand(options: dict[str, Any], teacher: str) -> None:
    """Four steps of torch's Adam on torch's layers; two rounds, so that its state goes on."""
    method = methods.build("fedgen", SMALL | options | {"teacher": teacher}, o.task())
    server = started(method)
    made = Net(server.generator, 3 + o.CLASSES).train()
    adam = torch.optim.Adam(made.parameters(), 0.01, weight_decay=options.get("generator_weight_decay", 1e-2))
    for ids in ((0, 1, 3), (1, 4)):
        before, falling = server, options.get("decay", 0.98) ** float(server.round)
        server, _, up, _ = o.round_of(method, server, dict.fromkeys(ids, ()), ROWS)
        heads = up.value.head
        seen_mC = 1 + torch.tensor(np.array([o.EPOCHS * np.bincount(ROWS[k][1], minlength=o.CLASSES) for k in ids]))
        known = torch.tensor([c for c in range(o.CLASSES) if any(c in ROWS[k][1] for k in ids)])
        key = fedgen.keys.fold(before.key, before.round.long())
        for step in range(4):
            batch = Batch(torch.arange(o.BATCH), torch.ones(o.BATCH), step)
            y, e = fedgen.server_draws(key, batch, known, 3)
            adam.zero_grad()
            adam.param_groups[0]["lr"] = 0.01 * falling
            z = made(y, e)
            logit = torch.stack([z @ heads["weight"][m].T + heads["bias"][m] for m in range(len(ids))])
            loss, apart = torch.zeros(()), torch.zeros(())
            for m in range(len(ids)):
                error = nn.functional.cross_entropy(logit[m], y, reduction="none")
                share = (seen_mC[m] / seen_mC.sum(0))[y]
                if teacher == "losses":
                    loss = loss + (share * error).mean()
                elif teacher == "product":
                    loss = loss + share.mean() * error.mean()
            if teacher == "logits":
                loss = nn.functional.cross_entropy(logit.mean(0), y)
            for i in range(o.BATCH):
                for j in range(o.BATCH):
                    apart = apart + ((e[i] - e[j]) ** 2).mean() * (z[i] - z[j]).abs().mean() / o.BATCH**2
            (loss + options.get("diversity", 1.0) * torch.exp(-apart)).backward()
            adam.step()
        want = dict(made.named_parameters())
        for name, w in server.generator.weights.items():
            # the gradient of a bias before a normalisation is rounding, which Adam divides by its own size
            close(w, want[name].detach(), rtol=0, atol=0.1 if name == "fc.bias" else 1e-7)
        close(server.generator.var_H, made.bn.running_var, rtol=0, atol=1e-7)
        with torch.no_grad():  # what does not depend on that bias
            y, e = torch.arange(4), torch.rand(4, 3)
            close(fedgen.generate(server.generator, y, e, o.CLASSES), made.eval()(y, e), rtol=0, atol=1e-6)
            made.train()
        sizes = [o.SIZES[k] for k in ids]
        mean = tree.mean(up.value.increment, torch.tensor(sizes).double())
        for got, old, change in zip(*(tree.leaves(t) for t in (server.model, before.model, mean)), strict=True):
            close(got, old + change)


def test_everybody_has_the_averaged_model() -> None:
    method = methods.build("fedgen", SMALL, o.task())
    server = started(method)
    for k in (0, 2, 99):
        down = o.one(method, server, k)
        client = method.personalise(down, (), o.data(*ROWS[2]), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(START, TEST))


# --- traps ------------------------------------------------------------------------------------------------------------


def test_the_first_round_is_fedavg_s() -> None:
    method, plain = methods.build("fedgen", SMALL, o.task()), methods.build("fedavg", {}, o.task())
    data = o.data(*ROWS[0])._replace(round=torch.tensor(1))
    start = method.init_server(o.key())
    got = method.local(o.one(method, start, 0), (), data, o.key())[1].value.increment
    want = plain.local(o.one(plain, start.model, 0), (), data, o.key())[1].value
    for a, b in zip(tree.leaves(got), tree.leaves(want), strict=True):
        close(a, b)


def test_draws_are_of_all_classes_and_differ_by_step_and_client() -> None:
    batch = Batch(torch.arange(5), torch.ones(5), 7)
    y, e, own = fedgen.client_draws(o.key(1), batch, 4, 4000, 3)
    assert np.abs(np.bincount(y) / 4000 - 0.25).max() < 0.03
    assert 0 <= float(e.min()) < 0.01 < 0.99 < float(e.max()) < 1
    assert abs(float(e.mean()) - 0.5) < 0.02
    assert own.shape == (5, 3)
    for other in (fedgen.client_draws(o.key(2), batch, 4, 4000, 3),
                  fedgen.client_draws(o.key(1), batch._replace(step=8), 4, 4000, 3)):  # fmt: skip
        assert not torch.equal(e, other[1])
        assert not torch.equal(own, other[2])


@pytest.mark.parametrize("lacking", [(0,), (3,), (0, 1, 2)])
def test_the_generator_learns_no_class_that_nobody_has(lacking: tuple[int, ...]) -> None:
    seen: list[Tensor] = []
    method = methods.build("fedgen", SMALL, o.task())
    x, y = ROWS[0]
    keep = ~np.isin(y, lacking)
    server = started(method)
    original = fedgen.server_draws
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedgen, "server_draws", lambda *a: seen.append(original(*a)[0]) or original(*a))
        o.round_of(method, server, {0: ()}, [(x[keep], y[keep])])
    assert {*torch.cat(seen).tolist()} <= {*range(4)} - {*lacking}


def test_batches_of_one_sample() -> None:
    """One has no spread: its normalised units are the shift alone."""
    method = methods.build("fedgen", SMALL, o.task(batch_size=1))
    after, _, _, _ = o.round_of(method, started(method), {0: (), 1: ()}, ROWS)
    assert tree.not_finite(after) is None


@pytest.mark.parametrize("factor", [1e-3, 0.0, -1.0])
def test_counts_that_were_changed_on_their_way_are_no_error(factor: float) -> None:
    """As by a bound on the norm of uploads, or by noise."""
    method = methods.build("fedgen", SMALL | {"teacher": "losses"}, o.task())
    server = started(method)
    _, _, up, _ = o.round_of(method, server, {0: (), 1: ()}, ROWS)
    value = tree.map(lambda a: factor * a, up.value)
    after, _ = method.aggregate(server, reduced(method.reduce, up._replace(value=value)), torch.tensor([0, 1]))
    assert tree.not_finite(after) is None


@pytest.mark.parametrize("pattern", ["head", "body", "*.bias"])
def test_weights_that_stay_at_a_client_are_refused(pattern: str) -> None:
    with pytest.raises(InputError, match=r"method fedgen cannot take personal=.*leave out this method"):
        methods.build("fedgen", {}, o.task(), personal_weights=pattern)


@pytest.mark.parametrize("options", [{"decay": 0}, {"decay": 1.1}, {"noise": 0}, {"teacher": "mean"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fedgen", options)
