"""Which rows in which step: counted."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy

import toy

from idiolect.core import keys
from idiolect.core.method import Data, Training
from idiolect.core.schedules import Constant, Cosine, Exponential, Schedule, Step
from idiolect.training import Batch, batches, rows

few = settings(deadline=None, max_examples=25)
KEY = keys.key(0, "batches")


def client(n: int, padding: int = 0) -> Data:
    real = torch.cat([torch.ones(n), torch.zeros(padding)])
    return Data(torch.arange(100.0), torch.arange(100), torch.arange(n + padding) + 10, real)


def plan(n: int, size: int, *, epochs: int = 2, shuffle: bool = True, padding: int = 0, **how: bool) -> list[Batch]:
    return batches(client(n, padding), Training(epochs, size, shuffle=shuffle), KEY, **how)


@few
@given(n=st.integers(1, 30), size=st.integers(1, 12), shuffle=st.booleans(), padding=st.integers(0, 5))
def test_every_row_once_an_epoch(n: int, size: int, shuffle: bool, padding: int) -> None:
    steps = plan(n, size, shuffle=shuffle, padding=padding)
    assert len(steps) == 2 * -(-n // size)
    for epoch in (steps[: len(steps) // 2], steps[len(steps) // 2 :]):
        at = torch.cat([b.at_B for b in epoch])
        assert sorted(at.tolist()) == list(range(n))
        if not shuffle:
            assert at.tolist() == list(range(n))
        assert [len(b.at_B) for b in epoch[:-1]] == [size] * (len(epoch) - 1)
    assert all(b.used_B.eq(1).all() and len(b.used_B) == len(b.at_B) for b in steps)
    assert len({b.step for b in steps}) == len(steps)


@few
@given(n=st.integers(1, 30), size=st.integers(1, 12), padding=st.integers(1, 20))
def test_padding_changes_no_step(n: int, size: int, padding: int) -> None:
    for a, b in zip(plan(n, size), plan(n, size, padding=padding), strict=True):
        assert torch.equal(a.at_B, b.at_B)
        assert a.step == b.step


@few
@given(n=st.integers(1, 30), size=st.integers(1, 12), shuffle=st.booleans())
def test_drop_last_leaves_whole_batches(n: int, size: int, shuffle: bool) -> None:
    steps = plan(n, size, shuffle=shuffle, drop_last=True)
    if n < size:
        assert [len(b.at_B) for b in steps] == [n, n], "a client of one short batch keeps it"
    else:
        assert [len(b.at_B) for b in steps] == [size] * (2 * (n // size))
    asked = batches(client(n), Training(2, size, shuffle=shuffle, drop_last=True), KEY)
    assert [b.at_B.tolist() for b in asked] == [b.at_B.tolist() for b in steps], "as a study may ask"
    kept = plan(n, size, shuffle=shuffle)
    assert all(any(torch.equal(b.at_B, k.at_B) and b.step == k.step for k in kept) for b in steps)


@pytest.mark.parametrize("drop_last", [False, True])
def test_mapped_clients_see_the_same_rows(drop_last: bool) -> None:
    sizes, most = [3, 8, 9, 12], 14
    row = torch.arange(most).expand(len(sizes), most)
    real = torch.stack([(torch.arange(most) < n).float() for n in sizes])
    key = torch.stack([keys.key(0, k) for k in range(len(sizes))])

    def seen(row_N: torch.Tensor, real_N: torch.Tensor, key: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        data = Data(torch.zeros(1), torch.zeros(1), row_N, real_N)
        return [(b.at_B, b.used_B) for b in batches(data, Training(2, 4), key, drop_last=drop_last)]

    many = torch.func.vmap(seen)(row, real, key)
    for k, n in enumerate(sizes):
        data = Data(torch.zeros(1), torch.zeros(1), row[k, :n], real[k, :n])
        alone = [b.at_B.tolist() for b in batches(data, Training(2, 4), key[k], drop_last=drop_last)]
        got = [at[k][used[k] > 0].tolist() for at, used in many]
        assert [g for g in got if g] == alone


def test_epochs_differ_and_hang_on_the_key_alone() -> None:
    first, second, *_ = plan(30, 30)
    assert not torch.equal(first.at_B, second.at_B)
    again = plan(30, 30)
    assert torch.equal(first.at_B, again[0].at_B)
    other = batches(client(30), Training(2, 30), keys.key(1, "batches"))
    assert not torch.equal(first.at_B, other[0].at_B)
    assert len(batches(client(30), Training(2, 30), KEY, epochs=5)) == 5
    assert batches(client(30), Training(2, 30), KEY, epochs=0) == []


def test_rows_are_read_by_number() -> None:
    x, y = rows(toy.task(), client(5), Batch(torch.tensor([4, 0]), torch.ones(2), 0))
    assert x.tolist() == [14, 10]
    assert y.tolist() == [14, 10]


def steps_of(n: int, size: int, steps: int, *, shuffle: bool = True, padding: int = 0, **how: bool) -> list[Batch]:
    return batches(client(n, padding), Training(2, size, shuffle=shuffle), KEY, steps=steps, **how)


@few
@given(n=st.integers(1, 30), size=st.integers(1, 12), steps=st.integers(0, 20), drop_last=st.booleans())
def test_steps_are_the_first_of_as_many_epochs_as_it_takes(n: int, size: int, steps: int, drop_last: bool) -> None:
    """Through whole epochs, reshuffled in each, with the short last batch where there is one."""
    got = steps_of(n, size, steps, drop_last=drop_last)
    want = batches(client(n), Training(2, size), KEY, epochs=steps, drop_last=drop_last)[:steps]
    assert len(got) == len(want) == steps
    assert all(torch.equal(a.at_B, b.at_B) and a.step == b.step for a, b in zip(got, want, strict=True))
    assert len({b.step for b in got}) == steps


def test_steps_walk_on_and_reshuffle() -> None:
    at = [b.at_B.tolist() for b in steps_of(10, 4, 7)]
    assert [len(a) for a in at] == [4, 4, 2, 4, 4, 2, 4]
    first, second = ([row for a in at[i : i + 3] for row in a] for i in (0, 3))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert [b.at_B.tolist() for b in steps_of(10, 4, 4, shuffle=False)] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3],
    ]  # fmt: skip


def test_steps_of_a_client_smaller_than_a_batch() -> None:
    for drop_last in (False, True):
        steps = steps_of(3, 8, 4, drop_last=drop_last, padding=2)
        assert [sorted(b.at_B.tolist()) for b in steps] == [[0, 1, 2]] * 4
        assert len({tuple(b.at_B.tolist()) for b in steps}) > 1, "each is an epoch of its own order"


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_mapped_steps_are_those_of_each_client(drop_last: bool, shuffle: bool) -> None:
    """Each at its own place in its own epoch: rows and names of the steps."""
    sizes, most, steps = [3, 8, 9, 12, 1], 14, 7
    row = torch.arange(most).expand(len(sizes), most)
    real = torch.stack([(torch.arange(most) < n).float() for n in sizes])
    key = torch.stack([keys.key(0, k) for k in range(len(sizes))])
    training = Training(2, 4, shuffle=shuffle)

    def seen(row_N: torch.Tensor, real_N: torch.Tensor, key: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        data = Data(torch.zeros(1), torch.zeros(1), row_N, real_N)
        return [
            (b.at_B, b.used_B, torch.as_tensor(b.step))
            for b in batches(data, training, key, steps=steps, drop_last=drop_last)
        ]

    many = torch.func.vmap(seen)(row, real, key)
    assert len(many) == steps
    for k, n in enumerate(sizes):
        data = Data(torch.zeros(1), torch.zeros(1), row[k, :n], real[k, :n])
        alone = batches(data, training, key[k], steps=steps, drop_last=drop_last)
        assert [at[k][used[k] > 0].tolist() for at, used, _ in many] == [b.at_B.tolist() for b in alone]
        assert [int(step[k]) for _, _, step in many] == [b.step for b in alone]


# --- the learning rate of the round ---------------------------------------------------------------------------------

SCHEDULES = [
    (Constant(warmup=3), [0.25, 0.5, 0.75, 1, 1]),
    (Step(every=2, factor=0.5), [1, 1, 0.5, 0.5, 0.25]),
    (Exponential(factor=0.5, warmup=1), [0.5, 1, 0.5, 0.25, 0.125]),
    (Cosine(end=0.5, warmup=1), [0.5, 1, 0.75 + 0.25 * 0.5**0.5, 0.75, 0.75 - 0.25 * 0.5**0.5]),
]


def in_round(data: Data, round: int, rounds: int = 5) -> Data:
    return data._replace(round=torch.tensor(round), rounds=torch.tensor(rounds))


@pytest.mark.parametrize("how", [{}, {"epochs": 1}, {"steps": 4}, {"drop_last": True}], ids=str)
@pytest.mark.parametrize(("schedule", "want"), SCHEDULES, ids=str)
def test_all_steps_have_the_rate_of_their_round(schedule: Schedule, want: list[float], how: dict[str, int]) -> None:
    training = Training(2, 4, schedule=schedule)
    for t, factor in [*enumerate(want, start=1), (6, want[-1]), (0, 1.0)]:
        steps = batches(in_round(client(9), t), training, KEY, **how)
        assert {type(b.rate) for b in steps} == {float}
        np.testing.assert_allclose([b.rate for b in steps], factor, rtol=1e-15)
    steps = batches(client(9), training, KEY, **how)  # where there is no round, as for a new client
    assert {b.rate for b in steps} == {1.0}


@pytest.mark.parametrize("how", [{}, {"steps": 4}], ids=str)
@pytest.mark.parametrize(("schedule", "want"), SCHEDULES, ids=str)
def test_the_rate_of_mapped_clients(schedule: Schedule, want: list[float], how: dict[str, int]) -> None:
    """Clients of one round; clients of different rounds; and one client in different rounds."""
    training, x, real = Training(2, 4, schedule=schedule), torch.zeros(1), torch.ones(7)

    def rate(row_N: torch.Tensor, round: torch.Tensor, key: torch.Tensor) -> list[torch.Tensor]:
        steps = batches(Data(x, x, row_N, real, round, torch.tensor(5)), training, key, **how)
        assert all(torch.as_tensor(b.rate).dtype == torch.get_default_dtype() for b in steps)
        return [torch.as_tensor(b.rate) for b in steps]

    row_KN, key_K, round_K = torch.arange(7).expand(5, 7), keys.key(0).expand(5), torch.arange(1, 6)
    for row, rounds, axes in [
        (row_KN, round_K, (0, 0, None)),
        (row_KN[0], round_K, (None, 0, None)),
        (row_KN, torch.tensor(3), (0, None, None)),
    ]:
        got = torch.func.vmap(rate, in_dims=axes)(row, rounds, key_K[0])
        for step in got:
            np.testing.assert_allclose(step.expand(5), want if rounds.ndim else want[2], rtol=1e-6)


def test_without_a_schedule_the_rate_is_one() -> None:
    """A number, not a tensor, in any round, also for mapped clients: with it every bit is as without a rate."""
    for t in (0, 1, 5):
        assert {type(b.rate) for b in batches(in_round(client(9), t), Training(2, 4), KEY)} == {float}

    def rates(row_N: torch.Tensor) -> torch.Tensor:
        for how in ({}, {"steps": 3}):
            steps = batches(Data(row_N, row_N, row_N, torch.ones(7)), Training(2, 4), KEY, **how)
            assert {(type(b.rate), b.rate) for b in steps} == {(float, 1.0)}
        return row_N

    torch.func.vmap(rates)(torch.arange(7).expand(3, 7))
