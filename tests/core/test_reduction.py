"""Reductions against numpy, whatever the order of the additions, and declarations that do not fit."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from idiolect.core import reduce, tree
from idiolect.core.errors import InputError
from idiolect.core.method import Up
from idiolect.core.reduction import Additions, Branch, Reduction, reduced

RNG = np.random.default_rng(0)


class Value(NamedTuple):
    """What a client sends."""

    body: Any
    mean_Cd: Any
    total: Any
    own: Any


class Counts(NamedTuple):
    """What weighs it."""

    n: Tensor
    n_C: Tensor


DECLARED = Value(reduce.increment("n"), reduce.mean("n_C"), reduce.sum(), reduce.each())


def uploads(count: int, dtype: torch.dtype = torch.float32) -> list[Up]:
    """Clients with classes that some lack; nobody has the last one."""

    def drawn(*shape: int) -> Tensor:
        return torch.tensor(RNG.normal(size=shape), dtype=dtype)

    ups = []
    for k in range(count):
        n_C = RNG.integers(0, 5, size=4) * np.array([1, 1, 1, 0])
        value = Value(
            {
                "w": torch.tensor(RNG.normal(size=(3, 2)), dtype=dtype),
                "b": torch.tensor(RNG.normal(size=3), dtype=dtype),
            },
            torch.tensor(RNG.normal(size=(4, 2)), dtype=dtype),
            (torch.tensor(RNG.normal(size=2) * 10.0**k, dtype=dtype), torch.tensor([k, 1])),
            torch.tensor(RNG.normal(size=2), dtype=dtype),
        )
        ups.append(Up(value, Counts(torch.tensor(float(3 + k)), torch.tensor(n_C, dtype=torch.float32))))
    return ups


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_means_sums_and_each_are_numpys(count: int) -> None:
    ups = uploads(count, torch.float64)
    got = reduced(DECLARED, tree.stack(ups))
    n_m = np.array([float(up.weight.n) for up in ups])
    n_mC = np.stack([up.weight.n_C.numpy() for up in ups]).astype(float)
    for name in ("w", "b"):
        want = np.average(np.stack([up.value.body[name].numpy() for up in ups]), axis=0, weights=n_m)
        np.testing.assert_allclose(got.value.body[name].numpy(), want, rtol=1e-13)
    mean_mCd = np.stack([up.value.mean_Cd.numpy() for up in ups])
    with np.errstate(invalid="ignore"):
        want = np.nan_to_num((n_mC[:, :, None] * mean_mCd).sum(0) / n_mC.sum(0)[:, None])
    np.testing.assert_allclose(got.value.mean_Cd.numpy(), want, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(got.value.total[0].numpy(), sum(up.value.total[0].numpy() for up in ups), rtol=1e-13)
    assert got.value.total[1].tolist() == [sum(range(count)), count]
    assert got.value.total[1].dtype == torch.int64
    assert torch.equal(got.value.own, torch.stack([up.value.own for up in ups]))
    assert torch.equal(got.weight_m.n, torch.stack([up.weight.n for up in ups]))
    assert float(got.weight.n) == n_m.sum()
    np.testing.assert_array_equal(got.weight.n_C.numpy(), n_mC.sum(0))


def test_sums_are_taken_in_float64_and_come_back_in_the_type_of_the_upload() -> None:
    many = [Up(torch.tensor([1e8]), torch.tensor(1.0)), *[Up(torch.tensor([1.0]), torch.tensor(1.0))] * 7]
    got = reduced(reduce.sum(), tree.stack(many))
    assert got.value.dtype == torch.float32
    assert float(got.value[0]) == np.float32(1e8 + 7)
    ones = reduced(reduce.mean(), tree.stack([Up(torch.tensor([k]), torch.tensor(1)) for k in (1, 2)]))
    assert ones.value.tolist() == [1.5]


@pytest.mark.parametrize("count", [1, 2, 5, 16, 17, 100, 300])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_bits_depend_on_places_alone(count: int, seed: int) -> None:
    """Some are added here and some there, in any order; branches are sent on at any level."""
    draw = np.random.default_rng(seed)
    ups = [
        Up(torch.tensor(draw.normal(size=5) * 10.0 ** draw.integers(-6, 6)), torch.tensor(1.0)) for _ in range(count)
    ]
    reduction = Reduction(reduce.sum(), ups[0])
    want = reduction.of(tree.stack(ups))
    whole = Additions(count)
    places = [Additions(count) for _ in range(3)]
    for k in draw.permutation(count).tolist():
        here = places[draw.integers(3)]
        here.add(Branch(0, k, reduction.one(ups[k]), ups[0]))
        for branch in here.take(int(draw.integers(1, 5))):
            whole.add(branch)
    for here in places:
        for branch in here.take():
            whole.add(branch)
    total = whole.total()
    assert total is not None
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(total.sums), tree.leaves(want), strict=True))


def test_participants_that_never_come_are_left_out() -> None:
    ups = [Up(torch.tensor([float(2**k)]), torch.tensor(1.0)) for k in range(9)]
    reduction = Reduction(reduce.mean(), ups[0])
    for gone in ({0}, {8}, {1, 2, 3}, {0, 2, 4, 6, 8}):
        additions = Additions(9)
        for k in {*range(9)} - gone:
            additions.add(Branch(0, k, reduction.one(ups[k]), ups[0]))
        total = additions.total()
        assert total is not None
        got = reduction.reduced(total.sums)
        left = [2**k for k in range(9) if k not in gone]
        assert got.value.tolist() == [np.float32(sum(left) / len(left))]
    assert Additions(9).total() is None


def test_the_upload_is_not_changed() -> None:
    up = Up(torch.ones(2, dtype=torch.float64), torch.ones((), dtype=torch.float64))
    reduction, additions = Reduction(reduce.sum(), up), Additions(2)
    for k in (0, 1):
        additions.add(Branch(0, k, reduction.one(up), up))
    total = additions.total()
    assert total is not None
    assert total.sums.value[0].tolist() == [2, 2]
    assert up.value.tolist() == [1, 1]
    assert float(up.weight) == 1


def test_an_upload_may_be_empty() -> None:
    assert reduced((), Up()) == ((), (), ())
    assert reduced(reduce.increment(), Up((), torch.ones(2))) == ((), torch.tensor(2.0), ())
    part = reduced((reduce.increment(), reduce.sum()), Up(((), torch.ones(3, 2)), torch.ones(3)))
    assert part.value[1].tolist() == [3, 3]


def one() -> Up:
    """An upload of two parts."""
    return Up({"a": torch.zeros(3, 2), "b": torch.zeros(())}, Counts(torch.tensor(1.0), torch.ones(3)))


@pytest.mark.parametrize(
    ("declared", "up", "said"),
    [
        (reduce.mean("m"), one(), "reduce weighs the part 'a' of the upload by 'm', which is no tensor of Up.weight"),
        (reduce.mean("m"), one(), "known: n, n_C"),
        (reduce.mean(), one(), "by a weight that it does not name: name one of n, n_C"),
        (reduce.mean("n"), Up(torch.zeros(2), torch.tensor(1.0)), "the weight is one tensor: leave the name out"),
        (reduce.mean(), Up(torch.zeros(2)), "and the upload has no weight: return Up(value, weight)"),
        (
            {"a": reduce.mean("n_C"), "b": reduce.mean("n_C")},
            one(),
            "the weight n_C has the shape (3,), and the part 'b'",
        ),
        ({"a": reduce.sum()}, one(), "reduce has (a) for the upload, which is (a, b): give them one structure"),
        ((reduce.sum(), reduce.sum()), one(), "reduce has (0, 1) for the upload, which is (a, b)"),
        (
            {"a": reduce.sum(), "b": (reduce.sum(),)},
            one(),
            "reduce has (0) for the part 'b' of the upload, which is one",
        ),
        (
            {"a": "mean", "b": reduce.sum()},
            one(),
            "reduce has 'mean' for the part 'a' of the upload: write reduce.mean()",
        ),
        ((), one(), "reduce has () for the upload"),
        (None, one(), "reduce has None for the upload"),
        (reduce.sum, one(), "reduce has a function for the upload: call it, as in reduce.increment()"),
        ({"a": reduce.sum(), "b": reduce.each}, one(), "reduce has a function for the part 'b' of the upload"),
        (reduce.mean(), Up(torch.zeros(2), 3.0), "the upload's weight is a float: make it a tensor"),
        (reduce.sum(), Up({"a": 1}), "the upload's value/a is a int: make it a tensor"),
    ],
)
def test_a_declaration_that_does_not_fit(declared: Any, up: Up, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        Reduction(declared, up)


def test_uploads_of_another_structure_are_refused() -> None:
    reduction = Reduction(reduce.sum(), Up({"a": torch.zeros(2)}, ()))
    with pytest.raises(ValueError, match="differ in structure"):
        reduction.one(Up({"b": torch.zeros(2)}, ()))


def test_negative_weights_are_refused() -> None:
    for weight in (torch.tensor(-1.0), torch.tensor([2.0, -1e-9])):
        up = Up(torch.zeros(2), weight)
        with pytest.raises(ValueError, match="a weight is negative"):
            Reduction(reduce.mean(), up).one(up)


def test_what_follows_from_a_declaration() -> None:
    assert reduce.needs_each(DECLARED)
    assert not reduce.needs_each(DECLARED._replace(own=reduce.sum()))
    assert not reduce.needs_each(())
    like = uploads(1)[0]
    assert Reduction(DECLARED, like).increments == [0, 1]
    assert not Reduction(DECLARED, like).counts_clients
    assert Reduction(DECLARED._replace(mean_Cd=reduce.mean("n")), like).counts_clients
