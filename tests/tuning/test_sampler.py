"""Which settings a search tries."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

import idiolect as idl
from idiolect.tuning.halving import Value, promoted, rungs, survivors
from idiolect.tuning.sampler import SAMPLERS, STORAGE_FILE, End, Proposals, batches, spread
from idiolect.tuning.space import Choice, Interval, Space

LR = Interval(0.001, 0.3, log=True)
SPACES: dict[str, Space] = {
    "fedavg": {"lr": LR},
    "fedpac": {"lr": LR, "alignment": Interval(0.1, 10, log=True), "head_epochs": Interval(1, 5, whole=True)},
    "local": {},
    "ditto": {"local_epochs": Choice((1, 2, 3))},
}


def ends(settings: list[dict[str, float]], complete: int = 2) -> list[End]:
    """Trials that are the better, the nearer their learning rate is to 0.02."""
    values = [1 / (1 + abs(math.log(s.get("lr", 1) / 0.02))) for s in settings]
    best = sorted(range(len(values)), key=lambda k: -values[k])[:complete]
    return [
        End(s, {4: v, 30: v} if k in best else {4: v}, k in best)
        for k, (s, v) in enumerate(zip(settings, values, strict=True))
    ]


@pytest.mark.parametrize("count", [1, 4, 10, 37])
def test_the_first_trials_fill_each_range_evenly_and_alike_for_all_methods(count: int) -> None:
    alone, together = spread(3, SPACES["fedavg"], count), spread(3, SPACES["fedpac"], count)
    assert [s["lr"] for s in alone] == [s["lr"] for s in together]
    share = np.array([math.log(s["lr"] / LR.low) / math.log(LR.high / LR.low) for s in alone])
    assert sorted((share * count - 1e-6).astype(int)) == list(range(count))  # one in each part
    assert spread(3, SPACES["fedpac"], count) == together
    assert count == 1 or spread(4, SPACES["fedpac"], count) != together


@pytest.mark.thorough(but=["tpe", "random"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_search_that_starts_again_proposes_the_same(tmp_path: Path, sampler: str) -> None:
    def proposals() -> Proposals:
        return Proposals(tmp_path, SPACES, 8, sampler, 0)

    first = {label: proposals().batch(label, 0) for label in SPACES}
    assert first == {label: proposals().batch(label, 0) for label in SPACES}
    if sampler == "random":
        return
    one = proposals()
    for label, settings in first.items():
        one.tell(label, 0, ends(settings))
    second = {label: one.batch(label, 1) for label in SPACES}
    again = proposals()
    again.tell("fedavg", 0, ends(first["fedavg"]))  # told before: it stays as it was
    again.tell("fedavg", 1, ends(second["fedavg"])[:2])  # and a batch of which a part was told
    assert {label: again.batch(label, 1) for label in SPACES} == second
    again.tell("fedavg", 1, ends(second["fedavg"]))
    stored = optuna.load_study(study_name="fedavg", storage=f"sqlite:///{tmp_path / STORAGE_FILE}").get_trials()
    assert [t.params for t in stored] == first["fedavg"] + second["fedavg"]
    assert [t.state.name for t in stored].count("COMPLETE") == 4


def test_later_trials_learn_from_the_earlier(tmp_path: Path) -> None:
    proposals = Proposals(tmp_path, {"fedavg": {"lr": LR}}, 40, "tpe", 0)
    first = proposals.batch("fedavg", 0)
    proposals.tell("fedavg", 0, ends(first, complete=20))
    second = proposals.batch("fedavg", 1)

    def distance(settings: list[dict[str, float]]) -> float:
        return float(np.mean([abs(math.log(s["lr"] / 0.02)) for s in settings]))

    assert distance(second) < 0.8 * distance(first)
    assert min(abs(math.log(s["lr"] / 0.02)) for s in second) < 0.1
    assert all(LR.low <= s["lr"] <= LR.high for s in second)


def test_a_finite_space_is_tried_once_and_nothing_is_one_trial(tmp_path: Path) -> None:
    proposals = Proposals(tmp_path, SPACES, 8, "tpe", 0)
    assert proposals.sizes == {"fedavg": (4, 4), "fedpac": (4, 4), "local": (1,), "ditto": (3,)}
    assert [s["local_epochs"] for s in proposals.batch("ditto", 0)] == [1, 2, 3]
    assert proposals.batch("ditto", 1) == []


@pytest.mark.parametrize("sampler", ["tpe", "random"])
@pytest.mark.parametrize(
    "space",
    [
        {"lr": Choice((0.001, 0.01, 0.02, 0.05, 0.1, 0.2))},
        {"head_epochs": Interval(1, 6, whole=True)},
        {"collaboration": Choice((False, True)), "alignment": Choice((0.1, 1.0, 10.0))},
    ],
)
def test_no_trial_is_a_repetition(tmp_path: Path, sampler: str, space: Space) -> None:
    for count in (3, 4, 5):
        (folder := tmp_path / f"{count}").mkdir()
        proposals = Proposals(folder, {"fedpac": space}, count, sampler, 0)
        every: list[dict[str, Any]] = []
        for number in range(2):
            batch = proposals.batch("fedpac", number)
            every += batch
            proposals.tell("fedpac", number, [End(s, {4: 1 / len(str(s))}, complete=True) for s in batch])
        assert len(every) == count
        assert len({str(s) for s in every}) == count


@pytest.mark.parametrize("other", [{"fedavg": {"lr": LR._replace(high=0.2)}}, {"fedavg": {}}, {"scaffold": {"lr": LR}}])
def test_the_storage_of_another_search_is_refused(tmp_path: Path, other: dict[str, Space]) -> None:
    Proposals(tmp_path, SPACES, 8, "tpe", 0)
    with pytest.raises(idl.InputError, match="of another search"):
        Proposals(tmp_path, other, 8, "tpe", 0)


def test_a_storage_that_is_no_database_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / STORAGE_FILE).write_bytes(b"no database" * 100)
    with pytest.raises(idl.InputError, match="cannot be used") as error:
        Proposals(tmp_path, SPACES, 8, "tpe", 0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["what?", "what?mode=ro", "a{b}", "x%20y", "h#1", "a b ü"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    proposals = Proposals(folder, SPACES, 8, "tpe", 0)
    proposals.tell("fedavg", 0, ends(proposals.batch("fedavg", 0)))
    assert [path.name for path in folder.iterdir()] == [STORAGE_FILE]
    again = Proposals(folder, SPACES, 8, "tpe", 0)
    assert again.batch("fedavg", 1) == proposals.batch("fedavg", 1)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("gone", [True, False])
def test_a_storage_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    def rename(self: Path, target: Path) -> Path:
        raise OSError("no room")

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(idl.InputError, match=r"optuna\.db cannot be written \(.*\): choose another folder") as error:
        Proposals(tmp_path / "gone" if gone else tmp_path, SPACES, 8, "tpe", 0)
    assert "\n" not in str(error.value)


def test_a_sampler_of_ones_own(tmp_path: Path) -> None:
    proposals = Proposals(tmp_path, {"fedavg": {"lr": LR}}, 6, lambda seed: optuna.samplers.RandomSampler(seed), 0)
    proposals.tell("fedavg", 0, ends(proposals.batch("fedavg", 0)))
    assert len({s["lr"] for s in proposals.batch("fedavg", 1)}) == 3


@pytest.mark.parametrize(
    ("rounds", "every", "ends"),
    [
        (1, 1, (1,)), (2, 1, (2,)), (3, 1, (2, 3)), (4, 1, (2, 3, 4)), (10, 1, (2, 6, 10)), (11, 1, (3, 7, 11)),
        (200, 1, (40, 120, 200)), (10, 5, (5, 10)), (100, 15, (30, 60, 100)), (100, 40, (40, 80, 100)), (4, 4, (4,)),
        (7, 10, (7,)),
    ],
)  # fmt: skip
def test_trials_are_cut_after_a_fifth_and_three_fifths_of_the_rounds(
    rounds: int, every: int, ends: tuple[int, ...]
) -> None:
    """Two rounds at the least, and in rounds that are evaluated; nothing is cut where no round would be left."""
    assert rungs(rounds, 3, every) == rungs(rounds, 2, every) == ends
    assert rungs(rounds, 1, every) == (rounds,)


@pytest.mark.parametrize(
    ("trials", "halving", "sampler", "first", "second"),
    [
        (20, 2, "tpe", (6, 4), (2, 1)), (20, 3, "tpe", (4, 3), (1, 1)), (18, 3, "gp", (4, 2), (1, 1)),
        (40, 2, "tpe", (12, 8), (3, 2)), (80, 2, "tpe", (24, 16), (6, 4)), (6, 2, "tpe", (2, 1), (1, 1)),
        (3, 100, "tpe", (1, 1), (1, 1)), (20, 2, "random", (10,), (3,)), (20, 3, "random", (7,), (1,)),
        (1, 3, "tpe", (1,), (1,)), (9, 1, "tpe", (5, 4), (5, 4)), (9, 1, "random", (9,), (9,)),
    ],
)  # fmt: skip
def test_more_of_the_first_batch_go_on_than_of_the_second(
    trials: int, halving: int, sampler: str, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    assert [survivors(batches(trials, sampler), halving, cut) for cut in (0, 1)] == [first, second]


@pytest.mark.parametrize("halving", [1, 2, 3, 4, 9, 100])
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_of_each_batch_at_least_one_and_at_most_all_go_on(halving: int, sampler: str) -> None:
    for trials in range(1, 61):
        sizes = batches(trials, sampler)
        shares = (Fraction(3, 5), Fraction(2, 5)) if len(sizes) == 2 else (1,)
        before: tuple[int, ...] = sizes
        for cut in (0, 1):
            go_on = survivors(sizes, halving, cut)
            assert all(1 <= count <= most for count, most in zip(go_on, before, strict=True))
            together = math.ceil(Fraction(trials, halving ** (1 + 2 * cut)))
            assert sum(go_on) == max(len(sizes), together)
            assert halving == 1 or all(abs(n - together * s) <= 1 for n, s in zip(go_on, shares, strict=True))
            before = go_on


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_a_rung_go_on(seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = [Value(float(draw.integers(4)) / 4, float(draw.integers(3)), k) for k in draw.permutation(11)]
    chosen = promoted(values, 4)
    frame = sorted(values, key=lambda v: v.trial)
    ranks = np.lexsort(([v.trial for v in frame], [v.loss for v in frame], [-v.score for v in frame]))
    assert chosen == sorted(frame[k].trial for k in ranks[:4])
    assert promoted(values, 12) == list(range(11))
    assert promoted([], 4) == []
