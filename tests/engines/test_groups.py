"""Engines give methods the groups of samples, and a resumed run has the same ones."""

import signal

import numpy as np
import pytest

import idiolect as idl
from idiolect.core.errors import Interrupted
from idiolect.studies.progress import Watcher

METHODS = ["pfedfda", "fedshrink", "fedfomo"]
KINDS = ["groups", "ordered", "ordered:gap=2", "ordered:gap=2,each_class=true"]


def study(visits, kind, method, rounds=2):
    """A study of samples in groups, or in order."""
    x, y, site, patient = visits
    data = idl.data.from_arrays(x, y, clients=site, groups=patient if kind == "groups" else None, name="visits")
    split = {} if kind == "groups" else {"split": kind}
    return idl.Study(
        data=data, methods=[method], rounds=rounds, batch_size=8, local_epochs=2, lr=0.05, model="mlp",
        evaluate_every=1, **split,
    )  # fmt: skip


def values(frame, metric):
    return frame[frame["metric"] == metric]["value"].to_numpy()


@pytest.mark.thorough(but=["*-groups", "pfedfda-*each_class*", "fedfomo-ordered"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_engines_give_the_same_numbers(method, kind, tmp_path, visits):
    frame = idl.run(study(visits, kind, method), tmp_path / "run", engine="sequential").records
    for engine, tolerance in (("processes", 0), ("vectorised", 1e-4)):
        workers = 2 if engine == "processes" else None
        other = idl.run(study(visits, kind, method), tmp_path / engine, engine=engine, workers=workers).records
        for metric in ("accuracy", "loss"):
            np.testing.assert_allclose(values(other, metric), values(frame, metric), atol=tolerance)


class Stops(Watcher):
    """Stops a run after its first round."""

    def advance(self, label, seed, round, score):
        if round == 1:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_has_the_same_groups(kind, tmp_path, visits):
    whole = idl.run(study(visits, kind, "pfedfda", 3), tmp_path / "whole", engine="sequential").records
    with pytest.raises(Interrupted, match="stopped after round 1 of 3"):
        idl.run(study(visits, kind, "pfedfda", 3), tmp_path / "run", engine="sequential", watcher=Stops())
    resumed = idl.run(study(visits, kind, "pfedfda", 3), tmp_path / "run", engine="sequential", resume=True).records
    for metric in ("accuracy", "loss", "beta"):
        np.testing.assert_array_equal(values(resumed, metric), values(whole, metric))
    if kind != "groups":
        with pytest.raises(idl.InputError, match="has another study"):
            idl.run(study(visits, "ordered:gap=1", "pfedfda", 3), tmp_path / "run", engine="sequential", resume=True)
