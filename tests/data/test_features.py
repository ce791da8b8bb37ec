"""Features of a frozen backbone: computed once for each sample, kept on disk, and the same afterwards."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from idiolect import data
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.data import FederatedData, features
from idiolect.data.feature_cache import FeatureCache, digests
from idiolect.data.features import with_features

W_FD = np.random.default_rng(7).normal(size=(12, 5))


class Linear:
    """A backbone that anyone can compute: the samples' numbers times a matrix; it counts what it is asked for."""

    name, width = "linear", 5

    def __init__(self, digest: str = "0" * 64) -> None:
        self.digest, self.rows, self.widest = digest, 0, list[int]()

    def __call__(self, x_B: Tensor) -> Tensor:
        self.rows += len(x_B)
        self.widest.append(x_B.shape[1])
        flat_BF = torch.zeros(len(x_B), 12, dtype=torch.float64)
        flat_BF[:, : x_B[0].numel()] = x_B.flatten(1).double()
        return (flat_BF @ torch.from_numpy(W_FD)).float()


class Place(NamedTuple):
    folder: Path

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.safetensors"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Place(tmp_path / "idiolect" / "features")


def federation(rows: int = 60, seed: int = 0, **more: Any) -> FederatedData:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, (rows, 2, 2, 3)).astype(np.uint8)
    source = data.from_arrays(x, np.arange(rows) % 3, name="mine")
    return data.build(source, Spec.parse("dirichlet:alpha=5"), clients=3, seed=seed, **more)


def texts(*rows: list[int], width: int = 12) -> FederatedData:
    x = np.zeros((len(rows), width), np.int32)
    for k, row in enumerate(rows):
        x[k, : len(row)] = row
    base = federation(len(rows))
    return replace(base, x_R=torch.from_numpy(x), file=None)


def expected(fed: FederatedData) -> Any:
    flat = fed.x_R.numpy().reshape(len(fed.x_R), -1).astype(float)
    return flat @ W_FD[: flat.shape[1]]


def test_the_samples_are_what_the_backbone_makes_of_them(place: Place) -> None:
    fed = federation()
    new = with_features(fed, Linear(), "reference")
    assert new.x_R.dtype == torch.float32
    np.testing.assert_allclose(new.x_R.numpy(), expected(fed), rtol=1e-6)
    assert [list(map(int, rows)) for rows in new.train] == [list(map(int, rows)) for rows in fed.train]
    z = expected(fed)[torch.cat([*fed.train]).numpy()]
    np.testing.assert_allclose(new.mean, z.mean(0), rtol=1e-5)
    np.testing.assert_allclose(new.std, z.std(0), rtol=1e-5)
    assert new.file is not None  # so that worker processes share them
    assert new.raw is not None
    assert (new.raw.form, new.raw.backbone) == (fed.inputs, "linear")


@pytest.mark.parametrize("again", [{}, {"seed": 1}, {"shifts": [Spec.parse("invert:clients=0")]}])
def test_another_federation_of_the_same_samples_computes_only_what_is_new(place: Place, again: dict[str, Any]) -> None:
    with_features(federation(), Linear(), "training")
    backbone, fed = Linear(), federation(**again)
    new = with_features(fed, backbone, "training")
    np.testing.assert_allclose(new.x_R.numpy(), expected(fed), rtol=1e-6)
    known = {row.tobytes() for row in federation().x_R.numpy()}
    assert backbone.rows == len({row.tobytes() for row in fed.x_R.numpy()} - known)


def test_equal_samples_are_computed_once(place: Place) -> None:
    fed = federation()
    fed.x_R[10:40] = fed.x_R[3]
    backbone = Linear()
    new = with_features(fed, backbone, "training")
    assert backbone.rows == 30
    np.testing.assert_allclose(new.x_R.numpy(), expected(fed), rtol=1e-6)


@pytest.mark.parametrize("precision", ["1" * 64, "0" * 23 + "1" * 41, "f" * 64])
def test_another_backbone_has_features_of_its_own(place: Place, precision: str) -> None:
    with_features(federation(), Linear(), "training")
    backbone = Linear(precision)
    with_features(federation(), backbone, "training")
    assert backbone.rows == 60


def test_texts_cost_what_they_are_and_do_not_depend_on_their_padding(place: Place) -> None:
    rows = [[5], [3, 4], [9] * 12, [7, 0, 8], [2] * 6, [1] * 6]
    backbone, fed = Linear(), texts(*rows)
    new = with_features(fed, backbone, "training")
    np.testing.assert_allclose(new.x_R.numpy(), expected(fed), rtol=1e-6)
    again = Linear()
    with_features(replace(fed, x_R=fed.x_R[:, :12].long()), again, "training")
    assert again.rows == 0
    shorter = texts(*(row for row in rows if len(row) < 8), [5], width=8)
    with_features(shorter, again, "training")
    assert again.rows == 0


def test_a_batch_of_texts_is_as_wide_as_its_longest(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_TOKENS", 12)
    backbone = Linear()
    with_features(texts([9] * 12, [5], [6], [7], [8] * 6, [1] * 5), backbone, "training")
    assert backbone.widest == [12, 6, 1]


def test_digests_of_texts_and_images_by_hand() -> None:
    import hashlib

    ids = torch.tensor([[3, 4, 0], [3, 0, 4]], dtype=torch.int16)
    want = [hashlib.blake2b(np.array(row, "<i8").tobytes(), digest_size=16).digest() for row in ([3, 4], [3, 0, 4])]
    assert digests(ids) == want
    x = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2)
    assert digests(torch.from_numpy(x)) == [hashlib.blake2b(bytes(range(4 * k, 4 * k + 4)), digest_size=16).digest()
                                            for k in range(2)]  # fmt: skip


@pytest.mark.parametrize("damage", ["a bit", "half of it", "nothing left", "another width"])
def test_a_damaged_file_is_noticed_and_computed_again(place: Place, damage: str, caplog: Any) -> None:
    with_features(federation(), Linear(), "training")
    [file] = place.files()
    content = bytearray(file.read_bytes())
    if damage == "a bit":
        content[-3] ^= 4
    elif damage == "another width":
        FeatureCache(Linear().digest).keep([b"0" * 16], torch.ones(1, 4))
    else:
        content = content[: len(content) // 2 if damage == "half of it" else 0]
    file.write_bytes(content)
    backbone = Linear()
    with caplog.at_level(logging.WARNING):
        new = with_features(federation(), backbone, "training")
    np.testing.assert_allclose(new.x_R.numpy(), expected(federation()), rtol=1e-6)
    assert backbone.rows == (0 if damage == "another width" else 60)
    assert "is damaged: its features are computed again" in caplog.text
    caplog.clear()
    with_features(federation(), backbone, "training")
    assert "damaged" not in caplog.text


@pytest.mark.skipif(os.name == "nt", reason="rights of files")
def test_files_of_features_are_for_their_owner_alone(place: Place) -> None:
    with_features(federation(), Linear(), "training")
    assert [stat.S_IMODE(file.stat().st_mode) for file in place.files()] == [0o600]
    assert [p.name for p in place.folder.iterdir()] == [place.files()[0].name]  # no draft is left


def test_what_was_done_before_a_stop_is_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_SECONDS", 0.0)
    monkeypatch.setattr(features, "_BATCH", 16)

    class Stopping(Linear):
        def __call__(self, x_B: Tensor) -> Tensor:
            if self.rows >= 32:
                raise KeyboardInterrupt
            return super().__call__(x_B)

    with pytest.raises(KeyboardInterrupt):
        with_features(federation(), Stopping(), "training")
    backbone = Linear()
    new = with_features(federation(), backbone, "training")
    assert backbone.rows == 60 - 32
    np.testing.assert_allclose(new.x_R.numpy(), expected(federation()), rtol=1e-6)


def test_a_disk_without_room_is_said_before_anything_is_computed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(place.folder.parent.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    backbone = Linear()
    with pytest.raises(InputError, match=r"room for 0 MB: make room, set XDG_CACHE_HOME .* IDIOLECT_FEATURES=0"):
        with_features(federation(), backbone, "training")
    assert backbone.rows == 0
    monkeypatch.setenv("IDIOLECT_FEATURES", "0")
    with_features(federation(), backbone, "training")
    assert backbone.rows == 60
    assert not place.files()


def test_a_limit_keeps_the_newest(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for k, digest in enumerate(("a", "b", "c")):
        with_features(federation(), Linear(digest * 64), "training")
        for file in place.folder.glob(f"{digest}*"):
            os.utime(file, (1000 + k, 1000 + k))
    size = place.files()[0].stat().st_size
    monkeypatch.setenv("IDIOLECT_FEATURES", str(2.5 * size))
    with_features(federation(), Linear("d" * 64), "training")
    assert [file.name[0] for file in place.files()] == ["c", "d"]


@pytest.mark.parametrize("limit", ["much", "10 GB", ""])
def test_a_limit_that_is_no_number_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setenv("IDIOLECT_FEATURES", limit)
    with pytest.raises(InputError, match="is not a number of bytes: write one, as 20e9, or 0"):
        with_features(federation(), Linear(), "training")


def test_progress_and_size_are_said_before(place: Place, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        with_features(federation(), Linear(), "training")
    [said] = [r.getMessage() for r in caplog.records]
    assert said == f"computing features of 60 samples by linear, 5 numbers each: 0.0 MB, kept in {place.folder}"


def test_a_record_names_backbone_and_samples_and_not_their_rounding(place: Place) -> None:
    fed = federation()
    one = data.manifest(with_features(fed, Linear(), "training"))

    class Rounded(Linear):
        def __call__(self, x_B: Tensor) -> Tensor:
            return super().__call__(x_B) * (1 + 1e-6)

    shutil.rmtree(place.folder)
    other = data.manifest(with_features(fed, Rounded(), "training"))
    assert one["backbone"] == {"name": "linear", "weights": "0" * 64}
    assert one["hash"] == other["hash"]
    assert one["hash"] != data.manifest(with_features(fed, Linear("1" * 64), "training"))["hash"]
    assert one["hash"] != data.manifest(with_features(federation(seed=1), Linear(), "training"))["hash"]
    fed.x_R[0, 0, 0, 0] ^= 1
    assert one["hash"] != data.manifest(with_features(fed, Linear(), "training"))["hash"]
