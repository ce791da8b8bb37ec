"""Studies on the features of a frozen backbone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from typer.testing import CliRunner

import idiolect as idl
from idiolect import data, methods
from idiolect.cli import app
from idiolect.core.errors import InputError
from idiolect.models import pretrained

hf: Any = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_backbones import write_bert, write_vit  # noqa: E402


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def images(rows: int = 60) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(1)
    y = np.arange(rows) % 3
    x = rng.integers(0, 120, (rows, 3, 16, 16)) + 60 * y[:, None, None, None] * (np.arange(3) == 1)[None, :, None, None]
    return x.astype(np.uint8), y, np.array(["ann", "bob", "cyd"])[np.arange(rows) // (rows // 3)]


def study(model: str, x: Any = None, **more: Any) -> idl.Study:
    own, y, clients = images()
    source = data.from_arrays(own if x is None else x, y, clients=clients, name="mine")
    settings: dict[str, Any] = {"methods": "fedavg,fedpac,local", "rounds": 2, "local_epochs": 1, "batch_size": 10}
    return idl.Study(data=source, model=model, **settings | more)


def records(result: idl.Result) -> pd.DataFrame:
    table = pd.read_parquet(result.folder / "records.parquet")
    return table[~table["metric"].str.contains("bytes|seconds")].drop(columns="study").reset_index(drop=True)


OWN = """
from torch import nn
def identity(shape, classes): return nn.Sequential(), nn.Linear(*shape, classes)
def linear(shape, classes): return nn.Sequential(nn.Linear(*shape, 7)), nn.Linear(7, classes)
def mlp(shape, classes): return nn.Sequential(nn.Linear(*shape, 5), nn.ReLU()), nn.Linear(5, classes)
"""


@pytest.mark.parametrize(
    ("body", "engine"),
    [
        ("identity", "sequential"), ("linear:7", "sequential"), ("mlp:5", "sequential"), ("identity", "processes"),
        ("linear:7", "vectorised:device=cpu"),
    ],
)  # fmt: skip
def test_a_study_is_that_of_a_user_who_computed_the_features(
    tmp_path: Path, body: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "users_own_nets.py").write_text(OWN)
    folder = write_vit(tmp_path / "vit")
    backbone = pretrained.frozen_backbone(f"hf:{folder}", "float32")
    assert backbone is not None
    z = backbone(torch.from_numpy(images()[0])).numpy()
    model = f"hf:{folder},body={body}"
    workers = 2 if engine == "processes" else None
    ours = idl.run(study(model), out="ours", engine=engine, workers=workers)
    own = study(f"users_own_nets.{body.partition(':')[0]}", z)
    by_hand = idl.run(own, out="by_hand", engine=engine, workers=workers)
    pd.testing.assert_frame_equal(records(ours), records(by_hand), rtol=1e-5)
    manifest = json.loads((ours.folder / "manifest.json").read_text())
    assert manifest["backbone"] == {"name": f"hf:{folder}", "weights": backbone.digest}


def test_no_method_of_ours_fails_on_a_body_without_weights(
    tmp_path: Path, of_kinds: Callable[[list[str]], list[str]]
) -> None:
    one = study(f"hf:{write_vit(tmp_path / 'vit')}", methods=of_kinds(sorted(methods.ours())), rounds=1)
    result = idl.run(one, out="r", engine="sequential")
    assert len(result.accuracy()) == len(one.methods)
    assert not result.diverged


def test_a_resumed_run_and_another_one_compute_nothing_again(tmp_path: Path, caplog: Any) -> None:
    model = f"hf:{write_vit(tmp_path / 'vit')}"
    idl.run(study(model), out="r", engine="sequential")
    assert "computing features of 60 samples" in caplog.text
    caplog.clear()
    idl.run(study(model), out="r", engine="sequential", resume=True)
    idl.run(study(model, seeds=(1,), methods="fedavg"), out="other", engine="sequential")
    assert "computing" not in caplog.text


def test_a_backbone_that_has_changed_since_the_run_began_is_noticed(tmp_path: Path) -> None:
    folder = write_vit(tmp_path / "vit")
    idl.run(study(f"hf:{folder}"), out="r", engine="sequential")
    write_vit(folder, seed=1)
    with pytest.raises(InputError, match="have changed"):
        idl.run(study(f"hf:{folder}"), out="r", engine="sequential", resume=True)


def test_the_command_line_and_a_file(tmp_path: Path) -> None:
    folder, (x, y, _) = write_vit(tmp_path / "vit"), images()
    for k, (image, label) in enumerate(zip(x, y, strict=True)):
        place = tmp_path / "photos" / str(label) / f"{k}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        from PIL import Image

        Image.fromarray(image.transpose(1, 2, 0)).save(place)
    options = ["--data", "photos", "--clients", "3", "--methods", "fedavg", "--rounds", "1", "--engine", "sequential"]
    model = f"hf:{folder},body=linear:4,weights={folder}"
    done = CliRunner().invoke(app, ["run", *options, "--model", model, "--out", "r"])
    assert done.exit_code == 0, done.output
    settings = yaml.safe_load(Path("r/study.yaml").read_text())
    assert settings["model"] == model
    assert idl.Study.look("r/study.yaml").model == model
    described = CliRunner().invoke(app, ["describe", *options[:4], "--model", model, "--json"])
    assert described.exit_code == 0, described.output
    assert json.loads(described.stdout)["bytes" if "bytes" in described.stdout else "page"]


@pytest.mark.parametrize("own", [False, True])
def test_images_cannot_be_changed_at_random_before_a_frozen_backbone(tmp_path: Path, own: bool) -> None:
    more: dict[str, Any] = {"methods": "fedavg:augment=crop_flip"} if own else {"augment": "crop_flip"}
    with pytest.raises(InputError, match="augment=crop_flip does not go with adapt=frozen, which computes"):
        study(f"hf:{write_vit(tmp_path / 'vit')}", **more).federation()
    assert not Path("cache").exists()


def test_how_features_are_normalised_is_checked_before_they_are_computed(tmp_path: Path, caplog: Any) -> None:
    with pytest.raises(InputError, match="normalise=symmetric is for images, and features are numbers"):
        study(f"hf:{write_vit(tmp_path / 'vit')}", normalise="symmetric").federation()
    assert "computing" not in caplog.text


@pytest.mark.parametrize("shape", [(60, 4), (60, 3, 16, 16), (60, 5, 6)])
def test_samples_that_a_backbone_does_not_take_are_said_before_anything_is_computed(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    folder = write_bert(tmp_path / "m") if len(shape) == 4 else write_vit(tmp_path / "m")
    x = np.random.default_rng(0).integers(0, 9, shape).astype(np.uint8 if len(shape) == 4 else np.float32)
    with pytest.raises(InputError, match=r"takes (images|texts), and these samples are"):
        study(f"hf:{folder}", x).federation()


def test_describe_shows_samples_and_computes_no_features(tmp_path: Path, caplog: Any) -> None:
    one = study(f"hf:{write_vit(tmp_path / 'vit')}")
    assert one.describe() is not None
    assert one.samples().x_R.dtype == torch.uint8
    assert "computing" not in caplog.text


def reviews(rows: int = 48) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    words = {"good": ["good", "very", "film", "the", "was"], "bad": ["bad", "not", "dog", "the", "was"]}
    label = np.array(["good", "bad"])[np.arange(rows) % 2]
    text = [" ".join(rng.choice(words[name], rng.integers(1, 30))) for name in label]
    return pd.DataFrame({"text": text, "label": label, "who": np.array(["a", "b", "c"])[np.arange(rows) * 3 // rows]})


def of_texts(folder: Path, texts: Any) -> Any:
    """Mean-pooled features by the library alone: its tokenizer, which cuts, and its network, one text at a time."""
    tokenizer, network = hf.AutoTokenizer.from_pretrained(folder), hf.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return np.array(
            [
                network(**tokenizer(t, truncation=True, max_length=24, return_tensors="pt"))
                .last_hidden_state[0]
                .mean(0)
                for t in texts
            ]
        )


def test_texts_of_a_file_are_divided_by_the_backbones_own_tokenizer(tmp_path: Path, caplog: Any) -> None:
    folder, frame = write_bert(tmp_path / "bert"), reviews()
    frame.to_csv("reviews.csv", index=False)
    one = idl.Study(data="reviews.csv", text="text", client_column="who", model=f"hf:{folder}", rounds=1)
    federation = one.federation()
    assert "have more than 24 tokens and are cut (the longest has 30)\n" in caplog.text
    own = [sorted(frame["text"][frame["who"] == who]) for who in ("a", "b", "c")]
    for k, texts in enumerate(own):
        rows = torch.cat([federation.train[k], federation.test[k]])
        ours, theirs = federation.x_R[rows].numpy(), of_texts(folder, texts)
        order = [np.lexsort(a.round(3).T) for a in (ours, theirs)]
        np.testing.assert_allclose(ours[order[0]], theirs[order[1]], atol=2e-3)
    assert one.samples().tokens.encoder.decode(one.samples().x_R[0]) in set(frame["text"]) | {
        " ".join(text.split()[:22]) for text in frame["text"]
    }
    shown = one.describe()._repr_html_()
    assert "Tokens per text" in shown
    assert f"a text of up to 24 tokens of hf:{folder}" in shown.replace("<wbr>", "")


def test_texts_given_in_python_name_the_tokenizer(tmp_path: Path) -> None:
    folder, frame = write_bert(tmp_path / "bert"), reviews()
    source = data.from_arrays(list(frame["text"]), frame["label"], clients=frame["who"], tokens=f"hf:{folder}")
    result = idl.run(idl.Study(data=source, model=f"hf:{folder},body=mlp:4", rounds=1), out="r", engine="sequential")
    assert len(result.accuracy()) == 2
    other = data.from_arrays(list(frame["text"]), frame["label"], clients=frame["who"])
    with pytest.raises(InputError, match=r"these samples are ids of words, and hf:.* divides texts itself: read them"):
        idl.Study(data=other, model=f"hf:{folder}").federation()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tokens": "words"}, "has a tokenizer of its own: leave tokens out"),
        ({"max_tokens": 25}, "max_tokens=25 is more than hf:.* takes: give at most 24"),
        ({"text": None}, "takes texts, and these samples are numbers"),
        ({"model": "hf:{vit}"}, "the tokenizer of model hf:.*vit cannot be read from the folder"),
        ({"model": "timm:resnet18"}, "takes images, and a text needs a tokenizer: name a backbone for texts"),
    ],
)
def test_texts_that_a_backbone_cannot_take(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    folder, vit = write_bert(tmp_path / "bert"), write_vit(tmp_path / "vit")
    table = reviews()
    table.assign(age=np.arange(len(table)) / 7).to_csv("reviews.csv", index=False)
    settings = {"data": "reviews.csv", "text": "text", "client_column": "who", "model": f"hf:{folder}"} | more
    settings["model"] = settings["model"].format(vit=vit)
    with pytest.raises(InputError, match=said):
        idl.Study(**settings).federation()


def numbers(result: idl.Result) -> pd.DataFrame:
    table = records(result)
    return table[table["metric"].isin(["accuracy", "loss", "train_loss"])].reset_index(drop=True)


TRAINED = ["lora(r=2,dropout=0.2)", "lora(r=3,targets=fc1)", "full"]


@pytest.mark.thorough(but=["lora(r=2*"])
@pytest.mark.parametrize("adapt", TRAINED)
def test_a_backbone_that_trains_gives_the_same_numbers_on_every_engine(tmp_path: Path, adapt: str) -> None:
    one = study(f"hf:{write_vit(tmp_path / 'vit')},adapt={adapt}", methods="fedavg,fedper,pfedfda", lr=0.05)
    want = idl.run(one, out="s", engine="sequential")
    assert len(set(numbers(want)["value"])) > 9
    pd.testing.assert_frame_equal(records(want), records(idl.run(one, out="p", engine="processes", workers=2)))
    mapped = idl.run(one, out="v", engine="vectorised:device=cpu")
    pd.testing.assert_frame_equal(numbers(want), numbers(mapped), rtol=2e-3, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("adapt", ["lora(r=2,dropout=0.2)", "full"])
def test_a_backbone_for_texts_trains_and_is_not_mapped(tmp_path: Path, adapt: str) -> None:
    folder, frame = write_bert(tmp_path / "bert", hidden_dropout_prob=0.3), reviews()
    source = data.from_frame(frame, text="text", client_column="who", tokens=f"hf:{folder}")
    one = idl.Study(data=source, model=f"hf:{folder},adapt={adapt}", methods="fedavg,fedrep", rounds=1, local_epochs=1)
    want = idl.run(one, out="s", engine="sequential")
    pd.testing.assert_frame_equal(records(want), records(idl.run(one, out="p", engine="processes", workers=2)))
    with pytest.raises(idl.IdiolectError, match="a pretrained backbone for texts cannot be computed for several"):
        idl.run(one, out="v", engine="vectorised:device=cpu")


def test_adapters_alone_travel(tmp_path: Path) -> None:
    """What is sent each way is the adapters' numbers, by hand: two layers, two adapted parts of 16 x 2 + 2 x 16."""
    one = study(f"hf:{write_vit(tmp_path / 'vit')},adapt=lora(r=2)", methods="fedavg", rounds=1)
    result = idl.run(one, out="r", engine="sequential")
    table = pd.read_parquet(result.folder / "records.parquet")
    up = table[table["metric"] == "bytes_up"]["value"]
    assert set(up) == {4 * (2 * 2 * (16 * 2 + 2 * 16) + 16 * 3 + 3) + 4}
    assert json.loads((result.folder / "manifest.json").read_text())["frozen"]


BAD_ADAPTERS = [
    ("lora(targets=nothing)", r"it has no layer nothing to adapt: name some of .*q_proj"),
    ("lora(targets=q_proj+key)", r"it has no layer key to adapt"),
    ("lora(r=0)", r"adapt=lora: r=0 is not valid"),
    ("lora(dropout=1)", r"adapt=lora: dropout=1 is not valid"),
    ("lora(rank=4)", r"adapt=lora has no option 'rank'"),
    ("full(r=2)", r"adapt=full\(r=2\) is not valid"),
    ("lorra", r"adapt=lorra is not valid; did you mean"),
]


@pytest.mark.parametrize(("adapt", "said"), BAD_ADAPTERS, ids=[adapt for adapt, _ in BAD_ADAPTERS])
def test_adapters_that_cannot_be_are_said_in_one_sentence(tmp_path: Path, adapt: str, said: str) -> None:
    model = f"hf:{write_vit(tmp_path / 'vit')},adapt={adapt}"
    with pytest.raises(InputError, match=said):
        study(model).federation() and study(model).jobs(study(model).federation())


@pytest.mark.parametrize(
    ("body", "methods", "said"),
    [
        ("identity", "local,fedavg,fedper,lg_fedavg", ["Local, FedPer; FedAvg, LG-FedAvg"]),
        ("identity", "local,fedavg,pfedfda", []),
        ("linear:4", "local,fedavg,fedper,lg_fedavg", []),
        ("identity", "fedproto,pfedfda,local", ["FedProto, Local"]),
    ],
)
def test_methods_that_do_the_same_are_named_below_the_table(
    tmp_path: Path, body: str, methods: str, said: list[str]
) -> None:
    from idiolect.report import notes
    from idiolect.runs import reader

    one = study(f"hf:{write_vit(tmp_path / 'vit')},body={body}", methods=methods, seeds=(0, 1))
    run = reader.read(idl.run(one, out="r", engine="sequential").folder)
    same = [note for note in notes(run) if note.startswith("The same numbers")]
    assert same == [f"The same numbers for every client, because no body is learnt: {names}." for names in said]
