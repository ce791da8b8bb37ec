import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from idiolect.core.errors import InputError
from idiolect.data.partitions.allocation import Split
from idiolect.data.partitions.sizes import draw_sizes, scarce


def rng(seed=0):
    return np.random.default_rng(seed)


def split_of(*sizes, names=None):
    ends = np.cumsum(sizes)
    train = [rng(1).permutation(np.arange(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    return Split(train, [np.arange(1000 * k, 1000 * k + 7) for k in range(1, len(sizes) + 1)], names)


def test_one_size_is_everybodys():
    assert draw_sizes([600], 4, rng()).tolist() == [600] * 4


def test_several_sizes_are_drawn_uniformly():
    sizes_K = draw_sizes([300, 600, 1200], 3000, rng())
    values, n = np.unique(sizes_K, return_counts=True)
    assert values.tolist() == [300, 600, 1200]
    assert stats.chisquare(n).pvalue > 1e-3
    assert sizes_K.dtype == np.int64
    assert (sizes_K == draw_sizes([300, 600, 1200], 3000, rng())).all()
    assert (sizes_K != draw_sizes([300, 600, 1200], 3000, rng(1))).any()


@pytest.mark.parametrize("sizes", [[], [0], [300, -1]])
def test_sizes_that_cannot_be(sizes):
    with pytest.raises(InputError, match=r"training sizes \[.*\] are not possible: give one or more numbers from 1 on"):
        draw_sizes(sizes, 3, rng())


@pytest.mark.parametrize(
    ("keep", "want"), [(0.29, [29, 2, 1]), (0.25, [25, 2, 1]), (1.0, [100, 9, 3]), (1, [1, 1, 1]), (3, [3] * 3)]
)
def test_scarce_keeps_the_floor_or_a_number(keep, want):
    split = split_of(100, 9, 3, names=("a", "b", "c"))
    few = scarce(split, keep, rng())
    assert [len(rows) for rows in few.train] == want
    assert few.test == split.test
    assert few.names == split.names
    for rows, before in zip(few.train, split.train, strict=True):
        assert len(set(rows)) == len(rows)
        assert set(rows) <= set(before)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), a=st.floats(0.01, 1), b=st.floats(0.01, 1), n=st.integers(1, 12))
def test_scarce_is_nested(seed, a, b, n):
    split = split_of(40, 12, 99)
    fewer, more = (scarce(split, keep, rng(seed)) for keep in (min(a, b), max(a, b)))
    exact = scarce(split, n, rng(seed))
    for small, large, some in zip(fewer.train, more.train, exact.train, strict=True):
        assert set(small) <= set(large)
        assert set(small) <= set(some) or set(some) <= set(small)


def test_scarce_draws_at_random_and_keeps_a_random_order():
    split = split_of(1000)
    rows = scarce(split, 0.5, rng()).train[0]
    assert abs(rows.mean() - 499.5) < 40
    assert abs(np.corrcoef(rows, np.arange(500))[0, 1]) < 0.2
    assert len(set(rows) & set(split.train[0][:500])) < 300
    assert set(rows) != set(scarce(split, 0.5, rng(1)).train[0])


def test_scarce_says_who_has_too_few():
    with pytest.raises(
        InputError, match=r"keep=10 is more than the 9 training samples of client 1; keep=3 is the most that"
    ):
        scarce(split_of(100, 9, 3), 10, rng())
    with pytest.raises(InputError, match=r"keep=10 is more than the 9 training samples of client bob;"):
        scarce(split_of(100, 9, names=("ann", "bob")), 10, rng())


@pytest.mark.parametrize("keep", [0, -1, 0.0, 1.5, float("nan")])
def test_scarce_out_of_range(keep):
    with pytest.raises(InputError, match=r"give a fraction above 0 and up to 1\.0, or a number of samples"):
        scarce(split_of(5), keep, rng())
