"""Crops and mirror images against numpy, how they are drawn, and who sees them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy

import toy

from idiolect import cli, methods
from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Data, Down, Method, Task, Training
from idiolect.core.network import Network
from idiolect.engines import Sequential
from idiolect.engines.vectorised import Vectorised
from idiolect.simulation import Engine, Job, fit
from idiolect.studies import Study
from idiolect.training import Preprocessing, batch_features, batches, features, rows, train_model
from idiolect.training.augment import crop_flip

KEY = keys.key(0, "augment")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(torch.float32)


def moved(image: np.ndarray, down: int, right: int, mirrored: bool) -> np.ndarray:
    """The window at (down, right) of an image (C, H, W) with 4 black pixels around it, then mirrored."""
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)))
    window = padded[:, down : down + height, right : right + width]
    return window[:, :, ::-1] if mirrored else window


EVERY = [(down, right, mirrored) for down in range(9) for right in range(9) for mirrored in (False, True)]


def found(image: np.ndarray, got: np.ndarray) -> list[tuple[int, int, bool]]:
    """All ways in which one image is another moved."""
    return [way for way in EVERY if np.array_equal(moved(image, *way), got)]


def pictures(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 20, 33)])
def test_each_image_is_one_crop_of_itself(shape: tuple[int, ...]) -> None:
    x = pictures(12, *shape)
    before, got = x.clone(), crop_flip(x, KEY)
    assert got.dtype == torch.uint8
    assert got.shape == x.shape
    assert torch.equal(x, before)
    ways = [found(image, new) for image, new in zip(x.numpy(), got.numpy(), strict=True)]
    assert all(len(way) == 1 for way in ways), "the same offsets give the same pixels"
    assert len({way[0] for way in ways}) > 6


def test_no_device_waits() -> None:
    """On the meta device nothing can be asked for, and nothing is made elsewhere."""
    with torch.device("meta"):
        x, key = torch.zeros((5, 2, 3, 8, 8), dtype=torch.uint8), torch.zeros(5, dtype=torch.int64)
        got = torch.func.vmap(crop_flip)(x, key)
    assert (got.shape, got.dtype, got.device.type) == (x.shape, x.dtype, "meta")


def ways_of(key: Tensor, count: int) -> np.ndarray:
    """The offsets and the mirroring of each of many images, read off pictures whose pixels are numbered."""
    x = (torch.arange(100, dtype=torch.uint8).view(1, 1, 10, 10) + 1).expand(count, 1, 10, 10)
    got = crop_flip(x, key).long()[:, 0].numpy()
    at, mirrored = got[:, 5, 5] - 1, got[:, 5, 4] > got[:, 5, 5]  # no window leaves these two black
    down, right = at // 10 - 1, at % 10 - np.where(mirrored, 0, 1)
    assert np.array_equal(got[7], moved(x[0].numpy(), down[7], right[7], mirrored[7])[0])
    return (down * 9 + right) * 2 + mirrored


def test_offsets_and_mirroring_are_even_and_independent() -> None:
    """All 162 ways alike, within a batch, and over the steps of a plan; and one image tells nothing of the next."""
    within = ways_of(KEY, 40_000)
    over = np.concatenate([ways_of(keys.fold(KEY, step), 8) for step in range(5_000)])
    for way in (within, over):
        assert stats.chisquare(np.bincount(way, minlength=162)).pvalue > 1e-3
    pairs = np.bincount(within[0::2] % 18 * 18 + within[1::2] % 18, minlength=324)
    assert stats.chisquare(pairs).pvalue > 1e-3
    first = over.reshape(5_000, 8)[:, 0] % 18
    assert stats.chisquare(np.bincount(first[:-1] * 18 + first[1:], minlength=324)).pvalue > 1e-3


# --- the rows of a step -----------------------------------------------------------------------------------------------


def flat_task(shape: tuple[int, ...], augment: Any = "crop_flip", **training: Any) -> Task:
    """A body whose features are the pixels, on a scale of 0 to 1."""

    def make() -> tuple[nn.Module, nn.Module]:
        return nn.Flatten(), nn.Linear(int(np.prod(shape)), 3)

    return Task(Network(make, shape), 3, 1, Training(**training, augment=augment), Preprocessing())


def client(n: int, padding: int = 0) -> Data:
    real = torch.cat([torch.ones(n), torch.zeros(padding)])
    return Data(pictures(30, 1, 12, 12), torch.arange(30) % 3, torch.arange(n + padding) + 2, real)


def test_without_augmentation_rows_are_those_that_are_stored() -> None:
    data, task = client(9), flat_task((1, 12, 12), "none", batch_size=4)
    for batch in batches(data, task.training, KEY):
        x, y = rows(task, data, batch)
        assert torch.equal(x, data.x_R[batch.at_B + 2])
        assert torch.equal(y, data.y_R[batch.at_B + 2])
    plain, asked = features(task, {}, data), features(task, {}, data, augmented=KEY)
    assert torch.equal(plain[0], asked[0])
    torch.testing.assert_close(plain[0], data.x_R[2:11].flatten(1) / 255)


def test_each_step_draws_anew_and_again_the_same() -> None:
    data, task = client(9), flat_task((1, 12, 12), epochs=3, batch_size=9, shuffle=False)
    plan = batches(data, task.training, KEY)
    seen = [rows(task, data, batch)[0] for batch in plan]
    for batch, x in zip(plan, seen, strict=True):
        assert torch.equal(x, rows(task, data, batch)[0])
        assert all(
            len(found(data.x_R[at + 2].numpy(), new.numpy())) == 1 for at, new in zip(batch.at_B, x, strict=True)
        )
    others = batches(data, task.training, keys.key(0, "another"))
    seen += [rows(task, data, batch)[0] for batch in others]
    assert len({x.numpy().tobytes() for x in seen}) == 6


def test_mapped_and_padded_clients_see_the_same_images() -> None:
    sizes, most = [3, 9, 12], 13
    task = flat_task((1, 12, 12), epochs=2, batch_size=5)
    key = torch.stack([keys.key(0, k) for k in range(3)])
    row = (torch.arange(most) + torch.tensor([[0], [4], [9]])).clamp(max=29)
    real = torch.stack([(torch.arange(most) < n).float() for n in sizes])
    x_R, y_R = client(1)[:2]

    def seen(row_N: Tensor, real_N: Tensor, key: Tensor) -> list[tuple[Tensor, Tensor]]:
        data = Data(x_R, y_R, row_N, real_N)
        return [(rows(task, data, b)[0], b.used_B) for b in batches(data, task.training, key)]

    many = torch.func.vmap(seen)(row, real, key)
    for k, n in enumerate(sizes):
        alone = [x for x, _ in seen(row[k, :n], real[k, :n], key[k])]
        got = [x[k][used[k] > 0] for x, used in many]
        for a, b in zip(alone, [g for g in got if len(g)], strict=True):
            assert torch.equal(a, b)


# --- heads on a frozen body -------------------------------------------------------------------------------------------


def test_a_head_sees_other_images_in_each_epoch() -> None:
    data, task = client(7), flat_task((1, 12, 12), epochs=4, batch_size=7, shuffle=False)
    plan = batches(data, task.training, KEY)
    frozen = batch_features(task, {}, data)
    seen = [frozen(batch) for batch in plan]
    assert len({z.numpy().tobytes() for z, _ in seen}) == 4
    for batch, (z, y) in zip(plan, seen, strict=True):
        assert torch.equal(y, data.y_R[2:9])
        torch.testing.assert_close(z, rows(task, data, batch)[0].flatten(1) / 255)


def test_training_a_head_on_augmented_images(float64: None) -> None:
    """Written out with torch.optim."""
    rule = SGD(0.1, 0.6, 0.05)
    data, task = client(11), flat_task((1, 12, 12), epochs=3, batch_size=4, optimiser=rule)
    model = task.network.init(keys.key(1))
    got, _ = train_model(task, model, data, KEY, part="head")
    head = nn.Linear(144, 3)
    head.load_state_dict(model.head)
    step = torch.optim.SGD(head.parameters(), rule.lr, rule.momentum, weight_decay=rule.weight_decay)
    for batch in batches(data, task.training, KEY):
        x, y = rows(task, data, batch)
        step.zero_grad()
        nn.functional.cross_entropy(head(x.flatten(1) / 255), y).backward()
        step.step()
    for name, weight in head.named_parameters():
        torch.testing.assert_close(got.head[name], weight.detach(), rtol=1e-10, atol=1e-12)
    clean = train_model(
        flat_task((1, 12, 12), "none", epochs=3, batch_size=4, optimiser=rule), model, data, KEY, part="head"
    )
    assert not torch.allclose(got.head["weight"], clean[0].head["weight"])


def build(name: str, augment: Any = "crop_flip", **options: Any) -> Method:
    task = toy.task()
    return toy.builder(name, **options)(replace(task, training=replace(task.training, augment=augment)))


def received(method: Method, k: int) -> tuple[Down, Any, Data]:
    down = method.send(method.init_server(toy.key()), torch.tensor([k]))
    return (
        Down(down.shared, tree.rows(down.own, 0)),
        method.init_client(toy.key(), torch.tensor(0)),
        toy.rows(toy.data(), k),
    )


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What bodies are given without gradients."""
    given: list[Tensor] = []
    plain = Network.features

    def features(self: Network, body: Any, x_B: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            given.append(x_B)
        return plain(self, body, x_B)

    monkeypatch.setattr(Network, "features", features)
    return given


TUNED = [
    ("fedpac", {"tuning_epochs": 3}), ("fedcr", {"head_epochs": 3}), ("fedsr", {"head_epochs": 3}),
    ("fedrep", {"tuning_epochs": 3}), ("fedbabu", {"tuning_epochs": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), TUNED)
def test_methods_tune_heads_on_images_of_each_epoch(passes: list[Tensor], name: str, options: dict[str, Any]) -> None:
    for augment, wanted in (("crop_flip", 3), ("none", 1)):
        method = build(name, augment, **options)
        given = received(method, toy.SMALL)  # a client of one batch
        method.personalise(*given, toy.key())  # a network looks once whether it draws at random
        passes.clear()
        method.personalise(*given, toy.key())
        assert len(passes) == len({x.numpy().tobytes() for x in passes}) == wanted


@pytest.mark.parametrize("statistics", ["augmented", "clean"])
def test_fedpac_takes_statistics_of_the_images_that_it_is_told(passes: list[Tensor], statistics: str) -> None:
    method = build("fedpac", statistics=statistics)
    down, mine, data = received(method, toy.SMALL)
    passes.clear()
    method.local(down, mine, data, toy.key())
    stored = toy.task().inputs(data.x_R[data.row_N])
    clean = [torch.equal(x, stored) for x in passes]  # first and last of the round; between them the head's epoch
    assert clean == [statistics == "clean", False, statistics == "clean"]
    assert statistics == "clean" or not torch.equal(passes[0], passes[-1])


@pytest.mark.parametrize("name", ["knnper", "pfedfda", "hypcluster", "fedlda"])
def test_what_is_measured_after_training_is_measured_on_rows_as_they_are(name: str) -> None:
    augmented, plain = build(name), build(name, "none")
    given = received(plain, 0)
    a, b = (method.personalise(*given, toy.key()) for method in (augmented, plain))
    assert all(torch.equal(u, v) for u, v in zip(tree.leaves(a), tree.leaves(b), strict=True))
    x = given[2].x_R[:9]
    assert torch.equal(augmented.predict(given[0], a, x), plain.predict(given[0], b, x))


# --- engines ----------------------------------------------------------------------------------------------------------


def _end(name: str, engine: Engine, augment: Any) -> list[Tensor]:
    task = toy.task()
    task = replace(task, training=replace(task.training, augment=augment))
    job = Job(name, partial(methods.build, name, methods.settle(name, {}), task), toy.data(), 3)
    with engine:
        state = fit(job, engine, rounds=2, participation=0.7)
    return tree.leaves((state.server, *state.clients))


@pytest.mark.thorough(but=["fedrep"])
@pytest.mark.parametrize("name", ["fedpac", "fedrep", "fedcr", "fedproto"])
def test_engines_agree(name: str) -> None:
    torch.set_default_dtype(torch.float64)
    plain, ours = _end(name, Sequential(), "crop_flip"), _end(name, Vectorised(device="cpu", chunk=2), "crop_flip")
    for a, b in zip(plain, ours, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
    assert any(not torch.allclose(a, b) for a, b in zip(plain, _end(name, Sequential(), "none"), strict=True))


# --- studies and the command line -------------------------------------------------------------------------------------


def test_a_study_hands_it_over() -> None:
    assert Study().augment == "none"
    study = Study(augment="crop_flip", clients=4)
    assert study.task_of(study.federation()).training.augment == "crop_flip"
    with pytest.raises(InputError, match=r"augment='mirror' is not valid: .*'none' or 'crop_flip'"):
        Study(augment="mirror")


def test_rows_that_are_no_images_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    draw = np.random.default_rng(0)
    lines = [f"{a:.3f},{b:.3f},{int(a > 0)}" for a, b in draw.normal(size=(80, 2))]
    Path("p.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "--data", "p.csv", "--target", "y", "--clients", "2", "--augment", "crop_flip"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "augment=crop_flip is for images, and these samples are numbers: leave it out" in said
    assert "Traceback" not in said
    assert [p.name for p in tmp_path.iterdir()] == ["p.csv"], "nothing is half done"
