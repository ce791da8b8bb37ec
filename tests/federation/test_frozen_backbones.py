"""A frozen backbone at each site: features are computed there once, kept there, and never sent."""

from __future__ import annotations

import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from raw_samples import photos, reviews
from safetensors.torch import load_file
from sites import Away, Loop, masked, study, worker, workers

from idiolect.core.errors import InputError, RunError
from idiolect.data.feature_cache import digests
from idiolect.deploy.bundle import Bundle, log_probabilities
from idiolect.deploy.export import export
from idiolect.deploy.join import join
from idiolect.deploy.samples import read, stream
from idiolect.deploy.watch import watch
from idiolect.federation.data.agreement import Agreement
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.messages import pack
from idiolect.federation.preview import preview
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct, result
from idiolect.federation.server.study import study_for
from idiolect.federation.site import comparison
from idiolect.federation.site.personal_state import Vault
from idiolect.federation.site.state_folder import site_model
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision
from idiolect.federation.trust.policy import Policy
from idiolect.models import pretrained
from rehearsal import rehearsed

hf: Any = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_backbones import write_bert, write_resnet, write_vit  # noqa: E402

SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]
THREE = ("north", "south", "east")
IMAGES, TEXTS = (write_vit, photos, {}), (write_bert, reviews, {"text": "say"})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples went through a backbone, call by call."""
    counts: list[int] = []
    make = pretrained.FrozenBackbone.__call__

    def counting(self: Any, x_B: torch.Tensor) -> torch.Tensor:
        counts.append(len(x_B))
        return make(self, x_B)

    monkeypatch.setattr(pretrained.FrozenBackbone, "__call__", counting)
    return counts


def site_files(path: Path) -> SiteFiles:
    return SiteFiles(path, target="label" if path.suffix else None)


def same(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    both = found.merge(wanted, on=SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-5


def train(
    tmp_path: Path, files: dict[str, Path], backbone: Path, body: str = "identity", methods: str = "fedavg, fedper",
    rounds: int = 1, link: Loop | None = None, **more: Any,
) -> tuple[Any, Loop]:  # fmt: skip
    study(tmp_path, methods, rounds=rounds, model=f"'hf:{backbone},body={body}'", **more)
    whole = study_for(tmp_path / "study.yaml", "trial")
    link = link or Loop(workers(tmp_path / "states", files))
    return conduct(whole, link, list(link.workers), tmp_path / "run", Events(quiet=True)), link


@pytest.mark.thorough(but=["texts", "images of a convolution"])
@pytest.mark.parametrize(
    ("kind", "body", "normalise"),
    [
        (IMAGES, "identity", "training"), (IMAGES, "linear:5", "none"), (TEXTS, "identity", "reference"),
        (TEXTS, "mlp:4", "training"), ((write_resnet, photos, {}), "mlp:3", "training"),
    ],
    ids=["images", "images linear", "texts", "texts mlp", "images of a convolution"],
)  # fmt: skip
def test_the_numbers_are_those_of_a_simulation_and_nothing_of_the_backbone_is_sent(
    tmp_path: Path, kind: Any, body: str, normalise: str, home: Path
) -> None:
    write, samples, more = kind
    backbone, files = write(tmp_path / "backbone"), samples(tmp_path)
    found, link = train(
        tmp_path, files, backbone, body, "fedavg, fedper, pfedfda", 2, normalise=normalise,
        protocol="{validation: 0.2}", **more,
    )  # fmt: skip
    whole = study_for(tmp_path / "study.yaml", "trial")
    sites = {name: site_files(f) for name, f in files.items()}
    same(found.records, rehearsed(whole, sites, tmp_path / "simulated").records)
    sent = b"".join(pack(*message) for _, message in [*link.sent, *link.received])
    weights = load_file(backbone / "model.safetensors").values()
    assert not any(weight.numpy().tobytes() in sent for weight in weights if weight.numel() > 99)
    [one] = link.workers["north"]._participations.values()
    assert not any(z_d.numpy().tobytes() in sent for z_d in one.samples.x_N)
    assert not any(x.numpy().tobytes() in sent for x in one.samples.own_N)
    assert not (home / "idiolect" / "features").exists(), "a site keeps features in its state folder alone"


def test_mean_and_deviation_are_those_of_all_training_samples_features(tmp_path: Path) -> None:
    """By numpy, from features that the library alone computes of one text at a time."""
    folder, files = write_bert(tmp_path / "bert"), reviews(tmp_path)
    _, link = train(tmp_path, files, folder, text="say")
    tokenizer, network = hf.AutoTokenizer.from_pretrained(folder), hf.BertModel.from_pretrained(folder).eval()
    z = []
    for name in files:
        [one] = link.workers[name]._participations.values()
        for text in pd.read_csv(files[name])["say"].iloc[one.samples.train_N.numpy()]:
            with torch.no_grad():
                z.append(network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy())
    about = next(m.about for _, m in link.sent if m.about["kind"] == "begin")
    agreement = Agreement.model_validate(about["agreement"])
    assert agreement.backbone is not None
    assert agreement.features is not None
    assert (agreement.backbone.name, agreement.width) == (f"hf:{folder}", 16)
    np.testing.assert_allclose(agreement.features.mean, np.mean(z, 0), atol=2e-4)
    np.testing.assert_allclose(agreement.features.std, np.std(z, 0), atol=2e-4)


@pytest.mark.thorough(but=["images"])
@pytest.mark.parametrize("kind", [IMAGES, TEXTS], ids=["images", "texts"])
def test_under_masks_too(tmp_path: Path, kind: Any) -> None:
    write, samples, more = kind
    files = samples(tmp_path, THREE)
    study(tmp_path, "fedavg, pfedfda", rounds=2, model=f"'hf:{write(tmp_path / 'b')}'", secure_aggregation=True, **more)
    whole = study_for(tmp_path / "study.yaml", "trial")
    found = masked(tmp_path, whole, files).records
    same(found, rehearsed(whole, {name: site_files(file) for name, file in files.items()}, tmp_path / "s").records)


def test_features_are_computed_once_and_kept_for_this_user_alone(tmp_path: Path, computed: list[int]) -> None:
    backbone, files = write_vit(tmp_path / "vit"), photos(tmp_path)
    train(tmp_path, files, backbone, rounds=2, seeds="[0, 1]")
    assert sum(computed) == 36  # eighteen at each of two sites
    for name in files:
        folder = tmp_path / "states" / name / "features"
        [file] = folder.iterdir()
        assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, file)] == [0o700, 0o600]
    shutil.rmtree(tmp_path / "run")
    train(tmp_path, files, backbone, "mlp:4")  # another study, and new processes
    assert sum(computed) == 36


@pytest.mark.parametrize("damage", ["a bit", "half of it", "nothing left", "of another site"])
def test_features_that_were_changed_are_computed_again(
    tmp_path: Path, damage: str, computed: list[int], caplog: Any
) -> None:
    backbone, files = write_vit(tmp_path / "vit"), photos(tmp_path)
    wanted, _ = train(tmp_path, files, backbone)
    [file] = (tmp_path / "states" / "north" / "features").iterdir()
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    other = next((tmp_path / "states" / "south" / "features").iterdir()).read_bytes()
    half = content[: len(content) // 2]
    file.write_bytes({"a bit": content, "half of it": half, "nothing left": b"", "of another site": other}[damage])
    shutil.rmtree(tmp_path / "run")
    again, _ = train(tmp_path, files, backbone)
    same(again.records, wanted.records)
    assert sum(computed) == 36 + 18
    assert caplog.text.count("is damaged: its features are computed again") == 1


def test_where_the_state_is_encrypted_the_features_are_too(tmp_path: Path, computed: list[int]) -> None:
    backbone, files = write_vit(tmp_path / "vit"), photos(tmp_path)
    folder, key = tmp_path / "states" / "north", tmp_path / "north.key"
    folder.mkdir(parents=True, mode=0o700)
    north = worker(tmp_path / "states", "north", 0, files["north"], vault=Vault.of(folder, key))
    link = Loop({"north": north, "south": worker(tmp_path / "states", "south", 1, files["south"])})
    train(tmp_path, files, backbone, link=link)
    [one] = link.workers["north"]._participations.values()
    content = {n: next((tmp_path / "states" / n / "features").iterdir()).read_bytes() for n in files}
    assert not any(z_d.numpy().tobytes() in content["north"] for z_d in one.samples.x_N)
    assert any(z_d.numpy().tobytes() in content["south"]
               for z_d in next(iter(link.workers["south"]._participations.values())).samples.x_N)  # fmt: skip
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(RunError, match=r"north: it says: .*\.features is encrypted: give state_key"):
        train(tmp_path, files, backbone)
    assert next((folder / "features").iterdir()).read_bytes() == content["north"]
    assert sum(computed) == 36


def test_a_disk_without_room_is_said_at_both_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int], caplog: Any
) -> None:
    backbone, files = write_vit(tmp_path / "vit"), photos(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(RunError, match=r"north: it says: the features take 0 MB and .*states/north/features has room "
                                       r"for 0 MB: make room, or set IDIOLECT_FEATURES=0"):  # fmt: skip
        train(tmp_path, files, backbone)
    assert not computed
    monkeypatch.setenv("IDIOLECT_FEATURES", "0")
    train(tmp_path, files, backbone)
    assert sum(computed) == 36, "those in memory serve all rounds"
    assert not [*(tmp_path / "states").glob("*/features/*")]


@pytest.mark.parametrize("change", ["weights", "preprocessing", "gone"])
@pytest.mark.parametrize("adapt", ["frozen", "lora(r=2)"])
def test_another_backbone_at_a_site_is_one_sentence_before_anything_is_computed(
    tmp_path: Path, change: str, adapt: str, monkeypatch: pytest.MonkeyPatch, computed: list[int]
) -> None:
    """The server's backbone is read first; then the folder is changed, as if the sites had another one."""
    backbone, files = write_vit(tmp_path / "vit"), photos(tmp_path)
    study(tmp_path, model=f"'hf:{backbone},adapt={adapt}'")
    link = Loop(workers(tmp_path / "states", files))
    send = link.send

    def changing(site: str, content: bytes) -> str:
        if change == "gone":
            shutil.rmtree(backbone, ignore_errors=True)
        elif change == "weights":
            write_vit(backbone, seed=1)
        else:
            config = (backbone / "preprocessor_config.json").read_text()
            (backbone / "preprocessor_config.json").write_text(config.replace("0.4", "0.5"))
        return send(site, content)

    monkeypatch.setattr(link, "send", changing)
    said = "there is no folder" if change == "gone" else "its weights or its preprocessing are not those with which"
    with pytest.raises(RunError, match=rf"north: it says: .*{said}"):
        conduct(study_for(tmp_path / "study.yaml", "trial"), link, ["north", "south"], tmp_path / "run",
                Events(quiet=True))  # fmt: skip
    assert not computed
    assert not (tmp_path / "run").exists()


def test_a_server_and_a_site_notice_another_backbone_when_they_start_again(tmp_path: Path) -> None:
    backbone, files = write_vit(tmp_path / "vit"), photos(tmp_path)
    train(tmp_path, files, backbone, rounds=2)
    again = Loop(workers(tmp_path / "states", files))
    write_vit(backbone, seed=1)
    whole = study_for(tmp_path / "study.yaml", "trial")
    with pytest.raises(InputError, match=r"its weights or its preprocessing are not those with which this study began"):
        conduct(whole, again, list(again.workers), tmp_path / "run", Events(quiet=True))
    with pytest.raises(InputError, match=r"are not those with which this study began \(SHA-256 \w{8}, here \w{8}\)"):
        result(tmp_path / "run").bundle("fedavg", tmp_path / "b")
    with pytest.raises(InputError, match=r"are not those with which this study began"):
        site_model(tmp_path / "states" / "north", method="fedper")


def test_a_site_that_comes_late_makes_its_features_then(tmp_path: Path, computed: list[int]) -> None:
    names = ("north", "south", "coast")
    backbone, files = write_bert(tmp_path / "bert"), reviews(tmp_path, names)
    study(tmp_path, rounds=3, model=f"'hf:{backbone}'", text="say")
    link = Away(workers(tmp_path / "states", files), back=2)
    terms = Terms(Patience(least=2), start=2)
    whole = study_for(tmp_path / "study.yaml", "trial")
    found = conduct(whole, link, list(names), tmp_path / "run", Events(quiet=True), terms=terms)
    assert found.records.query("client == 2 and metric == 'accuracy'")["round"].tolist() == [2, 3]
    [one] = link.workers["coast"]._participations.values()
    assert one.samples.x_N.shape == (18, 16)
    assert len(computed) == 3


@pytest.mark.thorough(but=["texts"])
@pytest.mark.parametrize("kind", [IMAGES, TEXTS], ids=["images", "texts"])
def test_what_was_trained_predicts_raw_samples(tmp_path: Path, kind: Any, computed: list[int]) -> None:
    write, samples, more = kind
    files = samples(tmp_path, rows=140)
    found, link = train(tmp_path, files, write(tmp_path / "b"), "mlp:4", "fedper, pfedfda", 2, **more)
    [one] = link.workers["south"]._participations.values()
    for method in ("fedper", "pfedfda"):
        model = site_model(tmp_path / "states" / "south", method=method)
        x_N, y_N = (a[one.samples.test_N] for a in (one.samples.own_N, one.samples.y_N))
        logp = log_probabilities(model.model(), model.predicting, x_N).double()
        wanted = found.records.query(
            f"client == 1 and round == 2 and method == '{method}' and stage == 'personalised' and metric == 'loss'"
        )["value"].item()
        assert float(torch.nn.functional.nll_loss(logp, y_N)) == pytest.approx(wanted, abs=2e-4)
    [(x_R, _)] = stream(files["north"], model.about.inputs)
    assert len(x_R) == 140
    watched = watch(model, x_R)
    assert watched.new == 140
    written = model.to_bundle(tmp_path / "written")
    torch.testing.assert_close(log_probabilities(written.model(), written.predicting, x_N), logp.float())
    assert export(written, tmp_path / "model.onnx").difference < 1e-4
    before = sum(computed)
    best = comparison.join(model, site_files(files["south"]), tmp_path / "best")
    assert sum(computed) == before, "the features in the state folder are used"
    assert watch(Bundle.read(tmp_path / "best"), x_R).new == 140
    assert best.about.inputs == model.about.inputs
    with pytest.raises(InputError, match="is not the data with which south took part"):
        comparison.join(model, site_files(files["north"]), tmp_path / "other")
    whole = result(tmp_path / "run").bundle("pfedfda", tmp_path / "new")
    before = sum(computed)
    newcomer = read(files["north"], whole.about.inputs, whole.about.classes, "label")
    join(whole, newcomer, tmp_path / "joined")
    assert sum(computed) - before == len({*digests(newcomer.x_N)}), "each sample once"


def test_a_dry_run_shows_the_sums_of_features_and_keeps_them(tmp_path: Path, computed: list[int]) -> None:
    provision(kits.Description(name="trial", server="127.0.0.1:9092", sites=THREE), tmp_path / "kits")
    kit = kits.site_kit(tmp_path / "kits" / "site-north")
    backbone, files = write_vit(tmp_path / "vit"), photos(tmp_path)
    study(tmp_path, "fedavg", model=f"'hf:{backbone},body=mlp:4'")
    state = tmp_path / "states" / "north"
    with pytest.raises(InputError, match="the policy does not allow"):
        [*preview(kit, SiteFiles(files["north"]), Policy(methods=("fedper",)), tmp_path / "study.yaml", state)]
    assert not computed
    lines = [*preview(kit, SiteFiles(files["north"]), Policy(), tmp_path / "study.yaml", state)]
    assert any(line.split()[:4] == ["sums/sum_F", "float64", "(16,)", "128"] for line in lines)
    assert any("value/body/body.0.weight" in line for line in lines)
    assert sum(computed) == 18
    train(tmp_path, files, backbone, "mlp:4")
    assert sum(computed) == 36, "the state folder had those of north"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"augment": "crop_flip"}, "augment=crop_flip does not go with adapt=frozen"),
        ({"normalise": "symmetric"}, "normalise=symmetric is for images, and features are numbers"),
        ({"model": "'hf:/nowhere/at/all'"}, "there is no folder /nowhere/at/all"),
        ({"precision": "bf16"}, "precision bf16 is for a simulation"),
    ],
)
def test_settings_that_do_not_go_with_features_are_said_before_a_site_is_asked(
    tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    study(tmp_path, **{"model": f"'hf:{write_vit(tmp_path / 'vit')}'"} | settings)
    link = Loop(workers(tmp_path / "states", photos(tmp_path)))
    with pytest.raises(InputError, match=said):
        conduct(study_for(tmp_path / "study.yaml", "trial"), link, list(link.workers), tmp_path / "run",
                Events(quiet=True))  # fmt: skip
    assert not link.sent


@pytest.mark.parametrize(
    ("write", "samples", "more", "said"),
    [
        (write_bert, photos, {}, "takes texts, and these samples are images"),
        (write_vit, reviews, {}, "takes images, and these samples are numbers"),
        (write_bert, reviews, {}, "takes texts, and these samples are numbers"),
    ],
)
def test_samples_that_a_backbone_does_not_take_are_said_at_both_ends(
    tmp_path: Path, write: Any, samples: Any, more: dict[str, str], said: str, computed: list[int]
) -> None:
    with pytest.raises(InputError, match=said):
        train(tmp_path, samples(tmp_path), write(tmp_path / "b"), **more)
    assert not computed
