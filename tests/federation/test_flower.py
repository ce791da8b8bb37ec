"""A federation on Flower's network, with a stand-in for Flower: each message meets a new process's state."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flower_stand_in as flwr
import pandas as pd
import pytest
import yaml
from sites import NAMES, study

from idiolect.cli import main
from idiolect.core.errors import InputError, RunError
from idiolect.core.version import __version__, digest
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import FILE
from idiolect.federation.server.study import study_for
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision
from rehearsal import rehearsed

SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]
Files = dict[str, Path]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    flwr.install(monkeypatch)
    from idiolect.federation.flower import grid_link

    for name in ("_LOOK", "_PULL", "_AGAIN"):
        monkeypatch.setattr(grid_link, name, 0.0)
    yield
    flwr.forget()


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("provision") / "kits"
    provision(kits.Description(name="trial", server="127.0.0.1:9092", sites=NAMES), out)
    return out


class Deployment:
    """SuperNodes with a file of settings each, and the run's settings."""

    def __init__(self, tmp_path: Path, files: Files, kit: Path | None = None, **policy: Any) -> None:
        from idiolect.federation.flower import client_app

        self.folder, self.files, nodes = tmp_path, files, []
        for k, (name, file) in enumerate(files.items()):
            whose = {"site": name} if kit is None else {"kit": str(kit / f"site-{name}")}
            settings = whose | {"data": str(file), "target": "label", "state": f"state-{name}"}
            if policy:
                (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
                settings |= {"policy": "policy.yaml"}
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings))
            config = {"idiolect": str(tmp_path / f"{name}.yaml")}
            nodes.append(flwr.Node(100 - k, client_app(), config))  # numbers say nothing of names
        self.nodes = dict(zip(files, nodes, strict=True))
        self.settings: dict[str, Any] = {"sites": ",".join(files), "out": str(tmp_path / "run"), "lost-after": 0.001}
        if kit is not None:
            self.settings |= {"kit": str(kit / "server"), "sites": ""}

    def run(self, **settings: Any) -> pd.DataFrame:
        from idiolect.federation.flower import server_app
        from idiolect.federation.server.conduct import result

        self.settings |= settings
        grid = flwr.Grid(self.nodes.values(), self.settings)
        server_app(self.folder / "study.yaml")(grid, flwr.Context(0, {}, self.settings))
        return result(self.folder / "run").records

    def simulated(self, out: str = "simulated") -> pd.DataFrame:
        whole = study_for(self.folder / "study.yaml", "trial")
        samples = {name: SiteFiles(file, target="label") for name, file in self.files.items()}
        return rehearsed(whole, samples, self.folder / out).records

    def said(self) -> str:
        return (self.folder / "run" / FILE).read_text()


def _same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    both = one.merge(other, on=SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-6


def test_the_numbers_are_those_of_a_simulation(files: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedavg, pfedfda, scaffold, fedper, ditto, fedpac", rounds=2)
    deployment = Deployment(tmp_path, files)
    _same(deployment.run(), deployment.simulated())


def test_sums_are_opened_although_each_message_meets_a_new_process(files: Files, tmp_path: Path, kit: Path) -> None:
    study(tmp_path, "fedavg, scaffold", rounds=2, secure_aggregation=True)
    deployment = Deployment(tmp_path, files, kit)
    _same(deployment.run(), deployment.simulated())
    assert "changes nothing" not in deployment.said()
    assert not list(tmp_path.glob("state-*/**/sum.state")), "keys are deleted at the end"


def test_keys_serve_for_one_answer_in_all_processes(files: Files, tmp_path: Path, kit: Path) -> None:
    """The server asks for a second upload under the same keys, with another model."""
    from idiolect.federation.flower.envelope import content_of, fill, values_of
    from idiolect.federation.messages import pack, unpack

    study(tmp_path, rounds=1, secure_aggregation=True)
    deployment, asked = Deployment(tmp_path, files, kit), []
    node = deployment.nodes["north"]

    def look(message: Any, reply: Any) -> Any:
        content = content_of(message.content)
        if content is not None and unpack(content).about["kind"] == "local":
            about, arrays = unpack(content)
            context = flwr.Context(node.node_id, node.node_config, deployment.settings)
            for factor in (1, 2):
                other = pack(about, {path: factor * a for path, a in arrays.items()})
                again = flwr.Message(fill(values_of(message.content), other), node.node_id, "train")
                asked.append(unpack(content_of(node.app(again, context).content) or b""))
            assert asked[0].arrays.keys() == unpack(content_of(reply.content) or b"").arrays.keys()
        return reply

    node.spoil = look
    deployment.run()
    assert "refused" not in asked[0].about
    assert "answered another question with the same keys" in asked[1].about["refused"]


def test_a_policy_applies(files: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedavg, fedper", rounds=1)
    deployment = Deployment(tmp_path, files, methods=["fedavg"])
    with pytest.raises(RunError, match="method fedper is not allowed here"):
        deployment.run()


@pytest.mark.parametrize(
    ("rule", "fits"), [({"version": "0.0.1"}, False), ({"digest": "0" * 64}, False), ({"version": __version__}, True)]
)
def test_a_policy_names_the_idiolect_that_may_answer(
    rule: dict[str, str], fits: bool, files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study(tmp_path, rounds=1)
    deployment = Deployment(tmp_path, files, **(rule | ({"digest": digest()} if fits else {})))
    if fits:
        assert len(deployment.run())
        return
    with pytest.raises(RunError, match="settings cannot be used"):
        deployment.run()
    assert "is installed" in (said := capsys.readouterr().err) or "installed one" in said


def test_only_the_owner_of_a_key_is_its_site(files: Files, tmp_path: Path, kit: Path) -> None:
    """A SuperNode that says another site's name, and one that says a name of nobody."""
    from idiolect.federation.flower.envelope import fill

    study(tmp_path, rounds=1)
    deployment = Deployment(tmp_path, files, kit)

    def north(message: Any, reply: Any) -> Any:
        return flwr.Message(fill({"site": "north", "signature": b"0"}), reply_to=message)

    def nobody(message: Any, reply: Any) -> Any:
        return flwr.Message(fill({"site": "nobody"}), reply_to=message)

    deployment.nodes["coast"].spoil = north
    deployment.nodes["west"].spoil = nobody
    deployment.run(**{"start-with": 3, "min-sites": 3})
    assert "and has not the key of that site" in (said := deployment.said())
    assert "is no site of this federation" in said
    assert "begins without coast" in said


def test_a_supernode_that_comes_back_is_asked_again(files: Files, tmp_path: Path) -> None:
    """It loses its first question; Flower says that it has started again."""
    study(tmp_path, rounds=2)
    deployment = Deployment(tmp_path, files)
    node, lost = deployment.nodes["south"], []

    def lose(message: Any, reply: Any) -> Any:
        if message.metadata.group_id == "2" and not lost:
            lost.append(message)
            node.last_activated_at = "second"
            return None
        return reply

    node.spoil = lose
    deployment.settings["lost-after"] = 30.0
    _same(deployment.run(), deployment.simulated())
    assert "south is back and is asked again" in deployment.said()


def test_a_supernode_whose_app_fails_does_not_count(files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=2)
    deployment = Deployment(tmp_path, files)
    fault = flwr.Error("the process ended")

    def fail(message: Any, reply: Any) -> Any:
        return flwr.Message(fault, reply_to=message) if message.metadata.group_id == "1" else reply

    deployment.nodes["south"].spoil = fail
    deployment.run()
    assert "south does not count: its reply cannot be read (its SuperNode says: the process ended)" in deployment.said()
    assert "south counts again" in deployment.said()


def test_what_the_server_keeps_makes_bundles_and_pages(files: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedavg", rounds=1)
    Deployment(tmp_path, files).run()
    assert (tmp_path / "run" / "report.html").exists()
    for command in (
        ["bundle", tmp_path / "run", "--method", "fedavg", "--out", tmp_path / "bundle"],
        ["join", tmp_path / "bundle", "--data", files["west"], "--target", "label", "--out", tmp_path / "joined"],
        ["bundle", tmp_path / "state-north", "--out", tmp_path / "north-bundle"],
    ):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in command])
        assert not end.value.code, command


def test_an_app_of_a_simulation_finds_its_sites(files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=1)
    deployment = Deployment(tmp_path, files)
    for k, node in enumerate(deployment.nodes.values()):
        node.node_config = {"partition-id": k, "num-partitions": len(files)}
    assert len(deployment.run(**{"simulated-sites": str(tmp_path)}))


def test_a_variable_names_the_file_of_a_site(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NVFlare starts SuperNodes; what the run says of a simulation does not count then."""
    from idiolect.federation.flower.site_file import Own

    study(tmp_path, rounds=1)
    deployment = Deployment(tmp_path, files)
    monkeypatch.setenv("IDIOLECT_SITE", str(tmp_path))
    for k, (name, node) in enumerate(deployment.nodes.items()):
        node.node_config = {"partition-id": 4 - k, "num-partitions": len(files), "client-name": name}
    assert len(deployment.run(**{"simulated-sites": str(tmp_path)}))
    for client in ("", "../north"):
        with pytest.raises(InputError, match="name one file"):
            Own.of({"client-name": client}, {})
    monkeypatch.setenv("IDIOLECT_SITE", str(tmp_path / "north.yaml"))
    assert Own.of({}, {}).site == "north"


def test_the_folder_of_an_app(tmp_path: Path) -> None:
    from idiolect.federation.flower.app_folder import write_app

    file = study(tmp_path, "fedavg")
    assert write_app(file, tmp_path / "app", tmp_path / "run", sites=("north", "south")) == ("north", "south")
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    app = project["tool"]["flwr"]["app"]
    assert project["project"]["dependencies"] == []
    assert digest() in project["project"]["description"]
    assert app["config"]["sites"] == "north,south"
    assert app["config"]["out"] == str(tmp_path / "run")
    for name in app["components"].values():
        module = name.partition(":")[0]
        place = tmp_path / "app" / f"{module.replace('.', '/')}.py"
        scope: dict[str, Any] = {"__file__": str(place)}
        exec(compile(place.read_text(), place, "exec"), scope)
        assert callable(scope["app"])


def test_an_app_that_cannot_be_is_not_written(tmp_path: Path) -> None:
    from idiolect.federation.flower.app_folder import write_app

    file = study(tmp_path, "fedavg", secure_aggregation=True)
    for sites, said in (((), "give sites"), (("north", "north"), "needs the sites' keys"), (("a", "b"), "give kit")):
        with pytest.raises(InputError, match=said):
            write_app(file, tmp_path / "app", tmp_path / "run", sites=sites)
    study(tmp_path, "fedavg")
    for sites, said in ((("a", "A"), "the same name"), (("a b",), "is no name")):
        with pytest.raises(InputError, match=said):
            write_app(file, tmp_path / "app", tmp_path / "run", sites=sites)
    with pytest.raises(InputError, match=r"has no a\.yaml"):
        write_app(file, tmp_path / "app", tmp_path / "run", sites=("a",), simulated=tmp_path)
    assert not (tmp_path / "app").exists()
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mine").touch()
    with pytest.raises(InputError, match="is not an empty folder"):
        write_app(file, tmp_path / "app", tmp_path / "run", sites=("a",))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "state"),
        ({"state": "s", "data": "d.csv"}, "give kit, or without one site"),
        ({"site": "a", "kit": "k", "state": "s", "data": "d.csv"}, "give kit, or without one site"),
        ({"site": "a", "state": "s", "data": "d.csv", "polcy": "p"}, "polcy"),
    ],
)
def test_a_file_of_a_site_that_is_none(settings: dict[str, str], said: str, tmp_path: Path) -> None:
    from idiolect.federation.flower.site_file import SiteFile

    (tmp_path / "site.yaml").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=said):
        SiteFile.read(tmp_path / "site.yaml")
    with pytest.raises(InputError, match="cannot read"):
        SiteFile.read(tmp_path / "absent.yaml")


def test_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flwr" else find(name))
    with pytest.raises(SystemExit) as end:
        main(["federation", "app", str(study(tmp_path)), "--sites", "a", "--out", str(tmp_path / "app")])
    assert end.value.code == 2
    assert 'pip install "idiolect[flower]"' in capsys.readouterr().err
    assert not (tmp_path / "app").exists()
