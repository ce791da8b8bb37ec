"""Hostile clients: what they send, who they are, and what happens without and with a defence."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy

import toy

import idiolect as idl
from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.errors import Diverged, InputError
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.option_spec import Spec
from idiolect.engines import Sequential
from idiolect.simulation import Job, Record, fit
from idiolect.simulation.attacks import (
    Attackers,
    GaussianNoise,
    Inflate,
    LabelFlip,
    NotANumber,
    SignFlip,
    attack_of,
    attackers,
    complete_attack,
    flip_labels,
    on_uploads,
)
from idiolect.simulation.robust import NormBound

KEY = keys.key(5)
VALUE = {"a": torch.tensor([[3.0, -4.0], [0.0, 1.0]]), "n": torch.tensor([2, 3])}


def test_what_attackers_send() -> None:
    a = VALUE["a"].numpy()
    np.testing.assert_array_equal(SignFlip(scale=2.0)(VALUE, KEY)["a"].numpy(), -2 * a)
    np.testing.assert_array_equal(Inflate(factor=10.0)(VALUE, KEY)["a"].numpy(), 10 * a)
    assert np.isnan(NotANumber()(VALUE, KEY)["a"].numpy()).all()
    large = {"a": torch.ones(100, 100), "b": torch.ones(100, 100)}
    noisy = GaussianNoise(std=0.5)(large, KEY)
    assert abs(float(noisy["a"].mean())) < 0.5 * 4 / 100, "the honest value is gone"
    assert float(noisy["a"].std()) == pytest.approx(0.5, rel=0.03)
    assert not torch.equal(noisy["a"], noisy["b"])
    assert torch.equal(noisy["a"], GaussianNoise(std=0.5)(large, KEY)["a"])
    for attack in (SignFlip(), GaussianNoise(), NotANumber(), Inflate()):
        assert torch.equal(attack(VALUE, KEY)["n"], VALUE["n"]), "whole numbers are left as they are"


def test_labels_are_flipped_in_training_samples_of_attackers_alone() -> None:
    clean = toy.data()
    data = flip_labels(clean, [Spec.parse("label_flip:clients=1")])
    y, flipped = clean.y_R.numpy(), data.y_R.numpy()
    rows = clean.train[1].numpy()
    np.testing.assert_array_equal(flipped[rows], toy.CLASSES - 1 - y[rows])
    others = np.setdiff1d(np.arange(len(y)), rows)
    np.testing.assert_array_equal(flipped[others], y[others])
    assert flip_labels(clean, [Spec.parse("nan:clients=1")]) is clean


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("sign_flip:clients=0-1,scale=3", SignFlip(scale=3.0)), ("label_flip:clients=1", LabelFlip()),
        ("nan", "attack nan needs clients: write nan:clients=0-3"), ("nun:clients=1", "did you mean 'nan'"),
        ("noise:clients=1,std=0", "std=0"),
    ],
)  # fmt: skip
def test_attacks_by_name(spec: str, said: Any) -> None:
    if isinstance(said, str):
        with pytest.raises(InputError, match=re.escape(said)):
            attack_of(Spec.parse(spec))
    else:
        assert attack_of(Spec.parse(spec)) == said
        assert attack_of(complete_attack(Spec.parse(spec))) == said


def test_who_attacks() -> None:
    specs = [Spec.parse("sign_flip:clients=0-1"), Spec.parse("label_flip:clients=2")]
    assert list(attackers(specs, 4)) == [0, 1, 2]
    assert [a.clients for a in on_uploads(specs, 4)] == [{0, 1}], "labels are flipped in the data"
    with pytest.raises(InputError, match="there is no client 4"):
        attackers([Spec.parse("nan:clients=4")], 4)
    with pytest.raises(InputError, match="all 2 clients attack: leave at least one honest"):
        attackers([Spec.parse("nan:clients=0-1")], 2)


def _job(**how: Any) -> Job:
    return Job("fedavg", partial(toy.builder("fedavg"), toy.task()), toy.shared(), 3, **how)


def _run(job: Job, engine: Any, **how: Any) -> tuple[list[torch.Tensor], list[Record]]:
    records: list[Record] = []
    with engine as e:
        end = fit(job, e, rounds=1, on_round=lambda s, new, t: records.extend(new), **how)
    return tree.leaves(end.server), records


def test_an_attack_is_in_the_mean() -> None:
    """FedAvg with a client that sends minus twice its increment, from the honest increments by hand."""
    job = _job(attacks=(Attackers(frozenset({1}), SignFlip(scale=2.0)),))
    method, total = job.build(), float(sum(toy.SIZES))
    server = method.init_server(keys.start(3))
    down = method.send(server, torch.tensor([0]))
    ups = [method.local(down, (), toy.rows(job.data, i), keys.key(3, 1, i, "local"))[1].value for i in range(6)]
    factor = [n / total * (-2 if i == 1 else 1) for i, n in enumerate(toy.SIZES)]
    got, _ = _run(job, Sequential())
    for k, (a, start) in enumerate(zip(got, tree.leaves(server), strict=True)):
        step = sum(f * tree.leaves(u)[k].double().numpy() for f, u in zip(factor, ups, strict=True))
        np.testing.assert_allclose(a.numpy(), start.numpy() + step, rtol=1e-5, atol=1e-6)


def test_nan_ends_a_run_without_a_defence_and_is_refused_with_one() -> None:
    attacks = (Attackers(frozenset({4}), NotANumber()),)
    with pytest.raises(Diverged, match=r"fedavg: client 4, round 1, upload: value/body/1.weight is not a finite"):
        _run(_job(attacks=attacks), Sequential())
    got, records = _run(_job(attacks=attacks, robust=NormBound(multiple=1e6)), Sequential())
    assert [(r.client, r.value) for r in records if r.metric == "refused"] == [(4, 1.0)]
    assert all(bool(a.isfinite().all()) for a in got)
    with pytest.raises(Diverged, match="round 1, uploads: none is finite"):
        _run(_job(attacks=(Attackers(frozenset(range(6)), NotANumber()),), robust=NormBound()), Sequential())


def test_who_sends_nan_has_no_model_after_its_training() -> None:
    """Of its upload alone there is no model; the other clients have theirs."""
    build = partial(methods.build, "fedavg", {}, toy.task())
    job = _job(attacks=(Attackers(frozenset({4}), NotANumber()),), robust=NormBound())._replace(build=build)
    _, records = _run(job, Sequential(), protocol=Protocol(also=("trained",)))
    for stage, clients in (("personalised", {0, 1, 2, 3, 4, 5}), ("trained", {0, 1, 2, 3, 5})):
        assert {r.client for r in records if (r.stage, r.metric) == (stage, "accuracy")} == clients


def test_a_study_with_attackers_shows_the_honest_clients(tmp_path: Path) -> None:
    study = idl.Study(
        clients=4, rounds=1, local_epochs=1, methods="fedavg", attacks="sign_flip:clients=0,noise:clients=1"
    )
    assert [str(s) for s in study.attacks] == ["sign_flip:clients=0,scale=1.0", "noise:clients=1,std=1.0"]
    result = idl.run(study, tmp_path / "run", engine="sequential")
    assert idl.Study.read(tmp_path / "run" / "study.yaml").attacks == study.attacks
    whole = result.records.query("stage == 'personalised' and metric == 'accuracy'")
    assert sorted(whole["client"]) == [0, 1, 2, 3], "attacked clients are recorded"
    honest = whole[whole["client"] >= 2]["value"].mean()
    assert result.accuracy().item() == pytest.approx(honest, abs=1e-12)
    assert list(result.client_accuracy().index) == [2, 3]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "sign_flip (scale 1.0): client 0; noise (std 1.0): client 1" in page
    said = "Accuracy is of the 2 honest clients: attackers (0, 1) are recorded, not counted."
    assert said in page
    assert said in str(result.table().caption)
