"""The tutorial of pretrained models, run as a reader would run it, with tiny backbones under the names that it uses."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from idiolect import cli

for package in ("transformers", "peft", "onnxscript"):
    if find_spec(package) is None:  # imported by those alone that use it: it takes seconds
        pytest.skip(f"{package} is not installed", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parent))

from tiny_backbones import write_bert, write_vit  # noqa: E402

PAGE = Path(__file__).parents[1] / "docs/tutorials/pretrained.md"
BACKBONES = {"facebook/dinov2-small": write_vit, "sentence-transformers/all-MiniLM-L6-v2": write_bert}


class Tutorial:
    """The page's programs and commands, by the heading that they stand under."""

    def __init__(self) -> None:
        self.parts: dict[str, list[tuple[str, str]]] = {}
        heading, blocks = "", r"^## ([^\n]+)$|^```(\w*)\n(.*?)^```$"
        for match in re.finditer(blocks, PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            heading = match[1] or heading
            if match[1] is None:
                self.parts.setdefault(heading, []).append((match[2], match[3]))

    def run(self, heading: str) -> list[str]:
        """Run a part, and return its commands."""
        done = []
        for language, text in self.parts[heading]:
            if language == "python" or (language == "text" and "onnxruntime" in text):
                exec(compile(text, f"{PAGE.name}: {heading}", "exec"), {"__name__": "example"})
            for line in re.findall(r"^idiolect (.+)$", text, re.MULTILINE) if not language else ():
                quick = " --engine sequential" * line.startswith("run ")
                with pytest.raises(SystemExit) as ended:
                    cli.main(shlex.split(line + quick))
                watched = line.startswith("watch")  # which says by its exit code whether something moved
                assert ended.value.code == 0 or (watched and ended.value.code == 1), line
                done.append(line)
        return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tutorial")
    for name, write in BACKBONES.items():
        write(folder / name)
    return folder


@pytest.fixture
def tutorial(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Tutorial:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return Tutorial()


@pytest.mark.thorough
def test_from_a_folder_of_images_to_a_joined_site_and_a_file(tutorial: Tutorial, capsys: Any) -> None:
    done = tutorial.run("Images: a folder for each site")
    assert [line.split()[0] for line in done] == ["describe", "run"]
    folders = {place.name: len([*place.rglob("*.png")]) for place in Path("photos").iterdir()}
    assert folders == {"Graz": 80, "Lyon": 80, "Oslo": 80}
    assert [len([*Path(name).rglob("*.png")]) for name in ("photos-porto", "photos-new")] == [100, 50]
    assert len(np.unique(np.array(Image.open(next(Path("photos-new").glob("*.png")))))) > 2
    assert [line.split()[0] for line in tutorial.run("A site that was not there")] == [
        "bundle",
        "join",
        "predict",
        "watch",
    ]
    capsys.readouterr()
    tutorial.run("One file")
    table = pd.read_csv("photos.csv", dtype={"image": str})
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("photos-new/")]
    for (file, label, p), (_, row) in zip(map(str.split, said), table.sort_values("image").iterrows(), strict=True):
        assert file == row["image"]
        assert float(p) == pytest.approx(row[f"p_{label}"], abs=1e-4)
        assert float(p) == pytest.approx(max(row[[c for c in table if c.startswith("p_")]]), abs=1e-4)


def test_from_a_table_of_texts_to_a_joined_site_and_a_file(tutorial: Tutorial, capsys: Any) -> None:
    done = tutorial.run("Texts: a table")
    assert [line.split()[0] for line in done] == ["run", "bundle", "join", "predict", "watch", "export"]
    table, texts = pd.read_csv("read.csv"), list(pd.read_csv("unread.csv")["say"])
    said = [
        line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines() if line.startswith(("high ", "low "))
    ]
    for (label, p, text), wanted, (_, row) in zip(said, texts, table.iterrows(), strict=True):
        assert text == wanted
        assert float(p) == pytest.approx(row[f"p_{label}"], abs=1e-4)
        assert label == row["label"]


def test_adapters(tutorial: Tutorial) -> None:
    if not Path("reviews.csv").exists():
        tutorial.run("Texts: a table")
    assert [line.split()[0] for line in tutorial.run("Adapters")] == ["run", "bundle"]
    assert Path("adapters-bundle/bundle.json").exists()
