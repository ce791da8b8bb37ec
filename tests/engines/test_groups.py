"""Engines give methods the groups of samples."""

import numpy as np
import pytest

import idiolect as idl


@pytest.mark.parametrize("method", ["pfedfda", "fedshrink", "fedfomo"])
def test_engines_give_the_same_numbers(method, tmp_path, visits):
    x, y, site, patient = visits

    def records(groups, engine):
        data = idl.data.from_arrays(x, y, clients=site, groups=groups, name="visits")
        study = idl.Study(data=data, methods=[method], rounds=2, batch_size=8, local_epochs=2, lr=0.05, model="mlp")
        out = tmp_path / f"{engine}{groups is None}"
        frame = idl.run(study, out, engine=engine, workers=2 if engine == "processes" else None).records
        return frame[frame["metric"] == "accuracy"]["value"].to_numpy(), frame[frame["metric"] == "loss"]["value"]

    accuracy, loss = records(patient, "sequential")
    for engine, tolerance in (("processes", 0), ("vectorised", 1e-4)):
        other, other_loss = records(patient, engine)
        np.testing.assert_allclose(other, accuracy, atol=tolerance)
        np.testing.assert_allclose(other_loss.to_numpy(), loss.to_numpy(), atol=tolerance)
