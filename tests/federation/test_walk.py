"""The walk-through of docs/federation.md, as it stands there: its blocks are run in order, by real processes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import machines
import numpy as np
import pandas as pd
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "federation.md"
FIRST, LAST = "## Three hospitals on one machine", "## The operator's page"
SITES = ("north", "south", "east")


def blocks() -> list[tuple[str, str]]:
    """Language and text of each block of the walk-through."""
    text = PAGE.read_text(encoding="utf-8")
    walk = text[text.index(FIRST) : text.index(LAST)]
    return re.findall(r"^```([^\n`]*)\n(.*?)^```$", walk, re.MULTILINE | re.DOTALL)


class Walk:
    """Somebody who follows the page."""

    def __init__(self, folder: Path, launcher: machines.Launcher) -> None:
        self.folder, self._say, self.running = folder, launcher.say, dict[str, int]()
        self.done: list[str] = []

    def start(self, name: str, line: str) -> int:
        arguments = shlex.split(line)
        assert arguments[0] == "idiolect"
        log = str(self.folder / f"{name}.log")
        return int(self._say(arguments=arguments[1:], log=log, folder=str(self.folder)))

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def command(self, line: str) -> None:
        """Run a command; a server and its sites run side by side until the server is done."""
        if " serve " in line:
            self.running["server"] = self.start("server", line)
        elif line.startswith("idiolect site ") and "--dry-run" not in line:
            for site in SITES:
                self.running[site] = self.start(site, line.replace("north", site))
        else:
            if "server" in self.running and "--dry-run" not in line:
                self.finish()
            name = f"command {len(self.done)}"
            assert self._say(wait=self.start(name, line)) in ("0", "1" if " watch " in line else "0"), self.said(name)
            self.done.append(line)

    def finish(self) -> None:
        end = time.monotonic() + 2 * machines.LONG
        while "Report: " not in self.said("server"):
            assert time.monotonic() < end, self.said("server")
            time.sleep(0.1)
        assert self._say(wait=self.running.pop("server")) == "0"

    def close(self) -> None:
        for pid in self.running.values():
            os.kill(pid, signal.SIGKILL)
            self._say(wait=pid)


@pytest.fixture
def walk(tmp_path: Path, launcher: machines.Launcher) -> Iterator[Walk]:
    walk = Walk(tmp_path, launcher)
    yield walk
    walk.close()


def test_the_walk_through_works_as_it_is_written(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(walk.folder)
    for language, text in blocks():
        if language == "python":
            exec(compile(text, PAGE.name, "exec"), {"__name__": "walk"})
        elif "server:" in text:
            address = f"127.0.0.1:{machines.port()}"
            Path("federation.yaml").write_text(re.sub(r"127\.0\.0\.1:\d+", address, text))
        elif language == "yaml":
            Path("study.yaml").write_text(re.sub(r"rounds: \d+", "rounds: 2", text))
        else:
            for line in text.splitlines():
                walk.command(line)
    kinds = [line.split()[1] for line in walk.done]
    assert kinds == ["federation", "site", "predict", "export", "watch", "join", "bundle", "join", "predict", "export"]
    own, fourth = pd.read_csv("predictions.csv"), pd.read_csv("west-predictions.csv")
    for found in (own, fourth):
        assert len(found) == 40
        np.testing.assert_allclose(found[["p_benign", "p_malignant"]].sum(axis=1), 1, atol=1e-5)
    new = pd.read_csv("new.csv")
    fed = {column: new[column].to_numpy(np.float64) for column in new}
    for file, found in (("north.onnx", own), ("west.onnx", fourth)):
        [p_NC] = onnxruntime.InferenceSession(file).run(["probabilities"], fed)
        np.testing.assert_allclose(p_NC, found[["p_benign", "p_malignant"]], atol=1e-5)
    assert "the personal model after the last round is in state-north" in walk.said("north")
