"""Texts at the sites of a federation: nobody agrees on words, and the numbers are those of a simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sites import Loop, masked, study, workers

from idiolect.core.errors import InputError
from idiolect.data.custom.texts import Reading
from idiolect.federation.data.agreement import Agreement, agree, common_form, plain, unknown_texts
from idiolect.federation.data.samples import SiteFiles, sums
from idiolect.federation.events import Events
from idiolect.federation.messages import pack
from idiolect.federation.server.conduct import conduct
from idiolect.federation.server.study import study_for
from rehearsal import rehearsed

SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]
WORDS = {"good": ["great", "lovely", "fine"], "bad": ["awful", "poor", "broken"]}


def reviews(folder: Path, names: tuple[str, ...] = ("north", "south", "east"), rows: int = 30) -> dict[str, Path]:
    files = {}
    for k, name in enumerate(names):
        rng = np.random.default_rng(k)
        labels = rng.choice(["good", "bad"], rows, p=[0.3 + 0.1 * k, 0.7 - 0.1 * k])
        texts = [" ".join(rng.choice([*WORDS[y], "NA", "7", name], rng.integers(1, 9 + 3 * k))) for y in labels]
        frame = pd.DataFrame({"say": texts, "stars": rng.integers(1, 6, rows), "label": labels})
        files[name] = folder / f"{name}.csv"
        frame.to_csv(files[name], index=False)
    return files


def read(path: Path) -> SiteFiles:
    return SiteFiles(path, target="label")


def same(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    both = found.merge(wanted, on=SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-6


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "'embedding_mean:width=2'"},
        {"tokens": "bytes", "model": "'text_cnn:width=4,maps=3'"},
        {"tokens": "characters", "max_tokens": 7, "model": "'char_lstm:hidden=4,layers=1'"},
    ],
    ids=["words", "bytes", "characters"],
)
def test_the_numbers_are_those_of_a_simulation(settings: dict[str, Any], tmp_path: Path) -> None:
    files = reviews(tmp_path)
    study(tmp_path, "fedavg, fedper", rounds=2, text="say", **settings)
    whole = study_for(tmp_path / "study.yaml", "trial")
    link = Loop(workers(tmp_path / "states", files))
    found = conduct(whole, link, list(link.workers), tmp_path / "run", Events(quiet=True)).records
    same(found, rehearsed(whole, {name: read(file) for name, file in files.items()}, tmp_path / "simulated").records)
    sent = b"".join(pack(*message) for _, message in [*link.sent, *link.received])
    for word in ("great", "awful", "lovely"):
        assert word.encode() not in sent, "no word leaves a site"


def test_under_masks_too(tmp_path: Path) -> None:
    names = ("north", "south", "east")
    files = reviews(tmp_path, names)
    study(tmp_path, "fedavg", rounds=2, text="say", model="'embedding_mean:width=2'", secure_aggregation=True)
    whole = study_for(tmp_path / "study.yaml", "trial")
    found = masked(tmp_path, whole, files).records
    same(found, rehearsed(whole, {name: read(file) for name, file in files.items()}, tmp_path / "simulated").records)


def test_what_a_site_says_of_texts(tmp_path: Path) -> None:
    offer = read(reviews(tmp_path)["east"]).offer(None, Reading("say", None, 40))
    assert plain(offer) == {
        "kind": "texts", "shape": (40,), "columns": [], "scales": (), "channels": (), "classes": ("bad", "good"),
        "tokens": {"columns": ("say",), "encoder": "words", "most": 40}, "targets": (), "target_scales": (),
        "labels": False, "bits": None,
    }  # fmt: skip
    json.dumps(plain(offer))


def test_a_text_that_looks_like_a_gap_or_a_number_is_a_text(tmp_path: Path) -> None:
    texts = ["NA", "7", "null", "3.5", "x", "n/a"]
    pd.DataFrame({"say": texts, "label": ["a", "b"] * 3}).to_csv(tmp_path / "t.csv", index=False)
    site = read(tmp_path / "t.csv")
    inputs, classes = common_form({"one": site.offer(None, Reading("say", "bytes", 5))})
    samples = site.encode(inputs, classes, 0, 0, look=False)
    expected = [[*(b + 1 for b in text.encode()), *[0] * 5][:5] for text in texts]
    assert samples.x_N.tolist() == expected
    assert samples.x_N.dtype == torch.int16


def test_what_is_agreed_has_no_mean_and_survives_its_file(tmp_path: Path) -> None:
    files = reviews(tmp_path)
    sites = {name: read(path) for name, path in files.items()}
    inputs, classes = common_form({name: site.offer(None, Reading("say")) for name, site in sites.items()})
    every = {name: site.encode(inputs, classes, 0, k, look=False) for k, (name, site) in enumerate(sites.items())}
    agreement = agree(inputs, classes, {name: sums(one, 2) for name, one in every.items()}, "training")
    again = Agreement.model_validate_json(agreement.model_dump_json())
    assert again == agreement
    assert (again.inputs.mean, again.inputs.ids, again.inputs.shape) == ((), 16385, (256,))
    federation = again.federation("trial")
    assert federation.tokens.encoder.name == "words"
    assert (federation.x_R.shape, federation.x_R.dtype) == ((0, 256), torch.int16)
    assert unknown_texts(again, "late", sites["north"].offer(None, Reading("say"))) == []
    with pytest.raises(InputError, match=r"all sites need samples of one kind"):
        unknown_texts(again, "late", sites["north"].offer())


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (Reading("say", None, 3), "2 of 3 texts have more than 3 words and are cut (the longest has 8)"),
        (Reading("say", "bytes", 11), "2 of 3 texts have more than 11 bytes and are cut (the longest has 24)"),
        (
            Reading("say", "characters", 20),
            "1 of 3 texts have more than 20 characters and are cut (the longest has 24)",
        ),
        (Reading("say", None, 8), None),
    ],
)
def test_a_site_hears_how_many_of_its_texts_are_cut(
    reading: Reading, said: str | None, tmp_path: Path, caplog: Any
) -> None:
    """How many tokens are used is the study's, so a site is given no advice."""
    texts = ["great", "so so so so it", "not so good it said, no."]  # 1, 5 and 8 words; 5, 14 and 24 letters
    pd.DataFrame({"say": texts, "label": ["a", "b", "b"]}).to_csv(tmp_path / "t.csv", index=False)
    read(tmp_path / "t.csv").offer(None, reading)
    assert [r.getMessage() for r in caplog.records] == ([] if said is None else [f"{tmp_path / 't.csv'}: {said}"])


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        (Reading("says"), "text: .* has no column 'says'; did you mean 'say'"),
        (Reading("stars"), "column 'stars' of .* has numbers and not texts"),
        (Reading("label"), "text: .* has the target in label"),
        (Reading(None, "bytes"), "tokens is for texts"),
        (Reading("say", None, 0), "max_tokens=0 is not possible"),
    ],
)
def test_a_site_that_cannot_follow_says_why(reading: Reading, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(reviews(tmp_path)["north"]).offer(None, reading)


def test_a_site_with_images_says_why(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "images" / name / "1.png")
    with pytest.raises(InputError, match=r"text: .* has no column 'say'"):
        SiteFiles(tmp_path / "images").offer(None, Reading("say"))


def test_names_for_columns_are_for_a_simulation(tmp_path: Path) -> None:
    study(tmp_path, columns="a+b", text="a")
    with pytest.raises(InputError, match="columns is for a simulation"):
        study_for(tmp_path / "study.yaml", "trial")
