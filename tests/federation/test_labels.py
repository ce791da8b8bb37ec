"""A federation whose samples have several labels: the same as in one place, what sites agree on, and their models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sites import Loop, measuring, study, tables, workers
from sklearn.metrics import f1_score

from idiolect.core.errors import InputError
from idiolect.deploy import watch as watching
from idiolect.deploy.predict import predict
from idiolect.deploy.samples import stream
from idiolect.federation.data.agreement import agree, common_form, unknown_texts
from idiolect.federation.data.samples import SiteFiles, alone, sums
from idiolect.federation.events import FILE as EVENTS
from idiolect.federation.events import Events
from idiolect.federation.preview import preview
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.site import comparison
from idiolect.federation.site.state_folder import site_model
from idiolect.federation.trust.authority import provision
from idiolect.federation.trust.kits import Description, site_kit
from idiolect.federation.trust.policy import Policy
from rehearsal import rehearsed

LABELS = ["cough", "fever", "rash"]
FEW = ("north", "south", "east")
SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]


def visits(k: int, rows: int = 40) -> pd.DataFrame:
    """A clinic's patients: labels that depend on two numbers, in part in the clinic's own way."""
    draw = np.random.default_rng(k)
    x = draw.normal(size=(rows, 2)).round(3)
    score = np.stack([x[:, 0], x[:, 1] - 0.5, x[:, 0] * (k - 1) - 0.5], 1) + 0.4 * draw.normal(size=(rows, 3))
    frame = pd.DataFrame(x, columns=["age", "dose"])
    return frame.assign(**{name: (score[:, j] > 0).astype(int) for j, name in enumerate(LABELS)})


def tagged(frame: pd.DataFrame) -> pd.DataFrame:
    """The same with the labels in one column of texts."""
    tags = ["|".join(name for name in LABELS if row[name]) for _, row in frame.iterrows()]
    return frame.drop(columns=LABELS).assign(tags=tags)


@pytest.fixture
def clinics(tmp_path: Path) -> dict[str, SiteFiles]:
    """Two with a column for each label, and one with a column of texts."""
    for k, name in enumerate(FEW):
        (visits(k) if name != "east" else tagged(visits(k))).to_csv(tmp_path / f"{name}.csv", index=False)
    targets = {name: "+".join(LABELS) for name in FEW} | {"east": "tags"}
    return {name: SiteFiles(tmp_path / f"{name}.csv", target=target) for name, target in targets.items()}


def link_of(folder: Path, clinics: dict[str, SiteFiles], **more: Any) -> Loop:
    (folder / "others").mkdir(exist_ok=True)
    link = Loop(workers(folder / "states", tables(folder / "others", FEW)), **more)
    for name, worker in link.workers.items():
        worker._samples = clinics[name]
    return link


@pytest.mark.parametrize(
    ("methods", "more"),
    [
        ("fedavg, fedshrink", {}),
        ("fedrep, ditto", {"protocol": "{validation: 0.25, round: best_validation}"}),
        ("fedavg_ft", {"protocol": "{stage: personalised, also: [received, trained]}"}),
        ("fedavg_ft, 'fedavg:class_weights=none'", {"class_weights": "balanced"}),
        ("fedrep", {"protocol": "{validation: 0.4, threshold: f1, stage: personalised}"}),
    ],
)
def test_the_numbers_are_those_of_a_simulation(methods: str, more: Any, clinics: Any, tmp_path: Path) -> None:
    study(tmp_path, methods, rounds=2, task="multilabel", **more)
    whole = study_for(tmp_path / "study.yaml", "trial")
    run = conduct(whole, link_of(tmp_path, clinics), FEW, tmp_path / "run", Events(quiet=True))
    simulated = rehearsed(whole, clinics, tmp_path / "simulated").records
    both = run.records.merge(simulated, on=SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    np.testing.assert_allclose(both["value_x"], both["value_y"], rtol=1e-4, atol=1e-5)
    assert {"micro_f1", "f1[rash]", "loss"} <= set(run.records["metric"])
    assert run.table().columns[1].header.split() == ["Micro", "F1", "%"]


def test_sites_agree_on_all_their_labels(clinics: dict[str, SiteFiles]) -> None:
    offers = {name: own.offer("multilabel") for name, own in clinics.items()}
    inputs, classes = common_form(offers, "multilabel")
    assert [column.name for column in inputs.columns] == ["age", "dose"]
    assert classes == ("cough+fever+rash",)
    ready = {
        name: own.encode(inputs, classes, 0, k, look=False, task="multilabel", labels=LABELS)
        for k, (name, own) in enumerate(clinics.items())
    }
    said = {name: sums(one, 1) for name, one in ready.items()}
    for k, (name, one) in enumerate(ready.items()):
        np.testing.assert_array_equal(one.value_ND, visits(k)[LABELS])
        np.testing.assert_array_equal(said[name].target_sum_D, visits(k)[LABELS].to_numpy()[one.train_N].sum(0))
    agreement = agree(inputs, classes, said, "reference", predicted=LABELS, labels=True)
    assert agreement.labels == tuple(LABELS)
    data = agreement.federation("trial")
    assert (data.task, data.outputs, data.targets.names) == ("multilabel", 3, tuple(LABELS))
    having_L = sum(visits(k)[LABELS].to_numpy()[one.train_N].sum(0) for k, one in enumerate(ready.values()))
    count = sum(len(one.train_N) for one in ready.values())
    np.testing.assert_array_equal(data.class_counts, np.stack([count - having_L, having_L], 1))
    own = alone(ready["south"], agreement, 1, "trial")
    assert own.class_counts == data.class_counts
    np.testing.assert_array_equal(own.targets.scaled(), visits(1)[LABELS])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"north": (lambda f: f.assign(rash=2 * f["rash"]), "+".join(LABELS))}, "target 'rash' .* has the values 0, 2"),
        (
            {"north": (lambda f: f.drop(columns="rash"), "cough+fever")},
            "north.csv has no column for the label 'rash', which another",
        ),
        ({"east": (lambda f: tagged(f).assign(tags=""), "tags")}, "is missing in 40 of 40 rows"),
        ({"east": (lambda f: tagged(f).replace({"tags": {"cough": "?"}}), "tags")}, "is missing in .* of 40 rows"),
        ({"north": (lambda f: f.assign(fever=f["fever"].mask(f.index == 3)), "+".join(LABELS))}, "first is row 5"),
    ],
)
def test_labels_that_sites_cannot_agree_on(change: Any, said: str, tmp_path: Path) -> None:
    targets = {}
    for k, name in enumerate(FEW):
        frame, targets[name] = change.get(name, (lambda f: f, "+".join(LABELS)))
        frame(visits(k)).to_csv(tmp_path / f"{name}.csv", index=False)

    def agree_on_them() -> None:
        samples = {name: SiteFiles(tmp_path / f"{name}.csv", target=target) for name, target in targets.items()}
        offers = {name: own.offer("multilabel") for name, own in samples.items()}
        inputs, classes = common_form(offers, "multilabel")
        for k, own in enumerate(samples.values()):
            own.encode(inputs, classes, 0, k, look=False, task="multilabel", labels=LABELS)

    with pytest.raises(InputError, match=said):
        agree_on_them()


def test_a_late_site_brings_no_new_label(clinics: dict[str, SiteFiles], tmp_path: Path) -> None:
    offers = {name: own.offer("multilabel") for name, own in clinics.items()}
    inputs, classes = common_form(offers, "multilabel")
    ready = clinics["north"].encode(inputs, classes, 0, 0, look=False, task="multilabel", labels=LABELS)
    agreement = agree(inputs, classes, {"north": sums(ready, 1)}, "reference", predicted=LABELS, labels=True)
    tagged(visits(5)).replace({"tags": {"rash": "itch"}}).to_csv(tmp_path / "late.csv", index=False)
    late = SiteFiles(tmp_path / "late.csv", target="tags").offer("multilabel")
    with pytest.raises(InputError, match="late has the label 'itch', which no site had at the start"):
        unknown_texts(agreement, "late", late)
    fewer = tagged(visits(6)[lambda f: f["rash"] == 0])
    fewer.to_csv(tmp_path / "fewer.csv", index=False)
    assert unknown_texts(agreement, "fewer", SiteFiles(tmp_path / "fewer.csv", target="tags").offer("multilabel")) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"measures": {"micro_f1": 1.5, "subset_accuracy": 0.5}}, "a value of 1.5 of micro_f1 is not possible"),
        ({"measures": {"micro_f1": 0.5}}, "it holds other measurements"),
        ({"accuracy": 0.5}, "it holds other measurements"),
        ({"validation_loss": 0.5}, "it holds only some of its numbers of validation samples"),
    ],
)
def test_measures_that_cannot_be(values: dict[str, Any], said: str, clinics: Any, tmp_path: Path) -> None:
    study(tmp_path, rounds=1, task="multilabel")
    link = link_of(tmp_path, clinics, tamper={"south": measuring(values)})
    whole, terms = study_for(tmp_path / "study.yaml", "trial"), Terms(Patience(least=2))
    run = conduct(whole, link, FEW, tmp_path / "run", Events(quiet=True), terms=terms)
    assert set(run.records.query("metric == 'micro_f1'")["client"]) == {0, 2}
    assert said in (tmp_path / "run" / EVENTS).read_text()


def test_a_sites_own_model(clinics: dict[str, SiteFiles], tmp_path: Path) -> None:
    for k, name in enumerate(FEW):
        visits(k, 150).to_csv(tmp_path / f"{name}.csv", index=False)
    clinics = {name: SiteFiles(tmp_path / f"{name}.csv", target="+".join(LABELS)) for name in FEW}
    study(tmp_path, "fedper", rounds=3, task="multilabel")
    run = conduct(
        study_for(tmp_path / "study.yaml", "trial"), link_of(tmp_path, clinics), FEW, tmp_path / "run",
        Events(quiet=True),
    )  # fmt: skip
    model = site_model(tmp_path / "states" / "north")
    assert model.about.labels == tuple(LABELS)
    own = model.predictions()[0].to_pandas()
    truth, said = (own[name].str.split("|") for name in ("labels of the data", "labels"))
    truth, said = (np.array([[x in names for x in LABELS] for names in of]) for of in (truth, said))
    recorded = run.records.query("client == 0 and round == 3 and metric == 'micro_f1'")["value"].item()
    assert f1_score(truth, said, average="micro") == pytest.approx(recorded)
    assert "micro F1" in model.about.site.why
    for k, name in enumerate(LABELS):
        sizes = np.sort(np.abs(truth[:, k] - own[f"p_{name}"]))
        np.testing.assert_allclose(model.about.site.errors[k].sizes, sizes, atol=1e-9)
    visits(0, 400)[["age", "dose"]].to_csv(tmp_path / "new.csv", index=False)
    predict(model, tmp_path / "new.csv", tmp_path / "p.csv", level=0.8)
    assert list(pd.read_csv(tmp_path / "p.csv")) == ["row", "undecided", "labels", "p_cough", "p_fever", "p_rash"]
    report = watching.watch(model, (x for x, _ in stream(tmp_path / "new.csv", model.about.inputs)))
    assert set(report.predictions.now) == set(LABELS)
    site = comparison.join(model, clinics["north"], tmp_path / "best").about.site
    assert set(site.compared) == {"global", "personal", "local", "blend"}
    assert site.compared["personal"]["micro_f1"] == pytest.approx(recorded)


def test_what_would_be_sent(clinics: dict[str, SiteFiles], tmp_path: Path) -> None:
    provision(Description(name="trial", server="127.0.0.1:9092", sites=("north",)), tmp_path / "kits")
    study(tmp_path, task="multilabel")
    kit = site_kit(tmp_path / "kits" / "site-north")
    lines = list(preview(kit, clinics["north"], Policy(), tmp_path / "study.yaml", tmp_path / "state"))
    assert any("F1, loss" in line for line in lines)
    assert any('"targets": ["cough", "fever", "rash"]' in line for line in lines)
