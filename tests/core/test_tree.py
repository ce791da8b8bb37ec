"""Trees of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from idiolect.core import tree


class Pair(NamedTuple):
    body: dict[str, torch.Tensor]
    n: torch.Tensor


def pair(a: float, b: float, n: float) -> Pair:
    return Pair({"w": torch.tensor([float(a), float(b)])}, torch.tensor(float(n)))


def test_paths() -> None:
    nested = {"a": (torch.zeros(1), Pair({"0.weight": torch.zeros(2)}, torch.zeros(())))}
    assert list(tree.named(nested)) == ["a/0", "a/1/body/0.weight", "a/1/n"]
    assert tree.named(()) == {}
    assert [a.shape for a in tree.leaves(nested)] == [(1,), (2,), ()]


def test_flattened_and_back() -> None:
    flat, build = tree.flatten(pair(1, 2, 3))
    back = build([a * 2 for a in flat])
    assert type(back) is Pair
    assert back.body["w"].tolist() == [2, 4]
    assert back.n == 6


def test_gathered_as_stacked_and_the_list_is_emptied() -> None:
    trees = [pair(k, 2 * k, 3 * k) for k in range(3)]
    whole = tree.gather(trees)
    assert type(whole) is Pair
    assert whole.body["w"].tolist() == [[0, 0], [1, 2], [2, 4]]
    assert whole.n.tolist() == [0, 3, 6]
    assert trees == []
    with pytest.raises(ValueError, match="differ in structure"):
        tree.gather([{"a": torch.zeros(1)}, {"b": torch.zeros(1)}])
    with pytest.raises(RuntimeError):
        tree.gather([torch.zeros(1), torch.zeros(2)])


def test_when_takes_one_branch_or_both() -> None:
    taken = tree.when(torch.tensor(1.0), lambda: pair(1, 2, 3), lambda: pair(4, 5, 6))
    assert taken.n == 3
    assert tree.when(torch.tensor(0.0), lambda: 1 / 0, lambda: pair(4, 5, 6)).n == 6
    mapped = torch.func.vmap(lambda flag, n: tree.when(flag, lambda: n, lambda: -n))
    assert mapped(torch.tensor([1.0, 0.0]), torch.tensor([5.0, 7.0])).tolist() == [5, -7]


def test_distance_and_inner_product() -> None:
    assert tree.square_distance(pair(1, 2, 3), pair(1, 4, 0)) == 4 + 9
    assert tree.dot(pair(1, 2, 3), pair(4, 5, 6)) == 4 + 10 + 18


def test_arithmetic() -> None:
    a, b = pair(1, 2, 3), pair(10, 20, 30)
    assert tree.add(a, b).body["w"].tolist() == [11, 22]
    assert tree.sub(b, a).n == 27
    stacked = tree.stack([a, b])
    assert stacked.body["w"].shape == (2, 2)
    assert tree.rows(stacked, 1).body["w"].tolist() == [10, 20]
    assert tree.rows(stacked, slice(0, 1)).n.tolist() == [3]
    weighted = tree.mean(stacked, torch.tensor([3.0, 1.0]))  # 3/4 and 1/4
    assert weighted.body["w"].tolist() == [3.25, 6.5]
    assert weighted.n == 9.75
    assert tree.mean((), torch.ones(2)) == ()


def test_weights_of_another_type() -> None:
    assert tree.mean(torch.tensor([1.0, 4.0]), torch.tensor([1, 2])).dtype == torch.float32
    assert tree.mean(torch.tensor([1.0, 4.0]), torch.tensor([1, 2], dtype=torch.float64)) == 3


def test_copies_share_no_memory() -> None:
    base = torch.arange(6.0).reshape(2, 3).requires_grad_()
    copied = tree.copy({"a": base.T})
    assert copied["a"].is_contiguous()
    assert not copied["a"].requires_grad
    with torch.no_grad():
        base += 1
    assert copied["a"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert not tree.detach((base * 2,))[0].requires_grad


def test_what_is_not_finite_is_named() -> None:
    assert tree.not_finite(pair(1, 2, 3)) is None
    assert tree.not_finite(pair(1, float("nan"), 3)) == "body/w"
    assert tree.not_finite(pair(1, 2, float("inf"))) == "n"
    assert tree.not_finite({"count": torch.tensor([1, 2])}) is None


@pytest.mark.parametrize(
    ("now", "was", "said"),
    [
        (pair(1, 2, 3), pair(4, 5, 6), None),
        ((), (), None),
        (torch.zeros(3), torch.zeros(2), "the whole: (3,) float32 in place of (2,) float32"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64), "the whole: (2,) float32 in place of (2,) int64"),
        ({"a": torch.zeros(1)}, {"a": torch.zeros(1), "b": torch.zeros(())}, "b: nothing in place of () float32"),
        ({"a": torch.zeros(1), "c": torch.zeros(1)}, {"a": torch.zeros(1)}, "c: (1,) float32 in place of nothing"),
        ({"a": 1.0}, {"a": torch.zeros(())}, "a: a float in place of () float32"),
        (None, (), "the whole: None in place of nothing"),
        ([torch.zeros(1)], (torch.zeros(1),), "the same tensors in other containers"),
    ],
)
def test_another_form_is_told(now: Any, was: Any, said: str | None) -> None:
    assert tree.other_form(now, was) == said
    assert tree.same_form(now, was) == (said is None)


def test_bytes() -> None:
    assert tree.nbytes((torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(5, dtype=torch.uint8))) == 33


def test_mapped() -> None:
    seen = []

    def look(a: torch.Tensor) -> torch.Tensor:
        seen.append(tree.mapped({"a": a}))
        return a

    torch.func.vmap(look)(torch.zeros(2))
    look(torch.zeros(2))
    assert seen == [True, False]


def test_square_distance() -> None:
    assert tree.square_distance(pair(1, 2, 3), pair(4, 2, 5)) == 9 + 4
    assert tree.square_distance(pair(1, 2, 3), pair(1, 2, 3)) == 0
    gradient = torch.func.grad(tree.square_distance)(pair(1, 2, 3), pair(4, 2, 5))
    assert gradient.body["w"].tolist() == [-6, 0]
    assert gradient.n == -4


def test_when_computes_only_what_one_client_needs() -> None:
    asked = []

    def give(name: str, value: Pair) -> Callable[[], Pair]:
        return lambda: (asked.append(name), value)[1]

    then, otherwise = give("then", pair(1, 2, 3)), give("otherwise", pair(4, 5, 6))
    assert tree.when(torch.ones(()), then, otherwise).n == 3
    assert tree.when(torch.zeros(()), then, otherwise).n == 6
    assert tree.when(-torch.ones(()), then, otherwise).n == 6
    assert tree.when(torch.tensor(True), then, otherwise).n == 3
    assert asked == ["then", "otherwise", "otherwise", "then"]


def test_when_mapped_gives_each_its_own() -> None:
    flag = torch.tensor([1.0, 0.0, 0.5, -1.0])
    left, right = Pair({"w": torch.rand(4, 2)}, torch.arange(4.0)), Pair({"w": torch.rand(4, 2)}, -torch.arange(4.0))

    def choose(flag: torch.Tensor, a: Pair, b: Pair) -> Pair:
        return tree.when(flag, lambda: a, lambda: b)

    got = torch.func.vmap(choose)(flag, left, right)
    assert got.n.tolist() == [0, -1, 2, -3]
    assert torch.equal(got.body["w"], torch.where(flag[:, None] > 0, left.body["w"], right.body["w"]))
