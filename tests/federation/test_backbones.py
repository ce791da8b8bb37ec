"""Adapters of a pretrained backbone between sites: the backbone is at each of them, and is never sent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from raw_samples import photos, reviews
from safetensors.torch import load_file
from sites import Loop, study, workers

from idiolect.core.errors import InputError
from idiolect.deploy.bundle import log_probabilities
from idiolect.deploy.samples import stream
from idiolect.deploy.watch import watch
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.messages import pack
from idiolect.federation.server.conduct import conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.site.state_folder import site_model
from rehearsal import rehearsed

hf: Any = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_backbones import write_bert, write_vit  # noqa: E402

SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]


def site_files(path: Path) -> SiteFiles:
    return SiteFiles(path, target="label" if path.suffix else None)


@pytest.mark.thorough(but=["write_bert*"])
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


@pytest.mark.thorough(but=["write_vit*"])
@pytest.mark.parametrize(
    ("write", "samples", "more"), [(write_vit, photos, {}), (write_bert, reviews, {"text": "say"})]
)
def test_a_sites_adapters_are_watched_and_bundled(
    tmp_path: Path, write: Any, samples: Any, more: dict[str, str]
) -> None:
    backbone, files = write(tmp_path / "backbone"), samples(tmp_path, rows=110)
    study(tmp_path, "fedper", rounds=1, model=f"'hf:{backbone},adapt=lora(r=2)'", **more)
    link = Loop(workers(tmp_path / "states", files))
    whole = study_for(tmp_path / "study.yaml", "trial")
    conduct(whole, link, list(link.workers), tmp_path / "run", Events(quiet=True))
    model = site_model(tmp_path / "states" / "north")
    [(x_R, _)] = stream(files["south"], model.about.inputs)
    watched = watch(model, x_R)
    assert (watched.new, watched.own) == (110, 22)
    written = model.to_bundle(tmp_path / "written")
    logp = [log_probabilities(one.model(), one.predicting, x_R[:9]) for one in (model, written)]
    torch.testing.assert_close(*logp, atol=0, rtol=0)
    write(backbone, seed=1)
    with pytest.raises(InputError, match="its weights or its preprocessing are not those with which this study began"):
        site_model(tmp_path / "states" / "north")
