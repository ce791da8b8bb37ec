"""The command ``federation serve``: the line that continues a run, and messages that name nothing it does not have."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from machines import port
from places import Place
from sites import study

from idiolect.cli import main
from idiolect.core.errors import Interrupted, RunError, option
from idiolect.federation import programs
from idiolect.studies.settings import SETTINGS

OWN = ("out", "listen", "page", "min_sites", "start_with", "deadline", "lost_after", "most_norm", "quiet")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def _serve(place: Place, whole: Path, out: Path, *options: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["federation", "serve", str(place.folder / "server"), str(whole), "--out", str(out), *map(str, options)])
    return int(end.value.code or 0)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--start-with 2",
        "--min-sites 1 --start-with 2",
        "--deadline 20 --lost-after 1.5",
        "--most-norm 1e6 --quiet",
        "--deadline 12345678.5",
        "--page PORT",
        "--min-sites 1 --start-with 1 --deadline 9 --lost-after 3 --most-norm 7 --page PORT --listen 127.0.0.1:PORT",
    ],
)
def test_the_line_that_continues_has_the_options_that_were_given(
    options: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, dict[str, Any]]] = []
    lines: list[str] = []

    def conduct(*_: Any, again: str, **__: Any) -> Any:
        lines.append(again)
        raise Interrupted

    def serve(*arguments: Any, say: Any, watcher: Any, **more: Any) -> Any:
        calls.append((arguments, more | {"quiet": say.quiet}))
        raise Interrupted

    given = [word.replace("PORT", str(port())) for word in options.split()]
    out = tmp_path / "a run"
    monkeypatch.setattr(programs, "conduct", conduct)
    assert _serve(place, study(tmp_path), out, *given) == 130
    [line] = lines
    monkeypatch.setattr(programs, "serve", serve)
    _serve(place, tmp_path / "study.yaml", out, *given)
    with pytest.raises(SystemExit):
        main(shlex.split(line)[1:])
    assert calls[0] == calls[1], line
    assert set(re.findall(r"--[a-z-]+", line)) == {"--out", *(word for word in given if word.startswith("--"))}


@pytest.mark.parametrize("name", [*(s.option or n for n, s in SETTINGS.items()), *OWN])
def test_messages_name_only_options_that_it_has(
    name: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def conduct(*_: Any, **__: Any) -> Any:
        raise RunError(f"try {option(name)}, or {option(name, 3)}")

    monkeypatch.setattr(programs, "conduct", conduct)
    assert _serve(place, study(tmp_path), tmp_path / "run", "--quiet") == 2
    said = capsys.readouterr().err.replace("\n", " ")
    setting = {s.option or n: n for n, s in SETTINGS.items()}.get(name)
    dashed = f"--{name.replace('_', '-')}"
    expected = f"try {dashed}, or {dashed} 3" if setting is None else f"try {setting}, or {setting}: 3"
    assert expected in " ".join(said.split())


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ({"model": "torch.nn.Linear"}, "model torch.nn.Linear is code of its own, which no site imports"),
        ({"model": "my_networks.small"}, "model my_networks.small is code of its own, which no site imports"),
        ({"model": "torch:my_networks.eyes"}, "model my_networks.eyes is code of its own, which no site imports"),
        ({"precision": "bf16"}, "precision bf16 is for a simulation, and sites train in float32"),
        ({"partition": "my_module.halves"}, "partition is for a simulation"),
        ({"clients": 3}, "clients is for a simulation"),
    ],
)
def test_a_study_that_no_site_can_follow_ends_before_any_site_is_asked(
    lines: dict[str, object], said: str, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = study(tmp_path, **lines)  # type: ignore[arg-type]
    assert _serve(place, whole, tmp_path / "run", "--quiet") == 2
    text = " ".join(capsys.readouterr().err.split())
    assert said in text
    assert "--" not in text
    assert not (tmp_path / "run").exists()


def test_run_names_its_options_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.yaml").write_text("dataset: digits\nclients: 3\npartition: iid\nsecure_aggregation: true\n")
    with pytest.raises(SystemExit):
        main(["run", str(tmp_path / "study.yaml"), "--robust", "median", "--out", str(tmp_path / "run")])
    assert "--secure-aggregation" in capsys.readouterr().err
