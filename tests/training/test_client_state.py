"""Who has trained stays, who has not does one round's local work."""

from __future__ import annotations

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Data, Down, Up
from idiolect.training import Personal, joins_by_training, trained, untrained

calls: list[int] = []


def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
    """A round that moves a client's value a step from what it received."""
    calls.append(1)
    return trained({"w": down.shared + 2 * client.value["w"] + key}), Up(torch.ones(1)), {}


ADAPT = joins_by_training(local)
DATA = Data(torch.zeros(3, 1), torch.zeros(3), torch.arange(3), torch.ones(3))
DOWN = Down(torch.tensor([10.0, 20.0]))
VALUE = {"w": torch.tensor([0.1, 0.2])}


def test_flags() -> None:
    assert untrained(VALUE).trained == 0
    assert trained(VALUE).trained == 1


def test_a_trained_client_stays_bit_for_bit() -> None:
    calls.clear()
    client = trained(VALUE)
    got = ADAPT(DOWN, client, DATA, torch.tensor(3))
    assert torch.equal(got.value["w"], VALUE["w"])
    assert got.trained == 1
    assert not calls, "it worked for nothing"


def test_a_new_client_does_one_round() -> None:
    client = untrained(VALUE)
    before = tree.copy(client)
    got = ADAPT(DOWN, client, DATA, torch.tensor(3))
    torch.testing.assert_close(got.value["w"], torch.tensor([13.2, 23.4]))
    assert got.trained == 1
    assert torch.equal(client.value["w"], before.value["w"])


def test_mapped_each_takes_its_own() -> None:
    flag = torch.tensor([1.0, 0.0, 1.0, 0.0])
    clients = Personal({"w": torch.rand(4, 2)}, flag)
    key = torch.arange(4)
    got = torch.func.vmap(lambda c, k: ADAPT(DOWN, c, DATA, k))(clients, key)
    for k in range(4):
        want = ADAPT(DOWN, tree.rows(clients, k), DATA, key[k])
        assert torch.equal(got.value["w"][k], want.value["w"])
        assert torch.equal(got.value["w"][k], clients.value["w"][k]) == bool(flag[k])
    assert got.trained.tolist() == [1, 1, 1, 1]
