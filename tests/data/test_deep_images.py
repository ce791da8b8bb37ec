"""Images of more than 8 bits: one scale in training, in prediction, whatever lies beside an image, and at all sites."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import idiolect as idl
from idiolect.core.errors import InputError
from idiolect.data.custom import images
from idiolect.data.custom.images import EncodedImage
from idiolect.deploy import samples
from idiolect.deploy.bundle import Bundle, log_probabilities
from idiolect.deploy.predict import predict
from idiolect.federation.data.agreement import common_form
from idiolect.federation.data.samples import SiteFiles

BITS = 12


def scans(folder: Path, top: int, seed: int = 0, rows: int = 8) -> dict[str, np.ndarray]:
    """Two classes of 16-bit images of which one pixel in all of them is the brightest; by path."""
    rng, written = np.random.default_rng(seed), {}
    for label, level in (("x", 0.1), ("y", 0.4)):
        (folder / label).mkdir(parents=True)
        for k in range(rows):
            x_HW = (top * level * rng.random((6, 5))).astype(np.uint16)
            if (label, k) == ("y", 0):
                x_HW[0, 0] = top
            Image.fromarray(x_HW).save(folder / label / f"{k}.png")
            written[f"{label}/{k}"] = x_HW
    return written


def scaled(x_HW: np.ndarray, bits: int) -> np.ndarray:
    return np.rint(np.minimum(x_HW * (255 / (2**bits - 1)), 255)).astype(np.uint8)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    scans(tmp_path / "scans", 2**BITS - 1)
    study = idl.Study(
        data=str(tmp_path / "scans"), clients=2, partition="iid", model="mlp", methods=["local"], rounds=1
    )
    return idl.run(study, tmp_path / "run", engine="sequential").bundle("local", tmp_path / "bundle", client="0")


def test_an_image_has_one_prediction_whatever_lies_beside_it(bundle: Bundle, tmp_path: Path) -> None:
    dark = scans(tmp_path / "all", 2**BITS - 1, seed=1)["x/3"]
    (tmp_path / "alone").mkdir()
    Image.fromarray(dark).save(tmp_path / "alone" / "3.png")
    tables = []
    for name in ("all", "alone"):
        predict(bundle, tmp_path / name, tmp_path / f"{name}.csv")
        tables.append(pd.read_csv(tmp_path / f"{name}.csv"))
    beside, alone = tables[0].set_index("image").loc[str(tmp_path / "all/x/3.png"), "p_x"], tables[1]["p_x"].item()
    x_R = torch.from_numpy(scaled(dark, BITS))[None, None]
    want = log_probabilities(bundle.model("0"), bundle.predicting, x_R)[0].exp()
    assert bundle.about.inputs.bits == BITS
    assert beside == pytest.approx(float(want[bundle.about.classes.index("x")]), abs=1e-4)
    assert alone == beside


def encoded(path: Path) -> list[EncodedImage]:
    return [EncodedImage(str(p), p) for p in sorted(path.rglob("*.png"))]


def test_what_is_brighter_becomes_white(tmp_path: Path) -> None:
    written = scans(tmp_path / "bright", 2**14 - 1)
    x_R, bits, own = images.read(encoded(tmp_path / "bright"), None, "bright", bits=BITS)
    assert (bits, own) == (BITS, 14)
    assert (x_R[:, 0].numpy() == np.stack([scaled(written[name], BITS) for name in sorted(written)])).all()


def test_brighter_images_are_said_once(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scans(tmp_path / "bright", 2**14 - 1)
    monkeypatch.setattr(samples, "IMAGES", 3)
    with caplog.at_level(logging.WARNING):
        predict(bundle, tmp_path / "bright", tmp_path / "out.csv")
    assert (
        caplog.text.count(
            "some images have more than 12 bits a pixel, and those of training had not: what is brighter becomes white"
        )
        == 1
    )


def test_deep_images_do_not_go_to_a_model_of_8_bits(tmp_path: Path) -> None:
    scans(tmp_path / "deep", 2**BITS - 1)
    with pytest.raises(InputError, match="deep has images of 12 bits a pixel, and those of training had 8: save them"):
        images.read(encoded(tmp_path / "deep"), None, "deep", bits=8)


def test_the_cache_keeps_a_scale_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(images, "_MANY", 3)
    scans(tmp_path / "deep", 2**BITS - 1)
    files = encoded(tmp_path / "deep")
    fresh = [images.read(files, None, "deep", bits=bits) for bits in (None, 16)]
    again = [images.read(files, None, "deep", bits=bits) for bits in (None, 16)]
    assert [one.bits for one in again] == [BITS, 16]
    assert all(torch.equal(a.x_R, b.x_R) for a, b in zip(fresh, again, strict=True))


def test_sites_agree_on_one_scale(tmp_path: Path) -> None:
    written = {name: scans(tmp_path / name, 2**bits - 1) for name, bits in (("a", BITS), ("b", 14), ("a-test", 10))}
    sites = {"a": SiteFiles(tmp_path / "a", test=tmp_path / "a-test"), "b": SiteFiles(tmp_path / "b")}
    offers = {name: site.offer() for name, site in sites.items()}
    assert [offers[name].bits for name in "ab"] == [BITS, 14]
    inputs, classes = common_form(offers)
    assert inputs.bits == 14
    found = sites["a"].encode(inputs, classes, 0, 0, look=False)
    want = [scaled(written[part][name], 14) for part in ("a", "a-test") for name in sorted(written[part])]
    assert sorted(x.tobytes() for x in found.x_N[:, 0].numpy()) == sorted(x.tobytes() for x in want)
