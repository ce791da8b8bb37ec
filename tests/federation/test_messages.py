"""Messages: what is packed comes back, and anything else is refused."""

from __future__ import annotations

import json
import pickle

import pytest
import torch

from idiolect.core.method import Up
from idiolect.federation.messages import Refusal, by_path, pack, trees_of, unpack

UP = Up({"body": torch.arange(6.0).view(2, 3), "head": (torch.zeros(2, dtype=torch.int64),)}, torch.tensor(3.0))


def test_a_tree_comes_back_bit_by_bit() -> None:
    found = unpack(pack({"kind": "local", "text": "ä\x00"}, by_path("up", UP)))
    assert found.about == {"kind": "local", "text": "ä\x00"}
    back = trees_of(found.arrays, {"up": UP})["up"]
    assert isinstance(back, Up)
    assert torch.equal(back.value["body"], UP.value["body"])
    assert torch.equal(back.value["head"][0], UP.value["head"][0])
    assert torch.equal(back.weight, UP.weight)


@pytest.mark.parametrize(
    "content",
    [b"", b"1234", pickle.dumps({"a": 1}), (2**40).to_bytes(8, "little"), (3).to_bytes(8, "little") + b"[[["],
    ids=["nothing", "short", "pickled", "long head", "not JSON"],
)
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(Refusal):
        unpack(content)


def test_a_head_that_points_outside_is_refused() -> None:
    head = json.dumps({
        "__metadata__": {"about": "{}"}, "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    }).encode()  # fmt: skip
    with pytest.raises(Refusal):
        unpack(len(head).to_bytes(8, "little") + head + b"1234")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.pop("up/weight"), "up/weight is missing"),
        (lambda a: a.update({"up/more": torch.zeros(1)}), "up/more is not expected"),
        (lambda a: a.update({"up/value/body": torch.zeros(3, 2)}), r"up/value/body is \(3, 2\) float32, not \(2, 3\)"),
        (lambda a: a.update({"up/weight": torch.tensor(3)}), "up/weight is .* int64"),
        (lambda a: a.update({"up/weight": torch.zeros(1)}), r"up/weight is \(1,\)"),
    ],
    ids=["missing", "more", "shape", "type", "axis"],
)
def test_another_tree_is_refused(change: object, said: str) -> None:
    arrays = by_path("up", UP)
    change(arrays)  # type: ignore[operator]
    with pytest.raises(Refusal, match=said):
        trees_of(arrays, {"up": UP})


def test_numbers_that_are_not_finite_do_not_travel_as_plain_values() -> None:
    with pytest.raises(ValueError):
        pack({"loss": float("nan")})
