import logging
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idiolect.data import PARTITIONS, partitions
from idiolect.data.partitions import dirichlet, dominant, iid
from idiolect.data.sources import Source
from idiolect.errors import InputError

quick = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**32)


def toy(train=600, test=0, classes=10):
    """Balanced labels in random order; no images to speak of."""
    rng = np.random.default_rng(0)
    y_R = np.concatenate([rng.permutation(np.arange(n) % classes) for n in (train, test)])
    names = tuple(f"c{i}" for i in range(classes))
    x_R = torch.zeros(train + test, 1, 1, 1, dtype=torch.uint8)
    return Source("toy", x_R, torch.from_numpy(y_R), classes, names, (0.0,), (1.0,), train)


def counts(source, rows_K):
    return np.stack([np.bincount(source.y_R.numpy()[rows], minlength=source.classes) for rows in rows_K])


def sizes(split):
    return np.array([[len(train), len(test)] for train, test in zip(*split, strict=True)])


def disjoint(source, split):
    every = np.concatenate([*split.train, *split.test])
    return len(set(every.tolist())) == len(every) and every.min() >= 0 and every.max() < len(source.y_R)


def rng(seed=0):
    return np.random.default_rng(seed)


SMALL = {"iid": {}, "dirichlet": {}, "dominant": {"train_size": 20, "test_size": 10}}


def test_every_partition_is_listed_and_tested():
    assert set(PARTITIONS) == set(SMALL)


@pytest.mark.parametrize("name", PARTITIONS)
def test_repeatable_by_seed_and_different_by_seed(name):
    source = toy(800, 200)

    def run(seed):
        train, test = PARTITIONS[name](source, 5, rng(seed), **SMALL[name])
        return [rows.tolist() for rows in (*train, *test)]

    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.parametrize("name", PARTITIONS)
@quick
@given(seed=seeds, clients=st.integers(1, 12), classes=st.integers(2, 15))
def test_disjoint_and_nobody_is_left_without_rows(name, seed, clients, classes):
    source = toy(900, 300, classes)
    split = PARTITIONS[name](source, clients, rng(seed), **SMALL[name])
    assert len(split.train) == len(split.test) == clients
    assert disjoint(source, split)
    assert sizes(split).min() >= 1


@pytest.mark.parametrize("name", PARTITIONS)
def test_rows_stand_in_random_order_and_not_by_class(name):
    source = toy(800, 200)
    more = {"train_size": 150} if name == "dominant" else {}
    split = PARTITIONS[name](source, 2, rng(), **SMALL[name] | more)
    assert (np.diff(source.y_R.numpy()[split.train[0]]) < 0).mean() > 0.2


@pytest.mark.parametrize("name", PARTITIONS)
def test_more_clients_than_rows_can_serve(name):
    with pytest.raises(InputError, match=r"clients=51 is too many for toy: .* 100 rows serve at most 50 clients"):
        PARTITIONS[name](toy(80, 20), 51, rng())


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_client_gets_any_rows_of_a_class_and_not_the_first(name):
    source = toy(2000, 500)
    row = np.sort(PARTITIONS[name](source, 5, rng(), **SMALL[name]).train[0])
    assert row[-1] - row[0] > 1500
    first = np.flatnonzero(source.y_R.numpy() == 2)[:200]
    assert 0.5 * len(first) > np.isin(first, row).sum()


# --- iid


@quick
@given(clients=st.integers(1, 40), test_fraction=st.floats(0.05, 0.95))
def test_iid_is_equal(clients, test_fraction):
    split = iid(toy(500, 100), clients, rng(), test_fraction=test_fraction)
    each = 600 // clients
    assert (sizes(split).sum(1) == each).all()
    assert np.abs(sizes(split)[:, 1] - test_fraction * each).max() <= 1


def test_iid_at_two_rows_each():
    assert sizes(iid(toy(100), 50, rng())).tolist() == [[1, 1]] * 50


def test_iid_takes_80_20_of_both_official_splits():
    split = iid(toy(500, 100), 6, rng())
    assert sizes(split).tolist() == [[80, 20]] * 6
    assert max(rows.max() for rows in split.train) >= 500 > min(rows.min() for rows in split.test)


# --- dirichlet


@quick
@given(seed=seeds, clients=st.integers(1, 15), alpha=st.floats(0.05, 1e6))
def test_dirichlet_deals_every_row_and_keeps_its_floor(seed, clients, alpha):
    source = toy(1000, 200)
    split = dirichlet(source, clients, rng(seed), alpha=alpha, min_rows=4)
    n_K = sizes(split).sum(1)
    assert n_K.sum() == 1200
    assert disjoint(source, split)
    assert n_K.min() >= 4
    assert np.abs(sizes(split)[:, 1] - 0.2 * n_K).max() <= 0.5
    # a client below its fair share may take at most one class more
    assert n_K.max() < 1200 / clients + 120


def test_dirichlet_default_floor_is_63_or_half_the_mean():
    for rows, clients, floor in ((7000, 50, 63), (1000, 20, 25)):
        smallest = [sizes(dirichlet(toy(rows), clients, rng(s), alpha=0.4)).sum(1).min() for s in range(8)]
        assert floor <= min(smallest) <= floor + 10


def test_dirichlet_test_rows_are_drawn_at_random():
    source = toy(4000, 1000, classes=2)
    split = dirichlet(source, 1, rng())
    share = counts(source, split.test)[0, 0] / 1000
    assert share == pytest.approx(0.5, abs=0.06)
    assert share != 0.5  # stratified would be exact


def released(y_R, clients, alpha, rng):
    """The published procedure as it is described: all clients draw, full ones are zeroed, the rest renormalised."""
    n_K = np.zeros(clients)
    for size in np.bincount(y_R):
        p = rng.dirichlet(np.full(clients, alpha)) * (n_K < len(y_R) / clients)
        n_K += np.diff((np.cumsum(p / p.sum()) * size).astype(int)[:-1], prepend=0, append=size)
    return np.sort(n_K)


def test_dirichlet_has_the_distribution_of_the_published_procedure():
    source = toy(120, classes=6)
    own = [np.sort(sizes(dirichlet(source, 4, rng(s), alpha=0.7, min_rows=2)).sum(1)) for s in range(1500)]
    draw = rng(99)
    want = [n for n in (released(source.y_R.numpy(), 4, 0.7, draw) for _ in range(2000)) if n.min() >= 2][:1500]
    error = np.std(want, axis=0) * np.sqrt(2 / 1500)
    assert (np.abs(np.mean(own, axis=0) - np.mean(want, axis=0)) < 4 * error).all()
    assert np.std(own, axis=0) == pytest.approx(np.std(want, axis=0), rel=0.15)


def test_dirichlet_alpha_is_heterogeneity():
    source = toy(5000)
    even = counts(source, dirichlet(source, 5, rng(), alpha=1e5).train)
    assert np.abs(even - 80).max() < 20
    skewed = counts(source, dirichlet(source, 5, rng(), alpha=0.05).train)
    assert (skewed.max(1) / skewed.sum(1)).mean() > 0.3
    assert (skewed == 0).mean() > 0.4


@pytest.mark.parametrize("alpha", [1e-300, 1e-9, 1e6])
def test_dirichlet_at_the_ends_of_alpha(alpha):
    source = toy(1000)
    split = dirichlet(source, 2, rng(), alpha=alpha, min_rows=2)
    assert sizes(split).sum() == 1000


def test_dirichlet_with_a_class_without_rows():
    source = toy(300, classes=3)
    source = Source("toy", source.x_R, source.y_R, 5, tuple("abcde"), (0.0,), (1.0,), 300)
    assert sizes(dirichlet(source, 3, rng())).sum() == 300


def test_dirichlet_floor_above_the_mean():
    match = "min_rows=61 is more than 10 clients can have of toy's 600 rows; min_rows=60 is the most"
    with pytest.raises(InputError, match=match):
        dirichlet(toy(600), 10, rng(), min_rows=61)


def test_dirichlet_gives_up_and_says_what_fits(monkeypatch):
    monkeypatch.setattr(partitions, "_TRIES", 300)
    source = toy(600)
    match = r"300 deals with alpha=0\.1 all left one of 10 clients with fewer than 59 rows; min_rows=(\d+) fits, or"
    with pytest.raises(InputError, match=match) as error:
        dirichlet(source, 10, rng(), alpha=0.1, min_rows=59)
    fits = int(re.search(match, str(error.value)).group(1))
    assert sizes(dirichlet(source, 10, rng(), alpha=0.1, min_rows=fits)).sum(1).min() == fits


def test_dirichlet_gives_up_early_where_there_is_no_hope():
    with pytest.raises(InputError, match=r"1,000 deals .* fewer than 5 rows; take fewer clients or a larger alpha"):
        dirichlet(toy(200, classes=2), 20, rng(), alpha=0.01)


# --- dominant


PAPER = ({0, 1, 2}, {2, 3, 4}, {4, 5, 6}, {6, 7, 8}, {8, 9, 0})


def test_dominant_has_the_papers_counts_and_groups():
    source = toy(60000, 10000)
    split = dominant(source, 20, rng())
    for i, (train, test) in enumerate(zip(counts(source, split.train), counts(source, split.test), strict=True)):
        main = PAPER[i % 5]
        # 20 % of 600 over ten classes, and 80 % of 600 over three
        assert train.tolist() == [12 + 160 if c in main else 12 for c in range(10)]
        assert test.tolist() == [6 + 80 if c in main else 6 for c in range(10)]
    assert disjoint(source, split)


def test_dominant_keeps_to_the_official_splits(caplog):
    split = dominant(toy(60000, 10000), 20, rng())
    assert max(rows.max() for rows in split.train) < 60000 <= min(rows.min() for rows in split.test)
    assert not caplog.records


def test_dominant_draws_from_both_splits_where_one_is_too_small_and_says_so(caplog):
    source = toy(60000, 10000)
    with caplog.at_level(logging.WARNING):
        split = dominant(source, 20, rng(), test_size=600)
    assert "official splits of toy are too small for 20 clients with train_size=600 and test_size=600" in caplog.text
    assert min(rows.min() for rows in split.test) < 60000
    assert (counts(source, split.train) == counts(source, split.test)).all()
    assert disjoint(source, split)


def test_dominant_without_an_official_split(caplog):
    source = toy(1797)
    split = dominant(source, 10, rng(), train_size=60, test_size=30)
    assert sizes(split).tolist() == [[60, 30]] * 10
    assert not caplog.records


@quick
@given(
    share=st.floats(0, 100),
    train_size=st.integers(1, 200),
    test_size=st.integers(1, 200),
    classes=st.integers(2, 30),
    clients=st.integers(1, 7),
)
def test_dominant_proportions_are_the_formulas_in_training_and_test(share, train_size, test_size, classes, clients):
    source = toy(2800 * classes, classes=classes)  # enough for 7 clients of 400 rows of one class
    split = dominant(source, clients, rng(), share=share, train_size=train_size, test_size=test_size)
    for rows_K, size in ((split.train, train_size), (split.test, test_size)):
        groups = min(5, classes)
        for i, n_C in enumerate(counts(source, rows_K)):
            start, end = ((i % groups + k) * classes // groups for k in (0, 1))
            main = {c % classes for c in range(start, end + 1)} if classes > 2 else {start}
            uniform, rest = size * share / 100, size * (1 - share / 100)
            want = [uniform / classes + (c in main) * rest / len(main) for c in range(classes)]
            assert n_C.sum() == size
            assert np.abs(n_C - want).max() < 1


def test_dominant_remainders_go_round_the_classes():
    source = toy(6000)
    total = counts(source, dominant(source, 10, rng(), share=100, train_size=13, test_size=3).train).sum(0)
    assert total.tolist() == [13] * 10


def test_dominant_share_at_its_ends():
    source = toy(6000)
    assert (counts(source, dominant(source, 5, rng(), share=100, train_size=100, test_size=50).train) == 10).all()
    only = counts(source, dominant(source, 5, rng(), share=0, train_size=90, test_size=30).train)
    assert [set(np.flatnonzero(n)) for n in only] == list(PAPER)


def test_dominant_with_a_hundred_classes():
    source = toy(50000, classes=100)
    n_KC = counts(source, dominant(source, 5, rng(), share=0, train_size=420, test_size=21).train)
    for g in range(5):
        assert set(np.flatnonzero(n_KC[g])) == {c % 100 for c in range(20 * g, 20 * g + 21)}
        assert n_KC[g].max() == 20


def test_dominant_runs_out_and_says_what_fits():
    source = toy(60000, 10000)
    need = 100 * 18 + 40 * 240  # of class 0: everybody's share, and two of five groups' dominant rows
    match = rf"class 'c0' of toy has 7000 rows and 100 clients with .* need {need}; clients=\d+ or train_size=\d+,test"
    with pytest.raises(InputError, match=match) as error:
        dominant(source, 100, rng())
    clients, train, test = map(int, re.findall(r"=(\d+)", str(error.value))[-3:])
    assert sizes(dominant(source, clients, rng())).tolist() == [[600, 300]] * clients
    with pytest.raises(InputError):
        dominant(source, clients + 1, rng())
    assert sizes(dominant(source, 100, rng(), train_size=train, test_size=test)).tolist() == [[train, test]] * 100
    assert test == pytest.approx(train / 2, abs=0.5)
    with pytest.raises(InputError):
        dominant(source, 100, rng(), train_size=train + 2, test_size=test + 1)


def test_dominant_where_no_client_fits():
    with pytest.raises(InputError, match=r"; train_size=\d+,test_size=\d+ would fit"):
        dominant(toy(100), 2, rng())
