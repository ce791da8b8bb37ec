"""Adapters of a pretrained backbone between sites: the backbone is at each of them, and is never sent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from safetensors.torch import load_file
from sites import Loop, study, workers

from idiolect.core.errors import InputError
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.messages import pack
from idiolect.federation.server.conduct import conduct
from idiolect.federation.server.study import study_for
from rehearsal import rehearsed

hf: Any = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_backbones import write_bert, write_vit  # noqa: E402

SITES = ("north", "south")
SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]


def photos(folder: Path) -> dict[str, Path]:
    for k, name in enumerate(SITES):
        rng = np.random.default_rng(k)
        for i in range(18):
            place = folder / name / ("red" if i % 2 else "blue") / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 150, (16, 16, 3)) + 90 * np.eye(3, dtype=int)[0 if i % 2 else 2]
            Image.fromarray(pixels.astype(np.uint8)).save(place)
    return {name: folder / name for name in SITES}


def reviews(folder: Path) -> dict[str, Path]:
    for k, name in enumerate(SITES):
        rng = np.random.default_rng(k)
        label = np.array(["good", "bad"])[np.arange(18) % 2]
        words = {"good": ["good", "very", "film"], "bad": ["bad", "not", "dog"]}
        texts = [" ".join(rng.choice(words[y], rng.integers(1, 12))) for y in label]
        pd.DataFrame({"say": texts, "label": label}).to_csv(folder / f"{name}.csv", index=False)
    return {name: folder / f"{name}.csv" for name in SITES}


def site_files(path: Path) -> SiteFiles:
    return SiteFiles(path, target="label" if path.suffix else None)


@pytest.mark.parametrize(
    ("write", "samples", "more"), [(write_vit, photos, {}), (write_bert, reviews, {"text": "say"})]
)
def test_the_numbers_are_those_of_a_simulation_and_the_backbone_is_not_sent(
    tmp_path: Path, write: Any, samples: Any, more: dict[str, str]
) -> None:
    backbone, files = write(tmp_path / "backbone"), samples(tmp_path)
    methods = "fedavg, fedper, 'fedavg:personal=*lora_B*'"
    study(tmp_path, methods, rounds=2, model=f"'hf:{backbone},adapt=lora(r=2)'", **more)
    whole = study_for(tmp_path / "study.yaml", "trial")
    link = Loop(workers(tmp_path / "states", files))
    records = conduct(whole, link, list(link.workers), tmp_path / "run", Events(quiet=True)).records
    wanted = rehearsed(whole, {name: site_files(f) for name, f in files.items()}, tmp_path / "simulated").records
    both = records.merge(wanted, on=SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-5
    sent = b"".join(pack(*message) for _, message in [*link.sent, *link.received])
    weights = load_file(backbone / "model.safetensors").values()
    assert not any(weight.numpy().tobytes() in sent for weight in weights if weight.numel() > 99)
    paths = [" ".join(m.arrays) for _, m in [*link.sent, *link.received] if m.about["kind"] == "local"]
    both, one = (len([p for p in paths if "lora_A" in p and ("lora_B" in p) == also]) for also in (True, False))
    assert both == 2 * one > 0  # two methods send both factors, and one keeps the second at the site


def test_a_frozen_one_is_for_simulations_as_yet(tmp_path: Path) -> None:
    study(tmp_path, model="'hf:some/backbone,body=mlp:4'")
    with pytest.raises(InputError, match="with adapt=frozen is for a simulation as yet"):
        study_for(tmp_path / "study.yaml", "trial")
