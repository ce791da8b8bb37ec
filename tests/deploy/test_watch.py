"""Watching a site: alarms at the stated rate, proportions by the paper's equation, and a model for new proportions."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binom
from torch import Tensor

import idiolect as idl
from idiolect import cli
from idiolect.core import keys
from idiolect.deploy import reference
from idiolect.deploy.bundle import Bundle, log_probabilities
from idiolect.deploy.export import export
from idiolect.deploy.harm import fold_numbers
from idiolect.deploy.join import join
from idiolect.deploy.reweighted import reweighted
from idiolect.deploy.samples import read
from idiolect.deploy.watch import _features, adapt, sentences, watch
from idiolect.engines.threads import OneThread
from idiolect.statistics import shift

CLASSES, WIDTH = 3, 12


def samples(where: object, bundle: Bundle, target: str = "diagnosis"):
    return read(where, bundle.about.inputs, bundle.about.classes, target)


@pytest.fixture(scope="module")
def site(of_table: Bundle, graz: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("watched")
    graz[:90].to_csv(folder / "graz.csv", index=False)
    return join(of_table, samples(folder / "graz.csv", of_table), folder / "site", ships="personal")


@pytest.fixture
def call(
    site: Bundle, graz: pd.DataFrame, tmp_path: Path, monkeypatch, capsys
) -> Callable[[str], tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    rest = graz[90:]
    rest.drop(columns="diagnosis").to_csv("new.csv", index=False)
    rest[:5].to_csv("few.csv", index=False)
    rest[rest["diagnosis"] == "malignant"].to_csv("malignant.csv", index=False)
    rest.assign(smoothness=rest["smoothness"] + 0.04, texture=rest["texture"] + 12).to_csv("moved.csv", index=False)

    def run(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(shlex.split(line.format(s=site.folder)))
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def gaussians(rng: np.random.Generator, count: int, share: np.ndarray, far: float = 0.0) -> tuple[Tensor, Tensor]:
    """Samples of classes with means in a fixed simplex and unequal variances."""
    y = rng.choice(CLASSES, count, p=share)
    z = 2 * np.eye(CLASSES, WIDTH)[y] + rng.normal(size=(count, WIDTH)) * np.linspace(0.2, 2, WIDTH) + far
    return torch.from_numpy(z), torch.from_numpy(y)


def p_of_features(rng: np.random.Generator, own: int, new: int, far: float = 0.0) -> float:
    share = np.array([0.6, 0.3, 0.1])
    z, y = gaussians(rng, own, share)
    kept = reference.make(z, y, y, keys.key(0, int(rng.integers(2**31))))
    z_new, _ = gaussians(rng, new, share, far)
    return _features(
        kept, [reference.nearest(z_new, reference.gaussian(kept, h), kept.count_HP[h])[0] for h in range(2)]
    ).p


@pytest.mark.parametrize(("own", "new"), [(20, 15), (20, 300), (120, 60)])
def test_false_alarms_of_the_features_are_as_stated(own: int, new: int) -> None:
    rng = np.random.default_rng(own + new)
    runs = 120
    with OneThread():
        alarms = sum(p_of_features(rng, own, new) <= 0.05 for _ in range(runs))
    assert alarms <= binom.ppf(0.995, runs, 0.05)


def test_false_alarms_of_the_classes_are_as_stated() -> None:
    rng = np.random.default_rng(0)
    runs, share = 300, np.array([0.7, 0.2, 0.06, 0.04])
    found = [
        shift.counts_differ(rng.multinomial(20, share), rng.multinomial(50, share), draws=499) for _ in range(runs)
    ]
    assert sum(p <= 0.05 for p in found) <= binom.ppf(0.995, runs, 0.05)
    assert np.mean(found) > 0.45  # of a calibrated test 0.5 or, with ties, more


def test_a_shift_of_the_features_is_found() -> None:
    rng = np.random.default_rng(1)
    assert max(p_of_features(rng, 60, 60, far=2.0) for _ in range(5)) < 1e-3


def test_own_distances_are_by_gaussians_made_without_them() -> None:
    z, y = gaussians(np.random.default_rng(2), 40, np.full(CLASSES, 1 / CLASSES))
    key = keys.key(0, "watch")
    kept = reference.make(z, y, y, key)
    half = fold_numbers(y, 2, key).numpy()
    np.testing.assert_array_equal(kept.half_N, half)
    z_Nd, y_N = z.numpy(), y.numpy()
    for h in range(2):
        made, own = half != h, half == h
        n_C = np.bincount(y_N[made], minlength=CLASSES)
        mean_Cd = np.stack([z_Nd[made & (y_N == c)].mean(0) for c in range(CLASSES)])
        within = z_Nd[made] - mean_Cd[y_N[made]]
        cov = within.T @ within / (made.sum() - 1)
        # Ledoit & Wolf (2004), section 3.3, about known means
        count, s = len(within), within.T @ within / len(within)
        mu = np.trace(s) / WIDTH
        delta = ((s - mu * np.eye(WIDTH)) ** 2).sum()
        beta = min(sum(((np.outer(x, x) - s) ** 2).sum() for x in within) / count**2, delta)
        cov = (1 - beta / delta) * cov + beta / delta * np.trace(cov) / WIDTH * np.eye(WIDTH)
        inverse = np.linalg.inv(cov)
        apart = z_Nd[own][:, None] - mean_Cd
        far = np.einsum("ncd,de,nce->nc", apart, inverse, apart) * n_C / (n_C + 1)
        np.testing.assert_allclose(kept.distance_N.numpy()[own], far.min(1), rtol=1e-4)
        np.testing.assert_array_equal(kept.near_HP[h], np.bincount(far.argmin(1), minlength=CLASSES))


def test_proportions_are_those_of_the_papers_equation() -> None:
    rng = np.random.default_rng(3)
    confusion = rng.integers(1, 8, (4, 4)) + 40 * np.eye(4, dtype=int)
    joint = confusion / confusion.sum()
    now = np.array([0.1, 0.2, 0.3, 0.4])
    said = np.round(1e6 * joint / joint.sum(0) @ now)
    w = np.linalg.inv(joint) @ (said / said.sum())
    found = shift.proportions(confusion, said)
    np.testing.assert_allclose(found, w * joint.sum(0), atol=1e-9)
    np.testing.assert_allclose(found, now, atol=1e-5)
    low, high = shift.interval(confusion, np.round(said / 1e3).astype(np.int64))
    assert (low < now).all()
    assert (now < high).all()
    outside = shift.proportions(confusion, np.array([200, 0, 0, 0]))  # the inverse has negative entries
    np.testing.assert_allclose(outside, [1, 0, 0, 0], atol=1e-9)
    assert np.isnan(shift.proportions(np.diag([5, 5, 0]), np.array([0, 0, 9]))).all()


def test_intervals_hold_the_truth() -> None:
    rng = np.random.default_rng(4)
    given = np.array([[0.85, 0.2], [0.15, 0.8]])
    held = 0
    for _ in range(60):
        y = rng.multinomial(60, [0.6, 0.4])
        confusion = np.stack([rng.multinomial(y[c], given[:, c]) for c in range(2)], 1)
        low, high = shift.interval(confusion, rng.multinomial(80, given @ np.array([0.3, 0.7])))
        held += low[0] <= 0.3 <= high[0]
    assert held >= 51


def test_nothing_moved(call) -> None:
    code, out, err = call("watch {s} --data new.csv")
    assert (code, err) == (0, "")
    assert out.startswith("Nothing moved that ")
    assert "at most 5% of such comparisons raise an alarm" in out


def test_moved_features_need_labels(call) -> None:
    code, out, err = call("watch {s} --data moved.csv --adapt --out adapted")
    assert code == 1, err
    assert "The features moved: a new sample is farther from the site's classes than one of its own in " in out
    assert "needs labels of new samples: give some to idiolect join" in out
    assert "No site was written." in out
    assert not Path("adapted").exists()


def test_moved_classes_are_adapted_to(call, site: Bundle) -> None:
    code, out, err = call("watch {s} --data malignant.csv --adapt --out adapted --json")
    assert code == 1, err
    found = json.loads(out)
    assert found["labels"]["moved"]
    assert not found["features"]["moved"]
    share = found["labels"]["shares"]["malignant"]
    assert share["before"] < 0.5 < share["low"] <= share["now"] <= share["high"]
    assert found["adapted"] == "adapted"
    adapted = Bundle.read("adapted")
    adapted.check()
    x_N = samples("malignant.csv", site).x_N
    was = log_probabilities(site.model(), site.predicting, x_N).double().exp().numpy()
    y_N = [name for name, s in found["labels"]["shares"].items() for _ in range(round(s["before"] * 90))]
    old = np.array([y_N.count(name) for name in site.about.classes]) / 90
    estimate = np.array([found["labels"]["shares"][name]["now"] for name in site.about.classes])
    new = (found["new"] * estimate + old) / (found["new"] + 1)
    bayes = was * new / old
    bayes /= bayes.sum(1, keepdims=True)
    now = log_probabilities(adapted.model(), adapted.predicting, x_N).exp().numpy()
    np.testing.assert_allclose(now, bayes, atol=1e-5)
    assert idl.load("adapted").predict_proba(pd.read_csv("malignant.csv")) == pytest.approx(bayes, abs=1e-5)
    assert call("watch adapted --data malignant.csv")[0] == 0  # what it is used to now
    assert call("watch {s} --data malignant.csv")[0] == 1
    code, _, err = call("predict adapted --data new.csv --out p.csv --level 0.9")
    assert code == 2
    assert call("predict adapted --data new.csv --out p.csv")[0] == 0


def test_an_adapted_model_is_exported(site: Bundle, tmp_path: Path) -> None:
    told = site.about.site.model_copy(update={"prior_shift": (0.7, -0.7)})
    shifted = Bundle(site.folder, site.about.model_copy(update={"site": told}), site.digest)
    assert export(shifted, tmp_path / "m.pt2", format="torch").difference < 1e-5


def test_reweighting_is_bayes_rule(site: Bundle) -> None:
    logp = torch.log_softmax(torch.from_numpy(np.random.default_rng(5).normal(size=(20, 2))), 1)
    fixed = site.unshifted._replace(predict=lambda down, client, x_B: logp)
    found = reweighted(fixed, [math.log(0.5), math.log(4)]).predict(None, None, None).exp().numpy()
    wanted = logp.exp().numpy() * [0.5, 4]
    np.testing.assert_allclose(found, wanted / wanted.sum(1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("watch {s} --data few.csv", "5 new samples are too few"),
        ("watch {s} --data none.csv", "there is no file or folder none.csv"),
        ("watch none --data new.csv", "there is no bundle none"),
        ("watch {s} --data new.csv --level 1.5", "level=1.5 is not between 0 and 1"),
        ("watch {s} --data new.csv --adapt", "give --adapt and --out"),
        ("watch {s} --data new.csv --out adapted", "give --adapt and --out"),
        ("watch {s} --data malignant.csv --adapt --out {s}", "exists"),
    ],
)
def test_what_is_refused(call, line: str, said: str) -> None:
    code, out, err = call(line)
    assert (code, out) == (2, "")
    assert err.startswith("idiolect: ")
    assert said in err
    assert not Path("adapted").exists()


def test_bundles_that_cannot_be_watched(site: Bundle, of_table: Bundle, graz: pd.DataFrame, tmp_path: Path) -> None:
    graz[:15].to_csv(tmp_path / "graz.csv", index=False)
    mine = samples(tmp_path / "graz.csv", of_table)
    small = join(of_table, mine, tmp_path / "small", ships="global")
    with pytest.raises(idl.InputError, match="made from 15 samples, and 20 are needed"):
        watch(small, mine.x_N)
    with pytest.raises(idl.InputError, match="not made from a site's samples"):
        watch(of_table, mine.x_N)
    unmoved = watch(site, mine.x_N)
    with pytest.raises(idl.InputError, match="Nothing moved"):
        adapt(site, unmoved, tmp_path / "adapted")
    assert not (tmp_path / "adapted").exists()
    assert any("Nothing moved" in sentence for sentence in sentences(unmoved))


def test_a_file_that_was_altered(site: Bundle, of_table: Bundle, tmp_path: Path) -> None:
    path = tmp_path / reference.FILE
    kept = reference.read(site)
    for wrong, said in (
        ({"mean_HPd": kept.mean_HPd[:1]}, "its tensors have other shapes"),
        ({"class_P": kept.class_P + 1}, "it has other classes"),
    ):
        path.write_bytes(reference.content(kept._replace(**wrong)))
        fake = Bundle(tmp_path, site.about, site.digest)
        with pytest.raises(idl.InputError, match="has changed since"):
            reference.read(fake)
        fake.other = lambda name: path.read_bytes()
        with pytest.raises(idl.InputError, match=said):
            reference.read(fake)
