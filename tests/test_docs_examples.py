"""Every example of README, docs and tutorials: Python is run, studies are read, command lines parsed, studies built.

A block in a language that nobody runs, or a command that does not parse, fails. ``settings`` blocks are those of
``test_settings.py``. Training is cut to a round, so that all of it takes seconds.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import yaml

import idiolect as idl
from idiolect import cli
from idiolect.cli import list as listing
from idiolect.deploy import Bundle
from idiolect.federation.flower.site_file import SiteFile
from idiolect.federation.server.study import study_for
from idiolect.federation.trust import kits
from idiolect.federation.trust.policy import Policy
from idiolect.reproduction import diff, diff_recipe, forecast, reproduce
from idiolect.tuning import plan as plans

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/tutorials").glob("*.md"))]
COMMAND = re.compile(r"^(?:\$ |\S*/bin/)?idiolect (.+)$", re.MULTILINE)
MADE_UP = ("<name>", "mymethod")  # stand for what the reader writes
LANGUAGES = {"", "console", "text", "python", "yaml", "toml", "settings"}


class Block(NamedTuple):
    """A fenced block, and the file that the line before it says it is."""

    language: str
    text: str
    file: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"(?:`(\w+\.py)`:\n\n)?^```([^\n`]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"^\s*```", text, re.MULTILINE)) == 2 * len(found), "a block that is not seen here"
    return [Block(language.strip(), body, file or None) for file, language, body in found]


def commands(page: Path) -> list[str]:
    """Those of blocks, a line each, and those within sentences."""
    within = [b.text.replace("\\\n", " ") for b in blocks(page) if b.language not in ("settings", "python", "yaml")]
    found = [line for text in within for line in COMMAND.findall(text)]
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found += [line for line in re.findall(r"`idiolect ([^`]+)`", prose) if " " in line]
    return [line for line in found if not any(word in line for word in MADE_UP)]


SEARCH = plans.Plan(
    search={"default": ""}, trials=2, sampler="tpe", halving=3, seed=0, validation=0.2, refit=False
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "digits"
    study = idl.Study(methods=["fedavg", "pfedfda"], rounds=1, local_epochs=1, clients=3, partition="iid")
    idl.run(study, folder, engine="sequential")
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Path) -> Path:
    """A folder with the files that the examples speak of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(80, 3)), columns=["a", "b", "c"]).assign(
        hospital=["Oslo", "Porto"] * 40, diagnosis=rng.permutation(["ill", "well"] * 40), patient=range(80)
    )
    for name in ("patients.csv", "north.csv"):
        table.to_csv(name, index=False)
    pd.DataFrame({"say": ["good", "bad"], "stars": ["high", "low"]}).to_csv("books.csv", index=False)
    pd.DataFrame({"age": [63, 41, 57], "sex": [1, 0, 1], "chol": [0, 209, 218], "num": [2, 0, 1]}).to_csv(
        "va.data", index=False, header=False
    )
    Path("FOLDER").mkdir()
    plans.write(Path("FOLDER"), idl.Study(), SEARCH)
    for name in ("study.yaml", "tuned.yaml"):
        Path(name).write_text("dataset: digits\nmethods: [fedavg, pfedfda]\n")
    for name in ("fm", "one", "two", "e1", "e5", "e10", "mine", "NAME", "digits-2", "compare"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "study.yaml").write_text("dataset: digits\n")
    Path("runs", "digits").symlink_to(trained)
    for page in PAGES:
        for block in blocks(page):
            if block.file:
                Path(block.file).write_text(block.text)
                monkeypatch.delitem(sys.modules, block.file.removesuffix(".py"), raising=False)
            if block.language == "yaml" and "name: hospitals" in block.text:
                Path("federation.yaml" if "server:" in block.text else "hospitals.yaml").write_text(block.text)
            if block.language == "toml" and "py-modules" in block.text:
                installed(tmp_path, tomllib.loads(block.text)["project"])
                monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def installed(folder: Path, project: dict[str, Any]) -> None:
    """The metadata that an installer leaves of a package with methods."""
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = [f"{name} = {where}" for name, where in project["entry-points"]["idiolect.methods"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[idiolect.methods]", *points, ""]))


class Built(BaseException):
    """A command has read all that it was told."""


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_commands_parse_and_build_their_study(page: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*given: Any, **how: Any) -> Any:
        raise Built

    for where, name in [
        ("idiolect.studies", "run"), ("idiolect.report", "read"), ("idiolect.report", "merged"),
        ("idiolect.report", "write"), ("idiolect.tuning", "tune"),
        ("idiolect.report", "export"), ("idiolect.federation.trust.authority", "provision"),
        ("idiolect.federation.trust.authority", "operator"), ("idiolect.federation.trust.authority", "ask"),
        ("idiolect.federation.trust.kits", "server_kit"), ("idiolect.federation.trust.kits", "site_kit"),
        ("idiolect.federation.programs", "take_part"), ("idiolect.federation.flower.app_folder", "write_app"),
    ]:  # fmt: skip
        monkeypatch.setattr(f"{where}.{name}", built)
    monkeypatch.setattr("idiolect.cli.federation._check_packages", lambda *given, **how: None)  # flwr is not in dev
    monkeypatch.setattr(idl.Study, "federation", built)
    monkeypatch.setattr(idl.Study, "samples", built)
    monkeypatch.setattr("idiolect.runs.loading.look", built)  # only idiolect bundle
    monkeypatch.setattr(Bundle, "read", built)
    monkeypatch.setattr(reproduce, "reproduce", built)
    monkeypatch.setattr(forecast, "forecast", built)
    monkeypatch.setattr(diff, "compare", built)
    monkeypatch.setattr(diff, "of_run", lambda *given, **how: None)
    monkeypatch.setattr(diff_recipe, "of_recipe", lambda *given, **how: (None, None))
    monkeypatch.setattr(listing, "_LISTS", dict.fromkeys(listing._LISTS, built))
    monkeypatch.setattr(listing, "_named_methods", built)
    for line in commands(page):
        with pytest.raises((Built, SystemExit)) as ended:
            cli.main(shlex.split(line, comments=True))
        assert ended.type is Built or (ended.value.code == 0 and "--help" in line), line


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_python_runs_and_studies_are_read(page: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("runs", "mine", "study.yaml").unlink()  # an example makes this run
    train, search, real = idl.run, idl.tune, reproduce.reproduce

    def quick(study: idl.Study, out: Any = None, **how: Any) -> Any:
        few = {"rounds": 1, "local_epochs": 1, "clients": study.clients and min(5, study.clients)}
        if getattr(study.partition, "name", None) == "classes":  # few clients would need more than there is of a class
            few["clients"] = study.clients
        return train(study.model_copy(update=few), out, engine="sequential", **how)

    def quick_search(study: idl.Study, *given: Any, **how: Any) -> Any:
        return search(study.model_copy(update={"rounds": 2, "local_epochs": 1, "clients": 3}), *given, **how)

    def asked(*given: Any, **how: Any) -> list[Any]:
        inspect.signature(real).bind(*given, **how)
        return []

    monkeypatch.setattr(idl, "run", quick)
    monkeypatch.setattr(idl, "tune", quick_search)
    monkeypatch.setattr(reproduce, "reproduce", asked)
    for block in blocks(page):
        assert block.language in LANGUAGES, f"nobody runs {block.language!r}"
        if block.language == "yaml" and "server:" in block.text:
            assert kits.describe(Path("federation.yaml"))
        elif block.language == "yaml" and re.search("^(most_rounds|digest):", block.text, re.MULTILINE):
            Policy.model_validate(yaml.safe_load(block.text))
        elif block.language == "yaml" and re.search("^state:", block.text, re.MULTILINE):
            SiteFile.model_validate(yaml.safe_load(block.text))
        elif block.language == "yaml" and "text:" in block.text and "data:" not in block.text:  # of a federation
            Path("texts.yaml").write_text(block.text)
            assert study_for(Path("texts.yaml"), "shops").text == "say"
        elif block.language == "yaml":
            idl.Study(**yaml.safe_load(block.text))
        if block.language == "python":
            if "flwr_datasets" in block.text and not importlib.util.find_spec("flwr_datasets"):
                continue
            exec(compile(block.text, f"{page.name}: {block.text[:40]!r}", "exec"), {"__name__": "example"})


def test_examples_are_found() -> None:
    assert sum(b.language == "python" for page in PAGES for b in blocks(page)) >= 9
    assert sum(len(commands(page)) for page in PAGES) >= 40
