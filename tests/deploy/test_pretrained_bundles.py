"""Models on a pretrained backbone outside of the simulator: from images and texts as they are."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import idiolect as idl
from idiolect import data
from idiolect.cli import app
from idiolect.core.errors import InputError
from idiolect.deploy import reference
from idiolect.deploy.bundle import Bundle, log_probabilities
from idiolect.deploy.export import export
from idiolect.deploy.join import join
from idiolect.deploy.on_features import on_features
from idiolect.deploy.samples import Reader, Samples
from idiolect.deploy.schema import Inputs, TokensPart
from idiolect.deploy.watch import watch
from idiolect.models.pretrained import FrozenBackbone

if find_spec("transformers") is None:  # imported by those alone that use it: it takes seconds
    pytest.skip("transformers is not installed", allow_module_level=True)
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


@pytest.mark.thorough(but=["adapted images"])
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


def files_of(source_of: Any, raw: Any) -> Path:
    """The samples of a run as a user has them: a folder of images, or a table of texts."""
    if source_of is of_texts:
        texts = [raw.tokens.encoder.decode(row) for row in raw.x_R]
        pd.DataFrame({"text": texts}).to_csv("new.csv", index=False)
        return Path("new.csv")
    Path("new").mkdir()
    for k, image in enumerate(raw.x_R):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(f"new/{k}.png")
    return Path("new")


@pytest.mark.thorough(but=["frozen images"])
@pytest.mark.parametrize(("write", "source_of", "adapt"), CASES, ids=NAMES)
def test_a_site_is_watched_with_raw_samples(
    tmp_path: Path, write: Any, source_of: Any, adapt: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    result, study, _ = run(tmp_path, write, source_of, adapt)
    raw = study.samples()
    counts: list[int] = []
    make = FrozenBackbone.__call__
    monkeypatch.setattr(FrozenBackbone, "__call__", lambda self, x_B: (counts.append(len(x_B)), make(self, x_B))[1])
    frozen = adapt.startswith("frozen")
    own = Samples(raw.x_R, raw.y_R) if frozen else Samples(raw.x_R[:24], raw.y_R[:24])  # adapters take their time
    site = join(result.bundle("pfedfda", "b"), own, Path("site"))
    different = len(np.unique(raw.x_R.numpy(), axis=0))
    assert sum(counts) == (different if frozen else 0), "cross-validation of three models, and each sample once"
    assert "computing features" not in caplog.text or frozen
    where = files_of(source_of, raw)
    caplog.clear()
    said = CliRunner().invoke(app, ["watch", "site", "--data", str(where), "--json"])
    assert said.exit_code == 0, said.output  # its own samples are no alarm
    assert json.loads(said.stdout)["new"] == 60
    assert "computing" not in caplog.text
    assert sum(counts) == (different + 60 if frozen else 0)
    z_Rd = reference.features(site, raw.x_R)
    if frozen:  # the same from features as from samples
        seen, samples = on_features(site, Samples(raw.x_R, raw.y_R))
        torch.testing.assert_close(reference.features(seen, samples.x_N), z_Rd, atol=1e-5, rtol=1e-4)
    moved = raw.x_R[raw.y_R == 0].repeat(2, *[1] * (raw.x_R.ndim - 1))
    assert watch(site, moved).labels.moved, "only one class of three is left"


@pytest.mark.parametrize("more", ["", "weights"])
def test_a_site_with_another_backbone_joins_and_watches_nothing(tmp_path: Path, more: str) -> None:
    result, study, folder = run(tmp_path, write_vit, of_images, "frozen,body=identity")
    bundle, raw = result.bundle("pfedfda", "b"), study.samples()
    join(bundle, Samples(raw.x_R, raw.y_R), Path("site"))
    if more:
        write_vit(folder, seed=3)
    else:
        shutil.rmtree(folder)
    said = "was made with other frozen weights" if more else "there is no folder"
    with pytest.raises(InputError, match=said):
        watch(Bundle.read("site"), raw.x_R)
    with pytest.raises(InputError, match=said):
        join(Bundle.read("b"), Samples(raw.x_R, raw.y_R), Path("other"))
    assert not Path("other").exists()


@pytest.mark.parametrize(("encoder", "unit"), [("hf:{bert}", "tokens"), ("words", "words"), ("bytes", "bytes")])
def test_a_text_that_is_cut_says_of_what_it_has_too_many(tmp_path: Path, encoder: str, unit: str, caplog: Any) -> None:
    how = TokensPart(columns=("say",), encoder=encoder.format(bert=write_bert(tmp_path / "bert")), most=24)
    inputs = Inputs(kind="texts", shape=(5,), ids=9999, tokens=how)
    reader = Reader(inputs, "new.csv")
    assert tuple(reader.ids(["a very good film it was"], how.tokens).shape) == (1, 5)
    [said] = [record.getMessage() for record in caplog.records]
    assert said == f"new.csv: texts with more than 5 {unit}, as the longest in training, are cut"
