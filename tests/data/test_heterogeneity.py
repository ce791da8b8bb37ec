"""The numbers that describe clients, against SciPy and NumPy from the definitions."""

import dataclasses
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import distance

from idiolect import data
from idiolect.core.option_spec import Spec
from idiolect.data import Source, heterogeneity
from idiolect.data.heterogeneity import describe_clients, jensen_shannon, to_others


def images(rows=600, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    y_R = rng.integers(0, classes, rows)
    x_R = (rng.integers(0, 200, (rows, 2, 3, 4)) + 10 * y_R[:, None, None, None]).astype(np.uint8)
    names = tuple("abcdefghij"[:classes])
    return Source("toy", torch.from_numpy(x_R), torch.from_numpy(y_R), classes, names, (0.4, 0.5), (0.2, 0.3), rows)


def table(rows=300):
    rng = np.random.default_rng(3)
    x_R = rng.normal(5, 2, (rows, 3)).astype(np.float32)
    x_R[rng.random((rows, 3)) < 0.2] = np.nan
    return Source("table", torch.from_numpy(x_R), torch.arange(rows) % 3, 3, tuple("abc"), None, None, rows)


def build(partition="dirichlet:alpha=0.3,min_rows=9", source=None, clients=6, **more):
    return data.build(source or images(), Spec.parse(partition), more.pop("shifts", ()), clients, 0, **more)


def pairs(value_KK):
    return np.mean([value_KK[i][j] for i in range(len(value_KK)) for j in range(len(value_KK)) if i != j])


counts = st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3).filter(any), min_size=2, max_size=5)


@settings(deadline=None, max_examples=25)
@given(counts)
def test_jensen_shannon_is_scipys_distance_squared(count_KC):
    got = jensen_shannon(np.array(count_KC[:2]), np.array(count_KC))
    assert got.shape == (2, len(count_KC))
    for i, p in enumerate(count_KC[:2]):
        for j, q in enumerate(count_KC):
            assert got[i, j] == pytest.approx(distance.jensenshannon(p, q, base=2) ** 2, abs=1e-7)


def test_the_ends_of_the_scale():
    count_KC = np.array([[1, 1, 0, 0], [20, 20, 0, 0], [0, 0, 3, 5]])
    got = jensen_shannon(count_KC, count_KC)
    np.testing.assert_allclose(got, [[0, 0, 1], [0, 0, 1], [1, 1, 0]], atol=1e-12)


def apart(one_B, other_O):
    """A comparison whose values nobody expects of a client with itself."""
    return np.where(one_B[:, None] == other_O, 1e9, abs(one_B[:, None] - other_O))


@pytest.mark.parametrize("clients", [1, 2, 255, 256, 257, 600])
def test_means_to_the_others_block_by_block(clients):
    about_K = np.random.default_rng(clients).permutation(clients).astype(float)
    want = [sum(abs(a - b) for b in about_K) / max(1, clients - 1) for a in about_K]
    np.testing.assert_allclose(to_others(apart, about_K), want)


def test_of_many_clients_each_is_compared_with_a_draw(monkeypatch):
    monkeypatch.setattr(heterogeneity, "COMPARED", 40)
    about_K = np.arange(300.0)
    met = np.zeros((300, 300), bool)

    def note(one_B, other_O):
        met[np.ix_(one_B.astype(int), other_O.astype(int))] = True
        return apart(one_B, other_O)

    got = to_others(note, about_K)
    (others,) = np.nonzero(met[0])
    assert len(others) == 40
    assert (met == met[0]).all()
    assert np.diff(others).max() > 8, "the first, and no draw"
    for k in range(300):
        assert got[k] == pytest.approx(np.mean([abs(k - o) for o in others if o != k]))
    np.testing.assert_array_equal(got, to_others(apart, about_K))


def test_ten_thousand_clients_take_seconds():
    count_KC = np.random.default_rng(0).integers(0, 3, (10_000, 10)) + 1
    begun = time.process_time()
    to_others(jensen_shannon, count_KC)
    assert time.process_time() - begun < 20


def test_who_holds_what():
    d = build()
    about = describe_clients(d)
    for k in range(6):
        for parts, got_KC in ((d.train, about.train_KC), (d.test, about.test_KC)):
            assert got_KC[k].tolist() == [int((d.y_R[parts[k]] == c).sum()) for c in range(4)]
    np.testing.assert_allclose(about.label_KK, about.label_KK.T, atol=1e-12)
    want = [[distance.jensenshannon(p, q, base=2) ** 2 for p in about.train_KC] for q in about.train_KC]
    np.testing.assert_allclose(about.label_KK, want, atol=1e-7)
    np.testing.assert_allclose(about.label_K, np.sum(want, 0) / 5, atol=1e-7)
    assert about.label_mean == pytest.approx(pairs(want))


@pytest.mark.parametrize("source", [images(), table()], ids=["images", "table"])
def test_feature_distance_is_that_of_mean_normalised_rows(source):
    d = build(source=source)
    about = describe_clients(d)
    x_R = d.x_R.numpy().astype(np.float64) / (255 if d.x_R.dtype == torch.uint8 else 1)
    mean, std = (np.array(v).reshape(-1, *[1] * (x_R.ndim - 2)) for v in (d.mean, d.std))
    z_R = np.nan_to_num((x_R - mean) / std)
    mean_K = [z_R[rows.numpy()].mean(0).ravel() for rows in d.train]
    want = [[np.sqrt(((a - b) ** 2).mean()) for b in mean_K] for a in mean_K]
    np.testing.assert_allclose(about.feature_K, np.sum(want, 0) / 5, rtol=1e-6, atol=1e-7)
    assert about.feature_mean == pytest.approx(pairs(np.array(want)), rel=1e-6)
    assert pairs(np.array(want)) > 0.01


def test_chance_is_what_a_random_deal_gives():
    """The mean of 40 random deals to clients of the same sizes, and a spread that 1 deal stays within."""
    d = build("dirichlet:alpha=0.1,min_rows=9", clients=8)
    about = describe_clients(d)
    rng = np.random.default_rng(5)
    sizes = [len(rows) for rows in d.train]
    every = torch.cat([*d.train]).numpy()
    z_R = (d.x_R.numpy() / 255 - np.array(d.mean)[:, None, None]) / np.array(d.std)[:, None, None]
    labels, features = [], []
    for _ in range(40):
        hands = np.split(rng.permutation(every), np.cumsum(sizes)[:-1])
        p_KC = [np.bincount(d.y_R.numpy()[hand], minlength=4) for hand in hands]
        means = [z_R[hand].mean(0).ravel() for hand in hands]
        labels.append(pairs([[distance.jensenshannon(p, q, base=2) ** 2 for p in p_KC] for q in p_KC]))
        features.append(pairs([[np.sqrt(((a - b) ** 2).mean()) for a in means] for b in means]))
    assert abs(about.label_chance - np.mean(labels)) < 4 * np.std(labels)
    assert abs(about.feature_chance - np.mean(features)) < 4 * np.std(features)
    assert about.label_mean > 5 * about.label_chance


def test_equal_deals_differ_no_more_than_chance():
    about = describe_clients(build("iid"))
    assert about.label_mean < 3 * about.label_chance
    assert 0.7 < about.feature_mean / about.feature_chance < 1.4


def test_the_numbers_do_not_change_from_call_to_call():
    d = build()
    a, b = (dataclasses.asdict(describe_clients(d)) for _ in range(2))
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def test_new_clients_stand_once():
    d = build(new_clients=2, new_shifts=[Spec(name="invert"), Spec.parse("noise:std=0.2")])
    plain = describe_clients(build(new_clients=2))
    about = describe_clients(d)
    assert (d.clients, len(about.train_KC)) == (10, 6)
    np.testing.assert_array_equal(about.label_KK, plain.label_KK)
    np.testing.assert_array_equal(about.feature_K, plain.feature_K)


def test_a_shift_is_seen():
    inverted = build("iid", shifts=[Spec.parse("invert:clients=0")])
    about = describe_clients(inverted)
    assert about.feature_K[0] > 1.5 * about.feature_K[1:].max()
    assert describe_clients(build("iid")).feature_K.max() < about.feature_K[0] / 2


@pytest.mark.parametrize(("clients", "kept"), [(60, True), (61, False)])
def test_all_pairs_are_kept_of_few_clients(clients, kept):
    about = describe_clients(build("iid", clients=clients))
    assert (about.label_KK is not None) == kept
    assert len(about.label_K) == len(about.feature_K) == clients


def test_a_single_client():
    about = describe_clients(build("iid", clients=1))
    assert (about.label_mean, about.feature_mean, about.label_chance, about.feature_chance) == (0, 0, 0, 0)


def test_rows_are_read_in_pieces(monkeypatch):
    whole = describe_clients(build())
    real = torch.split
    monkeypatch.setattr(heterogeneity.torch, "split", lambda rows, size: real(rows, 7))
    np.testing.assert_allclose(describe_clients(build()).feature_K, whole.feature_K, atol=1e-9)


@pytest.mark.parametrize("task", ["regression", "multilabel"])
@pytest.mark.parametrize("sizes", [(2, 40), (2, 2), (30, 2, 2)])
def test_a_client_with_a_single_training_sample(task, sizes):
    """Against numpy."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, (sum(sizes), 2)).astype(float) if task == "multilabel" else rng.normal(size=(sum(sizes), 2))
    clients = np.repeat(np.arange(len(sizes)), sizes)
    source = data.from_arrays(rng.normal(size=(sum(sizes), 3)), y, clients=clients, task=task)
    federation = data.build(source, Spec(name="natural"))
    about = describe_clients(federation)
    for k, rows in enumerate(federation.train):
        value_RD = federation.targets.value_RD.numpy()[rows.tolist()]
        np.testing.assert_allclose(about.target_KD[k], value_RD.mean(0))


@pytest.mark.parametrize(
    ("most", "padded"), [(5, False), (70, True), (4095, True), (4096, False), (4097, True), (9000, True)]
)
def test_the_distance_of_ids_is_hellingers(most, padded):
    """Of how often ids occur, of more than 4,096 those that are equal by this number together, and without padding."""
    rng = np.random.default_rng(most)
    id_RL = rng.integers(0, most + 1, (40, 30))
    id_RL[0, 0] = most
    parts = [torch.arange(0, 15), torch.arange(15, 40)]
    share = []
    for rows in parts:
        id_N = id_RL[rows.numpy()].ravel()
        count = np.bincount((id_N[id_N != 0] if padded else id_N) % 4096, minlength=4096)
        share.append(count / count.sum())
    means = heterogeneity._of_tensor(torch.from_numpy(id_RL), 0.0, 1.0, parts, padded)
    expected = np.sqrt(((np.sqrt(share[0]) - np.sqrt(share[1])) ** 2).sum() / 2)
    assert heterogeneity._distances(means, means)[0, 1] == pytest.approx(expected, abs=1e-12)
