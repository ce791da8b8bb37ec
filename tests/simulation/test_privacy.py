"""Differential privacy of the server's results: the mechanism against numpy, its cost against dp-accounting, an audit.

The audit is that of Steinke, Nasr & Jagielski, Privacy Auditing with One (1) Training Run, NeurIPS 2023.
"""

from __future__ import annotations

import math
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy

import toy

import idiolect as idl
from idiolect.core import keys, reduce, tree
from idiolect.core.errors import InputError
from idiolect.core.method import Data, Down, Method, Up, unchanged
from idiolect.core.option_spec import Spec
from idiolect.core.reduce import needs_each, needs_exact
from idiolect.core.reduction import Reduction, Sums, reduced
from idiolect.data import FederatedData
from idiolect.engines import Sequential
from idiolect.methods import registry
from idiolect.simulation import Job, Record, State, begin, fit, reception
from idiolect.simulation.attacks import Attackers, NotANumber
from idiolect.simulation.privacy import ORDERS, GaussianMechanism, Ledger, Releases, mechanism_of
from idiolect.simulation.sampling import participants
from idiolect.training import add, stateless, trial

ZERO_OUT = dp_accounting.NeighboringRelation.REPLACE_SPECIAL


def test_epsilon_is_dp_accountings() -> None:
    for share, multiplier, rounds, delta in ((1.0, 2.0, 30, 1e-5), (0.25, 1.0, 8, 1e-3)):
        ledger = Ledger(GaussianMechanism(norm=3.0, noise_multiplier=multiplier, delta=delta))
        for _ in range(rounds):
            ledger.add(share)
        event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(multiplier))
        by_hand = dp_accounting.rdp.RdpAccountant(ORDERS, ZERO_OUT).compose(event, rounds).get_epsilon(delta)
        assert ledger.epsilon == pytest.approx(by_hand, rel=1e-12)
        tight = dp_accounting.pld.PLDAccountant(ZERO_OUT, 1e-3).compose(event, rounds).get_epsilon(delta)
        assert tight <= ledger.epsilon <= 1.3 * tight, "an upper bound, and not a loose one"


def test_epsilon_of_full_rounds_from_the_normal_distribution() -> None:
    """T rounds of everybody are one Gaussian mechanism of mu = sqrt(T) / multiplier (Dong, Roth & Su, 2022, Cor. 1)."""
    ledger = Ledger(GaussianMechanism(norm=1.0, noise_multiplier=4.0))
    ledger.add(1.0, rounds=9)
    epsilon, mu = ledger.epsilon, 3 / 4
    delta = stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2)
    assert 1e-8 < delta < 1e-5, "the exact delta at this epsilon is below the stated one"


def _ups(count: int) -> tuple[list[Up], np.ndarray]:
    """Uploads of a mean ``m`` and a sum ``s``, and the numbers of both."""
    numbers = np.random.default_rng(1).normal(size=(count, 5)) * 4
    weight = torch.arange(1.0, count + 1)
    rows = torch.from_numpy(numbers)
    return [Up({"m": rows[k, :2], "s": rows[k, 2:]}, weight[k]) for k in range(count)], numbers


DECLARED = {"m": reduce.mean(), "s": reduce.sum()}


def test_the_mechanism_is_its_equations() -> None:
    ups, numbers = _ups(7)
    mechanism = GaussianMechanism(norm=2.0, noise_multiplier=0.5)
    clipped = numbers * np.minimum(1, 2.0 / np.linalg.norm(numbers, axis=1))[:, None]
    bounded = [mechanism.bound(up) for up in ups]
    reduction = Reduction(DECLARED, bounded[0])
    sums = mechanism.add_noise(reduction.of(tree.stack(bounded)), 10.0, keys.key(4))
    one = reduction.reduced(sums, count=10.0)
    # the noise by hand
    noise = [keys.normal(keys.fold(keys.key(4), k), (n,), torch.float64).numpy() for k, n in enumerate((2, 3))]
    np.testing.assert_allclose(one.value["m"].numpy(), (clipped[:, :2].sum(0) + 1.0 * noise[0]) / 10)
    np.testing.assert_allclose(one.value["s"].numpy(), clipped[:, 2:].sum(0) + 1.0 * noise[1])
    assert float(one.weight) == 10.0


def test_what_is_not_finite_counts_as_zeros() -> None:
    up = GaussianMechanism(norm=1.0, noise_multiplier=1.0).bound(
        Up({"a": torch.tensor([1.0, torch.inf])}, torch.tensor(9.0))
    )
    assert up.value["a"].tolist() == [0.0, 0.0]
    assert float(up.weight) == 1.0


@pytest.mark.parametrize("name", ["fedavg", "fedlda", "pfedfda", "fedcr", "scaffold", "fedem", "fedrod"])
def test_one_client_changes_what_the_method_gets_by_the_norm(name: str) -> None:
    """With the same noise, the sum with one client's upload zeroed is the norm away, whatever the client sent."""
    method = toy.builder(name)(toy.task())
    server, client = method.init_server(keys.start(3)), method.init_client(keys.start(3), torch.tensor(0))
    down = method.send(server, torch.tensor([0]))
    data = toy.shared()
    ups = [method.local(down, client, toy.rows(data, i), keys.key(i))[1] for i in (0, 1, 5)]
    mechanism = GaussianMechanism(norm=0.01, noise_multiplier=1e-4)
    bounded = [mechanism.bound(up) for up in ups]
    without = [bounded[0]._replace(value=tree.zeros(bounded[0].value)), *bounded[1:]]
    reduction = Reduction(method.reduce, bounded[0])
    a, b = (mechanism.add_noise(reduction.of(tree.stack(u)), 3.0, keys.key(0)).value for u in (bounded, without))
    apart = sum(float((x - y).square().sum()) for x, y in zip(a, b, strict=True))
    assert math.sqrt(apart) == pytest.approx(0.01, rel=1e-5)


PRIVACY = GaussianMechanism(norm=0.1, noise_multiplier=1.0, delta=0.01)


def _job(name: str = "fedavg", **how: Any) -> Job:
    return Job(name, partial(toy.builder(name), toy.task()), toy.shared(), 3, privacy=PRIVACY, **how)


def _run(job: Job, engine: Any, rounds: int = 3, **how: Any) -> tuple[State, list[Record]]:
    records: list[Record] = []
    with engine as e:
        return fit(job, e, rounds=rounds, on_round=lambda s, new, t: records.extend(new), **how), records


@pytest.mark.parametrize(("method", "shares"), [("fedavg", (0.4, 0.4, 0.4)), ("feddbe", (1.0, 0.4, 0.4))])
def test_epsilon_is_recorded_in_every_round_and_after_a_resume(method: str, shares: tuple[float, ...]) -> None:
    """All clients take part in the first round of FedDBE."""
    end, records = _run(_job(method), Sequential(), participation=0.4)
    spent = {r.round: r.value for r in records if r.metric == "epsilon"}
    ledger = Ledger(PRIVACY)
    for number, share in enumerate(shares, 1):
        ledger.add(share)
        assert spent[number] == pytest.approx(ledger.epsilon)
    half, _ = _run(_job(method), Sequential(), 2, participation=0.4)
    other, _ = _run(_job(method, secret=2**62 + 1), Sequential(), 2, participation=0.4)
    assert not torch.equal(tree.leaves(half.server)[0], tree.leaves(other.server)[0]), "the noise is of another seed"
    more, again = _run(_job(method), Sequential(), 3, participation=0.4, state=half)
    assert {r.value for r in again if r.metric == "epsilon"} == {spent[3]}
    assert torch.equal(tree.leaves(more.server)[0], tree.leaves(end.server)[0])


def test_who_takes_part_is_as_secret_as_the_noise() -> None:
    secret = 2**62 + 1
    for job, seed in ((_job(), 3), (_job(secret=secret), secret)):
        _, records = _run(job, Sequential(), 3, participation=0.4)
        for number in (1, 2, 3):
            drawn = participants(seed, number, 6, 0.4, independent=True)
            assert sorted({r.client for r in records if r.round == number and r.stage == "wire"}) == (drawn or [0])


def test_other_sums_have_other_noise_where_it_is_secret() -> None:
    """Else two servers' models of one round, with and without a client, would differ by its upload alone."""
    value = (torch.zeros(1000),)
    one, other = (Sums(v, (torch.ones(()),)) for v in (value, (torch.ones(1000),)))
    reduction = Reduction(reduce.increment(), Up(value[0], torch.ones(())))

    def noisy(job: Job, sums: Sums) -> torch.Tensor:
        return tree.leaves(reception.reduce(job, 1, reduction, sums, None, 1.0).value)[0]

    job = _job(secret=2**62 + 1)
    assert torch.equal(noisy(job, one), noisy(job, one))
    assert (noisy(job, other) - noisy(job, one)).std() == pytest.approx(0.1 * 2**0.5, rel=0.1)
    assert (noisy(_job(), other) - noisy(_job(), one)).std() == pytest.approx(0, abs=1e-6)


def test_noisy_sums_are_counted_on_disk(tmp_path: Path) -> None:
    """Three sums in two whole rounds are three rounds' worth."""
    file, job = tmp_path / "releases", ("fedavg", 3)
    releases, others = Releases(file, job), Releases(file, ("fedavg", 4))
    assert releases.count() == 0
    releases.add(), others.add(), releases.add()
    with file.open("a") as cut:
        cut.write('["fed')
    releases.add()
    assert (Releases(file, job).count(), others.count()) == (3, 1)
    spending, ledger = reception.Spending(_job(releases=releases)), Ledger(PRIVACY)
    spending.add(0.4, 2), spending.add_repeats(0.4, 2)
    ledger.add(0.4, 4)
    assert spending.after(0.4, Sums((torch.zeros(1),), (torch.ones(()),))) == pytest.approx(ledger.epsilon)


def test_a_round_without_participants_is_noise() -> None:
    job = _job(attacks=(Attackers(frozenset({3}), NotANumber()),))
    start = tree.leaves(begin(job.build(), 6, 3).server)
    end, records = _run(job, Sequential(), 1, participation=0.001)
    assert {r.client for r in records if r.stage == "wire"} == {0}
    moved = torch.cat([(a - b).flatten() for a, b in zip(tree.leaves(end.server), start, strict=True)])
    assert float(moved.std()) == pytest.approx(0.1 / (6 * 0.001), rel=0.2)
    _, refused = _run(job, Sequential(), 1)
    assert [r.client for r in refused if r.metric == "refused"] == [3]


# --- an audit: does somebody who sees the model learn more of the clients than epsilon says?

CANARIES, ROUNDS = 150, 3


def _canary(task: Any) -> Method:
    """Client i sends a large vector on axis i, whose sign only it knows (its label)."""

    def local(down: Down, client: Any, data: Data, key: torch.Tensor) -> tuple[Any, Up, dict[str, torch.Tensor]]:
        at, sign = data.row_N[0], 2.0 * data.y_R[data.row_N[0]] - 1
        return client, Up(torch.zeros(CANARIES).index_fill(0, at, 1e3) * sign, torch.tensor(50.0)), {}

    def predict(down: Down, client: Any, x_B: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x_B), 2), math.log(0.5))

    return Method(
        lambda key: torch.zeros(CANARIES), stateless, lambda server, ids: Down(server), local, reduce.increment(), add,
        unchanged, predict,
    )  # fmt: skip


def _canaries() -> FederatedData:
    rows = tuple(torch.tensor([i]) for i in range(CANARIES))
    y_R = torch.from_numpy(np.random.default_rng(2).integers(2, size=CANARIES))
    return FederatedData("canaries", torch.zeros(CANARIES, 1), y_R, rows, rows, 2, ("0", "1"), (0.0,), (1.0,),
                         ("",) * CANARIES)  # fmt: skip


def _p_value(right: int, guesses: int, epsilon: float, delta: float) -> float:
    """The most likely probability of so many right guesses if the mechanism is (epsilon, delta)-private (Theorem 5.2).

    beta + 2 m delta alpha, for r guesses about m canaries: beta = P(W >= v), alpha = max_i P(v - i <= W < v) / i,
    W ~ Binomial(r, e^epsilon / (1 + e^epsilon)).
    """
    each = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    below = np.cumsum(each.pmf(right - 1 - np.arange(right)))
    alpha = (below / np.arange(1, right + 1)).max(initial=0.0)
    return min(1.0, float(each.sf(right - 1)) + 2 * guesses * delta * alpha)


def _empirical(right: int, guesses: int, delta: float) -> float:
    """The largest epsilon that so many right guesses refute with 95 % confidence."""
    low, high = 0.0, 20.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if _p_value(right, guesses, middle, delta) < 0.05 else (low, middle)
    return low


@pytest.mark.parametrize("broken", [False, True])
def test_the_audit_finds_less_than_what_is_stated(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary's bit turns its upload round, which is two steps of zeroing: the stated epsilon is that of twice the
    norm. The broken mechanism adds a tenth of the noise, and the audit finds it."""
    mechanism = GaussianMechanism(norm=1.0, noise_multiplier=8.0)
    if broken:
        whole = GaussianMechanism.add_noise
        small = GaussianMechanism(norm=1.0, noise_multiplier=0.8)
        monkeypatch.setattr(GaussianMechanism, "add_noise", lambda self, *a: whole(small, *a))
    data = _canaries()
    end, records = _run(
        Job("canary", partial(_canary, None), data, 0, privacy=mechanism), Sequential(), ROUNDS, evaluate_every=ROUNDS
    )
    ledger = Ledger(GaussianMechanism(norm=1.0, noise_multiplier=8.0))
    ledger.add(1.0, ROUNDS)
    assert {r.value for r in records if r.metric == "epsilon" and r.round == ROUNDS} == {ledger.epsilon}
    turned = Ledger(GaussianMechanism(norm=1.0, noise_multiplier=4.0))
    turned.add(1.0, ROUNDS)
    right = int(((end.server > 0).long() == data.y_R).sum())
    found = _empirical(right, CANARIES, 1e-5)
    if broken:
        assert found > turned.epsilon, (right, found)
    else:
        assert found < turned.epsilon, (right, found)
        assert right < 0.75 * CANARIES


# --- who can have it


def test_which_methods_qualify() -> None:
    """Read off the methods' pages: what their servers need of the uploads."""
    sums = {"fedavg", "fedlda", "pfedfda", "fedcr", "scaffold", "fedem", "fedproto", "local"}
    each = {"fedpac", "fedfomo", "hypcluster", "pfedhn"}
    for name in sums | each:
        assert reduce.needs_each(toy.builder(name)(toy.task()).reduce) == (name in each), name


@pytest.mark.parametrize("name", sorted(set(registry.names()) - {"fedkd"}))  # its page says what privacy does to it
def test_a_server_that_takes_privacy_computes_with_no_count(name: str) -> None:
    """Of one upload it makes the same with the weights that were sent and with weights of 1."""
    method, rows = toy.builder(name)(toy.task()), toy.rows(toy.shared(), 0)
    one = trial.trial(method, [rows])
    sums = not needs_each(method.reduce) and not needs_exact(method.reduce)
    if not sums or not Reduction(method.reduce, one.ups[0]).counts_clients:
        return  # it is refused
    up, ids = tree.stack(one.ups), torch.tensor([0])
    servers = [
        method.aggregate(one.server, reduced(method.reduce, up._replace(weight=weight)), ids)[0]
        for weight in (up.weight, tree.map(torch.ones_like, up.weight))
    ]
    for got, wanted in zip(*map(tree.leaves, servers), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"methods": "local,fedpac"}, "method fedpac cannot take privacy, because its server needs the upload of each"),
        ({"methods": "fedproto"}, "method fedproto cannot take privacy, because its server weighs uploads by the"),
        ({"methods": "ccvr"}, "method ccvr cannot take privacy, because its server needs parts of the uploads as they"),
        ({"methods": "fedavg", "robust": "median"}, "privacy and robust do not go together"),
        ({"methods": "fedavg", "clients": 50}, "delta=0.02 allows to publish one of 50 clients"),
    ],
)
def test_studies_that_cannot_be_private(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    study = idl.Study(**{"clients": 3, "rounds": 1} | settings, privacy="gaussian:norm=1,noise_multiplier=1,delta=0.02")
    with pytest.raises(InputError, match=re.escape(said)):
        idl.run(study, tmp_path / "run", engine="sequential")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"privacy": "gaussian:norm=1,noise_multiplier=1,delta=0.02"}, "cannot take privacy"),
        ({"robust": "median"}, "cannot take a robust rule"),
        ({"robust": "norm_bound"}, "cannot take a robust rule"),
        ({"uploads": ["clip:norm=1"]}, "cannot take steps that change uploads"),
    ],
)
@pytest.mark.parametrize(
    "use",
    [
        {"methods": "fedcgs"},
        {"methods": "ccvr"},
        {"methods": "fedlda:head=recent"},
        {"methods": "fd"},
        {"methods": "fedkd:compress=weights"},
        {"methods": "fedavg", "model": "resnet18_cifar:norm=batch,buffers=aggregate"},
        {"methods": "fedshrink", "task": "regression"},
    ],
    ids=lambda use: use["methods"],
)
def test_uploads_that_must_come_as_they_were_sent(
    use: dict[str, Any], how: dict[str, Any], said: str, tmp_path: Path
) -> None:
    if "task" in use:
        table = tmp_path / "numbers.csv"
        table.write_text("x,y,site\n" + "".join(f"{k},{k * k},{'abc'[k % 3]}\n" for k in range(60)))
        use = use | {"data": str(table), "target": "y", "client_column": "site"}
    study = idl.Study(**{"clients": 3, "rounds": 1} | use | how)
    fix = f"leave out {next(iter(how))}, or this method"
    sentence = f"{said}, because its server needs parts of the uploads as they were sent: {fix}"
    with pytest.raises(InputError, match=sentence):
        idl.run(study, tmp_path / "run", engine="sequential")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("step", ["clip:norm=1", "top_k:share=0.1", "quantise:bits=8"])
@pytest.mark.parametrize("name", ["apple", "fedamp", "fedap", "fedcac", "fedcross", "fedfomo", "pfedsim"])
def test_whole_models_are_not_cut(name: str, step: str, tmp_path: Path) -> None:
    study = idl.Study(methods=name, clients=3, rounds=1, local_epochs=1, uploads=[step], protocol={"validation": 0.2})
    if step.startswith("quantise"):
        assert not idl.run(study, tmp_path / "run", engine="sequential").diverged
        return
    with pytest.raises(
        InputError, match=f"{name} cannot take clip or top_k, because its clients send whole .*out of uploads, or"
    ):
        idl.run(study, tmp_path / "run", engine="sequential")


def test_a_study_says_what_it_spent(tmp_path: Path) -> None:
    spec = "gaussian:norm=1,noise_multiplier=2,delta=0.001"
    study = idl.Study(clients=4, rounds=2, local_epochs=1, methods="local,fedavg", privacy=spec)
    assert mechanism_of(Spec.parse(spec)) == GaussianMechanism(norm=1.0, noise_multiplier=2.0, delta=0.001)
    result = idl.run(study, tmp_path / "run", engine="sequential")
    ledger = Ledger(mechanism_of(Spec.parse(spec)))
    ledger.add(1.0, 2)
    spent = result.records.query("metric == 'epsilon'")
    assert set(spent["method"]) == {"fedavg"}, "local sends nothing"
    assert spent["value"].max() == pytest.approx(ledger.epsilon)
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"epsilon {ledger.epsilon:.2f} at delta 0.001 after 2 rounds" in page
