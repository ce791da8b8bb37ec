"""Randomness as data: prefixes, moments, permutations, independence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from idiolect.core import keys

few = settings(deadline=None, max_examples=25)
MASK = 2**64 - 1


def test_a_key_is_its_seed_and_path() -> None:
    assert keys.key(1, 2, "local") == keys.key(1, 2, "local")
    paths: list[tuple[int | str, ...]] = [(), (1,), (2,), ("a",), (1, 2), (2, 1), (12,), ("1/2",)]
    every = [keys.number(s, *path) for s in range(5) for path in paths]
    same = 5  # (1, 2) and ("1/2",) are one path
    assert len(set(every)) == len(every) - same
    assert all(0 <= n < 2**63 for n in every)
    assert keys.key(0).dtype == torch.int64
    a, b = (keys.generator(3, "rows").integers(0, 2**62) for _ in range(2))
    assert a == b


def splitmix(state: int) -> int:
    """The generator's finaliser in unbounded integers (Steele, Lea & Flood)."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**62 + 12345, -(2**63)])
def test_bits_are_splitmix64(seed: int) -> None:
    """The n-th output of the published generator started at the key."""
    got = keys.bits(torch.tensor(seed), 50)
    want = [splitmix((seed + i * 0x9E3779B97F4A7C15) & MASK) for i in range(50)]
    assert [g & MASK for g in got.tolist()] == want


def test_splitmix64_known_output() -> None:
    assert splitmix(0) == 0xE220A8397B1DCDAF  # first output for seed 0


@few
@given(seed=st.integers(0, 2**63 - 1), a=st.integers(0, 40), b=st.integers(0, 40))
def test_a_shorter_draw_is_a_prefix(seed: int, a: int, b: int) -> None:
    key, low, high = torch.tensor(seed), min(a, b), max(a, b)
    assert torch.equal(keys.bits(key, high)[:low], keys.bits(key, low))
    assert torch.equal(keys.normal(key, (high,))[:low], keys.normal(key, (low,)))
    assert torch.equal(keys.normal(key, (high, 3))[:low], keys.normal(key, (low, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_draws_are_normal(dtype: torch.dtype) -> None:
    n = 100_000
    x = keys.normal(keys.key(5), (n,), dtype).numpy()
    assert x.dtype == (np.float32 if dtype == torch.float32 else np.float64)
    assert np.isfinite(x).all()
    for power, want, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x.astype(float) ** power).mean() - want) < 4 * math.sqrt(variance / n)
    assert stats.kstest(x[:20_000], "norm").pvalue > 0.01
    assert abs(np.corrcoef(x[::2], x[1::2])[0, 1]) < 4 / math.sqrt(n / 2)  # the pair of one transform


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_draws_are_those_of_box_and_muller(dtype: torch.dtype) -> None:
    """The written-out transform of the bits, whose values are pinned above: drawn faster, the values must not move."""
    x = keys.bits(keys.key(11), 500)
    first, second = ((part & 0x7FFFFFFF).to(dtype) for part in (x, x >> 32))
    radius, angle = torch.sqrt(-2 * torch.log((first + 1) * 2.0**-31)), second * (2 * math.pi * 2.0**-31)
    want = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], -1).flatten()[:999]
    assert torch.equal(keys.normal(keys.key(11), (27, 37), dtype), want.reshape(27, 37))


def test_purposes_are_independent() -> None:
    n = 20_000
    parents = [keys.key(0), keys.key(1)]
    children = [keys.fold(p, purpose) for p in parents for purpose in ("body", "head", 0, 1, 2**20)]
    assert len({int(k) for k in [*parents, *children]}) == 12
    draws = np.stack([keys.normal(k, (n,)).numpy() for k in [*parents, *children]])
    off = np.corrcoef(draws) - np.eye(12)
    assert np.abs(off).max() < 5 / math.sqrt(n)
    assert keys.fold(keys.fold(parents[0], "a"), "b") != keys.fold(keys.fold(parents[0], "b"), "a")


def test_folding_maps_over_keys() -> None:
    every = torch.stack([keys.key(k) for k in range(4)])
    many = torch.func.vmap(lambda k: keys.normal(keys.fold(k, "x"), (5,)))(every)
    for k in range(4):
        assert torch.equal(many[k], keys.normal(keys.fold(every[k], "x"), (5,)))


@few
@given(seed=st.integers(0, 2**63 - 1), n=st.integers(1, 40), padding=st.integers(0, 10))
def test_order_is_a_permutation_with_real_rows_first(seed: int, n: int, padding: int) -> None:
    key = torch.tensor(seed)
    order = keys.order(key, torch.cat([torch.ones(n), torch.zeros(padding)]))
    assert sorted(order.tolist()) == list(range(n + padding))
    assert sorted(order[:n].tolist()) == list(range(n))
    assert torch.equal(order[:n], keys.order(key, torch.ones(n)))


def test_orders_are_even() -> None:
    """Each of the 24 orders of 4 rows as often as any other."""
    every = [tuple(keys.order(keys.key(s), torch.ones(4)).tolist()) for s in range(2400)]
    counts = np.unique(np.array([hash(e) for e in every]), return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 0.01
