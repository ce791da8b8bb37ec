"""Robust rules against numpy and scipy, and what they do to classes that few clients have."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy

import toy

import idiolect as idl
from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.core.reduction import Reduction, reduced
from idiolect.engines import Sequential
from idiolect.simulation import Job, Record, fit
from idiolect.simulation.attacks import Attackers, Inflate
from idiolect.simulation.robust import Median, NormBound, TrimmedMean, rule_of

DRAW = np.random.default_rng(0)
DENSE = DRAW.normal(size=(10, 3, 4))


def _all(rule: Any, a: np.ndarray) -> np.ndarray:
    value, _ = rule({"a": torch.from_numpy(a)}, [None])
    return np.asarray(value["a"].numpy())


def test_trimmed_mean_is_scipys() -> None:
    for share in (0.0, 0.1, 0.2, 0.4):
        want = stats.trim_mean(DENSE, share, axis=0)
        np.testing.assert_allclose(_all(TrimmedMean(share=share), DENSE), np.broadcast_to(want, DENSE.shape))
    ordered = np.sort(DENSE, axis=0)
    want = ordered[2:-2].mean(0)  # ceil(0.15 * 10) = 2
    np.testing.assert_allclose(_all(TrimmedMean(share=0.15), DENSE)[0], want)
    np.testing.assert_allclose(_all(TrimmedMean(share=0.45), DENSE[:3])[0], np.sort(DENSE[:3], axis=0)[1])
    np.testing.assert_allclose(_all(TrimmedMean(share=0.45), DENSE[:1]), DENSE[:1])


def test_median_is_numpys() -> None:
    for m in (1, 2, 7, 10):
        want = np.median(DENSE[:m], axis=0)
        np.testing.assert_allclose(_all(Median(), DENSE[:m]), np.broadcast_to(want, DENSE[:m].shape))


def test_norm_bound_is_of_each_part() -> None:
    value = {
        "body": {"w": torch.from_numpy(DENSE), "b": torch.from_numpy(DENSE[:, 0])},
        "sums": torch.from_numpy(1e4 * DENSE[::-1].copy()),
    }
    value["body"]["w"][3] *= 50
    parts = {
        "body": np.concatenate([value["body"]["w"].numpy().reshape(10, -1), value["body"]["b"].numpy()], axis=1),
        "sums": value["sums"].numpy().reshape(10, -1),
    }
    norm = {name: np.linalg.norm(part, axis=1) for name, part in parts.items()}
    factor = {name: np.minimum(1, 1.2 * np.median(n) / n) for name, n in norm.items()}
    got, least = NormBound(multiple=1.2)(value, [None] * 3)
    np.testing.assert_allclose(got["body"]["b"].numpy(), value["body"]["b"].numpy() * factor["body"][:, None])
    np.testing.assert_allclose(got["sums"].numpy(), value["sums"].numpy() * factor["sums"][:, None, None])
    np.testing.assert_allclose(least.numpy(), np.minimum(*factor.values()))
    assert factor["body"][3] < 0.1
    single, _ = NormBound(multiple=1.0)(torch.zeros(4, 2), [None])
    assert torch.equal(single, torch.zeros(4, 2))


def test_a_class_that_few_have_moves_by_those_that_have_it() -> None:
    """Clients that lack a class send 0, or rounding of it; the rule is among the others, and cuts as many as before."""
    a = np.zeros((10, 3, 3))
    a[:, 2] = 1.0
    a[:5, 0] = DENSE[:5, 0, :3] + 3.0  # five clients have class 0
    a[5:7, 1] = 1.0  # two have class 1: not more than twice the one that is cut
    a[7:, 1] = 1e-15
    got = _all(TrimmedMean(share=0.1), a)
    want = np.sort(a[:5, 0], axis=0)[1:-1].mean(0)
    np.testing.assert_allclose(got[:5, 0], np.broadcast_to(want, (5, 3)))
    np.testing.assert_array_equal(got[5:, 0], 0)
    np.testing.assert_array_equal(got[:, 2], 1)
    np.testing.assert_array_equal(got[:, 1], 0)
    np.testing.assert_allclose(_all(Median(), a)[:, 1], 0, atol=1e-12)


def test_hostile_numbers_do_not_leave_the_range_of_the_honest() -> None:
    for hostile in (1e9, -1e9, 0.0, 1e-12):
        a = DENSE.copy()
        a[:2] = hostile
        got = _all(TrimmedMean(share=0.2), a)[5]
        assert (got >= a[2:].min(0)).all()
        assert (got <= a[2:].max(0)).all()
        alone = np.zeros((10, 4))
        alone[:2] = hostile or 1.0
        np.testing.assert_array_equal(_all(TrimmedMean(share=0.2), alone), 0)


def _job(name: str, rule: Any, **how: Any) -> Job:
    return Job(name, partial(toy.builder(name), toy.task()), toy.shared(), 3, robust=rule, **how)


@pytest.mark.parametrize("name", ["fedavg", "fedcr", "scaffold", "fedproto", "fedlda"])
def test_identical_uploads_are_aggregated_as_without_a_rule(name: str) -> None:
    """Means become the estimate, and sums as many times the estimate as there are clients."""
    job = _job(name, None)
    method = job.build()
    server, client = method.init_server(keys.start(3)), method.init_client(keys.start(3), torch.tensor(0))
    up = method.local(method.send(server, torch.tensor([0])), client, toy.rows(job.data, 0), keys.key(1))[1]
    ups = tree.stack([up] * 5)
    want, _ = method.aggregate(server, reduced(method.reduce, ups), torch.arange(5))
    for rule in (TrimmedMean(share=0.2), Median(), NormBound(multiple=1.0)):
        value, _ = rule(ups.value, Reduction(method.reduce, up).present(ups))
        got, _ = method.aggregate(server, reduced(method.reduce, ups._replace(value=value)), torch.arange(5))
        for a, b in zip(tree.leaves(got), tree.leaves(want), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["fedavg", "fedpac"])
def test_a_bound_acts_in_a_round_and_is_recorded(name: str) -> None:
    records: list[Record] = []
    job = _job(name, NormBound(multiple=3.0), attacks=(Attackers(frozenset({2}), Inflate(factor=1e6)),))
    with Sequential() as engine:
        bounded = fit(job, engine, rounds=1, on_round=lambda s, new, t: records.extend(new))
        plain = fit(job._replace(robust=None), engine, rounds=1)
    [factor] = [r.value for r in records if r.metric == "scaled" and r.client == 2]
    assert factor < 1e-4
    size = [max(float(a.abs().max()) for a in tree.leaves(s.server)) for s in (bounded, plain)]
    assert size[0] < 1e-3 * size[1]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("trimmed_mean", TrimmedMean(share=0.2)), ("median", Median()),
        ("norm_bound:multiple=3", NormBound(multiple=3)),
        ("trimmed_mean:share=0.5", "share=0.5"), ("krum", "unknown robust 'krum'"),
    ],
)  # fmt: skip
def test_rules_by_name(spec: str, said: Any) -> None:
    if isinstance(said, str):
        with pytest.raises(InputError, match=re.escape(said)):
            rule_of(Spec.parse(spec))
    else:
        assert rule_of(Spec.parse(spec)) == said


@pytest.mark.parametrize("name", ["fedpac", "fedfomo", "hypcluster", "pfedhn"])
def test_methods_that_need_each_upload_refuse_a_mean(name: str, tmp_path: Path) -> None:
    study = idl.Study(clients=3, rounds=1, methods=["local", name], robust="median")
    with pytest.raises(InputError, match=f"method {name} cannot take this robust rule, because its server needs"):
        idl.run(study, tmp_path / "run", engine="sequential")
    assert not (tmp_path / "run").exists()
