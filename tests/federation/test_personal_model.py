"""What a finished federation leaves: a model at each site, and what a new client gets at the server."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from sites import NAMES, Away, Loop, study, tables, worker, workers

import idiolect as idl
from idiolect import methods
from idiolect.cli import main
from idiolect.core.errors import InputError
from idiolect.core.method import Data
from idiolect.deploy.bundle import Bundle, Personal, log_probabilities
from idiolect.deploy.export import export
from idiolect.deploy.join import join
from idiolect.deploy.predict import predict, threshold_of
from idiolect.deploy.samples import Samples, read, stream
from idiolect.deploy.watch import watch
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.messages import unpack
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct, result
from idiolect.federation.server.run import SiteRun
from idiolect.federation.server.study import study_for
from idiolect.federation.site import comparison
from idiolect.federation.site.personal_model import SiteModel
from idiolect.federation.site.personal_state import Vault
from idiolect.federation.site.state_folder import site_model
from idiolect.federation.trust.policy import Policy
from idiolect.federation.trust.private_files import key_of
from rehearsal import rehearsed

EVERY = [*sorted(methods.ours()), "fedavg:personal=head", "pfedfda:personal=*bias", "ditto:personal=head+body.?.bias"]
ROWS = 60
FEW = NAMES[:3]


class Finished(NamedTuple):
    """A federation after its end, and the simulation of the same samples."""

    folder: Path
    files: dict[str, Path]
    link: Loop
    simulated: idl.Result

    def state(self, site: str = "north", **how: Any) -> SiteModel:
        return site_model(self.folder / "states" / site, **how)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, of_kinds: Callable[[list[str]], list[str]]) -> Finished:
    folder = tmp_path_factory.mktemp("finished")
    files = tables(folder, FEW, ROWS)
    rng = np.random.default_rng(9)
    pd.DataFrame(rng.normal(size=(30, 5)), columns=[f"m{k}" for k in range(5)]).to_csv(folder / "new.csv", index=False)
    study(folder, ", ".join(f"'{name}'" for name in of_kinds(EVERY)), rounds=2, save_predictions="true")
    whole = study_for(folder / "study.yaml", "trial")
    link = Loop(workers(folder / "states", files))
    conduct(whole, link, FEW, folder / "run", Events(quiet=True))
    samples = {name: SiteFiles(files[name], target="label") for name in FEW}
    return Finished(folder, files, link, rehearsed(whole, samples, folder / "simulated"))


def predicted(bundle: Bundle, where: Path) -> torch.Tensor:
    [(x_N, _)] = stream(where, bundle.about.inputs)
    return log_probabilities(bundle.model(), bundle.predicting, x_N).exp()


def predicted_by_newcomer(bundle: Bundle, samples: Samples, where: Path) -> torch.Tensor:
    """What the personal model of a new client predicts."""
    data = Data(samples.x_N, samples.y_N, torch.arange(len(samples.y_N)), torch.ones(len(samples.y_N)))
    down = bundle.model().down
    client = bundle.methods["personal"].personalise(down, bundle.fresh, data, bundle.key())
    [(x_N, _)] = stream(where, bundle.about.inputs)
    return log_probabilities(Personal(down, client), bundle.methods["personal"], x_N).exp()


@pytest.mark.kinds
@pytest.mark.parametrize("name", EVERY)
def test_a_sites_state_predicts_as_the_simulations_client(name: str, finished: Finished, tmp_path: Path) -> None:
    simulated = finished.simulated.bundle(name, tmp_path / "simulated", client="south")
    model = finished.state("south", method=name)
    new = finished.folder / "new.csv"
    torch.testing.assert_close(predicted(model, new), predicted(simulated, new), atol=1e-6, rtol=0)
    assert (model.about.models, model.round) == (("south",), 2)
    same = ("method", "network", "classes", "clients", "training", "revealed")
    assert [getattr(model.about, k) for k in same] == [getattr(simulated.about, k) for k in same]
    inputs, other = (one.about.inputs for one in (model, simulated))
    assert inputs.model_copy(update={"scales": other.scales}) == other
    written = model.to_bundle(tmp_path / "written")
    torch.testing.assert_close(predicted(written, new), predicted(model, new), atol=1e-6, rtol=0)


@pytest.mark.kinds
@pytest.mark.parametrize("name", EVERY)
def test_the_server_bundles_what_a_new_client_gets(name: str, finished: Finished, tmp_path: Path) -> None:
    bundle = result(finished.folder / "run").bundle(name, tmp_path / "b")
    simulated = finished.simulated.bundle(name, tmp_path / "s")
    samples = read(finished.files["north"], bundle.about.inputs, bundle.about.classes, "label")
    new = finished.folder / "new.csv"
    torch.testing.assert_close(
        *(predicted_by_newcomer(one, samples, new) for one in (bundle, simulated)), atol=1e-6, rtol=0
    )
    parts = [bundle.about.evaluation, simulated.about.evaluation]
    assert [c.name for c in parts[0].clients] == list(FEW)
    for one, other in zip(parts[0].clients, parts[1].clients, strict=True):
        assert (one.train, one.test) == (other.train, other.test)
        assert one.personal == pytest.approx(other.personal, abs=1e-6)


@pytest.mark.thorough(but=["fedpac"])
@pytest.mark.parametrize("name", ["fedavg", "fedpac", "ditto:personal=head+body.?.bias"])
def test_a_site_joins_with_the_servers_bundle(name: str, finished: Finished, tmp_path: Path) -> None:
    bundles = [
        result(finished.folder / "run").bundle(name, tmp_path / "b"), finished.simulated.bundle(name, tmp_path / "s")
    ]  # fmt: skip
    samples = read(finished.files["north"], bundles[0].about.inputs, bundles[0].about.classes, "label")
    sites = [join(one, samples, tmp_path / str(k), ships="personal") for k, one in enumerate(bundles)]
    torch.testing.assert_close(*(predicted(site, finished.folder / "new.csv") for site in sites), atol=1e-6, rtol=0)


def test_no_personal_model_is_at_the_server(finished: Finished, tmp_path: Path) -> None:
    run = result(finished.folder / "run")
    for client in ("all", "north", 1):
        with pytest.raises(InputError, match="at its sites"):
            run.bundle("fedper", tmp_path / "b", client=client)
    assert not (tmp_path / "b").exists()
    with pytest.raises(InputError, match="has no method 'fedx'"):
        run.bundle("fedx", tmp_path / "b")


def test_texts_that_few_samples_have_stay_out_of_the_servers_bundle(tmp_path: Path) -> None:
    """Those of a site that comes late count too."""
    files = tables(tmp_path, FEW, 30)
    for k, path in enumerate(files.values()):
        frame = pd.read_csv(path)
        frame["ward"] = np.where(np.arange(30) < 1, "rare", np.where(np.arange(30) % 2, "red", f"only {k}"))
        frame.to_csv(path, index=False)
    study(tmp_path, "fedper", rounds=1)
    link = Loop(workers(tmp_path / "states", files))
    conduct(study_for(tmp_path / "study.yaml", "trial"), link, FEW, tmp_path / "run", Events(quiet=True))
    site_run = SiteRun.load(tmp_path / "run", "")
    train = [w._participations for w in link.workers.values()]
    count: dict[str, int] = {}
    for known, path in zip(train, files.values(), strict=True):
        [one] = known.values()
        for text in pd.read_csv(path)["ward"].iloc[one.samples.train_N.numpy()]:
            count[text] = count.get(text, 0) + 1
    assert sum(site_run.texts) == 72
    ward = result(tmp_path / "run").bundle("fedper", tmp_path / "b").about.inputs.columns[-1]
    agreement = site_run.agreement.inputs.columns[-1]
    assert ward.texts == tuple(text if count.get(text, 0) >= 5 else "" for text in agreement.texts)
    assert "" in ward.texts
    assert "red" in ward.texts
    assert b"rare" not in b"".join(path.read_bytes() for path in (tmp_path / "b").iterdir())


def test_a_model_that_cannot_be_watched_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bytes:
        raise torch.linalg.LinAlgError("not positive definite")

    monkeypatch.setattr("idiolect.federation.site.personal_model.reference.of_site", fails)
    files = tables(tmp_path, FEW, 120)
    study(tmp_path, "fedper", rounds=1)
    link = Loop(workers(tmp_path / "states", files))
    conduct(study_for(tmp_path / "study.yaml", "trial"), link, FEW, tmp_path / "run", Events(quiet=True))
    assert all("measured" in reply.about for _, reply in link.received if reply.about["kind"] == "evaluate")
    model = site_model(tmp_path / "states" / "north")
    with pytest.raises(InputError, match="cannot be watched, because what its network makes"):
        watch(model, predicted(model, tmp_path / "south.csv"))


def test_predictions_stay_at_the_site(finished: Finished) -> None:
    """They are those of the simulation, in the site's folder; nothing of their size was sent."""
    frame = finished.simulated.predictions()
    for site in FEW:
        [path] = finished.folder.glob(f"states/{site}/*/*/fedper-*/predictions.parquet")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        here = pd.read_parquet(path)
        there = frame[(frame["method"] == "fedper") & (frame["client"] == FEW.index(site))].reset_index(drop=True)
        pd.testing.assert_frame_equal(here, there, atol=1e-6, check_dtype=False)
    assert not list((finished.folder / "run").rglob("predictions.parquet"))
    for _, reply in finished.link.received:
        assert reply.about["kind"] not in ("evaluate", "received") or not reply.arrays
        assert "predict" not in str(reply.about)


def test_watching_and_levels_use_samples_that_nobody_trained_on(tmp_path: Path) -> None:
    files = tables(tmp_path, FEW, 150)
    study(tmp_path, "fedper, pfedfda", rounds=2)
    conduct(
        study_for(tmp_path / "study.yaml", "trial"), Loop(workers(tmp_path / "states", files)), FEW, tmp_path / "run",
        Events(quiet=True),
    )  # fmt: skip
    more = tmp_path / "more"
    more.mkdir()
    frame = pd.read_csv(tables(more, FEW, 400)["north"])[150:]
    frame.drop(columns="label").to_csv(more / "same.csv", index=False)
    (frame.drop(columns="label") + 5).to_csv(more / "moved.csv", index=False)
    for method in ("fedper", "pfedfda"):
        model = site_model(tmp_path / "states" / "north", method=method)
        assert model.about.site is not None
        assert len(model.about.site.scores) == model.about.site.samples == 30
        moved = {
            name: watch(model, (x for x, _ in stream(more / f"{name}.csv", model.about.inputs, as_is=["m0"]))).alarm
            for name in ("same", "moved")
        }
        assert moved == {"same": False, "moved": True}
        scores = sorted(model.about.site.scores)
        assert threshold_of(model.about, 0.9) == scores[2]  # floor(31 * 0.1) = 3
        assert predict(model, more / "same.csv", tmp_path / f"{method}.csv", level=0.9).samples == 250


def test_the_models_are_compared_on_the_test_samples(finished: Finished, tmp_path: Path) -> None:
    samples = SiteFiles(finished.files["north"], target="label")
    for method in ("fedavg", "fedper", "knnper"):
        model = finished.state(method=method)
        site = comparison.join(model, samples, tmp_path / method)
        about = site.about.site
        assert about is not None
        assert set(about.compared) == {"global", "personal", "local", "blend"}
        assert about.samples == 12
        recorded = finished.simulated.records.query("client == 0 and round == 2 and metric == 'accuracy'")
        right = recorded[(recorded["method"] == method) & (recorded["stage"] == "personalised")]["value"].item()
        assert about.compared["personal"]["accuracy"] == pytest.approx(right)
        assert "12, of " in (tmp_path / method / "report.html").read_text()
        alone = comparison.join(model, samples, tmp_path / f"{method} alone", ships="personal")
        new = finished.folder / "new.csv"
        torch.testing.assert_close(predicted(alone, new), predicted(model, new), atol=1e-6, rtol=0)


def test_other_samples_are_not_compared_on(finished: Finished, tmp_path: Path) -> None:
    frame = pd.read_csv(finished.files["north"])
    changed = {
        "fewer rows": frame[1:],
        "another order": frame[::-1],
        "another label": frame.assign(label=frame["label"].replace({"grade 0": "grade 1"})),
        "another number": frame.assign(m0=frame["m0"] + 0.1),
    }
    for name, other in changed.items():
        other.to_csv(tmp_path / "other.csv", index=False)
        with pytest.raises(InputError, match="is not the data with which north took part"):
            comparison.join(
                finished.state(method="fedper"), SiteFiles(tmp_path / "other.csv", target="label"), tmp_path / name
            )
        assert not (tmp_path / name).exists()


def test_a_site_writes_one_onnx_file(finished: Finished, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    for method in ("fedavg", "pfedfda", "fedper"):
        assert export(finished.state(method=method), tmp_path / "m.onnx").difference < 1e-5


def ran(folder: Path, name: str, vault: Vault | None = None, sites: tuple[str, ...] = FEW, **more: Any) -> None:
    """A finished federation in a folder, beside others in the same state folders."""
    files = tables(folder, sites, 30)
    path = study(folder, more.pop("methods", "fedper"), rounds=2, **more)
    path.write_text(path.read_text().replace("name: trial", f"name: {name}"))
    link = Loop(workers(folder / "states", files, vault=vault))
    conduct(study_for(path, "trial"), link, sites, folder / f"run {name}", Events(quiet=True))


def test_which_model_is_said_where_there_are_several(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ran(tmp_path, "first", methods="fedper")
    assert site_model(tmp_path / "states" / "north").about.method.name == "fedper"
    assert not caplog.records
    ran(tmp_path, "second", methods='fedavg, "fedprox:mu=0.1"', seeds="[3, 4]")
    north = tmp_path / "states" / "north"
    for how, said in (
        ({"seed": 3}, "second has 2 methods: give method=... as one of fedavg, fedprox:mu=0.1"),
        ({"method": "fedavg"}, "second has 2 seeds: give seed=... as one of 3, 4"),
        ({"method": "fedper", "seed": 3}, "second has no method 'fedper'"),
        ({"method": "fedavg", "seed": 0}, "second has no seed 0"),
        ({"study": "third"}, "has no study 'third': it has second"),
    ):
        with pytest.raises(InputError, match=said.replace("(", r"\(")):
            site_model(north, **how)
    found = site_model(north, method="fedprox", seed=4)
    assert (found.about.method.options["mu"], found.about.key.seed) == (0.1, 4)
    assert "the newest study is taken, second" in caplog.text
    caplog.clear()
    assert site_model(north, study="first").about.method.name == "fedper"
    assert not caplog.records


def test_an_encrypted_state_needs_its_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    ran(tmp_path, "secret", Vault(key_of(key)), save_predictions="true")
    north = tmp_path / "states" / "north"
    assert not list(north.rglob("predictions.parquet"))
    label = pd.read_csv(tmp_path / "north.csv")["label"][0].encode()
    for path in north.rglob("model.state"):
        assert label not in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InputError, match="is encrypted: give state_key"):
        site_model(north)
    with pytest.raises(InputError, match="there is no key"):
        site_model(north, key=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    key_of(tmp_path / "other")
    with pytest.raises(InputError, match="encrypted with another key"):
        site_model(north, key=tmp_path / "other")
    [table] = site_model(north, key=key).predictions()
    assert table.column_names == ["label of the data", "label", "p_grade 0", "p_grade 1", "p_grade 2"]
    assert len(table) == 6


def test_a_changed_model_is_not_read(tmp_path: Path) -> None:
    ran(tmp_path, "one")
    [path] = (tmp_path / "states" / "north").rglob("model.state")
    content = path.read_bytes()
    for at in (0, 30, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(InputError, match="cannot be read"):
            site_model(tmp_path / "states" / "north")
    [agreement] = (tmp_path / "states" / "north").rglob("agreement.json")
    path.write_bytes(content)
    agreement.write_text("{}")
    with pytest.raises(InputError, match=r"agreement\.json cannot be read"):
        site_model(tmp_path / "states" / "north")


def test_a_site_that_keeps_its_accuracies_has_its_model(tmp_path: Path) -> None:
    files = tables(tmp_path, FEW, 30)
    study(tmp_path, "fedper", rounds=2)
    link = Loop(workers(tmp_path / "states", files) | {
        "south": worker(tmp_path / "states", "south", 1, files["south"], Policy(evaluate=False))
    })  # fmt: skip
    conduct(study_for(tmp_path / "study.yaml", "trial"), link, FEW, tmp_path / "run", Events(quiet=True))
    told = [reply.about for site, reply in link.received if site == "south" and reply.about["kind"] == "evaluate"]
    assert told
    assert not [about for about in told if "measured" in about]
    assert site_model(tmp_path / "states" / "south").round == 2


@pytest.mark.parametrize("protocol", ["stage=received", "stage=trained", "stage=received,also=trained+personalised"])
def test_other_stages_leave_the_same_personal_model(protocol: str, tmp_path: Path) -> None:
    ran(tmp_path, "usual")
    ran(tmp_path, "other", protocol=f'"{protocol}"', save_predictions="true")
    models = [site_model(tmp_path / "states" / "north", study=name) for name in ("usual", "other")]
    assert [model.round for model in models] == [2, 2]
    torch.testing.assert_close(*(predicted(model, tmp_path / "south.csv") for model in models), atol=1e-6, rtol=0)
    [path] = (tmp_path / "states" / "north").rglob("predictions.parquet")
    assert set(pd.read_parquet(path)["stage"]) == {"received" if "=received" in protocol else "trained"}


def test_the_round_of_a_model_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Coast is away from a round on: it keeps what it had."""

    class Leaves(Away):
        def send(self, site: str, content: bytes) -> str:
            asked = unpack(content).about
            if site == "coast" and (asked.get("round", 0) > 2 or asked["kind"] == "done"):
                self.there = False
                return "no reply"
            return Loop.send(self, site, content)

    sites = (*FEW, "coast")
    files = tables(tmp_path, sites, 30)
    study(tmp_path, "fedper", rounds=4)
    link = Leaves(workers(tmp_path / "states", files), 0, agrees=True)
    terms = Terms(Patience(2, 60.0, 0.2))
    conduct(study_for(tmp_path / "study.yaml", "trial"), link, sites, tmp_path / "run", Events(quiet=True), terms=terms)
    assert site_model(tmp_path / "states" / "north").round == 4
    assert not caplog.records
    assert site_model(tmp_path / "states" / "coast").round == 2
    assert "is from round 2 of 4: the study has not ended, or this site was away" in caplog.text


def test_a_state_without_a_model(tmp_path: Path) -> None:
    ran(tmp_path, "one")
    [path] = (tmp_path / "states" / "north").rglob("model.state")
    path.unlink()
    with pytest.raises(InputError, match=r"has no model of fedper, seed 0, yet.*every 1 rounds"):
        site_model(tmp_path / "states" / "north")
    with pytest.raises(InputError, match="is a site's state folder: write its model with idiolect bundle first"):
        idl.load(tmp_path / "states" / "north")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no study yet"):
        site_model(tmp_path / "empty")


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return int(end.value.code or 0)


def test_the_commands_take_a_state_folder(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    state, new, table = finished.folder / "states" / "north", finished.folder / "new.csv", finished.files["north"]
    names = [use.name for use in finished.simulated.study.methods]
    assert call("predict", state, "--method", "fedper", "--data", new, "--out", "p.parquet") == 0
    found = pd.read_parquet("p.parquet").filter(like="p_").to_numpy()
    np.testing.assert_allclose(found, predicted(finished.state(method="fedper"), new), atol=1e-7)
    assert call("predict", state, "--method", "fedper", "--own", "--out", "own.csv") == 0
    assert len(pd.read_csv("own.csv")) == 12
    assert call("validate", state, "--method", "fedper", "--own", "--least", 3, "--out", "v") == 0
    judged, own = json.loads(Path("v/validation.json").read_text()), pd.read_csv("own.csv")
    right = (own["label"].astype(str) == own["label of the data"].astype(str)).mean()
    assert judged["accuracy"]["value"] == pytest.approx(right)
    assert judged["samples"] == 12
    assert call("bundle", state, "--method", "fedper", "--out", "b") == 0
    assert call("join", state, "--method", "fedper", "--data", table, "--target", "label", "--out", "site") == 0
    assert call("predict", "site", "--data", new, "--out", "s.csv", "--level", "0.8") == 0
    assert call("bundle", finished.folder / "run", "--method", "fedper", "--out", "server") == 0
    assert call("join", "server", "--data", table, "--target", "label", "--out", "fourth") == 0
    assert call("predict", "fourth", "--data", new, "--out", "f.csv") == 0
    capsys.readouterr()
    run, of, copy = finished.folder / "run", ("--method", "fedper"), tmp_path / "copy"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns(".federation.json"))
    for line, said in (
        (("predict", state, "--data", new), f"trial has {len(names)} methods: give --method as one of {names[0]}, "),
        (("predict", "b", "--data", new, "--method", "fedper"), "--method is for a site's state folder, and b is none"),
        (("predict", "b", "--own"), "--own is for a site's state folder"),
        (("predict", "b"), "give --data (new samples), or --own"),
        (("predict", state, "--method", "fedper", "--own", "--out", "p.txt"), "end it in .parquet or .csv"),
        (("watch", state, "--method", "fedper", "--data", new), "the site has 12 test samples, and 20 are needed"),
        (("validate", state, "--method", "fedper", "--own", "--out", "c"), "a validation needs 10 samples of a class"),
        (("validate", state, "--own", "--subgroup", "m0", "--out", "c"), "--subgroup needs the columns of samples"),
        (("validate", "b", "--own", "--out", "c"), "--own is for a site's state folder, and b is none"),
        (("bundle", state, "--method", "fedper", "--out", "b"), "b exists"),
        (("bundle", state, "--method", "fedper", "--out", "c", "--client", "north"), "leave out --client"),
        (("bundle", run, *of, "--out", "c", "--client", "all"), "leave out --client"),
        (("bundle", run, "--out", "c"), "give --method"),
        (("bundle", copy, *of, "--out", "c"), "has no .federation.json"),
        (("join", state, "--method", "fedper", "--data", new, "--target", "m0", "--out", "c"), "has the label"),
        (("join", "server", "--data", table, "--target", "label", "--out", "c", "--test", new), "--test is for"),
    ):  # fmt: skip
        assert call(*line) == 2
        err = " ".join(capsys.readouterr().err.split())
        assert said in err, err
    assert not Path("c").exists()


@pytest.mark.thorough(but=["fedala"])
@pytest.mark.parametrize("method", ["ditto", "fedala", "fedavg"])
def test_a_site_without_a_global_model_is_compared_with_what_it_does_alone(method: str, tmp_path: Path) -> None:
    """With 48 training samples there is a local model, with 24 none."""
    has = method == "fedavg"
    for rows, names in ((60, {"personal", "local", "blend"}), (30, {"personal"})):
        folder = tmp_path / str(rows)
        folder.mkdir()
        files = tables(folder, FEW, rows)
        study(folder, method, rounds=1)
        link = Loop(workers(folder / "states", files))
        conduct(study_for(folder / "study.yaml", "trial"), link, FEW, folder / "run", Events(quiet=True))
        model = site_model(folder / "states" / "north")
        assert model.about.global_model is has
        samples = SiteFiles(files["north"], target="label")
        about = comparison.join(model, samples, folder / "site").about.site
        assert about.compared.keys() == names | ({"global", "blend"} if has else set())
        assert about.against == ("global" if has else "local" if "local" in names else None)
        if not has:
            with pytest.raises(InputError, match="no global model"):
                comparison.join(model, samples, folder / "other", ships="global")
