"""Models on a pretrained backbone outside of the simulator: from images and texts as they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import idiolect as idl
from idiolect import data
from idiolect.core.errors import InputError
from idiolect.deploy.bundle import Bundle, log_probabilities
from idiolect.deploy.export import export
from idiolect.deploy.join import join
from idiolect.deploy.samples import Samples

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_backbones import write_bert, write_vit


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def of_images(folder: Path, rows: int = 60) -> Any:
    rng = np.random.default_rng(1)
    y = np.arange(rows) % 3
    x = rng.integers(0, 120, (rows, 3, 16, 16)) + 60 * y[:, None, None, None] * (np.arange(3) == 1)[None, :, None, None]
    return data.from_arrays(x.astype(np.uint8), y, clients=np.arange(rows) * 3 // rows)


def of_texts(folder: Path, rows: int = 60) -> Any:
    rng = np.random.default_rng(2)
    words = np.array("the a cat dog film sat ran was good bad very not".split())  # noqa: SIM905
    texts = [" ".join(rng.choice(words[4 * (k % 3) : 4 * (k % 3) + 6], rng.integers(1, 20))) for k in range(rows)]
    return data.from_arrays(texts, np.arange(rows) % 3, clients=np.arange(rows) * 3 // rows, tokens=f"hf:{folder}")


CASES = [
    (write_vit, of_images, "frozen,body=mlp:6"),
    (write_bert, of_texts, "frozen,body=identity"),
    (write_vit, of_images, "lora(r=2)"),
    (write_bert, of_texts, "lora(r=2)"),
]
NAMES = ["frozen images", "frozen texts", "adapted images", "adapted texts"]


def run(tmp_path: Path, write: Any, source_of: Any, adapt: str) -> tuple[idl.Result, Any, Path]:
    folder = write(tmp_path / "backbone")
    source = source_of(folder)
    study = idl.Study(
        data=source, model=f"hf:{folder},adapt={adapt}", methods="fedper,pfedfda", rounds=2, local_epochs=1,
        batch_size=10, lr=0.1,
    )  # fmt: skip
    return idl.run(study, out="r", engine="sequential"), study, folder


@pytest.mark.parametrize(("write", "source_of", "adapt"), CASES, ids=NAMES)
def test_personal_models_predict_raw_samples_as_the_run_did(
    tmp_path: Path, write: Any, source_of: Any, adapt: str
) -> None:
    result, study, _ = run(tmp_path, write, source_of, adapt)
    table = pd.read_parquet(result.folder / "records.parquet")
    raw = study.samples()
    for method in ("fedper", "pfedfda"):
        bundle = result.bundle(method, f"b-{method}", client="all")
        wanted = table[(table["method"] == method) & (table["stage"] == "personalised") & (table["round"] == 2)]
        loss = wanted[wanted["metric"] == "loss"].set_index("client")["value"]
        for k in range(3):
            rows = raw.test[k]
            logp = log_probabilities(bundle.model(k), bundle.predicting, raw.x_R[rows])
            got = torch.nn.functional.nll_loss(logp.double(), raw.y_R[rows])
            assert float(got) == pytest.approx(loss[k], abs=2e-4)
    check = export(bundle, Path("model.onnx"), client=0)  # ids or pixels in, backbone and adapter in the file
    assert check.difference < 1e-4
    assert Path("model.onnx").stat().st_size > (tmp_path / "backbone" / "model.safetensors").stat().st_size // 2


@pytest.mark.parametrize(("write", "source_of", "adapt"), CASES[:3], ids=NAMES[:3])
def test_a_site_joins_with_raw_samples(tmp_path: Path, write: Any, source_of: Any, adapt: str) -> None:
    result, study, folder = run(tmp_path, write, source_of, adapt)
    bundle = result.bundle("fedper", "b")
    assert bundle.about.network.frozen
    raw = study.samples()
    own = join(bundle, Samples(raw.x_R[:24], raw.y_R[:24]), Path("site"))
    assert own.about.site is not None
    assert Path("site/report.html").exists()
    write(folder, seed=1)  # the site's weights are others now
    with pytest.raises(InputError, match="was made with other frozen weights"):
        assert Bundle.read("b").task
