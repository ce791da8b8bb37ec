"""Models of texts outside of the simulator: joined, asked, in scikit-learn, watched and as ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import idiolect as idl
from idiolect.core.errors import InputError
from idiolect.data import from_arrays
from idiolect.data.text.encoders import encoder_of
from idiolect.deploy.bundle import Bundle
from idiolect.deploy.export import export
from idiolect.deploy.join import join
from idiolect.deploy.predict import predict
from idiolect.deploy.samples import read, stream
from idiolect.deploy.watch import watch

GOOD, BAD = ["great", "lovely", "fine", "superb"], ["awful", "poor", "broken", "useless"]


def reviews(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    right = rng.random(rows) < 0.5
    words = [rng.choice([*(GOOD if one else BAD), "the", "a", "shop"], rng.integers(3, 12)) for one in right]
    return pd.DataFrame(
        {
            "Title": [" ".join(w[:2]) for w in words],
            "Body": [" ".join(w[2:]) for w in words],
            "stars": np.where(right, "up", "down"),
            "shop": [f"shop {k % 4}" for k in range(rows)],
        }
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("texts")
    reviews(240, 0).to_csv(folder / "reviews.csv", index=False)
    study = idl.Study(
        data=str(folder / "reviews.csv"), text="Title+Body", target="stars", client_column="shop", methods=["pfedfda"],
        rounds=4, local_epochs=3, optimiser="adam", lr=0.03, model="embedding_mean:width=8", batch_size=20,
    )  # fmt: skip
    return idl.run(study, folder / "run", engine="sequential").bundle("pfedfda", folder / "bundle")


@pytest.fixture(scope="module")
def site(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("site")
    reviews(80, 1).to_parquet(folder / "mine.parquet")
    mine = read(folder / "mine.parquet", bundle.about.inputs, bundle.about.classes, "stars")
    return join(bundle, mine, folder / "site", ships="personal")


def by_hand(site: Bundle, texts: list[str]) -> np.ndarray:
    """The features in numpy, from the published hash and the weights of the bundle; then the method's own head."""
    import re
    import zlib

    down, client = site.model()
    body = next(part for part in torch.utils._pytree.tree_leaves((down, client)) if part.shape[-1:] == (8,) and
                len(part) == 16385)  # fmt: skip
    words = [re.findall(r"\w+|[^\w\s]", text.casefold()) for text in texts]
    ids = [[1 + zlib.crc32(word.encode()) % 16384 for word in text] for text in words]
    return np.stack([body.numpy()[row[: site.about.inputs.shape[0]]].mean(0) for row in ids])


def test_what_a_bundle_says(bundle: Bundle) -> None:
    inputs = bundle.about.inputs
    assert inputs.kind == "texts"
    assert inputs.tokens.model_dump() == {"columns": ("Title", "Body"), "encoder": "words", "most": 256}
    assert (inputs.ids, inputs.mean) == (16385, ())
    card = (bundle.folder / "README.md").read_text() if (bundle.folder / "README.md").exists() else ""
    for path in bundle.folder.iterdir():
        card += path.read_text() if path.suffix == ".md" else ""
    assert f"Texts in the columns Title and Body: the first {inputs.shape[0]} words of each." in card


def test_the_representation_is_the_mean_of_the_words(site: Bundle) -> None:
    from idiolect.deploy import reference

    texts = ["great lovely thing", "The AWFUL shop", "superb"]
    x = torch.zeros(len(texts), site.about.inputs.shape[0], dtype=torch.int64)
    for row, id_L in zip(x, encoder_of("words").encode(texts), strict=True):
        row[: len(id_L)] = torch.from_numpy(id_L)
    np.testing.assert_allclose(reference.features(site, x)[0].numpy(), by_hand(site, texts), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_every_kind_of_file_is_predicted(site: Bundle, kind: str, tmp_path: Path) -> None:
    frame = reviews(60, 2)
    path = tmp_path / f"new.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    assert predict(site, path, tmp_path / "p.csv") == (60, 0)
    found = pd.read_csv(tmp_path / "p.csv")
    assert list(found) == ["row", "stars", "shop", "label", "p_down", "p_up"]
    assert (found["label"] == found["stars"]).mean() > 0.9
    model = idl.load(site.folder)
    np.testing.assert_allclose(found[["p_down", "p_up"]], model.predict_proba(frame), atol=1e-6)


@pytest.mark.parametrize("kind", [list, tuple, np.array, pd.Series], ids=lambda kind: kind.__name__)
def test_lists_of_texts_in_scikit_learn(site: Bundle, kind) -> None:
    frame = reviews(20, 3)
    texts = kind([f"{title}\n{body}" for title, body in zip(frame["Title"], frame["Body"], strict=True)])
    model = idl.load(site.folder)
    np.testing.assert_array_equal(model.predict_proba(texts), model.predict_proba(frame))


def test_a_bundle_is_joined_from_scikit_learn(bundle: Bundle) -> None:
    frame = reviews(80, 4)
    model = idl.load(bundle.folder).fit(frame[["Title", "Body"]], frame["stars"])
    new = reviews(60, 5)
    assert model.score(new[["Title", "Body"]], new["stars"]) > 0.9


def test_columns_of_other_spelling_order_and_company(site: Bundle, tmp_path: Path, caplog) -> None:
    frame = reviews(10, 6)
    plain = idl.load(site.folder).predict_proba(frame)
    frame[["Body", "shop", "Title"]].rename(columns={"Title": "TITLE", "Body": "body "}).to_csv(tmp_path / "n.csv")
    parts = [x_N for x_N, _ in stream(tmp_path / "n.csv", site.about.inputs)]
    assert "column 'TITLE' is taken as 'Title'" in caplog.text
    np.testing.assert_array_equal(idl.load(site.folder).predict_proba(torch.cat(parts).numpy()), plain)


@pytest.mark.parametrize("text", ["", "   ", "12", "3.5", "\u200b", "nothing known at all", "great " * 500])
def test_odd_texts_have_a_prediction(site: Bundle, text: str, tmp_path: Path) -> None:
    pd.DataFrame({"Title": [text], "Body": [text]}).to_parquet(tmp_path / "n.parquet")
    assert predict(site, tmp_path / "n.parquet", tmp_path / "p.csv")[0] == 1
    found = pd.read_csv(tmp_path / "p.csv")
    assert abs(found["p_down"] + found["p_up"] - 1).max() < 1e-4


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"Title": ["a"]}), "has no column 'Body': the bundle takes Title, Body"),
        (pd.DataFrame({"Title": [1.5], "Body": ["a"]}), "column 'Title' of .* has numbers and not texts"),
        (pd.DataFrame({"Title": [["a"]], "Body": ["a"]}), "column 'Title' of .* has a ndarray in row 0"),
    ],
)
def test_tables_without_the_texts_are_refused(site: Bundle, frame: pd.DataFrame, message: str, tmp_path: Path) -> None:
    frame.to_parquet(tmp_path / "n.parquet")
    with pytest.raises(InputError, match=message):
        predict(site, tmp_path / "n.parquet", tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()


def test_images_are_refused(site: Bundle, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="has images, and this bundle takes texts"):
        predict(site, tmp_path, tmp_path / "p.csv")


@pytest.mark.thorough(but=["*text_cnn*"])
@pytest.mark.parametrize(
    "network", ["embedding_mean:width=4", "text_cnn:width=4,maps=3", "char_lstm:hidden=4,layers=1"]
)
@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_tokens_in_probabilities_out(network: str, format: str, tmp_path: Path) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    frame = reviews(40, 7)
    source = from_arrays(
        frame["Title"].tolist(), frame["stars"].tolist(), clients=frame["shop"].tolist(), tokens="bytes"
    )
    study = idl.Study(data=source, methods=["fedavg"], rounds=1, local_epochs=1, model=network, batch_size=10)
    whole = idl.run(study, tmp_path / "run", engine="sequential").bundle("fedavg", tmp_path / "b", client="shop 1")
    check = export(whole, tmp_path / f"m.{format}", format=format)
    assert check.samples == 64
    if format == "onnx":
        import onnx
        import onnxruntime

        session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
        (given,) = session.get_inputs()
        assert (given.name, given.type) == ("tokens", "tensor(int64)")
        ids = np.zeros((3, whole.about.inputs.shape[0]), np.int64)
        for row, text in zip(ids, ["great", "", "lovely shop"], strict=True):
            row[: len(text)] = np.frombuffer(text.encode(), np.uint8).astype(np.int64)[: ids.shape[1]] + 1
        (p_NC,) = session.run(["probabilities"], {"tokens": ids})
        np.testing.assert_allclose(
            p_NC, idl.load(tmp_path / "b").predict_proba(["great", "", "lovely shop"]), atol=1e-5
        )
        properties = {p.key: p.value for p in onnx.load(tmp_path / "m.onnx").metadata_props}
        assert properties["encoder"] == "bytes"


def test_other_words_are_noticed(site: Bundle) -> None:
    inputs = site.about.inputs

    def tokens(frame: pd.DataFrame) -> torch.Tensor:
        from idiolect.data.custom.parts import Part
        from idiolect.deploy.samples import Reader

        return Reader(inputs, "new").encode(Part(frame[["Title", "Body"]]))

    assert not watch(site, tokens(reviews(200, 8))).features.moved
    other = reviews(200, 9)
    rng = np.random.default_rng(0)
    other["Body"] = [" ".join(rng.choice(list("bcdfgh"), 30)) for _ in range(len(other))]
    assert watch(site, tokens(other)).features.moved
