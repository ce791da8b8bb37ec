"""Blocks of samples that follow each other, of which methods make folds where a split is in order."""

import numpy as np
import pytest
import torch

import idiolect as idl
from idiolect.core.method import Blocks, Data
from idiolect.core.option_spec import Spec
from idiolect.data import build
from idiolect.data.blocks import blocks_of
from idiolect.data.custom import from_arrays
from idiolect.data.partitions.apart import Splitting
from idiolect.federation.data.agreement import common_form
from idiolect.federation.data.samples import SiteFiles
from idiolect.methods.fedfomo import split as fomo_split
from idiolect.statistics import interpolation, mixture
from idiolect.statistics.gaussian import Gaussian, LinearHead
from idiolect.training import groups, inner


@pytest.mark.parametrize("gap", [0, 1, 3, 10])
@pytest.mark.parametrize("rows", [1, 2, 3, 19, 60, 200])
def test_a_block_is_of_neighbours_and_inner_samples_are_far_from_others(rows, gap):
    rng = np.random.default_rng(rows)
    sizes, place_R, train = (rows, 2 * rows + 1), [], []
    for k, size in enumerate(sizes):
        place_R.append(rng.choice(2 * size, size, replace=False))  # with holes, where test samples are
        train.append(torch.arange(size) + k * rows)
    place_R = np.concatenate(place_R)
    number_R, inner_R = blocks_of(train, place_R, gap)
    assert not set(number_R[train[0]].tolist()) & set(number_R[train[1]].tolist())
    for rows_N in train:
        place_N, block_N = place_R[rows_N.numpy()], number_R[rows_N].numpy()
        in_order = block_N[np.argsort(place_N)]
        assert (np.diff(in_order) >= 0).all()  # whole runs
        assert len(set(in_order.tolist())) == min(
            len(rows_N), max(2, len(rows_N) // max(-(-len(rows_N) // 20), 4 * gap + 1))
        )
        sizes_of = np.unique(block_N, return_counts=True)[1]
        assert np.ptp(sizes_of) <= 1
        for p, b, is_inner in zip(place_N, block_N, inner_R[rows_N].tolist(), strict=True):
            others = np.abs(place_N[block_N != b] - p)
            assert bool(is_inner) == (others.min(initial=10**6) > gap)
        if len(rows_N) > 40 * (gap + 1):
            assert inner_R[rows_N].mean() > 0.5


@pytest.mark.parametrize("split", ["ordered", "ordered:gap=3", "ordered:gap=2,each_class=true", "random"])
@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_methods_get_blocks_of_a_split_in_order(split, validation):
    y = np.tile(np.repeat([0, 1, 2], 20), 2)
    source = from_arrays(np.arange(120.0)[:, None], y, clients=np.repeat(["a", "b"], 60))
    data = build(source, Spec.parse("natural"), split=Spec.parse(split), validation=validation)
    if split == "random":
        assert data.groups == ()
        return
    assert isinstance(data.groups, Blocks)
    assert data.group_R is None  # they are no groups of the user's
    gap = 3 if "3" in split else 2 if "2" in split else 0
    for k in range(2):
        row_N = data.train[k]
        client = Data(data.x_R, data.y_R, row_N, torch.ones(len(row_N)), group_R=data.groups)
        time_N, block_N, inner_N = data.x_R[row_N, 0].numpy(), groups(client).numpy(), inner(client).numpy()
        assert len(set(block_N.tolist())) >= 2
        for t, b, is_inner in zip(time_N, block_N, inner_N, strict=True):
            assert bool(is_inner) == (np.abs(time_N[block_N != b] - t).min() > gap)


def test_a_site_of_a_federation_has_the_same_blocks(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"time": np.arange(60.0), "y": np.repeat(["u", "v", "w"], 20)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    site = SiteFiles(tmp_path / "t.csv", target="y")
    inputs, classes = common_form({"one": site.offer()})
    for way in (Splitting(True, 2), Splitting(True, 1, each_class=True), Splitting()):
        ready = site.encode(inputs, classes, 0, 0, look=False, way=way, validation=0.2)
        if not way.ordered:
            assert ready.groups == ()
            continue
        expected = blocks_of([ready.train_N], np.arange(60), way.gap)
        for one, other in zip(ready.groups, expected, strict=True):
            assert torch.equal(one[ready.train_N], other[ready.train_N])


def clouds(rows=60, seed=0):
    torch.manual_seed(seed)
    y_N = torch.arange(rows) % 3
    return torch.randn(rows, 4) + y_N[:, None], y_N, torch.ones(rows)


@pytest.mark.parametrize("seed", range(3))
def test_only_inner_samples_are_held_out_by_pfedfda(seed):
    z_Nd, y_N, weight_N = clouds(seed=seed)
    fold_N = torch.arange(60) // 6 % 2
    inner_N = (torch.arange(60) % 6 > 0).float()
    other = Gaussian(torch.randn(3, 4).double(), torch.eye(4).double())
    parts, _ = interpolation.search_moments(z_Nd, y_N, weight_N, fold_N, classes=3)
    kept = inner_N.bool()

    def weight(at_N, **more):
        return interpolation.search(
            z_Nd[at_N], y_N[at_N], weight_N[at_N], fold_N[at_N], other, torch.zeros(3).double(),
            repair=lambda cov_dd: cov_dd + torch.eye(4), parts=parts, **more,
        )  # fmt: skip

    every = torch.ones(60, dtype=torch.bool)
    torch.testing.assert_close(weight(every, inner_N=inner_N), weight(kept))
    assert weight(every, inner_N=torch.zeros(60)) == 0


@pytest.mark.parametrize("seed", range(3))
def test_only_inner_samples_choose_the_shares_of_fedshrink(seed, monkeypatch):
    z_Nd, y_N, weight_N = clouds(seed=seed)
    inner_N = (torch.arange(60) % 5 > 1).float()
    heads = LinearHead(torch.randn(2, 3, 4), torch.randn(2, 3))
    given = []
    monkeypatch.setattr(mixture, "shares", lambda logp_NK, w_N, prior: given.append(w_N) or torch.tensor([0.5, 0.5]))
    for one in (inner_N, None):
        mixture.fit(
            lambda sums, w_N: heads, z_Nd, y_N, weight_N, torch.tensor(3), classes=3, folds=3, prior=1.0, inner_N=one
        )
    assert torch.equal(given[0], inner_N)
    assert torch.equal(given[1], weight_N)


@pytest.mark.parametrize("seed", range(4))
def test_validation_samples_of_fedfomo_are_far_from_those_that_train(seed):
    place_R = np.arange(80)
    blocks = blocks_of([torch.arange(80)], place_R, 2)
    data = Data(
        torch.zeros(80, 1), torch.zeros(80, dtype=torch.int64), torch.arange(80), torch.ones(80), group_R=blocks
    )
    train, held = fomo_split(data, torch.tensor(seed), 0.3)
    distance = np.abs(train.row_N.numpy()[:, None] - held.row_N.numpy()).min()
    assert distance > 2
    assert 0 < len(held.row_N) < 30


def test_overlapping_windows_no_longer_make_a_client_look_better():
    """Copies follow each other: folds at random know them by heart, and pFedFDA trusts its own statistics too much."""
    rng = np.random.default_rng(0)
    sample = rng.normal(size=(120, 6)).astype(np.float32)
    y = rng.integers(0, 2, 120)  # nothing can be learnt
    x, y = np.repeat(sample, 4, axis=0), np.repeat(y, 4)
    beta = {}
    for split in ("random", "ordered:gap=4"):
        data = idl.data.from_arrays(x, y, clients=np.repeat(np.arange(4), 120), name="copies")
        study = idl.Study(data=data, methods=["pfedfda"], rounds=1, split=split, model="mlp", lr=0.001, batch_size=16)
        frame = idl.run(study, engine="sequential").records
        beta[split] = frame[frame["metric"] == "beta"]["value"].mean()
    assert beta["ordered:gap=4"] < beta["random"] - 0.1
