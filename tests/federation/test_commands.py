"""The commands of a federation that need no network: kits, what would be sent, and what cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest
from sites import study

from idiolect.cli import main


def _ends(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    (folder / "federation.yaml").write_text("name: trial\nserver: 127.0.0.1:9\nsites: [north, south]\n")
    assert _ends("federation", "provision", folder / "federation.yaml", "--out", folder / "kits") == 0
    return folder


def test_a_site_sees_what_it_would_send(
    made: Path, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = study(tmp_path, "fedavg, fedper")
    site = [
        "site",
        made / "kits" / "site-south",
        "--data",
        files["south"],
        "--target",
        "label",
        "--state",
        tmp_path / "s",
    ]
    assert _ends(*site, "--dry-run", "--study", whole) == 0
    said = capsys.readouterr().out
    for text in (
        "127.0.0.1:9",
        "client 1 of trial",
        '"grade 0"',
        "sums/sum_F",
        "float64 (5,)",
        "fedper: ",
        "weight",
    ):
        assert text in said, text
    assert not (tmp_path / "s").exists()
    assert "fedper: " in said
    numbers = [line.rsplit(",", 1)[0] for line in files["south"].read_text().splitlines()[1:]]
    assert not [row for row in numbers if row.split(",")[0] in said]  # no value of a sample
    (tmp_path / "policy.yaml").write_text("methods: [fedavg]\n")
    assert _ends(*site, "--dry-run", "--study", whole, "--policy", tmp_path / "policy.yaml") == 2
    assert "method fedper is not allowed here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["federation", "serve", "{kits}/site-north", "{study}"], "not the kit of a server"),
        (["federation", "serve", "{kits}/server", "{study}", "--min-sites", "3"], "--min-sites 3 is not possible"),
        (["federation", "serve", "{kits}/server", "{study}", "--deadline", "0"], "--deadline 0 is not possible"),
        (["federation", "serve", "{kits}/server", "{study}", "--listen", "here"], "--listen: 'here' is not an address"),
        (["federation", "serve", "{kits}/server", "{study}", "--page", "here"], "--page: 'here' is not an address"),
        (["site", "{kits}/server", "--data", "{data}", "--target", "label"], "not the kit of a site"),
        (["site", "{kits}/site-north", "--data", "{data}", "--target", "lable"], "did you mean 'label'"),
        (["site", "{kits}/site-north", "--data", "{data}", "--study", "{study}"], "--study is for --dry-run"),
        (["federation", "provision", "{study}", "--out", "{kits}/new"], "a federation has name"),
    ],
)
def test_what_cannot_work_ends_with_a_sentence(
    arguments: list[str], said: str, made: Path, files: dict[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    places = {"kits": made / "kits", "study": study(tmp_path), "data": files["north"]}
    assert _ends(*(text.format(**places) for text in arguments)) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["study.yaml"]


def test_too_few_sites_to_start_with(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve = ("federation", "serve", made / "kits" / "server", study(tmp_path), "--out", tmp_path / "run")
    assert _ends(*serve, "--start-with", 1) == 2
    said = capsys.readouterr().err
    assert "--start-with 1 is not possible with 2 sites, of which each round needs 2" in said
    assert not (tmp_path / "run").exists()
