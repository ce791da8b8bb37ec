"""A bundle's folder: what is in it, and what happens where it is broken, altered or from a stranger."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

import idiolect as idl
from idiolect.core import files
from idiolect.deploy.bundle import Bundle, log_probabilities
from idiolect.deploy.schema import About


@pytest.fixture
def copy(of_table: Bundle, tmp_path: Path) -> Path:
    """A bundle that a test may break."""
    shutil.copytree(of_table.folder, tmp_path / "b")
    return tmp_path / "b"


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(idl.InputError) as error:
        Bundle.read(folder).model()
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def resealed(folder: Path, **changes: object) -> None:
    """Change ``bundle.json`` as someone would who knows how it is sealed."""
    about = json.loads((folder / "bundle.json").read_text()) | changes
    about["seal"] = files.UNSEALED
    (folder / "bundle.json").write_bytes(files.sealed(json.dumps(about).encode()))


def test_what_it_says(of_table: Bundle, table: idl.Result) -> None:
    about = of_table.about
    assert (about.kind, about.method.name, about.clients, about.classes) == (
        "join",
        "pfedfda",
        3,
        ("benign", "malignant"),
    )
    assert [c.name for c in about.inputs.columns] == [
        "radius", "texture", "smoothness", "concavity", "worst points", "machine"
    ]  # fmt: skip
    assert [c.gaps for c in about.inputs.columns] == [False, True, False, False, False, False]
    assert [c.name for c in about.evaluation.clients] == ["Lyon", "Oslo", "Porto"]
    accuracy = table.client_accuracy()["pfedfda", 0]
    assert [c.personal for c in about.evaluation.clients] == pytest.approx(accuracy.tolist())
    assert about.revealed.joins_by == "forward passes"
    assert sorted(path.name for path in of_table.folder.iterdir()) == ["README.md", "bundle.json", "model.safetensors"]
    card = (of_table.folder / "README.md").read_text()
    for said in ("# pFedFDA", "Lyon", "worst tenth", "log loss", "What it reveals", "| radius | number |"):
        assert said in card


def test_a_text_that_few_samples_have_is_not_named(of_table: Bundle) -> None:
    machine = of_table.about.inputs.columns[-1]
    assert machine.texts == ("A", "B", "C", "")
    assert b"Zaphod" not in b"".join(path.read_bytes() for path in of_table.folder.iterdir())


def test_no_path_of_the_data_is_in_it(table: idl.Result, of_table: Bundle) -> None:
    assert not {"data", "data_dir", "name"} & set(of_table.about.provenance.study)


def test_the_published_schema_is_that_of_today() -> None:
    published = json.loads((Path(__file__).parents[2] / "docs" / "bundle.schema.json").read_text())
    assert published == About.model_json_schema()


def test_nothing_is_overwritten(table: idl.Result, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(idl.InputError, match="exists and is not an empty folder: choose another with out="):
        table.bundle("pfedfda", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"method": "fedavg"}, "no method 'fedavg'; known: pfedfda"),
        ({"method": "pfedfda", "seed": 3}, "seed 3 is not in this run"),
        ({"method": "pfedfda", "client": "Olso"}, "did you mean 'Oslo'"),
    ],
)
def test_what_the_run_does_not_have(table: idl.Result, tmp_path: Path, asked: dict, said: str) -> None:
    with pytest.raises(idl.InputError, match=said):
        table.bundle(**asked, out=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_run_that_is_not_finished(tmp_path: Path) -> None:
    study = idl.Study(dataset="digits", clients=3, rounds=40, local_epochs=1, methods=["fedavg"], model="mlp")
    with pytest.raises(idl.Interrupted):
        idl.run(study, tmp_path / "run", engine="sequential", budget=0.3)
    with pytest.raises(idl.InputError, match=r"has \d+ of 40 rounds of fedavg, seed 0: continue the run"):
        idl.Result(tmp_path / "run", study).bundle("fedavg", tmp_path / "b")


def test_no_folder_and_no_bundle(tmp_path: Path) -> None:
    refused(tmp_path / "none", "there is no bundle")
    refused(tmp_path, "bundle.json cannot be read")
    (tmp_path / "bundle.json").write_text('{"a": 1}')
    refused(tmp_path, "is not that of a bundle")
    (tmp_path / "bundle.json").unlink()
    (tmp_path / "study.yaml").touch()
    refused(tmp_path, "is the folder of a run: make a bundle of it with idiolect bundle")


def test_a_missing_file(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    refused(copy, "has no model.safetensors")


@pytest.mark.parametrize("name", ["bundle.json", "model.safetensors"])
def test_a_truncated_file(copy: Path, name: str) -> None:
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: len(content) // 2])
    refused(copy, name)


@pytest.mark.parametrize("name", ["bundle.json", "model.safetensors", "README.md"])
def test_one_altered_byte(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    at = content.index(b"pFedFDA") if name != "model.safetensors" else len(content) - 5
    content[at] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(idl.InputError, match="has changed"):
        Bundle.read(copy).check()


def test_a_newer_format(copy: Path) -> None:
    resealed(copy, version=2)
    refused(copy, "format 2", "update idiolect")


def test_the_numbers_of_another_method(copy: Path) -> None:
    resealed(copy, method={"name": "fedcr", "title": "FedCR", "options": {}})
    refused(copy, "model.safetensors is not of this method and network")


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": []}, {"clients": 0}, {"network": {"model": ""}}, {"inputs": {}}, {"files": {}}, {"more": 1},
        {"files": {"../model.safetensors": "0" * 64}}, {"key": {"seed": -1, "round": 1, "client": 1}},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(copy: Path, changes: dict) -> None:
    resealed(copy, **changes)
    refused(copy, "bundle.json cannot be used")


def test_a_bundle_without_a_seal(copy: Path) -> None:
    about = json.loads((copy / "bundle.json").read_text())
    del about["seal"]
    (copy / "bundle.json").write_text(json.dumps(about))
    refused(copy, "no seal")


def test_a_tensor_is_left_out(copy: Path) -> None:
    numbers = safetensors.torch.load_file(copy / "model.safetensors")
    numbers.pop(next(iter(numbers)))
    safetensors.torch.save_file(numbers, copy / "model.safetensors")
    resealed(copy, files=_digests(copy))
    refused(copy, "is not of this method and network")


def _digests(folder: Path) -> dict[str, str]:

    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("README.md", "model.safetensors")
    }


NET = """
from torch import nn

print("imported")

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU()), nn.Linear(12, classes)
"""


def test_a_network_of_ones_own_is_imported_only_with_permission(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "strange_net.py").write_text(NET)
    study = idl.Study(
        dataset="digits", clients=3, rounds=1, local_epochs=1, methods=["fedper"], model="strange_net.net"
    )
    made = idl.run(study, "run", engine="sequential").bundle("fedper", "b", client=1)
    monkeypatch.delitem(sys.modules, "strange_net")
    capsys.readouterr()
    with pytest.raises(idl.InputError, match="check that module first, then give allow_import=True"):
        Bundle.read("b")
    assert "imported" not in capsys.readouterr().out
    again = Bundle.read("b", allow_import=True)
    x_R = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(
        log_probabilities(again.model(), again.predicting, x_R), log_probabilities(made.model(), made.predicting, x_R)
    )
    (tmp_path / "strange_net.py").write_text(NET.replace("12", "13"))
    with pytest.raises(idl.InputError, match=r"another version of strange_net\.net"):
        Bundle.read("b", allow_import=True)


def test_a_method_of_another_package_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A site without the package hears which one it needs; one with another version is warned."""
    info = tmp_path / "strange-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[idiolect.methods]\nmine = strange_method:mine\n")
    source = (Path(idl.methods.__file__).parent / "_skeleton.py").read_text()
    source = source.replace("def skeleton(task: Task)", "def mine(task: Task)")
    (tmp_path / "strange_method.py").write_text(source)
    study = {"dataset": "digits", "clients": 3, "rounds": 1, "local_epochs": 1, "model": "mlp"}
    with monkeypatch.context() as installed:
        installed.syspath_prepend(tmp_path)
        run = idl.run(idl.Study(methods=["mine"], **study), tmp_path / "run", engine="sequential")
        run.bundle("mine", tmp_path / "b", client=1)
        assert not caplog.messages
        (tmp_path / "strange_method.py").write_text(source + "# another\n")
        Bundle.read(tmp_path / "b")
        assert "was made with the method mine of strange 1.0, code" in caplog.text
        idl.run(study=idl.Study(methods=["mine"], **study), out=tmp_path / "run", engine="sequential", resume=True)
        assert "the code of mine has changed since" in caplog.text
    with pytest.raises(idl.InputError, match=r"needs the method mine of strange 1\.0, which is not installed here"):
        Bundle.read(tmp_path / "b")
