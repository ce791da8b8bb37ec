"""Networks and methods of one's own between a run, its bundle and whoever uses that."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

import idiolect as idl
from idiolect.core.errors import InputError
from idiolect.deploy import code
from idiolect.deploy.bundle import Bundle

NET = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU()), nn.Linear(12, classes)
"""
METHOD = """
from idiolect.methods.fedper import fedper

def mine(task):
    return fedper(task)
"""


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in (("lab_net", NET), ("lab_method", METHOD)):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def run(method: str = "fedper", model: str = "lab_net.net", **more: object) -> idl.Result:
    study = idl.Study(dataset="digits", clients=3, rounds=1, local_epochs=1, methods=[method], model=model, lr=0.01)
    return idl.run(study, "run", engine="sequential", **more)


@pytest.mark.parametrize(
    ("method", "model", "file", "text"),
    [
        ("fedper", "lab_net.net", "lab_net.py", NET.replace("nn.ReLU()", "nn.Tanh()")),
        ("fedper", "lab_net.net", "lab_net.py", NET + "# only a remark\n"),
        ("lab_method.mine", "mlp", "lab_method.py", METHOD + "\nother = mine\n"),
        ("lab_method.mine", "lab_net.net", "lab_method.py", METHOD + "\nother = mine\n"),
    ],
)
def test_a_run_is_no_bundle_with_another_version_of_its_code(
    method: str, model: str, file: str, text: str, lab: Path
) -> None:
    result = run(method, model)
    kept = (lab / file).read_text()
    (lab / file).write_text(text)
    with pytest.raises(InputError, match=rf"{file[:-3]}\.\w+ has changed since run began"):
        result.bundle(method, "b")
    assert not Path("b").exists()
    (lab / file).write_text(kept)
    assert result.bundle(method, "b").about.kind == "join"


def test_a_run_that_goes_on_says_that_its_network_has_changed(lab: Path, caplog: pytest.LogCaptureFixture) -> None:
    run()
    for text, said in ((NET, False), (NET.replace("nn.ReLU()", "nn.Tanh()"), True)):
        (lab / "lab_net.py").write_text(text)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            run(resume=True)
        assert ("the code of the network has changed since run began" in caplog.text) == said


@pytest.mark.parametrize("client", [None, 1, "all"])
def test_a_bundle_whose_last_check_fails_leaves_nothing(client: object, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run()

    def refuse(folder: Path, *_: object) -> None:
        raise InputError(f"{folder} has a network that cannot be used")

    monkeypatch.setattr(code, "check", refuse)
    with pytest.raises(InputError, match=r"^b has a network that cannot be used$"):
        result.bundle("fedper", "b", client=client)
    assert [p.name for p in Path().iterdir() if p.name.startswith((".b", "b"))] == []


@pytest.mark.parametrize(
    ("method", "model", "named"),
    [
        ("fedper", "lab_net.net", "lab_net.net"),
        ("lab_method.mine", "mlp", "lab_method.mine"),
        ("lab_method.mine", "lab_net.net", "lab_method.mine and lab_net.net"),
        ("fedper", "mlp", ""),
    ],
)
@pytest.mark.parametrize("client", [None, 0, "all"])
def test_the_cards_commands_ask_for_permission_where_it_is_needed(
    method: str, model: str, named: str, client: object
) -> None:
    bundle = run(method, model).bundle(method, "b", client=client)
    card = (bundle.folder / "README.md").read_text()
    commands = [line for line in card.splitlines() if line.startswith("    idiolect ")]
    assert len(commands) == (2 if client is None else 1)
    assert all(command.endswith(" --allow-import") == bool(named) for command in commands)
    said = f"It imports {named}, which --allow-import permits: look at that code first."
    assert (said in card.replace("\\", "")) == bool(named)
    assert Bundle.read("b", allow_import=bool(named)).about == bundle.about
