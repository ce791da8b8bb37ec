import dataclasses
import itertools
import logging
import re
import time
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from idiolect.core.errors import InputError
from idiolect.core.option_spec import check
from idiolect.data import PARTITIONS, partitions
from idiolect.data.datasets.dataset import Column, Source
from idiolect.data.partitions import label_skew, official
from idiolect.data.partitions.allocation import allocate, fill, suffices
from idiolect.data.partitions.by_column import domains, natural
from idiolect.data.partitions.dominant import dominant
from idiolect.data.partitions.iid import iid
from idiolect.data.partitions.label_skew import classes, dirichlet, dirichlet_fixed
from idiolect.data.partitions.official import dirichlet_official
from idiolect.data.partitions.pathological import pathological

quick = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**32)


def source_of(y_R, train, classes, name="toy", columns=None):
    """Labels, and no images to speak of."""
    x_R = torch.zeros(len(y_R), 1, 1, 1, dtype=torch.uint8)
    names = tuple(f"c{i}" for i in range(classes))
    return Source(name, x_R, torch.as_tensor(y_R), classes, names, None, None, train, columns or {})


def toy(train=600, test=0, classes=10, name="toy"):
    """Balanced labels in random order, of sixty writers in two places."""
    rng = np.random.default_rng(0)
    y_R = np.concatenate([rng.permutation(np.arange(n) % classes) for n in (train, test)])
    writer = Column(rng.permutation(np.arange(len(y_R)) % 60), tuple(f"writer {i:02d}" for i in range(60)))
    place = Column(rng.permutation(np.arange(len(y_R)) % 2), ("here", "there"))
    whole = Column(np.zeros(len(y_R), np.int64), ("all",))
    return source_of(y_R, train, classes, name, {"writer": writer, "place": place, "whole": whole})


def counts(source, rows_K):
    return np.stack([np.bincount(source.y_R.numpy()[rows], minlength=source.classes) for rows in rows_K])


def sizes(split):
    return np.array([[len(train), len(test)] for train, test in zip(split.train, split.test, strict=True)])


def every(split):
    return np.concatenate([*split.train, *split.test])


def disjoint(source, split):
    rows = every(split)
    return len(set(rows.tolist())) == len(rows) and rows.min() >= 0 and rows.max() < len(source.y_R)


def rng(seed=0):
    return np.random.default_rng(seed)


# options with which every partition works on some hundred rows
SMALL = {
    "iid": {},
    "dirichlet": {},
    "dirichlet_fixed": {"rows": 30, "alpha": 10},
    "dirichlet_official": {"alpha": 5},
    "classes": {"per_client": 2, "draw": "random", "rows": 30},
    "dominant": {"sizes_K": 20, "test_size": 10},
    "pathological": {"sizes_K": 20, "test_size": 10, "classes_per_group": "2+1"},
    "natural": {"column": "writer"},
    "domains": {"column": "whole", "inside": "iid(test_fraction=0.3)"},
}
OWN_SIZES = [name for name, options in SMALL.items() if name in ("dirichlet_fixed", "classes") or "sizes_K" in options]


def divide(name, source, clients, rng, **more):
    options = SMALL[name] | more
    if "sizes_K" in options:
        options["sizes_K"] = np.broadcast_to(options["sizes_K"], clients).astype(np.int64)
    return PARTITIONS[name](source, clients, rng, **options)


def test_every_partition_is_listed_and_tested():
    assert PARTITIONS is partitions.PARTITIONS
    assert set(PARTITIONS) == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_rows_themselves_are_not_read(name):
    source = toy(800, 200)
    split = divide(name, dataclasses.replace(source, x_R=source.x_R.to("meta")), 5, rng())
    same = divide(name, source, 5, rng())
    for rows, others in zip((*split.train, *split.test), (*same.train, *same.test), strict=True):
        np.testing.assert_array_equal(rows, others)


@pytest.mark.parametrize("number", [2**40, 2**40 + 1, 99999999999999999999])
@pytest.mark.parametrize(
    ("name", "option"),
    [
        *(("dirichlet", "min_rows"), ("dirichlet_fixed", "rows"), ("classes", "rows"), ("classes", "per_client")),
        *(("dominant", "test_size"), ("pathological", "test_size"), ("natural", "min_rows")),
        ("domains", "train_rows"),
    ],
)
def test_huge_numbers_are_refused_or_have_no_effect(name, option, number):
    source = toy(800, 200)
    given = {option: number}
    if number > 2**40:
        with pytest.raises(InputError, match=rf"{option}=.* is not valid: .*1099511627776"):
            check(PARTITIONS[name], given, f"partition {name}")
    elif option == "train_rows":
        assert len(divide(name, source, 5, rng(), **check(PARTITIONS[name], given, name)).train) == 5
    else:
        with pytest.raises(InputError, match=f"partition {name}: "):
            divide(name, source, 5, rng(), **check(PARTITIONS[name], given, name))


@pytest.mark.parametrize("name", SMALL)
def test_repeatable_by_seed_and_different_by_seed(name):
    source = toy(800, 200)

    def run(seed):
        split = divide(name, source, 5, rng(seed))
        return [rows.tolist() for rows in (*split.train, *split.test)]

    assert run(1) == run(1)
    assert (run(1) != run(2)) == (name != "dirichlet_official")


@pytest.mark.parametrize("name", SMALL)
@quick
@given(seed=seeds, clients=st.integers(1, 12), classes=st.integers(2, 15))
def test_disjoint_and_nobody_is_left_without_rows(name, seed, clients, classes):
    source = toy(2400, 900, classes)
    split = divide(name, source, clients, rng(seed))
    assert len(split.train) == len(split.test) == clients
    assert disjoint(source, split)
    assert sizes(split).min() >= 1
    assert not split.shared
    assert split.names is None or len(set(split.names)) == clients


@pytest.mark.parametrize("name", SMALL)
def test_rows_stand_in_random_order_and_not_by_class(name):
    source = toy(1600, 400)
    more = {"sizes_K": 100} if name in OWN_SIZES else {}
    row = divide(name, source, 2, rng(), **more).train[0]
    assert (np.diff(source.y_R.numpy()[row]) < 0).mean() > 0.2
    assert abs(np.corrcoef(row, np.arange(len(row)))[0, 1]) < 0.5


@pytest.mark.parametrize("name", [n for n in SMALL if n != "natural"])
def test_more_clients_than_rows_can_serve(name):
    with pytest.raises(
        InputError, match=r"clients=51 is too many for toy.*: .* 100 samples are enough for at most 50 clients"
    ):
        divide(name, toy(80, 20), 51, rng())


@pytest.mark.parametrize("name", SMALL)
def test_a_client_gets_any_rows_of_a_class_and_not_the_first(name):
    source = toy(2000, 500)
    row = np.sort(divide(name, source, 5, rng()).train[0])
    assert row[-1] - row[0] > 1500
    first = np.flatnonzero(source.y_R.numpy() == 2)[:200]
    assert 0.5 * len(first) > np.isin(first, row).sum()


@pytest.mark.parametrize("name", OWN_SIZES)
def test_training_sizes_that_are_given_are_kept(name):
    source = toy(6000, 2000)
    sizes_K = np.array([30, 60, 120, 30, 121])
    more = {"test_fraction": 0.25} if name in ("dirichlet_fixed", "classes") else {"test_size": 15}
    got = sizes(divide(name, source, 5, rng(), sizes_K=sizes_K, **more))
    assert got[:, 0].tolist() == sizes_K.tolist()
    assert got[:, 1].tolist() == ([10, 20, 40, 10, 40] if "test_fraction" in more else [15] * 5)


@pytest.mark.parametrize("name", [n for n in SMALL if n not in ("iid", "domains")])
def test_label_counts_do_not_depend_on_the_order_of_rows(name):
    source = toy(900)
    order = rng(9).permutation(900)
    moved = {n: Column(c.code_R[order], c.names) for n, c in source.columns.items()}
    other = source_of(source.y_R.numpy()[order], 900, 10, columns=moved)
    same = ("dominant", "pathological", "dirichlet_official")
    stratified = {} if name in same else {"stratified": True}
    for more in ({}, stratified):
        one, two = (divide(name, s, 6, rng(4), **more) for s in (source, other))
        assert [r.tolist() for r in one.train] != [r.tolist() for r in two.train]
        whole = [counts(s, x.train) + counts(s, x.test) for s, x in ((source, one), (other, two))]
        assert (whole[0] == whole[1]).all()
    assert (counts(source, one.train) == counts(other, two.train)).all()


@pytest.mark.parametrize("name", ["iid", "dirichlet", "dirichlet_fixed", "classes", "natural"])
@quick
@given(seed=seeds, clients=st.integers(1, 12), fraction=st.floats(0.02, 0.98), classes=st.integers(2, 15))
def test_stratified_keeps_the_proportions_to_within_a_row(name, seed, clients, fraction, classes):
    source = toy(900, 100, classes)
    again = {"official_split": False} if name == "natural" else {}
    plain = divide(name, source, clients, rng(seed), test_fraction=fraction, **again)
    split = divide(name, source, clients, rng(seed), test_fraction=fraction, stratified=True, **again)
    assert (sizes(split) == sizes(plain)).all()
    assert sizes(split).min() >= 1
    assert disjoint(source, split)
    train_KC, test_KC = counts(source, split.train), counts(source, split.test)
    share_K = test_KC.sum(1) / (train_KC + test_KC).sum(1)
    assert (np.abs(test_KC - share_K[:, None] * (train_KC + test_KC)) < 1).all()


def test_stratified_rows_stand_in_any_order():
    source = source_of(np.repeat([0, 1], [2, 18]), 20, 2)
    splits = [iid(source, 1, rng(s), test_fraction=0.5, stratified=True) for s in range(500)]
    for part in (0, 1):
        place = [int(np.flatnonzero(split[part][0] < 2)[0]) for split in splits]
        assert stats.chisquare(np.bincount(place, minlength=10)).pvalue > 1e-3


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("iid", {"stratified": True}),
        ("dirichlet", {"alpha": 1, "min_rows": 10}),
        ("dirichlet_fixed", {"rows": None, "alpha": 0.01}),
        ("dirichlet_official", {"alpha": 5}),
        ("classes", {"per_client": 5}),
        ("dominant", {"sizes_K": 25}),
        ("pathological", {"sizes_K": 25, "classes_per_group": "3+3+5+5+8"}),
        ("natural", {"column": "thousand"}),
        ("domains", {"column": "place", "inside": "dirichlet(alpha=1.0,min_rows=10)"}),
    ],
)
def test_a_thousand_clients_in_seconds(name, options):
    source = toy(60000)
    source.columns["thousand"] = Column(np.arange(60000) % 1000, tuple(f"{i:03d}" for i in range(1000)))
    start = time.process_time()
    assert len(divide(name, source, 1000, rng(), **options).train) == 1000
    assert time.process_time() - start < 2


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


# --- dirichlet_official


def test_dirichlet_official_is_the_authors_draw():
    """On CIFAR-10's classes: what their file of clients has, over samples: 4.80 effective classes, 41.9 % of one."""
    y_R = rng(3).permutation(np.repeat(np.arange(10), 6000))
    source = source_of(y_R, 50000, 10)
    split = dirichlet_official(source, 100, rng())
    count_KC = counts(source, split.train) + counts(source, split.test)
    assert count_KC.sum() == 60000
    assert disjoint(source, split)
    share_KC = count_KC / count_KC.sum(1, keepdims=True)
    effective_K = np.exp(stats.entropy(share_KC, axis=1))
    assert np.average(effective_K, weights=count_KC.sum(1)) == pytest.approx(4.80, abs=0.005)
    assert np.average(share_KC.max(1), weights=count_KC.sum(1)) == pytest.approx(0.419, abs=0.0005)
    assert (sizes(split)[:, 1] == np.ceil(sizes(split).sum(1) * 0.2 - 1e-9)).all()


def test_dirichlet_official_follows_the_published_lines():
    """The procedure in lists, from the equations: cap, renormalise, cumulative cut, and again until all have enough."""
    source, clients, alpha = toy(3000), 12, 0.5
    y_R, old = source.y_R.numpy(), np.random.RandomState(42)
    while True:
        whose = [[] for _ in range(clients)]
        for c in range(10):
            mine = np.where(y_R == c)[0]
            old.shuffle(mine)
            p = old.dirichlet(np.repeat(alpha, clients))
            p = np.array([q * (len(rows) < 3000 / clients) for q, rows in zip(p, whose, strict=True)])
            ends = (np.cumsum(p / p.sum()) * len(mine)).astype(int)[:-1]
            whose = [rows + part.tolist() for rows, part in zip(whose, np.split(mine, ends), strict=True)]
        if min(map(len, whose)) >= 62.5:
            break
    split = dirichlet_official(source, clients, rng())
    found = [sorted([*train, *test]) for train, test in zip(split.train, split.test, strict=True)]
    assert found == [sorted(rows) for rows in whose]


def test_dirichlet_official_gives_up(monkeypatch):
    monkeypatch.setattr(official, "_TRIES", 1000)
    with pytest.raises(
        InputError, match=r"in 1,000 draws with alpha=0\.001, one of 9 clients .*: take fewer|larger alpha"
    ):
        dirichlet_official(toy(300, classes=3), 9, rng(), alpha=0.001)


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
    source = source_of(np.arange(300) % 3, 300, 5)
    assert sizes(dirichlet(source, 3, rng())).sum() == 300


def test_dirichlet_floor_above_the_mean():
    match = "min_rows=61 is more than 10 clients can have of toy's 600 samples; min_rows=60 is the most"
    with pytest.raises(InputError, match=match):
        dirichlet(toy(600), 10, rng(), min_rows=61)


def test_dirichlet_gives_up_and_says_what_fits(monkeypatch):
    monkeypatch.setattr(label_skew, "_TRIES", 300)
    source = toy(600)
    match = r"in 300 draws with alpha=0\.1, one of 10 clients always had fewer than 59 samples; min_rows=(\d+) fits, or"
    with pytest.raises(InputError, match=match) as error:
        dirichlet(source, 10, rng(), alpha=0.1, min_rows=59)
    fits = int(re.search(match, str(error.value)).group(1))
    assert sizes(dirichlet(source, 10, rng(), alpha=0.1, min_rows=fits)).sum(1).min() == fits


def test_dirichlet_gives_up_early_where_there_is_no_hope():
    with pytest.raises(InputError, match=r"1,000 draws .* fewer than 5 samples; take fewer clients or a larger alpha"):
        dirichlet(toy(200, classes=2), 20, rng(), alpha=0.01)


def test_dirichlet_gives_up_in_time_with_a_thousand_clients():
    start = time.process_time()
    with pytest.raises(
        InputError, match=r"in 1,000 draws with alpha=0\.1, one of 1000 clients always had fewer than 30"
    ):
        dirichlet(toy(60000), 1000, rng(), alpha=0.1)
    with pytest.raises(InputError, match=r"150 draws with alpha=0\.1.*; min_rows=\d+ fits"):
        dirichlet(toy(60000, classes=100), 1000, rng(), alpha=0.1)
    assert time.process_time() - start < 4


# --- dirichlet_fixed


@pytest.mark.parametrize(
    ("rows", "options", "want"),
    [
        (60000, {}, [400, 100]),  # FedLDA, CIFAR-10
        (60000, {"rows": 1000}, [800, 200]),  # FedLDA, CIFAR-100
        (60000, {"rows": None, "test_fraction": 0.3}, [420, 180]),  # FedCR, table of data sets
        (70000, {"rows": None, "test_fraction": 0.3}, [490, 210]),
        (56000, {"rows": None, "test_fraction": 0.3}, [392, 168]),
    ],
)
def test_dirichlet_fixed_has_the_papers_sizes(rows, options, want):
    source = toy(rows)
    clients = 100 if "test_fraction" in options else 50
    split = dirichlet_fixed(source, clients, rng(), **options)
    assert sizes(split).tolist() == [want] * clients
    assert disjoint(source, split)
    assert len(every(split)) == (rows if "test_fraction" in options else sum(want) * 50)


@quick
@given(seed=seeds, log_alpha=st.floats(-6, 6), clients=st.integers(1, 20), classes=st.integers(1, 12))
def test_dirichlet_fixed_always_ends_and_gives_everyone_the_same(seed, log_alpha, clients, classes):
    source = toy(400, 37, classes)
    split = dirichlet_fixed(source, clients, rng(seed), alpha=10**log_alpha, rows=None)
    assert (sizes(split).sum(1) == 437 // clients).all()
    assert disjoint(source, split)


@pytest.mark.parametrize("alpha", [1e-300, 1e-6])
def test_dirichlet_fixed_where_priors_are_single_classes(alpha):
    source = source_of(np.repeat([0, 1, 2], [100, 100, 800]), 1000, 4)
    split = dirichlet_fixed(source, 10, rng(), alpha=alpha, rows=None)
    assert len(every(split)) == 1000
    plenty = toy(6000)
    few = counts(plenty, dirichlet_fixed(plenty, 5, rng(), alpha=alpha, rows=100).train)
    assert ((few > 0).sum(1) == 1).all()


def chances(prior_KC, sizes_K, stock_C):
    """What the description gives, with its probabilities: every order of draws, one by one."""
    states = {tuple(np.zeros(prior_KC.size, int)): 1.0}
    for _ in range(sum(sizes_K)):
        following = Counter()
        for state, chance in states.items():
            count_KC = np.reshape(state, prior_KC.shape)
            waiting = [k for k, size in enumerate(sizes_K) if count_KC[k].sum() < size]
            left = count_KC.sum(0) < stock_C
            for k in waiting:
                p = prior_KC[k] * left if (prior_KC[k] * left).sum() else left * 1.0
                for c in np.flatnonzero(p):
                    count_KC[k, c] += 1
                    following[tuple(count_KC.ravel().tolist())] += chance / len(waiting) * p[c] / p.sum()
                    count_KC[k, c] -= 1
        states = following
    return states


@pytest.mark.parametrize(
    ("prior", "sizes_K", "stock"),
    [
        ([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], [2, 3], [3, 2, 2]),
        ([[0.6, 0.4, 0.0], [1.0, 0.0, 0.0]], [3, 2], [2, 2, 2]),  # a prior with nothing left
        ([[0.2, 0.8], [0.7, 0.3], [0.5, 0.5]], [1, 2, 2], [3, 2]),  # to the last row
    ],
)
def test_fill_has_the_distribution_of_the_procedure(prior, sizes_K, stock):
    prior, sizes_K, stock = np.array(prior), np.array(sizes_K), np.array(stock)
    want = chances(prior, sizes_K, stock)
    draw = rng(5)
    got = Counter(tuple(fill(prior, sizes_K, stock, draw).ravel().tolist()) for _ in range(6000))
    assert set(got) <= set(want)
    common = [state for state in want if want[state] * 6000 > 5]
    expected = np.array([want[state] * 6000 for state in common])
    observed = np.array([got[state] for state in common])
    rest = 6000 - np.array([expected.sum(), observed.sum()])
    if rest[0] > 1:
        expected, observed = np.append(expected, rest[0]), np.append(observed, rest[1])
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_dirichlet_fixed_alpha_is_heterogeneity():
    source = toy(100_000)
    for alpha in (0.1, 1.0, 10.0):
        split = dirichlet_fixed(source, 400, rng(1), alpha=alpha, rows=50)
        n_KC = counts(source, split.train) + counts(source, split.test)
        # variance of a Dirichlet-multinomial count
        want = 50 * 0.1 * 0.9 * (50 + 10 * alpha) / (1 + 10 * alpha)
        assert n_KC.var() == pytest.approx(want, rel=0.1)


def test_dirichlet_fixed_needs_enough_rows_and_says_what_fits():
    source = toy(1000)
    match = (
        r"dirichlet_fixed: 10 clients with 120 samples each need 1200 and toy has 1000; rows=100 or clients=8 would fit"
    )
    with pytest.raises(InputError, match=match):
        dirichlet_fixed(source, 10, rng(), rows=120)
    assert len(every(dirichlet_fixed(source, 10, rng(), rows=100))) == 1000
    assert len(dirichlet_fixed(source, 8, rng(), rows=120).train) == 8
    with pytest.raises(
        InputError, match=r"with 12 to 250 samples each need 1260 and .*; training sizes of (\d+)"
    ) as error:
        dirichlet_fixed(source, 6, rng(), np.array([200, 200, 10, 199, 199, 200]))
    mean = int(re.search(r"training sizes of (\d+)", str(error.value)).group(1))
    assert sizes(dirichlet_fixed(source, 6, rng(), np.full(6, mean)))[:, 0].tolist() == [mean] * 6
    with pytest.raises(InputError):
        dirichlet_fixed(source, 6, rng(), np.full(6, mean + 1))


# --- classes


@pytest.mark.parametrize(
    ("rows", "n_classes", "per_client", "want"),
    [(60000, 10, 5, [420, 180]), (70000, 10, 5, [490, 210]), (60000, 100, 15, [420, 180])],
)
def test_classes_has_the_papers_sizes_and_consecutive_classes(rows, n_classes, per_client, want):
    source = toy(rows, classes=n_classes)
    split = classes(source, 100, rng(), per_client=per_client)
    assert sizes(split).tolist() == [want] * 100
    assert disjoint(source, split)
    for i, n_C in enumerate(counts(source, split.train) + counts(source, split.test)):
        own = {(i + j) % n_classes for j in range(per_client)}
        assert {int(n) for c, n in enumerate(n_C) if c in own} == {rows // 100 // per_client}
        assert set(np.flatnonzero(n_C)) == own


@quick
@given(
    seed=seeds,
    clients=st.integers(1, 30),
    per_client=st.integers(1, 10),
    draw=st.sampled_from(["consecutive", "random"]),
)
def test_classes_gives_own_classes_only_and_equal_numbers_of_each_where_there_is_plenty(
    seed, clients, per_client, draw
):
    source = toy(10_000)
    split = classes(source, clients, rng(seed), per_client=per_client, draw=draw, rows=30)
    n_KC = counts(source, split.train) + counts(source, split.test)
    assert (n_KC.sum(1) == 30).all()
    assert ((n_KC > 0).sum(1) == per_client).all()
    assert (np.where(n_KC, n_KC, 99).min(1) >= n_KC.max(1) - 1).all()


def test_classes_at_random_are_uniform():
    chosen = counts(toy(10_000), classes(toy(10_000), 500, rng(), per_client=3, draw="random", rows=15).train) > 0
    assert stats.chisquare(chosen.sum(0)).pvalue > 1e-3
    assert len(np.unique(chosen, axis=0)) > 100  # of 120 sets


@pytest.mark.parametrize("seed", range(5))
def test_classes_at_random_serves_everyone_where_classes_run_out(seed):
    source = toy(60000)
    split = classes(source, 100, rng(seed), draw="random")
    n_KC = counts(source, split.train) + counts(source, split.test)
    assert (n_KC.sum(1) == 600).all()
    assert disjoint(source, split)
    assert ((n_KC > 0).sum(1) == 5).all()
    assert np.where(n_KC, n_KC, 600).min() > 30  # of 120 on average
    assert n_KC.max() < 300


def test_allocate_takes_less_of_a_class_in_demand():
    own = np.array([[1, 1, 0], [1, 0, 1]], bool)
    assert allocate(own, np.array([10, 10]), np.array([6, 20, 20]), rng()).tolist() == [[3, 7, 0], [3, 0, 7]]
    assert allocate(own, np.array([10, 10]), np.array([0, 10, 10]), rng()).tolist() == [[0, 10, 0], [0, 0, 10]]
    # client 0 can only have class 0, so that client 1 cannot
    own = np.array([[1, 0], [1, 1]], bool)
    assert allocate(own, np.array([10, 10]), np.array([10, 10]), rng()).tolist() == [[10, 0], [0, 10]]
    assert allocate(own, np.array([11, 9]), np.array([10, 10]), rng()) is None


@quick
@given(data=st.data(), clients=st.integers(1, 6), n_classes=st.integers(1, 5))
def test_allocate_works_exactly_where_halls_condition_holds(data, clients, n_classes):
    numbers = st.integers(1, 12)
    size_K = np.array(data.draw(st.lists(numbers, min_size=clients, max_size=clients)))
    stock_C = np.array(data.draw(st.lists(st.integers(0, 25), min_size=n_classes, max_size=n_classes)))
    row = st.lists(st.booleans(), min_size=n_classes, max_size=n_classes).filter(any)
    own_KC = np.array(data.draw(st.lists(row, min_size=clients, max_size=clients)))
    groups = itertools.chain.from_iterable(itertools.combinations(range(clients), n) for n in range(1, clients + 1))
    possible = all(size_K[list(g)].sum() <= stock_C[own_KC[list(g)].any(0)].sum() for g in groups)
    assert suffices(own_KC, size_K, stock_C) == possible
    count_KC = allocate(own_KC, size_K, stock_C, rng())
    assert (count_KC is not None) == possible
    if possible:
        assert (count_KC.sum(1) == size_K).all()
        assert (count_KC.sum(0) <= stock_C).all()
        assert (count_KC >= 0).all()
        assert not count_KC[~own_KC].any()


def test_classes_that_run_out_say_what_fits():
    source = source_of(np.repeat(np.arange(4), [700, 100, 100, 100]), 1000, 4)
    match = r"4 clients cannot have 250 samples each of 2 classes of toy.*; rows=(\d+) or a larger per_client fits"
    with pytest.raises(InputError, match=match) as error:
        classes(source, 4, rng(), per_client=2)
    fits = int(re.search(match, str(error.value)).group(1))
    assert fits == 150  # clients 1 and 2 have no other than the 300 rows of classes 1 to 3
    assert (sizes(classes(source, 4, rng(), per_client=2, rows=fits)).sum(1) == fits).all()
    with pytest.raises(InputError):
        classes(source, 4, rng(), per_client=2, rows=fits + 1)
    assert (sizes(classes(source, 4, rng(), per_client=4)).sum(1) == 250).all()
    match = r"training sizes of at most (\d+) or a larger"
    with pytest.raises(InputError, match=match) as error:
        classes(source, 4, rng(), np.full(4, 150), per_client=2)
    fits = int(re.search(match, str(error.value)).group(1))
    assert sizes(classes(source, 4, rng(), np.full(4, fits), per_client=2))[:, 0].tolist() == [fits] * 4


def test_classes_with_more_classes_than_there_are():
    with pytest.raises(
        InputError, match=r"per_client=11 is more than the 10 classes of toy; per_client=10 is the most"
    ):
        classes(toy(), 3, rng(), per_client=11)
    with pytest.raises(InputError, match=r"per_client=3 is the most"):
        classes(source_of(np.arange(300) % 3, 300, 5), 3, rng())


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
    assert (
        "official splits of toy are too small for 20 clients with 600 training samples and test_size=600" in caplog.text
    )
    assert min(rows.min() for rows in split.test) < 60000
    assert (counts(source, split.train) == counts(source, split.test)).all()
    assert disjoint(source, split)


def test_dominant_without_an_official_split(caplog):
    source = toy(1797)
    split = dominant(source, 10, rng(), np.full(10, 60), test_size=30)
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
    split = dominant(source, clients, rng(), np.full(clients, train_size), share=share, test_size=test_size)
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
    total = counts(source, dominant(source, 10, rng(), np.full(10, 13), share=100, test_size=3).train).sum(0)
    assert total.tolist() == [13] * 10


def test_dominant_share_at_its_ends():
    source = toy(6000)
    assert (counts(source, dominant(source, 5, rng(), np.full(5, 100), share=100, test_size=50).train) == 10).all()
    only = counts(source, dominant(source, 5, rng(), np.full(5, 90), share=0, test_size=30).train)
    assert [set(np.flatnonzero(n)) for n in only] == list(PAPER)


def test_dominant_with_a_hundred_classes():
    source = toy(50000, classes=100)
    n_KC = counts(source, dominant(source, 5, rng(), np.full(5, 420), share=0, test_size=21).train)
    for g in range(5):
        assert set(np.flatnonzero(n_KC[g])) == {c % 100 for c in range(20 * g, 20 * g + 21)}
        assert n_KC[g].max() == 20


def test_dominant_runs_out_and_says_what_fits():
    source = toy(60000, 10000)
    need = 100 * 18 + 40 * 240  # of class 0: everybody's share, and two of five groups' dominant rows
    match = (
        rf"class 'c0' of toy has 7000 samples and 100 clients with .* need {need}; clients=\d+ or training sizes of at"
    )
    with pytest.raises(InputError, match=match) as error:
        dominant(source, 100, rng())
    clients, train, test = map(int, re.findall(r"\d+", str(error.value))[-3:])
    assert sizes(dominant(source, clients, rng())).tolist() == [[600, 300]] * clients
    with pytest.raises(InputError):
        dominant(source, clients + 1, rng())
    assert sizes(dominant(source, 100, rng(), np.full(100, train), test_size=test)).tolist() == [[train, test]] * 100
    assert test == pytest.approx(train / 2, abs=0.5)
    with pytest.raises(InputError):
        dominant(source, 100, rng(), np.full(100, train + 2), test_size=test + 1)


def test_dominant_where_no_client_fits():
    with pytest.raises(InputError, match=r"; training sizes of at most \d+ with test_size=\d+ would fit"):
        dominant(toy(100), 2, rng())


CHARACTERS = (range(10), range(10, 36), range(36, 62))


def test_dominant_has_three_groups_of_characters():
    source = toy(62000, 12400, classes=62)
    split = dominant(source, 6, rng(), np.full(6, 1000), share=0, test_size=600)
    assert not split.shared
    for i, n_C in enumerate(counts(source, split.train)):
        assert set(np.flatnonzero(n_C)) == set(CHARACTERS[i % 3])
        assert np.ptp(n_C[n_C > 0]) <= 1
    for rows_K in (split.train, dominant(source, 6, rng(), share=0, groups="characters").train):
        assert [set(np.flatnonzero(n_C)) for n_C in counts(source, rows_K)] == [set(g) for g in CHARACTERS * 2]
    five = counts(source, dominant(source, 6, rng(), share=0, groups="consecutive").train)
    assert set(np.flatnonzero(five[0])) == set(range(13))
    with pytest.raises(InputError, match=r"groups=characters needs 62 classes and toy has 10; take groups=consecutive"):
        dominant(toy(6000), 2, rng(), groups="characters")


def slices(clients, size, uniform, groups, stock, start, short=False):
    """The description of the released code: (class, place in the class) of every row of every client."""
    cursor = [start] * len(stock)
    hands = []
    for i in range(clients):
        wanted = []
        group = list(groups[i % len(groups)])
        for chosen, total in ((list(range(len(stock))), uniform), (group, size - uniform)):
            equal = total // len(chosen)
            for c in chosen[:-1]:
                wanted.append((c, equal, equal))
            last = total - (len(chosen) - 1) * equal
            wanted.append((chosen[-1], last, equal if short and chosen is group else last))
        hand = []
        for c, take, moves_on in wanted:
            if cursor[c] + take > stock[c]:
                cursor[c] = 0
            hand += [(c, cursor[c] + n) for n in range(take)]
            cursor[c] += moves_on
        hands.append(hand)
    return hands


def repeats(hands):
    """How many rows too many are handed out."""
    return sum(map(len, hands)) - len({row for hand in hands for row in hand})


PAPER_LISTS = ([0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0])


@pytest.mark.parametrize(
    ("name", "train", "test", "clients", "test_size", "starts", "overlap"),
    [
        ("cifar10", 50000, 10000, 20, 300, (2000, 500), (0, 0)),
        ("cifar10", 50000, 10000, 100, 300, (2000, 500), (13672, 20136)),
        ("fashion_mnist", 60000, 10000, 20, 600, (0, 0), (0, 2772)),
        ("fashion_mnist", 60000, 10000, 100, 600, (0, 0), (8472, 50556)),
    ],
)
def test_dominant_with_the_released_codes_slices(name, train, test, clients, test_size, starts, overlap):
    source = toy(train, test, name=name)
    split = dominant(source, clients, rng(), test_size=test_size, official_quirks=True)
    assert split.shared
    y_R = source.y_R.numpy()
    for got_K, size, offset, rows, start, want in (
        (split.train, 600, 0, train, starts[0], overlap[0]),
        (split.test, test_size, train, test, starts[1], overlap[1]),
    ):
        hands = slices(clients, size, size // 5, PAPER_LISTS, [rows // 10] * 10, start)
        places = [offset + np.flatnonzero(y_R[offset : offset + rows] == c) for c in range(10)]
        for got, hand in zip(got_K, hands, strict=True):
            assert sorted(got) == sorted(places[c][n] for c, n in hand)
        assert sum(map(len, got_K)) - len(set(np.concatenate(got_K).tolist())) == repeats(hands) == want
    assert counts(source, split.train)[1].tolist() == [12, 12, 172, 172, 172, 12, 12, 12, 12, 12]


def test_dominant_quirks_take_a_slice_that_ends_with_the_class():
    split = dominant(toy(200, 200), 3, rng(), np.full(3, 100), share=100, test_size=100, official_quirks=True)
    for part in (split.train, split.test):
        assert not set(part[0]) & set(part[1])
        assert set(part[0]) == set(part[2])


def test_dominant_quirks_on_characters():
    source = toy(62 * 2000, 62 * 400, classes=62)
    split = dominant(source, 20, rng(), np.full(20, 1000), test_size=600, official_quirks=True)
    train_KC, test_KC = counts(source, split.train), counts(source, split.test)
    others = np.arange(20) % 3 != 2  # class 61 is dominant in the third group
    assert (train_KC[others, 61] == 17).all()  # 200 - 61 x 3
    assert (test_KC[others, 61] == 59).all()  # 120 - 61 x 1
    assert (train_KC[2::3, 61] == 17 + 800 - 25 * 30).all()
    for part, size, stock, want in ((split.train, 1000, 2000, 240), (split.test, 600, 400, 1042)):
        hands = slices(20, size, size // 5, CHARACTERS, [stock] * 62, 0, short=True)
        assert sum(map(len, part)) - len(set(np.concatenate(part).tolist())) == repeats(hands) == want
    # without them, test rows have the proportions of training rows
    plain = dominant(source, 20, rng(), np.full(20, 1000), test_size=600)
    difference = counts(source, plain.train) / 1000 - counts(source, plain.test) / 600
    assert np.abs(difference).max() <= 1 / 600 + 1 / 1000


def test_dominant_quirks_say_what_they_need():
    with pytest.raises(
        InputError, match=r"official_quirks takes test samples from an official test split and toy has none"
    ):
        dominant(toy(6000), 2, rng(), official_quirks=True)
    with pytest.raises(
        InputError, match=r"needs 160 samples of class 'c0' in one piece, and a split of toy has 100; take small"
    ):
        dominant(toy(1000, 1000), 2, rng(), official_quirks=True)


# --- pathological


@pytest.mark.parametrize("draw", ["random", "clustered"])
def test_pathological_has_the_papers_counts(draw):
    source = toy(60000, 20000)
    split = pathological(source, 20, rng(), draw=draw)
    train_KC, test_KC = counts(source, split.train), counts(source, split.test)
    assert (train_KC.sum(1) == 600).all()
    assert (test_KC.sum(1) == 300).all()
    assert disjoint(source, split)
    sets = [frozenset(np.flatnonzero(n_C)) for n_C in train_KC]
    assert [len(s) for s in sets] == [3, 3, 5, 5, 8] * 4
    for own, train_C, test_C in zip(sets, train_KC, test_KC, strict=True):
        assert {int(train_C[c]) for c in own} == {600 // len(own)}
        assert np.ptp(test_C[list(own)]) <= 1
        assert test_C[list(own)].sum() == 300
    groups = [set(sets[g::5]) for g in range(5)]
    if draw == "clustered":
        assert [len(g) for g in groups] == [1] * 5
        assert len(set(sets)) == 5
    else:
        assert max(len(g) for g in groups[:4]) > 1
    # official splits, where they suffice
    assert max(rows.max() for rows in split.train) < 60000 <= min(rows.min() for rows in split.test)


@quick
@given(
    seed=seeds, size=st.integers(1, 200), test_size=st.integers(1, 100), wide=st.lists(st.integers(1, 6), min_size=1)
)
def test_pathological_proportions_are_equal_in_training_and_test(seed, size, test_size, wide):
    source = toy(20000, classes=6)
    split = pathological(source, 5, rng(seed), np.full(5, size), test_size=test_size, classes_per_group=wide)
    for rows_K, n in ((split.train, size), (split.test, test_size)):
        for i, n_C in enumerate(counts(source, rows_K)):
            share = n / wide[i % len(wide)]
            assert n_C.sum() == n
            assert all(c == 0 or abs(c - share) < 1 for c in n_C)
            assert (n_C > 0).sum() <= wide[i % len(wide)]


def test_pathological_clustered_groups_differ_wherever_they_can():
    source = toy(6000, classes=3)
    for seed in range(20):
        n_KC = counts(source, pathological(source, 3, rng(seed), classes_per_group="2+2+2", draw="clustered").train)
        assert len(np.unique(n_KC > 0, axis=0)) == 3
    same = counts(
        source, pathological(source, 4, rng(), np.full(4, 9), classes_per_group="3+3", draw="clustered").train
    )
    assert (same > 0).all()


def test_pathological_runs_out_and_says_what_fits():
    source = toy(10000)
    match = (
        r"class 'c\d' of toy has 1000 samples and 40 clients with 600 training samples .*; clients=(\d+) or training "
    )
    with pytest.raises(InputError, match=match + r"sizes of at most (\d+) with test_size=(\d+) would fit") as error:
        pathological(source, 40, rng())
    clients, train, test = map(int, re.findall(r"(\d+)", str(error.value))[-3:])
    assert sizes(pathological(source, clients, rng())).tolist() == [[600, 300]] * clients
    small = pathological(source, 40, rng(), np.full(40, train), test_size=test)
    assert sizes(small).tolist() == [[train, test]] * 40
    for more in ({"clients": clients + 1}, {"clients": 40, "sizes_K": np.full(40, train + 5), "test_size": test + 3}):
        with pytest.raises(InputError):
            pathological(source, rng=rng(), **more)


@pytest.mark.parametrize("value", ["3+x", "", "0+1", [], "3++3", "2.5"])
def test_pathological_reads_numbers(value):
    with pytest.raises(InputError, match="cannot read classes_per_group="):
        pathological(toy(), 2, rng(), classes_per_group=value)
    with pytest.raises(InputError, match="asks for 11 of toy's 10 classes; 10 is the most"):
        pathological(toy(), 2, rng(), classes_per_group="3+11")


def test_pathological_takes_one_number():
    n_KC = counts(toy(), pathological(toy(), 2, rng(), np.full(2, 20), test_size=10, classes_per_group=2).train)
    assert (n_KC > 0).sum(1).tolist() == [2, 2]


# --- natural


def test_natural_takes_every_value_or_the_first():
    source = toy(1200, 600)
    split = natural(source, None, rng(), column="writer", official_split=False)
    assert split.names == tuple(f"writer {i:02d}" for i in range(60))
    for k, rows in enumerate(zip(split.train, split.test, strict=True)):
        mine = np.concatenate(rows)
        assert set(mine) == set(np.flatnonzero(source.columns["writer"].code_R == k))
        assert [len(r) for r in rows] == [24, 6]
    assert natural(source, 7, rng(), column="writer").names == split.names[:7]


def test_natural_uses_the_column_that_the_data_set_names():
    plain = toy(600)
    source = Source("toy", plain.x_R, plain.y_R, 10, plain.class_names, None, None, 600, plain.columns, "place")
    split = natural(source, None, rng(), test_fraction=0.1)
    assert split.names == ("here", "there")
    assert sizes(split).tolist() == [[270, 30]] * 2
    assert natural(source, 2, rng(), column="writer").names == ("writer 00", "writer 01")


def written(rows, train=None):
    """Clients a, b, ... with so many rows each, in order."""
    names = tuple("abcdefgh"[: len(rows)])
    y_R = np.arange(sum(rows)) % 2
    writer = Column(np.repeat(np.arange(len(rows)), rows), names)
    return source_of(y_R, sum(rows) if train is None else train, 2, columns={"writer": writer})


def test_natural_with_a_client_that_has_too_few_rows(caplog):
    source = written([5, 1, 9, 3])
    with pytest.raises(
        InputError,
        match=r"client 'b' of toy has a single sample, which .*; leave such clients out with",
    ):
        natural(source, None, rng(), column="writer")
    assert natural(source, 1, rng(), column="writer").names == ("a",)
    with caplog.at_level(logging.INFO):
        assert natural(source, None, rng(), column="writer", min_rows=2).names == ("a", "c", "d")
    assert "1 of 4 clients are left out" in caplog.text
    assert natural(source, 2, rng(), column="writer", min_rows=5).names == ("a", "c")
    with pytest.raises(
        InputError, match=r"clients=3 is not possible: toy has 2 with min_rows=5; take fewer clients or a sma"
    ):
        natural(source, 3, rng(), column="writer", min_rows=5)
    with pytest.raises(InputError, match=r"toy has 0 with min_rows=99"):
        natural(source, None, rng(), column="writer", min_rows=99)
    with pytest.raises(InputError, match=r"clients=5 is not possible: toy has 4; take fewer clients$"):
        natural(source, 5, rng(), column="writer")


def every_part(split):
    return [*split.train, *split.test]


def test_natural_with_the_official_split():
    source = toy(1200, 600)
    split = natural(source, None, rng(), column="writer", official_split=True)
    assert len(every(split)) == 1800
    assert max(r.max() for r in split.train) < 1200 <= min(r.min() for r in split.test)
    assert disjoint(source, split)
    usual = natural(source, None, rng(), column="writer")
    assert all(map(np.array_equal, every_part(usual), every_part(split))), "the default where everybody has both"
    source = written([4, 4, 4], train=6)  # a trains only, c tests only
    assert sizes(natural(source, None, rng(), column="writer", official_split=False)).tolist() == [[3, 1]] * 3
    for kept in (True, None):
        with pytest.raises(
            InputError,
            match=r"client 'a' of toy has no samples in the official test split \(1 more .*leave such clients",
        ):
            natural(source, None, rng(), column="writer", official_split=kept)
    split = natural(source, None, rng(), column="writer", official_split=True, min_rows=2)
    assert (split.names, sorted(split.train[0]), sorted(split.test[0])) == (("b",), [4, 5], [6, 7])
    for how, what in (({"stratified": True}, "stratified"), ({"test_fraction": 0.5}, "test_fraction")):
        with pytest.raises(InputError, match=f"{what} is not possible, because the official test split of toy is kept"):
            natural(toy(1200, 600), None, rng(), column="writer", **how)
    with pytest.raises(InputError, match="toy has no official test split; take official_split=false"):
        natural(written([4, 4]), None, rng(), column="writer", official_split=True)


@pytest.mark.parametrize("divide_by", [natural, domains])
def test_columns_are_asked_for_by_name(divide_by):
    with pytest.raises(
        InputError, match=r"toy has no column 'writr'; did you mean 'writer'\? Known: writer, place, whole"
    ):
        divide_by(toy(), 2, rng(), column="writr")
    with pytest.raises(
        InputError, match=r"toy does not say which client a sample belongs to; give column, known: writer, place"
    ):
        divide_by(toy(), 2, rng())
    with pytest.raises(
        InputError, match=r"toy does not say which client a sample belongs to; take another, such as dirichlet$"
    ):
        divide_by(source_of(np.zeros(9, np.int64), 9, 1), 2, rng())


# --- domains


FIVE = ("mnist", "mnist-m", "svhn", "synth", "usps")


def digits5():
    """Domains of 200, 400, ... rows, one after the other in both official splits."""
    code_R = np.concatenate(
        [np.repeat(np.arange(5), 160 * np.arange(1, 6)), np.repeat(np.arange(5), 40 * np.arange(1, 6))]
    )
    y_R = np.random.default_rng(0).integers(0, 10, len(code_R))
    site = Column(np.arange(len(code_R)) % 3, ("x", "y", "z"))
    columns = {"domain": Column(code_R, FIVE), "site": site}
    plain = source_of(y_R, 2400, 10, "digit5", columns)
    return Source("digit5", plain.x_R, plain.y_R, 10, plain.class_names, None, None, 2400, columns, "domain")


def test_domains_divides_each_domain_by_dirichlet():
    source = digits5()
    split = domains(source, 20, rng())
    assert split.names == tuple(f"{domain} {i}" for domain in FIVE for i in range(4))
    assert disjoint(source, split)
    assert len(every(split)) == 3000  # every row
    code_R = source.columns["domain"].code_R
    for k, rows in enumerate(zip(split.train, split.test, strict=True)):
        assert set(code_R[np.concatenate(rows)]) == {k // 4}
    assert np.ptp(sizes(split).sum(1)[:4]) > 0
    even = domains(source, 20, rng(), inside="iid")
    assert sizes(even).sum(1).tolist() == [50] * 4 + [100] * 4 + [150] * 4 + [200] * 4 + [250] * 4


def test_domains_copies_no_rows():
    source = toy()
    pixels = torch.zeros(1, dtype=torch.uint8).expand(600, 10**6, 10**4, 10**3)  # more than an address space
    split = domains(dataclasses.replace(source, x_R=pixels), 4, rng(), column="place", inside="iid")
    assert disjoint(source, split)


def test_domains_keeps_official_splits_columns_and_names():
    source = digits5()
    split = domains(source, 15, rng(), inside="natural(column=site,official_split=true)")
    assert split.names[:4] == ("mnist x", "mnist y", "mnist z", "mnist-m x")
    assert max(r.max() for r in split.train) < 2400 <= min(r.min() for r in split.test)
    assert len(every(split)) == 3000
    assert (source.columns["site"].code_R[split.train[4]] == 1).all()
    who = Column(np.repeat([0, 2, 1, 3], 5), ("v", "w", "x", "y"))
    home = {"place": Column(np.repeat([0, 1], 10), ("a", "b")), "who": who}
    people = source_of(np.zeros(20, np.int64), 20, 1, columns=home)
    named = domains(people, 4, rng(), column="place", inside="natural(column=who)")
    assert named.names == ("a v", "a x", "b w", "b y")
    deeper = domains(source, 15, rng(), inside="domains(column=site,inside=iid(test_fraction=0.5))")
    assert deeper.names[0] == "mnist x 0"
    assert not deeper.shared
    twice = toy(4000, 2000)
    assert domains(twice, 2, rng(), column="place", inside="dominant(official_quirks=true,test_size=90)").shared


def test_domains_take_fewer_training_rows_in_their_proportions():
    source = digits5()
    code_R, y_R = source.columns["domain"].code_R, source.y_R.numpy()
    split = domains(source, 5, rng(), inside="iid", train_rows=250)
    for k, (train, test) in enumerate(zip(split.train, split.test, strict=True)):
        own_R = np.flatnonzero(code_R == k)
        official_R, rows = own_R[own_R < source.train_rows], np.concatenate([train, test])
        drawn_R = rows[rows < source.train_rows]
        assert len(drawn_R) == min(250, len(official_R))
        assert set(rows[rows >= source.train_rows]) == set(own_R[own_R >= source.train_rows])
        share = len(drawn_R) / len(official_R)
        want_C = share * np.bincount(y_R[official_R], minlength=10)
        assert np.abs(np.bincount(y_R[drawn_R], minlength=10) - want_C).max() <= 1


def test_without_the_cap_every_class_goes_to_everyone():
    source = toy(6000)
    split = dirichlet(source, 20, rng(3), alpha=0.5, cap=False, min_rows=2)
    draw, count_KC = rng(3), np.zeros((20, 10), np.int64)
    while count_KC.sum(1).min() < 2:
        for c in range(10):
            cuts = (draw.dirichlet(np.full(20, 0.5)).cumsum()[:-1] * 600).astype(int)
            count_KC[:, c] = np.diff(cuts, prepend=0, append=600)
    assert (counts(source, split.train) + counts(source, split.test) == count_KC).all()
    assert count_KC.sum(1).max() > dirichlet_largest(source)


def dirichlet_largest(source):
    """Of twenty clients, with the cap."""
    return sizes(dirichlet(source, 20, rng(3), alpha=0.5, min_rows=2)).sum(1).max()


def test_domains_says_what_fits():
    source = digits5()
    with pytest.raises(
        InputError, match=r"clients=22 cannot be divided equally over the 5 domains of digit5; clients=20 or 25"
    ):
        domains(source, 22, rng())
    with pytest.raises(InputError, match=r"clients=3 cannot be .*; clients=5 would fit"):
        domains(source, 3, rng())
    with pytest.raises(InputError, match=r"unknown inside='dirichlt'; did you mean 'dirichlet'\?"):
        domains(source, 5, rng(), inside="dirichlt(alpha=1)")
    with pytest.raises(InputError, match=r"inside dirichlet has no option 'alph'; did you mean 'alpha'\?"):
        domains(source, 5, rng(), inside="dirichlet(alph=1)")
    with pytest.raises(InputError, match=r"inside dirichlet: alpha=-1 is not valid"):
        domains(source, 5, rng(), inside="dirichlet(alpha=-1)")
    with pytest.raises(
        InputError, match=r"min_rows=60 is more than 4 clients can have of digit5 \(mnist\)'s 200 samples"
    ):
        domains(source, 20, rng(), inside="dirichlet(alpha=1.0,min_rows=60)")
