"""Which training samples are kept for validation: how many of each class, against the rules with exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from idiolect import data
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.data import FederatedData, from_arrays
from idiolect.data.validation import held_out


def labels(*sizes: int) -> np.ndarray:
    """So many samples of each class, mixed."""
    return np.random.default_rng(4).permutation(np.repeat(np.arange(len(sizes)), sizes))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("sizes", "share", "want"),
    [
        ((50, 30, 20), 0.2, (10, 6, 4)),
        ((7, 5, 3), 0.2, (1, 1, 1)),  # quotas 1.4, 1.0, 0.6
        ((1, 1, 18), 0.2, (0, 0, 4)),  # a class of one sample stays
        ((2, 2, 2), 0.5, (1, 1, 1)),
        ((2, 2, 2), 0.8, (1, 1, 1)),  # asked for five, and each class keeps one
        ((10, 1), 0.5, (6, 0)),  # quotas 5.45 and 0.55, which has no room
        ((3,), 0.2, (1,)),
        ((2,), 0.9, (1,)),
        ((9, 3), 0.05, (1, 0)),  # at least one
        ((40, 0, 0, 8, 2), 0.1, (4, 0, 0, 1, 0)),
    ],
)
def test_each_class_gives_its_share_and_keeps_a_sample(
    sizes: tuple[int, ...], share: float, want: tuple[int, ...], seed: int
) -> None:
    label_N = labels(*sizes)
    at_N = held_out(label_N, share, seed, 2)
    assert (np.diff(at_N) > 0).all()
    assert tuple(np.bincount(label_N[at_N], minlength=len(sizes))) == want


@pytest.mark.parametrize("share", [0.05, 0.2, 0.37, 0.5, 0.75])
@pytest.mark.parametrize("seed", range(8))
def test_counts_are_the_largest_remainders(share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    label_N = rng.choice(8, size=int(rng.integers(2, 120)), p=rng.dirichlet(np.full(8, 0.7)))
    size_C = np.bincount(label_N, minlength=8)
    part_C = np.bincount(label_N[held_out(label_N, share, seed, 0)], minlength=8)
    room = int(np.maximum(size_C - 1, 0).sum())
    assert part_C.sum() == max(1, min(round(share * len(label_N)), room))
    if not room:
        return
    assert (part_C <= np.maximum(size_C - 1, 0)).all()
    quota_C = [Fraction(int(max(1, round(share * len(label_N))) * n), len(label_N)) for n in size_C]
    for c in np.flatnonzero(
        part_C < size_C - 1
    ):  # its next sample would have no larger remainder than any that is taken
        for other in np.flatnonzero(part_C):
            assert quota_C[other] - int(part_C[other] - 1) >= quota_C[c] - int(part_C[c])


def test_the_draw_is_random_and_depends_on_seed_and_client_alone() -> None:
    label_N = labels(40, 25, 35)
    first = held_out(label_N, 0.2, 0, 0)
    assert (first == held_out(label_N, 0.2, 0, 0)).all()
    others = [held_out(label_N, 0.2, seed, client) for seed, client in ((0, 1), (1, 0), (7, 3))]
    assert all((first != other).any() for other in others)
    even_N = labels(3, 3, 3, 3)
    ties = {tuple(np.bincount(even_N[held_out(even_N, 0.2, seed, 0)], minlength=4)) for seed in range(40)}
    assert len(ties) == 6, "which two of four classes have a sample is drawn"


@pytest.mark.parametrize("sizes", [(), (1,)])
def test_a_client_with_one_sample_trains_on_it(sizes: tuple[int, ...]) -> None:
    assert not len(held_out(labels(*sizes) if sizes else np.zeros(0, np.int64), 0.5, 0, 0))


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_of_classes_with_one_sample_each_one_sample_is_taken(classes: int) -> None:
    assert len(held_out(np.arange(classes), 0.2, 0, 0)) == 1


def clients(*sizes: int, share: float) -> FederatedData:
    """Clients with so many training samples and one test sample each, of two classes in turn."""
    owner = np.repeat([f"site {k}" for k in range(len(sizes))], [n + 1 for n in sizes])
    place = np.concatenate([np.arange(n + 1) for n in sizes])
    x = np.random.default_rng(0).normal(size=(len(owner), 3)).astype(np.float32)
    source = from_arrays(x, place % 2, clients=owner)
    return data.build(source, Spec.parse("natural:test_fraction=0.01"), [], None, 5, validation=share)


def test_a_federation_divides_each_clients_training_samples(caplog: pytest.LogCaptureFixture) -> None:
    whole, parts = clients(20, 30, 1, 40, share=0.0), clients(20, 30, 1, 40, share=0.25)
    assert "1 of 4 clients have fewer than two samples to train on" in caplog.text
    for k, n in enumerate((20, 30, 1, 40)):
        train, valid = parts.train[k], parts.validation[k]
        assert len(valid) == (round(0.25 * n) if n > 1 else 0)
        assert torch.equal(torch.cat([train, valid]).sort().values, whole.train[k])
        assert torch.equal(parts.test[k], whole.test[k])
        want = held_out(whole.y_R[whole.train[k]].numpy(), 0.25, 5, k)
        assert torch.equal(valid, whole.train[k][torch.from_numpy(want)])


@pytest.mark.parametrize(("sizes", "share"), [((20, 4), 0.9), ((30, 30, 30), 0.99), ((9, 12), 0.96)])
def test_a_share_that_leaves_nothing_to_train_on_is_refused(sizes: tuple[int, ...], share: float) -> None:
    at, size = next((k, n) for k, n in enumerate(sizes) if round(share * n) >= n)
    sentence = f"validation={share:g} leaves client site {at} none of its {size} samples to train on: give a smaller"
    with pytest.raises(InputError, match=sentence):
        clients(*sizes, share=share)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_share_that_gives_no_client_a_sample_is_refused(count: int) -> None:
    with pytest.raises(InputError, match="gives no client a validation sample, because none has two samples"):
        clients(*[1] * count, share=0.2)


def test_new_clients_have_none() -> None:
    rng = np.random.default_rng(0)
    source = from_arrays(rng.normal(size=(80, 3)).astype(np.float32), rng.integers(0, 2, 80))
    whole = data.build(source, Spec.parse("iid"), [], 4, 0, new_clients=1, validation=0.5)
    assert [len(rows_N) > 0 for rows_N in whole.validation] == [True, True, True, False]
