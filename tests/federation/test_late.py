"""A site that is away when the sites agree, and comes later: it is let in, counts, and is in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sites import NAMES, Away, Loop, study, workers

from idiolect.core.errors import InputError, RunError
from idiolect.data import FederatedData, manifest
from idiolect.deploy.schema import Inputs, TargetPart
from idiolect.federation.data.agreement import Agreement, Sums, agree, common_form, unknown_texts
from idiolect.federation.data.samples import SiteFiles, sums
from idiolect.federation.events import FILE, Events, read
from idiolect.federation.messages import Message, Refusal, by_path
from idiolect.federation.rounds import checks
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server import run
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import study_for
from idiolect.studies import Result

Files = dict[str, Path]
_TERMS = Terms(Patience(least=3), start=4)


def _run(tmp_path: Path, link: Away, out: str = "run") -> Result:
    whole = study_for(tmp_path / "study.yaml", "trial")
    return conduct(whole, link, list(NAMES), tmp_path / out, Events(quiet=True), terms=_TERMS)


def _said(tmp_path: Path, site: str = "coast") -> list[str]:
    return [event["event"] for event in read(tmp_path / "run" / FILE, 1000) if event.get("site") == site]


def _train(files: Files, agreement: Agreement, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The training samples of a site and their classes, as its table has them."""
    ready = SiteFiles(files[name], target="label").encode(
        agreement.inputs, agreement.classes, 0, NAMES.index(name), look=False
    )
    return ready.x_N[ready.train_N].double().numpy(), ready.y_N[ready.train_N].numpy()


def test_a_site_that_comes_late_is_let_in(files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=4)
    link = Away(workers(tmp_path / "states", files), back=3)
    link.workers["coast"]._say = Events(tmp_path / "coast.jsonl", quiet=True)
    found = _run(tmp_path, link)
    absent = found.records.query("metric == 'answered'")
    assert list(zip(absent["round"], absent["client"], strict=True)) == [(1, 4), (2, 4)]
    assert found.records.query("client == 4 and metric == 'accuracy'")["round"].tolist() == [3, 4]
    told = [(m.about["kind"], m.about.get("round"), m.about.get("kept")) for who, m in link.sent if who == "coast"]
    assert told[told.index(("local", 3, 0)) :][:5] == [
        ("local", 3, 0), ("study", None, None), ("inputs", None, None), ("begin", None, None), ("local", 3, 0)
    ]  # fmt: skip
    assert ("local", 4, 3) in told
    came = "coast comes late and takes part from round 3 of fedavg on, with 16 training samples"
    assert _said(tmp_path)[0] == "goes on without coast, which did not answer in time"
    assert _said(tmp_path)[1] == "begins without coast, which takes part as soon as it is there"
    assert _said(tmp_path)[-1] == came
    heard = [event["event"] for event in read(tmp_path / "coast.jsonl", 100)]
    assert "the study began without this site, which takes part from round 3 on" in heard
    [kept] = {path.parent.parent for path in (tmp_path / "states" / "coast").rglob("round-4.state")}
    assert heard[-1] == f"study trial is done; what this site keeps of it is in {kept}"

    first, second = (
        next(m for _, m in link.sent if (m.about["kind"], m.about.get("round")) == ("local", r)) for r in (3, 4)
    )
    ups = [m.arrays for _, m in link.received if (m.about["kind"], m.about.get("round")) == ("local", 3) and m.arrays]
    weight_m = np.array([float(up["weight/"]) for up in ups])
    assert len(ups) == 5
    for path, before in first.arrays.items():
        value_m = np.stack([up[path.replace("shared", "value", 1)].double().numpy() for up in ups])
        mean = np.tensordot(weight_m / weight_m.sum(), value_m, 1)
        np.testing.assert_allclose(second.arrays[path].numpy() - before.numpy(), mean, atol=1e-6)

    about = next(m.about for who, m in link.sent if who == "coast" and m.about["kind"] == "begin")
    agreement = Agreement.model_validate(about["agreement"])
    x_R = np.concatenate([_train(files, agreement, name)[0] for name in NAMES[:4]])
    np.testing.assert_allclose(agreement.inputs.mean, x_R.mean(0), rtol=1e-9)  # what was agreed on stays
    np.testing.assert_allclose(agreement.inputs.std, x_R.std(0), rtol=1e-9)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    counts = np.bincount(_train(files, agreement, "coast")[1], minlength=3).tolist()
    assert [manifest["clients"][4][part] for part in ("name", "train")] == ["coast", counts]
    assert manifest["dataset"] == "trial"
    assert (tmp_path / "run" / "report.html").exists()


def test_a_server_that_is_killed_while_it_lets_a_site_in_goes_on_to_the_same_numbers(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(tmp_path, "scaffold, fedper", rounds=3)
    whole = _run(tmp_path, Away(workers(tmp_path / "a", files), back=2), "whole").records

    class Killed(BaseException):
        """What nothing catches, as a kill."""

    def dies(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(run, "renew", dies)
        with pytest.raises(Killed):
            _run(tmp_path, Away(workers(tmp_path / "b", files), back=2))
    link = Away(workers(tmp_path / "b", files), back=2)  # all have started again
    found = _run(tmp_path, link).records
    sides = ["method", "seed", "round", "client", "stage", "metric", "other"]
    both = found.merge(whole, on=sides, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-6
    others = [m.about["kind"] for _, m in link.sent if "round" not in m.about]
    assert others == ["begin", *5 * ["done"]]  # coast is known
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert sum(manifest["clients"][4]["train"]) == 16


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda frame: frame.drop(columns="m3"), "coast has no column 'm3', which the other sites agreed on"),
        (lambda frame: frame.assign(label="grade 9"), "coast has samples of the class 'grade 9', which no site had"),
        (lambda frame: frame.assign(m3="high"), "column 'm3' has texts at coast and numbers at the run"),
    ],
)
def test_a_late_site_that_does_not_fit(change: Any, said: str, files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=2)
    change(pd.read_csv(files["coast"])).to_csv(tmp_path / "coast.csv", index=False)
    found = _run(tmp_path, Away(workers(tmp_path / "states", files | {"coast": tmp_path / "coast.csv"}), back=2))
    assert found.records.query("client == 4")["metric"].unique().tolist() == ["answered"]
    assert _said(tmp_path)[-1].startswith(f"coast does not count: {said}")


@pytest.mark.parametrize("count", [-1, 2**40])
def test_numbers_of_samples_that_are_not_possible(count: int, files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=1)

    def lies(asked: Message, reply: Message) -> Message:
        arrays = {k: torch.full_like(a, count) if "train_C" in k else a for k, a in reply.arrays.items()}
        return Message(reply.about, arrays) if asked.about["kind"] == "inputs" else reply

    link = Away(workers(tmp_path / "states", files), back=0)
    link.tamper = {"coast": lies}
    found = _run(tmp_path, link)
    assert found.records.query("client == 4")["metric"].unique().tolist() == ["answered"]
    what = "is negative" if count < 0 else "it says that it has 3.29853e+12 training and 4 test samples"
    assert [text for text in _said(tmp_path) if what in text]


def test_what_cannot_be_counted_is_not_written(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the server would fail in the same way each time it starts."""
    study(tmp_path, rounds=2)

    def none(data: FederatedData) -> dict[str, Any]:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(run, "manifest", none)
    found = _run(tmp_path, Away(workers(tmp_path / "states", files), back=2))
    assert found.records.query("client == 4")["metric"].unique().tolist() == ["answered"]
    assert run.SiteRun.load(tmp_path / "run", "").agreement.train[4] == (0, 0, 0)


def test_all_sites_together_have_no_more_samples_than_a_run_has_room_for(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(tmp_path, rounds=2)
    monkeypatch.setattr(checks, "_OF_ALL", 90)
    _run(tmp_path, Away(workers(tmp_path / "states", files), back=2))
    what = "with it there would be 100 samples, and a run has room for 90 of all sites"
    assert [text for text in _said(tmp_path) if what in text]
    run_folder = tmp_path / "at once"
    with pytest.raises(RunError, match=what):
        conduct(
            study_for(tmp_path / "study.yaml", "trial"), Loop(workers(tmp_path / "others", files)), list(NAMES),
            run_folder, Events(quiet=True),
        )  # fmt: skip


@pytest.mark.parametrize(("train", "test", "counts"), [(2**25, 2**25, True), (2**25, 2**25 + 1, False), (0, 5, False)])
def test_the_samples_of_a_site_count_together(train: int, test: int, counts: bool) -> None:
    one = Sums.like(1, 2)._replace(train_C=torch.tensor([train]), test_C=torch.tensor([test]))
    message = Message({}, by_path("sums", one._asdict()))
    if counts:
        assert checks.sums_of(message, Sums.like(1, 2)).samples == 2**26
    else:
        with pytest.raises(Refusal, match="it says that it has"):
            checks.sums_of(message, Sums.like(1, 2))


def test_samples_that_a_site_only_names_take_no_memory_for_their_targets() -> None:
    names = tuple(f"t{k}" for k in range(1000))
    agreement = Agreement(
        inputs=Inputs(kind="images", shape=(1, 2, 2), mean=(0.0,), std=(1.0,)), classes=("+",), names=("a", "b"),
        train=((2**16,), (1,)), test=((1,), (1,)), validation=((0,), (0,)), counts=((2**16 + 1,),),
        targets=tuple(TargetPart(name=name, mean=0.0, std=1.0) for name in names),
    )  # fmt: skip
    data = agreement.federation("trial")
    assert data.targets is not None
    assert data.targets.value_RD.shape == (agreement.samples, 1000)
    assert data.targets.value_RD.untyped_storage().nbytes() == 8
    more = agreement.model_copy(update={"test": ((2,), (1,))}).federation("trial")
    assert manifest(data)["hash"] != manifest(more)["hash"]


def test_texts_that_nobody_had_at_the_start(tmp_path: Path) -> None:
    frames = {
        "north": pd.DataFrame({"sex": ["f", "m", "f"], "age": [1.0, 2, 4], "label": list("aba")}),
        "coast": pd.DataFrame({"sex": ["x", "m", "f"], "age": [1.0, 2, 4], "more": list("uvw"), "label": list("aba")}),
    }
    for name, frame in frames.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    north, coast = (SiteFiles(tmp_path / f"{name}.csv", target="label") for name in frames)
    inputs, classes = common_form({"north": north.offer()})
    ready = north.encode(inputs, classes, 0, 0, look=False)
    agreement = agree(inputs, classes, {"north": sums(ready, 2)}, "training")
    assert unknown_texts(agreement, "coast", coast.offer()) == ["'x' in sex"]
    assert unknown_texts(agreement, "north", north.offer()) == []
    images = coast.offer().model_copy(update={"kind": "images", "shape": (1, 8, 8), "columns": ()})
    with pytest.raises(InputError, match="the run has table and coast has images 1x8x8"):
        unknown_texts(agreement, "coast", images)
