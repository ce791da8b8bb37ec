"""What contributors and releases rely on: hooks and workflows run what the Makefile runs, on the Pythons it names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

TOP = Path(__file__).resolve().parents[1]
TEST, RELEASE = (TOP / ".github" / "workflows" / f"{name}.yml" for name in ("test", "release"))
PROCESSES = re.compile(r"Processes\(|\bProcesses,|\"processes\"|--workers|workers=[2-9]|os\.fork|killpg|/bin/")


def lint(makefile: str) -> list[str]:
    """The commands of ``make lint``."""
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]


def workflow(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def commands(path: Path) -> str:
    """All that the steps of a workflow run, with the paths of POSIX."""
    jobs = workflow(path)["jobs"].values()
    return "\n".join(step.get("run", "") for job in jobs for step in job["steps"]).replace(
        ".venv\\Scripts\\", ".venv/bin/"
    )


LINT = lint((TOP / "Makefile").read_text())


def test_hooks_run_what_make_lint_runs() -> None:
    (local,) = yaml.safe_load((TOP / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local", "versions are those of constraints.txt"
    assert [hook["entry"] for hook in local["hooks"]] == LINT
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in local["hooks"])


def test_windows_and_the_readme_run_what_make_lint_runs() -> None:
    windows = commands(TEST).splitlines()
    assert [line for line in windows if line in LINT] == LINT
    readme = (TOP / "README.md").read_text()
    assert [command for command in LINT if command not in readme] == []


def test_what_is_listed_as_slow_is_there() -> None:
    for id in (TOP / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines():
        file, _, name = id.partition("[")[0].partition("::")
        assert (TOP / file).is_file(), id
        assert not name or re.search(rf"^(async )?def {name}\(", (TOP / file).read_text(encoding="utf-8"), re.M), id


@pytest.mark.parametrize(
    ("recipe", "found"),
    [
        ("lint: setup\n\t$(BIN)/ruff check .\n\nall:\n\tx\n", [".venv/bin/ruff check ."]),
        ("lint:\n\t$(BIN)/mypy\n\t$(BIN)/other --all\n", [".venv/bin/mypy", ".venv/bin/other --all"]),
        ("check: lint\n\ty\nlint: a b  ## c\n\tz\n", ["z"]),
    ],
)
def test_the_recipe_is_read(recipe: str, found: list[str]) -> None:
    assert lint(recipe) == found


def test_the_pythons_that_are_tested_are_those_that_the_package_names() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    named = [text.rpartition(" ")[2] for text in project["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert named
    assert project["requires-python"] == f">={named[0]}"
    tested = workflow(TEST)["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert tested == named
    assert set(workflow(RELEASE)["jobs"]["try"]["strategy"]["matrix"]["python"]) == {named[0], named[-1]}
    contributing = (TOP / "CONTRIBUTING.md").read_text()
    assert f"Python {named[0]} to {named[-1]}" in contributing


def test_folders_that_windows_tests_start_no_processes() -> None:
    (line,) = [line for line in commands(TEST).splitlines() if "pytest" in line]
    folders = re.findall(r"tests/\S+", line)
    assert folders
    for folder in folders:
        files = list((TOP / folder).rglob("*.py"))
        assert files, folder
        assert [file.name for file in files if PROCESSES.search(file.read_text())] == [], folder


@pytest.mark.parametrize(
    "line", ["with Processes(2) as engine:", 'idl.run(study, engine="processes")', "pid = os.fork()", "run --workers 2"]
)
def test_processes_are_recognised(line: str) -> None:
    assert PROCESSES.search(line)


def test_a_release_is_built_checked_and_tried_before_it_is_published() -> None:
    jobs = workflow(RELEASE)["jobs"]
    assert (jobs["try"]["needs"], jobs["audit"]["needs"], jobs["publish"]["needs"]) == (
        "build",
        "build",
        ["try", "audit"],
    )
    said = commands(RELEASE)
    places = [said.index(step) for step in ("-m build", "twine check --strict", "pip install dist/", "idiolect run")]
    assert places == sorted(places)
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    audited = "\n".join(step.get("run", "") for step in jobs["audit"]["steps"])
    assert "pip-audit --strict" in audited, "a package that cannot be looked up would pass"
    assert audited.index("cyclonedx-py environment") < audited.index("pip-audit --strict")
    assert "tag" in jobs["publish"]["if"]
    example = re.search(r"clone/(\S+\.yaml)", said)
    assert example
    assert (TOP / example[1]).exists()


OPERATION, DEPLOYMENT = TOP / "examples" / "operation", TOP / "docs" / "deployment.md"


@pytest.mark.parametrize("name", ["idiolect-server.service", "Dockerfile"])
def test_the_docs_show_the_files_of_operation(name: str) -> None:
    assert f"```text\n{(OPERATION / name).read_text()}```" in DEPLOYMENT.read_text()


def test_the_site_s_unit_is_the_server_s_but_for_what_the_docs_say() -> None:
    server, site = ((OPERATION / f"idiolect-{name}.service").read_text().splitlines() for name in ("server", "site"))
    other = [line for line in site if line not in server]
    assert len(other) == 3
    assert "```text\n" + "\n".join(other) + "\n```" in DEPLOYMENT.read_text()
    names = ("Description=", "ExecStart=", "ReadOnlyPaths=")
    assert [line for line in server if not line.startswith(names)] == [
        line for line in site if not line.startswith(names)
    ]


def long(sources: dict[str, str]) -> dict[str, int]:
    """The files with 400 lines or more, with their lines."""
    counts = {name: text.count("\n") for name, text in sources.items()}
    return {name: count for name, count in counts.items() if count >= 400}


def test_a_source_file_has_fewer_than_400_lines() -> None:
    sources = {str(path): path.read_text(encoding="utf-8") for path in (TOP / "src").rglob("*.py")}
    assert len(sources) > 200, "all rooms are read"
    assert long(sources) == {}


@pytest.mark.parametrize(
    ("text", "lines"),
    [("", None), ("x = 1\n" * 399, None), ("x = 1\n" * 400, 400), ("\n" * 404, 404), ("# why\n" * 1000, 1000)],
)
def test_long_files_are_seen(text: str, lines: int | None) -> None:
    assert long({"short.py": "", "a.py": text}) == ({} if lines is None else {"a.py": lines})
