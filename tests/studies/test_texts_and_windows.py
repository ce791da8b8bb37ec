"""Studies on texts, ids and windows: engines, networks, settings, and what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

import idiolect as idl
from idiolect import models
from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.core.inputs import Input
from idiolect.data import from_arrays
from idiolect.engines.serialization import pack

TOPICS = [["red", "apple", "tree", "sun"], ["blue", "sea", "fish", "salt"], ["cat", "dog", "paw", "tail"]]


def texts(rows=120, seed=0):
    rng = np.random.default_rng(seed)
    labels = [k % 3 for k in range(rows)]
    words = [" ".join(rng.choice([*TOPICS[y], "the", "a", str(k)], rng.integers(2, 15))) for k, y in enumerate(labels)]
    return words, labels, [f"site {k % 4}" for k in range(rows)]


def windows(rows=120, channels=3, time=40, seed=0):
    rng = np.random.default_rng(seed)
    y_R = np.arange(rows) % 3
    wave = np.sin(np.arange(time)[None, None] * (y_R[:, None, None] + 1) / 3)
    return (wave + 0.3 * rng.normal(size=(rows, channels, time))).astype(np.float32), y_R, np.arange(rows) % 4


def study(source, model="auto", methods=("fedavg",), **more):
    settings = {"rounds": 2, "local_epochs": 1, "optimiser": "adam", "lr": 0.01, "batch_size": 10, "seeds": (0,)}
    return idl.Study(data=source, model=model, methods=list(methods), **settings | more)


@pytest.mark.parametrize(
    ("samples", "model", "method", "how"),
    [
        (texts, "embedding_mean:width=4", "pfedfda", {}),
        (texts, "text_cnn:maps=8,width=8", "fedpac", {"tokens": "bytes", "max_tokens": 40}),
        (windows, "har_cnn", "fedavg", {}),
    ],
    ids=["words", "bytes", "windows"],
)
def test_engines_agree(samples, model, method, how, tmp_path):
    x, y, clients = samples(60)
    source = from_arrays(x, y, clients=clients, **how)
    whole = study(source, model, (method,), save_predictions=True, rounds=1)
    frames = {}
    for engine in ("sequential", "processes", "vectorised"):
        idl.run(whole, tmp_path / engine, engine=engine)
        frames[engine] = pd.read_parquet(tmp_path / engine / "predictions.parquet")
    one = frames["sequential"]
    assert len(one) == sum(map(len, whole.federation().test))
    pd.testing.assert_frame_equal(one, frames["processes"], check_exact=True)
    pd.testing.assert_frame_equal(one, frames["vectorised"], check_exact=False, rtol=0, atol=1e-4)


def test_an_lstm_is_refused_by_the_vectorised_engine_in_a_sentence(tmp_path):
    words, labels, clients = texts(24)
    source = from_arrays(words, labels, clients=clients, tokens="characters", max_tokens=10)
    whole = study(source, "char_lstm:hidden=4,layers=1", rounds=1)
    with pytest.raises(InputError, match=r"model char_lstm cannot be computed for several clients together.*processes"):
        idl.run(whole, tmp_path / "v", engine="vectorised")
    idl.run(whole, tmp_path / "s", engine="sequential")


def test_words_are_learnt(tmp_path):
    words, labels, clients = texts(240)
    source = from_arrays(words, labels, clients=clients)
    result = idl.run(study(source, rounds=6, local_epochs=3, lr=0.03), tmp_path / "r", engine="sequential")
    assert float(result.accuracy().iloc[0]) > 0.9


def test_windows_are_learnt(tmp_path):
    source = from_arrays(*windows(240)[:2], clients=windows(240)[2])
    result = idl.run(study(source, rounds=3, lr=0.001, local_epochs=2), tmp_path / "r", engine="sequential")
    assert float(result.accuracy().iloc[0]) > 0.9


@pytest.mark.parametrize(
    ("form", "name"),
    [
        (Input((7,), integer=True, size=9), "embedding_mean"),
        ((3, 28), "har_cnn"),
        ((9, 128), "har_cnn"),
        ((9, 27), "mlp"),
        ((9,), "mlp"),
        ((1, 28, 28), "fmnist_cnn"),
    ],
)
def test_auto_takes_the_usual_network_for_the_samples(form, name):
    assert models.choose("auto", form) == name


@pytest.mark.parametrize("name", ["embedding_mean", "text_cnn", "char_lstm"])
@pytest.mark.parametrize(("size", "given", "rows"), [(9, "", 9), (9, ":vocabulary=20", 20), (0, ":vocabulary=5", 5)])
def test_the_vocabulary_is_that_of_the_data_or_given(name, size, given, rows):
    network = models.build(name + given, Input((7,), integer=True, size=size), 3)
    assert network.init(keys.key(0)).body["embedding.weight"].shape[0] == rows


@pytest.mark.parametrize(
    ("model", "form", "message"),
    [
        ("embedding_mean", Input((7,), integer=True), "give vocabulary, one more than the largest id"),
        ("text_cnn", (7,), "takes ids, such as those of words, and these samples are numbers"),
        ("mlp", Input((7,), integer=True, size=5), "takes numbers, and these samples are ids"),
        ("har_cnn", Input((3, 40), integer=True, size=5), "takes numbers, and these samples are ids"),
        ("har_cnn", (40,), "takes windows"),
        ("embedding_mean", Input((3, 7), integer=True, size=5), "takes rows of ids"),
    ],
)
def test_networks_that_do_not_fit_the_samples_are_refused(model, form, message):
    with pytest.raises(InputError, match=message):
        models.build(model, form, 3)


class OfIds(torch.nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.table = torch.nn.Embedding(rows, 4)

    def forward(self, id_BL):
        return self.table(id_BL).sum(1)


def a_network_of_ids(shape, classes, *, vocabulary: int):
    return OfIds(vocabulary), torch.nn.Linear(4, classes)


def a_network_of_few_ids(shape, classes, *, vocabulary: int = 3):
    return OfIds(vocabulary), torch.nn.Linear(4, classes)


def test_a_network_of_ones_own_is_told_the_vocabulary(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "nets_of_ids", sys.modules[__name__])
    for name in ("a_network_of_ids", "a_network_of_few_ids"):
        network = models.build(f"nets_of_ids.{name}", Input((7,), integer=True, size=11), 3)
        assert network.init(keys.key(0)).body["table.weight"].shape == (11, 4)
    network = models.build("nets_of_ids.a_network_of_few_ids:vocabulary=12", Input((7,), integer=True, size=11), 3)
    assert network.init(keys.key(0)).body["table.weight"].shape == (12, 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset": "digits", "text": "a"}, "text is for your own data"),
        ({"dataset": "digits", "tokens": "words"}, "tokens is for your own data"),
        ({"dataset": "digits", "max_tokens": 5}, "max_tokens is for your own data"),
        ({"dataset": "digits", "columns": "a+b"}, "columns is for your own data"),
        ({"data": "x.csv", "text": "a", "tokens": "word"}, "tokens"),
        ({"data": "x.csv", "text": "a", "max_tokens": 0}, "max_tokens"),
    ],
)
def test_settings_of_texts_that_are_wrong(settings, message):
    with pytest.raises(InputError, match=message):
        idl.Study(methods=["fedavg"], **settings)


def test_a_study_of_a_file_is_written_and_read(tmp_path):
    words, labels, clients = texts(40)
    pd.DataFrame({"say": words, "label": labels, "who": clients}).to_csv(tmp_path / "t.csv", index=False)
    whole = idl.Study(data=str(tmp_path / "t.csv"), text="say", tokens="characters", max_tokens=30, client_column="who")
    (tmp_path / "s.yaml").write_text(whole.to_yaml())
    again = idl.Study.read(tmp_path / "s.yaml")
    assert again == whole
    federation = again.federation()
    assert federation.tokens.encoder.name == "characters"
    assert federation.shape == (30,)
    assert federation.inputs == Input((30,), True, 4097)
    assert federation.x_R.dtype == torch.int16


def test_shifts_of_images_are_refused_and_those_of_labels_are_not():
    words, labels, clients = texts(40)
    source = from_arrays(words, labels, clients=clients)
    with pytest.raises(InputError, match="shift rotate:groups=4 changes images, and these samples are numbers"):
        study(source, shifts=["rotate:groups=4"]).federation()
    federation = study(source, shifts=["permute_labels:groups=2"]).federation()
    plain = study(source).federation()
    assert torch.equal(federation.x_R, plain.x_R)
    assert not torch.equal(federation.y_R, plain.y_R)


def test_augmentation_is_refused():
    words, labels, clients = texts(40)
    whole = study(from_arrays(words, labels, clients=clients), augment="crop_flip")
    with pytest.raises(InputError, match="augment=crop_flip is for images"):
        whole.task_of(whole.federation())


def test_the_words_of_texts_do_not_reach_other_processes_or_records(tmp_path):
    words, labels, clients = texts(40)
    source = from_arrays([f"zebra {w}" for w in words], labels, clients=clients)
    federation = study(source).federation()
    assert b"zebra" not in bytes(pack(dataclasses.replace(federation, file=None)))
    idl.run(study(source, rounds=1), tmp_path / "run", engine="sequential")
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or b"zebra" not in path.read_bytes(), path
