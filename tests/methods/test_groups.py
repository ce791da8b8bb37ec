"""Methods' own folds and validation samples are of whole groups."""

import numpy as np
import pytest
import torch

import idiolect as idl
from idiolect.core import keys
from idiolect.core.method import Data
from idiolect.methods import fedfomo
from idiolect.statistics.interpolation import stratified_folds


def draws(seed, rows=60, groups=14):
    rng = np.random.default_rng(seed)
    group_N = torch.from_numpy(rng.integers(0, groups, rows) * 11 - 40)
    return group_N, torch.from_numpy(rng.integers(0, 3, rows))


@pytest.mark.parametrize("folds", [2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_the_samples_of_a_group_are_in_one_fold(seed, folds):
    group_N, y_N = draws(seed)
    fold_N = stratified_folds(y_N, torch.ones(60), keys.key(seed), folds=folds, sample_N=group_N)
    of_group = [fold_N[group_N == g].unique().tolist() for g in group_N.unique()]
    assert all(len(one) == 1 for one in of_group)
    count = np.bincount([one[0] for one in of_group], minlength=folds)
    assert count.max() - count.min() <= 1
    padded = stratified_folds(
        torch.cat([y_N, y_N[:7]]), torch.cat([torch.ones(60), torch.zeros(7)]), keys.key(seed), folds=folds,
        sample_N=torch.cat([group_N, group_N[:7]]),
    )  # fmt: skip
    assert torch.equal(padded[:60], fold_N)  # padding, which may be of any group, moves nobody


@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_validation_samples_of_fedfomo_are_whole_groups(seed, share):
    group_N, y_N = draws(seed)
    data = Data(torch.zeros(60, 1), y_N, torch.arange(60), torch.ones(60), group_R=group_N)
    train, validation = fedfomo.split(data, keys.key(seed), share)
    sides = [set(group_N[part.row_N].tolist()) for part in (train, validation)]
    assert not sides[0] & sides[1]
    assert len(train.row_N) + len(validation.row_N) == 60
    largest = int(group_N.unique(return_counts=True)[1].max())
    assert share * 60 <= len(validation.row_N) < share * 60 + largest
    one = data._replace(group_R=torch.zeros(60, dtype=torch.int64))
    assert [len(part.row_N) for part in fedfomo.split(one, keys.key(seed), share)] == [60, 60]


def test_pfedfda_trusts_itself_less_where_its_folds_keep_copies_together(tmp_path, visits):
    """A client's own estimate predicts copies of what it was made of well, and other patients less well."""
    x, y, site, patient = visits
    betas = {}
    for name, groups in (("torn", np.arange(len(y))), ("whole", patient)):
        data = idl.data.from_arrays(x, y, clients=site, groups=groups, name=name)
        study = idl.Study(data=data, methods=["pfedfda"], rounds=2, batch_size=8, lr=0.05)
        records = idl.run(study, tmp_path / name, engine="sequential").records
        betas[name] = records[records["metric"] == "beta"]["value"].mean()
    assert betas["whole"] < betas["torn"]
